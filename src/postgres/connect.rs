//! One connector for every session, SQL and replication: hosts and addresses in order, TLS, timeout, login.
//!
//! tokio-postgres is only given streams that are connected and encrypted already, since it knows neither verify-ca
//! nor verify-full; so both kinds of session trust the same certificates. Rules as libpq has them (manual, "Database
//! Connection Control Functions"): the next address or host is tried when one cannot be reached; a server that
//! refuses us ends the search, unless it is only starting up.

use std::{
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    path::PathBuf,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use super::{
    WireError, message, settings,
    tls::{self, TlsSocket},
};
use crate::{
    config::{
        SourceEndpoint,
        endpoint::{Host, SslMode},
    },
    failure::Failure,
};

/// A connected socket, encrypted where it has to be.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsSocket>),
}

impl Stream {
    /// The hash of the server's certificate for SCRAM's channel binding (RFC 5929, `tls-server-end-point`).
    pub fn server_end_point(&self) -> Option<&[u8]> {
        match self {
            Stream::Tls(socket) => socket.server_end_point.as_deref(),
            Stream::Tcp(_) | Stream::Unix(_) => None,
        }
    }

    /// SO_RCVBUF; 0 when the kernel does not say.
    pub fn receive_buffer_bytes(&self) -> usize {
        let size = match self {
            Stream::Tcp(stream) => SockRef::from(stream).recv_buffer_size(),
            Stream::Unix(stream) => SockRef::from(stream).recv_buffer_size(),
            Stream::Tls(socket) => SockRef::from(socket.stream.get_ref().0).recv_buffer_size(),
        };
        size.unwrap_or(0)
    }

    /// Waits for bytes and appends what there is to `buffer`, up to its capacity; 0 at the end. Cancel-safe.
    pub async fn read_available(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read_buf(buffer).await,
            Stream::Unix(stream) => stream.read_buf(buffer).await,
            Stream::Tls(socket) => poll_fn(|cx| poll_records(&mut socket.stream, cx, buffer)).await,
        }
    }

    pub fn is_encrypted(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }
}

/// A TLS read gives one record, 16 KiB at most; takes all that are there. What is read stays in `buffer` whatever
/// becomes of the future, since it is never pending after a byte.
fn poll_records(
    stream: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    buffer: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let before = buffer.len();
    while buffer.len() < buffer.capacity() {
        match pin!(stream.read_buf(buffer)).poll(cx) {
            Poll::Ready(Ok(1..)) => {}
            // An end or an error after some bytes comes again at the next read.
            _ if buffer.len() > before => break,
            outcome => return outcome,
        }
    }
    Poll::Ready(Ok(buffer.len() - before))
}

/// Runs `$body` with `$stream` bound to the inner stream, pinned.
macro_rules! delegate {
    ($self:expr, $stream:ident => $body:expr) => {
        match $self.get_mut() {
            Stream::Tcp(inner) => {
                let $stream = Pin::new(inner);
                $body
            }
            Stream::Unix(inner) => {
                let $stream = Pin::new(inner);
                $body
            }
            Stream::Tls(inner) => {
                let $stream = Pin::new(&mut inner.stream);
                $body
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_shutdown(cx))
    }
}

/// What is to be made of a connected stream: log in, and return the session.
pub(super) trait Start: Sync {
    type Session: Send;

    fn start(
        &self,
        endpoint: &SourceEndpoint,
        stream: Stream,
    ) -> impl Future<Output = Result<Self::Session, WireError>> + Send;
}

/// Where one attempt goes.
enum Address {
    Tcp { host: String, address: SocketAddr },
    Unix(PathBuf),
}

/// Whether an attempt encrypts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Encryption {
    Never,
    IfOffered,
    Always,
}

/// Tries hosts, addresses and encryptions in order until a session is there.
pub(super) async fn establish<S: Start>(
    endpoint: &SourceEndpoint,
    start: &S,
) -> Result<S::Session, WireError> {
    let mut last = WireError::Resolve(io::Error::new(io::ErrorKind::NotFound, "no host is configured"));
    let mut tried = Vec::new();
    for host in &endpoint.hosts {
        tried.push(describe_host(host));
        match try_host(endpoint, host, start).await {
            Ok(session) => return Ok(session),
            Err(error) => last = error,
        }
        if ends_search(&last) {
            tried = vec![describe_host(host)];
            break;
        }
    }
    let to = format!("{}, user {}, database {}", tried.join(", then "), endpoint.user, endpoint.database);
    Err(WireError::Connect { to, cause: Box::new(last) })
}

async fn try_host<S: Start>(
    endpoint: &SourceEndpoint,
    host: &Host,
    start: &S,
) -> Result<S::Session, WireError> {
    let mut last = WireError::Resolve(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in addresses(host, endpoint.connect_timeout).await? {
        match try_address(endpoint, &address, start).await {
            Err(error) if !ends_search(&error) => last = error,
            outcome => return outcome,
        }
    }
    Err(last)
}

/// A server that answers and refuses is the one that was meant; only one that is starting up sends us on.
fn ends_search(error: &WireError) -> bool {
    match error {
        WireError::Server { code, .. } => code != "57P03",
        WireError::Auth(_) | WireError::Tls(_) => true,
        _ => false,
    }
}

async fn try_address<S: Start>(
    endpoint: &SourceEndpoint,
    address: &Address,
    start: &S,
) -> Result<S::Session, WireError> {
    let (first, then) = encryptions(endpoint.ssl.mode, address);
    match (attempt(endpoint, address, first, start).await, then) {
        (Err(error), Some(second)) if is_worth_plain(&error) => {
            match attempt(endpoint, address, second, start).await {
                // pg_hba.conf wants neither: the first answer says more.
                Err(again) if again.sqlstate() == Some("28000") => Err(error),
                outcome => outcome,
            }
        }
        (outcome, _) => outcome,
    }
}

/// What to try first, and what if that is refused. TLS is never used on a Unix socket, as in libpq.
fn encryptions(mode: SslMode, address: &Address) -> (Encryption, Option<Encryption>) {
    match (address, mode) {
        (Address::Unix(_), _) | (_, SslMode::Disable) => (Encryption::Never, None),
        (_, SslMode::Prefer) => (Encryption::IfOffered, Some(Encryption::Never)),
        (_, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => (Encryption::Always, None),
    }
}

/// `prefer` goes on without TLS when the handshake fails or pg_hba.conf has no line for encrypted sessions.
fn is_worth_plain(error: &WireError) -> bool {
    matches!(error, WireError::Tls(_)) || error.sqlstate() == Some("28000")
}

/// One attempt from socket to session, within the timeout.
async fn attempt<S: Start>(
    endpoint: &SourceEndpoint,
    address: &Address,
    encryption: Encryption,
    start: &S,
) -> Result<S::Session, WireError> {
    within(endpoint.connect_timeout, async {
        let stream = open(endpoint, address, encryption).await?;
        start.start(endpoint, stream).await
    })
    .await
}

/// `limit` of 0: none, as in libpq.
async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, WireError>>,
) -> Result<T, WireError> {
    if limit.is_zero() {
        return work.await;
    }
    tokio::time::timeout(limit, work).await.unwrap_or(Err(WireError::Timeout(limit)))
}

async fn addresses(host: &Host, limit: Duration) -> Result<Vec<Address>, WireError> {
    match host {
        Host::Unix { folder, port } => Ok(vec![Address::Unix(folder.join(format!(".s.PGSQL.{port}")))]),
        Host::Tcp { host, port } => {
            let lookup =
                async { tokio::net::lookup_host((host.as_str(), *port)).await.map_err(WireError::Resolve) };
            let found = within(limit, lookup).await?;
            Ok(found.map(|address| Address::Tcp { host: host.clone(), address }).collect())
        }
    }
}

async fn open(
    endpoint: &SourceEndpoint,
    address: &Address,
    encryption: Encryption,
) -> Result<Stream, WireError> {
    match address {
        Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
        Address::Tcp { host, address } => {
            let mut stream = TcpStream::connect(address).await?;
            tune(&stream)?;
            if encryption == Encryption::Never || !is_tls_agreed(&mut stream, encryption).await? {
                return Ok(Stream::Tcp(stream));
            }
            Ok(Stream::Tls(Box::new(tls::handshake(stream, host, &endpoint.ssl).await?)))
        }
    }
}

/// Asks for TLS. One byte is read and no more: anything behind it would be unauthenticated text that somebody slipped
/// in before the handshake. Errors: a refusal where TLS is a must.
async fn is_tls_agreed(stream: &mut TcpStream, encryption: Encryption) -> Result<bool, WireError> {
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    match stream.read_u8().await {
        Ok(b'S') => Ok(true),
        Ok(b'N') if encryption == Encryption::IfOffered => Ok(false),
        Ok(b'N') => Err(WireError::Tls("the server has TLS switched off, and sslmode demands it".to_owned())),
        // An error message here could be anybody's, so it is not shown.
        Ok(_) => Err(WireError::Protocol(
            "the server answers neither yes nor no to the request for TLS".to_owned(),
        )),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(WireError::Closed),
        Err(error) => Err(error.into()),
    }
}

/// No delay for small messages; a peer that has vanished is noticed within two minutes.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(10))
        .with_retries(6);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

fn describe_host(host: &Host) -> String {
    match host {
        Host::Tcp { host, port } if host.contains(':') => format!("host [{host}]:{port}"),
        Host::Tcp { host, port } => format!("host {host}:{port}"),
        Host::Unix { folder, port } => format!("socket {}/.s.PGSQL.{port}", folder.display()),
    }
}

/// An SQL session with the settings of [`settings`]; its connection task ends when the client is dropped.
///
/// Errors: a [`Failure`] of kind environment that names host, user and database.
pub async fn sql_session(
    endpoint: &SourceEndpoint,
    application_name: &str,
) -> anyhow::Result<tokio_postgres::Client> {
    Ok(establish(endpoint, &SqlStart { application_name }).await.map_err(Failure::from)?)
}

/// How [`establish`] makes a tokio-postgres client of a stream.
struct SqlStart<'a> {
    application_name: &'a str,
}

impl SqlStart<'_> {
    fn config(&self, endpoint: &SourceEndpoint, stream: &Stream) -> tokio_postgres::Config {
        use tokio_postgres::config::{SslMode, SslNegotiation};
        let mut config = tokio_postgres::Config::new();
        config.user(&endpoint.user).dbname(&endpoint.database).application_name(self.application_name);
        config.options(settings::options());
        if let Some(password) = &endpoint.password {
            config.password(password.expose());
        }
        if stream.is_encrypted() {
            // "Direct" keeps tokio-postgres from negotiating: [`AlreadyEncrypted`] hands the stream back as it is.
            config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        } else {
            config.ssl_mode(SslMode::Disable);
        }
        config
    }
}

impl Start for SqlStart<'_> {
    type Session = tokio_postgres::Client;

    async fn start(&self, endpoint: &SourceEndpoint, stream: Stream) -> Result<Self::Session, WireError> {
        let config = self.config(endpoint, &stream);
        let (client, connection) = config.connect_raw(stream, AlreadyEncrypted).await.map_err(sql_error)?;
        let version = connection.parameter("server_version").and_then(message::server_version).unwrap_or(0);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!("SQL session ended: {error}");
            }
        });
        if let Some(statements) = settings::later(version) {
            client.batch_execute(statements).await.map_err(sql_error)?;
        }
        Ok(client)
    }
}

/// The TLS "connector" for tokio-postgres: the stream is encrypted already.
struct AlreadyEncrypted;

impl TlsConnect<Stream> for AlreadyEncrypted {
    type Stream = Stream;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Stream>>;

    fn connect(self, stream: Stream) -> Self::Future {
        std::future::ready(Ok(stream))
    }
}

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        match self.server_end_point() {
            Some(hash) => ChannelBinding::tls_server_end_point(hash.to_vec()),
            None => ChannelBinding::none(),
        }
    }
}

/// tokio-postgres' error as ours.
fn sql_error(error: tokio_postgres::Error) -> WireError {
    if let Some(refusal) = error.as_db_error() {
        return WireError::Server {
            code: refusal.code().code().to_owned(),
            message: refusal.message().to_owned(),
            detail: refusal.detail().map(str::to_owned),
            hint: refusal.hint().map(str::to_owned),
        };
    }
    if error.is_closed() {
        return WireError::Closed;
    }
    let text = error.to_string();
    match error.into_source().map(|source| source.downcast::<io::Error>()) {
        Some(Ok(source)) => WireError::from(*source),
        Some(Err(source)) => WireError::Auth(format!("{text}: {source}")),
        None => WireError::Protocol(text),
    }
}

//! Our own client for replication and COPY sessions.
//!
//! tokio-postgres knows no replication mode (`CopyBothResponse`), and it hands out COPY rows one allocation at a time.
//! Here [`Wire::fill`] does one large read and [`Wire::next_frame`] cuts messages out of the buffer in place, so that
//! a caller who naps between reads finds thousands of rows per system call. Source: PostgreSQL manual, "Frontend/
//! Backend Protocol", "Streaming Replication Protocol".
//!
//! ```text
//!  connect ─ login ─> idle ─ simple_query ─> idle
//!                      │
//!                      └ begin_copy ─> copying: fill, next_frame, send_copy_data ─ copy_done / finish_copy_out ─> idle
//! ```
//!
//! Backpressure: whoever does not call `fill` stops the server by TCP's window; it can still send status updates.
//! Dropping a [`Wire`] closes the socket at once; a temporary slot or an exported snapshot ends with it.

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::io::AsyncWriteExt;

use super::{
    WireError,
    auth::{Credentials, Login, Step},
    connect::{self, Start, Stream},
    frames::FrameBuffer,
    message, settings,
};
use crate::config::{Secret, SourceEndpoint};

/// Room per read outside of COPY: control sessions stay small.
const IDLE_READ_BYTES: usize = 64 * 1024;

/// Room per read while copying. Larger than the default socket buffers, so that one read empties them.
const COPY_READ_BYTES: usize = 1024 * 1024;

/// Before the login nobody has a reason to send more than this.
const LOGIN_MAX_BYTES: usize = 1024 * 1024;

/// What a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    Sql,
    /// A walsender bound to the database (`replication=database`): takes replication commands and SQL.
    LogicalReplication,
}

/// One complete backend message, borrowed from the receive buffer.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub tag: u8,
    pub body: &'a [u8],
}

/// A session with a PostgreSQL server.
pub struct Wire {
    stream: Stream,
    incoming: FrameBuffer,
    /// Bytes that must still be sent before anything else.
    outgoing: BytesMut,
    backend_pid: i32,
    server_version: u32,
}

impl Wire {
    /// Connects, logs in and pins [`settings`]. Errors: [`WireError::Connect`] around the reason.
    pub async fn connect(
        endpoint: &SourceEndpoint,
        kind: SessionKind,
        application_name: &str,
    ) -> Result<Wire, WireError> {
        connect::establish(endpoint, &WireStart { kind, application_name }).await
    }

    /// The server's version in the shape of `server_version_num`: 180006.
    pub fn server_version(&self) -> u32 {
        self.server_version
    }

    /// The process that serves this session.
    pub fn backend_pid(&self) -> i32 {
        self.backend_pid
    }

    pub fn is_unix(&self) -> bool {
        matches!(self.stream, Stream::Unix(_))
    }

    /// The socket's receive buffer as the kernel has it now (TCP grows it by itself); 0 when it does not say.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.stream.receive_buffer_bytes()
    }

    /// Runs SQL or a replication command; the rows of the last result set, as text.
    ///
    /// After an error of the server the session is usable again.
    pub async fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, WireError> {
        self.send_query(sql).await?;
        let mut rows = Vec::new();
        loop {
            match self.advance().await {
                Ok((b'T', _)) => rows.clear(),
                Ok((b'D', body)) => rows.push(message::data_row(&body)?),
                Ok((b'C' | b'I', _)) => {}
                Ok((b'Z', _)) => return Ok(rows),
                Ok((tag, _)) => return Err(unexpected(tag, "the answer to a query")),
                Err(error) => return Err(self.after_error(error).await),
            }
        }
    }

    /// Starts `COPY … TO STDOUT` or `START_REPLICATION …` and returns when the server has agreed; what follows stays
    /// in the buffer for [`Self::next_frame`].
    pub async fn begin_copy(&mut self, sql: &str) -> Result<(), WireError> {
        self.send_query(sql).await?;
        self.incoming.set_read_bytes(COPY_READ_BYTES);
        loop {
            match self.advance().await {
                Ok((b'H' | b'W', _)) => return Ok(()),
                Ok((b'C', _)) => {}
                Ok((tag, _)) => return Err(unexpected(tag, "the start of a copy")),
                Err(error) => return Err(self.after_error(error).await),
            }
        }
    }

    /// One large read: what the socket has, up to the buffer's room. Waits until there is something; the number of
    /// bytes. Cancel-safe: no byte is lost when the future is dropped. Errors: [`WireError::Closed`] at the end.
    pub async fn fill(&mut self) -> Result<usize, WireError> {
        match self.stream.read_available(self.incoming.spare()).await? {
            0 => Err(WireError::Closed),
            bytes => Ok(bytes),
        }
    }

    /// As [`Self::fill`], but 0 at once when nothing has arrived.
    pub async fn try_fill_now(&mut self) -> Result<usize, WireError> {
        use futures_util::FutureExt;
        self.fill().now_or_never().unwrap_or(Ok(0))
    }

    /// The next complete message in the buffer, in place; `None`: [`Self::fill`] is needed.
    ///
    /// Notices and parameter changes are dealt with here and skipped. Errors: the server's ErrorResponse as
    /// [`WireError::Server`], which ends a copy (`finish_copy_out` then reads on to the next query); a broken length.
    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        Ok(self.next_range()?.map(|(tag, body)| Frame { tag, body: self.incoming.slice(body) }))
    }

    /// The message taken last is the next one again; before [`Self::fill`] only.
    pub fn put_back(&mut self) {
        self.incoming.put_back();
    }

    /// Sends one CopyData message, flushed.
    pub async fn send_copy_data(&mut self, body: &[u8]) -> Result<(), WireError> {
        frontend::CopyData::new(body)?.write(&mut self.outgoing);
        self.flush().await
    }

    /// Ends START_REPLICATION from our side: what the server still sends is thrown away up to ReadyForQuery.
    pub async fn copy_done(&mut self) -> Result<(), WireError> {
        frontend::copy_done(&mut self.outgoing);
        self.flush().await?;
        self.drain().await
    }

    /// After the CopyDone message of `COPY … TO STDOUT`: reads up to ReadyForQuery.
    pub async fn finish_copy_out(&mut self) -> Result<(), WireError> {
        self.drain().await
    }

    /// Says goodbye and closes. A dead connection is closed as well.
    pub async fn terminate(mut self) {
        frontend::terminate(&mut self.outgoing);
        if self.flush().await.is_ok() {
            let _ = self.stream.shutdown().await;
        }
    }

    #[inline]
    fn next_range(&mut self) -> Result<Option<(u8, std::ops::Range<usize>)>, WireError> {
        loop {
            let Some((tag, body)) = self.incoming.next_frame()? else { return Ok(None) };
            match tag {
                b'N' | b'S' | b'A' | b'E' => self.aside(tag, body)?,
                _ => return Ok(Some((tag, body))),
            }
        }
    }

    /// Messages that may come at any time: errors, notices, parameter changes, notifications.
    #[cold]
    fn aside(&mut self, tag: u8, body: std::ops::Range<usize>) -> Result<(), WireError> {
        let body = self.incoming.slice(body);
        match tag {
            b'E' => return Err(message::error_response(body)),
            b'N' => log_notice(body),
            b'S' => {
                if let Some(("server_version", text)) = message::parameter_status(body) {
                    self.server_version = message::server_version(text).unwrap_or(0);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The next message, waited for, with a copy of its body: for everything but the hot path.
    async fn advance(&mut self) -> Result<(u8, Vec<u8>), WireError> {
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok((frame.tag, frame.body.to_vec()));
            }
            self.fill().await?;
        }
    }

    /// Throws messages away up to ReadyForQuery. Errors: the first ErrorResponse among them.
    async fn drain(&mut self) -> Result<(), WireError> {
        let mut failed = None;
        loop {
            match self.next_range() {
                Ok(Some((b'Z', _))) => return failed.map_or(Ok(()), Err),
                Ok(Some(_)) => {}
                Ok(None) => {
                    if let Err(error) = self.fill().await {
                        return Err(failed.unwrap_or(error));
                    }
                }
                Err(error @ WireError::Server { .. }) => failed = failed.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
    }

    /// The server's error, once it is ready for the next query (or gone: a FATAL one is its last word).
    async fn after_error(&mut self, error: WireError) -> WireError {
        if matches!(error, WireError::Server { .. }) {
            let _ = self.drain().await;
        }
        error
    }

    async fn send_query(&mut self, sql: &str) -> Result<(), WireError> {
        frontend::query(sql, &mut self.outgoing)?;
        self.flush().await
    }

    /// Cancel-safe: what is not sent stays in `outgoing` and goes first next time.
    async fn flush(&mut self) -> Result<(), WireError> {
        while !self.outgoing.is_empty() {
            self.stream.write_buf(&mut self.outgoing).await?;
        }
        Ok(self.stream.flush().await?)
    }

    async fn log_in(&mut self, user: &str, password: Option<&Secret>) -> Result<(), WireError> {
        let server_end_point = self.stream.server_end_point().map(<[u8]>::to_vec);
        let password = password.map(Secret::expose);
        let credentials = Credentials { user, password, server_end_point: server_end_point.as_deref() };
        let mut login = Login::new(credentials);
        loop {
            match self.advance_login().await? {
                (b'R', body) => {
                    if login.step(&body, &mut self.outgoing)? == Step::Done {
                        return Ok(());
                    }
                    self.flush().await?;
                }
                // NegotiateProtocolVersion: an older minor version, which is what we speak.
                (b'v', _) => {}
                (tag, _) => return Err(unexpected(tag, "the login")),
            }
        }
    }

    /// As [`Self::advance`], but a server that nobody has proved yet cannot make us hold much.
    async fn advance_login(&mut self) -> Result<(u8, Vec<u8>), WireError> {
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok((frame.tag, frame.body.to_vec()));
            }
            if self.incoming.pending_bytes() > LOGIN_MAX_BYTES {
                return Err(WireError::Protocol("a login message of over 1 MiB".to_owned()));
            }
            self.fill().await?;
        }
    }

    async fn until_ready(&mut self) -> Result<(), WireError> {
        loop {
            match self.advance().await? {
                (b'K', body) => self.backend_pid = message::backend_pid(&body)?,
                (b'Z', _) => return Ok(()),
                (tag, _) => return Err(unexpected(tag, "the start of a session")),
            }
        }
    }
}

/// How [`connect::establish`] makes a [`Wire`] of a stream.
struct WireStart<'a> {
    kind: SessionKind,
    application_name: &'a str,
}

impl WireStart<'_> {
    fn startup_message(&self, endpoint: &SourceEndpoint, out: &mut BytesMut) -> Result<(), WireError> {
        let mut parameters = vec![
            ("user", endpoint.user.as_str()),
            ("database", endpoint.database.as_str()),
            ("application_name", self.application_name),
        ];
        if self.kind == SessionKind::LogicalReplication {
            parameters.push(("replication", "database"));
        }
        parameters.extend_from_slice(settings::PINNED);
        Ok(frontend::startup_message(parameters, out)?)
    }
}

impl Start for WireStart<'_> {
    type Session = Wire;

    async fn start(&self, endpoint: &SourceEndpoint, stream: Stream) -> Result<Wire, WireError> {
        let mut wire = Wire {
            stream,
            incoming: FrameBuffer::new(IDLE_READ_BYTES),
            outgoing: BytesMut::new(),
            backend_pid: 0,
            server_version: 0,
        };
        self.startup_message(endpoint, &mut wire.outgoing)?;
        wire.flush().await?;
        wire.log_in(&endpoint.user, endpoint.password.as_ref()).await?;
        wire.until_ready().await?;
        if let Some(statements) = settings::later(wire.server_version) {
            wire.simple_query(statements).await?;
        }
        Ok(wire)
    }
}

fn log_notice(body: &[u8]) {
    let field = |wanted| message::error_field(body, wanted).unwrap_or_default();
    tracing::debug!(severity = field(b'S'), code = field(b'C'), "PostgreSQL notice: {}", field(b'M'));
}

#[cold]
fn unexpected(tag: u8, when: &str) -> WireError {
    WireError::Protocol(format!("message `{}` in {when}", char::from(tag).escape_default()))
}

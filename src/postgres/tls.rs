//! libpq's `sslmode` on rustls.
//!
//! | mode | chain | host name | without TLS |
//! |---|---|---|---|
//! | `prefer` | if a root file is given | no | yes |
//! | `require` | if a root file is given | no | no |
//! | `verify-ca` | yes | no | no |
//! | `verify-full` | yes | yes | no |
//!
//! Source: PostgreSQL manual, "SSL Support" of libpq. `disable` never comes here. Unlike libpq, a root file that is
//! given and cannot be read is an error in every mode; revocation lists are not read.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature,
        verify_tls13_signature_with_raw_key,
    },
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
        pem::{self, PemObject},
    },
    server::ParsedCertificate,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    WireError,
    certificate::{self, Validity},
};
use crate::config::endpoint::{SYSTEM_ROOTS, SslMode, SslOptions};

/// An encrypted socket and the hash that binds a login to it.
pub struct TlsSocket {
    pub stream: TlsStream<TcpStream>,
    pub server_end_point: Option<Vec<u8>>,
}

/// The handshake on a socket whose server has agreed to TLS. `host` is what the user asked for.
///
/// Errors: [`WireError::Tls`] for files, certificates and protocol; [`WireError::Io`] when the peer goes away.
pub async fn handshake(stream: TcpStream, host: &str, options: &SslOptions) -> Result<TlsSocket, WireError> {
    let name = server_name(host, &stream)?;
    let connector = TlsConnector::from(Arc::new(client_config(host, options)?));
    let stream = connector.connect(name, stream).await.map_err(WireError::from)?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let server_end_point = certificate.and_then(|der| certificate::server_end_point(der));
    Ok(TlsSocket { stream, server_end_point })
}

/// For SNI only: the verifier has its own copy of `host`. What is no DNS name travels as the address, hence not at all.
fn server_name(host: &str, stream: &TcpStream) -> Result<ServerName<'static>, WireError> {
    match ServerName::try_from(host.to_owned()) {
        Ok(name) => Ok(name),
        Err(_) => Ok(ServerName::IpAddress(stream.peer_addr()?.ip().into())),
    }
}

fn client_config(host: &str, options: &SslOptions) -> Result<ClientConfig, WireError> {
    let verifier = Verifier {
        trust: trust(options)?,
        host: (options.mode == SslMode::VerifyFull).then(|| host.to_owned()),
        algorithms: provider().signature_verification_algorithms,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(tls_error)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match client_identity(options)? {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(tls_error)?,
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())).clone()
}

/// Whom we believe.
#[derive(Debug)]
struct Trust {
    roots: Arc<RootCertStore>,
    /// The same as certificates: a self-signed server certificate may be its own root.
    certificates: Vec<CertificateDer<'static>>,
}

fn trust(options: &SslOptions) -> Result<Option<Trust>, WireError> {
    match &options.root_cert {
        Some(path) if path == Path::new(SYSTEM_ROOTS) => {
            Ok(Some(Trust { roots: system_roots()?, certificates: Vec::new() }))
        }
        Some(path) => trust_file(path).map(Some),
        None if matches!(options.mode, SslMode::VerifyCa | SslMode::VerifyFull) => Err(WireError::Tls(
            "this sslmode needs authorities to trust: give a file with sslrootcert (default ~/.postgresql/root.crt), \
             or sslrootcert=system"
                .to_owned(),
        )),
        None => Ok(None),
    }
}

fn trust_file(path: &Path) -> Result<Trust, WireError> {
    let certificates = certificates(path, "sslrootcert")?;
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates.iter().cloned());
    if added == 0 {
        return Err(WireError::Tls(format!("sslrootcert {} holds no usable certificate", path.display())));
    }
    Ok(Trust { roots: Arc::new(roots), certificates })
}

/// The system's authorities, read once: that takes milliseconds.
fn system_roots() -> Result<Arc<RootCertStore>, WireError> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    });
    match roots.is_empty() {
        true => {
            Err(WireError::Tls("sslrootcert=system, but this system has no authorities installed".to_owned()))
        }
        false => Ok(roots.clone()),
    }
}

fn certificates(path: &Path, parameter: &str) -> Result<Vec<CertificateDer<'static>>, WireError> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    read().map_err(|error| pem_error(parameter, path, error))
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn client_identity(options: &SslOptions) -> Result<Option<Identity>, WireError> {
    let (cert, key) = match (&options.cert, &options.key) {
        (None, None) => return Ok(None),
        (Some(cert), Some(key)) => (cert, key),
        (Some(_), None) => return Err(WireError::Tls("sslcert is given without its sslkey".to_owned())),
        (None, Some(_)) => return Err(WireError::Tls("sslkey is given without its sslcert".to_owned())),
    };
    let chain = certificates(cert, "sslcert")?;
    refuse_shared_key(key)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| pem_error("sslkey", key, error))?;
    Ok(Some((chain, key)))
}

/// libpq's rule: ours alone (0600), or root's and readable by a group (0640).
fn refuse_shared_key(path: &Path) -> Result<(), WireError> {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(path)
        .map_err(|error| WireError::Tls(format!("sslkey {}: {error}", path.display())))?;
    let allowed = if data.uid() == 0 { 0o640 } else { 0o600 };
    if data.is_file() && data.mode() & 0o077 & !allowed != 0 {
        return Err(WireError::Tls(format!(
            "sslkey {} can be read by others: chmod 600, or 640 when root owns it",
            path.display()
        )));
    }
    Ok(())
}

fn pem_error(parameter: &str, path: &Path, error: pem::Error) -> WireError {
    let reason = match error {
        pem::Error::NoItemsFound => {
            "holds nothing of this sort in PEM form (encrypted keys are not supported)".into()
        }
        pem::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    };
    WireError::Tls(format!("{parameter} {}: {reason}", path.display()))
}

fn tls_error(error: rustls::Error) -> WireError {
    WireError::Tls(describe(&error))
}

/// rustls' error for people who set `sslmode` and `sslrootcert`.
pub(super) fn describe(error: &rustls::Error) -> String {
    use CertificateError as Bad;
    let rustls::Error::InvalidCertificate(reason) = error else { return error.to_string() };
    let what = match reason {
        Bad::UnknownIssuer | Bad::BadSignature => "is not signed by an authority of sslrootcert",
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => "is not for this host name",
        Bad::Expired | Bad::ExpiredContext { .. } => "has expired",
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => "is not valid yet",
        _ => return error.to_string(),
    };
    format!("the server's certificate {what}")
}

/// Checks as much of the server's certificate as the mode asks for; the handshake's signature always.
#[derive(Debug)]
struct Verifier {
    /// `None`: any certificate will do.
    trust: Option<Trust>,
    /// The name to be certified; `None`: any.
    host: Option<String>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn check_chain(
        &self,
        trust: &Trust,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        if is_own_root(trust, end_entity)? {
            return check_validity(end_entity, now);
        }
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(&parsed, &trust.roots, intermediates, now, algorithms)
        {
            // webpki's complaint is that an authority plays the server; what matters is that nobody vouches for it.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(_)))
                if certificate::is_self_issued(end_entity).map_err(bad_encoding)? =>
            {
                Err(CertificateError::UnknownIssuer.into())
            }
            outcome => outcome,
        }
    }

    fn check_host(&self, end_entity: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let Some(host) = &self.host else { return Ok(()) };
        match certificate::is_for_host(end_entity, host).map_err(bad_encoding)? {
            true => Ok(()),
            false => Err(CertificateError::NotValidForName.into()),
        }
    }
}

/// Whether the server's certificate is self-signed and, byte for byte, among those that we trust.
fn is_own_root(trust: &Trust, end_entity: &CertificateDer<'_>) -> Result<bool, rustls::Error> {
    if !trust.certificates.contains(end_entity) {
        return Ok(false);
    }
    certificate::is_self_issued(end_entity).map_err(bad_encoding)
}

fn check_validity(end_entity: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    let now = std::time::Duration::from_secs(now.as_secs());
    match certificate::validity(end_entity, now).map_err(bad_encoding)? {
        Validity::Now => Ok(()),
        Validity::NotYet => Err(CertificateError::NotValidYet.into()),
        Validity::Expired => Err(CertificateError::Expired.into()),
    }
}

fn bad_encoding(_: x509_cert::der::Error) -> rustls::Error {
    CertificateError::BadEncoding.into()
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(trust) = &self.trust {
            self.check_chain(trust, end_entity, intermediates, now)?;
            self.check_host(end_entity)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.algorithms)
    }

    /// By the bare key, so that certificates of version 1 (`openssl x509 -req` made them for long) do as in libpq.
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(certificate::public_key(cert).map_err(bad_encoding)?);
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

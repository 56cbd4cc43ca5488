//! Answers to the server's authentication requests, as a state machine over message bodies: no socket.
//!
//! Source: PostgreSQL manual, "Message Flow" (start-up) and "SASL Authentication". Hazard: a server that breaks off
//! SCRAM and says AuthenticationOk has not proved that it knows the password; that is refused here.

use bytes::BytesMut;
use postgres_protocol::{
    authentication::{
        md5_hash,
        sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256},
    },
    message::frontend,
};

use super::WireError;

/// What a client brings to its login.
pub struct Credentials<'a> {
    pub user: &'a str,
    pub password: Option<&'a str>,
    /// The hash for `tls-server-end-point`; `None` without TLS, or where the certificate has none.
    pub server_end_point: Option<&'a [u8]>,
}

/// A login under way.
pub struct Login<'a> {
    credentials: Credentials<'a>,
    scram: Scram,
}

enum Scram {
    NotAsked,
    Running(Box<ScramSha256>),
    Proven,
}

/// Whether the login goes on.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Send what was appended to the output (perhaps nothing) and read the next message.
    GoOn,
    Done,
}

impl<'a> Login<'a> {
    pub fn new(credentials: Credentials<'a>) -> Self {
        Login { credentials, scram: Scram::NotAsked }
    }

    /// Takes the body of an Authentication message and appends the answer to `out`.
    pub fn step(&mut self, body: &[u8], out: &mut BytesMut) -> Result<Step, WireError> {
        let (request, rest) =
            body.split_first_chunk().ok_or_else(|| protocol("an empty authentication request"))?;
        match i32::from_be_bytes(*request) {
            0 => return self.accepted(),
            3 => frontend::password_message(self.password()?, out)?,
            5 => self.md5(rest, out)?,
            10 => self.begin_scram(rest, out)?,
            11 => self.continue_scram(rest, out)?,
            12 => self.finish_scram(rest)?,
            other => return Err(unsupported(other)),
        }
        Ok(Step::GoOn)
    }

    fn accepted(&self) -> Result<Step, WireError> {
        match self.scram {
            Scram::Running(_) => {
                Err(protocol("the server accepts us in the middle of SCRAM, without its own proof"))
            }
            Scram::NotAsked | Scram::Proven => Ok(Step::Done),
        }
    }

    fn password(&self) -> Result<&'a [u8], WireError> {
        let missing = || WireError::Auth("the server asks for a password and none is configured".to_owned());
        self.credentials.password.filter(|text| !text.is_empty()).map(str::as_bytes).ok_or_else(missing)
    }

    fn md5(&self, salt: &[u8], out: &mut BytesMut) -> Result<(), WireError> {
        let salt = *salt.first_chunk().ok_or_else(|| protocol("an md5 request without its salt"))?;
        let hash = md5_hash(self.credentials.user.as_bytes(), self.password()?, salt);
        Ok(frontend::password_message(hash.as_bytes(), out)?)
    }

    fn begin_scram(&mut self, mechanisms: &[u8], out: &mut BytesMut) -> Result<(), WireError> {
        if !matches!(self.scram, Scram::NotAsked) {
            return Err(protocol("SCRAM begins twice"));
        }
        let offers = |name: &str| mechanisms.split(|&byte| byte == 0).any(|offer| offer == name.as_bytes());
        let (mechanism, binding) = match self.credentials.server_end_point {
            Some(hash) if offers(SCRAM_SHA_256_PLUS) => {
                (SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(hash.to_vec()))
            }
            // Says that we could have bound the channel: a server that can as well sees a downgrade here.
            Some(_) if offers(SCRAM_SHA_256) => (SCRAM_SHA_256, ChannelBinding::unrequested()),
            None if offers(SCRAM_SHA_256) => (SCRAM_SHA_256, ChannelBinding::unsupported()),
            _ => return Err(WireError::Auth("the server offers no SASL mechanism that we know".to_owned())),
        };
        let scram = ScramSha256::new(self.password()?, binding);
        frontend::sasl_initial_response(mechanism, scram.message(), out)?;
        self.scram = Scram::Running(Box::new(scram));
        Ok(())
    }

    fn continue_scram(&mut self, challenge: &[u8], out: &mut BytesMut) -> Result<(), WireError> {
        let scram = self.running()?;
        scram.update(challenge).map_err(scram_error)?;
        Ok(frontend::sasl_response(scram.message(), out)?)
    }

    fn finish_scram(&mut self, proof: &[u8]) -> Result<(), WireError> {
        self.running()?.finish(proof).map_err(scram_error)?;
        self.scram = Scram::Proven;
        Ok(())
    }

    fn running(&mut self) -> Result<&mut ScramSha256, WireError> {
        match &mut self.scram {
            Scram::Running(scram) => Ok(scram),
            Scram::NotAsked | Scram::Proven => Err(protocol("a SCRAM message out of order")),
        }
    }
}

fn protocol(what: &str) -> WireError {
    WireError::Protocol(what.to_owned())
}

fn scram_error(error: std::io::Error) -> WireError {
    WireError::Auth(format!("SCRAM: {error}"))
}

fn unsupported(request: i32) -> WireError {
    let method = match request {
        2 => "Kerberos 5",
        7 | 8 => "GSSAPI",
        9 => "SSPI",
        _ => {
            return WireError::Auth(format!(
                "the server asks for authentication method {request}, unknown here"
            ));
        }
    };
    WireError::Auth(format!("the server asks for {method}, which is not supported"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(code: i32, rest: &[u8]) -> Vec<u8> {
        [&code.to_be_bytes(), rest].concat()
    }

    fn login(server_end_point: Option<&[u8]>) -> Login<'_> {
        Login::new(Credentials { user: "ada", password: Some("secret"), server_end_point })
    }

    #[test]
    fn mechanisms() {
        const BOTH: &[u8] = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
        const PLAIN: &[u8] = b"SCRAM-SHA-256\0\0";
        for (offer, hash, mechanism, header) in [
            (BOTH, Some(&b"hash"[..]), "SCRAM-SHA-256-PLUS\0", "p=tls-server-end-point,,"),
            (PLAIN, Some(b"hash"), "SCRAM-SHA-256\0", "y,,"),
            (BOTH, None, "SCRAM-SHA-256\0", "n,,"),
            (PLAIN, None, "SCRAM-SHA-256\0", "n,,"),
        ] {
            let mut out = BytesMut::new();
            assert_eq!(login(hash).step(&request(10, offer), &mut out).unwrap(), Step::GoOn);
            let text = String::from_utf8_lossy(&out[5..]).into_owned();
            assert!(text.starts_with(mechanism) && text.contains(&format!("{header}n=,r=")), "{text}");
        }
        let only_plus = request(10, b"SCRAM-SHA-256-PLUS\0\0");
        assert!(matches!(login(None).step(&only_plus, &mut BytesMut::new()), Err(WireError::Auth(_))));
    }

    #[test]
    fn acceptance_in_the_middle_of_scram_is_refused() {
        let mut out = BytesMut::new();
        let mut login = login(None);
        login.step(&request(10, b"SCRAM-SHA-256\0\0"), &mut out).unwrap();
        assert!(matches!(login.step(&request(0, b""), &mut out), Err(WireError::Protocol(_))));
    }

    #[test]
    fn requests_out_of_order_or_cut_short() {
        for body in
            [request(11, b"r=x"), request(12, b"v=x"), request(5, b"abc"), vec![0, 0], request(99, b"")]
        {
            assert!(login(None).step(&body, &mut BytesMut::new()).is_err(), "{body:?}");
        }
    }

    #[test]
    fn a_forged_nonce_or_proof_is_refused() {
        let mut out = BytesMut::new();
        let mut login = login(None);
        login.step(&request(10, b"SCRAM-SHA-256\0\0"), &mut out).unwrap();
        let forged = request(11, b"r=forged,s=AAAA,i=4096");
        assert!(matches!(login.step(&forged, &mut out), Err(WireError::Auth(_))));
    }

    #[test]
    fn plain_logins() {
        let mut out = BytesMut::new();
        assert_eq!(login(None).step(&request(0, b""), &mut out).unwrap(), Step::Done);
        assert!(out.is_empty());
        login(None).step(&request(3, b""), &mut out).unwrap();
        assert_eq!(&out[..], b"p\0\0\0\x0Bsecret\0");
        let mut nobody = Login::new(Credentials { user: "ada", password: None, server_end_point: None });
        assert!(matches!(nobody.step(&request(3, b""), &mut out), Err(WireError::Auth(_))));
    }
}

//! The bodies of the few backend messages that we read ourselves, as pure functions of bytes.
//!
//! Source: PostgreSQL manual, "Message Formats" and "Error and Notice Message Fields".

use super::WireError;

/// ErrorResponse: fields of a type byte and a zero-terminated string, ended by a zero byte.
pub fn error_response(body: &[u8]) -> WireError {
    let field = |wanted: u8| error_field(body, wanted);
    WireError::Server {
        code: field(b'C').unwrap_or_else(|| "XX000".to_owned()),
        message: field(b'M').unwrap_or_else(|| "an error without a message".to_owned()),
        detail: field(b'D'),
        hint: field(b'H'),
    }
}

/// One field of an ErrorResponse or NoticeResponse. The server's text may be in another encoding before the session
/// has one, so it is read lossily.
pub fn error_field(body: &[u8], wanted: u8) -> Option<String> {
    body.split(|&byte| byte == 0)
        .take_while(|field| !field.is_empty())
        .find(|field| field[0] == wanted)
        .map(|field| String::from_utf8_lossy(&field[1..]).into_owned())
}

/// ParameterStatus: name and value.
pub fn parameter_status(body: &[u8]) -> Option<(&str, &str)> {
    let mut fields = body.split(|&byte| byte == 0);
    let name = str::from_utf8(fields.next()?).ok()?;
    let value = str::from_utf8(fields.next()?).ok()?;
    Some((name, value))
}

/// BackendKeyData: the process id. (The secret after it is for cancel requests, which we do not send.)
pub fn backend_pid(body: &[u8]) -> Result<i32, WireError> {
    let pid =
        body.first_chunk().ok_or_else(|| WireError::Protocol("BackendKeyData is too short".to_owned()))?;
    Ok(i32::from_be_bytes(*pid))
}

/// DataRow of a simple query: text or NULL for each column.
pub fn data_row(body: &[u8]) -> Result<Vec<Option<String>>, WireError> {
    let bad = || WireError::Protocol("DataRow is cut short or not UTF-8".to_owned());
    let (count, mut rest) = body.split_first_chunk().ok_or_else(bad)?;
    let count = i16::from_be_bytes(*count);
    let mut row = Vec::new();
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk().ok_or_else(bad)?;
        rest = after;
        row.push(match usize::try_from(i32::from_be_bytes(*length)) {
            Err(_) => None,
            Ok(length) => {
                let (value, after) = rest.split_at_checked(length).ok_or_else(bad)?;
                rest = after;
                Some(str::from_utf8(value).map_err(|_| bad())?.to_owned())
            }
        });
    }
    Ok(row)
}

/// `server_version` as a number of the shape of `server_version_num`: `18.6 (Debian …)` is 180006, `9.6.24` is 90624,
/// `19beta1` is 190000.
pub fn server_version(text: &str) -> Option<u32> {
    let number = text.split(|c: char| c != '.' && !c.is_ascii_digit()).next()?;
    let mut parts = number.split('.').map(|part| part.parse::<u32>().ok());
    let major = parts.next()??;
    let minor = parts.next().flatten().unwrap_or(0);
    let patch = parts.next().flatten().unwrap_or(0);
    let scaled = if major >= 10 { minor } else { minor.checked_mul(100)?.checked_add(patch)? };
    major.checked_mul(10_000)?.checked_add(scaled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (text, number) in [
            ("18.6", Some(180_006)),
            ("15.18 (Debian 15.18-0+deb12u1)", Some(150_018)),
            ("19beta1", Some(190_000)),
            ("16rc1", Some(160_000)),
            ("9.6.24", Some(90_624)),
            ("10.0", Some(100_000)),
            ("", None),
            ("devel", None),
            ("999999999.1", None),
        ] {
            assert_eq!(server_version(text), number, "{text}");
        }
    }

    #[test]
    fn error_fields() {
        let body = b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed\0Fauth.c\0\0";
        let WireError::Server { code, message, detail, hint } = error_response(body) else { panic!() };
        assert_eq!((code.as_str(), message.as_str()), ("28P01", "password authentication failed"));
        assert_eq!((detail, hint), (None, None));
        let WireError::Server { code, .. } = error_response(b"\0") else { panic!() };
        assert_eq!(code, "XX000");
    }

    #[test]
    fn rows() {
        let body = b"\0\x03\0\0\0\x02hi\xFF\xFF\xFF\xFF\0\0\0\0";
        assert_eq!(data_row(body).unwrap(), [Some("hi".to_owned()), None, Some(String::new())]);
        for bad in [&b""[..], b"\0\x01", b"\0\x01\0\0\0\x05ab", b"\0\x01\0\0\0\x01\xFF"] {
            assert!(data_row(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn parameters() {
        assert_eq!(parameter_status(b"server_version\x0018.6\0"), Some(("server_version", "18.6")));
        assert_eq!(parameter_status(b"alone"), None);
    }
}

//! What libpq reads out of a server's certificate, as pure functions of its DER bytes.
//!
//! webpki checks chains; it knows neither common names nor a self-signed certificate that serves as its own authority
//! (which `openssl req -x509` makes and PostgreSQL's manual shows), nor the hash that channel binding wants.

use std::{net::IpAddr, time::Duration};

use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use x509_cert::{
    Certificate,
    der::{Decode, Encode, asn1::ObjectIdentifier},
    ext::pkix::{SubjectAltName, name::GeneralName},
    spki::AlgorithmIdentifierOwned,
};

type DerError = x509_cert::der::Error;

/// Whether the certificate was issued for `host`, by libpq's rules: any matching alternative name; the common name
/// only when there is no alternative name of the host's sort (DNS name or IP address).
pub fn is_for_host(der: &[u8], host: &str) -> Result<bool, DerError> {
    let certificate = Certificate::from_der(der)?;
    let names = alternative_names(&certificate)?;
    let address: Option<IpAddr> = host.parse().ok();
    if names.iter().any(|name| is_named(name, host, address)) {
        return Ok(true);
    }
    let same_sort = |name: &GeneralName| match name {
        GeneralName::DnsName(_) => address.is_none(),
        GeneralName::IpAddress(_) => address.is_some(),
        _ => false,
    };
    if names.iter().any(same_sort) {
        return Ok(false);
    }
    let common_name = certificate.tbs_certificate().subject().common_name()?;
    Ok(common_name.is_some_and(|name| matches_pattern(&name.value(), host)))
}

fn alternative_names(certificate: &Certificate) -> Result<Vec<GeneralName>, DerError> {
    let extension = certificate.tbs_certificate().get_extension::<SubjectAltName>()?;
    Ok(extension.map(|(_, names)| names.0).unwrap_or_default())
}

fn is_named(name: &GeneralName, host: &str, address: Option<IpAddr>) -> bool {
    match (name, address) {
        (GeneralName::DnsName(pattern), _) => matches_pattern(pattern.as_str(), host),
        (GeneralName::IpAddress(bytes), Some(IpAddr::V4(address))) => bytes.as_bytes() == address.octets(),
        (GeneralName::IpAddress(bytes), Some(IpAddr::V6(address))) => bytes.as_bytes() == address.octets(),
        _ => false,
    }
}

/// Equal but for case, or `*.` standing for exactly one label at the front.
fn matches_pattern(pattern: &str, host: &str) -> bool {
    if pattern.contains('\0') {
        return false;
    }
    match pattern.strip_prefix("*.") {
        Some(domain) => host
            .split_once('.')
            .is_some_and(|(label, rest)| !label.is_empty() && rest.eq_ignore_ascii_case(domain)),
        None => pattern.eq_ignore_ascii_case(host),
    }
}

/// Whether issuer and subject are the same.
pub fn is_self_issued(der: &[u8]) -> Result<bool, DerError> {
    let certificate = Certificate::from_der(der)?;
    let body = certificate.tbs_certificate();
    Ok(body.issuer() == body.subject())
}

/// Where a moment lies in the certificate's validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    NotYet,
    Now,
    Expired,
}

/// `now` counts from 1970-01-01 UTC.
pub fn validity(der: &[u8], now: Duration) -> Result<Validity, DerError> {
    let certificate = Certificate::from_der(der)?;
    let range = certificate.tbs_certificate().validity();
    Ok(if now < range.not_before.to_unix_duration() {
        Validity::NotYet
    } else if now > range.not_after.to_unix_duration() {
        Validity::Expired
    } else {
        Validity::Now
    })
}

/// The public key, as TLS 1.3 signatures are checked with; for certificates that webpki refuses to read (version 1).
pub fn public_key(der: &[u8]) -> Result<Vec<u8>, DerError> {
    Certificate::from_der(der)?.tbs_certificate().subject_public_key_info().to_der()
}

/// RFC 5929's `tls-server-end-point`: the certificate hashed with its signature's own hash, SHA-256 in place of MD5
/// and SHA-1. `None` where the signature has no such hash (Ed25519) or is unknown here: no channel binding then.
pub fn server_end_point(der: &[u8]) -> Option<Vec<u8>> {
    let certificate = Certificate::from_der(der).ok()?;
    Some(match signature_hash(certificate.signature_algorithm())? {
        Hash::Sha224 => Sha224::digest(der).to_vec(),
        Hash::Sha256 => Sha256::digest(der).to_vec(),
        Hash::Sha384 => Sha384::digest(der).to_vec(),
        Hash::Sha512 => Sha512::digest(der).to_vec(),
    })
}

#[derive(Clone, Copy)]
enum Hash {
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

const RSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");

/// By the object identifiers of RFC 8017, RFC 5758 and FIPS 186; MD5 and SHA-1 count as SHA-256.
fn signature_hash(algorithm: &AlgorithmIdentifierOwned) -> Option<Hash> {
    if algorithm.oid == RSA_PSS {
        return pss_hash(algorithm.parameters.as_ref()?.value());
    }
    Some(match algorithm.oid.to_string().as_str() {
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.113549.1.1.11" => Hash::Sha256,
        "1.2.840.113549.1.1.12" => Hash::Sha384,
        "1.2.840.113549.1.1.13" => Hash::Sha512,
        "1.2.840.113549.1.1.14" => Hash::Sha224,
        "1.2.840.10045.4.1" | "1.2.840.10045.4.3.2" => Hash::Sha256,
        "1.2.840.10045.4.3.1" => Hash::Sha224,
        "1.2.840.10045.4.3.3" => Hash::Sha384,
        "1.2.840.10045.4.3.4" => Hash::Sha512,
        "1.2.840.10040.4.3" | "2.16.840.1.101.3.4.3.2" => Hash::Sha256,
        "2.16.840.1.101.3.4.3.1" => Hash::Sha224,
        _ => return None,
    })
}

/// The hash in RSASSA-PSS-params (RFC 8017 A.2.3): `[0]` holds its AlgorithmIdentifier; left out it is SHA-1.
fn pss_hash(parameters: &[u8]) -> Option<Hash> {
    let Some([0xA0, _, identifier @ ..]) = Some(parameters) else { return Some(Hash::Sha256) };
    let mut reader = x509_cert::der::SliceReader::new(identifier).ok()?;
    let identifier = AlgorithmIdentifierOwned::decode(&mut reader).ok()?;
    Some(match identifier.oid.to_string().as_str() {
        "2.16.840.1.101.3.4.2.1" | "1.3.14.3.2.26" => Hash::Sha256,
        "2.16.840.1.101.3.4.2.2" => Hash::Sha384,
        "2.16.840.1.101.3.4.2.3" => Hash::Sha512,
        "2.16.840.1.101.3.4.2.4" => Hash::Sha224,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_libpq_matches_them() {
        for (pattern, host, matches) in [
            ("db.example.com", "DB.example.com", true),
            ("db.example.com", "db.example.org", false),
            ("*.example.com", "db.example.com", true),
            ("*.example.com", "a.db.example.com", false),
            ("*.example.com", "example.com", false),
            ("*.example.com", ".example.com", false),
            ("*", "db", false),
            ("d*.example.com", "db.example.com", false),
            ("db\0.evil", "db", false),
        ] {
            assert_eq!(matches_pattern(pattern, host), matches, "{pattern} {host}");
        }
    }

    #[test]
    fn hashes_by_signature_algorithm() {
        let hash = |oid: &str| {
            let algorithm =
                AlgorithmIdentifierOwned { oid: ObjectIdentifier::new_unwrap(oid), parameters: None };
            signature_hash(&algorithm)
        };
        assert!(matches!(hash("1.2.840.113549.1.1.5"), Some(Hash::Sha256)));
        assert!(matches!(hash("1.2.840.10045.4.3.3"), Some(Hash::Sha384)));
        assert!(hash("1.3.101.112").is_none(), "Ed25519");
    }

    #[test]
    fn pss_parameters() {
        let sha384 = b"\xA0\x0F\x30\x0D\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x02\x05\x00\xA1\x00";
        assert!(matches!(pss_hash(sha384), Some(Hash::Sha384)));
        assert!(matches!(pss_hash(b""), Some(Hash::Sha256)));
        assert!(pss_hash(b"\xA0\x02\x30").is_none());
    }

    fn issued(common_name: &str, names: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_end_point_is_hashed_as_the_signature_was() {
        let p256 = issued("db", &[], &rcgen::PKCS_ECDSA_P256_SHA256);
        let p384 = issued("db", &[], &rcgen::PKCS_ECDSA_P384_SHA384);
        assert_eq!(server_end_point(&p256), Some(Sha256::digest(&p256).to_vec()));
        assert_eq!(server_end_point(&p384), Some(Sha384::digest(&p384).to_vec()));
        assert_eq!(server_end_point(&issued("db", &[], &rcgen::PKCS_ED25519)), None);
    }

    #[test]
    fn alternative_names_before_the_common_name() {
        let named = |common_name, names: &[&str], host| {
            is_for_host(&issued(common_name, names, &rcgen::PKCS_ECDSA_P256_SHA256), host).unwrap()
        };
        assert!(named("db", &["*.example.com", "127.0.0.1", "::1"], "a.example.com"));
        assert!(named("db", &["127.0.0.1", "::1"], "::1"));
        assert!(!named("db", &["other"], "db"), "a DNS name hides the common name");
        assert!(named("db", &["127.0.0.1"], "db"), "an address does not");
        assert!(!named("127.0.0.1", &["127.0.0.2"], "127.0.0.1"));
        assert!(named("db", &[], "DB"));
    }

    #[test]
    fn garbage_is_no_certificate() {
        assert!(is_for_host(b"garbage", "db").is_err());
        assert!(server_end_point(b"garbage").is_none());
    }
}

//! Certificates made for one test run.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, date_time_ymd,
};

/// An authority, and the PEM files of what it signs.
pub struct Authority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// PEM texts of a certificate and its key.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let key = KeyPair::generate().expect("a key");
        let mut params = named("test authority", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        fs::write(folder.path().join("root.crt"), certificate.pem()).expect("write");
        Authority { folder, issuer: Issuer::new(params, key) }
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root.crt")
    }

    /// For these alternative names, signed with the authority's P-256 key.
    pub fn issue(&self, common_name: &str, names: &[&str]) -> Pair {
        self.sign(named(common_name, names))
    }

    pub fn issue_expired(&self, names: &[&str]) -> Pair {
        let mut params = named("expired", names);
        (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Pair {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A file of this text beside the root.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        write_private(&self.folder.path().join(name), text)
    }
}

/// A certificate as `openssl req -x509` makes it: an authority in form, no alternative names. Hashed with SHA-384.
pub fn self_signed(common_name: &str) -> Pair {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key");
    let mut params = named(common_name, &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).expect("a certificate");
    Pair { certificate: certificate.pem(), key: key.serialize_pem() }
}

fn named(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

fn write_private(path: &Path, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text).expect("write");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("permissions");
    path.to_owned()
}

//! Each `sslmode` against servers with certificates that are right, wrong, old or nobody's.

use std::path::PathBuf;

use cdcprobe::{
    config::{
        SourceEndpoint,
        endpoint::{SYSTEM_ROOTS, SslMode},
    },
    postgres::{SessionKind, Wire, WireError, sql_session},
};

use super::{
    NAME,
    certificates::{Authority, self_signed},
    copy_out,
    server::Server,
};

fn with(mut endpoint: SourceEndpoint, mode: SslMode, root: Option<PathBuf>) -> SourceEndpoint {
    endpoint.ssl.mode = mode;
    endpoint.ssl.root_cert = root;
    endpoint
}

/// Whether the server says that the session is encrypted: asked in both kinds of session, which must agree.
async fn encrypted(endpoint: &SourceEndpoint) -> Result<bool, WireError> {
    let question = "select ssl::text from pg_stat_ssl where pid = pg_backend_pid()";
    let sql = sql_session(endpoint, NAME).await;
    let mut wire = match Wire::connect(endpoint, SessionKind::LogicalReplication, NAME).await {
        Ok(wire) => wire,
        Err(error) => {
            assert_eq!(sql.expect_err("both refuse").to_string(), error.to_string());
            return Err(error);
        }
    };
    let answer: String = sql.expect("both connect").query_one(question, &[]).await.unwrap().get(0);
    assert_eq!(wire.simple_query(question).await.unwrap(), [[Some(answer.clone())]]);
    Ok(answer == "true")
}

/// The text of a refusal for TLS' sake.
async fn refused(endpoint: &SourceEndpoint) -> String {
    match encrypted(endpoint).await {
        Err(WireError::Connect { cause, .. }) if matches!(*cause, WireError::Tls(_)) => cause.to_string(),
        other => panic!("{:?}: {other:?}", endpoint.ssl),
    }
}

#[tokio::test]
async fn a_server_with_a_good_certificate() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = Server::with_tls(&authority.issue("server", &["localhost"]), &authority);
    let root = Some(authority.root());
    let strange = Some(stranger.root());
    // Trust and encrypted (SCRAM with channel binding: the server compares the hash of its own certificate).
    for endpoint in [server.localhost("stubborn"), server.localhost("encrypted")] {
        let endpoint = |mode, root: &Option<PathBuf>| with(endpoint.clone(), mode, root.clone());
        for mode in [SslMode::Prefer, SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
            assert!(encrypted(&endpoint(mode, &root)).await.unwrap(), "{mode:?}");
        }
        for mode in [SslMode::Prefer, SslMode::Require] {
            assert!(encrypted(&endpoint(mode, &None)).await.unwrap(), "{mode:?} without a root file");
        }
        // With a root file, require is verify-ca.
        for mode in [SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
            assert!(refused(&endpoint(mode, &strange)).await.contains("not signed by"), "{mode:?}");
        }
        assert!(refused(&endpoint(SslMode::VerifyFull, &None)).await.contains("sslrootcert"));
        let missing = Some(PathBuf::from("/nowhere/root.crt"));
        assert!(refused(&endpoint(SslMode::Require, &missing)).await.contains("/nowhere/root.crt"));
    }
    // The name: the certificate is for localhost, not for its address.
    let by_address = |mode| with(server.tcp("stubborn"), mode, root.clone());
    assert!(encrypted(&by_address(SslMode::VerifyCa)).await.unwrap());
    assert!(refused(&by_address(SslMode::VerifyFull)).await.contains("not for this host name"));
    // What the system trusts has not signed this.
    let system = with(server.localhost("stubborn"), SslMode::VerifyFull, Some(SYSTEM_ROOTS.into()));
    assert!(
        matches!(encrypted(&system).await, Err(WireError::Connect { cause, .. }) if matches!(*cause, WireError::Tls(_)))
    );
    // Never on a Unix socket.
    assert!(!encrypted(&with(server.unix("stubborn"), SslMode::VerifyFull, None)).await.unwrap());

    plain_and_prefer(&server, strange).await;
    client_certificates(&server, &authority, &stranger).await;

    let mut wire =
        Wire::connect(&with(server.tcp("stubborn"), SslMode::Require, None), SessionKind::Sql, NAME)
            .await
            .unwrap();
    let sql = "copy (select n, repeat('x', 200) from generate_series(1, 100000) n) to stdout (format binary)";
    assert_eq!(copy_out(&mut wire, sql).await.unwrap().1, 19 + 100_000 * (2 + 4 + 4 + 4 + 200) + 2);
    wire.terminate().await;
}

/// `prefer` goes on in plain text when TLS is refused; `disable` never encrypts.
async fn plain_and_prefer(server: &Server, strange: Option<PathBuf>) {
    let session = async |user: &str, mode, root| encrypted(&with(server.tcp(user), mode, root)).await;
    assert!(!session("stubborn", SslMode::Disable, None).await.unwrap());
    assert!(!session("plain", SslMode::Prefer, None).await.unwrap());
    assert!(!session("stubborn", SslMode::Prefer, strange).await.unwrap());
    assert!(session("encrypted", SslMode::Prefer, None).await.unwrap());
    for (user, mode) in [("encrypted", SslMode::Disable), ("plain", SslMode::Require)] {
        let error = session(user, mode, None).await.unwrap_err();
        assert_eq!(error.sqlstate(), Some("28000"), "{user}");
    }
}

async fn client_certificates(server: &Server, authority: &Authority, stranger: &Authority) {
    let certified = |by: &Authority, name: &str| {
        let pair = by.issue(name, &[]);
        let mut endpoint = with(server.tcp("certified"), SslMode::Require, None);
        endpoint.ssl.cert = Some(by.file("client.crt", &pair.certificate));
        endpoint.ssl.key = Some(by.file("client.key", &pair.key));
        endpoint
    };
    let good = certified(authority, "certified");
    assert!(encrypted(&good).await.unwrap());
    let wrong_name = encrypted(&certified(authority, "somebody")).await.unwrap_err();
    assert_eq!(wrong_name.sqlstate(), Some("28000"));
    // In TLS 1.3 the server refuses after the handshake, in an alert or by hanging up.
    assert!(encrypted_or_error(&certified(stranger, "certified")).await.is_err());

    let mut shared = certified(authority, "certified");
    std::fs::set_permissions(
        shared.ssl.key.as_ref().unwrap(),
        std::os::unix::fs::PermissionsExt::from_mode(0o644),
    )
    .unwrap();
    assert!(refused(&shared).await.contains("chmod 600"));
    shared.ssl.key = None;
    assert!(refused(&shared).await.contains("sslkey"));
}

/// As [`encrypted`], where the two refusals may differ in wording.
async fn encrypted_or_error(endpoint: &SourceEndpoint) -> Result<(), WireError> {
    assert!(sql_session(endpoint, NAME).await.is_err());
    Wire::connect(endpoint, SessionKind::Sql, NAME).await.map(drop)
}

#[tokio::test]
async fn an_expired_certificate() {
    let authority = Authority::new();
    let server = Server::with_tls(&authority.issue_expired(&["localhost"]), &authority);
    for mode in [SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
        let endpoint = with(server.localhost("stubborn"), mode, Some(authority.root()));
        assert!(refused(&endpoint).await.contains("expired"), "{mode:?}");
    }
    assert!(encrypted(&with(server.localhost("stubborn"), SslMode::Require, None)).await.unwrap());
}

#[tokio::test]
async fn a_self_signed_certificate_that_is_its_own_root() {
    let authority = Authority::new();
    let pair = self_signed("localhost");
    let server = Server::with_tls(&pair, &authority);
    let own = Some(authority.file("own.crt", &pair.certificate));
    for user in ["stubborn", "encrypted"] {
        let endpoint = |mode| with(server.localhost(user), mode, own.clone());
        assert!(encrypted(&endpoint(SslMode::VerifyCa)).await.unwrap());
        // By its common name, since it has no alternative names.
        assert!(encrypted(&endpoint(SslMode::VerifyFull)).await.unwrap());
    }
    assert!(
        refused(&with(server.tcp("stubborn"), SslMode::VerifyFull, own))
            .await
            .contains("not for this host name")
    );
    let twin = Some(authority.file("twin.crt", &self_signed("localhost").certificate));
    let twin = with(server.localhost("stubborn"), SslMode::VerifyCa, twin);
    assert!(refused(&twin).await.contains("not signed by"));
}

#[tokio::test]
async fn a_server_without_tls() {
    let server = Server::shared();
    assert!(!encrypted(&with(server.tcp("stubborn"), SslMode::Prefer, None)).await.unwrap());
    for mode in [SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
        let endpoint = with(server.tcp("stubborn"), mode, Some(Authority::new().root()));
        assert!(refused(&endpoint).await.contains("switched off"), "{mode:?}");
    }
}

//! Connecting to a real PostgreSQL: authentication, TLS, replication and COPY sessions, settings, errors.

mod certificates;
mod server;
mod tls;

use std::time::Duration;

use cdcprobe::{
    config::{
        Secret, SourceEndpoint,
        endpoint::{Host, SslMode, SslOptions},
    },
    failure::{Failure, Kind},
    postgres::{SessionKind, Wire, WireError, settings, sql_session},
};

use server::Server;

const NAME: &str = "cdcprobe test";

/// The rows of the copy, counted through `fill` and `next_frame`.
async fn copy_out(wire: &mut Wire, sql: &str) -> Result<(u64, u64), WireError> {
    wire.begin_copy(sql).await?;
    let (mut rows, mut bytes) = (0, 0);
    loop {
        while let Some(frame) = wire.next_frame()? {
            match frame.tag {
                b'd' => {
                    rows += 1;
                    bytes += frame.body.len() as u64;
                }
                b'c' => {
                    wire.finish_copy_out().await?;
                    return Ok((rows, bytes));
                }
                tag => panic!("unexpected message {tag}"),
            }
        }
        wire.fill().await?;
    }
}

#[tokio::test]
async fn a_hundred_thousand_rows_by_copy() {
    let server = Server::shared();
    for endpoint in [server.tcp("trusting"), server.unix("trusting")] {
        let mut wire = Wire::connect(&endpoint, SessionKind::Sql, NAME).await.expect("connect");
        let (rows, bytes) = copy_out(
            &mut wire,
            "copy (select n, repeat('x', 200) from generate_series(1, 100000) n) to stdout (format binary)",
        )
        .await
        .expect("copy");
        // Header (19) and trailer (2) are messages of their own or parts of the first and last one.
        assert!((100_000..=100_002).contains(&rows), "{rows}");
        assert_eq!(bytes, 19 + 100_000 * (2 + 4 + 4 + 4 + 200) + 2);
        assert_eq!(
            wire.simple_query("select 1; select 'a', null").await.unwrap(),
            [[Some("a".to_owned()), None]]
        );
        wire.terminate().await;
    }
}

#[tokio::test]
async fn a_slot_with_its_snapshot_and_a_stream() {
    let server = Server::shared();
    let sql = sql_session(&server.unix("trusting"), NAME).await.expect("SQL session");
    sql.batch_execute(
        "create table public.streamed (id int primary key); create publication streamed for table public.streamed",
    )
    .await
    .unwrap();
    let endpoint = server.tcp("trusting");
    let mut wire = Wire::connect(&endpoint, SessionKind::LogicalReplication, NAME).await.expect("connect");
    assert!(wire.server_version() >= 140_000, "{}", wire.server_version());
    assert!(wire.backend_pid() > 0 && !wire.is_unix() && wire.receive_buffer_bytes() > 0);
    let system = wire.simple_query("IDENTIFY_SYSTEM").await.unwrap();
    assert_eq!(system[0][3].as_deref(), Some("postgres"));
    let slot = wire
        .simple_query("CREATE_REPLICATION_SLOT streamed TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')")
        .await
        .unwrap();
    let snapshot = slot[0][2].clone().expect("a snapshot");
    sql.batch_execute("insert into public.streamed select generate_series(1, 10)").await.unwrap();
    sql.batch_execute("begin isolation level repeatable read").await.unwrap();
    sql.batch_execute(&format!("set transaction snapshot '{snapshot}'")).await.unwrap();
    let seen: i64 = sql.query_one("select count(*) from public.streamed", &[]).await.unwrap().get(0);
    assert_eq!(seen, 0, "rows after the snapshot");
    sql.batch_execute("commit").await.unwrap();

    wire.begin_copy(
        "START_REPLICATION SLOT streamed LOGICAL 0/0 (proto_version '1', publication_names '\"streamed\"')",
    )
    .await
    .unwrap();
    let mut inserts = 0;
    while inserts < 10 {
        while let Some(frame) = wire.next_frame().unwrap() {
            assert_eq!(frame.tag, b'd');
            inserts += usize::from(frame.body[0] == b'w' && frame.body[25] == b'I');
        }
        if inserts < 10 {
            tokio::time::timeout(Duration::from_secs(20), wire.fill()).await.expect("rows in time").unwrap();
        }
    }
    let mut status = vec![b'r'];
    status.extend_from_slice(&[0; 33]);
    wire.send_copy_data(&status).await.unwrap();
    wire.copy_done().await.unwrap();
    assert_eq!(wire.simple_query("select 7").await.unwrap(), [[Some("7".to_owned())]]);
}

#[tokio::test]
async fn a_session_survives_an_error_and_ends_with_the_server_process() {
    let server = Server::shared();
    let mut wire = Wire::connect(&server.tcp("trusting"), SessionKind::Sql, NAME).await.unwrap();
    let error = wire.simple_query("select 1; select nowhere").await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("42703"));
    let error = wire.begin_copy("copy nowhere to stdout").await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("42P01"));
    assert!(!error.is_retryable());
    assert_eq!(wire.simple_query("select 1").await.unwrap(), [[Some("1".to_owned())]]);
    let error = wire.simple_query("select pg_terminate_backend(pg_backend_pid())").await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("57P01"));
    assert!(error.is_retryable());
    assert!(matches!(wire.fill().await, Err(WireError::Closed | WireError::Io(_))));
}

#[tokio::test]
async fn every_way_to_log_in() {
    let server = Server::shared();
    for user in ["trusting", "clear", "md5", "scram", "plain"] {
        let endpoint = server.tcp(user);
        let mut wire =
            Wire::connect(&endpoint, SessionKind::Sql, NAME).await.unwrap_or_else(|e| panic!("{user}: {e}"));
        assert_eq!(wire.simple_query("select current_user").await.unwrap(), [[Some(user.to_owned())]]);
        let sql = sql_session(&endpoint, NAME).await.unwrap_or_else(|error| panic!("{user}: {error}"));
        let (name, application): (String, String) = {
            let row = sql
                .query_one("select current_user::text, current_setting('application_name')", &[])
                .await
                .unwrap();
            (row.get(0), row.get(1))
        };
        assert_eq!((name.as_str(), application.as_str()), (user, NAME));
    }
}

/// The failures of both kinds of session for this endpoint.
async fn failures(endpoint: &SourceEndpoint) -> Vec<Failure> {
    let wire = Wire::connect(endpoint, SessionKind::Sql, NAME).await.err().expect("no session");
    let sql = sql_session(endpoint, NAME).await.expect_err("no session");
    vec![wire.into(), sql.downcast().expect("a failure")]
}

#[tokio::test]
async fn a_refusal_names_the_place_and_the_remedy_and_never_the_password() {
    let server = Server::shared();
    let edited = |user: &str, edit: fn(&mut SourceEndpoint)| {
        let mut endpoint = server.tcp(user);
        edit(&mut endpoint);
        endpoint
    };
    let wrong = |endpoint: &mut SourceEndpoint| endpoint.password = Some(Secret::new("canary"));
    let missing = |endpoint: &mut SourceEndpoint| endpoint.password = None;
    for (endpoint, message, hint) in [
        (edited("scram", wrong), "28P01", "PGPASSWORD"),
        (edited("md5", wrong), "28P01", "PGPASSWORD"),
        (edited("clear", wrong), "28P01", "PGPASSWORD"),
        (edited("scram", missing), "password", "pgpass"),
        (edited("md5", missing), "password", "pgpass"),
        (edited("encrypted", |_| {}), "28000", "pg_hba.conf"),
        (edited("trusting", |endpoint| endpoint.database = "nowhere".into()), "3D000", "PGDATABASE"),
    ] {
        for failure in failures(&endpoint).await {
            assert_eq!(failure.kind, Kind::Environment);
            let text = format!("{} / {}", failure.message, failure.hint.unwrap_or_default());
            for part in [message, hint, "127.0.0.1", &endpoint.user, &endpoint.database] {
                assert!(text.contains(part), "{part} is missing in: {text}");
            }
            assert!(!text.contains("canary"), "{text}");
        }
    }
}

#[tokio::test]
async fn nobody_answers() {
    let closed = endpoint(Host::Tcp { host: "127.0.0.1".into(), port: 1 }, "ada");
    let nowhere = endpoint(Host::Tcp { host: "nowhere.invalid".into(), port: 5432 }, "ada");
    let no_socket = endpoint(Host::Unix { folder: "/nowhere".into(), port: 5432 }, "ada");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut mute =
        endpoint(Host::Tcp { host: "127.0.0.1".into(), port: silent.local_addr().unwrap().port() }, "ada");
    mute.connect_timeout = Duration::from_millis(200);
    for (endpoint, message, hint) in [
        (closed, "127.0.0.1:1", "running"),
        (nowhere, "cannot be resolved", "DNS"),
        (no_socket, "/nowhere/.s.PGSQL.5432", "running"),
        (mute, "no answer within 0.2 s", "firewall"),
    ] {
        for failure in failures(&endpoint).await {
            assert!(failure.message.contains(message), "{}", failure.message);
            assert!(failure.hint.as_ref().is_some_and(|text| text.contains(hint)), "{:?}", failure.hint);
        }
    }
}

#[tokio::test]
async fn hosts_are_tried_in_order_and_a_refusal_ends_the_search() {
    let server = Server::shared();
    let mut endpoint = server.tcp("trusting");
    endpoint.hosts.insert(0, Host::Tcp { host: "127.0.0.1".into(), port: 1 });
    Wire::connect(&endpoint, SessionKind::Sql, NAME).await.expect("the second host");
    endpoint.hosts.swap(0, 1);
    endpoint.database = "nowhere".into();
    let error = Wire::connect(&endpoint, SessionKind::Sql, NAME).await.err().expect("no such database");
    assert_eq!(error.sqlstate(), Some("3D000"));
    Wire::connect(&server.localhost("trusting"), SessionKind::Sql, NAME).await.expect("the second address");
}

#[tokio::test]
async fn settings_are_pinned_against_the_role() {
    let server = Server::shared();
    let endpoint = server.tcp("stubborn");
    let sql = sql_session(&endpoint, NAME).await.unwrap();
    let mut wire = Wire::connect(&endpoint, SessionKind::LogicalReplication, NAME).await.unwrap();
    let mut expected = settings::PINNED.to_vec();
    expected.extend([("idle_session_timeout", "0"), ("transaction_timeout", "0")]);
    for (name, value) in expected {
        let question = format!("select coalesce(current_setting('{name}', true), '0')");
        let in_sql: String = sql.query_one(&question, &[]).await.unwrap().get(0);
        let in_wire = wire.simple_query(&question).await.unwrap()[0][0].clone().unwrap();
        for shown in [in_sql, in_wire] {
            assert!(shown == value || (name == "datestyle" && shown.starts_with("ISO, ")), "{name}: {shown}");
        }
    }
}

#[tokio::test]
async fn no_byte_is_lost_when_a_read_is_given_up() {
    let server = Server::shared();
    let mut wire = Wire::connect(&server.tcp("trusting"), SessionKind::Sql, NAME).await.unwrap();
    wire.begin_copy("copy (select repeat('x', n % 3000) from generate_series(1, 20000) n) to stdout")
        .await
        .unwrap();
    let (mut rows, mut bytes, mut given_up, mut done) = (0, 0, 0, false);
    while !done {
        while let Some(frame) = wire.next_frame().unwrap() {
            if frame.tag == b'c' {
                done = true;
                break;
            }
            rows += 1;
            bytes += frame.body.len();
        }
        if !done {
            given_up += usize::from(wire.try_fill_now().await.unwrap() == 0);
            tokio::task::yield_now().await;
        }
    }
    wire.finish_copy_out().await.unwrap();
    let expected: usize = (1..=20_000).map(|n| n % 3000 + 1).sum();
    assert_eq!((rows, bytes), (20_000, expected), "{given_up} reads given up");
    assert!(given_up > 0);
}

/// A "server" that answers the first message with these bytes.
async fn answered_by(bytes: Vec<u8>) -> WireError {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint =
        endpoint(Host::Tcp { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() }, "ada");
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    };
    let client = async { Wire::connect(&endpoint, SessionKind::Sql, NAME).await.err().expect("no session") };
    match tokio::join!(server, client).1 {
        WireError::Connect { cause, .. } => *cause,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_hostile_server_gets_no_memory_and_no_password() {
    let flood = [b"R\x7F\xFF\xFF\xFF".as_slice(), &vec![0; 3_000_000]].concat();
    assert!(matches!(answered_by(flood).await, WireError::Protocol(text) if text.contains("1 MiB")));
    assert!(matches!(answered_by(b"HTTP/1.1 400 Bad Request".to_vec()).await, WireError::Closed));
    assert!(matches!(answered_by(b"R\0\0\0\x03".to_vec()).await, WireError::Protocol(_)));
    assert!(
        matches!(answered_by(b"R\0\0\0\x08\0\0\0\x07".to_vec()).await, WireError::Auth(text) if text.contains("GSSAPI"))
    );
    assert!(matches!(answered_by(Vec::new()).await, WireError::Closed));
}

/// An endpoint for one host, without TLS.
pub fn endpoint(host: Host, user: &str) -> SourceEndpoint {
    SourceEndpoint {
        hosts: vec![host],
        user: user.to_owned(),
        password: Some(Secret::new("secret")),
        database: "postgres".to_owned(),
        ssl: SslOptions { mode: SslMode::Disable, root_cert: None, cert: None, key: None },
        connect_timeout: Duration::from_secs(10),
    }
}

//! Connecting to a real PostgreSQL: authentication, TLS, replication and COPY sessions, settings, errors.

use std::time::Duration;

use cdcprobe::{
    config::{
        Secret, SourceEndpoint,
        endpoint::{Host, SslMode, SslOptions},
    },
    postgres::{SessionKind, Wire, WireError, sql_session},
};

use crate::server::Server;

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

//! Source against target on real servers: tables made by hand on both sides, equal, and then not.

use cdcprobe::{
    config::{TableName, TargetEndpoint},
    failure::{Failure, Kind},
    lab::Lab,
    postgres::sql_session,
    verify::{self, Difference, TablePair, TableReport, VerifyOptions},
};
use tokio_postgres::Client;

use crate::lab::{lab, postgres_major};

/// Column, source type, target type, and (source literal, target literal) for some rows.
type TypeCase = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Every type of this pipe with values that hurt. The first pair is used to plant a difference: it differs from the
/// second.
const TYPES: &[TypeCase] = &[
    ("b", "bool", "Nullable(Bool)", &[("true", "true"), ("false", "false"), ("null", "NULL")]),
    ("i2", "int2", "Nullable(Int16)", &[("-32768", "-32768"), ("32767", "32767"), ("null", "NULL")]),
    ("i4", "int4", "Nullable(Int32)", &[("-2147483648", "-2147483648"), ("0", "0")]),
    (
        "i8",
        "int8",
        "Nullable(Int64)",
        &[("9223372036854775807", "9223372036854775807"), ("-9223372036854775808", "-9223372036854775808")],
    ),
    (
        "f4",
        "float4",
        "Nullable(Float32)",
        &[
            ("1.1", "1.1"),
            ("'-0'", "-0."),
            ("'NaN'", "nan"),
            ("'-Infinity'", "-inf"),
            ("1e-40", "1e-40"),
            ("null", "NULL"),
        ],
    ),
    (
        "f8",
        "float8",
        "Nullable(Float64)",
        &[
            ("0.1", "0.1"),
            ("'-0'", "-0."),
            ("0", "0."),
            ("'NaN'", "nan"),
            ("'Infinity'", "inf"),
            ("1e300", "1e300"),
        ],
    ),
    (
        "n",
        "numeric(12,3)",
        "Nullable(Decimal(12,3))",
        &[("-0.5", "-0.5"), ("123456789.120", "123456789.12"), ("0", "0"), ("100", "100"), ("null", "NULL")],
    ),
    ("n0", "numeric(3,-2)", "Nullable(Decimal(5,0))", &[("12345", "12300"), ("100", "100")]),
    ("n4", "numeric(2,4)", "Nullable(Decimal(4,4))", &[("0.00123", "'0.0012'"), ("0", "0")]),
    (
        "ns",
        "numeric",
        "Nullable(String)",
        &[("1.50", "'1.50'"), ("'NaN'", "'NaN'"), ("1e40", "'10000000000000000000000000000000000000000'")],
    ),
    (
        "t",
        "text",
        "Nullable(String)",
        &[
            ("'it''s'", "'it\\'s'"),
            ("''", "''"),
            (
                "E'tab\\tline\\nreturn\\rback\\\\slash\\x0b\\b\\f'",
                "'tab\\tline\\nreturn\\rback\\\\slash\\x0b\\b\\f'",
            ),
            ("null", "NULL"),
            ("E'\\\\N'", "'\\\\N'"),
            ("'ö 漢 🦀'", "'ö 漢 🦀'"),
        ],
    ),
    ("v", "varchar(10)", "String", &[("'a'", "'a'"), ("' b '", "' b '")]),
    ("bp", "char(5)", "Nullable(String)", &[("'a'", "'a    '"), ("' b'", "' b   '"), ("null", "NULL")]),
    (
        "ba",
        "bytea",
        "Nullable(String)",
        &[("'\\x00ff5c0a'", "unhex('00ff5c0a')"), ("''", "''"), ("null", "NULL")],
    ),
    (
        "u",
        "uuid",
        "Nullable(UUID)",
        &[
            ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
            ("'00000000-0000-0000-0000-000000000000'", "'00000000-0000-0000-0000-000000000000'"),
        ],
    ),
    (
        "d",
        "date",
        "Nullable(Date32)",
        &[("'2024-02-29'", "'2024-02-29'"), ("'1900-01-01'", "'1900-01-01'"), ("null", "NULL")],
    ),
    (
        "ti",
        "time",
        "Nullable(Time64(6))",
        &[
            ("'12:30:00'", "'12:30:00'"),
            ("'24:00'", "'24:00:00'"),
            ("'00:00:00.000001'", "'00:00:00.000001'"),
            ("null", "NULL"),
        ],
    ),
    (
        "ts",
        "timestamp",
        "Nullable(DateTime64(6,'UTC'))",
        &[
            ("'2024-01-01 10:00:10'", "'2024-01-01 10:00:10'"),
            ("'1969-12-31 23:59:59.5'", "'1969-12-31 23:59:59.5'"),
            ("'9999-12-31 23:59:59.999999'", "'9999-12-31 23:59:59.999999'"),
            ("null", "NULL"),
        ],
    ),
    (
        "tz",
        "timestamptz",
        "Nullable(DateTime64(6,'UTC'))",
        &[
            ("'2024-01-01 10:00:00+02'", "'2024-01-01 08:00:00'"),
            ("'0001-01-01 00:00:00+00'", "'0001-01-01 00:00:00'"),
            ("null", "NULL"),
        ],
    ),
    (
        "j",
        "json",
        "Nullable(String)",
        &[("'{\"a\" :  1}'", "'{\"a\" :  1}'"), ("'null'", "'null'"), ("null", "NULL")],
    ),
    (
        "jb",
        "jsonb",
        "Nullable(String)",
        &[("'{\"b\":1,\"a\":\"\\\\n\"}'", "'{\"a\": \"\\\\\\\\n\", \"b\": 1}'"), ("'[]'", "'[]'")],
    ),
    (
        "ai",
        "int4[]",
        "Array(Nullable(Int32))",
        &[("'{1,NULL,-3}'", "[1,NULL,-3]"), ("'{}'", "[]"), ("null", "[]")],
    ),
    (
        "a8",
        "int8[]",
        "Array(Nullable(Int64))",
        &[("'{9223372036854775807}'", "[9223372036854775807]"), ("'{}'", "[]")],
    ),
    (
        "at",
        "text[]",
        "Array(Nullable(String))",
        &[
            (
                "array['a','','NULL',null,'x,y','q\"q','back\\slash','{}','b c',E'\\t\\n\\x0b','ö','it''s']",
                "['a','','NULL',NULL,'x,y','q\"q','back\\\\slash','{}','b c','\\t\\n\\x0b','ö','it\\'s']",
            ),
            ("array[]::text[]", "[]"),
            ("null", "[]"),
        ],
    ),
];

/// The types that this server has: scales outside of a numeric's precision came with PostgreSQL 15.
fn types() -> impl Iterator<Item = &'static TypeCase> {
    TYPES.iter().filter(|(name, ..)| postgres_major() >= 15 || !["n0", "n4"].contains(name))
}

struct Servers {
    lab: Lab,
    source: Client,
    target: clickhouse::Client,
}

impl Servers {
    async fn start() -> Servers {
        let lab = lab().await;
        let source = sql_session(&lab.source_endpoint(), "cdcprobe test").await.unwrap();
        let target = target_client(&lab.target_endpoint());
        Servers { lab, source, target }
    }

    async fn source(&self, sql: &str) {
        self.source.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    async fn target(&self, sql: &str) {
        self.target.query_raw(sql).execute().await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn pair(&self, table: &str) -> TablePair {
        TablePair {
            source: TableName::new("public", table),
            target_database: self.lab.target_endpoint().database,
            target_table: table.to_owned(),
        }
    }

    async fn verify(&self, table: &str) -> TableReport {
        self.try_verify(table).await.unwrap()
    }

    async fn try_verify(&self, table: &str) -> anyhow::Result<TableReport> {
        let (source, target) = (self.lab.source_endpoint(), self.lab.target_endpoint());
        let options = VerifyOptions::default();
        let report = verify::tables(&source, &target, &[self.pair(table)], &options).await?;
        Ok(report.tables.into_iter().next().unwrap())
    }
}

pub fn target_client(endpoint: &TargetEndpoint) -> clickhouse::Client {
    let client = clickhouse::Client::default().with_url(&endpoint.url).with_user(&endpoint.user);
    let client = client.with_database(&endpoint.database).with_setting("enable_time_time64_type", "1");
    match &endpoint.password {
        Some(password) => client.with_password(password.expose()),
        None => client,
    }
}

fn counts(report: &TableReport) -> [u64; 4] {
    [report.verified_rows, report.lost_rows, report.extra_rows, report.differing_rows]
}

const ENGINE: &str = "ENGINE = ReplacingMergeTree(_lsn, _deleted)";

/// The same table of every type on both sides: row number n has each column's n-th value, or its first.
async fn every_type(servers: &Servers) -> i64 {
    let source_columns: Vec<String> = types().map(|case| format!("{} {}", case.0, case.1)).collect();
    let target_columns: Vec<String> = types().map(|case| format!("{} {}", case.0, case.2)).collect();
    servers.source(&format!("create table types (id int primary key, {})", source_columns.join(", "))).await;
    servers
        .target(&format!(
            "CREATE TABLE types (id Int32, {}, ai__is_null Bool, at__is_null Bool, _lsn UInt64, _deleted UInt8) {ENGINE} ORDER BY id",
            target_columns.join(", ")
        ))
        .await;
    let rows = types().map(|case| case.3.len()).max().unwrap();
    for row in 0..rows {
        let value = |case: &TypeCase| *case.3.get(row).unwrap_or(&case.3[0]);
        let source: Vec<&str> = types().map(|case| value(case).0).collect();
        let target: Vec<&str> = types().map(|case| value(case).1).collect();
        let is_null = |name: &str| types().any(|case| case.0 == name && value(case).0 == "null").to_string();
        servers.source(&format!("insert into types values ({row}, {})", source.join(", "))).await;
        let companions = format!("{}, {}", is_null("ai"), is_null("at"));
        servers
            .target(&format!("INSERT INTO types VALUES ({row}, {}, {companions}, 1, 0)", target.join(", ")))
            .await;
    }
    rows as i64
}

#[tokio::test]
async fn every_type_is_equal_and_every_change_is_found() {
    let servers = Servers::start().await;
    // Every session's texts must be pinned, whatever the roles say.
    servers
        .source(
            "alter role current_user set datestyle = 'German'; alter role current_user set timezone = 'Asia/Tokyo';
             alter role current_user set bytea_output = 'escape'; alter role current_user set extra_float_digits = -10",
        )
        .await;
    servers.source("set search_path = public").await;
    let rows = every_type(&servers).await as u64;
    let report = servers.verify("types").await;
    assert_eq!(counts(&report), [rows, 0, 0, 0], "{:#?}", report.examples);
    for (version, (name, _, _, values)) in types().enumerate() {
        // Row 0 takes the second value in this column alone, as a newer version.
        let version = version + 2;
        let plant = |value: &str, version: usize| {
            format!(
                "INSERT INTO types SELECT * REPLACE ({value} AS {name}, {version} AS _lsn) FROM types FINAL WHERE id = 0"
            )
        };
        servers.target(&plant(values[1].1, version)).await;
        let report = servers.verify("types").await;
        assert_eq!(counts(&report), [rows - 1, 0, 0, 1], "{name}");
        let [Difference::Differing { key, values: differing }] = &report.examples[..] else {
            panic!("{name}: {:?}", report.examples)
        };
        assert_eq!((&key[..], differing.len()), (&["0".to_owned()][..], 1), "{name}: {differing:?}");
        assert_eq!(differing[0].column, *name);
        assert_ne!(differing[0].source, differing[0].target);
        servers.target(&plant(values[0].1, version)).await;
    }
    assert_eq!(counts(&servers.verify("types").await), [rows, 0, 0, 0], "mended again");
    servers.lab.stop().await.unwrap();
}

#[tokio::test]
async fn null_empty_and_absent_are_three_things() {
    let servers = Servers::start().await;
    servers.source("create table public.three (id int primary key, t text, a int[])").await;
    servers
        .target(&format!(
            "CREATE TABLE three (id Int32, t Nullable(String), a Array(Nullable(Int32)), a__is_null Bool, _lsn UInt64, _deleted UInt8) {ENGINE} ORDER BY id"
        ))
        .await;
    servers
        .source(
            "insert into public.three values (1, '', '{}'), (2, null, null), (3, 'x', '{}'), (4, 'x', '{}')",
        )
        .await;
    servers
        .target(
            "INSERT INTO three VALUES (1, NULL, [], true, 1, 0), (2, '', [], false, 1, 0), (4, 'x', [], false, 1, 1), (5, 'x', [], false, 1, 0)",
        )
        .await;
    let report = servers.verify("three").await;
    assert_eq!(counts(&report), [0, 2, 1, 2], "{:#?}", report.examples);
    let values: Vec<_> = report
        .examples
        .iter()
        .filter_map(|example| match example {
            Difference::Differing { values, .. } => {
                Some(values.iter().map(|v| (v.source.as_deref(), v.target.as_deref())))
            }
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(values, [(Some(""), None), (Some("{}"), None), (None, Some("")), (None, Some("{}"))]);
    servers.lab.stop().await.unwrap();
}

/// Source key, target key, and values in neither server's text order.
#[tokio::test]
async fn keys_of_every_kind_merge_in_order() {
    let servers = Servers::start().await;
    let cases = [
        (
            "ktext",
            "text",
            "String",
            "(array['b','B','a','A','é','zz','z','','Z-','a b',E'a\\tb','it''s','%','_'])[1 + g % 14] || g",
        ),
        (
            "kbpchar",
            "char(8)",
            "String",
            "(array['b','B','a','A','é','zz','Z-',E'a\\tb','a b'])[1 + g % 9] || g",
        ),
        ("kuuid", "uuid", "UUID", "md5(g::text)::uuid"),
        ("knumeric", "numeric(10,2)", "Decimal(10,2)", "(g - 1500) * 1.37"),
        ("kdate", "date", "Date32", "date '1990-01-01' + g * 7"),
        (
            "kstamp",
            "timestamptz",
            "DateTime64(6,'UTC')",
            "timestamptz '1960-01-01' + g * interval '17 hours 3.25 seconds'",
        ),
        ("kbytea", "bytea", "String", "decode(md5(g::text), 'hex')"),
        ("kint", "int8", "Int64", "(g - 1500) * 1000003::int8"),
    ];
    for (table, source_type, target_type, value) in cases {
        servers
            .source(&format!(
                "create table public.{table} (k {source_type}, part int, t text, primary key (k, part));
                 insert into public.{table} select {value}, g % 3, 'row ' || g from generate_series(1, 3000) g"
            ))
            .await;
        servers
            .target(&format!("CREATE TABLE {table} (k {target_type}, part Int32, t String, _lsn UInt64, _deleted UInt8) {ENGINE} ORDER BY (k, part)"))
            .await;
        copy_to_target(&servers, table, source_type).await;
        let report = servers.verify(table).await;
        assert_eq!(counts(&report), [3000, 0, 0, 0], "{table}: {:?}", &report.examples);
        servers.source(&format!("delete from public.{table} where t in ('row 7', 'row 2000')")).await;
        servers.target(&format!("ALTER TABLE {table} DELETE WHERE t IN ('row 1', 'row 1234', 'row 3000') SETTINGS mutations_sync = 1")).await;
        let report = servers.verify(table).await;
        assert_eq!(counts(&report), [2995, 3, 2, 0], "{table}: {:?}", &report.examples);
    }
    servers.lab.stop().await.unwrap();
}

/// Rows (k, part, t) by their text, which ClickHouse reads.
async fn copy_to_target(servers: &Servers, table: &str, source_type: &str) {
    let key = match source_type {
        "bytea" => "encode(k, 'hex')",
        "char(8)" => "concat(k, '')",
        "timestamptz" => "to_char(k, 'YYYY-MM-DD HH24:MI:SS.US')",
        _ => "k::text",
    };
    let sql = format!("select {key}, part, t from public.{table}");
    let rows = servers.source.query(&sql, &[]).await.unwrap();
    let mut values = Vec::new();
    for row in &rows {
        let key = row.get::<_, String>(0).replace('\\', "\\\\").replace('\'', "\\'");
        let key = if source_type == "bytea" { format!("unhex('{key}')") } else { format!("'{key}'") };
        values.push(format!("({key}, {}, '{}', 1, 0)", row.get::<_, i32>(1), row.get::<_, String>(2)));
    }
    servers.target(&format!("INSERT INTO {table} VALUES {}", values.join(","))).await;
}

#[tokio::test]
async fn a_table_in_many_ranges_loses_nothing_between_them() {
    let servers = Servers::start().await;
    for (table, source_key, target_key, value) in [
        ("rangeint", "int8", "Int64", "g * g"),
        ("rangetext", "text", "String", "md5(g::text)"),
        ("rangeuuid", "uuid", "UUID", "md5(g::text)::uuid"),
    ] {
        servers
            .source(&format!(
                "create table public.{table} (id {source_key} primary key, t text);
                 insert into public.{table} select {value}, repeat('x', 200) || g from generate_series(1::int8, 60000) g"
            ))
            .await;
        let value = match target_key {
            "Int64" => "g * g",
            "String" => "lower(hex(MD5(toString(g))))",
            _ => {
                "toUUID(concat(substring(lower(hex(MD5(toString(g)))) AS h, 1, 8), '-', substring(h, 9, 4), '-', substring(h, 13, 4), '-', substring(h, 17, 4), '-', substring(h, 21)))"
            }
        };
        servers.target(&format!("CREATE TABLE {table} (id {target_key}, t String, _lsn UInt64, _deleted UInt8) {ENGINE} ORDER BY id")).await;
        servers
            .target(&format!(
                "INSERT INTO {table} SELECT {value}, concat(repeat('x', 200), toString(g)), 1, 0 FROM (SELECT number + 1 AS g FROM numbers(60000))"
            ))
            .await;
        let report = servers.verify(table).await;
        assert_eq!(counts(&report), [60000, 0, 0, 0], "{table}: {:?}", &report.examples);
        servers.target(&format!("INSERT INTO {table} SELECT * REPLACE (2 AS _lsn, 1 AS _deleted) FROM {table} WHERE endsWith(t, '77')")).await;
        let report = servers.verify(table).await;
        assert_eq!(counts(&report), [59400, 600, 0, 0], "{table}");
        assert_eq!(report.examples.len(), VerifyOptions::default().max_examples);
    }
    servers.lab.stop().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_compared_is_named() {
    let servers = Servers::start().await;
    servers.source("create table public.untaken (id int primary key)").await;
    servers.source("create table public.narrow (id int primary key, t text)").await;
    servers.source("create table public.odd (id int primary key, t text)").await;
    servers.target("CREATE TABLE narrow (id Int32) ENGINE = MergeTree ORDER BY id").await;
    servers.target("CREATE TABLE odd (id Int32, t Int32) ENGINE = MergeTree ORDER BY id").await;
    for (table, kind, word) in [
        ("nowhere", Kind::Config, "public.nowhere"),
        ("untaken", Kind::Invariant, "untaken"),
        ("narrow", Kind::Invariant, "column t"),
        ("odd", Kind::Invariant, "column t"),
    ] {
        let error = servers.try_verify(table).await.expect_err("must be refused");
        let failure = Failure::find(&error).unwrap_or_else(|| panic!("{table}: {error:#}"));
        assert_eq!(failure.kind, kind, "{table}");
        assert!(failure.message.contains(word), "{table}: {failure}");
    }
    servers.lab.stop().await.unwrap();
}

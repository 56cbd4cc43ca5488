//! Every type's values, written by hand on both sides: what PostgreSQL was given, and what ClickHouse shows.

use cdcprobe::failure::{Failure, Kind};

use super::{Bench, ask, within};

/// A type, how to show its column (`{}`) in ClickHouse, and pairs of PostgreSQL literal and ClickHouse text.
type TypeCase = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const TYPES: &[TypeCase] = &[
    ("b", "bool", "{}", &[("true", "true"), ("false", "false")]),
    ("i2", "int2", "{}", &[("-32768", "-32768"), ("32767", "32767"), ("0", "0")]),
    ("i4", "int4", "{}", &[("-2147483648", "-2147483648"), ("2147483647", "2147483647")]),
    (
        "i8",
        "int8",
        "{}",
        &[("-9223372036854775808", "-9223372036854775808"), ("9223372036854775807", "9223372036854775807")],
    ),
    (
        "f4",
        "float4",
        "{}",
        &[
            ("1.1", "1.1"),
            ("'NaN'", "nan"),
            ("'-0'", "-0"),
            ("'Infinity'", "inf"),
            ("'-Infinity'", "-inf"),
            ("1e-40", "1e-40"),
        ],
    ),
    (
        "f8",
        "float8",
        "{}",
        &[
            ("0.1", "0.1"),
            ("'NaN'", "nan"),
            ("'-0'", "-0"),
            ("'Infinity'", "inf"),
            ("'-Infinity'", "-inf"),
            ("5e-324", "5e-324"),
        ],
    ),
    (
        "n2",
        "numeric(10,2)",
        "{}",
        &[
            ("-12345678.90", "-12345678.9"),
            ("99999999.99", "99999999.99"),
            ("0.005", "0.01"),
            ("10000", "10000"),
            ("-0.07", "-0.07"),
        ],
    ),
    (
        "n76",
        "numeric(76,38)",
        "{}",
        &[
            (
                "99999999999999999999999999999999999999.99999999999999999999999999999999999999",
                "99999999999999999999999999999999999999.99999999999999999999999999999999999999",
            ),
            (
                "-99999999999999999999999999999999999999.99999999999999999999999999999999999999",
                "-99999999999999999999999999999999999999.99999999999999999999999999999999999999",
            ),
            ("0.00000000000000000000000000000000000001", "0.00000000000000000000000000000000000001"),
        ],
    ),
    (
        "nx",
        "numeric",
        "{}",
        &[
            ("1.500", "1.500"),
            ("'NaN'", "NaN"),
            ("'-Infinity'", "-Infinity"),
            ("-0.00010", "-0.00010"),
            ("1e30", "1000000000000000000000000000000"),
            (
                "123456789012345678901234567890.000000000000000000000000000001",
                "123456789012345678901234567890.000000000000000000000000000001",
            ),
        ],
    ),
    (
        "t",
        "text",
        "{}",
        &[
            ("''", ""),
            (r"E'tab\tline\nback\\slash'", r"tab\tline\nback\\slash"),
            ("'Grüße, 世界 🦀'", "Grüße, 世界 🦀"),
            (r"'\N'", r"\\N"),
            ("'it''s'", r"it\'s"),
            ("'NULL'", "NULL"),
        ],
    ),
    ("v", "varchar(10)", "{}", &[("'0123456789'", "0123456789"), ("''", ""), ("'é '", "é ")]),
    ("bp", "char(5)", "{}", &[("'ab'", "ab   "), ("'é  '", "é    "), ("''", "     ")]),
    ("y", "bytea", "hex({})", &[(r"'\x00ff0a5c09'", "00FF0A5C09"), ("''", ""), (r"'\xe4'", "E4")]),
    (
        "u",
        "uuid",
        "{}",
        &[
            ("'00112233-4455-6677-8899-aabbccddeeff'", "00112233-4455-6677-8899-aabbccddeeff"),
            ("'ffffffff-ffff-ffff-ffff-ffffffffffff'", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
        ],
    ),
    (
        "d",
        "date",
        "{}",
        &[
            ("'2024-02-29'", "2024-02-29"),
            ("'1969-12-31'", "1969-12-31"),
            ("'1900-01-01'", "1900-01-01"),
            ("'2299-12-31'", "2299-12-31"),
        ],
    ),
    (
        "tm",
        "time",
        "{}",
        &[
            ("'24:00'", "24:00:00.000000"),
            ("'00:00'", "00:00:00.000000"),
            ("'23:59:59.999999'", "23:59:59.999999"),
        ],
    ),
    (
        "ts",
        "timestamp",
        "toString({}, 'UTC')",
        &[
            ("'2000-01-01 00:00:00'", "2000-01-01 00:00:00.000000"),
            ("'1969-12-31 23:59:59.999999'", "1969-12-31 23:59:59.999999"),
            ("'2261-01-01 12:34:56.000001'", "2261-01-01 12:34:56.000001"),
        ],
    ),
    (
        "tz",
        "timestamptz",
        "{}",
        &[
            ("'2024-07-01 12:00:00.5+02'", "2024-07-01 10:00:00.500000"),
            ("'1901-01-01 00:00:00+00'", "1901-01-01 00:00:00.000000"),
        ],
    ),
    (
        "j",
        "json",
        "{}",
        &[(r#"'{"b": 1,  "a":[1.50,null]}'"#, r#"{"b": 1,  "a":[1.50,null]}"#), ("'null'", "null")],
    ),
    (
        "jb",
        "jsonb",
        "{}",
        &[
            (r#"'{"b":1,  "a":[1.50,null], "b":2}'"#, r#"{"a": [1.50, null], "b": 2}"#),
            (r#"'"é"'"#, r#""é""#),
        ],
    ),
    (
        "ia",
        "int4[]",
        "{}",
        &[("'{}'", "[]"), ("'{1,NULL,-3}'", "[1,NULL,-3]"), ("'{2147483647}'", "[2147483647]")],
    ),
    (
        "ta",
        "text[]",
        "{}",
        &[
            ("'{}'", "[]"),
            (r#"'{a,NULL,"","NULL"}'"#, "['a',NULL,'','NULL']"),
            (r#"array['x y', 'é']"#, "['x y','é']"),
        ],
    ),
];

/// As many rows as the longest list of values, and one more where all that may be NULL is.
const ROWS: usize = 7;

fn pair(case: &TypeCase, row: usize) -> (&'static str, &'static str) {
    *case.3.get(row).unwrap_or(&case.3[0])
}

fn create() -> String {
    let columns: Vec<_> =
        TYPES.iter().map(|(name, kind, ..)| format!("{name} {kind} not null, {name}_null {kind}")).collect();
    format!("create table every (id int primary key, {})", columns.join(", "))
}

/// The rows, with ids from `first` on.
fn insert(first: usize) -> String {
    let row = |row: usize| {
        let values: Vec<_> = TYPES
            .iter()
            .map(|case| {
                let literal = pair(case, row).0;
                format!("{literal}, {}", if row == ROWS - 1 { "null" } else { literal })
            })
            .collect();
        format!("insert into every values ({}, {});", first + row, values.join(", "))
    };
    (0..ROWS).map(row).collect()
}

async fn expect_rows(bench: &Bench, first: usize) {
    let target = bench.target();
    for row in 0..ROWS {
        for case in TYPES {
            let (name, kind, show, _) = case;
            let (literal, expected) = pair(case, row);
            let (plain, nullable) = (show.replace("{}", name), show.replace("{}", &format!("{name}_null")));
            let query =
                format!("select {plain}, {nullable} from types.every final where id = {}", first + row);
            let null = if kind.ends_with("[]") { "[]" } else { r"\N" };
            let second = if row == ROWS - 1 { null } else { expected };
            assert_eq!(
                ask(&target, &query).await,
                format!("{expected}\t{second}"),
                "{kind} {literal}: {query}"
            );
        }
        let nulls = format!(
            "select ia_null__is_null, ta_null__is_null from types.every final where id = {}",
            first + row
        );
        let is_null = row == ROWS - 1;
        assert_eq!(ask(&target, &nulls).await, format!("{is_null}\t{is_null}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_arrive_exactly() {
    let bench = Bench::start("types", &["public.every"], &format!("{}; {}", create(), insert(0))).await;
    let mut pipe = bench.streaming().await;
    expect_rows(&bench, 0).await;
    bench.sql(&insert(100)).await;
    bench.sql("update every set id = id + 1000 where id between 100 and 106").await;
    bench.caught_up(&mut pipe).await;
    expect_rows(&bench, 1100).await;
    bench.expect_equal().await;
    within(pipe.stop()).await.unwrap();
    bench.lab.stop().await.unwrap();
}

/// Column, its type, a value that ClickHouse's type cannot hold, and one that it can.
const UNFIT: &[(&str, &str, &str, &str)] = &[
    ("too_late", "date", "'infinity'", "'2024-01-01'"),
    ("far_off", "timestamp", "'294276-12-31 23:59:59'", "'2024-01-01'"),
    ("never", "timestamptz", "'-infinity'", "'2024-01-01'"),
    ("not_a_number", "numeric(10,2)", "'NaN'", "1"),
    ("matrix", "int4[]", "'{{1,2},{3,4}}'", "'{1}'"),
];

async fn expect_refusal(pipe: &mut cdcprobe::pipeline::Pipe, column: &str) {
    let error = within(pipe.ended()).await.unwrap_err();
    let failure = Failure::find(&error).unwrap();
    assert_eq!(failure.kind, Kind::Config, "exit code 2: {error:#}");
    assert!(failure.message.contains(&format!("column {column}")) && failure.hint.is_some(), "{error:#}");
}

/// In the snapshot and in the stream alike: the column is named, the pipe stops, the slot keeps the change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_do_not_fit_are_refused_by_name() {
    let mut bench = Bench::start("unfit", &[], "select 1").await;
    for (column, kind, unfit, fit) in UNFIT {
        bench.tables = vec!["public.unfit"];
        bench.sql(&format!("create table unfit (id int primary key, {column} {kind}); insert into unfit values (1, {unfit})")).await;
        expect_refusal(&mut bench.pipe(), column).await;
        let rows = "select count() from unfit.unfit";
        assert_eq!(ask(&bench.target(), rows).await, "0", "{column}: something was written");
        super::until("no slot is left", async || {
            bench.value("select count(*) from pg_replication_slots").await == "0"
        })
        .await;

        bench.sql(&format!("update unfit set {column} = {fit}")).await;
        let mut pipe = bench.streaming().await;
        bench.sql(&format!("insert into unfit values (2, {fit})")).await;
        bench.caught_up(&mut pipe).await;
        let before = bench.flushed().await;
        bench.sql(&format!("insert into unfit values (3, {unfit})")).await;
        expect_refusal(&mut pipe, column).await;
        assert_eq!(
            ask(&bench.target(), "select arraySort(groupArray(id)) from unfit.unfit final").await,
            "[1,2]"
        );
        assert!(bench.slot_position().await <= before, "{column}: the slot has passed what was refused");
        expect_refusal(&mut bench.pipe(), column).await;
        super::until("the walsender is gone", async || {
            bench.value("select count(*) from pg_replication_slots where active").await == "0"
        })
        .await;
        bench.sql("select pg_drop_replication_slot('unfit')").await;
        bench.sql("drop publication unfit; drop table unfit").await;
        ask(&bench.target(), "drop database unfit sync").await;
    }
    bench.lab.stop().await.unwrap();
}

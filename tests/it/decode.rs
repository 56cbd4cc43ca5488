//! Real streams against their expected decode, and the fuzz corpus against the code, on any compiler.
//!
//! `cargo test --test it -- --ignored capture` takes the streams anew from a lab (fixtures/wire/*.bin, their decode in
//! *.txt, seeds in fuzz/corpus): read the difference before you commit it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use cdcprobe::{
    config::SourceEndpoint,
    lab::{Lab, LabOptions, postgres::sql_config},
    postgres::wire::{SessionKind, Wire},
    source::{copy::CopyDecoder, pgoutput::Decoder},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

#[path = "../../fuzz/src/lib.rs"]
mod bodies;

use bodies::{pieces, tuples};

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 4] = [
    ("pgoutput", bodies::pgoutput),
    ("copy", bodies::copy),
    ("native", bodies::native),
    ("numeric", bodies::numeric),
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn files(folder: &Path, extension: Option<&str>) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder is there").map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|path| extension.is_none_or(|wanted| path.extension().is_some_and(|found| found == wanted)))
        .collect();
    files.sort();
    files
}

#[test]
fn captured_streams_decode_as_expected() {
    let streams = files(&folder("fixtures/wire"), Some("bin"));
    assert!(streams.len() >= 6, "{streams:?}");
    for path in streams {
        let expected = fs::read_to_string(path.with_extension("txt")).unwrap();
        let found = decoded(&fs::read(&path).unwrap());
        assert!(found == expected, "{} decodes to\n{found}", path.display());
    }
}

/// What the fixtures are for: every kind of message is in one of them.
#[test]
fn captured_streams_hold_every_message() {
    let mut tags: Vec<u8> = Vec::new();
    for path in files(&folder("fixtures/wire"), Some("bin")) {
        tags.extend(pieces(&fs::read(path).unwrap()).map(|message| message[0]));
    }
    let missing: Vec<char> =
        "IUDBCRYOTMSEcAbPKpr".chars().filter(|&tag| !tags.contains(&(tag as u8))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_corpus_passes_whole_cut_and_bent() {
    for (name, target) in TARGETS {
        let seeds = files(&folder("fuzz/corpus").join(name), None);
        assert!(!seeds.is_empty(), "no corpus for {name}");
        for path in seeds {
            let seed = fs::read(&path).unwrap();
            target(&seed);
            bend(&seed, target);
        }
    }
}

/// Truncations, then flips of one to four bytes: the same ones in every run.
fn bend(seed: &[u8], target: fn(&[u8])) {
    let mut random = StdRng::seed_from_u64(1);
    for length in (0..seed.len()).step_by(1 + seed.len() / 200) {
        target(&seed[..length]);
    }
    for _ in 0..200 {
        let mut bent = seed.to_vec();
        for _ in 0..random.random_range(1..=4) {
            if let Some(last) = bent.len().checked_sub(1) {
                bent[random.random_range(0..=last)] = random.random();
            }
        }
        target(&bent);
    }
}

/// A stream's events, one a line, then its rows; what differs from server to server numbered in order of appearance.
fn decoded(stream: &[u8]) -> String {
    let (mut decoder, mut numbers) = (Decoder::default(), Numbers::default());
    let mut text = String::new();
    for message in pieces(stream) {
        let event = decoder.decode(message).unwrap_or_else(|error| panic!("{error}: {message:?}"));
        text.push_str(&numbers.replace(&readable(&format!("{event:?}"))));
        text.push('\n');
        for (role, tuple) in tuples(&event) {
            let values: Vec<String> = tuple.values().map(|value| readable(&format!("{value:?}"))).collect();
            text.push_str(&format!("    {role}: {}\n", values.join(", ")));
        }
    }
    text
}

/// Debug text with lists of bytes as strings, and without the tuples' bytes, whose values follow.
fn readable(debug: &str) -> String {
    let (mut out, mut rest) = (String::new(), debug);
    while let Some(at) = rest.find('[') {
        let end = at + rest[at..].find(']').expect("Debug closes its lists");
        let list = &rest[at + 1..end];
        let bytes: Result<Vec<u8>, _> =
            list.split(", ").filter(|item| !item.is_empty()).map(str::parse).collect();
        out.push_str(&rest[..at]);
        match bytes {
            Ok(_) if rest[..at].ends_with("body: ") => out.push('…'),
            Ok(bytes) => out.push_str(&format!("\"{}\"", bytes.escape_ascii())),
            Err(_) => {
                out.push('[');
                rest = &rest[at + 1..];
                continue;
            }
        }
        rest = &rest[end + 1..];
    }
    out + rest
}

/// Numbers already met, by what they count.
#[derive(Default)]
struct Numbers(BTreeMap<&'static str, Vec<u64>>);

impl Numbers {
    /// What stands before a number that is another one on every server, and its name. Fixed oids stay.
    const MARKS: [(&str, &str, u64); 7] = [
        ("Lsn(", "lsn", 1),
        ("PgMicros(", "time", 1),
        ("RelationId(", "relation", 1),
        ("subxid: ", "xid", 1),
        ("xid: Some(", "xid", 1),
        ("xid: ", "xid", 1),
        ("oid: ", "oid", 16_384),
    ];

    fn replace(&mut self, text: &str) -> String {
        Self::MARKS.iter().fold(text.to_owned(), |text, &(mark, name, from)| {
            let mut parts = text.split(mark);
            let mut out = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
                out.push_str(mark);
                match part[..digits].parse() {
                    Ok(number) if number >= from => {
                        out.push_str(&format!("{name}{}{}", self.position(name, number), &part[digits..]));
                    }
                    _ => out.push_str(part),
                }
            }
            out
        })
    }

    fn position(&mut self, name: &'static str, number: u64) -> usize {
        let met = self.0.entry(name).or_default();
        met.iter().position(|&known| known == number).unwrap_or_else(|| {
            met.push(number);
            met.len() - 1
        })
    }
}

/// Name, two-phase slot, session setting, START_REPLICATION's options.
const CAPTURES: [(&str, bool, &str, &str); 6] = [
    ("v1_text", false, "", "proto_version '1', messages 'true'"),
    ("v1_binary", false, "", "proto_version '1', binary 'true', messages 'true'"),
    ("v2_streamed", false, IMMEDIATE, "proto_version '2', binary 'true', messages 'true', streaming 'on'"),
    ("v3_two_phase", true, "", "proto_version '3', binary 'true', two_phase 'on'"),
    (
        "v3_streamed_two_phase",
        true,
        IMMEDIATE,
        "proto_version '3', messages 'true', streaming 'on', two_phase 'on'",
    ),
    (
        "v4_parallel",
        true,
        IMMEDIATE,
        "proto_version '4', binary 'true', messages 'true', streaming 'parallel', two_phase 'on'",
    ),
];
const IMMEDIATE: &str = "set debug_logical_replication_streaming = immediate";

#[tokio::test]
#[ignore = "rewrites fixtures/wire and fuzz/corpus from a real server"]
async fn capture() {
    let settings = [("max_prepared_transactions", "4"), ("max_replication_slots", "20")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let lab = Lab::start(&LabOptions { postgres_settings: settings, ..crate::lab::options() }).await.unwrap();
    let source = lab.source_endpoint();
    script(&source, include_str!("../../fixtures/wire/tables.sql")).await;
    for (name, two_phase, ..) in CAPTURES {
        let make = format!(
            "select pg_create_logical_replication_slot('{name}', 'pgoutput', temporary => false, twophase => {two_phase});"
        );
        script(&source, &make).await;
    }
    script(&source, include_str!("../../fixtures/wire/changes.sql")).await;
    let mut streams = Vec::new();
    for (name, _, set, options) in CAPTURES {
        let stream = framed(&messages(&source, name, set, options).await);
        fs::write(folder("fixtures/wire").join(format!("{name}.bin")), &stream).unwrap();
        fs::write(folder("fixtures/wire").join(format!("{name}.txt")), decoded(&stream)).unwrap();
        streams.push((name, stream));
    }
    seed_pgoutput(&streams);
    seed_values(&source).await;
    lab.stop().await.unwrap();
}

/// One statement at a time, each in its own transaction unless the script says otherwise.
async fn script(source: &SourceEndpoint, text: &str) {
    let (client, connection) = sql_config(source).connect(tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    for statement in text.split(";\n") {
        client.simple_query(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
    drop(client);
    connection.await.unwrap().unwrap();
}

/// Everything that a slot has up to now.
async fn messages(source: &SourceEndpoint, slot: &str, set: &str, options: &str) -> Vec<Vec<u8>> {
    let mut wire = Wire::connect(source, SessionKind::LogicalReplication, "capture").await.unwrap();
    wire.simple_query(set).await.unwrap();
    let end = wire.simple_query("select pg_current_wal_flush_lsn() - '0/0'::pg_lsn").await.unwrap();
    let end: u64 = end[0][0].as_ref().unwrap().parse().unwrap();
    let start =
        format!("START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options}, publication_names 'wire_fixture')");
    wire.begin_copy(&start).await.unwrap();
    let mut messages = Vec::new();
    loop {
        while let Some(frame) = wire.next_frame().unwrap() {
            match (frame.tag, frame.body) {
                (b'd', [b'w', rest @ ..]) => messages.push(rest[24..].to_vec()),
                (b'd', [b'k', rest @ ..]) => {
                    if u64::from_be_bytes(rest[..8].try_into().unwrap()) >= end {
                        wire.terminate().await;
                        return messages;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        wire.fill().await.unwrap();
    }
}

fn framed<T: AsRef<[u8]>>(pieces: &[T]) -> Vec<u8> {
    let one = |piece: &T| [&(piece.as_ref().len() as u32).to_be_bytes(), piece.as_ref()].concat();
    pieces.iter().flat_map(one).collect()
}

fn write_seed(target: &str, name: &str, bytes: &[u8]) {
    let folder = folder("fuzz/corpus").join(target);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name), bytes).unwrap();
}

/// Every stream, and the first message of each kind alone.
fn seed_pgoutput(streams: &[(&str, Vec<u8>)]) {
    let mut seen = Vec::new();
    for (name, stream) in streams {
        write_seed("pgoutput", name, stream);
        for message in pieces(stream).filter(|message| message.len() < 4096) {
            if !seen.contains(&message[0]) {
                seen.push(message[0]);
                write_seed("pgoutput", &format!("tag_{:02x}", message[0]), &framed(&[message]));
            }
        }
    }
}

/// A COPY of the table that has every type, and its columns one by one.
async fn seed_values(source: &SourceEndpoint) {
    let mut wire = Wire::connect(source, SessionKind::Sql, "capture").await.unwrap();
    wire.begin_copy("copy public.every_type to stdout (format binary)").await.unwrap();
    let mut messages = Vec::new();
    'copy: loop {
        while let Some(frame) = wire.next_frame().unwrap() {
            match frame.tag {
                b'd' => messages.push(frame.body.to_vec()),
                _ => break 'copy,
            }
        }
        wire.fill().await.unwrap();
    }
    wire.terminate().await;
    let columns = bodies::TYPES.len();
    write_seed("copy", "every_type", &[&[columns as u8], framed(&messages).as_slice()].concat());
    let mut decoder = CopyDecoder::new(columns as u16);
    let mut values: Vec<Vec<Vec<u8>>> = vec![Vec::new(); columns];
    for message in &messages {
        let Some(row) = decoder.decode(message).unwrap() else { continue };
        for (column, value) in values.iter_mut().zip(row.values()) {
            if let cdcprobe::change::Value::Binary(bytes) = value {
                column.push(bytes.to_vec());
            }
        }
    }
    for (index, values) in values.iter().enumerate() {
        assert!(!values.is_empty(), "column {index} has only NULLs");
        write_seed(
            "native",
            &format!("type_{index:02}"),
            &[&[index as u8], framed(values).as_slice()].concat(),
        );
    }
    for (index, value) in values[14].iter().enumerate() {
        write_seed("numeric", &format!("value_{index:02}"), value);
    }
}

//! `latency.hlog`: HDR histograms per interval and operation, in the interval-log format that HdrHistogram's own tools
//! read. Timestamps are seconds since the run's start (`BaseTime` ties them to the wall clock), values microseconds.

use anyhow::{Context, Result, anyhow};
use base64::{Engine, engine::general_purpose::STANDARD};
use hdrhistogram::{
    Histogram,
    serialization::{
        Deserializer, V2DeflateSerializer,
        interval_log::{IntervalLogHistogram, IntervalLogIterator, IntervalLogWriterBuilder, LogEntry, Tag},
    },
};
use std::time::{Duration, UNIX_EPOCH};

use super::Anchor;

/// One line of `latency.hlog`.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyInterval {
    pub operation: String,
    /// Microseconds since the run's start, to a millisecond: the format holds no more.
    pub start_us: u64,
    pub end_us: u64,
    /// Microseconds.
    pub latencies: Histogram<u64>,
}

/// A histogram of microseconds, three significant digits, growing with what is recorded.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

pub(super) fn header(anchor: Anchor) -> Vec<u8> {
    let unix_us = u64::try_from(anchor.unix_us(0)).unwrap_or(0);
    let start = UNIX_EPOCH + Duration::from_micros(unix_us);
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment("[latencies in microseconds; one tag per operation]");
    builder.with_start_time(start).with_base_time(start);
    builder.begin_log_with(&mut bytes, &mut serializer).expect("writing to memory cannot fail");
    bytes
}

pub(super) fn line(
    operation: &str,
    start_us: u64,
    end_us: u64,
    latencies: &Histogram<u64>,
) -> Result<Vec<u8>> {
    let tag = Tag::new(operation).with_context(|| format!("`{operation}` cannot name an operation"))?;
    let (start, length) =
        (Duration::from_micros(start_us), Duration::from_micros(end_us.saturating_sub(start_us)));
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    IntervalLogWriterBuilder::new()
        .begin_log_with(&mut bytes, &mut serializer)
        .expect("writing to memory cannot fail")
        .write_histogram(latencies, start, length, Some(tag))
        .map_err(|error| anyhow!("serialise the latencies of {operation}: {error}"))?;
    Ok(bytes)
}

/// Reads a whole log. A torn last line must have been cut off before.
pub(super) fn parse(log: &[u8]) -> Result<Vec<LatencyInterval>> {
    let mut intervals = Vec::new();
    for entry in IntervalLogIterator::new(log) {
        match entry {
            Ok(LogEntry::Interval(interval)) => intervals.push(decode(&interval)?),
            Ok(_) => {}
            Err(error) => return Err(anyhow!("line {} is no interval: {error:?}", intervals.len() + 1)),
        }
    }
    Ok(intervals)
}

fn decode(interval: &IntervalLogHistogram<'_>) -> Result<LatencyInterval> {
    let bytes = STANDARD.decode(interval.encoded_histogram()).context("a histogram is no base64")?;
    let latencies = Deserializer::new()
        .deserialize(&mut bytes.as_slice())
        .map_err(|error| anyhow!("a histogram cannot be read: {error}"))?;
    let start = interval.start_timestamp();
    Ok(LatencyInterval {
        operation: interval.tag().map_or_else(String::new, |tag| tag.as_str().to_owned()),
        start_us: u64::try_from(start.as_micros()).unwrap_or(u64::MAX),
        end_us: u64::try_from((start + interval.duration()).as_micros()).unwrap_or(u64::MAX),
        latencies,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_reads_back_as_written() {
        let mut latencies = latency_histogram();
        for us in [150, 900, 900, 4_000_000] {
            latencies.record(us).unwrap();
        }
        let mut log = header(Anchor { t_us: 0, unix_us: 1_764_558_000_000_000, uncertainty_us: 1 });
        log.extend(line("insert", 1_000_000, 2_500_000, &latencies).unwrap());
        log.extend(line("update", 2_500_000, 3_000_000, &latency_histogram()).unwrap());
        let text = String::from_utf8(log.clone()).unwrap();
        assert!(text.contains("#[BaseTime: 1764558000.000"), "{text}");
        let intervals = parse(&log).unwrap();
        assert_eq!(intervals.len(), 2);
        assert_eq!(intervals[0].latencies, latencies);
        assert_eq!((intervals[0].start_us, intervals[0].end_us), (1_000_000, 2_500_000));
        assert_eq!((intervals[1].operation.as_str(), intervals[1].latencies.len()), ("update", 0));
    }

    #[test]
    fn refuses_names_that_would_break_a_line() {
        assert!(line("two words", 0, 1, &latency_histogram()).is_err());
        assert!(parse(b"Tag=x,0.1,1.0,2.0,!!!\n").is_err());
    }
}

//! Checks that the figures of a run agree with each other: two ways to one number, and how far they may differ.
//!
//! Every check is made in every run that has the figures; one that cannot be made says why (`not applicable`).

use super::lag::{self, SlotSample};
use crate::record::{Check, CheckStatus};

/// Clients that begin late or end early are in neither mean: a statement's length at each end of the window. More than
/// 5 % means that latency and rate were not taken from the same statements.
const LITTLE_TOLERANCE: f64 = 0.05;
/// Other WAL than the tables' (checkpoints, hint bits' page images, statistics) is spread unevenly over the run.
const WAL_TOLERANCE: f64 = 0.05;
/// Lag is read from two clocks a sampling period apart.
const LAG_TOLERANCE: f64 = 0.10;
/// A change is in the stream in another form than in the WAL; outside of these ratios one of the two is miscounted.
const STREAM_TO_WAL: (f64, f64) = (0.02, 5.0);

fn check(name: &str, expected: f64, observed: f64, tolerance: f64, detail: String) -> Check {
    // A NaN on either side compares false: it fails.
    let passed = (observed - expected).abs() <= tolerance;
    let status = if passed { CheckStatus::Passed } else { CheckStatus::Failed };
    Check {
        name: name.to_owned(),
        status,
        expected: Some(expected),
        observed: Some(observed),
        tolerance: Some(tolerance),
        detail,
    }
}

/// The same check with a wider tolerance, and why it is wider.
pub fn with_tolerance(of: Check, tolerance: f64, because: &str) -> Check {
    match (of.expected, of.observed) {
        (Some(expected), Some(observed)) => {
            check(&of.name, expected, observed, tolerance, format!("{}; {because}", of.detail))
        }
        _ => of,
    }
}

/// A check that this run cannot make, and why.
pub fn not_applicable(name: &str, reason: impl Into<String>) -> Check {
    Check {
        name: name.to_owned(),
        status: CheckStatus::NotApplicable,
        expected: None,
        observed: None,
        tolerance: None,
        detail: reason.into(),
    }
}

pub const LITTLE: &str = "little's law";
pub const ROWS: &str = "rows written = rows at target + backlog";
pub const LAG: &str = "lag by WAL position = lag by commit time";
pub const WAL: &str = "WAL per row x rows = slot movement";
pub const STREAM: &str = "stream bytes plausible against slot bytes";
pub const ARRIVALS: &str = "rows of recorded blocks = rows counted by the pipe";
pub const WAITS: &str = "wait breakdown + CPU + rest = mean latency";
pub const ARCHIVE: &str = "archived + pending segments = WAL written";

/// What a load generator saw of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadFigures {
    pub clients: f64,
    pub closed_loop: bool,
    pub statements: f64,
    pub seconds: f64,
    pub mean_latency_us: f64,
    /// From an answer to the client's next send; 0 when it was not measured.
    pub mean_think_us: f64,
}

/// Clients = statements per second x (mean latency + mean think time): a closed loop's client either waits for a
/// statement or is about to send the next.
pub fn little(load: Option<&LoadFigures>) -> Check {
    match load {
        None => not_applicable(LITTLE, "no latencies were recorded"),
        Some(load) if !load.closed_loop => {
            not_applicable(LITTLE, "the load is an open loop: latency counts from the intended start")
        }
        Some(load) => {
            let cycle_us = load.mean_latency_us + load.mean_think_us;
            let in_flight = load.statements / load.seconds * cycle_us / 1e6;
            let detail = format!(
                "{:.1} statements/s x ({:.3} ms latency + {:.3} ms think time) against {} clients",
                load.statements / load.seconds,
                load.mean_latency_us / 1e3,
                load.mean_think_us / 1e3,
                load.clients
            );
            check(LITTLE, load.clients, in_flight, LITTLE_TOLERANCE * load.clients, detail)
        }
    }
}

/// Exact at a fence: nothing is under way.
pub fn rows(written: f64, at_target: f64, in_backlog: f64) -> Check {
    let detail =
        format!("{written:.0} written, {at_target:.0} at the target, {in_backlog:.0} in the backlog");
    check(ROWS, written, at_target + in_backlog, 0.0, detail)
}

/// The pipe's own view of its lag: age of the last durable commit, and that commit's position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CommitLag {
    pub t_us: u64,
    pub durable_lsn: f64,
    pub commit_lag_s: f64,
}

/// Lag by position, from the slot's samples, against lag by commit time, at every sample while the writers write.
/// Shown and judged: the sample that is worse than 95 % of them.
pub fn lag_agrees(slot: &[SlotSample], commits: &[CommitLag], period_s: f64) -> Check {
    let mut compared: Vec<(f64, f64, f64)> = commits
        .iter()
        .filter_map(|commit| {
            let by_position = lag::lag_s(slot, commit.t_us, commit.durable_lsn)?;
            Some((commit.commit_lag_s, by_position, period_s + LAG_TOLERANCE * commit.commit_lag_s.abs()))
        })
        .collect();
    compared.sort_by(|a, b| excess(a).total_cmp(&excess(b)));
    let Some(at) = compared.len().checked_sub(1).map(|last| (last as f64 * 0.95).floor() as usize) else {
        return not_applicable(
            LAG,
            "no sample has both a commit time and a position that the slot's samples date",
        );
    };
    let (by_commit, by_position, tolerance) = compared[at];
    let detail = format!("seconds; the 95 % worst of {} samples while writing", compared.len());
    check(LAG, by_commit, by_position, tolerance, detail)
}

fn excess(&(a, b, tolerance): &(f64, f64, f64)) -> f64 {
    (a - b).abs() - tolerance
}

/// WAL of the load divided by its rows, times the rows that became durable, against how far the slot moved meanwhile.
pub fn wal_per_row(wal_bytes: f64, rows_written: f64, rows_durable: f64, slot_moved_bytes: f64) -> Check {
    if rows_written <= 0.0 {
        return not_applicable(WAL, "nothing was written");
    }
    let per_row = wal_bytes / rows_written;
    let expected = per_row * rows_durable;
    let detail =
        format!("{per_row:.1} bytes of WAL a row x {rows_durable:.0} durable rows; bytes of slot movement");
    check(WAL, expected, slot_moved_bytes, WAL_TOLERANCE * expected, detail)
}

/// Bytes received by the pipe against WAL that the slot passed: a ratio within wide bounds.
pub fn stream_plausible(slot_moved_bytes: f64, received_bytes: f64) -> Check {
    if slot_moved_bytes <= 0.0 {
        return not_applicable(STREAM, "the slot did not move");
    }
    let ratio = received_bytes / slot_moved_bytes;
    let (low, high) = STREAM_TO_WAL;
    let detail = format!("{ratio:.3} bytes of stream a byte of WAL; plausible from {low} to {high}");
    check(STREAM, f64::midpoint(low, high), ratio, (high - low) / 2.0, detail)
}

/// The samples hold every block that the pipe counted: none was lost on its way to the run directory.
pub fn arrivals_complete(recorded_rows: f64, counted_rows: f64) -> Check {
    let detail = format!("{recorded_rows:.0} rows in recorded blocks, {counted_rows:.0} counted");
    check(ARRIVALS, counted_rows, recorded_rows, 0.0, detail)
}

/// Where a mean transaction's time went, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaitBreakdown {
    pub waits_ms: f64,
    pub cpu_ms: f64,
    pub unattributed_ms: f64,
    pub mean_latency_ms: f64,
}

/// The parts add up to the whole, to 2 % (rounding of sampled shares).
pub fn wait_breakdown(breakdown: Option<&WaitBreakdown>) -> Check {
    let Some(parts) = breakdown else {
        return not_applicable(WAITS, "wait events are not sampled by this probe");
    };
    let sum = parts.waits_ms + parts.cpu_ms + parts.unattributed_ms;
    let detail = format!(
        "{:.3} ms waiting + {:.3} ms CPU + {:.3} ms unattributed",
        parts.waits_ms, parts.cpu_ms, parts.unattributed_ms
    );
    check(WAITS, parts.mean_latency_ms, sum, 0.02 * parts.mean_latency_ms, detail)
}

/// Segments over a window, and the WAL written in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Archive {
    pub archived_segments: f64,
    /// Growth of the number of segments waiting (`archive_status/*.ready`).
    pub pending_growth_segments: f64,
    pub wal_bytes: f64,
    pub segment_bytes: f64,
}

/// To two segments: the one being written at either end. `archive_mode` as the server shows it.
pub fn archive(archive_mode: Option<&str>, archive: Option<&Archive>) -> Check {
    match (archive_mode, archive) {
        (Some("on" | "always"), Some(a)) => {
            let detail = format!(
                "{:.0} archived + {:.0} more pending; {:.0} bytes of WAL",
                a.archived_segments, a.pending_growth_segments, a.wal_bytes
            );
            let observed = a.archived_segments + a.pending_growth_segments;
            check(ARCHIVE, a.wal_bytes / a.segment_bytes, observed, 2.0, detail)
        }
        (Some("on" | "always"), None) => not_applicable(ARCHIVE, "the archiver is not sampled by this probe"),
        (Some(mode), _) => not_applicable(ARCHIVE, format!("archive_mode is {mode}")),
        (None, _) => not_applicable(ARCHIVE, "archive_mode is not known"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    use CheckStatus::{Failed, NotApplicable, Passed};

    fn load(closed_loop: bool, mean_latency_us: f64) -> LoadFigures {
        LoadFigures {
            clients: 8.0,
            closed_loop,
            statements: 16_000.0,
            seconds: 20.0,
            mean_latency_us,
            mean_think_us: 0.0,
        }
    }

    #[test]
    fn littles_law_holds_for_a_closed_loop_only() {
        for (load, status) in [
            (Some(load(true, 10_000.0)), Passed),
            (Some(load(true, 9_600.0)), Passed),
            (Some(load(true, 9_400.0)), Failed),
            (Some(load(true, f64::NAN)), Failed),
            (Some(load(false, 9_000.0)), NotApplicable),
            (None, NotApplicable),
        ] {
            assert_eq!(little(load.as_ref()).status, status, "{load:?}");
        }
        let thinking = LoadFigures { mean_think_us: 3_000.0, ..load(true, 7_000.0) };
        assert_eq!(little(Some(&thinking)).status, Passed);
    }

    #[test]
    fn one_lost_or_doubled_row_fails() {
        assert_eq!(rows(2e6, 2e6, 0.0).status, Passed);
        assert_eq!(rows(2e6, 2e6 - 5.0, 5.0).status, Passed);
        for (at_target, backlog) in [(2e6 - 1.0, 0.0), (2e6 + 1.0, 0.0), (2e6, 1.0)] {
            assert_eq!(rows(2e6, at_target, backlog).status, Failed);
        }
    }

    /// 1 MB/s of WAL; the pipe is `lag` behind.
    fn lag_case(lag_s: f64, reported_s: f64) -> Check {
        let slot: Vec<_> = (0..60)
            .map(|t| SlotSample { t_us: t * 1_000_000, flush_lsn: 1e6 * t as f64, confirmed_lsn: 0.0 })
            .collect();
        let commits: Vec<_> = (30..50)
            .map(|t| CommitLag {
                t_us: t * 1_000_000,
                durable_lsn: 1e6 * (t as f64 - lag_s),
                commit_lag_s: reported_s,
            })
            .collect();
        lag_agrees(&slot, &commits, 1.0)
    }

    #[test]
    fn lag_by_position_and_by_commit_time_agree_within_a_sample_and_a_tenth() {
        for (lag, reported, status) in [
            (10.0, 10.0, Passed),
            (10.0, 11.9, Passed),
            (10.0, 13.0, Failed),
            (10.0, 7.0, Failed),
            (0.2, 0.9, Passed),
        ] {
            assert_eq!(lag_case(lag, reported).status, status, "{lag} {reported}");
        }
        assert_eq!(lag_agrees(&[], &[], 1.0).status, NotApplicable);
    }

    #[test]
    fn wal_and_stream() {
        assert_eq!(wal_per_row(3e8, 1e6, 1e6, 3.1e8).status, Passed);
        assert_eq!(wal_per_row(3e8, 1e6, 1e6, 2.0e8).status, Failed);
        assert_eq!(wal_per_row(3e8, 0.0, 0.0, 0.0).status, NotApplicable);
        assert_eq!(stream_plausible(3e8, 2.4e8).status, Passed);
        assert_eq!(stream_plausible(3e8, 2.4e9).status, Failed);
        assert_eq!(stream_plausible(3e8, 0.0).status, Failed);
        assert_eq!(arrivals_complete(99.0, 100.0).status, Failed);
    }

    #[test]
    fn what_a_run_does_not_have_says_why() {
        assert_eq!(archive(Some("off"), None).detail, "archive_mode is off");
        let a = Archive {
            archived_segments: 10.0,
            pending_growth_segments: 5.0,
            wal_bytes: 16.0 * f64::from(16 << 20),
            segment_bytes: f64::from(16 << 20),
        };
        assert_eq!(archive(Some("on"), Some(&a)).status, Passed);
        assert_eq!(archive(Some("on"), Some(&Archive { archived_segments: 1.0, ..a })).status, Failed);
        assert_eq!(wait_breakdown(None).status, NotApplicable);
        let parts =
            WaitBreakdown { waits_ms: 30.0, cpu_ms: 2.0, unattributed_ms: 4.9, mean_latency_ms: 36.9 };
        assert_eq!(wait_breakdown(Some(&parts)).status, Passed);
        assert_eq!(wait_breakdown(Some(&WaitBreakdown { unattributed_ms: 0.0, ..parts })).status, Failed);
    }

    proptest! {
        #[test]
        fn rows_balance_exactly(written in 0u32.., backlog in 0u32..) {
            let at_target = f64::from(written) - f64::from(backlog);
            prop_assert_eq!(rows(f64::from(written), at_target, f64::from(backlog)).status, Passed);
            prop_assert_eq!(rows(f64::from(written) + 1.0, at_target, f64::from(backlog)).status, Failed);
        }
    }
}

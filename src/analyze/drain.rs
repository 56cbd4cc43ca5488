//! One drain: how fast the pipe works off a backlog, what it costs, and who holds it up.

use std::{collections::BTreeMap, fmt};

use super::{
    lag::{self, SlotSample},
    rate::{self, Arrived, Fit, Steps, Trend},
};

/// A cumulative counter, `(microseconds since the run's start, value)`, time rising.
pub type Counter = Vec<(u64, f64)>;

/// Where the pipe's reader spent its time, cumulative seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageWaits {
    /// Napping between large reads, and waiting for data: the source set the pace.
    pub source_s: Counter,
    /// The naps alone: part of `source_s`.
    pub nap_s: Counter,
    /// Waiting until the sink took a block: the target set the pace.
    pub sink_s: Counter,
}

/// What was seen of one drain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Input {
    pub arrivals: Vec<Arrived>,
    /// The writers start, the writers stop, the fence is durable.
    pub load_us: u64,
    pub stop_us: u64,
    pub fence_us: u64,
    pub slot: Vec<SlotSample>,
    /// CPU seconds by process: `walsender`, `pipe`, `clickhouse`.
    pub cpu_s: BTreeMap<String, Counter>,
    pub waits: StageWaits,
    pub decode_only_rows_per_s: Option<f64>,
    pub cores: usize,
    /// Seconds between two samples.
    pub sample_s: f64,
}

/// A process's share in a drain.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessCost {
    pub process: String,
    pub cpu_s_per_million_rows: f64,
    /// Of one core, over the steady part: 1.0 is a core kept busy.
    pub core_share: f64,
}

/// Who holds the drain up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Source,
    Pipe,
    Target,
    /// What source and target share: the source gives more when nothing is written to the target.
    Shared,
    Unknown,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Limit::Source => "source-bound",
            Limit::Pipe => "pipe-bound",
            Limit::Target => "target-bound",
            Limit::Shared => "bound by what source and target share (CPU, disk)",
            Limit::Unknown => "not attributed",
        })
    }
}

/// What one drain comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// `None`: too few blocks arrived after the writers stopped.
    pub rate: Option<Fit>,
    pub steps: Option<Steps>,
    pub trend: Trend,
    /// WAL that the slot confirmed per second, over the drain.
    pub bytes_per_s: Option<f64>,
    /// From the writers' stop until the fence was durable.
    pub seconds: f64,
    pub backlog_at_stop_bytes: Option<f64>,
    pub backlog_max_bytes: Option<f64>,
    pub lag_max_s: Option<f64>,
    pub costs: Vec<ProcessCost>,
    pub limit: Limit,
    /// The evidence behind `limit`, in sentences.
    pub reasons: Vec<String>,
    pub warnings: Vec<String>,
}

pub fn analyse(input: &Input) -> Figures {
    let curve = rate::drain_part(&input.arrivals, input.stop_us, input.fence_us);
    let window = steady_window(&curve);
    let rate = rate::theil_sen(&curve);
    let steps = rate::steps(&curve);
    let costs = steady_costs(&input.cpu_s, &curve);
    let waits = window.map(|window| shares(&input.waits, window));
    let per_s = rate.map(|fit| fit.per_s);
    let ratio = per_s.zip(input.decode_only_rows_per_s).map(|(drain, ceiling)| drain / ceiling);
    let (limit, mut reasons) =
        attribute(&Evidence { waits: waits.unwrap_or_default(), ratio, costs: &costs });
    reasons.extend(machine_is_busy(&costs, input.cores));
    Figures {
        trend: rate::trend(&curve),
        bytes_per_s: slot_rate(&input.slot, input.stop_us, input.fence_us),
        seconds: seconds(input.stop_us, input.fence_us),
        backlog_at_stop_bytes: backlog_at(&input.slot, input.stop_us),
        backlog_max_bytes: largest(during(input).map(SlotSample::backlog_bytes)),
        lag_max_s: lag_max(input),
        warnings: warnings(input, &curve, steps),
        rate,
        steps,
        costs,
        limit,
        reasons,
    }
}

fn seconds(from_us: u64, to_us: u64) -> f64 {
    to_us.saturating_sub(from_us) as f64 / 1e6
}

fn largest(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::max)
}

fn during(input: &Input) -> impl Iterator<Item = &SlotSample> {
    input.slot.iter().filter(|sample| (input.load_us..=input.fence_us).contains(&sample.t_us))
}

fn lag_max(input: &Input) -> Option<f64> {
    let inside = |(t_us, _): &(u64, f64)| (input.load_us..=input.fence_us).contains(t_us);
    largest(lag::series(&input.slot).into_iter().filter(inside).map(|(_, lag_s)| lag_s))
}

/// First and last instant of the steady part, microseconds.
fn steady_window(curve: &rate::Curve) -> Option<(u64, u64)> {
    let (first, last) = (curve.first()?, curve.last()?);
    (last.0 > first.0).then_some(((first.0 * 1e6) as u64, (last.0 * 1e6) as u64))
}

fn warnings(input: &Input, curve: &rate::Curve, steps: Option<Steps>) -> Vec<String> {
    let mut warnings = Vec::new();
    let remedy = "a longer or faster load, or holding the pipe back for longer,";
    warnings.extend(rate::few_blocks(curve, "drain_rows_per_s", remedy));
    warnings.extend(steps.and_then(|steps| steps.warning("drain_rows_per_s", input.sample_s)));
    warnings
}

/// The writers stopped at `stop_us`: all their WAL is in the next sample, while the slot went on between the two.
fn backlog_at(slot: &[SlotSample], stop_us: u64) -> Option<f64> {
    let written = slot.iter().find(|sample| sample.t_us >= stop_us)?.flush_lsn;
    let confirmed: Vec<_> = slot.iter().map(|s| (s.t_us as f64, s.confirmed_lsn)).collect();
    Some((written - rate::interpolate(&confirmed, stop_us as f64)?).max(0.0))
}

/// Slope of the slot's confirmed position over those samples of the drain at which it moved.
fn slot_rate(slot: &[SlotSample], from_us: u64, to_us: u64) -> Option<f64> {
    let inside = slot.iter().filter(|sample| (from_us..=to_us).contains(&sample.t_us));
    let mut curve: Vec<_> = inside.map(|sample| (sample.t_us as f64 / 1e6, sample.confirmed_lsn)).collect();
    curve.dedup_by(|later, earlier| later.1 == earlier.1);
    rate::theil_sen(&curve).map(|fit| fit.per_s)
}

/// An end of a window may lie this far from the nearest sample.
pub const MARGIN_US: u64 = 2_000_000;

/// How much a cumulative counter grew from one instant to another; `None` where its samples do not reach to within
/// two seconds.
pub fn growth(counter: &Counter, (from_us, to_us): (u64, u64)) -> Option<f64> {
    let curve: Vec<_> = counter.iter().map(|(t_us, value)| (*t_us as f64, *value)).collect();
    let (first, last) = (counter.first()?.0, counter.last()?.0);
    let at = |t_us: u64| {
        let nearest = t_us.clamp(first, last);
        (nearest.abs_diff(t_us) <= MARGIN_US).then(|| rate::interpolate(&curve, nearest as f64))?
    };
    Some(at(to_us)? - at(from_us)?)
}

/// The part of a counter that belongs to a window: a counter that falls has begun anew (another pipe), and what lies
/// on the other side of the fall belongs to somebody else.
pub fn without_resets(counter: Counter, (from_us, to_us): (u64, u64)) -> Counter {
    let inside = |part: &&[(u64, f64)]| part.iter().filter(|(t, _)| (from_us..=to_us).contains(t)).count();
    counter.chunk_by(|a, b| b.1 >= a.1).max_by_key(inside).map_or_else(Vec::new, <[_]>::to_vec)
}

/// Every process's CPU over the steady part of a drain; nothing where there is none.
pub fn steady_costs(cpu_s: &BTreeMap<String, Counter>, curve: &rate::Curve) -> Vec<ProcessCost> {
    let Some(window) = steady_window(curve) else { return Vec::new() };
    let rows = curve.last().map_or(0.0, |last| last.1);
    cpu_s.iter().filter_map(|(process, counter)| cost(process, counter, rows, window)).collect()
}

/// A process's CPU over a window in which `rows` arrived.
pub fn cost(process: &str, counter: &Counter, rows: f64, window: (u64, u64)) -> Option<ProcessCost> {
    let used = growth(counter, window)?;
    (rows > 0.0).then(|| ProcessCost {
        process: process.to_owned(),
        cpu_s_per_million_rows: used / rows * 1e6,
        core_share: used / seconds(window.0, window.1),
    })
}

/// Shares of a window that the reader waited for its source and for its sink; `None` where it was not sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct WaitShares {
    source: Option<f64>,
    nap: Option<f64>,
    sink: Option<f64>,
}

fn shares(waits: &StageWaits, window: (u64, u64)) -> WaitShares {
    let of = |counter: &Counter| {
        growth(counter, window).map(|waited| (waited / seconds(window.0, window.1)).clamp(0.0, 1.0))
    };
    WaitShares { source: of(&waits.source_s), nap: of(&waits.nap_s), sink: of(&waits.sink_s) }
}

struct Evidence<'a> {
    waits: WaitShares,
    /// Drain rate over decode-only rate.
    ratio: Option<f64>,
    costs: &'a [ProcessCost],
}

/// A reader that waits this share of its time for one side is held up by that side.
const HELD_UP: f64 = 0.30;
/// A process that keeps this much of a core busy can do no more by itself (the walsender has one thread).
const BUSY_CORE: f64 = 0.90;
/// A drain this near to the decode-only rate is not slowed by its target.
const NEAR_CEILING: f64 = 0.90;

/// Who waits for whom decides first, then whose core is full, then the ceiling. One step each, in this order, so that
/// a reader can follow it:
/// the reader waits for the sink: target; the walsender's core is full: source; the reader waits for the source: what
/// both share where the source gave more to a null sink, else source; far below the ceiling, waits unknown: target;
/// waits known and small: the reader itself is busy, pipe.
fn attribute(evidence: &Evidence<'_>) -> (Limit, Vec<String>) {
    let WaitShares { source, sink, .. } = evidence.waits;
    let over = |share: Option<f64>| share.is_some_and(|share| share >= HELD_UP);
    let below_ceiling = evidence.ratio.is_some_and(|ratio| ratio < NEAR_CEILING);
    let walsender = evidence.costs.iter().find(|cost| cost.process == "walsender");
    let limit = match () {
        () if over(sink) && sink >= source => Limit::Target,
        () if walsender.is_some_and(|cost| cost.core_share >= BUSY_CORE) => Limit::Source,
        () if over(source) && below_ceiling => Limit::Shared,
        () if over(source) => Limit::Source,
        () if over(sink) || (below_ceiling && sink.is_none()) => Limit::Target,
        () if source.is_some() && sink.is_some() => Limit::Pipe,
        () => Limit::Unknown,
    };
    (limit, reasons(evidence))
}

fn reasons(evidence: &Evidence<'_>) -> Vec<String> {
    let mut reasons = Vec::new();
    if let WaitShares { source: Some(source), nap, sink: Some(sink) } = evidence.waits {
        reasons.push(format!(
            "the pipe's reader waited {:.0} % of the time for the source ({:.0} % in naps) and {:.0} % for the sink",
            source * 100.0,
            nap.unwrap_or(0.0) * 100.0,
            sink * 100.0
        ));
    }
    if let Some(ratio) = evidence.ratio {
        reasons.push(format!("the drain runs at {ratio:.2} of the decode-only rate"));
    }
    let shares: Vec<String> =
        evidence.costs.iter().map(|cost| format!("{} {:.2}", cost.process, cost.core_share)).collect();
    if !shares.is_empty() {
        reasons.push(format!("cores in use: {}", shares.join(", ")));
    }
    reasons
}

/// When all cores are busy, whoever waits does so for CPU that the others use.
fn machine_is_busy(costs: &[ProcessCost], cores: usize) -> Option<String> {
    let used: f64 = costs.iter().map(|cost| cost.core_share).sum();
    (cores > 0 && used >= BUSY_CORE * cores as f64).then(|| {
        format!("all {cores} cores are busy ({used:.2} in use): source, pipe and target compete for them")
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000;

    /// 20 s of writing at 1,000 rows/s more than the pipe takes (2,000 rows/s of 250 bytes), then a drain of 10 s.
    fn typical() -> Input {
        let counter = |per_s: f64| (0..=40).map(|t| (t * S, per_s * t as f64)).collect::<Counter>();
        Input {
            arrivals: (1..=60).map(|k| Arrived { t_us: k * S / 2, rows: 1000.0, bytes: 2e5 }).collect(),
            load_us: 0,
            stop_us: 20 * S,
            fence_us: 30 * S,
            slot: (0..=32)
                .map(|t| SlotSample {
                    t_us: t * S,
                    flush_lsn: 750e3 * t.min(20) as f64,
                    confirmed_lsn: 500e3 * t.min(30) as f64,
                })
                .collect(),
            cpu_s: [("walsender".to_owned(), counter(0.5)), ("clickhouse".to_owned(), counter(0.8))].into(),
            waits: StageWaits { source_s: counter(0.1), nap_s: counter(0.08), sink_s: counter(0.5) },
            decode_only_rows_per_s: Some(4000.0),
            cores: 4,
            sample_s: 1.0,
        }
    }

    #[test]
    fn figures_of_a_typical_drain() {
        let figures = analyse(&typical());
        let rate = figures.rate.unwrap();
        assert!((rate.per_s - 2000.0).abs() < 1e-6, "{rate:?}");
        assert_eq!(figures.trend, Trend::Constant);
        assert!((figures.bytes_per_s.unwrap() - 500e3).abs() < 1.0);
        assert_eq!((figures.seconds, figures.backlog_at_stop_bytes), (10.0, Some(5e6)));
        assert_eq!(figures.backlog_max_bytes, Some(5e6));
        // At the fence all is durable; a moment before, the last byte is 10 s old.
        assert!(
            figures.lag_max_s.unwrap() > 9.0 && figures.lag_max_s.unwrap() <= 10.0,
            "{:?}",
            figures.lag_max_s
        );
        assert!((figures.costs[1].cpu_s_per_million_rows - 250.0).abs() < 1e-6, "{:?}", figures.costs);
        assert_eq!(figures.limit, Limit::Target);
        assert_eq!(figures.warnings, Vec::<String>::new());
        assert_eq!(figures.reasons.len(), 3, "{:?}", figures.reasons);
    }

    #[test]
    fn attributes_by_who_waits_for_whom() {
        let cost = |process: &str, core_share| ProcessCost {
            process: process.to_owned(),
            cpu_s_per_million_rows: 1.0,
            core_share,
        };
        let idle = [cost("walsender", 0.4), cost("pipe", 0.9)];
        let full = [cost("walsender", 0.97), cost("pipe", 0.3)];
        for (source, sink, ratio, costs, limit) in [
            (Some(0.05), Some(0.6), Some(0.5), &idle, Limit::Target),
            (Some(0.7), Some(0.01), Some(0.98), &idle, Limit::Source),
            (Some(0.9), Some(0.0), None, &idle, Limit::Source),
            (Some(0.9), Some(0.0), Some(0.47), &idle, Limit::Shared),
            (Some(0.9), Some(0.0), Some(0.47), &full, Limit::Source),
            (Some(0.1), Some(0.0), Some(0.98), &full, Limit::Source),
            (Some(0.05), Some(0.02), Some(0.97), &idle, Limit::Pipe),
            (Some(0.05), Some(0.02), Some(0.6), &idle, Limit::Pipe),
            (None, None, Some(0.4), &idle, Limit::Target),
            (None, None, None, &idle, Limit::Unknown),
        ] {
            let evidence = Evidence { waits: WaitShares { source, nap: None, sink }, ratio, costs };
            assert_eq!(attribute(&evidence).0, limit, "{source:?} {sink:?} {ratio:?}");
        }
    }

    #[test]
    fn another_pipes_counter_does_not_leak_into_a_window() {
        let counter = vec![(1, 900.0), (2, 950.0), (3, 0.0), (4, 10.0), (5, 20.0), (6, 1.0)];
        assert_eq!(without_resets(counter, (3, 5)), [(3, 0.0), (4, 10.0), (5, 20.0)]);
        assert_eq!(growth(&vec![(3 * S, 0.0), (5 * S, 20.0)], (2 * S, 6 * S)), Some(20.0));
        assert_eq!(growth(&vec![(3 * S, 0.0), (5 * S, 20.0)], (3 * S, 9 * S)), None);
    }

    #[test]
    fn a_busy_machine_is_said() {
        let input = Input { cores: 1, ..typical() };
        assert!(analyse(&input).reasons.last().unwrap().contains("all 1 cores are busy"));
    }

    #[test]
    fn without_blocks_there_is_a_warning_and_no_rate() {
        let figures = analyse(&Input { arrivals: Vec::new(), ..typical() });
        assert_eq!((figures.rate, figures.limit), (None, Limit::Unknown));
        assert!(figures.warnings[0].contains("rests on 0 blocks"), "{:?}", figures.warnings);
        assert_eq!(analyse(&Input::default()).rate, None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Nothing that was recorded, however odd, may panic; and a rate is never negative.
        #[test]
        fn takes_any_input(
            arrivals in prop::collection::vec((0u64..60, 0u32..1000), 0..40),
            slot in prop::collection::vec((0u64..60, 0f64..1e9, 0f64..1e9), 0..40),
            stop in 0u64..60,
        ) {
            let mut slot: Vec<_> = slot
                .into_iter()
                .map(|(t, flush_lsn, confirmed_lsn)| SlotSample { t_us: t * S, flush_lsn, confirmed_lsn })
                .collect();
            slot.sort_by_key(|sample| sample.t_us);
            let arrivals =
                arrivals.into_iter().map(|(t, rows)| Arrived { t_us: t * S, rows: rows.into(), bytes: 0.0 });
            let input = Input { arrivals: arrivals.collect(), slot, stop_us: stop * S, ..typical() };
            let figures = analyse(&input);
            prop_assert!(figures.rate.is_none_or(|fit| fit.per_s >= 0.0));
        }
    }
}

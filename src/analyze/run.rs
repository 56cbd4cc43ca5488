//! A run directory's raw readings to its outcome: the one place that knows which meter and which phase a figure comes
//! from. Names are in `metric::meter` and `metric::phase`; formulae in docs/measuring.md.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    bootstrap, conservation,
    conservation::{CommitLag, LoadFigures},
    drain::{self, Counter},
    lag::SlotSample,
    latency,
    rate::{self, Arrived, Fit},
    verdict,
};
use crate::{
    config::Bounds,
    metric::{Better, Metric, Point, Sample, meter, phase},
    record::{
        Check, MetricSummary, Outcome, RunData,
        phase::{PhaseSpan, spans},
    },
};

/// Bounds by probe name, then by metric name.
pub type Expectations = BTreeMap<String, BTreeMap<String, Bounds>>;

/// Derives everything in `outcome.json`.
pub fn outcome(run: &RunData, expect: &Expectations) -> Outcome {
    let spans = spans(&run.phases);
    let mut findings = Findings::default();
    for (point, repeat) in repeats(&spans) {
        let view =
            View { run, spans: spans.iter().filter(|s| s.run == repeat && s.point == *point).collect() };
        match point.get("probe").map(String::as_str) {
            Some("drain") => drain_repeat(&view, point, repeat, &mut findings),
            Some("backfill") => backfill_repeat(&view, point, repeat, &mut findings),
            _ => {}
        }
    }
    let mut outcome = findings.into_outcome();
    for (probe, bounds) in expect {
        outcome.expectations.extend(verdict::judge(probe, bounds, &outcome.metrics));
    }
    outcome.warnings.extend(few_repeats(&outcome.metrics));
    if !run.manifest.tool.optimised {
        outcome.warnings.push(
            "cdcprobe was built without optimisation: its pipe is slower than a release build's".to_owned(),
        );
    }
    outcome.warnings.extend(run.notes.iter().cloned());
    verdict::conclude(&mut outcome);
    outcome
}

/// Point and repeat of everything that ran, in order of time. Run 0 is outside of any repeat.
fn repeats(spans: &[PhaseSpan]) -> Vec<(&Point, u32)> {
    let mut repeats: Vec<(&Point, u32)> = Vec::new();
    for span in spans.iter().filter(|span| span.run > 0) {
        if !repeats.contains(&(&span.point, span.run)) {
            repeats.push((&span.point, span.run));
        }
    }
    repeats
}

fn few_repeats(metrics: &[MetricSummary]) -> Option<String> {
    let fewest = metrics.iter().map(|metric| metric.n).min()?;
    (fewest < 3).then(|| {
        format!(
            "some figures rest on {fewest} repeat{}: fewer than three show no spread",
            if fewest == 1 { "" } else { "s" }
        )
    })
}

/// One repeat's part of the run directory.
struct View<'a> {
    run: &'a RunData,
    spans: Vec<&'a PhaseSpan>,
}

impl View<'_> {
    /// A phase that began and ended.
    fn window(&self, phase: &str) -> Option<(u64, u64)> {
        let span = self.spans.iter().find(|span| span.phase == phase)?;
        Some((span.start_us, span.end_us?))
    }

    fn samples(&self, meter: &str, (from, to): (u64, u64)) -> impl Iterator<Item = &Sample> {
        self.run.samples_of(meter, from, to)
    }

    /// The last sample of a meter within the whole repeat.
    fn last(&self, meter: &str) -> Option<&Sample> {
        self.samples(meter, self.whole()).last()
    }

    fn whole(&self) -> (u64, u64) {
        let from = self.spans.iter().map(|span| span.start_us).min().unwrap_or(0);
        let to = self.spans.iter().map(|span| span.end_us.unwrap_or(u64::MAX)).max().unwrap_or(0);
        (from, to)
    }

    fn arrivals(&self, window: (u64, u64)) -> Vec<Arrived> {
        let arrived =
            |s: &Sample| Some(Arrived { t_us: s.t_us, rows: value(s, "rows")?, bytes: value(s, "bytes")? });
        self.samples(meter::ARRIVAL, window).filter_map(arrived).collect()
    }

    /// A cumulative counter over a window and a little beyond: interpolation at its ends needs neighbours.
    fn counter(&self, meter: &str, name: &str, window: (u64, u64)) -> Counter {
        let samples = self.samples(meter, widen(window));
        let counter = samples.filter_map(|s| Some((s.t_us, value(s, name)?))).collect();
        drain::without_resets(counter, window)
    }

    fn slot(&self, window: (u64, u64)) -> Vec<SlotSample> {
        let sample = |s: &Sample| {
            let (flush_lsn, confirmed_lsn) = (value(s, "flush_lsn")?, value(s, "confirmed_lsn")?);
            Some(SlotSample { t_us: s.t_us, flush_lsn, confirmed_lsn })
        };
        self.samples(meter::SLOT, window).filter_map(sample).collect()
    }

    /// CPU seconds of every `process.*` meter, over a window and a little beyond.
    fn cpu(&self, window: (u64, u64)) -> BTreeMap<String, Counter> {
        let (from, to) = widen(window);
        let near = self.run.samples.iter().filter(|sample| (from..=to).contains(&sample.t_us));
        let meters: BTreeSet<_> =
            near.map(|sample| &sample.meter).filter(|name| name.starts_with(meter::PROCESS)).collect();
        let of =
            |name: &String| (name[meter::PROCESS.len()..].to_owned(), self.counter(name, "cpu_s", window));
        meters.into_iter().map(of).collect()
    }
}

fn value(sample: &Sample, name: &str) -> Option<f64> {
    sample.values.get(name).copied()
}

fn seconds((from_us, to_us): (u64, u64)) -> f64 {
    to_us.saturating_sub(from_us) as f64 / 1e6
}

/// One repeat's value of a metric, with the interval that the repeat itself gives.
#[derive(Clone, Copy)]
struct Value {
    value: f64,
    interval: Option<(f64, f64)>,
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Value { value, interval: None }
    }
}

impl From<Fit> for Value {
    fn from(fit: Fit) -> Self {
        Value { value: fit.per_s, interval: fit.interval }
    }
}

/// What the repeats found, gathered by metric and point in order of first mention.
#[derive(Default)]
struct Findings {
    metrics: Vec<(Metric, Point, Vec<Value>)>,
    checks: Vec<Check>,
    warnings: Vec<String>,
    limits: Vec<String>,
}

impl Findings {
    fn add(
        &mut self,
        name: &str,
        unit: &str,
        better: Better,
        point: &Point,
        value: Option<impl Into<Value>>,
    ) {
        let Some(value) = value.map(Into::into) else { return };
        match self.metrics.iter_mut().find(|(metric, at, _)| metric.name == name && at == point) {
            Some((_, _, values)) => values.push(value),
            None => self.metrics.push((Metric::new(name, unit, better), point.clone(), vec![value])),
        }
    }

    fn add_checks(&mut self, label: &str, checks: impl IntoIterator<Item = Check>) {
        let scoped = |check: Check| Check { scope: label.to_owned(), ..check };
        self.checks.extend(checks.into_iter().map(scoped));
    }

    fn warn(&mut self, label: &str, warnings: impl IntoIterator<Item = String>) {
        self.warnings.extend(warnings.into_iter().map(|warning| format!("{label}: {warning}")));
    }

    fn into_outcome(self) -> Outcome {
        Outcome {
            metrics: self.metrics.iter().filter_map(|(m, at, values)| summary(m, at, values)).collect(),
            checks: self.checks,
            warnings: self.warnings,
            limits: self.limits,
            ..Outcome::default()
        }
    }
}

/// The interval is the hull of the spread between repeats and of the repeats' own intervals (their median ends).
fn summary(metric: &Metric, point: &Point, values: &[Value]) -> Option<MetricSummary> {
    let numbers: Vec<f64> = values.iter().map(|v| v.value).filter(|value| value.is_finite()).collect();
    let own: Vec<(f64, f64)> = values.iter().filter_map(|v| v.interval).collect();
    let ends = |end: fn(&(f64, f64)) -> f64| {
        let mut ends: Vec<f64> = own.iter().map(end).collect();
        ends.sort_by(f64::total_cmp);
        super::median(&ends)
    };
    let within = ends(|i| i.0).zip(ends(|i| i.1));
    // Counts of rows are exact: their spread over the repeats is no uncertainty.
    let between = bootstrap::median_interval(&numbers).filter(|_| metric.unit != "rows");
    let interval = match (within, between) {
        (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
        (a, b) => a.or(b),
    };
    MetricSummary::new(metric, point.clone(), &numbers, interval)
}

/// `backfill, workers 4, repeat 1`.
fn label(point: &Point, repeat: u32) -> String {
    let probe = point.get("probe").cloned();
    let rest = point.iter().filter(|(key, _)| *key != "probe").map(|(key, value)| format!("{key} {value}"));
    let parts = probe.into_iter().chain(rest).chain([format!("repeat {repeat}")]);
    parts.collect::<Vec<_>>().join(", ")
}

fn with(point: &Point, key: &str, value: &str) -> Point {
    let mut point = point.clone();
    point.insert(key.to_owned(), value.to_owned());
    point
}

fn drain_repeat(view: &View<'_>, point: &Point, repeat: u32, findings: &mut Findings) {
    use Better::{Higher, Lower, Neutral};
    let label = label(point, repeat);
    let (Some(load), Some(drained)) = (view.window(phase::LOAD), view.window(phase::DRAIN)) else {
        findings.warn(&label, ["it did not get to its end and is left out".to_owned()]);
        return;
    };
    let whole = (load.0, drained.1);
    let decode_only = view.window(phase::DECODE_ONLY).and_then(|window| sustained(view, window));
    let input = drain_input(view, load, drained, decode_only.map(|fit| fit.per_s));
    let figures = drain::analyse(&input);
    let per_s = figures.rate.map(|fit| fit.per_s);

    findings.add("drain_rows_per_s", "rows/s", Higher, point, figures.rate);
    findings.add("drain_bytes_per_s", "bytes/s", Higher, point, figures.bytes_per_s);
    findings.add("drain_seconds", "s", Lower, point, Some(figures.seconds));
    findings.add("decode_only_rows_per_s", "rows/s", Higher, point, decode_only);
    let ratio = per_s.zip(decode_only).map(|(drain, ceiling)| drain / ceiling.per_s);
    findings.add("drain_to_decode_only_ratio", "ratio", Higher, point, ratio);
    add_costs(&decode_only_costs(view), &with(point, "phase", phase::DECODE_ONLY), findings);
    findings.add("backlog_bytes_max", "bytes", Neutral, point, figures.backlog_max_bytes);
    findings.add("lag_s_max", "s", Lower, point, figures.lag_max_s);
    let load_seen = load_figures(view, load);
    add_load(view, load, point, findings);
    add_costs(&figures.costs, point, findings);
    add_memory(view, whole, point, findings);
    add_verify(view, point, findings);

    findings.add_checks(&label, drain_checks(view, &input, load_seen.as_ref()));
    findings.warn(&label, load_warnings(view));
    findings.warn(&label, replaced_values(view, whole));
    findings.warn(&label, late_samples(view, whole, input.sample_s));
    findings.warn(&label, figures.warnings);
    if figures.rate.is_some() {
        let reasons = figures.reasons.join("; ");
        findings.limits.push(format!("{label}: {}, {}; {reasons}", figures.limit, figures.trend));
    }
}

fn drain_input(view: &View<'_>, load: (u64, u64), drained: (u64, u64), ceiling: Option<f64>) -> drain::Input {
    let window = (load.0, drained.1);
    let nap = view.counter(meter::PIPE, "nap_s", window);
    let wait = view.counter(meter::PIPE, "source_wait_s", window);
    let slot = view.slot(widen(window));
    drain::Input {
        arrivals: view.arrivals(window),
        load_us: load.0,
        stop_us: load.1,
        fence_us: drained.1,
        sample_s: period_s(&slot),
        slot,
        cpu_s: view.cpu(window),
        waits: drain::StageWaits {
            source_s: nap.iter().zip(&wait).map(|(nap, wait)| (nap.0, nap.1 + wait.1)).collect(),
            nap_s: nap,
            sink_s: view.counter(meter::PIPE, "sink_wait_s", window),
        },
        decode_only_rows_per_s: ceiling,
        cores: view.run.manifest.host.cores,
    }
}

fn widen((from, to): (u64, u64)) -> (u64, u64) {
    (from.saturating_sub(drain::MARGIN_US), to.saturating_add(drain::MARGIN_US))
}

/// Median seconds between two samples of the slot; 1 when there are none.
fn period_s(slot: &[SlotSample]) -> f64 {
    let mut gaps: Vec<f64> = slot.windows(2).map(|pair| seconds((pair[0].t_us, pair[1].t_us))).collect();
    gaps.sort_by(f64::total_cmp);
    super::median(&gaps).unwrap_or(1.0)
}

/// What the decode-only drain costs, over its steady part.
fn decode_only_costs(view: &View<'_>) -> Vec<drain::ProcessCost> {
    let Some((from, to)) = view.window(phase::DECODE_ONLY) else { return Vec::new() };
    drain::steady_costs(&view.cpu((from, to)), &rate::drain_part(&view.arrivals((from, to)), from, to))
}

/// The rate of a window's blocks, first and last left out.
fn sustained(view: &View<'_>, window: (u64, u64)) -> Option<Fit> {
    rate::theil_sen(&rate::drain_part(&view.arrivals(window), window.0, window.1))
}

fn load_figures(view: &View<'_>, load: (u64, u64)) -> Option<LoadFigures> {
    let result = view.last(meter::LOAD_RESULT)?;
    let merged = merged_latencies(view, load);
    let (n, total_us) =
        merged.values().fold((0, 0.0), |(n, us), h| (n + h.len(), us + h.mean() * h.len() as f64));
    (n > 0).then_some(LoadFigures {
        clients: value(result, "clients")?,
        closed_loop: value(result, "closed_loop")? > 0.0,
        statements: n as f64,
        seconds: value(result, "elapsed_s").unwrap_or_else(|| seconds(load)),
        mean_latency_us: total_us / n as f64,
        mean_think_us: value(result, "mean_think_s").unwrap_or(0.0) * 1e6,
    })
}

/// Intervals that began within the phase: to a millisecond, as the log holds them.
fn merged_latencies(view: &View<'_>, load: (u64, u64)) -> BTreeMap<String, hdrhistogram::Histogram<u64>> {
    let inside = |start_us: u64| start_us + 1_000 >= load.0 && start_us <= load.1;
    latency::merge(view.run.latencies.iter().filter(|interval| inside(interval.start_us)))
}

fn add_load(view: &View<'_>, load: (u64, u64), point: &Point, findings: &mut Findings) {
    let rows = view.samples(meter::LOAD, widen(load)).filter_map(|s| value(s, "rows")).last();
    let elapsed_s = view.last(meter::LOAD_RESULT).and_then(|result| value(result, "elapsed_s"));
    let per_s = rows.map(|rows| rows / elapsed_s.unwrap_or_else(|| seconds(load)));
    findings.add("write_rows_per_s", "rows/s", Better::Higher, point, per_s);
    let merged = merged_latencies(view, load);
    for (operation, histogram) in &merged {
        let at = if merged.len() > 1 { with(point, "operation", operation) } else { point.clone() };
        let Some(seen) = latency::summarise(histogram) else { continue };
        for (p, us) in seen.quantiles {
            let name = format!("write_latency_ms_{}", latency::quantile_name(p));
            findings.add(&name, "ms", Better::Lower, &at, Some(us as f64 / 1e3));
        }
        findings.add("write_latency_ms_max", "ms", Better::Lower, &at, Some(seen.max_us as f64 / 1e3));
    }
}

/// A sampler that comes half a period late samples another rate than it says.
fn late_samples(view: &View<'_>, window: (u64, u64), period_s: f64) -> Option<String> {
    let late =
        view.samples(meter::SLOT, window).filter_map(|s| value(s, "sample_late_us")).reduce(f64::max)?;
    (late / 1e6 > period_s / 2.0).then(|| {
        format!(
            "samples were up to {:.1} s late: the machine is short of CPU, lag and backlog are coarser",
            late / 1e6
        )
    })
}

/// What a policy did is never silent.
fn replaced_values(view: &View<'_>, window: (u64, u64)) -> Option<String> {
    let replaced = view.samples(meter::PIPE, window).filter_map(|s| value(s, "replaced_values")).last()?;
    (replaced > 0.0).then(|| {
        format!("{replaced:.0} values had no place in the target and were replaced, as [values] says")
    })
}

/// A generator above this share of its threads' time may be what limits the writes.
const SATURATED: f64 = 0.8;

/// What the load generator says against its own figures.
fn load_warnings(view: &View<'_>) -> Vec<String> {
    let Some(result) = view.last(meter::LOAD_RESULT) else { return Vec::new() };
    let over = |name: &str, limit: f64| value(result, name).filter(|value| *value > limit);
    let mut warnings = Vec::new();
    if let Some(share) = over("saturation", SATURATED) {
        warnings.push(format!(
            "the load generator's threads were busy {:.0} % of the time: write_rows_per_s may be its limit, not the \
             source's",
            share * 100.0
        ));
    }
    for (name, meaning) in [
        ("errors", "statements were refused by the source"),
        ("unanswered", "statements had no answer: they may be committed, and are not counted as written"),
        ("unsent", "statements were not sent in time: the rate that was asked for was not reached"),
    ] {
        warnings.extend(over(name, 0.0).map(|count| format!("{count:.0} {meaning}")));
    }
    warnings
}

fn add_costs(costs: &[drain::ProcessCost], point: &Point, findings: &mut Findings) {
    for cost in costs {
        let at = with(point, "process", &cost.process);
        let per_million = Some(cost.cpu_s_per_million_rows);
        findings.add("cpu_s_per_million_rows", "s", Better::Lower, &at, per_million);
    }
}

fn add_memory(view: &View<'_>, window: (u64, u64), point: &Point, findings: &mut Findings) {
    let pipe = format!("{}pipe", meter::PROCESS);
    let max = view.samples(&pipe, window).filter_map(|s| value(s, "rss_bytes")).reduce(f64::max);
    findings.add("pipe_resident_bytes_max", "bytes", Better::Lower, point, max);
}

fn add_verify(view: &View<'_>, point: &Point, findings: &mut Findings) {
    let Some(verified) = view.last(meter::VERIFY) else { return };
    for (name, better) in [
        ("verified_rows", Better::Neutral),
        ("lost_rows", Better::Lower),
        ("extra_rows", Better::Lower),
        ("differing_rows", Better::Lower),
    ] {
        findings.add(name, "rows", better, point, value(verified, name));
    }
}

fn drain_checks(view: &View<'_>, input: &drain::Input, load: Option<&LoadFigures>) -> Vec<Check> {
    let window = (input.load_us, input.fence_us);
    let fence = view.last(meter::FENCE);
    let archive_mode = archive_mode(view.run);
    vec![
        conservation::little(load),
        rows_check(fence),
        conservation::lag_agrees(
            &input.slot,
            &commit_lags(view, (input.load_us, input.stop_us)),
            input.sample_s,
        ),
        wal_check(input, fence),
        stream_check(view, input),
        arrivals_check(view, window),
        conservation::wait_breakdown(None),
        conservation::archive(archive_mode.as_deref(), None),
    ]
}

fn rows_check(fence: Option<&Sample>) -> Check {
    let figures = fence.and_then(|f| {
        let backlog = value(f, "backlog_rows").unwrap_or(0.0);
        Some(conservation::rows(value(f, "written_rows")?, value(f, "target_rows")?, backlog))
    });
    figures.unwrap_or_else(|| conservation::not_applicable(conservation::ROWS, "no fence was recorded"))
}

/// Age of the last durable commit by the source's clock, at every sample of the pipe.
fn commit_lags(view: &View<'_>, load: (u64, u64)) -> Vec<CommitLag> {
    let offset_s = view.last(meter::SOURCE_CLOCK).and_then(|s| value(s, "offset_s")).unwrap_or(0.0);
    let clock = view.run.manifest.clock;
    let lag = |s: &Sample| {
        let source_now_s = clock.unix_us(s.t_us) as f64 / 1e6 + offset_s;
        let commit_lag_s = source_now_s - value(s, "durable_commit_unix_s")?;
        Some(CommitLag { t_us: s.t_us, durable_lsn: value(s, "durable_lsn")?, commit_lag_s })
    };
    view.samples(meter::PIPE, load).filter_map(lag).collect()
}

/// WAL of the load: from the source's flush position before it to the fence. The slot's movement: from that same
/// position (what was behind it already belongs to somebody else's rows) to where the slot stood once past the fence.
fn wal_check(input: &drain::Input, fence: Option<&Sample>) -> Check {
    let figures = || {
        let fence = fence?;
        let start = input.slot.iter().rev().find(|s| s.t_us <= input.load_us)?.flush_lsn;
        let fence_lsn = value(fence, "lsn")?;
        let passed = input.slot.iter().find(|s| s.t_us >= input.stop_us && s.confirmed_lsn >= fence_lsn);
        let moved = passed.or(input.slot.last())?.confirmed_lsn - start;
        let (written, durable) = (value(fence, "written_rows")?, value(fence, "target_rows")?);
        Some(conservation::wal_per_row(fence_lsn - start, written, durable, moved))
    };
    let missing = "no fence was recorded, or no sample of the slot before the load";
    figures().unwrap_or_else(|| conservation::not_applicable(conservation::WAL, missing))
}

fn stream_check(view: &View<'_>, input: &drain::Input) -> Check {
    let window = (input.load_us, input.fence_us);
    let received = view.counter(meter::PIPE, "received_bytes", window);
    let confirmed: Counter = input.slot.iter().map(|s| (s.t_us, s.confirmed_lsn)).collect();
    match drain::growth(&confirmed, window).zip(drain::growth(&received, window)) {
        Some((moved, received)) => conservation::stream_plausible(moved, received),
        None => conservation::not_applicable(conservation::STREAM, "the pipe's stream was not sampled"),
    }
}

/// Blocks between two samples of the pipe's own counter: the first and the last of the window.
fn arrivals_check(view: &View<'_>, window: (u64, u64)) -> Check {
    let mut counted = view.counter(meter::PIPE, "durable_rows", window);
    counted.retain(|(t_us, _)| (window.0..=window.1).contains(t_us));
    let (Some(first), Some(last)) = (counted.first(), counted.last()) else {
        return conservation::not_applicable(conservation::ARRIVALS, "the pipe's counters were not sampled");
    };
    // A block that arrives while the counter is read may be on either side of it.
    let at_edge = |a: &Arrived| a.t_us.abs_diff(first.0).min(a.t_us.abs_diff(last.0)) < EDGE_US;
    let blocks = view.arrivals((first.0, last.0));
    let mut check = conservation::arrivals_complete(blocks.iter().map(|a| a.rows).sum(), last.1 - first.1);
    let edge: f64 = view.arrivals(widen(window)).iter().filter(|a| at_edge(a)).map(|a| a.rows).sum();
    if edge > 0.0 {
        check = conservation::with_tolerance(
            check,
            edge,
            "blocks at the edges of the window may be on either side",
        );
    }
    check
}

/// How far a sample's time may be from the instant of its counter.
const EDGE_US: u64 = 50_000;

/// From the manifest's evidence on the source.
fn archive_mode(run: &RunData) -> Option<String> {
    let postgres = run.manifest.evidence.get("postgres")?;
    let settings = postgres.get("settings").unwrap_or(postgres);
    settings.get("archive_mode")?.as_str().map(str::to_owned)
}

fn backfill_repeat(view: &View<'_>, point: &Point, repeat: u32, findings: &mut Findings) {
    use Better::{Higher, Lower};
    let label = label(point, repeat);
    let Some(copy) = view.window(phase::COPY) else {
        findings.warn(&label, ["it did not get to its end and is left out".to_owned()]);
        return;
    };
    let curve = rate::backfill_part(&view.arrivals(copy), copy.0, copy.1);
    let copy_only = view
        .window(phase::COPY_ONLY)
        .and_then(|window| rate::theil_sen(&rate::backfill_part(&view.arrivals(window), window.0, window.1)));
    let fit = rate::theil_sen(&curve);
    findings.add("backfill_rows_per_s", "rows/s", Higher, point, fit);
    findings.add("copy_only_rows_per_s", "rows/s", Higher, point, copy_only);
    findings.add("backfill_setup_seconds", "s", Lower, point, view.window(phase::SETUP).map(seconds));
    findings.add("backfill_seconds", "s", Lower, point, Some(seconds(copy)));
    let costs = backfill_costs(view, copy, &curve);
    add_costs(&costs, point, findings);
    add_memory(view, copy, point, findings);
    add_verify(view, point, findings);
    findings.add_checks(&label, [rows_check(view.last(meter::FENCE)), arrivals_check(view, copy)]);
    findings.warn(&label, rate::few_blocks(&curve, "backfill_rows_per_s", "a larger table"));
    if let Some(steps) = rate::steps(&curve) {
        findings.warn(&label, steps.warning("backfill_rows_per_s", 1.0));
    }
    findings.limits.push(backfill_limit(&label, fit, copy_only, &costs, rate::trend(&curve)));
}

fn backfill_costs(view: &View<'_>, copy: (u64, u64), curve: &rate::Curve) -> Vec<drain::ProcessCost> {
    let (Some(first), Some(last)) = (curve.first(), curve.last()) else { return Vec::new() };
    let window = ((first.0 * 1e6) as u64, (last.0 * 1e6) as u64);
    let cpu = view.cpu(copy);
    cpu.iter()
        .filter_map(|(process, counter)| drain::cost(process, counter, last.1 - first.1, window))
        .collect()
}

fn backfill_limit(
    label: &str,
    fit: Option<Fit>,
    copy_only: Option<Fit>,
    costs: &[drain::ProcessCost],
    trend: rate::Trend,
) -> String {
    let ratio = fit.zip(copy_only).map(|(fit, ceiling)| {
        format!("; it runs at {:.2} of the rate of COPY alone", fit.per_s / ceiling.per_s)
    });
    let shares: Vec<String> = costs.iter().map(|c| format!("{} {:.2}", c.process, c.core_share)).collect();
    let cores =
        if shares.is_empty() { String::new() } else { format!("; cores in use: {}", shares.join(", ")) };
    format!("{label}: {trend}{}{cores}", ratio.unwrap_or_default())
}

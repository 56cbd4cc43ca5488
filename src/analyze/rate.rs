//! A rate from the instants at which rows became visible.
//!
//! Input is a cumulative curve: `(seconds, rows so far)`, time rising. The rate is its Theil-Sen slope, the median of
//! the slopes of all pairs: one stall or one late block does not bend it (Sen 1968, JASA 63:1379).
//!
//! Hazard: Sen's interval takes errors as independent, but a cumulative count carries every error on, so that his
//! interval alone is too narrow. Ours is the hull of Sen's and of a bootstrap over blocks of the curve's increments,
//! which keeps their order within a block.

use super::{bootstrap, median};

/// `(seconds, cumulative rows)`.
pub type Curve = [(f64, f64)];

/// Pairs grow with the square of the points: longer curves are thinned evenly, their ends kept.
const MAX_POINTS: usize = 1_000;
/// Blocks that arrive within this share of the span of one another were under way together: one point, the later one.
/// Else the slope between two of them is absurd, and so is the interval.
const TOGETHER: f64 = 0.01;
/// 97.5 % of the normal distribution: two-sided 95 %.
const Z: f64 = 1.96;

/// A straight line through a cumulative curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    pub per_s: f64,
    /// 95 %; `None` with fewer than four points that are apart.
    pub interval: Option<(f64, f64)>,
    /// Median distance of the points from the line, in rows.
    pub residual: f64,
    /// Points of the curve.
    pub points: usize,
    pub span_s: f64,
}

/// Fits a line. Points that are nearly one instant count as one. `None` with fewer than two distinct instants.
pub fn theil_sen(curve: &Curve) -> Option<Fit> {
    let thinned = thin(&coalesce(curve));
    let mut slopes = pair_slopes(&thinned);
    slopes.sort_by(f64::total_cmp);
    let per_s = median(&slopes)?;
    let (first, last) = (curve.first()?, curve.last()?);
    Some(Fit {
        per_s,
        interval: interval(&thinned, &slopes),
        residual: residual(&thinned, per_s),
        points: curve.len(),
        span_s: last.0 - first.0,
    })
}

fn coalesce(curve: &Curve) -> Vec<(f64, f64)> {
    let span = curve.last().zip(curve.first()).map_or(0.0, |(last, first)| last.0 - first.0);
    let mut points: Vec<(f64, f64)> = Vec::with_capacity(curve.len());
    let mut began = f64::NEG_INFINITY;
    for point in curve {
        // The first stays: it is the origin from which rows count.
        match points.len() > 1 && point.0 - began < TOGETHER * span {
            true => *points.last_mut().expect("it holds two") = *point,
            false => {
                began = point.0;
                points.push(*point);
            }
        }
    }
    points
}

fn thin(curve: &Curve) -> Vec<(f64, f64)> {
    if curve.len() <= MAX_POINTS {
        return curve.to_vec();
    }
    let step = (curve.len() - 1) as f64 / (MAX_POINTS - 1) as f64;
    (0..MAX_POINTS).map(|at| curve[(at as f64 * step).round() as usize]).collect()
}

fn pair_slopes(curve: &Curve) -> Vec<f64> {
    let mut slopes = Vec::with_capacity(curve.len() * curve.len() / 2);
    for (at, a) in curve.iter().enumerate() {
        let later = curve[at + 1..].iter().filter(|b| b.0 > a.0);
        slopes.extend(later.map(|b| (b.1 - a.1) / (b.0 - a.0)));
    }
    slopes
}

fn interval(curve: &Curve, sorted_slopes: &[f64]) -> Option<(f64, f64)> {
    if curve.len() < 4 {
        return None;
    }
    let sen = sen_interval(curve.len(), sorted_slopes)?;
    let blocks = bootstrap::ratio_interval(&increments(curve))?;
    Some((sen.0.min(blocks.0), sen.1.max(blocks.1)))
}

/// Ranks of the slopes that lie half of Kendall's 95 % range away from the median.
fn sen_interval(points: usize, sorted_slopes: &[f64]) -> Option<(f64, f64)> {
    let n = points as f64;
    let spread = Z * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let count = sorted_slopes.len() as f64;
    let low = ((count - spread) / 2.0).floor().max(0.0) as usize;
    let high = ((count + spread) / 2.0).ceil().min(count - 1.0) as usize;
    Some((*sorted_slopes.get(low)?, *sorted_slopes.get(high)?))
}

/// `(rows, seconds)` between neighbours.
fn increments(curve: &Curve) -> Vec<(f64, f64)> {
    curve.windows(2).map(|pair| (pair[1].1 - pair[0].1, pair[1].0 - pair[0].0)).collect()
}

fn residual(curve: &Curve, per_s: f64) -> f64 {
    let offsets = sorted(curve.iter().map(|(t, rows)| rows - per_s * t));
    let middle = median(&offsets).unwrap_or(0.0);
    median(&sorted(offsets.iter().map(|offset| (offset - middle).abs()))).unwrap_or(0.0)
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// How coarse the steps of a curve are, and what that does to its rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// Rows of the largest step between neighbouring points.
    pub largest: f64,
    /// The rate is known no better than ± this: one largest step over the whole span.
    pub bound_per_s: f64,
    /// Seconds that the rate needs for one largest step.
    pub step_s: f64,
}

/// `None` for a curve without a span or a rate.
pub fn steps(curve: &Curve) -> Option<Steps> {
    let (first, last) = (curve.first()?, curve.last()?);
    let (rows, span_s) = (last.1 - first.1, last.0 - first.0);
    if !(span_s > 0.0 && rows > 0.0) {
        return None;
    }
    let largest = increments(curve).iter().map(|(rows, _)| *rows).fold(0.0, f64::max);
    Some(Steps { largest, bound_per_s: largest / span_s, step_s: largest * span_s / rows })
}

impl Steps {
    /// A sentence when one step lasts longer than the time between two samples: then windows of a few samples
    /// show the steps, not the rate.
    pub fn warning(&self, metric: &str, sample_s: f64) -> Option<String> {
        (self.step_s > sample_s).then(|| {
            format!(
                "{metric}: rows arrive in steps of up to {:.0}, {:.1} s of the rate each; the span bounds the rate \
                 to ± {:.0} rows/s",
                self.largest, self.step_s, self.bound_per_s
            )
        })
    }
}

/// Fewer blocks than this are judged with a warning.
const BLOCKS_WANTED: usize = 10;

/// A sentence when a curve has so few blocks that its rate says little.
pub fn few_blocks(curve: &Curve, metric: &str, remedy: &str) -> Option<String> {
    let blocks = curve.len().saturating_sub(1);
    (blocks < BLOCKS_WANTED).then(|| format!("{metric} rests on {blocks} blocks: {remedy} tells more"))
}

/// How a rate changes over its span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trend {
    Constant,
    Slowing,
    Speeding,
    /// It comes and goes: pauses, or windows far from each other without direction.
    Bursty,
    /// Too few points to tell.
    Unknown,
}

impl std::fmt::Display for Trend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Trend::Constant => "constant",
            Trend::Slowing => "slowing",
            Trend::Speeding => "speeding",
            Trend::Bursty => "bursty",
            Trend::Unknown => "unknown",
        })
    }
}

/// Change over the whole span, relative to the mean rate, from which on a significant trend is worth a word.
const TREND_CHANGE: f64 = 0.10;
/// Spread of the windows around their trend, relative to the mean rate, from which on a rate is bursty.
const BURST_SPREAD: f64 = 0.35;
/// A pause is a gap this many times the median gap …
const PAUSE_GAPS: f64 = 10.0;
/// … and this share of the span.
const PAUSE_SHARE: f64 = 0.10;

/// Cuts the span into up to ten windows of at least two steps each and judges their rates: spread around the trend
/// first, then direction (Mann-Kendall, 95 %).
pub fn trend(curve: &Curve) -> Trend {
    let windows = ((curve.len().saturating_sub(1)) / 2).min(10);
    let (Some(first), Some(last)) = (curve.first(), curve.last()) else { return Trend::Unknown };
    if windows < 4 || last.0 <= first.0 || last.1 <= first.1 {
        return Trend::Unknown;
    }
    let rates = window_rates(curve, windows);
    let mean = rates.iter().sum::<f64>() / windows as f64;
    let indexed: Vec<(f64, f64)> = rates.iter().enumerate().map(|(at, rate)| (at as f64, *rate)).collect();
    let Some(line) = theil_sen(&indexed) else { return Trend::Unknown };
    if has_pause(curve) || spread_around(&indexed, line.per_s) > BURST_SPREAD * mean {
        return Trend::Bursty;
    }
    let change = line.per_s * (windows - 1) as f64 / mean;
    match change.abs() >= TREND_CHANGE && is_monotone(&rates) {
        false => Trend::Constant,
        true if change < 0.0 => Trend::Slowing,
        true => Trend::Speeding,
    }
}

/// Rates of equal windows of time, the curve taken as straight between its points.
fn window_rates(curve: &Curve, windows: usize) -> Vec<f64> {
    let (start, end) = (curve[0].0, curve[curve.len() - 1].0);
    let width = (end - start) / windows as f64;
    let edges: Vec<f64> = (0..=windows)
        .filter_map(|at| interpolate(curve, (start + width * at as f64).clamp(start, end)))
        .collect();
    edges.windows(2).map(|pair| (pair[1] - pair[0]) / width).collect()
}

/// The second coordinate at `t`, straight between points; `None` outside of the curve.
pub fn interpolate(curve: &Curve, t: f64) -> Option<f64> {
    let after = curve.partition_point(|point| point.0 < t);
    let b = curve.get(after)?;
    if b.0 == t {
        return Some(b.1);
    }
    let a = curve.get(after.checked_sub(1)?)?;
    Some(a.1 + (b.1 - a.1) * (t - a.0) / (b.0 - a.0))
}

fn has_pause(curve: &Curve) -> bool {
    let gaps = sorted(increments(curve).into_iter().map(|(_, seconds)| seconds));
    let (Some(typical), Some(longest)) = (median(&gaps), gaps.last()) else { return false };
    let span: f64 = gaps.iter().sum();
    *longest > PAUSE_GAPS * typical && *longest > PAUSE_SHARE * span
}

fn spread_around(points: &Curve, slope: f64) -> f64 {
    let offsets: Vec<f64> = points.iter().map(|(at, rate)| rate - slope * at).collect();
    let mean = offsets.iter().sum::<f64>() / offsets.len() as f64;
    (offsets.iter().map(|offset| (offset - mean).powi(2)).sum::<f64>() / offsets.len() as f64).sqrt()
}

/// Mann-Kendall: more pairs rise than fall (or fall than rise) than chance explains, at 95 %.
fn is_monotone(values: &[f64]) -> bool {
    let n = values.len() as f64;
    let pairs = values.iter().enumerate().flat_map(|(at, a)| values[at + 1..].iter().map(move |b| (a, b)));
    let balance: f64 = pairs
        .map(|(a, b)| {
            if b > a {
                1.0
            } else if b < a {
                -1.0
            } else {
                0.0
            }
        })
        .sum();
    let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    balance.abs() - 1.0 > Z * deviation
}

/// Rows that became visible at an instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrived {
    /// Microseconds since the run's start.
    pub t_us: u64,
    pub rows: f64,
    pub bytes: f64,
}

/// The steady part of a drain as a cumulative curve: from the first block that arrives at or after `stop_us` (the
/// writers' stop) to the last but one at or before `end_us`.
///
/// The first block's instant is the origin and its rows do not count, since they were decoded while the writers still
/// ran; the last block is left out, since it is cut short by the fence or sent for its age.
pub fn drain_part(arrivals: &[Arrived], stop_us: u64, end_us: u64) -> Vec<(f64, f64)> {
    let inside = arrivals.iter().filter(|a| (stop_us..=end_us).contains(&a.t_us));
    let mut curve = cumulate(inside);
    if let Some(first) = curve.first().map(|point| point.1) {
        curve.iter_mut().for_each(|point| point.1 -= first);
    }
    curve.pop();
    curve
}

/// The steady part of a backfill as a cumulative curve: from 20 % to 100 % of the rows that arrived from `start_us` to
/// `end_us`. Set-up and start of the workers are before it; the tail, when workers run out of ranges, is in it.
pub fn backfill_part(arrivals: &[Arrived], start_us: u64, end_us: u64) -> Vec<(f64, f64)> {
    let inside = arrivals.iter().filter(|a| (start_us..=end_us).contains(&a.t_us));
    let mut curve = cumulate(inside);
    let total = curve.last().map_or(0.0, |point| point.1);
    curve.retain(|point| point.1 >= 0.2 * total);
    curve
}

fn cumulate<'a>(arrivals: impl Iterator<Item = &'a Arrived>) -> Vec<(f64, f64)> {
    let mut ordered: Vec<&Arrived> = arrivals.collect();
    ordered.sort_by_key(|arrived| arrived.t_us);
    let mut rows = 0.0;
    let running = |arrived: &Arrived| {
        rows += arrived.rows;
        (arrived.t_us as f64 / 1e6, rows)
    };
    ordered.into_iter().map(running).collect()
}

/// Steady state of a series of equally long windows: the medians of its last three groups of `group` windows lie
/// within `tolerance` (relative) of each other, and the windows in them have no trend. `None`: too few windows.
pub fn is_steady(windows: &[f64], group: usize, tolerance: f64) -> Option<bool> {
    let needed = group.checked_mul(3).filter(|needed| (3..=windows.len()).contains(needed))?;
    let last = &windows[windows.len() - needed..];
    let medians = sorted(last.chunks(group).filter_map(|chunk| median(&sorted(chunk.iter().copied()))));
    let (low, middle, high) = (medians[0], medians[1], medians[2]);
    Some(high - low <= tolerance * middle.abs() && !is_monotone(last))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(points: usize, per_s: f64) -> Vec<(f64, f64)> {
        (0..points).map(|t| (t as f64, per_s * t as f64)).collect()
    }

    #[test]
    fn one_stalled_block_does_not_bend_the_rate() {
        let mut curve = line(30, 1000.0);
        curve[15].1 -= 9_000.0;
        let fit = theil_sen(&curve).unwrap();
        assert!((fit.per_s - 1000.0).abs() < 1.0, "{fit:?}");
        assert_eq!((fit.points, fit.span_s, fit.residual), (30, 29.0, 0.0));
    }

    /// Four workers' blocks arrive in twos, a millisecond apart.
    #[test]
    fn blocks_that_arrive_together_do_not_blow_up_the_interval() {
        let curve: Vec<_> = (0..12)
            .map(|block| (f64::from(block / 2) * 0.4 + f64::from(block % 2) * 0.001, 1e5 * f64::from(block)))
            .collect();
        let fit = theil_sen(&curve).unwrap();
        let high = fit.interval.unwrap().1;
        assert!((fit.per_s / 5e5 - 1.0).abs() < 0.1 && high < 1e6, "{fit:?}");
    }

    #[test]
    fn nothing_comes_of_nothing() {
        assert_eq!(theil_sen(&[]), None);
        assert_eq!(theil_sen(&[(1.0, 5.0), (1.0, 9.0)]), None);
        assert_eq!(theil_sen(&[(1.0, 5.0), (2.0, 9.0)]).unwrap().interval, None);
    }

    #[test]
    fn a_random_walk_is_given_a_wider_interval_than_sen_alone() {
        let mut rng = bootstrap::SplitMix64::new(7);
        let (mut t, mut curve) = (0.0, vec![(0.0, 0.0)]);
        for block in 1..=60 {
            t += 0.2 + 0.8 * rng.unit();
            curve.push((t, 1e5 * f64::from(block)));
        }
        let mut slopes = pair_slopes(&curve);
        slopes.sort_by(f64::total_cmp);
        let sen = sen_interval(curve.len(), &slopes).unwrap();
        let ours = theil_sen(&curve).unwrap().interval.unwrap();
        let truth = 1e5 / 0.6;
        assert!(ours.1 - ours.0 > 1.5 * (sen.1 - sen.0), "{sen:?} {ours:?}");
        assert!(ours.0 < truth && truth < ours.1, "{ours:?}");
    }

    /// What the reference measurement did: 8 batches of 100,000 rows between polls 20 s apart.
    #[test]
    fn coarse_steps_bound_the_rate_and_are_warned_of() {
        let curve: Vec<_> = (0..5).map(|k| (20.0 * f64::from(k), 8e5 * f64::from(k))).collect();
        let steps = steps(&curve).unwrap();
        assert_eq!(steps, Steps { largest: 8e5, bound_per_s: 1e4, step_s: 20.0 });
        assert!(steps.warning("drain_rows_per_s", 1.0).unwrap().contains("± 10000 rows/s"));
        assert_eq!(steps.warning("drain_rows_per_s", 20.0), None);
    }

    #[test]
    fn tells_trends_apart() {
        let shaped = |rate: &dyn Fn(usize) -> f64| {
            let mut rows = 0.0;
            (0..60)
                .map(|t| {
                    (t as f64, {
                        let now = rows;
                        rows += rate(t);
                        now
                    })
                })
                .collect::<Vec<_>>()
        };
        let mut paused = line(60, 1000.0);
        paused[30..].iter_mut().for_each(|point| point.0 += 15.0);
        for (curve, expected) in [
            (line(60, 1000.0), Trend::Constant),
            (shaped(&|t| 1000.0 - 8.0 * t as f64), Trend::Slowing),
            (shaped(&|t| 500.0 + 8.0 * t as f64), Trend::Speeding),
            (shaped(&|t| if t / 6 % 2 == 0 { 1000.0 } else { 50.0 }), Trend::Bursty),
            (shaped(&|t| 1000.0 + (t % 3) as f64), Trend::Constant),
            (paused, Trend::Bursty),
            (line(6, 1000.0), Trend::Unknown),
        ] {
            assert_eq!(trend(&curve), expected, "{:?}", window_rates(&curve, 4));
        }
    }

    #[test]
    fn a_drains_first_and_last_block_do_not_count() {
        let arrived = |t_s: u64, rows: f64| Arrived { t_us: t_s * 1_000_000, rows, bytes: 0.0 };
        let arrivals =
            [arrived(1, 7.0), arrived(10, 50.0), arrived(12, 100.0), arrived(11, 100.0), arrived(13, 3.0)];
        assert_eq!(drain_part(&arrivals, 9_000_000, 20_000_000), [(10.0, 0.0), (11.0, 100.0), (12.0, 200.0)]);
        assert!(drain_part(&arrivals, 14_000_000, 20_000_000).is_empty());
    }

    #[test]
    fn a_backfill_is_fitted_from_a_fifth_on() {
        let arrivals: Vec<_> =
            (1..=10).map(|t| Arrived { t_us: t * 1_000_000, rows: 10.0, bytes: 0.0 }).collect();
        let curve = backfill_part(&arrivals, 0, 10_000_000);
        assert_eq!((curve[0], curve[curve.len() - 1], curve.len()), ((2.0, 20.0), (10.0, 100.0), 9));
    }

    #[test]
    fn steady_state_needs_agreement_and_no_trend() {
        let flat: Vec<f64> = (0..12).map(|at| 100.0 + f64::from(at % 2)).collect();
        let rising: Vec<f64> = (0..12).map(|at| 100.0 + f64::from(at)).collect();
        assert_eq!(is_steady(&flat, 4, 0.05), Some(true));
        assert_eq!(is_steady(&rising, 4, 0.05), Some(false));
        assert_eq!(is_steady(&flat[..11], 4, 0.05), None);
        assert_eq!(is_steady(&flat, 0, 0.05), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn recovers_the_rate_of_a_straight_line(rate in 1.0..1e6f64, points in 4usize..200, from in 0.0..1e4f64) {
            let curve: Vec<_> = line(points, rate).into_iter().map(|(t, rows)| (t + from, rows)).collect();
            let fit = theil_sen(&curve).unwrap();
            prop_assert!((fit.per_s / rate - 1.0).abs() < 1e-6);
            let (low, high) = fit.interval.unwrap();
            prop_assert!(low <= fit.per_s * (1.0 + 1e-9) && fit.per_s <= high * (1.0 + 1e-9));
        }

        #[test]
        fn scales_with_time_and_rows(
            gaps in prop::collection::vec((0.01..5.0f64, 1.0..1e5f64), 4..60),
            scale in 0.1..10.0f64,
        ) {
            let (mut t, mut rows) = (0.0, 0.0);
            let curve: Vec<_> = gaps.iter().map(|(dt, dr)| { t += dt; rows += dr; (t, rows) }).collect();
            let scaled: Vec<_> = curve.iter().map(|(t, rows)| (t * scale, *rows)).collect();
            let (a, b) = (theil_sen(&curve).unwrap(), theil_sen(&scaled).unwrap());
            prop_assert!((a.per_s / (b.per_s * scale) - 1.0).abs() < 1e-6);
            let (low, high) = a.interval.unwrap();
            prop_assert!(low <= a.per_s && a.per_s <= high);
        }

        #[test]
        fn interpolation_stays_between_its_neighbours(t in 0.0..9.0f64) {
            let curve = line(10, 3.0);
            prop_assert!((interpolate(&curve, t).unwrap() - 3.0 * t).abs() < 1e-9);
            prop_assert_eq!(interpolate(&curve, t + 9.1), None);
        }
    }
}

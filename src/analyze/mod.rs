//! From raw readings to figures, checks and verdicts. Pure: no clock, no file, no socket; the same input gives the same
//! output, on any machine, years later. Formulae, tolerances and biases: docs/measuring.md.

pub mod bootstrap;
pub mod rate;

/// The median of sorted values; `None` of none.
pub fn median(sorted: &[f64]) -> Option<f64> {
    quantile(sorted, 0.5)
}

/// A quantile (0 to 1) of sorted values, straight between neighbours; `None` of none.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let at = q.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

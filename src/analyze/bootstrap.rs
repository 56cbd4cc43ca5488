//! Confidence intervals by resampling, the same on every machine: the generator is our own and seeded, since a report
//! has to come out the same when it is made again.

use super::{median, quantile};

const ROUNDS: usize = 2_000;
const SEED: u64 = 0x63_6463_7072_6f62;

/// SplitMix64 (Steele, Lea, Flood 2014): small, good enough to draw indexes, and fixed forever.
pub struct SplitMix64(u64);

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// In 0..n; `n` must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.unit() * n as f64) as usize).min(n - 1)
    }
}

/// 95 % percentile interval of the median over repeats. `None` with fewer than three: there is no spread to resample.
///
/// With n repeats no interval can promise more than 1 - 2^(1-n) (75 % for three, 93.75 % for five): then this is the
/// range from the least to the greatest.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 3 {
        return None;
    }
    let mut rng = SplitMix64::new(SEED);
    resampled(|| {
        let mut drawn: Vec<f64> = values.iter().map(|_| values[rng.below(values.len())]).collect();
        drawn.sort_by(f64::total_cmp);
        median(&drawn)
    })
}

/// 95 % interval of the median of `b - a` over blocks measured side by side (paired by index).
pub fn paired_delta_interval(a: &[f64], b: &[f64]) -> Option<(f64, f64)> {
    let deltas: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
    median_interval(&deltas)
}

/// 95 % interval of Σ numerators / Σ denominators, by drawing blocks of neighbours (about √n long, circular), so that
/// what belongs together in time stays together. `None` with fewer than three increments.
pub fn ratio_interval(increments: &[(f64, f64)]) -> Option<(f64, f64)> {
    let n = increments.len();
    if n < 3 {
        return None;
    }
    let block = (n as f64).sqrt().round() as usize;
    let mut rng = SplitMix64::new(SEED);
    resampled(|| {
        let (mut numerator, mut denominator) = (0.0, 0.0);
        for _ in 0..n.div_ceil(block) {
            let start = rng.below(n);
            for at in start..start + block {
                let (a, b) = increments[at % n];
                (numerator, denominator) = (numerator + a, denominator + b);
            }
        }
        (denominator > 0.0).then(|| numerator / denominator)
    })
}

fn resampled(mut draw: impl FnMut() -> Option<f64>) -> Option<(f64, f64)> {
    let mut estimates: Vec<f64> = (0..ROUNDS).filter_map(|_| draw()).collect();
    estimates.sort_by(f64::total_cmp);
    Some((quantile(&estimates, 0.025)?, quantile(&estimates, 0.975)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_same_input_gives_the_same_interval() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!(median_interval(&values), median_interval(&values));
        assert_eq!(median_interval(&[1.0, 2.0]), None);
        assert_eq!(median_interval(&[1.0, 2.0, 9.0]), Some((1.0, 9.0)));
    }

    /// Of 200 samples of 15 draws from one distribution, about 95 % of the intervals must hold its median.
    #[test]
    fn covers_the_median_about_as_often_as_promised() {
        let mut rng = SplitMix64::new(42);
        let mut held = 0;
        for _ in 0..200 {
            let values: Vec<f64> = (0..15).map(|_| rng.unit()).collect();
            let (low, high) = median_interval(&values).unwrap();
            held += i32::from(low <= 0.5 && 0.5 <= high);
        }
        assert!((175..=200).contains(&held), "{held} of 200");
    }

    #[test]
    fn pairing_removes_what_both_share() {
        let a = [10.0, 20.0, 30.0, 40.0, 50.0];
        let b = a.map(|x| x + 1.0);
        assert_eq!(paired_delta_interval(&a, &b), Some((1.0, 1.0)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn lies_within_the_values(values in prop::collection::vec(-1e9..1e9f64, 3..30)) {
            let (low, high) = median_interval(&values).unwrap();
            let (min, max) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
            prop_assert!(min <= low && low <= high && high <= max);
        }

        #[test]
        fn an_even_flow_has_no_spread(rows in 1.0..1e5f64, n in 3usize..100) {
            let (low, high) = ratio_interval(&vec![(rows, 0.5); n]).unwrap();
            prop_assert!((low / (rows * 2.0) - 1.0).abs() < 1e-9 && (high / low - 1.0).abs() < 1e-9);
        }
    }
}

//! Combines runs that differ only in the seed into medians and confidence intervals.
//!
//! 1. Each measured number is replaced by its median over the repetitions. For an even number of repetitions, the lower
//!    of the two middle values is used. The median is therefore a measured value, and counts stay integers.
//! 2. Fields without a median (tree levels, digest, seed) are taken from the repetition whose data movement is the
//!    median.
//! 3. The field `repeats` stores all values, the lowest and highest value, and a distribution-free confidence interval
//!    for the median.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use crate::metric;
use crate::numbers;

/// Minimum confidence level of an interval.
pub const CONFIDENCE: f64 = 0.95;
/// Result fields that are not measured and therefore have no median.
const NOT_MEASURED: [&str; 8] =
    ["policy", "spec", "workload", "sweep", "seed", "levels", "digest", "repeats"];
/// Measurements by which the median repetition is selected. The first measurement in this list that the results contain
/// is used. Fields without a median are taken from the median repetition.
const MIDDLE_BY: [&str; 3] = ["data_moved_ratio", "write_amplification", "ops_per_s"];

/// Measurements of all repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repeats {
    /// Seeds of the repetitions. All lists in this struct have the order of the seeds.
    pub seeds: Vec<u64>,
    /// Digests of the repetitions. An element is `None` if the repetition has no digest.
    pub digests: Vec<Option<String>>,
    /// Measurements by flat name, see [`metric::flatten_scalars`].
    pub metrics: BTreeMap<String, RepeatedNumber>,
}

/// Values of one measurement in all repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RepeatedNumber {
    /// Values in the order of the seeds. An element is `None` if the repetition lacks the measurement.
    pub values: Vec<Option<Number>>,
    /// Median of the values. For an even count, the lower of the two middle values.
    pub median: Number,
    /// Lowest value.
    pub low: Number,
    /// Highest value.
    pub high: Number,
    /// Confidence interval for the median over all possible seeds. `None` for fewer than six values.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub interval: Option<MedianInterval>,
}

/// Confidence interval for a median, based on order statistics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MedianInterval {
    /// Lower bound of the interval, which is one of the measured values.
    pub low: Number,
    /// Upper bound of the interval, which is one of the measured values.
    pub high: Number,
    /// Probability that the interval contains the median. At least [`CONFIDENCE`].
    pub confidence: f64,
}

/// Returns the order in which `count` cells are measured. The cells with the indexes `n * repeat` to
/// `n * repeat + repeat - 1` are repetitions of one measurement.
///
/// The order contains the first repetition of each measurement, then the second ones, and so on. A change in the speed
/// of the machine then affects all measurements, and not only the last ones.
pub fn interleave_repetitions(count: usize, repeat: u64) -> impl Iterator<Item = usize> {
    let repeat = numbers::to_usize(repeat).max(1);
    (0..repeat).flat_map(move |repetition| (repetition..count).step_by(repeat))
}

/// Combines the results of repeated runs. The result type must have the fields `seed`, `digest` and `repeats`. A single
/// result is returned unchanged.
///
/// # Errors
/// A result cannot be serialized to JSON or deserialized from JSON.
pub fn summarize_repetitions<C: Serialize + DeserializeOwned>(
    cells: Vec<C>,
) -> serde_json::Result<Option<C>> {
    if cells.len() < 2 {
        return Ok(cells.into_iter().next());
    }
    let values = cells.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    let metrics = summarize_metrics(&values);
    let mut middle = values[find_median_repetition(&metrics, values.len())].clone();
    metric::for_each_scalar_mut(&mut middle, &mut |name, scalar| {
        if let Some(repeated) = metrics.get(name) {
            *scalar = Value::Number(repeated.median.clone());
        }
    });
    let digest = |cell: &Value| cell.get("digest").and_then(Value::as_str).map(str::to_owned);
    let repeats = Repeats {
        seeds: values.iter().filter_map(|cell| cell.get("seed")?.as_u64()).collect(),
        digests: values.iter().map(digest).collect(),
        metrics,
    };
    middle["repeats"] = serde_json::to_value(repeats)?;
    serde_json::from_value(middle).map(Some)
}

fn summarize_metrics(cells: &[Value]) -> BTreeMap<String, RepeatedNumber> {
    let mut values: BTreeMap<String, Vec<Option<Number>>> = BTreeMap::new();
    for (place, cell) in cells.iter().enumerate() {
        for (name, scalar) in metric::flatten_scalars(cell) {
            let top = name.split(['.', '[']).next().unwrap_or_default();
            if let (Value::Number(number), false) = (scalar, NOT_MEASURED.contains(&top)) {
                let row = values.entry(name).or_insert_with(|| vec![None; cells.len()]);
                row[place] = Some(number.clone());
            }
        }
    }
    values
        .into_iter()
        .filter_map(|(name, values)| Some((name, summarize_number(values)?)))
        .collect()
}

fn number_to_f64(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::NAN)
}

fn summarize_number(values: Vec<Option<Number>>) -> Option<RepeatedNumber> {
    let mut sorted: Vec<Number> = values.iter().flatten().cloned().collect();
    sorted.sort_by(|a, b| number_to_f64(a).total_cmp(&number_to_f64(b)));
    let median = sorted.get(sorted.len().checked_sub(1)? / 2)?.clone();
    let interval = median_interval(sorted.len()).map(|(from, confidence)| MedianInterval {
        low: sorted[from].clone(),
        high: sorted[sorted.len() - 1 - from].clone(),
        confidence,
    });
    let (low, high) = (sorted.first()?.clone(), sorted.last()?.clone());
    Some(RepeatedNumber { values, median, low, high, interval })
}

/// Computes a confidence interval for the median of `n` sorted values. Returns the number of values to omit at each
/// end, and the confidence with which the remaining values enclose the median. The confidence is at least
/// [`CONFIDENCE`]. Returns `None` if not even all values together reach that confidence.
///
/// Each value is below the median with probability ½. The range from the `k`-th lowest to the `k`-th highest value
/// therefore misses the median with probability 2 P(B < k), where B is binomially distributed.
/// Source: Conover, "Practical Nonparametric Statistics", the confidence interval for a quantile.
pub fn median_interval(n: usize) -> Option<(usize, f64)> {
    /// Exponent of a power of two that is large, but far from the largest `f64`.
    const STEP: i32 = 512;
    // The probabilities are `term` and `below` times 2^-halvings. 2^-n itself is too small for an `f64` if `n` is large.
    let (mut term, mut below, mut halvings) = (1.0, 0.0, i32::try_from(n).ok()?);
    let mut best = None;
    for left_out in 0..n.div_ceil(2) {
        below += term;
        let confidence = 1.0 - 2.0 * below * 0.5f64.powi(halvings);
        if confidence < CONFIDENCE {
            break;
        }
        best = Some((left_out, confidence));
        let (done, n) = (numbers::to_u64(left_out), numbers::to_u64(n));
        term *= numbers::to_f64(n - done) / numbers::to_f64(done + 1);
        if halvings >= STEP && term > 2f64.powi(STEP) {
            (term, below) = (term * 0.5f64.powi(STEP), below * 0.5f64.powi(STEP));
            halvings -= STEP;
        }
    }
    best
}

/// Returns the index of the repetition from which fields without a median are taken.
fn find_median_repetition(metrics: &BTreeMap<String, RepeatedNumber>, count: usize) -> usize {
    let by = MIDDLE_BY.iter().find_map(|name| metrics.get(*name));
    let place = by.and_then(|by| {
        by.values.iter().position(|value| value.as_ref().is_some_and(|at| *at == by.median))
    });
    place.unwrap_or(0).min(count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Cell {
        seed: u64,
        data_moved_ratio: f64,
        jobs: u64,
        levels: Vec<u64>,
        digest: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        repeats: Option<Repeats>,
    }

    fn cell(seed: u64, data_moved_ratio: f64, jobs: u64) -> Cell {
        let digest = Some(seed.to_string());
        Cell { seed, data_moved_ratio, jobs, levels: vec![seed], digest, repeats: None }
    }

    #[test]
    fn medians_are_measured_values() {
        let cells = vec![cell(0, 3.0, 10), cell(1, 1.0, 40), cell(2, 2.0, 20), cell(3, 4.0, 30)];
        let one = summarize_repetitions(cells).unwrap().unwrap();
        // The lower of the two middle values of 1, 2, 3 and 4 was measured with seed 2.
        assert!((one.data_moved_ratio - 2.0).abs() < f64::EPSILON);
        assert_eq!((one.jobs, one.seed, one.levels.as_slice()), (20, 2, &[2][..]));
        assert_eq!(one.digest.as_deref(), Some("2"));
        let repeats = one.repeats.unwrap();
        assert_eq!(repeats.seeds, [0, 1, 2, 3]);
        let jobs = &repeats.metrics["jobs"];
        let values: Vec<u64> = jobs.values.iter().flatten().filter_map(Number::as_u64).collect();
        assert_eq!(values, [10, 40, 20, 30]);
        assert_eq!((jobs.low.as_u64(), jobs.high.as_u64()), (Some(10), Some(40)));
        assert_eq!(jobs.interval, None, "an interval needs six values");
        assert!(!repeats.metrics.contains_key("seed"));
    }

    /// By the binomial distribution, the full range of 6 values has a confidence of 1 − 2/64, and the range from the
    /// 6th to the 15th of 20 values 95.86 %.
    #[test]
    fn interleaved_repetitions_are_in_rounds() {
        let order: Vec<_> = interleave_repetitions(6, 3).collect();
        assert_eq!(order, [0, 3, 1, 4, 2, 5]);
        assert!(interleave_repetitions(4, 1).eq(0..4));
    }

    #[test]
    fn median_interval_has_exact_confidence() {
        assert_eq!(median_interval(0), None);
        assert_eq!(median_interval(5), None);
        let (left_out, confidence) = median_interval(6).unwrap();
        assert!(left_out == 0 && (confidence - 0.968_75).abs() < 1e-12);
        let (left_out, confidence) = median_interval(9).unwrap();
        assert!(left_out == 1 && (confidence - (1.0 - 2.0 * 10.0 / 512.0)).abs() < 1e-12);
        let (left_out, confidence) = median_interval(20).unwrap();
        assert!(left_out == 5 && (confidence - 0.958_61).abs() < 1e-5, "{confidence}");
    }

    /// Regression test: from 1075 values on, the interval was the median alone, with a confidence of 1. By the normal
    /// approximation, the interval leaves out `n / 2 - 0.98 √n` values at each end.
    #[test]
    fn median_interval_of_many_values_has_its_confidence() {
        for (n, expected) in
            [(1074, 504.9), (1075, 505.4), (10_000, 4902.0), (1_000_000, 499_020.0)]
        {
            let (left_out, confidence) = median_interval(n).unwrap();
            assert!((CONFIDENCE..CONFIDENCE + 0.01).contains(&confidence), "{n}: {confidence}");
            let left_out = numbers::to_f64(numbers::to_u64(left_out));
            assert!((left_out - expected).abs() < 2.0, "{n}: {left_out}");
        }
    }
}

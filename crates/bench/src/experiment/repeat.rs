//! Repetitions of a cell with other seeds, told as one: medians with intervals.
//!
//! 1. Every number that was measured becomes the median over the repetitions: the middle value, of an
//!    even count the lower of the two in the middle, so that it is one that was measured and a count
//!    stays a whole number.
//! 2. What has no median (the levels of the tree, the digest, the seed) is that of the repetition
//!    whose data moved is the median.
//! 3. `repeats` keeps every value of every repetition, the lowest and highest, and an interval for
//!    the median that holds whatever the distribution is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use crate::numbers;
use crate::report::flat;

/// Confidence that an interval has at least.
pub const CONFIDENCE: f64 = 0.95;
/// Members of a cell that say what it is, or what shape it has, rather than how it went.
const NOT_MEASURED: [&str; 8] =
    ["policy", "spec", "workload", "sweep", "seed", "levels", "digest", "repeats"];
/// Tells which repetition stands for all in what has no median.
const MIDDLE_BY: [&str; 3] = ["data_moved_ratio", "write_amplification", "ops_per_s"];

/// What the repetitions of one cell measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repeats {
    /// Their seeds; all lists below are in this order.
    pub seeds: Vec<u64>,
    /// Their digests.
    pub digests: Vec<Option<String>>,
    /// Their measurements by flat name, see [`flat`].
    pub metrics: BTreeMap<String, Repeated>,
}

/// One number over all repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repeated {
    /// One per seed; null where the repetition has none.
    pub values: Vec<Option<Number>>,
    /// The middle one.
    pub median: Number,
    /// The lowest.
    pub low: Number,
    /// The highest.
    pub high: Number,
    /// Where the median of all seeds lies, if there are enough repetitions to tell: six or more.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub interval: Option<Interval>,
}

/// Where a median lies, by the order of the values alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end, one of the values.
    pub low: Number,
    /// Upper end, one of the values.
    pub high: Number,
    /// Probability that the median lies between them, at least [`CONFIDENCE`].
    pub confidence: f64,
}

/// A cell that can stand for several.
pub trait Repeatable: Serialize + for<'de> Deserialize<'de> {
    /// Its seed.
    fn seed(&self) -> u64;
    /// Its digest.
    fn digest(&self) -> Option<&str>;
    /// Notes what it stands for.
    fn set_repeats(&mut self, repeats: Repeats);
}

/// One cell for all of them; itself if it is alone, none if there is none.
///
/// # Errors
/// Never for a cell that reads what it writes.
pub fn summarize<C: Repeatable>(cells: Vec<C>) -> serde_json::Result<Option<C>> {
    if cells.len() < 2 {
        return Ok(cells.into_iter().next());
    }
    let values = cells.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    let metrics = metrics(&values);
    let mut middle = values[middle(&metrics, values.len())].clone();
    flat::for_each_mut(&mut middle, &mut |name, scalar| {
        if let Some(repeated) = metrics.get(name) {
            *scalar = Value::Number(repeated.median.clone());
        }
    });
    let mut cell: C = serde_json::from_value(middle)?;
    cell.set_repeats(Repeats {
        seeds: cells.iter().map(Repeatable::seed).collect(),
        digests: cells.iter().map(|cell| cell.digest().map(str::to_owned)).collect(),
        metrics,
    });
    Ok(Some(cell))
}

fn metrics(cells: &[Value]) -> BTreeMap<String, Repeated> {
    let mut values: BTreeMap<String, Vec<Option<Number>>> = BTreeMap::new();
    for (place, cell) in cells.iter().enumerate() {
        for (name, scalar) in flat::scalars(cell) {
            let top = name.split(['.', '[']).next().unwrap_or_default();
            if let (Value::Number(number), false) = (scalar, NOT_MEASURED.contains(&top)) {
                let row = values.entry(name).or_insert_with(|| vec![None; cells.len()]);
                row[place] = Some(number.clone());
            }
        }
    }
    values.into_iter().filter_map(|(name, values)| Some((name, repeated(values)?))).collect()
}

fn real(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::NAN)
}

fn repeated(values: Vec<Option<Number>>) -> Option<Repeated> {
    let mut sorted: Vec<Number> = values.iter().flatten().cloned().collect();
    sorted.sort_by(|a, b| real(a).total_cmp(&real(b)));
    let median = sorted.get(sorted.len().checked_sub(1)? / 2)?.clone();
    let interval = median_interval(sorted.len()).map(|(from, confidence)| Interval {
        low: sorted[from].clone(),
        high: sorted[sorted.len() - 1 - from].clone(),
        confidence,
    });
    let (low, high) = (sorted.first()?.clone(), sorted.last()?.clone());
    Some(Repeated { values, median, low, high, interval })
}

/// How many values may be left out at each end of `n` sorted ones so that the rest still holds the
/// median with [`CONFIDENCE`], and with what confidence it does; none if not even all of them do.
///
/// Each value lies below the median with probability one half, so the median is missed by the
/// values from the `k`-th lowest to the `k`-th highest with probability 2 P(B < k), B binomial.
/// Source: Conover, "Practical Nonparametric Statistics", the confidence interval for a quantile.
#[must_use]
pub fn median_interval(n: usize) -> Option<(usize, f64)> {
    let mut term = 0.5f64.powi(i32::try_from(n).ok()?);
    let mut below = 0.0;
    let mut best = None;
    for left_out in 0..n.div_ceil(2) {
        below += term;
        let confidence = 1.0 - 2.0 * below;
        if confidence < CONFIDENCE {
            break;
        }
        best = Some((left_out, confidence));
        let (done, n) = (numbers::count(left_out), numbers::count(n));
        term *= numbers::float(n - done) / numbers::float(done + 1);
    }
    best
}

/// The repetition that stands for all.
fn middle(metrics: &BTreeMap<String, Repeated>, count: usize) -> usize {
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

    impl Repeatable for Cell {
        fn seed(&self) -> u64 {
            self.seed
        }
        fn digest(&self) -> Option<&str> {
            self.digest.as_deref()
        }
        fn set_repeats(&mut self, repeats: Repeats) {
            self.repeats = Some(repeats);
        }
    }

    fn cell(seed: u64, data_moved_ratio: f64, jobs: u64) -> Cell {
        let digest = Some(seed.to_string());
        Cell { seed, data_moved_ratio, jobs, levels: vec![seed], digest, repeats: None }
    }

    #[test]
    fn medians_are_values_that_were_measured() {
        let cells = vec![cell(0, 3.0, 10), cell(1, 1.0, 40), cell(2, 2.0, 20), cell(3, 4.0, 30)];
        let one = summarize(cells).unwrap().unwrap();
        // Of 1, 2, 3, 4 the lower of the two in the middle, which seed 2 measured.
        assert!((one.data_moved_ratio - 2.0).abs() < f64::EPSILON);
        assert_eq!((one.jobs, one.seed, one.levels.as_slice()), (20, 2, &[2][..]));
        assert_eq!(one.digest.as_deref(), Some("2"));
        let repeats = one.repeats.unwrap();
        assert_eq!(repeats.seeds, [0, 1, 2, 3]);
        let jobs = &repeats.metrics["jobs"];
        let values: Vec<u64> = jobs.values.iter().flatten().filter_map(Number::as_u64).collect();
        assert_eq!(values, [10, 40, 20, 30]);
        assert_eq!((jobs.low.as_u64(), jobs.high.as_u64()), (Some(10), Some(40)));
        assert_eq!(jobs.interval, None, "four values are too few");
        assert!(!repeats.metrics.contains_key("seed"));
    }

    #[test]
    fn one_cell_stays_as_it_is() {
        let alone = cell(7, 1.0, 1);
        assert_eq!(summarize(vec![alone.clone()]).unwrap(), Some(alone));
        assert_eq!(summarize(Vec::<Cell>::new()).unwrap(), None);
    }

    /// The exact binomial sums: with 6 values all of them, 1 − 2/64; with 20 values from the 6th
    /// to the 15th, 95.86 %.
    #[test]
    fn intervals_hold_the_median_as_often_as_they_say() {
        assert_eq!(median_interval(0), None);
        assert_eq!(median_interval(5), None);
        let (left_out, confidence) = median_interval(6).unwrap();
        assert!(left_out == 0 && (confidence - 0.968_75).abs() < 1e-12);
        let (left_out, confidence) = median_interval(9).unwrap();
        assert!(left_out == 1 && (confidence - (1.0 - 2.0 * 10.0 / 512.0)).abs() < 1e-12);
        let (left_out, confidence) = median_interval(20).unwrap();
        assert!(left_out == 5 && (confidence - 0.958_61).abs() < 1e-5, "{confidence}");
    }
}

//! Filter sizes, and which runs of a tree get large filters.
//!
//! A lookup of an absent key checks one filter per sorted run, regardless of the size of the run. For a given total of
//! filter bits, the sum of false positive rates is therefore minimal if small runs have the large filters. This is the
//! allocation of Monkey (Dayan, Athanassoulis, Idreos: SIGMOD 2017), restricted to two filter sizes.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use lsmx_compaction::{FileId, Job, Level, OutputPlacement, TableMeta, TreeShape};

use crate::error::Result;
use crate::options::invalid_option;
use crate::table::FilterWidth;

/// Allowed range of [`FilterBits::Monkey`], from the bits per key of narrow filters to those of wide ones.
const MONKEY_BITS_RANGE: std::ops::RangeInclusive<f64> = 9.0..=18.0;

/// Size of the filters of new tables. Existing tables keep their filters.
///
/// ```
/// use lsmx::FilterBits;
///
/// # fn main() -> Result<(), &'static str> {
/// assert_eq!("monkey(10)".parse::<FilterBits>()?, FilterBits::Monkey { bits_per_key: 10.0 });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(into = "String")]
#[non_exhaustive]
pub enum FilterBits {
    /// About 9 bits per key, with a false positive rate of 1/256.
    #[default]
    Fuse8,
    /// About 18 bits per key, with a false positive rate of 1/65,536.
    Fuse16,
    /// Large filters for small runs, and small filters for other runs. This minimizes the false positives of a lookup for
    /// the given memory. The size is chosen when a table is written, from the runs at that time.
    Monkey {
        /// Maximum average bits per key of the filters that lookups use, 9 to 18. The filter of the last sorted run counts
        /// only if lookups use it. Tables written before may exceed the maximum.
        bits_per_key: f64,
    },
}

impl FilterBits {
    /// Checks the bits per key.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            FilterBits::Monkey { bits_per_key } if !MONKEY_BITS_RANGE.contains(&bits_per_key) => {
                Err(invalid_option("filter_bits", self, "with 9 to 18 bits per key"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the bits per key of the filters of new tables, for the current shape of the tree.
    ///
    /// `uses_last_filter` is true if lookups use the filter of the last sorted run. `is_wide` returns whether an
    /// existing table has a wide filter.
    pub(crate) fn width(
        self,
        shape: &TreeShape,
        incoming: &IncomingRun<'_>,
        uses_last_filter: bool,
        is_wide: impl Fn(FileId) -> bool,
    ) -> FilterWidth {
        let bits_per_key = match self {
            FilterBits::Fuse8 => return FilterWidth::Fuse8,
            FilterBits::Fuse16 => return FilterWidth::Fuse16,
            FilterBits::Monkey { bits_per_key } => bits_per_key,
        };
        let (mut runs, target) = incoming.count_run_keys(shape, is_wide);
        if !uses_last_filter {
            runs.pop();
        }
        let keys: Vec<u64> = runs.iter().map(|run| run.keys).collect();
        match allocate_filter_widths(&keys, bits_per_key).get(target) {
            // Filters of other runs may be larger than this allocation, because run sizes were different when they were
            // written. A wide filter must also fit into the bits that these filters leave.
            Some(FilterWidth::Fuse16) => {
                let others = runs.iter().enumerate().filter(|(other, _)| *other != target);
                let wide_keys = runs[target].keys + others.map(|(_, run)| run.wide).sum::<u64>();
                let extra_bits_max = extra_bits_allowed(keys.iter().sum(), bits_per_key);
                if extra_bits_max >= extra_bits_of_wide_filters(wide_keys) { WIDE } else { NARROW }
            }
            // `None` is the last run, whose filter is not used.
            Some(FilterWidth::Fuse8) | None => NARROW,
        }
    }
}

impl fmt::Display for FilterBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterBits::Fuse8 => f.write_str("8"),
            FilterBits::Fuse16 => f.write_str("16"),
            FilterBits::Monkey { bits_per_key } => write!(f, "monkey({bits_per_key})"),
        }
    }
}

impl From<FilterBits> for String {
    fn from(bits: FilterBits) -> String {
        bits.to_string()
    }
}

impl FromStr for FilterBits {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<FilterBits, &'static str> {
        const MUST: &str = "8, 16, or monkey(BITS) with 9 to 18 bits per key";
        let bits = match text {
            "8" => FilterBits::Fuse8,
            "16" => FilterBits::Fuse16,
            _ => {
                let inner = text.strip_prefix("monkey(").and_then(|rest| rest.strip_suffix(')'));
                let bits_per_key = inner.and_then(|bits| bits.trim().parse().ok()).ok_or(MUST)?;
                FilterBits::Monkey { bits_per_key }
            }
        };
        bits.check().map(|()| bits).map_err(|_| MUST)
    }
}

const NARROW: FilterWidth = FilterWidth::Fuse8;
const WIDE: FilterWidth = FilterWidth::Fuse16;

/// Number of keys of a run, and how many of them are in wide filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RunKeyCounts {
    keys: u64,
    wide: u64,
}

/// Data that is about to be written to a tree.
#[derive(Debug)]
pub(crate) enum IncomingRun<'a> {
    /// A memtable with a number of entries, which becomes the newest run.
    Flush { entries: u64 },
    /// Output of a compaction.
    Job(&'a Job),
}

impl IncomingRun<'_> {
    /// Returns the key counts of all runs as they are when the new run is complete, newest first, and the index of the new
    /// run. The output of a job counts as the sum of its inputs.
    fn count_run_keys(
        &self,
        shape: &TreeShape,
        is_wide: impl Fn(FileId) -> bool,
    ) -> (Vec<RunKeyCounts>, usize) {
        match self {
            IncomingRun::Flush { entries } => {
                let existing = shape.levels.iter().flat_map(|level| &level.runs).map(|run| {
                    let mut keys = RunKeyCounts::default();
                    run.files.iter().for_each(|file| keys.add(file, &is_wide));
                    keys
                });
                let flushed = RunKeyCounts { keys: *entries, wide: 0 };
                (std::iter::once(flushed).chain(existing).collect(), 0)
            }
            IncomingRun::Job(job) => count_run_keys_after_job(job, shape, is_wide),
        }
    }
}

impl RunKeyCounts {
    fn add(&mut self, file: &TableMeta, is_wide: impl Fn(FileId) -> bool) {
        self.keys += file.entries;
        self.wide += if is_wide(file.id) { file.entries } else { 0 };
    }
}

fn count_run_keys_after_job(
    job: &Job,
    shape: &TreeShape,
    is_wide: impl Fn(FileId) -> bool,
) -> (Vec<RunKeyCounts>, usize) {
    let inputs: HashSet<FileId> =
        job.inputs.iter().flat_map(|input| input.files.iter().copied()).collect();
    let (mut runs, mut target, mut moved) = (Vec::new(), None, 0);
    for (index, level) in shape.levels.iter().enumerate() {
        for run in &level.runs {
            let placement = job.target.placement;
            if placement == (OutputPlacement::NewRun { before: Some(run.id) }) {
                target = Some(runs.len());
                runs.push(RunKeyCounts::default());
            }
            let mut remaining = RunKeyCounts::default();
            for file in run.files.iter() {
                match inputs.contains(&file.id) {
                    true => moved += file.entries,
                    false => remaining.add(file, &is_wide),
                }
            }
            let is_joined = placement == OutputPlacement::JoinRun(run.id);
            if is_joined {
                target = Some(runs.len());
            }
            if remaining.keys > 0 || is_joined {
                runs.push(remaining);
            }
        }
        if target.is_none() && Level::from_index(index) == Some(job.target.level) {
            // The output is a new run after all runs of its level.
            target = Some(runs.len());
            runs.push(RunKeyCounts::default());
        }
    }
    // The output is a new run in a level below all existing levels.
    let target = target.unwrap_or_else(|| {
        runs.push(RunKeyCounts::default());
        runs.len() - 1
    });
    runs[target].keys += moved;
    (runs, target)
}

/// Returns the number of bits that filters of `keys` keys may use in addition to the bits of narrow filters.
fn extra_bits_allowed(keys: u64, bits_per_key: f64) -> f64 {
    (bits_per_key - f64::from(NARROW.bits_per_key())) * keys as f64
}

/// Returns the number of bits that wide filters of `keys` keys need in addition to the bits of narrow filters.
fn extra_bits_of_wide_filters(keys: u64) -> f64 {
    f64::from(WIDE.bits_per_key() - NARROW.bits_per_key()) * keys as f64
}

/// Returns the filter width of each run, given their numbers of keys. The widths use at most `bits_per_key` on average and
/// minimize the sum of false positive rates.
///
/// A wide filter reduces the sum by the same amount for every run, and costs bits in proportion to the keys of the run.
/// As many runs as possible therefore get one, smallest first. Of equal runs the newer comes first, because more lookups
/// check it.
fn allocate_filter_widths(keys: &[u64], bits_per_key: f64) -> Vec<FilterWidth> {
    let mut widths = vec![NARROW; keys.len()];
    let mut remaining_bits = extra_bits_allowed(keys.iter().sum(), bits_per_key);
    let mut by_size: Vec<usize> = (0..keys.len()).collect();
    by_size.sort_by_key(|&run| keys[run]);
    for run in by_size {
        remaining_bits -= extra_bits_of_wide_filters(keys[run]);
        if remaining_bits < 0.0 {
            break;
        }
        widths[run] = WIDE;
    }
    widths
}

#[cfg(test)]
mod tests;

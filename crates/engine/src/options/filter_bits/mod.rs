//! How wide filters are, and which run of a tree gets the wide ones.
//!
//! A lookup of an absent key asks one filter per sorted run, however many keys that run has. So the
//! bits are worth most where keys are few: given the bits for all filters together, the sum of their false
//! answers is least with wide filters on small runs. That is Monkey (Dayan, Athanassoulis and Idreos,
//! SIGMOD 2017), for filters of two widths instead of any.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use lsmx_compaction::{FileId, Job, Level, Placement, TableMeta, TreeShape};

use crate::error::{Error, Result};
use crate::table::FilterWidth;

/// Bits per key that [`FilterBits::Monkey`] takes: those of narrow and of wide filters.
pub const MONKEY_BITS_RANGE: std::ops::RangeInclusive<f64> = 9.0..=18.0;

/// How wide filters are written. Any table is written with a filter; one that is there keeps its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(into = "String")]
#[non_exhaustive]
pub enum FilterBits {
    /// About 9 bits a key, one false answer in 256.
    #[default]
    Fuse8,
    /// About 18 bits a key, one false answer in 65,536.
    Fuse16,
    /// Wide filters for small runs and narrow ones for the rest, so that absent keys pass as few filters
    /// as bits allow. Decided whenever a table is written, from the runs that there are then.
    Monkey {
        /// Mean bits per key of the filters that lookups ask, 9 to 18: that of the last sorted run counts
        /// if it is asked. Never more by what is written under it; what was written before may be wider.
        bits_per_key: f64,
    },
}

impl FilterBits {
    /// Checks that the bits are within their range.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if they are not.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            FilterBits::Monkey { bits_per_key } if !MONKEY_BITS_RANGE.contains(&bits_per_key) => {
                Err(Error::InvalidOption {
                    name: "filter_bits",
                    value: self.to_string(),
                    must: "with 9 to 18 bits per key",
                })
            }
            _ => Ok(()),
        }
    }

    /// Width of the filters of what is about to come into a tree of this shape, in which `is_wide` knows the
    /// filters that there are.
    pub(crate) fn width(
        self,
        shape: &TreeShape,
        coming: &Coming<'_>,
        last_is_asked: bool,
        is_wide: impl Fn(FileId) -> bool,
    ) -> FilterWidth {
        let bits_per_key = match self {
            FilterBits::Fuse8 => return FilterWidth::Fuse8,
            FilterBits::Fuse16 => return FilterWidth::Fuse16,
            FilterBits::Monkey { bits_per_key } => bits_per_key,
        };
        let (mut runs, at) = coming.runs(shape, is_wide);
        if !last_is_asked {
            runs.pop();
        }
        let keys: Vec<u64> = runs.iter().map(|run| run.keys).collect();
        match allocate(&keys, bits_per_key).get(at) {
            // Others may have bits that are not due to them: runs were larger or smaller when they were
            // written.
            Some(FilterWidth::Fuse16) => {
                let others = runs.iter().enumerate().filter(|(other, _)| *other != at);
                let wide = runs[at].keys + others.map(|(_, run)| run.wide).sum::<u64>();
                let all = keys.iter().sum();
                if bits_left(all, bits_per_key) >= extra_bits(wide) { WIDE } else { NARROW }
            }
            // A run whose filter nobody asks needs no wide one.
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

/// Keys of a run, and those of them that are in wide filters already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RunKeys {
    keys: u64,
    wide: u64,
}

/// What is about to come into a tree.
#[derive(Debug)]
pub(crate) enum Coming<'a> {
    /// A memtable, as the newest run.
    Flush {
        /// Its entries.
        entries: u64,
    },
    /// What a job makes of its inputs.
    Job(&'a Job),
}

impl Coming<'_> {
    /// Keys of all runs once it has come, newest first, and the place of the run that it comes to. A
    /// job is taken to keep all its entries.
    fn runs(&self, shape: &TreeShape, is_wide: impl Fn(FileId) -> bool) -> (Vec<RunKeys>, usize) {
        match self {
            Coming::Flush { entries } => {
                let there = shape.levels.iter().flat_map(|level| &level.runs);
                let there = there.map(|run| {
                    let mut keys = RunKeys::default();
                    run.files.iter().for_each(|file| keys.add(file, &is_wide));
                    keys
                });
                let come = RunKeys { keys: *entries, wide: 0 };
                (std::iter::once(come).chain(there).collect(), 0)
            }
            Coming::Job(job) => after_job(job, shape, is_wide),
        }
    }
}

impl RunKeys {
    fn add(&mut self, file: &TableMeta, is_wide: impl Fn(FileId) -> bool) {
        self.keys += file.entries;
        self.wide += if is_wide(file.id) { file.entries } else { 0 };
    }
}

fn after_job(
    job: &Job,
    shape: &TreeShape,
    is_wide: impl Fn(FileId) -> bool,
) -> (Vec<RunKeys>, usize) {
    let taken: HashSet<FileId> =
        job.inputs.iter().flat_map(|input| input.files.iter().copied()).collect();
    let (mut runs, mut at, mut moved) = (Vec::new(), None, 0);
    for (index, level) in shape.levels.iter().enumerate() {
        for run in &level.runs {
            let placement = job.target.placement;
            if placement == (Placement::NewRun { before: Some(run.id) }) {
                at = Some(runs.len());
                runs.push(RunKeys::default());
            }
            let mut left = RunKeys::default();
            for file in run.files.iter() {
                match taken.contains(&file.id) {
                    true => moved += file.entries,
                    false => left.add(file, &is_wide),
                }
            }
            let joined = placement == Placement::JoinRun(run.id);
            if joined {
                at = Some(runs.len());
            }
            if left.keys > 0 || joined {
                runs.push(left);
            }
        }
        if at.is_none() && Level::from_index(index) == Some(job.target.level) {
            // Last in its level.
            at = Some(runs.len());
            runs.push(RunKeys::default());
        }
    }
    // Into a level below those that there are.
    let at = at.unwrap_or_else(|| {
        runs.push(RunKeys::default());
        runs.len() - 1
    });
    runs[at].keys += moved;
    (runs, at)
}

/// Bits that are left for so many keys once all have narrow filters.
fn bits_left(keys: u64, bits_per_key: f64) -> f64 {
    (bits_per_key - f64::from(NARROW.bits_per_key())) * keys as f64
}

/// What so many keys take more in wide filters than in narrow ones.
fn extra_bits(keys: u64) -> f64 {
    f64::from(WIDE.bits_per_key() - NARROW.bits_per_key()) * keys as f64
}

/// Widths for filters of so many keys each, such that these have at most so many bits per key in the
/// mean and the sum of their false answers is least.
///
/// A wide filter in place of a narrow one saves the same, whatever the keys, and costs bits for each key. So
/// as many as possible get one, the smallest first. Of equal runs the newer is asked more often and comes
/// first.
fn allocate(keys: &[u64], bits_per_key: f64) -> Vec<FilterWidth> {
    let mut widths = vec![NARROW; keys.len()];
    let mut left = bits_left(keys.iter().sum(), bits_per_key);
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by_key(|&at| keys[at]);
    for at in order {
        left -= extra_bits(keys[at]);
        if left < 0.0 {
            break;
        }
        widths[at] = WIDE;
    }
    widths
}

#[cfg(test)]
mod tests;

//! Merges the histograms of a job's inputs and returns the outputs.
//!
//! 1. Visit the key ranges of all inputs in key order, one interval of constant density at a time. Sample the number of
//!    entries that each input has in the interval.
//! 2. Merge the entries of the older inputs into those of the newest input. Drop tombstones where no older run can
//!    contain the keys.
//! 3. Call the engine's `OutputSplitter` wherever its result may change. This is at split boundaries, at the start of
//!    each grandparent file, and where the output reaches its target size. The position at which the output reaches its
//!    target size is sampled.

use crate::entry_counts::EntryCounts;
use crate::histogram::HistogramBin;
use crate::math::to_f64;
use crate::merge_input::MergeInput;
use crate::output_writer::{MergeOutput, OutputWriter};
use crate::position::{POSITION_COUNT, range_width};
use crate::sampler::Sampler;
use crate::split_points::SplitPoints;
use crate::workload::RANGE_DELETE_RECORDS;

/// Files of older runs that are not inputs. A merge keeps tombstones where such a file overlaps the merge.
#[derive(Debug, Default)]
pub(crate) struct OlderRuns {
    /// For each run, the file ranges in key order, and the index of the first range that ends at or after the current
    /// position.
    runs: Vec<(Vec<(u64, u64)>, usize)>,
}

impl OlderRuns {
    /// Adds the file ranges of one run, in key order.
    pub(crate) fn add_run(&mut self, ranges: Vec<(u64, u64)>) {
        self.runs.push((ranges, 0));
    }

    /// Returns whether a file overlaps position `at`. Also returns the last position up to which the result is the
    /// same.
    ///
    /// `at` must not decrease from call to call.
    fn has_overlap_at(&mut self, at: u64) -> (bool, u64) {
        let (mut overlaps, mut until) = (false, u64::MAX);
        for (ranges, next) in &mut self.runs {
            while ranges.get(*next).is_some_and(|range| range.1 < at) {
                *next += 1;
            }
            match ranges.get(*next) {
                Some(&(start, _)) if start > at => until = until.min(start - 1),
                Some(&(_, end)) => {
                    overlaps = true;
                    until = until.min(end);
                }
                None => {}
            }
        }
        (overlaps, until)
    }
}

/// Merges `inputs`, which are ordered from newest to oldest. Returns the outputs of `writer`.
///
/// `popularity_class_count` is the number of popularity classes. `records` is the number of records in the key domain.
pub(crate) fn merge(
    mut inputs: Vec<MergeInput<'_>>,
    mut older: OlderRuns,
    mut splits: SplitPoints<'_>,
    mut writer: OutputWriter<'_>,
    popularity_class_count: usize,
    records: f64,
    sampler: &mut Sampler,
) -> Vec<MergeOutput> {
    let mut merged = vec![EntryCounts::default(); popularity_class_count];
    let mut part = merged.clone();
    let mut at = inputs.iter().filter_map(MergeInput::position).min().unwrap_or(u64::MAX);
    loop {
        let (has_older, older_until) = older.has_overlap_at(at);
        let constant_until =
            inputs.iter().filter_map(|input| input.end_of_constant_density(at)).min();
        let Some(to) = constant_until else { break };
        let to = to.min(older_until).min(splits.end_of_constant_split(at)).max(at);
        let key_at_start = inputs.iter().any(|input| input.has_file_start_at(at));
        let key_at_end = inputs.iter().any(|input| input.has_file_end_at(at, to));
        let mut found: Option<HistogramBin> = None;
        for input in &mut inputs {
            let Some(bin) = input.take_entries_until(at, to, sampler, &mut part) else { continue };
            match &mut found {
                None => {
                    merged.copy_from_slice(&part);
                    found = Some(bin);
                }
                Some(all) => {
                    let hidden = range_deleted_share(all.range_tombstones, at, to, records);
                    for (newer, older) in merged.iter_mut().zip(&mut part) {
                        if hidden > 0.0 {
                            older.remove_hidden_share(hidden);
                        }
                        newer.merge_older(older);
                    }
                    all.range_tombstones += bin.range_tombstones;
                    all.seqs.extend(&bin.seqs);
                }
            }
        }
        if let Some(mut bin) = found {
            bin.end = to;
            if !has_older {
                bin.range_tombstones = 0.0;
                merged.iter_mut().for_each(EntryCounts::compact_last_run);
            }
            writer.add_bin(at, bin, &mut merged, (key_at_start, key_at_end), &mut splits, sampler);
        }
        if splits.pass_subcompaction_end(to) {
            writer.finish_output(sampler);
        }
        if to == u64::MAX {
            break;
        }
        at = to + 1;
    }
    writer.finish(sampler)
}

/// Returns the share of the older keys in `from..=to` that the range tombstones hide.
fn range_deleted_share(range_tombstones: f64, from: u64, to: u64, records: f64) -> f64 {
    if range_tombstones <= 0.0 {
        return 0.0;
    }
    let records_in_range = range_width(from, to) / POSITION_COUNT * records;
    let deleted = range_tombstones * to_f64(RANGE_DELETE_RECORDS);
    1.0 - libm::exp(-deleted / records_in_range.max(1.0))
}

//! Contents of a simulated file: a histogram of entry counts over the key range of the file.
//!
//! Within a bin, entries are evenly distributed. A file needs several bins, because the density of a merge output
//! varies. The density is low in key ranges in which few input files overlapped.

use crate::entry_counts::EntryCounts;
use crate::math::{ratio, to_f64};
use crate::position::range_width;
use crate::seq_range::SeqRange;

/// A bin of a [`Histogram`]. The histogram holds the entry counts of the bin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HistogramBin {
    /// Last position of the bin. The bin starts directly after the end of the previous bin.
    pub(crate) end: u64,
    /// Number of range tombstones.
    pub(crate) range_tombstones: f64,
    /// Sequence numbers of the entries.
    pub(crate) seqs: SeqRange,
}

/// Entry counts over a range of positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// First position.
    pub(crate) start: u64,
    pub(crate) bins: Vec<HistogramBin>,
    /// Entry counts, one for each pair of a bin and a popularity class. The counts of a bin are adjacent.
    pub(crate) counts: Vec<EntryCounts>,
}

impl Histogram {
    pub(crate) fn with_start(start: u64) -> Histogram {
        Histogram { start, bins: Vec::new(), counts: Vec::new() }
    }

    fn popularity_class_count(&self) -> usize {
        self.counts.len() / self.bins.len().max(1)
    }

    pub(crate) fn bin_start(&self, index: usize) -> u64 {
        match index.checked_sub(1) {
            Some(previous) => self.bins[previous].end.saturating_add(1),
            None => self.start,
        }
    }

    pub(crate) fn end_position(&self) -> u64 {
        self.bins.last().map_or(self.start, |last| last.end)
    }

    /// Returns the counts of a bin by popularity class.
    pub(crate) fn bin_counts(&self, index: usize) -> &[EntryCounts] {
        let classes = self.popularity_class_count();
        &self.counts[index * classes..(index + 1) * classes]
    }

    /// Returns the number of entries of a bin without its range tombstones.
    fn bin_entries(&self, index: usize) -> f64 {
        self.bin_counts(index).iter().map(EntryCounts::entries).sum()
    }

    /// Returns the share of the file's entries that are at or before a position.
    pub(crate) fn entry_share_up_to(&self, position: u64) -> f64 {
        let (mut before, mut all) = (0.0, 0.0);
        for (index, bin) in self.bins.iter().enumerate() {
            let entries = self.bin_entries(index) + bin.range_tombstones;
            let start = self.bin_start(index);
            if bin.end <= position {
                before += entries;
            } else if start <= position {
                before += entries * to_f64(position - start) / to_f64(bin.end - start);
            }
            all += entries;
        }
        ratio(before, all)
    }

    pub(crate) fn push(&mut self, bin: HistogramBin, counts: &[EntryCounts]) {
        self.bins.push(bin);
        self.counts.extend_from_slice(counts);
    }

    /// Removes all bins and sets the first position. Keeps the allocated memory.
    pub(crate) fn reset(&mut self, start: u64) {
        self.start = start;
        self.bins.clear();
        self.counts.clear();
    }

    /// Moves the last position of the file to `end`. Bins that begin after `end` are merged into the bin before them.
    pub(crate) fn set_end_position(&mut self, end: u64) {
        while self.bins.len() > 1 && self.bins[self.bins.len() - 2].end >= end {
            self.merge_with_previous(self.bins.len() - 1);
        }
        if let Some(last) = self.bins.last_mut() {
            last.end = end;
        }
    }

    /// Merges a bin into the bin before it.
    fn merge_with_previous(&mut self, index: usize) {
        let classes = self.popularity_class_count();
        let removed = self.bins.remove(index);
        let previous = &mut self.bins[index - 1];
        previous.end = removed.end;
        previous.range_tombstones += removed.range_tombstones;
        previous.seqs.extend(&removed.seqs);
        let (before, from) = self.counts.split_at_mut(index * classes);
        for (counts, other) in before[(index - 1) * classes..].iter_mut().zip(&*from) {
            counts.add(other);
        }
        self.counts.drain(index * classes..(index + 1) * classes);
    }
}

/// Maximum share of a file's entries that may get a wrong position when two bins are merged. Sampling alone causes an
/// error of at least this size.
const MISPLACED_SHARE_MAX: f64 = 0.005;

/// Merges neighbouring bins with similar densities. Its buffers are reused for all files.
#[derive(Debug, Default)]
pub(crate) struct BinReducer {
    /// Number of entries and width of each bin.
    bins: Vec<(f64, f64)>,
    /// For each bin, the number of entries that would get a wrong position if the bin were merged with the bin before
    /// it.
    costs: Vec<f64>,
}

impl BinReducer {
    /// Merges bins with the lowest cost first. Stops when at most `bins_max` bins remain and the densities of
    /// neighbours differ.
    pub(crate) fn merge_similar_bins(&mut self, histogram: &mut Histogram, bins_max: usize) {
        self.bins.clear();
        self.bins.extend((0..histogram.bins.len()).map(|index| {
            let width = range_width(histogram.bin_start(index), histogram.bins[index].end);
            (histogram.bin_entries(index), width)
        }));
        self.costs.clear();
        self.costs.extend((0..self.bins.len()).map(|index| merge_cost(&self.bins, index)));
        let entries: f64 = self.bins.iter().map(|(entries, _)| entries).sum();
        while self.bins.len() > 1 {
            let mut cheapest = 1;
            for index in 2..self.costs.len() {
                if self.costs[index] < self.costs[cheapest] {
                    cheapest = index;
                }
            }
            let is_even = self.costs[cheapest] <= MISPLACED_SHARE_MAX * entries;
            if self.bins.len() <= bins_max && !is_even {
                return;
            }
            histogram.merge_with_previous(cheapest);
            let removed = self.bins.remove(cheapest);
            self.costs.remove(cheapest);
            self.bins[cheapest - 1].0 += removed.0;
            self.bins[cheapest - 1].1 += removed.1;
            for index in [cheapest - 1, cheapest] {
                if index < self.costs.len() {
                    self.costs[index] = merge_cost(&self.bins, index);
                }
            }
        }
    }
}

/// Returns the number of entries that get a wrong position if a bin is merged with the bin before it.
fn merge_cost(bins: &[(f64, f64)], index: usize) -> f64 {
    let Some(previous) = index.checked_sub(1) else { return f64::INFINITY };
    let ((left, left_width), (right, right_width)) = (bins[previous], bins[index]);
    let even = (left + right) * left_width / (left_width + right_width);
    (left - even).abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bin(end: u64) -> HistogramBin {
        HistogramBin { end, range_tombstones: 1.0, seqs: SeqRange { smallest: end, largest: end } }
    }

    fn inserted(inserted: f64) -> EntryCounts {
        EntryCounts { inserted, ..EntryCounts::default() }
    }

    #[test]
    fn reduce_merges_similar_neighbours_first_and_keeps_counts() {
        let entries = |file: &Histogram| file.counts.iter().map(EntryCounts::entries).sum::<f64>();
        let mut file = Histogram::with_start(0);
        for (end, count) in [(99, 10.0), (199, 11.0), (299, 90.0), (399, 88.0), (499, 0.0)] {
            file.push(bin(end), &[inserted(count), inserted(1.0)]);
        }
        let before = entries(&file);
        BinReducer::default().merge_similar_bins(&mut file, 3);
        let ends: Vec<u64> = file.bins.iter().map(|bin| bin.end).collect();
        assert_eq!(ends, [199, 399, 499]);
        assert!((entries(&file) - before).abs() < 1e-9);
        assert_eq!(file.bin_counts(1), [inserted(178.0), inserted(2.0)]);
        assert_eq!(file.bins[1].seqs, SeqRange { smallest: 299, largest: 399 });
        assert!((file.bins[0].range_tombstones - 2.0).abs() < 1e-9);
        BinReducer::default().merge_similar_bins(&mut file, 0);
        assert_eq!((file.bins.len(), file.end_position()), (1, 499));
    }
}

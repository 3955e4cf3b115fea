//! Iterator over one input run of a merge.

use crate::entry_counts::EntryCounts;
use crate::histogram::{Histogram, HistogramBin};
use crate::position::range_width;
use crate::sampler::Sampler;

/// One input run of a merge: its files in key order, read from front to back.
#[derive(Debug)]
pub(crate) struct MergeInput<'a> {
    files: Vec<&'a Histogram>,
    is_memtable: bool,
    file_index: usize,
    bin_index: usize,
    /// Part of the current bin that was not read yet. `None` at the end of the input.
    bin: Option<HistogramBin>,
    /// First position that was not read yet.
    position: u64,
    /// Entry counts of the unread part of the bin, by popularity class.
    counts: Vec<EntryCounts>,
    /// First and last position of the current file. Keys are known to be at both positions. `None` for memtables, whose
    /// smallest and largest keys are not known.
    file_range: Option<(u64, u64)>,
}

impl<'a> MergeInput<'a> {
    pub(crate) fn new(files: Vec<&'a Histogram>) -> MergeInput<'a> {
        MergeInput::with_files(files, false)
    }

    /// Returns the input for a part of a memtable.
    pub(crate) fn from_memtable(writes: &'a Histogram) -> MergeInput<'a> {
        MergeInput::with_files(vec![writes], true)
    }

    fn with_files(files: Vec<&'a Histogram>, is_memtable: bool) -> MergeInput<'a> {
        let mut input = MergeInput {
            files,
            is_memtable,
            file_index: 0,
            bin_index: 0,
            bin: None,
            position: 0,
            counts: Vec::new(),
            file_range: None,
        };
        input.load_bin();
        input
    }

    fn load_bin(&mut self) {
        let Some(file) = self.files.get(self.file_index) else {
            self.bin = None;
            return;
        };
        self.bin = Some(file.bins[self.bin_index]);
        self.position = file.bin_start(self.bin_index);
        self.counts.clear();
        self.counts.extend_from_slice(file.bin_counts(self.bin_index));
        self.file_range = (!self.is_memtable).then(|| (file.start, file.end_position()));
    }

    /// Returns the first unread position, or `None` at the end of the input.
    pub(crate) fn position(&self) -> Option<u64> {
        self.bin.as_ref().map(|_| self.position)
    }

    /// Returns the last position up to which the density of the input is the same as at `at`. Returns `None` at the end
    /// of the input.
    pub(crate) fn end_of_constant_density(&self, at: u64) -> Option<u64> {
        let bin = self.bin.as_ref()?;
        Some(if self.position > at { self.position - 1 } else { bin.end })
    }

    /// Returns whether a file starts at `position`. A key is then known to be at this position.
    pub(crate) fn has_file_start_at(&self, position: u64) -> bool {
        self.bin.is_some() && self.file_range.is_some_and(|(start, _)| start == position)
    }

    /// Returns whether the file that is read at position `at` ends at `position`.
    pub(crate) fn has_file_end_at(&self, at: u64, position: u64) -> bool {
        let ends_there = self.file_range.is_some_and(|(_, end)| end == position);
        self.bin.is_some() && self.position <= at && ends_there
    }

    /// Moves the entry counts of `at..=to` into `out`, and returns the bin of this interval.
    ///
    /// The density must be constant in the interval. Returns `None` if the input has no entries there.
    pub(crate) fn take_entries_until(
        &mut self,
        at: u64,
        to: u64,
        sampler: &mut Sampler,
        out: &mut [EntryCounts],
    ) -> Option<HistogramBin> {
        let rest = self.bin.as_mut().filter(|_| self.position <= at)?;
        let mut bin = *rest;
        if bin.end <= to {
            out.copy_from_slice(&self.counts);
            self.bin_index += 1;
            if self.bin_index == self.files[self.file_index].bins.len() {
                self.bin_index = 0;
                self.file_index += 1;
            }
            self.load_bin();
            return Some(bin);
        }
        let share = range_width(at, to) / range_width(at, bin.end);
        let (mut taken, mut left) = (0.0, 0.0);
        for (part, rest) in out.iter_mut().zip(&mut self.counts) {
            let entries = rest.entries();
            let sampled =
                if entries > 0.0 { sampler.binomial(entries, share) / entries } else { share };
            *part = rest.scaled(sampled);
            // A population has many evenly distributed keys, so its sampling error is negligible.
            part.population = rest.population * share;
            rest.subtract(part);
            taken += entries * sampled;
            left += entries * (1.0 - sampled);
        }
        bin.range_tombstones *= share;
        rest.range_tombstones -= bin.range_tombstones;
        bin.seqs = rest.seqs.split_off(taken, left, sampler);
        self.position = to + 1;
        Some(bin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq_range::SeqRange;

    /// Bug: from the second bin on, a memtable had known keys at its first and last position.
    #[test]
    fn memtable_has_no_file_start_and_end_in_any_bin() {
        let mut writes = Histogram::with_start(0);
        for end in [99, 199] {
            let seqs = SeqRange { smallest: 1, largest: 2 };
            writes.push(
                HistogramBin { end, range_tombstones: 0.0, seqs },
                &[EntryCounts { inserted: 10.0, ..EntryCounts::default() }],
            );
        }
        let mut sampler = Sampler::new(1);
        for (mut input, is_file) in
            [(MergeInput::new(vec![&writes]), true), (MergeInput::from_memtable(&writes), false)]
        {
            for at in [0, 100] {
                assert_eq!(input.has_file_start_at(0), is_file, "at {at}");
                assert_eq!(input.has_file_end_at(at, 199), is_file, "at {at}");
                let mut counts = [EntryCounts::default()];
                assert!(input.take_entries_until(at, at + 99, &mut sampler, &mut counts).is_some());
            }
            assert_eq!(input.position(), None);
        }
    }
}

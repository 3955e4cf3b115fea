//! Decides where one output file of a job ends and the next begins.
//!
//! The engine and the simulator use the same splitter, so that simulated trees have the same files. The grandparent
//! level is the level below the target level. A new output begins at a user key in these cases:
//!
//! 1. The current output has reached its target size.
//! 2. The current output would otherwise overlap too many bytes of the grandparent level, and its next merge would be
//!    large.
//! 3. The key is the first key at or after a boundary of the split rule.
//!
//! All versions of a user key are in the same output.

use std::sync::Arc;

use crate::job::SplitRule;
use crate::key_range::Key;
use crate::run::SortedRun;
use crate::shape::TreeShape;

/// Decides at which keys a new output file begins.
#[derive(Clone, Debug)]
pub struct OutputSplitter {
    file_bytes: u64,
    boundaries: Vec<Key>,
    /// Index of the first boundary that no key has reached yet.
    boundary_next: usize,
    grandparents: Vec<GrandparentRun>,
    /// Maximum bytes of the grandparent level that one output may overlap.
    overlap_bytes_max: u64,
    /// Bytes of the grandparent level that the current output overlaps.
    overlapped_bytes: u64,
    /// True if the first output has begun.
    has_begun: bool,
}

/// A run of the grandparent level. The current output overlaps its files `first..next`.
#[derive(Clone, Debug)]
struct GrandparentRun {
    run: Arc<SortedRun>,
    first: usize,
    next: usize,
}

impl OutputSplitter {
    /// Returns a splitter for the outputs of a job or of one of its subcompactions. `shape` is the tree from which the
    /// job was picked.
    #[must_use]
    pub fn new(rule: &SplitRule, shape: &TreeShape) -> Self {
        let (mut grandparents, mut overlap_bytes_max) = (Vec::new(), u64::MAX);
        if let Some((level, bytes_max)) = rule.grandparent {
            overlap_bytes_max = bytes_max;
            let runs = shape.runs_of(level).iter().map(Arc::clone);
            grandparents = runs.map(|run| GrandparentRun { run, first: 0, next: 0 }).collect();
        }
        OutputSplitter {
            file_bytes: rule.file_bytes,
            boundaries: rule.boundaries.clone(),
            boundary_next: 0,
            grandparents,
            overlap_bytes_max,
            overlapped_bytes: 0,
            has_begun: false,
        }
    }

    /// Returns whether a new output begins at `user_key`. `output_bytes` is the current size of the output.
    ///
    /// Must be called once for each user key, in key order, before the first entry of the key is written. Takes
    /// amortized constant time.
    pub fn should_split_before(&mut self, user_key: &[u8], output_bytes: u64) -> bool {
        let passes_boundary = self.skip_boundaries(user_key);
        if !self.has_begun {
            // Many grandparent files may end before the first key. No output overlaps them, so the scan starts after
            // them.
            for grandparent in &mut self.grandparents {
                let first = grandparent.run.files.lower_bound(user_key);
                (grandparent.first, grandparent.next) = (first, first);
            }
        }
        let overlaps_too_much = self.advance_overlap(user_key);
        let is_full = output_bytes >= self.file_bytes;
        let split = self.has_begun && (is_full || passes_boundary || overlaps_too_much);
        if split || !self.has_begun {
            self.has_begun = true;
            self.remove_overlap_before(user_key);
        }
        split
    }

    /// Returns the next key after `after` at which [`should_split_before`] may return true for an output below the
    /// target size. Returns `None` if there is no such key.
    ///
    /// The key is the next boundary, or the key at which the output may exceed its overlap limit. `after` must be at or
    /// after all keys passed to [`should_split_before`]. A boundary equal to `after` is not returned.
    ///
    /// [`should_split_before`]: Self::should_split_before
    #[must_use]
    pub fn next_split_key(&self, after: &[u8]) -> Option<&Key> {
        // With one grandparent run, the file sizes determine the file at which the limit is exceeded. With several
        // runs, the order of their files matters, so the start of the next file is returned.
        let several = self.grandparents.len() > 1;
        let starts = self.grandparents.iter().filter_map(|grandparent| {
            let files = &grandparent.run.files;
            let (from, mut overlapped_bytes) = match self.has_begun {
                true => (grandparent.next, self.overlapped_bytes),
                false => (files.lower_bound(after), 0),
            };
            let next = (from..files.len()).find(|index| {
                overlapped_bytes = overlapped_bytes.saturating_add(files.file_bytes(*index));
                let exceeds = several || overlapped_bytes > self.overlap_bytes_max;
                exceeds && files.is_file_after(*index, after)
            })?;
            Some(&files[next].range.smallest)
        });
        let boundaries = self.boundaries.get(self.boundary_next..).unwrap_or_default();
        let boundary = boundaries.iter().find(|boundary| boundary.as_ref() > after);
        starts.chain(boundary).min()
    }

    /// Advances past all boundaries at or before `key`. Returns whether there were such boundaries.
    fn skip_boundaries(&mut self, key: &[u8]) -> bool {
        let before = self.boundary_next;
        while self.boundaries.get(self.boundary_next).is_some_and(|b| b.as_ref() <= key) {
            self.boundary_next += 1;
        }
        self.boundary_next > before
    }

    /// Adds the grandparent files that begin at or before `key` to the overlap. Returns whether files were added and
    /// the overlap now exceeds its limit.
    ///
    /// Keys in the same grandparent file never cause a split, even if the file is large.
    fn advance_overlap(&mut self, key: &[u8]) -> bool {
        let mut extended = false;
        for grandparent in &mut self.grandparents {
            let files = &grandparent.run.files;
            while grandparent.next < files.len() && !files.is_file_after(grandparent.next, key) {
                self.overlapped_bytes += files.file_bytes(grandparent.next);
                grandparent.next += 1;
                extended = true;
            }
        }
        extended && self.overlapped_bytes > self.overlap_bytes_max
    }

    /// Removes the grandparent files that end before `key` from the overlap.
    fn remove_overlap_before(&mut self, key: &[u8]) {
        for GrandparentRun { run, first, next } in &mut self.grandparents {
            while *first < *next && run.files.is_file_before(*first, key) {
                self.overlapped_bytes -= run.files.file_bytes(*first);
                *first += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{FileId, Level, RunId};
    use crate::key_range::KeyRange;
    use crate::rng::TestRng;
    use crate::shape::LevelShape;
    use crate::table_meta::TableMeta;

    /// Returns a tree whose L2 has files of 10 bytes with these ranges.
    fn grandparents(ranges: &[(&'static str, &'static str)]) -> TreeShape {
        let file = |(id, &(smallest, largest)): (u64, &(&'static str, &'static str))| {
            let range = KeyRange::new(smallest, largest);
            Arc::new(TableMeta { bytes: 10, entries: 1, ..TableMeta::new(FileId(id), range) })
        };
        let run = SortedRun { id: RunId(0), files: (0..).zip(ranges).map(file).collect() };
        let mut levels = Vec::new();
        levels.resize_with(2, Arc::<LevelShape>::default);
        levels.push(Arc::new(LevelShape { runs: vec![Arc::new(run)], cursor: None }));
        TreeShape { levels, ..TreeShape::default() }
    }

    /// Splits keys of one byte each. Returns the outputs as words.
    fn split(rule: &SplitRule, shape: &TreeShape, keys: &str) -> String {
        let mut splitter = OutputSplitter::new(rule, shape);
        let (mut text, mut bytes) = (String::new(), 0);
        for key in keys.chars() {
            if splitter.should_split_before(key.to_string().as_bytes(), bytes) {
                text.push(' ');
                bytes = 0;
            }
            text.push(key);
            bytes += 1;
        }
        text
    }

    fn rule(file_bytes: u64, overlap_bytes_max: Option<u64>) -> SplitRule {
        let grandparent = overlap_bytes_max.map(|bytes| (Level(2), bytes));
        SplitRule { file_bytes, grandparent, boundaries: Vec::new() }
    }

    #[test]
    fn output_ends_at_target_size() {
        let shape = TreeShape::default();
        assert_eq!(split(&rule(3, None), &shape, "abcdefgh"), "abc def gh");
        assert_eq!(split(&rule(u64::MAX, None), &shape, "abcdefgh"), "abcdefgh");
    }

    #[test]
    fn output_ends_before_it_overlaps_too_many_grandparents() {
        let shape = grandparents(&[("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")]);
        assert_eq!(split(&rule(99, Some(20)), &shape, "abcdefghi"), "abcd efghi");
        assert_eq!(split(&rule(99, Some(10)), &shape, "acegi"), "a c e gi");
        // The skipped file is overlapped too.
        assert_eq!(split(&rule(99, Some(20)), &shape, "aeg"), "a eg");
        // Files before the first key are not overlapped.
        assert_eq!(split(&rule(99, Some(20)), &shape, "eg"), "eg");
    }

    #[test]
    fn grandparent_larger_than_limit_splits_once() {
        let shape = grandparents(&[("a", "m"), ("n", "z")]);
        assert_eq!(split(&rule(99, Some(5)), &shape, "abcdnopq"), "abcd nopq");
    }

    #[test]
    fn boundary_without_equal_key_splits_at_next_key() {
        let mut rule = rule(99, None);
        rule.boundaries = ["a", "c", "ca", "e"].map(Key::from).to_vec();
        assert_eq!(split(&rule, &TreeShape::default(), "abcdf"), "ab c d f");
    }

    #[test]
    fn next_split_key_is_next_boundary_or_exceeding_grandparent() {
        let shape = grandparents(&[("b", "c"), ("e", "f"), ("h", "i")]);
        let mut rule = rule(99, Some(20));
        rule.boundaries = ["d"].map(Key::from).to_vec();
        let mut splitter = OutputSplitter::new(&rule, &shape);
        let mut seen = Vec::new();
        for key in ["a", "c", "d", "g", "h", "z"] {
            // Regression: if a call was made at a boundary, the same boundary was returned again instead of the next
            // boundary. Simulated jobs then ended an output at the first boundary only.
            let next = splitter.next_split_key(key.as_bytes()).cloned();
            splitter.should_split_before(key.as_bytes(), 0);
            seen.push(next);
        }
        let expected = [Some("d"), Some("d"), Some("h"), None, None, None];
        assert_eq!(seen, expected.map(|key| key.map(Key::from)));
    }

    /// The simulator calls the splitter only at keys where the result may change.
    #[test]
    fn next_split_key_calls_at_changes_only_give_same_splits() {
        let mut rng = TestRng::new(1);
        let mut below = |end: u64| rng.below(end);
        let key = |position: u64| Key::from(position.to_be_bytes().to_vec());
        for round in 0..300 {
            let mut levels = Vec::new();
            levels.resize_with(2, Arc::<LevelShape>::default);
            let runs = (0..1 + round % 2).map(|run| {
                let (mut files, mut at) = (Vec::new(), below(20));
                while at < 1000 {
                    let to = at + below(30);
                    let range = KeyRange::new(key(at), key(to));
                    let file = TableMeta::new(FileId(at), range);
                    files.push(Arc::new(TableMeta { bytes: 1 + below(20), ..file }));
                    at = to + 1 + below(10);
                }
                Arc::new(SortedRun { id: RunId(run), files: files.into_iter().collect() })
            });
            levels.push(Arc::new(LevelShape { runs: runs.collect(), cursor: None }));
            let shape = TreeShape { levels, ..TreeShape::default() };
            let mut rule = rule(40 + below(200), Some(below(150)));
            let boundaries: std::collections::BTreeSet<u64> =
                (0..below(4)).map(|_| below(1000)).collect();
            rule.boundaries = boundaries.into_iter().map(key).collect();
            let (mut every, mut selective) =
                (OutputSplitter::new(&rule, &shape), OutputSplitter::new(&rule, &shape));
            let (mut position, mut bytes) = (below(100), 0);
            let mut change: Option<Key> = None;
            let mut first = true;
            while position < 1000 {
                let here = key(position);
                let may_split = first
                    || bytes >= rule.file_bytes
                    || change.as_ref() == Some(&here)
                    || { change.as_ref().is_some_and(|change| *change < here) };
                let expected = every.should_split_before(&here, bytes);
                let found = may_split && selective.should_split_before(&here, bytes);
                assert_eq!(found, expected, "round {round}, position {position}");
                if may_split {
                    change = selective.next_split_key(&here).cloned();
                }
                bytes = if expected { 1 } else { bytes + 1 };
                first = false;
                position += 1 + below(3);
            }
        }
    }

    #[test]
    fn several_grandparent_runs_are_summed() {
        let mut shape = grandparents(&[("a", "c"), ("d", "f")]);
        let level = Arc::make_mut(&mut shape.levels[2]);
        level.runs.push(Arc::clone(&level.runs[0]));
        assert_eq!(split(&rule(99, Some(20)), &shape, "abcdef"), "abc def");
    }
}

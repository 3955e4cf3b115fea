//! Where outputs of a job end.
//!
//! Engine and simulator ask the same cutter before each new user key, so a simulated tree has the
//! files that the real one would have. An output ends
//!
//! 1. once it has its target size,
//! 2. before a key that would make it overlap more bytes of the grandparent level than the rule
//!    allows: a file that overlaps much would make its own next merge a large one,
//! 3. before a given boundary.
//!
//! The cutter sees whole user keys only, so all versions of a key stay in one file.

use std::sync::Arc;

use crate::{CutRule, Key, RunShape, TreeShape};

/// Decides where one output ends and the next begins.
#[derive(Clone, Debug)]
pub struct OutputCutter {
    file_bytes: u64,
    boundaries: Vec<Key>,
    boundary_next: usize,
    grandparents: Vec<Grandparents>,
    /// Bytes of the grandparent level that one output may overlap.
    overlap_bytes_max: u64,
    overlapped_bytes: u64,
    begun: bool,
}

/// A run of the grandparent level.
#[derive(Clone, Debug)]
struct Grandparents {
    run: Arc<RunShape>,
    /// Files that the current output overlaps: from this one on,
    first: usize,
    /// up to the one before this.
    next: usize,
}

impl OutputCutter {
    /// Returns a cutter at the start of a job's outputs, or of one part of its key range. `shape`
    /// is the tree that the job was picked from. Constant time in the files of the tree.
    #[must_use]
    pub fn new(rule: &CutRule, shape: &TreeShape) -> Self {
        let (mut grandparents, mut overlap_bytes_max) = (Vec::new(), u64::MAX);
        if let Some((level, bytes_max)) = rule.grandparent {
            overlap_bytes_max = bytes_max;
            let runs = shape.runs_of(level).iter();
            grandparents =
                runs.map(|run| Grandparents { run: Arc::clone(run), first: 0, next: 0 }).collect();
        }
        OutputCutter {
            file_bytes: rule.file_bytes,
            boundaries: rule.boundaries.clone(),
            boundary_next: 0,
            grandparents,
            overlap_bytes_max,
            overlapped_bytes: 0,
            begun: false,
        }
    }

    /// Returns whether the current output ends before `user_key`, so that the key begins the next.
    ///
    /// To be asked once for each new user key, in key order, before its first entry is written;
    /// `output_bytes` is what the current output holds so far. Amortised constant time.
    pub fn cut_before(&mut self, user_key: &[u8], output_bytes: u64) -> bool {
        let crosses_boundary = self.pass_boundaries(user_key);
        if !self.begun {
            // What ends before the first key is never overlapped; there may be much of it.
            for grandparents in &mut self.grandparents {
                let first = grandparents.run.files.reaching(user_key);
                (grandparents.first, grandparents.next) = (first, first);
            }
        }
        let reaches_too_far = self.pass_grandparents(user_key);
        let cut =
            self.begun && (output_bytes >= self.file_bytes || crosses_boundary || reaches_too_far);
        if cut || !self.begun {
            self.begun = true;
            self.forget_grandparents_before(user_key);
        }
        cut
    }

    /// A key past `after` up to which the answer stays what it was unless the output grows: where a
    /// boundary lies, or where the output would overlap too much of the grandparent level. For who asks
    /// about ranges of keys instead of every key; `None` if there is none.
    ///
    /// `after` is at or past every key that was asked about. It may stand on such a place that was not
    /// asked about yet: then the one behind that is what counts.
    #[must_use]
    pub fn next_change(&self, after: &[u8]) -> Option<&Key> {
        // Files of one run are taken in one by one, so where they become too many can be told ahead; of
        // several runs any file may be the one.
        let several = self.grandparents.len() > 1;
        let starts = self.grandparents.iter().filter_map(|grandparents| {
            let files = &grandparents.run.files;
            // There may be many before the first output.
            let from = if self.begun { grandparents.next } else { files.reaching(after) };
            let mut overlapped_bytes = if self.begun { self.overlapped_bytes } else { 0 };
            let next = (from..files.len()).find(|index| {
                overlapped_bytes = overlapped_bytes.saturating_add(files.bytes_at(*index));
                let too_many = several || overlapped_bytes > self.overlap_bytes_max;
                too_many && files.starts_past(*index, after)
            })?;
            Some(&files[next].range.smallest)
        });
        let boundaries = self.boundaries.get(self.boundary_next..).unwrap_or_default();
        let boundary = boundaries.iter().find(|boundary| boundary.as_ref() > after);
        starts.chain(boundary).min()
    }

    fn pass_boundaries(&mut self, key: &[u8]) -> bool {
        let before = self.boundary_next;
        while self.boundaries.get(self.boundary_next).is_some_and(|b| b.as_ref() <= key) {
            self.boundary_next += 1;
        }
        self.boundary_next > before
    }

    /// Takes in the grandparents that the output reaches with `key`; returns whether these make
    /// them too many. A key that reaches no further one never cuts, however large the one it is in.
    fn pass_grandparents(&mut self, key: &[u8]) -> bool {
        let mut reached = false;
        for grandparents in &mut self.grandparents {
            let files = &grandparents.run.files;
            while grandparents.next < files.len() && !files.starts_past(grandparents.next, key) {
                self.overlapped_bytes += files.bytes_at(grandparents.next);
                grandparents.next += 1;
                reached = true;
            }
        }
        reached && self.overlapped_bytes > self.overlap_bytes_max
    }

    /// Keeps the grandparents that an output beginning with `key` overlaps from the start.
    fn forget_grandparents_before(&mut self, key: &[u8]) {
        for Grandparents { run, first, next } in &mut self.grandparents {
            while *first < *next && run.files.ends_before(*first, key) {
                self.overlapped_bytes -= run.files.bytes_at(*first);
                *first += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileId, FileShape, KeyRange, Level, LevelShape, RunId};

    /// A tree whose L2 holds files of 10 bytes with these ranges.
    fn grandparents(ranges: &[(&'static str, &'static str)]) -> TreeShape {
        let file = |(id, &(smallest, largest)): (u64, &(&'static str, &'static str))| {
            let range = KeyRange::new(smallest, largest);
            Arc::new(FileShape { bytes: 10, entries: 1, ..FileShape::new(FileId(id), range) })
        };
        let run = RunShape { id: RunId(0), files: (0..).zip(ranges).map(file).collect() };
        let mut levels = Vec::new();
        levels.resize_with(2, Arc::<LevelShape>::default);
        levels.push(Arc::new(LevelShape { runs: vec![Arc::new(run)], cursor: None }));
        TreeShape { levels, ..TreeShape::default() }
    }

    /// Plays keys of one byte each; returns the outputs as words.
    fn cut(rule: &CutRule, shape: &TreeShape, keys: &str) -> String {
        let mut cutter = OutputCutter::new(rule, shape);
        let (mut text, mut bytes) = (String::new(), 0);
        for key in keys.chars() {
            if cutter.cut_before(key.to_string().as_bytes(), bytes) {
                text.push(' ');
                bytes = 0;
            }
            text.push(key);
            bytes += 1;
        }
        text
    }

    fn rule(file_bytes: u64, overlap_bytes_max: Option<u64>) -> CutRule {
        let grandparent = overlap_bytes_max.map(|bytes| (Level(2), bytes));
        CutRule { file_bytes, grandparent, boundaries: Vec::new() }
    }

    #[test]
    fn an_output_ends_at_its_target_size() {
        let shape = TreeShape::default();
        assert_eq!(cut(&rule(3, None), &shape, "abcdefgh"), "abc def gh");
        assert_eq!(cut(&rule(u64::MAX, None), &shape, "abcdefgh"), "abcdefgh");
    }

    #[test]
    fn an_output_ends_before_it_overlaps_too_much() {
        let shape = grandparents(&[("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")]);
        assert_eq!(cut(&rule(99, Some(20)), &shape, "abcdefghi"), "abcd efghi");
        assert_eq!(cut(&rule(99, Some(10)), &shape, "acegi"), "a c e gi");
        // The skipped file in between is overlapped as well.
        assert_eq!(cut(&rule(99, Some(20)), &shape, "aeg"), "a eg");
        // Files before the first key are not.
        assert_eq!(cut(&rule(99, Some(20)), &shape, "eg"), "eg");
    }

    #[test]
    fn one_grandparent_larger_than_the_limit_does_not_cut_at_every_key() {
        let shape = grandparents(&[("a", "m"), ("n", "z")]);
        assert_eq!(cut(&rule(99, Some(5)), &shape, "abcdnopq"), "abcd nopq");
    }

    #[test]
    fn boundaries_cut_even_where_no_key_stands_on_them() {
        let mut rule = rule(99, None);
        rule.boundaries = ["a", "c", "ca", "e"].map(Key::from).to_vec();
        assert_eq!(cut(&rule, &TreeShape::default(), "abcdf"), "ab c d f");
    }

    #[test]
    fn the_next_change_is_the_next_boundary_or_one_grandparent_too_many() {
        let shape = grandparents(&[("b", "c"), ("e", "f"), ("h", "i")]);
        let mut rule = rule(99, Some(20));
        rule.boundaries = ["d"].map(Key::from).to_vec();
        let mut cutter = OutputCutter::new(&rule, &shape);
        let mut seen = Vec::new();
        for key in ["a", "c", "d", "g", "h", "z"] {
            // Simulated outputs once ran on past all boundaries but the first: who stood on one was
            // told of that one again, and of none behind it.
            let next = cutter.next_change(key.as_bytes()).cloned();
            cutter.cut_before(key.as_bytes(), 0);
            seen.push(next);
        }
        let expected = [Some("d"), Some("d"), Some("h"), None, None, None];
        assert_eq!(seen, expected.map(|key| key.map(Key::from)));
    }

    /// As the simulator asks: not about each key, but where the answer may have changed.
    #[test]
    fn who_asks_at_changes_only_is_told_the_same_as_who_asks_about_each_key() {
        let mut state = 1_u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % n
        };
        let key = |place: u64| Key::from(place.to_be_bytes().to_vec());
        for round in 0..300 {
            let mut levels = Vec::new();
            levels.resize_with(2, Arc::<LevelShape>::default);
            let runs = (0..1 + round % 2).map(|run| {
                let (mut files, mut at) = (Vec::new(), below(20));
                while at < 1000 {
                    let to = at + below(30);
                    let range = KeyRange::new(key(at), key(to));
                    let file = FileShape::new(FileId(at), range);
                    files.push(Arc::new(FileShape { bytes: 1 + below(20), ..file }));
                    at = to + 1 + below(10);
                }
                Arc::new(RunShape { id: RunId(run), files: files.into_iter().collect() })
            });
            levels.push(Arc::new(LevelShape { runs: runs.collect(), cursor: None }));
            let shape = TreeShape { levels, ..TreeShape::default() };
            let mut rule = rule(40 + below(200), Some(below(150)));
            let boundaries: std::collections::BTreeSet<u64> =
                (0..below(4)).map(|_| below(1000)).collect();
            rule.boundaries = boundaries.into_iter().map(key).collect();
            let (mut each, mut seldom) =
                (OutputCutter::new(&rule, &shape), OutputCutter::new(&rule, &shape));
            let (mut place, mut bytes) = (below(100), 0);
            let mut change: Option<Key> = None;
            let mut first = true;
            while place < 1000 {
                let here = key(place);
                let may = first || bytes >= rule.file_bytes || change.as_ref() == Some(&here) || {
                    change.as_ref().is_some_and(|change| *change < here)
                };
                let expected = each.cut_before(&here, bytes);
                let cut = may && seldom.cut_before(&here, bytes);
                assert_eq!(cut, expected, "round {round}, place {place}");
                if may {
                    change = seldom.next_change(&here).cloned();
                }
                bytes = if expected { 1 } else { bytes + 1 };
                first = false;
                place += 1 + below(3);
            }
        }
    }

    #[test]
    fn several_runs_of_grandparents_count_together() {
        let mut shape = grandparents(&[("a", "c"), ("d", "f")]);
        let level = Arc::make_mut(&mut shape.levels[2]);
        level.runs.push(Arc::clone(&level.runs[0]));
        assert_eq!(cut(&rule(99, Some(20)), &shape, "abcdef"), "abc def");
    }
}

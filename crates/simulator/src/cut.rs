//! Where outputs of a simulated merge end: what the engine's splitter says, asked only where its answer
//! may have changed.

use lsmx_compaction::{OutputSplitter, SplitRule, TreeShape};

use crate::body::place_of;
use crate::numbers::{real, whole};

/// Where outputs are cut.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    /// None where nothing is cut.
    splitter: Option<OutputSplitter>,
    pub(super) file_bytes: f64,
    rule: Option<(&'a SplitRule, &'a TreeShape)>,
    /// The last places of the parts that are still to come, the next one last.
    part_ends: Vec<u64>,
    /// The next place where the answer may change by itself.
    next_split_key: u64,
    /// Whether one was passed since the splitter was asked.
    passed: bool,
}

impl<'a> Cut<'a> {
    /// As a job says, in parts that end at these places.
    pub(super) fn by(
        rule: &'a SplitRule,
        shape: &'a TreeShape,
        mut part_ends: Vec<u64>,
    ) -> Cut<'a> {
        part_ends.reverse();
        Cut {
            splitter: Some(OutputSplitter::new(rule, shape)),
            file_bytes: real(rule.file_bytes),
            rule: Some((rule, shape)),
            part_ends,
            next_split_key: 0,
            passed: true,
        }
    }

    /// Not at all.
    pub(super) fn never() -> Cut<'a> {
        Cut {
            splitter: None,
            file_bytes: f64::INFINITY,
            rule: None,
            part_ends: Vec::new(),
            next_split_key: u64::MAX,
            passed: false,
        }
    }

    /// The last place up to which the answer stays as it is at `at`, which never goes back.
    pub(super) fn until(&mut self, at: u64) -> u64 {
        if at >= self.next_split_key {
            let splitter = self.splitter.as_ref();
            let next = splitter.and_then(|splitter| splitter.next_split_key(&at.to_be_bytes()));
            self.next_split_key = next.map_or(u64::MAX, |key| place_of(key));
            self.passed = true;
        }
        let part = self.part_ends.last().copied().unwrap_or(u64::MAX);
        let before =
            if self.next_split_key == u64::MAX { u64::MAX } else { self.next_split_key - 1 };
        before.max(at).min(part)
    }

    /// Whether the output at hand, of so many bytes, ends before a place. No change lies between that
    /// and where [`Cut::until`] was asked last.
    pub(super) fn before(&mut self, place: u64, written: f64) -> bool {
        let Some(splitter) = self.splitter.as_mut() else { return false };
        if !self.passed && written < self.file_bytes {
            return false;
        }
        self.passed = false;
        splitter.should_split_before(&place.to_be_bytes(), whole(written))
    }

    /// Returns whether a part ends with this place; the next one begins with a splitter of its own.
    pub(super) fn part_ends(&mut self, place: u64) -> bool {
        let mut ends = false;
        // Of few places several parts may end with one.
        while self.part_ends.last().is_some_and(|end| *end <= place) {
            self.part_ends.pop();
            ends = true;
        }
        if !ends {
            return false;
        }
        self.splitter = self.rule.map(|(rule, shape)| OutputSplitter::new(rule, shape));
        (self.next_split_key, self.passed) = (0, true);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsmx_compaction::Key;

    fn rule(boundaries: &[u64]) -> SplitRule {
        let keys = boundaries.iter().map(|place| Key::copy_from_slice(&place.to_be_bytes()));
        SplitRule { file_bytes: u64::MAX, grandparent: None, boundaries: keys.collect() }
    }

    #[test]
    fn an_output_ends_at_each_boundary() {
        let (rule, shape) = (rule(&[10, 20]), TreeShape::default());
        let mut cut = Cut::by(&rule, &shape, Vec::new());
        let mut seen = Vec::new();
        for at in [0, 4, 10, 15, 20, 25] {
            seen.push((cut.until(at), cut.before(at, 1.0)));
        }
        let end = u64::MAX;
        let expected = [(9, false), (9, false), (19, true), (19, false), (end, true), (end, false)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_part_ends_once_however_many_end_there() {
        let (rule, shape) = (rule(&[]), TreeShape::default());
        let mut cut = Cut::by(&rule, &shape, vec![5, 5, 9]);
        assert_eq!((cut.until(0), cut.part_ends(4), cut.part_ends(5)), (5, false, true));
        assert_eq!((cut.until(6), cut.part_ends(9)), (9, true));
        assert_eq!(cut.until(10), u64::MAX);
    }
}

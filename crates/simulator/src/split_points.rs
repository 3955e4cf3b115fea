//! Positions at which a simulated merge ends its outputs.
//!
//! The engine calls its `OutputSplitter` for each key. The simulator calls it only at positions where the result may
//! have changed.

use lsmx_compaction::{OutputSplitter, SplitRule, TreeShape};

use crate::math::{round_to_u64, to_f64};
use crate::position::position_of_key;

/// Positions at which the outputs and subcompactions of one job end.
#[derive(Debug)]
pub(crate) struct SplitPoints<'a> {
    /// `None` if outputs are never split.
    splitter: Option<OutputSplitter>,
    /// Target bytes of an output.
    pub(crate) file_bytes: f64,
    rule: Option<(&'a SplitRule, &'a TreeShape)>,
    /// Last positions of the remaining subcompactions, in descending order.
    subcompaction_ends: Vec<u64>,
    /// Next position at which the splitter may end an output that is below the target size.
    next_split: u64,
    /// True if the merge has reached [`next_split`](Self::next_split) since the last call of the splitter.
    split_passed: bool,
}

impl<'a> SplitPoints<'a> {
    /// Returns the split points of a job. `subcompaction_ends` are the last positions of its subcompactions, in key
    /// order.
    pub(crate) fn new(
        rule: &'a SplitRule,
        shape: &'a TreeShape,
        mut subcompaction_ends: Vec<u64>,
    ) -> SplitPoints<'a> {
        subcompaction_ends.reverse();
        SplitPoints {
            splitter: Some(OutputSplitter::new(rule, shape)),
            file_bytes: to_f64(rule.file_bytes),
            rule: Some((rule, shape)),
            subcompaction_ends,
            next_split: 0,
            split_passed: true,
        }
    }

    /// Returns split points for a job with a single output, such as a flush.
    pub(crate) fn without_splits() -> SplitPoints<'a> {
        SplitPoints {
            splitter: None,
            file_bytes: f64::INFINITY,
            rule: None,
            subcompaction_ends: Vec::new(),
            next_split: u64::MAX,
            split_passed: false,
        }
    }

    /// Returns the last position up to which only the size of the output determines whether it ends.
    ///
    /// `at` must not decrease from call to call.
    pub(crate) fn end_of_constant_split(&mut self, at: u64) -> u64 {
        if at >= self.next_split {
            let splitter = self.splitter.as_ref();
            let next = splitter.and_then(|splitter| splitter.next_split_key(&at.to_be_bytes()));
            self.next_split = next.map_or(u64::MAX, |key| position_of_key(key));
            self.split_passed = true;
        }
        let subcompaction_end = self.subcompaction_ends.last().copied().unwrap_or(u64::MAX);
        let before = if self.next_split == u64::MAX { u64::MAX } else { self.next_split - 1 };
        before.max(at).min(subcompaction_end)
    }

    /// Returns whether the current output, which has `written` bytes, ends before `position`.
    ///
    /// `position` must be at or before the result of the last call of
    /// [`end_of_constant_split`](Self::end_of_constant_split).
    pub(crate) fn should_split_before_position(&mut self, position: u64, written: f64) -> bool {
        let Some(splitter) = self.splitter.as_mut() else { return false };
        if !self.split_passed && written < self.file_bytes {
            return false;
        }
        self.split_passed = false;
        splitter.should_split_before(&position.to_be_bytes(), round_to_u64(written))
    }

    /// Returns whether a subcompaction ends at `position`. The next subcompaction starts with a new splitter.
    pub(crate) fn pass_subcompaction_end(&mut self, position: u64) -> bool {
        let mut ends = false;
        // Several subcompactions may end at the same position if the range has few positions.
        while self.subcompaction_ends.last().is_some_and(|end| *end <= position) {
            self.subcompaction_ends.pop();
            ends = true;
        }
        if !ends {
            return false;
        }
        self.splitter = self.rule.map(|(rule, shape)| OutputSplitter::new(rule, shape));
        (self.next_split, self.split_passed) = (0, true);
        true
    }
}

#[cfg(test)]
mod tests {
    use lsmx_compaction::Key;

    use super::*;

    fn rule(boundaries: &[u64]) -> SplitRule {
        let keys = boundaries.iter().map(|position| Key::copy_from_slice(&position.to_be_bytes()));
        SplitRule { file_bytes: u64::MAX, grandparent: None, boundaries: keys.collect() }
    }

    #[test]
    fn split_before_boundary_ends_output() {
        let (rule, shape) = (rule(&[10, 20]), TreeShape::default());
        let mut splits = SplitPoints::new(&rule, &shape, Vec::new());
        let mut found = Vec::new();
        for at in [0, 4, 10, 15, 20, 25] {
            found.push((
                splits.end_of_constant_split(at),
                splits.should_split_before_position(at, 1.0),
            ));
        }
        let end = u64::MAX;
        let expected = [(9, false), (9, false), (19, true), (19, false), (end, true), (end, false)];
        assert_eq!(found, expected);
    }

    #[test]
    fn end_subcompaction_with_equal_ends_ends_once() {
        let (rule, shape) = (rule(&[]), TreeShape::default());
        let mut splits = SplitPoints::new(&rule, &shape, vec![5, 5, 9]);
        let first = (
            splits.end_of_constant_split(0),
            splits.pass_subcompaction_end(4),
            splits.pass_subcompaction_end(5),
        );
        assert_eq!(first, (5, false, true));
        assert_eq!((splits.end_of_constant_split(6), splits.pass_subcompaction_end(9)), (9, true));
        assert_eq!(splits.end_of_constant_split(10), u64::MAX);
    }
}

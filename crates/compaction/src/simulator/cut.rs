//! Where outputs of a simulated merge end: what the engine's cutter says, asked only where its answer
//! may have changed.

use crate::{CutRule, OutputCutter, TreeShape};

use super::body::place_of;
use super::numbers::{real, whole};

/// Where outputs are cut.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    /// None where nothing is cut.
    cutter: Option<OutputCutter>,
    pub(super) file_bytes: f64,
    rule: Option<(&'a CutRule, &'a TreeShape)>,
    /// The last places of the parts that are still to come, the next one last.
    part_ends: Vec<u64>,
    /// The next place where the answer may change by itself.
    next_change: u64,
    /// Whether one was passed since the cutter was asked.
    passed: bool,
}

impl<'a> Cut<'a> {
    /// As a job says, in parts that end at these places.
    pub(super) fn by(rule: &'a CutRule, shape: &'a TreeShape, mut part_ends: Vec<u64>) -> Cut<'a> {
        part_ends.reverse();
        Cut {
            cutter: Some(OutputCutter::new(rule, shape)),
            file_bytes: real(rule.file_bytes),
            rule: Some((rule, shape)),
            part_ends,
            next_change: 0,
            passed: true,
        }
    }

    /// Not at all.
    pub(super) fn never() -> Cut<'a> {
        Cut {
            cutter: None,
            file_bytes: f64::INFINITY,
            rule: None,
            part_ends: Vec::new(),
            next_change: u64::MAX,
            passed: false,
        }
    }

    /// The last place up to which the answer stays as it is at `at`, which never goes back.
    pub(super) fn until(&mut self, at: u64) -> u64 {
        if at >= self.next_change {
            let cutter = self.cutter.as_ref();
            let next = cutter.and_then(|cutter| cutter.next_change(&at.to_be_bytes()));
            self.next_change = next.map_or(u64::MAX, |key| place_of(key));
            self.passed = true;
        }
        let part = self.part_ends.last().copied().unwrap_or(u64::MAX);
        let before = if self.next_change == u64::MAX { u64::MAX } else { self.next_change - 1 };
        before.max(at).min(part)
    }

    /// Whether the output at hand, of so many bytes, ends before a place. No change lies between that
    /// and where [`Cut::until`] was asked last.
    pub(super) fn before(&mut self, place: u64, written: f64) -> bool {
        let Some(cutter) = self.cutter.as_mut() else { return false };
        if !self.passed && written < self.file_bytes {
            return false;
        }
        self.passed = false;
        cutter.cut_before(&place.to_be_bytes(), whole(written))
    }

    /// Returns whether a part ends with this place; the next one begins with a cutter of its own.
    pub(super) fn part_ends(&mut self, place: u64) -> bool {
        if self.part_ends.last() != Some(&place) {
            return false;
        }
        self.part_ends.pop();
        self.cutter = self.rule.map(|(rule, shape)| OutputCutter::new(rule, shape));
        (self.next_change, self.passed) = (0, true);
        true
    }
}

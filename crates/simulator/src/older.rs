//! Where something older lies below a merge: there, tombstones are needed.

/// RunFiles of older runs that stay in the tree: where they lie, tombstones are needed.
#[derive(Debug, Default)]
pub(super) struct Older {
    /// Ranges of one run each, in key order, and the next one that counts.
    runs: Vec<(Vec<(u64, u64)>, usize)>,
}

impl Older {
    pub(super) fn add(&mut self, ranges: Vec<(u64, u64)>) {
        self.runs.push((ranges, 0));
    }

    /// Whether one of them may hold keys from `at` on, and the last place up to which that is so.
    pub(super) fn covers(&mut self, at: u64) -> (bool, u64) {
        let (mut covered, mut until) = (false, u64::MAX);
        for (ranges, next) in &mut self.runs {
            while ranges.get(*next).is_some_and(|range| range.1 < at) {
                *next += 1;
            }
            match ranges.get(*next) {
                Some(&(from, _)) if from > at => until = until.min(from - 1),
                Some(&(_, to)) => {
                    covered = true;
                    until = until.min(to);
                }
                None => {}
            }
        }
        (covered, until)
    }
}

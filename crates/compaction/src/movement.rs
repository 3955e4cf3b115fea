//! Primitive 4: which file moves, where a job takes less than all.

use std::cmp::Ordering;

use crate::trigger::compensated_bytes;
use crate::{RunShape, TreeShape};

/// The order in which files of a full level are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// Jobs take all there is; there is nothing to choose.
    All,
    /// The file with the fewest overlapped bytes in the next level per byte of its own. Ties: the
    /// smaller smallest sequence number, then the smaller key.
    ///
    /// Source: Sarkar et al., PVLDB 14 (2021), "LO+1"; the ratio in place of the bytes is RocksDB's.
    LeastOverlap,
}

impl Movement {
    /// Returns the indices of the files of `run`, which stands in `level`, in the order of choice;
    /// `next` is the level that the file would go to.
    #[must_use]
    pub fn order(self, shape: &TreeShape, run: &RunShape, next: crate::Level) -> Vec<usize> {
        let mut order: Vec<usize> = (0..run.files.len()).collect();
        match self {
            Movement::All => {}
            Movement::LeastOverlap => {
                let costs: Vec<_> = run
                    .files
                    .iter()
                    .map(|file| {
                        let overlap = shape.overlap_bytes(next, &file.range);
                        (u128::from(overlap), u128::from(compensated_bytes(file).max(1)))
                    })
                    .collect();
                order.sort_by(|&a, &b| {
                    compare_ratios(costs[a], costs[b])
                        .then(run.files[a].seq_smallest.cmp(&run.files[b].seq_smallest))
                        .then(a.cmp(&b))
                });
            }
        }
        order
    }
}

/// Compares `a.0 / a.1` with `b.0 / b.1`, exactly.
fn compare_ratios(a: (u128, u128), b: (u128, u128)) -> Ordering {
    (a.0 * b.1).cmp(&(b.0 * a.1))
}

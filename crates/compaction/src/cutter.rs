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

use crate::{CutRule, FileShape, Key, TreeShape};

/// Decides where one output ends and the next begins.
#[derive(Clone, Debug)]
pub struct OutputCutter {
    file_bytes: u64,
    boundaries: Vec<Key>,
    boundary_next: usize,
    /// Files of the grandparent level by smallest key, and the bytes that one output may overlap.
    grandparents: Vec<Arc<FileShape>>,
    grandparent_next: usize,
    overlap_bytes_max: u64,
    /// Indices of grandparents that the current output overlaps, and their bytes.
    overlapped: Vec<usize>,
    overlapped_bytes: u64,
    begun: bool,
}

impl OutputCutter {
    /// Returns a cutter at the start of a job's outputs, or of one part of its key range. `shape`
    /// is the tree that the job was picked from.
    #[must_use]
    pub fn new(rule: &CutRule, shape: &TreeShape) -> Self {
        let (mut grandparents, mut overlap_bytes_max) = (Vec::new(), u64::MAX);
        if let Some((level, bytes_max)) = rule.grandparent {
            overlap_bytes_max = bytes_max;
            grandparents.extend(shape.level(level).into_iter().flat_map(|l| l.files().cloned()));
            grandparents.sort_by(|a, b| a.range.smallest.cmp(&b.range.smallest));
        }
        OutputCutter {
            file_bytes: rule.file_bytes,
            boundaries: rule.boundaries.clone(),
            boundary_next: 0,
            grandparents,
            grandparent_next: 0,
            overlap_bytes_max,
            overlapped: Vec::new(),
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
        let reaches_too_far = self.pass_grandparents(user_key);
        let cut =
            self.begun && (output_bytes >= self.file_bytes || crosses_boundary || reaches_too_far);
        if cut {
            self.forget_grandparents_before(user_key);
        } else if !self.begun {
            self.begun = true;
            self.forget_grandparents_before(user_key);
        }
        cut
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
        let before = self.grandparent_next;
        while let Some(file) = self.grandparents.get(self.grandparent_next) {
            if file.range.smallest.as_ref() > key {
                break;
            }
            self.overlapped.push(self.grandparent_next);
            self.overlapped_bytes += file.bytes;
            self.grandparent_next += 1;
        }
        self.grandparent_next > before && self.overlapped_bytes > self.overlap_bytes_max
    }

    /// Keeps the grandparents that an output beginning with `key` overlaps from the start.
    fn forget_grandparents_before(&mut self, key: &[u8]) {
        let files = &self.grandparents;
        self.overlapped.retain(|&index| files[index].range.largest.as_ref() >= key);
        self.overlapped_bytes = self.overlapped.iter().map(|&index| files[index].bytes).sum();
    }
}

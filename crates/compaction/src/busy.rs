//! What running jobs hold.

use std::collections::HashSet;

use crate::{FileId, Job};

/// Files that running jobs hold, with the jobs themselves.
#[derive(Clone, Debug, Default)]
pub struct BusyFiles {
    /// Inputs of running jobs.
    pub files: HashSet<FileId>,
    /// Running jobs, with the bytes that each has still to write.
    pub jobs: Vec<(Job, u64)>,
}

//! LRU list of open files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use lsmx::vfs::File;
use lsmx_base::sync::Arc;
use xxhash_rust::xxh3::Xxh3DefaultBuilder;

/// Open files by file number, with the order of their last use.
#[derive(Default)]
pub(super) struct OpenFiles {
    files: HashMap<u64, (u64, Arc<dyn File>), Xxh3DefaultBuilder>,
    /// Numbers of the files that a collection writes. Pinned files are not evicted and do not count against the limit.
    pinned: BTreeSet<u64>,
    /// File numbers by the tick of the last use. A tick is the value of a counter of uses.
    by_tick: BTreeMap<u64, u64>,
    tick: u64,
}

impl fmt::Debug for OpenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} open files", self.files.len())
    }
}

impl OpenFiles {
    /// Returns a file and marks it as the most recently used.
    pub(super) fn get(&mut self, number: u64) -> Option<Arc<dyn File>> {
        let (tick, file) = self.files.get_mut(&number)?;
        self.by_tick.remove(tick);
        self.tick += 1;
        *tick = self.tick;
        self.by_tick.insert(self.tick, number);
        Some(file.clone())
    }

    pub(super) fn insert(&mut self, number: u64, file: Arc<dyn File>) {
        self.remove(number);
        self.tick += 1;
        self.files.insert(number, (self.tick, file));
        self.by_tick.insert(self.tick, number);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Arc<dyn File>> {
        self.pinned.remove(&number);
        let (tick, file) = self.files.remove(&number)?;
        self.by_tick.remove(&tick);
        Some(file)
    }

    pub(super) fn pin(&mut self, number: u64) {
        self.pinned.insert(number);
    }

    pub(super) fn unpin(&mut self, number: u64) {
        self.pinned.remove(&number);
    }

    pub(super) fn has_more_unpinned_than(&self, limit: usize) -> bool {
        self.files.len() - self.pinned.len() > limit
    }

    /// Removes and returns the least recently used file that is not pinned, if the set exceeds the limit. Never removes
    /// the file with the number `kept`.
    pub(super) fn evict_if_over(
        &mut self,
        limit: usize,
        kept: Option<u64>,
    ) -> Option<(u64, Arc<dyn File>)> {
        if !self.has_more_unpinned_than(limit) {
            return None;
        }
        let can_evict = |number: &&u64| !self.pinned.contains(*number) && Some(**number) != kept;
        let number = *self.by_tick.values().find(can_evict)?;
        Some((number, self.remove(number)?))
    }
}

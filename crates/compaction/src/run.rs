//! A sorted run and its files in key order.
//!
//! A run may hold ten thousands of files. The cost of a job on a few of them should hardly depend on that
//! number:
//!
//! - Key prefixes and sizes of the files are kept in arrays next to the file list. Searches and sums follow
//!   a pointer to a file only if two key prefixes are equal.
//! - A large run has an index of its file numbers.
//! - The files are divided into groups of neighbours. A group caches its best file by the order of a file
//!   picker. A job changes few groups, and only their best files are computed anew. Without this cache, a
//!   decision for a run of 100,000 files takes about 40 times as long.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, Range};
use std::slice;
use std::sync::atomic::{self, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::error::Error;
use crate::ids::{FileId, Level, RunId};
use crate::key_range::KeyRange;
use crate::table_meta::TableMeta;

/// Number of files in a new group.
const GROUP_FILES: usize = 32;
/// Number of files from which a run has an index of file numbers.
const INDEXED_FILES_MIN: usize = 64;

/// A sorted run: files with disjoint key ranges, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedRun {
    /// Number of the run.
    pub id: RunId,
    /// Files in key order. A run of a tree has at least one file.
    pub files: RunFiles,
}

impl SortedRun {
    /// Returns the size of all files in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// Returns the range from the first key to the last one, or `None` for a run without files.
    #[must_use]
    pub fn range(&self) -> Option<KeyRange> {
        let (first, last) = (self.files.first()?, self.files.last()?);
        Some(KeyRange {
            smallest: first.range.smallest.clone(),
            largest: last.range.largest.clone(),
        })
    }

    /// Returns the indices of the files that overlap `range`. Binary search.
    #[must_use]
    pub fn overlapping_indices(&self, range: &KeyRange) -> Range<usize> {
        self.files.overlapping_indices(range)
    }

    /// Returns the files that overlap `range`, in key order. Binary search.
    #[must_use]
    pub fn overlapping_files(&self, range: &KeyRange) -> &[Arc<TableMeta>] {
        &self.files[self.overlapping_indices(range)]
    }

    /// Returns the only file whose range contains `key`. Binary search.
    #[must_use]
    pub fn find_file_for_key(&self, key: &[u8]) -> Option<&Arc<TableMeta>> {
        let file = self.files.get(self.files.lower_bound(key));
        file.filter(|file| file.range.smallest.as_ref() <= key)
    }

    /// Checks that all files are in key order and share no key.
    pub(crate) fn check(&self, level: Level) -> Result<(), Error> {
        self.check_files(level, 0..self.files.len())
    }

    /// Checks the order of the files with these indices and of their two neighbours.
    pub(crate) fn check_files(&self, level: Level, changed: Range<usize>) -> Result<(), Error> {
        if self.files.is_empty() {
            return Err(Error::EmptyRun { level, run: self.id });
        }
        let from = changed.start.saturating_sub(1);
        let files = &self.files[from..self.files.len().min(changed.end + 1)];
        if let Some(file) = files.iter().find(|f| f.range.smallest > f.range.largest) {
            return Err(Error::InvertedRange { level, file: file.id });
        }
        for pair in files.windows(2) {
            // Equal keys are an error too: outputs end between user keys only.
            if pair[0].range.largest >= pair[1].range.smallest {
                let (left, right) = (pair[0].id, pair[1].id);
                return Err(Error::Overlap { level, run: self.id, left, right });
            }
        }
        Ok(())
    }
}

/// Files of a sorted run, in key order with disjoint ranges. Dereferences to a slice of files.
#[derive(Clone, Default)]
pub struct RunFiles {
    files: Vec<Arc<TableMeta>>,
    /// [`key_prefix`] of the smallest key of each file.
    first_prefixes: Vec<u64>,
    /// [`key_prefix`] of the largest key of each file.
    last_prefixes: Vec<u64>,
    /// Size of each file in bytes.
    sizes: Vec<u64>,
    totals: RunTotals,
    groups: Vec<FileGroup>,
    /// Properties of each group that a walk through all groups needs.
    marks: Vec<GroupMark>,
    /// [`key_prefix`] of the smallest key of each file, by file number. Built by the first search.
    prefixes_by_id: OnceLock<HashMap<FileId, u64>>,
}

/// Neighbouring files of a run.
#[derive(Debug, Default)]
struct FileGroup {
    /// Indices of the files.
    files: Range<usize>,
    /// Cache of the best file by the order that was used last.
    best: Mutex<Option<GroupBest>>,
}

/// First key and version of a group.
#[derive(Clone, Copy, Debug)]
struct GroupMark {
    /// [`key_prefix`] of the smallest key.
    first_prefix: u64,
    /// Number that identifies the files of the group. Groups with other files have other numbers.
    version: u64,
}

/// Best file of a group.
#[derive(Clone, Copy, Debug)]
struct GroupBest {
    /// Identifies the order and the versions of all groups that influence it.
    order: u64,
    /// Index of the file in the group.
    offset: usize,
    /// Cost of the file; only used by orders by overlap.
    cost: OverlapCost,
}

impl Clone for FileGroup {
    fn clone(&self) -> FileGroup {
        let best = *self.best.lock().unwrap_or_else(PoisonError::into_inner);
        FileGroup { files: self.files.clone(), best: Mutex::new(best) }
    }
}

impl FileGroup {
    fn new(files: Range<usize>) -> FileGroup {
        FileGroup { files, best: Mutex::default() }
    }

    /// Returns the best file by this order. Calls `find` if it is not cached.
    fn best(&self, order: u64, find: impl FnOnce() -> Option<GroupBest>) -> Option<GroupBest> {
        let mut cached = self.best.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.is_none_or(|best| best.order != order) {
            *cached = find();
        }
        *cached
    }
}

/// Returns a number that was not returned before.
fn new_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Only uniqueness matters, so no other access is ordered by this one.
    NEXT.fetch_add(1, atomic::Ordering::Relaxed)
}

/// Sums over the files of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RunTotals {
    bytes: u64,
    compensated_bytes: u64,
    tombstones: u64,
}

impl RunTotals {
    fn of(files: &[Arc<TableMeta>]) -> RunTotals {
        files.iter().fold(RunTotals::default(), |sum, file| RunTotals {
            bytes: sum.bytes.saturating_add(file.bytes),
            compensated_bytes: sum.compensated_bytes.saturating_add(file.compensated_bytes()),
            tombstones: sum.tombstones.saturating_add(file.tombstones),
        })
    }

    /// Returns the totals after `removed` files were replaced by `added` ones.
    fn replace(&self, removed: &RunTotals, added: &RunTotals) -> RunTotals {
        let change = |total: u64, removed: u64, added: u64| {
            total.saturating_sub(removed).saturating_add(added)
        };
        RunTotals {
            bytes: change(self.bytes, removed.bytes, added.bytes),
            compensated_bytes: change(
                self.compensated_bytes,
                removed.compensated_bytes,
                added.compensated_bytes,
            ),
            tombstones: change(self.tombstones, removed.tombstones, added.tombstones),
        }
    }
}

/// Overlapped bytes of a file and its own bytes. The order compares their ratio, then the age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverlapCost {
    pub(crate) overlap: u64,
    pub(crate) own: u64,
    pub(crate) seq_smallest: u64,
}

impl OverlapCost {
    /// Compares `overlap / own` exactly.
    fn compare_ratio(&self, other: &OverlapCost) -> Ordering {
        let left = u128::from(self.overlap) * u128::from(other.own);
        let right = u128::from(other.overlap) * u128::from(self.own);
        left.cmp(&right)
    }
}

impl Ord for OverlapCost {
    fn cmp(&self, other: &OverlapCost) -> Ordering {
        self.compare_ratio(other).then(self.seq_smallest.cmp(&other.seq_smallest))
    }
}

impl PartialOrd for OverlapCost {
    fn partial_cmp(&self, other: &OverlapCost) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the first eight bytes of a key as a number. The order of prefixes never contradicts the
/// order of their keys.
fn key_prefix(key: &[u8]) -> u64 {
    let mut prefix = [0; size_of::<u64>()];
    let len = key.len().min(prefix.len());
    prefix[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(prefix)
}

impl RunFiles {
    /// Returns the size of all files in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.totals.bytes
    }

    /// Returns the sum of [`TableMeta::compensated_bytes`] over all files.
    #[must_use]
    pub fn compensated_bytes(&self) -> u64 {
        self.totals.compensated_bytes
    }

    /// Returns the bytes of the files that overlap `range`.
    #[must_use]
    pub fn overlap_bytes(&self, range: &KeyRange) -> u64 {
        let sizes = &self.sizes[self.overlapping_indices(range)];
        sizes.iter().copied().fold(0, u64::saturating_add)
    }

    /// Returns the indices of the files that overlap `range`. Binary search.
    #[must_use]
    pub fn overlapping_indices(&self, range: &KeyRange) -> Range<usize> {
        let start = self.lower_bound(&range.smallest);
        let prefix = key_prefix(&range.largest);
        let from = start + self.first_prefixes[start..].partition_point(|other| *other < prefix);
        if self.first_prefixes.get(from).is_none_or(|other| *other > prefix) {
            return start..from;
        }
        // Files with an equal prefix are compared by their keys.
        let until = from + self.first_prefixes[from..].partition_point(|other| *other <= prefix);
        let equal = &self.files[from..until];
        start..from + equal.partition_point(|file| file.range.smallest <= range.largest)
    }

    /// Returns the index of the first file whose largest key is at or after `key`. Binary search.
    #[must_use]
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        let prefix = key_prefix(key);
        let from = self.last_prefixes.partition_point(|other| *other < prefix);
        if self.last_prefixes.get(from).is_none_or(|other| *other > prefix) {
            return from;
        }
        // Files with an equal prefix are compared by their keys.
        let until = self.last_prefixes.partition_point(|other| *other <= prefix);
        from + self.files[from..until].partition_point(|file| *file.range.largest < *key)
    }

    /// Returns whether the file begins after `key`.
    pub(crate) fn is_after(&self, index: usize, key: &[u8]) -> bool {
        match self.first_prefixes[index].cmp(&key_prefix(key)) {
            Ordering::Equal => *self.files[index].range.smallest > *key,
            order => order == Ordering::Greater,
        }
    }

    /// Returns whether the file ends before `key`.
    pub(crate) fn is_before(&self, index: usize, key: &[u8]) -> bool {
        match self.last_prefixes[index].cmp(&key_prefix(key)) {
            Ordering::Equal => *self.files[index].range.largest < *key,
            order => order == Ordering::Less,
        }
    }

    /// Returns the size of one file in bytes.
    pub(crate) fn bytes_at(&self, index: usize) -> u64 {
        self.sizes[index]
    }

    /// Returns the index of a file. Tests the index `hint` first.
    #[must_use]
    pub(crate) fn index_of(&self, id: FileId, hint: usize) -> Option<usize> {
        if self.files.get(hint).is_some_and(|file| file.id == id) {
            return Some(hint);
        }
        if self.files.len() < INDEXED_FILES_MIN {
            return self.files.iter().position(|file| file.id == id);
        }
        let prefixes = self.prefixes_by_id.get_or_init(|| {
            self.files.iter().map(|file| file.id).zip(self.first_prefixes.iter().copied()).collect()
        });
        let prefix = *prefixes.get(&id)?;
        let from = self.first_prefixes.partition_point(|other| *other < prefix);
        self.files[from..].iter().position(|file| file.id == id).map(|offset| from + offset)
    }

    /// Replaces the files with these indices. The caller checks order and disjointness of the result.
    pub(crate) fn splice(&mut self, range: Range<usize>, new: Vec<Arc<TableMeta>>) {
        if let Some(prefixes) = self.prefixes_by_id.get_mut() {
            for file in &self.files[range.clone()] {
                prefixes.remove(&file.id);
            }
            prefixes.extend(new.iter().map(|file| (file.id, key_prefix(&file.range.smallest))));
        }
        let removed = RunTotals::of(&self.files[range.clone()]);
        self.totals = self.totals.replace(&removed, &RunTotals::of(&new));
        let first = new.iter().map(|file| key_prefix(&file.range.smallest));
        self.first_prefixes.splice(range.clone(), first);
        let last = new.iter().map(|file| key_prefix(&file.range.largest));
        self.last_prefixes.splice(range.clone(), last);
        self.sizes.splice(range.clone(), new.iter().map(|file| file.bytes));
        let added = new.len();
        self.files.splice(range.clone(), new);
        self.update_groups(range, added);
    }

    /// Updates the groups after the files in `range` were replaced by `added` files.
    fn update_groups(&mut self, range: Range<usize>, added: usize) {
        let Some(last_group) = self.groups.len().checked_sub(1) else {
            return self.rebuild_groups(0..0, 0..self.files.len());
        };
        let group_of = |index: usize| {
            self.groups.partition_point(|group| group.files.end <= index).min(last_group)
        };
        let first = group_of(range.start);
        let last = range.end.checked_sub(1).map_or(first, |end| group_of(end).max(first));
        let start = self.groups[first].files.start;
        let end = self.groups[last].files.end + added - range.len();
        if added != range.len() {
            for group in &mut self.groups[last + 1..] {
                let Range { start, end } = group.files;
                group.files = start + added - range.len()..end + added - range.len();
            }
        }
        if first == last && (1..=2 * GROUP_FILES).contains(&(end - start)) {
            // Usually the change is within one group.
            self.groups[first] = FileGroup::new(start..end);
            self.marks[first] = self.new_mark(start);
        } else {
            self.rebuild_groups(first..last + 1, start..end);
        }
    }

    fn new_mark(&self, first_file: usize) -> GroupMark {
        GroupMark { first_prefix: self.first_prefixes[first_file], version: new_version() }
    }

    /// Replaces some groups by new groups of these files.
    fn rebuild_groups(&mut self, old: Range<usize>, files: Range<usize>) {
        let count = files.len().div_ceil(2 * GROUP_FILES).max(1);
        let step = files.len().div_ceil(count).max(1);
        let starts = || files.clone().step_by(step);
        let marks: Vec<GroupMark> = starts().map(|start| self.new_mark(start)).collect();
        self.marks.splice(old.clone(), marks);
        let groups = starts().map(|start| FileGroup::new(start..(start + step).min(files.end)));
        self.groups.splice(old, groups);
    }

    /// Returns the files with tombstones and their indices.
    pub(crate) fn with_tombstones(&self) -> impl Iterator<Item = (usize, &Arc<TableMeta>)> {
        let files = if self.totals.tombstones == 0 { &[][..] } else { &self.files };
        files.iter().enumerate().filter(|(_, file)| file.tombstones > 0)
    }

    /// Sets [`TableMeta::last_read_us`] of each file for which `read_us` returns a time.
    pub fn set_read_times(&mut self, read_us: impl Fn(FileId) -> Option<u64>) {
        for (group, mark) in self.groups.iter_mut().zip(&mut self.marks) {
            let mut is_changed = false;
            for file in &mut self.files[group.files.clone()] {
                if let Some(us) = read_us(file.id).filter(|us| *us != file.last_read_us) {
                    Arc::make_mut(file).last_read_us = us;
                    is_changed = true;
                }
            }
            if is_changed {
                *group = FileGroup::new(group.files.clone());
                mark.version = new_version();
            }
        }
    }

    /// Returns how many bytes of `below` each file in `files` overlaps. Walks through both runs once.
    pub(crate) fn overlaps(&self, files: Range<usize>, below: &[Arc<SortedRun>]) -> Vec<u64> {
        let mut overlaps = vec![0u64; files.len()];
        let Some(first_file) = self.files.get(files.start) else { return overlaps };
        for below in below.iter().map(|run| &run.files) {
            let count = below.files.len();
            let mut first = below.lower_bound(&first_file.range.smallest);
            for (overlap, index) in overlaps.iter_mut().zip(files.clone()) {
                let (smallest, largest) = (self.first_prefixes[index], self.last_prefixes[index]);
                let range = &self.files[index].range;
                while first < count
                    && (below.last_prefixes[first] < smallest
                        || below.last_prefixes[first] == smallest
                            && below.files[first].range.largest < range.smallest)
                {
                    first += 1;
                }
                let mut next = first;
                while next < count
                    && (below.first_prefixes[next] < largest
                        || below.first_prefixes[next] == largest
                            && below.files[next].range.smallest <= range.largest)
                {
                    *overlap = overlap.saturating_add(below.sizes[next]);
                    next += 1;
                }
                // Only the last of these files can overlap the next file of this run too.
                first = first.max(next.saturating_sub(1));
            }
        }
        overlaps
    }

    /// Returns the cost of the file with this index, given its overlapped bytes.
    pub(crate) fn overlap_cost(&self, index: usize, overlap: u64) -> OverlapCost {
        let file = &self.files[index];
        let own = file.compensated_bytes().max(1);
        OverlapCost { overlap, own, seq_smallest: file.seq_smallest }
    }

    /// Returns the index of the file with the smallest `OverlapCost` for `below`. Ties: the smaller
    /// key.
    #[must_use]
    pub fn least_overlap(&self, below: &[Arc<SortedRun>]) -> Option<usize> {
        let mut walks: Vec<GroupWalk<'_>> =
            below.iter().map(|run| GroupWalk { marks: &run.files.marks, next: 0 }).collect();
        let mut cheapest: Option<(OverlapCost, usize)> = None;
        for group in &self.groups {
            let Some(last) = group.files.end.checked_sub(1) else { continue };
            let (from, to) = (self.first_prefixes[group.files.start], self.last_prefixes[last]);
            let order = walks.iter_mut().fold(RANKS_MAX, |sum: u64, walk| {
                walk.versions(from, to).wrapping_add(sum.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            });
            let best = group.best(order, || self.least_overlap_of(group, order, below))?;
            if cheapest.is_none_or(|(cost, _)| best.cost < cost) {
                cheapest = Some((best.cost, group.files.start + best.offset));
            }
        }
        cheapest.map(|(_, index)| index)
    }

    /// Returns the file of a group with the smallest cost.
    fn least_overlap_of(
        &self,
        group: &FileGroup,
        order: u64,
        below: &[Arc<SortedRun>],
    ) -> Option<GroupBest> {
        let overlaps = self.overlaps(group.files.clone(), below).into_iter().enumerate();
        let costs = overlaps.map(|(offset, overlap)| {
            (self.overlap_cost(group.files.start + offset, overlap), offset)
        });
        costs.min().map(|(cost, offset)| GroupBest { order, offset, cost })
    }

    /// Returns the index of the file with the smallest rank. Ties: the smaller key. `order` identifies the
    /// rank, which must depend on the file alone; it is below [`RANKS_MAX`].
    pub(crate) fn least_rank<R: Ord>(
        &self,
        order: u64,
        rank: impl Fn(&TableMeta) -> R,
    ) -> Option<usize> {
        let candidates = self.groups.iter().filter_map(|group| {
            let best = group.best(order, || {
                let files = self.files[group.files.clone()].iter().enumerate();
                let (offset, _) = files.min_by_key(|(offset, file)| (rank(file), *offset))?;
                Some(GroupBest { order, offset, cost: OverlapCost::default() })
            })?;
            let index = group.files.start + best.offset;
            Some((rank(&self.files[index]), index))
        });
        candidates.min().map(|(_, index)| index)
    }
}

/// Number of values of `order` that [`RunFiles::least_rank`] may use.
const RANKS_MAX: u64 = 16;

/// Walks through the groups of a run in key order.
struct GroupWalk<'a> {
    marks: &'a [GroupMark],
    next: usize,
}

impl GroupWalk<'_> {
    /// Returns a hash of the versions of all groups that may have keys between two key prefixes. `from` must
    /// not decrease from call to call. The result may depend on a further group, which only causes
    /// unnecessary work.
    fn versions(&mut self, from: u64, to: u64) -> u64 {
        while self.marks.get(self.next + 1).is_some_and(|next| next.first_prefix < from) {
            self.next += 1;
        }
        let marks = &self.marks[self.next.min(self.marks.len())..];
        let overlapping = marks.iter().take_while(|mark| mark.first_prefix <= to);
        overlapping.fold(0, |hash, mark| {
            (hash ^ mark.version).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29)
        })
    }
}

impl Deref for RunFiles {
    type Target = [Arc<TableMeta>];

    fn deref(&self) -> &[Arc<TableMeta>] {
        &self.files
    }
}

impl From<Vec<Arc<TableMeta>>> for RunFiles {
    fn from(files: Vec<Arc<TableMeta>>) -> RunFiles {
        let count = files.len();
        let mut files = RunFiles {
            first_prefixes: files.iter().map(|file| key_prefix(&file.range.smallest)).collect(),
            last_prefixes: files.iter().map(|file| key_prefix(&file.range.largest)).collect(),
            sizes: files.iter().map(|file| file.bytes).collect(),
            totals: RunTotals::of(&files),
            files,
            ..RunFiles::default()
        };
        files.rebuild_groups(0..0, 0..count);
        files
    }
}

impl From<RunFiles> for Vec<Arc<TableMeta>> {
    fn from(files: RunFiles) -> Vec<Arc<TableMeta>> {
        files.files
    }
}

impl FromIterator<Arc<TableMeta>> for RunFiles {
    fn from_iter<I: IntoIterator<Item = Arc<TableMeta>>>(files: I) -> RunFiles {
        RunFiles::from(files.into_iter().collect::<Vec<_>>())
    }
}

impl<'a> IntoIterator for &'a RunFiles {
    type Item = &'a Arc<TableMeta>;
    type IntoIter = slice::Iter<'a, Arc<TableMeta>>;

    fn into_iter(self) -> slice::Iter<'a, Arc<TableMeta>> {
        self.files.iter()
    }
}

impl PartialEq for RunFiles {
    fn eq(&self, other: &RunFiles) -> bool {
        self.files == other.files
    }
}

impl Eq for RunFiles {}

impl fmt::Debug for RunFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::TestRng;

    /// Returns a key; 16 neighbouring positions share the first eight bytes.
    fn key(position: u64) -> Vec<u8> {
        let mut key = (position / 16).to_be_bytes().to_vec();
        key.extend_from_slice(&(position % 16).to_be_bytes()[7..]);
        key
    }

    fn file(id: u64, from: u64, to: u64, rng: &mut TestRng) -> Arc<TableMeta> {
        Arc::new(TableMeta {
            bytes: 1 + rng.below(50),
            entries: 10,
            tombstones: rng.below(10),
            value_bytes: 100,
            seq_smallest: rng.below(20),
            ..TableMeta::new(FileId(id), KeyRange::new(key(from), key(to)))
        })
    }

    /// Returns files with gaps between the positions `from` and `to`.
    fn fill(from: u64, to: u64, ids: &mut u64, rng: &mut TestRng) -> Vec<Arc<TableMeta>> {
        let (mut files, mut at) = (Vec::new(), from + rng.below(3));
        loop {
            let end = at + rng.below(6);
            if end >= to {
                return files;
            }
            *ids += 1;
            files.push(file(*ids, at, end, rng));
            at = end + 1 + rng.below(3);
        }
    }

    fn run(files: RunFiles) -> Arc<SortedRun> {
        Arc::new(SortedRun { id: RunId(1), files })
    }

    /// Replaces up to eight neighbouring files by files that fit between their neighbours.
    fn splice_random(files: &mut RunFiles, ids: &mut u64, rng: &mut TestRng) {
        let position =
            |key: &[u8]| key_prefix(key) * 16 + u64::from(key.last().copied().unwrap_or(0));
        let count = u64::try_from(files.len()).unwrap();
        let start = rng.below(count + 1);
        let end = (start + rng.below(9)).min(count);
        let range = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
        let before = range.start.checked_sub(1);
        let from = before.map_or(0, |index| position(&files[index].range.largest) + 1);
        let to = files.get(range.end).map_or(9000, |after| position(&after.range.smallest));
        let new = if rng.below(3) == 0 { Vec::new() } else { fill(from, to, ids, rng) };
        files.splice(range, new);
    }

    #[test]
    fn run_files_splice_equals_files_built_anew() {
        let mut rng = TestRng::new(7);
        let mut ids = 0;
        let mut files = RunFiles::from(fill(0, 9000, &mut ids, &mut rng));
        let below = [run(fill(0, 9000, &mut ids, &mut rng).into())];
        assert!(files.len() > 500 && files.groups.len() > 4);
        for _ in 0..2000 {
            splice_random(&mut files, &mut ids, &mut rng);
            let rebuilt = RunFiles::from(files.to_vec());
            assert!(files.windows(2).all(|pair| pair[0].range.largest < pair[1].range.smallest));
            assert_eq!(files.totals, rebuilt.totals);
            assert_eq!(files.first_prefixes, rebuilt.first_prefixes);
            assert_eq!(files.last_prefixes, rebuilt.last_prefixes);
            assert_eq!(files.sizes, rebuilt.sizes);
            let grouped = files.groups.iter().flat_map(|group| group.files.clone());
            assert!(grouped.eq(0..files.len()));
            assert_eq!(files.least_overlap(&below), rebuilt.least_overlap(&below));
            if let Some(index) = (!files.is_empty()).then(|| files.len() / 2) {
                assert_eq!(files.index_of(files[index].id, 0), Some(index));
                assert_eq!(files.index_of(FileId(u64::MAX), 0), None);
            }
        }
    }

    #[test]
    fn run_files_searches_agree_with_linear_scan() {
        let mut rng = TestRng::new(11);
        let mut ids = 0;
        for size in [0, 40, 9000] {
            let files = RunFiles::from(fill(0, size, &mut ids, &mut rng));
            for _ in 0..2000 {
                let from = rng.below(size + 9);
                let range = KeyRange::new(key(from), key(from + rng.below(300)));
                let found = files.overlapping_indices(&range);
                let expected: Vec<usize> =
                    (0..files.len()).filter(|&at| files[at].range.overlaps(&range)).collect();
                assert!(found.clone().eq(expected.iter().copied()), "{range:?}");
                let bytes: u64 = files[found].iter().map(|file| file.bytes).sum();
                assert_eq!(files.overlap_bytes(&range), bytes);
                let first = files.iter().position(|file| file.range.largest >= range.smallest);
                assert_eq!(files.lower_bound(&range.smallest), first.unwrap_or(files.len()));
            }
        }
    }

    #[test]
    fn least_overlap_after_splices_agrees_with_linear_scan() {
        let mut rng = TestRng::new(13);
        let mut ids = 0;
        let mut files = RunFiles::from(fill(0, 9000, &mut ids, &mut rng));
        let mut below: Vec<Arc<SortedRun>> =
            (0..2).map(|_| run(fill(0, 9000, &mut ids, &mut rng).into())).collect();
        for step in 0..240 {
            match step % 3 {
                0 => splice_random(&mut files, &mut ids, &mut rng),
                1 => splice_random(&mut Arc::make_mut(&mut below[0]).files, &mut ids, &mut rng),
                _ => splice_random(&mut Arc::make_mut(&mut below[1]).files, &mut ids, &mut rng),
            }
            for below in [&below[..], &below[..1]] {
                let cost = |at: usize| {
                    let range = &files[at].range;
                    let overlap = below.iter().map(|run| run.files.overlap_bytes(range)).sum();
                    files.overlap_cost(at, overlap)
                };
                let order = |a: &usize, b: &usize| cost(*a).cmp(&cost(*b)).then(a.cmp(b));
                let expected = (0..files.len()).min_by(order);
                assert_eq!(files.least_overlap(below), expected, "step {step}");
            }
        }
    }
}

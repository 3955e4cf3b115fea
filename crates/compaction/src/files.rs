//! The files of a run in key order, as a slice, and beside it what would else be worked out over and
//! over for all of them.
//!
//! - The first bytes of the smallest keys lie next to each other, so that a search by key follows no
//!   pointers.
//! - Where runs are long, a table says where a file is that is known by name.
//! - Files are grouped; each group knows its sums, and the best of its files by some order, as far as
//!   that was asked for. A change touches the groups that it is in, and no other.
//!
//! So a job on a few files of a run costs little more if there are ten thousands of others.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Deref, Range};
use std::slice;
use std::sync::atomic::{self, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::{FileId, FileShape, KeyRange, RunShape};

/// Files of a group, when groups are made.
const GROUP_FILES: usize = 32;
/// Orders by which groups may be asked for their first file.
pub(crate) const ORDERS: usize = 5;
/// Files from which on there is a table of names.
const NAMED_FROM: usize = 64;

/// Files with disjoint ranges, in key order. Reads as a slice.
#[derive(Clone, Default)]
pub struct Files {
    files: Vec<Arc<FileShape>>,
    /// First eight bytes of each smallest key, as a number that orders as they do.
    heads: Vec<u64>,
    /// The same of each largest key.
    tails: Vec<u64>,
    /// Bytes of each file.
    sizes: Vec<u64>,
    groups: Vec<Group>,
    /// What a walk over all groups needs of each, side by side.
    marks: Vec<Mark>,
    /// Over all groups.
    sums: Sums,
    /// Heads of the smallest keys by name, made when first asked for.
    names: OnceLock<FileMap<u64>>,
}

/// Where a group begins, and what tells it, as it is, from every other that ever was.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Head of its first file.
    from: u64,
    stamp: u64,
}

/// Sums over some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    bytes: u64,
    compensated_bytes: u64,
    tombstones: u64,
}

/// Neighbours in a run.
#[derive(Debug, Default)]
struct Group {
    /// Index of the first file, and of the one after the last.
    files: Range<usize>,
    sums: Sums,
    /// Places in the group of the first file by several orders, as far as that was asked for.
    first: [OnceLock<usize>; ORDERS],
    /// The best file by overlap, for what it was compared with; one for each distance of levels.
    best: Mutex<[Option<Best>; 2]>,
}

/// A file, and its cost by overlap.
#[derive(Clone, Copy, Debug)]
struct Best {
    /// Stands for all groups that files of this one overlap.
    overlapped: u64,
    /// Place in the group.
    at: usize,
    cost: Cost,
}

/// Bytes overlapped per byte of the file, smaller is cheaper; ties go to older files, then to smaller
/// keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    overlap: u64,
    own: u64,
    seq_smallest: u64,
}

impl Cost {
    /// Which of two is the cheaper one, but for ties.
    fn ratio_to(&self, other: &Cost) -> Ordering {
        let left = u128::from(self.overlap) * u128::from(other.own);
        let right = u128::from(other.overlap) * u128::from(self.own);
        left.cmp(&right)
    }
}

impl Ord for Cost {
    fn cmp(&self, other: &Cost) -> Ordering {
        self.ratio_to(other).then(self.seq_smallest.cmp(&other.seq_smallest))
    }
}

impl PartialOrd for Cost {
    fn partial_cmp(&self, other: &Cost) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Names are numbers given out one after the other: multiplying spreads them well enough, and the
/// order of a table never leaks, for nobody walks over it.
#[derive(Default)]
pub(crate) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, name: u64) {
        self.0 = name.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// What is known of files, by name.
pub(crate) type FileMap<T> = HashMap<FileId, T, BuildHasherDefault<NameHasher>>;

/// The first eight bytes of a key as a number that orders as they do.
fn head(key: &[u8]) -> u64 {
    let mut head = [0; size_of::<u64>()];
    let len = key.len().min(head.len());
    head[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(head)
}

fn stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, atomic::Ordering::Relaxed)
}

impl Sums {
    fn of(files: &[Arc<FileShape>]) -> Sums {
        files.iter().fold(Sums::default(), |sums, file| {
            sums.and(&Sums {
                bytes: file.bytes,
                compensated_bytes: file.compensated_bytes(),
                tombstones: file.tombstones,
            })
        })
    }

    fn and(&self, other: &Sums) -> Sums {
        Sums {
            bytes: self.bytes.saturating_add(other.bytes),
            compensated_bytes: self.compensated_bytes.saturating_add(other.compensated_bytes),
            tombstones: self.tombstones.saturating_add(other.tombstones),
        }
    }

    fn less(&self, other: &Sums) -> Sums {
        Sums {
            bytes: self.bytes.saturating_sub(other.bytes),
            compensated_bytes: self.compensated_bytes.saturating_sub(other.compensated_bytes),
            tombstones: self.tombstones.saturating_sub(other.tombstones),
        }
    }
}

impl Group {
    fn of(all: &[Arc<FileShape>], files: Range<usize>) -> Group {
        let sums = Sums::of(&all[files.clone()]);
        Group { files, sums, ..Group::default() }
    }
}

impl Clone for Group {
    fn clone(&self) -> Group {
        let best = *self.best.lock().unwrap_or_else(PoisonError::into_inner);
        let (files, first) = (self.files.clone(), self.first.clone());
        Group { files, sums: self.sums, first, best: Mutex::new(best) }
    }
}

impl Files {
    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sums.bytes
    }

    /// Bytes of all files as a trigger counts them, see [`FileShape::compensated_bytes`].
    #[must_use]
    pub fn compensated_bytes(&self) -> u64 {
        self.sums.compensated_bytes
    }

    /// Bytes of the files with these indices.
    #[must_use]
    pub fn bytes_of(&self, range: Range<usize>) -> u64 {
        let sum = |sizes: &[u64]| sizes.iter().copied().fold(0, u64::saturating_add);
        if range.len() <= GROUP_FILES {
            return sum(&self.sizes[range]);
        }
        let mut bytes = 0u64;
        for group in &self.groups[self.group_at(range.start)..] {
            if group.files.start >= range.end {
                break;
            }
            let inside = range.start <= group.files.start && group.files.end <= range.end;
            bytes = bytes.saturating_add(if inside {
                group.sums.bytes
            } else {
                let (from, to) =
                    (range.start.max(group.files.start), range.end.min(group.files.end));
                sum(&self.sizes[from..to])
            });
        }
        bytes
    }

    /// Indices of the files that overlap `range`. Binary search.
    #[must_use]
    pub fn overlapping_indices(&self, range: &KeyRange) -> Range<usize> {
        let start = self.reaching(&range.smallest);
        let head = head(&range.largest);
        let from = start + self.heads[start..].partition_point(|h| *h < head);
        if self.heads.get(from).is_none_or(|h| *h > head) {
            return start..from;
        }
        // Of those that begin with the same bytes keys tell.
        let until = from + self.heads[from..].partition_point(|h| *h <= head);
        let more =
            self.files[from..until].partition_point(|file| file.range.smallest <= range.largest);
        start..from + more
    }

    /// Index of the first file whose largest key is at or after `key`.
    #[must_use]
    pub fn reaching(&self, key: &[u8]) -> usize {
        let head = head(key);
        let from = self.tails.partition_point(|tail| *tail < head);
        if self.tails.get(from).is_none_or(|tail| *tail > head) {
            return from;
        }
        // Of those that end with the same bytes keys tell.
        let until = self.tails.partition_point(|tail| *tail <= head);
        from + self.files[from..until].partition_point(|file| *file.range.largest < *key)
    }

    /// Whether the file with this index begins past `key`. Follows no pointer where the first bytes tell.
    pub(crate) fn starts_past(&self, index: usize, key: &[u8]) -> bool {
        let head = head(key);
        match self.heads[index].cmp(&head) {
            Ordering::Equal => *self.files[index].range.smallest > *key,
            order => order == Ordering::Greater,
        }
    }

    /// Whether it ends before `key`.
    pub(crate) fn ends_before(&self, index: usize, key: &[u8]) -> bool {
        let head = head(key);
        match self.tails[index].cmp(&head) {
            Ordering::Equal => *self.files[index].range.largest < *key,
            order => order == Ordering::Less,
        }
    }

    /// Bytes of one file.
    pub(crate) fn bytes_at(&self, index: usize) -> u64 {
        self.sizes[index]
    }

    /// Index of the file with this name. `hint` is tried first.
    #[must_use]
    pub(crate) fn index_of(&self, name: FileId, hint: usize) -> Option<usize> {
        if self.files.get(hint).is_some_and(|file| file.id == name) {
            return Some(hint);
        }
        if self.files.len() < NAMED_FROM {
            return self.files.iter().position(|file| file.id == name);
        }
        let names = self.names.get_or_init(|| {
            self.files.iter().zip(&self.heads).map(|(file, head)| (file.id, *head)).collect()
        });
        let head = *names.get(&name)?;
        let from = self.heads.partition_point(|h| *h < head);
        let found = self.files[from..].iter().zip(&self.heads[from..]);
        let at = found.take_while(|(_, h)| **h == head).position(|(file, _)| file.id == name)?;
        Some(from + at)
    }

    /// Puts `new` in place of the files with these indices. What they make together must be in key
    /// order and disjoint; that is the caller's to see to.
    pub(crate) fn splice(&mut self, range: Range<usize>, new: Vec<Arc<FileShape>>) {
        if let Some(names) = self.names.get_mut() {
            for file in &self.files[range.clone()] {
                names.remove(&file.id);
            }
            names.extend(new.iter().map(|file| (file.id, head(&file.range.smallest))));
        }
        let (before, added, removed) = (self.files.len(), new.len(), range.len());
        let (sums_in, sums_out) = (Sums::of(&new), Sums::of(&self.files[range.clone()]));
        self.heads.splice(range.clone(), new.iter().map(|file| head(&file.range.smallest)));
        self.tails.splice(range.clone(), new.iter().map(|file| head(&file.range.largest)));
        self.sizes.splice(range.clone(), new.iter().map(|file| file.bytes));
        self.files.splice(range.clone(), new);
        let Some(last_group) = self.groups.len().checked_sub(1) else {
            self.regroup(0..0, 0..self.files.len());
            return;
        };
        // The groups that the change is in, made anew; those behind only move.
        let first = self.group_at(range.start.min(before.saturating_sub(1)));
        let last = match range.end.checked_sub(1) {
            Some(end) => self.group_at(end.max(range.start.min(end))).max(first),
            None => first,
        }
        .min(last_group);
        let start = self.groups[first].files.start;
        let end = self.groups[last].files.end + added - removed;
        if added != removed {
            for group in &mut self.groups[last + 1..] {
                group.files =
                    group.files.start + added - removed..group.files.end + added - removed;
            }
        }
        if first == last && (1..=2 * GROUP_FILES).contains(&(end - start)) {
            // Mostly one group takes it all, and what stays in it need not be looked at again.
            let group = &mut self.groups[first];
            let sums = group.sums.less(&sums_out).and(&sums_in);
            *group = Group { files: start..end, sums, ..Group::default() };
            self.sums = self.sums.less(&sums_out).and(&sums_in);
            self.marks[first] = Mark { from: self.heads[start], stamp: stamp() };
            return;
        }
        self.regroup(first..last + 1, start..end);
    }

    /// Index of the first file by what `rank` says, ties by key. `order` tells one rank from others, for
    /// what was found is kept: it is below [`ORDERS`], and a rank is made of the file alone.
    pub(crate) fn first_by<R: Ord>(
        &self,
        order: usize,
        rank: impl Fn(&FileShape) -> R,
    ) -> Option<usize> {
        let firsts = self.groups.iter().filter_map(|group| {
            let first = || {
                let files = self.files[group.files.clone()].iter().enumerate();
                files.min_by_key(|(at, file)| (rank(file), *at)).map_or(0, |(at, _)| at)
            };
            let index = group.files.start + *group.first[order].get_or_init(first);
            Some((rank(self.files.get(index)?), index))
        });
        firsts.min().map(|(_, index)| index)
    }

    /// Files with tombstones, with their indices.
    pub(crate) fn with_tombstones(&self) -> impl Iterator<Item = (usize, &Arc<FileShape>)> {
        let groups = self.groups.iter().filter(|group| group.sums.tombstones > 0);
        let indices = groups.flat_map(|group| group.files.clone());
        indices.map(|index| (index, &self.files[index])).filter(|(_, file)| file.tombstones > 0)
    }

    /// Notes when files were last read, as far as `read_us` knows.
    pub fn note_reads(&mut self, read_us: impl Fn(FileId) -> Option<u64>) {
        for (group, mark) in self.groups.iter_mut().zip(&mut self.marks) {
            let mut changed = false;
            for file in &mut self.files[group.files.clone()] {
                if let Some(us) = read_us(file.id).filter(|us| *us != file.last_read_us) {
                    Arc::make_mut(file).last_read_us = us;
                    changed = true;
                }
            }
            if changed {
                *group = Group::of(&self.files, group.files.clone());
                mark.stamp = stamp();
            }
        }
    }

    /// Bytes of `below` that each of these files overlaps. One walk over both.
    fn overlaps_of(&self, range: Range<usize>, below: &[Arc<RunShape>]) -> Vec<u64> {
        let mut overlaps = vec![0u64; range.len()];
        for below in below.iter().map(|run| &run.files) {
            let mut first = match self.files.get(range.start) {
                Some(file) => below.reaching(&file.range.smallest),
                None => below.files.len(),
            };
            for (overlap, index) in overlaps.iter_mut().zip(range.clone()) {
                let (head, tail) = (self.heads[index], self.tails[index]);
                let own = &self.files[index].range;
                while first < below.files.len()
                    && (below.tails[first] < head
                        || below.tails[first] == head
                            && below.files[first].range.largest < own.smallest)
                {
                    first += 1;
                }
                let mut at = first;
                while at < below.files.len()
                    && (below.heads[at] < tail
                        || below.heads[at] == tail && below.files[at].range.smallest <= own.largest)
                {
                    *overlap = overlap.saturating_add(below.sizes[at]);
                    at += 1;
                }
                // All of these but the last end before the next file begins.
                first = first.max(at.saturating_sub(1));
            }
        }
        overlaps
    }

    /// Makes groups of these files, in place of some groups.
    fn regroup(&mut self, old: Range<usize>, files: Range<usize>) {
        let count = files.len().div_ceil(2 * GROUP_FILES);
        let each = files.len().div_ceil(count.max(1)).max(1);
        let new: Vec<Group> = files
            .clone()
            .step_by(each)
            .map(|from| Group::of(&self.files, from..(from + each).min(files.end)))
            .collect();
        for group in &new {
            self.sums = self.sums.and(&group.sums);
        }
        let mark = |group: &Group| Mark { from: self.heads[group.files.start], stamp: stamp() };
        self.marks.splice(old.clone(), new.iter().map(mark).collect::<Vec<_>>());
        for group in self.groups.splice(old, new) {
            self.sums = self.sums.less(&group.sums);
        }
    }

    /// The group that a file is in; the last one for an index past the end.
    fn group_at(&self, index: usize) -> usize {
        let at = self.groups.partition_point(|group| group.files.end <= index);
        at.min(self.groups.len().saturating_sub(1))
    }

    /// Index of the file that overlaps the fewest bytes of `below` per byte of its own, as triggers
    /// count them; ties go to the smaller smallest sequence number, then to the smaller key. `distance`
    /// is how many levels down `below` is, 1 or 2: what was found is kept for each.
    ///
    /// Only groups that have changed, or whose overlap has, are looked at file by file.
    #[must_use]
    pub fn least_overlap(&self, below: &[Arc<RunShape>], distance: usize) -> Option<usize> {
        let slot = distance.clamp(1, 2) - 1;
        let mut walks: Vec<Walk<'_>> = below.iter().map(|run| Walk::new(&run.files)).collect();
        let mut cheapest: Option<(Cost, usize)> = None;
        for group in &self.groups {
            let Some(last) = group.files.end.checked_sub(1) else { continue };
            let (from, to) = (self.heads[group.files.start], self.tails[last]);
            let overlapped = walks.iter_mut().fold(1, |sum: u64, walk| {
                walk.stamps(from, to).wrapping_add(sum.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            });
            let mut known = group.best.lock().unwrap_or_else(PoisonError::into_inner);
            let best = match known[slot] {
                Some(best) if best.overlapped == overlapped => best,
                _ => {
                    let Some((at, cost)) = self.cheapest_of(group, below) else { continue };
                    *known[slot].insert(Best { overlapped, at, cost })
                }
            };
            if cheapest.is_none_or(|(cost, _)| best.cost < cost) {
                cheapest = Some((best.cost, group.files.start + best.at));
            }
        }
        cheapest.map(|(_, index)| index)
    }

    /// The cheapest file of a group, by its place there.
    fn cheapest_of(&self, group: &Group, below: &[Arc<RunShape>]) -> Option<(usize, Cost)> {
        let overlaps = self.overlaps_of(group.files.clone(), below);
        let own = |index: usize| match group.sums.tombstones {
            // Then triggers count the bytes as they are, and the file itself need not be looked at.
            0 => self.sizes[index],
            _ => self.files[index].compensated_bytes(),
        };
        let seq_smallest = |index: usize| self.files[index].seq_smallest;
        let mut cheapest: Option<(usize, Cost)> = None;
        for (at, (index, overlap)) in group.files.clone().zip(overlaps).enumerate() {
            let mut cost = Cost { overlap, own: own(index).max(1), seq_smallest: 0 };
            let order = match &cheapest {
                Some((_, best)) => cost.ratio_to(best),
                None => Ordering::Less,
            };
            if order == Ordering::Greater {
                continue;
            }
            cost.seq_smallest = seq_smallest(index);
            if order == Ordering::Less || cheapest.is_none_or(|(_, best)| cost < best) {
                cheapest = Some((at, cost));
            }
        }
        cheapest
    }
}

impl Files {
    /// Bytes of the files that overlap `range`.
    #[must_use]
    pub fn overlap_bytes(&self, range: &KeyRange) -> u64 {
        self.bytes_of(self.overlapping_indices(range))
    }
}

/// Goes through the groups of a run from front to back.
struct Walk<'a> {
    files: &'a Files,
    group: usize,
}

impl<'a> Walk<'a> {
    fn new(files: &'a Files) -> Walk<'a> {
        Walk { files, group: 0 }
    }

    /// One number for all groups that may hold something between two heads, the smaller of which never
    /// goes back. It may take in a neighbour too many: then more is worked out anew than need be.
    fn stamps(&mut self, from: u64, to: u64) -> u64 {
        let marks = &self.files.marks;
        while marks.get(self.group + 1).is_some_and(|next| next.from < from) {
            self.group += 1;
        }
        let mut sum = 0u64;
        for mark in marks[self.group.min(marks.len())..].iter().take_while(|mark| mark.from <= to) {
            sum = (sum ^ mark.stamp).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29);
        }
        sum
    }
}

impl Deref for Files {
    type Target = [Arc<FileShape>];

    fn deref(&self) -> &[Arc<FileShape>] {
        &self.files
    }
}

impl From<Vec<Arc<FileShape>>> for Files {
    fn from(files: Vec<Arc<FileShape>>) -> Files {
        let heads = files.iter().map(|file| head(&file.range.smallest)).collect();
        let tails = files.iter().map(|file| head(&file.range.largest)).collect();
        let sizes = files.iter().map(|file| file.bytes).collect();
        let (groups, marks, names) = (Vec::new(), Vec::new(), OnceLock::new());
        let sums = Sums::default();
        let mut all = Files { files, heads, tails, sizes, groups, marks, sums, names };
        all.regroup(0..0, 0..all.files.len());
        all
    }
}

impl From<Files> for Vec<Arc<FileShape>> {
    fn from(files: Files) -> Vec<Arc<FileShape>> {
        files.files
    }
}

impl FromIterator<Arc<FileShape>> for Files {
    fn from_iter<I: IntoIterator<Item = Arc<FileShape>>>(files: I) -> Files {
        Files::from(files.into_iter().collect::<Vec<_>>())
    }
}

impl<'a> IntoIterator for &'a Files {
    type Item = &'a Arc<FileShape>;
    type IntoIter = slice::Iter<'a, Arc<FileShape>>;

    fn into_iter(self) -> slice::Iter<'a, Arc<FileShape>> {
        self.files.iter()
    }
}

impl PartialEq for Files {
    fn eq(&self, other: &Files) -> bool {
        self.files == other.files
    }
}

impl Eq for Files {}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunId;

    /// A small source of chance.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (self.0 >> 33) % n
        }
    }

    /// Keys of which many begin with the same eight bytes.
    fn key(place: u64) -> Vec<u8> {
        let mut key = (place / 16).to_be_bytes().to_vec();
        key.extend_from_slice(&(place % 16).to_be_bytes()[7..]);
        key
    }

    fn file(id: u64, from: u64, to: u64, dice: &mut Dice) -> Arc<FileShape> {
        Arc::new(FileShape {
            bytes: 1 + dice.below(50),
            entries: 10,
            tombstones: dice.below(10),
            value_bytes: 100,
            seq_smallest: dice.below(20),
            ..FileShape::new(FileId(id), KeyRange::new(key(from), key(to)))
        })
    }

    /// Files with gaps between them, from a place to another.
    fn fill(from: u64, to: u64, ids: &mut u64, dice: &mut Dice) -> Vec<Arc<FileShape>> {
        let (mut files, mut at) = (Vec::new(), from + dice.below(3));
        loop {
            let end = at + dice.below(6);
            if end >= to {
                return files;
            }
            *ids += 1;
            files.push(file(*ids, at, end, dice));
            at = end + 1 + dice.below(3);
        }
    }

    fn run(files: Files) -> Arc<RunShape> {
        Arc::new(RunShape { id: RunId(1), files })
    }

    /// Takes some neighbours out and puts others, that fit, in their place.
    fn change(files: &mut Files, ids: &mut u64, dice: &mut Dice) {
        let place = |key: &[u8]| head(key) * 16 + u64::from(key.last().copied().unwrap_or(0));
        let count = u64::try_from(files.len()).unwrap();
        let start = dice.below(count + 1);
        let end = (start + dice.below(9)).min(count);
        let range = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
        let from = range.start.checked_sub(1).map_or(0, |b| place(&files[b].range.largest) + 1);
        let to = files.get(range.end).map_or(9000, |after| place(&after.range.smallest));
        let new = if dice.below(3) == 0 { Vec::new() } else { fill(from, to, ids, dice) };
        files.splice(range, new);
    }

    #[test]
    fn changes_in_place_come_to_the_same_as_files_made_anew() {
        let mut dice = Dice(7);
        let mut ids = 0;
        let mut files = Files::from(fill(0, 9000, &mut ids, &mut dice));
        let below = run(fill(0, 9000, &mut ids, &mut dice).into());
        assert!(files.len() > 500 && files.groups.len() > 4);
        assert_eq!(files.index_of(files[300].id, 0), Some(300));
        for _ in 0..2000 {
            change(&mut files, &mut ids, &mut dice);
            let anew = Files::from(files.to_vec());
            assert!(files.windows(2).all(|pair| pair[0].range.largest < pair[1].range.smallest));
            assert_eq!((files.bytes(), &files.heads), (anew.bytes(), &anew.heads));
            assert_eq!((&files.tails, &files.sizes), (&anew.tails, &anew.sizes));
            assert_eq!(files.compensated_bytes(), anew.compensated_bytes());
            let covered: Vec<usize> =
                files.groups.iter().flat_map(|group| group.files.clone()).collect();
            assert!(covered.into_iter().eq(0..files.len()));
            let below = std::slice::from_ref(&below);
            assert_eq!(files.least_overlap(below, 1), anew.least_overlap(below, 1));
            if let Some(index) = (!files.is_empty()).then(|| files.len() / 2) {
                assert_eq!(files.index_of(files[index].id, 0), Some(index));
                assert_eq!(files.index_of(FileId(u64::MAX), 0), None);
            }
        }
    }

    #[test]
    fn searches_find_what_a_look_at_every_file_finds() {
        let mut dice = Dice(11);
        let mut ids = 0;
        for size in [0, 40, 9000] {
            let files = Files::from(fill(0, size, &mut ids, &mut dice));
            for _ in 0..2000 {
                let from = dice.below(size + 9);
                let range = KeyRange::new(key(from), key(from + dice.below(300)));
                let found = files.overlapping_indices(&range);
                let expected: Vec<usize> =
                    (0..files.len()).filter(|&at| files[at].range.overlaps(&range)).collect();
                assert!(found.clone().eq(expected.iter().copied()), "{range:?}");
                let bytes: u64 = files[found].iter().map(|file| file.bytes).sum();
                assert_eq!(files.overlap_bytes(&range), bytes);
                let first = files.iter().position(|file| file.range.largest >= range.smallest);
                assert_eq!(files.reaching(&range.smallest), first.unwrap_or(files.len()));
            }
        }
    }

    #[test]
    fn the_least_overlap_is_that_of_all_files_after_any_change_on_either_side() {
        let mut dice = Dice(13);
        let mut ids = 0;
        let mut files = Files::from(fill(0, 9000, &mut ids, &mut dice));
        let mut below: Vec<Arc<RunShape>> =
            (0..2).map(|_| run(fill(0, 9000, &mut ids, &mut dice).into())).collect();
        for step in 0..240 {
            match step % 3 {
                0 => change(&mut files, &mut ids, &mut dice),
                1 => change(&mut Arc::make_mut(&mut below[0]).files, &mut ids, &mut dice),
                _ => change(&mut Arc::make_mut(&mut below[1]).files, &mut ids, &mut dice),
            }
            let cost = |file: &FileShape| Cost {
                overlap: below.iter().map(|run| run.files.overlap_bytes(&file.range)).sum(),
                own: file.compensated_bytes(),
                seq_smallest: file.seq_smallest,
            };
            let expected = (0..files.len())
                .min_by(|&a, &b| cost(&files[a]).cmp(&cost(&files[b])).then(a.cmp(&b)));
            assert_eq!(files.least_overlap(&below, 1), expected, "step {step}");
            let one = &below[..1];
            let cost = |at: usize| Cost {
                overlap: one[0].files.overlap_bytes(&files[at].range),
                own: files[at].compensated_bytes(),
                seq_smallest: files[at].seq_smallest,
            };
            let expected = (0..files.len()).min_by(|&a, &b| cost(a).cmp(&cost(b)).then(a.cmp(&b)));
            assert_eq!(files.least_overlap(one, 2), expected, "step {step}");
        }
    }
}

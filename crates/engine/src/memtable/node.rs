//! A node of the memtable's tree: up to fifteen slots, and the order in which they are to be read.
//!
//! A slot holds what decides nearly every comparison, the first sixteen bytes of a user key, beside
//! the number of the entry that has the rest. Slots fill in any order; one word, the node's
//! *permutation*, says which of them are in use and how they sort, so an entry appears to readers by
//! one atomic store and nothing ever moves within a node. (The permutation is Masstree's: Mao,
//! Kohler, Morris, "Cache Craftiness for Fast Multicore Key-Value Storage", EuroSys 2012.)

use std::cmp::Ordering as Order;

use lsmx_base::key::KeyPrefix;
use lsmx_base::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Slots of a node.
pub(crate) const SLOTS: usize = 15;

/// What stands for "no node".
pub(crate) const NONE: u32 = u32::MAX;

/// What a slot holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) prefix: KeyPrefix,
    /// Number of the entry: in a leaf the slot's own, above the smallest one of the child.
    pub(crate) entry: u32,
    /// The child; unused in a leaf.
    pub(crate) child: u32,
}

/// Slots in use, in key order: the count in the lowest four bits, then four bits for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permutation(u64);

impl Permutation {
    #[inline]
    pub(crate) fn len(self) -> usize {
        (self.0 & 15) as usize
    }

    /// The slot at a place of the order.
    #[inline]
    pub(crate) fn slot(self, place: usize) -> usize {
        ((self.0 >> (4 + 4 * place)) & 15) as usize
    }

    /// With one slot more at a place of the order; there is room.
    fn with(self, place: usize, slot: usize) -> Permutation {
        let order = self.0 >> 4;
        let low = (1 << (4 * place)) - 1;
        // The highest place of a node that has room holds nothing, so nothing is shifted out.
        let order = (order & low) | ((slot as u64) << (4 * place)) | ((order & !low) << 4);
        Permutation((order << 4) | (self.len() as u64 + 1))
    }

    /// The first places alone.
    fn cut(self, len: usize) -> Permutation {
        let order = (self.0 >> 4) & ((1 << (4 * len)) - 1);
        Permutation((order << 4) | len as u64)
    }

    /// A slot that is not in use; there is one.
    fn free(self) -> usize {
        let used = (0..self.len()).fold(0u32, |used, place| used | 1 << self.slot(place));
        used.trailing_ones() as usize
    }
}

/// A node. Changed by one writer at a time, read by anybody meanwhile.
#[derive(Debug)]
pub(crate) struct Node {
    permutation: AtomicU64,
    /// How often the node was split: only a split frees slots, for others to use them again.
    splits: AtomicU32,
    /// The node to the right on the same level.
    next: AtomicU32,
    /// Levels below this one; set before anybody finds the node.
    level: AtomicU32,
    prefixes: [[AtomicU64; SLOTS]; 2],
    entries: [AtomicU32; SLOTS],
    children: [AtomicU32; SLOTS],
}

impl Default for Node {
    fn default() -> Node {
        Node {
            permutation: AtomicU64::new(0),
            splits: AtomicU32::new(0),
            next: AtomicU32::new(NONE),
            level: AtomicU32::new(0),
            prefixes: Default::default(),
            entries: Default::default(),
            children: Default::default(),
        }
    }
}

impl Node {
    /// Makes this unused node one with these slots, in order. Only for the writer, before it tells
    /// anybody of the node.
    pub(crate) fn begin(&self, level: u32, next: u32, slots: impl Iterator<Item = Slot>) {
        self.level.store(level, Ordering::Relaxed);
        self.next.store(next, Ordering::Relaxed);
        for (place, slot) in slots.enumerate() {
            self.insert(place, slot);
        }
    }

    /// Levels below this one.
    #[inline]
    pub(crate) fn level(&self) -> u32 {
        self.level.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn permutation(&self) -> Permutation {
        Permutation(self.permutation.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        Some(self.next.load(Ordering::Acquire)).filter(|&next| next != NONE)
    }

    /// How the prefix of a slot compares; the second half is looked at only if it matters.
    #[inline]
    pub(crate) fn compare(&self, slot: usize, prefix: KeyPrefix) -> Order {
        let half = |half: usize| self.prefixes[half][slot].load(Ordering::Relaxed);
        half(0).cmp(&prefix.0[0]).then_with(|| half(1).cmp(&prefix.0[1]))
    }

    #[inline]
    pub(crate) fn entry(&self, slot: usize) -> u32 {
        self.entries[slot].load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn child(&self, slot: usize) -> u32 {
        self.children[slot].load(Ordering::Relaxed)
    }

    pub(crate) fn slot(&self, slot: usize) -> Slot {
        let prefix = [0, 1].map(|half: usize| self.prefixes[half][slot].load(Ordering::Relaxed));
        Slot { prefix: KeyPrefix(prefix), entry: self.entry(slot), child: self.child(slot) }
    }

    /// A mark that [`Node::unchanged`] compares with; to be taken before the permutation.
    #[inline]
    pub(crate) fn splits(&self) -> u32 {
        self.splits.load(Ordering::Acquire)
    }

    /// Whether everything read from slots since `splits` was taken belongs to the permutation read
    /// after it. Who has read a slot that was used again has read something newer than the fence in
    /// [`Node::insert`], so behind the fence here sees the split that freed it.
    #[inline]
    pub(crate) fn unchanged(&self, splits: u32) -> bool {
        fence(Ordering::Acquire);
        self.splits.load(Ordering::Relaxed) == splits
    }

    /// Puts a slot at a place of the order; the node has room. Only for the writer.
    pub(crate) fn insert(&self, place: usize, new: Slot) {
        let permutation = self.permutation();
        let slot = permutation.free();
        fence(Ordering::Release);
        for (half, prefix) in new.prefix.0.into_iter().enumerate() {
            self.prefixes[half][slot].store(prefix, Ordering::Relaxed);
        }
        self.entries[slot].store(new.entry, Ordering::Relaxed);
        self.children[slot].store(new.child, Ordering::Relaxed);
        // Release: who sees the slot in the order sees what it holds.
        self.permutation.store(permutation.with(place, slot).0, Ordering::Release);
    }

    /// Leaves the slots from `place` on to the node `right`, which has them already. Only for the
    /// writer.
    pub(crate) fn split_off(&self, place: usize, right: u32) {
        // In this order: who misses the slots here finds the way to where they are.
        self.next.store(right, Ordering::Release);
        self.permutation.store(self.permutation().cut(place).0, Ordering::Release);
        // Release: who sees that the node was split sees the cut order too.
        self.splits.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_keeps_the_order_that_slots_were_put_in() {
        let mut permutation = Permutation(0);
        let mut order: Vec<usize> = Vec::new();
        for (count, place) in
            [0, 0, 2, 1, 4, 3, 0, 7, 2, 9, 5, 11, 6, 13, 14].into_iter().enumerate()
        {
            let slot = permutation.free();
            assert_eq!(slot, count);
            permutation = permutation.with(place, slot);
            order.insert(place, slot);
            let read: Vec<_> = (0..permutation.len()).map(|at| permutation.slot(at)).collect();
            assert_eq!(read, order);
        }
        let cut = permutation.cut(8);
        assert_eq!((0..cut.len()).map(|at| cut.slot(at)).collect::<Vec<_>>(), order[..8]);
        assert!(!order[..8].contains(&cut.free()));
    }
}

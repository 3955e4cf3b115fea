//! A node of the B-link tree of a memtable: up to fifteen slots and their order.
//!
//! A slot contains the first sixteen bytes of a user key and the number of the entry with the full key. Most
//! comparisons need only these sixteen bytes. The slots are not sorted. One atomic word, the *permutation*, lists the
//! used slots in key order. Therefore one atomic store makes an insert visible, and slots never move within a node.
//!
//! Source of the permutation: Mao, Kohler, Morris, "Cache Craftiness for Fast Multicore Key-Value Storage" (Masstree),
//! EuroSys 2012.

use std::cmp::Ordering as Order;

use lsmx_base::key::KeyPrefix;
use lsmx_base::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Number of slots of a node.
pub(crate) const SLOTS: usize = 15;

/// Node number that means "no node".
pub(crate) const NO_NODE: u32 = u32::MAX;

/// Contents of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeSlot {
    pub(crate) prefix: KeyPrefix,
    /// Number of the entry. In an inner node, the number of the smallest entry of the child.
    pub(crate) entry: u32,
    /// Number of the child node; unused in a leaf.
    pub(crate) child: u32,
}

/// The used slots of a node in key order. The lowest four bits are the number of used slots. Each following group of
/// four bits is the index of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permutation(u64);

impl Permutation {
    #[inline]
    pub(crate) fn len(self) -> usize {
        (self.0 & 15) as usize
    }

    /// Returns the index of the slot at a position in key order.
    #[inline]
    pub(crate) fn slot(self, position: usize) -> usize {
        ((self.0 >> (4 + 4 * position)) & 15) as usize
    }

    /// Returns the permutation with a slot inserted at a position in key order. The node must not be full.
    fn with_slot(self, position: usize, slot: usize) -> Permutation {
        let order = self.0 >> 4;
        let low = (1 << (4 * position)) - 1;
        // The node is not full, so its highest position is empty and the shift drops no slot.
        let order = (order & low) | ((slot as u64) << (4 * position)) | ((order & !low) << 4);
        Permutation((order << 4) | (self.len() as u64 + 1))
    }

    /// Returns the permutation with only the first `len` positions.
    fn truncate(self, len: usize) -> Permutation {
        let order = (self.0 >> 4) & ((1 << (4 * len)) - 1);
        Permutation((order << 4) | len as u64)
    }

    /// Returns an unused slot. The node must not be full.
    fn unused_slot(self) -> usize {
        let used = (0..self.len()).fold(0u32, |used, position| used | 1 << self.slot(position));
        used.trailing_ones() as usize
    }
}

/// A node of the tree. One thread at a time changes the node. Other threads read it concurrently without a lock.
#[derive(Debug)]
pub(crate) struct TreeNode {
    permutation: AtomicU64,
    /// Number of splits of the node. A slot can be reused only after a split.
    split_count: AtomicU32,
    /// Number of the right sibling on the same level, or [`NO_NODE`].
    next: AtomicU32,
    /// Number of levels below this node; 0 for a leaf. Set before the node becomes reachable.
    level: AtomicU32,
    prefixes: [[AtomicU64; SLOTS]; 2],
    entries: [AtomicU32; SLOTS],
    children: [AtomicU32; SLOTS],
}

impl Default for TreeNode {
    fn default() -> TreeNode {
        TreeNode {
            permutation: AtomicU64::new(0),
            split_count: AtomicU32::new(0),
            next: AtomicU32::new(NO_NODE),
            level: AtomicU32::new(0),
            prefixes: Default::default(),
            entries: Default::default(),
            children: Default::default(),
        }
    }
}

impl TreeNode {
    /// Initializes a new node with sorted slots. Called by the writer before the node is reachable.
    pub(crate) fn init(&self, level: u32, next: u32, slots: impl Iterator<Item = NodeSlot>) {
        self.level.store(level, Ordering::Relaxed);
        self.next.store(next, Ordering::Relaxed);
        for (position, slot) in slots.enumerate() {
            self.insert(position, slot);
        }
    }

    /// Returns the number of levels below this node; 0 for a leaf.
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
        Some(self.next.load(Ordering::Acquire)).filter(|&next| next != NO_NODE)
    }

    /// Compares the key prefix of a slot with `prefix`. Loads the second eight bytes only if the first eight bytes are
    /// equal.
    #[inline]
    pub(crate) fn compare_prefix(&self, slot: usize, prefix: KeyPrefix) -> Order {
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

    pub(crate) fn slot(&self, slot: usize) -> NodeSlot {
        let prefix = [0, 1].map(|half: usize| self.prefixes[half][slot].load(Ordering::Relaxed));
        NodeSlot { prefix: KeyPrefix(prefix), entry: self.entry(slot), child: self.child(slot) }
    }

    /// Returns the number of splits, for [`TreeNode::is_unsplit_since`]. A reader must call this method before
    /// [`TreeNode::permutation`].
    #[inline]
    pub(crate) fn split_count(&self) -> u32 {
        self.split_count.load(Ordering::Acquire)
    }

    /// Returns whether the node was not split after a reader loaded the split count `splits`. If the result is true, no
    /// slot of a permutation that the reader has loaded since then was reused.
    ///
    /// The acquire fence pairs with the release fence in [`TreeNode::insert`]. If a reader has read a value of a reused
    /// slot, the writer stored this value after its release fence. After the acquire fence, the reader therefore sees
    /// the split that freed the slot.
    #[inline]
    pub(crate) fn is_unsplit_since(&self, splits: u32) -> bool {
        fence(Ordering::Acquire);
        self.split_count.load(Ordering::Relaxed) == splits
    }

    /// Inserts a slot at a position in key order. Called only by the writer. The node must not be full.
    pub(crate) fn insert(&self, position: usize, new: NodeSlot) {
        let permutation = self.permutation();
        let slot = permutation.unused_slot();
        fence(Ordering::Release);
        for (half, prefix) in new.prefix.0.into_iter().enumerate() {
            self.prefixes[half][slot].store(prefix, Ordering::Relaxed);
        }
        self.entries[slot].store(new.entry, Ordering::Relaxed);
        self.children[slot].store(new.child, Ordering::Relaxed);
        // Release pairs with the acquire in `permutation`: a reader of the new permutation sees the contents of the
        // slot.
        self.permutation.store(permutation.with_slot(position, slot).0, Ordering::Release);
    }

    /// Removes the slots from `position` on and sets the link to the right sibling `right`, which already contains
    /// these slots. Called only by the writer.
    pub(crate) fn split_off(&self, position: usize, right: u32) {
        // The link is stored before the slots are removed. A reader that does not find a removed slot can therefore
        // follow the link to the right sibling.
        self.next.store(right, Ordering::Release);
        self.permutation.store(self.permutation().truncate(position).0, Ordering::Release);
        // Release pairs with the acquire in `split_count`: a reader of the new count sees the truncated permutation.
        self.split_count.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_keeps_slots_in_insertion_positions() {
        let mut permutation = Permutation(0);
        let mut order: Vec<usize> = Vec::new();
        for (count, position) in
            [0, 0, 2, 1, 4, 3, 0, 7, 2, 9, 5, 11, 6, 13, 14].into_iter().enumerate()
        {
            let slot = permutation.unused_slot();
            assert_eq!(slot, count);
            permutation = permutation.with_slot(position, slot);
            order.insert(position, slot);
            let read: Vec<_> = (0..permutation.len()).map(|at| permutation.slot(at)).collect();
            assert_eq!(read, order);
        }
        let truncated = permutation.truncate(8);
        assert_eq!(
            (0..truncated.len()).map(|at| truncated.slot(at)).collect::<Vec<_>>(),
            order[..8]
        );
        assert!(!order[..8].contains(&truncated.unused_slot()));
    }
}

//! B-link tree: the sorted entries of a memtable. Only one thread inserts at a time. Readers take no lock. Entries are
//! never removed.
//!
//! The nodes of the tree refer to entries by number. A search visits one node per level and reads three or four cache
//! lines of each node. A search in a skip list follows about twenty pointers one after the other, and each is a cache
//! miss.
//!
//! - When a node is full, the writer moves the upper half of the node to a new right sibling and then inserts the
//!   sibling into the parent. A reader that visits the node before the parent is updated follows the link to the right
//!   sibling. Source: Lehman and Yao, "Efficient Locking for Concurrent Operations on B-Trees", ACM TODS 6 (1981).
//! - If a node is split during a search in the node, the reader repeats the search, see `btree_node.rs`.

use std::cmp::Ordering as Order;

use lsmx_base::coding::len_u64;
use lsmx_base::key::KeyPrefix;
use lsmx_base::sync::{AtomicU32, Mutex, Ordering};

use crate::memtable::arena::{Arena, CopiedEntry};
use crate::memtable::btree_node::{NO_NODE, NodeSlot, Permutation, SLOTS, TreeNode};
use crate::memtable::entry::{EntryAttributes, MemtableEntry, SeekTarget};
use crate::memtable::entry_array::{ENTRY_BYTES, EntryArray};
use crate::memtable::stable_vec::StableVec;

/// Base-2 logarithm of the maximum number of nodes in a segment: 32 nodes, or 14 KiB.
const NODES_BITS: u32 = 5;
/// Bytes of a node, including its share of the segment list.
const NODE_BYTES: usize = size_of::<TreeNode>() + 1;

/// Position of an entry: number of the entry, its leaf, and its position in the leaf. Also stores the permutation and
/// the split count of the leaf at the time of the read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreePosition {
    pub(crate) entry: u32,
    leaf: u32,
    position: usize,
    permutation: Permutation,
    splits: u32,
}

impl TreePosition {
    fn to_node_search(self) -> NodeSearch {
        let TreePosition { position, permutation, splits, .. } = self;
        NodeSearch { position, permutation, splits, next: None }
    }
}

/// Result of a search in one node.
struct NodeSearch {
    /// Number of slots that are before the target.
    position: usize,
    permutation: Permutation,
    splits: u32,
    /// Right sibling, if the target is between the last slot of the node and the first slot of the sibling.
    next: Option<u32>,
}

/// State that only the writer uses.
#[derive(Debug)]
struct TreeWriter {
    arena: Arena,
    /// Nodes from the root to a leaf, and the position of the insert in each node. Kept to reuse the memory.
    path: Vec<(u32, usize)>,
    node_count: u32,
}

/// An append-only B-link tree, see the module documentation.
#[derive(Debug)]
pub(crate) struct BLinkTree {
    entries: EntryArray,
    nodes: StableVec<TreeNode, NODES_BITS>,
    /// Number of the root node; `NO_NODE` if the tree is empty.
    root: AtomicU32,
    /// Guards the state of the writer and serializes inserts.
    writer: Mutex<TreeWriter>,
}

impl BLinkTree {
    pub(crate) fn new() -> BLinkTree {
        let writer = TreeWriter { arena: Arena::new(), path: Vec::new(), node_count: 0 };
        BLinkTree {
            entries: EntryArray::new(),
            nodes: StableVec::new(),
            root: AtomicU32::new(NO_NODE),
            writer: Mutex::new(writer),
        }
    }

    /// Returns the array of entries. A [`TreePosition`] contains the number of an entry in this array.
    #[inline]
    pub(crate) fn entries(&self) -> &EntryArray {
        &self.entries
    }

    #[inline]
    fn node(&self, number: u32) -> &TreeNode {
        // The writer creates a node before it stores the number of the node in another node.
        self.nodes.get(number).expect("a node refers to existing nodes")
    }

    /// Returns the number of the root, or `None` if the tree is empty.
    #[inline]
    fn root(&self) -> Option<u32> {
        Some(self.root.load(Ordering::Acquire)).filter(|&root| root != NO_NODE)
    }

    /// Returns whether a slot is before a target. Reads the entry only if the key prefixes are equal. Returns `None` if
    /// the writer is reusing the slot.
    #[inline]
    fn is_before(&self, node: &TreeNode, slot: usize, target: SeekTarget<'_>) -> Option<bool> {
        match node.compare_prefix(slot, target.prefix) {
            Order::Less => Some(true),
            Order::Greater => Some(false),
            Order::Equal => {
                let entry = self.entries.get(node.entry(slot))?;
                let order = entry.user_key().cmp(target.user_key);
                Some(order.then(target.tag.cmp(&entry.tag())) == Order::Less)
            }
        }
    }

    /// Searches for a target in a node by binary search. Repeats the search if the node is split concurrently.
    #[inline]
    fn search_node(&self, node: &TreeNode, target: SeekTarget<'_>) -> NodeSearch {
        loop {
            let splits = node.split_count();
            let permutation = node.permutation();
            let (mut low, mut high) = (0, permutation.len());
            while low < high {
                let middle = (low + high) / 2;
                match self.is_before(node, permutation.slot(middle), target) {
                    Some(true) => low = middle + 1,
                    Some(false) => high = middle,
                    // The slot is reused only after a split, so `is_unsplit_since` returns false below.
                    None => break,
                }
            }
            if node.is_unsplit_since(splits) {
                return NodeSearch { position: low, permutation, splits, next: None };
            }
        }
    }

    /// Searches the node and then its right siblings, because a split may have moved the target to the right. Sets
    /// `number` to the node that contains the target.
    #[inline]
    fn search_right(&self, number: &mut u32, target: SeekTarget<'_>) -> NodeSearch {
        loop {
            let node = self.node(*number);
            let found = self.search_node(node, target);
            if found.position < found.permutation.len() {
                return found;
            }
            // All slots of this node are before the target. The first slot of the right sibling never changes, because
            // smaller entries are inserted into nodes to the left.
            let Some(next) = node.next() else { return found };
            if self.search_node(self.node(next), target).position == 0 {
                return NodeSearch { next: Some(next), ..found };
            }
            *number = next;
        }
    }

    /// Finds the leaf of a target and the position of the target in the leaf. Returns `None` if the tree is empty.
    fn descend(&self, target: SeekTarget<'_>) -> Option<(u32, NodeSearch)> {
        let mut number = self.root()?;
        loop {
            let found = self.search_right(&mut number, target);
            let node = self.node(number);
            if node.level() == 0 {
                return Some((number, found));
            }
            // Selects the last child whose smallest entry is before the target. If there is no such child, selects the
            // leftmost child.
            let slot = found.permutation.slot(found.position.saturating_sub(1));
            let child = node.child(slot);
            if node.is_unsplit_since(found.splits) {
                number = child;
            }
        }
    }

    /// Returns the entry at a position of a leaf. If the position is the end of the leaf, returns the first entry of
    /// the next leaf, or `None` at the end of the tree. Returns `Err` if the leaf was split concurrently.
    #[inline]
    fn position_at(
        &self,
        leaf: u32,
        found: &NodeSearch,
        position: usize,
    ) -> Result<Option<TreePosition>, ()> {
        let node = self.node(leaf);
        if position >= found.permutation.len() {
            // Uses the sibling that the search has read. A later split may have changed the link in the node.
            return found.next.map_or(Ok(None), |next| self.first_entry_of_leaf(next));
        }
        let entry = node.entry(found.permutation.slot(position));
        if !node.is_unsplit_since(found.splits) {
            return Err(());
        }
        let (permutation, splits) = (found.permutation, found.splits);
        Ok(Some(TreePosition { entry, leaf, position, permutation, splits }))
    }

    fn first_entry_of_leaf(&self, leaf: u32) -> Result<Option<TreePosition>, ()> {
        let node = self.node(leaf);
        let splits = node.split_count();
        let permutation = node.permutation();
        let found = NodeSearch { position: 0, permutation, splits, next: None };
        self.position_at(leaf, &found, 0)
    }

    /// Finds the first entry at or after a target.
    pub(crate) fn seek(&self, target: SeekTarget<'_>) -> Option<TreePosition> {
        loop {
            let (leaf, found) = self.descend(target)?;
            if let Ok(position) = self.position_at(leaf, &found, found.position) {
                return position;
            }
        }
    }

    /// Finds the last entry before a target.
    pub(crate) fn seek_before(&self, target: SeekTarget<'_>) -> Option<TreePosition> {
        loop {
            let (leaf, found) = self.descend(target)?;
            // Position 0 means that no entry is before the target: `descend` returns a leaf whose first entry is before
            // the target, or the leftmost leaf.
            let position = found.position.checked_sub(1)?;
            if let Ok(position) = self.position_at(leaf, &found, position) {
                return position;
            }
        }
    }

    /// Returns the first entry.
    pub(crate) fn first(&self) -> Option<TreePosition> {
        self.seek(SeekTarget { prefix: KeyPrefix([0, 0]), user_key: &[], tag: u64::MAX })
    }

    /// Returns the last entry.
    pub(crate) fn last(&self) -> Option<TreePosition> {
        let mut number = self.root()?;
        loop {
            let node = self.node(number);
            let splits = node.split_count();
            let permutation = node.permutation();
            if let Some(next) = node.next() {
                number = next;
                continue;
            }
            let position = permutation.len().checked_sub(1)?;
            if node.level() == 0 {
                let found = NodeSearch { position, permutation, splits, next: None };
                if let Ok(position) = self.position_at(number, &found, position) {
                    return position;
                }
                continue;
            }
            let child = node.child(permutation.slot(position));
            if node.is_unsplit_since(splits) {
                number = child;
            }
        }
    }

    /// Returns an entry near the median, or `None` if the tree has only one leaf. There must be no concurrent insert.
    pub(crate) fn middle_entry(&self) -> Option<&MemtableEntry> {
        let root = self.node(self.root()?);
        let permutation = root.permutation();
        let slot = (root.level() > 0).then(|| permutation.slot(permutation.len() / 2))?;
        Some(self.entries.entry(root.entry(slot)))
    }

    /// Returns the next entry.
    #[inline]
    pub(crate) fn next(&self, at: TreePosition) -> Option<TreePosition> {
        let node = self.node(at.leaf);
        // If no entry was inserted into the leaf since the position was read, the next entry is at the next position.
        // Otherwise the next entry is found by a search.
        if at.position + 1 < at.permutation.len()
            && node.permutation() == at.permutation
            && let Ok(position) = self.position_at(at.leaf, &at.to_node_search(), at.position + 1)
        {
            return position;
        }
        let target = self.entries.entry(at.entry).seek_target().after();
        let mut leaf = at.leaf;
        loop {
            let found = self.search_right(&mut leaf, target);
            if let Ok(position) = self.position_at(leaf, &found, found.position) {
                return position;
            }
        }
    }

    /// Returns the previous entry.
    #[inline]
    pub(crate) fn prev(&self, at: TreePosition) -> Option<TreePosition> {
        let node = self.node(at.leaf);
        if at.position > 0
            && node.permutation() == at.permutation
            && let Ok(position) = self.position_at(at.leaf, &at.to_node_search(), at.position - 1)
        {
            return position;
        }
        self.seek_before(self.entries.entry(at.entry).seek_target())
    }

    /// Copies an entry into the arena and inserts the copy. The sequence number must be unique. Returns the number of
    /// allocated bytes.
    pub(crate) fn insert(&self, user_key: &[u8], value: &[u8], meta: EntryAttributes) -> u64 {
        let mut writer = self.writer.lock();
        let copied = writer.arena.copy_entry(user_key, value);
        self.link_entry(&mut writer, copied, meta)
    }

    /// Like [`BLinkTree::insert`], for an entry that was already copied into an arena.
    pub(crate) fn insert_copied(&self, copied: CopiedEntry, meta: EntryAttributes) -> u64 {
        self.link_entry(&mut self.writer.lock(), copied, meta)
    }

    fn link_entry(
        &self,
        writer: &mut TreeWriter,
        copied: CopiedEntry,
        meta: EntryAttributes,
    ) -> u64 {
        let TreeWriter { path, node_count, .. } = writer;
        let mut bytes = copied.allocated_bytes;
        let entry = MemtableEntry::new(copied.data, copied.key_bytes, meta);
        let number = self.entries.push(entry);
        let target = self.entries.entry(number).seek_target();
        bytes += ENTRY_BYTES;
        let nodes_before = *node_count;
        let mut slot = NodeSlot { prefix: target.prefix, entry: number, child: NO_NODE };
        let Some(root) = self.root() else {
            let root = self.add_node(node_count, 0, NO_NODE, std::iter::once(slot));
            self.root.store(root, Ordering::Release);
            return bytes + len_u64(NODE_BYTES);
        };
        path.clear();
        let mut node_number = root;
        loop {
            let node = self.node(node_number);
            let found = self.search_node(node, target);
            if node.level() == 0 {
                path.push((node_number, found.position));
                break;
            }
            // If the child is split, the slot of the new right sibling is inserted after the slot of the child.
            let after_child = found.position.max(1);
            path.push((node_number, after_child));
            node_number = node.child(found.permutation.slot(after_child - 1));
        }
        let mut was_split = true;
        while was_split && let Some((number, position)) = path.pop() {
            match self.insert_slot(node_count, number, position, slot) {
                Some(right) => slot = right,
                None => was_split = false,
            }
        }
        if was_split {
            // The root was split. The tree gets a new root with the two halves as children.
            let node = self.node(root);
            let left = NodeSlot { child: root, ..node.slot(node.permutation().slot(0)) };
            let level = node.level() + 1;
            let root = self.add_node(node_count, level, NO_NODE, [left, slot].into_iter());
            self.root.store(root, Ordering::Release);
        }
        bytes + u64::from(*node_count - nodes_before) * len_u64(NODE_BYTES)
    }

    /// Inserts a slot at a position of a node. If the node is full, splits the node and returns the slot of the new
    /// right sibling. The caller inserts the returned slot into the parent.
    fn insert_slot(
        &self,
        node_count: &mut u32,
        number: u32,
        position: usize,
        slot: NodeSlot,
    ) -> Option<NodeSlot> {
        let node = self.node(number);
        let permutation = node.permutation();
        if permutation.len() < SLOTS {
            node.insert(position, slot);
            return None;
        }
        let next = node.next().unwrap_or(NO_NODE);
        // An insert at the right end of the tree suggests ascending keys. The full node then keeps all of its slots, so
        // that ascending inserts leave no half-empty nodes.
        let at = if next == NO_NODE && position == SLOTS { SLOTS } else { SLOTS.div_ceil(2) };
        let moved = (at..SLOTS).map(|position| node.slot(permutation.slot(position)));
        let right = self.add_node(node_count, node.level(), next, moved);
        let new = self.node(right);
        if position > at || at == SLOTS {
            new.insert(position - at, slot);
        }
        node.split_off(at, right);
        if position <= at && at < SLOTS {
            node.insert(position, slot);
        }
        Some(NodeSlot { child: right, ..new.slot(new.permutation().slot(0)) })
    }

    /// Creates a node with sorted slots and returns its number. The caller makes the node reachable.
    fn add_node(
        &self,
        node_count: &mut u32,
        level: u32,
        next: u32,
        slots: impl Iterator<Item = NodeSlot>,
    ) -> u32 {
        let number = *node_count;
        // The node number fits into a `u32`, because there are fewer nodes than entries.
        self.nodes.get_or_grow(number).expect("it is the next node").init(level, next, slots);
        *node_count += 1;
        number
    }
}

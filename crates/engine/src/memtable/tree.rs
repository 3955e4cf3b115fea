//! The memtable's order: a B-link tree that only grows, for one writer at a time and any number of
//! readers, who take no lock.
//!
//! Entries lie in one growing array in the order they came; the nodes of the tree name them by
//! number. A search looks at one node a level, at three or four cache lines of each, where a skip
//! list follows some twenty pointers one after the other, each to a line that no cache has.
//!
//! - An entry, once there, never moves and never goes. A cursor stands on its number.
//! - A full node gives its upper half to a new one at its right, and then tells its parent (Lehman
//!   and Yao, "Efficient Locking for Concurrent Operations on B-Trees", ACM TODS 6, 1981). Who comes
//!   too early goes right.
//! - A reader repeats the search in a node that was split meanwhile; see `node.rs`.

use std::cmp::Ordering as Order;

use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, KeyPrefix, SeqNo};
use lsmx_base::sync::{AtomicU32, Mutex, OnceLock, Ordering};

use crate::memtable::arena::{Arena, Copied};
use crate::memtable::entry::{Entry, Label, tag};
use crate::memtable::growing::Growing;
use crate::memtable::node::{NONE, Node, Permutation, SLOTS, Slot};

/// Entries of a segment, as a power of two: 14 KiB.
const ENTRIES_BITS: u32 = 8;
/// Nodes of a segment, as a power of two: 14 KiB.
const NODES_BITS: u32 = 5;
/// Bytes of an entry besides its key and value, with its share of what finds segments.
const ENTRY_BYTES: u64 = size_of::<OnceLock<Entry>>() as u64 + 1;
/// Bytes of a node.
const NODE_BYTES: usize = size_of::<Node>() + 1;
/// A place in the order that a search is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) prefix: KeyPrefix,
    pub(crate) user_key: &'a [u8],
    pub(crate) tag: u64,
}

impl<'a> Target<'a> {
    /// Before the newest entry of `user_key` that is not newer than `seq`.
    pub(crate) fn new(user_key: &'a [u8], seq: SeqNo) -> Target<'a> {
        Target {
            prefix: KeyPrefix::new(user_key),
            user_key,
            tag: tag(seq, EntryKind::ValuePointer),
        }
    }
}

/// An entry, where it was found, and what the node looked like then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) entry: u32,
    leaf: u32,
    place: usize,
    permutation: Permutation,
    splits: u32,
}

impl Place {
    fn found(self) -> Found {
        let Place { place, permutation, splits, .. } = self;
        Found { place, permutation, splits, next: None }
    }
}

/// What a search in one node found.
struct Found {
    /// How many of its slots lie before the target.
    place: usize,
    permutation: Permutation,
    splits: u32,
    /// Where all of them do: the node at its right, none of whose slots does.
    next: Option<u32>,
}

/// What only whoever changes something needs.
#[derive(Debug)]
struct Writing {
    arena: Arena,
    /// The nodes on the way from the root down to a leaf, and the place taken in each.
    path: Vec<(u32, usize)>,
    node_count: u32,
}

/// The ordered entries.
#[derive(Debug)]
pub(crate) struct Tree {
    entries: Growing<OnceLock<Entry>, ENTRIES_BITS>,
    nodes: Growing<Node, NODES_BITS>,
    /// `NONE` while there is nothing.
    root: AtomicU32,
    entry_count: AtomicU32,
    /// Whoever changes something holds it.
    writing: Mutex<Writing>,
}

impl Tree {
    pub(crate) fn new() -> Tree {
        let writing = Writing { arena: Arena::new(), path: Vec::new(), node_count: 0 };
        Tree {
            entries: Growing::new(),
            nodes: Growing::new(),
            root: AtomicU32::new(NONE),
            entry_count: AtomicU32::new(0),
            writing: Mutex::new(writing),
        }
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> u32 {
        self.entry_count.load(Ordering::Acquire)
    }

    /// The entry with this number, which a search found.
    #[inline]
    pub(crate) fn entry(&self, number: u32) -> &Entry {
        // An entry is in the array before its number is in a node.
        self.entry_at(number).expect("a number in a node is that of an entry")
    }

    #[inline]
    fn entry_at(&self, number: u32) -> Option<&Entry> {
        self.entries.get(number)?.get()
    }

    #[inline]
    fn node(&self, number: u32) -> &Node {
        // A node is in the array before its number is in another.
        self.nodes.get(number).expect("a number in a node is that of a node")
    }

    /// The root, if there is anything.
    #[inline]
    fn root(&self) -> Option<u32> {
        Some(self.root.load(Ordering::Acquire)).filter(|&root| root != NONE)
    }

    /// Whether a slot lies before a target, by the slot's entry if the prefix leaves it open. `None`
    /// if the slot is just being used again.
    #[inline]
    fn before(&self, node: &Node, slot: usize, target: Target<'_>) -> Option<bool> {
        match node.compare(slot, target.prefix) {
            Order::Less => Some(true),
            Order::Greater => Some(false),
            Order::Equal => {
                let entry = self.entry_at(node.entry(slot))?;
                let order = entry.user_key().cmp(target.user_key);
                Some(order.then(target.tag.cmp(&entry.tag())) == Order::Less)
            }
        }
    }

    /// Looks where a target lies among the slots of a node, by halves.
    #[inline]
    fn search(&self, node: &Node, target: Target<'_>) -> Found {
        loop {
            let splits = node.splits();
            let permutation = node.permutation();
            let (mut low, mut high) = (0, permutation.len());
            while low < high {
                let middle = (low + high) / 2;
                match self.before(node, permutation.slot(middle), target) {
                    Some(true) => low = middle + 1,
                    Some(false) => high = middle,
                    // Used again, so `unchanged` says no.
                    None => break,
                }
            }
            if node.unchanged(splits) {
                return Found { place: low, permutation, splits, next: None };
            }
        }
    }

    /// [`Tree::search`] in the node, or the one at its right that the target has moved to.
    #[inline]
    fn search_right(&self, number: &mut u32, target: Target<'_>) -> Found {
        loop {
            let node = self.node(*number);
            let found = self.search(node, target);
            if found.place < found.permutation.len() {
                return found;
            }
            // All of this node is before the target. The next one's first slot never changes: what
            // is smaller goes further left.
            let Some(next) = node.next() else { return found };
            if self.search(self.node(next), target).place == 0 {
                return Found { next: Some(next), ..found };
            }
            *number = next;
        }
    }

    /// The leaf that a target lies in, and where.
    fn descend(&self, target: Target<'_>) -> Option<(u32, Found)> {
        let mut number = self.root()?;
        loop {
            let found = self.search_right(&mut number, target);
            let node = self.node(number);
            if node.level() == 0 {
                return Some((number, found));
            }
            // The child whose smallest entry is before the target; all at the left end are.
            let slot = found.permutation.slot(found.place.saturating_sub(1));
            let child = node.child(slot);
            if node.unchanged(found.splits) {
                number = child;
            }
        }
    }

    /// The entry at a place of a leaf, or the first of the leaf after it. `None` at the very end, or
    /// with `Err` if the leaf was split meanwhile.
    #[inline]
    fn stand(&self, leaf: u32, found: &Found, place: usize) -> Result<Option<Place>, ()> {
        let node = self.node(leaf);
        if place >= found.permutation.len() {
            // Not the node that is at its right by now: a split may have put one between.
            return found.next.map_or(Ok(None), |next| self.first_of(next));
        }
        let entry = node.entry(found.permutation.slot(place));
        if !node.unchanged(found.splits) {
            return Err(());
        }
        let (permutation, splits) = (found.permutation, found.splits);
        Ok(Some(Place { entry, leaf, place, permutation, splits }))
    }

    fn first_of(&self, leaf: u32) -> Result<Option<Place>, ()> {
        let node = self.node(leaf);
        let splits = node.splits();
        let permutation = node.permutation();
        let found = Found { place: 0, permutation, splits, next: None };
        self.stand(leaf, &found, 0)
    }

    /// The first entry at or after a target.
    pub(crate) fn at_or_after(&self, target: Target<'_>) -> Option<Place> {
        loop {
            let (leaf, found) = self.descend(target)?;
            if let Ok(place) = self.stand(leaf, &found, found.place) {
                return place;
            }
        }
    }

    /// The last entry before a target.
    pub(crate) fn before_target(&self, target: Target<'_>) -> Option<Place> {
        loop {
            let (leaf, found) = self.descend(target)?;
            // A leaf that is not the leftmost begins with something before the target.
            let place = found.place.checked_sub(1)?;
            if let Ok(place) = self.stand(leaf, &found, place) {
                return place;
            }
        }
    }

    /// The first entry.
    pub(crate) fn first(&self) -> Option<Place> {
        self.at_or_after(Target { prefix: KeyPrefix([0, 0]), user_key: &[], tag: u64::MAX })
    }

    /// The last entry.
    pub(crate) fn last(&self) -> Option<Place> {
        let mut number = self.root()?;
        loop {
            let node = self.node(number);
            let splits = node.splits();
            let permutation = node.permutation();
            if let Some(next) = node.next() {
                number = next;
                continue;
            }
            let place = permutation.len().checked_sub(1)?;
            if node.level() == 0 {
                let found = Found { place, permutation, splits, next: None };
                if let Ok(place) = self.stand(number, &found, place) {
                    return place;
                }
                continue;
            }
            let child = node.child(permutation.slot(place));
            if node.unchanged(splits) {
                number = child;
            }
        }
    }

    /// An entry about in the middle, of those that fill more than a leaf. Nothing is put in meanwhile.
    pub(crate) fn middle(&self) -> Option<&Entry> {
        let root = self.node(self.root()?);
        let permutation = root.permutation();
        let slot = (root.level() > 0).then(|| permutation.slot(permutation.len() / 2))?;
        Some(self.entry(root.entry(slot)))
    }

    /// The entry after one.
    #[inline]
    pub(crate) fn after(&self, at: Place) -> Option<Place> {
        let node = self.node(at.leaf);
        // While nothing was put in, the next one is the next slot.
        if at.place + 1 < at.permutation.len()
            && node.permutation() == at.permutation
            && let Ok(place) = self.stand(at.leaf, &at.found(), at.place + 1)
        {
            return place;
        }
        let mut target = self.entry(at.entry).target();
        // The smallest target after the entry: numbers are at least 1, so a tag is not 0.
        target.tag -= 1;
        let mut leaf = at.leaf;
        loop {
            let found = self.search_right(&mut leaf, target);
            if let Ok(place) = self.stand(leaf, &found, found.place) {
                return place;
            }
        }
    }

    /// The entry before one.
    #[inline]
    pub(crate) fn before_place(&self, at: Place) -> Option<Place> {
        let node = self.node(at.leaf);
        if at.place > 0
            && node.permutation() == at.permutation
            && let Ok(place) = self.stand(at.leaf, &at.found(), at.place - 1)
        {
            return place;
        }
        self.before_target(self.entry(at.entry).target())
    }

    /// Adds an entry; its number is its own, so there is none like it. Returns the bytes of memory
    /// that all of it grew by.
    pub(crate) fn insert(&self, user_key: &[u8], value: &[u8], label: Label) -> u64 {
        let mut writing = self.writing.lock();
        let copied = writing.arena.copy(user_key, value);
        self.link(&mut writing, copied, label)
    }

    /// [`Tree::insert`] of what lies in memory already.
    pub(crate) fn insert_copied(&self, copied: Copied, label: Label) -> u64 {
        self.link(&mut self.writing.lock(), copied, label)
    }

    fn link(&self, writing: &mut Writing, copied: Copied, label: Label) -> u64 {
        let Writing { path, node_count, .. } = writing;
        let mut bytes = copied.taken_bytes;
        let entry = Entry::new(copied.data, copied.key_bytes, label);
        let number = self.entry_count.load(Ordering::Relaxed);
        let place = self.entries.reach(number).expect("it is the next one");
        // Numbers are given under the lock, each once.
        let _ = place.set(entry);
        let target = self.entry(number).target();
        // Entries take more than 64 bytes each, so memory ends long before 2^32 of them.
        self.entry_count
            .store(number.checked_add(1).expect("memory ends before"), Ordering::Release);
        bytes += ENTRY_BYTES;
        let nodes_before = *node_count;
        let mut slot = Slot { prefix: target.prefix, entry: number, child: NONE };
        let Some(root) = self.root() else {
            let root = self.add_node(node_count, 0, NONE, std::iter::once(slot));
            self.root.store(root, Ordering::Release);
            return bytes + len_u64(NODE_BYTES);
        };
        path.clear();
        let mut node_number = root;
        loop {
            let node = self.node(node_number);
            let found = self.search(node, target);
            if node.level() == 0 {
                path.push((node_number, found.place));
                break;
            }
            // A half that splits off the child goes behind the child.
            let behind = found.place.max(1);
            path.push((node_number, behind));
            node_number = node.child(found.permutation.slot(behind - 1));
        }
        let mut full = true;
        while full && let Some((number, place)) = path.pop() {
            match self.put(node_count, number, place, slot) {
                Some(right) => slot = right,
                None => full = false,
            }
        }
        if full {
            // The root was split.
            let node = self.node(root);
            let left = Slot { child: root, ..node.slot(node.permutation().slot(0)) };
            let level = node.level() + 1;
            let root = self.add_node(node_count, level, NONE, [left, slot].into_iter());
            self.root.store(root, Ordering::Release);
        }
        bytes + u64::from(*node_count - nodes_before) * len_u64(NODE_BYTES)
    }

    /// Puts a slot at a place of a node; a node that is full is split first. Returns what its parent
    /// is to know then.
    fn put(&self, node_count: &mut u32, number: u32, place: usize, slot: Slot) -> Option<Slot> {
        let node = self.node(number);
        let permutation = node.permutation();
        if permutation.len() < SLOTS {
            node.insert(place, slot);
            return None;
        }
        let next = node.next().unwrap_or(NONE);
        // At the right end of everything keys come in order: what is full stays so.
        let at = if next == NONE && place == SLOTS { SLOTS } else { SLOTS.div_ceil(2) };
        let moved = (at..SLOTS).map(|place| node.slot(permutation.slot(place)));
        let right = self.add_node(node_count, node.level(), next, moved);
        let new = self.node(right);
        if place > at || at == SLOTS {
            new.insert(place - at, slot);
        }
        node.split_off(at, right);
        if place <= at && at < SLOTS {
            node.insert(place, slot);
        }
        Some(Slot { child: right, ..new.slot(new.permutation().slot(0)) })
    }

    /// Makes a node with these slots, in order; nobody finds it yet.
    fn add_node(
        &self,
        node_count: &mut u32,
        level: u32,
        next: u32,
        slots: impl Iterator<Item = Slot>,
    ) -> u32 {
        let number = *node_count;
        // There are fewer nodes than entries.
        self.nodes.reach(number).expect("it is the next one").begin(level, next, slots);
        *node_count += 1;
        number
    }
}

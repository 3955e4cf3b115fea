//! The block cache: one byte budget, metadata before data.
//!
//! 1. Data blocks live in a general-purpose cache (`blocks`). Its capacity is what metadata leaves
//!    of the budget.
//! 2. Metadata blocks live in slots on the open tables (`slots`); here they are only counted.
//! 3. When metadata alone passes the budget, the governor evicts: all index blocks before any filter,
//!    those before any top index, those before any range tombstones. A top index is a thirtieth of the
//!    filters, or less, and saves as many reads as they do. Within a kind it goes round like a clock: a
//!    slot that was used since the last round is passed over once.
//!
//! So with a budget for the filters and top indexes, a lookup costs two reads; with a budget for the
//! index blocks too, one. The only lock taken is that of the governor's rounds, and nothing is read
//! from a file while it is held.

mod blocks;
mod counts;
mod slots;

use std::collections::{BTreeMap, VecDeque};

use crate::format::BlockKind;
pub use blocks::BlockCacheKind;
use blocks::{BlockId, BlockStore};
use counts::Counts;
pub use counts::{FilterAnswers, HitsMisses, PerKind};
use lsmx_base::slice::{BlockBytes, LiveBlocks};
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
pub(crate) use slots::{
    INDEX_OVERHEAD_BYTES, Metadata, Resident, SLOT_OVERHEAD_BYTES, Slot, TableSlots,
};
use slots::{Place, Visit};

/// The data cache's capacity moves in steps of this part of the budget, because every move locks
/// all of its shards.
const CAPACITY_STEPS: u64 = 256;

/// Filled slots of one kind, oldest fill first.
type Round = VecDeque<Place>;

/// Blocks of a database in memory, within a budget of bytes.
#[derive(Debug)]
pub struct Cache {
    kind: BlockCacheKind,
    budget_bytes: u64,
    /// Whether open tables are part of the budget.
    with_open_tables: bool,
    /// Bytes of open tables besides their blocks.
    open_tables: AtomicU64,
    /// Bytes that operand stores take.
    beside: AtomicU64,
    /// Bytes that cursors have read ahead.
    read_ahead: AtomicU64,
    data: Box<dyn BlockStore>,
    /// The capacity that the data cache was last given.
    data_capacity: AtomicU64,
    /// Whether somebody is giving it one.
    moving: AtomicBool,
    /// Bytes of filled slots, by [`Metadata`].
    resident: [AtomicU64; Metadata::ALL.len()],
    /// Filled slots in the order of the governor's rounds, by [`Metadata`]. Guards nothing else.
    rounds: Mutex<[Round; Metadata::ALL.len()]>,
    counts: Counts,
    /// Data blocks that were read for the cache, and are still somewhere.
    live: Arc<LiveBlocks>,
    tables: AtomicU64,
}

impl Cache {
    /// An empty cache that keeps at most `budget_bytes`. With 0 nothing stays.
    #[must_use]
    pub fn new(budget_bytes: u64) -> Arc<Cache> {
        Cache::of_kind(BlockCacheKind::default(), budget_bytes)
    }

    /// As [`Cache::new`], with a choice of what holds the data blocks.
    #[must_use]
    pub fn of_kind(kind: BlockCacheKind, budget_bytes: u64) -> Arc<Cache> {
        Cache::make(kind, budget_bytes, false)
    }

    /// An empty cache whose budget is that of open tables too: what they take is taken from the
    /// blocks.
    #[must_use]
    pub fn with_open_tables(kind: BlockCacheKind, budget_bytes: u64) -> Arc<Cache> {
        Cache::make(kind, budget_bytes, true)
    }

    fn make(kind: BlockCacheKind, budget_bytes: u64, with_open_tables: bool) -> Arc<Cache> {
        Arc::new(Cache {
            kind,
            budget_bytes,
            with_open_tables,
            open_tables: AtomicU64::new(0),
            beside: AtomicU64::new(0),
            read_ahead: AtomicU64::new(0),
            data: blocks::store(kind, budget_bytes),
            data_capacity: AtomicU64::new(budget_bytes),
            moving: AtomicBool::new(false),
            resident: Default::default(),
            rounds: Mutex::new(Default::default()),
            counts: Counts::new(),
            live: Arc::default(),
            tables: AtomicU64::new(0),
        })
    }

    /// What holds the data blocks.
    #[must_use]
    pub fn kind(&self) -> BlockCacheKind {
        self.kind
    }

    /// Most bytes that blocks in memory take.
    #[must_use]
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Hits and misses since the cache was made. Reads of jobs are not among them.
    #[must_use]
    pub fn counts(&self) -> PerKind<HitsMisses> {
        self.counts.read()
    }

    /// What filters answered since the cache was made, by level of their tables.
    #[must_use]
    pub fn filter_answers(&self) -> BTreeMap<u8, FilterAnswers> {
        self.counts.filter_answers()
    }

    /// Bytes of blocks in memory, overhead included.
    #[must_use]
    pub fn resident_bytes(&self) -> PerKind<u64> {
        PerKind::from_fn(|kind| match kind {
            BlockKind::Data => self.data.bytes(),
            BlockKind::Index => self.resident_of(Metadata::Index),
            BlockKind::TopIndex => self.resident_of(Metadata::TopIndex),
            BlockKind::Filter => self.resident_of(Metadata::Filter),
            BlockKind::RangeTombstones => self.resident_of(Metadata::RangeTombstones),
            BlockKind::Open | BlockKind::Blob | BlockKind::Bucket => 0,
        })
    }

    fn resident_of(&self, kind: Metadata) -> u64 {
        self.resident[kind as usize].load(Ordering::Relaxed)
    }

    fn resident_metadata(&self) -> u64 {
        self.resident.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// A number for a table that is being opened; no other table of this cache ever gets it, so
    /// blocks of a file id that is used again are never mixed up.
    pub(crate) fn next_table(&self) -> u64 {
        self.tables.fetch_add(1, Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn count_hits(&self, kind: BlockKind, count: u64) {
        self.counts.hit(kind, count);
    }

    #[inline]
    pub(crate) fn count_miss(&self, kind: BlockKind) {
        self.counts.miss(kind);
    }

    /// Counts what filters of tables in a level answered for keys that these do not have.
    #[inline]
    pub(crate) fn count_filter_answers(&self, level: u8, answers: FilterAnswers) {
        self.counts.filter_answers_of(level, answers);
    }

    /// The data block at `offset` of a table, if it is in memory.
    #[inline]
    pub(crate) fn data_block(&self, table: u64, offset: u64) -> Option<BlockBytes> {
        self.data.get(BlockId { table, offset })
    }

    /// As [`Cache::data_block`], for readers whose interest says nothing about the next one's.
    pub(crate) fn peek_data_block(&self, table: u64, offset: u64) -> Option<BlockBytes> {
        self.data.peek(BlockId { table, offset })
    }

    /// Keeps a data block that was read.
    pub(crate) fn keep_data_block(&self, table: u64, offset: u64, block: &BlockBytes) {
        if self.data_capacity.load(Ordering::Relaxed) > 0 {
            self.data.insert(BlockId { table, offset }, block.clone());
        }
    }

    pub(crate) fn live_blocks(&self) -> &Arc<LiveBlocks> {
        &self.live
    }

    /// Bytes of data blocks that iterators and slices hold and the cache does not: it never had them,
    /// or has let them go. About, while blocks come and go.
    #[must_use]
    pub fn lent_bytes(&self) -> u64 {
        self.live.bytes().saturating_sub(self.data.content_bytes())
    }

    /// Bytes that open tables take besides their blocks: handles, key ranges, empty slots.
    #[must_use]
    pub fn open_table_bytes(&self) -> u64 {
        self.open_tables.load(Ordering::Relaxed)
    }

    /// Bytes that operand stores take, which with a budget for open tables too are taken from the blocks.
    #[must_use]
    pub fn beside_bytes(&self) -> u64 {
        self.beside.load(Ordering::Relaxed)
    }

    /// An operand store takes so many bytes now, and took so many when it was last asked.
    pub(crate) fn beside_moved(&self, from: u64, to: u64) {
        self.beside.fetch_add(to, Ordering::Relaxed);
        self.beside.fetch_sub(from, Ordering::Relaxed);
        if self.with_open_tables {
            self.govern();
        }
    }

    /// Bytes that cursors have read ahead and not used up.
    #[must_use]
    pub fn read_ahead_bytes(&self) -> u64 {
        self.read_ahead.load(Ordering::Relaxed)
    }

    /// Counts a window that a cursor reads ahead.
    pub(crate) fn read_ahead_grown(&self, bytes: u64) {
        self.read_ahead.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a window that is let go.
    pub(crate) fn read_ahead_freed(&self, bytes: u64) {
        self.read_ahead.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that more metadata could take without any of what is there being evicted.
    pub(crate) fn room_beside_metadata(&self) -> u64 {
        self.blocks_budget().saturating_sub(self.resident_metadata())
    }

    /// Counts a table that was opened, and makes room for it.
    fn table_opened(&self, bytes: u64) {
        self.open_tables.fetch_add(bytes, Ordering::Relaxed);
        if self.with_open_tables {
            self.govern();
        }
    }

    /// Takes a table off the count. Blocks may grow into the room with the next fill.
    fn table_closed(&self, bytes: u64) {
        self.open_tables.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes for blocks: what open tables and operand stores leave of the budget.
    fn blocks_budget(&self) -> u64 {
        let others = || self.open_table_bytes().saturating_add(self.beside_bytes());
        let others = if self.with_open_tables { others() } else { 0 };
        self.budget_bytes.saturating_sub(others)
    }

    /// Puts metadata bytes on the count.
    fn charge(&self, kind: Metadata, bytes: u64) {
        self.resident[kind as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes metadata bytes off the count. Data may grow into the room with the next fill.
    fn discharge(&self, kind: Metadata, bytes: u64) {
        self.resident[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Makes room after a slot was filled. `place` is given if the rounds do not list the slot yet.
    fn filled(&self, kind: Metadata, place: Option<Place>) {
        if let Some(place) = place {
            let mut rounds = self.rounds.lock();
            let round = &mut rounds[kind as usize];
            if round.len() == round.capacity() {
                // Slots of dropped tables leave before the queue grows. It grows by its own length at
                // least, so this costs constant time per place.
                round.retain(|place| place.table.strong_count() > 0);
                round.reserve(round.len() + 1);
            }
            round.push_back(place);
        }
        self.govern();
    }

    /// Brings metadata within the budget and gives the data cache what is left.
    fn govern(&self) {
        if self.resident_metadata() > self.blocks_budget() {
            for kind in Metadata::ALL {
                self.evict(kind);
            }
        }
        let left = self.blocks_budget().saturating_sub(self.resident_metadata());
        let step = (self.budget_bytes / CAPACITY_STEPS).max(1);
        let capacity = left - left % step;
        if self.data_capacity.swap(capacity, Ordering::SeqCst) != capacity {
            self.move_capacity();
        }
    }

    /// Gives the data cache the capacity that was worked out last. Whoever is at it looks again when it
    /// has done so: nobody waits for that, and no older capacity has the last word.
    fn move_capacity(&self) {
        while !self.moving.swap(true, Ordering::SeqCst) {
            let wanted = self.data_capacity.load(Ordering::SeqCst);
            self.data.set_capacity(wanted);
            self.moving.store(false, Ordering::SeqCst);
            if self.data_capacity.load(Ordering::SeqCst) == wanted {
                break;
            }
        }
    }

    /// Evicts metadata of one kind until all metadata is within the budget or none of it is left.
    fn evict(&self, kind: Metadata) {
        let mut victims = Vec::new();
        let mut rounds = self.rounds.lock();
        let round = &mut rounds[kind as usize];
        // Two rounds see every slot idle once, whatever readers do meanwhile.
        let mut visits = 2 * round.len();
        while self.resident_metadata() > self.blocks_budget() && visits > 0 {
            visits -= 1;
            let Some(place) = round.pop_front() else { break };
            let Some(table) = place.table.upgrade() else { continue };
            table.set_listed(kind, place.ordinal, false);
            match table.visit(kind, place.ordinal) {
                Visit::Empty => {}
                Visit::Used if visits >= round.len() => {
                    // A fill that came meanwhile lists it itself.
                    if !table.set_listed(kind, place.ordinal, true) {
                        round.push_back(place);
                    }
                }
                Visit::Used | Visit::Idle => table.evict(kind, place.ordinal),
            }
            // If this was the last handle of a dropped table, its slots are emptied after the lock
            // is free.
            victims.push(table);
        }
        drop(rounds);
    }
}

#[cfg(test)]
mod tests;

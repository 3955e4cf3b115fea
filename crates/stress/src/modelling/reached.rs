//! Counts of rare cases in histories, and recorded events.

use std::sync::Mutex;

use lsmx::compaction::Preset;
use lsmx::{Event, EventListener};

/// Counts of rare cases. Tests require minimum counts.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Reached {
    pub operations: u64,
    pub guards_held: u64,
    pub guards_refused: u64,
    pub turns: u64,
    pub reopenings: u64,
    pub kills: u64,
    pub iterators_over_closes: u64,
    pub flushes: u64,
    pub merges: u64,
    /// Compactions in parts, and parts that other threads ran.
    pub divided: u64,
    pub helped: u64,
    pub moves: u64,
    pub snapshot_reads: u64,
    /// Keys that range deletes removed.
    pub range_deleted: u64,
    /// Delete-only compactions.
    pub drops: u64,
    pub operands: u64,
    pub updates: u64,
    pub bare_lives: u64,
    /// Reads that failed because the merge operator was missing.
    pub unfolded: u64,
    pub folded_by_reads: u64,
    pub folded_by_jobs: u64,
    /// Rewritten blob files.
    pub collections: u64,
    pub dropped: u64,
    pub copies: u64,
    /// Operands and delete markers delivered to stores, keys that collections moved to the tree, and conversions of keyspaces
    /// to the tree.
    #[serde(rename = "beside")]
    pub operands_in_stores: u64,
    pub anchors: u64,
    pub collected: u64,
    pub brought_back: u64,
    /// Changes of policy of an open keyspace: for each preset a bit set of its successors.
    pub took_over: [u32; PRESETS],
}

/// Number of presets.
pub const PRESETS: usize = Preset::ALL.len();

impl std::ops::AddAssign for Reached {
    fn add_assign(&mut self, other: Reached) {
        self.operations += other.operations;
        self.guards_held += other.guards_held;
        self.guards_refused += other.guards_refused;
        self.turns += other.turns;
        self.reopenings += other.reopenings;
        self.kills += other.kills;
        self.iterators_over_closes += other.iterators_over_closes;
        self.flushes += other.flushes;
        self.merges += other.merges;
        self.divided += other.divided;
        self.helped += other.helped;
        self.moves += other.moves;
        self.snapshot_reads += other.snapshot_reads;
        self.range_deleted += other.range_deleted;
        self.drops += other.drops;
        self.operands += other.operands;
        self.updates += other.updates;
        self.bare_lives += other.bare_lives;
        self.unfolded += other.unfolded;
        self.folded_by_reads += other.folded_by_reads;
        self.folded_by_jobs += other.folded_by_jobs;
        self.collections += other.collections;
        self.dropped += other.dropped;
        self.copies += other.copies;
        self.operands_in_stores += other.operands_in_stores;
        self.anchors += other.anchors;
        self.collected += other.collected;
        self.brought_back += other.brought_back;
        for (mine, others) in self.took_over.iter_mut().zip(other.took_over) {
            *mine |= others;
        }
    }
}

/// Records events as text.
#[derive(Debug, Default)]
pub struct Events(Mutex<Vec<String>>);

impl Events {
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl EventListener for Events {
    fn on_event(&self, event: &Event) {
        assert!(!matches!(event, Event::Failure(_) | Event::ReadOnly(_)), "{event}");
        self.0.lock().unwrap().push(event.to_string());
    }
}

//! Counts of rare cases in histories.

use lsmx::compaction::Preset;

/// Counts of rare cases. Tests require that each count reaches a minimum.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct CaseCounts {
    pub operations: u64,
    pub guards_held: u64,
    pub guards_refused: u64,
    /// Committed transactions.
    pub transactions: u64,
    /// Transactions that locked keys.
    pub locking_transactions: u64,
    /// Operations whose measured durations were counted, and complete metrics files that were read.
    pub measured_operations: u64,
    pub metrics_files: u64,
    #[serde(rename = "turns")]
    pub direction_changes: u64,
    #[serde(rename = "reopenings")]
    pub restarts: u64,
    /// Number of restarts after a kill or a power loss.
    pub kills: u64,
    pub power_losses: u64,
    /// Number of iterators that were open when their database was closed.
    pub iterators_over_closes: u64,
    pub flushes: u64,
    pub merges: u64,
    /// `subcompactions` is the number of compactions that were divided into parts. `helped` is the number of parts that
    /// additional threads executed.
    #[serde(rename = "divided")]
    pub subcompactions: u64,
    pub helped: u64,
    pub moves: u64,
    pub snapshot_reads: u64,
    pub cursor_moves: u64,
    /// Number of lookups that failed because the read options allow no file read.
    pub refused_gets: u64,
    /// Number of cursor moves that failed because the read options allow no file read.
    pub refused_cursor_moves: u64,
    /// Number of keys that range deletes removed.
    pub range_deleted: u64,
    /// Number of delete-only compactions.
    pub drops: u64,
    /// Number of tables that ingests and bulk loads added.
    pub ingested_files: u64,
    /// `expired_values` is the number of values that expired. `expired_dropped` is the number of expired entries that
    /// jobs dropped.
    pub expired_values: u64,
    /// Puts with a time to live, including those with the default time to live of their keyspace.
    pub puts_with_ttl: u64,
    pub expired_dropped: u64,
    pub operands: u64,
    pub updates: u64,
    /// Number of updates that kept the expiry time of a value.
    pub kept_expiries: u64,
    #[serde(rename = "bare_lives")]
    pub restarts_without_operators: u64,
    /// Number of reads that failed because the merge operator was missing.
    #[serde(rename = "unfolded")]
    pub reads_without_operator: u64,
    pub folded_by_reads: u64,
    pub folded_by_jobs: u64,
    /// Number of merged values that point lookups stored.
    pub write_backs: u64,
    /// Number of rewritten blob files.
    #[serde(rename = "collections")]
    pub blob_rewrites: u64,
    /// Number of values that compaction filters changed.
    pub filtered: u64,
    /// Number of merges that were repeated without the compaction filter.
    pub repeated_merges: u64,
    #[serde(rename = "dropped")]
    pub dropped_keyspaces: u64,
    #[serde(rename = "cloned")]
    pub cloned_keyspaces: u64,
    #[serde(rename = "renamed")]
    pub renamed_keyspaces: u64,
    /// Number of checkpoints and read-only opens that were compared with the model.
    #[serde(rename = "copies")]
    pub compared_copies: u64,
    /// Number of operands delivered to operand stores.
    #[serde(rename = "beside")]
    pub operands_in_stores: u64,
    /// Number of delete markers delivered to operand stores.
    pub delete_markers: u64,
    /// Number of keys whose operands a collection moved from an operand store to the tree.
    #[serde(rename = "collected")]
    pub keys_to_tree: u64,
    /// Number of keyspaces whose operand store was removed by a call that moved all operands to the tree.
    #[serde(rename = "brought_back")]
    pub stores_removed: u64,
    /// Policy changes of open keyspaces. Each preset has a bit set of the presets that replaced it.
    #[serde(rename = "took_over")]
    pub policy_changes: [u32; PRESETS],
}

pub const PRESETS: usize = Preset::ALL.len();

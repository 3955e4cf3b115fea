//! Counts of rare cases in histories.

use lsmx::compaction::Preset;

/// Counts of rare cases. Tests require that each count reaches a minimum.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct CaseCounts {
    pub operations: u64,
    pub guards_held: u64,
    pub guards_refused: u64,
    #[serde(rename = "turns")]
    pub direction_changes: u64,
    #[serde(rename = "reopenings")]
    pub restarts: u64,
    /// Restarts after a kill or a power loss.
    pub kills: u64,
    /// Iterators that were open while their database closed.
    pub iterators_over_closes: u64,
    pub flushes: u64,
    pub merges: u64,
    /// `subcompactions` counts the compactions that were divided into parts. `helped` counts the parts that additional
    /// threads executed.
    #[serde(rename = "divided")]
    pub subcompactions: u64,
    pub helped: u64,
    pub moves: u64,
    pub snapshot_reads: u64,
    /// Keys that range deletes removed.
    pub range_deleted: u64,
    /// Delete-only compactions.
    pub drops: u64,
    pub operands: u64,
    pub updates: u64,
    #[serde(rename = "bare_lives")]
    pub restarts_without_operators: u64,
    /// Reads that failed because the merge operator was missing.
    #[serde(rename = "unfolded")]
    pub reads_without_operator: u64,
    pub folded_by_reads: u64,
    pub folded_by_jobs: u64,
    /// Folded values that point lookups stored.
    pub write_backs: u64,
    /// Rewritten blob files.
    #[serde(rename = "collections")]
    pub blob_rewrites: u64,
    #[serde(rename = "dropped")]
    pub dropped_keyspaces: u64,
    /// Number of checkpoints and read-only opens that were compared with the model.
    #[serde(rename = "copies")]
    pub compared_copies: u64,
    /// Operands delivered to stores.
    #[serde(rename = "beside")]
    pub operands_in_stores: u64,
    /// Delete markers delivered to stores.
    #[serde(rename = "anchors")]
    pub delete_markers: u64,
    /// Keys whose operands a collection moved from an operand store to the tree.
    #[serde(rename = "collected")]
    pub keys_to_tree: u64,
    /// Keyspaces from which a call removed the operand store and moved all operands to the tree.
    #[serde(rename = "brought_back")]
    pub stores_removed: u64,
    /// Policy changes of open keyspaces. For each preset, a bit set contains the presets that replaced it.
    #[serde(rename = "took_over")]
    pub policy_changes: [u32; PRESETS],
}

pub const PRESETS: usize = Preset::ALL.len();

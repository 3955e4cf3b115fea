//! Results of `lsmx iocost`. The field names are those of the JSON output.

#![expect(missing_docs, reason = "the metrics in `columns` document the fields")]

use std::collections::BTreeMap;

use lsmx::metrics::BlockKind;
use lsmx::{BlockCacheKind, FilterBits};
use serde::Serialize;

use crate::latency::LatencyUs;
use crate::report::provenance::Provenance;

/// Result of `lsmx iocost`.
#[derive(Clone, Debug, Serialize)]
pub struct IoCostResult {
    pub provenance: Provenance,
    pub settings: IoCostSettings,
    #[serde(flatten)]
    pub cost: DatabaseCost,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    /// Costs for the remaining combinations of block size, filter width and kind of block cache.
    pub others: Vec<DatabaseCost>,
}

impl IoCostResult {
    pub fn costs(&self) -> impl Iterator<Item = &DatabaseCost> {
        std::iter::once(&self.cost).chain(&self.others)
    }
}

/// Settings of the measurement. Settings of new databases are `None` if an existing database is measured.
#[derive(Clone, Debug, Serialize)]
pub struct IoCostSettings {
    pub database: Option<String>,
    pub keyspace: String,
    pub key_len: Option<u64>,
    pub value_len: Option<u64>,
    pub memtable_bytes: Option<u64>,
    pub table_bytes: Option<u64>,
    pub gets: u64,
    pub direct_io: bool,
}

/// Metadata sizes of one database, and the cost of lookups for each cache size. Sizes are bytes in memory.
#[derive(Clone, Debug, Serialize)]
pub struct DatabaseCost {
    pub block_bytes: Option<u32>,
    pub filter_bits: Option<FilterBits>,
    pub cache_kind: BlockCacheKind,
    pub db_bytes: u64,
    pub entries: u64,
    pub entries_last_run: u64,
    pub levels: Vec<LevelMetadata>,
    pub data_blocks: u64,
    pub index_blocks: u64,
    /// Size of the filters of all sorted runs except the last.
    pub filter_bytes: u64,
    pub top_index_bytes: u64,
    pub range_tombstone_bytes: u64,
    pub index_bytes: u64,
    pub all_filters_bytes: u64,
    /// Size of all top indexes, all range tombstones, and the filters of all sorted runs except the last.
    pub inflection_1: ByteShare,
    /// Size of the metadata that `inflection_1` includes, plus all index blocks.
    pub inflection_2: ByteShare,
    /// Size of the metadata that `inflection_2` includes, plus the filters of the last sorted run.
    pub all_metadata: ByteShare,
    pub build: Option<BuildTime>,
    pub points: Vec<CacheSizePoint>,
    /// Lookups with a cache that holds all metadata. Only these lookups use the filters of the last sorted run.
    pub with_all_filters: CacheSizePoint,
}

impl DatabaseCost {
    pub fn name(&self) -> String {
        let blocks = self.block_bytes.map(|bytes| format!("blocks of {bytes} B, "));
        let filters = self.filter_bits.map(|bits| format!("filter fingerprints of {bits} bits, "));
        let [blocks, filters] = [blocks, filters].map(Option::unwrap_or_default);
        format!("{blocks}{filters}block cache `{}`", self.cache_kind)
    }
}

/// A size in bytes, and the same size divided by `db_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ByteShare {
    pub bytes: u64,
    pub fraction: f64,
}

/// Size of a level of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LevelMetadata {
    pub level: u8,
    pub runs: u64,
    pub files: u64,
    pub bytes: u64,
    pub entries: u64,
}

/// Results of filter checks for absent keys in one level.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LevelFilterChecks {
    pub level: u8,
    pub negatives: u64,
    pub false_positives: u64,
    pub false_positive_rate: f64,
}

/// Cost of building a database, including compaction until it is idle.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BuildTime {
    pub elapsed_s: f64,
    pub write_amplification: f64,
}

/// Measurements of lookups with one cache size.
#[derive(Clone, Debug, Serialize)]
pub struct CacheSizePoint {
    pub cache_bytes: u64,
    pub cache_fraction: f64,
    /// Name of the cache size: `inflection_1`, `inflection_2` or `all_metadata`. `None` for other sizes.
    pub at: Option<&'static str>,
    pub warm_up_gets: u64,
    pub resident_bytes: BTreeMap<BlockKind, u64>,
    pub hit_rate: BTreeMap<BlockKind, f64>,
    pub hit_rate_overall: f64,
    pub blocks_per_get: BTreeMap<BlockKind, f64>,
    pub ios_per_get: f64,
    pub physical_reads_per_get: f64,
    pub physical_read_bytes_per_get: f64,
    pub device_reads_per_get: Option<f64>,
    pub device_read_bytes_per_get: Option<f64>,
    pub ios_per_absent_get: f64,
    pub physical_reads_per_absent_get: f64,
    pub device_reads_per_absent_get: Option<f64>,
    pub filter_false_positive_rate: f64,
    pub filter_negatives: u64,
    pub filter_false_positives: u64,
    pub filter_by_level: Vec<LevelFilterChecks>,
    pub get_latency_us: LatencyUs,
    pub absent_get_latency_us: LatencyUs,
}

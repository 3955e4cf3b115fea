//! What `lsmx iocost` found out, with the field names of its JSON.

use std::collections::BTreeMap;

use lsmx::metrics::BlockKind;
use lsmx::{BlockCacheKind, FilterBits};
use serde::Serialize;

use crate::latency::LatencyUs;
use crate::report::provenance::Provenance;

/// Everything that an experiment found out.
#[derive(Clone, Debug, Serialize)]
pub struct IoCost {
    /// Where the figures come from.
    pub provenance: Provenance,
    /// What was asked for.
    pub settings: Settings,
    /// The database; of several block sizes, widths of filters and block caches the first.
    #[serde(flatten)]
    pub cost: Cost,
    /// The same of the others; left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Cost>,
}

impl IoCost {
    /// All of them, in the order of the block sizes, then of the filters, then of the caches.
    pub fn costs(&self) -> impl Iterator<Item = &Cost> {
        std::iter::once(&self.cost).chain(&self.others)
    }
}

/// What was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// The existing database; null where one was built.
    pub database: Option<String>,
    /// Its keyspace.
    pub keyspace: String,
    /// Bytes of a key; null for an existing database.
    pub key_len: Option<u64>,
    /// Bytes of a value; null for an existing database.
    pub value_len: Option<u64>,
    /// Bytes of a memtable while the database was built; null for an existing one.
    pub memtable_bytes: Option<u64>,
    /// Target bytes of a table; null for an existing database.
    pub table_bytes: Option<u64>,
    /// Lookups of present keys at each point, and as many of absent ones.
    pub gets: u64,
    /// Whether the page cache was left out.
    pub direct_io: bool,
}

/// What lookups in one database cost.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Target bytes of a data block; null for an existing database.
    pub block_bytes: Option<u32>,
    /// How wide the filters were written; null for an existing database.
    pub filter_bits: Option<FilterBits>,
    /// The block cache that it was read with.
    pub cache_kind: BlockCacheKind,
    /// Bytes of the table files: fractions are of these.
    pub db_bytes: u64,
    /// Entries in the tables, all versions and tombstones among them.
    pub entries: u64,
    /// Those in the last sorted run.
    pub entries_last_run: u64,
    /// Levels that hold something.
    pub levels: Vec<Level>,
    /// Data blocks.
    pub data_blocks: u64,
    /// Index blocks, top indexes not among them.
    pub index_blocks: u64,
    /// Bytes of memory that the filters of all sorted runs but the last take.
    pub filter_bytes: u64,
    /// Bytes that the top indexes take.
    pub top_index_bytes: u64,
    /// Bytes that range tombstones take.
    pub range_tombstone_bytes: u64,
    /// Bytes that the index blocks take, top indexes not among them.
    pub index_bytes: u64,
    /// Bytes that the filters of all sorted runs take.
    pub all_filters_bytes: u64,
    /// Filters without those of the last sorted run, top indexes, range tombstones.
    pub inflection_1: Share,
    /// The same with all index blocks.
    pub inflection_2: Share,
    /// All that and the filters of the last sorted run.
    pub all_metadata: Share,
    /// How the database was built; null for an existing one.
    pub build: Option<Build>,
    /// A point per cache size, ascending.
    pub points: Vec<Point>,
    /// One more with a cache for all metadata, where the filter of the last sorted run is asked, too.
    pub with_all_filters: Point,
}

impl Cost {
    /// What tells it from others of the same result.
    #[must_use]
    pub fn name(&self) -> String {
        let blocks = self.block_bytes.map(|bytes| format!("blocks of {bytes} B, "));
        let filters = self.filter_bits.map(|bits| format!("filters {bits}, "));
        let [blocks, filters] = [blocks, filters].map(Option::unwrap_or_default);
        format!("{blocks}{filters}{} cache", self.cache_kind)
    }
}

/// Bytes, and what part of the database they are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The bytes.
    pub bytes: u64,
    /// Of `db_bytes`, 0 to 1.
    pub fraction: f64,
}

/// A level of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Level {
    /// Its number.
    pub level: u8,
    /// Sorted runs.
    pub runs: u64,
    /// Tables.
    pub files: u64,
    /// Bytes of the tables.
    pub bytes: u64,
    /// Entries in them.
    pub entries: u64,
}

/// What the filters of a level answered to lookups of absent keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LevelAnswers {
    /// Number of the level.
    pub level: u8,
    /// How often they ruled a table out.
    pub negatives: u64,
    /// How often they let a key pass.
    pub false_positives: u64,
    /// Share of these.
    pub false_positive_rate: f64,
}

/// How a database was built.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Build {
    /// Seconds until it had settled.
    pub elapsed_s: f64,
    /// (Flushed + compaction written) ÷ ingested.
    pub write_amplification: f64,
}

/// Lookups with one cache size.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Bytes of the block cache.
    pub cache_bytes: u64,
    /// These ÷ `db_bytes`.
    pub cache_fraction: f64,
    /// `inflection_1`, `inflection_2` or `all_metadata` where the cache is just that; null elsewhere.
    /// Only with the last the filter of the last sorted run is asked.
    pub at: Option<&'static str>,
    /// Lookups of present keys before counting began, until what is resident of metadata was steady.
    pub warm_up_gets: u64,
    /// Bytes that were resident at the end, by kind of block.
    pub resident_bytes: BTreeMap<BlockKind, u64>,
    /// Share of the blocks that lookups of present keys needed and memory had, by kind of block.
    pub hit_rate: BTreeMap<BlockKind, f64>,
    /// The same over all kinds.
    pub hit_rate_overall: f64,
    /// Blocks that a lookup of a present key needed, by kind.
    pub blocks_per_get: BTreeMap<BlockKind, f64>,
    /// Blocks that memory did not have, of all kinds, per lookup of a present key.
    pub ios_per_get: f64,
    /// Reads that reached the file system, per lookup of a present key: counted there.
    pub physical_reads_per_get: f64,
    /// Bytes that those read, per lookup.
    pub physical_read_bytes_per_get: f64,
    /// Reads that the block device completed, per lookup of a present key: the system's count, which other
    /// processes add to. Null where the system does not tell. Only with `direct_io` the page cache does
    /// not stand between.
    pub device_reads_per_get: Option<f64>,
    /// Bytes that storage gave this process, per lookup; null where the system does not tell.
    pub device_read_bytes_per_get: Option<f64>,
    /// As `ios_per_get`, of absent keys.
    pub ios_per_absent_get: f64,
    /// As `physical_reads_per_get`, of absent keys.
    pub physical_reads_per_absent_get: f64,
    /// As `device_reads_per_get`, of absent keys.
    pub device_reads_per_absent_get: Option<f64>,
    /// Of the filters that lookups of absent keys asked, those that let a key pass; 0 where none was asked.
    pub filter_false_positive_rate: f64,
    /// How often filters ruled a table out for lookups of absent keys.
    pub filter_negatives: u64,
    /// How often they let one of these keys pass.
    pub filter_false_positives: u64,
    /// The same by level.
    pub filter_by_level: Vec<LevelAnswers>,
    /// How long lookups of present keys took.
    pub get_latency_us: LatencyUs,
    /// How long lookups of absent keys took.
    pub absent_get_latency_us: LatencyUs,
}

//! Sizes of the metadata of a keyspace: filters, index blocks and range tombstones.

use lsmx_base::coding::len_u64;
use serde::Serialize;

use crate::db::inner::DbInner;
use crate::error::Result;
use crate::table::metadata_sizes;
use crate::tree::Tree;

/// Sizes of the filters, indexes and range tombstones of a keyspace in the block cache, in bytes.
///
/// The sizes do not depend on the current contents of the cache. Use them to choose the size of the block cache. If
/// range tombstones, top indexes and all filters except those of the last run are cached, a lookup of an existing key
/// reads one index block and one data block. If the index blocks are also cached, the lookup reads one data block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MetadataSizes {
    /// Number of sorted runs.
    pub runs: u64,
    /// Number of tables.
    pub tables: u64,
    /// Total size of the table files, in bytes.
    pub table_bytes: u64,
    /// Number of entries, including old versions and tombstones.
    pub entries: u64,
    /// Number of entries in the last sorted run.
    pub entries_last_run: u64,
    /// Number of data blocks.
    pub data_blocks: u64,
    /// Number of index blocks, without top indexes. A top index is the index of the index blocks of a table.
    pub index_blocks: u64,
    /// Filters of all sorted runs except the last one.
    pub filter_bytes: u64,
    /// Filters of all sorted runs.
    pub all_filters_bytes: u64,
    /// Top indexes.
    pub top_index_bytes: u64,
    /// Index blocks.
    pub index_bytes: u64,
    /// Range tombstones.
    pub range_tombstone_bytes: u64,
}

impl MetadataSizes {
    /// Returns the size of top indexes, range tombstones, and all filters except those of the last sorted run. A study
    /// of Pebble calls this size the first inflection point of the read cost.
    #[cfg(feature = "internals")]
    #[must_use]
    pub fn inflection_1(&self) -> u64 {
        self.filter_bytes + self.top_index_bytes + self.range_tombstone_bytes
    }

    /// Returns [`MetadataSizes::inflection_1`] plus the size of all index blocks: the second inflection point.
    #[cfg(feature = "internals")]
    #[must_use]
    pub fn inflection_2(&self) -> u64 {
        self.inflection_1() + self.index_bytes
    }

    /// Returns [`MetadataSizes::inflection_2`] plus the size of the filters of the last sorted run.
    #[cfg(feature = "internals")]
    #[must_use]
    pub fn all_metadata(&self) -> u64 {
        self.inflection_2() + self.all_filters_bytes.saturating_sub(self.filter_bytes)
    }
}

/// Returns the sizes of the metadata of a tree.
pub(in crate::db) fn compute_sizes(inner: &DbInner, tree: &Tree) -> Result<MetadataSizes> {
    inner.check_open()?;
    let view = tree.pin_super_version();
    tree.check_live()?;
    let runs = view.version.runs();
    let mut sizes = MetadataSizes { runs: len_u64(runs.len()), ..MetadataSizes::default() };
    for (index, run) in runs.iter().enumerate() {
        let is_last = index + 1 == runs.len();
        for file in run.tables().iter() {
            let table = file.table();
            let properties = table.properties();
            let of_table = metadata_sizes(table)?;
            sizes.tables += 1;
            sizes.table_bytes += table.identity().bytes;
            sizes.entries += properties.entries;
            sizes.data_blocks += properties.data_blocks;
            sizes.index_blocks += properties.index_blocks;
            sizes.all_filters_bytes += of_table.filter;
            if is_last {
                sizes.entries_last_run += properties.entries;
            } else {
                sizes.filter_bytes += of_table.filter;
            }
            sizes.top_index_bytes += of_table.top_index;
            sizes.index_bytes += of_table.index;
            sizes.range_tombstone_bytes += of_table.range_tombstones;
        }
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use crate::db::Db;
    use crate::format::BlockKind;
    use crate::options::db::Options;
    use crate::options::keyspace::{FilterLastRun, KeyspaceOptions};
    use crate::vfs::MemVfs;
    use lsmx_base::sync::Arc;
    use lsmx_compaction::PolicySpec;

    const KEYS: u32 = 60_000;

    fn key(number: u32) -> [u8; 16] {
        u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes()
    }

    /// Compares the sizes with the contents of the block cache after all blocks were read.
    #[test]
    fn metadata_sizes_equal_resident_bytes() {
        let keyspace = KeyspaceOptions::default()
            .memtable_bytes(256 << 10)
            .table_bytes(1 << 20)
            .block_bytes(128)
            .filter_last_run(FilterLastRun::Off)
            .policy(PolicySpec::new(lsmx_compaction::Preset::Tiering));
        let options = Options::default()
            .background(crate::env::Background::Inline)
            .keyspace_defaults(keyspace)
            .block_cache_bytes(64 << 20);
        let vfs = Arc::new(MemVfs::new());
        let db = Db::open("db", options.clone().vfs(vfs.clone())).unwrap();
        for number in 0..KEYS {
            db.put(key(number), [7; 40]).unwrap();
        }
        db.default_keyspace().delete_range(key(1).as_slice()..=key(1).as_slice()).unwrap();
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let sizes = db.default_keyspace().metadata().unwrap();
        assert!(sizes.runs > 1 && sizes.tables > sizes.runs, "{sizes:?}");
        assert!(sizes.index_blocks > sizes.tables, "{sizes:?}");
        assert!(sizes.entries >= u64::from(KEYS) && sizes.entries_last_run < sizes.entries);
        assert!(0 < sizes.filter_bytes && sizes.filter_bytes < sizes.all_filters_bytes);
        db.close(None).unwrap();

        let db = Db::open("db", options.read_only(true).vfs(vfs)).unwrap();
        assert_eq!(db.default_keyspace().metadata().unwrap(), sizes);
        // Lookups of absent keys read all filters, and a scan reads all index blocks.
        for number in KEYS..4 * KEYS {
            assert!(db.get(key(number)).unwrap().is_none());
        }
        assert_eq!(db.default_keyspace().iter().count(), KEYS as usize - 1);
        let resident = |kind| db.read_metrics().cache[&kind].resident_bytes;
        assert_eq!(resident(BlockKind::Filter), sizes.filter_bytes);
        assert_eq!(resident(BlockKind::TopIndex), sizes.top_index_bytes);
        assert_eq!(resident(BlockKind::Index), sizes.index_bytes);
        assert_eq!(resident(BlockKind::RangeTombstones), sizes.range_tombstone_bytes);
    }
}

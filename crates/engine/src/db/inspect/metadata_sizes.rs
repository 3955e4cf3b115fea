//! How much memory the metadata of a tree asks for.

use lsmx_base::coding::len_u64;
use serde::Serialize;

use crate::db::{DbInner, Keyspace};
use crate::error::Result;
use crate::table::metadata_sizes;
use crate::tree::Tree;

/// What lookups in a keyspace need in memory beside data, if no metadata is ever to be read twice:
/// worked out from the tables, whatever of it is in memory now. Bytes are bytes of memory as the block
/// cache counts them.
///
/// With a cache of [`MetadataSizes::inflection_1`] bytes a lookup of a present key reads an index block and a
/// data block, with [`MetadataSizes::inflection_2`] the data block alone; what is beyond that serves data
/// blocks. (The names are those of the study of Pebble's read path.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MetadataSizes {
    /// Sorted runs.
    pub runs: u64,
    /// Tables.
    pub tables: u64,
    /// Bytes of the tables' files.
    pub table_bytes: u64,
    /// Entries in the tables, all versions and tombstones among them.
    pub entries: u64,
    /// Those in the last sorted run.
    pub entries_last_run: u64,
    /// Data blocks.
    pub data_blocks: u64,
    /// Index blocks, top indexes not among them.
    pub index_blocks: u64,
    /// Filters of all sorted runs but the last.
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
    /// Filters without those of the last sorted run, top indexes and range tombstones.
    #[must_use]
    pub fn inflection_1(&self) -> u64 {
        self.filter_bytes + self.top_index_bytes + self.range_tombstone_bytes
    }

    /// The same with all index blocks.
    #[must_use]
    pub fn inflection_2(&self) -> u64 {
        self.inflection_1() + self.index_bytes
    }

    /// The same with the filters of the last sorted run, if those are asked.
    #[must_use]
    pub fn all_metadata(&self) -> u64 {
        self.inflection_2() + self.all_filters_bytes.saturating_sub(self.filter_bytes)
    }
}

impl Keyspace {
    /// How much memory the metadata of the tables asks for, and of what it consists.
    ///
    /// # Errors
    /// When range tombstones cannot be read or are damaged; [`Error::Closed`](crate::Error::Closed).
    pub fn metadata(&self) -> Result<MetadataSizes> {
        self.inner().metadata(self.tree())
    }
}

impl DbInner {
    fn metadata(&self, tree: &Tree) -> Result<MetadataSizes> {
        self.check_open()?;
        let view = tree.pin_super_version();
        tree.check_live()?;
        let runs = view.version.runs();
        let mut metadata = MetadataSizes { runs: len_u64(runs.len()), ..MetadataSizes::default() };
        for (index, run) in runs.iter().enumerate() {
            let last = index + 1 == runs.len();
            for file in run.tables().iter() {
                let table = file.table();
                let properties = table.properties();
                let parts = metadata_sizes(table)?;
                metadata.tables += 1;
                metadata.table_bytes += table.identity().bytes;
                metadata.entries += properties.entries;
                metadata.data_blocks += properties.data_blocks;
                metadata.index_blocks += properties.index_blocks;
                metadata.all_filters_bytes += parts.filter;
                if last {
                    metadata.entries_last_run += properties.entries;
                } else {
                    metadata.filter_bytes += parts.filter;
                }
                metadata.top_index_bytes += parts.top_index;
                metadata.index_bytes += parts.index;
                metadata.range_tombstone_bytes += parts.range_tombstones;
            }
        }
        Ok(metadata)
    }
}

#[cfg(test)]
mod tests {
    use crate::format::BlockKind;
    use crate::vfs::MemVfs;
    use crate::{Db, KeyspaceOptions, Options, PolicySpec};
    use lsmx_base::sync::Arc;

    const KEYS: u32 = 60_000;

    fn key(number: u32) -> [u8; 16] {
        u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes()
    }

    /// Reads everything there is, and finds in memory what was said to fit there.
    #[test]
    fn it_says_what_will_be_in_memory() {
        let keyspace = KeyspaceOptions::default()
            .memtable_bytes(256 << 10)
            .table_bytes(1 << 20)
            .block_bytes(128)
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
        db.delete_range(key(1).as_slice()..=key(1).as_slice()).unwrap();
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let said = db.default_keyspace().metadata().unwrap();
        assert!(said.runs > 1 && said.tables > said.runs, "{said:?}");
        assert!(said.index_blocks > said.tables, "{said:?}");
        assert!(said.entries >= u64::from(KEYS) && said.entries_last_run < said.entries);
        assert!(0 < said.filter_bytes && said.filter_bytes < said.all_filters_bytes);
        db.close(None).unwrap();

        let db = Db::open("db", options.read_only(true).vfs(vfs)).unwrap();
        assert_eq!(db.default_keyspace().metadata().unwrap(), said);
        // Absent keys go through every run, and a scan through every index block.
        for number in KEYS..4 * KEYS {
            assert!(db.get(key(number)).unwrap().is_none());
        }
        assert_eq!(db.default_keyspace().iter().count(), KEYS as usize - 1);
        let resident = |kind| db.read_metrics().cache[&kind].resident_bytes;
        assert_eq!(resident(BlockKind::Filter), said.filter_bytes);
        assert_eq!(resident(BlockKind::TopIndex), said.top_index_bytes);
        assert_eq!(resident(BlockKind::Index), said.index_bytes);
        assert_eq!(resident(BlockKind::RangeTombstones), said.range_tombstone_bytes);
    }
}

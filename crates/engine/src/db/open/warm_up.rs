//! Warm-up: loads filters, indexes and range tombstones into the block cache after an open, before lookups need them.

use lsmx_base::sync::{Arc, AtomicBool, Ordering};

use crate::cache::MetadataKind;
use crate::db::engine_thread::EngineThread;
use crate::env::Background;
use crate::error::Result;
use crate::state::DbState;
use crate::table::{WarmUpResult, warm_up};

/// Order in which metadata is loaded. It is the reverse of the order in which the cache evicts metadata.
const LOAD_ORDER: [MetadataKind; 4] = [
    MetadataKind::RangeTombstones,
    MetadataKind::TopIndex,
    MetadataKind::Filter,
    MetadataKind::Index,
];

/// Thread that loads metadata after an open.
#[derive(Debug, Default)]
pub(crate) struct WarmUp {
    stop: Arc<AtomicBool>,
    thread: EngineThread,
}

impl WarmUp {
    /// Loads the metadata on a new thread, or on the calling thread under [`Background::Inline`].
    ///
    /// Errors are ignored, because a lookup that needs the same block returns them.
    pub(crate) fn start(&self, store: &Arc<DbState>) {
        if store.env.background() == Background::Inline {
            let _ = load_metadata(store, &|| true);
            return;
        }
        let (stop, state) = (Arc::clone(&self.stop), Arc::clone(store));
        // If the thread cannot be spawned, lookups load the metadata when they need it.
        self.thread.start(store, "lsmx-warm-up", move || {
            let _ = load_metadata(&state, &|| !stop.load(Ordering::Relaxed));
        });
    }

    /// Makes the thread stop before its next block.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the thread to end. Returns false if the deadline passes first.
    pub(crate) fn join(&self, store: &DbState, deadline_us: Option<u64>) -> bool {
        self.thread.join(store, deadline_us)
    }
}

/// Loads the metadata of all tables until the cache is full or `may_continue` returns false. Skips filters of the
/// last sorted run if lookups do not use them.
pub(crate) fn load_metadata(store: &DbState, may_continue: &dyn Fn() -> bool) -> Result<()> {
    let trees = store.all_trees();
    for kind in LOAD_ORDER {
        for tree in &trees {
            let view = tree.pin_super_version();
            let runs = view.version.runs();
            let skips_last = kind == MetadataKind::Filter && !tree.last_run_filter.is_used();
            let run_count = runs.len().saturating_sub(usize::from(skips_last));
            for table in runs[..run_count].iter().flat_map(|run| run.tables().iter()) {
                if warm_up(table.table(), kind, may_continue)? == WarmUpResult::Stopped {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsmx_compaction::{PolicySpec, Preset};

    use crate::db::Db;
    use crate::error::Error;
    use crate::format::BlockKind;
    use crate::options::db::Options;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::vfs::MemVfs;

    const KEYS: u32 = 30_000;

    fn key(number: u32) -> [u8; 16] {
        u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes()
    }

    fn options() -> Options {
        let keyspace = KeyspaceOptions::default()
            .memtable_bytes(256 << 10)
            .table_bytes(256 << 10)
            .policy(PolicySpec::new(Preset::Tiering));
        Options::default().background(Background::Inline).keyspace_defaults(keyspace)
    }

    fn create_filled_database() -> Arc<MemVfs> {
        let vfs = Arc::new(MemVfs::new());
        let db = Db::open("db", options().vfs(vfs.clone())).unwrap();
        for number in 0..KEYS {
            db.put(key(number), [7; 40]).unwrap();
        }
        db.default_keyspace().delete_range(key(1).as_slice()..=key(1).as_slice()).unwrap();
        db.close(None).unwrap();
        vfs
    }

    fn resident_bytes(db: &Db, kind: BlockKind) -> u64 {
        db.read_metrics().cache.get(&kind).map_or(0, |cache| cache.resident_bytes)
    }

    #[test]
    fn warm_up_on_open_loads_all_metadata() {
        let vfs = create_filled_database();
        let warm_options = options().warm_up(true);
        for read_only in [true, false] {
            let options = warm_options.clone().read_only(read_only);
            let db = Db::open("db", options.vfs(vfs.clone())).unwrap();
            let sizes = db.default_keyspace().metadata().unwrap();
            assert!(sizes.runs > 1 && sizes.filter_bytes > 0 && sizes.range_tombstone_bytes > 0);
            assert_eq!(resident_bytes(&db, BlockKind::Filter), sizes.filter_bytes);
            assert_eq!(resident_bytes(&db, BlockKind::TopIndex), sizes.top_index_bytes);
            assert_eq!(resident_bytes(&db, BlockKind::Index), sizes.index_bytes);
            assert_eq!(
                resident_bytes(&db, BlockKind::RangeTombstones),
                sizes.range_tombstone_bytes
            );
            // The open itself counts no hits or misses for other block kinds.
            let counted = db.read_metrics().cache;
            let counted = counted.iter().filter(|(_, cache)| cache.hits + cache.misses > 0);
            let kinds: Vec<_> = counted.map(|(kind, _)| *kind).collect();
            let kinds_of_open = [BlockKind::Open, BlockKind::RangeTombstones];
            assert!(kinds.iter().all(|kind| kinds_of_open.contains(kind)), "{kinds:?}");
            for number in 0..KEYS / 10 {
                assert_eq!(db.get(key(number)).unwrap().is_some(), number != 1);
            }
            let cache = db.read_metrics().cache;
            let misses = |kind| cache.get(&kind).map_or(0, |cache| cache.misses);
            assert!(misses(BlockKind::Data) > 0 && misses(BlockKind::Index) == 0);
            assert_eq!(misses(BlockKind::Filter) + misses(BlockKind::TopIndex), 0);
            db.close(None).unwrap();
        }
    }

    #[test]
    fn warm_up_full_cache_stops() {
        let vfs = create_filled_database();
        let db = Db::open("db", options().read_only(true).vfs(vfs.clone())).unwrap();
        let sizes = db.default_keyspace().metadata().unwrap();
        db.close(None).unwrap();
        // The cache has space for all metadata except half of the index blocks.
        let bytes = sizes.inflection_2() - sizes.index_bytes / 2;
        let db = Db::open("db", options().block_cache_bytes(bytes).vfs(vfs)).unwrap();
        assert_eq!(resident_bytes(&db, BlockKind::TopIndex), 0);
        db.warm_up().unwrap();
        assert_eq!(resident_bytes(&db, BlockKind::Filter), sizes.filter_bytes);
        let index_bytes = resident_bytes(&db, BlockKind::Index);
        assert!(0 < index_bytes, "no index block was loaded");
        assert!(index_bytes <= sizes.index_bytes / 2, "{index_bytes} of {}", sizes.index_bytes);
        db.close(None).unwrap();
        assert!(matches!(db.warm_up(), Err(Error::Closed)));
    }

    #[test]
    fn warm_up_thread_ends_on_close() {
        let vfs = create_filled_database();
        let thread_options = options().background(Background::Threads { workers: 1 }).warm_up(true);
        for _ in 0..20 {
            Db::open("db", thread_options.clone().vfs(vfs.clone())).unwrap().close(None).unwrap();
        }
        let db = Db::open("db", thread_options.vfs(vfs)).unwrap();
        assert!(db.get(key(5)).unwrap().is_some());
    }
}

//! Metadata in memory before the first lookups need it.

use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::cache::MetadataKind;
use crate::callback::{self, CallbackContext};
use crate::db::{Db, DbInner};
use crate::env::{Background, JoinHandle, WaitCause};
use crate::error::Result;
use crate::state::DbState;
use crate::table::{WarmUpResult, warm_up};

/// What is read first: the order in which the governor would let it go, the other way round.
const ORDER: [MetadataKind; 4] = [
    MetadataKind::RangeTombstones,
    MetadataKind::TopIndex,
    MetadataKind::Filter,
    MetadataKind::Index,
];

/// The thread that warms up, if there is one.
#[derive(Debug, Default)]
pub(crate) struct WarmUp {
    stop: Arc<AtomicBool>,
    /// Whether the thread has nothing left to do.
    ended: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle>>,
}

impl Db {
    /// Reads the metadata of all tables that lookups will ask for and that is not in memory: range
    /// tombstones, top indexes, filters (of the last sorted run if they are asked), then index blocks.
    /// It stops where the block cache has no room left. Reads as many bytes as
    /// [`MetadataSizes::inflection_2`](crate::MetadataSizes::inflection_2) says, about 0.14 % of the
    /// database; lookups go on meanwhile. None of it is counted as a hit or a miss.
    ///
    /// [`Options::warm_up`](crate::Options::warm_up) does so in the background from the opening on.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed); when a block cannot be read or is damaged.
    pub fn warm_up(&self) -> Result<()> {
        let core = self.inner();
        core.check_open()?;
        run(&core.state, &|| core.check_open().is_ok())?;
        core.check_open()
    }
}

impl DbInner {
    /// Begins to warm up, if that was asked for.
    pub(crate) fn begin_warm_up(&self) {
        if !self.options.warm_up {
            return;
        }
        // Whoever needs what could not be read meets the error, and is told where it is.
        if self.options.background == Background::Inline {
            let _ = run(&self.state, &|| true);
            return;
        }
        let store = Arc::clone(&self.state);
        let (stop, ended) = (Arc::clone(&self.warm_up.stop), Arc::clone(&self.warm_up.ended));
        let body = move || {
            let _inside = callback::enter(CallbackContext::EngineThread);
            let _ = run(&store, &|| !stop.load(Ordering::Relaxed));
            ended.store(true, Ordering::Release);
            store.progress.notify();
        };
        // Without a thread lookups read what they need, as without a warm-up.
        *self.warm_up.thread.lock() = self.state.env.spawn("lsmx-warm-up", body).ok();
    }

    /// Has the warm-up stop before its next block.
    pub(crate) fn stop_warm_up(&self) {
        self.warm_up.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until the warm-up has stopped; returns whether it has.
    pub(crate) fn join_warm_up(&self, deadline_us: Option<u64>) -> bool {
        let WarmUp { ended, thread, .. } = &self.warm_up;
        if thread.lock().is_none() {
            return true;
        }
        let store = &self.state;
        let ended = || ended.load(Ordering::Acquire);
        if !store.env.wait(WaitCause::Close, &store.progress, deadline_us, &mut || ended()) {
            return false;
        }
        let thread = thread.lock().take();
        if let Some(thread) = thread {
            // It has nothing left to do, so it ends well.
            let _ = store.env.join(thread);
        }
        true
    }
}

fn run(store: &DbState, go_on: &dyn Fn() -> bool) -> Result<()> {
    let trees = store.all_trees();
    for kind in ORDER {
        for tree in &trees {
            let view = tree.pin();
            let runs = view.version.runs();
            let all = kind != MetadataKind::Filter || tree.filter_last_run();
            let asked = if all { runs.len() } else { runs.len().saturating_sub(1) };
            for table in runs[..asked].iter().flat_map(|run| run.tables().iter()) {
                if warm_up(table.table(), kind, go_on)? == WarmUpResult::Stopped {
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
    use crate::format::BlockKind;
    use crate::vfs::MemVfs;
    use crate::{KeyspaceOptions, Options, PolicySpec};

    const KEYS: u32 = 30_000;

    fn key(number: u32) -> [u8; 16] {
        u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes()
    }

    fn options() -> Options {
        let keyspace = KeyspaceOptions::default()
            .memtable_bytes(256 << 10)
            .table_bytes(256 << 10)
            .policy(PolicySpec::new(lsmx_compaction::Preset::Tiering));
        Options::default().background(Background::Inline).keyspace_defaults(keyspace)
    }

    fn filled() -> Arc<MemVfs> {
        let vfs = Arc::new(MemVfs::new());
        let db = Db::open("db", options().vfs(vfs.clone())).unwrap();
        for number in 0..KEYS {
            db.put(key(number), [7; 40]).unwrap();
        }
        db.delete_range(key(1).as_slice()..=key(1).as_slice()).unwrap();
        db.close(None).unwrap();
        vfs
    }

    fn resident(db: &Db, kind: BlockKind) -> u64 {
        db.read_metrics().cache.get(&kind).map_or(0, |cache| cache.resident_bytes)
    }

    #[test]
    fn lookups_find_all_metadata_in_memory() {
        let vfs = filled();
        let warm = options().warm_up(true);
        for read_only in [true, false] {
            let db = match read_only {
                true => Db::open("db", warm.clone().read_only(true).vfs(vfs.clone())).unwrap(),
                false => Db::open("db", warm.clone().vfs(vfs.clone())).unwrap(),
            };
            let sizes = db.default_keyspace().metadata().unwrap();
            assert!(sizes.runs > 1 && sizes.filter_bytes > 0 && sizes.range_tombstone_bytes > 0);
            assert_eq!(resident(&db, BlockKind::Filter), sizes.filter_bytes);
            assert_eq!(resident(&db, BlockKind::TopIndex), sizes.top_index_bytes);
            assert_eq!(resident(&db, BlockKind::Index), sizes.index_bytes);
            assert_eq!(resident(&db, BlockKind::RangeTombstones), sizes.range_tombstone_bytes);
            // What the opening itself read is counted there.
            let counted = db.read_metrics().cache;
            let counted = counted.iter().filter(|(_, cache)| cache.hits + cache.misses > 0);
            let kinds: Vec<_> = counted.map(|(kind, _)| *kind).collect();
            let of_opening = [BlockKind::Open, BlockKind::RangeTombstones];
            assert!(kinds.iter().all(|kind| of_opening.contains(kind)), "{kinds:?}");
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
    fn it_stops_where_the_cache_is_full() {
        let vfs = filled();
        let db = Db::open("db", options().read_only(true).vfs(vfs.clone())).unwrap();
        let sizes = db.default_keyspace().metadata().unwrap();
        db.close(None).unwrap();
        // All but some index blocks.
        let bytes = sizes.inflection_2() - sizes.index_bytes / 2;
        let db = Db::open("db", options().block_cache_bytes(bytes).vfs(vfs)).unwrap();
        assert_eq!(resident(&db, BlockKind::TopIndex), 0);
        db.warm_up().unwrap();
        assert_eq!(resident(&db, BlockKind::Filter), sizes.filter_bytes);
        let index = resident(&db, BlockKind::Index);
        assert!(0 < index && index <= sizes.index_bytes / 2, "{index} of {}", sizes.index_bytes);
        db.close(None).unwrap();
        assert!(matches!(db.warm_up(), Err(crate::Error::Closed)));
    }

    #[test]
    fn a_close_ends_it_in_the_background() {
        let vfs = filled();
        let threads = options().background(Background::Threads { workers: 1 }).warm_up(true);
        for _ in 0..20 {
            Db::open("db", threads.clone().vfs(vfs.clone())).unwrap().close(None).unwrap();
        }
        let db = Db::open("db", threads.vfs(vfs)).unwrap();
        assert!(db.get(key(5)).unwrap().is_some());
    }
}

//! Whether lookups ask the filter of the last sorted run, where what they find there decides.
//!
//! That filter is nine tenths of all filter bytes and saves the read of a data block for keys that are not
//! there, nothing for those that are. The bytes it takes come from data blocks. So of the lookups that
//! come to the last run, it saves as many reads as find nothing, where the data block is not in memory;
//! and costs as many as data blocks on these bytes would have saved, at most as many as data blocks save per
//! byte in the mean.

use lsmx_base::sync::{AtomicBool, Mutex, Ordering, ShardedCounter};

use crate::cache::{BlockCache, HitCounts};
use crate::format::BlockKind;
use crate::metrics::LastRunFilterMetrics;
use crate::table::Table;
use crate::tree::version::Version;

/// Lookups of one thread at the last run from one look at the balance to the next.
const LOOK_EVERY: u64 = 4096;

/// Fewest reads per lookup that are worth a change.
const WORTH: f64 = 0.01;

/// How far one side must outweigh the other for a change.
const MARGIN: f64 = 1.25;

/// The choice, and what it is made of.
#[derive(Debug, Default)]
pub(crate) struct LastRunFilter {
    asked: AtomicBool,
    lookups: ShardedCounter,
    absent: ShardedCounter,
    /// Taken once in [`LOOK_EVERY`] lookups of a thread.
    seen: Mutex<Seen>,
}

/// What was counted when the balance was last looked at, and what it was.
#[derive(Debug, Default)]
struct Seen {
    lookups: u64,
    absent: u64,
    data: HitCounts,
    index: HitCounts,
    /// Share of data blocks that were not in memory, when the filter was last not asked.
    miss_rate: f64,
    saved: f64,
    lost: f64,
    filter_bytes: u64,
}

impl LastRunFilter {
    /// Whether it is asked.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Notes that a lookup came to the last run; now and then decides anew.
    #[inline]
    pub(crate) fn note(&self, version: &Version, table: &Table, found: bool) {
        if !found {
            self.absent.add(1);
        }
        if self.lookups.add_and_get_shard(1).is_multiple_of(LOOK_EVERY) {
            self.decide(version, table.cache());
        }
    }

    #[cold]
    fn decide(&self, version: &Version, cache: &BlockCache) {
        let mut seen = self.seen.lock();
        let (lookups, absent) = (self.lookups.sum(), self.absent.sum());
        let counts = cache.counts();
        let (data, index) = (counts[BlockKind::Data], counts[BlockKind::Index]);
        let new_lookups = lookups.wrapping_sub(seen.lookups);
        if new_lookups < LOOK_EVERY {
            return;
        }
        let absent_share = absent.wrapping_sub(seen.absent) as f64 / new_lookups as f64;
        let asked = self.is_asked();
        // Shares, for others use the cache as well. While the filter is asked, the lookups that it saves a
        // read are not among them.
        let hit_rate = hit_rate(seen.data, data);
        let miss_rate = if asked { seen.miss_rate } else { 1.0 - hit_rate };
        let filter_bytes = filter_bytes(version);
        let resident = cache.resident_bytes()[BlockKind::Data];
        // As it was, or would be, without the filter.
        let for_data = resident + if asked { filter_bytes } else { 0 };
        let saved = absent_share * miss_rate;
        let mut lost = hit_rate * filter_bytes as f64 / for_data.max(1) as f64;
        if asked {
            // Index blocks leave before filters do.
            lost += 1.0 - self::hit_rate(seen.index, index);
        }
        let fits = asked || cache.free_metadata_bytes() >= filter_bytes;
        let pays = fits && saved > lost * MARGIN && saved > WORTH;
        let fails = saved * MARGIN < lost || saved < WORTH / MARGIN;
        if (!asked && pays) || (asked && fails) {
            self.asked.store(!asked, Ordering::Relaxed);
        }
        if !self.is_asked() {
            // Also what lookups have read that began before the last change.
            release(version);
        }
        *seen = Seen { lookups, absent, data, index, miss_rate, saved, lost, filter_bytes };
    }

    /// What led to the choice. `asked` is whether the filter is asked, by choice or by option.
    pub(crate) fn metrics(&self, asked: bool) -> LastRunFilterMetrics {
        let seen = self.seen.lock();
        LastRunFilterMetrics {
            asked,
            lookups: self.lookups.sum(),
            absent: self.absent.sum(),
            reads_saved: seen.saved,
            reads_lost: seen.lost,
            filter_bytes: seen.filter_bytes,
        }
    }
}

/// Share of hits since an earlier count; all, if there was nothing to hit.
fn hit_rate(earlier: HitCounts, now: HitCounts) -> f64 {
    let hits = now.hits.wrapping_sub(earlier.hits);
    let misses = now.misses.wrapping_sub(earlier.misses);
    if hits + misses == 0 { 1.0 } else { hits as f64 / (hits + misses) as f64 }
}

/// Bytes of the last sorted run's filters.
fn filter_bytes(version: &Version) -> u64 {
    let tables = version.runs().last().into_iter().flat_map(|run| run.tables().iter());
    let filters = tables.filter_map(|table| table.table().properties().filter);
    filters.map(|handle| handle.bytes).sum()
}

/// Lets the last sorted run's filters go: nobody asks them, and what is never asked would leave memory
/// only after every index block.
pub(crate) fn release(version: &Version) {
    for table in version.runs().last().into_iter().flat_map(|run| run.tables().iter()) {
        table.table().release_filter();
    }
}

#[cfg(test)]
mod tests {
    use crate::env::Background;
    use crate::format::BlockKind;
    use crate::vfs::MemVfs;
    use crate::{Db, FilterLastRun, KeyspaceOptions, Options};

    const KEYS: u32 = 30_000;
    const LOOKUPS: u32 = 20_000;

    fn key(number: u32) -> [u8; 16] {
        u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes()
    }

    /// A database whose tables are one sorted run.
    fn database(cache_bytes: u64, filter: FilterLastRun) -> Db {
        let keyspace = KeyspaceOptions::default().filter_last_run(filter);
        let options = Options::default()
            .background(Background::Inline)
            .keyspace_defaults(keyspace)
            .block_cache_bytes(cache_bytes);
        let db = Db::open("db", options.vfs(std::sync::Arc::new(MemVfs::new()))).unwrap();
        for number in 0..KEYS {
            db.put(key(number), [7; 100]).unwrap();
        }
        db.flush().unwrap();
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        db
    }

    /// Looks up keys from some number on; returns the data blocks read per lookup.
    fn look_up(db: &Db, from: u32, modulo: u32) -> f64 {
        let misses = || db.read_metrics().cache.get(&BlockKind::Data).map_or(0, |it| it.misses);
        let before = misses();
        for number in 0..LOOKUPS {
            let number = from + number.wrapping_mul(7919) % modulo;
            assert_eq!(db.get(key(number)).unwrap().is_some(), number < KEYS);
        }
        (misses() - before) as f64 / f64::from(LOOKUPS)
    }

    fn asked(db: &Db) -> bool {
        db.metrics().keyspaces["default"].filter_last_run.asked
    }

    #[test]
    fn it_is_asked_while_absent_keys_are_looked_for() {
        let db = database(300 << 10, FilterLastRun::Auto);
        let resident = || db.read_metrics().cache[&BlockKind::Filter].resident_bytes;
        assert!(look_up(&db, 0, KEYS) > 0.8 && !asked(&db));
        look_up(&db, KEYS, KEYS);
        assert!(asked(&db), "{:?}", db.metrics().keyspaces["default"].filter_last_run);
        assert!(look_up(&db, KEYS, KEYS) < 0.02);
        assert!(resident() > u64::from(KEYS));
        look_up(&db, 0, KEYS);
        assert!(!asked(&db), "{:?}", db.metrics().keyspaces["default"].filter_last_run);
        let left =
            db.read_metrics().cache.get(&BlockKind::Filter).map_or(0, |it| it.resident_bytes);
        assert_eq!(left, 0);
    }

    // Lookups that the filter saves a read must not look as if there were none to save.
    #[test]
    fn it_stays_asked_where_present_keys_are_in_memory() {
        let db = database(600 << 10, FilterLastRun::Auto);
        let mix = |db: &Db| {
            for number in 0..LOOKUPS {
                let absent = KEYS + number.wrapping_mul(7919) % KEYS;
                assert!(db.get(key(absent)).unwrap().is_none());
                assert!(db.get(key(number % 50)).unwrap().is_some());
            }
        };
        mix(&db);
        for _ in 0..4 {
            assert!(asked(&db), "{:?}", db.metrics().keyspaces["default"].filter_last_run);
            mix(&db);
        }
    }

    #[test]
    fn it_is_not_asked_where_it_does_not_fit_or_data_is_in_memory() {
        for cache_bytes in [20 << 10, 64 << 20] {
            let db = database(cache_bytes, FilterLastRun::Auto);
            look_up(&db, 0, KEYS);
            look_up(&db, KEYS, KEYS);
            look_up(&db, KEYS, KEYS);
            let how = db.metrics().keyspaces["default"].filter_last_run;
            assert!(!asked(&db), "{cache_bytes}: {how:?}");
            assert!(how.absent > u64::from(LOOKUPS) && how.lookups > how.absent);
        }
    }

    #[test]
    fn an_option_decides_at_once() {
        for (filter, misses) in [(FilterLastRun::Off, 0.8..1.1), (FilterLastRun::On, 0.0..0.02)] {
            let db = database(300 << 10, filter);
            assert!(misses.contains(&look_up(&db, KEYS, KEYS)));
            assert_eq!(asked(&db), filter == FilterLastRun::On);
        }
    }
}

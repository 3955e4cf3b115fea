//! Decides whether lookups use the filter of the last sorted run.
//!
//! The filter of the last run needs about nine tenths of the memory for all filters. It saves reading a data block if
//! the key is absent, and saves nothing if the key exists. The memory of the filter reduces the memory for cached data
//! blocks. The engine compares two rates per lookup in the last run:
//!
//! - Reads that the filter saves: the fraction of lookups of absent keys, multiplied by the miss rate of data blocks.
//! - Reads that data blocks in the same memory would save: the hit rate of data blocks, multiplied by filter bytes ÷
//!   cached data bytes.
//!
//! If the cache is not full, the filter does not reduce the memory for data blocks. In this case, only the fraction of
//! absent keys is considered, because the filter also saves searching a cached block.

use lsmx_base::sync::{AtomicBool, AtomicU8, Mutex, Ordering, ShardedCounters};

use crate::cache::{BlockCache, HitCounts};
use crate::format::BlockKind;
use crate::metrics::LastRunFilterMetrics;
use crate::options::keyspace::FilterLastRun;
use crate::table::Table;
use crate::tree::version::Version;

/// Number of lookups of a thread between two decisions. A decision visits all tables of the last run.
const LOOKUPS_PER_DECISION: u64 = 1024;

/// Minimum number of reads per lookup that the filter must save.
const SAVED_READS_MIN: f64 = 0.01;

/// Minimum fraction of lookups of absent keys for which the filter is used while the cache is not full.
///
/// A filter check takes less than a tenth of the time of a search in cached blocks.
const ABSENT_SHARE_MIN: f64 = 0.1;

/// The cache is not full if the free part of its budget is at least the budget divided by this number.
const FREE_PART: u64 = 16;

/// Minimum ratio of the two rates for changing the decision.
const MARGIN: f64 = 1.25;

/// Counter of the lookups in the last run.
const LOOKUPS: usize = 0;
/// Counter of the lookups in the last run that found no entry.
const ABSENT: usize = 1;

/// The option of the keyspace, the current decision, and the counters on which it is based.
#[derive(Debug)]
pub(crate) struct LastRunFilter {
    /// The [`FilterLastRun`] of the keyspace. A lookup reads it here in fewer instructions than from the settings.
    option: AtomicU8,
    /// The decision for [`FilterLastRun::Auto`].
    used: AtomicBool,
    counters: ShardedCounters<2>,
    /// A thread takes this lock once per [`LOOKUPS_PER_DECISION`] lookups.
    last_decision: Mutex<LastRunFilterDecision>,
}

/// Counters at the time of the last decision, and the rates that were computed from them.
#[derive(Debug, Default)]
struct LastRunFilterDecision {
    lookups: u64,
    absent: u64,
    data: HitCounts,
    index: HitCounts,
    /// Miss rate of data blocks when it was last measured without the filter.
    miss_rate: f64,
    saved_reads: f64,
    lost_reads: f64,
    filter_bytes: u64,
}

impl LastRunFilter {
    pub(crate) fn new(option: FilterLastRun) -> LastRunFilter {
        LastRunFilter {
            option: AtomicU8::new(option as u8),
            used: AtomicBool::new(false),
            counters: ShardedCounters::default(),
            last_decision: Mutex::default(),
        }
    }

    pub(crate) fn set_option(&self, option: FilterLastRun) {
        self.option.store(option as u8, Ordering::Relaxed);
    }

    #[inline]
    fn has_option(&self, option: FilterLastRun) -> bool {
        self.option.load(Ordering::Relaxed) == option as u8
    }

    /// Returns whether lookups use the filter.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        match self.has_option(FilterLastRun::Auto) {
            true => self.used.load(Ordering::Relaxed),
            false => self.has_option(FilterLastRun::On),
        }
    }

    /// Records a lookup in the last run, if the option is [`FilterLastRun::Auto`]. Decides again after every
    /// [`LOOKUPS_PER_DECISION`] lookups of a thread.
    #[inline]
    pub(crate) fn record(&self, version: &Version, table: &Table, found: bool) {
        if !self.has_option(FilterLastRun::Auto) {
            return;
        }
        let shard = self.counters.shard();
        if !found {
            shard.add(ABSENT, 1);
        }
        if shard.add(LOOKUPS, 1).is_multiple_of(LOOKUPS_PER_DECISION) {
            self.reevaluate_filter_use(version, table.cache());
        }
    }

    /// Compares the reads that the filter saves with the reads that its memory costs, and updates `used`.
    #[cold]
    fn reevaluate_filter_use(&self, version: &Version, cache: &BlockCache) {
        let mut last = self.last_decision.lock();
        let [lookups, absent] = self.counters.sums();
        let counts = cache.hit_counts();
        let (data, index) = (counts[BlockKind::Data], counts[BlockKind::Index]);
        let new_lookups = lookups.wrapping_sub(last.lookups);
        if new_lookups < LOOKUPS_PER_DECISION {
            return;
        }
        let absent_share = absent.wrapping_sub(last.absent) as f64 / new_lookups as f64;
        let used = self.used.load(Ordering::Relaxed);
        // Hit rates are compared instead of counts, because other trees use the cache, too. While the filter is used,
        // it prevents misses of data blocks. The miss rate is then the last one that was measured without the filter.
        let hit_rate = hit_rate(last.data, data);
        let miss_rate = if used { last.miss_rate } else { 1.0 - hit_rate };
        let filter_bytes = filter_bytes(version);
        let resident = cache.resident_bytes()[BlockKind::Data];
        let (unloaded_bytes, loaded_bytes) =
            if used { (0, filter_bytes) } else { (filter_bytes, 0) };
        // Bytes of data blocks that the cache would contain without the filter.
        let data_bytes = resident + loaded_bytes;
        let available = cache.available_metadata_bytes();
        let free_bytes = available.saturating_sub(resident + unloaded_bytes);
        let is_full = free_bytes < cache.block_budget_bytes() / FREE_PART;
        let saved_reads = absent_share * miss_rate;
        let mut lost_reads = 0.0;
        if is_full {
            lost_reads = hit_rate * filter_bytes as f64 / data_bytes.max(1) as f64;
        }
        if is_full && used {
            // The cache evicts index blocks before filters.
            lost_reads += 1.0 - self::hit_rate(last.index, index);
        }
        let (gain, cost, gain_min) = match is_full {
            true => (saved_reads, lost_reads, SAVED_READS_MIN),
            false => (absent_share, 0.0, ABSENT_SHARE_MIN),
        };
        let fits = available >= unloaded_bytes;
        let is_worth = fits && gain > cost * MARGIN && gain > gain_min;
        let is_too_costly = gain * MARGIN < cost || gain < gain_min / MARGIN;
        if (!used && is_worth) || (used && is_too_costly) {
            self.used.store(!used, Ordering::Relaxed);
        }
        if !self.is_used() {
            // Lookups that started before the decision may have loaded filters again.
            release_filters(version);
        }
        *last = LastRunFilterDecision {
            lookups,
            absent,
            data,
            index,
            miss_rate,
            saved_reads,
            lost_reads,
            filter_bytes,
        };
    }

    /// Returns the counters of the last decision for metrics.
    pub(crate) fn metrics(&self) -> LastRunFilterMetrics {
        let last = self.last_decision.lock();
        let [lookups, absent] = self.counters.sums();
        LastRunFilterMetrics {
            is_used: self.is_used(),
            lookups,
            absent,
            reads_saved: last.saved_reads,
            reads_lost: last.lost_reads,
            filter_bytes: last.filter_bytes,
        }
    }
}

/// Returns the hit rate since an earlier measurement. Returns 1 if there were no accesses.
fn hit_rate(earlier: HitCounts, now: HitCounts) -> f64 {
    let hits = now.hits.wrapping_sub(earlier.hits);
    let misses = now.misses.wrapping_sub(earlier.misses);
    if hits + misses == 0 { 1.0 } else { hits as f64 / (hits + misses) as f64 }
}

/// Returns the total size of the filters of the last run in bytes.
fn filter_bytes(version: &Version) -> u64 {
    let tables = version.runs().last().into_iter().flat_map(|run| run.tables().iter());
    let filters = tables.filter_map(|table| table.table().properties().filter);
    filters.map(|handle| handle.bytes).sum()
}

/// Removes the filters of the last run from the cache.
///
/// The cache would evict these filters only after all index blocks, although they are not used.
pub(crate) fn release_filters(version: &Version) {
    for table in version.runs().last().into_iter().flat_map(|run| run.tables().iter()) {
        table.table().release_filter();
    }
}

#[cfg(test)]
mod tests {
    use crate::db::Db;
    use crate::env::Background;
    use crate::format::BlockKind;
    use crate::options::db::Options;
    use crate::options::keyspace::{FilterLastRun, KeyspaceOptions};
    use crate::vfs::MemVfs;

    const KEYS: u32 = 30_000;
    const LOOKUPS: u32 = 20_000;

    fn key(number: u32) -> [u8; 16] {
        u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes()
    }

    /// Opens a database with one sorted run.
    fn open_with_one_run(cache_bytes: u64, filter: FilterLastRun) -> Db {
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

    /// Looks up keys, starting with the key of number `from`. Returns the number of data blocks read per lookup.
    fn look_up_keys(db: &Db, from: u32, modulo: u32) -> f64 {
        let misses = || db.read_metrics().cache.get(&BlockKind::Data).map_or(0, |it| it.misses);
        let before = misses();
        for number in 0..LOOKUPS {
            let number = from + number.wrapping_mul(7919) % modulo;
            assert_eq!(db.get(key(number)).unwrap().is_some(), number < KEYS);
        }
        (misses() - before) as f64 / f64::from(LOOKUPS)
    }

    fn is_filter_used(db: &Db) -> bool {
        db.metrics().keyspaces["default"].filter_last_run.is_used
    }

    #[test]
    fn last_run_filter_absent_keys_is_used() {
        let db = open_with_one_run(300 << 10, FilterLastRun::Auto);
        let resident = || db.read_metrics().cache[&BlockKind::Filter].resident_bytes;
        assert!(look_up_keys(&db, 0, KEYS) > 0.8 && !is_filter_used(&db));
        look_up_keys(&db, KEYS, KEYS);
        assert!(is_filter_used(&db), "{:?}", db.metrics().keyspaces["default"].filter_last_run);
        assert!(look_up_keys(&db, KEYS, KEYS) < 0.02);
        assert!(resident() > u64::from(KEYS));
        look_up_keys(&db, 0, KEYS);
        assert!(!is_filter_used(&db), "{:?}", db.metrics().keyspaces["default"].filter_last_run);
        let left =
            db.read_metrics().cache.get(&BlockKind::Filter).map_or(0, |it| it.resident_bytes);
        assert_eq!(left, 0);
    }

    // Reads that the filter saves must not decrease the measured miss rate of data blocks.
    #[test]
    fn last_run_filter_existing_keys_cached_stays_in_use() {
        let db = open_with_one_run(600 << 10, FilterLastRun::Auto);
        let mix = |db: &Db| {
            for number in 0..LOOKUPS {
                let absent = KEYS + number.wrapping_mul(7919) % KEYS;
                assert!(db.get(key(absent)).unwrap().is_none());
                assert!(db.get(key(number % 50)).unwrap().is_some());
            }
        };
        mix(&db);
        for _ in 0..4 {
            assert!(is_filter_used(&db), "{:?}", db.metrics().keyspaces["default"].filter_last_run);
            mix(&db);
        }
    }

    #[test]
    fn last_run_filter_too_large_is_unused() {
        let db = open_with_one_run(20 << 10, FilterLastRun::Auto);
        look_up_keys(&db, 0, KEYS);
        look_up_keys(&db, KEYS, KEYS);
        look_up_keys(&db, KEYS, KEYS);
        let metrics = db.metrics().keyspaces["default"].filter_last_run;
        assert!(!is_filter_used(&db), "{metrics:?}");
        assert!(metrics.absent > u64::from(LOOKUPS) && metrics.lookups > metrics.absent);
    }

    #[test]
    fn last_run_filter_data_cached_follows_absent_keys() {
        let db = open_with_one_run(64 << 20, FilterLastRun::Auto);
        look_up_keys(&db, 0, KEYS);
        assert!(!is_filter_used(&db));
        for _ in 0..3 {
            look_up_keys(&db, KEYS, KEYS);
            assert!(is_filter_used(&db), "{:?}", db.metrics().keyspaces["default"].filter_last_run);
        }
        look_up_keys(&db, 0, KEYS);
        assert!(!is_filter_used(&db), "{:?}", db.metrics().keyspaces["default"].filter_last_run);
    }

    #[test]
    fn last_run_filter_option_on_or_off_takes_effect_at_once() {
        for (filter, misses) in [(FilterLastRun::Off, 0.8..1.1), (FilterLastRun::On, 0.0..0.02)] {
            let db = open_with_one_run(300 << 10, filter);
            assert!(misses.contains(&look_up_keys(&db, KEYS, KEYS)));
            assert_eq!(is_filter_used(&db), filter == FilterLastRun::On);
        }
    }
}

//! Reads all counters together.

use crate::db::Core;
use crate::keyspace::Tree;
use crate::keyspace::counters::StallCounter;
use crate::metrics::{
    CacheMetrics, CompactionMetrics, KeyspaceMetrics, LevelMetrics, Metrics, StallCause,
    StallMetrics, WalMetrics,
};
use crate::sync::{AtomicU64, Ordering};

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Core {
    pub(super) fn metrics(&self) -> Metrics {
        let store = &self.store;
        let (counts, resident) = (store.tables.cache.counts(), store.tables.cache.resident_bytes());
        let cache = counts.iter().zip(resident.iter()).map(|((kind, counts), (_, resident))| {
            let (hits, misses) = (counts.hits, counts.misses);
            (kind, CacheMetrics { hits, misses, resident_bytes: *resident })
        });
        let trees = store.all_trees();
        Metrics {
            keyspaces: trees.iter().map(|tree| (tree.name.clone(), keyspace(tree))).collect(),
            cache: cache.filter(|(_, cache)| *cache != CacheMetrics::default()).collect(),
            filter: store.tables.cache.filter_answers(),
            commits: self.committer.metrics(),
            wal: self.read_only.clone().unwrap_or_else(|| WalMetrics {
                segments: store.wal.segments().len() as u64,
                live_bytes: store.wal.live_bytes(),
                written_bytes: store.wal.written_bytes(),
                syncs: store.wal.syncs(),
            }),
            snapshots: store.sequence.snapshot_count() as u64,
            published_seq: store.sequence.published().0,
            read_only: store.health.cause().map(|cause| cause.chain()),
        }
    }
}

fn stall(counter: &StallCounter) -> StallCause {
    StallCause {
        count: read(&counter.count),
        us_total: read(&counter.us),
        us_max: read(&counter.us_max),
    }
}

fn keyspace(tree: &Tree) -> KeyspaceMetrics {
    let counters = &tree.counters;
    let view = tree.pin();
    let levels = (0u8..=u8::MAX).zip(&view.version.shape().levels).map(|(level, at)| {
        let mut metrics =
            LevelMetrics { level, runs: at.runs.len() as u64, ..LevelMetrics::default() };
        for file in at.files() {
            metrics.files += 1;
            metrics.bytes += file.bytes;
            metrics.entries += file.entries;
            metrics.tombstones += file.tombstones;
        }
        metrics
    });
    let (memtables_full, too_many_runs) =
        (stall(&counters.memtable_stalls), stall(&counters.run_stalls));
    KeyspaceMetrics {
        policy: tree.settings().policy_spec.to_string(),
        gets: counters.gets.sum(),
        ingested_bytes: counters.ingested_bytes.sum(),
        put_bytes: counters.put_bytes.sum(),
        flushes: read(&counters.flushes),
        flushed_bytes: read(&counters.flushed_bytes),
        memtable_bytes: view.memtable_bytes(),
        memtables_sealed: view.sealed.len() as u64,
        filters_failed: read(&counters.filters_failed),
        compaction: CompactionMetrics {
            jobs: read(&counters.jobs),
            trivial_moves: read(&counters.trivial_moves),
            drops: read(&counters.drops),
            read_bytes: read(&counters.compaction_read_bytes),
            written_bytes: read(&counters.compaction_written_bytes),
            us_total: read(&counters.compaction_us),
            failures: read(&counters.compaction_failures),
        },
        stalls: StallMetrics {
            count: memtables_full.count + too_many_runs.count,
            us_total: memtables_full.us_total + too_many_runs.us_total,
            us_max: memtables_full.us_max.max(too_many_runs.us_max),
            memtables_full,
            too_many_runs,
            throttle_us_total: read(&counters.throttle_us),
        },
        levels: levels.filter(|level| level.runs > 0).collect(),
    }
}

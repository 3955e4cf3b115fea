//! Collects the metrics of a database from its counters.

use lsmx_base::coding::len_u64;
use lsmx_base::sync::{AtomicU64, Ordering};

use crate::db::DbInner;
use crate::env::rate_limit::IoPriority;
use crate::format::BlockKind;
use crate::metrics::{
    BackgroundIoMetrics, CacheMetrics, CompactionMetrics, DescriptorMetrics, DiskMetrics,
    FoldMetrics, HeldMetrics, KeyspaceMetrics, LaneMetrics, LevelFlow, LevelMetrics, MemoryMetrics,
    MergeMetrics, Metrics, ReadMetrics, StallCause, StallMetrics, ValueLogMetrics, WalMetrics,
};
use crate::tree::Tree;
use crate::tree::counters::StallCounter;
use crate::tree::merge_resolver::FoldCounter;

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub(crate) fn memory_metrics(inner: &DbInner) -> MemoryMetrics {
    let state = &inner.state;
    let cache = &state.tables.cache;
    let mut memory = MemoryMetrics {
        budget_bytes: inner.memory.budget_bytes,
        memtable_bytes_max: inner.memory.memtable_bytes,
        block_cache_bytes_max: inner.memory.cache_bytes,
        block_cache_kind: cache.kind(),
        wal_buffer: state.wal.buffer_bytes(),
        guard_history: state.guard_history.bytes(),
        open_tables: cache.open_table_bytes(),
        operand_stores: cache.operand_store_bytes(),
        read_ahead: cache.read_ahead_bytes(),
        ..MemoryMetrics::default()
    };
    for (kind, &bytes) in cache.resident_bytes().iter() {
        *match kind {
            BlockKind::Data => &mut memory.data_blocks,
            _ => &mut memory.metadata_blocks,
        } += bytes;
    }
    for tree in state.all_trees() {
        let view = tree.super_version();
        memory.memtables_active += view.active.bytes();
        memory.memtables_sealed += view.sealed.iter().map(|sealed| sealed.bytes()).sum::<u64>();
        memory.memtables_pinned += tree.old_super_versions.memtable_bytes(&view);
    }
    memory
}

fn held_metrics(inner: &DbInner) -> HeldMetrics {
    let state = &inner.state;
    let (files, file_bytes) = state.obsolete_files.held_files();
    let mut held = HeldMetrics {
        snapshots: state.sequence.snapshot_count() as u64,
        files,
        file_bytes,
        block_bytes: state.tables.cache.uncached_live_bytes(),
        ..HeldMetrics::default()
    };
    if let Some((seq, since_us)) = state.sequence.oldest_snapshot() {
        held.oldest_snapshot_age_us = state.env.now_us().saturating_sub(since_us);
        held.oldest_snapshot_behind = state.sequence.published().0.saturating_sub(seq.0);
    }
    for tree in state.all_trees() {
        let (views, pins) = tree.old_super_versions.count_in_use();
        held.old_views += views;
        held.view_pins += pins + tree.count_current_pins();
    }
    held
}

fn background_io_metrics(inner: &DbInner) -> BackgroundIoMetrics {
    let rate = &inner.state.tables.rate;
    let lane = |lane| {
        let (bytes, waited_us) = rate.usage(lane);
        LaneMetrics { bytes, waited_us }
    };
    BackgroundIoMetrics {
        rate: rate.rate(),
        flush: lane(IoPriority::Flush),
        compaction: lane(IoPriority::Compaction),
        reads_repeated: inner.state.tables.descriptors.reads_repeated(),
    }
}

pub(crate) fn read_metrics(inner: &DbInner) -> ReadMetrics {
    let blocks = &inner.state.tables.cache;
    let (counts, resident) = (blocks.counts(), blocks.resident_bytes());
    let cache = counts.iter().zip(resident.iter()).map(|((kind, counts), (_, resident))| {
        let (hits, misses) = (counts.hits, counts.misses);
        (kind, CacheMetrics { hits, misses, resident_bytes: *resident })
    });
    let filter_by_level = blocks.filter_counts();
    ReadMetrics {
        cache: cache.filter(|(_, cache)| *cache != CacheMetrics::default()).collect(),
        filter: filter_by_level.values().copied().sum(),
        filter_by_level,
    }
}

pub(crate) fn metrics(inner: &DbInner) -> Metrics {
    let state = &inner.state;
    let ReadMetrics { cache, filter, filter_by_level } = read_metrics(inner);
    let (trees, now_us) = (state.all_trees(), state.env.database_us());
    let mut wal = inner.read_only.clone().unwrap_or_else(|| WalMetrics {
        segments: state.wal.segment_count(),
        live_bytes: state.wal.live_bytes(),
        written_bytes: state.wal.written_bytes(),
        syncs: state.wal.syncs(),
        reserved_bytes: state.tables.reserve.bytes(),
        ..WalMetrics::default()
    });
    for kept in trees.iter().filter_map(|tree| tree.operand_store.kept_log()) {
        wal.kept_segments += kept.count();
        wal.kept_bytes += kept.bytes();
    }
    let mut disk = DiskMetrics {
        log_bytes: wal.live_bytes + wal.kept_bytes,
        reserve_bytes: wal.reserved_bytes,
        ..DiskMetrics::default()
    };
    for tree in &trees {
        let view = tree.pin_super_version();
        let blobs = view.version.blobs().files().map(|used| used.file.record().bytes);
        let blob_bytes: u64 = blobs.sum();
        disk.blob_bytes += blob_bytes;
        disk.table_bytes += view.version.file_bytes() - blob_bytes;
    }
    Metrics {
        keyspaces: trees
            .iter()
            .map(|tree| (tree.name.clone(), keyspace_metrics(tree, now_us)))
            .collect(),
        cache,
        filter,
        filter_by_level,
        commits: inner.committer.metrics(),
        wal,
        disk,
        memory: memory_metrics(inner),
        held: held_metrics(inner),
        descriptors: DescriptorMetrics {
            open: state.tables.descriptors.open_count() as u64,
            max: state.tables.descriptors.fds_max() as u64,
            reopened: state.tables.descriptors.reopened(),
        },
        background_io: background_io_metrics(inner),
        flush_us: state.flush_us.metrics(),
        compaction_us: state.compaction_us.metrics(),
        snapshots: state.sequence.snapshot_count() as u64,
        published_seq: state.sequence.published().0,
        read_only: state.error_state.read_only_cause().map(|cause| cause.to_string()),
    }
}

fn stall_cause(counter: &StallCounter) -> StallCause {
    StallCause {
        count: load(&counter.count),
        us_total: load(&counter.us),
        us_max: load(&counter.us_max),
    }
}

fn fold_metrics(counter: &FoldCounter) -> FoldMetrics {
    FoldMetrics {
        folds: load(&counter.folds),
        operands: load(&counter.operands),
        operands_max: load(&counter.longest),
    }
}

fn keyspace_metrics(tree: &Tree, now_us: u64) -> KeyspaceMetrics {
    let counters = &tree.counters;
    let view = tree.pin_super_version();
    let flows = counters.level_flows();
    let blobs = view.version.blobs();
    let shape = view.version.shape();
    let level_count = flows.keys().next_back().map_or(0, |&level| usize::from(level) + 1);
    let levels = (0u8..=u8::MAX).take(level_count.max(shape.levels.len())).map(|level| {
        let level_shape = shape.levels.get(usize::from(level));
        let mut metrics = LevelMetrics {
            level,
            runs: level_shape.map_or(0, |shape| shape.runs.len() as u64),
            flow: flows.get(&level).cloned().unwrap_or_default(),
            ..LevelMetrics::default()
        };
        for file in level_shape.iter().flat_map(|shape| shape.files()) {
            metrics.files += 1;
            metrics.bytes += file.bytes;
            metrics.entries += file.entries;
            let table = view.version.table(file.id);
            let range_tombstones =
                table.map_or(0, |table| table.table().properties().range_tombstone_count);
            metrics.tombstones += file.tombstones.saturating_sub(range_tombstones);
            metrics.range_tombstones += range_tombstones;
        }
        metrics
    });
    let files = shape.levels.iter().flat_map(|level| level.files());
    let with_tombstones = files.filter(|file| file.tombstones > 0);
    let oldest_tombstone_us = with_tombstones.filter_map(|file| file.oldest_tombstone_us).min();
    let memtables_full = stall_cause(&counters.memtable_stalls);
    let memory_full = stall_cause(&counters.memory_stalls);
    let too_many_runs = stall_cause(&counters.run_stalls);
    let causes = [memtables_full, memory_full, too_many_runs];
    KeyspaceMetrics {
        policy: tree.settings().stored_policy.to_string(),
        gets: counters.gets.sum(),
        ingested_bytes: counters.ingested_bytes.sum(),
        put_bytes: counters.put_bytes.sum(),
        flushes: load(&counters.flushes),
        flushed_bytes: load(&counters.flushed_bytes),
        memtable_bytes: view.memtable_bytes(),
        memtables_sealed: view.sealed.len() as u64,
        filters_failed: load(&counters.filters_failed),
        filter_last_run: tree.last_run_filter.metrics(tree.uses_last_run_filter()),
        compaction: CompactionMetrics {
            jobs: load(&counters.jobs),
            jobs_divided: load(&counters.jobs_split),
            parts: load(&counters.subcompactions),
            parts_helped: load(&counters.subcompactions_helped),
            trivial_moves: load(&counters.trivial_moves),
            drops: load(&counters.delete_only_jobs),
            read_bytes: load(&counters.compaction_read_bytes),
            written_bytes: load(&counters.compaction_written_bytes),
            us_total: load(&counters.compaction_us),
            failures: load(&counters.compaction_failures),
            quarantined_files: len_u64(tree.jobs.lock().quarantine.files().count()),
            quarantines: load(&counters.quarantines),
        },
        merges: MergeMetrics {
            reads: fold_metrics(&tree.merge_resolver.reads),
            jobs: fold_metrics(&tree.merge_resolver.jobs),
            failures: load(&tree.merge_resolver.failures),
        },
        operand_store: tree.operand_store.attached().map(|attached| attached.store.metrics()),
        value_log: ValueLogMetrics {
            blob_files: len_u64(blobs.files().count()),
            blob_bytes: blobs.files().map(|used| used.file.record().bytes).sum(),
            blob_referenced_bytes: blobs.files().map(|used| used.bytes).sum(),
            written_bytes: load(&counters.blob_written_bytes),
            rewrites: load(&counters.blob_rewrites),
            rewritten_bytes: load(&counters.blob_moved_bytes),
            gathered_bytes: load(&counters.blob_relocated_bytes),
        },
        stalls: StallMetrics {
            count: causes.iter().map(|cause| cause.count).sum(),
            us_total: causes.iter().map(|cause| cause.us_total).sum(),
            us_max: causes.iter().map(|cause| cause.us_max).max().unwrap_or(0),
            memtables_full,
            memory_full,
            too_many_runs,
            throttle_us_total: load(&counters.throttle_us),
        },
        oldest_tombstone_age_us: oldest_tombstone_us.map(|us| now_us.saturating_sub(us)),
        levels: levels
            .filter(|level| level.runs > 0 || level.flow != LevelFlow::default())
            .collect(),
    }
}

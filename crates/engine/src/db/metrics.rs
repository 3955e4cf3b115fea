//! Collects the metrics of a database from its counters.

use lsmx_base::coding::len_u64;
use lsmx_base::sync::{Arc, AtomicU64, Ordering};

use crate::db::inner::DbInner;
use crate::env::rate_limit::IoPriority;
use crate::event::PersistenceHolder;
use crate::format::BlockKind;
use crate::jobs::delete_persistence::find_overdue_data;
use crate::metrics::{
    BackgroundIoMetrics, CacheMetrics, CompactionDebtMetrics, DeletePersistenceMetrics,
    DescriptorMetrics, DiskMetrics, FoldMetrics, HeldMetrics, JobIoMetrics, KeyspaceMetrics,
    LevelWriteMetrics, MemoryMetrics, MergeMetrics, Metrics, ReadMetrics, RunningJobMetrics,
    WalMetrics,
};
use crate::state::DbState;
use crate::tree::Tree;
use crate::tree::merge_resolver::FoldCounter;

fn load_counter(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub(crate) fn memory_metrics(inner: &DbInner) -> MemoryMetrics {
    let state = &inner.state;
    let cache = &state.tables.cache;
    let mut memory = MemoryMetrics {
        budget_bytes: inner.memory.budget_bytes,
        memtable_bytes_max: inner.memory.memtable_bytes,
        block_cache_bytes_max: inner.memory.cache_bytes,
        block_cache_kind: cache.cache_kind(),
        wal_buffer: state.wal.buffer_bytes(),
        guard_history: state.guard_history.bytes(),
        open_tables: cache.open_table_bytes(),
        operand_stores: cache.operand_store_bytes(),
        transactions: cache.transaction_bytes(),
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
        block_bytes: state.tables.cache.bytes_held_by_readers(),
        ..HeldMetrics::default()
    };
    if let Some((seq, since_us)) = state.sequence.oldest_snapshot() {
        held.oldest_snapshot_age_us = state.env.now_us().saturating_sub(since_us);
        held.oldest_snapshot_behind = state.sequence.published().0.saturating_sub(seq.0);
    }
    for tree in state.all_trees() {
        let (views, pins) = tree.old_super_versions.count_in_use();
        held.old_views += views;
        held.view_pins += pins + tree.count_super_version_pins();
    }
    held
}

fn background_io_metrics(inner: &DbInner) -> BackgroundIoMetrics {
    let rate = &inner.state.tables.rate;
    let lane = |lane| {
        let (bytes, waited_us) = rate.acquired_bytes_and_wait_us(lane);
        JobIoMetrics { bytes, waited_us }
    };
    BackgroundIoMetrics {
        rate: rate.rate(),
        flush: lane(IoPriority::Flush),
        compaction: lane(IoPriority::Compaction),
        reads_repeated: inner.state.tables.descriptors.repeated_read_count(),
    }
}

pub(crate) fn read_metrics(inner: &DbInner) -> ReadMetrics {
    let blocks = &inner.state.tables.cache;
    let (counts, resident) = (blocks.hit_counts(), blocks.resident_bytes());
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
    // Names and trees are read together, so that a concurrent rename omits no keyspace.
    let named: Vec<(String, Arc<Tree>)> = {
        let trees = state.trees.read();
        trees.iter_by_name().map(|(name, tree)| (name.clone(), Arc::clone(tree))).collect()
    };
    let (trees, now_us) = (|| named.iter().map(|(_, tree)| tree), state.env.database_time_us());
    let mut wal = inner.read_only.clone().unwrap_or_else(|| WalMetrics {
        segments: state.wal.segment_count(),
        live_bytes: state.wal.live_bytes(),
        written_bytes: state.wal.written_bytes(),
        syncs: state.wal.sync_count(),
        reserved_bytes: state.tables.reserve.bytes(),
        ..WalMetrics::default()
    });
    for kept in trees().filter_map(|tree| tree.operand_store.kept_log()) {
        wal.kept_segments += kept.count();
        wal.kept_bytes += kept.bytes();
    }
    let mut disk = DiskMetrics {
        log_bytes: wal.live_bytes + wal.kept_bytes,
        reserve_bytes: wal.reserved_bytes,
        ..DiskMetrics::default()
    };
    for tree in trees() {
        let view = tree.pin_super_version();
        let blobs = view.version.blobs().files().map(|used| used.file.record().bytes);
        let blob_bytes: u64 = blobs.sum();
        disk.blob_bytes += blob_bytes;
        disk.table_bytes += view.version.file_bytes() - blob_bytes;
    }
    let mut transactions = inner.transactions.metrics();
    inner.lock_table.add_metrics(&mut transactions);
    Metrics {
        keyspaces: named
            .iter()
            .map(|(name, tree)| (name.clone(), keyspace_metrics(state, tree, now_us)))
            .collect(),
        cache,
        filter,
        filter_by_level,
        commits: inner.committer.metrics(),
        transactions,
        wal,
        disk,
        memory: memory_metrics(inner),
        held: held_metrics(inner),
        followers: state.obsolete_files.follower_files(),
        descriptors: DescriptorMetrics {
            open: state.tables.descriptors.open_count() as u64,
            max: state.tables.descriptors.max_open_files() as u64,
            reopened: state.tables.descriptors.reopen_count(),
        },
        background_io: background_io_metrics(inner),
        flush_us: state.flush_us.metrics(),
        compaction_us: state.compaction_us.metrics(),
        operation_latency: state.latencies.metrics(),
        metrics_file_failures: load_counter(&inner.metrics_file_failures),
        snapshots: state.sequence.snapshot_count() as u64,
        published_seq: state.sequence.published().0,
        read_only: state.error_state.read_only_cause().map(|cause| cause.to_string()),
    }
}

fn fold_metrics(counter: &FoldCounter) -> FoldMetrics {
    FoldMetrics {
        folds: load_counter(&counter.folds),
        operands: load_counter(&counter.operands),
        operands_max: load_counter(&counter.longest),
    }
}

fn delete_persistence_metrics(state: &DbState, tree: &Tree) -> DeletePersistenceMetrics {
    let Some(parts) = tree.delete_persistence() else { return DeletePersistenceMetrics::default() };
    let bound_us = parts.bound_us();
    let mut metrics = DeletePersistenceMetrics { bound_us, ..DeletePersistenceMetrics::default() };
    for data in find_overdue_data(tree, &state.sequence) {
        let longest = match data.holder {
            PersistenceHolder::Jobs => &mut metrics.overdue_us,
            PersistenceHolder::Snapshot { .. } => &mut metrics.snapshot_overdue_us,
            PersistenceHolder::Iterator { .. } => &mut metrics.iterator_overdue_us,
        };
        *longest = data.overdue_us.max(*longest);
    }
    metrics
}

/// Returns the metrics of a keyspace: its counters, and sizes of its current super version.
fn keyspace_metrics(state: &DbState, tree: &Tree, now_us: u64) -> KeyspaceMetrics {
    let mut metrics = tree.counters.metrics();
    let view = tree.pin_super_version();
    let shape = view.version.shape();
    metrics.policy = tree.settings().stored_policy.to_string();
    metrics.memtable_bytes = view.memtable_bytes();
    metrics.memtables_sealed = len_u64(view.sealed.len());
    metrics.filter_last_run = tree.last_run_filter.metrics();
    {
        let jobs = tree.jobs.lock();
        metrics.compaction.quarantined_files = len_u64(jobs.quarantine.files().count());
        metrics.running_jobs = RunningJobMetrics {
            flushes: u64::from(jobs.flushing),
            compactions: len_u64(jobs.running.jobs.len()),
            compaction_bytes_left: jobs.running.jobs.iter().map(|(_, left)| left).sum(),
        };
    }
    metrics.merges = MergeMetrics {
        reads: fold_metrics(&tree.merge_resolver.reads),
        jobs: fold_metrics(&tree.merge_resolver.jobs),
        failures: load_counter(&tree.merge_resolver.failures),
        write_backs: load_counter(&tree.merge_resolver.write_backs),
    };
    metrics.operand_store = tree.operand_store.attached().map(|attached| attached.store.metrics());
    for used in view.version.blobs().files() {
        metrics.value_log.blob_files += 1;
        metrics.value_log.blob_bytes += used.file.record().bytes;
        metrics.value_log.blob_referenced_bytes += used.bytes;
    }
    metrics.delete_persistence = delete_persistence_metrics(state, tree);
    let debt = tree.debt();
    metrics.compaction_debt = CompactionDebtMetrics {
        pending_bytes: debt.pending_bytes,
        headroom_bytes: (debt.pending_bytes > 0).then_some(debt.headroom_bytes),
        write_rate_max: tree.admitted_write_rate(),
    };
    let files = shape.levels.iter().flat_map(|level| level.files());
    let with_tombstones = files.filter(|file| file.tombstones > 0);
    let oldest_tombstone_us = with_tombstones.filter_map(|file| file.oldest_tombstone_us).min();
    metrics.oldest_tombstone_age_us = oldest_tombstone_us.map(|us| now_us.saturating_sub(us));
    for (number, level) in (0u8..=u8::MAX).zip(&shape.levels) {
        let metrics = metrics.level_mut(number);
        metrics.runs = len_u64(level.runs.len());
        for file in level.files() {
            metrics.files += 1;
            metrics.bytes += file.bytes;
            metrics.entries += file.entries;
            let table = view.version.table(file.id);
            let fragments = table.map_or(0, |it| it.table().properties().range_tombstone_count);
            metrics.tombstones += file.tombstones.saturating_sub(fragments);
            metrics.range_tombstones += fragments;
        }
    }
    metrics.levels.retain(|level| level.runs > 0 || level.flow != LevelWriteMetrics::default());
    metrics
}

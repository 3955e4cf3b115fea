//! Builds an open database from its recovered state.

use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex};

use crate::db::engine_thread::EngineThread;
use crate::db::inner::DbInner;
use crate::db::key_locks::KeyLocks;
use crate::db::open::recovery::Recovery;
use crate::db::open::warm_up::WarmUp;
use crate::db::transaction::counters::TransactionCounters;
use crate::db::transaction::lock_table::LockTable;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::jobs::flush_trigger::{FlushTrigger, FlushTriggerLimits};
use crate::jobs::scheduler::JobScheduler;
use crate::jobs::worker_pool::WorkerPool;
use crate::manifest::Manifest;
use crate::metrics::WalMetrics;
use crate::options::db::DEFAULT_KEYSPACE;
use crate::state::{DbParts, DbState};
use crate::tree::guard_history::GuardHistory;
use crate::tree::snapshots::SnapshotTracker;
use crate::vfs::LockGuard;
use crate::wal::Wal;
use crate::write::commit::Committer;
use crate::write::throttle::Throttle;

/// Manifest, log and lock of an open database.
pub(crate) struct OpenFiles {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) lock: Option<Box<dyn LockGuard>>,
    /// Size of the log on disk, if the database is read-only.
    pub(crate) read_only: Option<WalMetrics>,
}

/// Builds an open database. Starts no thread.
pub(crate) fn assemble(recovery: Recovery, files: OpenFiles) -> Result<DbInner> {
    let Recovery { tables, options, trees, open_id, latencies, seq_next, report, progress, .. } =
        recovery;
    let OpenFiles { manifest, wal, lock, read_only } = files;
    let Some(default_tree) = trees.by_name(DEFAULT_KEYSPACE).cloned() else {
        let why = "its manifest does not list the default keyspace";
        return Err(Error::NotADatabase { path: tables.dir, why });
    };
    let sequence = Arc::new(SnapshotTracker::default());
    sequence.publish(SeqNo(seq_next.0 - 1));
    let listener = options.listener.clone();
    let explains = options.explain_decisions && listener.is_some();
    let memory = options.memory_plan();
    let state = Arc::new(DbState::new(DbParts {
        tables,
        manifest,
        wal,
        sequence,
        guard_history: GuardHistory::new(memory.guard_history_bytes()),
        memtable_bytes_max: memory.memtable_bytes,
        trees,
        latencies,
        listener,
        explains,
        progress,
    }));
    state.emit(&Event::Recovery(Arc::new(report)));
    state.report_clock_jumps();
    let committer = Arc::new(Committer::new(Arc::clone(&state), seq_next));
    let throttle = Arc::new(Throttle::new(options.write_control));
    let flush_trigger = Arc::new(FlushTrigger::new(
        Arc::clone(&state),
        Arc::clone(&committer),
        FlushTriggerLimits {
            wal_bytes: options.wal_bytes_limit(),
            memtable_bytes: memory.flush_threshold(),
            memtable_idle_us: options.memtable_idle_us,
        },
    ));
    let scheduler = JobScheduler::new(
        Arc::clone(&state),
        Arc::clone(&committer),
        Arc::clone(&throttle),
        Arc::clone(&flush_trigger),
        WorkerPool::new(options.background, options.subcompactions_max),
    );
    Ok(DbInner {
        state,
        committer,
        scheduler: Arc::new(scheduler),
        flush_trigger,
        throttle,
        memory,
        options,
        open_id,
        default_tree,
        read_only,
        lock: Mutex::new(lock),
        keyspace_changes: Mutex::new(()),
        key_locks: KeyLocks::new(),
        lock_table: LockTable::new(),
        transactions: TransactionCounters::default(),
        warm_up: WarmUp::default(),
        metrics_thread: EngineThread::default(),
        metrics_file_failures: AtomicU64::new(0),
        recording: Arc::default(),
        closed: Arc::default(),
        lock_released: AtomicBool::new(false),
        admin_locked: AtomicBool::new(false),
        call_threads: AtomicUsize::new(0),
        file_writes: AtomicUsize::new(0),
        rewrites: AtomicU64::new(0),
    })
}

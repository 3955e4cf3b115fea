//! Guarantee 17: the work of a call for n items grows at most as n log n.
//!
//! Each check makes one kind of call with n, 4n and 16n items. The check compares the work that the engine counts
//! ([`lsmx_base::work_counter`]) and the bytes that the process allocates, not the time. If `LSMX_TEST_SCALE` is above
//! 1, there are two larger sizes. `--nocapture` prints all counters.

use std::future::Future;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use lsmx::env::Background;
use lsmx::ingest::BulkLoadOptions;
use lsmx::internals::vfs::{CrashImage, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{
    Db, Durability, Event, EventListener, KeyspaceOptions, Options, PolicySpec, ValueSeparation,
    WriteBatch,
};
use lsmx_base::work_counter::{WorkKind, total};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_simulator::workload::{KeyDistribution, Phase};
use lsmx_simulator::{Config, SUBCOMPACTIONS_DEFAULT, simulate};
use lsmx_testkit::scale;

use crate::ALLOCATOR;
use crate::gate::{Gate, each};

/// A cost may exceed n log n by this factor. Amortized costs, such as the growth of a vector, can be uneven between the
/// sizes.
const SLACK: f64 = 1.5;
/// Smaller counts are raised to this value before the comparison, because they are too small to show growth.
const FEW: u64 = 2_000;
const FEW_BYTES: u64 = 64 << 10;

/// The names and values of the work counters during a call, and of the allocated bytes.
#[derive(Clone, Debug)]
struct Cost(Vec<(String, u64)>);

impl Cost {
    fn measure(work: impl FnOnce()) -> Cost {
        let read = || {
            let counters = WorkKind::ALL.iter().map(|kind| (format!("{kind:?}"), total(*kind)));
            let allocated = ("AllocatedBytes".to_owned(), ALLOCATOR.total_bytes());
            counters.chain([allocated]).collect::<Vec<_>>()
        };
        let before = read();
        work();
        let after = read();
        let spent =
            after.into_iter().zip(before).map(|((name, now), (_, then))| (name, now - then));
        Cost(spent.collect())
    }

    fn with(mut self, name: &str, count: u64) -> Cost {
        self.0.push((name.to_owned(), count));
        self
    }
}

/// Returns three sizes, the first of which is `smallest`. Each size is four times the previous size. If
/// `LSMX_TEST_SCALE` is above 1, returns five sizes.
fn sizes(smallest: u64) -> Vec<u64> {
    let more = if scale() > 1.0 { 2 } else { 0 };
    (0..3 + more).map(|step| smallest << (2 * step)).collect()
}

/// Fails if a counter grows faster than n log n from one size to the next.
fn grows_at_most_as_n_log_n(what: &str, smallest: u64, cost: impl Fn(u64) -> Cost) {
    let costs: Vec<(u64, Cost)> = sizes(smallest).into_iter().map(|n| (n, cost(n))).collect();
    let mut steep = Vec::new();
    for (at, (name, _)) in costs[0].1.0.iter().enumerate() {
        let counts: Vec<u64> = costs.iter().map(|(_, cost)| cost.0[at].1).collect();
        println!("{what}: {name} {counts:?}");
        for (pair, count) in costs.windows(2).zip(counts.windows(2)) {
            let (n, larger) = (pair[0].0 as f64, pair[1].0 as f64);
            let bound = (larger * larger.log2()) / (n * n.log2()) * SLACK;
            let few = if name.ends_with("Bytes") { FEW_BYTES } else { FEW };
            let growth = count[1] as f64 / count[0].max(few) as f64;
            if growth > bound {
                steep.push(format!("{name} grows by {growth:.1} > {bound:.1}: {counts:?}"));
                break;
            }
        }
    }
    assert!(steep.is_empty(), "{what}: {}", steep.join("; "));
}

/// Fails if the last cost is more than [`SLACK`] times the first cost.
fn does_not_grow(what: &str, costs: &[(u64, u64)]) {
    println!("{what}: {costs:?}");
    let (first, last) = (costs[0].1, costs[costs.len() - 1].1);
    assert!(last as f64 <= first as f64 * SLACK, "{what} grows: {costs:?}");
}

fn keyspace_options() -> KeyspaceOptions {
    let policy: PolicySpec = "leveled".parse().unwrap();
    KeyspaceOptions::default().policy(policy).memtable_bytes(1 << 30)
}

fn options(keyspace: KeyspaceOptions) -> Options {
    Options::default()
        .background(Background::Inline)
        .seed(1)
        .memtable_bytes_max(1 << 32)
        .wal_bytes_max(1 << 32)
        .keyspace_defaults(keyspace)
}

fn open(disk: &MemVfs, keyspace: KeyspaceOptions) -> Db {
    Db::open("db", options(keyspace).vfs(Arc::new(disk.clone()))).unwrap()
}

fn new(keyspace: KeyspaceOptions) -> Db {
    open(&MemVfs::new(), keyspace)
}

/// Maps consecutive numbers to keys in random order.
fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Returns the key of a number. The keys have the same order as the numbers.
fn ordered(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn batch(db: &Db, n: u64) -> WriteBatch {
    let (mut batch, keyspace) = (WriteBatch::new(), db.default_keyspace());
    for number in 0..n {
        batch.put(&keyspace, key(number), b"value");
    }
    batch
}

fn put_all(db: &Db, n: u64) {
    db.write(batch(db, n), Durability::Buffered).unwrap();
}

/// Describes how the ranges of many range deletes overlap.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// The ranges `..1`, `..2`, … in this order. Applications that regularly delete old data write such ranges.
    Growing,
    /// The ranges of `Growing` in reverse order, starting with the largest range.
    Shrinking,
    /// The ranges start at consecutive numbers. Each range covers about half of all keys.
    Crossing,
    Disjoint,
}

impl Layout {
    /// Returns range number `number` of `n` ranges.
    fn range(self, number: u64, n: u64) -> (Bound<[u8; 8]>, Bound<[u8; 8]>) {
        let (start, end) = match self {
            Layout::Growing => (Bound::Unbounded, ordered(2 * number + 2)),
            Layout::Shrinking => (Bound::Unbounded, ordered(2 * (n - number))),
            Layout::Crossing => (Bound::Included(ordered(number)), ordered(number + n)),
            Layout::Disjoint => (Bound::Included(ordered(2 * number)), ordered(2 * number + 1)),
        };
        (start, Bound::Excluded(end))
    }
}

const LAYOUTS: [Layout; 4] =
    [Layout::Growing, Layout::Shrinking, Layout::Crossing, Layout::Disjoint];

fn delete_ranges(db: &Db, n: u64, layout: Layout) {
    let keyspace = db.default_keyspace();
    for number in 0..n {
        keyspace.delete_range(layout.range(number, n)).unwrap();
    }
}

fn put_ordered(db: &Db, n: u64) {
    let (mut batch, keyspace) = (WriteBatch::new(), db.default_keyspace());
    for number in 0..n {
        batch.put(&keyspace, ordered(2 * number), b"value");
    }
    db.write(batch, Durability::Buffered).unwrap();
}

fn memtable_bytes(db: &Db) -> u64 {
    db.metrics().keyspaces.values().map(|keyspace| keyspace.memtable_bytes).sum()
}

fn delta() -> DeltaStoreFactory {
    DeltaStoreFactory::new(DeltaOptions::default())
}

#[test]
fn write_of_a_batch_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("write", 1_000, |n| {
        let db = new(keyspace_options());
        let batch = batch(&db, n);
        Cost::measure(|| db.write(batch, Durability::Buffered).unwrap())
    });
}

type Queued = Pin<Box<dyn Future<Output = lsmx::Result<()>> + Send>>;

/// Returns a disk with two gates. The first gate blocks appends to the log. The second gate blocks the creation of
/// tables.
fn gated_disk() -> (FaultVfs, [Gate; 2]) {
    let [log, tables] = [Gate::default(), Gate::default()];
    let disk = tables.disk(each(&[VfsCall::Create], ".sst"), "");
    let disk = log.over(Arc::new(disk), each(&[VfsCall::Append], ".wal"), "");
    (disk, [log, tables])
}

fn poll_once(future: &mut Queued) -> bool {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// A database with background threads, its asynchronous handle and its Tokio runtime.
struct AsyncDatabase {
    db: Db,
    handle: lsmx::tokio::Db,
    runtime: tokio::runtime::Runtime,
}

impl AsyncDatabase {
    fn open(disk: &FaultVfs, options: Options) -> AsyncDatabase {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_time().build().unwrap();
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        let _entered = runtime.enter();
        let handle = lsmx::tokio::Db::try_from(db.clone()).unwrap();
        drop(_entered);
        AsyncDatabase { db, handle, runtime }
    }

    /// Adds a batch to the commit queue. Awaiting the returned future completes the write.
    fn queue(&self, batch: WriteBatch) -> Queued {
        let handle = self.handle.clone();
        let mut write: Queued =
            Box::pin(async move { handle.write(batch, Durability::Buffered).await });
        let _entered = self.runtime.enter();
        assert!(!poll_once(&mut write));
        write
    }
}

/// Commits two batches in one group, by queueing both while an append to the log is blocked.
fn commit_together(batches: impl FnOnce(&Db) -> [WriteBatch; 2]) -> Cost {
    let (disk, [log, _]) = gated_disk();
    let served =
        AsyncDatabase::open(&disk, options(keyspace_options()).background(Background::default()));
    log.shut();
    let batches = batches(&served.db);
    let ahead = served.queue(batch(&served.db, 1));
    log.wait_until_blocked(1);
    let queued = batches.map(|batch| served.queue(batch));
    let cost = Cost::measure(|| {
        log.open();
        served.runtime.block_on(async {
            ahead.await.unwrap();
            for write in queued {
                write.await.unwrap();
            }
        });
    });
    served.db.close(None).unwrap();
    cost
}

#[test]
fn write_with_guards_beside_a_large_batch_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("guarded write", 250, |n| {
        commit_together(|db| {
            let keyspace = db.default_keyspace();
            let read = db.snapshot().seq();
            let mut guarded = WriteBatch::new();
            guarded.put(&keyspace, b"guarded", b"value");
            for number in 0..n {
                guarded.guard(&keyspace, format!("guarded {number}"), read);
            }
            [batch(db, n), guarded]
        })
    });
}

#[derive(Debug, Default)]
struct Stalls(AtomicUsize);

impl EventListener for Stalls {
    fn on_event(&self, event: &Event) {
        if matches!(event, Event::StallBegin(_)) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Queues batches while memtable memory is free. The engine then inserts the batches while flushes are blocked. The
/// size of the memtables must not depend on the number of batches.
#[test]
fn memtables_do_not_grow_with_the_batches_in_flight() {
    const BATCH_BYTES: usize = 1 << 20;
    let _alone = lsmx_testkit::run_alone();
    let bytes = |in_flight: usize| {
        let (disk, [log, tables]) = gated_disk();
        let stalls = Arc::new(Stalls::default());
        let keyspace = keyspace_options().memtable_bytes(BATCH_BYTES as u64);
        let options = options(keyspace)
            .background(Background::default())
            .memtable_bytes_max(2 * BATCH_BYTES as u64)
            .listener(Arc::clone(&stalls) as Arc<dyn EventListener>);
        let served = AsyncDatabase::open(&disk, options);
        log.shut();
        tables.shut();
        let ahead = served.queue(batch(&served.db, 1));
        log.wait_until_blocked(1);
        let mut writes = Vec::new();
        let done = Arc::new(AtomicUsize::new(0));
        for number in 0..in_flight {
            let (mut batch, keyspace) = (WriteBatch::new(), served.db.default_keyspace());
            batch.put(&keyspace, ordered(number as u64), vec![7; BATCH_BYTES]);
            let (write, done) = (served.queue(batch), Arc::clone(&done));
            writes.push(async move {
                write.await.unwrap();
                done.fetch_add(1, Ordering::AcqRel);
            });
        }
        log.open();
        served.runtime.block_on(async {
            ahead.await.unwrap();
            let writes: Vec<_> = writes.into_iter().map(tokio::spawn).collect();
            // Waits until each write either is in a memtable or has stalled.
            while done.load(Ordering::Acquire) + stalls.0.load(Ordering::Acquire) < in_flight {
                tokio::task::yield_now().await;
            }
            let grown = memtable_bytes(&served.db);
            tables.open();
            for write in writes {
                write.await.unwrap();
            }
            grown
        })
    };
    let costs: Vec<_> = [4, 16, 64].map(|n: usize| (n as u64, bytes(n))).into();
    does_not_grow("memtables of batches in flight", &costs);
}

/// Checks how the cost grows with the number `n` of range deletes, for each [`Layout`]. The smallest `n` is 256.
fn check_layouts(what: &str, cost: impl Fn(u64, Layout) -> Cost) {
    let _alone = lsmx_testkit::run_alone();
    for layout in LAYOUTS {
        let what = format!("{what}, {layout:?} range deletes");
        grows_at_most_as_n_log_n(&what, 256, |n| cost(n, layout));
    }
}

#[test]
fn range_deletes_cost_n_log_n() {
    check_layouts("range deletes", |n, layout| {
        let db = new(keyspace_options());
        let cost = Cost::measure(|| delete_ranges(&db, n, layout));
        cost.with("MemtableBytes", memtable_bytes(&db))
    });
}

#[test]
fn get_among_range_deletes_costs_n_log_n() {
    check_layouts("n gets", |n, layout| {
        let db = new(keyspace_options());
        put_ordered(&db, n);
        delete_ranges(&db, n, layout);
        Cost::measure(|| (0..n).for_each(|number| drop(db.get(ordered(2 * number)).unwrap())))
    });
}

#[test]
fn get_between_range_deletes_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("n gets between growing range deletes", 256, |n| {
        let db = new(keyspace_options());
        Cost::measure(|| {
            for number in 0..n {
                db.default_keyspace().delete_range::<[u8; 8]>(..ordered(number)).unwrap();
                db.get(ordered(number / 2)).unwrap();
            }
        })
    });
}

#[test]
fn multi_get_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    for flushed in [false, true] {
        grows_at_most_as_n_log_n(&format!("multi_get, flushed: {flushed}"), 256, |n| {
            let db = new(keyspace_options());
            put_ordered(&db, n);
            delete_ranges(&db, n, Layout::Shrinking);
            if flushed {
                db.flush().unwrap();
            }
            let keys: Vec<_> = (0..n).map(|number| ordered(2 * number)).collect();
            Cost::measure(|| drop(db.default_keyspace().multi_get(&keys).unwrap()))
        });
    }
}

#[test]
fn range_costs_n_log_n() {
    for flushed in [false, true] {
        check_layouts(&format!("range, flushed: {flushed}"), |n, layout| {
            let db = new(keyspace_options());
            put_ordered(&db, n);
            // This snapshot is older than the range deletes, so all entries are visible to it.
            let before = db.snapshot();
            delete_ranges(&db, n, layout);
            if flushed {
                db.flush().unwrap();
            }
            let keyspace = db.default_keyspace();
            Cost::measure(|| {
                assert_eq!(before.iter(&keyspace).count() as u64, n);
                assert!((keyspace.iter().rev().count() as u64) < n);
            })
        });
    }
}

#[test]
fn transaction_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    for flushed in [false, true] {
        grows_at_most_as_n_log_n(&format!("transaction, flushed: {flushed}"), 500, |n| {
            let db = new(keyspace_options());
            let keyspace = db.default_keyspace();
            drop(db.transaction().range::<&[u8]>(&keyspace, ..));
            put_ordered(&db, n);
            Cost::measure(|| {
                let tx = db.transaction();
                for number in (0..2 * n).step_by(2) {
                    tx.get(&keyspace, ordered(number)).unwrap();
                    let found = tx.range(&keyspace, ordered(number)..ordered(number + 1)).count();
                    assert_eq!(found, 1);
                    // Another commit deletes a range between the keys that are read.
                    keyspace.delete_range(ordered(number + 1)..ordered(number + 2)).unwrap();
                    tx.put(&keyspace, key(number), b"value").unwrap();
                    tx.delete_range(&keyspace, ordered(number + 1)..ordered(number + 2)).unwrap();
                }
                if flushed {
                    db.flush().unwrap();
                }
                tx.commit(Durability::Buffered).unwrap();
            })
        });
    }
}

#[test]
fn range_over_the_range_deletes_of_many_tables_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("range over n / 16 tables with range deletes", 256, |n| {
        // This policy merges nothing.
        let db =
            new(keyspace_options()
                .policy("tiering(size_ratio=1000)".parse::<PolicySpec>().unwrap()));
        put_ordered(&db, 1);
        // All range deletes cover the key of the first entry. The snapshot keeps this entry, so no compaction drops a
        // range delete.
        let _snapshot = db.snapshot();
        for number in 0..n {
            db.default_keyspace().delete_range::<[u8; 8]>(..ordered(number + 1)).unwrap();
            db.put(ordered(number), b"value").unwrap();
            if number % 16 == 15 {
                db.flush().unwrap();
            }
        }
        Cost::measure(|| assert_eq!(db.default_keyspace().iter().count(), 1))
    });
}

#[test]
fn snapshot_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("n snapshots", 1_000, |n| {
        let db = new(keyspace_options());
        Cost::measure(|| {
            let mut held = Vec::new();
            for number in 0..n {
                db.put(key(number), b"value").unwrap();
                held.push(db.snapshot());
            }
            // The oldest snapshot is dropped first.
            held.drain(..).for_each(drop);
        })
    });
}

#[test]
fn flush_costs_n_log_n() {
    for operands in [false, true] {
        check_layouts(&format!("flush, operand store: {operands}"), |n, layout| {
            let keyspace = keyspace_options();
            let db = new(match operands {
                true => keyspace.merge_operator(Append::default()).operand_store(delta()),
                false => keyspace,
            });
            put_ordered(&db, n);
            if operands {
                let keyspace = db.default_keyspace();
                (0..n).for_each(|number| keyspace.merge(ordered(2 * number + 1), b"+").unwrap());
                db.flush().unwrap();
            }
            let _snapshot = db.snapshot();
            delete_ranges(&db, n, layout);
            Cost::measure(|| db.flush().unwrap())
        });
    }
}

#[test]
fn compaction_job_costs_n_log_n() {
    check_layouts("compaction", |n, layout| {
        let db = new(keyspace_options());
        for _ in 0..2 {
            put_ordered(&db, n);
            db.flush().unwrap();
        }
        let _snapshot = db.snapshot();
        delete_ranges(&db, n, layout);
        db.flush().unwrap();
        Cost::measure(|| db.default_keyspace().compact_range::<&[u8]>(..).unwrap())
    });
}

#[test]
fn collection_of_blob_files_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("collection of blob files", 1_000, |n| {
        let separation = ValueSeparation {
            threshold_bytes: 1,
            blob_file_bytes: 16 << 10,
            ..ValueSeparation::default()
        };
        let db = new(keyspace_options().value_separation(separation));
        put_all(&db, n);
        db.flush().unwrap();
        Cost::measure(|| {
            put_all(&db, n);
            db.flush().unwrap();
            db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
            db.wait_idle().unwrap();
        })
    });
}

#[test]
fn collection_of_operands_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("collection of operands", 1_000, |n| {
        let buckets = DeltaOptions::default().bucket_bytes(16 << 10).log_bytes_max(64 << 10);
        let keyspace = keyspace_options()
            .merge_operator(Append::default())
            .operand_store(DeltaStoreFactory::new(buckets));
        let db = new(keyspace);
        Cost::measure(|| {
            let mut snapshots = Vec::new();
            for round in 0..8 {
                for number in 0..n / 8 {
                    db.default_keyspace().merge(key(number * 8 + round), b"operand").unwrap();
                }
                snapshots.push(db.snapshot());
                // These range deletes are nested. The largest covers an eighth of all keys.
                for number in 0..n / 8 {
                    let end = ordered((n / 8 - number) * (u64::MAX / n));
                    db.default_keyspace().delete_range::<[u8; 8]>(..end).unwrap();
                }
                db.flush().unwrap();
            }
            db.wait_idle().unwrap();
        })
    });
}

#[test]
fn drop_of_a_keyspace_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("drop of a keyspace", 4_000, |n| {
        let db = new(keyspace_options());
        let keyspace = db.keyspace("dropped", keyspace_options().table_bytes(4 << 10)).unwrap();
        for round in 0..2 {
            let mut batch = WriteBatch::new();
            (0..n).for_each(|number| batch.put(&keyspace, key(number), [round]));
            db.write(batch, Durability::Buffered).unwrap();
            if round == 0 {
                db.flush().unwrap();
                db.wait_idle().unwrap();
            }
        }
        drop(keyspace);
        Cost::measure(|| {
            db.drop_keyspace("dropped").unwrap();
            db.wait_idle().unwrap();
        })
    });
}

#[test]
fn open_of_log_costs_n_log_n() {
    check_layouts("open of a log", |n, layout| {
        let disk = MemVfs::new();
        let db = open(&disk, keyspace_options());
        put_ordered(&db, n);
        delete_ranges(&db, n, layout);
        // The database is killed, because a clean close would flush the range deletes.
        let killed = disk.crash(CrashImage::Keep, 0);
        Cost::measure(|| drop(open(&killed, keyspace_options())))
    });
}

#[test]
fn open_of_tables_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("open of n / 32 tables", 4_000, |n| {
        let disk = MemVfs::new();
        let keyspace = || keyspace_options().table_bytes(512).block_bytes(256);
        let db = open(&disk, keyspace());
        put_all(&db, n);
        db.flush().unwrap();
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        drop(db);
        Cost::measure(|| drop(open(&disk, keyspace())))
    });
}

/// Bug: the commit leader scanned the keyspaces of a batch for each operation.
#[test]
fn batch_over_many_keyspaces_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("batch over n keyspaces", 50, |n| {
        let db = new(keyspace_options());
        let open = |number| db.keyspace(&format!("keyspace {number}"), keyspace_options()).unwrap();
        let keyspaces: Vec<_> = (0..n).map(open).collect();
        Cost::measure(|| {
            let mut batch = WriteBatch::new();
            for round in 0..4 {
                keyspaces.iter().for_each(|keyspace| batch.put(keyspace, key(round), b"value"));
            }
            db.write(batch, Durability::Buffered).unwrap();
        })
    });
}

/// Bug: the commit leader compared each table with each range tombstone of the memtables.
#[test]
fn bulk_load_among_range_deletes_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("bulk load among range deletes", 1_000, |n| {
        let db = new(keyspace_options().table_bytes(512).block_bytes(256));
        let keyspace = db.default_keyspace();
        // The range deletes do not overlap the tables, so they stay in the memtable.
        for number in n..2 * n {
            keyspace.delete_range(ordered(2 * number)..ordered(2 * number + 1)).unwrap();
        }
        let entries = (0..n).map(|number| (ordered(number), [7; 64]));
        let load = || keyspace.bulk_load(entries, BulkLoadOptions::default()).unwrap();
        Cost::measure(|| assert!(load().files > n / 10))
    });
}

#[test]
fn metrics_cost_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("metrics of n tables", 4_000, |n| {
        let db = new(keyspace_options().table_bytes(512).block_bytes(256));
        put_all(&db, n);
        db.flush().unwrap();
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        let _held: Vec<_> = (0..n).map(|_| db.snapshot()).collect();
        Cost::measure(|| drop(db.metrics()))
    });
    grows_at_most_as_n_log_n("metrics of n keyspaces", 64, |n| {
        let db = new(keyspace_options());
        let open = |number| db.keyspace(&format!("keyspace {number}"), keyspace_options()).unwrap();
        let _open: Vec<_> = (0..n).map(open).collect();
        Cost::measure(|| drop(db.metrics()))
    });
}

#[test]
fn simulate_costs_n_log_n() {
    let _alone = lsmx_testkit::run_alone();
    grows_at_most_as_n_log_n("simulate", 500_000, |n| {
        let phase = Phase { inserts: n, ..Phase::new("load", KeyDistribution::Uniform) };
        let config = Config {
            phases: vec![phase],
            key_bytes: 16,
            value_bytes: 112,
            memtable_bytes: 1 << 20,
            table_bytes: 1 << 20,
            block_cache_bytes: 8 << 20,
            subcompactions_max: SUBCOMPACTIONS_DEFAULT,
            seed: 1,
        };
        let mut looks = 0;
        let cost = Cost::measure(|| {
            let count = &mut |_| {
                looks += 1;
                true
            };
            simulate(&config, &"leveled".parse().unwrap(), count).unwrap();
        });
        cost.with("Flushes", looks)
    });
}

//! Tests of the bound for deleted values. The virtual clock advances only by calls of the tests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsmx::compaction::{CompactionPolicy, Debt, Job, RunningJobs, TreeShape};
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{
    Db, Error, Event, KeySearchReport, KeyspaceOptions, MergeOperator, MergeResult, Options,
    ValueSeparation, search_key,
};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::simple_store::SimpleStore;
use lsmx_testkit::{EventLog, case_seeds, scale};

use crate::harness::database::{self, inline, metrics, policy, small, without_jobs};
use crate::harness::delete_persistence::play_history;

const SECOND: Duration = Duration::from_secs(1);
const SECOND_US: u64 = 1_000_000;

fn bounded() -> KeyspaceOptions {
    small().delete_persistence(SECOND)
}

/// Returns options with which only the bound causes merges.
fn bounded_without_merges() -> KeyspaceOptions {
    without_jobs().delete_persistence(SECOND)
}

fn open(disk: &MemVfs, keyspace: KeyspaceOptions) -> Db {
    database::open(disk, inline().keyspace_defaults(keyspace))
}

/// Searches the files of an open database for a key of a keyspace.
fn search_keyspace(disk: &MemVfs, keyspace: &str, key: &str) -> KeySearchReport {
    let image = disk.crash(CrashImage::Keep, 0);
    let options = Options::default().vfs(Arc::new(image));
    search_key("db", &options, Some(keyspace), key.as_bytes()).unwrap()
}

fn search(disk: &MemVfs, key: &str) -> KeySearchReport {
    search_keyspace(disk, "default", key)
}

/// Lets the time of one bound pass in small steps.
fn let_bound_pass(db: &Db) {
    for _ in 0..32 {
        db.env().advance_us(SECOND_US / 32);
        db.wait_idle().unwrap();
    }
}

#[test]
fn deleted_value_below_newer_put_is_gone_within_bound() {
    let disk = MemVfs::new();
    let db = open(&disk, bounded_without_merges());
    let keyspace = db.default_keyspace();
    keyspace.put("k", "old").unwrap();
    keyspace.put("z", "stays").unwrap();
    db.flush().unwrap();
    keyspace.delete("k").unwrap();
    keyspace.put("k", "new").unwrap();
    db.flush().unwrap();
    assert_eq!(metrics(&db).total().tombstones, 1, "the delete is kept below the put");
    let_bound_pass(&db);
    let report = search(&disk, "k");
    assert_eq!(report.entries.len(), 1, "{report:?}");
    assert_eq!(metrics(&db).total().tombstones, 0);
    assert_eq!(keyspace.get("k").unwrap().as_deref(), Some(&b"new"[..]));
    let persistence = metrics(&db).delete_persistence;
    assert_eq!((persistence.bound_us, persistence.overdue_us), (SECOND_US, 0));
}

/// The recovery flushes the delete and the put before the keyspace is opened with its options.
#[test]
fn deleted_value_below_newer_put_is_removed_after_recovery() {
    let disk = MemVfs::new();
    let open_keyspace = |db: &Db| db.keyspace("bounded", bounded_without_merges()).unwrap();
    let db = open(&disk, small());
    let keyspace = open_keyspace(&db);
    keyspace.put("k", "old").unwrap();
    db.flush().unwrap();
    keyspace.delete("k").unwrap();
    keyspace.put("k", "new").unwrap();
    db.sync().unwrap();
    let crashed = disk.crash(CrashImage::Drop, 0);
    let db = open(&crashed, small());
    let keyspace = open_keyspace(&db);
    let_bound_pass(&db);
    assert_eq!(keyspace.get("k").unwrap().as_deref(), Some(&b"new"[..]));
    let report = search_keyspace(&crashed, "bounded", "k");
    assert_eq!(report.entries.len(), 1, "{report:?}");
}

#[test]
fn log_of_idle_database_is_emptied_within_bound() {
    let disk = MemVfs::new();
    let db = open(&disk, bounded());
    let other = db.keyspace("other", small()).unwrap();
    other.put("k", "value").unwrap();
    db.put("k", "value").unwrap();
    db.delete("k").unwrap();
    db.sync().unwrap();
    let_bound_pass(&db);
    assert!(search(&disk, "k").is_clear());
    assert_eq!(db.metrics().wal.segments, 1);
    assert_eq!(other.get("k").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn deleted_value_in_blob_file_is_gone_within_bound() {
    let disk = MemVfs::new();
    let separation = ValueSeparation {
        threshold_bytes: 20,
        garbage_ratio: 1.0,
        space_amplification_max: 100.0,
        ..ValueSeparation::default()
    };
    let db = open(&disk, bounded().value_separation(separation));
    for number in 0..20 {
        db.put(format!("key {number:02}"), [7; 100]).unwrap();
    }
    db.flush().unwrap();
    db.delete("key 07").unwrap();
    db.flush().unwrap();
    let_bound_pass(&db);
    assert!(search(&disk, "key 07").is_clear());
    assert_eq!(search(&disk, "key 08").entries.len(), 2);
}

/// Writes a table whose key range contains the keys that start with other letters than `a` and `z`. Without this table, a
/// flush replaces their operands by values.
fn put_neighbors(db: &Db) {
    for key in ["a", "z"] {
        db.put(key, "value").unwrap();
    }
    db.flush().unwrap();
}

/// A merge operator that deletes each value.
#[derive(Debug)]
struct Removal;

impl MergeOperator for Removal {
    fn name(&self) -> &'static str {
        "removal"
    }

    fn full_merge(&self, _: &[u8], _: Option<&[u8]>, _: &[&[u8]]) -> MergeResult {
        Ok(None)
    }
}

/// Checks that the tables contain one tombstone, which was written now.
fn assert_new_tombstone(db: &Db) {
    db.wait_idle().unwrap();
    let found = metrics(db);
    assert_eq!((found.total().tombstones, found.oldest_tombstone_age_us), (1, Some(0)));
}

/// Regression: a flush recorded no write time for a tombstone that replaced operands. With a bound for deleted values,
/// the tombstone was due at once. With the trigger `tombstone-ttl`, it was never due.
#[test]
fn tombstone_of_merge_operator_in_flush_has_its_write_time() {
    let ttl = r#"{layout="leveling", rule=[{trigger="tombstone-ttl",bound="1s"},
        {trigger="run-count",runs=8}, {trigger="level-full",base=100}]}"#;
    for options in [bounded_without_merges(), small().policy(policy(ttl))] {
        let db = open(&MemVfs::new(), options.merge_operator(Removal));
        put_neighbors(&db);
        db.put("k", "value").unwrap();
        db.default_keyspace().merge("k", "operand").unwrap();
        db.flush().unwrap();
        assert_new_tombstone(&db);
        let_bound_pass(&db);
        assert_eq!(metrics(&db).total().tombstones, 0);
    }
}

/// Regression: as above, for a merge of tables without tombstones.
#[test]
fn tombstone_of_merge_operator_in_compaction_has_its_write_time() {
    let disk = MemVfs::new();
    let db = open(&disk, bounded().policy(policy("tiering(T=3)")).merge_operator(Removal));
    // The first three runs become a run of L1. It is larger than the other three, so their merge creates a new run.
    for _ in 0..3 {
        db.put("a", [7; 1000]).unwrap();
        db.put("z", [7; 1000]).unwrap();
        db.flush().unwrap();
    }
    db.put("k", "value").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("k", "operand").unwrap();
    db.flush().unwrap();
    assert_eq!(metrics(&db).total().tombstones, 0);
    db.put("m", "value").unwrap();
    db.flush().unwrap();
    assert_new_tombstone(&db);
    let_bound_pass(&db);
    assert!(search(&disk, "k").is_clear());
}

/// Regression: as above, for the flush of `resume`.
#[test]
fn tombstone_of_merge_operator_in_resume_has_its_write_time() {
    let disk = MemVfs::new();
    let faults = FaultVfs::new(Arc::new(disk.clone()), 1);
    let keyspace = bounded_without_merges().merge_operator(Removal);
    let db = database::open(&faults, inline().keyspace_defaults(keyspace));
    put_neighbors(&db);
    db.put("k", "value").unwrap();
    db.default_keyspace().merge("k", "operand").unwrap();
    let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Append]);
    faults.add_rule(rule.path_contains(".wal"));
    assert!(db.put("fails", "value").is_err());
    faults.clear_rules();
    db.resume().unwrap();
    assert_new_tombstone(&db);
    let_bound_pass(&db);
    assert!(search(&disk, "k").is_clear());
}

#[test]
fn deleted_operand_in_idle_store_is_gone_within_bound() {
    let disk = MemVfs::new();
    let store = DeltaStoreFactory::new(DeltaOptions::default());
    let options = bounded().merge_operator(Append::default()).operand_store(store.clone());
    let db = open(&disk, options);
    put_neighbors(&db);
    for key in ["gone", "stays"] {
        db.default_keyspace().merge(key, "operand").unwrap();
    }
    db.flush().unwrap();
    assert_eq!(metrics(&db).operand_store.unwrap_or_default().operands, 2);
    db.delete("gone").unwrap();
    let search = |key: &str| {
        let image = disk.crash(CrashImage::Keep, 0);
        let options = Options::default().vfs(Arc::new(image)).operand_store(store.clone());
        search_key("db", &options, None, key.as_bytes()).unwrap()
    };
    assert!(!search("gone").is_clear());
    let_bound_pass(&db);
    assert!(search("gone").is_clear(), "{:?}", search("gone"));
    // A new log is written only if there are changes.
    let written_bytes = |db: &Db| {
        let store = metrics(db).operand_store.unwrap_or_default();
        store.log_written_bytes + store.bucket_written_bytes
    };
    let before = written_bytes(&db);
    let_bound_pass(&db);
    assert_eq!(written_bytes(&db), before);
    assert_eq!(metrics(&db).delete_persistence.overdue_us, 0);
    assert_eq!(db.get("stays").unwrap().as_deref(), Some(&b"operand"[..]));
}

/// Bug: the replay of the log that was kept for a missing operand store gave its deletes the time of the replay. The deleted
/// values stayed for another bound.
#[test]
fn deletes_in_kept_log_of_missing_store_are_due_at_its_return() {
    let store = DeltaStoreFactory::new(DeltaOptions::default());
    let options = bounded_without_merges().merge_operator(Append::default());
    let options = options.operand_store(store.clone());
    for is_returned_at_open in [false, true] {
        let disk = MemVfs::new();
        let db = open(&disk, small());
        let side = db.keyspace("side", options.clone()).unwrap();
        for key in ["a", "k", "z"] {
            side.put(key, "value").unwrap();
        }
        db.flush().unwrap();
        side.delete("k").unwrap();
        db.sync().unwrap();
        let disk = disk.crash(CrashImage::Keep, 0);
        let mut db = open(&disk, small());
        assert!(db.metrics().wal.kept_segments > 0);
        let_bound_pass(&db);
        // The manifest edit of a flush contains the time.
        db.put("k", "value").unwrap();
        db.flush().unwrap();
        if is_returned_at_open {
            db.close(None).unwrap();
            let with_store = inline().keyspace_defaults(small()).operand_store(store.clone());
            db = database::open(&disk, with_store);
        }
        let side = db.keyspace("side", options.clone()).unwrap();
        db.wait_idle().unwrap();
        let report = search_keyspace(&disk, "side", "k");
        assert!(report.entries.is_empty(), "{is_returned_at_open}: {report:?}");
        assert_eq!(side.get("a").unwrap().as_deref(), Some(&b"value"[..]));
    }
}

/// Regression: after a failed collection, the store waited for the next flush, and the engine dropped the error. Without
/// later writes, the deleted operand stayed in the files.
#[test]
fn failed_collection_of_idle_store_is_repeated_without_writes() {
    let store = DeltaStoreFactory::new(DeltaOptions::default());
    let options = bounded().merge_operator(Append::default()).operand_store(store.clone());
    // The next open repeats a failed removal.
    let calls = VfsCall::ALL.iter().copied().filter(|call| *call != VfsCall::Remove);
    let calls: Vec<VfsCall> = calls.collect();
    let (mut failed_collections, mut resumes) = (0, 0);
    for k in 0.. {
        let (disk, events) = (MemVfs::new(), EventLog::default());
        let faults = FaultVfs::new(Arc::new(disk.clone()), 1);
        let options =
            inline().keyspace_defaults(options.clone()).listener(Arc::new(events.clone()));
        let db = database::open(&faults, options);
        put_neighbors(&db);
        db.default_keyspace().merge("gone", "operand").unwrap();
        db.flush().unwrap();
        db.delete("gone").unwrap();
        db.flush().unwrap();
        let is_relevant = |path: &Path| {
            let suffix = path.extension().and_then(|suffix| suffix.to_str());
            matches!(suffix, Some("operands" | "bucket" | "sst" | "wal"))
                || path.ends_with("db")
                || path.to_string_lossy().contains("MANIFEST")
        };
        // In every second run, the next call fails, too. It may be a call of the recovery or of the retry.
        for index in k / 2..=k / 2 + k % 2 {
            let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&calls).nth(index);
            faults.add_rule(rule.path_where(is_relevant));
        }
        for _ in 0..96 {
            db.env().advance_us(SECOND_US / 32);
            // The error of the last collection, until its retry succeeds.
            let _ = db.wait_idle();
            // The second fault may be in the resume.
            if db.health().read_only.is_some() && db.resume().is_ok() {
                resumes += 1;
            }
        }
        db.wait_idle().unwrap();
        let image = disk.crash(CrashImage::Keep, 0);
        let options = Options::default().vfs(Arc::new(image)).operand_store(store.clone());
        let report = search_key("db", &options, None, b"gone").unwrap();
        assert!(report.is_clear(), "fault {k}: {report:?}");
        failed_collections += events.count(
            |event| matches!(event, Event::Failure(failure) if failure.work == "collection"),
        );
        if faults.fired_counts().is_empty() {
            break;
        }
    }
    assert!(failed_collections > 10 && resumes > 10, "{failed_collections}, {resumes}");
}

#[test]
fn unsupported_combinations_are_contradictions() {
    let refused = |options: KeyspaceOptions, message: &str| {
        let disk = MemVfs::new();
        let error = database::try_open(&disk, inline().keyspace_defaults(options)).unwrap_err();
        assert!(matches!(error, Error::Contradiction { .. }), "{error:?}");
        let prefix = "option delete_persistence = 1s contradicts ";
        assert_eq!(error.to_string(), format!("{prefix}{message}"));
    };
    refused(
        bounded().policy(policy("fifo(ttl=100ms)")),
        "policy = fifo(ttl=100ms): the policy merges no files, so deletes remove no values",
    );
    refused(
        bounded().policy(Arc::new(NoJobs) as Arc<dyn CompactionPolicy>),
        "policy = custom:no-jobs: a custom policy has no rule that removes deleted values within a bound",
    );
    refused(
        bounded().merge_operator(Append::default()).operand_store(SimpleStore::default()),
        "operand_store = plain: the operand store does not bound the time of deleted operands",
    );

    let db = open(&MemVfs::new(), bounded());
    let keyspace = db.default_keyspace();
    assert_eq!(keyspace.options().delete_persistence, Some(SECOND));
    let error = keyspace.set_policy(policy("fifo")).unwrap_err();
    assert!(matches!(error, Error::Contradiction { .. }), "{error}");
    let short = keyspace.set_options(|options| options.delete_persistence(Duration::ZERO));
    assert!(matches!(short, Err(Error::InvalidOption { .. })), "{short:?}");
    keyspace.set_options(|options| options.delete_persistence(None)).unwrap();
    keyspace.set_policy(policy("fifo")).unwrap();
    let error = keyspace.set_options(|options| options.delete_persistence(SECOND)).unwrap_err();
    assert!(matches!(error, Error::Contradiction { .. }), "{error}");
}

/// A policy that picks no job.
#[derive(Debug)]
struct NoJobs;

impl CompactionPolicy for NoJobs {
    fn name(&self) -> &str {
        "no-jobs"
    }

    fn pick(&self, _: &TreeShape, _: &RunningJobs) -> Option<Job> {
        None
    }

    fn debt(&self, _: &TreeShape, _: &RunningJobs) -> Debt {
        Debt::default()
    }

    fn must_stop_writes(&self, _: &TreeShape) -> bool {
        false
    }
}

#[test]
fn random_histories_leave_no_trace_of_deleted_values() {
    let (mut searches, mut store_searches, mut snapshots, mut iterators) = (0, 0, 0, 0);
    for seed in case_seeds(&[], 36) {
        let counts = play_history(seed).unwrap();
        searches += counts.searches;
        store_searches += counts.store_searches;
        snapshots += counts.snapshots_named;
        iterators += counts.iterators_named;
    }
    let counts = (searches, store_searches, snapshots, iterators);
    let are_all_cases_reached =
        searches > 100 && store_searches > 0 && snapshots > 3 && iterators > 3;
    assert!(scale() < 1.0 || are_all_cases_reached, "{counts:?}");
}

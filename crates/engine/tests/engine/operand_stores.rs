//! Tests of operand stores in the engine. [`SimpleStore`] is a store that keeps all its contents in one file.

use std::path::Path;
use std::sync::Arc;

use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::metrics::BlockKind;
use lsmx::operand_store::{
    OperandMetrics, OperandStore, OperandStoreFactory, StoreContext, StoreToken,
};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Db, Error, Keyspace, KeyspaceOptions, LossKind, Options, Range, RepairOptions, RepairReport,
};
use lsmx_testkit::simple_store::{SimpleStore, use_delta_stores};

use crate::harness::database::{
    assert_entries, compact, files, inline, memory_only, metrics, open, policy, settle, try_open,
    verify,
};

/// A store that never starts a collection.
const QUIET: SimpleStore = SimpleStore { collect_after: u64::MAX, to_tree_one_in: 1, lazy: true };

fn merging() -> KeyspaceOptions {
    KeyspaceOptions::default().merge_operator(Append::default())
}

fn without_store() -> Options {
    inline().keyspace_defaults(merging())
}

fn with(store: SimpleStore) -> Options {
    inline().keyspace_defaults(merging().operand_store(store))
}

/// Executes operations that are separated by spaces: `a=1` puts, `a+2` merges, `-a` deletes, and `flush` flushes the
/// database.
fn apply(db: &Db, keyspace: &Keyspace, operations: &str) {
    for operation in operations.split_whitespace() {
        if operation == "flush" {
            db.flush().unwrap();
        } else if let Some((key, value)) = operation.split_once('=') {
            keyspace.put(key, value).unwrap();
        } else if let Some((key, operand)) = operation.split_once('+') {
            keyspace.merge(key, operand).unwrap();
        } else {
            keyspace.delete(operation.strip_prefix('-').unwrap()).unwrap();
        }
    }
}

/// Bug: a call without the store raised the limit. A flush of more than 4 GiB of operands cannot be recovered.
#[test]
fn memtables_stay_limited_if_a_call_omits_the_store() {
    let db = open(&MemVfs::new(), without_store());
    let large = || merging().memtable_bytes(8 << 30);
    let keyspace = db.keyspace("a", large().operand_store(QUIET)).unwrap();
    assert_eq!(keyspace.options().memtable_bytes, 1 << 30);
    let keyspace = db.keyspace("a", large()).unwrap();
    assert_eq!(keyspace.options().memtable_bytes, 1 << 30);
    keyspace.set_options(|options| options.memtable_bytes(8 << 30)).unwrap();
    assert_eq!(keyspace.options().memtable_bytes, 1 << 30);
    assert_eq!(db.keyspace("b", large()).unwrap().options().memtable_bytes, 8 << 30);
}

fn apply_to_default(db: &Db, operations: &str) {
    apply(db, &db.default_keyspace(), operations);
}

/// Executes operations on the default keyspace of a new database and closes it. Returns the disk.
fn closed_after(options: Options, operations: &str) -> MemVfs {
    let disk = MemVfs::new();
    let db = open(&disk, options);
    apply_to_default(&db, operations);
    db.close(None).unwrap();
    disk
}

/// Formats the entries of a range as `a=1 b=2`.
fn text(range: Range) -> String {
    let entries = range.map(Result::unwrap);
    let texts =
        entries.map(|(key, value)| format!("{}={}", key.escape_ascii(), value.escape_ascii()));
    texts.collect::<Vec<_>>().join(" ")
}

/// Asserts that the default keyspace contains exactly the given entries, in the format `a=1 b=2`.
fn assert_default(db: &Db, expected: &str) {
    let entries = expected.split_whitespace().map(|entry| entry.split_once('=').unwrap());
    let entries = entries.map(|(key, value)| (key.into(), value.into())).collect();
    assert_entries(&db.default_keyspace(), &entries);
}

fn store_metrics(db: &Db) -> OperandMetrics {
    metrics(db).operand_store.unwrap()
}

#[test]
fn operands_in_the_store_are_combined_with_the_tree() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    apply_to_default(&db, "a=1 c=1 flush");
    assert_eq!(metrics(&db).total().files, 1);
    apply_to_default(&db, "a+2 b+2 flush");
    assert_eq!(metrics(&db).total().files, 1, "a flush of operands alone created a table");
    assert_default(&db, "a=12 b=2 c=1");
    apply_to_default(&db, "a+3 flush a+4");
    assert_default(&db, "a=1234 b=2 c=1");
    assert_eq!((store_metrics(&db).operands, store_metrics(&db).delete_markers), (3, 0));
    let cache = db.metrics().cache;
    assert!(cache[&BlockKind::Bucket].misses > 0, "{cache:?}");

    // Puts and deletes in the tree hide older operands in the operand store.
    apply_to_default(&db, "a=x -b flush");
    assert_default(&db, "a=x c=1");
    compact(&db).unwrap();
    assert_default(&db, "a=x c=1");
    assert_eq!(store_metrics(&db).delete_markers, 2);
    apply_to_default(&db, "b+5 flush");
    assert_default(&db, "a=x b=5 c=1");
    db.close(None).unwrap();
    assert_default(&open(&disk, with(QUIET)), "a=x b=5 c=1");

    let options = Options::default().vfs(Arc::new(disk.clone())).operand_store(QUIET);
    let report = lsmx::verify("db", &options).unwrap();
    assert_eq!((report.operand_stores, report.orphans.len()), (1, 0), "{report:?}");
    let report = verify(&disk).unwrap();
    assert_eq!((report.operand_stores, report.operands_unchecked), (0, vec!["default".into()]));
}

#[test]
fn delete_dropped_from_the_tree_still_hides_operands_of_the_store() {
    let db = open(&MemVfs::new(), with(QUIET));
    // The merge of `bb` is in the memtable, because no flush follows. A delete of `bb` follows after the snapshot.
    apply_to_default(&db, "a=1 c=1 flush b+2 flush bb+3");
    let before = db.snapshot();
    apply_to_default(&db, "-bb -b");
    let after = db.snapshot();
    let keyspace = db.default_keyspace();
    keyspace.delete_range("c".."d").unwrap();
    db.flush().unwrap();
    assert_eq!(text(before.iter(&keyspace)), "a=1 b=2 bb=3 c=1");
    assert_eq!(text(after.iter(&keyspace)), "a=1 c=1");
    drop((before, after));
    compact(&db).unwrap();
    assert_eq!(metrics(&db).total().tombstones, 0);
    assert_default(&db, "a=1");
    assert_eq!(db.get("b").unwrap().or(db.get("bb").unwrap()), None);
    apply_to_default(&db, "bb+4 flush");
    assert_default(&db, "a=1 bb=4");
}

#[test]
fn range_delete_hides_operands_of_the_store() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    let keyspace = db.default_keyspace();
    apply_to_default(&db, "a=1 m=1 flush b+2 f+2 k+2 flush");
    let snapshot = db.snapshot();
    keyspace.delete_range("b".."g").unwrap();
    assert_default(&db, "a=1 k=2 m=1");
    apply_to_default(&db, "f+3");
    assert_default(&db, "a=1 f=3 k=2 m=1");
    db.flush().unwrap();
    assert_default(&db, "a=1 f=3 k=2 m=1");
    assert_eq!(text(snapshot.iter(&keyspace)), "a=1 b=2 f=2 k=2 m=1");
    drop(snapshot);
    keyspace.clear().unwrap();
    db.flush().unwrap();
    compact(&db).unwrap();
    assert_default(&db, "");
    db.close(None).unwrap();
    assert_default(&open(&disk, with(QUIET)), "");
}

#[test]
fn collection_to_the_tree_keeps_operands_of_snapshots() {
    let store = SimpleStore { collect_after: 1, to_tree_one_in: 1, lazy: true };
    let db = open(&MemVfs::new(), with(store));
    let keyspace = db.default_keyspace();
    apply_to_default(&db, "a=1 c=1 b+x flush a+2 b+2");
    let snapshot = db.snapshot();
    apply_to_default(&db, "a+3 flush");
    assert!(store_metrics(&db).to_tree >= 2, "{:?}", store_metrics(&db));
    assert_default(&db, "a=123 b=x2 c=1");
    assert_eq!(text(snapshot.iter(&keyspace)), "a=12 b=x2 c=1");
    apply_to_default(&db, "-a flush a+4 flush");
    db.wait_idle().unwrap();
    assert_default(&db, "a=4 b=x2 c=1");
    assert_eq!(text(snapshot.iter(&keyspace)), "a=12 b=x2 c=1");
    drop(snapshot);
    compact(&db).unwrap();
    assert_default(&db, "a=4 b=x2 c=1");
}

#[test]
fn keyspace_without_its_operand_store_refuses_every_call() {
    let disk = MemVfs::new();
    let db = open(&disk, without_store());
    let other = db.keyspace("other", merging().operand_store(QUIET)).unwrap();
    apply(&db, &other, "a=1 flush a+2");
    db.close(None).unwrap();
    let files_before = files(&disk, ".operands");

    let db = open(&disk, without_store());
    let other = db.open_keyspace("other", None).unwrap();
    let results: [(&str, lsmx::Result<()>); 9] = [
        ("keyspace", db.keyspace("other", merging()).map(drop)),
        ("get", other.get("a").map(drop)),
        ("get_with", other.get_with("a", &memory_only()).map(drop)),
        ("put", other.put("a", "2")),
        ("next", other.iter().next().unwrap().map(drop)),
        ("next_back", other.iter().next_back().unwrap().map(drop)),
        ("multi_get", other.multi_get(["a", "b"]).map(drop)),
        ("operands_to_tree", other.operands_to_tree()),
        ("checkpoint", db.checkpoint("copy").map(drop)),
    ];
    for (call, result) in results {
        let Err(Error::NoOperandStore { keyspace, store, cause: None }) = &result else {
            panic!("{call} returns {result:?}");
        };
        assert_eq!((&**keyspace, &**store), ("other", "plain"), "{call}");
    }
    db.flush().unwrap();
    assert_eq!(files(&disk, ".operands"), files_before);
    let other = db.keyspace("other", merging().operand_store(QUIET)).unwrap();
    apply(&db, &other, "a+3");
    assert_eq!(text(other.iter()), "a=123");
}

/// An operand store factory that opens a [`SimpleStore`] under a different name.
#[derive(Debug)]
struct RenamedStore;

impl OperandStoreFactory for RenamedStore {
    fn name(&self) -> &'static str {
        "other"
    }

    fn open(
        &self,
        context: StoreContext,
        token: Option<StoreToken>,
    ) -> lsmx::Result<Arc<dyn OperandStore>> {
        QUIET.open(context, token)
    }

    fn verify(&self, context: StoreContext, token: StoreToken) -> lsmx::Result<OperandMetrics> {
        QUIET.verify(context, token)
    }
}

#[test]
fn operand_store_with_another_name_is_refused() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    let renamed = merging().operand_store(RenamedStore);
    let refused = db.keyspace("default", renamed.clone()).unwrap_err();
    assert!(matches!(refused, Error::Contradiction { .. }), "{refused:?}");
    // Opening the keyspace with options that name no store keeps the current store.
    drop(db.keyspace("default", merging()).unwrap());
    db.close(None).unwrap();
    let refused = try_open(&disk, inline().keyspace_defaults(renamed)).unwrap_err();
    assert!(matches!(refused, Error::Contradiction { .. }), "{refused:?}");
}

#[test]
fn operand_store_is_added_to_a_keyspace_and_removed() {
    let disk = MemVfs::new();
    let store_files = || files(&disk, ".operands").len();
    let db = open(&disk, without_store());
    apply_to_default(&db, "a=1 flush a+2 b+2 flush");
    drop(db.keyspace("default", merging().operand_store(QUIET)).unwrap());
    apply_to_default(&db, "a+3 flush");
    assert_eq!(store_files(), 1);
    assert_default(&db, "a=123 b=2");
    db.close(None).unwrap();

    let db = open(&disk, with(QUIET));
    assert_default(&db, "a=123 b=2");
    apply_to_default(&db, "b+4 flush b+5");
    let keyspace = db.default_keyspace();
    let snapshot = db.snapshot();
    assert!(matches!(keyspace.operands_to_tree(), Err(Error::SnapshotsHeld { .. })));
    drop(snapshot);
    let iterator = keyspace.iter();
    keyspace.operands_to_tree().unwrap();
    assert_eq!(store_files(), 1, "the file was removed although an iterator uses it");
    assert_default(&db, "a=123 b=245");
    assert_eq!(text(iterator), "a=123 b=245");
    db.flush().unwrap();
    assert_eq!(store_files(), 0);
    keyspace.operands_to_tree().unwrap();
    keyspace.set_policy(policy("tiering")).unwrap();
    db.close(None).unwrap();

    let db = open(&disk, without_store());
    assert_default(&db, "a=123 b=245");
    db.close(None).unwrap();
    let db = open(&disk, with(QUIET));
    apply_to_default(&db, "b+6 flush");
    assert_eq!(store_files(), 1);
    assert_default(&db, "a=123 b=2456");
}

#[test]
fn dropped_keyspace_with_operand_store_is_readable_by_older_snapshots_and_iterators() {
    let disk = MemVfs::new();
    let db = open(&disk, without_store());
    let dropped = db.keyspace("dropped", merging().operand_store(QUIET)).unwrap();
    apply(&db, &dropped, "a=1 flush a+2 flush");
    let (snapshot, iterator) = (db.snapshot(), dropped.iter());
    db.drop_keyspace("dropped").unwrap();
    assert_eq!(&*snapshot.get(&dropped, "a").unwrap().unwrap(), b"12");
    drop(snapshot);
    db.flush().unwrap();
    assert_eq!(files(&disk, ".operands").len(), 1, "an iterator uses the file");
    assert_eq!(text(iterator), "a=12");
    db.flush().unwrap();
    assert_eq!(files(&disk, ".operands").len(), 0);
}

#[test]
fn memory_read_of_an_uncached_bucket_would_block_and_counts_nothing() {
    let disk = closed_after(with(QUIET), "a=1 flush a+2 flush");
    let db = open(&disk, with(QUIET));
    let keyspace = db.default_keyspace();
    let bucket = || db.metrics().cache.get(&BlockKind::Bucket).copied().unwrap_or_default();
    // Looking up a missing key loads the index and filter blocks of the table into the cache.
    assert!(keyspace.get("missing").unwrap().is_none());
    let before = db.read_metrics();
    assert!(matches!(keyspace.get_with("a", &memory_only()), Err(Error::WouldBlock)));
    assert_eq!(db.read_metrics(), before);
    assert_eq!((bucket().hits, bucket().misses), (0, 0));
    let mut iterator = keyspace.iter().options(&memory_only());
    assert!(matches!(iterator.next(), Some(Err(Error::WouldBlock))));
    let values = keyspace.multi_get(["a", "missing", "a"]).unwrap();
    assert_eq!(values.iter().flatten().count(), 2);
    assert_eq!(bucket().misses, 1);
    assert_eq!(keyspace.get_with("a", &memory_only()).unwrap().unwrap(), b"12"[..]);
    iterator = iterator.options(&lsmx::ReadOptions::default());
    assert_eq!(iterator.next().unwrap().unwrap().1, b"12"[..]);
    assert_eq!(bucket().misses, 1);
    assert!(bucket().hits >= 2);
}

#[test]
fn explain_lists_operands_of_the_store_and_metrics_count_its_memory() {
    let db = open(&MemVfs::new(), with(QUIET).memory_budget(8 << 20));
    apply_to_default(&db, "a=1 flush a+2 a+3");
    let snapshot = db.snapshot();
    apply_to_default(&db, "a+4 flush");
    let explanation = db.default_keyspace().explain("a").unwrap();
    let operands = explanation.operands.as_ref().unwrap();
    assert_eq!(operands.found.iter().map(|found| found.value_bytes).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(explanation.value_bytes, Some(4));
    assert!(explanation.to_string().contains("\noperand store: merge at "), "{explanation}");
    drop(snapshot);
    // `explain` does not list operands that a newer put hides.
    apply_to_default(&db, "a=5 flush");
    assert_eq!(db.default_keyspace().explain("a").unwrap().operands.unwrap().found, []);
    let metrics = db.metrics();
    assert_eq!(metrics.memory.operand_stores, 1, "the store contains one key");
    assert!(metrics.to_string().contains("operand store: 0 buckets"), "{metrics}");
}

#[test]
fn failed_collection_is_reported_and_repeated_after_a_pause() {
    let faults = FaultVfs::new(Arc::new(MemVfs::new()), 1);
    let db = open(&faults, with(SimpleStore { collect_after: 2, to_tree_one_in: 1, lazy: false }));
    apply_to_default(&db, "a=1 c=1 flush a+2 flush b+2");
    // The flush writes to the operand store only and creates no table. The later collection fails because it creates a
    // table.
    let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Create]);
    faults.add_rule(rule.path_contains(".sst").nth(0));
    db.flush().unwrap();
    assert!(!faults.fired_counts().is_empty());
    assert!(matches!(db.wait_idle(), Err(Error::Io { .. })));
    assert_default(&db, "a=12 b=2 c=1");
    db.env().advance_us(200_000);
    let refused = db.default_keyspace().merge("a", "refused");
    assert!(matches!(refused, Err(Error::Background { work: "collection", .. })), "{refused:?}");
    apply_to_default(&db, "a+3 flush a+4");
    settle(&db);
    assert_default(&db, "a=1234 b=2 c=1");
    assert!(store_metrics(&db).to_tree > 0);
    assert_eq!(metrics(&db).compaction.failures, 1);
}

fn repair(disk: &MemVfs, stores: Options) -> lsmx::Result<RepairReport> {
    lsmx::repair("db", &stores.vfs(Arc::new(disk.clone())), &RepairOptions::default())
}

#[test]
fn repair_keeps_an_intact_store_and_replaces_a_damaged_one() {
    let disk = closed_after(with(QUIET), "a=1 b=1 c=1 flush a+2 c+2 flush");
    let unknown = repair(&disk, Options::default());
    assert!(matches!(unknown, Err(Error::NoOperandStore { .. })), "{unknown:?}");
    let repair = |disk: &MemVfs| repair(disk, Options::default().operand_store(QUIET)).unwrap();

    let damaged = disk.crash(CrashImage::Keep, 0);
    let [table] = &files(&damaged, ".sst")[..] else { panic!("more than one table") };
    let last = damaged.read_all(table).unwrap().len() as u64 - 1;
    damaged.flip_bits(table, last, 1).unwrap();
    let report = repair(&damaged);
    assert_eq!((report.tables_rewritten, report.entries_salvaged), (1, 3), "{report:?}");
    assert_eq!(report.lost, [], "only the footer is damaged");
    assert_default(&open(&damaged, with(QUIET)), "a=12 b=1 c=12");

    let damaged = disk.crash(CrashImage::Keep, 0);
    for file in files(&damaged, ".operands") {
        damaged.truncate(&file, 3).unwrap();
    }
    let refused = open(&damaged, with(QUIET)).get("a").unwrap_err();
    assert!(matches!(refused, Error::NoOperandStore { cause: Some(_), .. }), "{refused:?}");
    let lost = repair(&damaged).lost;
    let lost: Vec<_> = lost.iter().map(|lost| (lost.what, lost.keyspace.as_deref())).collect();
    assert_eq!(lost, [(LossKind::Operands, Some("default"))]);
    let db = open(&damaged, with(QUIET));
    assert_default(&db, "a=1 b=1 c=1");
    apply_to_default(&db, "b+3 flush");
    assert_default(&db, "a=1 b=13 c=1");
}

/// Without a manifest, a repair finds live tables and also tables that a compaction replaced. The live and the replaced
/// tables contain the same operands. The repair must apply each operand only once.
#[test]
fn repair_without_a_manifest_combines_operands_once() {
    let disk = MemVfs::new();
    let tiering = merging().policy(policy("tiering(T=10)"));
    let db = open(&disk, inline().keyspace_defaults(tiering));
    apply_to_default(&db, "a=1 flush a+2 flush b+x flush a+3 flush");
    let before = disk.snapshot_all();
    compact(&db).unwrap();
    apply_to_default(&db, "b+y");
    db.close(None).unwrap();
    for path in disk.paths().iter().filter(|path| path.to_string_lossy().contains("MANIFEST")) {
        disk.remove(path).unwrap();
    }
    let is_table = |path: &Path| path.extension().is_some_and(|extension| extension == "sst");
    let replaced: Vec<_> =
        before.iter().filter(|(path, _)| is_table(path) && !disk.exists(path).unwrap()).collect();
    assert_eq!(replaced.len(), 4);
    // The first round restores all replaced tables. Each later round restores only one table.
    let single = replaced.iter().map(std::slice::from_ref);
    for restored in std::iter::once(&replaced[..]).chain(single) {
        let disk = disk.crash(CrashImage::Keep, 0);
        for (path, bytes) in restored {
            disk.write_all(path, bytes).unwrap();
        }
        let report = repair(&disk, Options::default()).unwrap();
        assert!(report.in_doubt && report.tables_sound >= 2, "{report:?}");
        assert_default(&open(&disk, without_store()), "a=123 b=xy");
    }
}

/// The log of an `lsmx-delta` store contains the name that the keyspace had when the log was created.
#[test]
fn renamed_keyspace_keeps_its_operand_store() {
    for uses_delta in [false, true] {
        use_delta_stores(uses_delta);
        let stored = || merging().operand_store(QUIET.or_delta());
        let disk = MemVfs::new();
        let db = open(&disk, inline());
        let lists = db.keyspace("lists", stored()).unwrap();
        apply(&db, &lists, "a+1 flush a+2");
        db.rename_keyspace("lists", "renamed").unwrap();
        apply(&db, &lists, "b+3 flush a+4");
        db.sync().unwrap();
        let killed = disk.crash(CrashImage::Keep, 0);
        drop(lists);
        db.close(None).unwrap();
        for disk in [disk, killed] {
            let db = open(&disk, inline().operand_store(QUIET.or_delta()));
            // Another keyspace of the old name has a store of its own.
            let other = db.keyspace("lists", stored()).unwrap();
            apply(&db, &other, "a+x flush");
            let renamed = db.keyspace("renamed", stored()).unwrap();
            assert_eq!(renamed.get("a").unwrap().as_deref(), Some(&b"124"[..]));
            assert_eq!(renamed.get("b").unwrap().as_deref(), Some(&b"3"[..]));
            assert_eq!(other.get("a").unwrap().as_deref(), Some(&b"x"[..]));
            drop((other, renamed));
            db.close(None).unwrap();
            let options = Options::default().vfs(Arc::new(disk)).operand_store(QUIET.or_delta());
            lsmx::verify("db", &options).unwrap();
        }
    }
    use_delta_stores(false);
}

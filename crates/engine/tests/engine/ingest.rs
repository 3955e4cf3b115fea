//! Ingests of external tables and bulk loads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lsmx::env::Background;
use lsmx::ingest::{
    BulkLoadOptions, BulkLoadPhase, ExternalTableWriter, IngestOptions, IngestSummary,
};
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, MemOperation, VfsCall};
use lsmx::vfs::{CrashImage, MemVfs, OsVfs, Vfs};
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Options, WriteBatch};
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::SimpleStore;

use crate::harness::database::{assert_clean, inline, open, policy, try_open, verify};

fn keyspace_options() -> KeyspaceOptions {
    KeyspaceOptions::default().memtable_bytes(16 << 10).table_bytes(8 << 10).block_bytes(256)
}

fn options() -> Options {
    inline().keyspace_defaults(keyspace_options())
}

fn key(number: u32) -> String {
    format!("key-{number:06}")
}

/// Writes an external table. `None` deletes the key.
fn write_table(disk: &MemVfs, path: &str, entries: &[(String, Option<&str>)]) -> PathBuf {
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    if let Some(dir) = Path::new(path).parent()
        && !disk.exists(dir).unwrap()
    {
        disk.create_dir(dir).unwrap();
    }
    let mut table = ExternalTableWriter::create_in(vfs, path, &keyspace_options()).unwrap();
    for (key, value) in entries {
        match value {
            Some(value) => table.put(key, value).unwrap(),
            None => table.delete(key).unwrap(),
        }
    }
    assert_eq!(table.finish().unwrap().entries, entries.len() as u64);
    path.into()
}

fn puts(numbers: std::ops::Range<u32>, value: &str) -> Vec<(String, Option<&str>)> {
    numbers.map(|number| (key(number), Some(value))).collect()
}

/// Returns all pairs of a keyspace, and checks that both directions and point lookups agree.
fn contents(keyspace: &Keyspace) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let pairs: BTreeMap<_, _> = keyspace
        .iter()
        .map(Result::unwrap)
        .map(|(key, value)| (text(&key), text(&value)))
        .collect();
    let backward: Vec<_> = keyspace.iter().rev().map(Result::unwrap).map(|(key, _)| key).collect();
    assert_eq!(backward.len(), pairs.len());
    for (key, value) in &pairs {
        assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(value.as_bytes()));
    }
    pairs
}

fn ingest_metrics(keyspace: &Keyspace, db: &Db) -> lsmx::metrics::IngestMetrics {
    db.metrics().keyspaces[&keyspace.name()].ingest
}

#[test]
fn ingested_file_is_read_and_survives_reopening() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let keyspace = db.default_keyspace();
    for number in 0..100 {
        keyspace.put(key(number), "old").unwrap();
    }
    let file = write_table(&disk, "external/a", &puts(50..1_000, "new"));
    let before = db.snapshot();
    let summary = keyspace.ingest([&file]).unwrap();
    assert_eq!((summary.files, summary.entries, summary.seq.0), (1, 950, before.seq().0 + 1));
    let expected: BTreeMap<_, _> =
        (0..1_000).map(|n| (key(n), if n < 50 { "old" } else { "new" }.to_owned())).collect();
    assert_eq!(contents(&keyspace), expected);
    // A snapshot from before the ingest sees the old values, in both directions.
    assert_eq!(before.get(&keyspace, key(60)).unwrap().unwrap(), *b"old");
    assert!(before.get(&keyspace, key(500)).unwrap().is_none());
    assert_eq!(before.iter(&keyspace).count(), 100);
    assert_eq!(before.iter(&keyspace).rev().count(), 100);
    assert!(keyspace.explain(key(500)).is_ok());
    drop(before);
    // Later writes are newer.
    keyspace.put(key(60), "newest").unwrap();
    keyspace.delete(key(61)).unwrap();
    let mut expected = expected;
    expected.insert(key(60), "newest".to_owned());
    expected.remove(&key(61));
    disk.remove(&file).unwrap();
    for _ in 0..2 {
        assert_eq!(contents(&keyspace), expected);
        keyspace.compact_range::<&str>(..).unwrap();
    }
    drop(keyspace);
    db.close(None).unwrap();
    assert_clean(&disk);
    let db = open(&disk, options());
    assert_eq!(contents(&db.default_keyspace()), expected);
    assert!(db.snapshot().seq() > summary.seq);
}

/// Bug: the database contained a symbolic link, and lost the entries when the user removed the ingested file.
#[cfg(unix)]
#[test]
fn ingested_symbolic_link_outlives_its_target() {
    let dir = tempfile::tempdir().unwrap();
    let [file, link, data] = ["table.sst", "link.sst", "data"].map(|name| dir.path().join(name));
    let mut table = ExternalTableWriter::create(&file, &keyspace_options()).unwrap();
    table.put("key", "value").unwrap();
    table.finish().unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let db = Db::open(&data, options()).unwrap();
    let ingested = db.default_keyspace().ingest([&link]).unwrap();
    assert_eq!(ingested.files, 1);
    drop(db);
    for path in [link, file] {
        OsVfs.remove(&path).unwrap();
    }
    let db = Db::open(&data, options()).unwrap();
    assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn ingested_deletes_hide_older_values_until_compacted() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let keyspace = db.default_keyspace();
    for number in 0..10 {
        keyspace.put(key(number), "old").unwrap();
    }
    keyspace.compact_range::<&str>(..).unwrap();
    let entries: Vec<_> = (0..10).map(|n| (key(n), (n % 2 == 0).then_some("new"))).collect();
    let file = write_table(&disk, "external/a", &entries);
    keyspace.ingest([&file]).unwrap();
    assert_eq!(contents(&keyspace).len(), 5);
    keyspace.compact_range::<&str>(..).unwrap();
    assert_eq!(contents(&keyspace).len(), 5);
    assert_eq!(db.metrics().keyspaces["default"].total().tombstones, 0);
}

#[test]
fn ingested_range_covers_older_range_delete_in_memtable() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let keyspace = db.default_keyspace();
    keyspace.put(key(5), "old").unwrap();
    keyspace.delete_range(key(0)..key(9)).unwrap();
    let file = write_table(&disk, "external/a", &[(key(7), Some("new"))]);
    keyspace.ingest([&file]).unwrap();
    assert_eq!(contents(&keyspace).into_keys().collect::<Vec<_>>(), [key(7)]);
    keyspace.delete_range(key(0)..key(9)).unwrap();
    assert!(contents(&keyspace).is_empty());
    db.flush().unwrap();
    keyspace.compact_range::<&str>(..).unwrap();
    assert!(contents(&keyspace).is_empty());
}

#[test]
fn files_go_to_deepest_level_without_overlap() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let keyspace = db.default_keyspace();
    let files: Vec<_> = (0..4)
        .map(|at| write_table(&disk, &format!("external/{at}"), &puts(at * 10..at * 10 + 5, "v")))
        .collect();
    keyspace.ingest(&files[..3]).unwrap();
    let files_of = |db: &Db, number: u8| -> u64 {
        let levels = &db.metrics().keyspaces["default"].levels;
        levels.iter().filter(|level| level.level == number).map(|level| level.files).sum()
    };
    assert_eq!((files_of(&db, 0), files_of(&db, 1)), (0, 3));
    keyspace.ingest(&files[3..]).unwrap();
    assert_eq!((files_of(&db, 0), files_of(&db, 1)), (0, 4));
    // An overlapping file is placed above.
    keyspace.ingest([write_table(&disk, "external/again", &puts(2..3, "w"))]).unwrap();
    assert_eq!(ingest_metrics(&keyspace, &db).l0_files, 1);
    assert_eq!(keyspace.get(key(2)).unwrap().unwrap(), *b"w");
    let metrics = ingest_metrics(&keyspace, &db);
    assert_eq!((metrics.ingests, metrics.files, metrics.written_bytes), (3, 5, 0));
}

#[test]
fn ingest_over_several_keyspaces_is_atomic() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let second = db.keyspace("second", keyspace_options()).unwrap();
    let first = db.default_keyspace();
    let files =
        ["a", "b"].map(|name| write_table(&disk, &format!("external/{name}"), &puts(0..9, name)));
    let [a, b] = files;
    let before = db.snapshot().seq();
    let requests = [(second.clone(), vec![b.clone()]), (first.clone(), vec![a.clone()])];
    let summary = db.ingest(&requests, IngestOptions::default()).unwrap();
    assert_eq!((summary.files, summary.seq.0), (2, before.0 + 1));
    assert_eq!(first.get(key(1)).unwrap().unwrap(), *b"a");
    assert_eq!(second.get(key(1)).unwrap().unwrap(), *b"b");
    // A damaged file of one keyspace leaves all keyspaces unchanged.
    let mut bytes = disk.snapshot_all()[Path::new("external/a")].clone();
    let at = bytes.len() / 3;
    bytes[at] ^= 1;
    disk.create(Path::new("external/damaged")).unwrap().append(&bytes).unwrap();
    let requests =
        [(first.clone(), vec![a.clone()]), (second.clone(), vec!["external/damaged".into()])];
    let error = db.ingest(&requests, IngestOptions::default()).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { path, .. } if path == Path::new("external/damaged")));
    assert_eq!(ingest_metrics(&first, &db).ingests, 1);
    drop((first, second, requests));
    db.close(None).unwrap();
    assert_clean(&disk);
}

#[test]
fn unsuitable_files_are_refused_with_typed_errors() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let keyspace = db.default_keyspace();
    let refused = |result: lsmx::Result<IngestSummary>| match result.unwrap_err() {
        Error::IngestRefused { why, .. } => why,
        other => panic!("{other}"),
    };
    let file = write_table(&disk, "external/a", &puts(0..9, "v"));
    let overlapping = write_table(&disk, "external/b", &puts(8..20, "v"));
    assert_eq!(refused(keyspace.ingest([&file, &overlapping])), "the files overlap each other");
    // A table of the database is not an external table.
    keyspace.put("k", "v").unwrap();
    db.flush().unwrap();
    let tables = disk.list(Path::new("db")).unwrap();
    let table = tables.iter().find(|name| name.ends_with(".sst")).unwrap();
    let table = Path::new("db").join(table);
    assert_eq!(refused(keyspace.ingest([&table])), "it is not an external table");
    let missing = keyspace.ingest(["external/missing"]).unwrap_err();
    assert!(matches!(missing, Error::Io { .. }), "{missing}");
    let store = keyspace_options().operand_store(SimpleStore::default().or_delta());
    let stored = db.keyspace("stored", store).unwrap();
    assert_eq!(refused(stored.ingest([&file])), "it has an operand store");
    let load = stored.bulk_load([("a", "b")], BulkLoadOptions::default());
    assert_eq!(refused(load), "it has an operand store");
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    let mut table = ExternalTableWriter::create_in(vfs, "external/c", &keyspace_options()).unwrap();
    table.put("b", "1").unwrap();
    assert!(matches!(table.delete("b"), Err(Error::OutOfOrder { .. })));
    drop(table);
    assert!(!disk.exists(Path::new("external/c")).unwrap());
    assert_eq!(keyspace.ingest::<&str>([]).unwrap().files, 0);
    drop((keyspace, stored));
    db.close(None).unwrap();
    let db = try_open(&disk, options().read_only(true)).unwrap();
    let refused = db.default_keyspace().ingest([&file]);
    assert!(matches!(refused, Err(Error::OpenedReadOnly)));
}

#[test]
fn guard_older_than_ingest_is_undecided_in_its_range() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let keyspace = db.default_keyspace();
    keyspace.put(key(5), "old").unwrap();
    let read = db.snapshot().seq();
    keyspace.ingest([write_table(&disk, "external/a", &puts(4..7, "new"))]).unwrap();
    let guarded = |guard: u32, read| {
        let mut batch = WriteBatch::new();
        batch.guard(&keyspace, key(guard), read);
        batch.put(&keyspace, "written", "v");
        db.write(batch, Durability::Buffered)
    };
    assert!(matches!(guarded(5, read), Err(Error::ConflictUnknown { .. })));
    guarded(5, db.snapshot().seq()).unwrap();
    guarded(50, db.snapshot().seq()).unwrap();
    let updated = keyspace.fetch_update(key(5), |old| old.map(<[u8]>::to_vec)).unwrap();
    assert_eq!(updated.unwrap(), *b"new");
}

#[test]
fn file_is_copied_if_it_cannot_be_linked_or_on_request() {
    for copies in [false, true] {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk.clone()), 0);
        let db = Db::open("db", options().vfs(Arc::new(faults.clone()))).unwrap();
        let keyspace = db.default_keyspace();
        let file = write_table(&disk, "external/a", &puts(0..500, "v"));
        if copies {
            faults
                .add_rule(FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::HardLink]));
        }
        let request = [(keyspace.clone(), vec![file.clone()])];
        db.ingest(&request, IngestOptions::default().copy_files(copies)).unwrap();
        let metrics = ingest_metrics(&keyspace, &db);
        assert_eq!(metrics.written_bytes, if copies { metrics.bytes } else { 0 });
        assert_eq!(contents(&keyspace).len(), 500);
    }
}

#[test]
fn full_disk_during_copy_leaves_database_writable() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let keyspace = db.default_keyspace();
    let file = write_table(&disk, "external/a", &puts(0..2_000, "value"));
    let used: usize = disk.snapshot_all().values().map(Vec::len).sum();
    disk.set_capacity(Some(used as u64 + 2_000));
    let request = [(keyspace.clone(), vec![file.clone()])];
    let copied = db.ingest(&request, IngestOptions::default().copy_files(true));
    assert!(matches!(copied, Err(Error::Io { .. })), "{copied:?}");
    disk.set_capacity(None);
    assert!(contents(&keyspace).is_empty());
    keyspace.put("k", "v").unwrap();
    keyspace.ingest([&file]).unwrap();
    assert_eq!(contents(&keyspace).len(), 2_001);
    drop((keyspace, request));
    db.close(None).unwrap();
    assert_clean(&disk);
}

/// Fails the call with this number and checks that the database recovers with the entries of all files or of none.
#[test]
fn failed_call_during_ingest_leaves_all_or_nothing() {
    for nth in 0.. {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk.clone()), nth);
        let db = Db::open("db", options().vfs(Arc::new(faults.clone()))).unwrap();
        let keyspace = db.default_keyspace();
        keyspace.put(key(3), "old").unwrap();
        let file = write_table(&disk, "external/a", &puts(0..100, "v"));
        faults.add_rule(FaultRule::new(Fault::Error(Errno::Io)).nth(nth).once());
        let ingested = keyspace.ingest([&file]);
        let fired = faults.fired_counts().values().sum::<u64>() > 0;
        faults.clear_rules();
        // Also after a success: if the mark of the edit could not be synced, the database is read-only.
        let _ = db.resume();
        let count = keyspace.iter().count();
        assert!(count == 1 || count == 100, "{count} entries after a failure of call {nth}");
        assert!(ingested.is_err() || count == 100);
        // The first write returns an error if a file could not be removed.
        keyspace.put("later", "v").or_else(|_| keyspace.put("later", "v")).unwrap();
        drop(keyspace);
        db.close(None).unwrap();
        let db = open(&disk, options());
        assert_eq!(db.default_keyspace().iter().count(), count + 1);
        db.close(None).unwrap();
        assert_eq!(verify(&disk).unwrap().orphans.len(), 0);
        if !fired {
            assert!(nth > 10, "an ingest makes more calls than {nth}");
            return;
        }
    }
}

#[test]
fn crash_during_ingest_leaves_all_or_nothing() {
    let images = Arc::new(std::sync::Mutex::new(Vec::new()));
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let keyspace = db.default_keyspace();
    let second = db.keyspace("second", keyspace_options()).unwrap();
    for number in 0..50 {
        keyspace.put(key(number), "old").unwrap();
    }
    db.sync().unwrap();
    let files = ["a", "b"]
        .map(|name| write_table(&disk, &format!("external/{name}"), &puts(20..90, "new")));
    let is_observing = Arc::new(AtomicBool::new(true));
    let (sink, flag) = (Arc::clone(&images), Arc::clone(&is_observing));
    disk.set_observer(Some(Arc::new(move |disk: &MemVfs, _: MemOperation<'_>| {
        if flag.load(Ordering::Relaxed) {
            let mut images = sink.lock().unwrap();
            for image in CrashImage::ALL {
                let seed = images.len() as u64;
                images.push((image, disk.crash(image, seed)));
            }
        }
    })));
    let [a, b] = files;
    let request = [(keyspace.clone(), vec![a]), (second.clone(), vec![b])];
    db.ingest(&request, IngestOptions::default()).unwrap();
    is_observing.store(false, Ordering::Relaxed);
    disk.set_observer(None);
    let images = std::mem::take(&mut *images.lock().unwrap());
    let mut found = [0; 2];
    for (image, disk) in images {
        let db = open(&disk, options());
        let (first, second) = (db.default_keyspace(), db.open_keyspace("second", None).unwrap());
        let counts = (first.iter().count(), second.iter().count());
        assert!(counts == (50, 0) || counts == (90, 70), "{counts:?} after {image:?}");
        found[usize::from(counts.1 > 0)] += 1;
        let value = first.get(key(30)).unwrap().unwrap();
        assert_eq!(value, if counts.1 > 0 { *b"new" } else { *b"old" });
        first.put(key(30), "later").unwrap();
        assert_eq!(first.get(key(30)).unwrap().unwrap(), *b"later");
        drop((first, second));
        db.close(None).unwrap();
        assert_clean(&disk);
    }
    assert!(found[0] > 10 && found[1] > 0, "{found:?}");
}

#[test]
fn ingests_during_concurrent_writes_keep_order_of_commits() {
    let disk = MemVfs::new();
    let background = Background::Threads { workers: 2 };
    let db = open(&disk, options().background(background));
    let keyspace = db.default_keyspace();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        // The writer commits the counter `n` to its own key and to a key in the range of the files.
        let writer = scope.spawn(|| {
            let mut written = 0_u32;
            loop {
                written += 1;
                let mut batch = WriteBatch::new();
                batch.put(&keyspace, "a", written.to_string());
                batch.put(&keyspace, key(written % 40), "written");
                db.write(batch, Durability::Buffered).unwrap();
                if ends.load(Ordering::Relaxed) {
                    break written;
                }
            }
        });
        for round in 0..20 {
            let value = format!("round {round}");
            let file = write_table(&disk, &format!("external/{round}"), &puts(0..40, &value));
            let summary = keyspace.ingest([&file]).unwrap();
            // The newest value of each key is that of this ingest or of a later commit.
            let snapshot = db.snapshot();
            assert!(snapshot.seq() >= summary.seq);
            for pair in snapshot.range(&keyspace, key(0)..key(40)) {
                let (key, found) = pair.unwrap();
                assert!(found == *value.as_bytes() || found == *b"written", "{key:?} {found:?}");
            }
        }
        ends.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap();
        assert_eq!(keyspace.get("a").unwrap().unwrap(), *written.to_string().as_bytes());
    });
    drop(keyspace);
    db.close(None).unwrap();
    assert_clean(&disk);
}

#[test]
fn checkpoint_and_repair_keep_ingested_tables() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let keyspace = db.default_keyspace();
    keyspace.put(key(3), "old").unwrap();
    keyspace.ingest([write_table(&disk, "external/a", &puts(0..100, "new"))]).unwrap();
    keyspace.put(key(4), "newest").unwrap();
    let expected = contents(&keyspace);
    db.checkpoint("copy").unwrap();
    let copy = Db::open("copy", options().vfs(Arc::new(disk.clone()))).unwrap();
    assert_eq!(contents(&copy.default_keyspace()), expected);
    drop(keyspace);
    db.close(None).unwrap();
    let vfs = Options::default().vfs(Arc::new(disk.clone()));
    lsmx::repair("db", &vfs, &lsmx::RepairOptions::default()).unwrap();
    let db = open(&disk, options());
    assert_eq!(contents(&db.default_keyspace()), expected);
}

#[test]
fn sorted_bulk_load_writes_each_entry_once() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let keyspace = db.default_keyspace();
    let mut phases = Vec::new();
    let options = BulkLoadOptions::default().progress(|progress| phases.push(progress.phase));
    let entries = (0..20_000).map(|number| (key(number), "a value of some bytes"));
    let summary = keyspace.bulk_load(entries, options).unwrap();
    assert_eq!(summary.entries, 20_000);
    assert_eq!(phases.last(), Some(&BulkLoadPhase::Install));
    db.wait_idle().unwrap();
    assert_eq!(keyspace.iter().count(), 20_000);
    let metrics = &db.metrics().keyspaces["default"];
    assert!(summary.files > 10, "{summary:?}");
    // Trivial moves write nothing.
    assert_eq!(metrics.total().flow.written_bytes, summary.bytes);
    assert_eq!((metrics.ingest.l0_files, metrics.flushes), (0, 0));
    let unsorted = keyspace.bulk_load([("b", "1"), ("a", "2")], BulkLoadOptions::default());
    assert!(matches!(unsorted, Err(Error::UnsortedInput { .. })));
    let twice = keyspace.bulk_load([("b", "1"), ("b", "2")], BulkLoadOptions::default());
    assert!(matches!(twice, Err(Error::UnsortedInput { .. })));
    assert!(keyspace.get("b").unwrap().is_none());
    drop(keyspace);
    db.close(None).unwrap();
    assert_clean(&disk);
}

#[test]
fn unsorted_bulk_load_keeps_last_value_of_each_key() {
    let mut rng = TestRng::new(7);
    for count in [0_usize, 1, 500, 60_000] {
        let disk = MemVfs::new();
        let db = open(&disk, options());
        let keyspace = db.default_keyspace();
        let mut expected = BTreeMap::new();
        let mut loader =
            keyspace.bulk_loader(BulkLoadOptions::default().sort_memory_bytes(64 << 10)).unwrap();
        for number in 0..count {
            let (key, value) = (key(rng.below(20_000)), number.to_string());
            loader.put(&key, &value).unwrap();
            expected.insert(key, value);
        }
        assert!(contents(&keyspace).is_empty(), "entries are visible before the end");
        assert_eq!(loader.finish().unwrap().entries, expected.len() as u64);
        assert_eq!(contents(&keyspace), expected);
        drop(keyspace);
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

#[test]
fn dropped_bulk_load_leaves_no_files() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    let keyspace = db.default_keyspace();
    for sorts in [false, true] {
        let options = match sorts {
            true => BulkLoadOptions::default().sort_memory_bytes(64 << 10),
            false => BulkLoadOptions::default(),
        };
        let mut loader = keyspace.bulk_loader(options).unwrap();
        for number in 0..20_000 {
            loader.put(key(number), "a value of some bytes").unwrap();
        }
        drop(loader);
    }
    assert_eq!(keyspace.iter().count(), 0);
    let mut loader = keyspace.bulk_loader(BulkLoadOptions::default()).unwrap();
    loader.put("k", "v").unwrap();
    drop(keyspace);
    db.close(None).unwrap();
    assert!(matches!(loader.finish(), Err(Error::Closed)));
    assert_clean(&disk);
}

/// Bug: the files of a bulk load became the deepest run of a FIFO keyspace, so they were dropped before older data, and
/// files of L0 exceeded their maximum age.
#[test]
fn bulk_load_into_fifo_keyspace_drops_oldest_entries_first() {
    let with_policy = |text| inline().keyspace_defaults(keyspace_options().policy(policy(text)));
    let load = |db: &Db, numbers: std::ops::Range<u32>| {
        let entries = numbers.map(|number| (key(number), [7; 100]));
        db.default_keyspace().bulk_load(entries, BulkLoadOptions::default()).unwrap();
        db.wait_idle().unwrap();
    };
    let fill = |db: &Db, numbers: std::ops::Range<u32>| {
        numbers.for_each(|number| db.put(key(number), [7; 100]).unwrap());
        db.flush().unwrap();
        db.wait_idle().unwrap();
    };
    let has = |db: &Db, number| db.get(key(number)).unwrap().is_some();

    let db = open(&MemVfs::new(), with_policy("fifo(200K)"));
    fill(&db, 0..1_000);
    for round in 1..4 {
        load(&db, round * 1_000..(round + 1) * 1_000);
        // Two thirds of the limit are enough for the entries of one round.
        assert!((round * 1_000..(round + 1) * 1_000).all(|number| has(&db, number)), "{round}");
    }
    assert!(!has(&db, 0));

    let db = open(&MemVfs::new(), with_policy("fifo(1G,ttl=1s)"));
    fill(&db, 0..10);
    db.env().advance_us(900_000);
    load(&db, 10..20);
    db.env().advance_us(200_000);
    fill(&db, 20..21);
    assert_eq!([0, 9, 10, 20].map(|number| has(&db, number)), [false, false, true, true]);
}

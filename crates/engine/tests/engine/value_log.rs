//! Value separation: switched on and off, all kinds of reads, checkpoints, garbage collection, damage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::{CountingVfs, CrashImage, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::metrics::BlockKind;
use lsmx::metrics::ValueLogMetrics;
use lsmx::vfs::MemVfs;
use lsmx::{
    Compression, Db, Error, KeyspaceOptions, Options, ReadOptions, ReadTier, ValueSeparation,
    observe, verify,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn separation() -> ValueSeparation {
    ValueSeparation { threshold_bytes: 100, ..ValueSeparation::default() }
}

fn tuning(separation: impl Into<Option<ValueSeparation>>) -> KeyspaceOptions {
    KeyspaceOptions::default()
        .memtable_bytes(16 << 10)
        .table_bytes(2 << 10)
        .block_bytes(256)
        .policy("leveled(T=3)".parse::<lsmx::PolicySpec>().unwrap())
        .merge_operator(Append::default())
        .value_separation(separation)
}

fn options(keyspace: KeyspaceOptions) -> Options {
    Options::default()
        .background(Background::Inline)
        .seed(11)
        .block_cache_bytes(64 << 10)
        .keyspace_defaults(keyspace)
}

fn open(disk: &MemVfs, keyspace: KeyspaceOptions) -> Db {
    Db::open("db", options(keyspace).vfs(Arc::new(disk.clone()))).unwrap()
}

fn key(number: u32) -> String {
    format!("key-{:05}", number.wrapping_mul(7_919) % 100_000)
}

fn value(number: u32, round: u32) -> Vec<u8> {
    let bytes = if number.is_multiple_of(5) { 20 } else { 150 + number % 300 };
    format!("{number}-{round}-").into_bytes().into_iter().cycle().take(bytes as usize).collect()
}

fn log(db: &Db) -> ValueLogMetrics {
    db.metrics().keyspaces["default"].value_log
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn write(db: &Db, model: &mut Model, numbers: impl Iterator<Item = u32>, round: u32) {
    for number in numbers {
        let (key, value) = (key(number), value(number, round));
        db.put(&key, &value).unwrap();
        model.insert(key.into_bytes(), value);
    }
}

fn check(db: &Db, model: &Model) {
    let pairs = |range: lsmx::Range| -> Vec<(Vec<u8>, Vec<u8>)> {
        range.map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect()
    };
    let keyspace = db.default_keyspace();
    let all: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert!(pairs(keyspace.iter()) == all, "forward");
    let mut backward: Vec<_> =
        keyspace.iter().rev().map(|e| e.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect();
    backward.reverse();
    assert!(backward == all, "backward");
    for (key, value) in model {
        assert_eq!(db.get(key).unwrap().as_deref(), Some(value.as_slice()));
    }
    let found = db.default_keyspace().multi_get(model.keys()).unwrap();
    assert!(
        found.iter().zip(model.values()).all(|(found, value)| found.as_ref().unwrap() == value)
    );
}

fn blob_files(disk: &MemVfs) -> Vec<PathBuf> {
    let is_blob = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "blob");
    disk.paths().into_iter().filter(is_blob).collect()
}

#[test]
fn values_come_back_whatever_way_they_are_read() {
    for compression in [Compression::None, Compression::Lz4] {
        let disk = MemVfs::new();
        let db = open(&disk, tuning(separation()).compression(compression));
        let mut model = Model::new();
        write(&db, &mut model, 0..600, 0);
        check(&db, &model);
        db.flush().unwrap();
        db.wait_idle().unwrap();
        check(&db, &model);
        let snapshot = db.snapshot();
        let before = model.clone();
        write(&db, &mut model, (0..600).step_by(3), 1);
        for number in (0..600).step_by(7) {
            db.delete(key(number)).unwrap();
            model.remove(key(number).as_bytes());
        }
        for number in (1..600).step_by(11) {
            db.default_keyspace().merge(key(number), "+more").unwrap();
            model.entry(key(number).into_bytes()).or_default().extend_from_slice(b"+more");
        }
        check(&db, &model);
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        check(&db, &model);
        let seen: Vec<_> = snapshot.iter(&db.default_keyspace()).map(|e| e.unwrap().1).collect();
        assert!(seen.iter().eq(before.values()), "a snapshot is still");
        drop(snapshot);
        let metrics = log(&db);
        assert!(metrics.blob_files > 0 && metrics.blob_referenced_bytes > 0, "{metrics:?}");
        db.close(None).unwrap();
        let report = verify("db", &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
        assert!(report.blob_values > 300, "{report:?}");
        assert_eq!(report.orphans, Vec::<PathBuf>::new());
        check(&open(&disk, tuning(separation()).compression(compression)), &model);
    }
}

#[test]
fn it_can_be_turned_on_off_and_on_again() {
    let disk = MemVfs::new();
    let mut model = Model::new();
    for (round, apart) in [None, Some(separation()), None, Some(separation())].iter().enumerate() {
        let round = u32::try_from(round).unwrap();
        let db = open(&disk, tuning(*apart));
        check(&db, &model);
        write(&db, &mut model, (0..400).filter(|number| number % 4 == round), round);
        db.flush().unwrap();
        check(&db, &model);
        let seen = observe("db", &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
        assert_eq!(seen.keyspaces["default"].value_separation, round > 0);
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        // One more run has everything merged whatever was on top.
        db.put("zzz", "last").unwrap();
        model.insert(b"zzz".to_vec(), b"last".to_vec());
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        check(&db, &model);
        let metrics = log(&db);
        assert_eq!(metrics.blob_files > 0, apart.is_some(), "round {round}: {metrics:?}");
        db.close(None).unwrap();
        assert_eq!(blob_files(&disk).is_empty(), apart.is_none());
        verify("db", &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
    }
}

#[test]
fn garbage_is_collected_and_space_stays_bounded() {
    let disk = MemVfs::new();
    let apart =
        ValueSeparation { garbage_ratio: 1.0, space_amplification_max: 1.3, ..separation() };
    let db = open(&disk, tuning(apart));
    let mut model = Model::new();
    write(&db, &mut model, 0..500, 0);
    for round in 1..40 {
        // Some of the values of each file die, and others stay.
        let some =
            (0..500u32).filter(|number| number.wrapping_mul(2_654_435_761) >> 29 == round % 8);
        write(&db, &mut model, some, round);
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let metrics = log(&db);
    assert!(metrics.rewrites > 0 && metrics.rewritten_bytes > 0, "{metrics:?}");
    let headers = 80 * metrics.blob_files;
    let bound = 1.3 * metrics.blob_referenced_bytes as f64 + headers as f64;
    assert!(metrics.blob_bytes as f64 <= bound, "{metrics:?}");
    assert_eq!(blob_files(&disk).len() as u64, metrics.blob_files, "what is not named is gone");
    check(&db, &model);
}

/// Values of neighbours that came with different flushes lie side by side in the end, and each was copied
/// a few times at most.
#[test]
fn values_of_neighbours_are_brought_together() {
    let load = |scan_read_bytes| {
        let disk = MemVfs::new();
        let counting = Arc::new(CountingVfs::new(Arc::new(disk.clone())));
        let keyspace = tuning(ValueSeparation { scan_read_bytes, ..separation() });
        let keyspace = keyspace.table_bytes(64 << 10).block_bytes(4 << 10);
        let db = Db::open("db", options(keyspace).vfs(counting)).unwrap();
        let mut model = Model::new();
        for number in 0..4_000 {
            write(&db, &mut model, number..=number, 0);
            // No value has died: what is garbage was copied.
            let log = log(&db);
            let bound = 1.3 * log.blob_referenced_bytes as f64 + 80.0 * log.blob_files as f64;
            assert!(log.blob_bytes as f64 <= bound, "{log:?}");
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let before = CountingVfs::reads_of_this_thread();
        for from in model.keys().step_by(40) {
            let scan = db.default_keyspace().range::<&Vec<u8>>(from..).take(32);
            assert!(scan.filter(|entry| entry.is_ok()).count() > 0);
        }
        let reads = CountingVfs::reads_of_this_thread() - before;
        check(&db, &model);
        let metrics = log(&db);
        db.close(None).unwrap();
        assert_eq!(
            verify("db", &Options::default().vfs(Arc::new(disk))).unwrap().orphans,
            Vec::<PathBuf>::new()
        );
        (reads, metrics)
    };
    let (scattered, before) = load(0);
    assert_eq!(before.gathered_bytes, 0);
    let (gathered, metrics) = load(2 << 10);
    assert!(gathered * 3 < scattered * 2, "{gathered} reads, {scattered} of scattered values");
    assert!(metrics.blob_files * 2 < before.blob_files, "{metrics:?} {before:?}");
    assert!(metrics.gathered_bytes > metrics.blob_referenced_bytes / 2, "{metrics:?}");
    assert!(metrics.gathered_bytes < metrics.blob_referenced_bytes * 3, "{metrics:?}");
}

/// A value that cannot be read is in nobody's way: what merges would copy without need stays where it is.
#[test]
fn merges_go_on_beside_a_value_that_cannot_be_read() {
    let disk = MemVfs::new();
    let apart =
        ValueSeparation { garbage_ratio: 1.0, space_amplification_max: 100.0, ..separation() };
    let (mut model, gathering) =
        (Model::new(), tuning(ValueSeparation { scan_read_bytes: 2 << 10, ..apart }));
    let db = open(&disk, tuning(ValueSeparation { scan_read_bytes: 0, ..apart }));
    write(&db, &mut model, 0..1_500, 0);
    db.close(None).unwrap();
    let path = blob_files(&disk).into_iter().max().unwrap();
    let bytes = disk.read_all(&path).unwrap().len() as u64;
    disk.flip_bits(&path, bytes / 2, 1).unwrap();
    let db = open(&disk, gathering);
    let wrong: Vec<_> = model.keys().filter(|key| db.get(key).is_err()).cloned().collect();
    assert_eq!(wrong.len(), 1, "{path:?}");
    write(&db, &mut model, 1_500..4_000, 1);
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    db.wait_idle().unwrap();
    let metrics = &db.metrics().keyspaces["default"];
    assert!(metrics.value_log.gathered_bytes > 1_000_000 / 2, "{:?}", metrics.value_log);
    assert_eq!(metrics.compaction.failures, 0);
    for (key, value) in &model {
        match db.get(key) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
            Err(Error::Corrupt { path: at, .. }) => {
                assert_eq!((at, key), (path.clone(), &wrong[0]))
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(db.get(&wrong[0]).is_err());
}

#[test]
fn a_snapshot_and_an_iterator_keep_the_files_of_their_views() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning(ValueSeparation { space_amplification_max: 1.01, ..separation() }));
    let mut model = Model::new();
    write(&db, &mut model, 0..300, 0);
    db.flush().unwrap();
    let old = model.clone();
    let mut iterator = db.default_keyspace().iter();
    let first = iterator.next().unwrap().unwrap();
    assert_eq!(Some(&*first.0), old.keys().next().map(Vec::as_slice));
    let (held, before) = (db.metrics().held.files, blob_files(&disk));
    write(&db, &mut model, 0..300, 1);
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    db.wait_idle().unwrap();
    assert!(db.metrics().held.files > held);
    assert!(before.iter().all(|path| blob_files(&disk).contains(path)), "the iterator holds them");
    let rest: Vec<_> = iterator.map(|entry| entry.unwrap().1).collect();
    assert!(rest.iter().eq(old.values().skip(1)));
    db.put("more", "work").unwrap();
    db.flush().unwrap();
    assert!(!before.iter().any(|path| blob_files(&disk).contains(path)), "and nobody else does");
    check(&db, &{
        model.insert(b"more".to_vec(), b"work".to_vec());
        model
    });
}

#[test]
fn lookups_in_memory_do_not_read_values() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning(separation()));
    let keyspace = db.default_keyspace();
    db.put("key", [7; 500]).unwrap();
    db.put("other", [8; 500]).unwrap();
    db.flush().unwrap();
    assert!(matches!(
        keyspace.get_with("key", &ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() }),
        Err(Error::WouldBlock)
    ));
    let mut range =
        keyspace.iter().options(&ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() });
    assert!(matches!(range.next(), Some(Err(Error::WouldBlock))));
    range = range.options(&ReadOptions::default());
    assert_eq!(range.next().unwrap().unwrap().1, [7; 500]);
    // The scan has brought the metadata and the data block, and no value.
    let counted = |db: &Db| db.metrics().cache[&BlockKind::Blob];
    assert!(matches!(
        keyspace.get_with("key", &ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() }),
        Err(Error::WouldBlock)
    ));
    let before = counted(&db);
    assert_eq!(keyspace.get("key").unwrap().unwrap(), [7; 500]);
    assert_eq!(counted(&db).misses, before.misses + 1);
    assert_eq!(
        keyspace
            .get_with("key", &ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() })
            .unwrap()
            .unwrap(),
        [7; 500]
    );
    assert_eq!(counted(&db).hits, before.hits + 1);
    let mut range =
        keyspace.iter().options(&ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() });
    assert_eq!(range.next().unwrap().unwrap().1, [7; 500]);
    assert!(matches!(range.next(), Some(Err(Error::WouldBlock))));
    range = range.options(&ReadOptions::default());
    assert_eq!(range.next().unwrap().unwrap().1, [8; 500]);
    assert!(range.next().is_none());
    let explained = keyspace.explain("other").unwrap();
    let blocks: Vec<_> = explained.runs.iter().flat_map(|run| &run.blocks).collect();
    assert_eq!(blocks.last().unwrap().kind, BlockKind::Blob);
    assert_eq!(explained.value_bytes, Some(500));
}

#[test]
fn a_checkpoint_a_dropped_keyspace_and_a_crash_have_their_blob_files() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning(separation()));
    let mut model = Model::new();
    write(&db, &mut model, 0..300, 0);
    let other = db.keyspace("other", tuning(separation())).unwrap();
    for number in 0..300 {
        other.put(key(number), value(number, 9)).unwrap();
    }
    db.flush().unwrap();
    let files = blob_files(&disk).len();
    db.checkpoint("copy").unwrap();
    db.drop_keyspace("other").unwrap();
    db.put("a", "b").unwrap();
    db.flush().unwrap();
    assert!(blob_files(&disk).iter().filter(|path| path.starts_with("db")).count() < files);
    model.insert(b"a".to_vec(), b"b".to_vec());
    db.sync().unwrap();
    let crashed = disk.crash(CrashImage::Drop, 3);
    check(&open(&crashed, tuning(separation())), &model);
    model.remove(b"a".as_slice());
    verify("copy", &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
    let copy = Db::open("copy", options(tuning(separation())).vfs(Arc::new(disk.clone()))).unwrap();
    check(&copy, &model);
    let other = copy.keyspace("other", tuning(separation())).unwrap();
    assert_eq!(other.get(key(1)).unwrap().unwrap(), value(1, 9));
}

#[test]
fn a_missing_or_a_swapped_blob_file_is_named() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning(separation()));
    write(&db, &mut Model::new(), 0..300, 0);
    db.close(None).unwrap();
    let files = blob_files(&disk);
    assert!(files.len() > 1, "{files:?}");
    let first = disk.read_all(&files[0]).unwrap();
    let opened = |disk: &MemVfs| {
        Db::open("db", options(tuning(separation())).vfs(Arc::new(disk.clone()))).map(drop)
    };
    let damaged = |bytes: Option<&[u8]>| {
        let copy = disk.crash(CrashImage::Keep, 0);
        lsmx::vfs::Vfs::remove(&copy, &files[0]).unwrap();
        if let Some(bytes) = bytes {
            copy.write_all(&files[0], bytes).unwrap();
        }
        copy
    };
    let missing = opened(&damaged(None));
    assert!(matches!(missing, Err(Error::Missing { path, .. }) if path == files[0]));
    let other = disk.read_all(&files[1]).unwrap();
    for bytes in [&other[..], &first[..first.len() - 1], &[]] {
        let found = opened(&damaged(Some(bytes)));
        assert!(
            matches!(&found, Err(Error::Corrupt { path, .. }) if *path == files[0]),
            "{found:?}"
        );
    }
    // A value that was damaged is found by who reads it, and by the check of the whole database.
    let mut bytes = first.clone();
    bytes[100] ^= 1;
    let copy = damaged(Some(&bytes));
    opened(&copy).unwrap();
    let found = verify("db", &Options::default().vfs(Arc::new(copy.clone())));
    assert!(matches!(&found, Err(Error::Corrupt { path, .. }) if *path == files[0]), "{found:?}");
    let db = Db::open("db", options(tuning(separation())).vfs(Arc::new(copy))).unwrap();
    let wrong = (0..300).filter_map(|number| db.get(key(number)).err());
    let named = |error: &Error| matches!(error, Error::Corrupt { path, .. } if *path == files[0]);
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.len() == 1 && wrong.iter().all(named), "{wrong:?}");
    let failed = db.default_keyspace().iter().find_map(Result::err).unwrap();
    assert!(named(&failed), "{failed:?}");
    assert!(db.default_keyspace().multi_get((0..300).map(key)).is_err_and(|error| named(&error)));
}

/// Values that scans read ahead: whatever of them is asked for at which end, it is the right one.
#[test]
fn both_ends_of_a_range_meet_among_values_that_were_read_ahead() {
    let disk = MemVfs::new();
    let db = open(&disk, tuning(separation()));
    let mut model = Model::new();
    for round in 0..6 {
        write(&db, &mut model, (round..900).step_by(1 + round as usize), round);
        for number in (round..900).step_by(13) {
            db.default_keyspace().merge(key(number), "+").unwrap();
            model.entry(key(number).into_bytes()).or_default().push(b'+');
        }
        for number in (round..900).step_by(29) {
            db.delete(key(number)).unwrap();
            model.remove(key(number).as_bytes());
        }
        db.flush().unwrap();
    }
    let keys: Vec<_> = model.keys().cloned().collect();
    let mut runner = TestRunner::default();
    let turns = prop::collection::vec((any::<bool>(), 1..90_usize), 0..60);
    let ends = (0..keys.len(), 0..keys.len(), prop::option::of(0..600_usize), turns);
    let walked = runner.run(&ends, |(from, to, limit, turns)| {
        let (from, to) = (&keys[from.min(to)], &keys[from.max(to)]);
        let mut wanted = model.range(from.clone()..to.clone());
        let mut range = db.default_keyspace().range::<&Vec<u8>>(from..to);
        let mut left = limit.unwrap_or(usize::MAX);
        if let Some(limit) = limit {
            range = range.limit(limit as u64);
            prop_assert_eq!(range.size_hint(), (0, Some(limit)));
        }
        for (backward, times) in turns {
            for _ in 0..times {
                let (found, wanted) = match backward {
                    _ if left == 0 => {
                        (if backward { range.next_back() } else { range.next() }, None)
                    }
                    false => (range.next(), wanted.next()),
                    true => (range.next_back(), wanted.next_back()),
                };
                left = left.saturating_sub(1);
                let found = found.transpose().unwrap();
                let found = found.as_ref().map(|(key, value)| (&**key, &**value));
                prop_assert_eq!(found, wanted.map(|(key, value)| (&key[..], &value[..])));
            }
        }
        Ok(())
    });
    walked.unwrap_or_else(|why| panic!("{why}\n{runner}"));
}

/// Who says how many entries are wanted has their values read together, and none for nothing.
#[test]
fn a_range_with_a_limit_reads_what_is_wanted() {
    let disk = MemVfs::new();
    let counting = Arc::new(CountingVfs::new(Arc::new(disk.clone())));
    // One table of one block, and one blob file.
    let tuning = tuning(separation()).memtable_bytes(1 << 20).table_bytes(1 << 20);
    let db = Db::open("db", options(tuning.block_bytes(64 << 10)).vfs(counting.clone())).unwrap();
    let mut model = Model::new();
    write(&db, &mut model, (0..600).filter(|number| number % 5 != 0), 0);
    db.flush().unwrap();
    let cost = |range: lsmx::Range, entries: usize| {
        let before = counting.counts();
        let found: Vec<_> = range.take(entries).map(|entry| entry.unwrap().1).collect();
        assert!(found.iter().eq(model.values().take(entries)));
        let after = counting.counts();
        let [reads, bytes] = [(after.calls, before.calls), (after.bytes, before.bytes)]
            .map(|(after, before)| after.count_of(VfsCall::Read) - before.count_of(VfsCall::Read));
        (reads, bytes)
    };
    let all = || db.default_keyspace().iter();
    assert_eq!(cost(all(), 0), (0, 0));
    // What metadata there is was read, but for the block.
    cost(all().limit(1), 1);
    let (reads, bytes) = cost(all().limit(100), 100);
    let (reads_unlimited, bytes_unlimited) = cost(all(), 100);
    assert!(reads < reads_unlimited, "{reads}, {reads_unlimited} without a limit");
    assert!(bytes < bytes_unlimited, "{bytes}, {bytes_unlimited} without a limit");
    // A limit is the least of all that were said, and there is nothing after it, at either end.
    let mut range = all().limit(7).limit(3).limit(5);
    assert!(range.next().is_some() && range.next_back().is_some() && range.next().is_some());
    assert!(range.next().is_none() && range.next_back().is_none());
    assert!(all().limit(0).next().is_none());
}

/// What a scan reads values into counts as read ahead, until the scan goes.
#[test]
fn buffers_of_scans_are_counted() {
    let disk = MemVfs::new();
    // One table of one block, so that nothing of the tree is read ahead.
    let tuning = tuning(separation()).memtable_bytes(1 << 20).table_bytes(1 << 20);
    let db = open(&disk, tuning.block_bytes(64 << 10));
    write(&db, &mut Model::new(), 0..600, 0);
    db.flush().unwrap();
    let held = || db.metrics().memory.read_ahead;
    let mut range = db.default_keyspace().iter();
    // Values up to the second are read by themselves.
    assert!(range.next().unwrap().is_ok());
    let before = held();
    assert!(range.by_ref().take(100).all(|entry| entry.is_ok()));
    assert!(held() > before + 1_000, "{} after {before}", held());
    drop(range);
    assert_eq!(held(), 0);
}

/// A value that cannot be read is an error in its turn: those before it come as ever, and it stays.
#[test]
fn a_value_that_cannot_be_read_ahead_is_an_error_in_its_turn() {
    let disk = MemVfs::new();
    let mut model = Model::new();
    let db = open(&disk, tuning(separation()));
    write(&db, &mut model, (0..300).filter(|number| number % 5 != 0), 0);
    db.close(None).unwrap();
    for path in blob_files(&disk) {
        let copy = disk.crash(CrashImage::Keep, 0);
        let bytes = copy.read_all(&path).unwrap().len() as u64;
        copy.flip_bits(&path, bytes / 2, 1).unwrap();
        let db = open(&copy, tuning(separation()));
        let wrong: Vec<_> = model.keys().filter(|key| db.get(key).is_err()).collect();
        assert_eq!(wrong.len(), 1);
        let keyspace = db.default_keyspace();
        let mut range = keyspace.iter();
        for (key, value) in model.range(..wrong[0].clone()) {
            let (found, there) = range.next().unwrap().unwrap();
            assert_eq!((&*found, &*there), (&key[..], &value[..]));
        }
        for _ in 0..3 {
            let failed = range.next();
            assert!(
                matches!(&failed, Some(Err(Error::Corrupt { path: at, .. })) if *at == path),
                "{failed:?}"
            );
        }
        let mut after = 0;
        let failed = keyspace.iter().rev().find_map(|entry| {
            after += 1;
            entry.err()
        });
        assert!(
            matches!(&failed, Some(Error::Corrupt { path: at, .. }) if *at == path),
            "{failed:?}"
        );
        assert_eq!(after, 1 + model.range(wrong[0].clone()..).skip(1).count());
    }
}

#[test]
fn options_are_checked() {
    let disk = MemVfs::new();
    for wrong in [
        ValueSeparation { threshold_bytes: 0, ..separation() },
        ValueSeparation { blob_file_bytes: 10, ..separation() },
        ValueSeparation { garbage_ratio: 0.0, ..separation() },
        ValueSeparation { garbage_ratio: 1.5, ..separation() },
        ValueSeparation { space_amplification_max: 1.0, ..separation() },
        ValueSeparation { space_amplification_max: f64::NAN, ..separation() },
    ] {
        let opened = Db::open("db", options(tuning(wrong)).vfs(Arc::new(disk.clone())));
        assert!(matches!(opened, Err(Error::InvalidOption { .. })), "{wrong:?}");
    }
    assert!(!lsmx::vfs::Vfs::exists(&disk, Path::new("db/CURRENT")).unwrap_or(false));
}

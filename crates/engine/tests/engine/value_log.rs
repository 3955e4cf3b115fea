//! Value separation: all read calls, turning it on and off, garbage collection, checkpoints, and damaged blob files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::internals::vfs::{CountingVfs, CrashImage, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::metrics::{BlockKind, ValueLogMetrics};
use lsmx::vfs::MemVfs;
use lsmx::{
    Compression, Db, Error, KeyspaceOptions, Options, Range, ReadOptions, Slice, ValueSeparation,
    observe,
};
use lsmx_testkit::{TestRng, case_seeds};

use crate::harness::database::{
    Entries, assert_clean, assert_entries, compact, files, inline, memory_only, metrics, open,
    policy, settle,
};

fn separation() -> ValueSeparation {
    ValueSeparation { threshold_bytes: 100, ..ValueSeparation::default() }
}

fn tuning(separation: impl Into<Option<ValueSeparation>>) -> KeyspaceOptions {
    KeyspaceOptions::default()
        .memtable_bytes(16 << 10)
        .table_bytes(2 << 10)
        .block_bytes(256)
        .policy(policy("leveled(T=3,K=1)"))
        .merge_operator(Append::default())
        .value_separation(separation)
}

/// Returns options that put all entries into one block of one table. A scan then needs read-ahead for separated values
/// only.
fn one_block() -> KeyspaceOptions {
    tuning(separation()).memtable_bytes(1 << 20).table_bytes(1 << 20).block_bytes(64 << 10)
}

fn options(keyspace: KeyspaceOptions) -> Options {
    inline().block_cache_bytes(64 << 10).keyspace_defaults(keyspace)
}

fn key(number: u32) -> String {
    format!("key-{:05}", number.wrapping_mul(7_919) % 100_000)
}

/// Returns a value for a number and a round. If the number is a multiple of 5, the value is too small for value
/// separation.
fn value(number: u32, round: u32) -> Vec<u8> {
    let bytes = if number.is_multiple_of(5) { 20 } else { 150 + number % 300 };
    format!("{number}-{round}-").into_bytes().into_iter().cycle().take(bytes as usize).collect()
}

fn log(db: &Db) -> ValueLogMetrics {
    metrics(db).value_log
}

/// Asserts that the value log takes at most 1.3 times the bytes of the referenced values, plus 80 bytes per blob file
/// for header and trailer.
fn assert_amplification(log: &ValueLogMetrics) {
    let bound = 1.3 * log.blob_referenced_bytes as f64 + 80.0 * log.blob_files as f64;
    assert!(log.blob_bytes as f64 <= bound, "{log:?}");
}

fn put(db: &Db, model: &mut Entries, numbers: impl Iterator<Item = u32>, round: u32) {
    for number in numbers {
        let (key, value) = (key(number), value(number, round));
        db.put(&key, &value).unwrap();
        model.insert(key.into_bytes(), value);
    }
}

fn merge(db: &Db, model: &mut Entries, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        db.default_keyspace().merge(key(number), "+more").unwrap();
        model.entry(key(number).into_bytes()).or_default().extend_from_slice(b"+more");
    }
}

fn delete(db: &Db, model: &mut Entries, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        db.delete(key(number)).unwrap();
        model.remove(key(number).as_bytes());
    }
}

fn check(db: &Db, model: &Entries) {
    assert_entries(&db.default_keyspace(), model);
}

fn blob_files(disk: &MemVfs) -> Vec<PathBuf> {
    files(disk, ".blob")
}

/// Returns a copy of the disk in which one bit in the middle of the file is flipped.
fn damage(disk: &MemVfs, path: &Path) -> MemVfs {
    let copy = disk.crash(CrashImage::Keep, 0);
    let bytes = copy.read_all(path).unwrap().len() as u64;
    copy.flip_bits(path, bytes / 2, 1).unwrap();
    copy
}

#[test]
fn separated_values_are_read_by_every_call() {
    for compression in [Compression::None, Compression::Lz4] {
        let disk = MemVfs::new();
        let tuning = tuning(separation()).compression(compression);
        let db = open(&disk, options(tuning.clone()));
        let mut model = Entries::new();
        put(&db, &mut model, 0..600, 0);
        check(&db, &model);
        settle(&db);
        check(&db, &model);
        let snapshot = db.snapshot();
        let before = model.clone();
        put(&db, &mut model, (0..600).step_by(3), 1);
        delete(&db, &mut model, (0..600).step_by(7));
        merge(&db, &mut model, (1..600).step_by(11));
        check(&db, &model);
        compact(&db).unwrap();
        check(&db, &model);
        let seen: Vec<_> = snapshot.iter(&db.default_keyspace()).map(|e| e.unwrap().1).collect();
        assert!(seen.iter().eq(before.values()), "the snapshot has changed");
        drop(snapshot);
        let metrics = log(&db);
        assert!(metrics.blob_files > 0 && metrics.blob_referenced_bytes > 0, "{metrics:?}");
        db.close(None).unwrap();
        let report = assert_clean(&disk);
        assert!(report.blob_values > 300, "{report:?}");
        check(&open(&disk, options(tuning)), &model);
    }
}

#[test]
fn value_separation_enabled_or_disabled_applies_after_compaction() {
    let disk = MemVfs::new();
    let mut model = Entries::new();
    for (round, separated) in [false, true, false, true].into_iter().enumerate() {
        let db = open(&disk, options(tuning(separated.then(separation))));
        check(&db, &model);
        let numbers = (0..400).filter(|number| *number as usize % 4 == round);
        put(&db, &mut model, numbers, round as u32);
        db.flush().unwrap();
        check(&db, &model);
        let seen = observe("db", &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
        assert_eq!(seen.keyspaces["default"].value_separation, round > 0);
        compact(&db).unwrap();
        // The additional put creates a second run. With a single run, the next manual compaction would rewrite nothing.
        db.put("zzz", "last").unwrap();
        model.insert(b"zzz".to_vec(), b"last".to_vec());
        compact(&db).unwrap();
        check(&db, &model);
        assert_eq!(log(&db).blob_files > 0, separated, "round {round}: {:?}", log(&db));
        db.close(None).unwrap();
        assert_eq!(blob_files(&disk).is_empty(), !separated);
        assert_clean(&disk);
    }
}

#[test]
fn garbage_collection_keeps_the_bound_of_space_amplification() {
    let disk = MemVfs::new();
    let separation =
        ValueSeparation { garbage_ratio: 1.0, space_amplification_max: 1.3, ..separation() };
    let db = open(&disk, options(tuning(separation)));
    let mut model = Entries::new();
    put(&db, &mut model, 0..500, 0);
    for round in 1..40 {
        // Each round overwrites about an eighth of the values, so every blob file accumulates garbage.
        let some =
            (0..500u32).filter(|number| number.wrapping_mul(2_654_435_761) >> 29 == round % 8);
        put(&db, &mut model, some, round);
    }
    settle(&db);
    let metrics = log(&db);
    assert!(metrics.rewrites > 0 && metrics.rewritten_bytes > 0, "{metrics:?}");
    assert_amplification(&metrics);
    assert_eq!(blob_files(&disk).len() as u64, metrics.blob_files);
    check(&db, &model);
}

/// Bug: if the separation threshold was raised, a garbage collection moved values to tables of unlimited size.
#[test]
fn garbage_collection_after_a_raised_threshold_writes_tables_of_limited_size() {
    let disk = MemVfs::new();
    let table_bytes = 16 << 10;
    let tuning = |threshold_bytes| {
        let garbage_ratio = 0.1;
        tuning(ValueSeparation { threshold_bytes, garbage_ratio, ..separation() })
            .memtable_bytes(1 << 20)
            .table_bytes(table_bytes)
    };
    let mut model = Entries::new();
    let db = open(&disk, options(tuning(100)));
    put(&db, &mut model, 0..2_000, 0);
    settle(&db);
    db.close(None).unwrap();
    let rewrites = |db: &Db| log(db).rewrites;
    let db = open(&disk, options(tuning(1 << 20)));
    assert_eq!(rewrites(&db), 0);
    delete(&db, &mut model, 0..500);
    settle(&db);
    compact(&db).unwrap();
    db.wait_idle().unwrap();
    assert!(rewrites(&db) > 0, "{:?}", log(&db));
    check(&db, &model);
    db.close(None).unwrap();
    let sizes = files(&disk, ".sst").into_iter().map(|path| disk.read_all(&path).unwrap().len());
    let largest = sizes.max().unwrap();
    assert!(largest as u64 <= 3 * table_bytes, "{largest}");
    assert_clean(&disk);
}

/// Different flushes write the values of neighbouring keys to different blob files. Compactions move these values into
/// the same file. The moves write less than three times the size of the values.
#[test]
fn compaction_groups_values_of_neighbouring_keys() {
    let load = |scan_read_bytes| {
        let disk = MemVfs::new();
        let keyspace = tuning(ValueSeparation { scan_read_bytes, ..separation() });
        let keyspace = keyspace.table_bytes(64 << 10).block_bytes(4 << 10);
        let db = open(&CountingVfs::new(Arc::new(disk.clone())), options(keyspace));
        let mut model = Entries::new();
        for number in 0..4_000 {
            put(&db, &mut model, number..=number, 0);
            // The test deletes no value, so all garbage in blob files stems from copying.
            assert_amplification(&log(&db));
        }
        settle(&db);
        let before = CountingVfs::reads_of_this_thread();
        for from in model.keys().step_by(40) {
            let scan = db.default_keyspace().range::<&Vec<u8>>(from..).take(32);
            assert!(scan.filter(|entry| entry.is_ok()).count() > 0);
        }
        let reads = CountingVfs::reads_of_this_thread() - before;
        check(&db, &model);
        let metrics = log(&db);
        db.close(None).unwrap();
        assert_clean(&disk);
        (reads, metrics)
    };
    let (scattered, before) = load(0);
    assert_eq!(before.relocated_bytes, 0);
    let (gathered, metrics) = load(2 << 10);
    assert!(gathered * 3 < scattered * 2, "reads: {gathered} if grouped, {scattered} if not");
    assert!(metrics.blob_files * 2 < before.blob_files, "{metrics:?} {before:?}");
    assert!(metrics.relocated_bytes > metrics.blob_referenced_bytes / 2, "{metrics:?}");
    assert!(metrics.relocated_bytes < metrics.blob_referenced_bytes * 3, "{metrics:?}");
}

/// If a compaction cannot read a separated value, it leaves the value in its blob file and continues.
#[test]
fn compactions_with_an_unreadable_value_continue() {
    let disk = MemVfs::new();
    let separation =
        ValueSeparation { garbage_ratio: 1.0, space_amplification_max: 100.0, ..separation() };
    let with = |scan_read_bytes| options(tuning(ValueSeparation { scan_read_bytes, ..separation }));
    let mut model = Entries::new();
    let db = open(&disk, with(0));
    put(&db, &mut model, 0..1_500, 0);
    db.close(None).unwrap();
    let path = blob_files(&disk).into_iter().max().unwrap();
    let db = open(&damage(&disk, &path), with(2 << 10));
    let unreadable: Vec<_> = model.keys().filter(|key| db.get(key).is_err()).cloned().collect();
    assert_eq!(unreadable.len(), 1, "{path:?}");
    put(&db, &mut model, 1_500..4_000, 1);
    compact(&db).unwrap();
    db.wait_idle().unwrap();
    assert!(log(&db).relocated_bytes > 500_000, "{:?}", log(&db));
    assert_eq!(metrics(&db).compaction.failures, 0);
    for (key, value) in &model {
        match db.get(key) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
            Err(Error::Corrupt { path: named, .. }) => {
                assert_eq!((&named, key), (&path, &unreadable[0]));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(db.get(&unreadable[0]).is_err());
}

#[test]
fn iterator_keeps_the_blob_files_that_it_reads() {
    let disk = MemVfs::new();
    let separation = ValueSeparation { space_amplification_max: 1.01, ..separation() };
    let db = open(&disk, options(tuning(separation)));
    let mut model = Entries::new();
    put(&db, &mut model, 0..300, 0);
    db.flush().unwrap();
    let old = model.clone();
    let iterator = db.default_keyspace().iter();
    let (held, before) = (db.metrics().held.files, blob_files(&disk));
    put(&db, &mut model, 0..300, 1);
    compact(&db).unwrap();
    db.wait_idle().unwrap();
    assert!(db.metrics().held.files > held);
    assert!(before.iter().all(|path| blob_files(&disk).contains(path)));
    let values: Vec<_> = iterator.map(|entry| entry.unwrap().1).collect();
    assert!(values.iter().eq(old.values()));
    db.put("more", "work").unwrap();
    model.insert(b"more".to_vec(), b"work".to_vec());
    db.flush().unwrap();
    assert!(!before.iter().any(|path| blob_files(&disk).contains(path)));
    check(&db, &model);
}

#[test]
fn memory_read_of_an_uncached_value_would_block() {
    let db = open(&MemVfs::new(), options(tuning(separation())));
    let keyspace = db.default_keyspace();
    db.put("key", [7; 500]).unwrap();
    db.put("other", [8; 500]).unwrap();
    db.flush().unwrap();
    assert!(matches!(keyspace.get_with("key", &memory_only()), Err(Error::WouldBlock)));
    let mut range = keyspace.iter().options(&memory_only());
    assert!(matches!(range.next(), Some(Err(Error::WouldBlock))));
    range = range.options(&ReadOptions::default());
    assert_eq!(range.next().unwrap().unwrap().1, [7; 500]);
    // The scan cached the data block and the index and filter blocks, but no separated value.
    let blob_cache = || db.metrics().cache[&BlockKind::Blob];
    assert!(matches!(keyspace.get_with("key", &memory_only()), Err(Error::WouldBlock)));
    let before = blob_cache();
    assert_eq!(keyspace.get("key").unwrap().unwrap(), [7; 500]);
    assert_eq!(blob_cache().misses, before.misses + 1);
    assert_eq!(keyspace.get_with("key", &memory_only()).unwrap().unwrap(), [7; 500]);
    assert_eq!(blob_cache().hits, before.hits + 1);
    let mut range = keyspace.iter().options(&memory_only());
    assert_eq!(range.next().unwrap().unwrap().1, [7; 500]);
    assert!(matches!(range.next(), Some(Err(Error::WouldBlock))));
    range = range.options(&ReadOptions::default());
    assert_eq!(range.next().unwrap().unwrap().1, [8; 500]);
    assert!(range.next().is_none());
    let explanation = keyspace.explain("other").unwrap();
    let last_block = explanation.runs.iter().flat_map(|run| &run.blocks).last();
    assert_eq!(last_block.unwrap().kind, BlockKind::Blob);
    assert_eq!(explanation.value_bytes, Some(500));
}

#[test]
fn checkpoint_and_crash_keep_blob_files_and_a_dropped_keyspace_frees_them() {
    let disk = MemVfs::new();
    let with_separation = || options(tuning(separation()));
    let db = open(&disk, with_separation());
    let mut model = Entries::new();
    put(&db, &mut model, 0..300, 0);
    let other = db.keyspace("other", tuning(separation())).unwrap();
    for number in 0..300 {
        other.put(key(number), value(number, 9)).unwrap();
    }
    db.flush().unwrap();
    let files = blob_files(&disk).len();
    db.checkpoint("copy").unwrap();
    let copied = model.clone();
    db.drop_keyspace("other").unwrap();
    db.put("a", "b").unwrap();
    model.insert(b"a".to_vec(), b"b".to_vec());
    db.flush().unwrap();
    assert!(blob_files(&disk).iter().filter(|path| path.starts_with("db")).count() < files);
    db.sync().unwrap();
    check(&open(&disk.crash(CrashImage::Drop, 3), with_separation()), &model);
    lsmx::verify("copy", &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
    let copy = Db::open("copy", with_separation().vfs(Arc::new(disk.clone()))).unwrap();
    check(&copy, &copied);
    let other = copy.keyspace("other", tuning(separation())).unwrap();
    assert_eq!(other.get(key(1)).unwrap().unwrap(), value(1, 9));
}

/// Steps through random ranges from both ends, with and without a limit, and compares the entries with a model.
/// Read-ahead loads the separated values.
#[test]
fn range_stepped_from_both_ends_with_read_ahead_equals_the_model() {
    let db = open(&MemVfs::new(), options(tuning(separation())));
    let mut model = Entries::new();
    for round in 0..6 {
        put(&db, &mut model, (round..900).step_by(1 + round as usize), round);
        merge(&db, &mut model, (round..900).step_by(13));
        delete(&db, &mut model, (round..900).step_by(29));
        db.flush().unwrap();
    }
    let keys: Vec<_> = model.keys().cloned().collect();
    for seed in case_seeds(&[], 256) {
        let mut rng = TestRng::new(seed);
        let (one, two) = (rng.choose(&keys).clone(), rng.choose(&keys).clone());
        let (from, to) = (one.clone().min(two.clone()), one.max(two));
        let mut expected = model.range(from.clone()..to.clone());
        let mut range = db.default_keyspace().range(from..to);
        let mut left = usize::MAX;
        if rng.is_one_in(2) {
            left = rng.below(600);
            range = range.limit(left as u64);
            assert_eq!(range.size_hint(), (0, Some(left)), "seed {seed}");
        }
        for _ in 0..rng.below(60) {
            let backward = rng.is_one_in(2);
            for _ in 0..1 + rng.below(90) {
                let found = if backward { range.next_back() } else { range.next() };
                let expected = match backward {
                    _ if left == 0 => None,
                    true => expected.next_back(),
                    false => expected.next(),
                };
                left = left.saturating_sub(1);
                let found = found.transpose().unwrap();
                let found = found.as_ref().map(|(key, value)| (&**key, &**value));
                let expected = expected.map(|(key, value)| (&key[..], &value[..]));
                assert_eq!(found, expected, "seed {seed}");
            }
        }
    }
}

#[test]
fn range_with_a_limit_reads_fewer_values() {
    let counting = CountingVfs::new(Arc::new(MemVfs::new()));
    let db = open(&counting, options(one_block()));
    let mut model = Entries::new();
    put(&db, &mut model, (0..600).filter(|number| number % 5 != 0), 0);
    db.flush().unwrap();
    let cost = |range: Range, entries: usize| {
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
    // The first scan loads the data block, so the later scans read only separated values.
    cost(all().limit(1), 1);
    let (reads, bytes) = cost(all().limit(100), 100);
    let (reads_unlimited, bytes_unlimited) = cost(all(), 100);
    assert!(reads < reads_unlimited, "{reads}, {reads_unlimited} without a limit");
    assert!(bytes < bytes_unlimited, "{bytes}, {bytes_unlimited} without a limit");
    // If several limits are set, the smallest one applies. Entries from both ends count towards the limit.
    let mut range = all().limit(7).limit(3).limit(5);
    assert!(range.next().is_some() && range.next_back().is_some() && range.next().is_some());
    assert!(range.next().is_none() && range.next_back().is_none());
    assert!(all().limit(0).next().is_none());
}

/// The limit of a batch applies to the values in memory: to values after decompression, and to values that are not in the
/// value log.
#[test]
fn read_ahead_of_values_is_limited_by_their_bytes_in_memory() {
    const VALUE_BYTES: usize = 300 << 10;
    for compresses in [true, false] {
        let counting = CountingVfs::new(Arc::new(MemVfs::new()));
        let threshold_bytes = if compresses { 100 } else { VALUE_BYTES as u64 + 1 };
        let compression = if compresses { Compression::Lz4 } else { Compression::None };
        let keyspace = KeyspaceOptions::default()
            .compression(compression)
            .value_separation(ValueSeparation { threshold_bytes, ..ValueSeparation::default() });
        let db = open(&counting, options(keyspace));
        // The first value is in the value log, so that the scan reads values ahead.
        for number in 0..100_u8 {
            db.put([number], vec![0; VALUE_BYTES + usize::from(number == 0)]).unwrap();
        }
        db.flush().unwrap();
        let read_bytes = || counting.counts().bytes.count_of(VfsCall::Read);
        let mut range = db.default_keyspace().iter().limit(100);
        let before = read_bytes();
        assert_eq!(range.next().unwrap().unwrap().1.len(), VALUE_BYTES + 1);
        let first = read_bytes() - before;
        assert!(range.all(|entry| entry.unwrap().1.len() == VALUE_BYTES));
        let all = read_bytes() - before;
        assert!(first < all / 4, "{compresses}: {first} of {all} bytes");
    }
}

#[test]
fn buffers_of_scans_count_as_read_ahead_memory() {
    let db = open(&MemVfs::new(), options(one_block()));
    put(&db, &mut Entries::new(), 0..600, 0);
    db.flush().unwrap();
    let read_ahead = || db.metrics().memory.read_ahead;
    let mut range = db.default_keyspace().iter();
    // A scan starts without read-ahead.
    assert!(range.next().unwrap().is_ok());
    let before = read_ahead();
    assert!(range.by_ref().take(100).all(|entry| entry.is_ok()));
    assert!(read_ahead() > before + 1_000, "{} after {before}", read_ahead());
    drop(range);
    assert_eq!(read_ahead(), 0);
}

/// A scan returns the entries before the unreadable value and then repeats the error. `get` and `multi_get` return the
/// same error.
#[test]
fn unreadable_value_ends_a_scan_with_an_error_that_names_the_file() {
    let disk = MemVfs::new();
    let mut model = Entries::new();
    let db = open(&disk, options(tuning(separation())));
    put(&db, &mut model, (0..300).filter(|number| number % 5 != 0), 0);
    db.close(None).unwrap();
    for path in blob_files(&disk) {
        let db = open(&damage(&disk, &path), options(tuning(separation())));
        let is_named =
            |error: &Error| matches!(error, Error::Corrupt { path: named, .. } if *named == path);
        let failed: Vec<_> =
            model.keys().filter_map(|key| Some((key, db.get(key).err()?))).collect();
        let [(unreadable, error)] = &failed[..] else { panic!("{failed:?}") };
        assert!(is_named(error), "{error:?}");
        let keyspace = db.default_keyspace();
        assert!(keyspace.multi_get(model.keys()).is_err_and(|error| is_named(&error)));
        let mut range = keyspace.iter();
        for (key, value) in model.range::<Vec<u8>, _>(..*unreadable) {
            let (found, found_value): (Slice, Slice) = range.next().unwrap().unwrap();
            assert_eq!((&*found, &*found_value), (&key[..], &value[..]));
        }
        for _ in 0..3 {
            let failed = range.next().unwrap().unwrap_err();
            assert!(is_named(&failed), "{failed:?}");
        }
        let mut backward = keyspace.iter().rev();
        let after = backward.by_ref().take_while(|entry| entry.is_ok()).count();
        assert_eq!(after, model.range::<Vec<u8>, _>(*unreadable..).skip(1).count());
        let failed = backward.next().unwrap().unwrap_err();
        assert!(is_named(&failed), "{failed:?}");
    }
}

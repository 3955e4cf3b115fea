//! Guarantees 7, 15 and 16 for files that compactions and garbage collections cannot read.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, VfsCall};
use lsmx::{Error, Event, KeyspaceOptions, ValueSeparation};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use crate::harness::clock::MINUTE_US;
use crate::harness::database::policy;
use crate::harness::oracle::verify;
use crate::harness::quarantine::{FaultyReads, retry};
use crate::harness::small_database::{
    file_of, files, keyspace_options, lock, open_kinds, open_with, options,
};

const BACKGROUNDS: [Background; 2] =
    [Background::Inline, Background::Stepped { seed: 7, workers: 2 }];

#[test]
fn compaction_repeats_the_read_of_a_corrupt_block() {
    for background in BACKGROUNDS {
        for nth in [0, 1, 2, 5, 9, 14] {
            let mut database = FaultyReads::new(background, "leveled(K=1)");
            database.write_many(40);
            let rule = FaultRule::new(Fault::AlteredRead).for_calls(&[VfsCall::Read]);
            // The engine does not repeat reads of footers and table properties. Such reads are among the first 100
            // reads.
            database.faults.add_rule(rule.path_contains(".sst").nth(100 + nth).once());
            database.write_many(600);
            database.db.wait_idle().unwrap();
            database.check_good();
            let failures = database.events.count(|event| matches!(event, Event::Failure(_)));
            let repeated = database.events.count(|event| matches!(event, Event::ReadRepeated(_)));
            assert_eq!((failures, repeated), (0, 1), "{background:?}, read {nth}");
            assert_eq!(database.db.metrics().background_io.reads_repeated, 1);
            database.check_all_written();
        }
    }
}

/// Regression: after one corrupt block, all inputs of the compaction stayed reserved. L0 grew until writes stopped.
#[test]
fn unreadable_file_is_quarantined_until_it_can_be_read() {
    for background in BACKGROUNDS {
        for policy in ["leveled", "tiering(T=3)", "universal", "lo+1", "full", "lazy-leveling"] {
            let when = format!("{background:?}, {policy}");
            let mut database = FaultyReads::new(background, policy);
            database.write_many(300);
            database.db.wait_idle().unwrap();
            let bad = files(&database.disk, ".sst").pop().unwrap();
            database.alter_reads(&bad);
            database.write_many(3_000);
            let _ = database.db.wait_idle();
            let (begun, ended) = database.quarantine_events();
            assert_eq!(begun, std::slice::from_ref(&bad), "{when}");
            assert_eq!((ended, database.quarantined()), (Vec::new(), begun.clone()), "{when}");
            assert!(database.l0_runs() <= 20, "{when}: {} runs", database.l0_runs());
            let metrics = database.db.metrics().keyspaces["default"].compaction.clone();
            assert_eq!((metrics.quarantined_files, metrics.quarantines), (1, 1), "{when}");
            let error = database.db.wait_idle().expect_err("no quarantined file is reported");
            assert_eq!(error.path(), Some(&*bad), "{when}: {error}");
            // The engine reads the quarantined file again after increasing pauses.
            database.advance(10 * MINUTE_US);
            let reads = database.db.health().quarantined[0].failed_reads;
            assert!((2..30).contains(&reads), "{when}: {reads} reads in ten minutes");
            database.faults.clear_rules();
            database.advance(2 * MINUTE_US);
            database.db.wait_idle().unwrap();
            database.check_good();
            assert_eq!(database.quarantine_events(), (begun.clone(), begun), "{when}");
            database.write_many(100);
            database.check_all_written();
        }
    }
}

#[test]
fn resume_ends_quarantine_of_a_file_that_verifies() {
    let mut database = FaultyReads::new(Background::Inline, "leveled");
    database.write_many(300);
    let bad = files(&database.disk, ".sst").pop().unwrap();
    database.alter_reads(&bad);
    database.write_many(1_000);
    assert_eq!(database.quarantined(), std::slice::from_ref(&bad));
    database.db.resume().unwrap();
    assert_eq!(database.quarantined(), [bad], "the file is still unreadable");
    database.faults.clear_rules();
    database.db.resume().unwrap();
    database.check_good();
    database.db.wait_idle().unwrap();
    database.check_all_written();
}

/// Bug: if the file system opened files for direct reads and then failed these reads, each read of a quarantined file
/// failed. The quarantine ended only at the next open.
#[test]
fn quarantine_ends_on_file_system_that_fails_direct_reads() {
    for (kind, end) in [("default", ".sst"), ("values", ".blob")] {
        let database = FaultyReads::with_options(options(Background::Inline));
        database.faults.refuse_direct_reads();
        let keyspace = database.db.keyspace(kind, keyspace_options(kind)).unwrap();
        let put = |number: u32| {
            retry(|| keyspace.put((number % 97).to_be_bytes(), [7; 64])).unwrap();
        };
        (0..500).for_each(put);
        // One table suffices. Of the blob files, compactions read only some.
        let files = files(&database.disk, end);
        let bad_from = if kind == "default" { files.len() - 1 } else { 0 };
        files[bad_from..].iter().for_each(|bad| database.alter_reads(bad));
        (500..1_500).for_each(put);
        let (begun, _) = database.quarantine_events();
        assert!(!begun.is_empty() && begun.iter().all(|path| files.contains(path)), "{begun:?}");
        database.faults.clear_rules();
        database.db.resume().unwrap();
        database.check_good();
    }
}

#[test]
fn damaged_file_is_named_by_verify_and_an_open_starts_without_quarantine() {
    let mut database = FaultyReads::new(Background::Inline, "leveled");
    database.write_many(300);
    let bad = files(&database.disk, ".sst").pop().unwrap();
    database.disk.flip_bits(&bad, 20, 1).unwrap();
    database.write_many(1_000);
    assert_eq!(database.quarantined(), std::slice::from_ref(&bad));
    let compacted = database.db.default_keyspace().compact_range::<&[u8]>(..);
    assert!(matches!(&compacted, Err(Error::CompactionBlocked { file, .. }) if *file == bad));
    database.db.close(None).unwrap();
    assert_eq!(file_of(&verify(&database.disk).unwrap_err()), bad);
    let db = open_with(&database.disk, options(Background::Inline)).unwrap();
    for number in 0..1_000u32 {
        match db.put(number.to_be_bytes(), [8; 60]) {
            Err(Error::Background { .. }) => {}
            done => done.unwrap(),
        }
    }
    // The range delete covers whole files. A compaction drops them without reading them.
    db.default_keyspace().clear().unwrap();
    db.flush().unwrap();
    let _ = db.wait_idle();
    assert!(db.health().quarantined.is_empty(), "{:?}", db.health());
    db.wait_idle().unwrap();
}

#[test]
fn writes_stop_with_file_and_remedy_once_l0_cannot_be_merged() {
    for background in BACKGROUNDS {
        let mut database = FaultyReads::new(background, "leveled(K=1)");
        database.write_many(100);
        // The flush reads each table once after writing the table. This first read succeeds, and all later reads of the
        // table fail.
        let opened = Mutex::new(BTreeSet::new());
        let is_later = move |path: &Path| {
            path.extension().is_some_and(|end| end == "sst")
                && !lock(&opened).insert(path.to_owned())
        };
        let rule = FaultRule::new(Fault::AlteredRead).for_calls(&[VfsCall::Read]);
        database.faults.add_rule(rule.path_where(is_later).from_then_on());
        let stopped = (0..20_000).find_map(|_| database.write().err());
        let stopped = stopped.expect("L0 grows without bound");
        let Error::CompactionBlocked { keyspace, file, cause } = &stopped else {
            panic!("{background:?}: {stopped:?}")
        };
        assert_eq!((&**keyspace, file_of(cause)), ("default", file.clone()));
        let text = stopped.to_string();
        assert!(text.contains(&*file.to_string_lossy()) && text.contains("resume()"), "{text}");
        let health = database.db.health();
        assert!(health.read_only.is_none());
        let [blocked] = &*health.compaction_blocked else { panic!("{health:?}") };
        assert!(blocked.writes_stopped && health.quarantined.len() > 1, "{health:?}");
        let json = serde_json::to_value(&health).unwrap();
        assert_eq!(json["compaction_blocked"][0]["keyspace"], "default");
        assert!(json["quarantined"][0]["cause"].as_str().unwrap().contains("checksum"));
        let runs = database.l0_runs();
        for _ in 0..20 {
            database.write().unwrap_err();
        }
        assert_eq!(database.l0_runs(), runs);
        assert!(matches!(database.db.wait_idle(), Err(Error::CompactionBlocked { .. })));
        assert!(matches!(database.db.resume(), Err(Error::CompactionBlocked { .. })));
        database.faults.clear_rules();
        database.db.resume().unwrap();
        database.db.wait_idle().unwrap();
        database.check_good();
        database.write_many(200);
        database.check_all_written();
    }
}

#[test]
fn unreadable_blob_file_stops_neither_compactions_nor_collections_of_others() {
    let database = FaultyReads::with_options(options(Background::Inline));
    let [_, values, _] = open_kinds(&database.db);
    let value_of = |number: u32| [number.to_le_bytes()[0]; 64];
    let put = |number: u32| {
        retry(|| values.put((number % 97).to_be_bytes(), value_of(number))).unwrap();
    };
    let rewrites = || database.db.metrics().keyspaces["values"].value_log.rewrites;
    (0..500).for_each(put);
    assert!(rewrites() > 0, "no collection has run");
    // Makes all reads of the existing blob files fail. Reads of later files succeed.
    for bad in files(&database.disk, ".blob") {
        database.alter_reads(&bad);
    }
    (500..2_000).for_each(put);
    let (begun, _) = database.quarantine_events();
    assert!(!begun.is_empty() && begun.iter().all(|path| path.extension().unwrap() == "blob"));
    let before = rewrites();
    (2_000..3_000).for_each(put);
    assert!(rewrites() > before, "other blob files are not collected");
    database.faults.clear_rules();
    database.db.env().advance_us(2 * MINUTE_US);
    put(3_000);
    database.db.flush().unwrap();
    database.db.wait_idle().unwrap();
    database.check_good();
    for number in 2_904..3_001u32 {
        assert_eq!(*values.get((number % 97).to_be_bytes()).unwrap().unwrap(), value_of(number));
    }
}

/// Regression: the garbage collection chose only blob files that a quarantined table references. It then found no table
/// to rewrite, and collected no other blob file.
#[test]
fn unreadable_table_stops_no_collection_of_blob_files() {
    let database = FaultyReads::with_options(options(Background::Inline));
    let separation = ValueSeparation {
        threshold_bytes: 16,
        garbage_ratio: 1.0,
        space_amplification_max: 100.0,
        scan_read_bytes: 0,
        ..ValueSeparation::default()
    };
    let separated = KeyspaceOptions::default().policy(policy("leveled"));
    let keyspace = database.db.keyspace("ranges", separated.value_separation(separation)).unwrap();
    let put = |prefix: char, numbers: &mut dyn Iterator<Item = u32>| {
        for number in numbers {
            keyspace.put(format!("{prefix}{number:03}"), [number.to_le_bytes()[0]; 200]).unwrap();
        }
    };
    let compact = |prefix: char| keyspace.compact_range(format!("{prefix}")..format!("{prefix}~"));
    // The blob files of the range `a` have more garbage than those of the range `b`.
    let [table_of_a, _] = [('a', 2), ('b', 3)].map(|(prefix, step)| {
        let before = files(&database.disk, ".sst");
        put(prefix, &mut (0..100));
        compact(prefix).unwrap();
        put(prefix, &mut (0..100).step_by(step));
        compact(prefix).unwrap();
        let new: Vec<_> = files(&database.disk, ".sst")
            .into_iter()
            .filter(|file| !before.contains(file))
            .collect();
        assert_eq!(new.len(), 1, "{new:?}");
        new[0].clone()
    });
    put('a', &mut (0..1));
    database.alter_reads(&table_of_a);
    compact('a').unwrap_err();
    assert_eq!(database.quarantine_events().0, [table_of_a]);
    let rewrites = || database.db.metrics().keyspaces["ranges"].value_log.rewrites;
    assert_eq!(rewrites(), 0);
    let collected = ValueSeparation { garbage_ratio: 0.25, ..separation };
    keyspace.set_options(|options| options.value_separation(collected)).unwrap();
    put('c', &mut (0..10));
    database.db.flush().unwrap();
    assert!(rewrites() > 0, "no blob file is collected");
    database.faults.clear_rules();
    database.advance(2 * MINUTE_US);
    database.check_good();
    let left: Result<Vec<_>, Error> = keyspace.iter().collect();
    assert_eq!(left.unwrap().len(), 210);
}

/// Regression: after one bucket file was corrupt or could not be read, the operand store ran no more collections. With
/// refused direct reads, one failed read of a bucket file quarantined the file.
#[test]
fn unreadable_bucket_is_left_out_of_collections_until_it_can_be_read() {
    let (altered, failed) = (Fault::AlteredRead, Fault::Error(Errno::Io));
    for (fault, refuses_direct_reads) in [(altered, false), (failed, false), (failed, true)] {
        let database = FaultyReads::with_options(options(Background::Inline));
        if refuses_direct_reads {
            database.faults.refuse_direct_reads();
        }
        let [_, _, operands] = open_kinds(&database.db);
        let merge = |number: u32| {
            let operand = [number.to_le_bytes()[0]; 24];
            retry(|| operands.merge((number % 61).to_be_bytes(), operand)).unwrap();
        };
        let rewritten = || {
            let store = database.db.metrics().keyspaces["operands"].operand_store.unwrap();
            store.rewrites + store.splits + store.to_tree
        };
        (0..600).for_each(merge);
        assert!(rewritten() > 0, "no collection has run");
        // If a read fails or returns corrupt data, the engine repeats the read once.
        let rule = FaultRule::new(fault).for_calls(&[VfsCall::Read]);
        database.faults.add_rule(rule.path_contains(".bucket").once());
        (600..900).for_each(merge);
        assert_eq!(
            database.events.count(|event| matches!(event, Event::ReadRepeated(_))),
            1,
            "{fault:?}"
        );
        database.check_good();
        for bad in files(&database.disk, ".bucket") {
            database.add_read_fault(&bad, fault);
        }
        (900..1_200).for_each(merge);
        let (begun, _) = database.quarantine_events();
        assert!(!begun.is_empty(), "{fault:?}");
        assert!(begun.iter().all(|path| path.extension().unwrap() == "bucket"));
        assert!(database.db.wait_idle().is_err());
        database.faults.clear_rules();
        database.db.env().advance_us(2 * MINUTE_US);
        let before = rewritten();
        (1_200..1_800).for_each(merge);
        database.db.flush().unwrap();
        database.db.wait_idle().unwrap();
        assert!(rewritten() > before, "the buckets are not collected");
        database.check_good();
        for key in 0..61u32 {
            let operand_count = (0..1_800).filter(|number| number % 61 == key).count();
            assert_eq!(operands.get(key.to_be_bytes()).unwrap().unwrap().len(), 24 * operand_count);
        }
    }
}

/// Bug: compactions and collections of the operand store shared the mark that a write has returned the error. After each successful
/// compaction, a collection that failed again made another write fail. After the store was removed, `wait_idle` still returned the error
/// of its last collection.
#[test]
fn failing_collection_fails_one_write_and_is_forgotten_with_its_store() {
    let database = FaultyReads::with_options(options(Background::Inline));
    let [_, _, operands] = open_kinds(&database.db);
    let write = |number: u32| {
        let (key, value) = ((number % 61).to_be_bytes(), [number.to_le_bytes()[0]; 24]);
        if number.is_multiple_of(2) { operands.merge(key, value) } else { operands.put(key, value) }
    };
    let compaction = || database.db.metrics().keyspaces["operands"].compaction.clone();
    (0..600).for_each(|number| write(number).unwrap());
    // A lack of file descriptors does not quarantine the buckets.
    let rule = FaultRule::new(Fault::Error(Errno::TooManyFiles)).for_calls(&[VfsCall::Read]);
    database.faults.add_rule(rule.path_contains(".bucket").from_then_on());
    let (before, mut failed_writes) = (compaction(), 0);
    for number in 600..1_800 {
        if let Err(error) = write(number) {
            assert!(matches!(error, Error::Background { work: "collection", .. }), "{error}");
            failed_writes += 1;
            write(number).unwrap();
        }
        if number.is_multiple_of(100) {
            database.db.env().advance_us(2 * MINUTE_US);
        }
    }
    let after = compaction();
    assert!(after.failures > before.failures + 3 && after.jobs > before.jobs, "{after:?}");
    assert_eq!(failed_writes, 1);
    assert!(database.db.wait_idle().is_err());
    database.faults.clear_rules();
    operands.operands_to_tree().unwrap();
    database.db.wait_idle().unwrap();
    database.check_good();
}

/// Regression: after one corrupt table or blob file, the operand store ran no more collections.
#[test]
fn unreadable_table_or_blob_file_stops_no_collection_of_operands() {
    for (end, kind) in [(".sst", "operands"), (".blob", "values")] {
        let database = FaultyReads::with_options(options(Background::Inline));
        let buckets = DeltaOptions::default().bucket_bytes(512).log_bytes_max(2 << 10);
        let options = keyspace_options(kind).operand_store(DeltaStoreFactory::new(buckets));
        let operands = database.db.keyspace("operands", options).unwrap();
        let key = |number: u32| (number % 7).to_be_bytes();
        (0..7).for_each(|number| operands.put(key(number), [9; 24]).unwrap());
        let merge = |number: u32| {
            let operand = [number.to_le_bytes()[0]; 24];
            retry(|| operands.merge(key(number), operand)).unwrap();
        };
        let moved = || database.db.metrics().keyspaces["operands"].operand_store.unwrap().to_tree;
        (0..600).for_each(merge);
        assert!(moved() > 0, "{end}: no operands were moved to the tree");
        // The first collections find the files that cannot be read. Later files can be read.
        files(&database.disk, end).iter().for_each(|bad| database.alter_reads(bad));
        (600..900).for_each(merge);
        database.advance(2 * MINUTE_US);
        let before = moved();
        (900..1_500).for_each(merge);
        database.advance(2 * MINUTE_US);
        let (begun, _) = database.quarantine_events();
        assert!(begun.iter().any(|path| path.to_string_lossy().ends_with(end)), "{begun:?}");
        assert!(moved() > before + 5, "{end}: {} moves before, {} after", before, moved());
        database.faults.clear_rules();
        database.advance(2 * MINUTE_US);
        database.db.flush().unwrap();
        database.db.wait_idle().unwrap();
        database.check_good();
        for number in 0..7u32 {
            let value = operands.get(key(number)).unwrap().unwrap();
            let operands = (0..1_500).filter(|operand| operand % 7 == number);
            let bytes = operands.flat_map(|number: u32| [number.to_le_bytes()[0]; 24]);
            assert_eq!(*value, [9; 24].into_iter().chain(bytes).collect::<Vec<u8>>(), "{end}");
        }
    }
}

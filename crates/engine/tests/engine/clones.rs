//! Clones of keyspaces.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs};
use lsmx::merge_operator::{Append, Counter};
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, ValueSeparation, WriteBatch};
use lsmx_testkit::simple_store::SimpleStore;

use crate::harness::database::{assert_clean, assert_entries, files, inline, open, settle, small};

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn contents(keyspace: &Keyspace) -> Entries {
    let entries = keyspace.iter().map(Result::unwrap);
    entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

fn key(number: u32) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

/// Options whose larger values are in blob files.
fn separated() -> KeyspaceOptions {
    let separation = ValueSeparation { threshold_bytes: 50, ..ValueSeparation::default() };
    small().value_separation(separation)
}

/// Fills a keyspace with entries in tables, blob files and a memtable, some of them deleted.
fn fill(keyspace: &Keyspace, keys: u32) {
    for number in 0..keys {
        keyspace.put(key(number), vec![b'v'; 20 + 60 * (number as usize % 2)]).unwrap();
    }
    for number in (0..keys).step_by(7) {
        keyspace.delete(key(number)).unwrap();
    }
    keyspace.delete_range(key(100)..key(110)).unwrap();
}

#[test]
fn clone_equals_its_source_and_evolves_independently() {
    for (source_options, clone_options) in [
        (small(), small()),
        (separated(), small()),
        (small(), separated()),
        (separated(), separated()),
    ] {
        let disk = MemVfs::new();
        let db = open(&disk, inline());
        let source = db.keyspace("source", source_options).unwrap();
        fill(&source, 2_000);
        let expected = contents(&source);
        let clone = db.clone_keyspace("source", "clone", clone_options).unwrap();
        assert_eq!(clone.name(), "clone");
        assert_entries(&clone, &expected);
        let ingest = db.metrics().keyspaces["clone"].ingest;
        assert_eq!((ingest.ingests, ingest.l0_files), (1, 0));
        clone.put(key(1), "clone").unwrap();
        source.put(key(1), "source").unwrap();
        source.delete_range(key(500)..).unwrap();
        let mut changed = expected.clone();
        changed.insert(key(1), b"clone".to_vec());
        assert_entries(&clone, &changed);
        settle(&db);
        source.compact_range::<&[u8]>(..).unwrap();
        clone.compact_range::<&[u8]>(..).unwrap();
        assert_entries(&clone, &changed);
        db.sync().unwrap();
        let killed = disk.crash(CrashImage::Keep, 0);
        drop(source);
        db.drop_keyspace("source").unwrap();
        drop(clone);
        db.close(None).unwrap();
        assert_clean(&disk);
        for disk in [disk, killed] {
            let db = open(&disk, inline());
            let clone = db.open_keyspace("clone", None).unwrap();
            assert_entries(&clone, &changed);
            drop(clone);
            db.drop_keyspace("clone").unwrap();
            db.close(None).unwrap();
            let report = assert_clean(&disk);
            // In the copy from before its drop, the source exists.
            assert!(report.blob_files == 0 || report.keyspaces == 2, "{report:?}");
        }
    }
}

/// The number of the clone is not in the log. A crash before the next commit must not lose the clone.
#[test]
fn clone_survives_a_power_loss_at_once() {
    for image in CrashImage::ALL {
        let disk = MemVfs::new();
        let db = open(&disk, inline());
        let source = db.keyspace("source", small()).unwrap();
        source.put("a", "1").unwrap();
        db.clone_keyspace("source", "clone", small()).unwrap();
        let before = db.snapshot().seq();
        let lost = open(&disk.crash(image, 1), inline());
        assert!(lost.snapshot().seq() >= before);
        for name in ["source", "clone"] {
            let keyspace = lost.open_keyspace(name, None).unwrap();
            assert_eq!(keyspace.get("a").unwrap().as_deref(), Some(&b"1"[..]), "{name}");
        }
    }
}

#[test]
fn clone_of_empty_keyspace_is_empty_and_usable() {
    let disk = MemVfs::new();
    let db = open(&disk, inline());
    let clone = db.clone_keyspace("default", "clone", small()).unwrap();
    assert!(clone.first().unwrap().is_none());
    clone.put("a", "1").unwrap();
    let second = db.clone_keyspace("clone", "second", small()).unwrap();
    assert_eq!(second.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    let names = || db.keyspaces();
    assert_eq!(names(), ["clone", "default", "second"]);
}

/// Each commit writes one number to all keys. The clone has one number.
#[test]
fn clone_during_writes_has_the_contents_of_one_moment() {
    lsmx_testkit::time_test();
    for seed in 0..30 {
        let disk = MemVfs::new();
        let db = open(&disk, inline().background(Background::Stepped { seed, workers: 2 }));
        let source = db.keyspace("source", separated()).unwrap();
        let write = |source: &Keyspace, db: &Db, number: u32| {
            let mut batch = WriteBatch::new();
            for at in 0..20 {
                batch.put(source, key(at), [&number.to_be_bytes()[..], &[0; 60]].concat());
            }
            db.write(batch, Durability::Buffered).unwrap();
        };
        write(&source, &db, 0);
        let env = db.env().clone();
        let writer = {
            let (source, db) = (source.clone(), db.clone());
            env.spawn("writer", move || (1..150).for_each(|number| write(&source, &db, number)))
        };
        let writer = writer.unwrap();
        for round in 0..3 {
            let name = format!("clone-{round}");
            let before = db.snapshot();
            let clone = db.clone_keyspace("source", &name, separated()).unwrap();
            // A snapshot that is older than the clone sees it empty.
            assert_eq!(before.iter(&clone).count(), 0);
            let after = db.snapshot();
            let found = contents(&clone);
            assert_eq!(found.len(), 20);
            let first = found.values().next().unwrap().clone();
            assert!(found.values().all(|value| *value == first), "seed {seed}: {found:?}");
            let number = |value: &[u8]| u32::from_be_bytes(value[..4].try_into().unwrap());
            let value_at = |at: &lsmx::Snapshot| number(&at.get(&source, key(0)).unwrap().unwrap());
            assert!((value_at(&before)..=value_at(&after)).contains(&number(&first)));
            assert_eq!(after.iter(&clone).count(), 20);
        }
        env.join(writer).unwrap();
        drop(source);
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

#[test]
fn guard_and_transaction_older_than_the_clone_are_refused() {
    let disk = MemVfs::new();
    let db = open(&disk, inline());
    let source = db.default_keyspace();
    source.put("b", "1").unwrap();
    source.put("d", "1").unwrap();
    let old = db.snapshot().seq();
    let (tx, range_tx) = (db.transaction(), db.transaction());
    let clone = db.clone_keyspace("default", "clone", small()).unwrap();
    let guarded = |key: &str, read| {
        let mut batch = WriteBatch::new();
        batch.guard(&clone, key, read);
        batch.put(&clone, "written", "v");
        db.write(batch, Durability::Buffered)
    };
    for key in ["b", "c"] {
        let refused = guarded(key, old);
        assert!(matches!(refused, Err(Error::ConflictUnknown { .. })), "{key}: {refused:?}");
    }
    guarded("b", db.snapshot().seq()).unwrap();
    assert_eq!(tx.get(&clone, "b").unwrap(), None);
    tx.put(&source, "x", "y").unwrap();
    assert!(tx.commit(Durability::Buffered).is_err());
    assert_eq!(range_tx.range(&clone, "a".."z").count(), 0);
    range_tx.put(&source, "x", "y").unwrap();
    assert!(range_tx.commit(Durability::Buffered).is_err());
    let tx = db.transaction();
    assert!(tx.get(&clone, "b").unwrap().is_some());
    tx.put(&clone, "b", "2").unwrap();
    tx.commit(Durability::Buffered).unwrap();
}

#[test]
fn clone_combines_merge_operands_and_has_the_operator_of_its_source() {
    for uses_store in [false, true] {
        let disk = MemVfs::new();
        let db = open(&disk, inline());
        let options = small().merge_operator(Append::default());
        let options = match uses_store {
            true => options.operand_store(SimpleStore::default()),
            false => options,
        };
        let source = db.keyspace("source", options).unwrap();
        source.put("a", "1").unwrap();
        for operand in ["2", "3"] {
            source.merge("a", operand).unwrap();
            source.merge("b", operand).unwrap();
            db.flush().unwrap();
        }
        source.merge("b", "4").unwrap();
        let clone = db.clone_keyspace("source", "clone", small()).unwrap();
        let pairs = [(&b"a"[..], &b"123"[..]), (b"b", b"234")];
        let expected: Entries =
            pairs.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert_entries(&clone, &expected);
        let options = clone.options();
        let operator = source.options().merge_operator;
        assert_eq!((options.merge_operator, options.operand_store), (operator, None));
        clone.merge("a", "4").unwrap();
        assert_eq!(clone.get("a").unwrap().as_deref(), Some(&b"1234"[..]));
        let other = db.clone_keyspace("source", "other", small().merge_operator(Counter));
        let message = other.unwrap_err().to_string();
        assert!(message.contains("a clone has the merge operator of its source"), "{message}");
        let ttl = small().default_ttl(Duration::from_secs(1));
        let refused = db.clone_keyspace("source", "other", ttl);
        assert!(matches!(refused, Err(Error::Contradiction { .. })), "{refused:?}");
        let with_store = small().operand_store(SimpleStore::default());
        let refused = db.clone_keyspace("source", "other", with_store).unwrap_err();
        assert!(refused.to_string().contains("operand_store"), "{refused}");
        assert_eq!(db.keyspaces(), ["clone", "default", "source"]);
    }
}

#[test]
fn clone_with_taken_name_or_of_unknown_keyspace_is_refused() {
    let disk = MemVfs::new();
    let db = open(&disk, inline());
    db.keyspace("users", small()).unwrap();
    for (source, name, error) in [
        ("absent", "x", "there is no keyspace \"absent\""),
        ("users", "users", "keyspace \"users\" exists"),
        ("users", "default", "keyspace \"default\" exists"),
        ("users", "", "keyspace name"),
    ] {
        let refused = db.clone_keyspace(source, name, small()).unwrap_err().to_string();
        assert!(refused.contains(error), "{source} to {name}: {refused}");
    }
    let refused = db.clone_keyspace("users", "x", small().memtable_bytes(1));
    assert!(matches!(refused, Err(Error::InvalidOption { .. })), "{refused:?}");
    // A refused clone reserves no id for the next keyspace.
    db.keyspace("next", small()).unwrap().put("a", "1").unwrap();
    db.close(None).unwrap();
    assert!(matches!(db.clone_keyspace("users", "x", small()), Err(Error::Closed)));
    let read_only = open(&disk, inline().read_only(true));
    let refused = read_only.clone_keyspace("users", "x", small());
    assert!(matches!(refused, Err(Error::OpenedReadOnly)), "{refused:?}");
}

#[test]
fn full_disk_during_clone_leaves_nothing() {
    let disk = MemVfs::new();
    let db = open(&disk, inline());
    let source = db.keyspace("source", separated()).unwrap();
    fill(&source, 4_000);
    settle(&db);
    let expected = contents(&source);
    let used: usize = disk.snapshot_all().values().map(Vec::len).sum();
    for spare in [1_000, 20_000, 100_000] {
        let before = (files(&disk, ".sst"), files(&disk, ".blob"));
        disk.set_capacity(Some(used as u64 + spare));
        let refused = db.clone_keyspace("source", "clone", separated());
        assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
        disk.set_capacity(None);
        db.wait_idle().unwrap();
        assert_eq!((files(&disk, ".sst"), files(&disk, ".blob")), before);
        assert!(!db.keyspace_exists("clone"));
    }
    let clone = db.clone_keyspace("source", "clone", separated()).unwrap();
    assert_entries(&clone, &expected);
    drop((source, clone));
    db.close(None).unwrap();
    assert_clean(&disk);
}

/// Fails the call with this number, and checks that the clone exists as a whole or not at all, also after a power loss.
#[test]
fn failed_call_during_clone_leaves_all_or_nothing() {
    for nth in 0.. {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk.clone()), nth);
        let db = Db::open("db", inline().vfs(Arc::new(faults.clone()))).unwrap();
        let source = db.keyspace("source", separated()).unwrap();
        fill(&source, 200);
        let expected = contents(&source);
        faults.add_rule(FaultRule::new(Fault::Error(Errno::Io)).nth(nth).once());
        let cloned = db.clone_keyspace("source", "clone", separated()).map(drop);
        let fired = faults.fired_counts().values().sum::<u64>() > 0;
        faults.clear_rules();
        let check = |db: &Db| match db.open_keyspace("clone", None) {
            Ok(clone) => assert_entries(&clone, &expected),
            Err(_) => assert!(cloned.is_err(), "call {nth}: a clone is missing"),
        };
        let lost = disk.crash(CrashImage::Keep, nth);
        let after_loss = open(&lost, inline());
        check(&after_loss);
        after_loss.close(None).unwrap();
        assert_clean(&lost);
        // Also after a success: if the mark of the edit could not be synced, the database is read-only.
        let _ = db.resume();
        assert!(cloned.is_ok() || !db.keyspace_exists("clone"));
        check(&db);
        // The first write returns an error if a file could not be removed.
        source.put("later", "v").or_else(|_| source.put("later", "v")).unwrap();
        drop(source);
        db.close(None).unwrap();
        assert_clean(&disk);
        if !fired {
            break;
        }
    }
}

/// Keyspaces that are created during a clone get other ids.
#[test]
fn keyspaces_created_and_dropped_during_a_clone_keep_their_entries() {
    lsmx_testkit::time_test();
    for seed in 0..20 {
        let disk = MemVfs::new();
        let db = open(&disk, inline().background(Background::Stepped { seed, workers: 2 }));
        let source = db.keyspace("source", small()).unwrap();
        fill(&source, 500);
        let expected = contents(&source);
        let env = db.env().clone();
        let creator = {
            let db = db.clone();
            env.spawn("creator", move || {
                for number in 0..8 {
                    let name = format!("other-{number}");
                    db.keyspace(&name, small()).unwrap().put("name", &name).unwrap();
                    if number % 3 == 0 {
                        db.drop_keyspace(&name).unwrap();
                    }
                }
                db.drop_keyspace("source").unwrap();
            })
        };
        let creator = creator.unwrap();
        let cloned = db.clone_keyspace("source", "clone", small());
        env.join(creator).unwrap();
        let is_cloned = match cloned {
            Ok(clone) => {
                assert_entries(&clone, &expected);
                true
            }
            Err(Error::UnknownKeyspace { .. } | Error::KeyspaceDropped { .. }) => false,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        db.sync().unwrap();
        let killed = open(&disk.crash(CrashImage::Keep, 0), inline());
        drop(source);
        db.close(None).unwrap();
        assert_clean(&disk);
        for db in [killed, open(&disk, inline())] {
            for number in [1, 2, 4, 5, 7] {
                let name = format!("other-{number}");
                let found = db.open_keyspace(&name, None).unwrap().get("name").unwrap();
                assert_eq!(found.as_deref(), Some(name.as_bytes()));
            }
            match db.open_keyspace("clone", None) {
                Ok(clone) => assert_entries(&clone, &expected),
                Err(_) => assert!(!is_cloned),
            }
        }
    }
}

//! Checks that reads return correctly while the database closes, and that files do not change after a close.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Error, Keyspace, Options, ReadOptions, Snapshot};

use super::Outcome;
use super::gate::{Gate, each};
use super::small_database::{files, keyspace_options, open_with};

const KEYS: u64 = 60;
/// Number of writes of each key. The number is large enough to make an operand store create buckets.
const WRITES_PER_KEY: u64 = 8;

/// The names of the keyspaces, each with the extension of the files that contain its values.
const KINDS: [(&str, &str); 3] = [("tables", ".sst"), ("values", ".blob"), ("operands", ".bucket")];

/// Reads one or more keys of a keyspace. Returns the number of values found.
type Read = fn(&Keyspace, &Snapshot) -> lsmx::Result<u64>;

const READS: [(&str, Read); 8] = [
    ("get", |keyspace, _| {
        (0..KEYS).map(|key| Ok(u64::from(keyspace.get(key_of(key))?.is_some()))).sum()
    }),
    ("get of a snapshot", |keyspace, snapshot| {
        (0..KEYS).map(|key| Ok(u64::from(snapshot.get(keyspace, key_of(key))?.is_some()))).sum()
    }),
    ("multi_get", |keyspace, _| {
        Ok(keyspace.multi_get((0..KEYS).map(key_of))?.iter().flatten().count() as u64)
    }),
    ("multi_get of a snapshot", |keyspace, snapshot| {
        let found = snapshot.multi_get(keyspace, (0..KEYS).map(key_of))?;
        Ok(found.iter().flatten().count() as u64)
    }),
    ("iterator", |keyspace, _| keyspace.iter().map(|entry| entry.map(|_| 1)).sum()),
    ("iterator of a snapshot", |keyspace, snapshot| {
        snapshot.iter(keyspace).rev().map(|entry| entry.map(|_| 1)).sum()
    }),
    ("prefix", |keyspace, _| keyspace.prefix([0]).map(|entry| entry.map(|_| 1)).sum()),
    ("cursor", |keyspace, _| {
        let mut cursor = keyspace.cursor(&ReadOptions::default())?;
        let mut found = 0;
        cursor.seek_to_first()?;
        while cursor.value()?.is_some() {
            found += 1;
            cursor.next()?;
        }
        Ok(found)
    }),
];

fn key_of(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

fn options() -> Options {
    let options = Options::default().background(Background::Inline).seed(1);
    let options = options.open_files_max(1).block_cache_bytes(0);
    options.keyspace_defaults(keyspace_options("default"))
}

/// Blocks each read when it opens a file. Meanwhile closes the database. Then another owner opens the database and
/// removes all files. The read must return all values or [`Error::Closed`].
///
/// Regression: a read that opened a file after the close returned "cannot open …: entity not found".
pub(crate) fn reads_over_a_close_return_values_or_closed(_: u64) -> Outcome {
    let disk = MemVfs::new();
    let db = open_with(&disk, options()).unwrap();
    for (kind, _) in KINDS {
        let keyspace = db.keyspace(kind, keyspace_options(kind)).unwrap();
        for key in (0..WRITES_PER_KEY).flat_map(|_| 0..KEYS) {
            match kind {
                "operands" => keyspace.merge(key_of(key), [7; 60]).unwrap(),
                _ => keyspace.put(key_of(key), [7; 60]).unwrap(),
            }
        }
    }
    db.flush().unwrap();
    db.close(None).unwrap();
    let (mut values, mut closed) = (0, 0);
    for (kind, end) in KINDS {
        for (call, read) in READS {
            for keeps in [true, false] {
                let disk = disk.crash(CrashImage::Keep, 0);
                match read_over_a_close(&disk, (kind, end), read, keeps) {
                    Ok(KEYS) => values += 1,
                    Err(Error::Closed) => closed += 1,
                    other => panic!("{call} of {kind}, files kept open: {keeps}: {other:?}"),
                }
            }
        }
    }
    assert!(values > 0 && closed > 0, "{values} reads returned values, {closed} were refused");
    Ok(())
}

/// Runs `read` while the database is closed. If `keeps` is false, all opens of files fail during the close, so the
/// close cannot keep files open for the read.
fn read_over_a_close(
    disk: &MemVfs,
    (kind, end): (&str, &str),
    read: Read,
    keeps: bool,
) -> lsmx::Result<u64> {
    let gate = Gate::default();
    let faults = gate.over(Arc::new(disk.clone()), each(&[VfsCall::Open], end), "over-close");
    let db = open_with(&faults, options()).unwrap();
    let keyspace = db.keyspace(kind, keyspace_options(kind)).unwrap();
    let snapshot = db.snapshot();
    gate.shut();
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().name("over-close".to_owned());
        let reader = reader.spawn_scoped(scope, || read(&keyspace, &snapshot)).unwrap();
        while gate.blocked().is_none() {
            assert!(!reader.is_finished(), "the read opens no file {end}");
            std::thread::yield_now();
        }
        // The guard also opens the gate after a panic. Otherwise the scope would wait forever for the blocked reader.
        let _opens = gate.open_on_drop();
        if !keeps {
            let refused = FaultRule::new(Fault::Error(Errno::TooManyFiles));
            faults.add_rule(refused.for_calls(&[VfsCall::Open]).from_then_on());
        }
        db.close(None).unwrap();
        faults.clear_rules();
        let next = open_with(disk, options()).unwrap();
        for (kind, _) in KINDS {
            next.drop_keyspace(kind).unwrap();
        }
        next.wait_idle().unwrap();
        assert!(files(disk, end).is_empty(), "files {end} are left");
        gate.open();
        reader.join().unwrap()
    })
}

/// Drops the last handle of a database after its close. No file may change, because another owner may be using the
/// files.
pub(crate) fn closed_database_changes_no_file(_: u64) -> Outcome {
    let disk = MemVfs::new();
    let db = open_with(&disk, options()).unwrap();
    db.put("key", [1; 100]).unwrap();
    db.close(None).unwrap();
    let closed = disk.snapshot_all();
    drop(db);
    assert!(disk.snapshot_all() == closed, "a file changed after the close");
    Ok(())
}

//! Checks of reads that run while the database is closed and opened by its next owner.

use std::path::PathBuf;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, Keyspace, KeyspaceOptions, Options, Snapshot, ValueSeparation};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use super::Outcome;
use super::gate::{Gate, each};

const KEYS: u64 = 60;
/// How often each key is written, so that an operand store fills buckets.
const WRITES_PER_KEY: u64 = 8;

/// Keyspaces whose values lie in tables, in blob files and in an operand store, and the files that hold them.
const KINDS: [(&str, &str); 3] = [("tables", ".sst"), ("values", ".blob"), ("operands", ".bucket")];

/// Reads one or many keys of a keyspace; returns how many values it found.
type Read = fn(&Keyspace, &Snapshot) -> lsmx::Result<u64>;

/// All calls that read keys.
const READS: [(&str, Read); 7] = [
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
];

fn key_of(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

fn tuning(name: &str) -> KeyspaceOptions {
    let options = KeyspaceOptions::default()
        .memtable_bytes(2 << 10)
        .table_bytes(2 << 10)
        .block_bytes(256)
        .merge_operator(Append::default());
    match name {
        "values" => options
            .value_separation(ValueSeparation { threshold_bytes: 8, ..ValueSeparation::default() }),
        "operands" => {
            options.operand_store(DeltaStoreFactory::new(DeltaOptions::default().bucket_bytes(512)))
        }
        _ => options,
    }
}

fn options() -> Options {
    let options = Options::default().background(Background::Inline).seed(1);
    options.open_files_max(1).block_cache_bytes(0).keyspace_defaults(tuning("default"))
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Each read blocks when it opens a file. Meanwhile the database is closed, another owner opens it and removes all
/// files. The read then returns all values, or [`Error::Closed`].
///
/// Such a read returned "cannot open …: entity not found".
pub(crate) fn reads_over_a_close_return_values_or_closed(_: u64) -> Outcome {
    let disk = MemVfs::new();
    let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).map_err(failed)?;
    for (name, _) in KINDS {
        let keyspace = db.keyspace(name, tuning(name)).map_err(failed)?;
        for key in (0..WRITES_PER_KEY).flat_map(|_| 0..KEYS) {
            match name {
                "operands" => keyspace.merge(key_of(key), [7; 60]),
                _ => keyspace.put(key_of(key), [7; 60]),
            }
            .map_err(failed)?;
        }
    }
    db.flush().map_err(failed)?;
    db.close(None).map_err(failed)?;
    let (mut values, mut closed) = (0, 0);
    for (name, end) in KINDS {
        for (call, read) in READS {
            for keeps in [true, false] {
                let disk = disk.crash(lsmx::internals::vfs::CrashImage::Keep, 0);
                let when = || format!("{call} of keyspace {name}, files kept open: {keeps}");
                let result = read_over_a_close(&disk, (name, end), read, keeps);
                match result.map_err(|what| format!("{}: {what}", when()))? {
                    Ok(KEYS) => values += 1,
                    Err(Error::Closed) => closed += 1,
                    other => return Err(format!("{} returns {other:?}", when())),
                }
            }
        }
    }
    match (values, closed) {
        (1.., 1..) => Ok(()),
        counts => Err(format!("values and refusals: {counts:?}")),
    }
}

/// One read over a close that can or cannot keep open the files that readers hold.
fn read_over_a_close(
    disk: &MemVfs,
    (name, end): (&str, &str),
    read: Read,
    keeps: bool,
) -> Outcome<lsmx::Result<u64>> {
    let gate = Gate::default();
    let faults = gate.over(Arc::new(disk.clone()), each(&[VfsCall::Open], end), "over-close");
    let db = Db::open("db", options().vfs(Arc::new(faults.clone()))).map_err(failed)?;
    let keyspace = db.keyspace(name, tuning(name)).map_err(failed)?;
    let snapshot = db.snapshot();
    gate.shut();
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().name("over-close".to_owned());
        let reader = reader.spawn_scoped(scope, || read(&keyspace, &snapshot)).map_err(failed)?;
        while gate.blocked().is_none() {
            if reader.is_finished() {
                return Err(format!("no file {end} is opened"));
            }
            std::thread::yield_now();
        }
        if !keeps {
            let none_left =
                FaultRule::new(Fault::Error(Errno::TooManyFiles)).for_calls(&[VfsCall::Open]);
            faults.add_rule(none_left.from_then_on());
        }
        let next = db.close(None).map_err(failed).and_then(|()| {
            faults.clear_rules();
            let next = Db::open("db", options().vfs(Arc::new(disk.clone()))).map_err(failed)?;
            for (name, _) in KINDS {
                next.drop_keyspace(name).map_err(failed)?;
            }
            next.wait_idle().map_err(failed)?;
            let is_left = |path: &&PathBuf| path.to_string_lossy().ends_with(end);
            match disk.paths().iter().filter(is_left).count() {
                0 => Ok(next),
                left => Err(format!("{left} files {end} are left")),
            }
        });
        gate.open();
        let result = reader.join().map_err(|_| "a read panicked".to_owned())?;
        next.map(|_| result)
    })
}

/// Drops the last handle of a database after its close. The length of no file changes: the next owner may be reading.
pub(crate) fn closed_database_changes_no_file(_: u64) -> Outcome {
    let disk = MemVfs::new();
    let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).map_err(failed)?;
    db.put("key", [1; 100]).map_err(failed)?;
    db.close(None).map_err(failed)?;
    let lengths = || -> Result<Vec<_>, String> {
        let read = |path: PathBuf| disk.read_all(&path).map(|bytes| (path, bytes.len()));
        disk.paths().into_iter().map(|path| read(path).map_err(|error| error.to_string())).collect()
    };
    let closed = lengths()?;
    drop(db);
    match lengths()? {
        after if after == closed => Ok(()),
        after => Err(format!("the files have lengths {after:?}, {closed:?} when close returned")),
    }
}

//! Golden-file tests of whole databases: one with expiring values, and one with several keyspaces and all other features of
//! the format. The current code must write exactly the bytes of the files. `guarantees/damage.rs` opens the golden databases
//! of all versions.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use lsmx::dump::{DumpOptions, dump};
use lsmx::ingest::IngestOptions;
use lsmx::merge_operator::Append;
use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx::{Compression, Db, KeyspaceOptions, PrefixExtractor, ValueSeparation};

use crate::harness::database::{
    Entries, assert_clean, assert_entries, entries, files, inline, open, policy, small,
};
use crate::harness::golden::{assert_same_bytes, golden};

/// Expiry time that no test reaches, in microseconds.
const LATE_US: u64 = 1 << 62;
/// Expiry time of some values, in microseconds of the virtual clock.
const EARLY_US: u64 = 60_000_000;

fn options() -> lsmx::Options {
    let separation = ValueSeparation { threshold_bytes: 100, ..ValueSeparation::default() };
    inline().keyspace_defaults(small().value_separation(separation))
}

/// Writes values with and without expiry to two tables, a blob file and the WAL.
fn write(db: &Db) {
    let keyspace = db.default_keyspace();
    for round in 0..3 {
        for (number, expiry_us) in [(0, None), (1, Some(LATE_US)), (2, Some(EARLY_US))] {
            let short = (format!("short {round} {number}"), vec![b's'; 20]);
            let long = (format!("long {number}"), vec![b'l'; 300]);
            for (key, value) in [short, long] {
                match expiry_us {
                    None => keyspace.put(key, value).unwrap(),
                    Some(us) => {
                        let expires = SystemTime::UNIX_EPOCH + Duration::from_micros(us);
                        keyspace.put_until(key, value, expires).unwrap();
                    }
                }
            }
        }
        if round < 2 {
            db.flush().unwrap();
        }
    }
    keyspace.delete("short 0 0").unwrap();
    db.sync().unwrap();
}

/// Returns the contents before or after the early expiry time.
fn contents(is_early: bool) -> Entries {
    let mut entries = Entries::new();
    for number in (0..3).filter(|number| is_early || *number < 2) {
        entries.insert(format!("long {number}").into_bytes(), vec![b'l'; 300]);
        for round in 0..3 {
            entries.insert(format!("short {round} {number}").into_bytes(), vec![b's'; 20]);
        }
    }
    entries.remove(&b"short 0 0"[..]);
    entries
}

/// Files of a database, by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Returns the files of a database after a crash of the process. The last writes are in the WAL.
fn files_after_crash(disk: &MemVfs) -> Files {
    let disk = disk.crash(CrashImage::Drop, 1);
    let names = disk.list(Path::new("db")).unwrap().into_iter();
    let names = names.filter(|name| name != "LOCK" && name != "RESERVE");
    let file = |name: String| {
        let mut bytes = disk.read_all(&Path::new("db").join(&name)).unwrap();
        // The log files are preallocated, so zeros follow the last record.
        bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
        (name, bytes)
    };
    names.map(file).collect()
}

/// Compares the files with those of a golden database. Returns a disk with the golden database.
fn golden_disk(name: &str, written: &Files) -> MemVfs {
    let disk = MemVfs::new();
    disk.create_dir(Path::new("db")).unwrap();
    for (file, bytes) in written {
        let golden = golden(&format!("{name}/{file}"), || bytes.clone());
        assert_same_bytes(file, bytes, &golden);
        disk.write_all(&Path::new("db").join(file), &golden).unwrap();
    }
    disk
}

fn count_files(files: &Files, kind: &str) -> usize {
    files.keys().filter(|name| name.ends_with(kind)).count()
}

#[test]
fn golden_database_is_written_unchanged_and_read() {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    write(&db);
    assert_entries(&db.default_keyspace(), &contents(true));
    let written = files_after_crash(&disk);
    let [tables, blobs, logs] = [".sst", ".blob", ".wal"].map(|kind| count_files(&written, kind));
    assert!(tables == 2 && blobs == 2 && logs > 0, "{:?}", written.keys());
    let disk = golden_disk("database-v2-expiring-bytes", &written);
    let db = open(&disk, options());
    assert_entries(&db.default_keyspace(), &contents(true));
    db.env().advance_us(EARLY_US);
    assert_entries(&db.default_keyspace(), &contents(false));
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    assert_entries(&db.default_keyspace(), &contents(false));
    db.close(None).unwrap();
    assert_clean(&disk);
}

/// Options of the keyspaces of the second database. No compaction becomes due.
fn keyspace_options() -> KeyspaceOptions {
    small()
        .memtable_bytes(64 << 10)
        .table_bytes(64 << 10)
        .policy(policy("leveled(trigger=100,stop=200)"))
        .compression(Compression::Lz4)
        .prefix_filter(Some(PrefixExtractor::Delimiter(b'/')))
        .merge_operator(Append::default())
}

/// Writes keyspaces whose tables are compressed and contain filters of prefixes, range tombstones and merge operands.
/// Ingests a table, renames a keyspace, and clones it.
fn write_keyspaces(db: &Db) {
    let users = db.default_keyspace();
    for number in 0..60 {
        let user = ["ada", "alan"][number % 2];
        users.put(format!("{user}/{number:02}"), format!("value {number} ").repeat(20)).unwrap();
    }
    users.put("counter", "1").unwrap();
    db.flush().unwrap();
    users.delete_range("ada/10".."ada/30").unwrap();
    users.merge("counter", "2").unwrap();
    users.merge("alan/01", "an operand").unwrap();
    db.flush().unwrap();
    let orders = db.keyspace("orders", keyspace_options()).unwrap();
    orders.put("order/3", "replaced by the ingest").unwrap();
    orders.put("order/9", "deleted by the ingest").unwrap();
    let mut table = orders.external_table_writer("external.sst").unwrap();
    for number in 0..9 {
        table.put(format!("order/{number}"), format!("ingested {number} ").repeat(10)).unwrap();
    }
    table.delete("order/9").unwrap();
    table.finish().unwrap();
    let request = [(orders, vec!["external.sst"])];
    db.ingest(&request, IngestOptions::default()).unwrap();
    db.rename_keyspace("orders", "bills").unwrap();
    db.clone_keyspace("bills", "old bills", keyspace_options()).unwrap();
    let bills = db.open_keyspace("bills", None).unwrap();
    bills.delete_range("order/5"..).unwrap();
    bills.merge("order/1", "an operand in the log").unwrap();
    db.sync().unwrap();
}

/// Returns the contents of all keyspaces.
fn contents_of_keyspaces(db: &Db) -> BTreeMap<String, Entries> {
    let contents = |name: String| {
        let found = entries(db.open_keyspace(&name, None).unwrap().iter());
        (name, found.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
    };
    db.keyspaces().into_iter().map(contents).collect()
}

/// Returns the dump of all tables and manifests.
fn dump_files(disk: &MemVfs) -> String {
    let mut text = Vec::new();
    let manifests = disk.paths().into_iter().filter(|it| it.to_string_lossy().contains("MANIFEST"));
    for path in files(disk, ".sst").into_iter().chain(manifests) {
        let options = DumpOptions { entries: true, ..DumpOptions::default() };
        dump(disk, &path, &options, &mut text).unwrap();
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn golden_database_with_keyspaces_is_written_unchanged_and_read() {
    let disk = MemVfs::new();
    let db = open(&disk, inline().keyspace_defaults(keyspace_options()));
    write_keyspaces(&db);
    let contents = contents_of_keyspaces(&db);
    let written = files_after_crash(&disk);
    let disk = golden_disk("database-v2-keyspaces", &written);
    let dump = dump_files(&disk);
    for part in [
        "RenameKeyspace",
        "ReserveKeyspaceId",
        "properties: external",
        "the filter contains keys up to the byte",
        "range tombstones at",
        " Merge at ",
    ] {
        assert!(dump.contains(part), "{part:?} is missing:\n{dump}");
    }
    let tables = written.iter().filter(|(name, _)| name.ends_with(".sst"));
    let table_bytes: usize = tables.map(|(_, bytes)| bytes.len()).sum();
    let values: usize = contents.values().flat_map(Entries::values).map(Vec::len).sum();
    assert!(table_bytes < values, "{table_bytes} bytes are not compressed");
    let users = &contents["default"];
    assert_eq!((users.len(), &users[&b"counter"[..]][..]), (51, &b"12"[..]));
    assert_eq!(contents["bills"].len(), 5);
    assert_eq!(contents["old bills"].len(), 9);
    let db = open(&disk, inline().keyspace_defaults(keyspace_options()));
    for (name, contents) in &contents {
        let keyspace = db.keyspace(name, keyspace_options()).unwrap();
        assert_entries(&keyspace, contents);
        keyspace.compact_range::<&[u8]>(..).unwrap();
        assert_entries(&keyspace, contents);
    }
    assert_eq!(contents_of_keyspaces(&db), contents);
    db.close(None).unwrap();
    assert_clean(&disk);
}

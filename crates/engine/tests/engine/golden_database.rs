//! Golden-file test of a whole database with expiring values. The current code must write exactly the bytes of the files.
//! `guarantees/damage.rs` opens the golden databases of all versions.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx::{Db, ValueSeparation};

use crate::harness::database::{Entries, assert_clean, assert_entries, inline, open, small};
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

/// Returns the files of the database after a crash of the process. The last writes are in the WAL.
fn written() -> BTreeMap<String, Vec<u8>> {
    let disk = MemVfs::new();
    let db = open(&disk, options());
    write(&db);
    assert_entries(&db.default_keyspace(), &contents(true));
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

#[test]
fn golden_database_is_written_unchanged_and_read() {
    let written = written();
    let kinds = |kind: &str| written.keys().filter(|name| name.ends_with(kind)).count();
    assert!(kinds(".sst") == 2 && kinds(".blob") == 2 && kinds(".wal") > 0, "{:?}", written.keys());
    let disk = MemVfs::new();
    disk.create_dir(Path::new("db")).unwrap();
    for (name, bytes) in &written {
        let golden = golden(&format!("database-v2-expiring-bytes/{name}"), || bytes.clone());
        assert_same_bytes(name, bytes, &golden);
        disk.write_all(&Path::new("db").join(name), &golden).unwrap();
    }
    let db = open(&disk, options());
    assert_entries(&db.default_keyspace(), &contents(true));
    db.env().advance_us(EARLY_US);
    assert_entries(&db.default_keyspace(), &contents(false));
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    assert_entries(&db.default_keyspace(), &contents(false));
    db.close(None).unwrap();
    assert_clean(&disk);
}

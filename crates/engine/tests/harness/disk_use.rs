//! Checks of disk usage: the reserve file, the log, and the removal of files.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use lsmx::env::{Background, Env};
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Event, KeyspaceOptions, Options};
use lsmx_testkit::{EventLog, TestRng};

use super::Outcome;
use super::small_database::open_with;

fn options(seed: u64, memtable_bytes: u64) -> Options {
    let keyspace = KeyspaceOptions::default().memtable_bytes(memtable_bytes);
    Options::default().background(Background::Inline).seed(seed).keyspace_defaults(keyspace)
}

/// The size of the reserve file follows the number of unflushed bytes. The upper bound is 4 MiB or 10 % of the bytes of
/// tables and blob files, whichever is larger.
pub(crate) fn reserve_is_bounded(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let db = open_with(&MemVfs::new(), options(seed, 12 << 20)).unwrap();
    let mut largest = 0;
    for number in 0..300_u64 + rng.below(100) {
        db.put(number.to_be_bytes(), rng.bytes(100_000)).unwrap();
        let metrics = db.metrics();
        let (reserve, memtables) = (metrics.disk.reserve_bytes, metrics.memory.memtables_active);
        let bound = (metrics.disk.table_bytes / 10).max(4 << 20).min(2 * memtables + (1 << 20));
        assert!(reserve <= bound, "put {number}: the reserve takes {reserve} of {bound} bytes");
        largest = largest.max(reserve);
    }
    assert!(largest >= 1 << 20, "the reserve had at most {largest} bytes");
    db.flush().unwrap();
    let reserve = db.metrics().disk.reserve_bytes;
    assert!(reserve <= 1 << 20, "all data is flushed, and the reserve takes {reserve} bytes");
    Ok(())
}

/// If the reserve file cannot be created, the engine reports one `NoReserve` event, and writes still succeed.
pub(crate) fn reserve_is_dispensable(seed: u64) -> Outcome {
    for errno in Errno::ALL {
        let disk = FaultVfs::new(Arc::new(MemVfs::new()), seed);
        let refused = FaultRule::new(Fault::Error(errno)).for_calls(&[VfsCall::Reserve]);
        disk.add_rule(refused.from_then_on());
        let events = EventLog::default();
        let options = options(seed, 64 << 10).listener(Arc::new(events.clone()));
        let db = open_with(&disk, options).unwrap();
        for number in 0..300u64 {
            db.put(number.to_be_bytes(), [7; 1_000]).unwrap();
        }
        db.flush().unwrap();
        let reports = events.count(|event| matches!(event, Event::NoReserve(_)));
        assert_eq!((reports, db.metrics().disk.reserve_bytes), (1, 0), "{errno:?}");
    }
    Ok(())
}

/// Another program fills the disk. A flush succeeds with the space of the reserve.
pub(crate) fn full_disk_takes_the_reserve(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let db = open_with(&disk, options(seed, 8 << 20)).unwrap();
    let written = 100 + rng.below(1_000_u64);
    for number in 0..written {
        db.put(number.to_be_bytes(), rng.bytes(2_000)).unwrap();
    }
    disk.set_capacity(Some(disk.used_bytes()));
    db.flush().unwrap();
    // The flush made log segments obsolete and freed their space, so writes succeed.
    for number in 0..written / 4 {
        db.put(number.to_be_bytes(), rng.bytes(100)).unwrap();
    }
    Ok(())
}

/// On a full disk, the database uses up its reserve before it becomes read-only. The database resumes once the disk has
/// space.
pub(crate) fn full_disk_is_full(seed: u64) -> Outcome {
    const FREE_BYTES_MAX: u64 = 300 << 10;
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let db = open_with(&disk, options(seed, 128 << 10)).unwrap();
    let capacity = (2 << 20) + rng.below(2 << 20);
    disk.set_capacity(Some(capacity));
    let mut written = 0_u64;
    while db.put(written.to_be_bytes(), rng.bytes(1_000)).is_ok() {
        written += 1;
        assert!(written < 10_000, "the disk never got full");
    }
    assert!(!disk.exists(Path::new("db/RESERVE")).unwrap(), "the reserve is unused");
    let free = capacity - disk.used_bytes();
    assert!(free <= FREE_BYTES_MAX, "read-only with {free} of {capacity} bytes free");
    disk.set_capacity(Some(2 * capacity));
    db.resume().unwrap();
    for number in 0..written {
        assert!(db.get(number.to_be_bytes()).unwrap().is_some(), "put {number} is lost");
    }
    db.put("more", "room").unwrap();
    Ok(())
}

/// The engine flushes a keyspace with few writes in time, so that this keyspace does not keep many log segments alive.
pub(crate) fn idle_memtable_is_flushed(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let options = options(seed, 1 << 20).wal_bytes_max(1 << 30);
    let db = open_with(&MemVfs::new(), options).unwrap();
    let idle = db.keyspace("idle", KeyspaceOptions::default()).unwrap();
    for number in 0..500u64 {
        if rng.is_one_in(100) || number == 0 {
            idle.put(number.to_be_bytes(), "little").unwrap();
        }
        db.put((number % 10).to_be_bytes(), rng.bytes(100_000)).unwrap();
        // The log may contain two segments plus the bytes that are written between two checks.
        let log_bytes = db.metrics().disk.log_bytes;
        assert!(log_bytes <= 40 << 20, "the log takes {log_bytes} bytes");
    }
    Ok(())
}

/// When `wait_idle` returns, no thread is removing a file.
pub(crate) fn idle_database_removes_nothing(seed: u64) -> Outcome {
    let disk = FaultVfs::new(Arc::new(MemVfs::new()), seed);
    let keyspace =
        KeyspaceOptions::default().memtable_bytes(1 << 10).table_bytes(4 << 10).block_bytes(256);
    let options = Options::default().background(Background::Stepped { seed, workers: 1 });
    let db = open_with(&disk, options.seed(seed).keyspace_defaults(keyspace)).unwrap();
    let (env, removing) = (Arc::new(OnceLock::<Env>::new()), Arc::new(AtomicUsize::new(0)));
    let _ = env.set(db.env().clone());
    let counted = Arc::clone(&removing);
    disk.set_delay_hook(Some(Arc::new(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        if let Some(env) = env.get() {
            env.pause_us(1_000);
        }
        counted.fetch_sub(1, Ordering::SeqCst);
    })));
    // Delays the removals of all files except the reserve file. The engine removes the reserve file under a lock.
    let removals = FaultRule::new(Fault::Delay).for_calls(&[VfsCall::Remove]).path_contains(".");
    disk.add_rule(removals.chance(1.0));
    let mut rng = TestRng::new(seed);
    for round in 0..40 {
        for _ in 0..1 + rng.below(30) {
            db.put(rng.below(50_u64).to_be_bytes(), rng.bytes(100)).unwrap();
        }
        db.wait_idle().unwrap();
        assert_eq!(removing.load(Ordering::SeqCst), 0, "round {round}: files are being removed");
    }
    Ok(())
}

//! What a database takes on the disk: the reserve, the log, files that nothing needs.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use lsmx::env::{Background, Env};
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Error, Event, KeyspaceOptions, Options};
use lsmx_testkit::{EventLog, TestRng};

use super::{Outcome, oracle};

fn failed(error: Error) -> String {
    error.to_string()
}

fn options(seed: u64, memtable_bytes: u64) -> Options {
    let tuning = KeyspaceOptions::default().memtable_bytes(memtable_bytes);
    Options::default().background(Background::Inline).seed(seed).keyspace_defaults(tuning)
}

/// The reserve follows the unflushed bytes and stays within the greater of 4 MiB and a tenth of the tables.
pub(crate) fn reserve_is_bounded(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let db = oracle::open(&disk, options(seed, 12 << 20))?;
    let mut largest = 0;
    for number in 0..300_u64 + rng.below(100) {
        db.put(number.to_be_bytes(), rng.bytes(100_000)).map_err(failed)?;
        let metrics = db.metrics();
        let (reserve, memtables) = (metrics.disk.reserve_bytes, metrics.memory.memtables_active);
        let bound = (metrics.disk.table_bytes / 10).max(4 << 20).min(2 * memtables + (1 << 20));
        if reserve > bound {
            return Err(format!("put {number}: the reserve takes {reserve} of {bound} bytes"));
        }
        largest = largest.max(reserve);
    }
    if largest < 1 << 20 {
        return Err(format!("no room was kept: {largest} bytes"));
    }
    db.flush().map_err(failed)?;
    let reserve = db.metrics().disk.reserve_bytes;
    if reserve > 1 << 20 {
        return Err(format!("nothing is unflushed, and the reserve takes {reserve} bytes"));
    }
    Ok(())
}

/// Where the reserve cannot be made, one event says so and writes continue.
pub(crate) fn reserve_is_dispensable(seed: u64) -> Outcome {
    for errno in Errno::ALL {
        let disk = FaultVfs::new(Arc::new(MemVfs::new()), seed);
        let refused = FaultRule::new(Fault::Error(errno)).for_calls(&[VfsCall::Reserve]);
        disk.add_rule(refused.from_then_on());
        let events = EventLog::default();
        let options = options(seed, 64 << 10).listener(Arc::new(events.clone()));
        let db = Db::open(oracle::DIR, options.vfs(Arc::new(disk))).map_err(failed)?;
        for number in 0..300u64 {
            db.put(number.to_be_bytes(), [7; 1_000]).map_err(failed)?;
        }
        db.flush().map_err(failed)?;
        let told = events.count(|event| matches!(event, Event::NoReserve(_)));
        let kept = db.metrics().disk.reserve_bytes;
        if (told, kept) != (1, 0) {
            return Err(format!("{errno:?}: {told} events, {kept} bytes"));
        }
    }
    Ok(())
}

/// Another program fills the disk: a flush takes the reserve, and ends.
pub(crate) fn full_disk_takes_the_reserve(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let db = oracle::open(&disk, options(seed, 8 << 20))?;
    let written = 100 + rng.below(1_000_u64);
    for number in 0..written {
        db.put(number.to_be_bytes(), rng.bytes(2_000)).map_err(failed)?;
    }
    disk.set_capacity(Some(disk.used_bytes()));
    db.flush().map_err(failed)?;
    // The log that the flush made obsolete is free now, so writes continue.
    for number in 0..written / 4 {
        db.put(number.to_be_bytes(), rng.bytes(100)).map_err(failed)?;
    }
    Ok(())
}

/// The database becomes read-only on a full disk once the reserve is used up; with room it resumes.
pub(crate) fn full_disk_is_full(seed: u64) -> Outcome {
    const LEFT_BYTES_MAX: u64 = 300 << 10;
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let db = oracle::open(&disk, options(seed, 128 << 10))?;
    let capacity = (2 << 20) + rng.below(2 << 20);
    disk.set_capacity(Some(capacity));
    let mut written = 0_u64;
    while db.put(written.to_be_bytes(), rng.bytes(1_000)).is_ok() {
        written += 1;
        if written == 10_000 {
            return Err("the disk never got full".to_owned());
        }
    }
    let reserve = Path::new(oracle::DIR).join("RESERVE");
    if disk.exists(&reserve).unwrap_or(true) {
        return Err("it is read-only, and room is kept".to_owned());
    }
    let left = capacity - disk.used_bytes();
    if left > LEFT_BYTES_MAX {
        return Err(format!("it is read-only, and {left} of {capacity} bytes are free"));
    }
    disk.set_capacity(Some(2 * capacity));
    db.resume().map_err(failed)?;
    for number in 0..written {
        if db.get(number.to_be_bytes()).map_err(failed)?.is_none() {
            return Err(format!("put {number} of {written} is gone"));
        }
    }
    db.put("more", "room").map_err(failed)
}

/// A memtable that is hardly written to does not pin any number of log segments.
pub(crate) fn idle_memtable_is_flushed(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let options = options(seed, 1 << 20).wal_bytes_max(1 << 30);
    let db = oracle::open(&disk, options)?;
    let idle = db.keyspace("idle", KeyspaceOptions::default()).map_err(failed)?;
    let mut most = 0;
    for number in 0..500u64 {
        if rng.is_one_in(100) || number == 0 {
            idle.put(number.to_be_bytes(), "little").map_err(failed)?;
        }
        db.put((number % 10).to_be_bytes(), rng.bytes(100_000)).map_err(failed)?;
        most = most.max(db.metrics().disk.log_bytes);
    }
    // Two segments, and as much as passes between two looks.
    if most > 40 << 20 {
        return Err(format!("the log took {most} bytes"));
    }
    Ok(())
}

/// When `wait_idle` returns, no file is being removed.
pub(crate) fn idle_database_removes_nothing(seed: u64) -> Outcome {
    let disk = FaultVfs::new(Arc::new(MemVfs::new()), seed);
    let tuning =
        KeyspaceOptions::default().memtable_bytes(1 << 10).table_bytes(4 << 10).block_bytes(256);
    let options = Options::default()
        .background(Background::Stepped { seed, workers: 1 })
        .seed(seed)
        .keyspace_defaults(tuning);
    let db = Db::open(oracle::DIR, options.vfs(Arc::new(disk.clone()))).map_err(failed)?;
    let (env, removing) = (Arc::new(OnceLock::<Env>::new()), Arc::new(AtomicUsize::new(0)));
    let _ = env.set(db.env().clone());
    let hook = (Arc::clone(&env), Arc::clone(&removing));
    disk.set_delay_hook(Some(Arc::new(move |_, _| {
        hook.1.fetch_add(1, Ordering::SeqCst);
        if let Some(env) = hook.0.get() {
            env.pause_us(1_000);
        }
        hook.1.fetch_sub(1, Ordering::SeqCst);
    })));
    // Not the reserve, which is removed under a lock.
    let removals = FaultRule::new(Fault::Delay).for_calls(&[VfsCall::Remove]).path_contains(".");
    disk.add_rule(removals.chance(1.0));
    let mut rng = TestRng::new(seed);
    for round in 0..40 {
        for _ in 0..1 + rng.below(30) {
            let key = rng.below(50_u64).to_be_bytes();
            db.put(key, rng.bytes(100)).map_err(failed)?;
        }
        db.wait_idle().map_err(failed)?;
        let removing = removing.load(Ordering::SeqCst);
        if removing > 0 {
            return Err(format!("round {round}: a file is being removed"));
        }
    }
    Ok(())
}

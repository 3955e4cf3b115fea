//! Guarantee 14: a jump of the wall clock neither deletes data before its TTL nor restores expired data.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::{Background, CLOCK_READING_END_US, ClockJumpReport};
use lsmx::internals::manifest::Manifest;
use lsmx::internals::vfs::CrashImage;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Event, PolicySpec, WriteOptions};
use lsmx_testkit::{EventLog, TestRng};

use crate::harness::clock::{HOUR_US, MINUTE_US, TtlDatabase, YEAR_US, expect_keys, fill};
use crate::harness::options::policies;
use crate::harness::small_database::{keyspace_options, open, open_with, options, policy, seeds};

/// If the wall clock has jumped forward before an open, the engine ignores the new time for one minute, or for one hour
/// if the jump exceeds one day.
#[test]
fn clock_jump_at_open_is_trusted_after_a_time() {
    for (jump_us, needed_us) in
        [(20 * HOUR_US, MINUTE_US), (30 * HOUR_US, HOUR_US), (73 * YEAR_US, HOUR_US)]
    {
        let database = TtlDatabase::new();
        let db = database.open(database.options());
        fill(&db);
        let wall_us = db.env().database_time_us();
        db.close(None).unwrap();
        database.clock.set_wall_us(wall_us + jump_us);
        let db = database.open(database.options());
        expect_keys(&db, true, "at the first reading");
        database.run(&db, needed_us - MINUTE_US);
        expect_keys(&db, true, "before the reading is trusted");
        database.run(&db, 2 * MINUTE_US);
        expect_keys(&db, false, "after the reading is trusted");
    }
}

/// The engine accepts a clock jump after some time. Data that was written before this moment expires one TTL after the
/// write.
#[test]
fn clock_jump_when_trusted_keeps_data_written_before() {
    let database = TtlDatabase::new();
    let db = database.open(database.options());
    let wall_us = db.env().database_time_us();
    db.close(None).unwrap();
    database.clock.set_wall_us(wall_us + YEAR_US);
    let db = database.open(database.options());
    database.run(&db, HOUR_US / 2);
    fill(&db);
    database.run(&db, HOUR_US / 2 + MINUTE_US);
    assert!(db.env().database_time_us() > wall_us + YEAR_US);
    expect_keys(&db, true, "half an hour after the writes");
    db.close(None).unwrap();
    let db = database.open(database.options());
    expect_keys(&db, true, "after another open");
    database.run(&db, HOUR_US);
    expect_keys(&db, false, "after the TTL");
}

/// The stored time is in the year 2099, and the database uses it until `Options::reset_clock` resets the clock. After
/// the reset, data expires normally.
#[test]
fn stored_time_of_2099_ends_with_a_reset() {
    let database = TtlDatabase::new();
    let wall_us = database.clock.wall_us();
    database.clock.set_wall_us(wall_us + 73 * YEAR_US);
    let db = database.open(database.options());
    fill(&db);
    db.close(None).unwrap();
    database.clock.set_wall_us(wall_us);
    let events = EventLog::default();
    let options = || database.options().listener(Arc::new(events.clone()));
    let db = database.open(options());
    assert!(db.env().database_time_us() >= wall_us + 73 * YEAR_US);
    let behind = |event: &Event| matches!(event, Event::Clock(ClockJumpReport::Behind { .. }));
    assert_eq!(events.count(behind), 1);
    db.close(None).unwrap();
    let db = database.open(options().reset_clock(true));
    assert!(db.env().database_time_us() < wall_us + YEAR_US);
    db.close(None).unwrap();
    let db = database.open(options());
    assert!(db.env().database_time_us() < wall_us + YEAR_US, "the reset had no effect");
    assert_eq!(events.count(behind), 1);
    expect_keys(&db, true, "after the reset");
    database.run(&db, 2 * HOUR_US);
    expect_keys(&db, false, "after the TTL");
}

#[test]
fn clock_reading_after_the_year_2500_is_reported_once() {
    let database = TtlDatabase::new();
    let events = EventLog::default();
    let db = database.open(database.options().listener(Arc::new(events.clone())));
    let before_us = db.env().database_time_us();
    database.clock.set_wall_us(CLOCK_READING_END_US);
    database.run(&db, HOUR_US * 3);
    assert_eq!(db.env().database_time_us(), before_us + 3 * HOUR_US);
    let ignored = |event: &Event| matches!(event, Event::Clock(ClockJumpReport::Ignored { .. }));
    assert_eq!(events.count(ignored), 1);
}

fn stored_time_us(disk: &MemVfs) -> u64 {
    Manifest::load(disk, Path::new("db")).unwrap().state.clock_us
}

/// Guarantee 14: clock jumps neither delete data without a TTL nor stall a write, with any compaction policy. The
/// database time never decreases, because the manifest stores the largest clock reading.
#[test]
fn guarantee_14_clock_jumps_are_harmless() {
    for seed in seeds(14, 2) {
        for policy in policies() {
            jump_between_opens(seed, &policy);
        }
    }
}

/// Opens a database four times. The clock is at one second at each open and then advances by years.
fn jump_between_opens(seed: u64, policy: &PolicySpec) {
    let mut rng = TestRng::new(seed);
    let mut disk = MemVfs::new();
    let (mut seen_us, mut written) = (0, 0u64);
    for _ in 0..4 {
        let keyspace = keyspace_options("default").policy(policy.clone());
        let options = options(Background::Inline).keyspace_defaults(keyspace);
        let db = open_with(&disk, options).unwrap();
        let now_us = db.env().database_time_us();
        assert!(now_us >= seen_us, "seed {seed}: time {now_us} after {seen_us}");
        for n in 0..written {
            let exists = db.get(n.to_be_bytes()).unwrap().is_some();
            assert_eq!(exists, n % 5 != 4, "{policy}, seed {seed}: key {n} after a jump");
        }
        for _ in 0..60 {
            db.put(written.to_be_bytes(), [7; 40]).unwrap();
            if written % 5 == 4 {
                db.delete(written.to_be_bytes()).unwrap();
            }
            written += 1;
            if rng.is_one_in(20) {
                db.env().advance_us(rng.below(100 * YEAR_US));
            }
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let stalls = db.metrics().keyspaces["default"].stalls.count;
        assert_eq!(stalls, 0, "{policy}: writers stalled");
        // The manifest stores the time of its last edit.
        seen_us = stored_time_us(&disk.crash(CrashImage::Drop, 0));
        assert!(seen_us > now_us, "{policy}: the manifest has time {seen_us} at {now_us}");
        if rng.is_one_in(2) {
            disk = disk.crash(CrashImage::Drop, seed);
        } else {
            seen_us = db.env().database_time_us();
            db.close(None).unwrap();
            assert!(stored_time_us(&disk) >= seen_us);
        }
    }
}

/// Guarantee 14: expired data stays deleted if a later open has an earlier clock. Other data stays readable.
#[test]
fn guarantee_14_expired_data_stays_deleted() {
    let disk = MemVfs::new();
    let queue = keyspace_options("default").policy(policy("fifo(1M,ttl=1h)"));
    let options = || options(Background::Inline).keyspace_defaults(queue.clone());
    let db = open_with(&disk, options()).unwrap();
    db.put("old", "x").unwrap();
    db.flush().unwrap();
    db.env().advance_us(YEAR_US);
    db.put("young", "x").unwrap();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let exist = |db: &Db| ["old", "young"].map(|key| db.get(key).unwrap().is_some());
    assert_eq!(exist(&db), [false, true]);
    db.close(None).unwrap();
    for _ in 0..3 {
        let db = open_with(&disk, options()).unwrap();
        assert!(db.env().database_time_us() > YEAR_US);
        db.wait_idle().unwrap();
        assert_eq!(exist(&db), [false, true]);
    }
}

/// Guarantee 14: if the wall clock is 400 years behind the time in the manifest, the database uses the time in the
/// manifest, and no write waits.
#[test]
fn guarantee_14_clock_behind_the_manifest_delays_no_write() {
    let disk = MemVfs::new();
    let db = open(&disk);
    db.env().advance_us(400 * YEAR_US);
    db.put("k", "v").unwrap();
    db.close(None).unwrap();
    let db = open_with(&disk, options(Background::Threads { workers: 1 })).unwrap();
    assert!(db.env().database_time_us() > 400 * YEAR_US);
    let patient = WriteOptions { deadline: Some(Duration::from_secs(60)), ..Default::default() };
    for n in 0..500u64 {
        db.default_keyspace().with_write_options(patient).put(n.to_be_bytes(), [7; 40]).unwrap();
    }
    db.close(Some(Duration::from_secs(60))).unwrap();
}

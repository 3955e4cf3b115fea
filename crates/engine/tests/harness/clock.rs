//! Checks of database time: jumps of the wall clock, and times near the largest representable time.

use lsmx::env::{Background, CLOCK_READING_END_US, ManualClock};
use lsmx::vfs::MemVfs;
use lsmx::{Db, KeyspaceOptions, Options};

use super::Outcome;
use super::small_database::{open_with, policy};

pub(crate) const MINUTE_US: u64 = 60_000_000;
pub(crate) const HOUR_US: u64 = 60 * MINUTE_US;
pub(crate) const YEAR_US: u64 = 365 * 24 * HOUR_US;
/// A time in the year 2026.
const START_US: u64 = 1_790_000_000_000_000;
const KEYS: u32 = 20;

/// A database with the policy `fifo`, a TTL of one hour, and a manual clock.
pub(crate) struct TtlDatabase {
    disk: MemVfs,
    pub(crate) clock: ManualClock,
}

impl TtlDatabase {
    pub(crate) fn new() -> TtlDatabase {
        TtlDatabase { disk: MemVfs::new(), clock: ManualClock::new(START_US) }
    }

    pub(crate) fn options(&self) -> Options {
        let keyspace = KeyspaceOptions::default().policy(policy("fifo(1M,ttl=3600s)"));
        let options = Options::default().background(Background::Inline).seed(1);
        options.clock(self.clock.clone()).keyspace_defaults(keyspace)
    }

    pub(crate) fn open(&self, options: Options) -> Db {
        open_with(&self.disk, options).unwrap()
    }

    /// Advances the wall clock and the monotonic clock in steps of one minute. `wait_idle` makes the database read the
    /// clocks after each step.
    pub(crate) fn run(&self, db: &Db, us: u64) {
        for _ in 0..us.div_ceil(MINUTE_US) {
            self.clock.advance_us(MINUTE_US);
            db.wait_idle().unwrap();
        }
    }
}

/// Writes all keys, each to its own table.
pub(crate) fn fill(db: &Db) {
    for key in 0..KEYS {
        db.put(key.to_be_bytes(), "value").unwrap();
        db.flush().unwrap();
    }
}

/// Checks that all keys exist if `exist` is true, and that no key exists otherwise.
pub(crate) fn expect_keys(db: &Db, exist: bool, when: &str) {
    db.wait_idle().unwrap();
    let expected = if exist { KEYS as usize } else { 0 };
    assert_eq!(db.default_keyspace().iter().count(), expected, "keys {when}");
}

/// The wall clock jumps forward and back while the database is open. No key expires before its TTL has passed, and all
/// keys expire afterwards.
///
/// Regression: one clock reading in the year 2099 deleted all data.
pub(crate) fn jump_of_a_running_database_is_harmless(_seed: u64) -> Outcome {
    let database = TtlDatabase::new();
    let db = database.open(database.options());
    fill(&db);
    for far_us in [START_US + 73 * YEAR_US, CLOCK_READING_END_US, u64::MAX] {
        database.clock.set_wall_us(far_us);
        database.run(&db, HOUR_US / 10);
        expect_keys(&db, true, "after a jump");
        database.clock.set_wall_us(START_US + HOUR_US / 2);
        database.run(&db, MINUTE_US);
    }
    expect_keys(&db, true, "after the clock came back");
    database.run(&db, 2 * HOUR_US);
    expect_keys(&db, false, "after the TTL");
    Ok(())
}

/// Background threads neither panic nor spin when the time is close to its largest value.
pub(crate) fn time_near_its_end_is_harmless(seed: u64) -> Outcome {
    let keyspace = KeyspaceOptions::default().memtable_bytes(1 << 10);
    let options = Options::default().background(Background::Stepped { seed, workers: 1 });
    let db = open_with(&MemVfs::new(), options.keyspace_defaults(keyspace)).unwrap();
    db.env().advance_us(u64::MAX - db.env().now_us() - 5);
    for key in 0..100u32 {
        db.put(key.to_be_bytes(), [7; 100]).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    db.close(None).unwrap();
    Ok(())
}

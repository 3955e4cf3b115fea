//! Checks of the database clock: wall clocks that step, and times near the end of the clock.

use std::sync::Arc;

use lsmx::env::{Background, CLOCK_READING_END_US, ManualClock};
use lsmx::vfs::MemVfs;
use lsmx::{Db, KeyspaceOptions, Options, PolicySpec};

use super::Outcome;

pub(crate) const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;
const YEAR_US: u64 = 365 * DAY_US;
/// A moment of the year 2026.
const START_US: u64 = 1_790_000_000_000_000;
const KEYS: u32 = 20;

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A database with `fifo` and a TTL of one hour, whose wall clock the check sets.
pub(crate) struct Queue {
    disk: MemVfs,
    pub(crate) clock: ManualClock,
}

impl Queue {
    pub(crate) fn new() -> Queue {
        Queue { disk: MemVfs::new(), clock: ManualClock::new(START_US) }
    }

    pub(crate) fn options(&self) -> Options {
        let policy: PolicySpec = "fifo(1M,ttl=3600s)".parse().expect("a policy");
        let tuning = KeyspaceOptions::default().policy(policy);
        Options::default()
            .background(Background::Inline)
            .seed(1)
            .clock(self.clock.clone())
            .keyspace_defaults(tuning)
    }

    pub(crate) fn open(&self, options: Options) -> Outcome<Db> {
        Db::open("db", options.vfs(Arc::new(self.disk.clone()))).map_err(failed)
    }

    /// Advances wall clock and monotonic clock minute by minute; the database reads both each time.
    pub(crate) fn run(&self, db: &Db, us: u64) -> Outcome {
        const MINUTE_US: u64 = 60_000_000;
        for _ in 0..us.div_ceil(MINUTE_US) {
            self.clock.advance_us(MINUTE_US);
            db.wait_idle().map_err(failed)?;
        }
        Ok(())
    }
}

/// Writes keys, one table each.
pub(crate) fn fill(db: &Db) -> Outcome {
    for key in 0..KEYS {
        db.put(key.to_be_bytes(), "value").map_err(failed)?;
        db.flush().map_err(failed)?;
    }
    Ok(())
}

pub(crate) fn expect_keys(db: &Db, there: bool, when: &str) -> Outcome {
    db.wait_idle().map_err(failed)?;
    let count = db.default_keyspace().iter().count();
    let expected = if there { KEYS as usize } else { 0 };
    if count == expected { Ok(()) } else { Err(format!("{when}: {count} keys, not {expected}")) }
}

/// The wall clock of a running database jumps to 2099 and comes back: no key is lost before its TTL has
/// passed, and keys expire afterwards. One reading of 2099 deleted all data.
pub(crate) fn jump_of_a_running_database_is_harmless(_seed: u64) -> Outcome {
    let queue = Queue::new();
    let db = queue.open(queue.options())?;
    fill(&db)?;
    for far_us in [START_US + 73 * YEAR_US, CLOCK_READING_END_US, u64::MAX] {
        queue.clock.set_wall_us(far_us);
        queue.run(&db, HOUR_US / 10)?;
        expect_keys(&db, true, "after a jump")?;
        queue.clock.set_wall_us(START_US + HOUR_US / 2);
        queue.run(&db, 60_000_000)?;
    }
    expect_keys(&db, true, "after the clock came back")?;
    queue.run(&db, 2 * HOUR_US)?;
    expect_keys(&db, false, "after the TTL")
}

/// A pause close to the end of the clock: background threads neither panic nor spin.
pub(crate) fn time_near_its_end_is_harmless(seed: u64) -> Outcome {
    let background = Background::Stepped { seed, workers: 1 };
    let tuning = KeyspaceOptions::default().memtable_bytes(1 << 10);
    let options = Options::default().background(background).keyspace_defaults(tuning);
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).map_err(failed)?;
    let left_us = u64::MAX - db.env().now_us();
    db.env().advance_us(left_us - 5);
    for key in 0..100u32 {
        db.put(key.to_be_bytes(), [7; 100]).map_err(failed)?;
    }
    db.flush().map_err(failed)?;
    db.wait_idle().map_err(failed)?;
    db.close(None).map_err(failed)
}

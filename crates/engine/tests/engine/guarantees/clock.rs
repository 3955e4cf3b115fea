//! Guarantee 14: a wall clock that steps loses no data before its TTL and brings no expired data back.

use std::sync::Arc;

use lsmx::Event;
use lsmx::env::{CLOCK_READING_END_US, ClockJumpReport};

use crate::harness::clock::{
    HOUR_US, Queue, expect_keys, fill, jump_of_a_running_database_is_harmless,
    time_near_its_end_is_harmless,
};
use lsmx_testkit::{EventLog, seed};

const YEAR_US: u64 = 365 * 24 * HOUR_US;
const MINUTE_US: u64 = 60_000_000;

#[test]
fn clock_jump_while_open_loses_no_data() {
    jump_of_a_running_database_is_harmless(seed()).unwrap();
}

#[test]
fn clock_near_its_end_stops_no_thread() {
    for seed in 0..8 {
        time_near_its_end_is_harmless(seed).unwrap();
    }
}

/// The first reading after an open is not believed, however far it is ahead.
#[test]
fn clock_jump_at_open_acts_after_it_has_lasted() {
    for (jump_us, needed_us) in
        [(20 * HOUR_US, MINUTE_US), (30 * HOUR_US, HOUR_US), (73 * YEAR_US, HOUR_US)]
    {
        let queue = Queue::new();
        let db = queue.open(queue.options()).unwrap();
        fill(&db).unwrap();
        let wall_us = db.env().database_time_us();
        db.close(None).unwrap();
        queue.clock.set_wall_us(wall_us + jump_us);
        let db = queue.open(queue.options()).unwrap();
        expect_keys(&db, true, "at the first reading").unwrap();
        queue.run(&db, needed_us - MINUTE_US).unwrap();
        expect_keys(&db, true, "before it has lasted").unwrap();
        queue.run(&db, 2 * MINUTE_US).unwrap();
        expect_keys(&db, false, "when it has lasted").unwrap();
    }
}

/// Data that is written while a reading waits to be believed is not old once it is.
#[test]
fn clock_jump_when_believed_keeps_data_written_before() {
    let queue = Queue::new();
    let db = queue.open(queue.options()).unwrap();
    let wall_us = db.env().database_time_us();
    db.close(None).unwrap();
    queue.clock.set_wall_us(wall_us + YEAR_US);
    let db = queue.open(queue.options()).unwrap();
    queue.run(&db, HOUR_US / 2).unwrap();
    fill(&db).unwrap();
    queue.run(&db, HOUR_US / 2 + MINUTE_US).unwrap();
    assert!(db.env().database_time_us() > wall_us + YEAR_US);
    expect_keys(&db, true, "half an hour after the writes").unwrap();
    db.close(None).unwrap();
    let db = queue.open(queue.options()).unwrap();
    expect_keys(&db, true, "after another open").unwrap();
    queue.run(&db, HOUR_US).unwrap();
    expect_keys(&db, false, "after the TTL").unwrap();
}

/// A stored time in 2099 stays until an operator resets the clock; then files age again.
#[test]
fn stored_time_of_2099_ends_with_a_reset() {
    let queue = Queue::new();
    let wall_us = queue.clock.wall_us();
    queue.clock.set_wall_us(wall_us + 73 * YEAR_US);
    let db = queue.open(queue.options()).unwrap();
    fill(&db).unwrap();
    db.close(None).unwrap();
    queue.clock.set_wall_us(wall_us);
    let events = EventLog::default();
    let listened = |options: lsmx::Options| options.listener(Arc::new(events.clone()));
    let db = queue.open(listened(queue.options())).unwrap();
    assert!(db.env().database_time_us() >= wall_us + 73 * YEAR_US);
    let behind = |event: &Event| matches!(event, Event::Clock(ClockJumpReport::Behind { .. }));
    assert_eq!(events.count(behind), 1);
    db.close(None).unwrap();
    let db = queue.open(listened(queue.options().reset_clock(true))).unwrap();
    assert!(db.env().database_time_us() < wall_us + YEAR_US);
    db.close(None).unwrap();
    let db = queue.open(listened(queue.options())).unwrap();
    assert!(db.env().database_time_us() < wall_us + YEAR_US, "a reset lasts");
    assert_eq!(events.count(behind), 1);
    expect_keys(&db, true, "files are as old as the reset").unwrap();
    queue.run(&db, 2 * HOUR_US).unwrap();
    expect_keys(&db, false, "after the TTL").unwrap();
}

#[test]
fn clock_reading_after_the_year_2500_is_reported_once() {
    let queue = Queue::new();
    let events = EventLog::default();
    let db = queue.open(queue.options().listener(Arc::new(events.clone()))).unwrap();
    let before_us = db.env().database_time_us();
    queue.clock.set_wall_us(CLOCK_READING_END_US);
    queue.run(&db, HOUR_US * 3).unwrap();
    assert_eq!(db.env().database_time_us(), before_us + 3 * HOUR_US);
    let ignored = |event: &Event| matches!(event, Event::Clock(ClockJumpReport::Ignored { .. }));
    assert_eq!(events.count(ignored), 1);
}

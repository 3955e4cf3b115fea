//! Tests of values that expire. The virtual clock advances only by calls of the tests.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lsmx::compaction::JobReason;
use lsmx::compaction_filter::{FilterContext, FilterDecision, FilterError, FilterValue};
use lsmx::env::{Background, ManualClock};
use lsmx::internals::vfs::CrashImage;
use lsmx::limits::VALUE_BYTES_MAX;
use lsmx::merge_operator::Append;
use lsmx::metrics::ExpiryMetrics;
use lsmx::vfs::MemVfs;
use lsmx::{
    CompactionFilter, Db, Error, Event, Keyspace, KeyspaceOptions, RmwMode, Snapshot,
    ValueSeparation, WriteBatch,
};
use lsmx_testkit::simple_store::SimpleStore;
use lsmx_testkit::{EventLog, case_seeds};

use crate::harness::clock::YEAR_US;
use crate::harness::database::{
    self, assert_clean, compact, entries, inline, metrics, policy, settle, small, try_open,
    without_jobs,
};
use crate::harness::expiry::play_history;

const SECOND: Duration = Duration::from_secs(1);
const SECOND_US: u64 = 1_000_000;

fn open(disk: &MemVfs, keyspace: KeyspaceOptions) -> Db {
    database::open(disk, inline().keyspace_defaults(keyspace))
}

fn advance(db: &Db, us: u64) {
    db.env().advance_us(us);
}

/// Returns the time `us` microseconds after the current time of the database clock.
fn after(db: &Db, us: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(db.env().now_us() + us)
}

fn text(value: Option<lsmx::Slice>) -> Option<String> {
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// Returns the value of a key, after a check that all kinds of reads return the same.
fn get(keyspace: &Keyspace, snapshot: Option<&Snapshot>, key: &str) -> Option<String> {
    let pair = |pair: lsmx::Result<(lsmx::Slice, lsmx::Slice)>| pair.unwrap().1;
    let (value, many, forward, backward) = match snapshot {
        None => (
            keyspace.get(key).unwrap(),
            keyspace.multi_get([key]).unwrap().pop().unwrap(),
            keyspace.range(key..=key).next().map(pair),
            keyspace.range(key..=key).next_back().map(pair),
        ),
        Some(snapshot) => (
            snapshot.get(keyspace, key).unwrap(),
            snapshot.multi_get(keyspace, [key]).unwrap().pop().unwrap(),
            snapshot.range(keyspace, key..=key).next().map(pair),
            snapshot.range(keyspace, key..=key).next_back().map(pair),
        ),
    };
    for other in [many, forward, backward] {
        assert_eq!(value, other, "{key}");
    }
    text(value)
}

fn pairs(db: &Db) -> Vec<String> {
    let pair = |(key, value): (lsmx::Slice, lsmx::Slice)| {
        format!("{}={}", key.escape_ascii(), value.escape_ascii())
    };
    entries(db.default_keyspace().iter()).into_iter().map(pair).collect()
}

fn expired(db: &Db) -> ExpiryMetrics {
    metrics(db).expired
}

#[test]
fn value_is_visible_before_its_expiry_and_hides_older_versions_after_it() {
    for flushes in [false, true] {
        let disk = MemVfs::new();
        let db = open(&disk, without_jobs());
        let keyspace = db.default_keyspace();
        keyspace.put("k", "old").unwrap();
        if flushes {
            db.flush().unwrap();
        }
        let expires = after(&db, SECOND_US);
        keyspace.put_until("k", "new", expires).unwrap();
        keyspace.put("l", "stays").unwrap();
        if flushes {
            db.flush().unwrap();
        }
        assert_eq!(get(&keyspace, None, "k").as_deref(), Some("new"));
        assert_eq!(pairs(&db), ["k=new", "l=stays"]);
        let left = expires.duration_since(after(&db, 0)).unwrap();
        advance(&db, u64::try_from(left.as_micros()).unwrap() - 10);
        assert_eq!(text(keyspace.get("k").unwrap()).as_deref(), Some("new"));
        advance(&db, 10);
        assert_eq!(get(&keyspace, None, "k"), None);
        assert_eq!(pairs(&db), ["l=stays"]);
        assert!(!keyspace.contains_key("k").unwrap());
        // A later write is visible.
        keyspace.put("k", "newest").unwrap();
        assert_eq!(get(&keyspace, None, "k").as_deref(), Some("newest"));
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

#[test]
fn time_to_live_saturates_and_past_times_expire_at_once() {
    let db = open(&MemVfs::new(), small());
    let keyspace = db.default_keyspace();
    keyspace.put_with_ttl("forever", "v", Duration::MAX).unwrap();
    keyspace.put_with_ttl("now", "v", Duration::ZERO).unwrap();
    keyspace.put_until("past", "v", SystemTime::UNIX_EPOCH - SECOND).unwrap();
    assert_eq!(pairs(&db), ["forever=v"]);
    settle(&db);
    assert_eq!(pairs(&db), ["forever=v"]);
}

/// The time to live once counted from the database clock, which is late in the first minute after an open. The value
/// expired as soon as the clock had followed the wall clock.
#[test]
fn value_written_after_downtime_lives_for_its_time_to_live() {
    let disk = MemVfs::new();
    let clock = ManualClock::new(1_800_000_000 * SECOND_US);
    let options = || inline().clock(clock.clone()).keyspace_defaults(small());
    let db = database::open(&disk, options());
    db.default_keyspace().put_with_ttl("old", "1", SECOND * 10).unwrap();
    db.close(None).unwrap();
    drop(db);
    clock.advance_us(3_600 * SECOND_US);
    let db = database::open(&disk, options());
    db.default_keyspace().put_with_ttl("new", "2", SECOND * 600).unwrap();
    assert_eq!(pairs(&db), ["new=2", "old=1"], "the clock follows after one minute");
    clock.advance_us(61 * SECOND_US);
    assert_eq!(pairs(&db), ["new=2"]);
    clock.advance_us(538 * SECOND_US);
    assert_eq!(pairs(&db), ["new=2"]);
    clock.advance_us(2 * SECOND_US);
    assert_eq!(pairs(&db).len(), 0);
}

/// The manifest once stored the clock only with flushes and compactions. After a kill, values were visible that had been
/// expired for hours.
#[test]
fn value_that_expired_before_a_kill_is_absent_after_the_next_open() {
    let disk = MemVfs::new();
    let stepped = Background::Stepped { seed: 5, workers: 1 };
    let db = database::open(&disk, inline().background(stepped).keyspace_defaults(small()));
    db.default_keyspace().put_with_ttl("a", "1", SECOND * 600).unwrap();
    db.default_keyspace().put_with_ttl("b", "2", SECOND * 7_200).unwrap();
    db.env().pause_us(3_600 * SECOND_US);
    assert_eq!(pairs(&db), ["b=2"]);
    let killed = disk.crash(CrashImage::Keep, 0);
    assert_eq!(pairs(&open(&killed, small())), ["b=2"]);
    // The clock is stored and synced once per minute.
    db.env().pause_us(3_000 * SECOND_US);
    assert_eq!(pairs(&open(&disk.crash(CrashImage::Drop, 0), small())), ["b=2"]);
    db.env().pause_us(700 * SECOND_US);
    assert_eq!(pairs(&open(&disk.crash(CrashImage::Drop, 0), small())).len(), 0);
}

/// A read-only database once followed the wall clock only after a minute, so short reads saw expired values.
#[test]
fn first_reading_is_followed_at_once_if_no_data_can_be_lost_or_the_user_says_so() {
    let (disk, clock) = (MemVfs::new(), ManualClock::new(1_800_000_000 * SECOND_US));
    let options = || inline().clock(clock.clone()).keyspace_defaults(small());
    let db = database::open(&disk, options());
    db.default_keyspace().put_with_ttl("a", "1", SECOND * 10).unwrap();
    db.close(None).unwrap();
    drop(db);
    clock.advance_us(3_600 * SECOND_US);
    assert_eq!(pairs(&database::open(&disk, options())), ["a=1"], "after a minute");
    assert_eq!(pairs(&database::open(&disk, options().read_only(true))).len(), 0);
    let trusting = || options().clock_confirmation(Duration::ZERO);
    assert_eq!(pairs(&database::open(&disk, trusting())).len(), 0);
    let db = database::open(&disk, options().clock_confirmation(SECOND * 5));
    db.default_keyspace().put_with_ttl("b", "1", SECOND * 10).unwrap();
    db.close(None).unwrap();
    drop(db);
    clock.advance_us(3 * 86_400 * SECOND_US);
    assert_eq!(pairs(&database::open(&disk, trusting())), ["b=1"], "the step exceeds a day");
    assert_eq!(pairs(&database::open(&disk, options().read_only(true))).len(), 0);
}

/// The downtime exceeds the limit of clock jumps, so the clock follows after one hour.
#[test]
fn value_written_after_long_downtime_lives_for_its_time_to_live() {
    let (disk, clock) = (MemVfs::new(), ManualClock::new(1_800_000_000 * SECOND_US));
    let options = || inline().clock(clock.clone()).keyspace_defaults(small());
    drop(database::open(&disk, options()));
    clock.advance_us(3 * 86_400 * SECOND_US);
    let db = database::open(&disk, options());
    for (key, written_after) in [("a", 0), ("b", 1_800)] {
        clock.advance_us(written_after * SECOND_US);
        db.default_keyspace().put_with_ttl(key, "v", SECOND * 7_200).unwrap();
    }
    for (seconds, expected) in [(5_399, vec!["a=v", "b=v"]), (1_800, vec!["b=v"]), (2, vec![])] {
        clock.advance_us(seconds * SECOND_US);
        assert_eq!(pairs(&db), expected);
    }
}

/// Bug: the time to live counted from a wall clock that had jumped by a century. The value stayed visible for a century
/// after the wall clock was set back.
#[test]
fn time_to_live_does_not_count_from_a_jump_of_the_wall_clock() {
    let clock = ManualClock::new(1_800_000_000 * SECOND_US);
    let db = Db::open("db", inline().clock(clock.clone()).vfs(Arc::new(MemVfs::new()))).unwrap();
    clock.advance_us(61 * SECOND_US);
    db.put("before", "1").unwrap();
    clock.set_wall_us(clock.wall_us() + 100 * YEAR_US);
    let keyspace = db.default_keyspace();
    keyspace.put_with_ttl("key", "2", Duration::from_secs(3_600)).unwrap();
    clock.advance_us(600 * SECOND_US);
    keyspace.put_with_ttl("later", "3", Duration::from_secs(3_600)).unwrap();
    clock.set_wall_us(clock.wall_us() - 100 * YEAR_US);
    clock.advance_us(2_999 * SECOND_US);
    assert_eq!(pairs(&db), ["before=1", "key=2", "later=3"]);
    clock.advance_us(602 * SECOND_US);
    assert_eq!(pairs(&db), ["before=1"]);
}

/// Writes of values that expire were once counted as deletes.
#[test]
fn metrics_count_expiring_values_as_puts_without_their_expiry_times() {
    let db = open(&MemVfs::new(), small());
    db.put("key", "value").unwrap();
    db.default_keyspace().put_with_ttl("key", "value", SECOND).unwrap();
    let metrics = metrics(&db);
    assert_eq!((metrics.operations.puts, metrics.operations.deletes), (2, 0));
    assert_eq!((metrics.put_bytes, metrics.ingested_bytes), (16, 16));
}

#[test]
fn snapshot_and_iterator_keep_their_time() {
    let disk = MemVfs::new();
    let db = open(&disk, without_jobs());
    let keyspace = db.default_keyspace();
    keyspace.put("a", "old").unwrap();
    keyspace.put_with_ttl("a", "1", SECOND).unwrap();
    keyspace.put_with_ttl("b", "2", SECOND).unwrap();
    keyspace.put_with_ttl("c", "3", SECOND * 60).unwrap();
    db.flush().unwrap();
    let snapshot = db.snapshot();
    let mut iter = keyspace.iter();
    assert_eq!(iter.next().unwrap().unwrap().0, "a");
    advance(&db, SECOND_US);
    assert_eq!(get(&keyspace, None, "a"), None);
    assert_eq!(get(&keyspace, Some(&snapshot), "a").as_deref(), Some("1"));
    compact(&db).unwrap();
    assert_eq!(expired(&db).entries, 0, "the snapshot sees the values");
    assert_eq!(get(&keyspace, Some(&snapshot), "b").as_deref(), Some("2"));
    let rest: Vec<_> = iter.map(|pair| pair.unwrap().0).collect();
    assert_eq!(rest, ["b", "c"]);
    drop(snapshot);
    compact(&db).unwrap();
    let entry_bytes = 1 + 8 + 1;
    assert_eq!(expired(&db), ExpiryMetrics { entries: 2, bytes: 2 * entry_bytes });
    let total = metrics(&db).total();
    assert_eq!((total.entries, total.tombstones), (1, 0));
    assert_eq!(pairs(&db), ["c=3"]);
    assert!(db.metrics().to_string().contains("expired: 2 entries of 20 B dropped"));
    db.close(None).unwrap();
    assert_clean(&disk);
}

#[test]
fn compaction_leaves_tombstone_if_an_older_version_may_exist() {
    let db = open(&MemVfs::new(), without_jobs());
    let keyspace = db.default_keyspace();
    keyspace.put("k", "old").unwrap();
    keyspace.put("z", "old").unwrap();
    compact(&db).unwrap();
    keyspace.put_with_ttl("k", "new", SECOND).unwrap();
    advance(&db, SECOND_US);
    db.flush().unwrap();
    assert_eq!(expired(&db).entries, 1, "the flush replaces the value by a tombstone");
    assert_eq!(metrics(&db).total().tombstones, 1);
    assert_eq!(pairs(&db), ["z=old"]);
    compact(&db).unwrap();
    let total = metrics(&db).total();
    assert_eq!((total.entries, total.tombstones), (1, 0));
    assert_eq!(pairs(&db), ["z=old"]);
}

#[test]
fn file_is_rewritten_when_half_of_its_entries_have_expired() {
    for spec in [
        "leveled(trigger=100,stop=200)",
        "tiering(T=4)",
        "lazy-leveling(T=4)",
        "universal",
        "spooky",
    ] {
        let events = EventLog::default();
        let disk = MemVfs::new();
        let options = small().policy(policy(spec)).memtable_bytes(1 << 20).table_bytes(1 << 20);
        let options = inline().keyspace_defaults(options).listener(Arc::new(events.clone()));
        let db = database::open(&disk, options);
        let keyspace = db.default_keyspace();
        for number in 0..100u64 {
            let ttl = if number < 60 { SECOND } else { SECOND * 60 };
            keyspace.put_with_ttl(format!("{number:03}"), "value", ttl).unwrap();
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        assert_eq!(metrics(&db).total().entries, 100, "{spec}");
        let is_expired = |event: &Event| match event {
            Event::Compaction(end) => matches!(end.job.reason, JobReason::Expired { .. }),
            _ => false,
        };
        advance(&db, 2 * SECOND_US);
        // Inline jobs run after a commit. The write goes to another memtable.
        db.keyspace("other", small()).unwrap().put("k", "v").unwrap();
        db.wait_idle().unwrap();
        assert_eq!(metrics(&db).total().entries, 40, "{spec}");
        assert_eq!(events.count(is_expired), 1, "{spec}");
        assert_eq!(expired(&db).entries, 60, "{spec}");
        advance(&db, 60 * SECOND_US);
        db.keyspace("other", small()).unwrap().put("k", "v").unwrap();
        db.wait_idle().unwrap();
        assert_eq!((metrics(&db).total().files, events.count(is_expired)), (0, 2), "{spec}");
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

/// Bug: only the number of entries counted. Most bytes of a file remained after they had expired, if most entries were
/// small and did not expire.
#[test]
fn file_is_rewritten_when_half_of_its_bytes_have_expired() {
    let separation = ValueSeparation { threshold_bytes: 100, ..ValueSeparation::default() };
    for separation in [None, Some(separation)] {
        let options = without_jobs().memtable_bytes(4 << 20).table_bytes(4 << 20);
        let disk = MemVfs::new();
        let db = open(&disk, options.value_separation(separation));
        let keyspace = db.default_keyspace();
        for number in 0..55u32 {
            keyspace.put(format!("counter {number:03}"), number.to_be_bytes()).unwrap();
        }
        for number in 0..45u32 {
            let ttl = if number < 30 { SECOND } else { SECOND * 60 };
            keyspace.put_with_ttl(format!("session {number:03}"), [7; 10_000], ttl).unwrap();
        }
        db.flush().unwrap();
        let disk_bytes = || {
            let disk = db.metrics().disk;
            disk.table_bytes + disk.blob_bytes
        };
        assert!(disk_bytes() > 450_000);
        for (us, entries, bytes_max) in [(0, 100, 500_000), (2, 70, 200_000), (60, 55, 10_000)] {
            advance(&db, us * SECOND_US);
            // Inline jobs run after a commit. The write goes to another memtable.
            db.keyspace("other", small()).unwrap().put("k", "v").unwrap();
            db.wait_idle().unwrap();
            assert_eq!(metrics(&db).total().entries, entries, "{separation:?}");
            let bytes = disk_bytes();
            assert!(bytes < bytes_max, "{bytes} after {us} s, {separation:?}");
        }
        assert_eq!(pairs(&db).len(), 55);
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

#[test]
fn expired_file_waits_for_the_snapshot_that_sees_it() {
    let db = open(&MemVfs::new(), without_jobs());
    let keyspace = db.default_keyspace();
    keyspace.put_with_ttl("k", "v", SECOND).unwrap();
    db.flush().unwrap();
    let snapshot = db.snapshot();
    advance(&db, 2 * SECOND_US);
    settle(&db);
    assert_eq!(metrics(&db).total().entries, 1);
    assert_eq!(get(&keyspace, Some(&snapshot), "k").as_deref(), Some("v"));
    drop(snapshot);
    keyspace.put("l", "v").unwrap();
    db.wait_idle().unwrap();
    assert_eq!(metrics(&db).total().entries, 0);
}

#[test]
fn policy_fifo_does_not_rewrite_expired_files() {
    let db = open(&MemVfs::new(), small().policy(policy("fifo(1M)")));
    db.default_keyspace().put_with_ttl("k", "v", SECOND).unwrap();
    db.flush().unwrap();
    advance(&db, 2 * SECOND_US);
    db.put("l", "v").unwrap();
    db.wait_idle().unwrap();
    assert_eq!((metrics(&db).total().entries, pairs(&db)), (1, vec!["l=v".to_owned()]));
}

#[test]
fn operands_stay_when_their_base_expires() {
    for mode in [RmwMode::Fixed, RmwMode::Adaptive] {
        for flushes in [false, true] {
            let options = without_jobs().merge_operator(Append::default()).rmw_mode(mode);
            let disk = MemVfs::new();
            let db = open(&disk, options);
            let keyspace = db.default_keyspace();
            keyspace.put("k", "older").unwrap();
            keyspace.put_with_ttl("k", "base", SECOND).unwrap();
            for _ in 0..200 {
                keyspace.merge("k", "+").unwrap();
                if flushes {
                    db.flush().unwrap();
                }
            }
            for _ in 0..5 {
                let value = get(&keyspace, None, "k").unwrap();
                assert_eq!(value, format!("base{}", "+".repeat(200)));
            }
            compact(&db).unwrap();
            let snapshot = db.snapshot();
            advance(&db, SECOND_US);
            assert_eq!(get(&keyspace, None, "k"), Some("+".repeat(200)));
            compact(&db).unwrap();
            assert_eq!(get(&keyspace, None, "k"), Some("+".repeat(200)));
            let before = get(&keyspace, Some(&snapshot), "k").unwrap();
            assert_eq!(before, format!("base{}", "+".repeat(200)));
            drop(snapshot);
            compact(&db).unwrap();
            assert_eq!(get(&keyspace, None, "k"), Some("+".repeat(200)));
            assert_eq!(metrics(&db).total().entries, 1, "{mode:?} {flushes}");
            db.close(None).unwrap();
            assert_clean(&disk);
        }
    }
}

/// Regression: after a job had removed the expired base, a get stored the combined operands in the memtable, which the
/// iterator shares.
#[test]
fn iterator_reads_base_that_a_job_removed_after_its_expiry() {
    let options = small().merge_operator(Append::default()).rmw_mode(RmwMode::Adaptive);
    let db = open(&MemVfs::new(), options);
    let keyspace = db.default_keyspace();
    let write_backs = || metrics(&db).merges.write_backs;
    keyspace.put_with_ttl("k", "base", SECOND).unwrap();
    db.flush().unwrap();
    keyspace.merge("k", "+").unwrap();
    let mut iter = keyspace.iter();
    advance(&db, SECOND_US);
    db.wait_idle().unwrap();
    assert_eq!(expired(&db).entries, 1);
    for _ in 0..5 {
        assert_eq!(get(&keyspace, None, "k").as_deref(), Some("+"));
    }
    assert_eq!(write_backs(), 0);
    assert_eq!(iter.next().unwrap().unwrap().1, "base+");
    drop(iter);
    assert_eq!(get(&keyspace, None, "k").as_deref(), Some("+"));
    assert_eq!(write_backs(), 1);
}

#[test]
fn separated_value_keeps_its_expiry_and_becomes_garbage() {
    let separation = ValueSeparation { threshold_bytes: 100, ..ValueSeparation::default() };
    let disk = MemVfs::new();
    let options = without_jobs().table_bytes(1 << 20);
    let db = open(&disk, options.memtable_bytes(1 << 20).value_separation(separation));
    let keyspace = db.default_keyspace();
    let (short, long) = ("s".repeat(99), "l".repeat(5_000));
    keyspace.put("k", "older").unwrap();
    db.flush().unwrap();
    keyspace.put_with_ttl("k", &long, SECOND).unwrap();
    keyspace.put_with_ttl("s", &short, SECOND).unwrap();
    keyspace.put("z", &long).unwrap();
    db.flush().unwrap();
    assert_eq!(metrics(&db).value_log.blob_files, 1);
    assert_eq!(get(&keyspace, None, "k").as_deref(), Some(&*long));
    assert_eq!(get(&keyspace, None, "s").as_deref(), Some(&*short));
    let explanation = keyspace.explain("k").unwrap();
    assert!(explanation.to_string().contains("value_pointer_expiring"), "{explanation}");
    // The value moves back into the tree and out again.
    keyspace.set_options(|options| options.value_separation(None)).unwrap();
    compact(&db).unwrap();
    assert_eq!(metrics(&db).value_log.blob_files, 0);
    assert_eq!(get(&keyspace, None, "k").as_deref(), Some(&*long));
    keyspace.set_options(|options| options.value_separation(separation)).unwrap();
    // A compaction of the whole keyspace needs a second run.
    keyspace.put("y", "1").unwrap();
    db.flush().unwrap();
    compact(&db).unwrap();
    assert_eq!(metrics(&db).value_log.blob_files, 1);
    assert_eq!(get(&keyspace, None, "k").as_deref(), Some(&*long));
    advance(&db, SECOND_US);
    assert_eq!((get(&keyspace, None, "k"), get(&keyspace, None, "s")), (None, None));
    keyspace.put("y", "2").unwrap();
    db.flush().unwrap();
    compact(&db).unwrap();
    assert_eq!(expired(&db).entries, 2);
    let log = metrics(&db).value_log;
    assert!(log.blob_referenced_bytes < log.blob_bytes || log.blob_bytes < 6_000, "{log:?}");
    assert_eq!(pairs(&db).len(), 2);
    db.close(None).unwrap();
    assert_clean(&disk);
}

#[test]
fn default_time_to_live_applies_to_puts_and_updates() {
    let db = open(&MemVfs::new(), small().default_ttl(SECOND));
    let keyspace = db.default_keyspace();
    assert_eq!(keyspace.options().default_ttl, Some(SECOND));
    db.put("a", "1").unwrap();
    keyspace.put("b", "1").unwrap();
    keyspace.put_with_ttl("c", "1", SECOND * 60).unwrap();
    keyspace.fetch_update("d", |_| b"1".to_vec()).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&keyspace, "e", "1");
    db.write(batch, lsmx::WriteOptions::default()).unwrap();
    assert_eq!(pairs(&db).len(), 5);
    keyspace.set_options(|options| options.default_ttl(None)).unwrap();
    db.put("f", "1").unwrap();
    advance(&db, SECOND_US);
    assert_eq!(pairs(&db), ["c=1", "f=1"]);
}

#[test]
fn default_time_to_live_contradicts_merge_operator_and_operand_store() {
    let disk = MemVfs::new();
    let is_contradiction = |error: &Error| matches!(error, Error::Contradiction { .. });
    let both = small().default_ttl(SECOND).merge_operator(Append::default());
    let options = inline().keyspace_defaults(both);
    assert!(is_contradiction(&try_open(&disk, options).unwrap_err()));
    let zero = inline().keyspace_defaults(small().default_ttl(Duration::ZERO));
    assert!(matches!(try_open(&disk, zero), Err(Error::InvalidOption { .. })));
    let db = open(&disk, small());
    let store = small().merge_operator(Append::default()).operand_store(SimpleStore::default());
    let counters = db.keyspace("counters", store).unwrap();
    let error = counters.set_options(|options| options.default_ttl(SECOND)).unwrap_err();
    assert!(is_contradiction(&error), "{error}");
    let refused = counters.put_with_ttl("k", "v", SECOND).unwrap_err();
    assert!(matches!(refused, Error::ExpiryRefused { .. }), "{refused}");
    assert_eq!(counters.iter().count(), 0);
    let merging = db.keyspace("merging", small().merge_operator(Append::default())).unwrap();
    let error = merging.set_options(|options| options.default_ttl(SECOND)).unwrap_err();
    assert!(is_contradiction(&error), "{error}");
    // The options lack the operator, but the keyspace has stored its name.
    let error = db.keyspace("merging", small().default_ttl(SECOND)).unwrap_err();
    assert!(is_contradiction(&error), "{error}");
}

#[test]
fn operand_store_added_later_keeps_operands_above_an_expiring_base() {
    let disk = MemVfs::new();
    let db = open(&disk, small());
    let options = || small().merge_operator(Append::default());
    let counters = db.keyspace("counters", options()).unwrap();
    counters.put_with_ttl("k", "base", SECOND * 60).unwrap();
    counters.merge("k", "1").unwrap();
    db.flush().unwrap();
    let store = SimpleStore::default();
    let counters = db.keyspace("counters", options().operand_store(store)).unwrap();
    for number in 0..50 {
        counters.merge("k", format!(",{number}")).unwrap();
        db.flush().unwrap();
        db.wait_idle().unwrap();
    }
    let operands: String = (0..50).map(|number| format!(",{number}")).collect();
    assert_eq!(get(&counters, None, "k"), Some(format!("base1{operands}")));
    let snapshot = db.snapshot();
    advance(&db, 60 * SECOND_US);
    assert_eq!(get(&counters, None, "k"), Some(format!("1{operands}")));
    assert_eq!(get(&counters, Some(&snapshot), "k"), Some(format!("base1{operands}")));
    drop(snapshot);
    counters.operands_to_tree().unwrap();
    counters.compact_range::<&[u8]>(..).unwrap();
    assert_eq!(get(&counters, None, "k"), Some(format!("1{operands}")));
    drop(counters);
    db.close(None).unwrap();
    assert_clean(&disk);
}

#[test]
fn random_histories_equal_the_model() {
    let mut total = ExpiryMetrics::default();
    for seed in case_seeds(&[], 60) {
        let metrics = play_history(seed).unwrap_or_else(|what| panic!("{what}"));
        total.entries += metrics.entries;
    }
    assert!(total.entries > 100, "{total:?}");
}

/// Changes values, and records the context of each call.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<FilterContext>>);

impl CompactionFilter for Recorder {
    fn name(&self) -> &'static str {
        "test.recorder"
    }

    fn filter(
        &self,
        _: &[u8],
        value: &FilterValue<'_>,
        context: &FilterContext,
    ) -> Result<FilterDecision, FilterError> {
        self.0.lock().unwrap().push(*context);
        Ok(FilterDecision::Change([value.bytes()?, b"!"].concat()))
    }
}

/// Returns values without room for an expiry time.
#[derive(Debug)]
struct Enlarging;

impl CompactionFilter for Enlarging {
    fn name(&self) -> &'static str {
        "enlarging"
    }

    fn filter(
        &self,
        _: &[u8],
        _: &FilterValue<'_>,
        _: &FilterContext,
    ) -> Result<FilterDecision, FilterError> {
        Ok(FilterDecision::Change(vec![0; usize::try_from(VALUE_BYTES_MAX).unwrap() - 7]))
    }
}

/// Bug: all compactions of the value failed, because it exceeded the limit together with its expiry time.
#[test]
fn filtered_value_without_room_for_its_expiry_is_an_error_of_the_filter() {
    let options = without_jobs().compaction_filter(Arc::new(Enlarging));
    let db = open(&MemVfs::new(), options);
    db.default_keyspace().put_with_ttl("a", "1", SECOND).unwrap();
    db.flush().unwrap();
    compact(&db).unwrap();
    assert_eq!(pairs(&db), ["a=1"]);
    let metrics = metrics(&db).compaction_filter;
    assert_eq!((metrics.errors, metrics.changed), (1, 0));
}

#[test]
fn compaction_filter_sees_expiry_of_live_values_only() {
    let filter = Arc::new(Recorder::default());
    let separation = ValueSeparation { threshold_bytes: 50, ..ValueSeparation::default() };
    let options = without_jobs().compaction_filter(Arc::clone(&filter));
    let db = open(&MemVfs::new(), options.value_separation(separation));
    let keyspace = db.default_keyspace();
    let long = "l".repeat(60);
    keyspace.put("a", "1").unwrap();
    keyspace.put_until("b", "2", after(&db, 10 * SECOND_US)).unwrap();
    keyspace.put_until("c", &long, after(&db, 20 * SECOND_US)).unwrap();
    keyspace.put_with_ttl("d", "4", SECOND).unwrap();
    db.flush().unwrap();
    let now_us = db.env().now_us();
    advance(&db, SECOND_US);
    compact(&db).unwrap();
    let contexts = std::mem::take(&mut *filter.0.lock().unwrap());
    let expiries: Vec<Option<u64>> = contexts.iter().map(|context| context.expiry_us).collect();
    assert_eq!((expiries.len(), expiries[0]), (3, None), "{expiries:?}");
    let seconds = |index: usize| (expiries[index].unwrap() - now_us + SECOND_US / 2) / SECOND_US;
    assert_eq!((seconds(1), seconds(2)), (10, 20));
    assert_eq!(pairs(&db), ["a=1!".to_owned(), "b=2!".to_owned(), format!("c={long}!")]);
    advance(&db, 10 * SECOND_US);
    assert_eq!(pairs(&db), ["a=1!".to_owned(), format!("c={long}!")]);
}

#[test]
fn expiry_survives_recovery_checkpoint_repair_and_dump() {
    let disk = MemVfs::new();
    let options = || inline().keyspace_defaults(without_jobs());
    let db = database::open(&disk, options());
    let keyspace = db.default_keyspace();
    keyspace.put_with_ttl("table", "1", SECOND * 100).unwrap();
    db.flush().unwrap();
    keyspace.put_with_ttl("log", "1", SECOND * 100).unwrap();
    let now_us = db.env().now_us();
    db.checkpoint(std::path::Path::new("copy")).unwrap();
    db.close(None).unwrap();
    drop((keyspace, db));
    for dir in ["db", "copy"] {
        let db = Db::open(dir, options().vfs(Arc::new(disk.clone()))).unwrap();
        assert_eq!(pairs(&db), ["log=1", "table=1"], "{dir}");
        advance(&db, now_us.saturating_sub(db.env().now_us()) + 99 * SECOND_US);
        advance(&db, 2 * SECOND_US);
        assert_eq!(pairs(&db).len(), 0, "{dir}");
        db.close(None).unwrap();
    }
}

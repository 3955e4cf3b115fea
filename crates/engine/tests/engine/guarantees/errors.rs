//! Guarantees 7, 8 and 9: how the engine reports failed file system calls, and which data remains after them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::env::Background;
use lsmx::internals::manifest::Manifest;
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, Event, EventListener, Keyspace, WalOptions, WriteBatch};
use lsmx_testkit::{EventLog, TestRng};

use crate::harness::clock::MINUTE_US;
use crate::harness::small_database::{
    Calls, durability, file_of, keyspace_options, lock, open, open_kind, open_kinds, open_with,
    options, policy, seeds,
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const WRITES: &[VfsCall] = &[VfsCall::Create, VfsCall::Append, VfsCall::Sync, VfsCall::SyncDir];
const EIO: Fault = Fault::Error(Errno::Io);

/// A database on a disk with injected faults, and a model of its acknowledged writes.
struct FaultyDatabase {
    disk: MemVfs,
    faults: FaultVfs,
    events: EventLog,
    db: Db,
    kinds: [Keyspace; 3],
    model: Model,
    rng: TestRng,
    /// Number of attempted commits.
    begun: u64,
    /// Number of the last commit that was acknowledged as synced.
    synced: u64,
}

impl FaultyDatabase {
    fn new(seed: u64, background: Background) -> FaultyDatabase {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk.clone()), seed);
        let events = EventLog::default();
        let options = options(background).listener(Arc::new(events.clone()));
        let db = open_with(&faults, options).unwrap();
        let kinds = open_kinds(&db);
        let (model, rng) = (Model::new(), TestRng::new(seed));
        FaultyDatabase { disk, faults, events, db, kinds, model, rng, begun: 0, synced: 0 }
    }

    fn fail_calls(&self, calls: &[VfsCall], file: &str) {
        let rule = FaultRule::new(EIO).for_calls(calls).path_contains(file);
        self.faults.add_rule(rule.from_then_on());
    }

    fn set_policy(&self, text: &str) {
        self.kinds[0].set_policy(policy(text)).unwrap();
    }

    /// Returns the number of injected faults. Delays do not count.
    fn fired(&self) -> u64 {
        let fired = self.faults.fired_counts().into_iter();
        fired.filter(|(fault, _)| *fault != Fault::Delay).map(|(_, count)| count).sum()
    }

    fn failures(&self) -> usize {
        self.events.count(|event| matches!(event, Event::Failure(_) | Event::ReadOnly(_)))
    }

    fn write_calls(&self) -> u64 {
        self.faults.call_counts().sum_of_counts(WRITES)
    }

    /// Writes a new key to a random keyspace. Adds the entry to the model if the write is acknowledged.
    fn write(&mut self) -> lsmx::Result<()> {
        self.begun += 1;
        let at = self.rng.below(3);
        let key = format!("{at} {}", self.begun).into_bytes();
        let len = 10 + self.rng.below(90);
        let value = self.rng.bytes(len);
        let sync = self.rng.is_one_in(4);
        let keyspace = self.kinds[at].with_write_options(durability(sync));
        let written =
            if at == 2 { keyspace.merge(&key, &value) } else { keyspace.put(&key, &value) };
        match &written {
            Ok(()) => {
                self.model.insert(key, value);
                self.synced = if sync { self.begun } else { self.synced };
            }
            // The engine rejected the write before assigning a sequence number.
            Err(Error::Background { .. }) => self.begun -= 1,
            Err(_) => {}
        }
        written
    }

    fn write_many(&mut self, times: u64) {
        (0..times).for_each(|_| self.write().unwrap());
    }

    /// Calls `write` `times` times. Also overwrites the first and last key of the default keyspace after each call, so
    /// that all tables overlap and no compaction is a trivial move.
    fn write_overlapping(&mut self, times: u64) {
        for _ in 0..times {
            self.write().unwrap();
            for end in ["", "~"] {
                self.kinds[0].put(end, "end").unwrap();
                self.model.insert(end.into(), b"end".to_vec());
            }
        }
    }

    /// Makes at most `most` writes and stops when the database is read-only. Returns whether a write failed with
    /// `ReadOnly`.
    fn write_until_read_only(&mut self, most: u64) -> bool {
        for _ in 0..most {
            let (fired, failures) = (self.fired(), self.failures());
            let written = self.write();
            // Each fault must cause an event, including faults in background work after an acknowledged write.
            let is_reported = self.fired() == fired || self.failures() > failures;
            assert!(is_reported, "a fault was not reported, the write returned {written:?}");
            match written {
                Ok(()) if self.db.health().read_only.is_none() => {}
                Ok(()) => return false,
                Err(Error::ReadOnly { .. }) => return true,
                // `Background` reports an earlier failure of a background job. The next write may succeed.
                Err(Error::Background { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        false
    }

    /// Returns the entries of all keyspaces. Scans and gets must return the same values.
    fn contents(&self, db: &Db) -> Model {
        let view = db.snapshot();
        let mut found = Model::new();
        for keyspace in self.kinds.iter().map(|it| open_kind(db, &it.name()).unwrap()) {
            for entry in view.iter(&keyspace) {
                let (key, value) = entry.unwrap();
                assert_eq!(keyspace.get(&key).unwrap().unwrap(), value);
                found.insert(key.to_vec(), value.to_vec());
            }
        }
        found
    }

    fn check_in(&self, db: &Db, when: &str) {
        let found = self.contents(db);
        let (found_len, len) = (found.len(), self.model.len());
        assert!(found == self.model, "{when}: {found_len} keys exist, {len} were acknowledged");
    }

    fn check(&self, when: &str) {
        self.check_in(&self.db, when);
    }

    /// Opens disk images of a power loss before `resume`. Each image must contain the synced commits and a prefix of
    /// the later commits. The prefix may include a commit that failed.
    fn check_prefix_after_power_loss(&self, seed: u64, when: &str) {
        for image in CrashImage::ALL {
            let found = self.contents(&open(&self.disk.crash(image, seed)));
            let mut numbers: Vec<u64> = found.keys().map(|key| number_of(key)).collect();
            numbers.sort_unstable();
            let n = numbers.len() as u64;
            assert!(numbers.iter().copied().eq(1..=n), "{when}, {image:?}: a gap: {numbers:?}");
            assert!((self.synced..=self.begun).contains(&n), "{when}, {image:?}: {n} commits");
        }
    }

    /// Opens disk images of a power loss. Each image must contain exactly the acknowledged commits.
    fn check_after_power_loss(&self, seed: u64, when: &str) {
        for image in CrashImage::ALL {
            self.check_in(&open(&self.disk.crash(image, seed)), &format!("{when}, {image:?}"));
        }
    }

    fn close_and_check(self, when: &str) {
        self.db.close(None).unwrap();
        self.check_in(&open(&self.disk), when);
    }
}

/// Returns the number of the commit that wrote a key.
fn number_of(key: &[u8]) -> u64 {
    std::str::from_utf8(&key[2..]).unwrap().parse().unwrap()
}

/// Makes every call that changes the database and asserts that each call fails. Returns the errors.
fn every_write(db: &Db) -> Vec<(&'static str, Error)> {
    let main = db.default_keyspace();
    let mut batch = WriteBatch::new();
    batch.put(&main, "k", "v");
    let results = [
        ("put", db.put("k", "v")),
        ("delete", db.delete("k")),
        ("merge", main.merge("k", "v")),
        ("delete_range", main.delete_range("a".."z")),
        ("update", main.fetch_update("k", |_| b"v".to_vec()).map(drop)),
        ("write", db.write(batch, Durability::Sync)),
        ("sync", db.sync()),
        ("flush", db.flush()),
        ("keyspace", db.keyspace("new", keyspace_options("new")).map(drop)),
        ("drop_keyspace", db.drop_keyspace("values")),
        ("rename_keyspace", db.rename_keyspace("values", "renamed")),
        (
            "clone_keyspace",
            db.clone_keyspace("values", "clone", keyspace_options("values")).map(drop),
        ),
        ("set_policy", main.set_policy(policy("tiering"))),
        ("compact_range", main.compact_range::<&[u8]>(..)),
        ("checkpoint", db.checkpoint("copy")),
        ("wait_idle", db.wait_idle()),
    ];
    results.map(|(call, result)| (call, result.expect_err(call))).into_iter().collect()
}

/// Guarantee 7: no call returns `Ok` after a failed append or sync. The first error on the write path makes the
/// database read-only, and every later write fails with this error as the cause. Reads continue. No call reports an
/// error after `resume()`.
#[test]
fn guarantee_07_failed_write_is_reported_until_resume() {
    let mut refused = 0;
    let seed = seeds(7, 1).next().unwrap();
    for k in (0..).step_by(3) {
        let mut database = FaultyDatabase::new(seed, Background::Inline);
        database.faults.add_rule(FaultRule::new(EIO).for_calls(WRITES).nth(k).from_then_on());
        refused += u64::from(database.write_until_read_only(120));
        let when = format!("seed {seed}, call {k}");
        let Some(cause) = database.db.health().read_only else {
            if database.fired() == 0 {
                break;
            }
            // The fault occurred in a compaction, which leaves the database writable.
            continue;
        };
        check_read_only(&database, &cause, &when);
        assert!(database.db.resume().is_err(), "{when}");
        check_read_only(&database, &cause, &when);
        database.faults.clear_rules();
        check_resumed(database, &when);
    }
    assert!(refused > 10, "only {refused} writes were refused");
}

/// Checks that the database is read-only, that events, metrics and errors all report the cause, and that reads succeed.
fn check_read_only(database: &FaultyDatabase, cause: &Error, when: &str) {
    let FaultyDatabase { db, events, .. } = database;
    assert!(file_of(cause).starts_with("db"), "{when}: {cause:?}");
    let causes = events.select(|event| match event {
        Event::ReadOnly(cause) => Some(cause.to_string()),
        _ => None,
    });
    assert_eq!(causes, [cause.to_string()], "{when}: events");
    let in_metrics = db.metrics().read_only.expect("no cause in the metrics");
    assert!(in_metrics.contains(&cause.to_string()), "{when}: {in_metrics}");
    let calls = database.write_calls();
    for (call, error) in every_write(db) {
        let Error::ReadOnly { cause: named } = &error else { panic!("{when}: {call}: {error:?}") };
        assert_eq!(named.to_string(), cause.to_string(), "{when}: {call}");
    }
    assert_eq!(database.write_calls(), calls, "{when}: refused writes call the file system");
    database.check(when);
}

/// Calls `resume` after the faults have ended. Checks that the database works without further errors.
fn check_resumed(mut database: FaultyDatabase, when: &str) {
    database.db.resume().unwrap();
    assert!(database.db.health().read_only.is_none());
    assert_eq!(database.db.metrics().read_only, None);
    assert_eq!(database.events.count(|event| matches!(event, Event::Resumed)), 1);
    database.check(when);
    let failures = database.failures();
    database.write_many(30);
    database.db.flush().unwrap();
    // The engine retries a failed compaction after at most one minute.
    database.db.env().advance_us(MINUTE_US + 1_000_000);
    database.write().unwrap();
    database.db.flush().unwrap();
    database.db.wait_idle().unwrap();
    assert_eq!(database.failures(), failures, "{when}: failures after resume");
    database.check(when);
    database.close_and_check(when);
}

/// Guarantee 7: if a flush or a periodic sync fails in the background, the database becomes read-only and the next
/// write returns the cause.
#[test]
fn guarantee_07_failed_flush_or_sync_is_reported_by_next_write() {
    let seed = seeds(7, 1).next().unwrap();
    for (work, file) in [("flush", ".sst"), ("sync", ".wal")] {
        let mut database = FaultyDatabase::new(seed, Background::Inline);
        database.fail_calls(&[VfsCall::Sync], file);
        if work == "flush" {
            assert!(!database.write_until_read_only(200));
        } else {
            database.kinds[0].put("k", "v").unwrap();
            database.model.insert(b"k".to_vec(), b"v".to_vec());
            database.db.env().advance_us(2_000_000);
            database.db.wait_idle().expect_err("the due sync fails");
        }
        let failed = database.events.select(|event| match event {
            Event::Failure(failure) => Some(failure.work),
            _ => None,
        });
        assert_eq!(failed, [work]);
        let next = database.db.put("next", "write");
        let Err(Error::ReadOnly { cause }) = next else { panic!("{work}: {next:?}") };
        assert!(file_of(&cause).to_string_lossy().ends_with(file), "{cause:?}");
        assert!(database.db.metrics().read_only.is_some());
        database.check(work);
        assert!(matches!(database.db.close(None), Err(Error::ReadOnly { .. })));
    }
}

/// Guarantee 7: `compact_range` returns the error of a failed compaction, and the database stays writable.
#[test]
fn guarantee_07_failed_compact_range_is_reported_to_caller() {
    let mut database = FaultyDatabase::new(seeds(7, 1).next().unwrap(), Background::Inline);
    database.set_policy("tiering(T=20)");
    database.write_overlapping(150);
    database.db.flush().unwrap();
    database.fail_calls(&[VfsCall::Create], ".sst");
    let compacted = database.kinds[0].compact_range::<&[u8]>(..);
    assert!(matches!(compacted, Err(Error::Io { .. })), "{compacted:?}");
    assert!(database.db.health().read_only.is_none());
    database.check("after a failed compaction");
}

/// Guarantee 7: if a compaction or the removal of a file fails in the background, exactly one later write to any
/// keyspace returns an error and has no effect. The database stays writable.
#[test]
fn guarantee_07_failed_background_job_is_reported_by_one_write() {
    let seed = seeds(7, 1).next().unwrap();
    for (work, failing) in [("compaction", VfsCall::Create), ("removal", VfsCall::Remove)] {
        let mut database = FaultyDatabase::new(seed, Background::Inline);
        // The first round ends with a successful job. The second round checks that the next failure is reported again.
        for round in 0..2 {
            database.set_policy("tiering(T=50)");
            database.write_overlapping(150);
            database.db.flush().unwrap();
            database.db.wait_idle().unwrap();
            database.fail_calls(&[failing], ".sst");
            let failures = database.failures();
            database.set_policy("full");
            assert_eq!(database.db.wait_idle().is_err(), work == "compaction");
            assert!(database.failures() > failures, "{work}");
            assert!(database.db.health().read_only.is_none());
            let put = |key: &str| database.kinds[1].put(key, "value");
            let refused = put("refused").unwrap_err();
            let Error::Background { work: named, keyspace, cause } = &refused else {
                panic!("{refused:?}")
            };
            assert_eq!((*named, keyspace.is_some()), (work, work == "compaction"));
            assert!(file_of(cause).to_string_lossy().ends_with(".sst"), "{cause:?}");
            // The compaction fails again, but later writes succeed because the failure has already been reported.
            let failures = database.failures();
            database.db.env().advance_us(2_000_000);
            for key in ["a", "b"] {
                put(key).unwrap();
                database.set_policy("full");
                let _ = database.db.wait_idle();
                database.model.insert(key.into(), b"value".to_vec());
            }
            assert_eq!(database.failures() > failures, work == "compaction");
            database.check(&format!("{work}, round {round}"));
            database.faults.clear_rules();
            database.db.env().advance_us(MINUTE_US + 1_000_000);
            database.write_overlapping(50);
            database.db.wait_idle().unwrap();
        }
    }
}

/// Guarantee 7: after `resume()`, no write returns an error of a background job that failed earlier.
#[test]
fn guarantee_07_failed_background_job_is_not_reported_after_resume() {
    let mut database = FaultyDatabase::new(seeds(7, 1).next().unwrap(), Background::Inline);
    database.write_overlapping(150);
    database.fail_calls(&[VfsCall::Remove], "");
    database.kinds[0].compact_range::<&[u8]>(..).unwrap();
    assert!(database.failures() > 0);
    database.db.resume().unwrap();
    database.faults.clear_rules();
    database.write().unwrap();
}

/// Guarantee 7: reads continue after a failed sync of a bucket file of an operand store. The sync may have lost pages,
/// whose contents are still in the log of the store. Iterators that were opened before the failure return the same
/// entries, even after `resume` has begun a new log.
///
/// Regression: reads of keys whose pages were lost returned `Corrupt` until `resume`.
#[test]
fn guarantee_07_failed_sync_of_bucket_reads_continue() {
    let mut failed = 0;
    for seed in seeds(70, 10) {
        for k in 0..4 {
            let mut database = FaultyDatabase::new(seed, Background::Inline);
            let rule = FaultRule::new(EIO).for_calls(&[VfsCall::Sync]).path_contains(".bucket");
            database.faults.add_rule(rule.nth(k).from_then_on());
            let operands = database.kinds[2].clone();
            let mut held = Vec::new();
            while held.len() < 120 && !database.write_until_read_only(5) {
                let mut iterator = operands.iter();
                iterator.next();
                held.push((iterator, database.model.clone()));
            }
            let when = format!("seed {seed}, sync {k}");
            database.check(&when);
            if database.db.health().read_only.is_some() {
                failed += 1;
                database.faults.clear_rules();
                database.db.resume().unwrap();
            }
            database.check(&format!("{when}, resumed"));
            database.db.flush().unwrap();
            for (iterator, model) in held {
                let left =
                    iterator.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())));
                let left: Vec<_> = left.collect::<lsmx::Result<_>>().expect(&when);
                let expected = model.into_iter().filter(|(key, _)| key.starts_with(b"2")).skip(1);
                assert!(left.into_iter().eq(expected), "{when}: an iterator changed");
            }
        }
    }
    assert!(failed > 20, "only {failed} syncs failed");
}

/// Guarantee 8: the engine never syncs a file again after a failed sync. `resume()` writes the memtables of all
/// keyspaces to new files and begins a new log segment. One manifest edit commits the files and the segment, and marks
/// all sequence numbers as flushed. No operation of a failed commit group becomes visible later.
#[test]
fn guarantee_08_failed_sync_is_final() {
    let (mut resumed, mut kept) = (0, 0);
    for seed in seeds(8, 12) {
        for kind in [".wal", ".sst", ".blob", ".bucket", "MANIFEST"] {
            match fail_one_sync(seed, kind) {
                true => resumed += 1,
                false => kept += 1,
            }
        }
    }
    assert!(resumed > 20, "only {resumed} databases resumed, {kept} stayed writable");
}

/// Injects a fault into one sync of a file whose path contains `kind`. Returns whether the database became read-only.
fn fail_one_sync(seed: u64, kind: &str) -> bool {
    let mut database = FaultyDatabase::new(seed, Background::Inline);
    let k = database.rng.below(6);
    let calls = Calls::default();
    calls.watch(&database.faults, &[VfsCall::Sync], usize::MAX);
    let rule = FaultRule::new(EIO).for_calls(&[VfsCall::Sync]).path_contains(kind);
    database.faults.add_rule(rule.nth(k).once());
    let when = format!("seed {seed}, sync {k} of {kind}");
    // The number of writes before the fault depends on the seed.
    for _ in 0..20 {
        database.write_until_read_only(200);
        if database.fired() > 0 {
            break;
        }
    }
    assert_eq!(database.fired(), 1, "{when}");
    // A failed compaction leaves the database writable.
    let is_read_only = database.db.health().read_only.is_some();
    let load = |disk: &MemVfs| Manifest::load(disk, Path::new("db")).unwrap().state;
    let oldest = load(&database.disk).wal_oldest;
    database.check_prefix_after_power_loss(seed, &when);
    if is_read_only {
        database.db.resume().unwrap();
        let state = load(&database.disk.crash(CrashImage::Drop, seed));
        let last = database.db.snapshot().seq();
        assert!(last.0 >= database.begun, "{when}: {last:?} of {}", database.begun);
        assert_eq!(state.last_seq, last, "{when}");
        for keyspace in state.keyspaces.values() {
            assert_eq!(keyspace.flushed_through, last, "{when}");
        }
        assert!(state.wal_oldest > oldest, "{when}: no new segment");
        assert_eq!(state.wal_named, [state.wal_oldest], "{when}");
        database.check_after_power_loss(seed, &when);
    }
    database.check(&when);
    database.write_many(30);
    database.db.sync().unwrap();
    database.check_after_power_loss(seed, &when);
    database.close_and_check(&when);
    // The paths of all synced files whose names contain `kind`, in order. The engine must not sync a file again after a
    // failed sync.
    let syncs = calls.all().into_iter().map(|(_, path)| path);
    let syncs: Vec<_> = syncs.filter(|path| path.to_string_lossy().contains(kind)).collect();
    let (until, after) = syncs.split_at(usize::try_from(k).unwrap() + 1);
    let failed = until.last().unwrap();
    assert!(!after.contains(failed), "{when}: {} was synced again", failed.display());
    is_read_only
}

/// Guarantee 9: a full disk loses no acknowledged write. Reads continue, background work pauses, and `resume()`
/// succeeds once the disk has space.
#[test]
fn guarantee_09_full_disk_writes_resume_with_space() {
    for seed in seeds(9, 8) {
        let mut database = FaultyDatabase::new(seed, Background::Inline);
        database.write_many(60);
        // Every later append writes only some of its bytes and fails, and no later call can create a file.
        let no_space = Errno::NoSpace;
        database.faults.add_rule(FaultRule::new(Fault::ShortWrite(no_space)).from_then_on());
        let create = FaultRule::new(Fault::Error(no_space)).for_calls(&[VfsCall::Create]);
        database.faults.add_rule(create.nth(1).from_then_on());
        database.write_until_read_only(200);
        let cause = database.db.health().read_only.expect("the database is not read-only");
        let Error::Io { source, .. } = &*cause else { panic!("{cause:?}") };
        assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
        let calls = database.write_calls();
        for _ in 0..100 {
            database.db.env().advance_us(1_000_000);
            database.check("full disk");
        }
        assert_eq!(database.write_calls(), calls, "background work does not pause");
        // A failed `resume` removes the files that it created.
        assert!(database.db.resume().is_err());
        let left = database.disk.paths().len();
        for _ in 0..5 {
            assert!(database.db.resume().is_err());
            database.check("failed resume");
        }
        assert!(database.disk.paths().len() <= left, "failed calls of resume leave files");
        database.faults.clear_rules();
        database.db.resume().unwrap();
        database.check("resumed");
        database.check_after_power_loss(seed, "resumed");
        database.write_many(60);
        database.db.wait_idle().unwrap();
        database.close_and_check("closed");
    }
}

/// Guarantee 9: on a full disk the engine retries compactions after increasing pauses. The compactions succeed without
/// `resume()` once the disk has space.
#[test]
fn guarantee_09_full_disk_compactions_pause() {
    for seed in seeds(9, 8) {
        let mut database = FaultyDatabase::new(seed, Background::Stepped { seed, workers: 1 });
        for kind in &database.kinds {
            kind.set_policy(policy("tiering(T=20)")).unwrap();
        }
        database.write_overlapping(150);
        database.db.flush().unwrap();
        let runs = |db: &Db| db.metrics().keyspaces["default"].total().runs;
        let before = runs(&database.db);
        assert!(before > 1);
        let calls = Calls::default();
        calls.watch(&database.faults, &[VfsCall::Create], 200);
        let no_space = FaultRule::new(Fault::Error(Errno::NoSpace)).for_calls(&[VfsCall::Create]);
        database.faults.add_rule(no_space.path_contains(".sst").from_then_on());
        database.set_policy("full");
        database.db.env().pause_us(10 * MINUTE_US);
        assert!(database.db.health().read_only.is_none(), "{:?}", database.db.health());
        let failures = database.db.metrics().keyspaces["default"].compaction.failures;
        assert!((3..40).contains(&failures), "seed {seed}: {failures} failures in ten minutes");
        assert!(calls.count() < 80, "seed {seed}: {} files in ten minutes", calls.count());
        assert!(database.db.wait_idle().is_err(), "wait_idle reports no failure");
        database.check("failing compactions");
        assert_eq!(runs(&database.db), before);
        database.faults.clear_rules();
        database.db.env().pause_us(2 * MINUTE_US);
        database.db.wait_idle().unwrap();
        assert!(runs(&database.db) < before);
        database.check("compactions with space");
        database.close_and_check("closed");
    }
}

/// A listener that waits in the event of a failed background sync until the sender is dropped.
#[derive(Debug)]
struct WaitingListener {
    arrived: Mutex<Sender<()>>,
    released: Mutex<Receiver<()>>,
}

impl EventListener for WaitingListener {
    fn on_event(&self, event: &Event) {
        if matches!(event, Event::Failure(failure) if failure.work == "sync") {
            lock(&self.arrived).send(()).unwrap();
            assert!(lock(&self.released).recv().is_err());
        }
    }
}

/// Regression: `resume` did not wait for a background thread that was reporting a failed sync. Afterwards, the thread made
/// the database read-only again.
#[test]
fn guarantee_7_resume_waits_for_failed_background_sync() {
    let (arrived, arrival) = channel();
    let (release, released) = channel();
    let listener = WaitingListener { arrived: arrived.into(), released: released.into() };
    let faults = FaultVfs::new(Arc::new(MemVfs::new()), 1);
    let wal = WalOptions { sync_every_bytes: 1, ..WalOptions::default() };
    let threads = options(Background::Threads { workers: 1 });
    let db = open_with(&faults, threads.wal(wal).listener(Arc::new(listener))).unwrap();
    // After a panic, the sender is dropped before the database, whose close waits for the thread.
    let release = release;
    faults.add_rule(FaultRule::new(EIO).for_calls(&[VfsCall::Sync]).path_contains(".wal"));
    db.put("key", "1").unwrap();
    arrival.recv().unwrap();
    // The log has failed, so this sync makes the database read-only.
    assert!(db.sync().is_err());
    let late = db.with_deadline(Duration::from_millis(50)).resume();
    assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    drop(release);
    db.resume().unwrap();
    db.put("key", "2").unwrap();
    db.sync().unwrap();
}

//! Guarantees 7, 8 and 9: errors of failed calls, and the data after them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::manifest::Manifest;
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, Event, Keyspace, WriteBatch};
use lsmx_testkit::{EventLog, TestRng};

use super::support::{Calls, all_kinds, file_of, kind, open, options, seeds, tuning};
use crate::harness::disk_use;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const WRITES: &[VfsCall] = &[VfsCall::Create, VfsCall::Append, VfsCall::Sync, VfsCall::SyncDir];
const EIO: Fault = Fault::Error(Errno::Io);

/// A database on a disk that fails as it is told, and what was acknowledged.
struct Failing {
    disk: MemVfs,
    faults: FaultVfs,
    events: EventLog,
    db: Db,
    kinds: [Keyspace; 3],
    model: Model,
    rng: TestRng,
    /// Commits begun.
    begun: u64,
    /// Of these the last that was synced.
    synced: u64,
}

impl Failing {
    fn new(seed: u64, background: Background) -> Failing {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk.clone()), seed);
        let (vfs, events): (Arc<dyn Vfs>, _) = (Arc::new(faults.clone()), EventLog::default());
        let options = options(background).listener(Arc::new(events.clone()));
        let db = Db::open("db", options.vfs(vfs)).unwrap();
        let kinds = all_kinds(&db);
        let (model, rng) = (Model::new(), TestRng::new(seed));
        Failing { disk, faults, events, db, kinds, model, rng, begun: 0, synced: 0 }
    }

    /// How often a fault did something; delays are none.
    fn fired(&self) -> u64 {
        let fired = self.faults.fired_counts().into_iter();
        fired.filter(|(fault, _)| *fault != Fault::Delay).map(|(_, count)| count).sum()
    }

    /// Failures that somebody was told of.
    fn failures(&self) -> usize {
        self.events.count(|event| matches!(event, Event::Failure(_) | Event::ReadOnly(_)))
    }

    /// Writes one more key to some keyspace; the model has it if it was acknowledged.
    fn write(&mut self) -> lsmx::Result<()> {
        self.begun += 1;
        let at = self.rng.below(3);
        let key = format!("{at} {}", self.begun).into_bytes();
        let len = 10 + self.rng.below(90);
        let value = self.rng.bytes(len);
        let sync = self.rng.is_one_in(4);
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        let written = match at {
            2 => self.kinds[at].with_write_options(durability).merge(&key, &value),
            _ => self.kinds[at].with_write_options(durability).put(&key, &value),
        };
        match &written {
            Ok(()) => {
                self.model.insert(key, value);
                self.synced = if sync { self.begun } else { self.synced };
            }
            // It has got no number.
            Err(Error::Background { .. }) => self.begun -= 1,
            Err(_) => {}
        }
        written
    }

    /// Writes so often, and each time the ends of the first keyspace, so that no merge there is a trivial move.
    fn write_overlapping(&mut self, times: u64) {
        for _ in 0..times {
            self.write().unwrap();
            for end in ["", "~"] {
                self.kinds[0].put(end, "end").unwrap();
                self.model.insert(end.into(), b"end".to_vec());
            }
        }
    }

    /// Writes until the database is read-only, or so often. Says whether a write was refused.
    fn write_until_read_only(&mut self, most: u64) -> bool {
        for _ in 0..most {
            let (fired, failures) = (self.fired(), self.failures());
            let written = self.write();
            // No failure is swallowed, be it that of background work behind a write that is done.
            if self.fired() > fired {
                assert!(self.failures() > failures, "{written:?}, and nobody was told");
            }
            match written {
                Ok(()) if self.db.health().read_only.is_none() => {}
                Ok(()) => return false,
                Err(Error::ReadOnly { .. }) => return true,
                // A job has failed: the next write is free to go.
                Err(Error::Background { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        false
    }

    /// What there is, in all keyspaces.
    fn contents(&self, db: &Db) -> Model {
        let view = db.snapshot();
        let mut found = Model::new();
        for keyspace in self.kinds.iter().map(|it| kind(db, it.name()).unwrap()) {
            for entry in view.iter(&keyspace) {
                let (key, value) = entry.unwrap();
                assert_eq!(keyspace.get(&key).unwrap().unwrap(), value);
                found.insert(key.to_vec(), value.to_vec());
            }
        }
        found
    }

    /// All that was acknowledged is there, and nothing else.
    fn check(&self, db: &Db, when: &str) {
        let found = self.contents(db);
        let (there, due) = (found.len(), self.model.len());
        assert!(found == self.model, "{when}: {there} keys are there, {due} were acknowledged");
    }

    /// What a power loss now leaves, before anybody has resumed: what was synced, and of the rest a prefix, with
    /// what has failed perhaps.
    fn check_prefix_after_power_loss(&self, seed: u64, when: &str) {
        for image in CrashImage::ALL {
            let found = self.contents(&open(&self.disk.crash(image, seed)));
            let mut numbers: Vec<u64> = found.keys().map(|key| number_of(key)).collect();
            numbers.sort_unstable();
            let n = numbers.len() as u64;
            assert!(numbers.into_iter().eq(1..=n), "{when}, {image:?}: a hole");
            assert!((self.synced..=self.begun).contains(&n), "{when}, {image:?}: {n} are there");
        }
    }

    /// What a power loss now leaves, in every way, holds what was acknowledged and nothing that failed.
    fn check_after_power_loss(&self, seed: u64, when: &str) {
        for image in CrashImage::ALL {
            self.check(&open(&self.disk.crash(image, seed)), &format!("{when}, {image:?}"));
        }
    }
}

/// Which commit has written a key.
fn number_of(key: &[u8]) -> u64 {
    std::str::from_utf8(&key[2..]).unwrap().parse().unwrap()
}

/// Every way to change something; each must fail.
fn every_write(db: &Db) -> Vec<(&'static str, Error)> {
    let main = db.default_keyspace();
    let mut batch = WriteBatch::new();
    batch.put(&main, "k", "v");
    let answers = [
        ("put", db.put("k", "v")),
        ("delete", db.delete("k")),
        ("merge", db.default_keyspace().merge("k", "v")),
        ("delete_range", db.default_keyspace().delete_range("a".."z")),
        ("update", main.fetch_update("k", |_| b"v".to_vec()).map(drop)),
        ("write", db.write(batch, Durability::Sync)),
        ("sync", db.sync()),
        ("flush", db.flush()),
        ("keyspace", db.keyspace("new", tuning("new")).map(drop)),
        ("drop_keyspace", db.drop_keyspace("values")),
        ("set_policy", main.set_policy("tiering".parse::<lsmx::PolicySpec>().unwrap())),
        ("compact_range", main.compact_range::<&[u8]>(..)),
        ("checkpoint", db.checkpoint("copy")),
        ("wait_idle", db.wait_idle()),
    ];
    answers.map(|(what, answer)| (what, answer.expect_err(what))).into_iter().collect()
}

/// 7. No failure is swallowed, no `Ok` follows a failed append or sync. The first error on the write path
///    turns the database read-only with its cause; reads go on; every later write fails fast with that
///    cause. After `resume()` nothing sticks. Background errors reach the event listener, `metrics()`, and
///    the next write.
#[test]
fn guarantee_07_errors_are_told_once_and_truthfully() {
    let mut refused = 0;
    for seed in seeds(7, 1) {
        for k in (0..).step_by(3) {
            let mut failing = Failing::new(seed, Background::Inline);
            failing.faults.add_rule(FaultRule::new(EIO).for_calls(WRITES).nth(k).from_then_on());
            refused += u64::from(failing.write_until_read_only(120));
            let when = format!("seed {seed}, call {k}");
            let Some(cause) = failing.db.health().read_only else {
                if failing.fired() == 0 {
                    break;
                }
                // At the very end, in a compaction: it is tried again.
                continue;
            };
            first_error_rules(&failing, &cause, &when);
            // It does not work yet, and that changes nothing.
            assert!(failing.db.resume().is_err(), "{when}");
            first_error_rules(&failing, &cause, &when);
            failing.faults.clear_rules();
            nothing_sticks(failing, &when);
        }
        background_errors(seed);
    }
    assert!(refused > 10, "only {refused} writes were refused");
}

/// The database is read-only for this cause, says so everywhere, and can be read.
fn first_error_rules(failing: &Failing, cause: &Error, when: &str) {
    let Failing { db, faults, events, .. } = failing;
    assert!(file_of(cause).starts_with("db"), "{when}: {cause:?}");
    let causes = events.select(|event| match event {
        Event::ReadOnly(cause) => Some(cause.to_string()),
        _ => None,
    });
    assert_eq!(causes, [cause.to_string()], "{when}: told once");
    let in_metrics = db.metrics().read_only.expect("metrics tell");
    assert!(in_metrics.contains(&cause.to_string()), "{when}: {in_metrics}");
    let calls = faults.call_counts().sum_of_counts(WRITES);
    for (what, error) in every_write(db) {
        let Error::ReadOnly { cause: named } = &error else { panic!("{when}: {what}: {error:?}") };
        assert_eq!(named.to_string(), cause.to_string(), "{when}: {what}");
    }
    let after = faults.call_counts().sum_of_counts(WRITES);
    assert_eq!(after, calls, "{when}: a write that fails fast touches no file");
    failing.check(db, when);
}

/// The disk is well again: so is the database after `resume()`, for good.
fn nothing_sticks(mut failing: Failing, when: &str) {
    failing.db.resume().unwrap();
    assert!(failing.db.health().read_only.is_none());
    assert_eq!(failing.db.metrics().read_only, None);
    assert_eq!(failing.events.count(|event| matches!(event, Event::Resumed)), 1);
    failing.check(&failing.db, when);
    let failures = failing.failures();
    for _ in 0..30 {
        failing.write().unwrap();
    }
    failing.db.flush().unwrap();
    // Compactions that failed pause for a minute at most.
    failing.db.env().advance_us(61_000_000);
    failing.write().unwrap();
    failing.db.flush().unwrap();
    failing.db.wait_idle().unwrap();
    assert_eq!(failing.failures(), failures, "{when}: an error came after the last");
    failing.check(&failing.db, when);
    failing.db.close(None).unwrap();
    failing.check(&open(&failing.disk), when);
}

/// Errors that no caller is told when they happen.
fn background_errors(seed: u64) {
    // A flush and the sync that is due by the clock: the next write is told.
    for (work, file) in [("flush", ".sst"), ("sync", ".wal")] {
        let mut failing = Failing::new(seed, Background::Inline);
        failing.faults.add_rule(
            FaultRule::new(EIO).for_calls(&[VfsCall::Sync]).path_contains(file).from_then_on(),
        );
        match work {
            "flush" => assert!(!failing.write_until_read_only(200)),
            _ => {
                failing.kinds[0].put("k", "v").unwrap();
                failing.model.insert(b"k".to_vec(), b"v".to_vec());
                failing.db.env().advance_us(2_000_000);
                failing.db.wait_idle().expect_err("the sync that is due fails");
            }
        }
        let told = failing.events.select(|event| match event {
            Event::Failure(failure) => Some(failure.work),
            _ => None,
        });
        assert_eq!(told, [work]);
        let next = failing.db.put("next", "write");
        let Err(Error::ReadOnly { cause }) = next else { panic!("{work}: {next:?}") };
        assert!(file_of(&cause).to_string_lossy().ends_with(file), "{cause:?}");
        assert!(failing.db.metrics().read_only.is_some());
        failing.check(&failing.db, work);
        // Closing cannot promise what a close promises.
        assert!(matches!(failing.db.close(None), Err(Error::ReadOnly { .. })));
    }
    // A compaction that fails takes nothing from anybody: who waits for it is told.
    let mut failing = Failing::new(seed, Background::Inline);
    failing.kinds[0].set_policy("tiering(T=20)".parse::<lsmx::PolicySpec>().unwrap()).unwrap();
    failing.write_overlapping(150);
    failing.db.flush().unwrap();
    failing.faults.add_rule(
        FaultRule::new(EIO).for_calls(&[VfsCall::Create]).path_contains(".sst").from_then_on(),
    );
    let compacted = failing.kinds[0].compact_range::<&[u8]>(..);
    assert!(matches!(compacted, Err(Error::Io { .. })), "{compacted:?}");
    assert!(failing.db.health().read_only.is_none());
    failing.check(&failing.db, "a compaction that failed");
    failed_jobs(seed);
    told_by_resuming(seed);
}

/// Compactions and removals that fail in the background harm no write, and yet the next one is told: one of
/// them, whatever keyspace it is for, and it is not done.
fn failed_jobs(seed: u64) {
    for (work, fails) in [("compaction", VfsCall::Create), ("removal", VfsCall::Remove)] {
        let mut failing = Failing::new(seed, Background::Inline);
        // Once some have ended well, the next failure is told again.
        for round in 0..2 {
            failing.kinds[0]
                .set_policy("tiering(T=50)".parse::<lsmx::PolicySpec>().unwrap())
                .unwrap();
            failing.write_overlapping(150);
            failing.db.flush().unwrap();
            failing.db.wait_idle().unwrap();
            let rule = FaultRule::new(EIO).for_calls(&[fails]).path_contains(".sst");
            failing.faults.add_rule(rule.from_then_on());
            let failures = failing.failures();
            failing.kinds[0].set_policy("full".parse::<lsmx::PolicySpec>().unwrap()).unwrap();
            // It was tried, and whoever waits for it is told as well.
            assert_eq!(failing.db.wait_idle().is_err(), work == "compaction");
            assert!(failing.failures() > failures, "{work}");
            assert!(failing.db.health().read_only.is_none());
            let put = |key: &str| failing.kinds[1].put(key, "value");
            let told = put("told").unwrap_err();
            let Error::Background { work: named, keyspace, cause } = &told else {
                panic!("{told:?}")
            };
            assert_eq!((*named, keyspace.is_some()), (work, work == "compaction"));
            assert!(file_of(cause).to_string_lossy().ends_with(".sst"), "{cause:?}");
            // Once, though it is tried again and fails again.
            let failures = failing.failures();
            failing.db.env().advance_us(2_000_000);
            for key in ["a", "b"] {
                put(key).unwrap();
                failing.kinds[0].set_policy("full".parse::<lsmx::PolicySpec>().unwrap()).unwrap();
                let _ = failing.db.wait_idle();
                failing.model.insert(key.into(), b"value".to_vec());
            }
            assert_eq!(failing.failures() > failures, work == "compaction");
            failing.check(&failing.db, &format!("{work}, {round}"));
            failing.faults.clear_rules();
            failing.db.env().advance_us(61_000_000);
            failing.write_overlapping(50);
            failing.db.wait_idle().unwrap();
        }
    }
}

/// Who resumes knows what has failed: no write is told of that any more.
fn told_by_resuming(seed: u64) {
    let mut failing = Failing::new(seed, Background::Inline);
    failing.write_overlapping(150);
    let remove = FaultRule::new(EIO).for_calls(&[VfsCall::Remove]);
    failing.faults.add_rule(remove.from_then_on());
    failing.kinds[0].compact_range::<&[u8]>(..).unwrap();
    assert!(failing.failures() > 0);
    failing.db.resume().unwrap();
    failing.faults.clear_rules();
    failing.write().unwrap();
}

/// Reads go on (guarantee 7) where a bucket's file cannot be synced, too: pages of it that were appended since its last
/// good sync may be gone, and the store's log still has what is on them. Once, keys on those pages answered
/// `Corrupt` until somebody resumed. An iterator has them even after that, when the log is another one.
#[test]
fn reads_go_on_after_a_failed_sync_of_a_bucket() {
    let mut failed = 0;
    for seed in seeds(70, 10) {
        for k in 0..4 {
            let mut failing = Failing::new(seed, Background::Inline);
            let rule = FaultRule::new(EIO).for_calls(&[VfsCall::Sync]).path_contains(".bucket");
            failing.faults.add_rule(rule.nth(k).from_then_on());
            let operands = failing.kinds[2].clone();
            let mut held = Vec::new();
            while held.len() < 120 && !failing.write_until_read_only(5) {
                let mut iterator = operands.iter();
                iterator.next();
                held.push((iterator, failing.model.clone()));
            }
            let when = format!("seed {seed}, sync {k}");
            failing.check(&failing.db, &when);
            if failing.db.health().read_only.is_some() {
                failed += 1;
                failing.faults.clear_rules();
                failing.db.resume().unwrap();
            }
            failing.check(&failing.db, &format!("{when}, resumed"));
            failing.db.flush().unwrap();
            for (iterator, model) in held {
                let left =
                    iterator.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())));
                let left: Vec<_> = left.collect::<lsmx::Result<_>>().expect(&when);
                let due = model.into_iter().filter(|(key, _)| key.starts_with(b"2")).skip(1);
                assert!(left.into_iter().eq(due), "{when}: an iterator");
            }
        }
    }
    assert!(failed > 20, "only {failed} syncs failed");
}

/// 8. A failed sync is final for that file: nothing written to it since its last good sync counts as stored,
///    and it is never synced again. `resume()` writes all memtables of all keyspaces to new files, begins
///    a new segment, and makes both real by one edit that says that all numbers ever given are flushed:
///    nothing of a failed group comes back.
#[test]
fn guarantee_08_a_failed_sync_is_final() {
    let (mut resumed, mut kept) = (0, 0);
    for seed in seeds(8, 12) {
        for kind in [".wal", ".sst", ".blob", ".bucket", "MANIFEST"] {
            let mut failing = Failing::new(seed, Background::Inline);
            let k = failing.rng.below(6);
            let calls = Calls::default();
            calls.watch(&failing.faults, &[VfsCall::Sync], usize::MAX);
            let of_kind = |path: &Path| path.to_string_lossy().contains(kind);
            failing.faults.add_rule(
                FaultRule::new(EIO).for_calls(&[VfsCall::Sync]).path_contains(kind).nth(k).once(),
            );
            let when = format!("seed {seed}, sync {k} of {kind}");
            // As many writes as it takes: how often a kind of file is synced depends on what is drawn.
            for _ in 0..20 {
                failing.write_until_read_only(200);
                if failing.fired() > 0 {
                    break;
                }
            }
            assert_eq!(failing.fired(), 1, "{when}");
            let is_read_only = failing.db.health().read_only.is_some();
            let oldest = Manifest::load(&failing.disk, Path::new("db")).unwrap().state.wal_oldest;
            failing.check_prefix_after_power_loss(seed, &when);
            if is_read_only {
                failing.db.resume().unwrap();
                resumed += 1;
                let stable = failing.disk.crash(CrashImage::Drop, seed);
                let state = Manifest::load(&stable, Path::new("db")).unwrap().state;
                let last = failing.db.snapshot().seq();
                assert!(last.0 >= failing.begun, "{when}: {last:?} of {}", failing.begun);
                assert_eq!(state.last_seq, last, "{when}");
                let flushed = state.keyspaces.values().map(|keyspace| keyspace.flushed_through);
                assert!(flushed.into_iter().all(|through| through == last), "{when}: not all");
                assert!(state.wal_oldest > oldest, "{when}: the log goes on");
                assert_eq!(state.wal_named, [state.wal_oldest], "{when}");
            } else {
                // A compaction that failed: its output is of no use, and nobody has lost anything.
                kept += 1;
            }
            failing.check(&failing.db, &when);
            if is_read_only {
                failing.check_after_power_loss(seed, &when);
            }
            for _ in 0..30 {
                failing.write().unwrap();
            }
            failing.db.sync().unwrap();
            failing.check_after_power_loss(seed, &when);
            failing.db.close(None).unwrap();
            failing.check(&open(&failing.disk), &when);
            // All syncs of this kind of file, the one that failed among them.
            let syncs = calls.all().into_iter().map(|(_, path)| path);
            let syncs: Vec<_> = syncs.filter(|path| of_kind(path)).collect();
            let (until, after) = syncs.split_at(usize::try_from(k).unwrap() + 1);
            let failed = until.last().unwrap();
            assert!(!after.contains(failed), "{when}: {} was synced again", failed.display());
        }
    }
    assert!(resumed > 20, "only {resumed} resumed, {kept} went on");
}

/// 9. Nothing acknowledged is lost on a full disk, reads go on, background work waits instead of spinning,
///    and freeing space + `resume()` goes on where it stopped. The reserve is used up before the database becomes
///    read-only, is bounded, and nothing depends on it.
#[test]
fn guarantee_09_full_disk() {
    for seed in seeds(9, 8) {
        full_for_writers(seed);
        full_for_compactions(seed);
    }
    for seed in seeds(90, 3) {
        super::full::a_disk_that_gets_full(seed);
        super::full::a_real_disk_that_gets_full(seed);
        for check in [
            disk_use::reserve_is_bounded,
            disk_use::reserve_is_dispensable,
            disk_use::full_disk_takes_the_reserve,
            disk_use::full_disk_is_full,
            disk_use::idle_memtable_is_flushed,
            disk_use::idle_database_removes_nothing,
        ] {
            check(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        }
    }
}

fn full_for_writers(seed: u64) {
    let mut failing = Failing::new(seed, Background::Inline);
    for _ in 0..60 {
        failing.write().unwrap();
    }
    // From here on nothing goes in, or only a part of it.
    let no_space = Errno::NoSpace;
    failing.faults.add_rule(FaultRule::new(Fault::ShortWrite(no_space)).from_then_on());
    failing.faults.add_rule(
        FaultRule::new(Fault::Error(no_space)).for_calls(&[VfsCall::Create]).nth(1).from_then_on(),
    );
    failing.write_until_read_only(200);
    let cause = failing.db.health().read_only.expect("a full disk is told");
    let Error::Io { source, .. } = &*cause else { panic!("{cause:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    // Reads go on, and nothing else is tried, however long it takes.
    let calls = failing.faults.call_counts().sum_of_counts(WRITES);
    for _ in 0..100 {
        failing.db.env().advance_us(1_000_000);
        failing.check(&failing.db, "a full disk");
    }
    assert_eq!(failing.faults.call_counts().sum_of_counts(WRITES), calls, "it spins");
    // Nor do attempts take what is left.
    assert!(failing.db.resume().is_err());
    let left = failing.disk.paths().len();
    for _ in 0..5 {
        assert!(failing.db.resume().is_err());
        failing.check(&failing.db, "an attempt to resume");
    }
    assert!(failing.disk.paths().len() <= left, "attempts to resume leave files");
    // Space.
    failing.faults.clear_rules();
    failing.db.resume().unwrap();
    failing.check(&failing.db, "a resumption");
    failing.check_after_power_loss(seed, "a resumption");
    for _ in 0..60 {
        failing.write().unwrap();
    }
    failing.db.wait_idle().unwrap();
    failing.db.close(None).unwrap();
    failing.check(&open(&failing.disk), "a close");
}

fn full_for_compactions(seed: u64) {
    const MINUTE_US: u64 = 60_000_000;
    let mut failing = Failing::new(seed, Background::Stepped { seed, workers: 1 });
    for kind in &failing.kinds {
        // Runs gather.
        kind.set_policy("tiering(T=20)".parse::<lsmx::PolicySpec>().unwrap()).unwrap();
    }
    failing.write_overlapping(150);
    failing.db.flush().unwrap();
    let runs = |db: &Db| db.metrics().keyspaces["default"].total().runs;
    let before = runs(&failing.db);
    assert!(before > 1);
    let calls = Calls::default();
    calls.watch(&failing.faults, &[VfsCall::Create], 200);
    let no_space = FaultRule::new(Fault::Error(Errno::NoSpace));
    failing
        .faults
        .add_rule(no_space.for_calls(&[VfsCall::Create]).path_contains(".sst").from_then_on());
    failing.kinds[0].set_policy("full".parse::<lsmx::PolicySpec>().unwrap()).unwrap();
    failing.db.env().pause_us(10 * MINUTE_US);
    assert!(failing.db.health().read_only.is_none(), "{:?}", failing.db.health().read_only);
    let failures = failing.db.metrics().keyspaces["default"].compaction.failures;
    // It is tried again, after longer and longer pauses.
    assert!((3..40).contains(&failures), "seed {seed}: {failures} tries in ten minutes");
    assert!(calls.count() < 80, "seed {seed}: {} files in ten minutes", calls.count());
    assert!(failing.db.wait_idle().is_err(), "who waits for it is told");
    failing.check(&failing.db, "compactions that fail");
    assert_eq!(runs(&failing.db), before);
    // Space: it goes on by itself.
    failing.faults.clear_rules();
    failing.db.env().pause_us(2 * MINUTE_US);
    failing.db.wait_idle().unwrap();
    assert!(runs(&failing.db) < before);
    failing.check(&failing.db, "compactions that go on");
    failing.db.close(None).unwrap();
    failing.check(&open(&failing.disk), "a close");
}

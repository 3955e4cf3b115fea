//! A random workload into which one fault is injected. Two threads write. A third thread flushes, reads, makes
//! checkpoints and reopens the database. After the fault, every call must return and every keyspace must be usable.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, Keyspace, KeyspaceOptions, Options, WriteBatch};
use lsmx_testkit::simple_store::SimpleStore;
use lsmx_testkit::{TestRng, mix_seeds};

use super::super::coverage::file_kind;
use super::super::small_database::{durability, lock, open_with};
use super::super::{options, oracle};
use super::disturbance::{Kind, Mode, is_store_site};
use super::panic_text;
use super::user_code::{
    CallingListener, FaultyOperator, FaultyPolicy, FaultyStores, MARK, Trigger,
};

/// Maximum number of scheduler steps, for the workload with the fault and for the checks after it. Most workloads take
/// a few thousand steps.
const STEPS_MAX: u64 = 60_000;
/// Number of writes to each keyspace that must succeed after the fault.
const WRITES_AFTER: u64 = 30;
/// Maximum number of writes after the fault that may return an error of background work. Each error is reported once.
const REPORTS_MAX: u64 = 8;
/// Maximum number of rounds until the database is idle. A round consists of a pause and a write to each keyspace.
const ROUNDS_MAX: u64 = 8;

/// Runs a random workload. Returns whether the fault occurred.
pub(crate) fn play(kind: Kind, mode: Mode, seed: u64) -> bool {
    let mut run = HistoryRun::new(kind, mode, seed);
    if kind == Kind::ListenerDropsHandle {
        return run.drop_handle_in_listener();
    }
    run.open().unwrap();
    if !kind.is_of_first_write() {
        run.write(3..25);
    }
    run.arm();
    run.work_disturbed();
    run.end_disturbance();
    run.check_works();
    run.has_fired()
}

#[derive(Clone, Debug)]
enum Action {
    Put(Vec<u8>),
    Delete,
    Merge(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Change {
    keyspace: usize,
    key: Vec<u8>,
    action: Action,
}

/// A writer that changes only keys with its own prefix, and the expected contents of these keys.
#[derive(Debug)]
struct Writer {
    prefix: String,
    rng: TestRng,
    number: u64,
    state: [BTreeMap<Vec<u8>, Vec<u8>>; 2],
    /// The acknowledged commits, by number.
    acknowledged: Vec<(u64, Vec<Change>)>,
    /// Commits that failed. Each of them may be stored nevertheless.
    doubtful: Vec<(u64, Vec<Change>)>,
}

impl Writer {
    fn new(id: usize, seed: u64) -> Writer {
        let (number, state, acknowledged, doubtful) = Default::default();
        let (prefix, rng) = (format!("w{id}-"), TestRng::new(mix_seeds(seed, id as u64)));
        Writer { prefix, rng, number, state, acknowledged, doubtful }
    }

    fn draw(&mut self) -> Vec<Change> {
        self.number += 1;
        let number = self.number.to_be_bytes();
        let mut changes = Vec::new();
        for keyspace in 0..2 {
            let key = format!("{}number", self.prefix).into_bytes();
            changes.push(Change { keyspace, key, action: Action::Put(number.to_vec()) });
        }
        for _ in 0..1 + self.rng.below(4) {
            let keyspace = usize::from(self.rng.is_one_in(2));
            let key = format!("{}{:02}", self.prefix, self.rng.below(24)).into_bytes();
            let mut value = number.to_vec();
            let more = self.rng.below(140);
            value.extend(self.rng.bytes(more));
            let action = match self.rng.below(6) {
                0 => Action::Delete,
                1 | 2 => Action::Merge(value),
                _ => Action::Put(value),
            };
            changes.push(Change { keyspace, key, action });
        }
        changes
    }

    fn apply(&mut self, changes: &[Change]) {
        for Change { keyspace, key, action } in changes {
            let state = &mut self.state[*keyspace];
            match action {
                Action::Put(value) => drop(state.insert(key.clone(), value.clone())),
                Action::Delete => drop(state.remove(key)),
                Action::Merge(operand) => state.entry(key.clone()).or_default().extend(operand),
            }
        }
    }

    /// Makes one commit and records its outcome.
    fn commit(&mut self, db: &Db, keyspaces: &[Keyspace; 2]) {
        let changes = self.draw();
        let mut batch = WriteBatch::new();
        for Change { keyspace, key, action } in &changes {
            let keyspace = &keyspaces[*keyspace];
            match action {
                Action::Put(value) => batch.put(keyspace, key, value),
                Action::Delete => batch.delete(keyspace, key),
                Action::Merge(operand) => batch.merge(keyspace, key, operand),
            };
        }
        match db.write(batch, durability(self.rng.is_one_in(6))) {
            Ok(()) => {
                // After `resume`, the database is writable again and has dropped the failed commits.
                self.doubtful.clear();
                self.apply(&changes);
                self.acknowledged.push((self.number, changes));
            }
            Err(Error::ReadOnly { .. }) => self.doubtful.push((self.number, changes)),
            // The write had no effect.
            Err(_) => {}
        }
    }

    /// Determines which failed commits are stored, and compares all keys of this writer with the expected contents.
    ///
    /// `may_lose` states that the database was reopened after an error without `resume`. The last unsynced commits may
    /// then be lost.
    fn check(&mut self, keyspaces: &[Keyspace; 2], may_lose: bool) {
        let shown = keyspaces.each_ref().map(|keyspace| {
            let value = keyspace.get(format!("{}number", self.prefix)).unwrap();
            let bytes = value.and_then(|value| value[..].try_into().ok());
            bytes.map_or(0, u64::from_be_bytes)
        });
        let prefix = &self.prefix;
        assert_eq!(shown[0], shown[1], "{prefix}: commit numbers in the two keyspaces");
        if may_lose && self.acknowledged.last().is_some_and(|(last, _)| *last > shown[0]) {
            self.acknowledged.retain(|(number, _)| *number <= shown[0]);
            self.state = Default::default();
            for (_, changes) in self.acknowledged.clone() {
                self.apply(&changes);
            }
        }
        // If several consecutive commits failed, only the first of them may be in the log. `resume` may have dropped
        // it.
        for (number, changes) in std::mem::take(&mut self.doubtful) {
            if number == shown[0] {
                self.apply(&changes);
                self.acknowledged.push((number, changes));
            }
        }
        let prefix = &self.prefix;
        for (keyspace, state) in keyspaces.iter().zip(&self.state) {
            let name = keyspace.name();
            let entries = keyspace.prefix(prefix).map(|entry| entry.unwrap());
            let found: BTreeMap<_, _> = entries.map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            assert!(found == *state, "{prefix}: a scan of {name} is wrong");
            for key in (0..24).map(|key| format!("{prefix}{key:02}")) {
                let found = keyspace.get(&key).unwrap();
                let expected = state.get(key.as_bytes()).map(Vec::as_slice);
                assert!(found.as_deref() == expected, "{key} of {name} has a wrong value");
            }
        }
    }
}

struct HistoryRun {
    kind: Kind,
    mode: Mode,
    rng: TestRng,
    disk: MemVfs,
    vfs: FaultVfs,
    trigger: Trigger,
    listener: CallingListener,
    keyspace_options: [KeyspaceOptions; 2],
    writers: Vec<Writer>,
    open: Option<(Db, [Keyspace; 2])>,
    copies: u64,
    /// Whether the database was reopened after an error without `resume`.
    may_lose: bool,
}

impl HistoryRun {
    fn new(kind: Kind, mode: Mode, seed: u64) -> HistoryRun {
        let mut rng = TestRng::new(seed);
        let disk = MemVfs::new();
        disk.set_capacity(Some(1 << 30));
        let trigger = Trigger::default();
        let with_store = rng.is_one_in(3) || kind.needs_store();
        let keyspace_options =
            [0, 1].map(|at| draw_keyspace(&mut rng, kind, &trigger, with_store && at == 1));
        HistoryRun {
            kind,
            mode,
            rng,
            vfs: FaultVfs::new(Arc::new(disk.clone()), seed),
            disk,
            listener: CallingListener { trigger: trigger.clone(), ..CallingListener::default() },
            trigger,
            keyspace_options,
            writers: (0..2).map(|id| Writer::new(id, seed)).collect(),
            open: None,
            copies: 0,
            may_lose: false,
        }
    }

    fn draw_options(&mut self, background: Background) -> Options {
        let keyspace = self.keyspace_options[0].clone();
        options::draw_without_metrics_file(&mut self.rng, background).keyspace_defaults(keyspace)
    }

    fn open(&mut self) -> lsmx::Result<()> {
        let background = match self.mode {
            Mode::Inline => Background::Inline,
            Mode::Stepped => {
                let workers = 1 + self.rng.below(2_usize);
                Background::Stepped { seed: self.rng.next_u64(), workers }
            }
            Mode::Threads => Background::Threads { workers: 1 },
        };
        let options = self.draw_options(background).listener(Arc::new(self.listener.clone()));
        let db = open_with(&self.vfs, options)?;
        db.env().limit_steps(STEPS_MAX);
        let other = db.keyspace("other", self.keyspace_options[1].clone())?;
        self.open = Some((db.clone(), [db.default_keyspace(), other]));
        Ok(())
    }

    fn opened(&self) -> (Db, [Keyspace; 2]) {
        self.open.clone().expect("the database is not open")
    }

    /// Runs both writers, on two threads unless background work is inline.
    fn write(&mut self, counts: std::ops::Range<u64>) {
        let (db, keyspaces) = self.opened();
        let (mut threads, mut finished) = (Vec::new(), Vec::new());
        for mut writer in std::mem::take(&mut self.writers) {
            let count = counts.start + self.rng.below(counts.end - counts.start);
            let shared = Arc::new(Mutex::new(None));
            finished.push(Arc::clone(&shared));
            let (own, keyspaces) = (db.clone(), keyspaces.clone());
            let body = move || {
                (0..count).for_each(|_| writer.commit(&own, &keyspaces));
                drop((own, keyspaces));
                *lock(&shared) = Some(writer);
            };
            if self.mode == Mode::Inline {
                body();
            } else {
                threads.push(db.env().spawn("writer", body).unwrap());
            }
        }
        if self.mode != Mode::Inline {
            for _ in 0..self.rng.below(5) {
                self.make_disturbed_call(&db, &keyspaces);
            }
        }
        for thread in threads {
            let joined = db.env().join(thread);
            joined.unwrap_or_else(|panic| panic!("a writer panicked: {}", panic_text(&*panic)));
        }
        self.writers = finished.iter().map(|writer| lock(writer).take().unwrap()).collect();
    }

    fn arm(&mut self) {
        let nth = self.rng.below(self.kind.calls_before_max());
        let sticky = self.kind.is_sticky();
        let eio = Fault::Error(Errno::Io);
        let rule = match self.kind {
            Kind::Error { call, errno, .. } => {
                FaultRule::new(Fault::Error(errno)).for_calls(&[call])
            }
            Kind::AlteredRead { file } => {
                FaultRule::new(Fault::AlteredRead).path_where(move |path| file_kind(path) == file)
            }
            Kind::VfsPanic { call } => {
                let hook = |call, path: &Path| panic!("{MARK} in {call:?} of {}", path.display());
                self.vfs.set_delay_hook(Some(Arc::new(hook)));
                FaultRule::new(Fault::Delay).for_calls(&[call])
            }
            Kind::ListenerResumes => {
                *lock(&self.listener.resumes) = self.open.as_ref().map(|(db, _)| db.clone());
                FaultRule::new(eio).for_calls(&[VfsCall::Append, VfsCall::Sync])
            }
            Kind::UserPanic { site, .. } => {
                self.trigger.arm(site, nth, sticky);
                if site != "StoreAbandon" {
                    return;
                }
                // An operand store abandons a delivery only if the flush fails. The test therefore also makes a sync
                // fail.
                FaultRule::new(eio).for_calls(&[VfsCall::Sync])
            }
            Kind::StuckPolicy => return self.trigger.block_policy(),
            Kind::ListenerDropsHandle | Kind::Hang { .. } => return,
        };
        let rule = rule.nth(nth);
        self.vfs.add_rule(if sticky { rule.from_then_on() } else { rule });
    }

    fn has_fired(&self) -> bool {
        match self.kind {
            Kind::UserPanic { .. } | Kind::StuckPolicy => self.trigger.fired() > 0,
            Kind::ListenerResumes | Kind::ListenerDropsHandle => *lock(&self.listener.calls) > 0,
            _ => !self.vfs.fired_counts().is_empty(),
        }
    }

    /// Writes, reads and sometimes reopens the database while faults are injected. Every call may fail.
    fn work_disturbed(&mut self) {
        for _ in 0..2 + self.rng.below(3) {
            self.write(5..20);
            let (db, keyspaces) = self.opened();
            for _ in 0..self.rng.below(4) {
                self.make_disturbed_call(&db, &keyspaces);
            }
            self.read_disturbed(&db, &keyspaces);
        }
        if self.kind.is_of_open() || self.rng.is_one_in(4) {
            let (db, _) = self.opened();
            self.open = None;
            *lock(&self.listener.resumes) = None;
            self.may_lose = db.close(None).is_err();
            drop(db);
            if let Err(error) = self.open() {
                self.open = None;
                // For `StoreAbandon`, the test also injects a sync error, which may make the open fail.
                let is_disturbed = self.has_fired() || !self.vfs.fired_counts().is_empty();
                assert!(is_disturbed, "the open fails: {error:?}");
            }
        }
    }

    /// Reads keys and metrics. Reads may fail.
    fn read_disturbed(&mut self, db: &Db, keyspaces: &[Keyspace; 2]) {
        drop(db.metrics());
        for keyspace in keyspaces {
            for _ in 0..6 {
                let key = format!("w{}-{:02}", self.rng.below(2), self.rng.below(24));
                drop(keyspace.get(key));
            }
            keyspace.iter().take_while(Result::is_ok).for_each(drop);
        }
    }

    /// Makes a random call. The result may be an error, but the call must return.
    fn make_disturbed_call(&mut self, db: &Db, keyspaces: &[Keyspace; 2]) {
        let at = usize::from(self.rng.is_one_in(2));
        match self.rng.below(12) {
            0 => drop(db.flush()),
            1 => drop(db.sync()),
            2 => drop(keyspaces[at].compact_range::<&[u8]>(..)),
            3 => drop(db.keyspace("passing", KeyspaceOptions::default().memtable_bytes(1024))),
            4 => drop(db.drop_keyspace("passing")),
            5 => {
                self.copies += 1;
                drop(db.checkpoint(format!("copy-{}", self.copies)));
            }
            6 => drop(db.wait_idle()),
            7 if db.health().read_only.is_some() => drop(db.resume()),
            8 => drop(db.metrics()),
            _ => keyspaces[at].iter().take_while(Result::is_ok).for_each(drop),
        }
    }

    fn end_disturbance(&mut self) {
        self.vfs.clear_rules();
        self.vfs.set_delay_hook(None);
        self.trigger.disarm();
        *lock(&self.listener.resumes) = None;
        if self.open.is_none() {
            self.open().unwrap();
        }
        let (db, _) = self.opened();
        db.env().limit_steps(STEPS_MAX);
        if let Some(cause) = db.health().read_only {
            self.check_cause(&cause);
            let resumed = db.resume();
            assert!(resumed.is_ok(), "resume fails without faults: {resumed:?}, cause {cause:?}");
        }
    }

    /// Checks that the cause of the read-only state names the code that panicked, a file system or an operand store.
    /// Panics of a policy, a listener or a merge operator must not make the database read-only.
    fn check_cause(&self, cause: &Error) {
        let code = match self.kind {
            Kind::UserPanic { site: "StoreAbandon", .. } => return,
            Kind::VfsPanic { .. } => "the file system panicked",
            Kind::UserPanic { site, .. } if is_store_site(site) => {
                "operand store \"plain\" panicked"
            }
            Kind::UserPanic { .. } => "no cause is possible",
            _ => return,
        };
        let mut text = cause.to_string();
        let mut source = std::error::Error::source(cause);
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        let is_named = text.contains(code) && text.contains(MARK);
        assert!(is_named, "the database is read-only because {text}; expected: {code}");
    }

    /// Checks that every keyspace can be written, flushed, read and closed, and that background work ends.
    fn check_works(&mut self) {
        let (db, keyspaces) = self.opened();
        self.writers.iter_mut().for_each(|writer| writer.check(&keyspaces, self.may_lose));
        // With real threads, the test sleeps during each pause. The first pause is therefore short, and later pauses
        // double up to a limit.
        let pause_us = |time: u64| match self.mode {
            Mode::Threads => 200_000 << time.min(4),
            _ => 61_000_000,
        };
        let mut reports = 0;
        let mut put = |keyspace: &Keyspace, number: u64| {
            loop {
                match keyspace.put(format!("z-{number:04}"), [7; 90]) {
                    Err(Error::ReadOnly { cause }) => panic!("a put fails: {cause:?}"),
                    // Failed background work may wait up to one minute for a retry. `resume` ends the wait.
                    Err(_) if reports < REPORTS_MAX => {
                        reports += 1;
                        if reports == REPORTS_MAX / 2 {
                            db.resume().unwrap();
                        }
                    }
                    done => return done.unwrap(),
                }
                db.env().pause_us(pause_us(reports));
            }
        };
        for number in 0..WRITES_AFTER {
            keyspaces.iter().for_each(|keyspace| put(keyspace, number));
        }
        db.flush().unwrap();
        let mut idle = Ok(());
        for round in 0..ROUNDS_MAX {
            idle = db.wait_idle();
            if idle.is_ok() {
                break;
            }
            db.env().pause_us(pause_us(round));
            if round == ROUNDS_MAX / 2 {
                db.resume().unwrap();
            }
            keyspaces.iter().for_each(|keyspace| put(keyspace, 1000 + round));
            db.flush().unwrap();
        }
        idle.unwrap();
        db.sync().unwrap();
        self.writers.iter_mut().for_each(|writer| writer.check(&keyspaces, false));
        self.open = None;
        drop(keyspaces);
        db.close(None).unwrap();
        drop(db);
        oracle::verify(&self.disk).unwrap();
        self.mode = Mode::Inline;
        self.open().unwrap();
        let (db, keyspaces) = self.opened();
        self.writers.iter_mut().for_each(|writer| writer.check(&keyspaces, false));
        self.open = None;
        drop(keyspaces);
        db.close(None).unwrap();
    }

    /// The listener drops the last handle on a thread of the engine. The database must then close.
    fn drop_handle_in_listener(&mut self) -> bool {
        self.open().unwrap();
        let (db, keyspaces) = self.opened();
        let env = db.env().clone();
        // The listener may receive the handle before the flush of the last writes ends.
        for number in 0..20 + self.rng.below(60) {
            let key = if number == 0 { "k".into() } else { number.to_string() };
            keyspaces[0].put(key, [7; 100]).unwrap();
        }
        self.open = None;
        drop(keyspaces);
        *lock(&self.listener.drops) = Some(db);
        env.pause_us(100_000);
        let has_fired = self.has_fired();
        let kept = lock(&self.listener.drops).take();
        drop(kept);
        for _ in 0..1_000 {
            let options = self.draw_options(Background::Inline);
            match open_with(&self.vfs, options) {
                Err(Error::Locked { .. }) => env.pause_us(10_000),
                opened => {
                    let found = opened.unwrap().get("k").unwrap();
                    assert_eq!(found.as_deref(), Some(&[7; 100][..]), "a put is lost");
                    return has_fired;
                }
            }
        }
        panic!("the database does not close")
    }
}

/// Returns random options of a keyspace, including the user code that the fault needs.
fn draw_keyspace(
    rng: &mut TestRng,
    kind: Kind,
    trigger: &Trigger,
    with_store: bool,
) -> KeyspaceOptions {
    let policy = options::draw_policy(rng);
    let operator = FaultyOperator { trigger: trigger.clone(), partial_merges: rng.is_one_in(2) };
    // A custom policy has no bound for deleted values.
    let drawn = options::draw_keyspace(rng).merge_operator(operator).delete_persistence(None);
    let drawn = if kind.needs_policy() {
        let (inner, trigger) = (policy.build(), trigger.clone());
        drawn.policy(Arc::new(FaultyPolicy { inner, trigger }))
    } else {
        drawn.policy(policy)
    };
    if !with_store {
        return drawn;
    }
    let lazy = rng.is_one_in(2) || matches!(kind, Kind::AlteredRead { .. });
    let inner = SimpleStore { collect_after: 1 + rng.below(4), to_tree_one_in: 1, lazy };
    drawn.operand_store(FaultyStores { inner, trigger: trigger.clone() })
}

//! A seeded history with one disturbance: two writers and a thread that flushes, reads, copies and reopens. When the
//! disturbance has ended, every call must end and every keyspace must work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lsmx::env::Background;
use lsmx::internals::vfs::{Fault, FaultRule, FaultVfs};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Options, WriteBatch};
use lsmx_testkit::simple_store::SimpleStore;
use lsmx_testkit::{TestRng, mix_seeds};

use super::super::coverage::file_kind;
use super::super::{Outcome, options, oracle};
use super::disturbance::{Kind, Mode};
use super::user_code::{Listener, MARK, Operator, Policy, Site, Stores, Trigger, lock};

const DIR: &str = "db";
const NAMES: [&str; 2] = ["default", "other"];
/// Steps that a schedule may take before the disturbance ends, and again afterwards. A history takes some thousand.
const STEPS_MAX: u64 = 60_000;
/// Writes to each keyspace that must succeed afterwards.
const WRITES_AFTER: u64 = 30;
/// Writes that may report failed background work afterwards: each failure is reported once.
const REPORTS_MAX: u64 = 8;
/// Rounds of a pause and a write after which the tree must have settled.
const ROUNDS_MAX: u64 = 8;

/// Plays a history; returns whether the disturbance took effect.
pub(crate) fn play(kind: Kind, mode: Mode, seed: u64) -> Outcome<bool> {
    let mut run = Run::new(kind, mode, seed);
    if kind == Kind::ListenerDropsHandle {
        return run.drop_in_listener();
    }
    run.open()?;
    if !kind.is_of_first_write() {
        run.write(3..25).map_err(|what| format!("before the disturbance: {what}"))?;
    }
    run.arm();
    run.disturbed()?;
    run.end_disturbance()?;
    run.works_again()?;
    Ok(run.fired())
}

/// A change of one key of a writer.
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

/// A writer with keys of its own, and what these hold.
#[derive(Debug)]
struct Writer {
    id: usize,
    rng: TestRng,
    number: u64,
    state: [BTreeMap<Vec<u8>, Vec<u8>>; 2],
    /// Commits that were acknowledged, with their numbers.
    acknowledged: Vec<(u64, Vec<Change>)>,
    /// Commits that failed with an error that leaves open whether they took effect.
    doubtful: Vec<(u64, Vec<Change>)>,
}

impl Writer {
    fn new(id: usize, seed: u64) -> Writer {
        let (state, acknowledged, doubtful) = Default::default();
        Writer { id, rng: TestRng::new(seed), number: 0, state, acknowledged, doubtful }
    }

    fn prefix(&self) -> String {
        format!("w{}-", self.id)
    }

    fn draw(&mut self) -> Vec<Change> {
        self.number += 1;
        let prefix = self.prefix();
        let number = self.number.to_be_bytes();
        let mut changes = Vec::new();
        for keyspace in 0..2 {
            let key = format!("{prefix}number").into_bytes();
            changes.push(Change { keyspace, key, action: Action::Put(number.to_vec()) });
        }
        for _ in 0..1 + self.rng.below(4) {
            let keyspace = usize::from(self.rng.is_one_in(2));
            let key = format!("{prefix}{:02}", self.rng.below(24)).into_bytes();
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

    /// Commits once. An error is returned with the writer's state as it may be.
    fn commit(&mut self, db: &Db, keyspaces: &[Keyspace; 2]) -> Result<(), Error> {
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
        let sync = self.rng.is_one_in(6);
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        let written = db.write(batch, durability);
        match &written {
            Ok(()) => {
                // The database was resumed meanwhile: nothing of a commit that failed comes back.
                self.doubtful.clear();
                self.apply(&changes);
                self.acknowledged.push((self.number, changes));
            }
            Err(Error::ReadOnly { .. }) => self.doubtful.push((self.number, changes)),
            // Nothing of the write was done.
            Err(_) => {}
        }
        written
    }

    /// Finds out which of the doubtful commits took effect, and compares everything.
    ///
    /// `may_lose`: the database was reopened after an error without `resume`, so of the acknowledged commits that were not
    /// synced only a prefix need be there.
    fn settle(&mut self, keyspaces: &[Keyspace; 2], may_lose: bool) -> Outcome {
        let failed = |error: Error| format!("a read fails: {error:?}");
        let prefix = self.prefix();
        let mut shown = [0; 2];
        for (shown, keyspace) in shown.iter_mut().zip(keyspaces) {
            let value = keyspace.get(format!("{prefix}number")).map_err(failed)?;
            let bytes = value.and_then(|value| value[..].try_into().ok());
            *shown = bytes.map_or(0, u64::from_be_bytes);
        }
        if shown[0] != shown[1] {
            return Err(format!("writer {}: the keyspaces show commits {shown:?}", self.id));
        }
        if may_lose && self.acknowledged.last().is_some_and(|(last, _)| *last > shown[0]) {
            self.acknowledged.retain(|(number, _)| *number <= shown[0]);
            self.state = Default::default();
            for (_, changes) in self.acknowledged.clone() {
                self.apply(&changes);
            }
        }
        // Of the commits that fail one after the other only the first may be in the log, and `resume` decides against it.
        for (number, changes) in std::mem::take(&mut self.doubtful) {
            if number == shown[0] {
                self.apply(&changes);
                self.acknowledged.push((number, changes));
            }
        }
        for (keyspace, state) in keyspaces.iter().zip(&self.state) {
            let found: Result<BTreeMap<_, _>, _> = keyspace
                .prefix(&prefix)
                .map(|item| item.map(|(key, value)| (key.to_vec(), value.to_vec())))
                .collect();
            if found.map_err(failed)? != *state {
                return Err(format!(
                    "writer {}: a scan of {:?} is wrong",
                    self.id,
                    keyspace.name()
                ));
            }
            for key in (0..24).map(|key| format!("{prefix}{key:02}")) {
                let found = keyspace.get(&key).map_err(failed)?;
                if found.as_deref() != state.get(key.as_bytes()).map(Vec::as_slice) {
                    return Err(format!("{key} of {:?} has a wrong value", keyspace.name()));
                }
            }
        }
        Ok(())
    }
}

struct Run {
    kind: Kind,
    mode: Mode,
    rng: TestRng,
    disk: MemVfs,
    vfs: FaultVfs,
    trigger: Trigger,
    listener: Listener,
    tuning: [KeyspaceOptions; 2],
    writers: Vec<Writer>,
    open: Option<(Db, [Keyspace; 2])>,
    copies: u64,
    /// Whether it was reopened after an error without `resume`.
    may_lose: bool,
}

impl Run {
    fn new(kind: Kind, mode: Mode, seed: u64) -> Run {
        let mut rng = TestRng::new(seed);
        let disk = MemVfs::new();
        // Without a bound it can keep no room in reserve.
        disk.set_capacity(Some(1 << 30));
        let trigger = Trigger::default();
        let listener = Listener { trigger: trigger.clone(), ..Listener::default() };
        let with_store = rng.is_one_in(3) || kind.needs_store();
        let tuning = [0, 1].map(|at| tuning(&mut rng, kind, &trigger, with_store && at == 1));
        let writers = (0..2).map(|id| Writer::new(id, mix_seeds(seed, id as u64))).collect();
        let vfs = FaultVfs::new(Arc::new(disk.clone()), seed);
        let (open, copies, may_lose) = (None, 0, false);
        Run {
            kind,
            mode,
            rng,
            disk,
            vfs,
            trigger,
            listener,
            tuning,
            writers,
            open,
            copies,
            may_lose,
        }
    }

    fn options(&mut self) -> Options {
        let background = match self.mode {
            Mode::Inline => Background::Inline,
            Mode::Stepped => {
                let workers = usize::try_from(1 + self.rng.below(2)).unwrap_or(1);
                Background::Stepped { seed: self.rng.next_u64(), workers }
            }
            Mode::Threads => Background::Threads { workers: 1 },
        };
        options::draw(&mut self.rng, background)
            .listener(Arc::new(self.listener.clone()))
            .keyspace_defaults(self.tuning[0].clone())
    }

    fn open(&mut self) -> Outcome {
        let options = self.options();
        let opened = Db::open(DIR, options.vfs(Arc::new(self.vfs.clone()) as Arc<dyn Vfs>));
        let db = opened.map_err(|error| format!("opening fails: {error:?}"))?;
        db.env().limit_steps(STEPS_MAX);
        let other = db.keyspace(NAMES[1], self.tuning[1].clone());
        let other = other.map_err(|error| format!("making a keyspace fails: {error:?}"))?;
        self.open = Some((db.clone(), [db.default_keyspace(), other]));
        Ok(())
    }

    fn opened(&self) -> Outcome<(Db, [Keyspace; 2])> {
        self.open.clone().ok_or_else(|| "the database is not open".to_owned())
    }

    /// Lets both writers commit, beside each other unless background work is inline.
    fn write(&mut self, counts: std::ops::Range<u64>) -> Outcome {
        let (db, keyspaces) = self.opened()?;
        let mut threads = Vec::new();
        let mut back = Vec::new();
        for mut writer in std::mem::take(&mut self.writers) {
            let count = counts.start + self.rng.below(counts.end - counts.start);
            let shared = Arc::new(Mutex::new(None));
            back.push(Arc::clone(&shared));
            let (own, keyspaces) = (db.clone(), keyspaces.clone());
            let body = move || {
                for _ in 0..count {
                    // What failed shows in what the writer believes afterwards.
                    let _ = writer.commit(&own, &keyspaces);
                }
                drop((own, keyspaces));
                *lock(&shared) = Some(writer);
            };
            if self.mode == Mode::Inline {
                body();
            } else {
                let thread = db.env().spawn("writer", body);
                threads.push(thread.map_err(|error| error.to_string())?);
            }
        }
        if self.mode != Mode::Inline {
            for _ in 0..self.rng.below(5) {
                self.disturbed_call(&db, &keyspaces);
            }
        }
        for thread in threads {
            let env = db.env().clone();
            env.join(thread).map_err(|panic| format!("a writer panics: {}", text(&*panic)))?;
        }
        self.writers = back.iter().filter_map(|writer| lock(writer).take()).collect();
        if self.writers.len() == 2 { Ok(()) } else { Err("a writer is lost".to_owned()) }
    }

    fn arm(&mut self) {
        let nth = self.rng.below(self.kind.reach());
        let sticky = self.kind.is_sticky();
        let hook =
            |call, path: &std::path::Path| panic!("{MARK} in {call:?} of {}", path.display());
        let rule = match self.kind {
            Kind::Error { call, errno, .. } => {
                FaultRule::new(Fault::Error(errno)).for_calls(&[call])
            }
            Kind::AlteredRead { file } => {
                FaultRule::new(Fault::AlteredRead).path_where(move |path| file_kind(path) == file)
            }
            Kind::VfsPanic { call } => {
                self.vfs.set_delay_hook(Some(Arc::new(hook)));
                FaultRule::new(Fault::Delay).for_calls(&[call])
            }
            Kind::ListenerResumes => {
                *lock(&self.listener.resumes) = self.open.as_ref().map(|(db, _)| db.clone());
                let changes =
                    [lsmx::internals::vfs::VfsCall::Append, lsmx::internals::vfs::VfsCall::Sync];
                FaultRule::new(Fault::Error(lsmx::internals::vfs::Errno::Io)).for_calls(&changes)
            }
            Kind::UserPanic { site, .. } => {
                self.trigger.arm(site, nth, sticky);
                if site != Site::StoreAbandon {
                    return;
                }
                // A store is told to abandon a delivery when the flush has failed.
                FaultRule::new(Fault::Error(lsmx::internals::vfs::Errno::Io))
                    .for_calls(&[lsmx::internals::vfs::VfsCall::Sync])
            }
            Kind::StuckPolicy => return self.trigger.get_stuck(),
            Kind::ListenerDropsHandle | Kind::Hang { .. } => return,
        };
        let rule = rule.nth(nth);
        self.vfs.add_rule(if sticky { rule.from_then_on() } else { rule });
    }

    fn fired(&self) -> bool {
        match self.kind {
            Kind::UserPanic { .. } | Kind::StuckPolicy => self.trigger.fired() > 0,
            Kind::ListenerResumes | Kind::ListenerDropsHandle => *lock(&self.listener.calls) > 0,
            _ => !self.vfs.fired_counts().is_empty(),
        }
    }

    /// Works on while calls may fail.
    fn disturbed(&mut self) -> Outcome {
        for _ in 0..2 + self.rng.below(3) {
            self.write(5..20)?;
            let (db, keyspaces) = self.opened()?;
            for _ in 0..self.rng.below(4) {
                self.disturbed_call(&db, &keyspaces);
            }
            self.disturbed_reads(&db, &keyspaces);
        }
        if self.kind.opens() || self.rng.is_one_in(4) {
            let (db, _) = self.opened()?;
            self.open = None;
            *lock(&self.listener.resumes) = None;
            // Its errors are part of the disturbance.
            self.may_lose = db.close(None).is_err();
            drop(db);
            if let Err(what) = self.open() {
                self.open = None;
                // An error that makes a store abandon a delivery may come where there is none.
                if !self.fired() && self.vfs.fired_counts().is_empty() {
                    return Err(what);
                }
            }
        }
        Ok(())
    }

    /// Reads whose errors are part of the disturbance.
    fn disturbed_reads(&mut self, db: &Db, keyspaces: &[Keyspace; 2]) {
        drop(db.metrics());
        for keyspace in keyspaces {
            for _ in 0..6 {
                let key = format!("w{}-{:02}", self.rng.below(2), self.rng.below(24));
                drop(keyspace.get(key));
            }
            keyspace.iter().take_while(Result::is_ok).for_each(drop);
        }
    }

    /// Calls whose errors are part of the disturbance: they must end.
    fn disturbed_call(&mut self, db: &Db, keyspaces: &[Keyspace; 2]) {
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

    fn end_disturbance(&mut self) -> Outcome {
        self.vfs.clear_rules();
        self.vfs.set_delay_hook(None);
        self.trigger.end();
        *lock(&self.listener.resumes) = None;
        if self.open.is_none() {
            self.open().map_err(|what| format!("after the disturbance: {what}"))?;
        }
        let (db, _) = self.opened()?;
        db.env().limit_steps(STEPS_MAX);
        if let Some(cause) = db.health().read_only {
            self.check_cause(&cause)?;
            db.resume().map_err(|error| {
                format!("resume fails though nothing else does: {error:?}, cause {cause:?}")
            })?;
        }
        Ok(())
    }

    /// The cause of the read-only state names the user code that panicked. A policy's panic is no such cause.
    fn check_cause(&self, cause: &Error) -> Outcome {
        let code = match self.kind {
            Kind::UserPanic { site: Site::StoreAbandon, .. } => return Ok(()),
            Kind::VfsPanic { .. } => "the file system panicked",
            Kind::UserPanic { site, .. } if site.is_store() => "operand store \"plain\" panicked",
            Kind::UserPanic { .. } => "nothing else makes it read-only",
            _ => return Ok(()),
        };
        let mut text = cause.to_string();
        let mut source = std::error::Error::source(cause);
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        if text.contains(code) && text.contains(MARK) {
            return Ok(());
        }
        Err(format!("the database is read-only because {text}; expected: {code}"))
    }

    /// Every keyspace takes writes, flushes, settles, reads and closes, within bounds.
    fn works_again(&mut self) -> Outcome {
        let (db, keyspaces) = self.opened()?;
        let failed = |what: &'static str| move |error: Error| format!("{what} fails: {error:?}");
        for writer in &mut self.writers {
            writer.settle(&keyspaces, self.may_lose)?;
        }
        // Real time passes by itself; a pause after a failure is short at first and doubles.
        let pause_us = |time: u64| match self.mode {
            Mode::Threads => 200_000 << time.min(4),
            _ => 61_000_000,
        };
        let mut reports = 0;
        let mut put = |keyspace: &Keyspace, number: u64| {
            loop {
                match keyspace.put(format!("z-{number:04}"), [7; 90]) {
                    Err(Error::ReadOnly { cause }) => return Err(Error::ReadOnly { cause }),
                    // Background work failed during the disturbance, and is tried again after a pause. The pause may
                    // have grown to a minute; `resume` ends it.
                    Err(_) if reports < REPORTS_MAX => {
                        reports += 1;
                        if reports == REPORTS_MAX / 2 {
                            db.resume()?;
                        }
                    }
                    done => return done,
                }
                db.env().pause_us(pause_us(reports));
            }
        };
        for number in 0..WRITES_AFTER {
            for keyspace in &keyspaces {
                put(keyspace, number).map_err(failed("a put"))?;
            }
        }
        db.flush().map_err(failed("flush"))?;
        let mut settled = Ok(());
        for round in 0..ROUNDS_MAX {
            settled = db.wait_idle();
            if settled.is_ok() {
                break;
            }
            db.env().pause_us(pause_us(round));
            if round == ROUNDS_MAX / 2 {
                db.resume().map_err(failed("resume"))?;
            }
            for keyspace in &keyspaces {
                put(keyspace, 1000 + round).map_err(failed("a put"))?;
            }
            db.flush().map_err(failed("flush"))?;
        }
        settled.map_err(failed("wait_idle"))?;
        db.sync().map_err(failed("sync"))?;
        for writer in &mut self.writers {
            writer.settle(&keyspaces, false)?;
        }
        self.open = None;
        drop(keyspaces);
        db.close(None).map_err(failed("close"))?;
        drop(db);
        oracle::verify(&self.disk).map_err(failed("verify"))?;
        self.mode = Mode::Inline;
        self.open()?;
        let (db, keyspaces) = self.opened()?;
        for writer in &mut self.writers {
            writer.settle(&keyspaces, false).map_err(|what| format!("after reopening: {what}"))?;
        }
        self.open = None;
        drop(keyspaces);
        db.close(None).map_err(failed("the second close"))
    }

    /// The listener drops the last handle on a thread of the engine: the database closes all the same.
    fn drop_in_listener(&mut self) -> Outcome<bool> {
        self.open()?;
        let (db, keyspaces) = self.opened()?;
        let env = db.env().clone();
        // The last of these fill a memtable, whose flush may end after the handle was given away.
        for number in 0..20 + self.rng.below(60) {
            let put = keyspaces[0]
                .put(if number == 0 { "k".into() } else { number.to_string() }, [7; 100]);
            put.map_err(|error| format!("a put fails: {error:?}"))?;
        }
        self.open = None;
        drop(keyspaces);
        *lock(&self.listener.drops) = Some(db);
        env.pause_us(100_000);
        let fired = self.fired();
        let kept = lock(&self.listener.drops).take();
        drop(kept);
        for _ in 0..1_000 {
            let options = options::draw(&mut self.rng, Background::Inline)
                .keyspace_defaults(self.tuning[0].clone());
            match Db::open(DIR, options.vfs(Arc::new(self.vfs.clone()) as Arc<dyn Vfs>)) {
                Ok(db) => {
                    let there = db.get("k").map_err(|error| format!("a read fails: {error:?}"))?;
                    let right = there.as_deref() == Some(&[7; 100]);
                    return if right { Ok(fired) } else { Err("a put is lost".to_owned()) };
                }
                Err(Error::Locked { .. }) => env.pause_us(10_000),
                Err(error) => return Err(format!("opening fails: {error:?}")),
            }
        }
        Err("the database does not close".to_owned())
    }
}

/// Options of a keyspace with the user code that a kind needs.
fn tuning(rng: &mut TestRng, kind: Kind, trigger: &Trigger, with_store: bool) -> KeyspaceOptions {
    let policy = options::draw_policy(rng);
    let partially = rng.is_one_in(2);
    let operator = Operator { trigger: trigger.clone(), partially };
    let tuned = options::draw_keyspace(rng).merge_operator(operator);
    let tuned = if kind.needs_policy() {
        let (inner, trigger) = (policy.build(), trigger.clone());
        tuned.policy(Arc::new(Policy { inner, trigger }))
    } else {
        tuned.policy(policy)
    };
    if !with_store {
        return tuned;
    }
    let lazy = rng.is_one_in(2) || matches!(kind, Kind::AlteredRead { .. });
    let inner = SimpleStore { collect_after: 1 + rng.below(4), to_tree_one_in: 1, lazy };
    tuned.operand_store(Stores { inner, trigger: trigger.clone() })
}

/// What a panic says.
pub(crate) fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

/// Whether a site is reached when databases are opened.
pub(crate) fn is_of_opening(site: Site) -> bool {
    site == Site::StoreOpen
}

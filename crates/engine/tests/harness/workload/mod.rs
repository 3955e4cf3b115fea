//! A random run of a database with every kind of job. The run records which commits must survive.

use std::path::Path;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::{CallCounts, CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, Keyspace, KeyspaceOptions, PolicySpec, Snapshot};
use lsmx_testkit::TestRng;
use lsmx_testkit::world::{Pairs, compare_pairs};

use super::coverage::Coverage;
use super::history::{History, KEYSPACES, advance_to_next_hour, key};
use super::oracle::{self, DIR, Trouble};
use super::passing::{self, Checkpoint};
use super::recorder::{Crash, Recorder, Sampling};
use super::{Outcome, options};

mod keyspaces;
mod reopening;
mod writes;

/// Prefix of the names of checkpoints.
const COPY: &str = "copy-";

/// The file system calls that fail during a run.
#[derive(Clone, Debug)]
pub(crate) enum Faults {
    None,
    /// Random calls that change the file system fail.
    Random,
    /// Every call that matches the rule fails, until the run has handled the first failure.
    By(FaultRule),
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Name of the run in `LSMX_TEST_REPLAY`.
    pub(crate) name: String,
    pub(crate) seed: u64,
    /// Number of steps. On average seven of ten steps are commits.
    pub(crate) steps: u64,
    /// Whether the run closes and reopens the database. Each open starts a new manifest, so manifests grow long only
    /// without reopens.
    pub(crate) reopens: bool,
    /// The compaction policy of the first open.
    pub(crate) policy: PolicySpec,
    pub(crate) background: Background,
    /// Failing calls.
    pub(crate) faults: Faults,
    /// Which disk images the run takes.
    pub(crate) sampling: Sampling,
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) crashes: Vec<Crash>,
    /// One history of commits for each epoch.
    pub(crate) histories: Vec<History>,
    pub(crate) operations: u64,
    pub(crate) calls: CallCounts,
    /// Whether an injected fault occurred.
    pub(crate) fired: bool,
}

/// A snapshot and its expected contents.
struct Still {
    snapshot: Snapshot,
    /// Contents of each keyspace.
    contents: Vec<Pairs>,
}

struct Open {
    // The fields are dropped in the order of their declaration. Dropping the last handle, `db`, closes the database.
    stills: Vec<Still>,
    keyspaces: Vec<Keyspace>,
    passing: Option<Keyspace>,
    db: Db,
}

struct Run<'a> {
    plan: &'a Plan,
    rng: TestRng,
    disk: MemVfs,
    vfs: FaultVfs,
    recorder: Arc<Recorder>,
    coverage: Arc<Coverage>,
    histories: Vec<History>,
    open: Option<Open>,
    /// Whether a fault rule is active.
    armed: bool,
    /// Number of background failures before this run, plus the number of writes that have returned one since.
    excused: u64,
    /// Number of file system calls until the run removed the fault rules at its end.
    calls: CallCounts,
}

pub(crate) fn play(plan: &Plan, coverage: &Arc<Coverage>) -> Outcome<Played> {
    let disk = MemVfs::new();
    let stores = options::Stores::of_seed(plan.seed);
    options::set_stores(stores);
    let recorder = Recorder::watch(&disk, plan.seed, plan.sampling, coverage);
    recorder.promises().stores = stores;
    let mut run = Run {
        plan,
        rng: TestRng::new(plan.seed),
        vfs: FaultVfs::new(Arc::new(disk.clone()), plan.seed),
        disk,
        recorder,
        coverage: Arc::clone(coverage),
        histories: vec![History::default()],
        open: None,
        armed: false,
        excused: coverage.count("jobs", "background failure"),
        calls: CallCounts::default(),
    };
    let played = run.play();
    run.open = None;
    let operations = run.disk.operations();
    run.disk.set_observer(None);
    for (fault, count) in run.vfs.fired_counts() {
        coverage.add_many("faults", fault_name(fault), count);
    }
    played?;
    Ok(Played {
        crashes: run.recorder.take(),
        histories: run.histories,
        operations,
        calls: run.calls,
        fired: !run.vfs.fired_counts().is_empty(),
    })
}

fn fault_name(fault: Fault) -> &'static str {
    match fault {
        Fault::Error(Errno::Io) => "EIO",
        Fault::Error(Errno::NoSpace) => "ENOSPC",
        Fault::Error(Errno::TooManyFiles) => "EMFILE",
        Fault::Error(Errno::FileTooLarge) => "EFBIG",
        Fault::ShortRead => "short read",
        Fault::AlteredRead => "altered read",
        Fault::ShortWrite(_) => "short write",
        Fault::Delay => "delay",
    }
}

/// Fails unless an injected fault may have caused the error. A fault must have occurred, and the error must name a
/// file.
fn excuse(
    armed: bool,
    vfs: &FaultVfs,
    coverage: &Coverage,
    what: &'static str,
    error: &Error,
) -> Outcome {
    if !armed || vfs.fired_counts().is_empty() {
        return Err(format!("{what} fails: {error:?}"));
    }
    // A new database also syncs the root directory, so the error may name it.
    match file_of(error) {
        Some(path)
            if path.starts_with(DIR)
                || path == Path::new(".")
                || path.to_string_lossy().starts_with(COPY) =>
        {
            coverage.add("failed calls", what);
            Ok(())
        }
        _ => Err(format!("{what} fails without naming a file: {error:?}")),
    }
}

fn file_of(error: &Error) -> Option<&Path> {
    match error {
        Error::Io { path, .. } | Error::Corrupt { path, .. } => Some(path),
        // A read that alters one bit of a file header may cause this error.
        Error::UnsupportedVersion { path, .. } => Some(path),
        Error::ReadOnly { cause }
        | Error::Background { cause, .. }
        | Error::CompactionBlocked { cause, .. }
        | Error::NoOperandStore { cause: Some(cause), .. } => file_of(cause),
        _ => None,
    }
}

impl Run<'_> {
    fn play(&mut self) -> Outcome {
        if let Faults::By(rule) = &self.plan.faults {
            self.vfs.add_rule(rule.clone());
            self.armed = true;
        }
        self.reopen(Some(self.plan.policy.clone()))?;
        for step in 0..self.plan.steps {
            let second = step >= self.plan.steps / 5 && self.opened()?.keyspaces.len() == 1;
            let done = if second { self.create_keyspace() } else { self.step() };
            done.map_err(|what| format!("step {step}: {what}"))?;
            self.recover_if_failed().map_err(|what| format!("step {step}: {what}"))?;
        }
        self.check_live()?;
        self.close()?;
        self.calls = self.vfs.call_counts();
        self.disarm();
        oracle::verify(&self.disk).map_err(|error| format!("verify after the run: {error:?}"))?;
        self.reopen(None)?;
        self.close()?;
        oracle::verify_clean(&self.disk)
    }

    fn step(&mut self) -> Outcome {
        match self.rng.below(100) {
            0..70 => self.commit(),
            70..74 => self.sync(false),
            74..78 => self.sync(true),
            78..82 => self.change_options(),
            82..85 if self.plan.reopens => {
                self.close()?;
                self.reopen(None)
            }
            85..89 => self.look_through_a_snapshot(),
            89 => self.ingest(),
            90 => self.advance_clock(),
            91 => self.check_live(),
            92 => self.ingest(),
            93..95 => self.come_and_go(),
            95 => self.clone_or_drop_clone(),
            96 => self.checkpoint(),
            97 => self.compact_range(),
            98 if options::has_stores() => self.operands_to_tree(),
            _ => {
                if matches!(self.plan.faults, Faults::Random) && !self.armed {
                    self.arm(12);
                }
                self.advance_clock()
            }
        }
    }

    /// Advances the clock by at most two seconds, or to the next hour, in which more values have expired.
    fn advance_clock(&mut self) -> Outcome {
        let us = self.rng.is_one_in(3).then(|| self.rng.below(2_000_000));
        let db = &self.opened()?.db;
        match us {
            Some(us) => db.env().advance_us(us),
            None => advance_to_next_hour(db),
        }
        Ok(())
    }

    fn history(&self) -> &History {
        &self.histories[self.histories.len() - 1]
    }

    fn opened(&self) -> Outcome<&Open> {
        self.open.as_ref().ok_or_else(|| "the database is not open".to_owned())
    }

    /// Makes one of the next calls fail.
    fn arm(&mut self, within: u64) {
        let changes: Vec<VfsCall> =
            VfsCall::ALL.iter().copied().filter(|call| call.is_mutating()).collect();
        let errno = *self.rng.choose(&Errno::ALL);
        let fault = match self.rng.below(4) {
            0 => Fault::ShortWrite(errno),
            _ => Fault::Error(errno),
        };
        let rule = FaultRule::new(fault).for_calls(&changes).nth(self.rng.below(within));
        self.vfs.add_rule(if self.rng.is_one_in(3) { rule.from_then_on() } else { rule });
        self.armed = true;
    }

    fn disarm(&mut self) {
        self.vfs.clear_rules();
        self.armed = false;
    }

    /// Fails if no injected fault can have caused the error.
    fn excuse(&self, what: &'static str, error: &Error) -> Outcome {
        excuse(self.armed, &self.vfs, &self.coverage, what, error)
    }

    /// Fails if a write returns a background failure that the listener has not received, or that another write has
    /// returned.
    fn excuse_background(&mut self, error: &Error) -> Outcome {
        self.excused += 1;
        if self.coverage.count("jobs", "background failure") < self.excused {
            return Err(format!("nothing has failed, and a write is told: {error:?}"));
        }
        match file_of(error) {
            Some(path) if path.starts_with(DIR) => {
                self.coverage.add("failed calls", "a commit after a job");
                Ok(())
            }
            _ => Err(format!("a job fails without naming a file: {error:?}")),
        }
    }

    fn checkpoint(&mut self) -> Outcome {
        let at = {
            let mut promises = self.recorder.promises();
            let (at, commits) = (promises.checkpoints.len(), promises.committed);
            let path = format!("{COPY}{at}");
            promises.checkpoints.push(Checkpoint { path, commits, done: false });
            at
        };
        let made = self.opened()?.db.checkpoint(format!("{COPY}{at}"));
        let history = self.histories[self.histories.len() - 1].clone();
        match made {
            Ok(()) => {
                self.coverage.add("calls", "checkpoint");
                self.recorder.promises().checkpoints[at].done = true;
                self.all_synced();
            }
            Err(error) => self.excuse("a checkpoint", &error)?,
        }
        // Opening the checkpoint would change its files, so the check uses a copy of the disk.
        let disk = self.disk.crash(CrashImage::Keep, 0);
        let checkpoint = self.recorder.promises().checkpoints[at].clone();
        passing::check_checkpoint(&disk, &checkpoint, &history, &mut self.rng)
    }

    fn compact_range(&mut self) -> Outcome {
        let count = self.opened()?.keyspaces.len() as u64;
        let which = usize::try_from(self.rng.below(count)).unwrap_or(0);
        let (one, other) = (key(self.rng.next_u64()), key(self.rng.next_u64()));
        let (low, high) = if one < other { (one, other) } else { (other, one) };
        match self.opened()?.keyspaces[which].compact_range(low..=high) {
            Ok(()) => {
                self.coverage.add("calls", "compact range");
                Ok(())
            }
            // After a damaged read, a file stays in quarantine until the database is reopened.
            Err(Error::Corrupt { .. }) if !self.vfs.fired_counts().is_empty() => {
                self.coverage.add("failed calls", "compacting a range");
                Ok(())
            }
            Err(error) => self.excuse("compacting a range", &error),
        }
    }

    /// Moves the operands of a keyspace to the tree. The keyspace has no operand store until an open names one for it.
    fn operands_to_tree(&mut self) -> Outcome {
        let count = self.opened()?.keyspaces.len() as u64;
        let which = usize::try_from(self.rng.below(count)).unwrap_or(0);
        let held = !self.opened()?.stills.is_empty();
        match self.opened()?.keyspaces[which].operands_to_tree() {
            Ok(()) => {
                self.coverage.add("calls", "operands to the tree");
                Ok(())
            }
            Err(Error::SnapshotsHeld { .. }) if held => Ok(()),
            Err(error) => self.excuse("operands to the tree", &error),
        }
    }

    fn change_options(&mut self) -> Outcome {
        let count = self.opened()?.keyspaces.len() as u64;
        let which = usize::try_from(self.rng.below(count)).unwrap_or(0);
        let policy = self.rng.is_one_in(2).then(|| options::draw_policy(&mut self.rng));
        if let Some(policy) = &policy {
            self.recorder.promises().policies[which].push(policy.to_string());
        }
        let add_policy = |options: KeyspaceOptions| match &policy {
            Some(policy) => options.policy(policy.clone()),
            None => options,
        };
        let changed = if self.rng.is_one_in(2) {
            let options = add_policy(options::draw_keyspace(&mut self.rng));
            self.opened()?.db.keyspace(KEYSPACES[which], options).map(drop)
        } else {
            let settings = options::draw_settings(&mut self.rng);
            self.coverage.add("calls", "set options");
            let keyspace = &self.opened()?.keyspaces[which];
            keyspace.set_options(|options| add_policy(settings.apply_to(options)))
        };
        match changed {
            Ok(()) => {
                let kind = if policy.is_some() { "change policy" } else { "change options" };
                self.coverage.add("calls", kind);
                if let Some(policy) = policy {
                    self.recorder.promises().policies[which] = vec![policy.to_string()];
                }
                Ok(())
            }
            Err(error) => self.excuse("changing options", &error),
        }
    }

    /// Takes a snapshot, or compares an older snapshot with its expected contents and drops it.
    fn look_through_a_snapshot(&mut self) -> Outcome {
        let state = self.history().state(self.history().last());
        let take = self.opened()?.stills.is_empty() || self.rng.is_one_in(3);
        let Some(open) = &mut self.open else { return Ok(()) };
        if take {
            let (snapshot, now_us) = (open.db.snapshot(), open.db.env().now_us());
            let states = state[..open.keyspaces.len()].iter();
            let contents = states.map(|contents| contents.at(now_us)).collect();
            open.stills.push(Still { snapshot, contents });
            return Ok(());
        }
        self.coverage.add("calls", "snapshot");
        let still = open.stills.remove(0);
        for (keyspace, pairs) in open.keyspaces.iter().zip(&still.contents) {
            let read = || still.snapshot.iter(keyspace).collect::<Result<Vec<_>, _>>();
            let seen = match read() {
                Ok(seen) => seen,
                Err(error) => {
                    excuse(self.armed, &self.vfs, &self.coverage, "a snapshot", &error)?;
                    self.vfs.clear_rules();
                    self.armed = false;
                    read().map_err(|error| format!("a snapshot: {error:?}"))?
                }
            };
            compare_pairs("snapshot", seen.into_iter().map(Ok), pairs.iter())?;
        }
        Ok(())
    }

    /// Returns the number of commits in the database.
    fn count(&mut self) -> Outcome<u64> {
        match oracle::counter(&self.opened()?.db) {
            Err(Trouble::Failed(error)) => {
                self.excuse("a read", &error)?;
                self.disarm();
                Ok(oracle::counter(&self.opened()?.db)?)
            }
            counted => Ok(counted?),
        }
    }

    /// Compares all contents with the model. A read may fail if a fault was injected. Otherwise all reads must be
    /// correct.
    fn check_live(&mut self) -> Outcome {
        let state = self.history().state(self.history().last());
        let seed = self.rng.next_u64();
        let wrong = |what: String| Err(format!("the running database: {what}"));
        let fired = self.read_errors();
        let compared = oracle::compare(&self.opened()?.db, &state, &mut TestRng::new(seed));
        let hit = self.read_errors() > fired;
        match compared {
            Ok(()) if hit => wrong("a read error was swallowed".to_owned()),
            Ok(()) => Ok(()),
            Err(Trouble::Failed(error)) => {
                self.excuse("a read", &error)?;
                self.disarm();
                let again = oracle::compare(&self.opened()?.db, &state, &mut TestRng::new(seed));
                again.or_else(|trouble| wrong(trouble.into()))
            }
            Err(Trouble::Wrong(what)) => wrong(what),
        }
    }

    /// Returns the number of injected read errors that a call must have returned. Excludes failures for lack of
    /// descriptors, because the engine then closes other files and retries.
    fn read_errors(&self) -> u64 {
        let inline = self.plan.background == Background::Inline;
        let errors = |(fault, count)| match fault {
            Fault::Error(errno) if errno != Errno::TooManyFiles => count,
            _ => 0,
        };
        if inline { self.vfs.fired_counts().into_iter().map(errors).sum() } else { 0 }
    }
}

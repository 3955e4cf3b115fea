//! A random run of a database with every kind of job. The run records which commits must survive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::ingest::{BulkLoadOptions, IngestOptions};
use lsmx::internals::vfs::{CallCounts, CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Options, PolicySpec, Snapshot};
use lsmx_base::file_name::CURRENT;
use lsmx_testkit::TestRng;
use lsmx_testkit::world::{Change, Pairs, compare_pairs};

use super::coverage::Coverage;
use super::history::{
    Commit, History, KEYSPACES, advance_to_next_hour, draw_bulk_load, draw_commit, draw_ingest,
    key, ttl_expiry_us,
};
use super::oracle::{self, CommitKind, DIR, Trouble};
use super::passing::{self, CLONE, Checkpoint, Cloned, NAMES, Passing};
use super::recorder::{Crash, Phase, Presence, Recorder, Sampling};
use super::{Outcome, options};

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

/// Writes the changes as an external table, in key order.
fn write_table<'a>(
    keyspace: &Keyspace,
    path: &Path,
    changes: impl Iterator<Item = &'a Change>,
) -> lsmx::Result<()> {
    let mut sorted = BTreeMap::new();
    for change in changes {
        if let Change::Put(key, _) | Change::Delete(key) = change {
            sorted.insert(key, change);
        }
    }
    let mut table = keyspace.external_table_writer(path)?;
    for (key, change) in sorted {
        match change {
            Change::Put(_, value) => table.put(key, value)?,
            _ => table.delete(key)?,
        }
    }
    table.finish().map(drop)
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

/// Returns the error of a keyspace whose operand store could not be opened, if there is one.
fn without_store(db: &Db) -> Option<Error> {
    let keyspaces =
        db.keyspaces().into_iter().filter_map(|name| db.open_keyspace(&name, None).ok());
    let mut errors = keyspaces.filter_map(|keyspace| keyspace.get("key").err());
    errors.find(|error| matches!(error, Error::NoOperandStore { .. }))
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

    /// Returns the largest sequence number that a commit of `operations` operations may get. If the database is
    /// read-only, returns the current sequence number.
    fn number_given(&self, operations: u64) -> Result<u64, String> {
        let db = &self.opened()?.db;
        let operations = if db.health().read_only.is_some() { 0 } else { operations };
        Ok(db.snapshot().seq().0 + operations)
    }

    fn commit(&mut self) -> Outcome {
        let number = self.recorder.promises().committed + 1;
        let mut rng = self.rng.clone();
        let open = self.opened()?;
        let now_us = open.db.env().now_us();
        let commit = Arc::new(draw_commit(&mut rng, number, open.keyspaces.len(), now_us));
        let kind = CommitKind::random(&mut rng);
        // Depending on the seed, one in 40 commits, one in 5 commits or every commit is synced.
        let sync = match self.plan.seed / 4 % 4 {
            0 => rng.is_one_in(40),
            1 => true,
            _ => rng.is_one_in(5),
        };
        let seq = self.number_given(commit.len() as u64)?;
        let before = {
            let mut promises = self.recorder.promises();
            promises.pending = Some(Arc::clone(&commit));
            let before = promises.seq_largest;
            promises.seq_largest = before.max(seq);
            before
        };
        let written = oracle::write(&open.db, &open.keyspaces, &commit, kind, sync);
        self.rng = rng;
        match written {
            Ok(()) => {
                self.coverage.add("commits", kind.name());
                self.settle_pending(true);
                if sync {
                    self.all_synced();
                }
                Ok(())
            }
            Err(error @ Error::ReadOnly { .. }) => self.excuse("a commit", &error),
            // The hard stop refused the commit, so the commit must not be found later.
            Err(error)
                if self
                    .opened()?
                    .db
                    .health()
                    .compaction_blocked
                    .iter()
                    .any(|it| it.writes_stopped) =>
            {
                self.settle_pending(false);
                self.recorder.promises().seq_largest = before;
                if !file_of(&error).is_some_and(|path| path.starts_with(DIR)) {
                    return Err(format!("a commit at the hard stop names no file: {error:?}"));
                }
                self.coverage.add("failed calls", "a commit at the hard stop");
                Ok(())
            }
            // The commit failed without effect, so it must not be found later.
            Err(error @ Error::Background { .. }) => {
                self.settle_pending(false);
                self.recorder.promises().seq_largest = before;
                self.excuse_background(&error)
            }
            // A read of the transaction failed, so the transaction must not be found later.
            Err(error) if kind != CommitKind::Batch => {
                self.settle_pending(false);
                self.recorder.promises().seq_largest = before;
                self.excuse("a read in a transaction", &error)
            }
            Err(error) => Err(format!("a commit fails: {error:?}")),
        }
    }

    /// Ingests puts and deletes into all keyspaces, which is a durable commit. A keyspace with an operand store refuses
    /// ingests, so the run then commits a batch.
    fn ingest(&mut self) -> Outcome {
        let number = self.recorder.promises().committed + 1;
        let is_bulk_load = self.rng.is_one_in(3);
        let mut rng = self.rng.clone();
        let open = self.opened()?;
        let refuses = |keyspace: &Keyspace| keyspace.options().operand_store.is_some();
        if open.keyspaces.iter().any(refuses) {
            return self.commit();
        }
        if is_bulk_load {
            return self.bulk_load(number);
        }
        let commit = draw_ingest(&mut rng, number, open.keyspaces.len());
        let files: Vec<PathBuf> =
            (0..open.keyspaces.len()).map(|at| format!("{COPY}external-{at}").into()).collect();
        let mut requests = Vec::new();
        for (at, keyspace) in open.keyspaces.iter().enumerate() {
            let changes = commit.iter().filter(|(keyspace, _)| *keyspace == at);
            if let Err(error) = write_table(keyspace, &files[at], changes.map(|(_, it)| it)) {
                files.iter().for_each(|file| drop(self.disk.remove(file)));
                return self.excuse("an external table", &error);
            }
            requests.push((keyspace.clone(), vec![files[at].clone()]));
        }
        let options = IngestOptions::default().copy_files(rng.is_one_in(3));
        let before = self.promise_ingest(commit)?;
        let ingested = open.db.ingest(&requests, options).map(drop);
        drop(requests);
        self.rng = rng;
        files.iter().for_each(|file| drop(self.disk.remove(file)));
        self.settle_ingest("ingest", before, ingested)
    }

    /// Loads entries into the first keyspace in bulk, which is a durable commit.
    fn bulk_load(&mut self, number: u64) -> Outcome {
        let commit = draw_bulk_load(&mut self.rng, number);
        let sorts = self.rng.is_one_in(2);
        let before = self.promise_ingest(commit.clone())?;
        let put = |(_, change): &(usize, Change)| match change {
            Change::Put(key, value) => Some((Arc::clone(key), Arc::clone(value))),
            _ => None,
        };
        let mut entries: Vec<_> = commit.iter().filter_map(put).collect();
        let mut options = BulkLoadOptions::default();
        if sorts {
            options = options.sort_memory_bytes(64 << 10);
        } else {
            entries = entries.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect();
        }
        let loaded = self.opened()?.keyspaces[0].bulk_load(entries, options).map(drop);
        self.settle_ingest("bulk load", before, loaded)
    }

    /// Records that an ingest of the commit begins. Returns the largest sequence number before.
    fn promise_ingest(&self, commit: Commit) -> Outcome<u64> {
        let seq = self.number_given(1)?;
        let mut promises = self.recorder.promises();
        promises.pending = Some(Arc::new(commit));
        let before = promises.seq_largest;
        promises.seq_largest = before.max(seq);
        Ok(before)
    }

    /// Records the result of an ingest or a bulk load.
    fn settle_ingest(
        &mut self,
        call: &'static str,
        before: u64,
        ingested: lsmx::Result<()>,
    ) -> Outcome {
        match ingested {
            Ok(()) => {
                self.coverage.add("calls", call);
                self.settle_pending(true);
                self.all_synced();
                Ok(())
            }
            Err(error @ Error::ReadOnly { .. }) => self.excuse(call, &error),
            Err(error) => {
                self.settle_pending(false);
                self.recorder.promises().seq_largest = before;
                match error {
                    // Compactions fail, so that L0 has no room for another run.
                    Error::Background { .. } | Error::CompactionBlocked { .. } => Ok(()),
                    error => self.excuse(call, &error),
                }
            }
        }
    }

    /// Removes the pending commit. Adds it to the history if `there` is true.
    fn settle_pending(&mut self, there: bool) {
        let pending = {
            let mut promises = self.recorder.promises();
            let pending = promises.pending.take();
            promises.committed += u64::from(there && pending.is_some());
            pending
        };
        if let (Some(pending), true, Some(history)) = (pending, there, self.histories.last_mut()) {
            history.push(&pending);
        }
    }

    /// Records that all acknowledged commits are durable.
    fn all_synced(&self) {
        let mut promises = self.recorder.promises();
        promises.synced = promises.committed;
        promises.passing.synced = promises.passing.written;
    }

    fn sync(&mut self, flush: bool) -> Outcome {
        let db = &self.opened()?.db;
        let (what, done) = if flush { ("flush", db.flush()) } else { ("sync", db.sync()) };
        match done {
            Ok(()) => {
                self.coverage.add("calls", what);
                self.all_synced();
                Ok(())
            }
            Err(error) => self.excuse(what, &error),
        }
    }

    fn create_keyspace(&mut self) -> Outcome {
        let policy = options::draw_policy(&mut self.rng);
        let options = options::draw_keyspace(&mut self.rng).policy(policy.clone());
        {
            let mut promises = self.recorder.promises();
            promises.other = Presence::Maybe;
            promises.policies[1].push(policy.to_string());
        }
        let made = self.opened()?.db.keyspace(KEYSPACES[1], options);
        match made {
            Ok(keyspace) => {
                self.coverage.add("calls", "create keyspace");
                self.recorder.promises().other = Presence::Yes;
                self.recorder.promises().policies[1] = vec![policy.to_string()];
                self.all_synced();
                if let Some(open) = &mut self.open {
                    open.keyspaces.push(keyspace);
                }
                Ok(())
            }
            Err(error) => self.excuse("making a keyspace", &error),
        }
    }

    /// Creates the keyspace [`NAMES`], writes to it, renames it, or drops it.
    fn come_and_go(&mut self) -> Outcome {
        let Some(keyspace) = self.opened()?.passing.clone() else { return self.come() };
        match self.rng.below(6) {
            0..2 => self.go(&keyspace),
            2 => self.rename(&keyspace),
            _ => self.stay(&keyspace),
        }
    }

    fn come(&mut self) -> Outcome {
        let may_expire = self.rng.is_one_in(3);
        let options = match may_expire {
            true => options::draw_expiring(&mut self.rng),
            false => options::draw_keyspace(&mut self.rng),
        };
        {
            let passing = &mut self.recorder.promises().passing;
            let life = passing.life + 1;
            let presence = Presence::Maybe;
            *passing = Passing { presence, life, may_expire, ..Passing::default() };
        }
        match self.opened()?.db.keyspace(NAMES[0], options) {
            Ok(keyspace) => {
                self.recorder.promises().passing.presence = Presence::Yes;
                self.all_synced();
                if let Some(open) = &mut self.open {
                    open.passing = Some(keyspace);
                }
                Ok(())
            }
            Err(error) => self.excuse("making a keyspace", &error),
        }
    }

    fn stay(&mut self, keyspace: &Keyspace) -> Outcome {
        let count = 1 + self.rng.below(20);
        let Passing { life, written, may_expire, name, .. } =
            self.recorder.promises().passing.clone();
        if may_expire && self.rng.is_one_in(2) {
            let options = options::draw_expiring(&mut self.rng);
            if let Err(error) = self.opened()?.db.keyspace(NAMES[name], options) {
                return self.excuse("changing options", &error);
            }
        }
        let ttl = keyspace.options().default_ttl;
        if ttl.is_some() {
            self.coverage.add("calls", "puts with a default time to live");
        }
        let sync = may_expire || self.rng.is_one_in(4);
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        for number in written..written + count {
            let seq = self.number_given(1)?;
            let now_us = self.opened()?.db.env().now_us();
            let before = {
                let mut promises = self.recorder.promises();
                let before = promises.seq_largest;
                promises.seq_largest = before.max(seq);
                promises.passing.written = number + 1;
                let expiry_us = ttl.map_or(u64::MAX, |_| ttl_expiry_us(0, now_us));
                promises.passing.expiry_us.push(expiry_us);
                before
            };
            match keyspace
                .with_write_options(durability)
                .put(passing::key(number), life.to_le_bytes())
            {
                Ok(()) if sync => self.all_synced(),
                Ok(()) => {}
                Err(error @ Error::ReadOnly { .. }) => return self.excuse("a commit", &error),
                Err(error @ Error::Background { .. }) => {
                    {
                        let mut promises = self.recorder.promises();
                        promises.seq_largest = before;
                        promises.passing.written = number;
                        promises.passing.expiry_us.pop();
                    }
                    return self.excuse_background(&error);
                }
                Err(error) => return Err(format!("a write fails: {error:?}")),
            }
        }
        Ok(())
    }

    fn rename(&mut self, keyspace: &Keyspace) -> Outcome {
        let name = {
            let passing = &mut self.recorder.promises().passing;
            passing.is_renaming = true;
            passing.name
        };
        match self.opened()?.db.rename_keyspace(NAMES[name], NAMES[1 - name]) {
            Ok(()) => {
                self.coverage.add("calls", "rename keyspace");
                {
                    let passing = &mut self.recorder.promises().passing;
                    (passing.name, passing.is_renaming) = (1 - name, false);
                }
                self.all_synced();
                if self.opened()?.db.keyspace_exists(NAMES[name]) {
                    return Err("a renamed keyspace has its old name".to_owned());
                }
                match keyspace.name() {
                    found if found == NAMES[1 - name] => Ok(()),
                    found => Err(format!("a renamed keyspace has the name {found:?}")),
                }
            }
            Err(error) => self.excuse("renaming a keyspace", &error),
        }
    }

    fn go(&mut self, keyspace: &Keyspace) -> Outcome {
        let db = &self.opened()?.db;
        let (snapshot, now_us) = (db.snapshot(), db.env().now_us());
        let name = {
            let passing = &mut self.recorder.promises().passing;
            passing.presence = Presence::Maybe;
            passing.name
        };
        match self.opened()?.db.drop_keyspace(NAMES[name]) {
            Ok(()) => {
                self.coverage.add("calls", "drop keyspace");
                self.recorder.promises().passing.presence = Presence::No;
                self.all_synced();
                if let Some(open) = &mut self.open {
                    open.passing = None;
                }
                match keyspace.put("k", "v") {
                    Err(Error::KeyspaceDropped { .. } | Error::ReadOnly { .. }) => {}
                    other => return Err(format!("a write to what was dropped: {other:?}")),
                }
                // A snapshot from before the drop can still read the keyspace.
                let known = self.recorder.promises().passing.clone();
                let visible = known.visible_keys(known.written, now_us).len();
                let seen = snapshot.iter(keyspace).collect::<Result<Vec<_>, _>>();
                match seen {
                    Ok(seen) if seen.len() == visible => Ok(()),
                    Ok(seen) => Err(format!("a snapshot sees {} of {visible} keys", seen.len())),
                    Err(error) => self.excuse("a snapshot", &error),
                }
            }
            Err(error) => self.excuse("dropping a keyspace", &error),
        }
    }

    /// Clones a keyspace, or drops the clone.
    fn clone_or_drop_clone(&mut self) -> Outcome {
        let known = self.recorder.promises().cloned.clone();
        if known.presence == Presence::Yes {
            self.recorder.promises().cloned.presence = Presence::Maybe;
            return match self.opened()?.db.drop_keyspace(CLONE) {
                Ok(()) => {
                    self.recorder.promises().cloned.presence = Presence::No;
                    self.all_synced();
                    Ok(())
                }
                Err(error) => self.excuse("dropping a clone", &error),
            };
        }
        let source = self.rng.below(self.opened()?.keyspaces.len());
        let options = options::draw_clone(&mut self.rng);
        let history = self.history();
        let now_us = self.opened()?.db.env().now_us();
        let contents = Arc::new(history.state(history.last())[source].clone_at(now_us));
        self.recorder.promises().cloned = Cloned { presence: Presence::Maybe, contents };
        match self.opened()?.db.clone_keyspace(KEYSPACES[source], CLONE, options) {
            Ok(_) => {
                self.coverage.add("calls", "clone keyspace");
                self.recorder.promises().cloned.presence = Presence::Yes;
                self.all_synced();
                self.check_clone().map(drop)
            }
            Err(error) => {
                if !matches!(error, Error::ReadOnly { .. }) {
                    self.recorder.promises().cloned.presence = Presence::No;
                }
                self.excuse("a clone", &error)
            }
        }
    }

    /// Compares the clone with its known contents. Returns whether it exists.
    fn check_clone(&mut self) -> Outcome<bool> {
        let known = self.recorder.promises().cloned.clone();
        match passing::check_clone(&self.opened()?.db, &known) {
            Err(Trouble::Failed(error)) => {
                self.excuse("a read", &error)?;
                self.disarm();
                Ok(passing::check_clone(&self.opened()?.db, &known)?)
            }
            checked => Ok(checked?),
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

    /// Checks that reads of a read-only database are correct and that a write fails. Then calls `resume` or reopens
    /// the database.
    fn recover_if_failed(&mut self) -> Outcome {
        let Some(open) = &self.open else { return Ok(()) };
        if open.db.health().read_only.is_none() {
            if self.armed && !self.vfs.fired_counts().is_empty() && self.rng.is_one_in(3) {
                self.disarm();
            }
            return Ok(());
        }
        if self.vfs.fired_counts().is_empty() {
            return Err(format!("read-only without a fault: {:?}", open.db.health().read_only));
        }
        match open.db.put("refused", "refused") {
            Err(Error::ReadOnly { .. }) => {}
            other => return Err(format!("a write to a read-only database: {other:?}")),
        }
        self.check_live()?;
        if self.rng.is_one_in(2) {
            self.disarm();
        }
        if self.rng.is_one_in(8) {
            // Closing and reopening the database must work as well as `resume`.
            return self.reopen_after_failure();
        }
        if !self.armed && self.rng.is_one_in(2) {
            self.arm(14);
        }
        self.recorder.promises().phase = Phase::Resuming;
        let resumed = self.resume();
        self.recorder.promises().phase = Phase::Running;
        resumed
    }

    fn resume(&mut self) -> Outcome {
        for _ in 0..3 {
            match self.opened()?.db.resume() {
                Ok(()) => {
                    let found = self.count()?;
                    self.settle(found)?;
                    self.all_synced();
                    // All assigned sequence numbers are visible now. If a commit failed before it got its numbers, the
                    // recorded bound is too large.
                    let given = self.opened()?.db.snapshot().seq().0;
                    self.recorder.promises().seq_largest = given;
                    self.check_live()?;
                    let Some(cause) = self.opened()?.db.health().read_only else {
                        self.disarm();
                        return Ok(());
                    };
                    // `resume` succeeded, and then background work failed because of the fault.
                    self.excuse("work after resume", &cause)?;
                }
                Err(error) => self.excuse("resume", &error)?,
            }
            self.coverage.add("calls", "resume that failed");
            self.disarm();
        }
        Err("resume fails though no call does".to_owned())
    }

    /// Continues with a history of the first `found` commits, which the database contains.
    fn settle(&mut self, found: u64) -> Outcome {
        let (synced, committed, attempted) = {
            let promises = self.recorder.promises();
            (promises.synced, promises.committed, promises.attempted())
        };
        if !(synced..=attempted).contains(&found) {
            return Err(format!("{found} commits, {synced} synced, {attempted} attempted"));
        }
        self.settle_pending(found > committed);
        let known = self.recorder.promises().passing.clone();
        let there = match passing::check(&self.opened()?.db, &known) {
            Err(Trouble::Failed(error)) => {
                self.excuse("a read", &error)?;
                self.disarm();
                passing::check(&self.opened()?.db, &known)?
            }
            checked => checked?,
        };
        let passing = there.map(|(_, at)| {
            self.opened()?.db.open_keyspace(NAMES[at], None).map_err(|e| e.to_string())
        });
        let passing = passing.transpose()?;
        {
            let now = &mut self.recorder.promises().passing;
            now.presence = if passing.is_some() { Presence::Yes } else { Presence::No };
            (now.written, now.name) = there.unwrap_or_default();
            now.expiry_us.truncate(usize::try_from(now.written).unwrap_or(usize::MAX));
            now.is_renaming = false;
            now.synced = now.synced.min(now.written);
        }
        if let Some(open) = &mut self.open {
            open.passing = passing;
        }
        let has_clone = self.check_clone()?;
        self.recorder.promises().cloned.presence =
            if has_clone { Presence::Yes } else { Presence::No };
        let open = self.opened()?;
        let other = open.db.open_keyspace(KEYSPACES[1], None).ok();
        let policies: Vec<String> = open
            .keyspaces
            .iter()
            .chain(&other)
            .map(|keyspace| keyspace.options().policy.to_string())
            .collect();
        let mut promises = self.recorder.promises();
        if promises.other == Presence::Yes && other.is_none() {
            return Err("a keyspace that was made is gone".to_owned());
        }
        promises.other = if other.is_some() { Presence::Yes } else { Presence::No };
        for (known, policy) in promises.policies.iter_mut().zip(policies) {
            *known = vec![policy];
        }
        if found < committed {
            // Commits that were acknowledged without a sync are lost, so a new history begins.
            let shorter = self.histories[self.histories.len() - 1].until(found);
            self.histories.push(shorter);
            promises.epoch += 1;
            promises.committed = found;
        }
        drop(promises);
        if let (Some(other), Some(open)) = (other, &mut self.open)
            && open.keyspaces.len() == 1
        {
            open.keyspaces.push(other);
        }
        Ok(())
    }

    fn close(&mut self) -> Outcome {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        open.stills.clear();
        let expired = open.db.metrics().keyspaces.values().map(|it| it.expired.entries).sum();
        self.coverage.add_many("entries", "expired", expired);
        self.recorder.promises().phase = Phase::Closing;
        match open.db.close(None) {
            Ok(()) => {
                self.coverage.add("calls", "clean close");
                self.all_synced();
                Ok(())
            }
            Err(error) => self.excuse("close", &error),
        }
    }

    fn reopen_after_failure(&mut self) -> Outcome {
        self.coverage.add("calls", "reopen after an error");
        // The test has seen the errors of this database, so it ignores the result of `close`.
        self.recorder.promises().phase = Phase::Closing;
        if let Some(open) = self.open.take() {
            let _ = open.db.close(None);
        }
        self.reopen(None)
    }

    fn reopen(&mut self, policy: Option<PolicySpec>) -> Outcome {
        let mut options = self.options();
        if let Some(policy) = policy {
            // If the power fails before the database exists, the next open creates it with the default policy.
            self.recorder.promises().policies[0] =
                vec![policy.to_string(), PolicySpec::default().to_string()];
            let keyspace = options::draw_keyspace(&mut self.rng);
            options = options.keyspace_defaults(keyspace.policy(policy));
        }
        self.recorder.promises().phase = Phase::Opening;
        let sweeping = matches!(self.plan.faults, Faults::By(_));
        let before = sweeping.then(|| self.disk.snapshot_all());
        let vfs: Arc<dyn Vfs> = Arc::new(self.vfs.clone());
        let db = match Db::open(DIR, options.vfs(Arc::clone(&vfs))) {
            Ok(db) => match without_store(&db) {
                None => db,
                Some(error) => {
                    self.excuse("opening an operand store", &error)?;
                    self.disarm();
                    {
                        let mut promises = self.recorder.promises();
                        promises.file_largest = promises.file_largest.max(promises.file_opening);
                        promises.file_opening = 0;
                    }
                    drop(db);
                    Db::open(DIR, self.options().vfs(vfs))
                        .map_err(|error| format!("opening again fails: {error:?}"))?
                }
            },
            Err(error) => {
                self.excuse("opening", &error)?;
                self.unchanged(before, &error)?;
                self.coverage.add("calls", "open that failed");
                self.recorder.promises().file_opening = 0;
                self.disarm();
                Db::open(DIR, self.options().vfs(vfs))
                    .map_err(|error| format!("opening again fails: {error:?}"))?
            }
        };
        self.coverage.add("calls", "open");
        {
            let mut promises = self.recorder.promises();
            promises.file_largest = promises.file_largest.max(promises.file_opening);
            promises.file_opening = 0;
            promises.phase = Phase::Running;
        }
        let keyspaces = vec![db.default_keyspace()];
        self.open = Some(Open { stills: Vec::new(), keyspaces, passing: None, db });
        let found = self.count()?;
        self.settle(found)?;
        {
            let seq = self.opened()?.db.snapshot().seq().0;
            let mut promises = self.recorder.promises();
            if seq < promises.seq_largest {
                let largest = promises.seq_largest;
                return Err(format!("numbers go on after {seq}, {largest} was given before"));
            }
            promises.seq_largest = seq;
        }
        // All commits that recovery returns are durable.
        self.all_synced();
        self.check_live()
    }

    /// Checks that a rejected open has changed no file. An open that failed with an I/O error may have added files and
    /// changed `CURRENT`.
    fn unchanged(&self, before: Option<BTreeMap<PathBuf, Vec<u8>>>, error: &Error) -> Outcome {
        let Some(before) = before else { return Ok(()) };
        let mut after = self.disk.snapshot_all();
        let mut before = before;
        if matches!(error, Error::Io { .. }) {
            let current = oracle::dir().join(CURRENT);
            before.remove(&current);
            after.retain(|path, _| before.contains_key(path));
        }
        if before == after {
            return Ok(());
        }
        let changed: Vec<_> =
            after.iter().filter(|(path, bytes)| before.get(*path) != Some(bytes)).collect();
        let changed: Vec<_> = changed.iter().map(|(path, _)| path).collect();
        Err(format!("opening fails with {error:?} and has changed {changed:?}"))
    }

    fn options(&mut self) -> Options {
        let coverage = Arc::clone(&self.coverage);
        options::draw(&mut self.rng, self.plan.background).listener(coverage)
    }
}

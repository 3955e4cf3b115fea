//! The child process of the stress test. Writer threads commit until the parent kills the process. The main thread
//! concurrently runs the operations of [`ConcurrentTasks`].

use std::ops::{Bound, Range};
use std::path::Path;
use std::time::Duration;

use lsmx::env::Env;
use lsmx::{Db, Durability, Error, Keyspace, Options, Result, Transaction, WriteBatch};

use crate::Outcome;
use crate::checkpoints::{self, CheckpointBounds};
use crate::commits::{Change, draw_changes};
use crate::compare::{KeyspaceView, TimedSnapshot};
use crate::counts::ChildCounts;
use crate::disk_faults::FaultyDisk;
use crate::messages::{self, Message};
use crate::{
    KEYSPACES, NEVER_US, Orders, SESSIONS, counter_key, keyspace_churn, loads, merged_key, open,
    options, sessions,
};
use lsmx_testkit::TestRng;
use lsmx_testkit::world::Change as Write;

/// The child sends its operation counts to the parent, and reads its metrics file, after this many calls of
/// [`ConcurrentTasks::run_one`].
const TASKS_PER_MESSAGE: u64 = 4;
/// Maximum time for which a commit is retried after injected faults, in nanoseconds.
const RETRY_NS_MAX: u64 = 10_000_000_000;
/// A writer reads and checks its commit counters after this many commits.
const COMMITS_PER_READ: u64 = 8;

/// Opens the database and writes to it until the process is killed. Sends the parent a message for each acknowledged
/// commit.
///
/// Messages are sent on standard error, so no other code may write to standard error.
///
/// # Errors
/// Returns an error if the database violates a guarantee. Otherwise the function does not return.
pub fn write_until_killed(orders: &Orders) -> Outcome {
    messages::send(Message::Opening);
    let disk = FaultyDisk::new(orders.round, orders.faults);
    let (db, keyspaces) = open(disk.vfs(), Path::new(&orders.dir), orders.round)?;
    let view = KeyspaceView { db: &db, keyspaces: &keyspaces, snapshot: None };
    let steps = keyspace_churn::count_steps(&db, &keyspaces[0])?;
    let loads = loads::count(&view)?;
    disk.arm_fault();
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for number in 0..orders.writers {
            let writer = Writer { orders, db: &db, disk: &disk, view: &view, number };
            writers.push(scope.spawn(move || writer.write()));
        }
        let mut tasks = ConcurrentTasks {
            orders,
            db: &db,
            disk: &disk,
            keyspaces: &keyspaces,
            rng: TestRng::new(!orders.round),
            steps,
            loads,
            snapshot: None,
            reached: ChildCounts::default(),
        };
        for done in 1.. {
            if writers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            tasks.run_one().map_err(|what| format!("a concurrent task: {what}"))?;
            if done % TASKS_PER_MESSAGE == 0 {
                tasks.check_metrics_file()?;
                tasks.reached.update_from(&db.metrics());
                tasks.reached.resumed = disk.resumed();
                tasks.reached.send();
            }
        }
        for writer in writers {
            writer.join().map_err(|_| "a writer panicked".to_owned())??;
        }
        Err("all writers have ended".to_owned())
    })
}

/// A thread that writes commits. Each writer uses its own set of keys.
struct Writer<'a> {
    orders: &'a Orders,
    db: &'a Db,
    disk: &'a FaultyDisk,
    view: &'a KeyspaceView<'a>,
    number: u64,
}

impl Writer<'_> {
    fn write(&self) -> Outcome {
        let mut number = self.view.commits_of(self.number)? + 1;
        let env = Env::default();
        let (mut failed, mut committed_ns) = (false, env.monotonic_ns());
        loop {
            let committed = self.commit(number);
            match committed {
                Err(error) if self.disk.may_have_caused(&error) => {
                    self.disk.recover(self.db)?;
                    // The failed commit may have been applied. The commit counters show whether it was applied.
                    let found = self.view.commits_of(self.number)?;
                    if found + 1 == number {
                        if env.monotonic_ns() - committed_ns > RETRY_NS_MAX {
                            return Err(format!("a commit failed repeatedly: {error:?}"));
                        }
                        failed = true;
                        std::thread::yield_now();
                        continue;
                    }
                    self.check_commits(number, found)?;
                }
                committed => committed.map_err(|error| format!("a commit: {error:?}"))?,
            }
            committed_ns = env.monotonic_ns();
            if std::mem::take(&mut failed) {
                self.disk.arm_fault();
            }
            messages::send(Message::Progress { actor: self.number, number });
            if number % COMMITS_PER_READ == 0 {
                self.check_commits(number, self.view.commits_of(self.number)?)?;
            }
            number += 1;
        }
    }

    fn check_commits(&self, number: u64, found: u64) -> Outcome {
        match found == number {
            true => Ok(()),
            false => Err(format!("writer {} reads {found} commits of its {number}", self.number)),
        }
    }

    /// Writes a commit. In nine commits, two are optimistic transactions and one is a locking transaction.
    fn commit(&self, number: u64) -> Result<()> {
        let keyspaces = self.view.keyspaces;
        let (writes, sync) = self.draw_writes(number);
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        let (seed, commit) = (self.orders.seed, (self.number, number));
        let add = |tx: &Transaction| -> Result<()> {
            tx.get_for_update(&keyspaces[0], counter_key(self.number))?;
            for (index, write) in &writes {
                write.add_to_transaction(tx, &keyspaces[*index])?;
            }
            sessions::add_changes(self.db, seed, commit, |write| {
                write.add_to_transaction(tx, &keyspaces[SESSIONS])
            })
        };
        match number % 9 {
            0 => loop {
                let tx = self.db.locking_transaction(LOCK_TIMEOUT);
                match add(&tx).and_then(|()| tx.commit(durability)) {
                    // A concurrent flush has shortened the write history.
                    Err(Error::ConflictUnknown { .. }) => {}
                    committed => return committed,
                }
            },
            1 | 2 => self.db.transact(durability, add),
            _ => {
                let mut batch = WriteBatch::new();
                for (index, write) in &writes {
                    write.add_to(&mut batch, &keyspaces[*index]);
                }
                sessions::add_changes(self.db, seed, commit, |write| {
                    write.add_to(&mut batch, &keyspaces[SESSIONS]);
                    Ok(())
                })?;
                self.db.write(batch, durability)
            }
        }
    }

    /// Returns the writes of a commit, each with the index of its keyspace. The boolean is true if the commit is synced.
    fn draw_writes(&self, number: u64) -> (Vec<(usize, Write)>, bool) {
        let (writer, keyspaces) = (self.number, self.view.keyspaces);
        let (changes, sync) = draw_changes(self.orders.seed, writer, number);
        let counter = Write::Put(counter_key(writer).into(), number.to_le_bytes().into());
        let counters = (0..KEYSPACES.len()).map(|keyspace| (keyspace, counter.clone()));
        let mut writes: Vec<_> = counters.collect();
        writes.push((0, Write::Merge(merged_key(writer).into(), 1u64.to_le_bytes().into())));
        for (keyspace, change) in changes {
            let may_expire = keyspaces[keyspace].options().operand_store.is_none();
            let write = match change {
                Change::Put(key, value) if may_expire && value.len().is_multiple_of(3) => {
                    Write::PutUntil(key.into(), value.into(), NEVER_US)
                }
                Change::Put(key, value) => Write::Put(key.into(), value.into()),
                // A value that has expired has the effect of a delete.
                Change::Delete(key) if may_expire && number.is_multiple_of(2) => {
                    Write::PutUntil(key.into(), (*b"expired").into(), EXPIRED_US)
                }
                Change::Delete(key) => Write::Delete(key.into()),
                Change::Merge(key, operand) => Write::Merge(key.into(), operand.into()),
                Change::DeleteRange(Range { start, end }) => {
                    let bounds = (Bound::Included(start.into()), Bound::Excluded(end.into()));
                    Write::DeleteRange(bounds)
                }
            };
            writes.push((keyspace, write));
        }
        (writes, sync)
    }
}

/// Maximum time for which a transaction waits for a key. Each writer has its own keys, so no transaction waits.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// An expiry time in microseconds that is before every time of the clock.
const EXPIRED_US: u64 = 1;

/// Operations that the main thread runs while the writers commit.
struct ConcurrentTasks<'a> {
    orders: &'a Orders,
    db: &'a Db,
    disk: &'a FaultyDisk,
    keyspaces: &'a [Keyspace],
    rng: TestRng,
    /// Number of completed keyspace churn steps.
    steps: u64,
    /// Number of completed loads.
    loads: u64,
    /// An open snapshot, and the counts that it must contain: the number of commits of each writer, followed by the
    /// numbers of keyspace churn steps and of loads.
    snapshot: Option<(TimedSnapshot, Vec<u64>)>,
    reached: ChildCounts,
}

impl ConcurrentTasks<'_> {
    fn run_one(&mut self) -> Outcome {
        let which = self.rng.below(self.keyspaces.len());
        let keyspace = &self.keyspaces[which];
        let done = match self.rng.below(24) {
            0 => self.db.flush(),
            1 => self.db.sync(),
            2 => self.db.wait_idle(),
            3 => self.db.snapshot().iter(keyspace).try_for_each(|item| item.map(drop)),
            4 => keyspace.compact_range::<&[u8]>(..),
            5 => self.change_options(which),
            6 => self.move_operands_to_tree(keyspace),
            7 | 8 => return self.check_snapshot(),
            9..=11 => return self.make_checkpoint(),
            12..=15 => return self.run_load(),
            _ => self.run_churn_step(),
        };
        match done {
            Err(error) if self.disk.may_have_caused(&error) => self.recover_from_fault(),
            done => done.map_err(|error| format!("{error:?}")),
        }
    }

    /// Resumes the database after an injected fault. A failed churn step or load counts as completed if the database
    /// contains its effect.
    fn recover_from_fault(&mut self) -> Outcome {
        self.disk.recover(self.db)?;
        let steps = keyspace_churn::count_steps(self.db, &self.keyspaces[0])?;
        let loads = loads::count(&self.newest_view())?;
        for (kind, found, before) in [("step", steps, self.steps), ("load", loads, self.loads)] {
            if found != before && found != before + 1 {
                return Err(format!(
                    "{kind} {found} after a failure that followed {kind} {before}"
                ));
            }
        }
        if steps > self.steps {
            self.count_step();
        }
        if loads > self.loads {
            self.count_load();
        }
        Ok(())
    }

    fn newest_view(&self) -> KeyspaceView<'_> {
        KeyspaceView { db: self.db, keyspaces: self.keyspaces, snapshot: None }
    }

    fn view_of<'a>(&'a self, snapshot: &'a TimedSnapshot) -> KeyspaceView<'a> {
        KeyspaceView { snapshot: Some(snapshot), ..self.newest_view() }
    }

    /// Compares the open snapshot with the model and drops it. If no snapshot is open, takes one.
    fn check_snapshot(&mut self) -> Outcome {
        if let Some((snapshot, counts)) = self.snapshot.take() {
            let checked = self.view_of(&snapshot).check(self.orders.seed, &counts);
            self.reached.snapshots += 1;
            return checked.map_err(|what| format!("a snapshot of {counts:?}: {what}"));
        }
        let snapshot = TimedSnapshot::take(self.db);
        let mut counts = self.commits_in(&snapshot)?;
        counts.extend([self.steps, self.loads]);
        self.snapshot = Some((snapshot, counts));
        Ok(())
    }

    /// Returns the number of commits of each writer that are visible in a snapshot.
    fn commits_in(&self, snapshot: &TimedSnapshot) -> Outcome<Vec<u64>> {
        let view = self.view_of(snapshot);
        (0..self.orders.writers).map(|writer| view.commits_of(writer)).collect()
    }

    /// Takes a checkpoint and compares its contents with the model.
    fn make_checkpoint(&mut self) -> Outcome {
        let target = checkpoints::checkpoint_dir(Path::new(&self.orders.dir));
        // A child that was killed earlier may have left a checkpoint in this directory.
        checkpoints::remove_checkpoint(&target)?;
        let least = self.commits_in(&TimedSnapshot::take(self.db))?;
        match self.db.checkpoint(&target) {
            Err(error) if self.disk.may_have_caused(&error) => return self.recover_from_fault(),
            made => made.map_err(|error| format!("a checkpoint: {error:?}"))?,
        }
        let most = self.commits_in(&TimedSnapshot::take(self.db))?;
        let bounds = CheckpointBounds { least, most, steps: self.steps, loads: self.loads };
        checkpoints::check_checkpoint(&target, self.orders.seed, self.rng.next_u64(), &bounds)
            .map_err(|what| format!("a checkpoint: {what}"))?;
        self.reached.copies += 1;
        checkpoints::remove_checkpoint(&target)
    }

    /// Sets random options for a keyspace, with or without a call that may add an operand store.
    fn change_options(&mut self, which: usize) -> Result<()> {
        let options = self.rng.is_one_in(2).then(|| options::draw_indexed(&mut self.rng, which));
        let settings = options::draw_settings(&mut self.rng);
        let bound = options::draw_delete_persistence(&mut self.rng);
        let keyspace = &self.keyspaces[which];
        let had = self.has_store(keyspace);
        match options {
            Some(options) => {
                self.db.keyspace(&keyspace.name(), options).map(drop)?;
                keyspace.set_options(|options| options.delete_persistence(bound))?;
            }
            None => keyspace
                .set_options(|options| settings.apply_to(options).delete_persistence(bound))?,
        }
        self.reached.to_store += u64::from(!had && self.has_store(keyspace));
        Ok(())
    }

    fn move_operands_to_tree(&mut self, keyspace: &Keyspace) -> Result<()> {
        let had = self.has_store(keyspace);
        match keyspace.operands_to_tree() {
            Err(Error::SnapshotsHeld { .. }) if self.snapshot.is_some() => Ok(()),
            Ok(()) => {
                self.reached.back_to_tree += u64::from(had);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn has_store(&self, keyspace: &Keyspace) -> bool {
        let metrics = self.db.metrics();
        metrics.keyspaces.get(&keyspace.name()).is_some_and(|one| one.operand_store.is_some())
    }

    fn run_churn_step(&mut self) -> Result<()> {
        keyspace_churn::run_step(self.db, &self.keyspaces[0], self.steps + 1)?;
        self.count_step();
        Ok(())
    }

    /// Runs the next load, and compares the entries of all loads with the model. Only this thread writes them.
    fn run_load(&mut self) -> Outcome {
        let load = (self.orders.seed, self.loads + 1);
        match loads::run(self.db, self.keyspaces, Path::new(&self.orders.dir), load) {
            Err(error) if self.disk.may_have_caused(&error) => self.recover_from_fault()?,
            run => {
                run.map_err(|error| format!("a load: {error:?}"))?;
                self.count_load();
            }
        }
        loads::check(&self.newest_view(), self.orders.seed, self.loads)
    }

    fn count_load(&mut self) {
        self.loads += 1;
        self.reached.loads += 1;
        messages::send(Message::Progress { actor: self.orders.writers + 1, number: self.loads });
    }

    /// Checks that the metrics file, if it exists, has metrics of this process.
    fn check_metrics_file(&mut self) -> Outcome {
        let reading = lsmx::read_metrics_file(&self.orders.dir, &Options::default());
        let Some(reading) = reading.map_err(|error| format!("the metrics file: {error:?}"))? else {
            return Ok(());
        };
        let committed = self.db.metrics().transactions.committed;
        if reading.process_id != std::process::id()
            || reading.metrics.transactions.committed > committed
        {
            return Err(format!("the metrics file is that of another process: {reading:?}"));
        }
        self.reached.metrics_files += 1;
        Ok(())
    }

    fn count_step(&mut self) {
        self.steps += 1;
        self.reached.renamed += u64::from(keyspace_churn::is_rename(self.steps));
        self.reached.cloned += u64::from(keyspace_churn::is_clone(self.steps));
        messages::send(Message::Progress { actor: self.orders.writers, number: self.steps });
    }
}

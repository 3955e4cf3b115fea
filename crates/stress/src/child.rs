//! A child's life: it opens the database and goes on where each writer stopped, until it is killed.
//! Beside the writers it does what else may be under way when a process dies.

use std::path::Path;

use lsmx::env::Env;
use lsmx::{Db, Durability, Error, Keyspace, Result, Snapshot, WriteBatch};

use crate::Outcome;
use crate::changes::{Change, changes};
use crate::copies::{self, Bounds};
use crate::disk::Disk;
use crate::reached::Reached;
use crate::told::{self, Told};
use crate::tuning::draw_counted;
use crate::view::View;
use crate::{Orders, counter_key, merged_key, open, passing};
use lsmx_testkit::TestRng;

/// Things done after which it is told what was reached.
const DONE_BETWEEN: u64 = 4;
/// How long one commit may fail, though the disk is made well each time.
const FAILING_NS_MAX: u64 = 10_000_000_000;
/// Commits after which a writer reads what it wrote.
const WRITTEN_BETWEEN: u64 = 8;

/// A child's life: opens the database, and writes to it until it is killed. Whoever started it is told on
/// standard error of each commit that was acknowledged, so nothing else may be written there.
///
/// # Errors
/// What went wrong: nothing else ends it.
pub fn write_for_ever(orders: &Orders) -> Outcome {
    told::tell(Told::Opening);
    let disk = Disk::drawn(orders.round, orders.faults);
    let (db, keyspaces) = open(disk.vfs(), Path::new(&orders.dir), orders.round)?;
    let view = View { keyspaces: &keyspaces, snapshot: None };
    let steps = passing::steps(&db, &keyspaces[0])?;
    disk.fall_ill();
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for number in 0..orders.writers {
            let writer = Writer { orders, db: &db, disk: &disk, view: &view, number };
            writers.push(scope.spawn(move || writer.write()));
        }
        let mut beside = Beside {
            orders,
            db: &db,
            disk: &disk,
            keyspaces: &keyspaces,
            rng: TestRng::new(!orders.round),
            steps,
            held: None,
            reached: Reached::default(),
        };
        for done in 1.. {
            if writers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            beside.act().map_err(|what| format!("beside the writers: {what}"))?;
            if done % DONE_BETWEEN == 0 {
                beside.reached.note(&db.metrics());
                beside.reached.resumed = disk.resumed();
                beside.reached.tell();
            }
        }
        for writer in writers {
            writer.join().map_err(|_| "a writer panicked".to_owned())??;
        }
        Err("the writers came to an end".to_owned())
    })
}

/// One that commits, with keys of its own.
struct Writer<'a> {
    orders: &'a Orders,
    db: &'a Db,
    disk: &'a Disk,
    view: &'a View<'a>,
    number: u64,
}

impl Writer<'_> {
    /// Commits for ever.
    fn write(&self) -> Outcome {
        let mut number = self.view.count_of(self.number)? + 1;
        let env = Env::default();
        let (mut failed, mut committed_ns) = (false, env.monotonic_ns());
        loop {
            let committed = self.commit(number);
            match committed {
                Err(error) if self.disk.excuses(&error) => {
                    self.disk.heal(self.db)?;
                    // It was decided there once, for ever.
                    let found = self.view.count_of(self.number)?;
                    if found + 1 == number {
                        if env.monotonic_ns() - committed_ns > FAILING_NS_MAX {
                            return Err(format!("a commit, again and again: {error:?}"));
                        }
                        failed = true;
                        std::thread::yield_now();
                        continue;
                    }
                    self.must_be(number, found)?;
                }
                committed => committed.map_err(|error| format!("a commit: {error:?}"))?,
            }
            committed_ns = env.monotonic_ns();
            if std::mem::take(&mut failed) {
                self.disk.fall_ill();
            }
            told::tell(Told::Done { who: self.number, number });
            if number % WRITTEN_BETWEEN == 0 {
                self.must_be(number, self.view.count_of(self.number)?)?;
            }
            number += 1;
        }
    }

    fn must_be(&self, number: u64, found: u64) -> Outcome {
        match found == number {
            true => Ok(()),
            false => Err(format!("writer {} reads {found} commits of its {number}", self.number)),
        }
    }

    fn commit(&self, number: u64) -> Result<()> {
        let (writer, keyspaces) = (self.number, self.view.keyspaces);
        let (changes, sync) = changes(self.orders.seed, writer, number);
        let mut batch = WriteBatch::new();
        for keyspace in keyspaces {
            batch.put(keyspace, counter_key(writer), number.to_le_bytes());
        }
        batch.merge(&keyspaces[0], merged_key(writer), 1u64.to_le_bytes());
        for (keyspace, change) in changes {
            let keyspace = &keyspaces[keyspace];
            match change {
                Change::Put(key, value) => batch.put(keyspace, key, value),
                Change::Delete(key) => batch.delete(keyspace, key),
                Change::Merge(key, operand) => batch.merge(keyspace, key, operand),
                Change::DeleteRange(range) => batch.delete_range(keyspace, range),
            }
        }
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        self.db.write(batch, durability)
    }
}

/// What a child does beside its writers.
struct Beside<'a> {
    orders: &'a Orders,
    db: &'a Db,
    disk: &'a Disk,
    keyspaces: &'a [Keyspace],
    rng: TestRng,
    /// Steps of the keyspace that comes and goes.
    steps: u64,
    /// A snapshot, and the commits and steps that it saw when it was taken.
    held: Option<(Snapshot, Vec<u64>)>,
    reached: Reached,
}

impl Beside<'_> {
    /// Does one thing.
    fn act(&mut self) -> Outcome {
        let which = usize::from(self.rng.is_one_in(2));
        let keyspace = &self.keyspaces[which];
        let done = match self.rng.below(20) {
            0 => self.db.flush(),
            1 => self.db.sync(),
            2 => self.db.wait_idle(),
            3 => self.db.snapshot().iter(keyspace).try_for_each(|item| item.map(drop)),
            4 => keyspace.compact_range::<&[u8]>(..),
            5 => self.retune(which),
            6 => self.leave_store(keyspace),
            7 | 8 => return self.look_back(),
            9..=11 => return self.copy(),
            _ => self.pass(),
        };
        match done {
            Err(error) if self.disk.excuses(&error) => self.after_failure(),
            done => done.map_err(|error| format!("{error:?}")),
        }
    }

    /// Goes on after the disk has failed: a step that did was done or was not.
    fn after_failure(&mut self) -> Outcome {
        self.disk.heal(self.db)?;
        let found = passing::steps(self.db, &self.keyspaces[0])?;
        if found == self.steps {
            return Ok(());
        }
        if found != self.steps + 1 {
            return Err(format!("step {found}, where {} was followed by a failure", self.steps));
        }
        self.done_step();
        Ok(())
    }

    /// Takes a snapshot; the next time it looks whether it shows what it did.
    fn look_back(&mut self) -> Outcome {
        let view = |snapshot| View { keyspaces: self.keyspaces, snapshot: Some(snapshot) };
        if let Some((snapshot, counts)) = self.held.take() {
            let checked = view(&snapshot).check(self.orders.seed, &counts);
            self.reached.snapshots += 1;
            return checked.map_err(|what| format!("a snapshot of {counts:?}: {what}"));
        }
        let snapshot = self.db.snapshot();
        let mut counts = self.counts(&snapshot)?;
        counts.push(self.steps);
        self.held = Some((snapshot, counts));
        Ok(())
    }

    /// How many commits of each writer a snapshot shows.
    fn counts(&self, snapshot: &Snapshot) -> Outcome<Vec<u64>> {
        let view = View { keyspaces: self.keyspaces, snapshot: Some(snapshot) };
        (0..self.orders.writers).map(|writer| view.count_of(writer)).collect()
    }

    /// Makes a checkpoint and compares it.
    fn copy(&mut self) -> Outcome {
        let place = copies::place_of(Path::new(&self.orders.dir));
        // A child before this one may have been killed over its own.
        copies::remove(&place)?;
        let least = self.counts(&self.db.snapshot())?;
        match self.db.checkpoint(&place) {
            Err(error) if self.disk.excuses(&error) => return self.after_failure(),
            made => made.map_err(|error| format!("a checkpoint: {error:?}"))?,
        }
        let most = self.counts(&self.db.snapshot())?;
        let bounds = Bounds { least, most, steps: self.steps };
        copies::compare(&place, self.orders.seed, self.rng.next_u64(), &bounds)
            .map_err(|what| format!("a checkpoint: {what}"))?;
        self.reached.copies += 1;
        copies::remove(&place)
    }

    /// Changes all options of a keyspace: it may take on an operand store.
    fn retune(&mut self, which: usize) -> Result<()> {
        let options = draw_counted(&mut self.rng, which);
        let keyspace = &self.keyspaces[which];
        let had = self.has_store(keyspace);
        self.db.keyspace(keyspace.name(), options).map(drop)?;
        self.reached.to_store += u64::from(!had && self.has_store(keyspace));
        Ok(())
    }

    fn leave_store(&mut self, keyspace: &Keyspace) -> Result<()> {
        let had = self.has_store(keyspace);
        // No snapshot may be held, and one may be held here.
        match keyspace.operands_to_tree() {
            Err(Error::SnapshotsHeld { .. }) if self.held.is_some() => Ok(()),
            Ok(()) => {
                self.reached.back_to_tree += u64::from(had);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn has_store(&self, keyspace: &Keyspace) -> bool {
        let metrics = self.db.metrics();
        metrics.keyspaces.get(keyspace.name()).is_some_and(|one| one.operand_store.is_some())
    }

    fn pass(&mut self) -> Result<()> {
        passing::step(self.db, &self.keyspaces[0], self.steps + 1)?;
        self.done_step();
        Ok(())
    }

    fn done_step(&mut self) {
        self.steps += 1;
        told::tell(Told::Done { who: self.orders.writers, number: self.steps });
    }
}

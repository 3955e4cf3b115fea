//! Steps of a run that resume, close and open the database, after failures too.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use lsmx::vfs::Vfs;
use lsmx::{Db, Error, Options, PolicySpec};
use lsmx_base::file_name::{CURRENT, FileName};

use super::{Faults, Open, Run};
use crate::harness::history::KEYSPACES;
use crate::harness::oracle::{self, DIR, Trouble};
use crate::harness::passing::{self, NAMES};
use crate::harness::recorder::{Phase, Presence};
use crate::harness::{Outcome, options};

impl Run<'_> {
    /// Checks that reads of a read-only database are correct and that a write fails. Then calls `resume` or reopens
    /// the database.
    pub(super) fn recover_if_failed(&mut self) -> Outcome {
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

    pub(super) fn resume(&mut self) -> Outcome {
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
    pub(super) fn settle(&mut self, found: u64) -> Outcome {
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

    pub(super) fn close(&mut self) -> Outcome {
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

    pub(super) fn reopen_after_failure(&mut self) -> Outcome {
        self.coverage.add("calls", "reopen after an error");
        // The test has seen the errors of this database, so it ignores the result of `close`.
        self.recorder.promises().phase = Phase::Closing;
        if let Some(open) = self.open.take() {
            let _ = open.db.close(None);
        }
        self.reopen(None)
    }

    pub(super) fn reopen(&mut self, policy: Option<PolicySpec>) -> Outcome {
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
    /// changed `CURRENT`. If the disk was full, it may also have removed tables and blob files. The next open finds out
    /// whether it needs them.
    pub(super) fn unchanged(
        &self,
        before: Option<BTreeMap<PathBuf, Vec<u8>>>,
        error: &Error,
    ) -> Outcome {
        let Some(before) = before else { return Ok(()) };
        let mut after = self.disk.snapshot_all();
        let mut before = before;
        if let Error::Io { source, .. } = error {
            if source.kind() == ErrorKind::StorageFull {
                let is_table = |path: &PathBuf| {
                    let name = path.file_name().and_then(|name| name.to_str());
                    let name = name.and_then(FileName::parse);
                    matches!(name, Some(FileName::Table(_) | FileName::Blob(_)))
                };
                before.retain(|path, _| after.contains_key(path) || !is_table(path));
            }
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

    pub(super) fn options(&mut self) -> Options {
        let coverage = Arc::clone(&self.coverage);
        options::draw(&mut self.rng, self.plan.background).listener(coverage)
    }
}

/// Returns the error of a keyspace whose operand store could not be opened, if there is one.
fn without_store(db: &Db) -> Option<Error> {
    let keyspaces =
        db.keyspaces().into_iter().filter_map(|name| db.open_keyspace(&name, None).ok());
    let mut errors = keyspaces.filter_map(|keyspace| keyspace.get("key").err());
    errors.find(|error| matches!(error, Error::NoOperandStore { .. }))
}

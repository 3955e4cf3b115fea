//! Steps of a run that write: commits, loads and syncs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::ingest::{BulkLoadOptions, IngestOptions};
use lsmx::vfs::Vfs;
use lsmx::{Error, Keyspace};
use lsmx_testkit::world::Change;

use super::{COPY, Run, file_of};
use crate::harness::Outcome;
use crate::harness::history::{Commit, draw_bulk_load, draw_commit, draw_ingest};
use crate::harness::oracle::{self, CommitKind, DIR};

impl Run<'_> {
    /// Returns the largest sequence number that a commit of `operations` operations may get. If the database is
    /// read-only, returns the current sequence number.
    pub(super) fn number_given(&self, operations: u64) -> Result<u64, String> {
        let db = &self.opened()?.db;
        let operations = if db.health().read_only.is_some() { 0 } else { operations };
        Ok(db.snapshot().seq().0 + operations)
    }

    pub(super) fn commit(&mut self) -> Outcome {
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
    pub(super) fn ingest(&mut self) -> Outcome {
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
    pub(super) fn bulk_load(&mut self, number: u64) -> Outcome {
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
    pub(super) fn promise_ingest(&self, commit: Commit) -> Outcome<u64> {
        let seq = self.number_given(1)?;
        let mut promises = self.recorder.promises();
        promises.pending = Some(Arc::new(commit));
        let before = promises.seq_largest;
        promises.seq_largest = before.max(seq);
        Ok(before)
    }

    /// Records the result of an ingest or a bulk load.
    pub(super) fn settle_ingest(
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
    pub(super) fn settle_pending(&mut self, there: bool) {
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
    pub(super) fn all_synced(&self) {
        let mut promises = self.recorder.promises();
        promises.synced = promises.committed;
        promises.passing.synced = promises.passing.written;
    }

    pub(super) fn sync(&mut self, flush: bool) -> Outcome {
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

//! A common prefix of all keyspaces where the log is damaged.
//!
//! 1. The log ends at the damage; let D be the last sequence number before it. A keyspace that was flushed past D
//!    holds later commits than the others.
//! 2. The manifest is a log of edits, so it has the state of that keyspace before its first flush past D. If all
//!    files of this state are still there, and the log holds all commits from its flush up to D, the state and the log
//!    are what a crash before the flush could have left. The replay of the log then ends at D.
//! 3. Files that only the later state names are set aside.
//!
//! It is not enough to drop the tables whose sequence numbers all lie after D. A flush or a compaction drops an
//! entry that a newer one shadows, so such a table may stand for entries before D that no file holds any more.

use std::collections::BTreeSet;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;

use crate::db::DEFAULT_KEYSPACE;
use crate::db::check::repair::{Lost, LostKind, Repair, basis, is_no_damage};
use crate::error::{Error, Result};
use crate::format::file_name::FileName;
use crate::format::version_edit::FileRecord;
use crate::manifest::{KeyspaceState, Manifest};
use crate::options::keyspace::Persisted;
use crate::wal::RecoveryMode;

impl Repair<'_> {
    /// Takes every keyspace that was flushed past the damage of the log back to its state before that flush.
    ///
    /// # Errors
    /// [`Error::NoCommonPrefix`]; the log or the manifest cannot be read.
    pub(crate) fn cut_to_common_prefix(&mut self, manifest_damaged: bool) -> Result<()> {
        let refuse =
            |keyspace: &str, why| Err(Error::NoCommonPrefix { keyspace: keyspace.to_owned(), why });
        if manifest_damaged {
            return refuse(DEFAULT_KEYSPACE, "CURRENT or the manifest is damaged");
        }
        let Err(wrong) = self.read_log(RecoveryMode::Strict) else { return Ok(()) };
        let log = match self.read_log(RecoveryMode::Tolerant) {
            Ok(log) => log,
            Err(error) if is_no_damage(&error) => return Err(error),
            Err(_) => return refuse(DEFAULT_KEYSPACE, "nothing of the log can be read"),
        };
        let short = log.complete_through.iter().find(|&(_, end)| *end < log.last_seq);
        if let Some((keyspace, _)) = short {
            return refuse(keyspace, "the log that is kept for its operand store is damaged");
        }
        let later = Manifest::states_before_flushes_past(&**self.vfs, self.dir, log.last_seq)?;
        let files: BTreeSet<FileName> = basis::files(&**self.vfs, self.dir)?.into_iter().collect();
        let log_begin = match files.contains(&FileName::Segment(self.state.wal_oldest)) {
            true => basis::first_seq(&**self.vfs, self.dir, self.state.wal_oldest)?,
            false => None,
        };
        let last_seq = self.state.keyspaces.values().map(|keyspace| keyspace.flushed_through);
        let last_seq = last_seq.fold(self.state.last_seq, SeqNo::max);
        let mut taken_back = false;
        for (id, before) in later {
            // A keyspace that was dropped stays dropped.
            let Some(now) = self.state.keyspaces.get(&id).cloned() else { continue };
            let Some(before) = before else {
                return refuse(&now.name, "the manifest was begun after the flush");
            };
            let persisted = Persisted::decode(&now.options);
            if persisted.is_none_or(|persisted| persisted.store_name().is_some()) {
                return refuse(&now.name, "its operand store has only its newest state");
            }
            if file_names(&before).any(|file| !files.contains(&file)) {
                return refuse(&now.name, "a compaction has removed files of its earlier state");
            }
            if log_begin.is_none_or(|first| first.0 > before.flushed_through.0 + 1) {
                return refuse(&now.name, "the log no longer holds all commits since its flush");
            }
            self.take_back_keyspace(id, &now, before, &wrong);
            taken_back = true;
        }
        if taken_back {
            self.found(&wrong, "tables with later commits were dropped")?;
        }
        // No number is used twice.
        self.state.last_seq = last_seq;
        Ok(())
    }

    fn take_back_keyspace(
        &mut self,
        id: u32,
        now: &KeyspaceState,
        before: KeyspaceState,
        wrong: &Error,
    ) {
        let kept: BTreeSet<FileName> = file_names(&before).collect();
        self.aside.extend(file_names(now).filter(|file| !kept.contains(file)));
        let dropped = now.files().map(|(.., table)| table);
        let dropped = dropped.filter(|table| !kept.contains(&FileName::Table(table.id.0)));
        for table in dropped {
            self.report.tables_dropped += 1;
            self.report.lost.push(self.later_commits(&now.name, table, wrong));
        }
        let flushed_through = match failpoint::is_on(Failpoint::DroppedFlushStaysCounted) {
            true => now.flushed_through,
            false => before.flushed_through,
        };
        let (options, run_id_next) = (now.options.clone(), now.run_id_next);
        let state = KeyspaceState { flushed_through, options, run_id_next, ..before };
        self.state.keyspaces.insert(id, state);
    }

    fn later_commits(&self, keyspace: &str, table: &FileRecord, wrong: &Error) -> Lost {
        Lost {
            keyspace: Some(keyspace.to_owned()),
            path: FileName::Table(table.id.0).in_dir(self.dir),
            what: LostKind::Commits,
            from: Some(table.range.smallest.to_vec()),
            to: Some(table.range.largest.to_vec()),
            bytes: table.bytes,
            why: wrong.to_string(),
        }
    }
}

/// Tables and blob files of a keyspace.
fn file_names(keyspace: &KeyspaceState) -> impl Iterator<Item = FileName> + '_ {
    let tables = keyspace.files().map(|(.., table)| FileName::Table(table.id.0));
    tables.chain(keyspace.value_log.blobs().map(|blob| FileName::Blob(blob.id.0)))
}

//! Reads the WAL and the kept logs of a closed database.

use std::collections::VecDeque;
use std::path::Path;

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::malformed::Malformed;

use crate::error::{Error, Result};
use crate::format::batch::{BatchOperationIter, OperationEffect};
use crate::format::segment_header::SEGMENT_HEADER_BYTES;
use crate::manifest::ManifestState;
use crate::options::stored::{KeptLog, kept_logs};
use crate::vfs::Vfs;
use crate::wal::{
    LogPosition, RecoveryMode, RecoveryReport, ReplayStart, ReplayedRecord, replay, replay_from,
    replay_segments,
};

/// Called with each commit of a replay.
type RecordVisitor<'a> = dyn FnMut(ReplayedRecord<'_>) -> Result<()> + 'a;

/// Location of a log, and the manifest state that its contents must match.
pub(crate) struct LogSource<'a> {
    pub(crate) vfs: &'a dyn Vfs,
    pub(crate) dir: &'a Path,
    pub(crate) state: &'a ManifestState,
    /// Path of the manifest from which `state` was read, for error messages.
    pub(crate) manifest: &'a Path,
    pub(crate) mode: RecoveryMode,
}

/// End of the commits that a follower can show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncedEnd {
    /// Last sequence number.
    pub(crate) last_seq: SeqNo,
    /// Position at which the next catch-up begins to read. All commits before it are shown. `None` if no read can begin
    /// there.
    pub(crate) position: Option<LogPosition>,
}

impl LogSource<'_> {
    /// Finds the end of the commits that a follower can show. Reads the log from `from`; all commits before `from` are
    /// already shown. The owner of the database may append commits during this call.
    ///
    /// All commits up to the returned number are on stable storage. A sync mark or the manifest states this. A table
    /// with a later sequence number also proves it, because the log is synced before the manifest lists a table.
    /// Commits up to `shown` are known to be on stable storage. A failed sync may have lost their mark, and the drop of a
    /// keyspace may have removed their tables.
    ///
    /// # Errors
    /// An error if a file cannot be read or the log is corrupt.
    pub(crate) fn find_synced_end(
        &self,
        from: Option<LogPosition>,
        shown: SeqNo,
    ) -> Result<SyncedEnd> {
        // The commits that no sync mark covers yet. Usually there are few.
        let mut unsynced = VecDeque::new();
        let mut last_seq = last_seq_in_tables(self.state).max(shown);
        let report = self.replay_live(from, &mut |record| {
            let before = SeqNo(record.first_seq.0.saturating_sub(1));
            unsynced.push_back((record.segment, record.offset, before, record.last_seq()));
            while let Some(&(segment, offset, _, seq)) = unsynced.front()
                && (segment, offset) < record.synced
            {
                last_seq = last_seq.max(seq);
                unsynced.pop_front();
            }
            Ok(())
        })?;
        self.check_log_end(&report)?;
        let is_shown =
            |at| at < report.synced || failpoint::is_on(Failpoint::FollowerShowsUnsynced);
        last_seq = last_seq.max(report.before_first);
        while let Some(&(segment, offset, _, seq)) = unsynced.front()
            && is_shown((segment, offset))
        {
            last_seq = last_seq.max(seq);
            unsynced.pop_front();
        }
        let position = match unsynced.front() {
            Some(&(segment, offset, last_seq, _)) => {
                Some(LogPosition { segment, offset, last_seq })
            }
            None => report.end,
        };
        let has_header = |at: &LogPosition| at.offset >= len_u64(SEGMENT_HEADER_BYTES);
        Ok(SyncedEnd { last_seq, position: position.filter(has_header) })
    }

    /// Passes the commits from the position `from` up to `last_seq` to `visit`, in commit order. The owner of the database
    /// may append commits during this call.
    pub(crate) fn replay_through(
        &self,
        from: Option<LogPosition>,
        last_seq: SeqNo,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<RecoveryReport> {
        let mut report = self.replay_live(from, &mut |record| {
            if record.first_seq > last_seq {
                return Ok(());
            }
            self.check_record(&record)?;
            visit(record)
        })?;
        // A follower that extends its view has pinned no file. After the follower has found `last_seq` in the log, a
        // restarted owner may delete the newest segments.
        if from.is_some() {
            self.check_last_seq(&report, last_seq, "at least that of the commits to show")?;
        }
        report.complete_through = self.state.last_complete_seqs(last_seq);
        Ok(report)
    }

    /// Passes the complete commits from the position `start` to `visit`, in commit order. The owner of the database may
    /// change the files during this call.
    ///
    /// The replay may read an incomplete record, and then a sync mark that the owner wrote after it completed the
    /// record. The record then appears damaged. The owner may also truncate the zeros at the end of a segment, and
    /// remove a segment that does not belong to the log, such as that of a failed resume, after the replay has listed
    /// it. Therefore, damage or a missing file is an error only if a second read finds it at the same position.
    fn replay_live(
        &self,
        start: Option<LogPosition>,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<RecoveryReport> {
        let (expect, home) = (self.replay_start(), (self.dir, self.state.db_uid));
        let (mut visited, mut last_damage) = (SeqNo(0), None);
        loop {
            let mode = RecoveryMode::Tolerant;
            let replayed = replay_from(self.vfs, home, &expect, start, mode, &mut |record| {
                if record.first_seq <= visited {
                    return Ok(());
                }
                visit(record)?;
                visited = record.last_seq();
                Ok(())
            });
            let (damage, place) = match replayed {
                Ok(RecoveryReport { damage: Some(damage), cut_at, .. }) => (damage, cut_at),
                Ok(report) => return Ok(report),
                Err(error) => {
                    let place = match &error {
                        Error::Corrupt { path, offset, .. } => (path.clone(), *offset),
                        Error::Io { path, .. } if error.is_missing_file() => (path.clone(), 0),
                        _ => return Err(error),
                    };
                    (error, Some(place))
                }
            };
            if last_damage.as_ref() == Some(&place) {
                return Err(damage);
            }
            last_damage = Some(place);
        }
    }

    fn replay_start(&self) -> ReplayStart {
        ReplayStart {
            oldest_segment: self.state.wal_oldest,
            named: self.state.wal_named.clone(),
            mark: self.state.wal_mark,
            named_by: self.manifest.to_owned(),
        }
    }

    /// Checks the operations of each commit and passes the commit to `visit`, in commit order. Then checks that the log
    /// reaches the newest flush. In tolerant mode, a log that ends earlier is reported as damage.
    pub(crate) fn replay(&self, visit: &mut RecordVisitor<'_>) -> Result<RecoveryReport> {
        let (from, uid) = (self.replay_start(), self.state.db_uid);
        let mut report = replay(self.vfs, self.dir, uid, &from, self.mode, &mut |record| {
            self.check_record(&record)?;
            visit(record)
        })?;
        let ends_early = self.check_log_end(&report);
        if self.mode == RecoveryMode::Strict {
            ends_early.clone()?;
        }
        report.damage = report.damage.or(ends_early.err());
        report.complete_through = self.state.last_complete_seqs(report.last_seq);
        Ok(report)
    }

    /// Checks the operations of each commit of a kept log and passes the commit to `visit`, in commit order.
    pub(crate) fn replay_kept_log(
        &self,
        kept: &KeptLog,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<RecoveryReport> {
        let (home, segments) = ((self.dir, self.state.db_uid), kept.segments());
        replay_segments(self.vfs, home, &segments, self.manifest, self.mode, &mut |record| {
            self.check_record(&record)?;
            visit(record)
        })
    }

    /// Checks the WAL and all kept logs in the same way as an open, without using the commits.
    pub(crate) fn check(&self) -> Result<RecoveryReport> {
        let mut report = self.replay(&mut |_| Ok(()))?;
        for (id, log) in kept_logs(self.state) {
            let kept = self.replay_kept_log(&log, &mut |_| Ok(()))?;
            report.segments += kept.segments;
            report.records += kept.records;
            report.add_keyspace_log(self.state.keyspaces[&id].name.clone(), kept);
        }
        Ok(report)
    }

    /// Checks keyspace, kind and number of the operations of a commit.
    fn check_record(&self, record: &ReplayedRecord<'_>) -> Result<()> {
        let corrupt = |what| {
            let path = FileName::Segment(record.segment).in_dir(self.dir);
            Error::malformed(what, &path, record.offset)
        };
        let mut count = 0u32;
        for operation in BatchOperationIter::new(record.payload) {
            let operation = operation.map_err(corrupt)?;
            if operation.keyspace >= self.state.keyspace_id_next {
                let found = u64::from(operation.keyspace);
                let expected = "the id of a present or dropped keyspace of the manifest";
                let what = Malformed::invalid_field("keyspace of an operation", found, expected);
                return Err(corrupt(what));
            }
            if let OperationEffect::Entry { kind, .. } = operation.action
                && kind.without_expiry() == EntryKind::ValuePointer
            {
                let found = u64::from(kind as u8);
                let expected = "any kind except a value pointer";
                return Err(corrupt(Malformed::invalid_field(
                    "kind of an operation",
                    found,
                    expected,
                )));
            }
            count += 1;
        }
        if count != record.count {
            let expected = "the number in the record";
            let what =
                Malformed::invalid_field("operations of a commit", u64::from(count), expected);
            return Err(corrupt(what));
        }
        Ok(())
    }

    /// Checks that the log contains the last commit of the newest flush.
    ///
    /// The log is synced before the manifest lists a flush, so a log that ends earlier is damaged. If it were accepted,
    /// the flushed keyspace would have later commits than the other keyspaces.
    fn check_log_end(&self, report: &RecoveryReport) -> Result<()> {
        let flushed = self.state.keyspaces.values().map(|keyspace| keyspace.flushed_through).max();
        let Some(flushed) = flushed else { return Ok(()) };
        self.check_last_seq(report, flushed, "at least that of the newest flush")
    }

    /// Checks that the log contains the commit with the sequence number `needed`.
    fn check_last_seq(
        &self,
        report: &RecoveryReport,
        needed: SeqNo,
        expected: &'static str,
    ) -> Result<()> {
        let state = self.state;
        if report.last_seq >= needed {
            return Ok(());
        }
        let (path, offset) = match &report.cut_at {
            Some(cut) => cut.clone(),
            None => {
                let newest = state.wal_named.iter().copied().max().unwrap_or(state.wal_oldest);
                let path = FileName::Segment(newest).in_dir(self.dir);
                let len = self.vfs.open(&path).and_then(|file| file.len());
                let bytes = len.map_err(|error| Error::io("read the size of", &path, error))?;
                (path, bytes)
            }
        };
        let found = report.last_seq.0;
        let what = Malformed::invalid_field("last sequence number of the log", found, expected);
        Err(Error::malformed(what, &path, offset))
    }
}

/// Returns the largest sequence number that tables may contain.
pub(crate) fn last_seq_in_tables(state: &ManifestState) -> SeqNo {
    let keyspaces = state.keyspaces.values().map(|keyspace| {
        let ingested = keyspace.tree.files().map(|file| file.seq_largest).max();
        keyspace.flushed_through.max(SeqNo(ingested.unwrap_or(0)))
    });
    keyspaces.max().unwrap_or_default()
}

/// Returns the largest sequence number in a manifest: that of its last edit or of the newest flush.
pub(crate) fn last_known_seq(state: &ManifestState) -> SeqNo {
    let flushed = state.keyspaces.values().map(|keyspace| keyspace.flushed_through);
    flushed.fold(state.last_seq, SeqNo::max)
}

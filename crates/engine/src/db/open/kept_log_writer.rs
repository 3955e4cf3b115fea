//! Keeps the part of the log that a keyspace without its operand store needs.
//!
//! The commits are copied to a separate chain of segments, so that the log itself can be deleted. They are delivered
//! when the store is opened; see `kept_log_delivery`.

use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::db::open::file_numbers::FileNumberReservation;
use crate::db::open::log_source::LogSource;
use crate::db::open::new_manifest::ManifestSegments;
use crate::error::Result;
use crate::format::batch::BatchOperations;
use crate::format::file_name::FileName;
use crate::options::stored::KeptLog;
use crate::state::table_factory::TableFactory;
use crate::tree::Tree;
use crate::wal::{DurableSegment, ReplayedRecord, Wal, WalOptions, WalRecord};

/// Bytes of commits that are written with one append.
const APPEND_BYTES: usize = 1 << 18;

/// A commit in memory: first sequence number, number of operations, encoded batch.
type OwnedCommit = (SeqNo, u32, Vec<u8>);

/// Copies commits from the log to kept logs.
pub(crate) struct KeptLogWriter<'a> {
    pub(crate) tables: &'a TableFactory,
    pub(crate) log: LogSource<'a>,
    pub(crate) wal_options: WalOptions,
    pub(crate) reservation: &'a FileNumberReservation,
}

impl KeptLogWriter<'_> {
    /// Copies the commits after `after` that a tree needs, and sets the copy as the tree's kept log. Commits of an
    /// older kept log come first. The segments are on stable storage on return.
    ///
    /// # Errors
    /// A log cannot be read, or the copy cannot be written. The new segments are discarded.
    pub(crate) fn keep_log(&self, tree: &Tree, after: SeqNo) -> Result<()> {
        let older = tree.beside.kept_log();
        let first = older.as_ref().map_or(after, |kept| SeqNo(kept.after));
        let number = self.tables.files.next();
        let segments = self.copy_commits(tree.id, after, older.as_deref()).inspect_err(|_| {
            // Only the copy allocates file numbers meanwhile.
            for id in number..self.tables.files.next() {
                self.tables.janitor.discard(FileName::Segment(id).in_dir(&self.tables.dir));
            }
        })?;
        tree.beside.set_kept_log(Some(KeptLog::new(first, &segments)));
        Ok(())
    }

    fn copy_commits(
        &self,
        tree: u32,
        after: SeqNo,
        older: Option<&KeptLog>,
    ) -> Result<Vec<DurableSegment>> {
        let wal = Wal::create(
            Arc::clone(&self.tables.vfs),
            &self.tables.dir,
            self.log.state.db_uid,
            Arc::new(ManifestSegments::new(&self.tables.files)),
            self.wal_options.clone(),
            // A repair without a manifest recognizes a kept log by this number.
            SeqNo(1),
        )?;
        let (mut commits, mut buffered_bytes) = (Vec::new(), 0);
        let mut add_commit = |record: ReplayedRecord<'_>| {
            buffered_bytes += record.payload.len();
            commits.push((record.first_seq, record.count, record.payload.to_vec()));
            if buffered_bytes >= APPEND_BYTES {
                self.append_commits(&wal, &mut commits)?;
                buffered_bytes = 0;
            }
            Ok(())
        };
        if let Some(older) = older {
            self.log.replay_kept_log(older, &mut add_commit)?;
        }
        self.log.replay(&mut |record| {
            if has_operation_after(&record, tree, after) { add_commit(record) } else { Ok(()) }
        })?;
        self.append_commits(&wal, &mut commits)?;
        wal.close()?;
        let segments = wal.segments().into_iter();
        Ok(segments.map(|info| DurableSegment { id: info.id, bytes: info.bytes }).collect())
    }

    fn append_commits(&self, wal: &Wal, commits: &mut Vec<OwnedCommit>) -> Result<()> {
        self.reservation.extend(self.tables)?;
        let records = commits.iter().map(|(first_seq, count, payload)| WalRecord {
            first_seq: *first_seq,
            count: *count,
            payload,
        });
        wal.append(&records.collect::<Vec<_>>())?;
        commits.clear();
        Ok(())
    }
}

/// Returns whether a commit is newer than `after` and has an operation for the keyspace.
pub(crate) fn has_operation_after(
    record: &ReplayedRecord<'_>,
    keyspace: u32,
    after: SeqNo,
) -> bool {
    let is_newer = record.first_seq.0 + u64::from(record.count) > after.0 + 1;
    is_newer
        && BatchOperations::new(record.payload)
            .flatten()
            .any(|operation| operation.keyspace == keyspace)
}

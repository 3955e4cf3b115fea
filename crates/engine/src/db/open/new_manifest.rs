//! Creates the new manifest and the new log of an open or a resume.

use std::path::Path;

use lsmx_base::file_name::FileName;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::format::version_edit::{Change, VersionEdit};
use crate::manifest::Manifest;
use crate::state::table_factory::TableFactory;
use crate::tree::file_numbers::FileNumbers;
use crate::tree::obsolete_files::ObsoleteFiles;
use crate::wal::{SegmentRegistry, Wal, WalOptions};

/// Allocates ids of log segments, and adds new segments to the manifest after it was created.
pub(crate) struct ManifestSegments {
    files: Arc<FileNumbers>,
    /// The new manifest. It is set after its creation, because its first edit already lists the first segment.
    manifest: OnceLock<Arc<Manifest>>,
}

impl ManifestSegments {
    pub(crate) fn new(files: &Arc<FileNumbers>) -> ManifestSegments {
        ManifestSegments { files: Arc::clone(files), manifest: OnceLock::new() }
    }

    /// Sets the manifest to which later segments are added. Must be called at most once.
    pub(crate) fn set_manifest(&self, manifest: &Arc<Manifest>) {
        let _ = self.manifest.set(Arc::clone(manifest));
    }
}

impl SegmentRegistry for ManifestSegments {
    fn allocate_file_number(&self) -> u64 {
        self.files.allocate()
    }

    fn register_segment(&self, id: u64) -> Result<()> {
        match self.manifest.get() {
            Some(manifest) => {
                manifest.append(&VersionEdit { changes: vec![Change::WalSegment { id }] })
            }
            None => Ok(()),
        }
    }
}

/// A new log whose first segment is synced.
pub(crate) struct NewLog {
    pub(crate) wal: Wal,
    /// Id of the first segment.
    pub(crate) segment: u64,
    pub(crate) segments: Arc<ManifestSegments>,
}

impl NewLog {
    /// Creates a log. Its first commit gets sequence number `seq_next`.
    ///
    /// # Errors
    /// If the segment cannot be written. The segment is then deleted.
    pub(crate) fn create(
        tables: &TableFactory,
        db_uid: u64,
        options: WalOptions,
        seq_next: SeqNo,
    ) -> Result<NewLog> {
        let segments = Arc::new(ManifestSegments::new(&tables.files));
        let first = tables.files.next();
        let (vfs, registry) = (Arc::clone(&tables.vfs), Arc::clone(&segments));
        let wal = Wal::create(vfs, &tables.dir, db_uid, registry, options, seq_next);
        let synced = wal.and_then(|wal| Ok((wal.sync_first_segment()?, wal)));
        let (segment, wal) = synced.inspect_err(|_| {
            tables.obsolete_files.discard(FileName::Segment(first).in_dir(&tables.dir));
        })?;
        Ok(NewLog { wal, segment, segments })
    }
}

/// Returns the manifest changes for a new log that starts at `segment` and whose commits follow `last_seq`.
pub(crate) fn new_log_changes(tables: &TableFactory, segment: u64, last_seq: SeqNo) -> Vec<Change> {
    vec![
        Change::WalOldest { segment },
        Change::WalSegment { id: segment },
        Change::LastSeq(last_seq),
        Change::FileNumberNext(tables.files.next()),
        Change::ClockUs(tables.env.database_time_us()),
    ]
}

/// Deletes a manifest that `CURRENT` does not name, and the first segment of its log.
pub(crate) fn discard_manifest(
    obsolete_files: &ObsoleteFiles,
    dir: &Path,
    manifest: u64,
    segment: u64,
) {
    for file in
        [FileName::Manifest(manifest), FileName::Temporary(manifest), FileName::Segment(segment)]
    {
        obsolete_files.discard(file.in_dir(dir));
    }
}

//! Adds archived commits to the log of a checkpoint.
//!
//! The commits are written to one new segment, which follows the last segment of the checkpoint. A replay follows the
//! chain of segments beyond those that the manifest lists. So the segment has a temporary name until all commits are
//! durable. A new manifest then lists the segment. The existing files of the checkpoint remain unchanged, and `CURRENT`
//! is neither read nor written.

use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::{CURRENT, FileName};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::db::open::log_source::{LogSource, last_seq_in_tables};
use crate::error::{Error, Result};
use crate::format::log_chunk::{LogChunkHeader, decode_log_chunk};
use crate::format::log_record::{LogChecksumSeed, RecordHeader, SyncMark};
use crate::format::manifest_header::CurrentFile;
use crate::format::segment_header::{PredecessorSegment, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::manifest::{Manifest, ManifestState};
use crate::options::db::Options;
use crate::vfs::{File, Vfs};
use crate::wal::RecoveryMode;

/// Adds archived commits to a checkpoint that has not been opened since it was created.
///
/// The commits come from the chunks of a [`LogArchiver`](crate::LogArchiver) that was created before the checkpoint. The next open of
/// the checkpoint replays them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let (path, copy) = (dir.path().join("data"), dir.path().join("copy"));
/// use lsmx::{Db, LogExtender, Options, SeqNo};
///
/// let db = Db::open(&path, Options::default())?;
/// let mut archiver = db.archive_log(1 << 30)?;
/// db.checkpoint(&copy)?;
/// db.put("ada", "1815")?;
/// db.sync()?;
/// let chunk = archiver.next_chunk(4 << 20)?.expect("a commit is durable");
///
/// let current = std::fs::read(copy.join("CURRENT"))?;
/// let mut extender = LogExtender::new(&copy, &Options::default(), &current)?;
/// extender.add_chunk(&chunk.bytes, SeqNo::MAX)?;
/// std::fs::write(copy.join("CURRENT"), extender.finish()?)?;
/// let db = Db::open(&copy, Options::default())?;
/// assert_eq!(db.get("ada")?.as_deref(), Some(&b"1815"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LogExtender {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    /// Contents of the `CURRENT` of the checkpoint.
    current: Vec<u8>,
    state: ManifestState,
    manifest: PathBuf,
    /// Last segment of the checkpoint, and its size in bytes.
    log_end: (u64, u64),
    /// Last sequence number in the log of the checkpoint.
    log_last_seq: SeqNo,
    /// All commits up to this number are in the checkpoint or were added.
    last_seq: SeqNo,
    /// Database uid of the chunks.
    chunk_uid: Option<u64>,
    added: Option<AddedSegment>,
}

/// The new segment, which has a temporary name.
#[derive(Debug)]
struct AddedSegment {
    file: Arc<dyn File>,
    /// The temporary name.
    path: PathBuf,
    seed: LogChecksumSeed,
    bytes: u64,
}

impl LogExtender {
    /// Reads the manifest and the log of a checkpoint. `current` is the content of `CURRENT`; the file itself need not
    /// exist. Only the file system ([`Options::vfs`]) of the options is used.
    ///
    /// # Errors
    /// [`Error::NotADatabase`] if the directory is not a checkpoint, or was opened since it was created; [`Error::Corrupt`],
    /// [`Error::UnsupportedVersion`], [`Error::Missing`], [`Error::Io`].
    pub fn new(dir: impl AsRef<Path>, options: &Options, current: &[u8]) -> Result<LogExtender> {
        let (dir, vfs) = (dir.as_ref(), options.file_system());
        let named = CurrentFile::decode(current)
            .map_err(|what| Error::malformed(what, &dir.join(CURRENT), 0))?;
        let loaded = Manifest::load_named(&*vfs, dir, named)?;
        let (state, manifest) = (loaded.state, loaded.path);
        let newest = state.wal_named.iter().max();
        let log_end = state.wal_mark.filter(|(id, bytes)| {
            Some(id) == newest && *bytes >= len_u64(SEGMENT_HEADER_BYTES) && !state.clean_close
        });
        let Some(log_end) = log_end else {
            let why = "it is not a checkpoint, or it was opened after it was created";
            return Err(Error::NotADatabase { path: dir.to_owned(), why });
        };
        let source = LogSource {
            vfs: &*vfs,
            dir,
            state: &state,
            manifest: &manifest,
            mode: RecoveryMode::Strict,
        };
        let log_last_seq = source.replay(&mut |_| Ok(()))?.last_seq;
        let last_seq = log_last_seq.max(last_seq_in_tables(&state));
        let (dir, current, chunk_uid) = (dir.to_owned(), current.to_owned(), None);
        let added = None;
        Ok(LogExtender {
            vfs,
            dir,
            current,
            state,
            manifest,
            log_end,
            log_last_seq,
            last_seq,
            chunk_uid,
            added,
        })
    }

    /// Returns the last sequence number of the checkpoint or of the added chunks. A chunk counts up to the bound
    /// `through` of [`LogExtender::add_chunk`].
    #[must_use]
    pub fn last_seq(&self) -> SeqNo {
        self.last_seq
    }

    /// Adds the commits of a chunk. Skips commits that end after `through`, and commits that the checkpoint already
    /// contains.
    ///
    /// # Errors
    /// [`Error::LogChunkGap`] if commits between the database and the chunk are missing; [`Error::MalformedLogChunk`]; [`Error::Io`]. After an error of the file system, the
    /// extender must be dropped.
    pub fn add_chunk(&mut self, chunk: &[u8], through: SeqNo) -> Result<()> {
        let malformed = |(source, offset)| Error::MalformedLogChunk { offset, source };
        let (header, commits) = decode_log_chunk(chunk).map_err(malformed)?;
        let LogChunkHeader { db_uid, first_seq, last_seq } = header;
        let expected = *self.chunk_uid.get_or_insert(db_uid);
        if expected != db_uid {
            let what = Malformed::Identity { what: "database uid", expected, found: db_uid };
            return Err(malformed((what, 0)));
        }
        if self.last_seq >= through {
            return Ok(());
        }
        if first_seq > self.last_seq.0 + 1 && !failpoint::is_on(Failpoint::ArchiveGapIgnored) {
            return Err(Error::LogChunkGap { last_seq: self.last_seq.0, first_seq });
        }
        let mut encoded = Vec::new();
        for commit in commits {
            if commit.first_seq <= self.last_seq.0 || commit.last_seq() > through.0 {
                continue;
            }
            let added = self.added_segment(&mut encoded)?;
            let location = (added.seed, added.bytes + len_u64(encoded.len()));
            let numbers = (commit.first_seq, commit.count);
            // All segments of a checkpoint are synced.
            let mark = SyncMark { position: 0, older_synced: true };
            RecordHeader::encode_record(&mut encoded, location, numbers, mark, commit.payload)
                .map_err(|what| Error::malformed(what, &added.path, added.bytes))?;
        }
        if let Some(added) = self.added.as_mut().filter(|_| !encoded.is_empty()) {
            let appended = added.file.append(&encoded);
            appended.map_err(|error| Error::io("append to", &added.path, error))?;
            added.bytes += len_u64(encoded.len());
        }
        self.last_seq = self.last_seq.max(through.min(SeqNo(last_seq)));
        Ok(())
    }

    /// Returns the new segment. Creates it for the first commit, and adds its header to `encoded`.
    fn added_segment(&mut self, encoded: &mut Vec<u8>) -> Result<&mut AddedSegment> {
        let added = match self.added.take() {
            Some(added) => added,
            None => {
                let id = self.state.file_number_next;
                let path = FileName::Temporary(id).in_dir(&self.dir);
                let file = self.vfs.create(&path);
                let file = file.map_err(|error| Error::io("create", &path, error))?;
                let (db_uid, first_seq) = (self.state.db_uid, self.last_seq.0 + 1);
                let (last_seq, (segment, bytes)) = (self.log_last_seq.0, self.log_end);
                let predecessor = PredecessorSegment { id: segment, last_seq, bytes, mark: bytes };
                let header =
                    SegmentHeader { db_uid, id, first_seq, predecessor: Some(predecessor) };
                encoded.extend_from_slice(&header.encode());
                AddedSegment { file, path, seed: LogChecksumSeed::new(db_uid, id), bytes: 0 }
            }
        };
        Ok(self.added.insert(added))
    }

    /// Makes the commits durable. Returns the content of the file `CURRENT` with which the directory is a database that contains them.
    ///
    /// The caller must then replace `CURRENT` atomically. Without added commits, the content is that of the checkpoint.
    /// If the process dies during the call, the checkpoint contains none or all of the added commits. Before the call,
    /// it contains none.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a commit is not valid in this database, for example because its keyspace does not exist;
    /// [`Error::Io`].
    pub fn finish(mut self) -> Result<Vec<u8>> {
        let Some(added) = self.added.take() else { return Ok(self.current) };
        added.file.sync().map_err(|error| Error::io("sync", &added.path, error))?;
        let path = FileName::Segment(self.state.file_number_next).in_dir(&self.dir);
        let renamed = self.vfs.rename(&added.path, &path);
        renamed.map_err(|error| Error::io("rename", &added.path, error))?;
        let current = self.write_manifest(added.bytes);
        if let Err(Error::Corrupt { .. }) = &current {
            // Without the new segment, the checkpoint remains usable.
            let _ = self.vfs.remove(&path);
        }
        current
    }

    /// Checks the new segment, and writes a manifest that lists it.
    fn write_manifest(&mut self, segment_bytes: u64) -> Result<Vec<u8>> {
        let state = &mut self.state;
        let (segment, number) = (state.file_number_next, state.file_number_next + 1);
        state.wal_named.push(segment);
        state.wal_mark = Some((segment, segment_bytes));
        state.file_number_next = number + 1;
        let source = LogSource {
            vfs: &*self.vfs,
            dir: &self.dir,
            state,
            manifest: &self.manifest,
            mode: RecoveryMode::Strict,
        };
        source.check()?;
        let current = Manifest::create_unnamed(&*self.vfs, &self.dir, number, state)?;
        Ok(current.encode().into_bytes())
    }
}

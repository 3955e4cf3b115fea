//! Reads the durable commits of an open database. A *hold* keeps their log segments until the commits are returned.
//!
//! 1. Take the list of the segments that the hold needs: the retired ones, which it keeps, and the durable part of the log. Other segments
//!    of the log are not read, because a flush may delete their files at any time.
//! 2. Read the end of the hold. If it was set after step 1 began, repeat step 1, because further commits before the end may have become
//!    durable. If the structure of the database changes after step 2, no commit in the list depends on the change.
//! 3. Copy the commits after the position of the hold. If the hold ends meanwhile, the files may be missing.
//! 4. Move the hold to the end of the chunk. The next chunk begins there.

use std::path::PathBuf;

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::db::handle::DbHandle;
use crate::db::inner::DbInner;
use crate::error::{Error, LogArchiveEnd, Result};
use crate::format::log_chunk::LogChunkBuilder;
use crate::format::log_record::LogChecksumSeed;
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::log_reader::{LogRead, LogReader};
use crate::wal::{DurableSegment, HeldLog};

/// Reads the commits of a database for an archive. See [`Db::archive_log`](crate::Db::archive_log).
///
/// While the archiver exists, the database stays open. It keeps the log segments with commits that the archiver has not
/// returned.
#[derive(Debug)]
pub struct LogArchiver {
    handle: Arc<DbHandle>,
    /// Id of the hold in [`LogHolds`](crate::wal::LogHolds).
    hold: u64,
    /// Position after the last commit that was returned. All commits in older segments were returned.
    cursor: LogCursor,
}

/// Consecutive commits of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogChunk {
    /// First sequence number that the chunk covers: the one after the previous chunk.
    pub first_seq: SeqNo,
    /// Last sequence number of the last commit in the chunk.
    pub last_seq: SeqNo,
    /// The commits, with checksums. [`LogExtender`](crate::LogExtender) decodes them.
    pub bytes: Vec<u8>,
}

/// Position in the log: id of a segment and offset of a record. Segment 0 stands for the oldest segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LogCursor {
    segment: u64,
    offset: u64,
}

impl LogArchiver {
    /// Creates an archiver. It returns all commits after those that are on stable storage now.
    pub(in crate::db) fn new(handle: Arc<DbHandle>, held_bytes_max: u64) -> Result<LogArchiver> {
        let inner = &handle.0;
        inner.check_writable()?;
        let hold = {
            // While both locks are held, no structural change of the database is in progress.
            let _lock = inner.lock_admin(None)?;
            let _changes = inner.keyspace_changes.lock();
            let state = &inner.state;
            state.error_state.check_writable()?;
            let _retiring = state.retiring.lock();
            state.log_holds.add(state.wal.durable_seq(), held_bytes_max)
        };
        Ok(LogArchiver { handle, hold, cursor: LogCursor::default() })
    }

    /// Returns the next commits that are on stable storage, or `None` if there are no new ones.
    ///
    /// The chunk has at least one commit, and further commits until its size reaches `bytes_max`. The calling thread
    /// reads the log files. If a read fails, the next call returns the same commits.
    ///
    /// # Errors
    /// [`Error::LogArchiveEnded`] if the next commits are not available; a new archiver and a new backup are then needed.
    /// [`Error::ReadOnly`] after a failed write, until [`Db::resume`](crate::Db::resume); [`Error::Corrupt`], [`Error::Io`].
    pub fn next_chunk(&mut self, bytes_max: usize) -> Result<Option<LogChunk>> {
        let state = &self.handle.0.state;
        let Some((held, segments)) = self.readable_segments()? else { return Ok(None) };
        let end = held.end.as_ref().map_or(SeqNo::MAX, |(last, _)| *last);
        let first_seq = held.position.0 + 1;
        let mut chunk = LogChunkBuilder::new(state.manifest.db_uid(), first_seq);
        let copied = self.copy_commits(&segments, (held.position, end), &mut chunk, bytes_max);
        let cursor = copied.map_err(|error| {
            let held = state.log_holds.held_log(self.hold);
            held.and_then(|held| held.exhausted_error()).unwrap_or(error)
        })?;
        match chunk.finish() {
            Some((first_seq, last_seq, bytes)) => {
                let (first_seq, last_seq) = (SeqNo(first_seq), SeqNo(last_seq));
                state.discard_segments(state.log_holds.advance(self.hold, last_seq)?);
                self.cursor = cursor;
                Ok(Some(LogChunk { first_seq, last_seq, bytes }))
            }
            None => held.ended_error().map_or(Ok(None), Err),
        }
    }

    /// Returns the reason why later commits are not available, or `None` if all later commits are.
    ///
    /// If the structure of the database has changed, [`next_chunk`](LogArchiver::next_chunk) still returns the commits before the
    /// change. For other reasons, it returns no further commit.
    #[must_use]
    pub fn end(&self) -> Option<LogArchiveEnd> {
        let held = self.handle.0.state.log_holds.held_log(self.hold)?;
        held.end.map(|(_, reason)| reason)
    }

    /// Returns the segments with commits that may be returned, oldest first.
    fn readable_segments(&self) -> Result<Option<(HeldLog, Vec<DurableSegment>)>> {
        let state = &self.handle.0.state;
        // Segments move from the log to the hold only under this lock, so the list misses no segment.
        let _retiring = state.retiring.lock();
        // After a failed edit of the manifest, neither the log nor the hold lists the retired segments.
        state.error_state.check_writable()?;
        let Some(held) = state.log_holds.held_log(self.hold) else { return Ok(None) };
        if let Some(error) = held.exhausted_error() {
            return Err(error);
        }
        state.log_holds.read_with(self.hold, |held| {
            let durable = state.wal.durable_segments()?;
            // Listed after the durable part, so that the last sequence numbers include its commits.
            let live = state.wal.segments().into_iter().filter(|segment| held.needs(segment));
            let held = held.segments.iter();
            let mut segments: Vec<_> =
                held.map(|it| DurableSegment { id: it.id, bytes: it.bytes }).collect();
            segments.extend(live.filter_map(|it| {
                match failpoint::is_on(Failpoint::ArchiveReturnsUnsynced) {
                    false => durable.iter().find(|durable| durable.id == it.id).copied(),
                    true => Some(DurableSegment { id: it.id, bytes: it.bytes }),
                }
            }));
            Ok(segments)
        })
    }

    /// Copies the commits after `position` and up to `end`. Returns the position after the last copied commit.
    fn copy_commits(
        &self,
        segments: &[DurableSegment],
        (position, end): (SeqNo, SeqNo),
        chunk: &mut LogChunkBuilder,
        bytes_max: usize,
    ) -> Result<LogCursor> {
        let (mut cursor, mut last_seq) = (self.cursor, position.0);
        for segment in segments {
            let source = SegmentSource::open(&self.handle.0, *segment)?;
            if segment.id != cursor.segment {
                source.check_follows(last_seq)?;
                cursor = LogCursor { segment: segment.id, offset: len_u64(SEGMENT_HEADER_BYTES) };
            }
            let mut reader = source.reader();
            loop {
                if chunk.record_bytes() >= bytes_max.max(1) {
                    return Ok(cursor);
                }
                let (header, payload) = match reader.read_record(cursor.offset)? {
                    LogRead::End => break,
                    LogRead::Record(header, payload) => (header, payload),
                    LogRead::Malformed(what) => {
                        return Err(Error::malformed(what, &source.path, cursor.offset));
                    }
                };
                if !header.is_mark_only() && header.first_seq > position.0 {
                    if header.first_seq > end.0 {
                        return Ok(cursor);
                    }
                    chunk
                        .add_commit((header.first_seq, header.count), payload)
                        .map_err(|what| Error::malformed(what, &source.path, cursor.offset))?;
                    last_seq = header.first_seq + u64::from(header.count) - 1;
                }
                cursor.offset += header.record_bytes();
            }
        }
        Ok(cursor)
    }
}

impl Drop for LogArchiver {
    fn drop(&mut self) {
        let state = &self.handle.0.state;
        state.discard_segments(state.log_holds.remove(self.hold));
    }
}

/// An open segment.
struct SegmentSource {
    file: Arc<dyn crate::vfs::File>,
    path: PathBuf,
    header: SegmentHeader,
    /// Size of the durable part in bytes.
    end: u64,
}

impl SegmentSource {
    fn open(inner: &DbInner, segment: DurableSegment) -> Result<SegmentSource> {
        let (state, path) = (&inner.state, FileName::Segment(segment.id).in_dir(&inner.state.dir));
        let file = state.vfs.open(&path).map_err(|error| Error::io("open", &path, error))?;
        let mut first = [0; SEGMENT_HEADER_BYTES];
        let read = file.read_at(&mut first, 0).map_err(|error| Error::io("read", &path, error))?;
        let header = SegmentHeader::decode(&first[..read]).and_then(|header| {
            header.check_identity(state.manifest.db_uid(), segment.id).map(|()| header)
        });
        let header = header.map_err(|what| Error::malformed(what, &path, 0))?;
        Ok(SegmentSource { file, path, header, end: segment.bytes })
    }

    fn reader(&self) -> LogReader<'_> {
        let seed = LogChecksumSeed::new(self.header.db_uid, self.header.id);
        LogReader::new(&*self.file, &self.path, seed, self.end)
    }

    /// Checks that all commits before this segment were returned. `last_seq` is the last returned sequence number.
    fn check_follows(&self, last_seq: u64) -> Result<()> {
        match self.header.predecessor {
            Some(before) if before.last_seq > last_seq => {
                let what = "predecessor's last sequence number";
                let expected = "at most that of the last archived commit";
                let what = Malformed::invalid_field(what, before.last_seq, expected);
                Err(Error::malformed(what, &self.path, 0))
            }
            _ => Ok(()),
        }
    }
}

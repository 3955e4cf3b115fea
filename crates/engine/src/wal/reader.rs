//! Replay of the write-ahead log.
//!
//! 1. Read the headers of all segments, starting with the oldest live segment. Each header states the previous segment
//!    (predecessor) in the chain.
//! 2. Follow the chain from the oldest segment. Pass every record in the valid part of each segment to the caller.
//! 3. Stop at the first invalid record or header, and scan all following bytes for sync marks. A sync mark can be in a
//!    later record, in the header of a later segment, or in the manifest. If a mark states that the stop position was
//!    synced, the log is **corrupt**. Strict mode then returns an error with file and offset. Tolerant mode keeps the
//!    records before the position. If no mark states this, the log has a **torn tail**, which is ignored and reported.
//!
//! A segment without a predecessor starts a new chain. If such a segment is not the oldest live segment, a failed
//! resume created it, and the manifest never listed it. The segment contains no commits and is ignored.
//!
//! Segment files are preallocated with zeros, so the records may end before the end of the file. The header of the next
//! segment states the size of the valid part. If no readable header of a next segment exists, the bytes after the first
//! invalid record determine the result:
//!
//! - Only zeros follow. The zeros may be preallocated, so the segment ends here. Marks in later records and headers
//!   cannot prove that the zeros were records, because they state that the segment was synced, but not how many bytes
//!   it has. The mark in the manifest contains an offset. If this offset lies after the start of the zeros, records are
//!   missing.
//! - Other bytes follow. These bytes belong to the valid part, because nothing is appended to a closed segment. If the
//!   segment was synced, the invalid record before these bytes is corruption.
//!
//! An unreadable segment header was on stable storage in each of these cases:
//!
//! - The manifest lists the segment or a later segment.
//! - A record of the segment states that the segment is synced.
//! - A later segment states that older segments are synced.
//!
//! In all other cases the header is part of the torn tail. No commit in this segment or in a later segment was
//! acknowledged as synced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::log_record::{LogChecksumSeed, RECORD_HEADER_BYTES, SyncMark};
use crate::format::segment_header::{PredecessorSegment, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::log_reader::{LogRead, LogReader};
use crate::vfs::{File, Vfs};
use crate::wal::DurableSegment;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

/// The state of the log according to the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayStart {
    /// Id of the first segment of the chain.
    pub oldest_segment: u64,
    /// Ids of the segments listed in the manifest. Ids smaller than `oldest_segment` are ignored.
    pub named: Vec<u64>,
    /// Id of a segment and the number of its synced bytes, as recorded by the last clean close.
    pub mark: Option<(u64, u64)>,
    /// Path of the manifest, for error messages.
    pub named_by: PathBuf,
}

impl ReplayStart {
    /// Returns the largest segment and offset that the manifest states to be on stable storage. A segment is listed only
    /// after its header and all older segments were synced.
    fn synced_position(&self) -> (u64, u64) {
        let newest = self.named.iter().copied().max().unwrap_or(self.oldest_segment);
        (newest.max(self.oldest_segment), 0).max(self.mark.unwrap_or_default())
    }
}

/// A position between two records of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPosition {
    /// Id of the segment.
    pub(crate) segment: u64,
    /// Offset in the segment file. It is less than the size of the segment header if the header is not readable.
    pub(crate) offset: u64,
    /// Last sequence number before the position, or a larger one. It is smaller than the first sequence number of the
    /// next commit.
    pub(crate) last_seq: SeqNo,
}

impl LogPosition {
    /// Returns true if the segment may contain a record at this position. Returns false at the end of the file and
    /// before preallocated zeros.
    pub(crate) fn may_have_record(&self, vfs: &dyn Vfs, dir: &Path) -> Result<bool> {
        let path = FileName::Segment(self.segment).in_dir(dir);
        let file = vfs.open(&path).map_err(|source| Error::io("open", &path, source))?;
        let mut header = [0; RECORD_HEADER_BYTES];
        let read = file.read_at(&mut header, self.offset);
        let read = read.map_err(|source| Error::io("read", &path, source))?;
        Ok(header[..read].iter().any(|&byte| byte != 0))
    }
}

/// Handling of corruption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryMode {
    /// Corruption is an error. A torn tail is not corruption: recovery ignores the tail, and the database contains a
    /// prefix of its commits.
    #[default]
    Strict,
    /// Corruption of the log ends the replay and is reported. All tables are kept.
    ///
    /// Each keyspace then contains all of its operations up to one sequence number, and no later operations. This
    /// number is the last commit before the corruption, or the last flush of the keyspace if the flush is later. The
    /// number may differ between keyspaces, so a batch that writes to several keyspaces may be applied in some of them
    /// only. [`RecoveryReport::complete_through`] has the number of each keyspace. Corrupt tables and manifests are
    /// errors in this mode, too.
    Tolerant,
}

/// A commit that replay passes to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedRecord<'a> {
    /// First sequence number of the commit.
    pub first_seq: SeqNo,
    /// Number of sequence numbers of the commit.
    pub count: u32,
    /// Encoded batch.
    pub payload: &'a [u8],
    /// Id of the segment that contains the record.
    pub segment: u64,
    /// Offset of the record in the segment file.
    pub offset: u64,
    /// Value of [`RecoveryReport::synced`] for the part of the log that was read so far.
    pub(crate) synced: (u64, u64),
}

impl ReplayedRecord<'_> {
    /// Returns the last sequence number of the commit.
    pub(crate) fn last_seq(&self) -> SeqNo {
        // The sum is at most 2^56, because the decoder of the header checks this bound.
        SeqNo(self.first_seq.0 + u64::from(self.count) - 1)
    }
}

/// Result of a replay.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Number of replayed segments.
    pub segments: u64,
    /// Number of replayed commits.
    pub records: u64,
    /// Last replayed sequence number. Without replayed commits, the sequence number before the oldest segment.
    pub last_seq: SeqNo,
    /// Bytes after the position where replay stopped, in all segments. Excludes zeros at the end of files.
    pub bytes_cut: u64,
    /// Number of valid commits after the position where replay stopped. These commits are lost.
    pub records_beyond: u64,
    /// File and offset where replay stopped, if bytes or preallocated zeros follow.
    pub cut_at: Option<(PathBuf, u64)>,
    /// Corruption that stopped the replay in tolerant mode; `None` for a torn tail.
    pub damage: Option<Error>,
    /// Sequence number before the first replayed segment.
    pub(crate) before_first: SeqNo,
    /// Largest segment and offset that a sync mark, or the manifest, states to be on stable storage.
    /// All commits before this position are synced.
    pub(crate) synced: (u64, u64),
    /// Position at which the replay ended.
    pub(crate) end: Option<LogPosition>,
    /// Sequence number up to which each keyspace is complete, by keyspace name. A keyspace contains all of its
    /// operations up to this number and no later operations. Without corruption all numbers are equal. Empty in the
    /// report of [`replay`], which does not read tables.
    pub complete_through: BTreeMap<String, SeqNo>,
}

impl RecoveryReport {
    /// Adds the number of synced bytes of a segment that a mark states. If the number is 0, the segment is not registered,
    /// and older segments may be unsynced, too.
    fn add_synced(&mut self, segment: u64, bytes: u64) {
        if bytes > 0 {
            self.synced = self.synced.max((segment, bytes));
        }
    }

    /// Adds the report `kept` about segments that were kept for one keyspace while its operand store was missing. If
    /// the segments are corrupt, the keyspace is complete up to the corruption.
    pub(crate) fn add_keyspace_log(&mut self, keyspace: String, kept: RecoveryReport) {
        if kept.damage.is_some() {
            self.complete_through.insert(keyspace, kept.last_seq);
        }
        self.damage = self.damage.take().or(kept.damage);
    }
}

/// Follows the chain of segments and passes every commit to `visit`, in append order. The commits are a prefix of the
/// appended commits. Without corruption, the prefix includes all synced commits. Writes nothing.
///
/// # Errors
/// Fails when I/O or `visit` fails, when a synced segment belongs to another database, or when a segment has a newer
/// format version. In strict mode, also fails when a synced segment is missing or the log is corrupt. After an error,
/// the caller must discard the commits that were passed to `visit`.
pub fn replay(
    vfs: &dyn Vfs,
    dir: &Path,
    db_uid: u64,
    expect: &ReplayStart,
    mode: RecoveryMode,
    visit: &mut dyn FnMut(ReplayedRecord<'_>) -> Result<()>,
) -> Result<RecoveryReport> {
    replay_from(vfs, (dir, db_uid), expect, None, mode, visit)
}

/// Like [`replay`], but begins at the position `from`, if it is given. The position must be in a live segment, and the log
/// must have been replayed up to this position without an error.
pub(crate) fn replay_from(
    vfs: &dyn Vfs,
    (dir, db_uid): (&Path, u64),
    expect: &ReplayStart,
    from: Option<LogPosition>,
    mode: RecoveryMode,
    visit: &mut dyn FnMut(ReplayedRecord<'_>) -> Result<()>,
) -> Result<RecoveryReport> {
    let first = from.map_or(expect.oldest_segment, |from| from.segment);
    let candidates = SegmentCandidate::read_all(vfs, (dir, db_uid), &|id| id >= first)?;
    replay_chain(&SegmentChain { vfs, dir, db_uid, expect, from, candidates }, mode, visit)
}

/// Replays a chain that consists of exactly these segments, oldest first. All segments are durable up to their ends.
/// `named_by` is the path of the file that lists the segments, for error messages.
pub(crate) fn replay_segments(
    vfs: &dyn Vfs,
    (dir, db_uid): (&Path, u64),
    segments: &[DurableSegment],
    named_by: &Path,
    mode: RecoveryMode,
    visit: &mut dyn FnMut(ReplayedRecord<'_>) -> Result<()>,
) -> Result<RecoveryReport> {
    let (Some(first), Some(last)) = (segments.first(), segments.last()) else {
        return Ok(RecoveryReport::default());
    };
    let expect = ReplayStart {
        oldest_segment: first.id,
        named: segments.iter().map(|segment| segment.id).collect(),
        mark: Some((last.id, last.bytes)),
        named_by: named_by.to_owned(),
    };
    let is_one = |id| segments.iter().any(|segment| segment.id == id);
    let candidates = SegmentCandidate::read_all(vfs, (dir, db_uid), &is_one)?;
    let chain = SegmentChain { vfs, dir, db_uid, expect: &expect, from: None, candidates };
    replay_chain(&chain, mode, visit)
}

fn replay_chain(
    chain: &SegmentChain<'_>,
    mode: RecoveryMode,
    visit: &mut dyn FnMut(ReplayedRecord<'_>) -> Result<()>,
) -> Result<RecoveryReport> {
    let mut report =
        RecoveryReport { synced: chain.expect.synced_position(), ..RecoveryReport::default() };
    if let Some(stop) = chain.visit_records(&mut report, visit)? {
        let (segment, offset, last_seq) = (stop.id, stop.offset, report.last_seq);
        report.end = Some(LogPosition { segment, offset, last_seq });
        chain.classify_stop(stop, mode, &mut report)?;
    }
    Ok(report)
}

/// A segment file that may belong to the chain. The file is open only while it is read, because a log may have more
/// segments than a process may open files.
struct SegmentCandidate {
    id: u64,
    path: PathBuf,
    bytes: u64,
    header: std::result::Result<SegmentHeader, Malformed>,
}

impl SegmentCandidate {
    /// Reads the headers of the segment files whose ids `is_wanted` accepts, in ascending order of the ids.
    fn read_all(
        vfs: &dyn Vfs,
        (dir, db_uid): (&Path, u64),
        is_wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Vec<SegmentCandidate>> {
        let names = vfs.list(dir).map_err(|source| Error::io("list", dir, source))?;
        let mut ids: Vec<u64> = names
            .iter()
            .filter_map(|name| match FileName::parse(name) {
                Some(FileName::Segment(id)) if is_wanted(id) => Some(id),
                _ => None,
            })
            .collect();
        ids.sort_unstable();
        ids.into_iter().map(|id| SegmentCandidate::read(vfs, dir, db_uid, id)).collect()
    }

    fn read(vfs: &dyn Vfs, dir: &Path, db_uid: u64, id: u64) -> Result<SegmentCandidate> {
        let path = FileName::Segment(id).in_dir(dir);
        let file = vfs.open(&path).map_err(|source| Error::io("open", &path, source))?;
        let bytes = file.len().map_err(|source| Error::io("read", &path, source))?;
        let mut first = [0; SEGMENT_HEADER_BYTES];
        let read = file.read_at(&mut first, 0);
        let read = read.map_err(|source| Error::io("read", &path, source))?;
        let header = SegmentHeader::decode(&first[..read]);
        let header = match header {
            Err(newer @ Malformed::Version { .. }) => {
                return Err(Error::malformed(newer, &path, 0));
            }
            // After a crash, a segment that was never synced may contain an old disk block. The header may then be the
            // one of another segment, or of another database such as a deleted checkpoint.
            Ok(header) => header.check_identity(db_uid, id).map(|()| header),
            bad => bad,
        };
        Ok(SegmentCandidate { id, path, bytes, header })
    }

    /// Returns the predecessor that the header states. Returns `None` for the start of a chain and for an unreadable
    /// header.
    fn predecessor(&self) -> Option<PredecessorSegment> {
        self.header.as_ref().ok().and_then(|header| header.predecessor)
    }

    /// Returns whether the header is readable and states no predecessor.
    fn is_chain_start(&self) -> bool {
        self.header.as_ref().is_ok_and(|header| header.predecessor.is_none())
    }

    fn open_file(&self, vfs: &dyn Vfs) -> Result<Arc<dyn File>> {
        vfs.open(&self.path).map_err(|source| Error::io("open", &self.path, source))
    }

    /// Returns a reader of the first `end` bytes of `file`, which is the file of this segment.
    fn reader<'a>(&'a self, file: &'a dyn File, db_uid: u64, end: u64) -> LogReader<'a> {
        LogReader::new(file, &self.path, LogChecksumSeed::new(db_uid, self.id), end)
    }
}

/// Position and reason of the end of the replay, before the end of the chain.
struct ReplayStop {
    /// Id of the segment in which replay stopped, or of the missing segment.
    id: u64,
    offset: u64,
    /// True if data with valid checksums is inconsistent. A torn write cannot cause such an inconsistency.
    is_corruption: bool,
    reason: StopReason,
}

impl ReplayStop {
    fn at_start(id: u64, reason: StopReason) -> ReplayStop {
        ReplayStop { id, offset: 0, is_corruption: false, reason }
    }
}

/// Reason why replay stopped.
enum StopReason {
    Malformed(Malformed),
    /// The segment does not exist, but the file with this path refers to the segment.
    Missing(PathBuf),
}

/// The segment files found in the directory, and the state that the manifest expects.
struct SegmentChain<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    db_uid: u64,
    expect: &'a ReplayStart,
    /// Position at which the replay begins, if it does not begin at the start of the oldest segment.
    from: Option<LogPosition>,
    candidates: Vec<SegmentCandidate>,
}

impl SegmentChain<'_> {
    fn path(&self, id: u64) -> PathBuf {
        FileName::Segment(id).in_dir(self.dir)
    }

    /// Passes records to `visit` up to the end of the chain or the first invalid position. Returns that position.
    fn visit_records(
        &self,
        report: &mut RecoveryReport,
        visit: &mut dyn FnMut(ReplayedRecord<'_>) -> Result<()>,
    ) -> Result<Option<ReplayStop>> {
        let mut id = self.from.map_or(self.expect.oldest_segment, |from| from.segment);
        let mut named_by = self.expect.named_by.clone();
        loop {
            let Some(current) = self.candidates.iter().find(|candidate| candidate.id == id) else {
                let reason = StopReason::Missing(named_by);
                return Ok(Some(ReplayStop::at_start(id, reason)));
            };
            let header = match &current.header {
                Ok(header) => header,
                Err(what) => {
                    let reason = StopReason::Malformed(what.clone());
                    return Ok(Some(ReplayStop::at_start(id, reason)));
                }
            };
            let from = self.from.filter(|_| report.segments == 0);
            if report.segments == 0 {
                let before_first = SeqNo(header.first_seq.saturating_sub(1));
                report.last_seq = from.map_or(before_first, |from| from.last_seq);
                report.before_first = report.last_seq;
            }
            if let Some(before) = header.predecessor {
                report.add_synced(before.id, before.mark);
            }
            report.segments += 1;
            let next = match self.successor(id) {
                Ok(next) => next,
                Err(stop) => return Ok(Some(stop)),
            };
            let end = next.and_then(SegmentCandidate::predecessor).map(|before| before.bytes);
            let start = from.map(|from| from.offset);
            let (vfs, db_uid) = (self.vfs, self.db_uid);
            let end = match (SegmentReplay { vfs, current, db_uid, start, end })
                .visit_records(report, visit)?
            {
                SegmentOutcome::Complete(end) => end,
                SegmentOutcome::Stopped(stop) => return Ok(Some(stop)),
            };
            let Some(next) = next else {
                let (segment, offset, last_seq) = (id, end.offset, report.last_seq);
                report.end = Some(LogPosition { segment, offset, last_seq });
                if end.zeros_follow.is_some() {
                    report.cut_at = Some((current.path.clone(), end.offset));
                }
                return Ok(self.check_no_segment_after_end(id, end));
            };
            let before = next.predecessor().map_or(0, |before| before.last_seq);
            if before != report.last_seq.0 {
                let what = Malformed::invalid_field(
                    "predecessor's last sequence number",
                    before,
                    "the number of its last record",
                );
                let reason = StopReason::Malformed(what);
                return Ok(Some(ReplayStop {
                    id: next.id,
                    offset: 0,
                    is_corruption: true,
                    reason,
                }));
            }
            named_by.clone_from(&current.path);
            id = next.id;
        }
    }

    /// Returns the segment whose predecessor is `id`, if there is one. Two such segments are corruption.
    fn successor(&self, id: u64) -> std::result::Result<Option<&SegmentCandidate>, ReplayStop> {
        let mut all = self.candidates.iter().filter(|candidate| {
            candidate.id > id && candidate.predecessor().is_some_and(|before| before.id == id)
        });
        let first = all.next();
        let Some(second) = all.next() else { return Ok(first) };
        let what = Malformed::invalid_field("predecessor of two segments", id, "one successor");
        Err(ReplayStop {
            id: second.id,
            offset: 0,
            is_corruption: true,
            reason: StopReason::Malformed(what),
        })
    }

    /// Checks that the chain ends at segment `last`: no other live segment has a larger id, and the manifest lists no
    /// later segment and no later position. Returns the first position that contradicts this.
    fn check_no_segment_after_end(&self, last: u64, end: SegmentEnd) -> Option<ReplayStop> {
        let unreached = self.unreached_segments(last).map(|candidate| {
            let reason = match (&candidate.header, candidate.predecessor()) {
                (Err(what), _) => StopReason::Malformed(what.clone()),
                (Ok(_), Some(before)) if before.id > last => {
                    let reason = StopReason::Missing(candidate.path.clone());
                    return ReplayStop::at_start(before.id, reason);
                }
                (Ok(_), before) => StopReason::Malformed(Malformed::Identity {
                    what: "predecessor",
                    expected: last,
                    found: before.map_or(0, |before| before.id),
                }),
            };
            ReplayStop::at_start(candidate.id, reason)
        });
        let named = self.expect.named.iter().chain(self.expect.mark.iter().map(|(id, _)| id));
        let named = named.filter(|&&id| id > last).map(|&id| {
            let there = self.candidates.iter().find(|candidate| candidate.id == id);
            let reason = match there.map(|candidate| &candidate.header) {
                None => StopReason::Missing(self.expect.named_by.clone()),
                Some(Err(what)) => StopReason::Malformed(what.clone()),
                // The listed segment starts a new chain, or follows a segment that starts a new chain.
                Some(Ok(_)) => StopReason::Malformed(Malformed::Identity {
                    what: "predecessor",
                    expected: last,
                    found: 0,
                }),
            };
            ReplayStop::at_start(id, reason)
        });
        let short = self.expect.mark.filter(|&(id, marked)| id == last && marked > end.offset);
        let short = short.map(|(id, needed)| {
            let (what, found) = ("WAL segment", end.offset);
            let what = end.zeros_follow.unwrap_or(Malformed::Truncated { what, needed, found });
            ReplayStop {
                id,
                offset: end.offset,
                is_corruption: false,
                reason: StopReason::Malformed(what),
            }
        });
        let stop = short.or_else(|| unreached.chain(named).min_by_key(|stop| stop.id));
        if failpoint::is_on(Failpoint::IntactSegmentBlamed) {
            let (what, found) = ("WAL segment", end.offset);
            let what = Malformed::Truncated { what, needed: found + 1, found };
            let reason = StopReason::Malformed(what);
            return stop.map(|_| ReplayStop {
                id: last,
                offset: found,
                is_corruption: true,
                reason,
            });
        }
        stop
    }

    /// Returns the segments with larger ids that may belong to this chain. Excludes the chains of failed resumes.
    fn unreached_segments(&self, id: u64) -> impl Iterator<Item = &SegmentCandidate> {
        let mut orphans: Vec<u64> = Vec::new();
        for candidate in self.candidates.iter().filter(|candidate| candidate.id > id) {
            let follows =
                candidate.predecessor().is_some_and(|before| orphans.contains(&before.id));
            if candidate.is_chain_start() || follows {
                orphans.push(candidate.id);
            }
        }
        self.candidates
            .iter()
            .filter(move |candidate| candidate.id > id && !orphans.contains(&candidate.id))
    }

    /// Determines whether the stop is corruption or a torn tail, and adds the position and the lost bytes to `report`.
    ///
    /// # Errors
    /// Returns corruption as an error in strict mode. A synced segment of another database is an error in both modes.
    fn classify_stop(
        &self,
        stop: ReplayStop,
        mode: RecoveryMode,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        let (mut bytes_cut, mut records_beyond) = (0, 0);
        let mut was_synced = stop.is_corruption || self.is_covered_by_manifest(&stop);
        was_synced |= failpoint::is_on(Failpoint::TornTailRefused);
        if let Some(torn) = self.candidates.iter().find(|candidate| candidate.id == stop.id) {
            let file = torn.open_file(self.vfs)?;
            let mut reader = torn.reader(&*file, self.db_uid, torn.bytes);
            bytes_cut += reader.written_bytes_after(stop.offset)?;
            let tail = reader.scan_tail(stop.offset)?;
            was_synced |= tail.position > stop.offset;
            report.add_synced(torn.id, tail.position);
            records_beyond += tail.records;
        }
        for later in self.unreached_segments(stop.id) {
            let file = later.open_file(self.vfs)?;
            let mut reader = later.reader(&*file, self.db_uid, later.bytes);
            bytes_cut += reader.written_bytes_after(0)?;
            let tail = reader.scan_tail(0)?;
            was_synced |= tail.position > 0 || tail.older_synced;
            records_beyond += tail.records;
            if let Some(before) = later.predecessor() {
                // `before.mark` is the number of synced bytes of the predecessor. A mark in the stopped segment proves
                // corruption if it exceeds the position of the stop. Any mark in a later segment proves corruption,
                // because older segments are synced first.
                let covered_bytes = if before.id == stop.id { stop.offset } else { 0 };
                was_synced |= before.id >= stop.id && before.mark > covered_bytes;
                // A failed sync may have lost the mark in the stopped segment itself.
                report.add_synced(before.id, before.mark);
            }
        }
        let path = self.path(stop.id);
        let error = match stop.reason {
            StopReason::Malformed(what) => Error::malformed(what, &path, stop.offset),
            StopReason::Missing(named_by) => Error::Missing { path: path.clone(), named_by },
        };
        let is_corrupt = was_synced && !failpoint::is_on(Failpoint::WalDamageTreatedAsTail);
        let is_foreign = matches!(
            error,
            Error::Corrupt { source: Malformed::Identity { what: "database uid", .. }, .. }
        );
        if is_corrupt && (mode == RecoveryMode::Strict || is_foreign) {
            return Err(error);
        }
        report.damage = is_corrupt.then_some(error);
        report.bytes_cut = bytes_cut;
        report.records_beyond = records_beyond;
        report.cut_at = Some((path, stop.offset));
        Ok(())
    }

    /// Returns whether, according to the manifest, the log was on stable storage beyond the position at which the replay
    /// stopped.
    fn is_covered_by_manifest(&self, stop: &ReplayStop) -> bool {
        let is_in_header = stop.offset < len_u64(SEGMENT_HEADER_BYTES);
        // A segment is listed in the manifest only after its header and all older segments were synced.
        let is_synced = |id: u64| id > stop.id || (id == stop.id && is_in_header);
        is_synced(self.expect.oldest_segment)
            || self.expect.named.iter().any(|&id| is_synced(id))
            || self
                .expect
                .mark
                .is_some_and(|(id, bytes)| id > stop.id || (id == stop.id && bytes > stop.offset))
    }
}

/// Position after the last record of a segment.
struct SegmentEnd {
    offset: u64,
    /// Error of reading a record at `offset`, if only zeros follow there.
    zeros_follow: Option<Malformed>,
}

/// Result of replaying one segment.
enum SegmentOutcome {
    Complete(SegmentEnd),
    Stopped(ReplayStop),
}

/// Replay of one segment with a valid header.
struct SegmentReplay<'a> {
    vfs: &'a dyn Vfs,
    current: &'a SegmentCandidate,
    db_uid: u64,
    /// Offset of the first record. `None` for the first record of the segment.
    start: Option<u64>,
    /// Size of the valid part in bytes. `None` for the last segment, whose size no other segment states.
    end: Option<u64>,
}

impl SegmentReplay<'_> {
    fn visit_records(
        self,
        report: &mut RecoveryReport,
        visit: &mut dyn FnMut(ReplayedRecord<'_>) -> Result<()>,
    ) -> Result<SegmentOutcome> {
        let SegmentCandidate { id, bytes, .. } = *self.current;
        let valid_bytes = self.end.unwrap_or(bytes);
        let file = self.current.open_file(self.vfs)?;
        let mut reader = self.current.reader(&*file, self.db_uid, valid_bytes.min(bytes));
        let mut offset = self.start.unwrap_or(len_u64(SEGMENT_HEADER_BYTES));
        let stop = |offset, is_corruption, what| {
            Ok(SegmentOutcome::Stopped(ReplayStop {
                id,
                offset,
                is_corruption,
                reason: StopReason::Malformed(what),
            }))
        };
        if self.start.is_none()
            && let Ok(header) = &self.current.header
            && header.first_seq <= report.last_seq.0
        {
            return stop(0, true, Malformed::Order { what: "first sequence number of a segment" });
        }
        loop {
            let (header, payload) = match reader.read_record(offset)? {
                LogRead::Record(header, payload) => (header, payload),
                LogRead::Malformed(what) => {
                    let is_last = self.end.is_none()
                        && !failpoint::is_on(Failpoint::GrownTailTreatedAsDamage);
                    if is_last && reader.written_bytes_after(offset)? == 0 {
                        return Ok(SegmentOutcome::Complete(SegmentEnd {
                            offset,
                            zeros_follow: Some(what),
                        }));
                    }
                    return stop(offset, false, what);
                }
                LogRead::End if valid_bytes > bytes => {
                    let (needed, found) = (valid_bytes, bytes);
                    let what = Malformed::Truncated { what: "WAL segment", needed, found };
                    return stop(offset, false, what);
                }
                LogRead::End => {
                    return Ok(SegmentOutcome::Complete(SegmentEnd { offset, zeros_follow: None }));
                }
            };
            let SyncMark { position, older_synced } = header.mark;
            match older_synced {
                true => report.synced = report.synced.max((id, position)),
                false => report.add_synced(id, position),
            }
            if !header.is_mark_only() {
                if header.first_seq <= report.last_seq.0 {
                    let what = Malformed::Order { what: "sequence number of a commit" };
                    return stop(offset, true, what);
                }
                visit(ReplayedRecord {
                    first_seq: SeqNo(header.first_seq),
                    count: header.count,
                    payload,
                    segment: id,
                    offset,
                    synced: report.synced,
                })?;
                report.records += 1;
                // The sum is at most 2^56, because the decoder of the header checks this bound.
                report.last_seq = SeqNo(header.first_seq + u64::from(header.count) - 1);
            }
            offset += header.record_bytes();
        }
    }
}

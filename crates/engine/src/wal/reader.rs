//! Replaying the log.
//!
//! 1. Read the headers of all segments from the oldest live one on; each names its predecessor.
//! 2. Walk the chain and hand every record to the caller, as far as each segment counts.
//! 3. At the first thing that is not as it should be, look at all that lies beyond, only for sync
//!    marks. If a mark (of a later record, of a later segment's header, of the manifest) covers the
//!    place, it had been on stable storage and is **damage**: an error that names file and offset,
//!    or in tolerant mode the end of the prefix that is kept. Otherwise it is a torn **tail**, which
//!    is cut and reported.
//!
//! A segment without a predecessor starts a chain of its own. One that is not the oldest was left
//! behind by an attempt to resume that the manifest never learned of, so no commit is in it.
//!
//! A segment file grows ahead of its data by zeros, so its length is not its end. The valid length stands in
//! the header of the next segment. If that header cannot be read, a segment ends where only zeros follow:
//!
//! - Zeros up to the end of the file prove nothing. A later record or header may say that the segment was
//!   synced as far as it counts, but the zeros need not count. The manifest's mark is an exception: it
//!   has an offset.
//! - Other bytes do count, because a closed segment gets no further bytes. If the segment was synced, a bad
//!   record before them is damage.
//!
//! The question is then about the header that cannot be read. It had been on stable storage if the manifest
//! names its segment or a later one, if a record of its segment says that this segment is synced,
//! or if a later segment says that older ones are. Otherwise it is part of the torn tail, and no commit in or
//! after its segment was acknowledged as synced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;

use crate::format::file_name::FileName;
use crate::format::log_record::LogSeed;
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::log::{Found, LogReader};
use crate::vfs::{File, Vfs};
use crate::wal::DurableSegment;
use crate::{Error, Malformed, Result, SeqNo};

/// What the manifest knows of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayFrom {
    /// Where the chain starts.
    pub oldest_segment: u64,
    /// Segments that the manifest names; those before the oldest are of no interest.
    pub named: Vec<u64>,
    /// A segment and how many of its bytes were synced at the last clean close.
    pub mark: Option<(u64, u64)>,
    /// The manifest, for error messages.
    pub named_by: PathBuf,
}

/// What to do about damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryMode {
    /// Damage is an error. A torn tail is not damage: recovery cuts it, and the database is in the state after a
    /// prefix of its commits.
    #[default]
    Strict,
    /// Damage of the log ends the replay and is reported. All tables are kept.
    ///
    /// Each keyspace by itself is in the state after a prefix of its operations. The prefix ends at the last commit
    /// before the damage, or at the last flush of the keyspace if that is later. So the prefixes of two keyspaces may
    /// differ, and of a batch that writes to several keyspaces a part may be missing.
    /// [`RecoveryReport::complete_through`] has the end of each prefix. Damaged tables and manifests are errors in
    /// this mode, too.
    Tolerant,
}

/// A record that is read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedRecord<'a> {
    /// First sequence number of the commit.
    pub first_seq: SeqNo,
    /// How many sequence numbers it takes.
    pub count: u32,
    /// The encoded batch.
    pub payload: &'a [u8],
    /// Segment it stands in.
    pub segment: u64,
    /// Offset of the record in the segment's file.
    pub offset: u64,
}

/// What a replay found.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Segments of the chain, down to where it was cut.
    pub segments: u64,
    /// Commits handed to the caller.
    pub records: u64,
    /// Last sequence number of the chain, or the one before its start.
    pub last_seq: SeqNo,
    /// Bytes from the cut on, over all segments.
    pub bytes_cut: u64,
    /// Whole valid records among them.
    pub records_beyond: u64,
    /// File and offset of the cut.
    pub cut_at: Option<(PathBuf, u64)>,
    /// What was damaged there; `None` if it was a torn tail. Only in tolerant mode.
    pub damage: Option<Error>,
    /// For each keyspace by name, the sequence number up to which it is complete: it holds all of its
    /// operations up to this number and none after it. Without damage all numbers are equal. Empty in the
    /// report of [`replay`], which does not know tables.
    pub complete_through: BTreeMap<String, SeqNo>,
}

impl RecoveryReport {
    /// Adds what a replay of the kept log of a keyspace found: if it is damaged, the keyspace is complete up to
    /// the damage.
    pub(crate) fn add_kept_log(&mut self, keyspace: String, kept: RecoveryReport) {
        if kept.damage.is_some() {
            self.complete_through.insert(keyspace, kept.last_seq);
        }
        self.damage = self.damage.take().or(kept.damage);
    }
}

/// Follows the chain of segments and hands every commit to `visit`, in order: exactly a prefix of
/// what was appended, and at least what was synced. Changes no byte.
///
/// # Errors
/// A read fails; `visit` fails; a synced segment belongs to another database; a segment has a newer
/// version; in strict mode, a live segment is missing or anything is damaged. What was visited until
/// then must not be used.
pub fn replay(
    vfs: &dyn Vfs,
    dir: &Path,
    db_uid: u64,
    expect: &ReplayFrom,
    mode: RecoveryMode,
    visit: &mut dyn FnMut(ReplayedRecord<'_>) -> Result<()>,
) -> Result<RecoveryReport> {
    let candidates = Candidate::all(vfs, dir, db_uid, &|id| id >= expect.oldest_segment)?;
    replay_chain(&Chain { dir, db_uid, expect, candidates }, mode, visit)
}

/// As [`replay`], of a chain that consists of exactly these segments, oldest first, all of them on stable storage
/// to their ends. `named_by` is the file that names them.
///
/// # Errors
/// As [`replay`].
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
    let expect = ReplayFrom {
        oldest_segment: first.id,
        named: segments.iter().map(|segment| segment.id).collect(),
        mark: Some((last.id, last.bytes)),
        named_by: named_by.to_owned(),
    };
    let is_one = |id| segments.iter().any(|segment| segment.id == id);
    let candidates = Candidate::all(vfs, dir, db_uid, &is_one)?;
    replay_chain(&Chain { dir, db_uid, expect: &expect, candidates }, mode, visit)
}

fn replay_chain(
    chain: &Chain<'_>,
    mode: RecoveryMode,
    visit: &mut dyn FnMut(ReplayedRecord<'_>) -> Result<()>,
) -> Result<RecoveryReport> {
    let mut report = RecoveryReport::default();
    if let Some(stop) = chain.walk(&mut report, visit)? {
        chain.end_at(stop, mode, &mut report)?;
    }
    Ok(report)
}

/// A segment file that may be in the chain.
struct Candidate {
    id: u64,
    path: PathBuf,
    file: Arc<dyn File>,
    bytes: u64,
    header: std::result::Result<SegmentHeader, Malformed>,
}

impl Candidate {
    /// The segment files whose numbers `is_wanted` accepts, in order of their numbers.
    fn all(
        vfs: &dyn Vfs,
        dir: &Path,
        db_uid: u64,
        is_wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Vec<Candidate>> {
        let names = vfs.list(dir).map_err(|source| Error::io("list", dir, source))?;
        let mut ids: Vec<u64> = names
            .iter()
            .filter_map(|name| match FileName::parse(name) {
                Some(FileName::Segment(id)) if is_wanted(id) => Some(id),
                _ => None,
            })
            .collect();
        ids.sort_unstable();
        ids.into_iter().map(|id| Candidate::open(vfs, dir, db_uid, id)).collect()
    }

    fn open(vfs: &dyn Vfs, dir: &Path, db_uid: u64, id: u64) -> Result<Candidate> {
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
            // A segment that was never synced may show an old block of the disk: the header of another
            // segment, also of another database, such as a checkpoint that was deleted.
            Ok(header) => header.check_identity(db_uid, id).map(|()| header),
            bad => bad,
        };
        Ok(Candidate { id, path, file, bytes, header })
    }

    fn predecessor(&self) -> Option<crate::format::segment_header::Predecessor> {
        self.header.as_ref().ok().and_then(|header| header.predecessor)
    }

    fn starts_a_chain(&self) -> bool {
        self.header.as_ref().is_ok_and(|header| header.predecessor.is_none())
    }

    fn reader(&self, db_uid: u64, end: u64) -> LogReader<'_> {
        LogReader::new(&*self.file, &self.path, LogSeed::new(db_uid, self.id), end)
    }
}

/// Where the walk could not go on.
struct Stop {
    /// Segment that holds the place, or that is missing.
    id: u64,
    offset: u64,
    /// Whether the checksums fit and yet the contents cannot be: no torn write looks like that.
    certain: bool,
    what: Trouble,
}

enum Trouble {
    Malformed(Malformed),
    /// The segment is not there; this file names it.
    Missing(PathBuf),
}

struct Chain<'a> {
    dir: &'a Path,
    db_uid: u64,
    expect: &'a ReplayFrom,
    candidates: Vec<Candidate>,
}

impl Chain<'_> {
    fn path(&self, id: u64) -> PathBuf {
        FileName::Segment(id).in_dir(self.dir)
    }

    /// Visits records until the chain ends or something is wrong.
    fn walk(
        &self,
        report: &mut RecoveryReport,
        visit: &mut dyn FnMut(ReplayedRecord<'_>) -> Result<()>,
    ) -> Result<Option<Stop>> {
        let mut id = self.expect.oldest_segment;
        let mut named_by = self.expect.named_by.clone();
        loop {
            let Some(current) = self.candidates.iter().find(|candidate| candidate.id == id) else {
                let what = Trouble::Missing(named_by);
                return Ok(Some(Stop { id, offset: 0, certain: false, what }));
            };
            let header = match &current.header {
                Ok(header) => header,
                Err(what) => {
                    let what = Trouble::Malformed(what.clone());
                    return Ok(Some(Stop { id, offset: 0, certain: false, what }));
                }
            };
            if report.segments == 0 {
                report.last_seq = SeqNo(header.first_seq.saturating_sub(1));
            }
            report.segments += 1;
            let next = match self.successor(id) {
                Ok(next) => next,
                Err(stop) => return Ok(Some(stop)),
            };
            let end = next.and_then(Candidate::predecessor).map(|before| before.bytes);
            let end = match (Walk { current, db_uid: self.db_uid, end }).run(report, visit)? {
                Walked::ToEnd(end) => end,
                Walked::To(stop) => return Ok(Some(stop)),
            };
            let Some(next) = next else {
                if end.zeros.is_some() {
                    report.cut_at = Some((current.path.clone(), end.offset));
                }
                return Ok(self.after_the_end(id, end));
            };
            let before = next.predecessor().map_or(0, |before| before.last_seq);
            if before != report.last_seq.0 {
                let what = Malformed::Field {
                    what: "predecessor's last sequence number",
                    found: before,
                    expected: "that of its last record",
                };
                let what = Trouble::Malformed(what);
                return Ok(Some(Stop { id: next.id, offset: 0, certain: true, what }));
            }
            named_by.clone_from(&current.path);
            id = next.id;
        }
    }

    /// The one segment that names `id` as its predecessor.
    fn successor(&self, id: u64) -> std::result::Result<Option<&Candidate>, Stop> {
        let mut all = self.candidates.iter().filter(|candidate| {
            candidate.id > id && candidate.predecessor().is_some_and(|before| before.id == id)
        });
        let first = all.next();
        let Some(second) = all.next() else { return Ok(first) };
        let what = Malformed::Field {
            what: "predecessor that another segment has too",
            found: id,
            expected: "a predecessor of its own",
        };
        Err(Stop { id: second.id, offset: 0, certain: true, what: Trouble::Malformed(what) })
    }

    /// The chain ends in segment `last`: is anything there that should have been reached, or named
    /// that is not there?
    fn after_the_end(&self, last: u64, end: End) -> Option<Stop> {
        let unreached = self.unreached(last).map(|candidate| {
            let what = match (&candidate.header, candidate.predecessor()) {
                (Err(what), _) => Trouble::Malformed(what.clone()),
                (Ok(_), Some(before)) if before.id > last => {
                    let what = Trouble::Missing(candidate.path.clone());
                    return Stop { id: before.id, offset: 0, certain: false, what };
                }
                (Ok(_), before) => Trouble::Malformed(Malformed::Identity {
                    what: "predecessor",
                    expected: last,
                    found: before.map_or(0, |before| before.id),
                }),
            };
            Stop { id: candidate.id, offset: 0, certain: false, what }
        });
        let named = self.expect.named.iter().chain(self.expect.mark.iter().map(|(id, _)| id));
        let named = named.filter(|&&id| id > last).map(|&id| {
            let there = self.candidates.iter().find(|candidate| candidate.id == id);
            let what = match there.map(|candidate| &candidate.header) {
                None => Trouble::Missing(self.expect.named_by.clone()),
                Some(Err(what)) => Trouble::Malformed(what.clone()),
                // It starts a chain, or hangs on one that does.
                Some(Ok(_)) => Trouble::Malformed(Malformed::Identity {
                    what: "predecessor",
                    expected: last,
                    found: 0,
                }),
            };
            Stop { id, offset: 0, certain: false, what }
        });
        let short = self.expect.mark.filter(|&(id, marked)| id == last && marked > end.offset);
        let short = short.map(|(id, needed)| {
            let (what, found) = ("WAL segment", end.offset);
            let what = end.zeros.unwrap_or(Malformed::Truncated { what, needed, found });
            Stop { id, offset: end.offset, certain: false, what: Trouble::Malformed(what) }
        });
        let stop = short.or_else(|| unreached.chain(named).min_by_key(|stop| stop.id));
        if failpoint::is_on(Failpoint::IntactSegmentBlamed) {
            let (what, found) = ("WAL segment", end.offset);
            let what = Malformed::Truncated { what, needed: found + 1, found };
            let what = Trouble::Malformed(what);
            return stop.map(|_| Stop { id: last, offset: found, certain: true, what });
        }
        stop
    }

    /// Segments after `id` that belong to this chain or may: not those of an attempt to resume.
    fn unreached(&self, id: u64) -> impl Iterator<Item = &Candidate> {
        let mut strangers: Vec<u64> = Vec::new();
        for candidate in self.candidates.iter().filter(|candidate| candidate.id > id) {
            let follows =
                candidate.predecessor().is_some_and(|before| strangers.contains(&before.id));
            if candidate.starts_a_chain() || follows {
                strangers.push(candidate.id);
            }
        }
        self.candidates
            .iter()
            .filter(move |candidate| candidate.id > id && !strangers.contains(&candidate.id))
    }

    /// Decides between damage and tail, and cuts.
    fn end_at(&self, stop: Stop, mode: RecoveryMode, report: &mut RecoveryReport) -> Result<()> {
        let (mut bytes_cut, mut records_beyond) = (0, 0);
        let mut covered = stop.certain || self.manifest_covers(&stop);
        covered |= failpoint::is_on(Failpoint::TornTailRefused);
        if let Some(torn) = self.candidates.iter().find(|candidate| candidate.id == stop.id) {
            bytes_cut += torn.reader(self.db_uid, torn.bytes).written_beyond(stop.offset)?;
            let beyond = torn.reader(self.db_uid, torn.bytes).beyond(stop.offset)?;
            covered |= beyond.position > stop.offset;
            records_beyond += beyond.records;
        }
        for later in self.unreached(stop.id) {
            bytes_cut += later.reader(self.db_uid, later.bytes).written_beyond(0)?;
            let beyond = later.reader(self.db_uid, later.bytes).beyond(0)?;
            covered |= beyond.position > 0 || beyond.older_synced;
            records_beyond += beyond.records;
            if let Some(before) = later.predecessor() {
                // The mark of the stopped segment itself, or of one after it: a sync goes oldest
                // segment first.
                let reach = if before.id == stop.id { stop.offset } else { 0 };
                covered |= before.id >= stop.id && before.mark > reach;
            }
        }
        let path = self.path(stop.id);
        let error = match stop.what {
            Trouble::Malformed(what) => Error::malformed(what, &path, stop.offset),
            Trouble::Missing(named_by) => Error::Missing { path: path.clone(), named_by },
        };
        let damaged = covered && !failpoint::is_on(Failpoint::WalDamageTreatedAsTail);
        let foreign = matches!(
            error,
            Error::Corrupt { source: Malformed::Identity { what: "database uid", .. }, .. }
        );
        if damaged && (mode == RecoveryMode::Strict || foreign) {
            return Err(error);
        }
        report.damage = damaged.then_some(error);
        report.bytes_cut = bytes_cut;
        report.records_beyond = records_beyond;
        report.cut_at = Some((path, stop.offset));
        Ok(())
    }

    /// Whether the manifest says that the place had been on stable storage.
    fn manifest_covers(&self, stop: &Stop) -> bool {
        let header = stop.offset < len_u64(SEGMENT_HEADER_BYTES);
        // A segment is named after its header and all older segments were synced.
        let named = |id: u64| id > stop.id || (id == stop.id && header);
        named(self.expect.oldest_segment)
            || self.expect.named.iter().any(|&id| named(id))
            || self
                .expect
                .mark
                .is_some_and(|(id, bytes)| id > stop.id || (id == stop.id && bytes > stop.offset))
    }
}

/// Where the records of a segment end.
struct End {
    offset: u64,
    /// Why no record starts there, if the file goes on in zeros.
    zeros: Option<Malformed>,
}

/// How far the records of a segment could be read.
enum Walked {
    ToEnd(End),
    To(Stop),
}

/// Reads one segment of the chain, whose header is good.
struct Walk<'a> {
    current: &'a Candidate,
    db_uid: u64,
    /// As far as it counts; `None` for the last segment, which counts as far as it goes.
    end: Option<u64>,
}

impl Walk<'_> {
    fn run(
        self,
        report: &mut RecoveryReport,
        visit: &mut dyn FnMut(ReplayedRecord<'_>) -> Result<()>,
    ) -> Result<Walked> {
        let Candidate { id, bytes, .. } = *self.current;
        let counts = self.end.unwrap_or(bytes);
        let mut reader = self.current.reader(self.db_uid, counts.min(bytes));
        let mut offset = len_u64(SEGMENT_HEADER_BYTES);
        let stop = |offset, certain, what| {
            Ok(Walked::To(Stop { id, offset, certain, what: Trouble::Malformed(what) }))
        };
        if let Ok(header) = &self.current.header
            && header.first_seq <= report.last_seq.0
        {
            return stop(0, true, Malformed::Order { what: "first sequence number of a segment" });
        }
        loop {
            let (header, payload) = match reader.record(offset)? {
                Found::Record(header, payload) => (header, payload),
                Found::Bad(what) => {
                    let ends = self.end.is_none()
                        && !failpoint::is_on(Failpoint::GrownTailTreatedAsDamage);
                    if ends && reader.written_beyond(offset)? == 0 {
                        return Ok(Walked::ToEnd(End { offset, zeros: Some(what) }));
                    }
                    return stop(offset, false, what);
                }
                Found::End if counts > bytes => {
                    let (needed, found) = (counts, bytes);
                    let what = Malformed::Truncated { what: "WAL segment", needed, found };
                    return stop(offset, false, what);
                }
                Found::End => return Ok(Walked::ToEnd(End { offset, zeros: None })),
            };
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
                })?;
                report.records += 1;
                // Below 2^56 by the check of the header.
                report.last_seq = SeqNo(header.first_seq + u64::from(header.count) - 1);
            }
            offset += header.record_bytes();
        }
    }
}

//! Appending to the log, syncing it, and beginning anew after a failure.
//!
//! Two locks. `log` guards the segments and is held while a group is handed to the system, so that
//! offsets and order agree. `syncing` makes syncs one after the other; it is taken before `log` and
//! held over the sync itself, during which `log` is free and appends go on.

use std::fmt;
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};

use crate::format::file_name::FileName;
use crate::format::log_record::{LogSeed, RECORD_HEADER_BYTES, RecordHeader, SEQ_END, SyncMark};
use crate::format::segment_header::{Predecessor, SegmentHeader};
use crate::vfs::Vfs;
use crate::wal::segment::{DurableSegment, Segment, SegmentInfo};
use crate::{Error, Result, SeqNo};

/// Default of [`WalOptions::segment_bytes`]: 16 MiB.
pub const SEGMENT_BYTES_DEFAULT: u64 = 16 << 20;
/// Default of [`WalOptions::sync_every_bytes`]: 8 MiB.
pub const SYNC_EVERY_BYTES_DEFAULT: u64 = 8 << 20;
/// Default of [`WalOptions::sync_every_us`]: one second.
pub const SYNC_EVERY_US_DEFAULT: u64 = 1_000_000;

/// Bytes of the encode buffer that are kept from group to group.
const BUFFER_BYTES_KEPT: usize = 4 << 20;
/// `unsynced_since_us` while nobody has asked since the last sync.
const NOT_ASKED: u64 = u64::MAX;

/// One commit, ready for the log.
#[derive(Clone, Copy, Debug)]
pub struct WalRecord<'a> {
    /// First sequence number of the commit.
    pub first_seq: SeqNo,
    /// How many sequence numbers it takes; at least 1.
    pub count: u32,
    /// The encoded batch; the log does not look inside.
    pub payload: &'a [u8],
}

/// When segments turn and when a sync is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalOptions {
    /// A segment of this many bytes takes no further group. Smaller: old segments go sooner.
    /// Default: [`SEGMENT_BYTES_DEFAULT`].
    pub segment_bytes: u64,
    /// A sync is due after so many bytes, though nobody asked. Default:
    /// [`SYNC_EVERY_BYTES_DEFAULT`].
    pub sync_every_bytes: u64,
    /// A sync is due so many microseconds after a byte was appended. Default:
    /// [`SYNC_EVERY_US_DEFAULT`].
    pub sync_every_us: u64,
    /// Whether a file `RESERVE` keeps room on the disk. When the disk is full, the file is removed, and flushes
    /// and commits use its room. It takes at most what [`Db::resume`](crate::Db::resume) would write, and at most
    /// the greater of 4 MiB and 10 % of the bytes of tables and blob files. Where it cannot be made,
    /// [`Event::NoReserve`](crate::Event::NoReserve) says so once, and the database works without it.
    /// Default: yes.
    pub reserve: bool,
}

impl Default for WalOptions {
    fn default() -> WalOptions {
        WalOptions {
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            sync_every_bytes: SYNC_EVERY_BYTES_DEFAULT,
            sync_every_us: SYNC_EVERY_US_DEFAULT,
            reserve: true,
        }
    }
}

/// What the log needs of the manifest. Called with locks of the log held: must not call it back.
pub trait SegmentLedger: Send + Sync {
    /// The next file number; never given out twice.
    fn allocate(&self) -> u64;

    /// Has a manifest edit that names the segment on stable storage before it returns.
    ///
    /// # Errors
    /// The manifest could not be written.
    fn name_segment(&self, id: u64) -> Result<()>;
}

/// The write-ahead log of a database, open for writing.
///
/// The first failure of an append or a sync is remembered: every later call returns it until
/// [`Wal::restart`]. A file whose sync failed is never synced again.
pub struct Wal {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    db_uid: u64,
    ledger: Arc<dyn SegmentLedger>,
    options: WalOptions,
    syncing: Mutex<()>,
    log: Mutex<Log>,
    /// Bytes appended since the last sync; written under `log`, read without for `sync_due`.
    unsynced_bytes: AtomicU64,
    /// Whether `asks_for_sync` has said so, and no sync has begun or ended since.
    asked: AtomicBool,
    /// When `sync_due` first saw unsynced bytes; a race only moves the next sync a little.
    unsynced_since_us: AtomicU64,
    /// Bytes of live segments, for the governor, which asks at every commit; written under `log`.
    live_bytes: AtomicU64,
    /// Bytes appended since the log was made.
    written_bytes: AtomicU64,
    /// Syncs since the log was made.
    syncs: AtomicU64,
    /// Live segments. This and the two sizes below are copies of what `log` guards, because that lock is held
    /// over I/O and the metrics must not wait for a device.
    segment_count: AtomicU64,
    /// Capacity of the encode buffer, in bytes.
    buffer_bytes: AtomicU64,
}

/// What the lock `log` guards.
struct Log {
    /// Oldest first; the last one is being written and all others are closed. Never empty.
    segments: Vec<Segment>,
    next_seq: u64,
    /// Last sequence number on stable storage.
    durable_seq: u64,
    /// Encoded records of one group.
    buffer: Vec<u8>,
    failure: Option<Arc<Error>>,
}

impl fmt::Debug for Wal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wal").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Log {
    fn check(&self) -> Result<()> {
        match &self.failure {
            Some(cause) => Err(Error::ReadOnly { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Remembers the first failure; returns what failed now.
    fn fail(&mut self, error: Error) -> Error {
        self.failure.get_or_insert_with(|| Arc::new(error.clone()));
        error
    }

    fn current(&mut self) -> &mut Segment {
        let last = self.segments.len() - 1; // never empty, see the field
        &mut self.segments[last]
    }

    /// Whether all closed segments are on stable storage as far as they count.
    fn older_synced(&self) -> bool {
        let closed = &self.segments[..self.segments.len() - 1];
        closed.iter().all(|segment| segment.named && segment.synced >= segment.bytes)
    }

    /// The mark that records carry now.
    fn mark(&mut self) -> SyncMark {
        let older_synced = self.older_synced();
        self.current().mark(older_synced)
    }

    /// Encodes one record behind what is in the buffer.
    fn encode(&mut self, mark: SyncMark, first_seq: u64, count: u32, payload: &[u8]) -> Result<()> {
        let last = self.segments.len() - 1;
        let segment = &self.segments[last];
        let offset = segment.bytes + len_u64(self.buffer.len());
        let place = (segment.seed, offset);
        RecordHeader::encode_record(&mut self.buffer, place, (first_seq, count), mark, payload)
            .map_err(|what| Error::malformed(what, &segment.path, offset))
    }

    /// Hands the buffer to the system in one call.
    fn write_buffer(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.buffer);
        let written = self.current().append(&bytes);
        self.current().bytes += len_u64(bytes.len());
        self.buffer = bytes;
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        written
    }

    /// Appends a record that carries nothing but the mark of the sync before it, so that a flipped
    /// bit in the last synced record is known for damage.
    fn write_mark(&mut self) -> Result<()> {
        let mark = self.mark();
        if mark == SyncMark::default() {
            // The segment began while the sync ran; its header says what is known of the others.
            return Ok(());
        }
        self.buffer.clear();
        self.encode(mark, self.next_seq.min(SEQ_END - 1), 0, &[])?;
        self.write_buffer()
    }
}

impl Wal {
    /// Starts a chain with its first segment, whose header is written. Before the manifest names
    /// that segment as the oldest live one, [`Wal::establish`] must have made it last.
    ///
    /// # Errors
    /// The segment cannot be created or written.
    pub fn create(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        db_uid: u64,
        ledger: Arc<dyn SegmentLedger>,
        options: WalOptions,
        next_seq: SeqNo,
    ) -> Result<Wal> {
        // Number 0 is before all writes.
        let next_seq = next_seq.0.max(1);
        let place = Place { vfs: &*vfs, dir, db_uid };
        let first = place.begin_segment(ledger.allocate(), next_seq, None)?;
        Ok(Wal {
            vfs,
            dir: dir.to_owned(),
            db_uid,
            ledger,
            options,
            syncing: Mutex::new(()),
            unsynced_bytes: AtomicU64::new(first.bytes),
            live_bytes: AtomicU64::new(first.bytes),
            written_bytes: AtomicU64::new(first.bytes),
            syncs: AtomicU64::new(0),
            segment_count: AtomicU64::new(1),
            buffer_bytes: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            unsynced_since_us: AtomicU64::new(NOT_ASKED),
            log: Mutex::new(Log {
                segments: vec![first],
                next_seq,
                durable_seq: next_seq - 1,
                buffer: Vec::new(),
                failure: None,
            }),
        })
    }

    /// Makes the first segment of a chain last: its header and its name. Afterwards the caller
    /// names it in the manifest as the oldest live segment. Returns its id.
    ///
    /// # Errors
    /// A sync failed; the log is of no use then until [`Wal::restart`].
    pub fn establish(&self) -> Result<u64> {
        let _one_at_a_time = self.syncing.lock();
        let mut log = self.log.lock();
        log.check()?;
        let current = log.current();
        let done = current.sync().and_then(|()| self.sync_dir());
        match done {
            Ok(()) => {
                current.synced = current.bytes;
                current.named = true;
                self.unsynced_bytes.fetch_sub(current.bytes, Ordering::Relaxed);
                Ok(current.id)
            }
            Err(error) => Err(log.fail(error)),
        }
    }

    /// Appends a group of commits in one write, beginning a new segment first if the current one
    /// is full. One leader at a time calls it, with rising sequence numbers.
    ///
    /// # Errors
    /// The write failed, or an earlier append or sync did. Nothing of the group may be used then:
    /// whether it is in the log will only be known when it is replayed.
    pub fn append(&self, group: &[WalRecord<'_>]) -> Result<()> {
        let mut log = self.log.lock();
        log.check()?;
        let appended = self.append_group(&mut log, group);
        self.publish_sizes(&log);
        match appended {
            Ok(()) => Ok(()),
            Err(_) if failpoint::is_on(Failpoint::AppendErrorIgnored) => Ok(()),
            Err(error) => Err(log.fail(error)),
        }
    }

    /// Refuses all further appends and syncs because of `error`, until [`Wal::restart`].
    pub(crate) fn fail(&self, error: &Error) {
        self.log.lock().fail(error.clone());
    }

    fn append_group(&self, log: &mut Log, group: &[WalRecord<'_>]) -> Result<()> {
        if log.current().bytes >= self.options.segment_bytes {
            self.begin_next_segment(log)?;
        }
        log.buffer.clear();
        let bytes = group.iter().map(|record| record.payload.len() + RECORD_HEADER_BYTES);
        log.buffer.reserve(bytes.sum());
        let (mut next_seq, mark) = (log.next_seq, log.mark());
        for record in group {
            debug_assert!(record.first_seq.0 >= next_seq, "sequence numbers rise");
            debug_assert!(record.count > 0, "a commit has a sequence number");
            log.encode(mark, record.first_seq.0, record.count, record.payload)?;
            next_seq = record.first_seq.0 + u64::from(record.count);
        }
        let written = len_u64(log.buffer.len());
        log.write_buffer()?;
        log.next_seq = next_seq;
        let current = log.current();
        current.record_bytes = current.bytes;
        current.last_seq = next_seq - 1;
        self.count_appended(written);
        Ok(())
    }

    /// Closes the current segment, if it has records, and begins the next, so that the closed one
    /// can be retired.
    ///
    /// # Errors
    /// As [`Wal::append`].
    pub fn rotate(&self) -> Result<()> {
        let mut log = self.log.lock();
        log.check()?;
        let current = log.current();
        if current.last_seq < current.first_seq {
            return Ok(());
        }
        let begun = self.begin_next_segment(&mut log);
        self.publish_sizes(&log);
        begun.map_err(|error| log.fail(error))
    }

    fn begin_next_segment(&self, log: &mut Log) -> Result<()> {
        let next_seq = log.next_seq;
        let current = log.current();
        let predecessor = Predecessor {
            id: current.id,
            last_seq: current.last_seq,
            bytes: current.bytes,
            mark: current.synced,
        };
        // A closed segment is synced with the mark-only records at its end: all of it counts.
        current.record_bytes = current.bytes;
        let id = self.ledger.allocate();
        let next = self.place().begin_segment(id, next_seq, Some(predecessor))?;
        self.count_appended(next.bytes);
        log.segments.push(next);
        Ok(())
    }

    /// Recomputes the bytes of the live segments after segments were removed.
    fn set_live_bytes(&self, log: &Log) {
        let bytes = log.segments.iter().map(|segment| segment.bytes).sum();
        self.live_bytes.store(bytes, Ordering::Relaxed);
        self.publish_sizes(log);
    }

    /// Copies the sizes that the metrics show out of the lock.
    fn publish_sizes(&self, log: &Log) {
        self.segment_count.store(len_u64(log.segments.len()), Ordering::Relaxed);
        self.buffer_bytes.store(len_u64(log.buffer.capacity()), Ordering::Relaxed);
    }

    fn count_appended(&self, bytes: u64) {
        for counter in [&self.unsynced_bytes, &self.live_bytes, &self.written_bytes] {
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Puts all commits appended so far on stable storage, oldest segment first. Returns the last
    /// sequence number that is there now. Any thread may call it; appends go on meanwhile.
    ///
    /// # Errors
    /// A sync failed, or an earlier append or sync did; no later sync will succeed then.
    pub fn sync(&self) -> Result<SeqNo> {
        let _one_at_a_time = self.syncing.lock();
        self.sync_alone()
    }

    /// [`Wal::sync`] with `syncing` held.
    fn sync_alone(&self) -> Result<SeqNo> {
        let (pending, last_seq, bytes) = {
            let log = self.log.lock();
            log.check()?;
            self.asked.store(false, Ordering::Release);
            let pending: Vec<Segment> =
                log.segments.iter().filter(|segment| segment.needs_sync()).cloned().collect();
            (pending, log.next_seq - 1, self.unsynced_bytes.load(Ordering::Relaxed))
        };
        if pending.is_empty() || failpoint::is_on(Failpoint::WalSyncSkipped) {
            return Ok(SeqNo(last_seq));
        }
        let synced = self.sync_segments(&pending);
        // Dropped, and so closed, after the lock is released.
        let mut closed = Vec::new();
        let mut log = self.log.lock();
        synced.map_err(|error| log.fail(error))?;
        // An append that failed meanwhile leaves a file whose end nobody knows: no mark goes there.
        log.check()?;
        for done in &pending {
            let segment = log.segments.iter_mut().find(|segment| segment.id == done.id);
            if let Some(segment) = segment {
                segment.synced = done.bytes;
                segment.named = true;
            }
        }
        log.durable_seq = last_seq;
        self.unsynced_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.unsynced_since_us.store(NOT_ASKED, Ordering::Relaxed);
        // What asked during the sync asked for what it has done.
        self.asked.store(false, Ordering::Release);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        log.write_mark().map_err(|error| log.fail(error))?;
        if let Some((_, older)) = log.segments.split_last_mut() {
            let synced = older.iter_mut().filter(|segment| !segment.needs_sync());
            closed.extend(synced.filter_map(|segment| segment.file.take()));
        }
        drop(log);
        drop((pending, closed));
        Ok(SeqNo(last_seq))
    }

    /// Syncs files, then their names, then has the manifest name those it does not know.
    fn sync_segments(&self, pending: &[Segment]) -> Result<()> {
        let skipped = match failpoint::is_on(Failpoint::WalOlderSegmentUnsynced) {
            true => pending.len() - 1,
            false => 0,
        };
        for segment in &pending[skipped..] {
            match segment.sync() {
                Err(_) if failpoint::is_on(Failpoint::SyncRetried) => segment.sync()?,
                synced => synced?,
            }
        }
        if pending.iter().any(|segment| !segment.named) {
            self.sync_dir()?;
        }
        for segment in pending.iter().filter(|segment| !segment.named) {
            self.ledger.name_segment(segment.id)?;
        }
        Ok(())
    }

    /// Whether somebody should be told that a sync is due, whatever the time; says so once until
    /// the next sync begins or ends.
    pub(crate) fn asks_for_sync(&self) -> bool {
        self.much_unsynced() && !self.asked.swap(true, Ordering::AcqRel)
    }

    /// Capacity of the encode buffer in bytes, as of the last finished append. Takes no lock.
    #[must_use]
    pub fn buffer_bytes(&self) -> u64 {
        if failpoint::is_on(Failpoint::ObservationTakesLogLock) {
            drop(self.log.lock());
        }
        self.buffer_bytes.load(Ordering::Relaxed)
    }

    /// Number of live segments, as of the last finished append. Takes no lock.
    #[must_use]
    pub fn segment_count(&self) -> u64 {
        self.segment_count.load(Ordering::Relaxed)
    }

    /// Whether so many bytes are unsynced that a sync is due, whatever the time.
    #[must_use]
    pub fn much_unsynced(&self) -> bool {
        self.unsynced_bytes.load(Ordering::Relaxed) >= self.options.sync_every_bytes
    }

    /// Whether so many bytes, or for so long, were not synced that it is time to.
    pub fn sync_due(&self, now_us: u64) -> bool {
        let unsynced = self.unsynced_bytes.load(Ordering::Relaxed);
        if unsynced == 0 {
            return false;
        }
        let since = match self.unsynced_since_us.load(Ordering::Relaxed) {
            NOT_ASKED => {
                self.unsynced_since_us.store(now_us, Ordering::Relaxed);
                now_us
            }
            since => since,
        };
        unsynced >= self.options.sync_every_bytes
            || now_us.saturating_sub(since) >= self.options.sync_every_us
    }

    /// Last sequence number known to be on stable storage.
    pub fn durable_seq(&self) -> SeqNo {
        SeqNo(self.log.lock().durable_seq)
    }

    /// The live segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let log = self.log.lock();
        let last = log.segments.len() - 1;
        log.segments.iter().enumerate().map(|(at, segment)| segment.info(at < last)).collect()
    }

    /// The live segments as far as the chain is on stable storage, oldest first: what a copy of the
    /// log may hold. All that any [`Wal::sync`] before has put there is among it.
    ///
    /// # Errors
    /// An append or a sync has failed; nobody knows then how far the log is there.
    pub fn durable_segments(&self) -> Result<Vec<DurableSegment>> {
        let log = self.log.lock();
        log.check()?;
        let mut durable = Vec::with_capacity(log.segments.len());
        for (at, segment) in log.segments.iter().enumerate() {
            let (id, closed) = (segment.id, at + 1 < log.segments.len());
            if closed && !segment.needs_sync() {
                // As much as its successor says that counts.
                durable.push(DurableSegment { id, bytes: segment.bytes });
                continue;
            }
            if segment.synced > 0 {
                durable.push(DurableSegment { id, bytes: segment.synced });
            }
            break;
        }
        Ok(durable)
    }

    /// Id of the oldest live segment: what the manifest must name before older ones are deleted.
    pub fn oldest_segment(&self) -> u64 {
        self.log.lock().segments[0].id // never empty, see the field
    }

    /// Bytes of commits and headers in the live segments; cheap enough to ask at every commit.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of commits and headers appended since the log was made.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Syncs since the log was made.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Forgets the oldest segments whose records are all at or below `seq`, closed and synced. The oldest
    /// one that remains is synced, too.
    /// Returns their ids. The caller has the manifest name [`Wal::oldest_segment`] as the oldest,
    /// on stable storage, and only then deletes the files.
    pub fn retire_through(&self, seq: SeqNo) -> Vec<u64> {
        let mut log = self.log.lock();
        // An unsynced one is still the predecessor that a replay would have to read before the
        // newer ones, until the manifest has moved on; a sync must not skip it. The manifest may name only
        // a synced segment as the oldest: power may be lost before the next sync.
        let retired = log
            .segments
            .windows(2)
            .take_while(|pair| {
                let next_synced =
                    pair[1].named || failpoint::is_on(Failpoint::OldestSegmentUnsynced);
                pair[0].last_seq <= seq.0 && !pair[0].needs_sync() && next_synced
            })
            .count();
        let gone: Vec<Segment> = log.segments.drain(..retired).collect();
        self.set_live_bytes(&log);
        gone.into_iter().map(|segment| segment.id).collect()
    }

    /// Starts a fresh chain in a new file and forgets the failure; nothing of the old chain is used
    /// any more. The new segment lasts when this returns its id. Before anything is appended the
    /// caller names it in the manifest as the oldest live segment.
    ///
    /// # Errors
    /// The segment cannot be created, written or synced; the old failure stays.
    pub fn restart(&self, next_seq: SeqNo) -> Result<u64> {
        let _one_at_a_time = self.syncing.lock();
        let mut log = self.log.lock();
        let next_seq = next_seq.0.max(log.next_seq);
        let id = self.ledger.allocate();
        let mut first = self.place().begin_segment(id, next_seq, None)?;
        first.sync()?;
        self.sync_dir()?;
        first.synced = first.bytes;
        first.named = true;
        log.segments = vec![first];
        log.next_seq = next_seq;
        log.durable_seq = next_seq - 1;
        log.failure = None;
        self.set_live_bytes(&log);
        self.unsynced_bytes.store(0, Ordering::Relaxed);
        self.unsynced_since_us.store(NOT_ASKED, Ordering::Relaxed);
        Ok(id)
    }

    /// Syncs and marks everything for a clean close. Returns the current segment and its length,
    /// all of it on stable storage, for the manifest to note. Appends are refused from here on.
    ///
    /// # Errors
    /// As [`Wal::sync`].
    pub fn close_mark(&self) -> Result<(u64, u64)> {
        let _one_at_a_time = self.syncing.lock();
        self.sync_alone()?;
        let mut log = self.log.lock();
        log.check()?;
        let current = log.current();
        // The sync above wrote its mark after itself; this one brings that to the disk as well.
        let synced = current.sync();
        synced.map_err(|error| log.fail(error))?;
        let current = log.current();
        current.synced = current.bytes;
        let marked = (current.id, current.bytes);
        log.failure = Some(Arc::new(Error::Closed));
        Ok(marked)
    }

    /// Gives each live segment its final length. Called before another owner may open the files, when nothing
    /// appends any more.
    pub(crate) fn stop_growing(&self) {
        let segments = self.log.lock().segments.clone();
        for file in segments.iter().filter_map(|segment| segment.file.as_ref()) {
            file.stop_growing();
        }
    }

    fn sync_dir(&self) -> Result<()> {
        if failpoint::is_on(Failpoint::DirectoryNotSynced) {
            return Ok(());
        }
        self.vfs.sync_dir(&self.dir).map_err(|source| Error::io("sync", &self.dir, source))
    }

    fn place(&self) -> Place<'_> {
        Place { vfs: &*self.vfs, dir: &self.dir, db_uid: self.db_uid }
    }
}

/// Where segments come into being.
struct Place<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    db_uid: u64,
}

impl Place<'_> {
    fn begin_segment(
        &self,
        id: u64,
        first_seq: u64,
        predecessor: Option<Predecessor>,
    ) -> Result<Segment> {
        let path = FileName::Segment(id).in_dir(self.dir);
        let file = self.vfs.create(&path).map_err(|source| Error::io("create", &path, source))?;
        let header = SegmentHeader { db_uid: self.db_uid, id, first_seq, predecessor }.encode();
        let bytes = len_u64(header.len());
        let segment = Segment {
            id,
            path,
            file: Some(Arc::clone(&file)),
            seed: LogSeed::new(self.db_uid, id),
            first_seq,
            last_seq: first_seq - 1,
            bytes,
            record_bytes: bytes,
            synced: 0,
            named: false,
        };
        segment.append(&header)?;
        file.grow_ahead();
        Ok(segment)
    }
}

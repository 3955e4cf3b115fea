//! WAL writer: appends, syncs, and a restart after failures.
//!
//! The writer has two locks. `log` guards the segments. An append holds `log` during the write, so that file offsets
//! and sequence numbers have the same order. `syncing` serializes syncs. A sync acquires `syncing` before `log`, and
//! releases `log` during the system call, so that appends can continue.

use std::fmt;
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};

use crate::error::{Error, Result};
use crate::format::log_record::{
    LogChecksumSeed, RECORD_HEADER_BYTES, RecordHeader, SEQ_END, SyncMark,
};
use crate::format::segment_header::{PredecessorSegment, SegmentHeader};
use crate::vfs::Vfs;
use crate::wal::segment::{DurableSegment, Segment, SegmentSummary};
use lsmx_base::key::SeqNo;

/// Default of [`WalOptions::segment_bytes`]: 16 MiB.
const SEGMENT_BYTES_DEFAULT: u64 = 16 << 20;
/// Default of [`WalOptions::sync_every_bytes`]: 8 MiB.
const SYNC_EVERY_BYTES_DEFAULT: u64 = 8 << 20;
/// Default of [`WalOptions::sync_every_us`]: one second.
const SYNC_EVERY_US_DEFAULT: u64 = 1_000_000;

/// Maximum capacity in bytes that the encode buffer keeps between two appends.
const BUFFER_BYTES_KEPT: usize = 4 << 20;
/// Value of `unsynced_since_us` while [`Wal::is_sync_due`] has not yet seen unsynced bytes.
const NO_TIME: u64 = u64::MAX;

/// A commit to append.
#[derive(Clone, Copy, Debug)]
pub struct WalRecord<'a> {
    /// First sequence number of the commit.
    pub first_seq: SeqNo,
    /// Number of sequence numbers of the commit, at least 1.
    pub count: u32,
    /// Encoded batch, which the log does not interpret.
    pub payload: &'a [u8],
}

/// Options of the write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalOptions {
    /// Size in bytes at which a segment is closed and the next segment is created. Smaller segments can be deleted
    /// sooner after a flush. Default: 16 MiB.
    pub segment_bytes: u64,
    /// Number of unsynced bytes at which a background sync starts. Default: 8 MiB.
    pub sync_every_bytes: u64,
    /// Age in microseconds of unsynced bytes at which a background sync starts. While there are unsynced bytes, idle flush
    /// threads check the age once per this time, but at least once per second and at most once per millisecond. A sync may
    /// therefore start at twice this age. A flush spends at most a quarter of its time in background syncs, so slow syncs
    /// may start later. Default: one second.
    pub sync_every_us: u64,
    /// True if a file `RESERVE` reserves disk space. When the disk is full, the engine removes the file, so that
    /// flushes and commits can use the space.
    ///
    /// The size of the file depends on the data that [`Db::resume`](crate::Db::resume) would write. The size is at most
    /// 4 MiB or 10 % of the size of tables and blob files, whichever is larger. If the file cannot be created,
    /// [`Event::NoReserve`](crate::Event::NoReserve) is reported once, and the database works without a reserve.
    /// Default: true.
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

/// Operations of the manifest that the log needs. The log calls these methods with its locks held, so an implementation
/// must not call the log.
pub trait SegmentRegistry: Send + Sync {
    /// Returns a new file number.
    fn allocate_file_number(&self) -> u64;

    /// Writes a manifest edit that lists the segment, and makes it durable.
    ///
    /// # Errors
    /// Fails when the manifest cannot be written.
    fn register_segment(&self, id: u64) -> Result<()>;
}

/// The write-ahead log of a database, open for writing.
///
/// After a failed append or sync, all later appends and syncs fail with the same cause, until
/// [`Wal::restart_in_new_segment`]. A file whose sync failed is never synced again, because the operating system may
/// have dropped the unsynced bytes.
pub struct Wal {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    db_uid: u64,
    registry: Arc<dyn SegmentRegistry>,
    options: WalOptions,
    syncing: Mutex<()>,
    log: Mutex<LogState>,
    /// Bytes appended since the last sync. Written with `log` held. Read without a lock by `is_sync_due`.
    unsynced_bytes: AtomicU64,
    /// True if `claim_sync_request` has returned true since the last start or end of a sync.
    sync_requested: AtomicBool,
    /// True if a thread sleeps until there are unsynced bytes. Both [`Wal::request_wakeup_if_synced`] and
    /// [`Wal::claim_wakeup`] exchange the value.
    wakeup_requested: AtomicBool,
    /// Time at which `is_sync_due` first saw unsynced bytes. A race between threads only shifts the next sync slightly,
    /// so relaxed accesses are enough.
    unsynced_since_us: AtomicU64,
    /// Bytes of all live segments. Written with `log` held. Read without a lock to decide whether a flush is due.
    live_bytes: AtomicU64,
    /// Bytes of commits and headers appended since the log was created.
    written_bytes: AtomicU64,
    /// Syncs since the log was created.
    syncs: AtomicU64,
    /// Number of live segments. This field and `buffer_bytes` are copies of values that `log` guards. Metrics read the
    /// copies, because an append holds `log` during I/O.
    segment_count: AtomicU64,
    /// Capacity of the encode buffer, in bytes.
    buffer_bytes: AtomicU64,
}

/// State guarded by the lock `log`.
struct LogState {
    /// Live segments, oldest first. Never empty. The last segment is the current one, all others are closed.
    segments: Vec<Segment>,
    next_seq: u64,
    /// Last sequence number on stable storage.
    durable_seq: u64,
    /// Last sequence number that a sync mark on stable storage covers.
    marked_seq: u64,
    /// Encoded records of one append.
    buffer: Vec<u8>,
    failure: Option<Arc<Error>>,
}

impl fmt::Debug for Wal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wal").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl LogState {
    fn check_failure(&self) -> Result<()> {
        match &self.failure {
            Some(cause) => Err(Error::ReadOnly { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Stores `error` if no failure is stored yet. Returns `error`.
    fn record_failure(&mut self, error: Error) -> Error {
        self.failure.get_or_insert_with(|| Arc::new(error.clone()));
        error
    }

    fn current_segment(&mut self) -> &mut Segment {
        let last = self.segments.len() - 1; // never empty, see the field
        &mut self.segments[last]
    }

    /// Returns whether all closed segments are on stable storage and registered.
    fn has_synced_older_segments(&self) -> bool {
        let closed = &self.segments[..self.segments.len() - 1];
        closed.iter().all(|segment| segment.registered && segment.synced >= segment.bytes)
    }

    /// Returns the sync mark for new records.
    fn sync_mark(&mut self) -> SyncMark {
        let older_synced = self.has_synced_older_segments();
        self.current_segment().sync_mark(older_synced)
    }

    /// Encodes a record and adds it to the buffer.
    fn encode_record(
        &mut self,
        mark: SyncMark,
        first_seq: u64,
        count: u32,
        payload: &[u8],
    ) -> Result<()> {
        let last = self.segments.len() - 1;
        let segment = &self.segments[last];
        let offset = segment.bytes + len_u64(self.buffer.len());
        let location = (segment.seed, offset);
        RecordHeader::encode_record(&mut self.buffer, location, (first_seq, count), mark, payload)
            .map_err(|what| Error::malformed(what, &segment.path, offset))
    }

    /// Appends the buffer to the current segment in one write.
    fn write_buffer(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.buffer);
        let written = self.current_segment().append(&bytes);
        self.current_segment().bytes += len_u64(bytes.len());
        self.buffer = bytes;
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        written
    }

    /// Appends a record without a commit after a sync. Its sync mark covers the last synced commit. Without this
    /// record, replay would treat corruption of the last synced commit as a torn tail. Returns the number of appended
    /// bytes.
    fn write_mark(&mut self) -> Result<u64> {
        let mark = self.sync_mark();
        if mark == SyncMark::default() {
            // The current segment was created during the sync and is not synced yet. Its mark would state nothing.
            return Ok(0);
        }
        self.buffer.clear();
        self.encode_record(mark, self.next_seq.min(SEQ_END - 1), 0, &[])?;
        let bytes = len_u64(self.buffer.len());
        self.write_buffer().map(|()| bytes)
    }
}

impl Wal {
    /// Creates a log with one segment and writes the header of the segment. The caller must call
    /// [`Wal::sync_first_segment`] and then list the segment in the manifest as the oldest live segment.
    ///
    /// # Errors
    /// Fails when the segment cannot be created or written.
    pub fn create(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        db_uid: u64,
        registry: Arc<dyn SegmentRegistry>,
        options: WalOptions,
        next_seq: SeqNo,
    ) -> Result<Wal> {
        // Sequence number 0 denotes the state before all writes.
        let next_seq = next_seq.0.max(1);
        let id = registry.allocate_file_number();
        let header = SegmentHeader { db_uid, id, first_seq: next_seq, predecessor: None };
        let first = create_segment(&*vfs, dir, header)?;
        Ok(Wal {
            vfs,
            dir: dir.to_owned(),
            db_uid,
            registry,
            options,
            syncing: Mutex::new(()),
            unsynced_bytes: AtomicU64::new(first.bytes),
            live_bytes: AtomicU64::new(first.bytes),
            written_bytes: AtomicU64::new(first.bytes),
            syncs: AtomicU64::new(0),
            segment_count: AtomicU64::new(1),
            buffer_bytes: AtomicU64::new(0),
            sync_requested: AtomicBool::new(false),
            wakeup_requested: AtomicBool::new(false),
            unsynced_since_us: AtomicU64::new(NO_TIME),
            log: Mutex::new(LogState {
                segments: vec![first],
                next_seq,
                durable_seq: next_seq - 1,
                marked_seq: next_seq - 1,
                buffer: Vec::new(),
                failure: None,
            }),
        })
    }

    /// Syncs the first segment of a new log and the directory. Returns the id of the segment. The caller then lists the
    /// segment in the manifest as the oldest live segment.
    ///
    /// # Errors
    /// Fails when a sync fails. All later appends and syncs then fail until [`Wal::restart_in_new_segment`].
    pub fn sync_first_segment(&self) -> Result<u64> {
        let _serialized = self.syncing.lock();
        let mut log = self.log.lock();
        log.check_failure()?;
        let current = log.current_segment();
        let done = current.sync().and_then(|()| self.sync_dir());
        match done {
            Ok(()) => {
                current.synced = current.bytes;
                current.registered = true;
                self.unsynced_bytes.fetch_sub(current.bytes, Ordering::Relaxed);
                Ok(current.id)
            }
            Err(error) => Err(log.record_failure(error)),
        }
    }

    /// Appends a group of commits in one write. Creates a new segment first if the current segment is full. Calls must
    /// be serialized by the caller, with ascending sequence numbers.
    ///
    /// # Errors
    /// Fails when the write fails, or an earlier append or sync failed. The caller must then apply none of the commits,
    /// because only a replay can determine which commits of the group are in the log.
    pub fn append<'a>(&self, group: impl Iterator<Item = WalRecord<'a>> + Clone) -> Result<()> {
        let mut log = self.log.lock();
        log.check_failure()?;
        let appended = self.append_group(&mut log, group);
        self.publish_sizes(&log);
        match appended {
            Ok(()) => Ok(()),
            Err(_) if failpoint::is_on(Failpoint::AppendErrorIgnored) => Ok(()),
            Err(error) => Err(log.record_failure(error)),
        }
    }

    /// Makes all later appends and syncs fail with the cause `error`, until [`Wal::restart_in_new_segment`].
    pub(crate) fn set_failure(&self, error: &Error) {
        self.log.lock().record_failure(error.clone());
    }

    fn append_group<'a>(
        &self,
        log: &mut LogState,
        group: impl Iterator<Item = WalRecord<'a>> + Clone,
    ) -> Result<()> {
        if log.current_segment().bytes >= self.options.segment_bytes {
            self.create_next_segment(log)?;
        }
        log.buffer.clear();
        let bytes = group.clone().map(|record| record.payload.len() + RECORD_HEADER_BYTES);
        log.buffer.reserve(bytes.sum());
        let (mut next_seq, mark) = (log.next_seq, log.sync_mark());
        for record in group {
            debug_assert!(record.first_seq.0 >= next_seq, "sequence numbers rise");
            debug_assert!(record.count > 0, "a commit has a sequence number");
            log.encode_record(mark, record.first_seq.0, record.count, record.payload)?;
            next_seq = record.first_seq.0 + u64::from(record.count);
        }
        let written = len_u64(log.buffer.len());
        log.write_buffer()?;
        log.next_seq = next_seq;
        let current = log.current_segment();
        current.record_bytes = current.bytes;
        current.last_seq = next_seq - 1;
        self.add_appended_bytes(written);
        Ok(())
    }

    /// Closes the current segment and creates the next segment. Does nothing if the current segment has no commits. A
    /// closed segment can be retired.
    ///
    /// # Errors
    /// Fails as [`Wal::append`] does.
    pub fn rotate(&self) -> Result<()> {
        let mut log = self.log.lock();
        log.check_failure()?;
        let current = log.current_segment();
        if current.last_seq < current.first_seq {
            return Ok(());
        }
        let begun = self.create_next_segment(&mut log);
        self.publish_sizes(&log);
        begun.map_err(|error| log.record_failure(error))
    }

    fn create_next_segment(&self, log: &mut LogState) -> Result<()> {
        let next_seq = log.next_seq;
        let current = log.current_segment();
        let predecessor = PredecessorSegment {
            id: current.id,
            last_seq: current.last_seq,
            bytes: current.bytes,
            mark: current.synced,
        };
        // The header of the next segment states the whole size of the closed segment, including mark-only records at
        // the end. Therefore a sync must include these records from now on.
        current.record_bytes = current.bytes;
        let next = self.create_segment(next_seq, Some(predecessor))?;
        self.add_appended_bytes(next.bytes);
        log.segments.push(next);
        Ok(())
    }

    /// Recomputes the size of the live segments after segments were removed.
    fn set_live_bytes(&self, log: &LogState) {
        let bytes = log.segments.iter().map(|segment| segment.bytes).sum();
        self.live_bytes.store(bytes, Ordering::Relaxed);
        self.publish_sizes(log);
    }

    /// Copies values of the guarded state to atomics, so that metrics can read them without a lock.
    fn publish_sizes(&self, log: &LogState) {
        self.segment_count.store(len_u64(log.segments.len()), Ordering::Relaxed);
        self.buffer_bytes.store(len_u64(log.buffer.capacity()), Ordering::Relaxed);
    }

    fn add_appended_bytes(&self, bytes: u64) {
        for counter in [&self.unsynced_bytes, &self.live_bytes, &self.written_bytes] {
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Syncs all commits appended so far, oldest segment first. Returns the last durable sequence number. Any thread
    /// may call this method. Other threads can append during the sync.
    ///
    /// # Errors
    /// Fails when a sync or the append of a sync mark fails, or an earlier append or sync failed. All later syncs then fail,
    /// too. [`Wal::durable_seq`] may have increased nevertheless.
    pub fn sync(&self) -> Result<SeqNo> {
        let _serialized = self.syncing.lock();
        self.sync_locked(&Segment::needs_sync)
    }

    /// Like [`Wal::sync`], and then syncs the mark that covers the commits. A later failed sync cannot lose this mark.
    ///
    /// # Errors
    /// Fails as [`Wal::sync`] does.
    pub(crate) fn sync_with_mark(&self) -> Result<()> {
        let _serialized = self.syncing.lock();
        {
            let log = self.log.lock();
            log.check_failure()?;
            if log.marked_seq == log.next_seq - 1 {
                return Ok(());
            }
        }
        let last_seq = self.sync_locked(&Segment::needs_sync)?;
        self.sync_locked(&|segment| segment.needs_sync() || segment.bytes > segment.synced)?;
        self.log.lock().marked_seq = last_seq.0;
        Ok(())
    }

    /// Implements [`Wal::sync`] for the segments that `is_pending` accepts. The caller must hold `syncing`.
    fn sync_locked(&self, is_pending: &dyn Fn(&Segment) -> bool) -> Result<SeqNo> {
        let (pending, last_seq, bytes) = {
            let log = self.log.lock();
            log.check_failure()?;
            self.sync_requested.store(false, Ordering::Release);
            let pending: Vec<Segment> =
                log.segments.iter().filter(|segment| is_pending(segment)).cloned().collect();
            (pending, log.next_seq - 1, self.unsynced_bytes.load(Ordering::Relaxed))
        };
        if pending.is_empty() || failpoint::is_on(Failpoint::WalSyncSkipped) {
            return Ok(SeqNo(last_seq));
        }
        let synced = self.sync_segments(&pending);
        // Closing a file is a system call, so the files are closed after the lock is released.
        let mut closed = Vec::new();
        let mut log = self.log.lock();
        synced.map_err(|error| log.record_failure(error))?;
        for done in &pending {
            let segment = log.segments.iter_mut().find(|segment| segment.id == done.id);
            if let Some(segment) = segment {
                segment.synced = done.bytes;
                segment.registered = true;
            }
        }
        log.durable_seq = last_seq;
        self.unsynced_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.unsynced_since_us.store(NO_TIME, Ordering::Relaxed);
        // Clears requests that were made during this sync. If many bytes are still unsynced, the next commit requests
        // another sync.
        self.sync_requested.store(false, Ordering::Release);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        // If an append failed during the sync, the end of the file is unknown, so no mark is appended.
        log.check_failure()?;
        let mark_bytes = log.write_mark().map_err(|error| log.record_failure(error))?;
        // No commit depends on the mark, so its bytes do not count as unsynced.
        self.live_bytes.fetch_add(mark_bytes, Ordering::Relaxed);
        if let Some((_, older)) = log.segments.split_last_mut() {
            let synced = older.iter_mut().filter(|segment| !segment.needs_sync());
            closed.extend(synced.filter_map(|segment| segment.file.take()));
        }
        drop(log);
        drop((pending, closed));
        Ok(SeqNo(last_seq))
    }

    /// Syncs the files, then the directory, then registers new segments in the manifest.
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
        if pending.iter().any(|segment| !segment.registered) {
            self.sync_dir()?;
        }
        for segment in pending.iter().filter(|segment| !segment.registered) {
            self.registry.register_segment(segment.id)?;
        }
        Ok(())
    }

    /// Returns true if the caller must request a background sync. This is the case if the number of unsynced bytes has
    /// reached the limit, and no other caller has requested a sync since the last start or end of a sync.
    pub(crate) fn claim_sync_request(&self) -> bool {
        self.is_sync_due_by_bytes() && !self.sync_requested.swap(true, Ordering::AcqRel)
    }

    /// Returns whether all bytes are synced. If they are, [`Wal::claim_wakeup`] returns true after the next append.
    pub(crate) fn request_wakeup_if_synced(&self) -> bool {
        let is_synced = || self.unsynced_bytes.load(Ordering::Relaxed) == 0;
        if !is_synced() {
            return false;
        }
        // If an append claims the wake-up before this exchange, the second check sees the bytes of the append. If it
        // claims the wake-up later, it gets true.
        self.wakeup_requested.swap(true, Ordering::AcqRel);
        is_synced()
    }

    /// Returns whether the caller must wake the threads that sleep until there are unsynced bytes. Called after an append
    /// without a sync.
    pub(crate) fn claim_wakeup(&self) -> bool {
        self.wakeup_requested.swap(false, Ordering::AcqRel)
    }

    /// Returns the capacity in bytes of the encode buffer after the last append. Takes no lock.
    #[must_use]
    pub fn buffer_bytes(&self) -> u64 {
        if failpoint::is_on(Failpoint::ObservationTakesLogLock) {
            drop(self.log.lock());
        }
        self.buffer_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of live segments after the last append. Takes no lock.
    #[must_use]
    pub fn segment_count(&self) -> u64 {
        self.segment_count.load(Ordering::Relaxed)
    }

    /// Returns the age of unsynced bytes at which a background sync starts, in microseconds.
    pub(crate) fn sync_every_us(&self) -> u64 {
        self.options.sync_every_us
    }

    /// Returns whether a sync is due because of the number of unsynced bytes.
    #[must_use]
    pub fn is_sync_due_by_bytes(&self) -> bool {
        self.unsynced_bytes.load(Ordering::Relaxed) >= self.options.sync_every_bytes
    }

    /// Returns whether a sync is due because of the number or the age of unsynced bytes. `now_us` is the current time
    /// in microseconds.
    pub fn is_sync_due(&self, now_us: u64) -> bool {
        let unsynced = self.unsynced_bytes.load(Ordering::Relaxed);
        if unsynced == 0 {
            return false;
        }
        let since = match self.unsynced_since_us.load(Ordering::Relaxed) {
            NO_TIME => {
                self.unsynced_since_us.store(now_us, Ordering::Relaxed);
                now_us
            }
            since => since,
        };
        unsynced >= self.options.sync_every_bytes
            || now_us.saturating_sub(since) >= self.options.sync_every_us
    }

    /// Returns the last sequence number known to be on stable storage.
    pub fn durable_seq(&self) -> SeqNo {
        SeqNo(self.log.lock().durable_seq)
    }

    /// Returns whether a live segment contains a commit.
    pub(crate) fn has_commits(&self) -> bool {
        let log = self.log.lock();
        log.segments.iter().any(|segment| segment.last_seq >= segment.first_seq)
    }

    /// Returns the live segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentSummary> {
        let log = self.log.lock();
        let last = log.segments.len() - 1;
        log.segments.iter().enumerate().map(|(at, segment)| segment.summary(at < last)).collect()
    }

    /// Returns the durable part of the chain, oldest segment first. A checkpoint copies this part. The durable part
    /// includes all commits that earlier calls of [`Wal::sync`] have synced.
    ///
    /// # Errors
    /// Fails after a failed append or sync, because the durable part is then unknown.
    pub fn durable_segments(&self) -> Result<Vec<DurableSegment>> {
        let log = self.log.lock();
        log.check_failure()?;
        let mut durable = Vec::with_capacity(log.segments.len());
        for (at, segment) in log.segments.iter().enumerate() {
            let (id, closed) = (segment.id, at + 1 < log.segments.len());
            if closed && !segment.needs_sync() {
                // The whole segment is durable. The header of the next segment states the same size.
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

    /// Returns the id of the oldest live segment. The manifest must list this segment as the oldest before older
    /// segments are deleted.
    #[cfg(any(test, feature = "internals"))]
    pub fn oldest_segment(&self) -> u64 {
        self.log.lock().segments[0].id // never empty, see the field
    }

    /// Returns the total size of the live segments in bytes. Takes no lock.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of commits appended since the log was created, including headers. Records that contain only a
    /// sync mark do not count.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of syncs since the log was created.
    pub fn sync_count(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Removes the oldest segments that contain no commit after `seq`. Returns the removed segments.
    ///
    /// Only closed and synced segments are removed, and the oldest remaining segment is registered in the manifest. The
    /// caller must first list the oldest remaining segment as the oldest in the manifest, durably, and then delete the
    /// files.
    pub fn retire_segments(&self, seq: SeqNo) -> Vec<SegmentSummary> {
        let mut log = self.log.lock();
        // An unsynced segment is not retired. Until the manifest is updated, a replay reads this segment before newer
        // segments, so later syncs must include it. The first remaining segment becomes the oldest in the manifest.
        // That segment must be registered already, because power may fail before the next sync.
        let retired = log
            .segments
            .windows(2)
            .take_while(|pair| {
                let next_synced =
                    pair[1].registered || failpoint::is_on(Failpoint::OldestSegmentUnsynced);
                pair[0].last_seq <= seq.0 && !pair[0].needs_sync() && next_synced
            })
            .count();
        let retired_segments: Vec<Segment> = log.segments.drain(..retired).collect();
        self.set_live_bytes(&log);
        retired_segments.into_iter().map(|segment| segment.summary(true)).collect()
    }

    /// Starts a new chain in a new segment and clears the stored failure. The old chain is not used any more.
    ///
    /// Returns the id of the new segment, which is durable. Before the next append, the caller must list this segment
    /// in the manifest as the oldest live segment.
    ///
    /// # Errors
    /// Fails when the segment cannot be created, written or synced. The stored failure then remains.
    pub fn restart_in_new_segment(&self, next_seq: SeqNo) -> Result<u64> {
        let _serialized = self.syncing.lock();
        let mut log = self.log.lock();
        let next_seq = next_seq.0.max(log.next_seq);
        let mut first = self.create_segment(next_seq, None)?;
        let id = first.id;
        first.sync()?;
        self.sync_dir()?;
        first.synced = first.bytes;
        first.registered = true;
        log.segments = vec![first];
        log.next_seq = next_seq;
        log.durable_seq = next_seq - 1;
        log.marked_seq = next_seq - 1;
        log.failure = None;
        self.set_live_bytes(&log);
        self.unsynced_bytes.store(0, Ordering::Relaxed);
        self.unsynced_since_us.store(NO_TIME, Ordering::Relaxed);
        Ok(id)
    }

    /// Syncs all segments for a clean close. All later appends fail. Returns the id and the size of the current
    /// segment, which is completely durable. The caller records both in the manifest.
    ///
    /// # Errors
    /// Fails as [`Wal::sync`] does.
    pub fn close(&self) -> Result<(u64, u64)> {
        let _serialized = self.syncing.lock();
        self.sync_locked(&Segment::needs_sync)?;
        let mut log = self.log.lock();
        log.check_failure()?;
        let current = log.current_segment();
        // `sync_locked` has appended a mark-only record. This sync makes the record durable.
        let synced = current.sync();
        synced.map_err(|error| log.record_failure(error))?;
        let current = log.current_segment();
        current.synced = current.bytes;
        let marked = (current.id, current.bytes);
        log.failure = Some(Arc::new(Error::Closed));
        Ok(marked)
    }

    /// Removes the preallocated zeros of the live segments. Called after the last append, before another process can
    /// open the files.
    pub(crate) fn disable_preallocation(&self) {
        let segments = self.log.lock().segments.clone();
        for file in segments.iter().filter_map(|segment| segment.file.as_ref()) {
            file.disable_preallocation();
        }
    }

    fn sync_dir(&self) -> Result<()> {
        if failpoint::is_on(Failpoint::DirectoryNotSynced) {
            return Ok(());
        }
        self.vfs.sync_dir(&self.dir).map_err(|source| Error::io("sync", &self.dir, source))
    }

    /// Creates the segment that follows `predecessor`, or the first segment of a chain.
    fn create_segment(
        &self,
        first_seq: u64,
        predecessor: Option<PredecessorSegment>,
    ) -> Result<Segment> {
        let id = self.registry.allocate_file_number();
        let header = SegmentHeader { db_uid: self.db_uid, id, first_seq, predecessor };
        create_segment(&*self.vfs, &self.dir, header)
    }
}

/// Creates the file of a segment and writes its header.
fn create_segment(vfs: &dyn Vfs, dir: &Path, header: SegmentHeader) -> Result<Segment> {
    let SegmentHeader { db_uid, id, first_seq, .. } = header;
    let path = FileName::Segment(id).in_dir(dir);
    let file = vfs.create(&path).map_err(|source| Error::io("create", &path, source))?;
    let header = header.encode();
    let bytes = len_u64(header.len());
    let segment = Segment {
        id,
        path,
        file: Some(Arc::clone(&file)),
        seed: LogChecksumSeed::new(db_uid, id),
        first_seq,
        last_seq: first_seq - 1,
        bytes,
        record_bytes: bytes,
        synced: 0,
        registered: false,
    };
    segment.append(&header)?;
    file.enable_preallocation();
    Ok(segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::MemVfs;

    /// Registry that stores nothing.
    struct FileNumberCounter(AtomicU64);

    impl SegmentRegistry for FileNumberCounter {
        fn allocate_file_number(&self) -> u64 {
            self.0.fetch_add(1, Ordering::Relaxed)
        }

        fn register_segment(&self, _: u64) -> Result<()> {
            Ok(())
        }
    }

    /// Bug: the size did not include the mark-only record of each sync, so a log of small synced commits could be much
    /// larger than [`Options::wal_bytes_max`](crate::Options::wal_bytes_max).
    #[test]
    fn live_bytes_include_sync_marks() {
        let (disk, dir) = (Arc::new(MemVfs::new()), Path::new("db"));
        disk.create_dir(dir).unwrap();
        let registry = Arc::new(FileNumberCounter(AtomicU64::new(1)));
        let options = WalOptions { segment_bytes: 500, ..WalOptions::default() };
        let wal = Wal::create(disk, dir, 1, registry, options, SeqNo(1)).unwrap();
        wal.sync_first_segment().unwrap();
        let segment_bytes = || wal.segments().iter().map(|segment| segment.bytes).sum::<u64>();
        for seq in 1..=40 {
            let commit = WalRecord { first_seq: SeqNo(seq), count: 1, payload: b"commit" };
            wal.append(std::iter::once(commit)).unwrap();
            if seq % 3 > 0 {
                wal.sync().unwrap();
            }
            assert_eq!(wal.live_bytes(), segment_bytes(), "after commit {seq}");
        }
        assert!(wal.segment_count() > 3);
        wal.restart_in_new_segment(SeqNo(50)).unwrap();
        assert_eq!(wal.live_bytes(), segment_bytes());
    }
}

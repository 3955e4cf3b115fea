//! Recorder of a workload trace.
//!
//! 1. After each successful operation, the calling thread appends items to the trace buffer. The lock of the trace
//!    buffer is never held during I/O.
//! 2. When the trace buffer contains [`FRAME_BYTES`] or more and the previous frame has been written, the contents of
//!    the buffer become the next frame. While the previous frame is being written, the buffer grows up to its maximum
//!    size. If the buffer is full, operations are not recorded but counted. An item with this count precedes the next
//!    recorded operation.
//! 3. The trace thread appends frames to the file, at least every [`FLUSH_US`] microseconds. With
//!    [`Background::Inline`], the operation that completes a frame writes it.
//! 4. When the trace is stopped, the recorder writes the remaining items and an end item, and syncs the file.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::key::EntryKind;
use lsmx_base::sync::{Arc, Mutex, Signal, Weak};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::env::{Background, Env, JoinHandle, WaitCause};
use crate::error::{Error, Result};
use crate::format::batch::{BatchOperationIter, OperationEffect};
use crate::format::expiry::without_expiry;
use crate::format::log_record::{LogChecksumSeed, RecordHeader, SyncMark};
use crate::format::workload_trace::{
    TRACE_KEY_BYTES_MAX, TraceEvent, TraceHeader, TraceItem, TraceValue,
};
use crate::vfs::{File, Vfs};
use crate::workload_trace::{ActiveTrace, TraceOptions, TraceSummary};

/// Size of the trace buffer in bytes at which a frame is written.
const FRAME_BYTES: usize = 64 << 10;
/// Maximum time in microseconds after which buffered items are written.
const FLUSH_US: u64 = 1_000_000;
/// Minimum size of a hashed key in bytes.
const HASHED_BYTES_MIN: usize = 8;
/// Maximum size of a hashed key in bytes. A recorded range delete of a hashed key ends at the successor of the key.
const HASHED_BYTES_MAX: usize = TRACE_KEY_BYTES_MAX - 1;
/// Upper bound of the size of an item without its key and value, in bytes.
const ITEM_BYTES: usize = 64;

/// Records the operations on one database.
#[derive(Debug)]
pub(crate) struct TraceRecorder {
    options: TraceOptions,
    /// Random seed of the key hashes. The seed is never stored.
    salt: u64,
    env: Env,
    state: Mutex<RecorderState>,
    /// Wakes the trace thread.
    wake: Signal,
    active: Weak<ActiveTrace>,
}

#[derive(Debug)]
struct RecorderState {
    /// Encoded items that are not yet part of a frame.
    buffer: Vec<u8>,
    /// Number of items in `buffer`.
    items: u32,
    /// The completed frame that is not yet written.
    frame: Option<TraceFrame>,
    /// Number of the next item.
    next_item: u64,
    /// Time of the last item in microseconds of the environment's clock.
    last_us: u64,
    /// Ids of the keyspaces whose names are already recorded.
    named_keyspaces: BTreeSet<u32>,
    operations: u64,
    lost: u64,
    /// Number of lost operations since the last item.
    lost_since_item: u64,
    /// Set when the trace is stopped. Later operations are not recorded.
    is_stopping: bool,
    /// Set after the end item has been written, or after a write error.
    has_ended: bool,
    error: Option<Error>,
    /// `None` while a thread is writing.
    writer: Option<TraceWriter>,
    written_bytes: u64,
}

/// Payload of one log record of the trace file.
#[derive(Debug)]
struct TraceFrame {
    first_item: u64,
    items: u32,
    payload: Vec<u8>,
}

#[derive(Debug)]
struct TraceWriter {
    vfs: Arc<dyn Vfs>,
    file: Arc<dyn File>,
    path: PathBuf,
    seed: LogChecksumSeed,
    offset: u64,
    /// Buffer for an encoded record, which is reused.
    record: Vec<u8>,
}

/// Id and name of a keyspace.
pub(crate) type KeyspaceName<'a> = (u32, &'a str);

impl TraceRecorder {
    /// Creates a trace file, writes its header, and returns the recorder.
    pub(crate) fn create(
        vfs: Arc<dyn Vfs>,
        env: Env,
        path: &Path,
        options: TraceOptions,
        active: &Arc<ActiveTrace>,
    ) -> Result<Arc<TraceRecorder>> {
        let header = TraceHeader {
            keys_hashed: options.hash_keys,
            values_kept: options.keep_values,
            uid: env.random_u64(),
            begun_us: env.database_time_us(),
        };
        let file = vfs.create(path).map_err(|error| Error::io("create", path, error))?;
        let bytes = header.encode();
        file.append(&bytes).map_err(|error| Error::io("write", path, error))?;
        let offset = len_u64(bytes.len());
        let (path, seed, record) = (path.to_owned(), header.seed(), Vec::new());
        let state = RecorderState {
            buffer: Vec::new(),
            items: 0,
            frame: None,
            next_item: 1,
            last_us: env.now_us(),
            named_keyspaces: BTreeSet::new(),
            operations: 0,
            lost: 0,
            lost_since_item: 0,
            is_stopping: false,
            has_ended: false,
            error: None,
            writer: Some(TraceWriter { vfs, file, path, seed, offset, record }),
            written_bytes: offset,
        };
        Ok(Arc::new(TraceRecorder {
            options,
            salt: env.random_u64(),
            env,
            state: Mutex::new(state),
            wake: Signal::new(),
            active: Arc::downgrade(active),
        }))
    }

    /// Returns true if operations write the trace file, because the engine runs without background threads.
    pub(crate) fn writes_inline(&self) -> bool {
        self.env.background() == Background::Inline
    }

    /// Waits until the trace thread ends. If the trace thread panicked, returns the payload of the panic.
    pub(crate) fn join_writer_thread(&self, thread: JoinHandle) -> std::thread::Result<()> {
        self.env.join(thread)
    }

    pub(crate) fn error(&self) -> Option<Error> {
        self.state.lock().error.clone()
    }

    pub(crate) fn summary(&self) -> TraceSummary {
        let state = self.state.lock();
        let RecorderState { operations, lost, written_bytes: bytes, .. } = *state;
        TraceSummary { operations, lost, bytes }
    }

    /// Records a commit. `payload` is the payload of its WAL record, and `count` is the number of operations.
    pub(crate) fn record_commit<'a>(
        &self,
        payload: &[u8],
        count: u32,
        synced: bool,
        keyspaces: impl Iterator<Item = KeyspaceName<'a>>,
    ) {
        let mut bytes_max = ITEM_BYTES;
        let mut operations = Vec::new();
        // The engine has encoded the payload, so all operations can be decoded.
        for operation in BatchOperationIter::new(payload).flatten() {
            bytes_max += ITEM_BYTES + operation.key.len() + HASHED_BYTES_MIN;
            bytes_max += match &operation.action {
                OperationEffect::Entry { value, .. } if self.options.keep_values => value.len(),
                OperationEffect::Entry { .. } => 0,
                OperationEffect::DeleteRange { end } => end.as_ref().map_or(1, |end| end.len() + 1),
            };
            operations.push(operation);
        }
        self.record(keyspaces, u64::from(count), bytes_max, &mut |items| {
            if count > 1 {
                items.push(synced, TraceEvent::Batch { operations: u64::from(count) });
            }
            for operation in &operations {
                let keyspace = operation.keyspace;
                let key = self.key_to_record(&payload[operation.key.clone()]);
                let key: &[u8] = &key;
                let event = match &operation.action {
                    OperationEffect::Entry { kind, value } => {
                        // A trace does not contain expiry times.
                        let content = without_expiry(*kind, &payload[value.clone()]);
                        let value =
                            TraceValue { bytes: len_u64(content.len()), content: Some(content) };
                        match kind {
                            EntryKind::Delete => TraceEvent::Delete { keyspace, key },
                            EntryKind::Merge => TraceEvent::Merge { keyspace, key, operand: value },
                            EntryKind::Put
                            | EntryKind::ValuePointer
                            | EntryKind::PutExpiring
                            | EntryKind::ValuePointerExpiring => {
                                TraceEvent::Put { keyspace, key, value }
                            }
                        }
                    }
                    OperationEffect::DeleteRange { end } => {
                        let end = end
                            .as_ref()
                            .map(|end| self.range_end_to_record(&payload[end.clone()], key));
                        let end = end.as_deref();
                        items.push(synced, TraceEvent::DeleteRange { keyspace, start: key, end });
                        continue;
                    }
                };
                items.push(synced, event);
            }
        });
    }

    /// Records a point lookup. `value_bytes` is the size of the found value, or `None` if the key was absent.
    pub(crate) fn record_get(
        &self,
        keyspace: KeyspaceName<'_>,
        key: &[u8],
        value_bytes: Option<u64>,
    ) {
        let key = self.key_to_record(key);
        let bytes_max = ITEM_BYTES + key.len();
        self.record(std::iter::once(keyspace), 1, bytes_max, &mut |items| {
            let (keyspace, found) = (keyspace.0, value_bytes);
            items.push(false, TraceEvent::Get { keyspace, key: &key, found });
        });
    }

    /// Records a scan that started at `start` and read `entries` entries.
    fn record_scan(
        &self,
        keyspace: KeyspaceName<'_>,
        backward: bool,
        start: Option<&[u8]>,
        entries: u64,
    ) {
        let start = start.map(|start| self.key_to_record(start));
        let bytes_max = ITEM_BYTES + start.as_ref().map_or(0, |start| start.len());
        self.record(std::iter::once(keyspace), 1, bytes_max, &mut |items| {
            let (keyspace, start) = (keyspace.0, start.as_deref());
            items.push(false, TraceEvent::Scan { keyspace, backward, start, entries });
        });
    }

    /// Returns the key or its hash, depending on the options.
    ///
    /// The length of the key of a read has no limit, but the length of a key in a trace has. A longer key is truncated.
    /// The truncated key is still longer than every stored key, so it is absent and has the same place among stored keys.
    fn key_to_record<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        if !self.options.hash_keys {
            return Cow::Borrowed(&key[..key.len().min(TRACE_KEY_BYTES_MAX)]);
        }
        let len = key.len().clamp(HASHED_BYTES_MIN, HASHED_BYTES_MAX);
        let hash = xxh3_128_with_seed(key, self.salt).to_le_bytes();
        Cow::Owned(hash.into_iter().cycle().take(len).collect())
    }

    /// Returns the end of a range delete as it is recorded.
    ///
    /// Hashed keys have no meaningful order. If keys are hashed, the recorded range therefore contains only the key
    /// `start`.
    fn range_end_to_record<'a>(&self, end: &'a [u8], start: &[u8]) -> Cow<'a, [u8]> {
        if self.options.hash_keys { Cow::Owned([start, &[0]].concat()) } else { Cow::Borrowed(end) }
    }

    /// Records items for `operations` operations. If the buffer has too little space, counts the operations as lost.
    ///
    /// `bytes_max` is an upper bound of the total size of the items in bytes.
    fn record<'a>(
        &self,
        keyspaces: impl Iterator<Item = KeyspaceName<'a>>,
        operations: u64,
        bytes_max: usize,
        push_items: &mut dyn FnMut(&mut ItemBuffer<'_>),
    ) {
        let now_us = self.env.now_us();
        let (was_empty, is_frame_due) = {
            let mut state = self.state.lock();
            if state.has_ended || state.is_stopping {
                return;
            }
            if len_u64(state.buffer.len() + bytes_max) > self.options.buffer_bytes {
                state.lost += operations;
                state.lost_since_item += operations;
                return;
            }
            let was_empty = state.buffer.is_empty();
            let after_us = now_us.saturating_sub(state.last_us);
            state.last_us = state.last_us.max(now_us);
            let mut items = self.item_buffer(&mut state, after_us);
            items.push_lost_count();
            for (keyspace, name) in keyspaces {
                if items.state.named_keyspaces.insert(keyspace) {
                    items.push(false, TraceEvent::Keyspace { keyspace, name });
                }
            }
            push_items(&mut items);
            state.operations += operations;
            (was_empty, state.buffer.len() >= FRAME_BYTES && state.complete_frame())
        };
        if self.writes_inline() {
            if is_frame_due {
                self.write_frame();
            }
        } else if is_frame_due || was_empty {
            self.wake.notify();
        }
    }

    fn item_buffer<'a>(&self, state: &'a mut RecorderState, after_us: u64) -> ItemBuffer<'a> {
        ItemBuffer { state, after_us, keep_values: self.options.keep_values }
    }

    /// Runs the trace thread: writes frames until the trace ends.
    pub(crate) fn run(&self) {
        loop {
            let wait = |deadline_us, condition: &dyn Fn(&RecorderState) -> bool| {
                self.env.wait(WaitCause::Work, &self.wake, deadline_us, &mut || {
                    let state = self.state.lock();
                    state.is_stopping
                        || state.has_ended
                        || state.frame.is_some()
                        || condition(&state)
                })
            };
            wait(None, &|state| !state.buffer.is_empty());
            wait(Some(self.env.now_us().saturating_add(FLUSH_US)), &|_| false);
            let is_stopping = {
                let mut state = self.state.lock();
                if state.has_ended {
                    return;
                }
                state.complete_frame();
                state.is_stopping
            };
            self.write_frame();
            if is_stopping {
                self.write_end_item();
                return;
            }
        }
    }

    /// Stops recording. If there is no trace thread, also writes the remaining items and the end item.
    pub(crate) fn stop(&self) {
        let was_stopping = std::mem::replace(&mut self.state.lock().is_stopping, true);
        self.wake.notify();
        if !was_stopping && self.writes_inline() {
            self.state.lock().complete_frame();
            self.write_frame();
            self.write_end_item();
        }
    }

    /// Writes the completed frame, if there is one. Does nothing while another thread is writing.
    fn write_frame(&self) {
        self.with_writer(|writer, frame| frame.map_or(Ok(()), |frame| writer.append(&frame)));
    }

    /// Writes the remaining items and the end item, and then syncs the file.
    fn write_end_item(&self) {
        {
            let mut state = self.state.lock();
            let operations = state.operations;
            let mut items = self.item_buffer(&mut state, 0);
            items.push_lost_count();
            items.push(false, TraceEvent::End { operations });
            state.complete_frame();
        }
        self.with_writer(|writer, frame| {
            if let Some(frame) = frame {
                writer.append(&frame)?;
            }
            writer.sync()
        });
        self.state.lock().has_ended = true;
    }

    /// Calls `write` with the writer and the completed frame. The lock is not held during the call. An error ends the
    /// trace.
    fn with_writer(&self, write: impl FnOnce(&mut TraceWriter, Option<TraceFrame>) -> Result<()>) {
        let (mut writer, frame) = {
            let mut state = self.state.lock();
            let Some(writer) = state.writer.take() else { return };
            (writer, state.frame.take())
        };
        let result = write(&mut writer, frame);
        let has_failed = result.is_err();
        {
            let mut state = self.state.lock();
            state.written_bytes = writer.offset;
            match result {
                Ok(()) => state.writer = Some(writer),
                Err(error) => {
                    state.error.get_or_insert(error);
                    state.has_ended = true;
                    state.buffer = Vec::new();
                    state.frame = None;
                }
            }
        }
        if has_failed && let Some(active) = self.active.upgrade() {
            active.stop(self);
        }
    }
}

impl RecorderState {
    /// Turns the contents of the buffer into the next frame. Returns whether there is a frame to write.
    ///
    /// Does nothing if the buffer is empty, or if the previous frame has not been written.
    fn complete_frame(&mut self) -> bool {
        if self.frame.is_none() && !self.buffer.is_empty() {
            let payload = std::mem::take(&mut self.buffer);
            let items = std::mem::take(&mut self.items);
            let first_item = self.next_item - u64::from(items);
            self.frame = Some(TraceFrame { first_item, items, payload });
        }
        self.frame.is_some()
    }
}

/// Appends items to the trace buffer.
struct ItemBuffer<'a> {
    state: &'a mut RecorderState,
    /// Time in microseconds between the previous item and the first item that is appended. Further items have the time
    /// 0.
    after_us: u64,
    keep_values: bool,
}

impl ItemBuffer<'_> {
    fn push(&mut self, synced: bool, event: TraceEvent<'_>) {
        let after_us = std::mem::take(&mut self.after_us);
        TraceItem { after_us, synced, event }.encode(self.keep_values, &mut self.state.buffer);
        self.state.items += 1;
        self.state.next_item += 1;
    }

    /// Appends an item with the number of operations that were lost since the last item.
    fn push_lost_count(&mut self) {
        let operations = std::mem::take(&mut self.state.lost_since_item);
        if operations > 0 {
            self.push(false, TraceEvent::Lost { operations });
        }
    }
}

impl TraceWriter {
    fn append(&mut self, frame: &TraceFrame) -> Result<()> {
        self.record.clear();
        let location = (self.seed, self.offset);
        let numbers = (frame.first_item, frame.items);
        let mark = SyncMark::default();
        RecordHeader::encode_record(&mut self.record, location, numbers, mark, &frame.payload)
            .map_err(|what| Error::malformed(what, &self.path, self.offset))?;
        self.file.append(&self.record).map_err(|error| Error::io("write", &self.path, error))?;
        self.offset += len_u64(self.record.len());
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|error| Error::io("sync", &self.path, error))?;
        let Some(parent) = self.path.parent() else { return Ok(()) };
        // The parent of a relative path with one component is the empty path.
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        self.vfs.sync_dir(parent).map_err(|error| Error::io("sync", parent, error))
    }
}

/// Records the scans of one iterator. The last scan is recorded when the iterator is dropped.
#[derive(Debug)]
pub(crate) struct ScanTrace {
    recorder: Arc<TraceRecorder>,
    keyspace: u32,
    name: String,
    /// Direction and bound of the first step of the current scan. `None` before the first step.
    start: Option<(bool, Option<Vec<u8>>)>,
    entries: u64,
}

impl ScanTrace {
    pub(crate) fn new(recorder: Arc<TraceRecorder>, keyspace: u32, name: String) -> ScanTrace {
        ScanTrace { recorder, keyspace, name, start: None, entries: 0 }
    }

    /// Stores the direction and the bound if this is the first step of the scan.
    pub(crate) fn record_scan_step(&mut self, backward: bool, start: Option<&[u8]>) {
        self.start.get_or_insert_with(|| (backward, start.map(<[u8]>::to_vec)));
    }

    /// Records the current scan, and starts a new scan at a bound.
    pub(crate) fn restart(&mut self, backward: bool, start: Option<&[u8]>) {
        self.record();
        self.start = Some((backward, start.map(<[u8]>::to_vec)));
        self.entries = 0;
    }

    /// Counts an entry that the iterator has returned.
    pub(crate) fn count_entry(&mut self) {
        self.entries += 1;
    }

    fn record(&self) {
        if let Some((backward, start)) = &self.start {
            let keyspace = (self.keyspace, self.name.as_str());
            self.recorder.record_scan(keyspace, *backward, start.as_deref(), self.entries);
        }
    }
}

impl Drop for ScanTrace {
    fn drop(&mut self) {
        self.record();
    }
}

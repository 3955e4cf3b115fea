//! Takes operations in, and has them written.
//!
//! 1. An operation that has ended well appends its items to the buffer that fills, under a lock that
//!    nobody holds over I/O.
//! 2. A buffer of [`FRAME_BYTES`] is handed over as a frame as soon as the one before it has been
//!    taken; until then the buffer goes on filling up to its bound. Past that, operations are lost, and
//!    the next one that is recorded says so first.
//! 3. The trace's thread takes frames, and every [`FLUSH_US`] what there is, and appends them to the
//!    file. Where the engine has no threads the operation that fills a frame writes it.
//! 4. At the end the rest goes out with an end item, and the file is synced.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::key::EntryKind;
use lsmx_base::sync::{Arc, Mutex, Signal, Weak};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::env::{Background, Env, WaitCause};
use crate::error::{Error, Result};
use crate::format::batch::{BatchAction, BatchOperations};
use crate::format::log_record::{LogSeed, RecordHeader, SyncMark};
use crate::format::workload_trace::{TraceEvent, TraceHeader, TraceItem, TraceValue};
use crate::vfs::{File, Vfs};
use crate::workload_trace::{Recording, TraceOptions, TraceSummary};

/// Payload bytes from which on a frame is handed over.
const FRAME_BYTES: usize = 64 << 10;
/// Longest that an operation stays in memory while others come.
const FLUSH_US: u64 = 1_000_000;
/// Fewest bytes of a hashed key.
const HASHED_BYTES_MIN: usize = 8;
/// Bytes that an item may take besides keys and values.
const ITEM_BYTES: usize = 64;

/// Records the operations of one database.
#[derive(Debug)]
pub(crate) struct Recorder {
    options: TraceOptions,
    /// Makes hashes of keys that tell nothing to whoever does not know it; kept nowhere.
    salt: u64,
    env: Env,
    state: Mutex<State>,
    /// Given when there is something for the thread.
    changed: Signal,
    recording: Weak<Recording>,
}

#[derive(Debug)]
struct State {
    filling: Vec<u8>,
    items: u32,
    /// Waits for the thread.
    ready: Option<Frame>,
    /// Number of the next item.
    number_next: u64,
    last_us: u64,
    /// Keyspaces that have been named.
    named: BTreeSet<u32>,
    operations: u64,
    lost: u64,
    /// Lost since the last item.
    lost_here: u64,
    stopping: bool,
    /// Nothing is taken any more: it has ended, or failed.
    ended: bool,
    error: Option<Error>,
    /// Away while somebody writes.
    writer: Option<Writer>,
    written_bytes: u64,
}

#[derive(Debug)]
struct Frame {
    first: u64,
    items: u32,
    payload: Vec<u8>,
}

#[derive(Debug)]
struct Writer {
    vfs: Arc<dyn Vfs>,
    file: Arc<dyn File>,
    path: PathBuf,
    seed: LogSeed,
    offset: u64,
    bytes: Vec<u8>,
}

/// A keyspace by number and name.
pub(crate) type Named<'a> = (u32, &'a str);

impl Recorder {
    /// Makes the file of a trace.
    pub(crate) fn create(
        vfs: Arc<dyn Vfs>,
        env: Env,
        path: &Path,
        options: TraceOptions,
        recording: &Arc<Recording>,
    ) -> Result<Arc<Recorder>> {
        let begun_us = env.database_us();
        let header = TraceHeader {
            keys_hashed: options.hash_keys,
            values_kept: options.keep_values,
            uid: env.random_u64(),
            begun_us,
        };
        let file = vfs.create(path).map_err(|error| Error::io("create", path, error))?;
        let bytes = header.encode();
        file.append(&bytes).map_err(|error| Error::io("write", path, error))?;
        let offset = len_u64(bytes.len());
        let writer = Writer {
            vfs,
            file,
            path: path.to_owned(),
            seed: header.seed(),
            offset,
            bytes: Vec::new(),
        };
        let state = State {
            filling: Vec::new(),
            items: 0,
            ready: None,
            number_next: 1,
            last_us: env.now_us(),
            named: BTreeSet::new(),
            operations: 0,
            lost: 0,
            lost_here: 0,
            stopping: false,
            ended: false,
            error: None,
            writer: Some(writer),
            written_bytes: offset,
        };
        Ok(Arc::new(Recorder {
            options,
            salt: env.random_u64(),
            env,
            state: Mutex::new(state),
            changed: Signal::new(),
            recording: Arc::downgrade(recording),
        }))
    }

    /// Whether operations write what they fill themselves.
    pub(crate) fn writes_inline(&self) -> bool {
        self.env.background() == Background::Inline
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    pub(crate) fn error(&self) -> Option<Error> {
        self.state.lock().error.clone()
    }

    pub(crate) fn summary(&self) -> TraceSummary {
        let state = self.state.lock();
        let State { operations, lost, written_bytes: bytes, .. } = *state;
        TraceSummary { operations, lost, bytes }
    }

    /// Notes a commit: the payload that the log got, and the keyspaces it touches.
    pub(crate) fn committed<'a>(
        &self,
        payload: &[u8],
        count: u32,
        synced: bool,
        keyspaces: impl Iterator<Item = Named<'a>>,
    ) {
        let mut bytes = ITEM_BYTES;
        let mut operations = Vec::new();
        // The payload was made by the engine a moment ago.
        for operation in BatchOperations::new(payload).flatten() {
            bytes += ITEM_BYTES + operation.key.len() + HASHED_BYTES_MIN;
            bytes += match &operation.action {
                BatchAction::Entry { value, .. } if self.options.keep_values => value.len(),
                BatchAction::Entry { .. } => 0,
                BatchAction::DeleteRange { end } => end.as_ref().map_or(1, |end| end.len() + 1),
            };
            operations.push(operation);
        }
        self.note(keyspaces, u64::from(count), bytes, &mut |sink| {
            if count > 1 {
                sink.push(synced, TraceEvent::Batch { operations: u64::from(count) });
            }
            for operation in &operations {
                let keyspace = operation.keyspace;
                let key = self.key(&payload[operation.key.clone()]);
                let key: &[u8] = &key;
                let what = match &operation.action {
                    BatchAction::Entry { kind, value } => {
                        let content = &payload[value.clone()];
                        let value =
                            TraceValue { bytes: len_u64(content.len()), content: Some(content) };
                        match kind {
                            EntryKind::Delete => TraceEvent::Delete { keyspace, key },
                            EntryKind::Merge => TraceEvent::Merge { keyspace, key, operand: value },
                            EntryKind::Put | EntryKind::ValuePointer => {
                                TraceEvent::Put { keyspace, key, value }
                            }
                        }
                    }
                    BatchAction::DeleteRange { end } => {
                        let end = end.as_ref().map(|end| self.end(&payload[end.clone()], key));
                        let end = end.as_deref();
                        sink.push(synced, TraceEvent::DeleteRange { keyspace, start: key, end });
                        continue;
                    }
                };
                sink.push(synced, what);
            }
        });
    }

    /// Notes a lookup and the bytes of the value that it found.
    pub(crate) fn got(&self, keyspace: Named<'_>, key: &[u8], found: Option<usize>) {
        let key = self.key(key);
        let bytes = ITEM_BYTES + key.len();
        self.note(std::iter::once(keyspace), 1, bytes, &mut |sink| {
            let (keyspace, found) = (keyspace.0, found.map(len_u64));
            sink.push(false, TraceEvent::Get { keyspace, key: &key, found });
        });
    }

    /// Notes entries that were read in order.
    pub(crate) fn scanned(
        &self,
        keyspace: Named<'_>,
        backward: bool,
        start: Option<&[u8]>,
        entries: u64,
    ) {
        let start = start.map(|start| self.key(start));
        let bytes = ITEM_BYTES + start.as_ref().map_or(0, |start| start.len());
        self.note(std::iter::once(keyspace), 1, bytes, &mut |sink| {
            let (keyspace, start) = (keyspace.0, start.as_deref());
            sink.push(false, TraceEvent::Scan { keyspace, backward, start, entries });
        });
    }

    /// A key as it is recorded.
    fn key<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        if !self.options.hash_keys {
            return Cow::Borrowed(key);
        }
        let wanted = key.len().max(HASHED_BYTES_MIN);
        let hash = xxh3_128_with_seed(key, self.salt).to_le_bytes();
        Cow::Owned(hash.into_iter().cycle().take(wanted).collect())
    }

    /// The end of a range delete as it is recorded. Hashes have no order that would make a range of
    /// two of them, so the range is that of its first key alone.
    fn end<'a>(&self, end: &'a [u8], start: &[u8]) -> Cow<'a, [u8]> {
        if self.options.hash_keys { Cow::Owned([start, &[0]].concat()) } else { Cow::Borrowed(end) }
    }

    /// Takes items in that take so many bytes at most, or counts their operations as lost.
    fn note<'a>(
        &self,
        keyspaces: impl Iterator<Item = Named<'a>>,
        operations: u64,
        bytes: usize,
        items: &mut dyn FnMut(&mut Sink<'_>),
    ) {
        let now_us = self.env.now_us();
        let (awake, due) = {
            let mut state = self.state.lock();
            if state.ended || state.stopping {
                return;
            }
            let full = len_u64(state.filling.len() + bytes) > self.options.buffer_bytes;
            if full {
                state.lost += operations;
                state.lost_here += operations;
                return;
            }
            let was_empty = state.filling.is_empty();
            let after_us = now_us.saturating_sub(state.last_us);
            state.last_us = state.last_us.max(now_us);
            let kept = self.options.keep_values;
            let mut sink = Sink { state: &mut state, after_us, kept };
            let lost = std::mem::take(&mut sink.state.lost_here);
            if lost > 0 {
                sink.push(false, TraceEvent::Lost { operations: lost });
            }
            for (keyspace, name) in keyspaces {
                if sink.state.named.insert(keyspace) {
                    sink.push(false, TraceEvent::Keyspace { keyspace, name });
                }
            }
            items(&mut sink);
            state.operations += operations;
            let due = state.filling.len() >= FRAME_BYTES && state.hand_over();
            (was_empty, due)
        };
        if self.writes_inline() {
            if due {
                self.write_ready();
            }
        } else if due || awake {
            self.changed.notify();
        }
    }

    /// The thread of the trace.
    pub(crate) fn run(&self) {
        loop {
            let wait = |deadline_us, there: &dyn Fn(&State) -> bool| {
                self.env.wait(WaitCause::Work, &self.changed, deadline_us, &mut || {
                    let state = self.state.lock();
                    state.stopping || state.ended || state.ready.is_some() || there(&state)
                })
            };
            wait(None, &|state| !state.filling.is_empty());
            wait(Some(self.env.now_us().saturating_add(FLUSH_US)), &|_| false);
            let stopping = {
                let mut state = self.state.lock();
                if state.ended {
                    return;
                }
                state.hand_over();
                state.stopping
            };
            self.write_ready();
            if stopping {
                self.write_end();
                return;
            }
        }
    }

    /// Has the rest written, and takes nothing more.
    pub(crate) fn stop(&self) {
        let first = {
            let mut state = self.state.lock();
            !std::mem::replace(&mut state.stopping, true)
        };
        self.changed.notify();
        if first && self.writes_inline() {
            self.state.lock().hand_over();
            self.write_ready();
            self.write_end();
        }
    }

    /// Writes the frame that is handed over, if there is one and nobody else is at it.
    fn write_ready(&self) {
        self.with_writer(|writer, frame| match frame {
            Some(frame) => writer.append(&frame),
            None => Ok(()),
        });
    }

    /// Writes what is left and the end, and syncs.
    fn write_end(&self) {
        {
            let mut state = self.state.lock();
            // What came between the last frame and the stop is in the buffer still.
            let operations = state.operations;
            let kept = self.options.keep_values;
            let mut sink = Sink { state: &mut state, after_us: 0, kept };
            let lost = std::mem::take(&mut sink.state.lost_here);
            if lost > 0 {
                sink.push(false, TraceEvent::Lost { operations: lost });
            }
            sink.push(false, TraceEvent::End { operations });
            state.hand_over();
        }
        self.with_writer(|writer, frame| {
            if let Some(frame) = frame {
                writer.append(&frame)?;
            }
            writer.sync()
        });
        self.state.lock().ended = true;
    }

    /// Lets somebody write; no lock is held meanwhile.
    fn with_writer(&self, write: impl FnOnce(&mut Writer, Option<Frame>) -> Result<()>) {
        let taken = {
            let mut state = self.state.lock();
            state.writer.take().map(|writer| (writer, state.ready.take()))
        };
        let Some((mut writer, frame)) = taken else { return };
        let written = write(&mut writer, frame);
        let failed = {
            let mut state = self.state.lock();
            state.written_bytes = writer.offset;
            let failed = written.is_err();
            match written {
                Ok(()) => state.writer = Some(writer),
                Err(error) => {
                    state.error.get_or_insert(error);
                    state.ended = true;
                    state.filling = Vec::new();
                    state.ready = None;
                }
            }
            failed
        };
        if failed && let Some(recording) = self.recording.upgrade() {
            recording.end(self);
        }
    }
}

impl State {
    /// Hands the buffer over, unless it is empty or the one before it still waits.
    fn hand_over(&mut self) -> bool {
        if self.ready.is_some() || self.filling.is_empty() {
            return self.ready.is_some();
        }
        let payload = std::mem::take(&mut self.filling);
        let items = std::mem::take(&mut self.items);
        self.ready = Some(Frame { first: self.number_next - u64::from(items), items, payload });
        true
    }
}

/// Where the items of one operation go.
struct Sink<'a> {
    state: &'a mut State,
    /// Of the first item.
    after_us: u64,
    kept: bool,
}

impl Sink<'_> {
    fn push(&mut self, synced: bool, what: TraceEvent<'_>) {
        let after_us = std::mem::take(&mut self.after_us);
        TraceItem { after_us, synced, event: what }.encode(self.kept, &mut self.state.filling);
        self.state.items += 1;
        self.state.number_next += 1;
    }
}

impl Writer {
    fn append(&mut self, frame: &Frame) -> Result<()> {
        self.bytes.clear();
        let place = (self.seed, self.offset);
        let numbers = (frame.first, frame.items);
        let mark = SyncMark::default();
        RecordHeader::encode_record(&mut self.bytes, place, numbers, mark, &frame.payload)
            .map_err(|what| Error::malformed(what, &self.path, self.offset))?;
        let failed = |error| Error::io("write", &self.path, error);
        self.file.append(&self.bytes).map_err(failed)?;
        self.offset += len_u64(self.bytes.len());
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|error| Error::io("sync", &self.path, error))?;
        let Some(parent) = self.path.parent() else { return Ok(()) };
        // A path of one part has an empty parent, which stands for the directory of the process.
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        self.vfs.sync_dir(parent).map_err(|error| Error::io("sync", parent, error))
    }
}

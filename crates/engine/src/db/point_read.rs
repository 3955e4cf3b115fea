//! Point reads of the newest value of a key, or of its value at a snapshot.

use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;

use crate::db::inner::DbInner;
use crate::db::write_back::{CombinedGet, write_back};
use crate::error::{Error, Result};
use crate::lookup::point::{self, CombinedOperands, LookupLimits, ReadScope, ValueOrPointer};
use crate::metrics::TimedOperation;
use crate::options::read::ReadOptions;
use crate::table::ReadDeadline;
use crate::tree::Tree;
use crate::tree::snapshots::{ReadPoint, SnapshotGuard};
use crate::tree::super_version::SuperVersion;
use crate::workload_trace::TraceRecorder;

/// State of a key before an update.
#[derive(Debug)]
pub(crate) struct ReadToUpdate {
    /// Sequence number for the guard of the update.
    pub(crate) guard_seq: SeqNo,
    pub(crate) value: Option<Slice>,
    /// Expiry time of the value in microseconds. `None` if the value does not expire.
    pub(crate) expiry_us: Option<u64>,
}

/// Result of a lookup that found its key.
trait LookupValue {
    /// Returns the size of the value in bytes.
    fn value_bytes(&self) -> u64;

    /// Returns the value if the lookup has read it. A lookup that combined operands has always read the value.
    fn value(&self) -> Option<&Slice>;
}

impl LookupValue for Slice {
    #[inline]
    fn value_bytes(&self) -> u64 {
        len_u64(self.len())
    }

    #[inline]
    fn value(&self) -> Option<&Slice> {
        Some(self)
    }
}

impl LookupValue for ValueOrPointer {
    fn value_bytes(&self) -> u64 {
        match self {
            ValueOrPointer::Value(value) => len_u64(value.len()),
            ValueOrPointer::Pointer(pointer) => pointer.value_bytes,
        }
    }

    fn value(&self) -> Option<&Slice> {
        match self {
            ValueOrPointer::Value(value) => Some(value),
            ValueOrPointer::Pointer(_) => None,
        }
    }
}

/// Returns the value of a key at a snapshot, or the newest value. Measures the latency of sampled lookups, except
/// failed ones.
pub(crate) fn get(
    inner: &DbInner,
    tree: &Tree,
    key: &[u8],
    snapshot: Option<ReadPoint>,
    options: &ReadOptions,
) -> Result<Option<Slice>> {
    look_up(inner, tree, key, snapshot, options, |view, read_point, limits| {
        point::get_with_combined_operands(tree, view, key, read_point, limits)
    })
}

/// Like [`get`], but returns only whether the key has a value. A separated value is not read if the key
/// has no operands. The lookup counts as a get.
pub(crate) fn contains_key(
    inner: &DbInner,
    tree: &Tree,
    key: &[u8],
    snapshot: Option<ReadPoint>,
    options: &ReadOptions,
) -> Result<bool> {
    let found = look_up(inner, tree, key, snapshot, options, |view, read_point, limits| {
        point::find_value(tree, view, key, read_point, limits)
    });
    found.map(|value| value.is_some())
}

/// Looks up a key with `find`, and counts, records and measures the lookup.
#[inline]
fn look_up<V: LookupValue>(
    inner: &DbInner,
    tree: &Tree,
    key: &[u8],
    snapshot: Option<ReadPoint>,
    options: &ReadOptions,
    find: impl FnOnce(
        &SuperVersion,
        ReadPoint,
        LookupLimits,
    ) -> Result<(Option<V>, Option<CombinedOperands>)>,
) -> Result<Option<V>> {
    let latencies = &inner.state.latencies;
    let start = latencies.start(&inner.state.env);
    let reads = ReadScope::from(options);
    inner.check_open()?;
    if reads != ReadScope::Memory {
        inner.begin_operation();
    }
    let (view, read_point) = match snapshot {
        Some(snapshot) => (tree.super_version(), snapshot),
        None => inner.state.pin_newest(tree, Tree::super_version),
    };
    if snapshot.is_none() {
        tree.check_live()?;
    }
    let deadline = options.deadline.map(|limit| ReadDeadline::new(&inner.state.env, limit));
    let read = find(&view, read_point, (reads, deadline));
    if reads == ReadScope::Memory {
        if matches!(read, Err(Error::WouldBlock)) {
            // Not counted. If the caller repeats the lookup with I/O, that lookup is counted.
            return read.map(|(value, _)| value);
        }
        inner.begin_operation();
    }
    let (value, combined) = read.inspect_err(|_| tree.counters.count_failed_gets(1))?;
    let value_bytes = value.as_ref().map(V::value_bytes);
    tree.counters.count_get(key, value_bytes);
    record_get(inner, tree, key, value_bytes);
    if let Some(operands) = combined
        && snapshot.is_none()
    {
        let (value, seq) = (value.as_ref().and_then(V::value), read_point.seq);
        write_back(&inner.state, tree, &view, CombinedGet { key, value, operands, seq });
    }
    latencies.finish(&inner.state.env, TimedOperation::Get, start);
    Ok(value)
}

/// Reads the newest state of a key before an update. A keyspace that was dropped after `snapshot` can still be read, and
/// has the state before the drop.
///
/// # Errors
/// The errors of [`Keyspace::get`](crate::Keyspace::get).
pub(crate) fn read_to_update(
    inner: &DbInner,
    tree: &Tree,
    key: &[u8],
    snapshot: Option<&SnapshotGuard>,
    reads: ReadScope,
) -> Result<ReadToUpdate> {
    let (guard_seq, read) = {
        // The view is released before the closure of the caller runs, because the closure may take long.
        let (view, read_point) = inner.state.pin_newest(tree, Tree::pin_super_version);
        match snapshot {
            Some(snapshot) => tree.check_visible_to(snapshot)?,
            None => tree.check_live()?,
        }
        (read_point.seq, point::get_with_expiry(tree, &view, key, read_point, reads))
    };
    let (value, expiry_us) = read.inspect_err(|error| {
        if !matches!(error, Error::WouldBlock) {
            tree.counters.count_failed_gets(1);
        }
    })?;
    let value_bytes = value.as_ref().map(Slice::value_bytes);
    tree.counters.count_get(key, value_bytes);
    record_get(inner, tree, key, value_bytes);
    Ok(ReadToUpdate { guard_seq, value, expiry_us })
}

/// Records a successful lookup if a recording is active. `value_bytes` is the size of the found value.
#[inline]
pub(crate) fn record_get(inner: &DbInner, tree: &Tree, key: &[u8], value_bytes: Option<u64>) {
    if let Some(recorder) = inner.recording.recorder() {
        record_get_in(&recorder, tree, key, value_bytes);
    }
}

#[cold]
fn record_get_in(recorder: &TraceRecorder, tree: &Tree, key: &[u8], value_bytes: Option<u64>) {
    let name = tree.shared_name().load();
    recorder.record_get((tree.id, &name), key, value_bytes);
}

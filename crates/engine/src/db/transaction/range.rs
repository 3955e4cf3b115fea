//! Iterator over a range of keys in a transaction.

use bytes::Bytes;
use lsmx_base::range_tombstone::successor;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Mutex;

use crate::db::transaction::read_set::{KeySpan, SpanNumber};
use crate::db::transaction::state::TransactionState;
use crate::error::Result;
use crate::iter::range::Range;

/// Iterates over the entries of a range that a transaction sees, in key order, from both ends.
///
/// It shows the writes that the transaction made before the iterator was created. Errors are those of [`Range`]. The
/// commit checks the part of the range that was read. This part extends from an end of the range to the last entry that
/// was returned from this end. If the iterator has returned `None` or an error, the part is the whole range.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
/// use lsmx::Durability;
///
/// let jobs = db.default_keyspace();
/// jobs.put("job/1", "waiting")?;
/// let tx = db.transaction();
/// // Only a write up to `job/1` conflicts, because no later key is read.
/// if let Some((key, _)) = tx.prefix(&jobs, "job/").next().transpose()? {
///     tx.put(&jobs, key, "running")?;
/// }
/// jobs.put("job/2", "waiting")?;
/// tx.commit(Durability::Buffered)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TransactionRange<'tx> {
    range: Range,
    extent: ReadExtent<'tx>,
}

impl<'tx> TransactionRange<'tx> {
    pub(super) fn new((range, extent): (Range, ReadExtent<'tx>)) -> TransactionRange<'tx> {
        TransactionRange { range, extent }
    }
}

impl Iterator for TransactionRange<'_> {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.range.next();
        self.extent.record(entry.as_ref(), false);
        entry
    }
}

impl DoubleEndedIterator for TransactionRange<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let entry = self.range.next_back();
        self.extent.record(entry.as_ref(), true);
        entry
    }
}

/// The part of a range that was read. Dropping it narrows the range in the read set of the transaction to this part.
#[derive(Debug, Default)]
pub(crate) struct ReadExtent<'tx> {
    /// The transaction and the number of the range in its read set. `None` if the range only returns an error.
    recorded: Option<(&'tx Mutex<TransactionState>, SpanNumber)>,
    span: KeySpan,
    /// Last keys that were returned at the front and at the back.
    last_keys: [Option<Slice>; 2],
    /// Whether the whole range counts as read.
    is_complete: bool,
}

impl<'tx> ReadExtent<'tx> {
    pub(super) fn new(
        state: &'tx Mutex<TransactionState>,
        number: SpanNumber,
        span: KeySpan,
    ) -> ReadExtent<'tx> {
        let recorded = Some((state, number));
        ReadExtent { recorded, span, last_keys: [None, None], is_complete: false }
    }

    /// Records a returned entry, an error, or the end of the range.
    pub(crate) fn record(&mut self, entry: Option<&Result<(Slice, Slice)>>, backward: bool) {
        match entry {
            Some(Ok((key, _))) => self.last_keys[usize::from(backward)] = Some(key.clone()),
            Some(Err(_)) | None => self.is_complete = true,
        }
    }
}

impl Drop for ReadExtent<'_> {
    fn drop(&mut self) {
        if let Some((state, number)) = self.recorded
            && !self.is_complete
        {
            let (start, end) = std::mem::take(&mut self.span);
            let [front, back] = &self.last_keys;
            let front_end = front.as_ref().map_or_else(|| start.clone(), |key| successor(key));
            let back = match back {
                Some(key) => (Bytes::copy_from_slice(key), end),
                None => (start.clone(), Some(start.clone())),
            };
            state.lock().narrow_range(number, (start, Some(front_end)), back);
        }
    }
}

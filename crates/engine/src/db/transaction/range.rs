//! Iterator over a range of keys in a transaction.

use lsmx_base::range_tombstone::successor;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Mutex;

use crate::db::transaction::read_set::{KeySpan, ReadSet, SpanNumber};
use crate::error::Result;
use crate::iter::range::Range;

/// Iterates over the entries of a range that a transaction sees, in key order, from both ends.
///
/// It shows the own writes before its creation. Errors are those of [`Range`]. When it is dropped, the part of the range that
/// was read is part of the reads of the transaction: from an end of the range to the last entry returned there, or the
/// whole range if its end was reached or an error occurred.
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

/// The part of a range that was read. The drop passes it to the transaction.
#[derive(Debug)]
struct ReadExtent<'tx> {
    /// The read set of the transaction and the number of the range. `None` if the range only returns an error.
    recorded: Option<(&'tx Mutex<ReadSet>, SpanNumber)>,
    span: KeySpan,
    /// Last keys that were returned at the front and at the back.
    last_keys: [Option<Slice>; 2],
    /// Whether the whole range counts as read.
    is_complete: bool,
}

impl<'tx> TransactionRange<'tx> {
    pub(super) fn new(
        range: Range,
        span: KeySpan,
        recorded: Option<(&'tx Mutex<ReadSet>, SpanNumber)>,
    ) -> TransactionRange<'tx> {
        let extent = ReadExtent { recorded, span, last_keys: [None, None], is_complete: false };
        TransactionRange { range, extent }
    }
}

impl ReadExtent<'_> {
    fn record(&mut self, entry: Option<&Result<(Slice, Slice)>>, end: usize) {
        match entry {
            Some(Ok((key, _))) => self.last_keys[end] = Some(key.clone()),
            Some(Err(_)) | None => self.is_complete = true,
        }
    }
}

impl Drop for ReadExtent<'_> {
    fn drop(&mut self) {
        if let Some((reads, number)) = self.recorded
            && !self.is_complete
        {
            let (start, end) = self.span.clone();
            let [front, back] = &self.last_keys;
            let front_end = front.as_ref().map_or_else(|| start.clone(), |key| successor(key));
            let back = match back {
                Some(key) => (key.to_vec().into(), end),
                None => (start.clone(), Some(start.clone())),
            };
            reads.lock().narrow_span(number, (start, Some(front_end)), back);
        }
    }
}

impl Iterator for TransactionRange<'_> {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.range.next();
        self.extent.record(entry.as_ref(), 0);
        entry
    }
}

impl DoubleEndedIterator for TransactionRange<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let entry = self.range.next_back();
        self.extent.record(entry.as_ref(), 1);
        entry
    }
}

//! Ranges of keys for users: an iterator with two ends over everything visible at one number.

use std::fmt;
use std::ops::Bound;

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cursor::Cursor;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::iter::db_iter::VisibleCursor;
use crate::iter::merging_iter::MergingCursor;
use crate::iter::prefetch::{Entry, ReadAhead, Walk};
use crate::iter::range_tombstone_filter::Deleted;
use crate::iter::read_purpose;
use crate::iter::run_iter::RunCursor;
use crate::iter::value_resolver::PointedValues;
use crate::lookup::point::Reads;
use crate::options::read::{ReadOptions, ReadTier};
use crate::tree::Tree;
use crate::tree::merge_resolver::Merging;
use crate::tree::snapshots::Pinned;
use crate::tree::version::SuperVersion;
use crate::workload_trace::ScanTrace;

/// Iterates over the entries of a range in key order, from both ends.
///
/// It sees the keyspace as it was when the iterator was made, and holds those memtables and files
/// while it lives. After an error every further call gives that error again, without end: stop at
/// the first one, as `?` and `collect::<Result<_, _>>` do. One error is different, because it says nothing
/// about the others: [`Error::MergeFailed`] comes in the place of an entry whose operands do not fold, and
/// names its key; the next call goes on with the next entry.
pub struct Range {
    merging: Arc<Merging>,
    snapshot: SeqNo,
    /// Kept registered while the iterator lives, if it belongs to a snapshot.
    _pinned: Option<Arc<Pinned>>,
    lower: Bound<Bytes>,
    upper: Bound<Bytes>,
    front: Option<Walk>,
    back: Option<Walk>,
    failed: Option<Error>,
    /// Entries that are still to be given, where there is a limit.
    left: Option<u64>,
    /// Entries that will be asked for next at one end, where that is known.
    expected: Option<u64>,
    /// One of the ends has met the other, or a bound.
    exhausted: bool,
    options: ReadOptions,
    /// Has values read ahead, if they may be.
    env: Option<Env>,
    /// Key of what each end gave last, where it may have to find its place again.
    given: [Option<Slice>; 2],
    /// Where it is noted how far this goes, while a trace is recorded.
    trace: Option<Box<ScanTrace>>,
    /// Goes after the cursors: what it holds is then freed by others, and not by the last of them.
    view: Arc<SuperVersion>,
}

impl Range {
    /// What is visible of `view` at `snapshot` between two bounds.
    pub(crate) fn new(
        view: Arc<SuperVersion>,
        merging: Arc<Merging>,
        snapshot: SeqNo,
        pinned: Option<Arc<Pinned>>,
        lower: Bound<Bytes>,
        upper: Bound<Bytes>,
    ) -> Range {
        let exhausted = is_empty(&lower, &upper);
        Range {
            view,
            merging,
            snapshot,
            _pinned: pinned,
            lower,
            upper,
            front: None,
            back: None,
            failed: None,
            left: None,
            expected: None,
            exhausted,
            options: ReadOptions::default(),
            env: None,
            given: [None, None],
            trace: None,
        }
    }

    /// The same, which reads the values of several entries together where they lie in the value log.
    pub(crate) fn reading_ahead(mut self, env: &Env) -> Range {
        self.env = Some(env.clone());
        self
    }

    /// The same, whose entries are counted for a trace.
    pub(crate) fn recorded(mut self, trace: Box<ScanTrace>) -> Range {
        self.trace = Some(trace);
        self
    }

    /// The same, which gives at most so many more entries, at both ends together; one whose operands do
    /// not fold is an entry, too. It does not read ahead past them, nor in small steps up to there: where
    /// values lie in the value log this is quicker than `take`.
    #[must_use]
    pub fn limit(mut self, entries: u64) -> Range {
        self.left = Some(self.left.map_or(entries, |left| left.min(entries)));
        self
    }

    /// Sets how the entries that follow are read. The range may already have returned entries; it continues
    /// after them, with the same view of the data.
    ///
    /// With [`ReadTier::Memory`](crate::ReadTier::Memory) the range returns [`Error::WouldBlock`] in place of an
    /// entry if it needs a file, or if it would have to skip many deleted entries. The next call tries the same
    /// entry again.
    #[must_use]
    pub fn options(mut self, options: &ReadOptions) -> Range {
        self.set_options(options);
        self
    }

    pub(crate) fn set_options(&mut self, options: &ReadOptions) {
        if self.options != *options {
            self.options = *options;
            // The cursors were opened with the previous options.
            self.leave_cursors();
        }
    }

    /// Says that so many entries will be asked for next, all at one end.
    #[cfg(feature = "tokio")]
    pub(crate) fn expect(&mut self, entries: u64) {
        self.expected = Some(entries);
    }

    /// Entries that will be asked for at least, unless there are fewer; at most, where there is a limit.
    fn known(&self) -> Option<u64> {
        self.expected.filter(|entries| *entries > 0).or(self.left)
    }

    /// Whether whoever lets it go may have to free memtables and close tables: nobody else holds its
    /// view, and no background thread does that.
    #[cfg(feature = "tokio")]
    pub(crate) fn frees(&self) -> bool {
        Arc::strong_count(&self.view) == 1 && !self.view.version.deferred_drop().is_running()
    }

    /// Lets the cursors go and puts the bounds where they stand.
    fn leave_cursors(&mut self) {
        (self.front, self.back) = (None, None);
        for (bound, given) in [&mut self.lower, &mut self.upper].into_iter().zip(&mut self.given) {
            if let Some(key) = given.take() {
                *bound = Bound::Excluded(Bytes::copy_from_slice(&key));
            }
        }
        self.exhausted |= is_empty(&self.lower, &self.upper);
    }

    /// Tells the trace, if there is one, that an entry is asked for at one end.
    #[inline]
    fn note_asked(&mut self, backward: bool) {
        if let Some(trace) = &mut self.trace {
            let bound = if backward { &self.upper } else { &self.lower };
            let start = match bound {
                Bound::Included(key) | Bound::Excluded(key) => Some(key.as_ref()),
                Bound::Unbounded => None,
            };
            trace.asked(backward, start);
        }
    }

    #[inline]
    fn note_given(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.gave();
        }
    }

    /// A range that answers nothing but this error.
    pub(crate) fn failed(error: Error, tree: &Tree) -> Range {
        let (view, merging) = (tree.pin(), Arc::clone(&tree.merging));
        let unbounded = Bound::Unbounded;
        let mut range = Range::new(view, merging, SeqNo::ZERO, None, unbounded.clone(), unbounded);
        range.failed = Some(error);
        range
    }

    /// What range deletes hide of the view between the bounds. Those of memtables that come later than the
    /// snapshot do not count.
    fn deleted(&self) -> Result<Option<Deleted>> {
        let mut sources: Vec<_> =
            self.view.memtables().flat_map(|at| at.tombstone_indexes()).collect();
        let bounds = [&self.lower, &self.upper].map(|bound| bound.as_ref().map(Bytes::as_ref));
        sources.extend(match self.options.tier {
            ReadTier::Storage => self.view.version.spans_between(bounds[0], bounds[1])?,
            ReadTier::Memory => self.view.version.gathered_spans()?,
        });
        if sources.is_empty() {
            return Ok(None);
        }
        Ok(Deleted::for_reader(sources.into(), self.snapshot))
    }

    fn cursor(&self) -> Result<VisibleCursor<MergingCursor>> {
        let deleted = self.deleted()?;
        let mut sources: Vec<Box<dyn Cursor>> = Vec::new();
        for memtable in self.view.memtables() {
            if !memtable.is_empty() {
                sources.push(Box::new(memtable.cursor()));
            }
        }
        if let Some(beside) = &self.view.operands {
            let view = Arc::clone(&beside.view);
            sources.push(view.cursor(self.snapshot, Reads::from(&self.options).into()));
        }
        for run in self.view.version.runs() {
            // A scan takes what is cached, and does not wash it out.
            let tables = Arc::clone(run.tables());
            let fill = read_purpose(&self.options);
            sources.push(Box::new(RunCursor::new(tables, fill, deleted.clone())));
        }
        let merging = Arc::clone(&self.merging);
        let inner = MergingCursor::new(sources);
        let values = PointedValues::new(self.view.version.blobs(), &self.options);
        let cursor = VisibleCursor::new(inner, self.snapshot, deleted, merging, values);
        Ok(if self.options.tier == ReadTier::Memory { cursor.impatient() } else { cursor })
    }

    /// How values are read ahead, if they may be.
    fn reads_ahead(&self) -> Option<ReadAhead> {
        let env = self.env.clone().filter(|_| self.options.tier == ReadTier::Storage)?;
        let blobs = self.view.version.blobs();
        (!blobs.is_empty()).then(|| ReadAhead { env, blobs: Arc::clone(blobs) })
    }

    /// The next entry at the front.
    fn next_front(&mut self) -> Result<Option<Entry>> {
        if self.exhausted || self.left == Some(0) {
            return Ok(None);
        }
        if self.front.is_none() {
            let mut front = self.cursor()?;
            match &self.lower {
                Bound::Unbounded => front.first()?,
                Bound::Included(key) => front.seek(key)?,
                Bound::Excluded(key) => {
                    front.seek(key)?;
                    if front.valid() && front.key() == *key {
                        front.next()?;
                    }
                }
            }
            self.front = Some(Walk::new(front, false, self.reads_ahead()));
        }
        let known = self.known();
        let (upper, back) = (&self.upper, &self.back);
        let Some(front) = &mut self.front else { return Ok(None) };
        front.next(known, |key| {
            let within = match upper {
                Bound::Unbounded => true,
                Bound::Included(upper) => key <= upper.as_ref(),
                Bound::Excluded(upper) => key < upper.as_ref(),
            };
            // The other end stands on the entry it gave last.
            within && back.as_ref().is_none_or(|back| key < back.key())
        })
    }

    /// The next entry at the back.
    fn next_at_back(&mut self) -> Result<Option<Entry>> {
        if self.exhausted || self.left == Some(0) {
            return Ok(None);
        }
        if self.back.is_none() {
            let mut back = self.cursor()?;
            match &self.upper {
                Bound::Unbounded => back.last()?,
                Bound::Excluded(key) => back.seek_before(key)?,
                Bound::Included(key) => {
                    back.seek(key)?;
                    if !(back.valid() && back.key() == *key) {
                        back.seek_before(key)?;
                    }
                }
            }
            self.back = Some(Walk::new(back, true, self.reads_ahead()));
        }
        let known = self.known();
        let (lower, front) = (&self.lower, &self.front);
        let Some(back) = &mut self.back else { return Ok(None) };
        back.next(known, |key| {
            let within = match lower {
                Bound::Unbounded => true,
                Bound::Included(lower) => key >= lower.as_ref(),
                Bound::Excluded(lower) => key > lower.as_ref(),
            };
            within && front.as_ref().is_none_or(|front| key > front.key())
        })
    }

    /// What a call gives that came to this at one end.
    #[inline]
    fn give(
        &mut self,
        came: Result<Option<Entry>>,
        backward: bool,
    ) -> Option<Result<(Slice, Slice)>> {
        match came {
            Err(error) => Some(Err(self.keep_failing(error))),
            Ok(None) => {
                self.exhausted = true;
                None
            }
            Ok(Some((key, value))) => {
                self.left = self.left.map(|left| left - 1);
                self.expected = self.expected.map(|entries| entries.saturating_sub(1));
                self.note_given();
                if self.options.tier == ReadTier::Memory {
                    self.given[usize::from(backward)] = Some(key.clone());
                }
                Some(value.map(|value| (key, value)))
            }
        }
    }

    /// Remembers an error, so that no later call goes on.
    fn keep_failing(&mut self, error: Error) -> Error {
        if matches!(error, Error::WouldBlock) {
            self.leave_cursors();
            return error;
        }
        if failpoint::is_on(Failpoint::IteratorContinuesAfterError) {
            return error;
        }
        self.front = None;
        self.back = None;
        self.failed = Some(error.clone());
        error
    }
}

impl Iterator for Range {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = &self.failed {
            return Some(Err(error.clone()));
        }
        self.note_asked(false);
        let came = self.next_front();
        self.give(came, false)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let most = self.left.and_then(|left| usize::try_from(left).ok());
        // An error comes without end.
        (0, most.filter(|_| self.failed.is_none()))
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        if let Some(error) = &self.failed {
            return Some(Err(error.clone()));
        }
        self.note_asked(true);
        let came = self.next_at_back();
        self.give(came, true)
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range")
            .field("snapshot", &self.snapshot)
            .field("lower", &self.lower)
            .field("upper", &self.upper)
            .finish_non_exhaustive()
    }
}

/// Whether the bounds leave no key between them, as those of `b..a` do.
fn is_empty(lower: &Bound<Bytes>, upper: &Bound<Bytes>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower >= upper,
    }
}

/// The smallest key after all keys with this prefix, if there is one.
pub(crate) fn after_prefix(prefix: &[u8]) -> Bound<Bytes> {
    let kept = prefix.iter().rposition(|&byte| byte != u8::MAX);
    kept.map_or(Bound::Unbounded, |last| {
        let mut after = prefix[..=last].to_vec();
        after[last] += 1;
        Bound::Excluded(Bytes::from(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(after_prefix(b"ab"), Bound::Excluded(Bytes::from_static(b"ac")));
        assert_eq!(after_prefix(b"a\xff\xff"), Bound::Excluded(Bytes::from_static(b"b")));
        assert_eq!(after_prefix(b"\xff"), Bound::Unbounded);
        assert_eq!(after_prefix(b""), Bound::Unbounded);
    }
}

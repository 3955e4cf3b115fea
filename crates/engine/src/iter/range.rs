//! Public iterator over a range of keys.

use std::fmt;
use std::ops::Bound;

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::range_tombstone::half_open_range;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::iter::db_iter::DbIter;
use crate::iter::iter_view::{AnnouncedSeek, IterView};
use crate::iter::key_bounds::{borrowed_bound, is_above, is_below, is_empty_range, key_of_bound};
use crate::iter::merging_iter::MergingCursor;
use crate::iter::prefetch::{PrefetchContext, PrefetchIter};
use crate::lookup::batch::is_device_read;
use crate::memtable::Memtable;
use crate::options::read::{ReadOptions, ReadTier};
use crate::table::ScanHints;
use crate::tree::Tree;
use crate::tree::counters::ScanCounter;
use crate::tree::snapshots::ReadPoint;
use crate::workload_trace::ScanTrace;

/// Iterates over the entries of a range in key order. Entries can be taken from both ends.
///
/// A range reads the state of the keyspace at the time of its creation. It keeps the memtables and files of this state
/// until it is dropped.
///
/// After an error, all further calls return the same error. The caller must therefore stop at the first error, as `?`
/// and `collect::<Result<_, _>>` do. There are two exceptions. [`Error::MergeFailed`] is returned in place of one entry
/// whose operands cannot be combined, and the next call returns the following entry. After [`Error::WouldBlock`], the
/// next call tries to read the same entry again.
pub struct Range {
    lower: Bound<Bytes>,
    upper: Bound<Bytes>,
    front: Option<PrefetchIter>,
    back: Option<PrefetchIter>,
    /// Error that all further calls return.
    error: Option<Error>,
    /// Number of entries that may still be returned. `None` if there is no limit.
    remaining: Option<u64>,
    /// Number of entries that the caller will take next from one end. `None` if it is unknown.
    expected_entries: Option<u64>,
    /// Whether the two ends have met or a bound has been reached.
    is_exhausted: bool,
    /// Key of the last entry that each end has returned. Set if the cursors may have to be opened again.
    last_keys: [Option<Slice>; 2],
    /// Records the scan in a workload trace.
    trace: Option<Box<ScanTrace>>,
    counter: ScanCounter,
    /// Declared last, so that it is dropped after the cursors. Its memory is freed in the background.
    view: IterView,
}

impl Range {
    /// Creates an iterator over the entries of `view` between two bounds.
    pub(crate) fn new(view: IterView, lower: Bound<Bytes>, upper: Bound<Bytes>) -> Range {
        let is_exhausted = is_empty_range(&lower, &upper);
        Range {
            counter: view.scan_counter(),
            view,
            lower,
            upper,
            front: None,
            back: None,
            error: None,
            remaining: None,
            expected_entries: None,
            is_exhausted,
            last_keys: [None, None],
            trace: None,
        }
    }

    /// Makes the range also return uncommitted writes of a transaction. `memtable` contains these writes, and they are
    /// visible up to the sequence number `last_seq`. Must be called before the first entry is taken.
    pub(crate) fn with_own_writes(self, memtable: Arc<Memtable>, last_seq: SeqNo) -> Range {
        Range { view: self.view.with_own_writes(memtable, last_seq), ..self }
    }

    /// Returns the first key of the range, and the first key after it. Must be called before the first entry is taken.
    /// `None` stands for the end of the keyspace.
    pub(crate) fn key_span(&self) -> (Bytes, Option<Bytes>) {
        half_open_range(borrowed_bound(&self.lower), borrowed_bound(&self.upper))
    }

    /// Makes the range record the returned entries in a workload trace.
    pub(crate) fn with_trace(mut self, trace: Box<ScanTrace>) -> Range {
        self.trace = Some(trace);
        self
    }

    /// Limits the number of further entries, counted for both ends together. An entry whose operands cannot be combined
    /// counts as well.
    ///
    /// The range prefetches no entries beyond the limit. If values are in the value log, a limit is faster than `take`,
    /// because the first batch of reads then has the right size.
    #[must_use]
    pub fn limit(mut self, entries: u64) -> Range {
        self.remaining = Some(self.remaining.map_or(entries, |left| left.min(entries)));
        self
    }

    /// Sets the read options for the following entries. If the range has already returned entries, it continues after
    /// them with the same state of the keyspace.
    ///
    /// With [`ReadTier::Memory`](crate::ReadTier::Memory), the range returns [`Error::WouldBlock`] in place of an entry
    /// if it must read a file or skip many deleted entries. The next call tries again to return the same entry.
    #[must_use]
    pub fn options(mut self, options: &ReadOptions) -> Range {
        self.set_options(options);
        self
    }

    pub(crate) fn set_options(&mut self, options: &ReadOptions) {
        if self.view.options() != options {
            self.record_last_keys();
            self.view.set_options(options);
            // The cursors were opened with the previous options.
            self.drop_cursors();
        }
    }

    /// Sets the number of entries that the caller will take next from one end. It determines the size of the prefetch.
    #[cfg(feature = "tokio")]
    pub(crate) fn set_expected_entries(&mut self, entries: u64) {
        self.expected_entries = Some(entries);
    }

    /// Returns the number of entries that are expected to be taken: the number that the caller has set, or else the
    /// limit.
    fn expected_count(&self) -> Option<u64> {
        self.expected_entries.filter(|entries| *entries > 0).or(self.remaining)
    }

    /// Returns whether dropping the range may free memtables and close tables on the calling thread.
    #[cfg(feature = "tokio")]
    pub(crate) fn frees_view_on_drop(&self) -> bool {
        let view = self.view.super_version();
        Arc::strong_count(view) == 1 && !view.version.deferred_drop().is_running()
    }

    /// Records the key of the last entry that each end has returned. With [`ReadTier::Memory`], each call has already
    /// recorded it.
    fn record_last_keys(&mut self) {
        if self.view.options().tier == ReadTier::Storage && !self.is_exhausted {
            // An error closes both ends. If the range is not exhausted, an open end has therefore returned an entry.
            let key = |end: &Option<PrefetchIter>| end.as_ref().map(|end| Slice::from(end.key()));
            self.last_keys = [key(&self.front), key(&self.back)];
        }
    }

    /// Drops the cursors, and moves the bounds to the last returned entries.
    fn drop_cursors(&mut self) {
        (self.front, self.back) = (None, None);
        for (bound, given) in
            [&mut self.lower, &mut self.upper].into_iter().zip(&mut self.last_keys)
        {
            if let Some(key) = given.take() {
                *bound = Bound::Excluded(Bytes::copy_from_slice(&key));
            }
        }
        self.is_exhausted |= is_empty_range(&self.lower, &self.upper);
    }

    /// Records in the workload trace that an entry was requested.
    #[inline]
    fn trace_request(&mut self, backward: bool) {
        if let Some(trace) = &mut self.trace {
            let bound = if backward { &self.upper } else { &self.lower };
            trace.record_scan_step(backward, key_of_bound(borrowed_bound(bound)));
        }
    }

    #[inline]
    fn trace_entry(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.count_entry();
        }
    }

    /// Returns a range that returns only this error.
    pub(crate) fn from_error(error: Error, tree: &Tree) -> Range {
        let view = IterView::new(
            tree.pin_super_version(),
            tree,
            ReadPoint::without_time(SeqNo::ZERO),
            None,
        );
        let mut range = Range::new(view, Bound::Unbounded, Bound::Unbounded);
        range.error = Some(error);
        range
    }

    /// Opens the cursors of all sources. If recent seeks had to wait for the device, prefetches the blocks that a seek
    /// to the bound at this end needs.
    fn open_iter(&self, backward: bool) -> Result<DbIter<MergingCursor>> {
        let version = &self.view.super_version().version;
        let announces =
            self.view.options().tier == ReadTier::Storage && version.device_waits().are_expected();
        let start = if backward { &self.upper } else { &self.lower };
        let announced = key_of_bound(start.as_ref()).filter(|_| announces);
        let announced = announced.map(|key| AnnouncedSeek { key, backward });
        self.view.open_iter((&self.lower, &self.upper), self.scan_hints(backward), announced)
    }

    /// Returns hints about the part of the range that this end will read.
    fn scan_hints(&self, backward: bool) -> ScanHints {
        let key = |bound: &Bound<Bytes>| key_of_bound(bound.as_ref()).cloned();
        ScanHints {
            entries: self.expected_count(),
            lower: if backward { key(&self.lower) } else { None },
            upper: if backward { None } else { key(&self.upper) },
            ..ScanHints::default()
        }
    }

    /// Returns the context for prefetching values. Returns `None` if the view has no values in the value log, or if
    /// files must not be read.
    ///
    /// Also returns `None` if there is a deadline, because the reads of a batch cannot be interrupted.
    fn prefetch_context(&self) -> Option<PrefetchContext> {
        let (blobs, options) = (self.view.super_version().version.blobs(), self.view.options());
        if options.tier != ReadTier::Storage || options.deadline.is_some() || blobs.is_empty() {
            return None;
        }
        Some(PrefetchContext { env: self.view.env().clone(), blobs: Arc::clone(blobs) })
    }

    /// Opens one end of the range at its first entry.
    fn open_prefetch_iter_at_end(&self, backward: bool) -> Result<PrefetchIter> {
        let start_ns = self.view.env().monotonic_ns();
        let mut iter = self.open_iter(backward)?;
        match backward {
            false => iter.seek_first_from(borrowed_bound(&self.lower))?,
            true => iter.seek_last_up_to(borrowed_bound(&self.upper))?,
        }
        let elapsed_ns = self.view.env().monotonic_ns().saturating_sub(start_ns);
        let waits = self.view.super_version().version.device_waits();
        waits.record_seek(is_device_read(self.view.env(), elapsed_ns));
        Ok(PrefetchIter::new(iter, backward, self.prefetch_context()))
    }

    /// Returns the next entry at the front.
    #[inline]
    fn next_at_front(&mut self) -> Option<Result<(Slice, Slice)>> {
        if self.is_exhausted || self.remaining == Some(0) {
            return None;
        }
        let expected = self.expected_count();
        if self.front.is_none() {
            match self.open_prefetch_iter_at_end(false) {
                Ok(iter) => self.front = Some(iter),
                Err(error) => return Some(Err(error)),
            }
        }
        let (upper, back) = (&self.upper, &self.back);
        self.front.as_mut()?.next(expected, |key| {
            // The other end is at the last entry that it has returned.
            !is_above(key, upper) && back.as_ref().is_none_or(|back| key < back.key())
        })
    }

    /// Returns the next entry at the back.
    #[inline]
    fn next_at_back(&mut self) -> Option<Result<(Slice, Slice)>> {
        if self.is_exhausted || self.remaining == Some(0) {
            return None;
        }
        let expected = self.expected_count();
        if self.back.is_none() {
            match self.open_prefetch_iter_at_end(true) {
                Ok(iter) => self.back = Some(iter),
                Err(error) => return Some(Err(error)),
            }
        }
        let (lower, front) = (&self.lower, &self.front);
        self.back.as_mut()?.next(expected, |key| {
            !is_below(key, lower) && front.as_ref().is_none_or(|front| key > front.key())
        })
    }

    /// Takes the next entry at one end.
    fn step(&mut self, backward: bool) -> Option<Result<(Slice, Slice)>> {
        if let Some(error) = &self.error {
            return Some(Err(error.clone()));
        }
        self.view.begin_call();
        self.trace_request(backward);
        self.counter.begin_step(self.view.env());
        let entry = if backward { self.next_at_back() } else { self.next_at_front() };
        match &entry {
            Some(Ok((key, value))) => {
                self.counter.count_entry(key.len() + value.len());
                self.finish_entry(backward);
            }
            Some(Err(Error::MergeFailed { .. })) => self.finish_entry(backward),
            Some(Err(Error::WouldBlock)) => {
                self.drop_cursors();
                return entry;
            }
            Some(Err(error)) => self.record_error(error),
            None => self.is_exhausted = true,
        }
        self.counter.end_step(self.view.env());
        entry
    }

    /// Records that one end has returned an entry, or the error of combining its operands.
    #[inline]
    fn finish_entry(&mut self, backward: bool) {
        self.remaining = self.remaining.map(|left| left - 1);
        self.expected_entries = self.expected_entries.map(|entries| entries.saturating_sub(1));
        self.trace_entry();
        if self.view.options().tier == ReadTier::Memory {
            let end = if backward { &self.back } else { &self.front };
            self.last_keys[usize::from(backward)] = end.as_ref().map(|end| Slice::from(end.key()));
        }
    }

    /// Stores an error, so that all further calls return it.
    #[cold]
    fn record_error(&mut self, error: &Error) {
        if !failpoint::is_on(Failpoint::IteratorContinuesAfterError) {
            (self.front, self.back) = (None, None);
            self.error = Some(error.clone());
        }
    }
}

impl Iterator for Range {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(false)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // After an error, the range returns it any number of times, so there is no upper bound.
        let remaining = self.remaining.and_then(|remaining| usize::try_from(remaining).ok());
        (0, remaining.filter(|_| self.error.is_none()))
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range")
            .field("view", &self.view)
            .field("lower", &self.lower)
            .field("upper", &self.upper)
            .finish_non_exhaustive()
    }
}

//! Streams over ranges of keys.
//!
//! 1. [`Range`] reads entries on the task as long as their blocks are in memory.
//! 2. After the first missing block it reads all further entries on the blocking pool, in batches. A batch is read
//!    when its first entry is requested.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{fmt, mem};

use ::tokio::runtime::Handle;
use ::tokio::task::coop::poll_proceed;
use ::tokio::task::{JoinHandle, spawn_blocking};
use futures_core::Stream;
use lsmx_base::coding::len_u64;
use lsmx_base::slice::Slice;

use crate::error::{Error, Result};
use crate::iter::range::Range as BlockingRange;
use crate::options::read::ReadOptions;
use crate::tokio::reads::MEMORY_ONLY;
use crate::tokio::runtime::join_error;

/// Key and value.
type Entry = (Slice, Slice);

/// Maximum number of entries of the first batch. It doubles with each batch.
const FIRST_BATCH_ENTRIES: usize = 16;
/// Maximum number of entries of any batch.
const BATCH_ENTRIES_MAX: usize = 1024;
/// Size of keys and values after which a batch ends, in bytes.
const BATCH_BYTES: usize = 128 << 10;

/// [`Stream`] over the entries of a range in key order.
///
/// It sees the keyspace as of its creation, and holds the memtables and files of that moment until it is dropped.
/// [`Range::next`] and [`Range::next_back`] can be mixed. After an error all calls return the same error, except
/// after [`Error::MergeFailed`], which replaces one entry.
pub struct Range {
    state: RangeState,
    /// Entries read ahead at the front and at the back.
    read_ahead: [VecDeque<Result<Entry>>; 2],
    next_batch_entries: usize,
    error: Option<Error>,
    /// Number of entries left until the limit.
    limit: Option<u64>,
    is_exhausted: bool,
}

enum RangeState {
    /// Reads from memory, on the task.
    InMemory(Box<BlockingRange>),
    /// Between two batches.
    Idle(Box<BlockingRange>),
    /// A batch is being read.
    Reading(JoinHandle<RangeBatch>),
    /// The blocking task panicked or was cancelled.
    Lost,
}

/// Result of a read on the blocking pool.
struct RangeBatch {
    range: Box<BlockingRange>,
    backward: bool,
    /// Entries in order. An error here concerns one entry, such as a failed merge; the range continues after it.
    entries: VecDeque<Result<Entry>>,
    /// Set at the end of the range, or after an error.
    end: Option<Result<()>>,
}

impl Range {
    pub(crate) fn new(range: BlockingRange) -> Range {
        Range {
            state: RangeState::InMemory(Box::new(range.options(&MEMORY_ONLY))),
            read_ahead: Default::default(),
            next_batch_entries: FIRST_BATCH_ENTRIES,
            error: None,
            limit: None,
            is_exhausted: false,
        }
    }

    /// Limits the number of further entries, counted at both ends together. Batches read no more entries than that.
    #[must_use]
    pub fn limit(mut self, entries: u64) -> Range {
        self.limit = Some(self.limit.map_or(entries, |limit| limit.min(entries)));
        self
    }

    /// Returns the next entry from the front. Cancel safe.
    ///
    /// # Errors
    /// See [`crate::Keyspace::get`].
    pub async fn next(&mut self) -> Option<Result<Entry>> {
        poll_fn(|task| self.poll_entry(task, false)).await
    }

    /// Returns the next entry from the back. Cancel safe.
    ///
    /// # Errors
    /// See [`crate::Keyspace::get`].
    pub async fn next_back(&mut self) -> Option<Result<Entry>> {
        poll_fn(|task| self.poll_entry(task, true)).await
    }

    /// Returns a stream over the same entries in reverse order.
    #[must_use]
    pub fn rev(self) -> Rev {
        Rev(self)
    }

    fn poll_entry(
        &mut self,
        task: &mut Context<'_>,
        backward: bool,
    ) -> Poll<Option<Result<Entry>>> {
        // Yields regularly, even if all entries are in memory.
        let budget = ready!(poll_proceed(task));
        if self.limit == Some(0) && self.error.is_none() {
            return Poll::Ready(None);
        }
        let entry = ready!(self.poll_entry_without_limit(task, backward));
        budget.made_progress();
        if matches!(entry, Some(Ok(_) | Err(Error::MergeFailed { .. }))) {
            self.limit = self.limit.map(|limit| limit.saturating_sub(1));
        }
        Poll::Ready(entry)
    }

    fn poll_entry_without_limit(
        &mut self,
        task: &mut Context<'_>,
        backward: bool,
    ) -> Poll<Option<Result<Entry>>> {
        let (this_end, other_end) = (usize::from(backward), usize::from(!backward));
        loop {
            if let Some(entry) = self.read_ahead[this_end].pop_front() {
                return Poll::Ready(Some(entry));
            }
            if let Some(error) = &self.error {
                return Poll::Ready(Some(Err(error.clone())));
            }
            if self.is_exhausted {
                // The remaining entries were read ahead at the other end.
                return Poll::Ready(self.read_ahead[other_end].pop_back());
            }
            match mem::replace(&mut self.state, RangeState::Lost) {
                RangeState::InMemory(mut range) => {
                    let next = if backward { range.next_back() } else { range.next() };
                    if let Some(Err(Error::WouldBlock)) = next {
                        self.state = RangeState::Idle(range);
                        continue;
                    }
                    self.state = RangeState::InMemory(range);
                    match next {
                        Some(Ok(_) | Err(Error::MergeFailed { .. })) => return Poll::Ready(next),
                        Some(Err(error)) => self.error = Some(error),
                        None => self.is_exhausted = true,
                    }
                }
                RangeState::Idle(range) => {
                    let limit = self.limit.map(|it| usize::try_from(it).unwrap_or(usize::MAX));
                    let entries = limit.unwrap_or(self.next_batch_entries).min(BATCH_ENTRIES_MAX);
                    self.next_batch_entries = (entries * 2).min(BATCH_ENTRIES_MAX);
                    let read = move || read_batch(range, backward, entries);
                    self.state = RangeState::Reading(spawn_blocking(read));
                }
                RangeState::Reading(mut reading) => match Pin::new(&mut reading).poll(task) {
                    Poll::Pending => {
                        self.state = RangeState::Reading(reading);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(batch)) => {
                        self.read_ahead[usize::from(batch.backward)].extend(batch.entries);
                        self.state = RangeState::Idle(batch.range);
                        match batch.end {
                            Some(Ok(())) => self.is_exhausted = true,
                            Some(Err(error)) => self.error = Some(error),
                            None => {}
                        }
                    }
                    Poll::Ready(Err(error)) => self.error = Some(join_error(error)),
                },
                // A merge operator panicked during an earlier poll.
                RangeState::Lost => self.error = Some(Error::RuntimeEnded),
            }
        }
    }
}

/// Reads the next batch at one end.
fn read_batch(mut range: Box<BlockingRange>, backward: bool, entries_max: usize) -> RangeBatch {
    range.set_options(&ReadOptions::default());
    range.set_expected_entries(len_u64(entries_max));
    let (mut entries, mut bytes, mut end) = (VecDeque::new(), 0, None);
    while end.is_none() && entries.len() < entries_max && bytes < BATCH_BYTES {
        match if backward { range.next_back() } else { range.next() } {
            Some(Ok((key, value))) => {
                bytes += key.len() + value.len();
                entries.push_back(Ok((key, value)));
            }
            Some(Err(error @ Error::MergeFailed { .. })) => entries.push_back(Err(error)),
            Some(Err(error)) => end = Some(Err(error)),
            None => end = Some(Ok(())),
        }
    }
    RangeBatch { range, backward, entries, end }
}

impl Stream for Range {
    type Item = Result<Entry>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_entry(task, false)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // After the database is closed, this may free whole memtables. The task must not do that.
        if let RangeState::InMemory(range) | RangeState::Idle(range) =
            mem::replace(&mut self.state, RangeState::Lost)
            && range.frees_view_on_drop()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn_blocking(move || drop(range));
        }
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("is_exhausted", &self.is_exhausted).finish_non_exhaustive()
    }
}

/// [`Stream`] over the entries of a range in reverse key order. [`Range::next_back`] needs no stream.
#[derive(Debug)]
pub struct Rev(Range);

impl Stream for Rev {
    type Item = Result<Entry>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_entry(task, true)
    }
}

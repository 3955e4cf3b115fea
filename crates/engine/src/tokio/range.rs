//! Ranges of keys as streams.
//!
//! 1. Entries are taken from memory, where the stream is polled, until a block is missing.
//! 2. From there on the range is read on the pool, batch by batch, each when its first entry is asked
//!    for. It stays there: a scan that has left memory once will do so again, and its place is kept.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::runtime::Handle;
use ::tokio::task::coop::poll_proceed;
use ::tokio::task::{JoinHandle, spawn_blocking};
use futures_core::Stream;
use lsmx_base::coding::len_u64;

use crate::db::Entry;
use crate::error::{Error, Result};
use crate::iter::range::Range as BlockingRange;
use crate::options::read::ReadOptions;
use crate::tokio::pool::ended_badly;
use crate::tokio::reads::MEMORY;

/// Entries of the first batch; each further one has twice as many.
const ENTRIES_FIRST: usize = 16;
/// Most entries of a batch.
const ENTRIES_MAX: usize = 1024;
/// Bytes of keys and values at which a batch ends.
const BATCH_BYTES: usize = 128 << 10;

/// The entries of a range in key order, as a [`Stream`], and from both ends by [`Range::next`] and
/// [`Range::next_back`].
///
/// It sees the keyspace as it was when it was made, and holds those memtables and files while it lives.
/// After an error every further call gives that error again, but for [`Error::MergeFailed`], which comes in
/// the place of one entry.
pub struct Range {
    place: Place,
    /// Read and not given yet, from the front on and from the back on.
    read: [VecDeque<Result<Entry>>; 2],
    entries_next: usize,
    failed: Option<Error>,
    /// Entries that are still to be given, where there is a limit.
    left: Option<u64>,
    exhausted: bool,
}

/// Where a range is.
enum Place {
    /// Here, bound to memory.
    Memory(Box<BlockingRange>),
    /// Here, on its way to the pool.
    Resting(Box<BlockingRange>),
    /// On the pool.
    Reading(JoinHandle<Batch>),
    /// Lost with a thread of the pool.
    Lost,
}

/// What a thread of the pool has read.
struct Batch {
    range: Box<BlockingRange>,
    backward: bool,
    /// Errors only those of single keys.
    entries: VecDeque<Result<Entry>>,
    /// That there is no more, or why.
    end: Option<Result<()>>,
}

impl Range {
    pub(crate) fn new(range: BlockingRange) -> Range {
        Range {
            place: Place::Memory(Box::new(range.options(&MEMORY))),
            read: Default::default(),
            entries_next: ENTRIES_FIRST,
            failed: None,
            left: None,
            exhausted: false,
        }
    }

    /// The same, which gives at most so many more entries, at both ends together. It reads no more than
    /// these, and those at once. See [`lsmx::Range::limit`](crate::Range::limit).
    #[must_use]
    pub fn limit(mut self, entries: u64) -> Range {
        self.left = Some(self.left.map_or(entries, |left| left.min(entries)));
        self
    }

    /// The next entry from the front; nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// As [`Keyspace::get`](crate::Keyspace::get).
    pub async fn next(&mut self) -> Option<Result<Entry>> {
        poll_fn(|task| self.poll_entry(task, false)).await
    }

    /// The next entry from the back; nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// As [`Keyspace::get`](crate::Keyspace::get).
    pub async fn next_back(&mut self) -> Option<Result<Entry>> {
        poll_fn(|task| self.poll_entry(task, true)).await
    }

    /// The same from back to front.
    #[must_use]
    pub fn rev(self) -> Rev {
        Rev(self)
    }

    fn poll_entry(
        &mut self,
        task: &mut Context<'_>,
        backward: bool,
    ) -> Poll<Option<Result<Entry>>> {
        // A task that finds all in memory lets others go on now and then.
        let turn = ready!(poll_proceed(task));
        if self.left == Some(0) && self.failed.is_none() {
            return Poll::Ready(None);
        }
        let entry = ready!(self.poll_without_turn(task, backward));
        turn.made_progress();
        if matches!(entry, Some(Ok(_) | Err(Error::MergeFailed { .. }))) {
            self.left = self.left.map(|left| left.saturating_sub(1));
        }
        Poll::Ready(entry)
    }

    fn poll_without_turn(
        &mut self,
        task: &mut Context<'_>,
        backward: bool,
    ) -> Poll<Option<Result<Entry>>> {
        let (own, other) = (usize::from(backward), usize::from(!backward));
        loop {
            if let Some(entry) = self.read[own].pop_front() {
                return Poll::Ready(Some(entry));
            }
            if let Some(error) = &self.failed {
                return Poll::Ready(Some(Err(error.clone())));
            }
            if self.exhausted {
                // What the other end has read ahead lies between the two.
                return Poll::Ready(self.read[other].pop_back());
            }
            match std::mem::replace(&mut self.place, Place::Lost) {
                Place::Memory(mut range) => {
                    let next = if backward { range.next_back() } else { range.next() };
                    if let Some(Err(Error::WouldBlock)) = next {
                        self.place = Place::Resting(range);
                        continue;
                    }
                    self.place = Place::Memory(range);
                    match next {
                        Some(Ok(entry)) => return Poll::Ready(Some(Ok(entry))),
                        Some(Err(error @ Error::MergeFailed { .. })) => {
                            return Poll::Ready(Some(Err(error)));
                        }
                        Some(Err(error)) => self.failed = Some(error),
                        None => self.exhausted = true,
                    }
                }
                Place::Resting(range) => {
                    let left = self.left.map(|left| usize::try_from(left).unwrap_or(ENTRIES_MAX));
                    let entries_max = left.unwrap_or(self.entries_next).min(ENTRIES_MAX);
                    self.entries_next = (entries_max * 2).min(ENTRIES_MAX);
                    let read = move || read(range, backward, entries_max);
                    self.place = Place::Reading(spawn_blocking(read));
                }
                Place::Reading(mut reading) => match Pin::new(&mut reading).poll(task) {
                    Poll::Pending => {
                        self.place = Place::Reading(reading);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(batch)) => {
                        self.read[usize::from(batch.backward)].extend(batch.entries);
                        self.place = Place::Resting(batch.range);
                        match batch.end {
                            Some(Ok(())) => self.exhausted = true,
                            Some(Err(error)) => self.failed = Some(error),
                            None => {}
                        }
                    }
                    Poll::Ready(Err(error)) => self.failed = Some(ended_badly(error)),
                },
                // In a panic of a merge operator, which goes on in whoever polls.
                Place::Lost => self.failed = Some(Error::RuntimeEnded),
            }
        }
    }
}

/// Reads a batch at one end.
fn read(mut range: Box<BlockingRange>, backward: bool, entries_max: usize) -> Batch {
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
    Batch { range, backward, entries, end }
}

impl Stream for Range {
    type Item = Result<Entry>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_entry(task, false)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // Where the database is closed nobody else frees what has become old meanwhile, a whole memtable
        // perhaps.
        if let Place::Memory(range) | Place::Resting(range) =
            std::mem::replace(&mut self.place, Place::Lost)
            && range.frees_view_on_drop()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn_blocking(move || drop(range));
        }
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("exhausted", &self.exhausted).finish_non_exhaustive()
    }
}

/// The entries of a range from the last key to the first.
#[derive(Debug)]
pub struct Rev(Range);

impl Rev {
    /// The next entry from the back; nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// As [`Keyspace::get`](crate::Keyspace::get).
    pub async fn next(&mut self) -> Option<Result<Entry>> {
        self.0.next_back().await
    }
}

impl Stream for Rev {
    type Item = Result<Entry>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_entry(task, true)
    }
}

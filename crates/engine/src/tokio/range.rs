//! Streams over ranges of keys.
//!
//! 1. As long as all blocks are in memory, [`Range`] reads entries on the task.
//! 2. After the first block that is not in memory, all further entries are read in batches on the blocking pool. A
//!    batch is read when its first entry is requested.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{fmt, mem};

use ::tokio::runtime::Handle;
use ::tokio::task::JoinHandle;
use ::tokio::task::coop::poll_proceed;
use futures_core::Stream;
use lsmx_base::coding::len_u64;
use lsmx_base::slice::Slice;

use crate::error::{Error, Result};
use crate::iter::range::Range as BlockingRange;
use crate::options::read::{ReadOptions, ReadTier};
use crate::tokio::reads::MEMORY_ONLY;
use crate::tokio::runtime::{drop_on_pool, join_error, spawn_on_pool};

/// Key and value of an entry.
type Entry = (Slice, Slice);

/// Maximum number of entries in the first batch. Each further batch may have twice as many entries.
const FIRST_BATCH_ENTRIES: usize = 16;
/// Maximum number of entries in a batch.
const BATCH_ENTRIES_MAX: usize = 1024;
/// Total size of keys and values in bytes at which a batch ends.
const BATCH_BYTES: usize = 128 << 10;

/// [`Stream`] over the entries of a range in key order.
///
/// The range reads the state of the keyspace at the time of its creation. It keeps the memtables and files of this
/// state until it is dropped. [`Range::next`] and [`Range::next_back`] can be called in any order. After an error, all
/// further calls return the same error. [`Error::MergeFailed`] is an exception: it is returned in place of one entry,
/// and the next call returns the following entry.
pub struct Range {
    state: RangeState,
    /// Entries that were read ahead at the front and at the back.
    read_ahead: [VecDeque<Result<Entry>>; 2],
    next_batch_entries: usize,
    /// Options of the reads on the blocking pool. Reads on the task use [`task_options`].
    options: ReadOptions,
    error: Option<Error>,
    /// Number of entries that may still be returned. `None` if there is no limit.
    limit: Option<u64>,
    is_exhausted: bool,
}

enum RangeState {
    /// Entries are read from memory on the task.
    InMemory(Box<BlockingRange>),
    /// No batch is being read.
    Idle(Box<BlockingRange>),
    /// A batch is being read on the blocking pool.
    Reading(JoinHandle<Option<RangeBatch>>),
    /// The range was lost, because the blocking task or a poll has panicked, or the blocking task was cancelled.
    Lost,
}

/// Result of reading a batch on the blocking pool.
struct RangeBatch {
    range: Box<BlockingRange>,
    backward: bool,
    /// Entries in order. An error concerns only one entry, such as a failed merge. The range continues after it.
    entries: VecDeque<Result<Entry>>,
    /// Set if the range has ended or an error has occurred.
    end: Option<Result<()>>,
}

impl Range {
    pub(crate) fn new(range: BlockingRange) -> Range {
        Range {
            state: RangeState::InMemory(Box::new(range.options(&MEMORY_ONLY))),
            read_ahead: Default::default(),
            next_batch_entries: FIRST_BATCH_ENTRIES,
            options: ReadOptions::default(),
            error: None,
            limit: None,
            is_exhausted: false,
        }
    }

    /// Limits the number of further entries, counted for both ends together. A batch reads no entries beyond the limit.
    #[must_use]
    pub fn limit(mut self, entries: u64) -> Range {
        self.limit = Some(self.limit.map_or(entries, |limit| limit.min(entries)));
        self
    }

    /// Sets the read options for the following entries, except for entries that a batch has already read ahead. If the
    /// range has already returned entries, it continues after them with the same state of the keyspace.
    ///
    /// With [`ReadTier::Memory`], the range returns [`Error::WouldBlock`] in place of an entry if it must read a file or
    /// skip many deleted entries. The next call tries again to return the same entry. A deadline limits the time of each
    /// entry of a batch on the blocking pool, without the wait for a thread of the pool.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("data");
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # let db = lsmx::tokio::Db::open(&path, lsmx::Options::default()).await?;
    /// use std::time::Duration;
    /// use lsmx::ReadOptions;
    ///
    /// let users = db.default_keyspace();
    /// users.put("ada", "1815").await?;
    /// let limited = ReadOptions { deadline: Some(Duration::from_secs(1)), ..ReadOptions::default() };
    /// let mut range = users.range("a".."b").options(&limited);
    /// assert_eq!(range.next().await.transpose()?.map(|(key, _)| key.to_vec()), Some(b"ada".to_vec()));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[must_use]
    pub fn options(mut self, options: &ReadOptions) -> Range {
        self.options = *options;
        if let RangeState::InMemory(range) = &mut self.state {
            range.set_options(&task_options(options));
        }
        self
    }

    /// Returns the next entry at the front. Cancel safe.
    ///
    /// # Errors
    /// Same as [`crate::Keyspace::get`].
    pub async fn next(&mut self) -> Option<Result<Entry>> {
        poll_fn(|task| self.poll_entry(task, false)).await
    }

    /// Returns the next entry at the back. Cancel safe.
    ///
    /// # Errors
    /// Same as [`crate::Keyspace::get`].
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
        // Yield regularly, even if all entries are in memory.
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
                // After an error, neither end returns an entry.
                self.read_ahead[other_end].clear();
                return Poll::Ready(Some(Err(error.clone())));
            }
            if self.is_exhausted {
                // The remaining entries were read ahead at the other end.
                return Poll::Ready(self.read_ahead[other_end].pop_back());
            }
            match mem::replace(&mut self.state, RangeState::Lost) {
                RangeState::InMemory(mut range) => {
                    let next = if backward { range.next_back() } else { range.next() };
                    let would_block = matches!(next, Some(Err(Error::WouldBlock)));
                    if would_block && self.options.tier == ReadTier::Storage {
                        self.state = RangeState::Idle(range);
                        continue;
                    }
                    self.state = RangeState::InMemory(range);
                    match next {
                        _ if would_block => return Poll::Ready(next),
                        Some(Ok(_) | Err(Error::MergeFailed { .. })) => return Poll::Ready(next),
                        Some(Err(error)) => self.error = Some(error),
                        None => self.is_exhausted = true,
                    }
                }
                RangeState::Idle(mut range) if self.options.tier == ReadTier::Memory => {
                    range.set_options(&self.options);
                    self.state = RangeState::InMemory(range);
                }
                RangeState::Idle(range) => {
                    let limit = self.limit.map(|it| usize::try_from(it).unwrap_or(usize::MAX));
                    let entries = limit.unwrap_or(self.next_batch_entries).min(BATCH_ENTRIES_MAX);
                    self.next_batch_entries = (entries * 2).min(BATCH_ENTRIES_MAX);
                    let options = self.options;
                    let read = move || read_batch(range, &options, backward, entries);
                    match spawn_on_pool(&Handle::current(), read) {
                        Ok(reading) => self.state = RangeState::Reading(reading),
                        Err(_) => self.error = Some(Error::NoThread),
                    }
                }
                RangeState::Reading(mut reading) => match Pin::new(&mut reading).poll(task) {
                    Poll::Pending => {
                        self.state = RangeState::Reading(reading);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(None)) => self.error = Some(Error::NoThread),
                    Poll::Ready(Ok(Some(batch))) => {
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
                // An earlier poll has panicked.
                RangeState::Lost => self.error = Some(Error::RuntimeEnded),
            }
        }
    }
}

/// Returns the options of reads on the task, which read from memory only.
fn task_options(options: &ReadOptions) -> ReadOptions {
    match options.tier {
        ReadTier::Memory => *options,
        ReadTier::Storage => MEMORY_ONLY,
    }
}

/// Reads the next batch at one end.
fn read_batch(
    mut range: Box<BlockingRange>,
    options: &ReadOptions,
    backward: bool,
    entries_max: usize,
) -> RangeBatch {
    range.set_options(options);
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
        // After the database is closed, dropping the range may free whole memtables, which would block the task.
        if let RangeState::InMemory(range) | RangeState::Idle(range) =
            mem::replace(&mut self.state, RangeState::Lost)
            && range.frees_view_on_drop()
        {
            drop_on_pool(range);
        }
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("is_exhausted", &self.is_exhausted).finish_non_exhaustive()
    }
}

/// [`Stream`] over the entries of a range in reverse key order. [`Range::next_back`] returns the same entries without a
/// stream.
#[derive(Debug)]
pub struct Rev(Range);

impl Stream for Rev {
    type Item = Result<Entry>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_entry(task, true)
    }
}

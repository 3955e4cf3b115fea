//! Prefetch of values from the value log for range iterators.
//!
//! Each value in the value log requires a read at a random offset of a blob file. When the iterator reaches the second
//! such value, it collects the keys of the next entries and reads their values in one batch. Each batch is larger than
//! the previous one, up to a limit. If the number of remaining entries is known, the first batch has this number of
//! entries.

use std::collections::VecDeque;

use lsmx_base::coding::len_u64;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::blob::ValuePointer;
use crate::iter::db_iter::DbIter;
use crate::iter::merging_iter::MergingCursor;
use crate::lookup::batch::{is_device_read, read_concurrently};
use crate::table::{ReadContext, ReadPurpose};
use crate::tree::blob_set::{BlobFile, BlobSet};
use crate::value_log::{BatchRead, BatchReadBuffer, ValueRequest, plan_batch_reads};

/// Number of entries in the first batch. This batch is read at the second value that is in the value log.
const BATCH_ENTRIES_FIRST: usize = 4;
/// Maximum number of entries in a batch. The first element applies if the last batch was read from the page cache, and
/// the second element if it was read from a device.
const BATCH_ENTRIES_MAX: [usize; 2] = [512, 4096];
/// Total size of keys and values in memory, in bytes, at which a batch ends. The elements have the same meaning as in
/// [`BATCH_ENTRIES_MAX`].
const BATCH_BYTES: [u64; 2] = [1 << 20, 4 << 20];

/// Context for reading values from blob files.
#[derive(Debug)]
pub(crate) struct PrefetchContext {
    pub(crate) env: Env,
    pub(crate) blobs: Arc<BlobSet>,
}

/// State of the range after the last prefetched entry.
#[derive(Debug)]
enum EndOfPrefetched {
    /// Further entries may follow.
    Entries,
    End,
    Error(Error),
}

/// Iterator over the entries of a range, from one of its ends.
pub(crate) struct PrefetchIter {
    cursor: DbIter<MergingCursor>,
    backward: bool,
    /// `None` if values must not be prefetched.
    prefetch: Option<PrefetchContext>,
    /// True if the current entry of the cursor was not returned yet.
    is_current_pending: bool,
    /// Whether a value in the value log was found.
    has_seen_pointer: bool,
    /// Number of entries in the next batch.
    batch_entries: usize,
    prefetched: VecDeque<(Slice, Result<Slice>)>,
    after_prefetched: EndOfPrefetched,
    /// Whether the last batch was read from a device.
    waited_for_device: bool,
    buffer: BatchReadBuffer,
    /// Key of the last returned entry if it was prefetched. Otherwise, the cursor is at the last returned entry.
    returned_key: Option<Slice>,
}

impl PrefetchIter {
    /// Creates an iterator whose first entry is the current entry of `cursor`.
    pub(crate) fn new(
        cursor: DbIter<MergingCursor>,
        backward: bool,
        prefetch: Option<PrefetchContext>,
    ) -> PrefetchIter {
        PrefetchIter {
            cursor,
            backward,
            prefetch,
            is_current_pending: true,
            has_seen_pointer: false,
            batch_entries: BATCH_ENTRIES_FIRST,
            prefetched: VecDeque::new(),
            after_prefetched: EndOfPrefetched::Entries,
            waited_for_device: false,
            buffer: BatchReadBuffer::default(),
            returned_key: None,
        }
    }

    /// Returns the key of the last returned entry. Must not be called before the first entry or after the end.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        self.returned_key.as_deref().unwrap_or_else(|| self.cursor.key())
    }

    /// Returns the next entry. Returns `None` if there is none, or if `is_within` returns false for its key. `expected`
    /// is the number of remaining entries, if it is known.
    ///
    /// # Errors
    /// [`Error::MergeFailed`] stands for one entry, and the next call returns the following entry. After another error,
    /// the iterator must not be used.
    #[inline]
    pub(crate) fn next(
        &mut self,
        expected: Option<u64>,
        is_within: impl Fn(&[u8]) -> bool,
    ) -> Option<Result<(Slice, Slice)>> {
        if !self.prefetched.is_empty() {
            return self.next_prefetched(is_within);
        }
        match &self.after_prefetched {
            EndOfPrefetched::Entries => {}
            EndOfPrefetched::End => return None,
            EndOfPrefetched::Error(error) => return Some(Err(error.clone())),
        }
        match self.advance(&is_within) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(error)),
        }
        let key = Slice::from(self.cursor.key());
        let is_pointer = self.prefetch.is_some() && self.cursor.value_pointer().is_some();
        if is_pointer {
            let has_seen_pointer = std::mem::replace(&mut self.has_seen_pointer, true);
            if expected.map_or(has_seen_pointer, |entries| entries > 1) {
                self.prefetch_batch(key, expected, &is_within);
                return self.next_prefetched(is_within);
            }
        }
        self.returned_key = None;
        Some(self.cursor.value_slice().map(|value| (key, value)))
    }

    /// Moves the cursor to the next entry. Returns whether the range has an entry there.
    #[inline]
    fn advance(&mut self, is_within: &impl Fn(&[u8]) -> bool) -> Result<bool> {
        if self.is_current_pending {
            self.is_current_pending = false;
        } else if self.cursor.valid() {
            if self.backward { self.cursor.prev()? } else { self.cursor.next()? }
        }
        Ok(self.cursor.valid() && is_within(self.cursor.key()))
    }

    /// Returns the next prefetched entry. Returns `None` if the other end of the range has already returned this entry.
    fn next_prefetched(
        &mut self,
        is_within: impl Fn(&[u8]) -> bool,
    ) -> Option<Result<(Slice, Slice)>> {
        let (key, value) = self.prefetched.pop_front().filter(|(key, _)| is_within(key))?;
        self.returned_key = Some(key.clone());
        Some(value.map(|value| (key, value)))
    }

    /// Prefetches entries, starting with the current entry, whose key is `key`. If a move fails, [`PrefetchIter::next`]
    /// returns the error after the prefetched entries.
    #[cold]
    fn prefetch_batch(
        &mut self,
        mut key: Slice,
        expected: Option<u64>,
        is_within: &impl Fn(&[u8]) -> bool,
    ) {
        let Some(PrefetchContext { env, blobs }) = &self.prefetch else { return };
        let (env, blobs) = (env.clone(), Arc::clone(blobs));
        let device = usize::from(self.waited_for_device);
        let limit = BATCH_ENTRIES_MAX[device];
        // The number of remaining entries if it is known, or twice the size of the last batch.
        let entries_max = match expected {
            Some(entries) => usize::try_from(entries).map_or(limit, |all| all.min(limit)),
            None => self.batch_entries.min(limit),
        };
        self.batch_entries = (entries_max * 2).min(limit);
        let mut context = ReadContext::new(ReadPurpose::Scan);
        let (mut requests, mut bytes) = (Vec::with_capacity(entries_max), 0_u64);
        loop {
            let index = self.prefetched.len();
            let value = match self.cursor.value_pointer() {
                None => self.cursor.value_slice(),
                Some((seq, pointer)) => match locate_value(&blobs, pointer, &mut context) {
                    Ok(ValueLocation::Cached(value)) => Ok(value),
                    Ok(ValueLocation::InBlobFile(file, pointer)) => {
                        bytes = bytes.saturating_add(pointer.value_bytes);
                        requests.push(ValueRequest { index, seq, file, pointer });
                        // Placeholder that is replaced by the result of the read.
                        Err(Error::WouldBlock)
                    }
                    Err(error) => Err(error),
                },
            };
            let held_bytes = key.len() + value.as_ref().map_or(0, |value| value.len());
            bytes = bytes.saturating_add(len_u64(held_bytes));
            self.prefetched.push_back((key, value));
            if index + 1 >= entries_max || bytes >= BATCH_BYTES[device] {
                break;
            }
            key = match self.advance(is_within) {
                Ok(true) => Slice::from(self.cursor.key()),
                Ok(false) => {
                    self.after_prefetched = EndOfPrefetched::End;
                    break;
                }
                Err(error) => {
                    self.after_prefetched = EndOfPrefetched::Error(error);
                    break;
                }
            }
        }
        self.read_batch(&env, &mut requests);
    }

    /// Reads the values of a batch.
    ///
    /// The values are read one after the other as long as they are in the page cache. After the first read from a
    /// device, the remaining values are read concurrently.
    fn read_batch(&mut self, env: &Env, requests: &mut [ValueRequest<BlobFile>]) {
        let purpose = ReadPurpose::Scan;
        let reads = plan_batch_reads(requests, self.waited_for_device);
        let mut remaining = reads.as_slice();
        self.waited_for_device = false;
        let mut now_ns = env.monotonic_ns();
        let mut values = Vec::new();
        while !self.waited_for_device
            && let Some((batch, others)) = remaining.split_first()
        {
            let key = |index: usize| &*self.prefetched[index].0;
            batch.read(&mut self.buffer, purpose, key, |index, value| values.push((index, value)));
            remaining = others;
            // Time for copying and computing checksums: about 1 ns per byte.
            let allowed_ns = batch.bytes();
            let before_ns = std::mem::replace(&mut now_ns, env.monotonic_ns());
            self.waited_for_device =
                is_device_read(env, now_ns.saturating_sub(before_ns + allowed_ns));
            for (index, value) in values.drain(..) {
                self.prefetched[index].1 = value;
            }
        }
        let prefetched = &self.prefetched;
        let read = |batch: &BatchRead<'_, BlobFile>| {
            let mut values = Vec::new();
            let key = |index: usize| &*prefetched[index].0;
            batch.read(&mut BatchReadBuffer::default(), purpose, key, |index, value| {
                values.push((index, value))
            });
            values
        };
        for (index, value) in read_concurrently(env, remaining, BatchRead::will_need, read) {
            self.prefetched[index].1 = value;
        }
    }
}

/// Location of a value.
enum ValueLocation {
    Cached(Slice),
    InBlobFile(Arc<BlobFile>, ValuePointer),
}

/// Returns the value if it is cached. Otherwise, returns its location in a blob file.
fn locate_value(
    blobs: &BlobSet,
    pointer: &[u8],
    context: &mut ReadContext,
) -> Result<ValueLocation> {
    let (file, pointer) = blobs.locate(pointer)?;
    Ok(match file.blob().peek_value(&pointer, context)? {
        Some(value) => ValueLocation::Cached(value),
        None => ValueLocation::InBlobFile(Arc::clone(file), pointer),
    })
}

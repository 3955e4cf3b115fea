//! One end of a range: where it stands, and the entries ahead whose values were read together.
//!
//! A value in the value log is a read of its own, wherever the last writer of its key has put it. So a walk
//! that meets such values one after the other goes on over keys alone, and has the values of the next
//! entries read together: each time of more, within a bound. Who has said how many entries are wanted gets
//! those at once.

use std::collections::VecDeque;

use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::blob::ValuePointer;
use crate::iter::db_iter::VisibleCursor;
use crate::iter::merging_iter::MergingCursor;
use crate::lookup::batch::{at_once, is_device};
use crate::table::{ReadContext, ReadPurpose};
use crate::tree::version::{BlobFile, BlobSet};
use crate::value_log::{BatchRead, BatchReadBuffer, ValueRequest, plan_batch_reads};

/// Entries of the first batch, which comes with the second value in the value log.
const BATCH_FIRST: usize = 4;
/// Most entries of a batch, of the system's cache and of a device.
const BATCH_MAX: [usize; 2] = [512, 4096];
/// Bytes of values in a batch that are enough, of the same.
const BATCH_BYTES: [u64; 2] = [1 << 20, 4 << 20];

/// A key and its value, or why this key has none.
pub(crate) type Entry = (Slice, Result<Slice>);

/// Reads values of several entries together.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    pub(crate) env: Env,
    pub(crate) blobs: Arc<BlobSet>,
}

/// What comes after the entries that were read ahead.
#[derive(Debug)]
enum Behind {
    /// What comes after the entry that the cursor stands on.
    More,
    Nothing,
    Failure(Error),
}

/// One end of a range.
pub(crate) struct Walk {
    cursor: VisibleCursor<MergingCursor>,
    backward: bool,
    /// None where nothing but memory may be touched.
    reads: Option<ReadAhead>,
    /// Whether the entry that the cursor stands on was not given yet.
    fresh: bool,
    /// Whether it has come to a value in the value log.
    met_log: bool,
    /// Entries of the next batch.
    batch: usize,
    /// Entries that were read ahead.
    ahead: VecDeque<Entry>,
    behind: Behind,
    /// Whether a device had to be waited for, the last time.
    waits: bool,
    /// What stretches of blob files are read into.
    buffer: BatchReadBuffer,
    /// Key of the last entry that was given, if that was read ahead; else the cursor stands on it.
    given: Option<Slice>,
}

impl Walk {
    /// From the entry on that the cursor stands on.
    pub(crate) fn new(
        cursor: VisibleCursor<MergingCursor>,
        backward: bool,
        reads: Option<ReadAhead>,
    ) -> Walk {
        Walk {
            cursor,
            backward,
            reads,
            fresh: true,
            met_log: false,
            batch: BATCH_FIRST,
            ahead: VecDeque::new(),
            behind: Behind::More,
            waits: false,
            buffer: BatchReadBuffer::default(),
            given: None,
        }
    }

    /// Key of the last entry that was given. Only while there was none after the last.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        self.given.as_deref().unwrap_or_else(|| self.cursor.key())
    }

    /// The next entry, as long as they are `within` what is walked over. So many are `known` to be asked for.
    ///
    /// # Errors
    /// When something cannot be read; not for a key whose operands do not fold.
    #[inline]
    pub(crate) fn next(
        &mut self,
        known: Option<u64>,
        within: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Entry>> {
        if !self.ahead.is_empty() {
            return self.next_ahead(within);
        }
        if !matches!(self.behind, Behind::More) {
            return match &self.behind {
                Behind::Failure(error) => Err(error.clone()),
                _ => Ok(None),
            };
        }
        if !self.step(&within)? {
            return Ok(None);
        }
        let of_log = self.reads.is_some() && self.cursor.pointer().is_some();
        if of_log {
            let again = std::mem::replace(&mut self.met_log, true);
            if known.map_or(again, |entries| entries > 1) {
                self.read_ahead(known, &within);
                return self.next_ahead(within);
            }
        }
        self.given = None;
        let value = usable(self.cursor.value_slice())?;
        Ok(Some((Slice::from(self.cursor.key()), value)))
    }

    /// Moves on; returns whether there is an entry.
    #[inline]
    fn step(&mut self, within: &impl Fn(&[u8]) -> bool) -> Result<bool> {
        if self.fresh {
            self.fresh = false;
        } else if self.cursor.valid() {
            if self.backward { self.cursor.prev()? } else { self.cursor.next()? }
        }
        Ok(self.cursor.valid() && within(self.cursor.key()))
    }

    fn next_ahead(&mut self, within: impl Fn(&[u8]) -> bool) -> Result<Option<Entry>> {
        // The other end may have come here meanwhile.
        let Some((key, value)) = self.ahead.pop_front().filter(|(key, _)| within(key)) else {
            return Ok(None);
        };
        let value = usable(value)?;
        self.given = Some(key.clone());
        Ok(Some((key, value)))
    }

    /// Takes the entries from the current one on. An error waits for its turn.
    #[cold]
    fn read_ahead(&mut self, known: Option<u64>, within: &impl Fn(&[u8]) -> bool) {
        let Some(ReadAhead { env, blobs }) = &self.reads else { return };
        let (env, blobs) = (env.clone(), Arc::clone(blobs));
        let of_device = usize::from(self.waits);
        // All that are known to be wanted, or twice as many as the last time.
        let most_ever = BATCH_MAX[of_device];
        let most = match known {
            Some(entries) => usize::try_from(entries).map_or(most_ever, |all| all.min(most_ever)),
            None => self.batch.min(most_ever),
        };
        self.batch = (most * 2).min(most_ever);
        let mut access = ReadContext::new(ReadPurpose::Scan);
        let (mut wanted, mut bytes) = (Vec::with_capacity(most), 0_u64);
        loop {
            let place = self.ahead.len();
            let value = match self.cursor.pointer() {
                None => self.cursor.value_slice(),
                Some((seq, pointer)) => match look(&blobs, pointer, &mut access) {
                    Ok(Looked::There(value)) => Ok(value),
                    Ok(Looked::InLog(file, pointer)) => {
                        bytes = bytes.saturating_add(pointer.bytes);
                        wanted.push(ValueRequest { index: place, seq, file, pointer });
                        // In its place until it was read. Nobody sees this, and it is no value.
                        Err(Error::WouldBlock)
                    }
                    Err(error) => Err(error),
                },
            };
            self.ahead.push_back((Slice::from(self.cursor.key()), value));
            if place + 1 >= most || bytes >= BATCH_BYTES[of_device] {
                break;
            }
            match self.step(within) {
                Ok(true) => {}
                Ok(false) => {
                    self.behind = Behind::Nothing;
                    break;
                }
                Err(error) => {
                    self.behind = Behind::Failure(error);
                    break;
                }
            }
        }
        self.read(&env, &mut wanted);
    }

    /// Reads the values of a batch: stretch by stretch while that takes no longer than the system's cache does,
    /// and from the first read of a device on all that is left at once.
    fn read(&mut self, env: &Env, wanted: &mut [ValueRequest<BlobFile>]) {
        let fill = ReadPurpose::Scan;
        let reads = plan_batch_reads(wanted, self.waits);
        let mut left = reads.as_slice();
        self.waits = false;
        let mut now_ns = env.monotonic_ns();
        let mut opened = Vec::new();
        while !self.waits
            && let Some((batch, others)) = left.split_first()
        {
            let key = |place: usize| &*self.ahead[place].0;
            batch.read(&mut self.buffer, fill, key, |place, value| opened.push((place, value)));
            left = others;
            // Copies and checksums of so many bytes, too.
            let allowed_ns = batch.bytes();
            let before_ns = std::mem::replace(&mut now_ns, env.monotonic_ns());
            self.waits = is_device(env, now_ns.saturating_sub(before_ns + allowed_ns));
            for (place, value) in opened.drain(..) {
                self.ahead[place].1 = value;
            }
        }
        let ahead = &self.ahead;
        let read = |stretch: &BatchRead<'_, BlobFile>| {
            let mut opened = Vec::new();
            let key = |place: usize| &*ahead[place].0;
            stretch.read(&mut BatchReadBuffer::default(), fill, key, |place, value| {
                opened.push((place, value))
            });
            opened
        };
        for (place, value) in at_once(env, left, BatchRead::will_need, read) {
            self.ahead[place].1 = value;
        }
    }
}

/// Where a value is.
enum Looked {
    There(Slice),
    InLog(Arc<BlobFile>, ValuePointer),
}

/// Looks for a value in memory; one that is not there lies within its file.
fn look(blobs: &BlobSet, pointer: &[u8], access: &mut ReadContext) -> Result<Looked> {
    let (file, pointer) = blobs.locate(pointer)?;
    Ok(match file.blob().peek_value(&pointer, access)? {
        Some(value) => Looked::There(value),
        None => Looked::InLog(Arc::clone(file), pointer),
    })
}

/// An error that is one of the key alone stays with it; of others nothing can go on.
fn usable(value: Result<Slice>) -> Result<Result<Slice>> {
    match value {
        Err(error) if !matches!(error, Error::MergeFailed { .. }) => Err(error),
        value => Ok(value),
    }
}

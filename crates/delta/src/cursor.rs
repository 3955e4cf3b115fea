//! Cursor over the operands of a view, or over a list of records in memory.

use std::cmp::Reverse;

use lsmx::Result;
use lsmx::operand_store::Cursor;
use lsmx::operand_store::OperandReadTier;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::bucket::reader::BucketReader;
use crate::bucket::window::{Window, WindowPosition, WindowReader};
use crate::format::record::Record;
use crate::view::StoreView;

/// Number of records in the first window after a seek. A window holds the records in a part of a bucket's key range.
///
/// Each following window has four times as many records. A short scan thus reads few records, and a long scan needs few
/// reads.
const WINDOW_RECORDS_MIN: usize = 32;

/// Reads windows of the buckets of a view, and removes records that the cursor's reader does not see.
#[derive(Debug)]
struct ViewReader {
    view: Arc<StoreView>,
    /// Sequence number at which the cursor reads.
    at: SeqNo,
    reads: OperandReadTier,
    counts_as_job: bool,
    /// Window reader of the bucket that was read last.
    windows: Option<WindowReader>,
}

/// Prefetches the window of a bucket that a cursor reads when it seeks `key`.
pub(crate) fn prefetch_first_window(view: &StoreView, bucket: usize, key: &[u8]) {
    prefetch_window(view, None, bucket, WindowPosition::From(key), WINDOW_RECORDS_MIN);
}

/// Prefetches the pages of a window that `last_read` has not read. `last_read` may belong to another bucket.
fn prefetch_window(
    view: &StoreView,
    last_read: Option<&WindowReader>,
    bucket: usize,
    position: WindowPosition<'_>,
    count: usize,
) {
    let bucket = &view.buckets[bucket];
    // After a failed sync, the store reads the pages from the device and not from the page cache.
    if bucket.is_empty() || view.resources.files.has_failed_sync() {
        return;
    }
    let memory = &view.resources.memory;
    match last_read.filter(|last_read| Arc::ptr_eq(&last_read.bucket, bucket)) {
        Some(last_read) => last_read.prefetch(position, count, memory),
        None => WindowReader::new(bucket.clone()).prefetch(position, count, memory),
    }
}

impl ViewReader {
    /// Reads a window of a bucket. The result contains only operands that are visible at `at`.
    fn read_window(
        &mut self,
        index: usize,
        position: WindowPosition<'_>,
        count: usize,
    ) -> Result<Window> {
        if self.view.buckets[index].is_empty() {
            return Ok(Window::default());
        }
        let resources = &self.view.resources;
        let read_counters = &*resources.files.context.read_counters;
        let mut reader = match self.counts_as_job {
            true => BucketReader::for_job(&resources.counters.bucket_read_bytes),
            false => BucketReader::for_user(self.reads, read_counters),
        };
        let windows = &mut self.windows;
        let mut is_new_bucket = false;
        let mut window = self.view.read_bucket(index, self.reads, |bucket| {
            // If the view was reloaded from the log, its bucket at this index is another object.
            let windows = match &mut *windows {
                Some(windows) if Arc::ptr_eq(&windows.bucket, bucket) => windows,
                windows => {
                    is_new_bucket = true;
                    windows.insert(WindowReader::new(bucket.clone()))
                }
            };
            windows.read(position, count, &mut reader, &resources.memory)
        })?;
        if is_new_bucket && reader.read_count == 0 && !self.counts_as_job {
            read_counters.record_hit();
        }
        let (mut key, mut newest_marker) = (None, SeqNo::ZERO);
        window.records.retain(|record| {
            if key.as_ref() != Some(&record.key) {
                newest_marker = self.view.newest_marker(&record.key, self.at);
                key = Some(record.key.clone());
            }
            if record.last > self.at {
                return false;
            }
            if record.operand.is_none() {
                newest_marker = newest_marker.max(record.last);
            }
            record.operand.is_some() && record.last >= newest_marker
        });
        Ok(window)
    }
}

/// A cursor over operands. It holds one window: the records in a part of one bucket's key range.
#[derive(Debug)]
pub(crate) struct OperandCursor {
    /// `None` for a cursor over records in memory, which form one window of one bucket.
    reader: Option<ViewReader>,
    /// Index of the bucket of the current window.
    bucket: Option<usize>,
    window: Window,
    /// Minimum number of records of the next window.
    window_records: usize,
    /// Index of the current record, if the cursor is valid.
    index: Option<usize>,
}

impl OperandCursor {
    /// Returns a cursor over the operands that are visible at `at`.
    ///
    /// `counts_as_job` states whether the reads count as reads of a background job. A job reads whole buckets.
    pub(crate) fn from_view(
        view: Arc<StoreView>,
        at: SeqNo,
        reads: OperandReadTier,
        counts_as_job: bool,
    ) -> OperandCursor {
        let reader = Some(ViewReader { view, at, reads, counts_as_job, windows: None });
        OperandCursor { reader, bucket: None, ..OperandCursor::from_records(Vec::new()) }
    }

    /// Returns a cursor over sorted records.
    pub(crate) fn from_records(records: Vec<Record>) -> OperandCursor {
        let window = Window { records, ..Window::default() };
        OperandCursor { reader: None, bucket: Some(0), window, window_records: 0, index: None }
    }

    fn bucket_count(&self) -> usize {
        self.reader.as_ref().map_or(1, |reader| reader.view.buckets.len())
    }

    fn bucket_index(&self, key: &[u8]) -> Option<usize> {
        self.reader.as_ref().map_or(Some(0), |reader| reader.view.bucket_index(key))
    }

    /// Invalidates the cursor before a seek, and resets the size of the next window.
    fn begin_seek(&mut self) {
        self.index = None;
        let is_job = self.reader.as_ref().is_some_and(|reader| reader.counts_as_job);
        self.window_records = if is_job { usize::MAX } else { WINDOW_RECORDS_MIN };
    }

    fn load_window(&mut self, bucket: usize, position: WindowPosition<'_>) -> Result<()> {
        if let Some(reader) = &mut self.reader {
            self.window = reader.read_window(bucket, position, self.window_records)?;
            self.bucket = Some(bucket);
            let is_first = self.window_records == WINDOW_RECORDS_MIN;
            self.window_records = self.window_records.saturating_mul(4);
            // Most scans end in the first window, so the second one is not prefetched.
            if !is_first && !reader.counts_as_job && reader.reads == OperandReadTier::Storage {
                self.prefetch_next_window(bucket, position);
            }
        }
        Ok(())
    }

    /// Prefetches the window after the current one in the direction of `position`.
    fn prefetch_next_window(&self, bucket: usize, position: WindowPosition<'_>) {
        let Some(reader) = &self.reader else { return };
        let Window { start, end, .. } = &self.window;
        let next = match (position, end) {
            (WindowPosition::From(_), Some(end)) => Some((bucket, WindowPosition::From(end))),
            (WindowPosition::From(_), None) => {
                let next = Some(bucket + 1).filter(|next| *next < self.bucket_count());
                next.map(|next| (next, WindowPosition::From(&[])))
            }
            (WindowPosition::Before(_), _) if !start.is_empty() => {
                Some((bucket, WindowPosition::Before(Some(start))))
            }
            (WindowPosition::Before(_), _) => {
                bucket.checked_sub(1).map(|next| (next, WindowPosition::Before(None)))
            }
        };
        if let Some((bucket, position)) = next {
            let last_read = reader.windows.as_ref();
            prefetch_window(&reader.view, last_read, bucket, position, self.window_records);
        }
    }

    /// Loads a window that contains `key`. Does nothing if the current window contains it.
    fn load_window_of(&mut self, bucket: usize, key: &[u8]) -> Result<()> {
        match self.bucket == Some(bucket) && self.window.contains(key) {
            true => Ok(()),
            false => self.load_window(bucket, WindowPosition::From(key)),
        }
    }

    /// Returns the index of the first record of the window at or after the given key and sequence number.
    fn lower_bound(&self, user_key: &[u8], seq: SeqNo) -> usize {
        let position = (user_key, Reverse(seq));
        let records = &self.window.records;
        records.partition_point(|record| (&*record.key, Reverse(record.last)) < position)
    }

    fn move_to(&mut self, index: Option<usize>) {
        self.index = index.filter(|index| *index < self.window.records.len());
    }

    /// While the cursor is invalid, loads the next window. Stops at the end of the last bucket.
    fn move_to_later_window(&mut self) -> Result<()> {
        while let (None, Some(bucket)) = (self.index, self.bucket) {
            match self.window.end.clone() {
                Some(end) => self.load_window(bucket, WindowPosition::From(&end))?,
                None if bucket + 1 < self.bucket_count() => {
                    self.load_window(bucket + 1, WindowPosition::From(&[]))?;
                }
                None => break,
            }
            self.move_to(Some(0));
        }
        Ok(())
    }

    /// While the cursor is invalid, loads the previous window. Stops at the start of the first bucket.
    fn move_to_earlier_window(&mut self) -> Result<()> {
        while let (None, Some(bucket)) = (self.index, self.bucket) {
            let start = self.window.start.clone();
            match bucket.checked_sub(1) {
                _ if !start.is_empty() => {
                    self.load_window(bucket, WindowPosition::Before(Some(&start)))?;
                }
                Some(bucket) => self.load_window(bucket, WindowPosition::Before(None))?,
                None => break,
            }
            self.move_to(self.window.records.len().checked_sub(1));
        }
        Ok(())
    }

    /// Returns the current record. Panics if the cursor is not valid.
    fn record(&self) -> &Record {
        &self.window.records[self.index.unwrap_or(usize::MAX)]
    }
}

impl Cursor for OperandCursor {
    fn valid(&self) -> bool {
        self.index.is_some()
    }

    fn key(&self) -> InternalKey<'_> {
        let Record { key, last, .. } = self.record();
        InternalKey { user_key: key, seq: *last, kind: EntryKind::Merge }
    }

    fn value(&self) -> &[u8] {
        self.record().operand.as_deref().unwrap_or_default()
    }

    fn value_slice(&self) -> Slice {
        self.record().operand.clone().map(Slice::new).unwrap_or_default()
    }

    fn first(&mut self) -> Result<()> {
        self.begin_seek();
        if self.bucket_count() > 0 {
            self.load_window_of(0, &[])?;
            self.move_to(Some(0));
            self.move_to_later_window()?;
        }
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.begin_seek();
        if let Some(bucket) = self.bucket_count().checked_sub(1) {
            if self.bucket != Some(bucket) || self.window.end.is_some() {
                self.load_window(bucket, WindowPosition::Before(None))?;
            }
            self.move_to(self.window.records.len().checked_sub(1));
            self.move_to_earlier_window()?;
        }
        Ok(())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.begin_seek();
        let Some(bucket) = self.bucket_index(user_key) else { return Ok(()) };
        self.load_window_of(bucket, user_key)?;
        self.move_to(Some(self.lower_bound(user_key, seq)));
        self.move_to_later_window()
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.begin_seek();
        let Some(bucket) = self.bucket_index(user_key) else { return Ok(()) };
        self.load_window_of(bucket, user_key)?;
        self.move_to(self.lower_bound(user_key, seq).checked_sub(1));
        self.move_to_earlier_window()
    }

    fn next(&mut self) -> Result<()> {
        let Some(index) = self.index else { return Ok(()) };
        self.move_to(Some(index + 1));
        self.move_to_later_window()
    }

    fn prev(&mut self) -> Result<()> {
        let Some(index) = self.index else { return Ok(()) };
        self.move_to(index.checked_sub(1));
        self.move_to_earlier_window()
    }
}

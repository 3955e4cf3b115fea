//! Cursor over the operands of a view, or over records in memory.

use std::cmp::Reverse;

use lsmx::Result;
use lsmx::operand_store::Cursor;
use lsmx::operand_store::OperandReadTier;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::bucket::Bucket;
use crate::bucket::reader::BucketReader;
use crate::format::record::Record;
use crate::view::StoreView;

/// Reads the buckets of a view for a cursor.
#[derive(Debug)]
struct ViewReader {
    view: Arc<StoreView>,
    /// Sequence number of the reader.
    at: SeqNo,
    reads: OperandReadTier,
    counts_as_job: bool,
}

impl ViewReader {
    /// Reads a bucket and returns the operands that the reader sees, in order.
    fn read_bucket(&self, index: usize) -> Result<Vec<Record>> {
        if self.view.buckets[index].is_empty() {
            return Ok(Vec::new());
        }
        let resources = &self.view.resources;
        let read_counters = &*resources.files.context.read_counters;
        let mut reader = match self.counts_as_job {
            true => BucketReader::for_job(&resources.counters.bucket_read_bytes),
            false => BucketReader::for_user(self.reads, read_counters),
        };
        let read = |bucket: &Bucket| bucket.read_records(&mut reader);
        let records = self.view.read_bucket(index, read)?;
        if reader.read_count == 0 && !self.counts_as_job {
            read_counters.record_hit();
        }
        let mut visible: Vec<Record> = Vec::with_capacity(records.len());
        for group in records.chunk_by(|a, b| a.key == b.key) {
            let mut newest_marker = self.view.newest_marker(&group[0].key, self.at);
            for record in group.iter().filter(|record| record.last <= self.at) {
                match record.operand {
                    None => newest_marker = newest_marker.max(record.last),
                    Some(_) if record.last >= newest_marker => visible.push(record.clone()),
                    Some(_) => {}
                }
            }
        }
        Ok(visible)
    }
}

/// A cursor over operands. It loads one bucket at a time.
#[derive(Debug)]
pub(crate) struct OperandCursor {
    /// `None` for records in memory. They count as one loaded bucket.
    reader: Option<ViewReader>,
    loaded_bucket: Option<usize>,
    /// Operands of the loaded bucket.
    records: Vec<Record>,
    /// Index of the current record, if the cursor is valid.
    index: Option<usize>,
}

impl OperandCursor {
    /// Returns a cursor over the operands that a reader at `at` sees.
    ///
    /// `counts_as_job` states whether the reads count as those of a background job.
    pub(crate) fn from_view(
        view: Arc<StoreView>,
        at: SeqNo,
        reads: OperandReadTier,
        counts_as_job: bool,
    ) -> OperandCursor {
        let reader = Some(ViewReader { view, at, reads, counts_as_job });
        OperandCursor { reader, loaded_bucket: None, records: Vec::new(), index: None }
    }

    /// Returns a cursor over sorted records.
    pub(crate) fn from_records(records: Vec<Record>) -> OperandCursor {
        OperandCursor { reader: None, loaded_bucket: Some(0), records, index: None }
    }

    fn bucket_count(&self) -> usize {
        self.reader.as_ref().map_or(1, |reader| reader.view.buckets.len())
    }

    fn bucket_index(&self, key: &[u8]) -> Option<usize> {
        self.reader.as_ref().map_or(Some(0), |reader| reader.view.bucket_index(key))
    }

    /// Loads a bucket unless it is loaded. Invalidates the cursor.
    fn load_bucket(&mut self, bucket: usize) -> Result<()> {
        self.index = None;
        if let Some(reader) = &self.reader
            && self.loaded_bucket != Some(bucket)
        {
            self.loaded_bucket = None;
            self.records = reader.read_bucket(bucket)?;
            self.loaded_bucket = Some(bucket);
        }
        Ok(())
    }

    /// Returns the index of the first loaded record at or after a position.
    fn lower_bound(&self, user_key: &[u8], seq: SeqNo) -> usize {
        let position = (user_key, Reverse(seq));
        self.records.partition_point(|record| (&*record.key, Reverse(record.last)) < position)
    }

    fn move_to(&mut self, index: Option<usize>) {
        self.index = index.filter(|index| *index < self.records.len());
    }

    /// Moves to the first operand of the buckets from `bucket` on.
    fn move_to_first_from(&mut self, bucket: usize) -> Result<()> {
        self.index = None;
        for bucket in bucket..self.bucket_count() {
            self.load_bucket(bucket)?;
            self.move_to(Some(0));
            if self.valid() {
                break;
            }
        }
        Ok(())
    }

    /// Moves to the last operand of the buckets before `end`.
    fn move_to_last_before(&mut self, end: usize) -> Result<()> {
        self.index = None;
        for bucket in (0..end).rev() {
            self.load_bucket(bucket)?;
            self.move_to(self.records.len().checked_sub(1));
            if self.valid() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the current record. Panics if the cursor is not valid.
    fn record(&self) -> &Record {
        &self.records[self.index.unwrap_or(usize::MAX)]
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
        self.move_to_first_from(0)
    }

    fn last(&mut self) -> Result<()> {
        self.move_to_last_before(self.bucket_count())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.index = None;
        let Some(bucket) = self.bucket_index(user_key) else { return Ok(()) };
        self.load_bucket(bucket)?;
        self.move_to(Some(self.lower_bound(user_key, seq)));
        if self.valid() { Ok(()) } else { self.move_to_first_from(bucket + 1) }
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.index = None;
        let Some(bucket) = self.bucket_index(user_key) else { return Ok(()) };
        self.load_bucket(bucket)?;
        self.move_to(self.lower_bound(user_key, seq).checked_sub(1));
        if self.valid() { Ok(()) } else { self.move_to_last_before(bucket) }
    }

    fn next(&mut self) -> Result<()> {
        self.move_to(self.index.map(|index| index + 1));
        match (self.valid(), self.loaded_bucket) {
            (false, Some(bucket)) => self.move_to_first_from(bucket + 1),
            _ => Ok(()),
        }
    }

    fn prev(&mut self) -> Result<()> {
        self.move_to(self.index.and_then(|index| index.checked_sub(1)));
        match (self.valid(), self.loaded_bucket) {
            (false, Some(bucket)) => self.move_to_last_before(bucket),
            _ => Ok(()),
        }
    }
}

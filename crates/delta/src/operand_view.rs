//! Implements the engine's trait [`OperandView`], with reads of operands and the copy of a view for a checkpoint.

use std::collections::BTreeMap;

use bytes::Bytes;
use lsmx::Result;
use lsmx::operand_store::Cursor;
use lsmx::operand_store::{
    Operand, OperandFileKind, OperandFiles, OperandReadTier, OperandView, StoreToken,
};
use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::bucket::reader::{BucketReader, for_each_frame};
use crate::cursor::{OperandCursor, prefetch_first_window};
use crate::files::BucketFile;
use crate::files::io::io_error;
use crate::format::header::{BUCKET_HEADER, HEADER_BYTES, encode_header};
use crate::log::LogWriter;
use crate::view::StoreView;

impl OperandView for StoreView {
    fn is_empty(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.is_empty())
    }

    fn may_contain(&self, key: &[u8]) -> bool {
        self.bucket_index(key).is_some_and(|index| self.buckets[index].may_contain(key))
    }

    fn read_operands(
        &self,
        key: &[u8],
        at: SeqNo,
        reads: OperandReadTier,
        found: &mut Vec<Operand>,
    ) -> Result<()> {
        let Some(index) = self.bucket_index(key) else { return Ok(()) };
        if self.buckets[index].is_empty() {
            return Ok(());
        }
        let read_counters = &*self.resources.files.context.read_counters;
        let mut reader = BucketReader::for_user(reads, read_counters);
        let operands = self
            .read_bucket(index, reads, |bucket| self.find_operands(bucket, key, at, &mut reader))?;
        if reader.read_count == 0 {
            read_counters.record_hit();
        }
        found.extend(operands.iter().cloned());
        Ok(())
    }

    fn prefetch(&self, key: &[u8], at: SeqNo) {
        if let Some(index) = self.bucket_index(key)
            && let bucket = &self.buckets[index]
            && !bucket.is_empty()
            && !self.resources.files.has_failed_sync()
        {
            self.prefetch_key(bucket, key, at);
        }
    }

    fn prefetch_seek(&self, key: &[u8]) {
        if let Some(index) = self.bucket_index(key) {
            prefetch_first_window(self, index, key);
        }
    }

    fn cursor(self: Arc<Self>, at: SeqNo, reads: OperandReadTier) -> Box<dyn Cursor> {
        Box::new(OperandCursor::from_view(self, at, reads, false))
    }

    fn keep_files_open(&self) {
        for file in self.files() {
            // A later read of the file reports the error.
            let _ = file.keep_descriptor_open();
        }
    }

    fn copy_to(&self, target: &dyn OperandFiles) -> Result<StoreToken> {
        let reloaded = if self.may_have_lost_pages() { self.reload()? } else { None };
        copy_view(reloaded.as_deref().unwrap_or(self), target)
    }
}

/// Copies the bucket files of a view, and writes a log with a snapshot of the view. Returns the token of the copy.
///
/// The copies get new file numbers and keep the uids of the originals, because the uid is part of each checksum.
fn copy_view(view: &StoreView, target: &dyn OperandFiles) -> Result<StoreToken> {
    let mut ends: BTreeMap<u64, (&BucketFile, u64)> = BTreeMap::new();
    for bucket in &view.buckets {
        let sorted = bucket.sorted.iter().map(|sorted| (&sorted.file, sorted.end));
        let extents = bucket.extents.iter().map(|extent| (&extent.file, extent.end));
        for (file, part_end) in sorted.chain(extents) {
            let end = &mut ends.entry(file.number).or_insert((file, 0)).1;
            *end = (*end).max(part_end);
        }
    }
    let mut numbers = BTreeMap::new();
    for (number, (file, end)) in ends {
        numbers.insert(number, copy_file(file, end, target)?);
    }
    let new_number = |number: u64| numbers.get(&number).copied().unwrap_or(number);
    let uid = view.resources.files.context.env.random_u64();
    let mut log = LogWriter::create(target, uid)?;
    log.put_snapshot(view, |bucket| {
        let mut entry = bucket.to_entry();
        if let Some(sorted) = &mut entry.sorted {
            sorted.number = new_number(sorted.number);
        }
        for extent in &mut entry.extents {
            extent.number = new_number(extent.number);
        }
        entry
    })?;
    log.sync()?;
    Ok(log.end_token())
}

/// Copies a bucket file up to offset `end` and checks its frames. Returns the file number of the copy.
fn copy_file(file: &BucketFile, end: u64, target: &dyn OperandFiles) -> Result<u64> {
    let start = len_u64(HEADER_BYTES);
    let bytes: Bytes = BucketReader::without_counters().read(file, start, end)?;
    for_each_frame(&bytes, file, start, |_, _, _, _| Ok(()))?;
    let (number, copy) = target.create(OperandFileKind::Bucket)?;
    let path = target.path(OperandFileKind::Bucket, number);
    let append_error = |e| io_error("append to", &path, e);
    copy.append(&encode_header(BUCKET_HEADER, file.uid)).map_err(append_error)?;
    copy.append(&bytes).map_err(append_error)?;
    copy.sync().map_err(|e| io_error("sync", &path, e))?;
    Ok(number)
}

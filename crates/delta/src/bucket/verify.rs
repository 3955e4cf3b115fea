//! Verifies that the files of a bucket are valid and consistent.

use bytes::Bytes;
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::filter::key_hash;
use lsmx_base::malformed::Malformed;

use super::Bucket;
use super::extent::{Extent, fingerprint};
use super::reader::{BucketReader, for_each_frame};
use super::sorted_part::SortedPart;
use crate::format::frame::FrameKind;
use crate::format::header::HEADER_BYTES;
use crate::format::index::INDEX_MISMATCH;
use crate::format::invalid_field;
use crate::format::record::{Record, decode_records};
use crate::memory::MemoryUsage;

const FILTER_MISS: Malformed = Malformed::Order { what: "a key and the filter of its page" };

/// A bucket to verify, and the exclusive end of its key range.
pub struct BucketVerifier<'a> {
    pub bucket: &'a Bucket,
    pub end: Option<&'a [u8]>,
    pub memory: &'a MemoryUsage,
}

impl BucketVerifier<'_> {
    /// Reads and checks all pages of the bucket. Fails at the first damage.
    ///
    /// Checks file headers, frames, record order and key range. Also checks that the index, the filter and the
    /// fingerprints find every key.
    pub fn verify_files(&self) -> Result<()> {
        self.bucket.files().try_for_each(|file| file.verify_header())?;
        let mut reader = BucketReader::without_counters();
        if let Some(sorted) = &self.bucket.sorted {
            self.verify_sorted_part(sorted, &mut reader)?;
        }
        let mut extents = self.bucket.extents.iter();
        extents.try_for_each(|extent| self.verify_extent(extent, &mut reader))
    }

    /// Fails if the key is outside the key range of the bucket.
    pub fn check_key_range(&self, key: &[u8]) -> Result<(), Malformed> {
        match *self.bucket.smallest_key <= *key && self.end.is_none_or(|end| key < end) {
            true => Ok(()),
            false => Err(Malformed::Order { what: "a key and the range of its bucket" }),
        }
    }

    fn verify_sorted_part(&self, sorted: &SortedPart, reader: &mut BucketReader<'_>) -> Result<()> {
        let index = sorted.load_index(reader, self.memory)?;
        let start = len_u64(HEADER_BYTES);
        let bytes = reader.read(&sorted.file, start, sorted.index_offset)?;
        let mut entries = index.entries.iter();
        let mut last_key: Option<Bytes> = None;
        let check_record = |record: &Record| {
            self.check_key_range(&record.key)?;
            if !index.may_contain(key_hash(&record.key)) {
                return Err(FILTER_MISS);
            }
            if record.last > self.bucket.collected_through {
                let expected = "at most the number of the bucket";
                return Err(invalid_field("number in a sorted part", record.last.0, expected));
            }
            Ok(())
        };
        for_each_frame(&bytes, &sorted.file, start, |kind, contents, offset, len| {
            kind.check_kind(FrameKind::SortedPage)?;
            let records = decode_records(&contents)?;
            let entry = entries.next().filter(|it| (it.offset, it.bytes) == (offset, len));
            let (Some(entry), [first, ..]) = (entry, &*records) else { return Err(INDEX_MISMATCH) };
            if entry.first_key != first.key {
                return Err(INDEX_MISMATCH);
            }
            if last_key.as_ref().is_some_and(|last_key| first.key <= *last_key) {
                return Err(Malformed::Order { what: "pages of a sorted part" });
            }
            records.iter().try_for_each(check_record)?;
            last_key = records.last().map(|record| record.key.clone());
            Ok(())
        })?;
        if entries.next().is_some() {
            return Err(Error::malformed(INDEX_MISMATCH, &sorted.file.path, sorted.index_offset));
        }
        Ok(())
    }

    fn verify_extent(&self, extent: &Extent, reader: &mut BucketReader<'_>) -> Result<()> {
        let mut pages = extent.load_pages(reader, self.memory)?.iter();
        let bytes = reader.read(&extent.file, extent.start, extent.end)?;
        for_each_frame(&bytes, &extent.file, extent.start, |kind, contents, _, _| {
            kind.check_kind(FrameKind::UnsortedPage)?;
            let page = pages.next();
            decode_records(&contents)?.iter().try_for_each(|record| {
                self.check_key_range(&record.key)?;
                let print = fingerprint(key_hash(&record.key));
                let is_found = page.is_some_and(|page| page.may_contain(print));
                if is_found { Ok(()) } else { Err(FILTER_MISS) }
            })
        })
    }
}

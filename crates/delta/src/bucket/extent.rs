//! Extent of a bucket: a part of a file with unsorted pages, which deliveries appended.
//!
//! "Unsorted" means that each page may contain any key of the bucket. For each page, memory holds a summary: the range
//! of sequence numbers and a 16-bit fingerprint of each key. A lookup reads only pages whose summary matches. After
//! recovery, the summaries are missing. The first lookup then reads the whole extent to compute them.

use lsmx::Result;
use lsmx_base::coding::len_u64;
use lsmx_base::filter::key_hash;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, OnceLock};

use super::reader::{BucketReader, for_each_frame};
use crate::files::BucketFile;
use crate::format::frame::FrameKind;
use crate::format::record::{Record, for_each_record, put_page};
use crate::memory::{MemoryCharge, MemoryUsage};

/// Returns the upper 16 bits of a key hash, which serve as a fingerprint of the key.
pub fn fingerprint(hash: u64) -> u16 {
    u16::try_from(hash >> 48).unwrap_or(0)
}

/// Summary of an unsorted page, which lookups check before they read the page.
#[derive(Debug)]
pub struct UnsortedPage {
    pub offset: u64,
    pub bytes: u64,
    /// Smallest sequence number.
    pub first: SeqNo,
    /// Largest sequence number.
    pub last: SeqNo,
    /// Fingerprints of the keys, in ascending order and without duplicates.
    fingerprints: Box<[u16]>,
    _charge: MemoryCharge,
}

impl UnsortedPage {
    fn new<'a>(
        (offset, bytes): (u64, u64),
        records: impl Iterator<Item = (&'a [u8], SeqNo, SeqNo)>,
        memory: &MemoryUsage,
    ) -> UnsortedPage {
        let (mut first, mut last) = (SeqNo::MAX, SeqNo::ZERO);
        let mut fingerprints = Vec::new();
        for (key, record_first, record_last) in records {
            first = first.min(record_first);
            last = last.max(record_last);
            fingerprints.push(fingerprint(key_hash(key)));
        }
        fingerprints.sort_unstable();
        fingerprints.dedup();
        let _charge = memory.charge(2 * fingerprints.len() + size_of::<UnsortedPage>());
        UnsortedPage { offset, bytes, first, last, fingerprints: fingerprints.into(), _charge }
    }

    pub fn may_contain(&self, fingerprint: u16) -> bool {
        self.fingerprints.binary_search(&fingerprint).is_ok()
    }
}

/// Unsorted pages that are adjacent in one file, with their summaries.
#[derive(Debug)]
pub struct Extent {
    pub file: Arc<BucketFile>,
    pub start: u64,
    pub end: u64,
    pages: OnceLock<Vec<Arc<UnsortedPage>>>,
    /// Smallest sequence number of the delete markers. Not set if it is not known.
    oldest_marker: OnceLock<Option<SeqNo>>,
}

impl Extent {
    /// Returns an extent of an existing file. The first lookup loads the page summaries.
    pub fn from_existing(file: Arc<BucketFile>, start: u64, end: u64) -> Extent {
        Extent { file, start, end, pages: OnceLock::new(), oldest_marker: OnceLock::new() }
    }

    /// Returns an empty extent at the end of a file.
    pub fn new_at_end(file: Arc<BucketFile>) -> Extent {
        let end = file.end_offset();
        let (pages, oldest_marker) = (OnceLock::from(Vec::new()), OnceLock::from(None));
        Extent { file, start: end, end, pages, oldest_marker }
    }

    /// Appends pages to the file. Returns a new extent with the old and the new pages.
    ///
    /// The summaries of the old pages must be in memory.
    pub fn append(&self, pages: &[&[Record]], memory: &MemoryUsage) -> Result<Extent> {
        let mut out = Vec::new();
        let mut summaries = self.pages.get().cloned().unwrap_or_default();
        for page in pages {
            let location = (self.file.uid, self.end);
            let position = put_page(&mut out, location, FrameKind::UnsortedPage, page)?;
            let records = page.iter().map(|record| (&*record.key, record.first, record.last));
            summaries.push(Arc::new(UnsortedPage::new(position, records, memory)));
        }
        self.file.append(&out)?;
        let (file, end) = (self.file.clone(), self.end + len_u64(out.len()));
        let records = pages.iter().copied().flatten();
        let added = records.filter(|record| record.operand.is_none()).map(|marker| marker.last);
        let oldest_marker = self.oldest_marker().into_iter().chain(added).min();
        let (pages, oldest_marker) = (OnceLock::from(summaries), OnceLock::from(oldest_marker));
        Ok(Extent { file, start: self.start, end, pages, oldest_marker })
    }

    /// Returns the smallest sequence number of the delete markers, or 0 if it is not known.
    pub fn oldest_marker(&self) -> Option<SeqNo> {
        self.oldest_marker.get().copied().unwrap_or(Some(SeqNo::ZERO))
    }

    /// Sets the smallest sequence number of the delete markers if it is not known.
    pub fn set_oldest_marker(&self, oldest: Option<SeqNo>) {
        let _ = self.oldest_marker.set(oldest);
    }

    pub fn pages_if_loaded(&self) -> Option<&[Arc<UnsortedPage>]> {
        self.pages.get().map(Vec::as_slice)
    }

    /// Returns the page summaries. The first call reads the extent.
    pub fn load_pages(
        &self,
        reader: &mut BucketReader<'_>,
        memory: &MemoryUsage,
    ) -> Result<&[Arc<UnsortedPage>]> {
        if let Some(pages) = self.pages.get() {
            return Ok(pages);
        }
        let bytes = reader.read(&self.file, self.start, self.end)?;
        let mut pages = Vec::new();
        for_each_frame(&bytes, &self.file, self.start, |kind, contents, offset, len| {
            kind.check_kind(FrameKind::UnsortedPage)?;
            let mut records = Vec::new();
            for_each_record(&contents, |_, it| records.push((it.key, it.first, it.last)))?;
            let page = UnsortedPage::new((offset, len), records.into_iter(), memory);
            pages.push(Arc::new(page));
            Ok(())
        })?;
        Ok(self.pages.get_or_init(|| pages))
    }
}

//! Sorted part of a bucket: pages in key order, followed by a page index and a filter. A collection writes it to a new
//! file.

use bytes::Bytes;
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::filter::{self, Filter, FilterWidth};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::{Arc, OnceLock};

use super::markers::{RemovalRequest, StoredMarkers};
use super::reader::{BucketReader, for_each_frame};
use crate::files::BucketFile;
use crate::format::frame::{FrameKind, put_frame};
use crate::format::header::HEADER_BYTES;
use crate::format::index::{IndexEntry, decode_index, put_index};
use crate::format::record::{Record, put_page};
use crate::memory::{MemoryCharge, MemoryUsage};

/// Sorted part of a bucket. The first lookup loads the index and the filter.
#[derive(Debug)]
pub struct SortedPart {
    pub file: Arc<BucketFile>,
    pub index_offset: u64,
    pub end: u64,
    index: OnceLock<PageIndex>,
    /// Not set if the markers are not known.
    markers: OnceLock<StoredMarkers>,
}

/// Index and filter of a sorted part.
#[derive(Debug)]
pub struct PageIndex {
    pub entries: Vec<IndexEntry>,
    filter: Option<Filter>,
    _charge: MemoryCharge,
}

impl PageIndex {
    pub fn new(
        entries: Vec<IndexEntry>,
        filter: Option<Filter>,
        memory: &MemoryUsage,
    ) -> PageIndex {
        let entry_bytes = entries.iter().map(|it| it.first_key.len() + size_of::<IndexEntry>());
        let bytes = entry_bytes.sum::<usize>() + filter.as_ref().map_or(0, Filter::bytes);
        PageIndex { entries, filter, _charge: memory.charge(bytes) }
    }

    pub fn may_contain(&self, hash: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain(hash))
    }

    /// Returns the only page that may contain the key.
    pub fn find_page(&self, key: &[u8]) -> Option<&IndexEntry> {
        let after = self.entries.partition_point(|entry| *entry.first_key <= *key);
        self.entries.get(after.checked_sub(1)?)
    }
}

impl SortedPart {
    /// Returns a sorted part of an existing file.
    pub fn from_existing(file: Arc<BucketFile>, index_offset: u64, end: u64) -> SortedPart {
        let (index, markers) = (OnceLock::new(), OnceLock::new());
        SortedPart { file, index_offset, end, index, markers }
    }

    /// Writes a sorted part to a new file. Does not sync the file. `records` must be sorted and not empty.
    pub fn write(
        file: Arc<BucketFile>,
        records: &[Record],
        page_bytes: usize,
        memory: &MemoryUsage,
    ) -> Result<SortedPart> {
        let mut out = Vec::new();
        let start = len_u64(HEADER_BYTES);
        let mut entries = Vec::new();
        for page in split_into_pages(records, page_bytes) {
            let (offset, bytes) =
                put_page(&mut out, (file.uid, start), FrameKind::SortedPage, page)?;
            // Copies the key, so that the index does not keep the input records in memory.
            let first_key = Bytes::copy_from_slice(&page[0].key);
            entries.push(IndexEntry { first_key, offset, bytes });
        }
        let index_offset = start + len_u64(out.len());
        put_frame(&mut out, (file.uid, index_offset), FrameKind::Index, |out| {
            put_index(out, &entries);
        })?;
        let keys = records.chunk_by(|a, b| a.key == b.key).map(|group| &group[0].key);
        let mut hashes: Vec<u64> = keys.map(|key| filter::key_hash(key)).collect();
        // Empty filter contents match every key.
        let contents = filter::build_filter(&mut hashes, FilterWidth::Fuse8).unwrap_or_default();
        let offset = start + len_u64(out.len());
        put_frame(&mut out, (file.uid, offset), FrameKind::Filter, |out| {
            out.extend_from_slice(&contents);
        })?;
        file.append(&out)?;
        let end = start + len_u64(out.len());
        let part = SortedPart::from_existing(file, index_offset, end);
        let filter = Filter::new(contents.into()).ok();
        let _ = part.index.set(PageIndex::new(entries, filter, memory));
        Ok(part)
    }

    /// Returns the smallest sequence number of the delete markers, or 0 if they are not known.
    pub fn oldest_marker(&self) -> Option<SeqNo> {
        self.markers.get().map_or(Some(SeqNo::ZERO), StoredMarkers::oldest)
    }

    /// Returns true if a collection can remove operands of the request, or if the markers are not known.
    pub fn is_removal_due(&self, request: &RemovalRequest) -> bool {
        self.markers.get().is_none_or(|markers| markers.is_removal_due(request))
    }

    /// Sets the delete markers of the part if they are not known.
    pub fn set_markers(&self, markers: StoredMarkers) {
        let _ = self.markers.set(markers);
    }

    pub fn index_if_loaded(&self) -> Option<&PageIndex> {
        self.index.get()
    }

    /// Returns the index and filter. The first call reads them from the file.
    pub fn load_index(
        &self,
        reader: &mut BucketReader<'_>,
        memory: &MemoryUsage,
    ) -> Result<&PageIndex> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let bytes = reader.read(&self.file, self.index_offset, self.end)?;
        let (mut entries, mut filter) = (None, None);
        for_each_frame(&bytes, &self.file, self.index_offset, |kind, contents, _, _| {
            match kind {
                FrameKind::Index if entries.is_none() => {
                    entries = Some(decode_index(&contents, self.index_offset)?);
                }
                FrameKind::Filter if entries.is_some() && filter.is_none() => {
                    filter = Some(match contents.is_empty() {
                        true => None,
                        false => Some(Filter::new(Bytes::copy_from_slice(&contents))?),
                    });
                }
                other => return Err(other.unexpected_kind("an index, then a filter")),
            }
            Ok(())
        })?;
        let (Some(entries), Some(filter)) = (entries, filter) else {
            let what = "index and filter of a bucket";
            let malformed = Malformed::Truncated { what, needed: 2, found: 0 };
            return Err(Error::malformed(malformed, &self.file.path, self.index_offset));
        };
        Ok(self.index.get_or_init(|| PageIndex::new(entries, filter, memory)))
    }
}

/// Splits records into pages of at least `page_bytes`. All records of a key are in the same page. The last page may be
/// smaller.
pub fn split_into_pages(records: &[Record], page_bytes: usize) -> impl Iterator<Item = &[Record]> {
    let mut left = records;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let full = left.iter().position(|record| {
            bytes += record.size();
            bytes >= page_bytes
        });
        let end = full.map_or(left.len(), |full| {
            let key = &left[full].key;
            let next_key = left[full..].iter().position(|record| record.key != *key);
            next_key.map_or(left.len(), |count| full + count)
        });
        let (page, rest) = left.split_at(end);
        left = rest;
        (!page.is_empty()).then_some(page)
    })
}

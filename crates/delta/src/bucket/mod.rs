//! Bucket: all merge operands and delete markers of a key range.
//!
//! A bucket has three parts:
//! - the *sorted part*: the pages that the last collection wrote, with an index and a filter,
//! - the *extents*: pages that deliveries appended to files since then, when the tail grew too long,
//! - the *tail*: the newest records, which are in memory and in the store's log.
//!
//! A bucket is immutable. A delivery replaces the bucket by a new one that has the added records and shares all other
//! parts.

pub mod extent;
pub mod lookup;
pub mod markers;
pub mod reader;
pub mod sorted_part;
pub mod tail;
pub mod verify;
pub mod window;

use bytes::Bytes;
use lsmx::Result;
use lsmx_base::coding::len_u64;
use lsmx_base::filter::key_hash;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use self::extent::{Extent, fingerprint};
use self::markers::{RemovalRequest, StoredMarkers};
use self::reader::{BucketReader, for_each_frame};
use self::sorted_part::SortedPart;
use self::tail::Tail;
use crate::files::{BucketFile, FileTable};
use crate::format::frame::FrameKind;
use crate::format::header::HEADER_BYTES;
use crate::format::log::{BucketEntry, ExtentSpan, SortedSpan};
use crate::format::record::{Record, decode_records};

/// All merge operands and delete markers of a key range.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Unique id. A delivery keeps the id of the bucket that it replaces; a collection allocates new ids.
    pub id: u64,
    /// Start of the key range. The range ends at the smallest key of the next bucket.
    pub smallest_key: Bytes,
    /// Upper bound of the sequence numbers in the sorted part.
    ///
    /// The collection that created the bucket read all records up to this number. It also applied all range delete
    /// markers up to this number.
    pub collected_through: SeqNo,
    /// Size of the sorted part, in bytes. A collection creates a bucket with this size.
    pub collected_bytes: u64,
    /// Id of the next bucket, if one split created both buckets. Such a pair is not merged again.
    pub split_sibling: Option<u64>,
    pub sorted: Option<Arc<SortedPart>>,
    /// Ordered from oldest to newest.
    pub extents: Vec<Arc<Extent>>,
    pub tail: Arc<Tail>,
}

impl Bucket {
    /// Returns a bucket without files.
    pub fn new(id: u64, smallest_key: Bytes, collected_through: SeqNo, tail: Arc<Tail>) -> Bucket {
        Bucket {
            id,
            smallest_key,
            collected_through,
            collected_bytes: 0,
            split_sibling: None,
            sorted: None,
            extents: Vec::new(),
            tail,
        }
    }

    /// Converts a log entry to a bucket. The bucket gets `tail` instead of the tail in the entry.
    pub fn from_entry(entry: &BucketEntry, tail: Tail, table: &Arc<FileTable>) -> Bucket {
        let sorted = entry.sorted.map(|span| {
            let file = table.from_existing(span.number, span.uid);
            Arc::new(SortedPart::from_existing(file, span.index_offset, span.end))
        });
        let extent = |span: &ExtentSpan| {
            let file = table.from_existing(span.number, span.uid);
            Arc::new(Extent::from_existing(file, span.start, span.end))
        };
        let (smallest_key, tail) = (entry.smallest_key.clone(), Arc::new(tail));
        Bucket {
            collected_bytes: sorted.as_ref().map_or(0, |sorted| sorted.end),
            sorted,
            extents: entry.extents.iter().map(extent).collect(),
            ..Bucket::new(entry.id, smallest_key, entry.collected_through, tail)
        }
    }

    pub fn to_entry(&self) -> BucketEntry {
        let sorted = self.sorted.as_ref().map(|sorted| SortedSpan {
            number: sorted.file.number,
            uid: sorted.file.uid,
            index_offset: sorted.index_offset,
            end: sorted.end,
        });
        let extents = self.extents.iter().map(|extent| ExtentSpan {
            number: extent.file.number,
            uid: extent.file.uid,
            start: extent.start,
            end: extent.end,
        });
        BucketEntry {
            id: self.id,
            smallest_key: self.smallest_key.clone(),
            collected_through: self.collected_through,
            sorted,
            extents: extents.collect(),
            tail: self.tail.bytes().clone(),
        }
    }

    /// Returns whether both buckets have the same sorted part and the same extents.
    pub fn has_same_stored_pages(&self, other: &Bucket) -> bool {
        let sorted = |bucket: &Bucket| bucket.sorted.as_ref().map(|it| (it.file.number, it.end));
        let part = |it: &Arc<Extent>| (it.file.number, it.start, it.end);
        sorted(self) == sorted(other)
            && self.extents.iter().map(part).eq(other.extents.iter().map(part))
    }

    /// Returns the size of the sorted part and the extents, in bytes.
    pub fn file_bytes(&self) -> u64 {
        let sorted = self.sorted.as_ref().map_or(0, |sorted| sorted.end);
        let extents = self.extents.iter().map(|extent| extent.end - extent.start);
        extents.fold(sorted, u64::saturating_add)
    }

    /// Returns the size of the sorted part, the extents and the tail, in bytes.
    pub fn bytes(&self) -> u64 {
        self.file_bytes().saturating_add(len_u64(self.tail.bytes().len()))
    }

    pub fn is_empty(&self) -> bool {
        self.sorted.is_none() && self.extents.is_empty() && self.tail.is_empty()
    }

    /// Returns the files of the sorted part and the extents. A file may occur more than once.
    pub fn files(&self) -> impl Iterator<Item = &Arc<BucketFile>> {
        let sorted = self.sorted.iter().map(|sorted| &sorted.file);
        sorted.chain(self.extents.iter().map(|extent| &extent.file))
    }

    /// Returns the smallest sequence number of the delete markers in the bucket, or 0 if they are not known.
    pub fn oldest_marker(&self) -> Option<SeqNo> {
        let in_sorted = self.sorted.iter().filter_map(|it| it.oldest_marker());
        let in_extents = self.extents.iter().filter_map(|it| it.oldest_marker());
        in_sorted.chain(in_extents).chain(self.tail.oldest_marker).min()
    }

    /// Returns true if a collection can remove operands of the request from the bucket.
    pub fn is_removal_due(&self, request: &RemovalRequest) -> bool {
        let in_extents = self.extents.iter().filter_map(|it| it.oldest_marker());
        in_extents.chain(self.tail.oldest_marker).any(|oldest| oldest <= request.through)
            || self.sorted.as_ref().is_some_and(|it| it.is_removal_due(request))
    }

    /// Records that the bucket contains no delete markers.
    pub fn set_without_markers(&self) {
        if let Some(sorted) = &self.sorted {
            sorted.set_markers(StoredMarkers::default());
        }
        self.extents.iter().for_each(|extent| extent.set_oldest_marker(None));
    }

    /// Returns whether a failed sync may have lost pages of the bucket.
    pub fn may_have_lost_pages(&self) -> bool {
        let in_sorted = self.sorted.as_ref().is_some_and(|it| it.file.may_have_lost_bytes(it.end));
        in_sorted || self.extents.iter().any(|extent| extent.file.may_have_lost_bytes(extent.end))
    }

    /// Returns whether the bucket may contain the key. Uses only data in memory.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        let hash = key_hash(key);
        let in_tail = self.tail.records_of_key(key, fingerprint(hash)).next().is_some();
        in_tail || self.files_may_contain(hash)
    }

    /// Returns whether the sorted part or an extent may contain a key with this hash. Uses only data in memory.
    pub fn files_may_contain(&self, hash: u64) -> bool {
        let print = fingerprint(hash);
        let in_pages = |extent: &Arc<Extent>| {
            extent
                .pages_if_loaded()
                .is_none_or(|pages| pages.iter().any(|it| it.may_contain(print)))
        };
        let in_sorted = |sorted: &Arc<SortedPart>| {
            sorted.index_if_loaded().is_none_or(|index| index.may_contain(hash))
        };
        self.extents.iter().any(in_pages) || self.sorted.as_ref().is_some_and(in_sorted)
    }

    /// Returns true if the bucket has no record of the key with a sequence number above `after`.
    ///
    /// `after` must be at least [`Bucket::collected_through`], because the sorted part is not checked. Reads no file.
    /// Returns false if the page summaries of an extent are not in memory.
    pub fn has_no_record_above(&self, key: &[u8], after: SeqNo) -> bool {
        let print = fingerprint(key_hash(key));
        let is_unchanged = |extent: &Arc<Extent>| {
            extent.pages_if_loaded().is_some_and(|pages| {
                pages.iter().all(|page| page.last <= after || !page.may_contain(print))
            })
        };
        let mut tail = self.tail.records_of_key(key, print);
        let in_tail = self.tail.newest > after && tail.any(|record| record.last > after);
        !in_tail && self.extents.iter().all(is_unchanged)
    }

    /// Reads all records of the bucket in record order. Parts that are adjacent in a file are read with one call.
    pub fn read_records(&self, reader: &mut BucketReader<'_>) -> Result<Vec<Record>> {
        let mut spans: Vec<(&Arc<BucketFile>, u64, u64)> = Vec::new();
        if let Some(sorted) = &self.sorted {
            spans.push((&sorted.file, len_u64(HEADER_BYTES), sorted.end));
        }
        for extent in &self.extents {
            match spans.last_mut() {
                Some((file, _, end))
                    if file.number == extent.file.number && *end == extent.start =>
                {
                    *end = extent.end;
                }
                _ => spans.push((&extent.file, extent.start, extent.end)),
            }
        }
        let mut records = Vec::new();
        for (file, start, end) in spans {
            let bytes = reader.read(file, start, end)?;
            for_each_frame(&bytes, file, start, |kind, contents, _, _| {
                match kind {
                    FrameKind::SortedPage | FrameKind::UnsortedPage => {
                        records.append(&mut decode_records(&contents)?);
                    }
                    FrameKind::Index | FrameKind::Filter => {}
                    other => return Err(other.unexpected_kind("a frame of a bucket file")),
                }
                Ok(())
            })?;
        }
        records.extend(self.tail.records());
        records.sort_by(Record::cmp_by_key_and_seq);
        Ok(records)
    }
}

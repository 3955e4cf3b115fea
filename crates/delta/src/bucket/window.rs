//! Windows of a bucket: the records in a part of the bucket's key range. A cursor reads a bucket window by window.
//!
//! A short scan thus reads only a part of a bucket. The first window reads all unsorted pages, because each of them may
//! contain any key of the bucket. From the sorted part, each window reads only the pages of its key range.

use std::ops::Range;

use bytes::Bytes;
use lsmx::{Error, Result};
use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::sync::Arc;

use super::Bucket;
use super::extent::Extent;
use super::lookup::GAP_BYTES_MAX;
use super::reader::{BucketReader, for_each_frame};
use crate::files::BucketFile;
use crate::format::frame::FrameKind;
use crate::format::index::{INDEX_MISMATCH, IndexEntry};
use crate::format::record::{Record, SortedRecords};
use crate::memory::MemoryUsage;

/// Records with keys in `start..end`.
#[derive(Debug, Default)]
pub struct Window {
    /// Smallest key of the window. Empty at the start of the bucket.
    pub start: Bytes,
    /// Exclusive end. `None` at the end of the bucket.
    pub end: Option<Bytes>,
    /// Ordered by ascending key, then by descending sequence number.
    pub records: Vec<Record>,
}

impl Window {
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.start <= *key && self.end.as_ref().is_none_or(|end| *key < **end)
    }
}

/// Position of a window in the bucket.
#[derive(Clone, Copy, Debug)]
pub enum WindowPosition<'a> {
    /// The window starts at this key.
    From(&'a [u8]),
    /// The window ends before this key. `None` stands for the end of the bucket.
    Before(Option<&'a [u8]>),
}

/// Assumed size of a record in bytes. A window reads this many bytes of the sorted part per requested record.
const SORTED_BYTES_PER_RECORD: u64 = 512;

/// Reads windows of one bucket. Keeps the pages in memory, so that no page is decoded twice.
#[derive(Debug)]
pub struct WindowReader {
    pub bucket: Arc<Bucket>,
    /// The records of the tail and of each page that was read. Each element is sorted by key.
    runs: Vec<SortedRecords>,
    read_unsorted: bool,
    /// Indexes of those pages of the sorted part that were read, in ascending order.
    sorted_pages: Vec<usize>,
}

/// A contiguous part of a file that consists of complete pages.
struct PageSpan {
    file: Arc<BucketFile>,
    range: Range<u64>,
}

impl WindowReader {
    pub fn new(bucket: Arc<Bucket>) -> WindowReader {
        let runs = vec![bucket.tail.encoded().clone()];
        WindowReader { bucket, runs, read_unsorted: false, sorted_pages: Vec::new() }
    }

    /// Reads a window of at least `count` records. The window has fewer records only if the bucket ends before.
    pub fn read(
        &mut self,
        position: WindowPosition<'_>,
        count: usize,
        reader: &mut BucketReader<'_>,
        memory: &MemoryUsage,
    ) -> Result<Window> {
        let bucket = self.bucket.clone();
        let entries = match &bucket.sorted {
            Some(sorted) => &*sorted.load_index(reader, memory)?.entries,
            None => &[],
        };
        let pages = select_pages(entries, position, count);
        self.load(pages.clone(), entries, reader)?;
        Ok(match position {
            WindowPosition::From(start) => self.window_from(start, count, pages.end, entries),
            WindowPosition::Before(end) => self.window_before(end, count, pages.start, entries),
        })
    }

    /// Gives read-ahead hints for the pages that [`WindowReader::read`] reads with the same arguments.
    ///
    /// If the index of the sorted part is not in memory, gives hints only for the unsorted pages.
    pub fn prefetch(&self, position: WindowPosition<'_>, count: usize, memory: &MemoryUsage) {
        let reader = &mut BucketReader::for_memory();
        let index = self.bucket.sorted.as_ref().map(|sorted| sorted.load_index(reader, memory));
        let entries = match &index {
            Some(Ok(index)) => &*index.entries,
            _ => &[],
        };
        let spans = self.missing_spans(select_pages(entries, position, count), entries);
        for group in spans.chunk_by(can_share_read) {
            if let (Some(first), Some(last)) = (group.first(), group.last()) {
                first.file.prefetch(first.range.start, last.range.end);
            }
        }
    }

    /// Returns the window from `start`, after the pages of the sorted part before page `after` have been read.
    fn window_from(
        &self,
        start: &[u8],
        count: usize,
        after: usize,
        entries: &[IndexEntry],
    ) -> Window {
        let mut end = entries.get(after).map(|entry| &*entry.first_key);
        for run in &self.runs {
            // The window must end at a key after `start`, so that it contains all records of `start`.
            let index = run.lower_bound(start).saturating_add(count).max(run.upper_bound(start));
            let key = (index < run.len()).then(|| run.record(index).key);
            end = end.into_iter().chain(key).min();
        }
        self.window(start, end)
    }

    /// Returns the window that ends before `end`, after the pages of the sorted part from page `first` have been read.
    fn window_before(
        &self,
        end: Option<&[u8]>,
        count: usize,
        first: usize,
        entries: &[IndexEntry],
    ) -> Window {
        // The first window starts at the start of the bucket's key range, before the first key in the index.
        let mut start = if first > 0 { &*entries[first].first_key } else { &[] };
        for run in &self.runs {
            let after = end.map_or(run.len(), |end| run.lower_bound(end));
            if let Some(index) = after.checked_sub(count).filter(|index| *index < after) {
                start = start.max(run.record(index).key);
            }
        }
        self.window(start, end)
    }

    fn window(&self, start: &[u8], end: Option<&[u8]>) -> Window {
        let mut records = Vec::new();
        for run in &self.runs {
            let after = end.map_or(run.len(), |end| run.lower_bound(end));
            records.extend((run.lower_bound(start)..after).map(|index| run.owned_record(index)));
        }
        // The runs are sorted, and the stable sort merges them efficiently.
        records.sort_by(Record::cmp_by_key_and_seq);
        // Copies the bounds, so that they do not keep a page in memory.
        let copy = |key| Bytes::copy_from_slice(key);
        Window { start: copy(start), end: end.map(copy), records }
    }

    /// Returns the unsorted pages and the given pages of the sorted part, without those that were read before.
    fn missing_spans(&self, pages: Range<usize>, entries: &[IndexEntry]) -> Vec<PageSpan> {
        let mut spans = Vec::new();
        let mut missing = pages.filter(|page| self.sorted_pages.binary_search(page).is_err());
        if let (Some(sorted), Some(first)) = (&self.bucket.sorted, missing.next()) {
            let last = &entries[missing.next_back().unwrap_or(first)];
            let range = entries[first].offset..last.offset + last.bytes;
            spans.push(PageSpan { file: sorted.file.clone(), range });
        }
        if !self.read_unsorted {
            let span =
                |it: &Arc<Extent>| PageSpan { file: it.file.clone(), range: it.start..it.end };
            spans.extend(self.bucket.extents.iter().map(span));
        }
        spans
    }

    /// Reads the unsorted pages and the given pages of the sorted part into `runs`. Skips pages that were read before.
    fn load(
        &mut self,
        pages: Range<usize>,
        entries: &[IndexEntry],
        reader: &mut BucketReader<'_>,
    ) -> Result<()> {
        let spans = self.missing_spans(pages, entries);
        let (mut runs, mut sorted_pages) = (Vec::new(), self.sorted_pages.clone());
        for group in spans.chunk_by(can_share_read) {
            let (Some(PageSpan { file, range: first }), Some(last)) = (group.first(), group.last())
            else {
                continue;
            };
            let bytes: Bytes = reader.read(file, first.start, last.range.end)?;
            for PageSpan { range, .. } in group {
                let located = |malformed| Error::malformed(malformed, &file.path, range.start);
                let from =
                    to_usize("offset of a page", range.start - first.start).map_err(located)?;
                let to = to_usize("offset of a page", range.end - first.start).map_err(located)?;
                for_each_frame(
                    &bytes.slice(from..to),
                    file,
                    range.start,
                    |kind, contents, offset, _| {
                        if kind == FrameKind::SortedPage {
                            let page = entries.binary_search_by_key(&offset, |entry| entry.offset);
                            let page = page.map_err(|_| INDEX_MISMATCH)?;
                            match sorted_pages.binary_search(&page) {
                                Ok(_) => return Ok(()),
                                Err(index) => sorted_pages.insert(index, page),
                            }
                        } else {
                            kind.check_kind(FrameKind::UnsortedPage)?;
                        }
                        runs.push(SortedRecords::decode(contents)?);
                        Ok(())
                    },
                )?;
            }
        }
        self.runs.append(&mut runs);
        (self.sorted_pages, self.read_unsorted) = (sorted_pages, true);
        Ok(())
    }
}

/// Returns the pages of the sorted part that a window of `count` records reads.
fn select_pages(
    entries: &[IndexEntry],
    position: WindowPosition<'_>,
    count: usize,
) -> Range<usize> {
    match position {
        WindowPosition::From(start) => {
            let after_start = entries.partition_point(|entry| *entry.first_key <= *start);
            let first = after_start.saturating_sub(1);
            first..first + count_pages(entries[first..].iter(), count)
        }
        WindowPosition::Before(end) => {
            let before = |end: &[u8]| entries.partition_point(|entry| *entry.first_key < *end);
            let after = end.map_or(entries.len(), before);
            after - count_pages(entries[..after].iter().rev(), count)..after
        }
    }
}

/// Returns the number of pages of the sorted part that a window of `count` records reads.
fn count_pages<'a>(entries: impl Iterator<Item = &'a IndexEntry>, count: usize) -> usize {
    let wanted = SORTED_BYTES_PER_RECORD.saturating_mul(len_u64(count));
    let mut bytes = 0_u64;
    let is_needed = |entry: &&IndexEntry| {
        let needed = bytes < wanted;
        bytes = bytes.saturating_add(entry.bytes);
        needed
    };
    entries.take_while(is_needed).count()
}

/// Returns whether one call should read both spans. Reading a short gap takes less time than a second read.
fn can_share_read(before: &PageSpan, next: &PageSpan) -> bool {
    let gap = next.range.start.checked_sub(before.range.end);
    before.file.number == next.file.number && gap.is_some_and(|gap| gap <= GAP_BYTES_MAX)
}

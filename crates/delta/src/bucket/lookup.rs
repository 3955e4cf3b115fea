//! Lookup of one key in a bucket.
//!
//! A bucket consists of a tail in memory, of extents with unsorted pages in files, and of a sorted part in a file.
//!
//! 1. Search the tail. If it has a delete marker of the key, older records are obsolete, and pages with only older
//!    records are skipped.
//! 2. Select the unsorted pages with a fingerprint of the key and with relevant sequence numbers.
//! 3. Select one page of the sorted part if its filter may contain the key.
//! 4. Read the selected pages. Pages that are close together in a file are read with one call, because reading the
//!    bytes between them takes less time than a second read.

use std::ops::Range;

use bytes::Bytes;
use lsmx::{Error, Result};
use lsmx_base::coding::to_usize;
use lsmx_base::filter::key_hash;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use super::Bucket;
use super::extent::fingerprint;
use super::reader::BucketReader;
use crate::files::BucketFile;
use crate::format::frame::{FrameKind, decode_frame};
use crate::format::record::{Record, for_each_record};
use crate::memory::MemoryUsage;

/// Key and range of sequence numbers that a lookup searches for.
#[derive(Clone, Copy, Debug)]
pub struct KeyQuery<'a> {
    pub key: &'a [u8],
    /// Exclusive lower bound. `None` for no bound.
    pub after: Option<SeqNo>,
    /// Inclusive upper bound.
    pub at: SeqNo,
    /// Records with smaller sequence numbers are obsolete. A lookup may omit them.
    pub void_below: SeqNo,
}

impl KeyQuery<'_> {
    fn includes(&self, last: SeqNo) -> bool {
        last <= self.at && self.after.is_none_or(|after| last > after)
    }
}

/// An operand or a delete marker of the queried key.
#[derive(Clone, Debug)]
pub struct FoundRecord {
    pub first: SeqNo,
    pub last: SeqNo,
    /// `None` for a delete marker.
    pub operand: Option<Bytes>,
}

/// Selected pages of one file, as offset ranges in ascending order.
struct FilePages<'a> {
    file: &'a Arc<BucketFile>,
    pages: Vec<Range<u64>>,
}

/// Returns the records that match the query, in any order. Some of them may be obsolete.
pub fn find_records(
    bucket: &Bucket,
    query: KeyQuery<'_>,
    reader: &mut BucketReader<'_>,
    memory: &MemoryUsage,
) -> Result<Vec<FoundRecord>> {
    let (mut found, selected) = select_pages(bucket, query, reader, memory)?;
    for FilePages { file, pages } in &selected {
        for group in group_reads(pages) {
            read_pages(file, group, query, reader, &mut found)?;
        }
    }
    Ok(found)
}

/// Gives read-ahead hints for the pages that [`find_records`] reads.
///
/// Gives no hints if the index or the page summaries that select these pages are not in memory.
pub fn prefetch_records(bucket: &Bucket, query: KeyQuery<'_>, memory: &MemoryUsage) {
    let reader = &mut BucketReader::for_memory();
    let Ok((_, selected)) = select_pages(bucket, query, reader, memory) else { return };
    for FilePages { file, pages } in &selected {
        for group in group_reads(pages) {
            let span = pages_span(group);
            file.prefetch(span.start, span.end);
        }
    }
}

/// Returns the matching records of the tail, and the pages that the lookup has to read.
fn select_pages<'a>(
    bucket: &'a Bucket,
    query: KeyQuery<'_>,
    reader: &mut BucketReader<'_>,
    memory: &MemoryUsage,
) -> Result<(Vec<FoundRecord>, Vec<FilePages<'a>>)> {
    let mut found = Vec::new();
    let hash = key_hash(query.key);
    let print = fingerprint(hash);
    let mut void_below = query.void_below;
    let in_tail = bucket.tail.records_of_key(query.key, print);
    for record in in_tail.filter(|record| query.includes(record.last)) {
        if record.operand.is_none() {
            void_below = void_below.max(record.last);
        }
        let Record { first, last, operand, .. } = bucket.tail.to_record(record);
        found.push(FoundRecord { first, last, operand });
    }
    let mut selected = Vec::new();
    for extent in &bucket.extents {
        for page in extent.load_pages(reader, memory)? {
            let is_relevant = page.last >= void_below
                && page.first <= query.at
                && query.after.is_none_or(|after| page.last > after);
            if is_relevant && page.may_contain(print) {
                add_page(&mut selected, &extent.file, page.offset, page.bytes);
            }
        }
    }
    if let Some(sorted) = &bucket.sorted
        && bucket.collected_through >= void_below
        && query.after.is_none_or(|after| bucket.collected_through > after)
    {
        let index = sorted.load_index(reader, memory)?;
        if index.may_contain(hash)
            && let Some(page) = index.find_page(query.key)
        {
            add_page(&mut selected, &sorted.file, page.offset, page.bytes);
        }
    }
    for FilePages { pages, .. } in &mut selected {
        pages.sort_unstable_by_key(|page| page.start);
    }
    Ok((found, selected))
}

fn add_page<'a>(
    selected: &mut Vec<FilePages<'a>>,
    file: &'a Arc<BucketFile>,
    offset: u64,
    bytes: u64,
) {
    let page = offset..offset + bytes;
    match selected.iter_mut().find(|pages| pages.file.number == file.number) {
        Some(pages) => pages.pages.push(page),
        None => selected.push(FilePages { file, pages: vec![page] }),
    }
}

/// Maximum gap between two pages that one call reads, in bytes.
///
/// A device reads a gap of this size faster than it serves a second read. A larger limit would delay other reads.
pub const GAP_BYTES_MAX: u64 = 32 << 10;

/// Divides ascending pages into groups. The pages of a group are read with one call.
///
/// Returns a single group if the average gap is at most [`GAP_BYTES_MAX`]. Otherwise each larger gap ends a group.
fn group_reads(pages: &[Range<u64>]) -> impl Iterator<Item = &[Range<u64>]> {
    let gaps = pages.windows(2).map(|pair| gap_bytes_between(&pair[0], &pair[1]));
    let (gap_bytes, limit) = gaps.fold((0_u64, 0_u64), |(bytes, limit), gap| {
        (bytes.saturating_add(gap), limit.saturating_add(GAP_BYTES_MAX))
    });
    let read_all = gap_bytes <= limit;
    pages.chunk_by(move |a, b| read_all || gap_bytes_between(a, b) <= GAP_BYTES_MAX)
}

fn pages_span(pages: &[Range<u64>]) -> Range<u64> {
    let start = pages.first().map_or(0, |page| page.start);
    start..pages.last().map_or(start, |page| page.end)
}

fn gap_bytes_between(a: &Range<u64>, b: &Range<u64>) -> u64 {
    b.start.saturating_sub(a.end)
}

/// Reads the pages of one group with one call and adds the matching records to `found`.
fn read_pages(
    file: &BucketFile,
    pages: &[Range<u64>],
    query: KeyQuery<'_>,
    reader: &mut BucketReader<'_>,
    found: &mut Vec<FoundRecord>,
) -> Result<()> {
    let span = pages_span(pages);
    let bytes = reader.read(file, span.start, span.end)?;
    for page in pages {
        let offset = page.start;
        let located = |malformed: Malformed| Error::malformed(malformed, &file.path, offset);
        let at = to_usize("offset of a page", offset - span.start).map_err(located)?;
        let (kind, contents, _) =
            decode_frame(&bytes[at..], (file.uid, offset)).map_err(located)?;
        if !matches!(kind, FrameKind::SortedPage | FrameKind::UnsortedPage) {
            return Err(located(kind.unexpected_kind("a page")));
        }
        for_each_record(contents, |_, record| {
            if record.key == query.key && query.includes(record.last) {
                // Copies the operand, so that it does not keep the page in memory.
                let operand = record.operand.map(Bytes::copy_from_slice);
                found.push(FoundRecord { first: record.first, last: record.last, operand });
            }
        })
        .map_err(located)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4 << 10;

    /// Returns the number of pages in each group.
    fn pages_per_read(offsets: &[u64]) -> Vec<usize> {
        let pages: Vec<_> = offsets.iter().map(|offset| *offset..*offset + PAGE).collect();
        group_reads(&pages).map(<[_]>::len).collect()
    }

    #[test]
    fn group_reads_close_neighbours_share_a_read() {
        assert!(pages_per_read(&[]).is_empty());
        assert_eq!(pages_per_read(&[70]), [1]);
        assert_eq!(pages_per_read(&[70, 70 + PAGE]), [2]);
        assert_eq!(pages_per_read(&[70, 70 + PAGE + GAP_BYTES_MAX]), [2]);
        assert_eq!(pages_per_read(&[70, 71 + PAGE + GAP_BYTES_MAX]), [1, 1]);
        let far = 4 * GAP_BYTES_MAX;
        assert_eq!(pages_per_read(&[0, far, far + PAGE, 2 * far]), [1, 2, 1]);
    }

    #[test]
    fn group_reads_small_average_gap_shares_one_read() {
        let (mut offsets, far) = (vec![0], 2 * GAP_BYTES_MAX);
        offsets.push(PAGE + far);
        assert_eq!(pages_per_read(&offsets), [1, 1]);
        offsets.push(PAGE + far + PAGE);
        assert_eq!(pages_per_read(&offsets), [3]);
        offsets[2] += 1;
        assert_eq!(pages_per_read(&offsets), [1, 2]);
    }
}

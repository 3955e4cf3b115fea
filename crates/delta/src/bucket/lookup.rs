//! What a bucket has of one key.
//!
//! 1. Its tail, in memory. An anchor there ends what is older.
//! 2. Pages of the unsorted part whose fingerprints have the key, and whose numbers matter.
//! 3. A page of the sorted part, if its filter lets the key pass.
//!
//! Pages that lie close together in one file are read at once: a device takes longer for a second read
//! than for what lies between.

use bytes::Bytes;
use lsmx::{Error, Malformed, Result, SeqNo};
use lsmx_base::coding::to_usize;
use lsmx_base::filter::key_hash;
use lsmx_base::sync::Arc;

use super::Bucket;
use super::extent::fingerprint;
use super::reading::Reading;
use crate::charge::Memory;
use crate::files::BucketFile;
use crate::format::frame::{FrameKind, decode_frame};
use crate::format::record::{self, Record};

/// Which records of a key are asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a [u8],
    /// Only newer than this, if there is one.
    pub(crate) after: Option<SeqNo>,
    /// Not newer than this.
    pub(crate) at: SeqNo,
    /// What is older is void, whatever the bucket says.
    pub(crate) void_below: SeqNo,
}

impl Wanted<'_> {
    fn has(&self, last: SeqNo) -> bool {
        last <= self.at && self.after.is_none_or(|after| last > after)
    }
}

/// An operand or an anchor of the key that was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) first: SeqNo,
    pub(crate) last: SeqNo,
    /// None: an anchor.
    pub(crate) operand: Option<Bytes>,
}

/// Pages of one file, sorted once all are there.
struct Pages<'a> {
    file: &'a Arc<BucketFile>,
    /// Offset and bytes.
    pages: Vec<(u64, u64)>,
}

/// Adds a page to those of its file.
fn need<'a>(needed: &mut Vec<Pages<'a>>, file: &'a Arc<BucketFile>, page: (u64, u64)) {
    match needed.iter_mut().find(|pages| pages.file.number == file.number) {
        Some(pages) => pages.pages.push(page),
        None => needed.push(Pages { file, pages: vec![page] }),
    }
}

impl Bucket {
    /// What is wanted, in no order; some may be void.
    pub(crate) fn records_of(
        &self,
        wanted: Wanted<'_>,
        reading: &mut Reading<'_>,
        memory: &Memory,
    ) -> Result<Vec<Found>> {
        let (mut found, needed) = self.plan(wanted, reading, memory)?;
        for pages in needed {
            pages.read(wanted, reading, &mut found)?;
        }
        Ok(found)
    }

    /// Says which pages [`records_of`](Self::records_of) will read, if memory can tell.
    pub(crate) fn will_need(&self, wanted: Wanted<'_>, memory: &Memory) {
        let Ok((_, needed)) = self.plan(wanted, &mut Reading::in_memory(), memory) else { return };
        for Pages { file, pages } in &needed {
            for near in reads(pages) {
                let (from, to) = ends(near);
                file.will_need(from, to);
            }
        }
    }

    /// What the tail has, and pages to read, in order.
    fn plan(
        &self,
        mut wanted: Wanted<'_>,
        reading: &mut Reading<'_>,
        memory: &Memory,
    ) -> Result<(Vec<Found>, Vec<Pages<'_>>)> {
        let mut found = Vec::new();
        let asked = wanted;
        let hash = key_hash(asked.key);
        let print = fingerprint(hash);
        for record in self.tail.of_key(asked.key, print).filter(|record| asked.has(record.last)) {
            if record.operand.is_none() {
                wanted.void_below = wanted.void_below.max(record.last);
            }
            let Record { first, last, operand, .. } = self.tail.shared(record);
            found.push(Found { first, last, operand });
        }
        let mut needed = Vec::new();
        for extent in &self.extents {
            for page in extent.pages(reading, memory)? {
                let matters = page.last >= wanted.void_below
                    && page.first <= wanted.at
                    && wanted.after.is_none_or(|after| page.last > after);
                if matters && page.may_hold(print) {
                    need(&mut needed, &extent.file, (page.offset, page.bytes));
                }
            }
        }
        if let Some(sorted) = &self.sorted
            && self.made_through >= wanted.void_below
            && wanted.after.is_none_or(|after| self.made_through > after)
        {
            let meta = sorted.meta(reading, memory)?;
            if meta.may_hold(hash)
                && let Some(page) = meta.page(wanted.key)
            {
                need(&mut needed, &sorted.file, (page.offset, page.bytes));
            }
        }
        for pages in &mut needed {
            pages.pages.sort_unstable();
        }
        Ok((found, needed))
    }
}

/// Bytes between two pages up to which one read takes both: a device gives so many in less than the time
/// of a further read, and more would take its time from others.
const GAP_MAX: u64 = 32 << 10;

/// Sorted pages, offset and bytes, by what one read takes: all, if there is no more between two of them on
/// average, as there is of a key with many operands; else neighbours.
fn reads(pages: &[(u64, u64)]) -> impl Iterator<Item = &[(u64, u64)]> {
    let gaps = pages.windows(2).map(|pair| gap(pair[0], pair[1]));
    let (between, most) = gaps.fold((0_u64, 0_u64), |(between, most), gap| {
        (between.saturating_add(gap), most.saturating_add(GAP_MAX))
    });
    let at_once = between <= most;
    pages.chunk_by(move |a, b| at_once || gap(*a, *b) <= GAP_MAX)
}

/// Where the first of sorted pages begins and the last one ends.
fn ends(pages: &[(u64, u64)]) -> (u64, u64) {
    let from = pages.first().map_or(0, |page| page.0);
    (from, pages.last().map_or(from, |page| page.0 + page.1))
}

/// Bytes between two pages.
fn gap(a: (u64, u64), b: (u64, u64)) -> u64 {
    b.0.saturating_sub(a.0 + a.1)
}

impl Pages<'_> {
    fn read(
        self,
        wanted: Wanted<'_>,
        reading: &mut Reading<'_>,
        found: &mut Vec<Found>,
    ) -> Result<()> {
        reads(&self.pages).try_for_each(|pages| self.read_near(pages, wanted, reading, found))
    }

    /// Reads pages that lie close together, in order.
    fn read_near(
        &self,
        pages: &[(u64, u64)],
        wanted: Wanted<'_>,
        reading: &mut Reading<'_>,
        found: &mut Vec<Found>,
    ) -> Result<()> {
        let (from, to) = ends(pages);
        let bytes = reading.read(self.file, from, to)?;
        for (offset, _) in pages {
            let wrong = |what: Malformed| Error::malformed(what, &self.file.path, *offset);
            let at = to_usize("offset of a page", offset - from).map_err(wrong)?;
            let (kind, contents, _) =
                decode_frame(&bytes[at..], (self.file.uid, *offset)).map_err(wrong)?;
            if !matches!(kind, FrameKind::Sorted | FrameKind::Unsorted) {
                return Err(wrong(super::misplaced(kind, "a page")));
            }
            record::for_each(contents, |_, record| {
                if record.key == wanted.key && wanted.has(record.last) {
                    // A copy: what was read need not stay in memory for it.
                    let operand = record.operand.map(Bytes::copy_from_slice);
                    found.push(Found { first: record.first, last: record.last, operand });
                }
            })
            .map_err(wrong)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4 << 10;

    /// How many pages each read takes.
    fn reads_of(offsets: &[u64]) -> Vec<usize> {
        let pages: Vec<_> = offsets.iter().map(|offset| (*offset, PAGE)).collect();
        reads(&pages).map(<[_]>::len).collect()
    }

    #[test]
    fn pages_that_lie_close_together_are_read_at_once() {
        assert!(reads_of(&[]).is_empty());
        assert_eq!(reads_of(&[70]), [1]);
        assert_eq!(reads_of(&[70, 70 + PAGE]), [2]);
        assert_eq!(reads_of(&[70, 70 + PAGE + GAP_MAX]), [2]);
        assert_eq!(reads_of(&[70, 71 + PAGE + GAP_MAX]), [1, 1]);
        let far = 4 * GAP_MAX;
        assert_eq!(reads_of(&[0, far, far + PAGE, 2 * far]), [1, 2, 1]);
    }

    #[test]
    fn pages_are_read_at_once_where_many_lie_close_together_and_few_apart() {
        let (mut offsets, far) = (vec![0], 2 * GAP_MAX);
        offsets.push(PAGE + far);
        assert_eq!(reads_of(&offsets), [1, 1]);
        offsets.push(PAGE + far + PAGE);
        assert_eq!(reads_of(&offsets), [3]);
        offsets[2] += 1;
        assert_eq!(reads_of(&offsets), [1, 2]);
    }
}

//! Unsorted pages of a bucket: a part of a file, and what is known of its pages.
//!
//! Of each page the numbers and a fingerprint per key are in memory, so that a lookup knows which pages
//! it needs. Of an extent of an earlier opening they are read when they are first needed.

use lsmx::{Result, SeqNo};
use lsmx_base::coding::len_u64;
use lsmx_base::filter::key_hash;
use lsmx_base::sync::{Arc, OnceLock};

use super::reading::{Reading, for_each_frame, misplaced};
use crate::charge::{Charge, Memory};
use crate::files::BucketFile;
use crate::format::frame::{FrameKind, put_frame};
use crate::format::record::{self, Record};

/// What a page keeps of a key.
pub(crate) fn fingerprint(hash: u64) -> u16 {
    // The highest 16 bits.
    u16::try_from(hash >> 48).unwrap_or(0)
}

/// An unsorted page.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Smallest and largest number in it.
    pub(crate) first: SeqNo,
    pub(crate) last: SeqNo,
    /// Of its keys, ascending.
    prints: Box<[u16]>,
    _charge: Charge,
}

impl Page {
    fn new<'a>(
        (offset, bytes): (u64, u64),
        records: impl Iterator<Item = (&'a [u8], SeqNo, SeqNo)>,
        memory: &Memory,
    ) -> Page {
        let (mut first, mut last) = (SeqNo::MAX, SeqNo::ZERO);
        let mut prints = Vec::new();
        for (key, from, to) in records {
            first = first.min(from);
            last = last.max(to);
            prints.push(fingerprint(key_hash(key)));
        }
        prints.sort_unstable();
        prints.dedup();
        let _charge = memory.charge(2 * prints.len() + size_of::<Page>());
        Page { offset, bytes, first, last, prints: prints.into(), _charge }
    }

    pub(crate) fn may_hold(&self, print: u16) -> bool {
        self.prints.binary_search(&print).is_ok()
    }
}

/// A part of a file.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) file: Arc<BucketFile>,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pages: OnceLock<Vec<Arc<Page>>>,
}

impl Extent {
    /// One that is there.
    pub(crate) fn existing(file: Arc<BucketFile>, from: u64, to: u64) -> Extent {
        Extent { file, from, to, pages: OnceLock::new() }
    }

    /// One without pages, where the next of `file` will be.
    pub(crate) fn empty(file: Arc<BucketFile>) -> Extent {
        let end = file.end();
        Extent { file, from: end, to: end, pages: OnceLock::from(Vec::new()) }
    }

    /// Appends pages of records in order. Of this extent the pages are known.
    pub(crate) fn append(&self, pages: &[&[Record]], memory: &Memory) -> Result<Extent> {
        let mut out = Vec::new();
        let mut known = self.pages.get().cloned().unwrap_or_default();
        for page in pages {
            let (start, offset) = (out.len(), self.to + len_u64(out.len()));
            put_frame(&mut out, (self.file.uid, offset), FrameKind::Unsorted, |out| {
                page.iter().for_each(|record| record.put(out));
            })?;
            let records = page.iter().map(|record| (&*record.key, record.first, record.last));
            let place = (offset, len_u64(out.len() - start));
            known.push(Arc::new(Page::new(place, records, memory)));
        }
        self.file.append(&out)?;
        let to = self.to + len_u64(out.len());
        let file = self.file.clone();
        Ok(Extent { file, from: self.from, to, pages: OnceLock::from(known) })
    }

    /// What is in memory already.
    pub(crate) fn pages_if_loaded(&self) -> Option<&[Arc<Page>]> {
        self.pages.get().map(Vec::as_slice)
    }

    /// Its pages.
    pub(crate) fn pages(&self, reading: &mut Reading<'_>, memory: &Memory) -> Result<&[Arc<Page>]> {
        if let Some(pages) = self.pages.get() {
            return Ok(pages);
        }
        let bytes = reading.read(&self.file, self.from, self.to)?;
        let mut pages = Vec::new();
        for_each_frame(&bytes, &self.file, self.from, |kind, contents, offset, len| {
            if kind != FrameKind::Unsorted {
                return Err(misplaced(kind, "an unsorted page"));
            }
            let mut records = Vec::new();
            record::for_each(&contents, |_, it| records.push((it.key, it.first, it.last)))?;
            pages.push(Arc::new(Page::new((offset, len), records.into_iter(), memory)));
            Ok(())
        })?;
        Ok(self.pages.get_or_init(|| pages))
    }
}

//! The sorted part of a bucket: pages in key order, behind them index and filter.

use bytes::Bytes;
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::filter::{self, Filter, FilterWidth};
use lsmx_base::sync::{Arc, OnceLock};

use super::reading::{Reading, for_each_frame, misplaced};
use crate::charge::{Charge, Memory};
use crate::files::BucketFile;
use crate::format::frame::{FrameKind, put_frame};
use crate::format::header::HEADER_BYTES;
use crate::format::index::{IndexEntry, decode_index, put_index};
use crate::format::record::Record;

/// A sorted part. Its index and filter are read when they are first needed.
#[derive(Debug)]
pub(crate) struct Sorted {
    pub(crate) file: Arc<BucketFile>,
    pub(crate) index_offset: u64,
    pub(crate) end: u64,
    meta: OnceLock<Meta>,
}

/// What is known of a sorted part in memory.
#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) index: Vec<IndexEntry>,
    filter: Option<Filter>,
    _charge: Charge,
}

impl Meta {
    pub(crate) fn new(index: Vec<IndexEntry>, filter: Option<Filter>, memory: &Memory) -> Meta {
        let keys: usize = index.iter().map(|it| it.first_key.len() + size_of::<IndexEntry>()).sum();
        let bytes = keys + filter.as_ref().map_or(0, Filter::bytes);
        Meta { index, filter, _charge: memory.charge(bytes) }
    }

    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain(hash))
    }

    /// The page that holds the key if one does.
    pub(crate) fn page(&self, key: &[u8]) -> Option<&IndexEntry> {
        let behind = self.index.partition_point(|entry| *entry.first_key <= *key);
        self.index.get(behind.checked_sub(1)?)
    }
}

impl Sorted {
    /// One that is there.
    pub(crate) fn existing(file: Arc<BucketFile>, index_offset: u64, end: u64) -> Sorted {
        Sorted { file, index_offset, end, meta: OnceLock::new() }
    }

    /// Writes records in order, of one or more keys, to a new file. It is not synced.
    pub(crate) fn write(
        file: Arc<BucketFile>,
        records: &[Record],
        page_bytes: usize,
        memory: &Memory,
    ) -> Result<Sorted> {
        let mut out = Vec::new();
        let from = len_u64(HEADER_BYTES);
        let mut index = Vec::new();
        for page in pages(records, page_bytes) {
            let (start, offset) = (out.len(), from + len_u64(out.len()));
            put_frame(&mut out, (file.uid, offset), FrameKind::Sorted, |out| {
                page.iter().for_each(|record| record.put(out));
            })?;
            index.push(IndexEntry {
                // A copy: the page's bytes need not stay for it.
                first_key: Bytes::copy_from_slice(&page[0].key),
                offset,
                bytes: len_u64(out.len() - start),
            });
        }
        let index_offset = from + len_u64(out.len());
        put_frame(&mut out, (file.uid, index_offset), FrameKind::Index, |out| {
            put_index(out, &index);
        })?;
        let mut hashes: Vec<u64> = Vec::new();
        for group in records.chunk_by(|a, b| a.key == b.key) {
            hashes.push(filter::key_hash(&group[0].key));
        }
        // Where no filter can be made, every key may be there.
        let contents = filter::build_filter(&mut hashes, FilterWidth::Fuse8).unwrap_or_default();
        let offset = from + len_u64(out.len());
        put_frame(&mut out, (file.uid, offset), FrameKind::Filter, |out| {
            out.extend_from_slice(&contents);
        })?;
        file.append(&out)?;
        let end = from + len_u64(out.len());
        let sorted = Sorted::existing(file, index_offset, end);
        let filter = Filter::new(contents.into()).ok();
        let _ = sorted.meta.set(Meta::new(index, filter, memory));
        Ok(sorted)
    }

    /// What is in memory already.
    pub(crate) fn meta_if_loaded(&self) -> Option<&Meta> {
        self.meta.get()
    }

    /// Index and filter.
    pub(crate) fn meta(&self, reading: &mut Reading<'_>, memory: &Memory) -> Result<&Meta> {
        if let Some(meta) = self.meta.get() {
            return Ok(meta);
        }
        let bytes = reading.read(&self.file, self.index_offset, self.end)?;
        let (mut index, mut filter) = (None, None);
        for_each_frame(&bytes, &self.file, self.index_offset, |kind, contents, _, _| {
            match kind {
                FrameKind::Index if index.is_none() => {
                    index = Some(decode_index(&contents, self.index_offset)?);
                }
                FrameKind::Filter if index.is_some() && filter.is_none() => {
                    filter = Some(match contents.is_empty() {
                        true => None,
                        false => Some(Filter::new(Bytes::copy_from_slice(&contents))?),
                    });
                }
                other => return Err(misplaced(other, "an index, then a filter")),
            }
            Ok(())
        })?;
        let (Some(index), Some(filter)) = (index, filter) else {
            let what = "index and filter of a bucket";
            let wrong = lsmx::Malformed::Truncated { what, needed: 2, found: 0 };
            return Err(Error::malformed(wrong, &self.file.path, self.index_offset));
        };
        // Another reader may have been faster.
        Ok(self.meta.get_or_init(|| Meta::new(index, filter, memory)))
    }
}

/// Cuts records in order into pages: between keys, once a page has enough bytes.
pub(crate) fn pages(records: &[Record], page_bytes: usize) -> impl Iterator<Item = &[Record]> {
    let mut left = records;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let full = left.iter().position(|record| {
            bytes += record.size();
            bytes >= page_bytes
        });
        let end = full.map_or(left.len(), |full| {
            let key = &left[full].key;
            let others = left[full..].iter().position(|record| record.key != *key);
            others.map_or(left.len(), |others| full + others)
        });
        let (page, rest) = left.split_at(end);
        left = rest;
        (!page.is_empty()).then_some(page)
    })
}

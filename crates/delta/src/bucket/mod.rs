//! Bucket: all operands of a range of keys. A value that never changes; a delivery makes a new one that
//! shares all but what it added.

pub(crate) mod extent;
pub(crate) mod lookup;
pub(crate) mod reading;
pub(crate) mod sorted;
pub(crate) mod tail;

use bytes::Bytes;
use lsmx::{Error, Malformed, Result, SeqNo};

use crate::charge::Memory;
use crate::files::{BucketFile, FileTable};
use crate::format::frame::FrameKind;
use crate::format::header::HEADER_BYTES;
use crate::format::log::{BucketEntry, ExtentSpan, SortedSpan};
use crate::format::record::{self, Record};
use extent::{Extent, fingerprint};
use lsmx_base::filter::key_hash;
use lsmx_base::sync::Arc;
use reading::{Reading, for_each_frame, misplaced};
use sorted::Sorted;
use tail::Tail;

/// A bucket.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// Never given twice to buckets with different pasts.
    pub(crate) id: u64,
    /// Keys before it are not here; those of the next bucket neither.
    pub(crate) smallest: Bytes,
    /// The collection that made it has seen all up to this number: its sorted part has nothing beyond, and
    /// range anchors up to here are done with.
    pub(crate) made_through: SeqNo,
    /// Bytes it had when it was made.
    pub(crate) made_bytes: u64,
    /// The other one of the split that made it.
    pub(crate) twin: Option<u64>,
    pub(crate) sorted: Option<Arc<Sorted>>,
    /// From the oldest on.
    pub(crate) extents: Vec<Arc<Extent>>,
    pub(crate) tail: Arc<Tail>,
}

impl Bucket {
    /// One without anything.
    pub(crate) fn empty(id: u64, smallest: Bytes, made_through: SeqNo, tail: Arc<Tail>) -> Bucket {
        Bucket {
            id,
            smallest,
            made_through,
            made_bytes: 0,
            twin: None,
            sorted: None,
            extents: Vec::new(),
            tail,
        }
    }

    /// The bucket that a log tells of, with the tail that it has by now.
    pub(crate) fn from_entry(entry: &BucketEntry, tail: Tail, table: &Arc<FileTable>) -> Bucket {
        let sorted = entry.sorted.map(|span| {
            let file = table.existing(span.number, span.uid);
            Arc::new(Sorted::existing(file, span.index_offset, span.end))
        });
        let extent = |span: &ExtentSpan| {
            let file = table.existing(span.number, span.uid);
            Arc::new(Extent::existing(file, span.from, span.to))
        };
        Bucket {
            id: entry.id,
            smallest: entry.smallest.clone(),
            made_through: entry.made_through,
            made_bytes: sorted.as_ref().map_or(0, |sorted| sorted.end),
            twin: None,
            sorted,
            extents: entry.extents.iter().map(extent).collect(),
            tail: Arc::new(tail),
        }
    }

    /// As a log tells it.
    pub(crate) fn entry(&self) -> BucketEntry {
        BucketEntry {
            id: self.id,
            smallest: self.smallest.clone(),
            made_through: self.made_through,
            sorted: self.sorted.as_ref().map(|sorted| SortedSpan {
                number: sorted.file.number,
                uid: sorted.file.uid,
                index_offset: sorted.index_offset,
                end: sorted.end,
            }),
            extents: self
                .extents
                .iter()
                .map(|extent| ExtentSpan {
                    number: extent.file.number,
                    uid: extent.file.uid,
                    from: extent.from,
                    to: extent.to,
                })
                .collect(),
            tail: self.tail.bytes().clone(),
        }
    }

    /// Whether the parts of files that count are just those of another bucket.
    pub(crate) fn has_parts_of(&self, other: &Bucket) -> bool {
        let sorted = |bucket: &Bucket| bucket.sorted.as_ref().map(|it| (it.file.number, it.end));
        let part = |it: &Arc<Extent>| (it.file.number, it.from, it.to);
        sorted(self) == sorted(other)
            && self.extents.iter().map(part).eq(other.extents.iter().map(part))
    }

    /// Bytes in its files that count.
    pub(crate) fn file_bytes(&self) -> u64 {
        let sorted = self.sorted.as_ref().map_or(0, |sorted| sorted.end);
        let extents = self.extents.iter().map(|extent| extent.to - extent.from);
        extents.fold(sorted, u64::saturating_add)
    }

    /// Bytes it has.
    pub(crate) fn bytes(&self) -> u64 {
        self.file_bytes().saturating_add(lsmx_base::coding::len_u64(self.tail.bytes().len()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.is_none() && self.extents.is_empty() && self.tail.is_empty()
    }

    /// Its files, some perhaps more than once.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<BucketFile>> {
        let sorted = self.sorted.iter().map(|sorted| &sorted.file);
        sorted.chain(self.extents.iter().map(|extent| &extent.file))
    }

    /// Whether pages of it may be lost, for the sync of a file has failed.
    pub(crate) fn has_lost(&self) -> bool {
        let in_sorted = self.sorted.as_ref().is_some_and(|it| it.file.has_lost(it.end));
        in_sorted || self.extents.iter().any(|extent| extent.file.has_lost(extent.to))
    }

    /// Whether it may have something of the key, as far as memory knows.
    pub(crate) fn may_hold(&self, key: &[u8]) -> bool {
        let hash = key_hash(key);
        self.tail.of_key(key, fingerprint(hash)).next().is_some() || self.files_may_hold(hash)
    }

    /// Whether its files may have something of the key with this hash, as far as memory knows.
    pub(crate) fn files_may_hold(&self, hash: u64) -> bool {
        let print = fingerprint(hash);
        let in_pages = |extent: &Arc<Extent>| {
            extent.pages_if_loaded().is_none_or(|pages| pages.iter().any(|it| it.may_hold(print)))
        };
        let in_sorted =
            |sorted: &Arc<Sorted>| sorted.meta_if_loaded().is_none_or(|meta| meta.may_hold(hash));
        self.extents.iter().any(in_pages) || self.sorted.as_ref().is_some_and(in_sorted)
    }

    /// Whether memory knows that nothing came of the key after `after`.
    pub(crate) fn unchanged_since(&self, key: &[u8], after: SeqNo) -> bool {
        let print = fingerprint(key_hash(key));
        let same = |extent: &Arc<Extent>| {
            extent.pages_if_loaded().is_some_and(|pages| {
                pages.iter().all(|page| page.last <= after || !page.may_hold(print))
            })
        };
        let mut tail = self.tail.of_key(key, print);
        let in_tail = self.tail.last > after && tail.any(|record| record.last > after);
        !in_tail && self.extents.iter().all(same)
    }

    /// All its records in order. One read per file.
    pub(crate) fn all_records(&self, reading: &mut Reading<'_>) -> Result<Vec<Record>> {
        let from = lsmx_base::coding::len_u64(HEADER_BYTES);
        let mut spans: Vec<(&Arc<BucketFile>, u64, u64)> = Vec::new();
        if let Some(sorted) = &self.sorted {
            spans.push((&sorted.file, from, sorted.end));
        }
        for extent in &self.extents {
            match spans.last_mut() {
                Some((file, _, to)) if file.number == extent.file.number && *to == extent.from => {
                    *to = extent.to;
                }
                _ => spans.push((&extent.file, extent.from, extent.to)),
            }
        }
        let mut records = Vec::new();
        for (file, from, to) in spans {
            let bytes = reading.read(file, from, to)?;
            for_each_frame(&bytes, file, from, |kind, contents, _, _| {
                match kind {
                    FrameKind::Sorted | FrameKind::Unsorted => {
                        records.append(&mut record::decode_all(&contents)?);
                    }
                    FrameKind::Index | FrameKind::Filter => {}
                    other => return Err(misplaced(other, "a frame of a bucket file")),
                }
                Ok(())
            })?;
        }
        records.extend(self.tail.records());
        records.sort_by(Record::order);
        Ok(records)
    }

    /// Checks all of it against its files: frames, order, keys within the range that ends before `end`, and
    /// that index, filter and fingerprints miss nothing.
    pub(crate) fn verify(&self, end: Option<&[u8]>, memory: &Memory) -> Result<()> {
        let mut reading = Reading::uncounted();
        let inside = |key: &[u8]| *self.smallest <= *key && end.is_none_or(|end| key < end);
        let out_of_range = Malformed::Order { what: "a key and the range of its bucket" };
        let missed = Malformed::Order { what: "a key and the filter of its page" };
        if let Some(sorted) = &self.sorted {
            let meta = sorted.meta(&mut reading, memory)?;
            let from = lsmx_base::coding::len_u64(HEADER_BYTES);
            let bytes = reading.read(&sorted.file, from, sorted.index_offset)?;
            let mut before: Option<Bytes> = None;
            let mut index = meta.index.iter();
            for_each_frame(&bytes, &sorted.file, from, |kind, contents, offset, len| {
                if kind != FrameKind::Sorted {
                    return Err(misplaced(kind, "a sorted page"));
                }
                let records = record::decode_all(&contents)?;
                let entry = index.next().filter(|it| (it.offset, it.bytes) == (offset, len));
                let first = records.first().map(|record| record.key.clone());
                if first.is_none() || entry.map(|entry| &entry.first_key) != first.as_ref() {
                    return Err(Malformed::Order { what: "index and pages of a sorted part" });
                }
                if before
                    .as_ref()
                    .is_some_and(|before| first.as_ref().is_some_and(|it| it <= before))
                {
                    return Err(Malformed::Order { what: "pages of a sorted part" });
                }
                for record in &records {
                    if !inside(&record.key) {
                        return Err(out_of_range.clone());
                    }
                    if !meta.may_hold(key_hash(&record.key)) {
                        return Err(missed.clone());
                    }
                    if record.last > self.made_through {
                        let (what, found) = ("number in a sorted part", record.last.0);
                        let expected = "at most that of the collection that made it";
                        return Err(Malformed::Field { what, found, expected });
                    }
                }
                before = records.last().map(|record| record.key.clone());
                Ok(())
            })?;
            if index.next().is_some() {
                let wrong = Malformed::Order { what: "index and pages of a sorted part" };
                return Err(Error::malformed(wrong, &sorted.file.path, sorted.index_offset));
            }
        }
        for extent in &self.extents {
            let known = extent.pages(&mut reading, memory)?;
            let bytes = reading.read(&extent.file, extent.from, extent.to)?;
            let mut known = known.iter();
            for_each_frame(&bytes, &extent.file, extent.from, |kind, contents, _, _| {
                if kind != FrameKind::Unsorted {
                    return Err(misplaced(kind, "an unsorted page"));
                }
                let page = known.next();
                for record in record::decode_all(&contents)? {
                    if !inside(&record.key) {
                        return Err(out_of_range.clone());
                    }
                    let print = fingerprint(key_hash(&record.key));
                    if !page.is_some_and(|page| page.may_hold(print)) {
                        return Err(missed.clone());
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

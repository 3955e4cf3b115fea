//! What the frames of a log hold.
//!
//! ```text
//! log         keyspace, snapshot, bucket*, end of snapshot, then deliveries and collections
//! delivery    [first buckets], records*, range anchors*, end of delivery
//! collection  bucket*, collection
//! ```
//!
//! ```text
//! keyspace         its name
//! snapshot         varint through, range anchors
//! bucket           varint id, bytes smallest key, varint made through,
//!                  u8 1 and varints number, offset of index, end, u64 uid of the sorted part's file; or u8 0
//!                  varint extents, of each: varints number, from, to, u64 uid
//!                  records of the tail, to the end of the frame
//! end of snapshot  varint buckets
//! first buckets    varint buckets, of each: varint id, bytes smallest key
//! records          records, see `record.rs`
//! range anchors    range anchors
//! end of delivery  varint through, varint records
//! collection       varint buckets before it that it made, varint buckets that go, their ids as varints,
//!                  range anchors that stay
//! ```
//!
//! *range anchors*: varint count, of each: bytes start, u8 1 and bytes end, or u8 0; varint number.
//! *bytes*: a varint length and as many bytes.

use bytes::Bytes;
use lsmx::{Malformed, SeqNo};
use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};

/// All keys from `start` on, before `end` if there is one, were deleted at a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeAnchor {
    pub(crate) start: Bytes,
    pub(crate) end: Option<Bytes>,
    pub(crate) seq: SeqNo,
}

/// Where the sorted part of a bucket lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SortedSpan {
    pub(crate) number: u64,
    pub(crate) uid: u64,
    /// Where the index begins, and the pages end.
    pub(crate) index_offset: u64,
    /// Where the filter ends.
    pub(crate) end: u64,
}

/// A part of a file that holds unsorted pages of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentSpan {
    pub(crate) number: u64,
    pub(crate) uid: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A bucket as a log tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketEntry {
    pub(crate) id: u64,
    pub(crate) smallest: Bytes,
    pub(crate) made_through: SeqNo,
    pub(crate) sorted: Option<SortedSpan>,
    pub(crate) extents: Vec<ExtentSpan>,
    /// Records, encoded.
    pub(crate) tail: Bytes,
}

pub(crate) fn put_ranges(out: &mut Vec<u8>, ranges: &[RangeAnchor]) {
    put_varint(out, len_u64(ranges.len()));
    for range in ranges {
        put_bytes(out, &range.start);
        match &range.end {
            None => out.push(0),
            Some(end) => {
                out.push(1);
                put_bytes(out, end);
            }
        }
        put_varint(out, range.seq.0);
    }
}

fn flag(decoder: &mut Decoder<'_>, what: &'static str) -> Result<bool, Malformed> {
    match decoder.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Malformed::Field { what, found: u64::from(other), expected: "0 or 1" }),
    }
}

fn seq(decoder: &mut Decoder<'_>, what: &'static str) -> Result<SeqNo, Malformed> {
    let found = decoder.varint(what)?;
    if found > SeqNo::MAX.0 {
        return Err(Malformed::Field { what, found, expected: "a sequence number" });
    }
    Ok(SeqNo(found))
}

fn ranges(decoder: &mut Decoder<'_>, within: &Bytes) -> Result<Vec<RangeAnchor>, Malformed> {
    let count = decoder.varint("range anchors")?;
    let mut ranges = Vec::new();
    for _ in 0..count {
        let start = within.slice_ref(decoder.bytes("start of a range anchor")?);
        let end = match flag(decoder, "end of a range anchor")? {
            true => Some(within.slice_ref(decoder.bytes("end of a range anchor")?)),
            false => None,
        };
        ranges.push(RangeAnchor { start, end, seq: seq(decoder, "number of a range anchor")? });
    }
    Ok(ranges)
}

/// Contents of a frame of range anchors.
pub(crate) fn decode_ranges(contents: &Bytes) -> Result<Vec<RangeAnchor>, Malformed> {
    let mut decoder = Decoder::new(contents);
    let ranges = ranges(&mut decoder, contents)?;
    decoder.finish("range anchors")?;
    Ok(ranges)
}

pub(crate) fn put_snapshot(out: &mut Vec<u8>, through: SeqNo, ranges: &[RangeAnchor]) {
    put_varint(out, through.0);
    put_ranges(out, ranges);
}

pub(crate) fn decode_snapshot(contents: &Bytes) -> Result<(SeqNo, Vec<RangeAnchor>), Malformed> {
    let mut decoder = Decoder::new(contents);
    let through = seq(&mut decoder, "number of a snapshot")?;
    let ranges = ranges(&mut decoder, contents)?;
    decoder.finish("snapshot")?;
    Ok((through, ranges))
}

pub(crate) fn put_bucket(out: &mut Vec<u8>, entry: &BucketEntry) {
    put_varint(out, entry.id);
    put_bytes(out, &entry.smallest);
    put_varint(out, entry.made_through.0);
    match &entry.sorted {
        None => out.push(0),
        Some(sorted) => {
            out.push(1);
            put_varint(out, sorted.number);
            put_varint(out, sorted.index_offset);
            put_varint(out, sorted.end);
            out.extend_from_slice(&sorted.uid.to_le_bytes());
        }
    }
    put_varint(out, len_u64(entry.extents.len()));
    for extent in &entry.extents {
        put_varint(out, extent.number);
        put_varint(out, extent.from);
        put_varint(out, extent.to);
        out.extend_from_slice(&extent.uid.to_le_bytes());
    }
    out.extend_from_slice(&entry.tail);
}

pub(crate) fn decode_bucket(contents: &Bytes) -> Result<BucketEntry, Malformed> {
    let mut decoder = Decoder::new(contents);
    let id = decoder.varint("id of a bucket")?;
    let smallest = contents.slice_ref(decoder.bytes("smallest key of a bucket")?);
    let made_through = seq(&mut decoder, "number of a bucket")?;
    let sorted = match flag(&mut decoder, "sorted part of a bucket")? {
        false => None,
        true => {
            let number = decoder.varint("file of a sorted part")?;
            let index_offset = decoder.varint("offset of an index")?;
            let end = decoder.varint("end of a sorted part")?;
            let uid = decoder.u64("uid of a sorted part")?;
            if index_offset > end {
                let (what, expected) = ("offset of an index", "at most the end of the sorted part");
                return Err(Malformed::Field { what, found: index_offset, expected });
            }
            Some(SortedSpan { number, uid, index_offset, end })
        }
    };
    let count = decoder.varint("extents of a bucket")?;
    let mut extents = Vec::new();
    for _ in 0..count {
        let number = decoder.varint("file of an extent")?;
        let from = decoder.varint("start of an extent")?;
        let to = decoder.varint("end of an extent")?;
        let uid = decoder.u64("uid of an extent")?;
        if from > to {
            let (what, expected) = ("start of an extent", "at most its end");
            return Err(Malformed::Field { what, found: from, expected });
        }
        extents.push(ExtentSpan { number, uid, from, to });
    }
    let tail = contents.slice(decoder.offset()..);
    super::record::for_each(&tail, |_, _| ())?;
    Ok(BucketEntry { id, smallest, made_through, sorted, extents, tail })
}

pub(crate) fn put_made(out: &mut Vec<u8>, buckets: &[(u64, Bytes)]) {
    put_varint(out, len_u64(buckets.len()));
    for (id, smallest) in buckets {
        put_varint(out, *id);
        put_bytes(out, smallest);
    }
}

pub(crate) fn decode_made(contents: &Bytes) -> Result<Vec<(u64, Bytes)>, Malformed> {
    let mut decoder = Decoder::new(contents);
    let count = decoder.varint("first buckets")?;
    let mut buckets = Vec::new();
    for _ in 0..count {
        let id = decoder.varint("id of a bucket")?;
        buckets.push((id, contents.slice_ref(decoder.bytes("smallest key of a bucket")?)));
    }
    decoder.finish("first buckets")?;
    Ok(buckets)
}

pub(crate) fn put_delivered(out: &mut Vec<u8>, through: SeqNo, records: u64) {
    put_varint(out, through.0);
    put_varint(out, records);
}

pub(crate) fn decode_delivered(contents: &Bytes) -> Result<(SeqNo, u64), Malformed> {
    let mut decoder = Decoder::new(contents);
    let through = seq(&mut decoder, "number of a delivery")?;
    let records = decoder.varint("records of a delivery")?;
    decoder.finish("end of a delivery")?;
    Ok((through, records))
}

/// How a collection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Buckets before it that it made.
    pub(crate) made: u64,
    /// Ids of the buckets that go.
    pub(crate) gone: Vec<u64>,
    /// Range anchors that stay.
    pub(crate) ranges: Vec<RangeAnchor>,
}

pub(crate) fn put_collected(out: &mut Vec<u8>, collected: &Collected) {
    put_varint(out, collected.made);
    put_varint(out, len_u64(collected.gone.len()));
    for id in &collected.gone {
        put_varint(out, *id);
    }
    put_ranges(out, &collected.ranges);
}

pub(crate) fn decode_collected(contents: &Bytes) -> Result<Collected, Malformed> {
    let mut decoder = Decoder::new(contents);
    let made = decoder.varint("buckets of a collection")?;
    let count = decoder.varint("buckets that go")?;
    let mut gone = Vec::new();
    for _ in 0..count {
        gone.push(decoder.varint("id of a bucket")?);
    }
    let ranges = ranges(&mut decoder, contents)?;
    decoder.finish("collection")?;
    Ok(Collected { made, gone, ranges })
}

/// A count alone.
pub(crate) fn decode_count(contents: &[u8], what: &'static str) -> Result<u64, Malformed> {
    let mut decoder = Decoder::new(contents);
    let count = decoder.varint(what)?;
    decoder.finish(what)?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_and_collections_come_back_and_no_cut_one_panics() {
        let ranges = vec![
            RangeAnchor { start: Bytes::new(), end: None, seq: SeqNo(3) },
            RangeAnchor { start: "a".into(), end: Some("b".into()), seq: SeqNo(300) },
        ];
        let mut tail = Vec::new();
        super::super::record::put(&mut tail, b"k", (SeqNo(1), SeqNo(4)), Some(b"operand"));
        let entry = BucketEntry {
            id: 7,
            smallest: "k".into(),
            made_through: SeqNo(12),
            sorted: Some(SortedSpan { number: 4, uid: 5, index_offset: 600, end: 700 }),
            extents: vec![ExtentSpan { number: 5, uid: 6, from: 32, to: 32 }],
            tail: tail.into(),
        };
        let mut bytes = Vec::new();
        put_bucket(&mut bytes, &entry);
        assert_eq!(decode_bucket(&bytes.clone().into()).unwrap(), entry);
        for len in 0..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..len]);
            assert!(decode_bucket(&cut).is_err() || len + entry.tail.len() == bytes.len());
        }
        let collected = Collected { made: 2, gone: vec![1, 900], ranges };
        let mut bytes = Vec::new();
        put_collected(&mut bytes, &collected);
        assert_eq!(decode_collected(&bytes.clone().into()).unwrap(), collected);
        for len in 0..bytes.len() {
            assert!(decode_collected(&Bytes::copy_from_slice(&bytes[..len])).is_err());
        }
    }
}

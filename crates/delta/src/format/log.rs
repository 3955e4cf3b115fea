//! Contents of the frames of a log.
//!
//! A log begins with a snapshot of a store's view. Each delivery and each collection then appends a group of frames.
//! This is the order of the frames, by kind:
//!
//! ```text
//! log         keyspace, snapshot, bucket*, end of snapshot, then deliveries and collections
//! delivery    [first buckets], records*, range delete markers*, end of delivery
//! collection  bucket*, collection
//! ```
//!
//! Contents of each kind of frame:
//!
//! ```text
//! keyspace         name of the keyspace when the log was created
//! snapshot         varint last sequence number, marker list
//! bucket           varint id, bytes smallest key, varint collected_through,
//!                  sorted part: u8 1, varints file number, index offset, end, u64 uid of the file; or u8 0 without one
//!                  varint number of extents; per extent: varints file number, start, end, u64 uid of the file
//!                  records of the tail, to the end of the frame
//! end of snapshot  varint number of buckets
//! first buckets    varint number of buckets; per bucket: varint id, bytes smallest key
//! records          records, see `record.rs`
//! range delete markers  marker list
//! end of delivery  varint last sequence number, varint number of records
//! collection       varint number of bucket frames before this frame, varint number of removed buckets,
//!                  varint id of each removed bucket, marker list with the retained markers
//! ```
//!
//! Elements of these contents:
//!
//! ```text
//! marker list      varint number of range delete markers; per marker: bytes start, end, varint sequence number
//! end              u8 1 and bytes end key, or u8 0 for an unbounded range
//! bytes            varint length, then the bytes
//! ```

use bytes::Bytes;
use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::invalid_field;
use super::record::{decode_seq, for_each_record};

/// Range delete marker: covers all operands with a sequence number below `seq` and a key in `start..end`.
///
/// `None` as the end stands for an unbounded range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeMarker {
    pub start: Bytes,
    pub end: Option<Bytes>,
    pub seq: SeqNo,
}

/// Location of the sorted part of a bucket. The pages begin after the file header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortedSpan {
    pub number: u64,
    pub uid: u64,
    /// Offset at which the pages end and the index begins.
    pub index_offset: u64,
    /// Offset at which the filter ends.
    pub end: u64,
}

/// Location of an extent: a part of a file with unsorted pages of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentSpan {
    pub number: u64,
    pub uid: u64,
    pub start: u64,
    pub end: u64,
}

/// Description of a bucket in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketEntry {
    pub id: u64,
    pub smallest_key: Bytes,
    pub collected_through: SeqNo,
    pub sorted: Option<SortedSpan>,
    pub extents: Vec<ExtentSpan>,
    /// Encoded records of the tail.
    pub tail: Bytes,
}

impl BucketEntry {
    /// Returns the entry of an empty bucket.
    pub fn new(id: u64, smallest_key: Bytes, collected_through: SeqNo) -> BucketEntry {
        let (extents, tail) = (Vec::new(), Bytes::new());
        BucketEntry { id, smallest_key, collected_through, sorted: None, extents, tail }
    }
}

pub fn put_range_markers(out: &mut Vec<u8>, markers: &[RangeMarker]) {
    put_varint(out, len_u64(markers.len()));
    for marker in markers {
        put_bytes(out, &marker.start);
        put_option(out, marker.end.as_ref(), |out, end| put_bytes(out, end));
        put_varint(out, marker.seq.0);
    }
}

/// Decodes the contents of a frame and checks that no bytes are left.
fn decode_frame_contents<'a, T>(
    contents: &'a [u8],
    what: &'static str,
    decode: impl FnOnce(&mut Decoder<'a>) -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    let mut decoder = Decoder::new(contents);
    let value = decode(&mut decoder)?;
    decoder.finish(what)?;
    Ok(value)
}

fn decode_list<'a, T>(
    decoder: &mut Decoder<'a>,
    what: &'static str,
    mut decode_item: impl FnMut(&mut Decoder<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = decoder.varint(what)?;
    (0..count).map(|_| decode_item(decoder)).collect()
}

fn put_option<T>(out: &mut Vec<u8>, value: Option<&T>, put: impl FnOnce(&mut Vec<u8>, &T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

fn decode_option<'a, T>(
    decoder: &mut Decoder<'a>,
    what: &'static str,
    decode: impl FnOnce(&mut Decoder<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    match decoder.u8(what)? {
        0 => Ok(None),
        1 => decode(decoder).map(Some),
        other => Err(invalid_field(what, u64::from(other), "0 or 1")),
    }
}

fn decode_marker_list(
    decoder: &mut Decoder<'_>,
    contents: &Bytes,
) -> Result<Vec<RangeMarker>, Malformed> {
    decode_list(decoder, "range delete markers", |decoder| {
        let start = contents.slice_ref(decoder.bytes("start of a range delete marker")?);
        let what = "end of a range delete marker";
        let end_key =
            |decoder: &mut Decoder<'_>| decoder.bytes(what).map(|key| contents.slice_ref(key));
        let end = decode_option(decoder, what, end_key)?;
        let seq = decode_seq(decoder, "number of a range delete marker")?;
        Ok(RangeMarker { start, end, seq })
    })
}

pub fn decode_range_markers(contents: &Bytes) -> Result<Vec<RangeMarker>, Malformed> {
    let decode = |decoder: &mut Decoder<'_>| decode_marker_list(decoder, contents);
    decode_frame_contents(contents, "range delete markers", decode)
}

pub fn put_snapshot(out: &mut Vec<u8>, through: SeqNo, markers: &[RangeMarker]) {
    put_varint(out, through.0);
    put_range_markers(out, markers);
}

pub fn decode_snapshot(contents: &Bytes) -> Result<(SeqNo, Vec<RangeMarker>), Malformed> {
    decode_frame_contents(contents, "snapshot", |decoder| {
        let through = decode_seq(decoder, "number of a snapshot")?;
        Ok((through, decode_marker_list(decoder, contents)?))
    })
}

pub fn put_bucket(out: &mut Vec<u8>, entry: &BucketEntry) {
    put_varint(out, entry.id);
    put_bytes(out, &entry.smallest_key);
    put_varint(out, entry.collected_through.0);
    put_option(out, entry.sorted.as_ref(), |out, sorted| {
        put_varint(out, sorted.number);
        put_varint(out, sorted.index_offset);
        put_varint(out, sorted.end);
        out.extend_from_slice(&sorted.uid.to_le_bytes());
    });
    put_varint(out, len_u64(entry.extents.len()));
    for extent in &entry.extents {
        put_varint(out, extent.number);
        put_varint(out, extent.start);
        put_varint(out, extent.end);
        out.extend_from_slice(&extent.uid.to_le_bytes());
    }
    out.extend_from_slice(&entry.tail);
}

pub fn decode_bucket(contents: &Bytes) -> Result<BucketEntry, Malformed> {
    let mut decoder = Decoder::new(contents);
    let id = decoder.varint("id of a bucket")?;
    let smallest_key = contents.slice_ref(decoder.bytes("smallest key of a bucket")?);
    let collected_through = decode_seq(&mut decoder, "number of a bucket")?;
    let sorted = decode_option(&mut decoder, "sorted part of a bucket", |decoder| {
        let number = decoder.varint("file of a sorted part")?;
        let index_offset = decoder.varint("offset of an index")?;
        let end = decoder.varint("end of a sorted part")?;
        let uid = decoder.u64("uid of a sorted part")?;
        if index_offset > end {
            let expected = "at most the end of the sorted part";
            return Err(invalid_field("offset of an index", index_offset, expected));
        }
        Ok(SortedSpan { number, uid, index_offset, end })
    })?;
    let extents = decode_list(&mut decoder, "extents of a bucket", |decoder| {
        let number = decoder.varint("file of an extent")?;
        let start = decoder.varint("start of an extent")?;
        let end = decoder.varint("end of an extent")?;
        let uid = decoder.u64("uid of an extent")?;
        if start > end {
            return Err(invalid_field("start of an extent", start, "at most its end"));
        }
        Ok(ExtentSpan { number, uid, start, end })
    })?;
    let tail = contents.slice(decoder.offset()..);
    for_each_record(&tail, |_, _| ())?;
    Ok(BucketEntry { id, smallest_key, collected_through, sorted, extents, tail })
}

pub fn put_first_buckets(out: &mut Vec<u8>, buckets: &[(u64, Bytes)]) {
    put_varint(out, len_u64(buckets.len()));
    for (id, smallest_key) in buckets {
        put_varint(out, *id);
        put_bytes(out, smallest_key);
    }
}

pub fn decode_first_buckets(contents: &Bytes) -> Result<Vec<(u64, Bytes)>, Malformed> {
    decode_frame_contents(contents, "first buckets", |decoder| {
        decode_list(decoder, "first buckets", |decoder| {
            let id = decoder.varint("id of a bucket")?;
            Ok((id, contents.slice_ref(decoder.bytes("smallest key of a bucket")?)))
        })
    })
}

pub fn put_delivery_end(out: &mut Vec<u8>, through: SeqNo, record_count: u64) {
    put_varint(out, through.0);
    put_varint(out, record_count);
}

/// Returns the last sequence number and the record count of a delivery.
pub fn decode_delivery_end(contents: &Bytes) -> Result<(SeqNo, u64), Malformed> {
    decode_frame_contents(contents, "end of a delivery", |decoder| {
        let through = decode_seq(decoder, "number of a delivery")?;
        Ok((through, decoder.varint("records of a delivery")?))
    })
}

/// Log entry that completes a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionEnd {
    /// Number of bucket frames of the collection before this entry.
    pub new_count: u64,
    pub removed_ids: Vec<u64>,
    /// Range delete markers that the collection retains.
    pub range_markers: Vec<RangeMarker>,
}

pub fn put_collection_end(out: &mut Vec<u8>, collection: &CollectionEnd) {
    put_varint(out, collection.new_count);
    put_varint(out, len_u64(collection.removed_ids.len()));
    for id in &collection.removed_ids {
        put_varint(out, *id);
    }
    put_range_markers(out, &collection.range_markers);
}

pub fn decode_collection_end(contents: &Bytes) -> Result<CollectionEnd, Malformed> {
    decode_frame_contents(contents, "collection", |decoder| {
        let new_count = decoder.varint("buckets of a collection")?;
        let id = |decoder: &mut Decoder<'_>| decoder.varint("id of a bucket");
        let removed_ids = decode_list(decoder, "removed buckets", id)?;
        let range_markers = decode_marker_list(decoder, contents)?;
        Ok(CollectionEnd { new_count, removed_ids, range_markers })
    })
}

/// Decodes contents that consist of a count.
pub fn decode_count(contents: &[u8], what: &'static str) -> Result<u64, Malformed> {
    decode_frame_contents(contents, what, |decoder| decoder.varint(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::put_record;

    #[test]
    fn bucket_and_collection_round_trip_and_truncation_is_an_error() {
        let range_markers = vec![
            RangeMarker { start: Bytes::new(), end: None, seq: SeqNo(3) },
            RangeMarker { start: "a".into(), end: Some("b".into()), seq: SeqNo(300) },
        ];
        let mut tail = Vec::new();
        put_record(&mut tail, b"k", (SeqNo(1), SeqNo(4)), Some(b"operand"));
        let entry = BucketEntry {
            id: 7,
            smallest_key: "k".into(),
            collected_through: SeqNo(12),
            sorted: Some(SortedSpan { number: 4, uid: 5, index_offset: 600, end: 700 }),
            extents: vec![ExtentSpan { number: 5, uid: 6, start: 32, end: 32 }],
            tail: tail.into(),
        };
        let mut bytes = Vec::new();
        put_bucket(&mut bytes, &entry);
        assert_eq!(decode_bucket(&bytes.clone().into()).unwrap(), entry);
        for len in 0..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..len]);
            assert!(decode_bucket(&cut).is_err() || len + entry.tail.len() == bytes.len());
        }
        let collection = CollectionEnd { new_count: 2, removed_ids: vec![1, 900], range_markers };
        let mut bytes = Vec::new();
        put_collection_end(&mut bytes, &collection);
        assert_eq!(decode_collection_end(&bytes.clone().into()).unwrap(), collection);
        for len in 0..bytes.len() {
            assert!(decode_collection_end(&Bytes::copy_from_slice(&bytes[..len])).is_err());
        }
    }
}

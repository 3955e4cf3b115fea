//! Fuzz targets for file headers, frames, and the contents of frames.

use bytes::Bytes;
use lsmx::{Malformed, SeqNo};
use lsmx_base::coding::put_varint;
use lsmx_base::filter::key_hash;
use lsmx_delta::internals::MemoryUsage;
use lsmx_delta::internals::RangeMarkers;
use lsmx_delta::internals::extent::fingerprint;
use lsmx_delta::internals::frame::{decode_frame, put_frame};
use lsmx_delta::internals::header::{
    BUCKET_HEADER, HEADER_BYTES, LOG_HEADER, decode_header, encode_header,
};
use lsmx_delta::internals::index::{decode_index, put_index};
use lsmx_delta::internals::log::{self, RangeMarker};
use lsmx_delta::internals::record::{self, Record};
use lsmx_delta::internals::sorted_part::{PageIndex, split_into_pages};
use lsmx_delta::internals::tail::Tail;

use super::checksums::{OFFSET, UID};
use crate::fuzzing::PROBE_KEYS;

pub(super) fn check_header(input: &[u8]) {
    for format in [LOG_HEADER, BUCKET_HEADER] {
        if let Ok(uid) = decode_header(input, format) {
            assert_eq!(
                encode_header(format, uid),
                input[..HEADER_BYTES],
                "header is not canonical"
            );
        }
    }
}

pub(super) fn check_frame(input: &[u8]) {
    let Ok((kind, contents, len)) = decode_frame(input, (UID, OFFSET)) else { return };
    let mut encoded = Vec::new();
    let fill = |out: &mut Vec<u8>| out.extend_from_slice(contents);
    put_frame(&mut encoded, (UID, OFFSET), kind, fill).expect("the frame is not too long");
    assert_eq!(encoded, input[..len], "frame is not canonical");
    assert!(
        decode_frame(input, (UID, OFFSET + 1)).is_err(),
        "the frame is valid at another offset"
    );
    assert!(decode_frame(input, (UID + 1, OFFSET)).is_err(), "the frame is valid in another file");
    assert!(
        decode_frame(&input[..len - 1], (UID, OFFSET)).is_err(),
        "the frame is valid without its last byte"
    );
}

/// Checks a sequence of records. Pages, bucket tails and deliveries are encoded as sequences of records.
pub(super) fn check_records(input: &[u8]) {
    let (input, memory) = (Bytes::copy_from_slice(input), MemoryUsage::default());
    let (decoded, tail) = (record::decode_records(&input), Tail::decode(&input, &memory));
    assert_eq!(decoded.is_ok(), tail.is_ok());
    let (Ok(records), Ok(tail)) = (decoded, tail) else { return };
    let mut encoded = Vec::new();
    records.iter().for_each(|record| record.put(&mut encoded));
    assert_eq!(encoded, input, "records are not canonical");
    assert!(records.is_sorted_by(|a, b| a.cmp_by_key_and_seq(b).is_lt()));
    assert!(records.iter().all(|it| it.first <= it.last && it.last <= SeqNo::MAX));
    assert!(tail.records().eq(records.iter().cloned()));
    assert_eq!(tail.newest, records.iter().map(|record| record.last).max().unwrap_or_default());
    for key in PROBE_KEYS.into_iter().chain(records.iter().map(|record| &*record.key)) {
        let found = tail
            .records_of_key(key, fingerprint(key_hash(key)))
            .map(|record| tail.to_record(record));
        assert!(found.eq(records.iter().filter(|record| record.key == key).cloned()), "{key:?}");
    }
    for page_bytes in [1, 100] {
        let pages: Vec<&[Record]> = split_into_pages(&records, page_bytes).collect();
        assert_eq!(pages.concat(), records);
        let last_key = |page: &[Record]| page.last().map(|record| record.key.clone());
        let first_key = |page: &[Record]| page.first().map(|record| record.key.clone());
        let are_disjoint = pages.is_sorted_by(|a, b| last_key(a) < first_key(b));
        assert!(are_disjoint, "two pages have records of the same key");
    }
}

/// Checks the page index of the sorted part of a bucket.
pub(super) fn check_index(input: &[u8]) {
    let decode = |contents: &Bytes| decode_index(contents, u64::MAX);
    let Some(entries) = decode_canonical(input, decode, |out, entries| put_index(out, entries))
    else {
        return;
    };
    let input = Bytes::copy_from_slice(input);
    if let Some(end) = entries.last().map(|last| last.offset + last.bytes) {
        assert_eq!(decode_index(&input, end).as_ref(), Ok(&entries));
        assert!(end == 0 || decode_index(&input, end - 1).is_err(), "a page exceeds the file");
    }
    assert!(entries.is_sorted_by(|a, b| a.offset + a.bytes <= b.offset));
    assert!(entries.is_sorted_by(|a, b| a.first_key < b.first_key));
    let index = PageIndex::new(entries.clone(), None, &MemoryUsage::default());
    let longer = entries.iter().map(|entry| [&entry.first_key[..], &[0]].concat());
    let keys = longer.chain(entries.iter().map(|entry| entry.first_key.to_vec()));
    for key in keys.chain(PROBE_KEYS.map(<[u8]>::to_vec)) {
        let expected = entries.iter().rfind(|entry| *entry.first_key <= *key);
        assert_eq!(index.find_page(&key), expected, "{key:?}");
    }
}

/// Decodes the contents of a frame and checks that encoding the result gives the same bytes. Returns `None` if the
/// contents are malformed.
fn decode_canonical<T>(
    input: &[u8],
    decode: impl Fn(&Bytes) -> Result<T, Malformed>,
    put: impl Fn(&mut Vec<u8>, &T),
) -> Option<T> {
    let decoded = decode(&Bytes::copy_from_slice(input)).ok()?;
    let mut encoded = Vec::new();
    put(&mut encoded, &decoded);
    assert_eq!(encoded, input, "contents are not canonical");
    Some(decoded)
}

/// Checks the log entry of a bucket.
pub(super) fn check_bucket_entry(input: &[u8]) {
    let Some(bucket) = decode_canonical(input, log::decode_bucket, log::put_bucket) else { return };
    assert!(bucket.collected_through <= SeqNo::MAX);
    assert!(bucket.sorted.is_none_or(|sorted| sorted.index_offset <= sorted.end));
    assert!(bucket.extents.iter().all(|extent| extent.start <= extent.end));
    Tail::decode(&bucket.tail, &MemoryUsage::default()).expect("the entry decodes its records");
}

/// Checks the log frame that starts a snapshot.
pub(super) fn check_snapshot_start(input: &[u8]) {
    decode_canonical(input, log::decode_snapshot, |out, (through, markers)| {
        log::put_snapshot(out, *through, markers);
    });
}

/// Checks range delete markers, and the search for the newest marker that covers a key.
pub(super) fn check_range_markers(input: &[u8]) {
    let put = |out: &mut Vec<u8>, markers: &Vec<RangeMarker>| log::put_range_markers(out, markers);
    let markers = decode_canonical(input, log::decode_range_markers, put);
    let markers = RangeMarkers::from(markers.unwrap_or_default());
    for key in PROBE_KEYS.into_iter().chain(markers.iter().map(|marker| &marker.start[..])) {
        let covers = |marker: &&RangeMarker| {
            *marker.start <= *key && marker.end.as_ref().is_none_or(|end| *key < **end)
        };
        let newest = markers.iter().filter(covers).map(|marker| marker.seq).max();
        assert_eq!(markers.newest_covering(key, SeqNo::MAX), newest);
    }
}

/// Checks the log frame that creates the first buckets.
pub(super) fn check_first_buckets(input: &[u8]) {
    decode_canonical(input, log::decode_first_buckets, |out, buckets| {
        log::put_first_buckets(out, buckets);
    });
}

/// Checks the log frames that end a delivery and a snapshot.
pub(super) fn check_delivery_end(input: &[u8]) {
    decode_canonical(input, log::decode_delivery_end, |out, (through, records)| {
        log::put_delivery_end(out, *through, *records);
    });
    let decode_count = |contents: &Bytes| log::decode_count(contents, "count");
    decode_canonical(input, decode_count, |out, count| put_varint(out, *count));
}

/// Checks the log frame that ends a collection.
pub(super) fn check_collection_end(input: &[u8]) {
    decode_canonical(input, log::decode_collection_end, log::put_collection_end);
}

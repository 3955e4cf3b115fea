//! Targets for headers, frames, and what frames hold.

use bytes::Bytes;
use lsmx::{Malformed, SeqNo};
use lsmx_base::coding::put_varint;
use lsmx_base::filter::key_hash;

use super::repair::{self, OFFSET, UID};
use crate::bucket::extent::fingerprint;
use crate::bucket::sorted_part::{PageIndex, split_into_pages};
use crate::bucket::tail::Tail;
use crate::format::frame::{decode_frame, put_frame};
use crate::format::header::{BUCKET_MAGIC, HEADER_BYTES, LOG_MAGIC, decode_header, encode_header};
use crate::format::index::{decode_index, put_index};
use crate::format::log;
use crate::format::record::{self, Record};
use crate::memory::MemoryUsage;
use crate::range_markers::RangeMarkers;

/// Keys that are asked for besides those that are there.
pub(super) const PROBES: [&[u8]; 5] = [b"", b"\0", b"key07", b"m", &[0xff; 9]];

/// First bytes of a file.
pub fn header(bytes: &[u8]) {
    for magic in [LOG_MAGIC, BUCKET_MAGIC] {
        if let Ok(uid) = decode_header(bytes, magic) {
            assert_eq!(encode_header(magic, uid), bytes[..HEADER_BYTES], "other bytes");
        }
    }
}

/// As [`header`], with the right checksum.
pub fn header_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::header(&mut bytes);
    header(&bytes);
}

/// A frame.
pub fn frame(bytes: &[u8]) {
    let Ok((kind, contents, len)) = decode_frame(bytes, (UID, OFFSET)) else { return };
    let mut again = Vec::new();
    let fill = |out: &mut Vec<u8>| out.extend_from_slice(contents);
    put_frame(&mut again, (UID, OFFSET), kind, fill).expect("a frame of the same length");
    assert_eq!(again, bytes[..len], "other bytes for the same frame");
    assert!(decode_frame(bytes, (UID, OFFSET + 1)).is_err(), "at another place");
    assert!(decode_frame(bytes, (UID + 1, OFFSET)).is_err(), "in another file");
    assert!(decode_frame(&bytes[..len - 1], (UID, OFFSET)).is_err(), "cut");
}

/// As [`frame`], with the right length and checksum.
pub fn frame_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::frame(&mut bytes, UID, OFFSET);
    frame(&bytes);
}

/// Records, as pages, tails and deliveries hold them.
pub fn records(bytes: &[u8]) {
    let (bytes, memory) = (Bytes::copy_from_slice(bytes), MemoryUsage::default());
    let (decoded, tail) = (record::decode_records(&bytes), Tail::decode(&bytes, &memory));
    assert_eq!(decoded.is_ok(), tail.is_ok());
    let (Ok(records), Ok(tail)) = (decoded, tail) else { return };
    let mut again = Vec::new();
    records.iter().for_each(|record| record.put(&mut again));
    assert_eq!(again, bytes, "other bytes for the same records");
    assert!(records.is_sorted_by(|a, b| a.cmp_order(b).is_lt()));
    assert!(records.iter().all(|it| it.first <= it.last && it.last <= SeqNo::MAX));
    assert!(tail.records().eq(records.iter().cloned()));
    assert_eq!(tail.newest, records.iter().map(|record| record.last).max().unwrap_or_default());
    for key in PROBES.into_iter().chain(records.iter().map(|record| &*record.key)) {
        let found = tail
            .records_of_key(key, fingerprint(key_hash(key)))
            .map(|record| tail.to_shared(record));
        assert!(found.eq(records.iter().filter(|record| record.key == key).cloned()), "{key:?}");
    }
    for page_bytes in [1, 100] {
        let pages: Vec<&[Record]> = split_into_pages(&records, page_bytes).collect();
        assert_eq!(pages.concat(), records);
        let parts =
            |two: &[&[Record]]| two[0].last().map(|it| &it.key) < two[1].first().map(|it| &it.key);
        assert!(pages.windows(2).all(parts), "a key on two pages");
    }
}

/// An index of a sorted part.
pub fn index(bytes: &[u8]) {
    let decode = |bytes: &Bytes| decode_index(bytes, u64::MAX);
    let Some(entries) = comes_back(bytes, decode, |out, entries| put_index(out, entries)) else {
        return;
    };
    let bytes = Bytes::copy_from_slice(bytes);
    if let Some(end) = entries.last().map(|last| last.offset + last.bytes) {
        assert_eq!(decode_index(&bytes, end).as_ref(), Ok(&entries));
        assert!(end == 0 || decode_index(&bytes, end - 1).is_err(), "a page beyond the end");
    }
    assert!(entries.windows(2).all(|two| two[0].offset + two[0].bytes <= two[1].offset));
    assert!(entries.windows(2).all(|two| two[0].first_key < two[1].first_key));
    let meta = PageIndex::new(entries.clone(), None, &MemoryUsage::default());
    let longer = entries.iter().map(|entry| [&entry.first_key[..], &[0]].concat());
    let keys = longer.chain(entries.iter().map(|entry| entry.first_key.to_vec()));
    for key in keys.chain(PROBES.map(<[u8]>::to_vec)) {
        let walked = entries.iter().rfind(|entry| *entry.first_key <= *key);
        assert_eq!(meta.find_page(&key), walked, "{key:?}");
    }
}

/// Decodes contents that encode to the same bytes.
fn comes_back<T>(
    bytes: &[u8],
    decode: impl Fn(&Bytes) -> Result<T, Malformed>,
    put: impl Fn(&mut Vec<u8>, &T),
) -> Option<T> {
    let decoded = decode(&Bytes::copy_from_slice(bytes)).ok()?;
    let mut again = Vec::new();
    put(&mut again, &decoded);
    assert_eq!(again, bytes, "other bytes for the same contents");
    Some(decoded)
}

/// A bucket as a log tells it.
pub fn bucket(bytes: &[u8]) {
    let Some(bucket) = comes_back(bytes, log::decode_bucket, log::put_bucket) else { return };
    assert!(bucket.collected_through <= SeqNo::MAX);
    assert!(bucket.sorted.is_none_or(|sorted| sorted.index_offset <= sorted.end));
    assert!(bucket.extents.iter().all(|extent| extent.start <= extent.end));
    Tail::decode(&bucket.tail, &MemoryUsage::default()).expect("records were checked");
}

/// How a snapshot begins.
pub fn snapshot(bytes: &[u8]) {
    comes_back(bytes, log::decode_snapshot, |out, (through, ranges)| {
        log::put_snapshot(out, *through, ranges);
    });
}

/// Range anchors.
pub fn ranges(bytes: &[u8]) {
    let put =
        |out: &mut Vec<u8>, ranges: &Vec<log::RangeMarker>| log::put_range_markers(out, ranges);
    let ranges =
        RangeMarkers::from(comes_back(bytes, log::decode_range_markers, put).unwrap_or_default());
    for key in PROBES.into_iter().chain(ranges.iter().map(|range| &range.start[..])) {
        let covers = |range: &&log::RangeMarker| {
            *range.start <= *key && range.end.as_ref().is_none_or(|end| *key < **end)
        };
        let newest = ranges.iter().filter(covers).map(|range| range.seq).max();
        assert_eq!(ranges.newest(key, SeqNo::MAX), newest);
    }
}

/// The first buckets.
pub fn made(bytes: &[u8]) {
    comes_back(bytes, log::decode_first_buckets, |out, buckets| {
        log::put_first_buckets(out, buckets)
    });
}

/// The end of a delivery, of a snapshot.
pub fn delivered(bytes: &[u8]) {
    comes_back(bytes, log::decode_delivery_end, |out, (through, records)| {
        log::put_delivery_end(out, *through, *records);
    });
    let count = |bytes: &Bytes| log::decode_count(bytes, "count");
    comes_back(bytes, count, |out, count| put_varint(out, *count));
}

/// The end of a collection.
pub fn collected(bytes: &[u8]) {
    comes_back(bytes, log::decode_collection_end, log::put_collection_end);
}

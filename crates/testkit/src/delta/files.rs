//! Fuzz targets for the files of `lsmx-delta` stores: operand logs and bucket files, which contain the operands of a
//! key range.

use std::collections::BTreeSet;
use std::io;

use bytes::Bytes;
use lsmx::operand_store::{OperandFileKind, OperandReadTier};
use lsmx::{Result, SeqNo};
use lsmx_base::coding::len_u64;
use lsmx_base::sync::Arc;
use lsmx_delta::internals::Bucket;
use lsmx_delta::internals::FileTable;
use lsmx_delta::internals::LogWriter;
use lsmx_delta::internals::MemoryUsage;
use lsmx_delta::internals::frame::{FrameKind, decode_frame};
use lsmx_delta::internals::header::HEADER_BYTES;
use lsmx_delta::internals::log::{BucketEntry, ExtentSpan, RangeMarker, SortedSpan};
use lsmx_delta::internals::lookup::{KeyQuery, find_records};
use lsmx_delta::internals::reader::BucketReader;
use lsmx_delta::internals::record::{self, Record};
use lsmx_delta::internals::tail::Tail;
use lsmx_delta::internals::verify::BucketVerifier;
use lsmx_delta::internals::{StoreCounters, StoreResources, StoreView};
use lsmx_delta::internals::{recover, recover_view};
use lsmx_delta::{DeltaOptions, dump};

use super::checksums::{file_uid, frame_ranges};
use super::store_context::{
    FILE_NUMBER, ReadCounts, fuzz_context, log_token, path_under_test, vfs_with_file,
};
use crate::fuzzing::PROBE_KEYS;

/// Maximum number of keys that the target looks up in one bucket file.
const KEYS_MAX: usize = 64;

/// Returns the state of a view that an operand log stores: buckets, range markers, and the last delivered sequence
/// number.
fn logged_state(view: &StoreView) -> (Vec<BucketEntry>, Vec<RangeMarker>, SeqNo) {
    let buckets = view.buckets.iter().map(|bucket| bucket.to_entry()).collect();
    (buckets, view.range_markers.to_vec(), view.through)
}

/// Writes a snapshot of the view to a new log. Checks that recovery from this log returns the same view.
fn check_snapshot(view: &StoreView, id_next: u64) {
    let resources = &view.resources;
    let mut log =
        LogWriter::create(&*resources.files.context.files, 5).expect("I/O in memory succeeds");
    log.put_snapshot(view, Bucket::to_entry).expect("the snapshot is not longer than the log");
    let (recovered, recovered_id_next) =
        recover(resources, log.end_token()).expect("the snapshot is valid");
    assert_eq!(logged_state(&recovered), logged_state(view));
    assert!(recovered_id_next <= id_next);
}

/// Checks recovery from the complete log. Also checks recovery from each prefix that ends after a snapshot, a delivery
/// or a collection.
pub(super) fn check_log(input: &[u8]) {
    let vfs = vfs_with_file(OperandFileKind::Log, input);
    let resources = Arc::new(StoreResources {
        recover_view,
        options: DeltaOptions::default(),
        files: FileTable::new(fuzz_context(&vfs, 0)),
        cache: None,
        memory: MemoryUsage::default(),
        counters: StoreCounters::default(),
    });
    if recover(&resources, log_token(input, input.len())).is_ok() {
        let path = path_under_test(OperandFileKind::Log);
        dump(&vfs, &path, &mut io::sink()).expect("recovery accepts the log");
    }
    let mut through = SeqNo::ZERO;
    for (start, end) in frame_ranges(input) {
        let ends = [FrameKind::SnapshotEnd, FrameKind::DeliveryEnd, FrameKind::CollectionEnd];
        if ends.iter().any(|kind| *kind as u8 == input[start + 12])
            && let Ok((view, id_next)) = recover(&resources, log_token(input, end))
        {
            assert!(through <= view.through, "sequence numbers descend");
            through = view.through;
            check_snapshot(&view, id_next);
        }
    }
}

/// Divides the frames of a bucket file into a sorted part at the start and two extents.
fn bucket_parts(file: &[u8]) -> (Option<SortedSpan>, Vec<ExtentSpan>) {
    let (number, uid) = (FILE_NUMBER, file_uid(file));
    let frames = frame_ranges(file);
    let index = frames.iter().position(|frame| file[frame.0 + 12] == FrameKind::Index as u8);
    let sorted = index.map(|index| {
        let filter = frames.get(index + 1).unwrap_or(&frames[index]);
        let (index_offset, end) = (len_u64(frames[index].0), len_u64(filter.1));
        SortedSpan { number, uid, index_offset, end }
    });
    let start = sorted.map_or(len_u64(HEADER_BYTES), |sorted| sorted.end);
    let ends = frames.iter().map(|frame| len_u64(frame.1)).filter(|end| *end > start);
    let middle = ends.clone().nth(ends.count() / 2).unwrap_or(start);
    let end = len_u64(file.len()).max(middle);
    let extents = [(start, middle), (middle, end)];
    (sorted, extents.map(|(start, end)| ExtentSpan { number, uid, start, end }).into())
}

/// Returns the records of all pages of one kind, in file order.
fn scan_pages(file: &[u8], page_kind: FrameKind) -> Vec<Record> {
    let mut records = Vec::new();
    for (start, end) in frame_ranges(file) {
        let location = (file_uid(file), len_u64(start));
        let (kind, contents, _) =
            decode_frame(&file[start..end], location).expect("the file was verified");
        if kind == page_kind {
            let contents = Bytes::copy_from_slice(contents);
            records.append(&mut record::decode_records(&contents).expect("the file was verified"));
        }
    }
    records
}

/// Checks a bucket file. The log entry of the bucket is computed from the frames of the file.
pub(super) fn check_bucket_file(input: &[u8]) {
    let vfs = vfs_with_file(OperandFileKind::Bucket, input);
    let (files, memory) = (FileTable::new(fuzz_context(&vfs, 0)), MemoryUsage::default());
    let (sorted, extents) = bucket_parts(input);
    let (smallest_key, collected_through, tail) = (Bytes::new(), SeqNo::MAX, Bytes::new());
    let entry = BucketEntry { id: 1, smallest_key, collected_through, sorted, extents, tail };
    let tail = Tail::new(&[], &memory).expect("an empty tail is valid");
    let bucket = Bucket::from_entry(&entry, tail, &files);
    assert_eq!(bucket.to_entry(), entry);
    let find = |query: KeyQuery<'_>, tier: OperandReadTier| -> Result<BTreeSet<_>> {
        let counts = ReadCounts::default();
        let mut reader = BucketReader::for_user(tier, &counts);
        let found = find_records(&bucket, query, &mut reader, &memory)?;
        Ok(found.into_iter().map(|it| (it.last, it.first, it.operand)).collect())
    };
    for key in PROBE_KEYS {
        let query = KeyQuery { key, after: None, at: SeqNo::MAX, void_below: SeqNo(20) };
        let _ = find(query, OperandReadTier::Memory);
        let _ = find(query, OperandReadTier::Storage);
        let _ = bucket.may_contain(key);
    }
    let read = bucket.read_records(&mut BucketReader::without_counters());
    if (BucketVerifier { bucket: &bucket, end: None, memory: &memory }).verify_files().is_err() {
        return;
    }
    dump(&vfs, &path_under_test(OperandFileKind::Bucket), &mut io::sink())
        .expect("the file was verified");
    // In a verified file, lookups must find the same records as a scan of all pages.
    let unsorted = scan_pages(input, FrameKind::UnsortedPage);
    let mut records = [scan_pages(input, FrameKind::SortedPage), unsorted.clone()].concat();
    records.sort_by(Record::cmp_by_key_and_seq);
    assert_eq!(read.expect("the file was verified"), records);
    let middle = records.get(records.len() / 2).map_or(SeqNo::ZERO, |record| record.last);
    let keys = records.chunk_by(|a, b| a.key == b.key).map(|group| &*group[0].key);
    for key in keys.take(KEYS_MAX).chain(PROBE_KEYS) {
        let of_key = || records.iter().filter(|record| record.key == key);
        let (newest, zero) = (SeqNo::MAX, SeqNo::ZERO);
        for (after, at, void_below) in [
            (None, newest, zero),
            (None, middle, zero),
            (Some(middle), newest, zero),
            (None, newest, middle),
        ] {
            let query = KeyQuery { key, after, at, void_below };
            let mut found = find(query, OperandReadTier::Storage).expect("the file was verified");
            // A lookup may return or omit records with sequence numbers below `void_below`, so these records are not
            // compared.
            found.retain(|(last, ..)| *last >= void_below);
            let is_visible = |record: &&Record| {
                let is_after = after.is_none_or(|after| record.last > after);
                is_after && (void_below..=at).contains(&record.last)
            };
            let expected = of_key().filter(is_visible);
            let expected = expected.map(|it| (it.last, it.first, it.operand.clone()));
            assert_eq!(found, expected.collect(), "{query:?}");
        }
        assert!(bucket.may_contain(key) || of_key().next().is_none(), "filter excludes {key:?}");
        let is_changed = unsorted.iter().any(|record| record.key == key && record.last > middle);
        assert!(!(is_changed && bucket.has_no_record_above(key, middle)), "{key:?} has changed");
    }
}

//! Fuzz targets for blob files, blob records and value pointers.

use std::path::Path;

use lsmx::SeqNo;
use lsmx::internals::cache::BlockCache;
use lsmx::internals::format::blob::{
    BLOB_HEADER_BYTES, BLOB_TRAILER_BYTES, BlobHeader, BlobRecord, BlobTrailer, ValuePointer,
    record_bytes,
};
use lsmx::internals::format::version_edit::BlobFileRecord;
use lsmx::internals::table::{ReadContext, ReadPurpose};
use lsmx::internals::value_log::{BlobReader, BlobScan};
use lsmx_base::checksum::xxh3;
use lsmx_base::coding::{get_u64, len_u64};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use super::checksums::{OFFSET, UID};
use super::logs::{DIR, vfs_with_file};

pub(super) fn check_value_pointer(input: &[u8]) {
    if let Ok(pointer) = ValuePointer::decode(input) {
        let mut encoded = Vec::new();
        pointer.put(&mut encoded);
        assert_eq!(encoded, input, "value pointer is not canonical");
        let _ = pointer.check_bounds(1 << 20);
    }
}

pub(super) fn check_blob_record(input: &[u8]) {
    let _ = record_bytes(input);
    if let Ok(record) = BlobRecord::decode(input, UID, OFFSET) {
        record.check_entry(record.key, record.seq).expect("key and sequence number match");
        assert!(
            BlobRecord::decode(input, UID, OFFSET + 1).is_err(),
            "the record is valid at another offset"
        );
        if let Ok(value_bytes) = record.value_bytes() {
            let value = record.value(value_bytes).expect("value has the stored length");
            assert_eq!(len_u64(value.len()), value_bytes);
        }
    }
}

/// Checks a blob file. The manifest record is computed from the input, so its size, uid, counts and checksum match the
/// file.
pub(super) fn check_blob_file(input: &[u8]) {
    static CACHE: std::sync::OnceLock<Arc<BlockCache>> = std::sync::OnceLock::new();
    let cache = CACHE.get_or_init(|| BlockCache::new(1 << 20));
    let header = input.get(..BLOB_HEADER_BYTES).and_then(|head| BlobHeader::decode(head).ok());
    let trailer_start = input.len().saturating_sub(BLOB_TRAILER_BYTES);
    let record = BlobFileRecord {
        id: FileId(header.map_or(9, |header| header.number)),
        bytes: len_u64(input.len()),
        records: get_u64(input, trailer_start).unwrap_or(0),
        value_bytes: get_u64(input, trailer_start + 8).unwrap_or(0),
        uid: header.map_or(0, |header| header.uid),
        checksum: xxh3(input),
    };
    let name = FileName::Blob(9);
    let (vfs, path) = (vfs_with_file(name, input), name.in_dir(Path::new(DIR)));
    let keyspace = header.map_or(0, |header| header.keyspace);
    let Ok(reader) = BlobReader::open(&vfs, &path, keyspace, &record, cache) else { return };
    let is_verified = reader.verify().is_ok();
    for offset in [0, 40, u64::MAX] {
        let pointer = ValuePointer { file: 9, offset, bytes: 60, value_bytes: 30 };
        let mut context = ReadContext::new(ReadPurpose::Lookup);
        let _ = reader.read_value((b"key-000123", SeqNo(3)), &pointer, &mut context);
    }
    if !is_verified {
        return;
    }
    // In a verified file, point reads and scans must return the same values.
    let (mut start, mut scan, mut records) = (BLOB_HEADER_BYTES, BlobScan::default(), 0);
    while start < trailer_start {
        let len = record_bytes(&input[start..]).expect("the file was verified");
        let end = start + usize::try_from(len).expect("the record is within the file");
        let offset = len_u64(start);
        let found = BlobRecord::decode(&input[start..end], record.uid, offset)
            .expect("the file was verified");
        let value_bytes = found.value_bytes().expect("the file was verified");
        let pointer = ValuePointer { file: 9, offset, bytes: len, value_bytes };
        let entry = (found.key, found.seq);
        let context = || ReadContext::new(ReadPurpose::Job);
        let read =
            reader.read_value(entry, &pointer, &mut context()).expect("the file was verified");
        let scanned = scan.read_value(&reader, entry, &pointer, &mut context());
        assert_eq!(scanned.expect("the file was verified"), read);
        (start, records) = (end, records + 1);
    }
    let trailer = BlobTrailer::decode(&input[trailer_start..], record.uid, len_u64(trailer_start));
    assert_eq!(trailer.expect("the file was verified").records, records);
}

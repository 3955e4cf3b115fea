//! Targets for the value log: pointers, records, whole blob files.

use std::path::Path;

use lsmx_base::checksum::xxh3;
use lsmx_base::coding::{get_u64, len_u64};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::cache::BlockCache;
use crate::format::blob::{
    BLOB_HEADER_BYTES, BLOB_TRAILER_BYTES, BlobHeader, BlobRecord, BlobTrailer, ValuePointer,
    record_bytes,
};
use crate::format::version_edit::BlobFileRecord;
use crate::fuzzing::logs::{DIR, disk};
use crate::fuzzing::repair;
use crate::table::{ReadContext, ReadPurpose};
use crate::value_log::{BlobReader, BlobScan};

/// A value pointer.
pub fn value_pointer(bytes: &[u8]) {
    if let Ok(pointer) = ValuePointer::decode(bytes) {
        let mut again = Vec::new();
        pointer.put(&mut again);
        assert_eq!(again, bytes, "other bytes for the same pointer");
        let _ = pointer.check_bounds(1 << 20);
    }
}

/// A record of a blob file.
pub fn blob_record(bytes: &[u8]) {
    let _ = record_bytes(bytes);
    if let Ok(record) = BlobRecord::decode(bytes, repair::UID, repair::OFFSET) {
        record.check_entry(record.key, record.seq).expect("its own");
        assert!(BlobRecord::decode(bytes, repair::UID, repair::OFFSET + 1).is_err(), "elsewhere");
        if let Ok(value_bytes) = record.value_bytes() {
            let value = record.value(value_bytes).expect("of this length");
            assert_eq!(len_u64(value.len()), value_bytes);
        }
    }
}

/// As [`blob_record`], with the right length and checksum.
pub fn blob_record_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::blob_record(&mut bytes, repair::UID, repair::OFFSET);
    blob_record(&bytes);
}

/// A blob file that the manifest names, whose size, uid, counts and checksum fit.
pub fn blob(bytes: &[u8]) {
    static CACHE: std::sync::OnceLock<Arc<BlockCache>> = std::sync::OnceLock::new();
    let cache = CACHE.get_or_init(|| BlockCache::new(1 << 20));
    let header = bytes.get(..BLOB_HEADER_BYTES).and_then(|head| BlobHeader::decode(head).ok());
    let trailer_at = bytes.len().saturating_sub(BLOB_TRAILER_BYTES);
    let record = BlobFileRecord {
        id: FileId(header.map_or(9, |header| header.number)),
        bytes: len_u64(bytes.len()),
        records: get_u64(bytes, trailer_at).unwrap_or(0),
        value_bytes: get_u64(bytes, trailer_at + 8).unwrap_or(0),
        uid: header.map_or(0, |header| header.uid),
        checksum: xxh3(bytes),
    };
    let name = FileName::Blob(9);
    let (vfs, path) = (disk(name, bytes), name.in_dir(Path::new(DIR)));
    let keyspace = header.map_or(0, |header| header.keyspace);
    let Ok(open) = BlobReader::open(&vfs, &path, keyspace, &record, cache) else { return };
    let verified = open.verify();
    let mut access = ReadContext::new(ReadPurpose::Lookup);
    for offset in [0, 40, u64::MAX] {
        let pointer = ValuePointer { file: 9, offset, bytes: 60, value_bytes: 30 };
        let _ = open.read_value((b"key-000123", lsmx_base::key::SeqNo(3)), &pointer, &mut access);
    }
    if verified.is_err() {
        return;
    }
    // What `verify` has nothing against must be read, whichever way.
    let (mut at, mut scan, mut records) = (BLOB_HEADER_BYTES, BlobScan::default(), 0);
    while at < trailer_at {
        let length = record_bytes(&bytes[at..]).expect("verified");
        let end = at + usize::try_from(length).expect("within the file");
        let found = BlobRecord::decode(&bytes[at..end], record.uid, len_u64(at)).expect("verified");
        let value_bytes = found.value_bytes().expect("verified");
        let pointer = ValuePointer { file: 9, offset: len_u64(at), bytes: length, value_bytes };
        let entry = (found.key, found.seq);
        let alone = open
            .read_value(entry, &pointer, &mut ReadContext::new(ReadPurpose::Job))
            .expect("verified");
        let walked =
            scan.read_value(&open, entry, &pointer, &mut ReadContext::new(ReadPurpose::Job));
        assert_eq!(walked.expect("verified"), alone);
        (at, records) = (end, records + 1);
    }
    let trailer = BlobTrailer::decode(&bytes[trailer_at..], record.uid, len_u64(trailer_at));
    assert_eq!(trailer.expect("verified").records, records);
}

/// As [`blob`], with the right checksums.
pub fn blob_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::blob(&mut bytes);
    blob(&bytes);
}

//! Tests that write blob files and read the values by lookups and scans.

use std::path::Path;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::cache::BlockCache;
use crate::error::Error;
use crate::format::BlockKind;
use crate::format::blob::{BlobHeader, BlobTrailer, ValuePointer, put_record};
use crate::format::version_edit::BlobFileRecord;
use crate::table::{Compression, FdCache, ReadContext, ReadPurpose};
use crate::value_log::{BlobReader, BlobScan, BlobWriter};
use crate::vfs::call::VfsCall;
use crate::vfs::counting::CountingVfs;
use crate::vfs::{MemVfs, Vfs};
use lsmx_base::malformed::Malformed;

const HEADER: BlobHeader = BlobHeader { keyspace: 4, uid: 99, number: 7 };
const PATH: &str = "7.blob";

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    let bytes = usize::try_from(200 + number % 97).unwrap();
    number.to_string().into_bytes().into_iter().cycle().take(bytes).collect()
}

/// Writes a blob file with `count` values. Returns the manifest record of the file and pointers to the values.
fn written(vfs: &dyn Vfs, count: u64) -> (BlobFileRecord, Vec<ValuePointer>) {
    let mut writer = BlobWriter::create(vfs, Path::new(PATH), &HEADER, Compression::None).unwrap();
    let add = |number| writer.add(&key(number), SeqNo(number), &value(number)).unwrap();
    let pointers = (0..count).map(add).collect();
    (writer.finish().unwrap(), pointers)
}

fn open(vfs: &Arc<dyn Vfs>, record: &BlobFileRecord, cache_bytes: u64) -> BlobReader {
    let pool = FdCache::new(Arc::clone(vfs), 1, false, None);
    BlobReader::open_cached(&pool, Path::new(PATH), 4, record, &BlockCache::new(cache_bytes))
        .unwrap()
}

#[test]
fn writer_file_has_header_records_and_trailer() {
    let vfs = MemVfs::new();
    let (record, pointers) = written(&vfs, 3_000);
    let mut bytes = HEADER.encode();
    let mut value_bytes = 0;
    for (number, pointer) in (0..).zip(&pointers) {
        assert_eq!(pointer.offset, bytes.len() as u64);
        let (key, value) = (key(number), value(number));
        let place = (99, pointer.offset);
        let stored = (&value[..], Compression::None);
        put_record(&mut bytes, place, (&key, SeqNo(number)), stored, &mut Vec::new());
        value_bytes += value.len() as u64;
    }
    let trailer = BlobTrailer { records: 3_000, value_bytes, uid: 99 };
    bytes.extend(trailer.encode(bytes.len() as u64));
    assert!(vfs.read_all(Path::new(PATH)).unwrap() == bytes);
    assert_eq!(record.bytes, bytes.len() as u64);
    let used: u64 = pointers.iter().map(|pointer| pointer.bytes).sum();
    assert_eq!(record.record_bytes(), used);
    let vfs: Arc<dyn Vfs> = Arc::new(vfs);
    open(&vfs, &record, 0).verify().unwrap();
}

#[test]
fn scan_in_both_directions_reads_each_byte_about_once() {
    let counting = CountingVfs::new(Arc::new(MemVfs::new()));
    let vfs: Arc<dyn Vfs> = Arc::new(counting.clone());
    let (record, pointers) = written(&*vfs, 3_000);
    let blob = open(&vfs, &record, 0);
    let every_second: Vec<u64> = (0..3_000).step_by(2).collect();
    for backward in [false, true] {
        let reads = || counting.counts().calls.count_of(VfsCall::Read);
        let before = reads();
        let mut numbers = every_second.clone();
        if backward {
            numbers.reverse();
        }
        let (mut scan, mut access) = (BlobScan::default(), ReadContext::new(ReadPurpose::Scan));
        for number in numbers {
            let key = key(number);
            let entry = (&key[..], SeqNo(number));
            let pointer = &pointers[usize::try_from(number).unwrap()];
            let found = scan.read_value(&blob, entry, pointer, &mut access).unwrap();
            assert_eq!(found, value(number));
        }
        let reads = reads() - before;
        assert!(reads < 20, "{reads} reads");
    }
    drop(blob);
}

#[test]
fn value_of_a_lookup_is_cached_and_counted() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemVfs::new());
    let (record, pointers) = written(&*vfs, 10);
    let blob = open(&vfs, &record, 1 << 20);
    let read = |fill, number: u64| {
        let key = key(number);
        let pointer = &pointers[usize::try_from(number).unwrap()];
        blob.read_value((&key, SeqNo(number)), pointer, &mut ReadContext::new(fill))
    };
    assert!(matches!(read(ReadPurpose::MemoryOnly, 3), Err(Error::WouldBlock)));
    assert_eq!(read(ReadPurpose::Job, 3).unwrap(), value(3));
    assert!(matches!(read(ReadPurpose::MemoryOnly, 3), Err(Error::WouldBlock)));
    assert_eq!(read(ReadPurpose::Lookup, 3).unwrap(), value(3));
    assert_eq!(read(ReadPurpose::MemoryOnly, 3).unwrap(), value(3));
    let counts = blob.cache().hit_counts();
    assert_eq!((counts[BlockKind::Blob].misses, counts[BlockKind::Blob].hits), (1, 1));
}

#[test]
fn value_with_wrong_pointer_is_refused() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemVfs::new());
    let (record, pointers) = written(&*vfs, 10);
    let blob = open(&vfs, &record, 0);
    let read = |number: u64, pointer: &ValuePointer| {
        let key = key(number);
        blob.read_value((&key, SeqNo(number)), pointer, &mut ReadContext::new(ReadPurpose::Lookup))
    };
    let corrupt = |found| matches!(found, Err(Error::Corrupt { .. }));
    assert!(read(4, &pointers[4]).is_ok());
    assert!(corrupt(read(5, &pointers[4])));
    let moved = ValuePointer { offset: pointers[4].offset + 1, ..pointers[4] };
    assert!(corrupt(read(4, &moved)));
    let beyond = ValuePointer { offset: record.bytes - 50, ..pointers[4] };
    assert!(corrupt(read(4, &beyond)));
    let longer = ValuePointer { value_bytes: pointers[4].value_bytes + 1, ..pointers[4] };
    let found = read(4, &longer).unwrap_err();
    assert!(matches!(found, Error::Corrupt { source: Malformed::Field { .. }, .. }), "{found}");
}

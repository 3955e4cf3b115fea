//! Blob file: a file of the value log, which stores large values outside the tables. A table entry contains a value
//! pointer to its value. Integers are little-endian.
//!
//! ```text
//! header    40 bytes
//! records   contiguous, up to the trailer
//! trailer   40 bytes
//! ```
//!
//! `file_header` describes the common part of all file headers. The header of a blob file:
//!
//! ```text
//!  0  8  magic           "LSMXBLB1"
//!  8  4  format version  u32
//! 12  4  keyspace        u32, id of the keyspace
//! 16  8  uid             u64, random, seeds the checksum of every record
//! 24  8  file number     u64, the number in the file's name
//! 32  8  checksum        u64, over bytes 0..32
//! ```
//!
//! A record:
//!
//! ```text
//!  0  8  checksum     u64, XXH3-64 over all that follows, seeded by uid and the record's offset
//!  8  4  bytes        u32, of the whole record
//! 12  1  compression  u8, of the value, as in blocks
//! 13  v  number       varint, the entry's sequence number
//!  +  v  key bytes    varint
//!  +  k  key
//!  +  n  value        up to the end of the record, compressed as stated
//! ```
//!
//! The trailer, at offset `at`:
//!
//! ```text
//!  0  8  records      u64
//!  8  8  value bytes  u64, of all values, decompressed
//! 16  8  uid          u64
//! 24  8  checksum     u64, XXH3-64 over bytes 0..24, seeded by uid and `at`
//! 32  8  magic        "lsmxblob"
//! ```
//!
//! A value pointer is the value of an entry of kind 3. A value pointer consists of four varints: the number of the blob
//! file, the offset of the record, the size of the record, and the size of the decompressed value. Because the size of
//! the record is known, a lookup reads the record with one read. The uid of the file and the offset seed the checksum,
//! so a record of another file or offset fails the check. A record also contains the key and the sequence number of its
//! entry, so a pointer to the wrong record is detected.

use bytes::Bytes;
use lsmx_base::checksum::{file_location_seed, xxh3, xxh3_seeded};
use lsmx_base::coding::{
    Decoder, VARINT_BYTES_MAX, get_u32, get_u64, len_u64, put_u64, put_varint,
};
use lsmx_base::file_header::FileHeaderFormat;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

pub use super::block::checksum as record_checksum;
use super::block::{self, Compression};
use super::{FORMAT_VERSION, KEY_BYTES_MAX, VALUE_BYTES_MAX};

const HEADER: FileHeaderFormat = FileHeaderFormat::new("blob header", *b"LSMXBLB1", FORMAT_VERSION);
/// Magic number: the last bytes of every blob file.
pub const BLOB_TRAILER_MAGIC: [u8; 8] = *b"lsmxblob";
/// Size of the header in bytes.
pub const BLOB_HEADER_BYTES: usize = 40;
/// Size of the trailer in bytes.
pub const BLOB_TRAILER_BYTES: usize = 40;
/// Size of the fields of a record that have a fixed length, in bytes.
const FIXED_BYTES: usize = size_of::<u64>() + size_of::<u32>() + size_of::<u8>();
const _: () = assert!(FIXED_BYTES == 13, "the diagram above says 13");
const CHECKSUM_BYTES: usize = size_of::<u64>();
/// Minimum size of a record in bytes. Such a record has an empty key, a sequence number of one byte and an empty value.
pub const BLOB_RECORD_BYTES_MIN: usize = FIXED_BYTES + 2;
/// Maximum size of a record in bytes.
pub const BLOB_RECORD_BYTES_MAX: u64 =
    len_u64(FIXED_BYTES + 2 * VARINT_BYTES_MAX) + KEY_BYTES_MAX + VALUE_BYTES_MAX;
const _: () = assert!(BLOB_RECORD_BYTES_MAX < 1 << 31, "a length of 32 bits holds any record");

/// Header of a blob file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobHeader {
    /// Id of the keyspace that owns the file.
    pub keyspace: u32,
    /// Random uid of the file.
    pub uid: u64,
    /// Number of the file, which is also in its file name.
    pub number: u64,
}

impl BlobHeader {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let header: [u8; BLOB_HEADER_BYTES] = HEADER.encode(self.keyspace, [self.uid, self.number]);
        header.to_vec()
    }

    /// Decodes the header from the first [`BLOB_HEADER_BYTES`] bytes of a blob file.
    ///
    /// # Errors
    /// Fails if the header is invalid, or if this build does not support its format version.
    pub fn decode(bytes: &[u8]) -> Result<BlobHeader, Malformed> {
        let bytes = check_length("blob header", bytes, BLOB_HEADER_BYTES)?;
        let (keyspace, [uid, number]) = HEADER.decode(bytes)?;
        Ok(BlobHeader { keyspace, uid, number })
    }
}

/// Trailer of a blob file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobTrailer {
    /// Number of records in the file.
    pub records: u64,
    /// Total size of all values in bytes, decompressed.
    pub value_bytes: u64,
    /// Random uid of the file.
    pub uid: u64,
}

impl BlobTrailer {
    /// Encodes the trailer, which will be written at offset `at`.
    #[must_use]
    pub fn encode(&self, at: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOB_TRAILER_BYTES);
        for field in [self.records, self.value_bytes, self.uid] {
            put_u64(&mut out, field);
        }
        let sum = trailer_checksum(&out, self.uid, at);
        put_u64(&mut out, sum);
        out.extend_from_slice(&BLOB_TRAILER_MAGIC);
        debug_assert_eq!(out.len(), BLOB_TRAILER_BYTES);
        out
    }

    /// Decodes the last [`BLOB_TRAILER_BYTES`] bytes of the blob file `uid`, which are at offset `at`.
    ///
    /// # Errors
    /// Fails if the magic number or the checksum is wrong, or if the trailer has another uid.
    pub fn decode(bytes: &[u8], uid: u64, at: u64) -> Result<BlobTrailer, Malformed> {
        let mut decoder = Decoder::new(check_length("blob trailer", bytes, BLOB_TRAILER_BYTES)?);
        let trailer = BlobTrailer {
            records: decoder.u64("records")?,
            value_bytes: decoder.u64("value bytes")?,
            uid: decoder.u64("blob uid")?,
        };
        let found = decoder.u64("trailer checksum")?;
        let magic = decoder.u64("magic number")?;
        if magic.to_le_bytes() != BLOB_TRAILER_MAGIC {
            let expected = u64::from_le_bytes(BLOB_TRAILER_MAGIC);
            return Err(Malformed::Magic { expected, found: magic });
        }
        let covered = &bytes[..3 * size_of::<u64>()];
        let expected = trailer_checksum(covered, uid, at);
        if found != expected {
            return Err(Malformed::Checksum { expected, found });
        }
        if trailer.uid != uid {
            return Err(Malformed::Identity {
                what: "blob uid",
                expected: uid,
                found: trailer.uid,
            });
        }
        Ok(trailer)
    }
}

/// Returns the checksum of a trailer at offset `at` of the file `uid`. `covered` contains the trailer fields before the
/// checksum.
pub fn trailer_checksum(covered: &[u8], uid: u64, at: u64) -> u64 {
    xxh3_seeded(covered, file_location_seed(uid, at))
}

fn check_length<'a>(
    what: &'static str,
    bytes: &'a [u8],
    needed: usize,
) -> Result<&'a [u8], Malformed> {
    if bytes.len() == needed {
        return Ok(bytes);
    }
    Err(Malformed::Truncated { what, needed: len_u64(needed), found: len_u64(bytes.len()) })
}

/// Value pointer: location of a value in the value log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValuePointer {
    /// Number of the blob file.
    pub file: u64,
    /// Offset of the record.
    pub offset: u64,
    /// Size of the record in bytes.
    pub bytes: u64,
    /// Size of the decompressed value in bytes.
    pub value_bytes: u64,
}

impl ValuePointer {
    /// Appends the pointer as four varints.
    pub fn put(&self, out: &mut Vec<u8>) {
        for field in [self.file, self.offset, self.bytes, self.value_bytes] {
            put_varint(out, field);
        }
    }

    /// Decodes a value pointer from the value of an entry of kind
    /// [`ValuePointer`](lsmx_base::key::EntryKind::ValuePointer).
    ///
    /// # Errors
    /// Fails if the encoding is invalid, or if the sizes exceed the limits for records and values.
    pub fn decode(value: &[u8]) -> Result<ValuePointer, Malformed> {
        let mut decoder = Decoder::new(value);
        let pointer = ValuePointer {
            file: decoder.varint("file of a value pointer")?,
            offset: decoder.varint("offset of a value pointer")?,
            bytes: decoder.varint("record bytes of a value pointer")?,
            value_bytes: decoder.varint("value bytes of a value pointer")?,
        };
        decoder.finish("bytes after a value pointer")?;
        let bytes = len_u64(BLOB_RECORD_BYTES_MIN)..=BLOB_RECORD_BYTES_MAX;
        if !bytes.contains(&pointer.bytes) {
            return Err(Malformed::invalid_field(
                "record bytes of a value pointer",
                pointer.bytes,
                "the size of a record",
            ));
        }
        if pointer.value_bytes > VALUE_BYTES_MAX {
            return Err(Malformed::invalid_field(
                "value bytes of a value pointer",
                pointer.value_bytes,
                "at most 1 GiB",
            ));
        }
        Ok(pointer)
    }

    /// Checks that the record is between the header and the trailer of a blob file with `file_bytes` bytes.
    ///
    /// # Errors
    /// Fails if the record is outside these bounds.
    pub fn check_bounds(&self, file_bytes: u64) -> Result<(), Malformed> {
        let limit = file_bytes.saturating_sub(len_u64(BLOB_TRAILER_BYTES));
        let end = self.offset.checked_add(self.bytes);
        if self.offset < len_u64(BLOB_HEADER_BYTES) || end.is_none_or(|end| end > limit) {
            return Err(Malformed::invalid_field(
                "offset of a value pointer",
                self.offset,
                "an offset among the records of its file",
            ));
        }
        Ok(())
    }
}

/// Appends a record to `out`. The record will be written at `offset` of the file `uid`. `scratch` is a reusable buffer
/// for the compressor. The caller has checked that the key and the value do not exceed their maximum sizes.
pub fn put_record(
    out: &mut Vec<u8>,
    (uid, offset): (u64, u64),
    (key, seq): (&[u8], SeqNo),
    (value, compression): (&[u8], Compression),
    scratch: &mut Vec<u8>,
) {
    let start = out.len();
    let packed = compression == Compression::Lz4 && block::compress_lz4(value, scratch);
    let (stored, compression) =
        if packed { (&scratch[..], Compression::Lz4) } else { (value, Compression::None) };
    out.resize(start + CHECKSUM_BYTES + size_of::<u32>(), 0);
    out.push(compression as u8);
    put_varint(out, seq.0);
    put_varint(out, len_u64(key.len()));
    out.extend_from_slice(key);
    out.extend_from_slice(stored);
    let bytes = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    let covered = start + CHECKSUM_BYTES;
    out[covered..covered + size_of::<u32>()].copy_from_slice(&bytes.to_le_bytes());
    let sum = record_checksum(&out[covered..], uid, offset);
    out[start..covered].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the size of a record in bytes. `head` contains at least the first 12 bytes of the record. The checksum of
/// the record is not verified.
///
/// # Errors
/// Fails if `head` is too short, or if the size exceeds the limits for records.
pub fn record_bytes(head: &[u8]) -> Result<u64, Malformed> {
    let Some(bytes) = get_u32(head, CHECKSUM_BYTES) else {
        let (what, found) = ("blob record", len_u64(head.len()));
        return Err(Malformed::Truncated { what, needed: len_u64(FIXED_BYTES), found });
    };
    let found = u64::from(bytes);
    if !(len_u64(BLOB_RECORD_BYTES_MIN)..=BLOB_RECORD_BYTES_MAX).contains(&found) {
        return Err(Malformed::invalid_field(
            "bytes of a blob record",
            found,
            "the size of a record",
        ));
    }
    Ok(found)
}

/// A decoded record, whose checksum was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRecord<'a> {
    /// Sequence number of the entry.
    pub seq: SeqNo,
    /// User key of the entry.
    pub key: &'a [u8],
    /// Compression of the value.
    pub compression: Compression,
    /// The value as it is stored in the file, possibly compressed.
    pub stored: &'a [u8],
}

impl<'a> BlobRecord<'a> {
    /// Decodes the record that consists of `bytes`. The record was read at `offset` of the file `uid`.
    ///
    /// # Errors
    /// Fails if the checksum does not match, or if a field is invalid.
    pub fn decode(bytes: &'a [u8], uid: u64, offset: u64) -> Result<BlobRecord<'a>, Malformed> {
        let Some(covered) = bytes.get(CHECKSUM_BYTES..) else {
            let (what, found) = ("blob record", len_u64(bytes.len()));
            return Err(Malformed::Truncated { what, needed: len_u64(FIXED_BYTES), found });
        };
        let found = get_u64(bytes, 0).unwrap_or_default();
        let expected = record_checksum(covered, uid, offset);
        if found != expected {
            return Err(Malformed::Checksum { expected, found });
        }
        let stored_bytes = record_bytes(bytes)?;
        if stored_bytes != len_u64(bytes.len()) {
            let (what, expected) = ("bytes of a blob record", "the size in its value pointer");
            return Err(Malformed::invalid_field(what, stored_bytes, expected));
        }
        let mut decoder = Decoder::with_offset(bytes, CHECKSUM_BYTES + size_of::<u32>());
        let compression = decoder.u8("compression of a value")?;
        let Some(compression) = Compression::from_u8(compression) else {
            return Err(Malformed::invalid_field(
                "compression of a value",
                u64::from(compression),
                "0 (none) or 1 (lz4)",
            ));
        };
        let seq = decoder.varint("sequence number of a value")?;
        if seq > SeqNo::MAX.0 {
            let (what, expected) = ("sequence number of a value", "at most 2^56 - 1");
            return Err(Malformed::invalid_field(what, seq, expected));
        }
        let key = decoder.bytes("key of a value")?;
        let stored = decoder.take_bytes("value", decoder.remaining())?;
        Ok(BlobRecord { seq: SeqNo(seq), key, compression, stored })
    }

    /// Checks that the record belongs to the entry with this key and sequence number.
    ///
    /// # Errors
    /// Fails if the key or the sequence number differs.
    pub fn check_entry(&self, key: &[u8], seq: SeqNo) -> Result<(), Malformed> {
        if self.seq != seq {
            let (what, expected, found) = ("sequence number of a value", seq.0, self.seq.0);
            return Err(Malformed::Identity { what, expected, found });
        }
        if self.key != key {
            let (expected, found) = (xxh3(key), xxh3(self.key));
            return Err(Malformed::Identity {
                what: "hash of the key of a value",
                expected,
                found,
            });
        }
        Ok(())
    }

    /// Returns the value. The value is decompressed if necessary.
    ///
    /// # Errors
    /// Fails if the value cannot be decompressed, or if its size differs from `value_bytes`.
    pub fn value(&self, value_bytes: u64) -> Result<BlobValue<'a>, Malformed> {
        let value = match self.compression {
            Compression::None => BlobValue::Stored(self.stored),
            Compression::Lz4 => {
                BlobValue::Decompressed(Bytes::from(block::decompress_lz4(self.stored)?))
            }
        };
        if len_u64(value.len()) != value_bytes {
            let (what, found) = ("bytes of a value", len_u64(value.len()));
            return Err(Malformed::invalid_field(what, found, "the size in its value pointer"));
        }
        Ok(value)
    }

    /// Returns the size of the decompressed value in bytes. A compressed value is decompressed to determine its size.
    ///
    /// # Errors
    /// Fails if the value cannot be decompressed.
    pub fn value_bytes(&self) -> Result<u64, Malformed> {
        match self.compression {
            Compression::None => Ok(len_u64(self.stored.len())),
            Compression::Lz4 => {
                block::decompress_lz4(self.stored).map(|value| len_u64(value.len()))
            }
        }
    }
}

/// The value of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobValue<'a> {
    /// Uncompressed value, borrowed from the record.
    Stored(&'a [u8]),
    /// Decompressed value.
    Decompressed(Bytes),
}

impl std::ops::Deref for BlobValue<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            BlobValue::Stored(bytes) => bytes,
            BlobValue::Decompressed(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::assert_damage_is_detected;

    const SAMPLE_HEADER: BlobHeader = BlobHeader { keyspace: 3, uid: 0xfeed, number: 9 };
    const TRAILER: BlobTrailer = BlobTrailer { records: 5, value_bytes: 4_000, uid: 0xfeed };
    const POINTER: ValuePointer =
        ValuePointer { file: 9, offset: 4_000, bytes: 1_040, value_bytes: 1_000 };

    fn record(value: &[u8], compression: Compression) -> Vec<u8> {
        let mut out = b"before".to_vec();
        put_record(&mut out, (7, 40), (b"key", SeqNo(300)), (value, compression), &mut Vec::new());
        out.split_off(6)
    }

    #[test]
    fn blob_header_trailer_and_pointer_round_trip() {
        assert_eq!(BlobHeader::decode(&SAMPLE_HEADER.encode()), Ok(SAMPLE_HEADER));
        assert_eq!(BlobTrailer::decode(&TRAILER.encode(99), 0xfeed, 99), Ok(TRAILER));
        assert!(BlobTrailer::decode(&TRAILER.encode(99), 0xfeed, 98).is_err());
        assert!(BlobTrailer::decode(&TRAILER.encode(99), 0xfeee, 99).is_err());
        let mut bytes = Vec::new();
        POINTER.put(&mut bytes);
        assert_eq!(ValuePointer::decode(&bytes), Ok(POINTER));
    }

    #[test]
    fn blob_header_and_trailer_damaged_is_error() {
        assert_damage_is_detected(&SAMPLE_HEADER.encode(), |bytes| {
            BlobHeader::decode(bytes).is_ok()
        });
        assert_damage_is_detected(&TRAILER.encode(99), |bytes| {
            BlobTrailer::decode(bytes, 0xfeed, 99).is_ok()
        });
    }

    #[test]
    fn blob_record_any_compression_round_trips() {
        for value in [&b""[..], b"short", &[7; 3_000]] {
            for compression in [Compression::None, Compression::Lz4] {
                let bytes = record(value, compression);
                let found = BlobRecord::decode(&bytes, 7, 40).unwrap();
                found.check_entry(b"key", SeqNo(300)).unwrap();
                assert_eq!(&*found.value(len_u64(value.len())).unwrap(), value);
                assert_eq!(found.value_bytes(), Ok(len_u64(value.len())));
                assert!(found.value(len_u64(value.len()) + 1).is_err());
                assert!(found.check_entry(b"kez", SeqNo(300)).is_err());
                assert!(found.check_entry(b"key", SeqNo(301)).is_err());
            }
        }
        assert!(record(&[7; 3_000], Compression::Lz4).len() < 200);
    }

    #[test]
    fn blob_record_damaged_is_error() {
        for (value, compression) in
            [(&b"a value"[..], Compression::None), (&[3; 300], Compression::Lz4)]
        {
            assert_damage_is_detected(&record(value, compression), |bytes| {
                BlobRecord::decode(bytes, 7, 40).is_ok()
            });
        }
    }

    #[test]
    fn blob_record_other_location_is_error() {
        let bytes = record(b"a value", Compression::None);
        assert!(BlobRecord::decode(&bytes, 7, 40).is_ok());
        assert!(BlobRecord::decode(&bytes, 7, 41).is_err());
        assert!(BlobRecord::decode(&bytes, 8, 40).is_err());
    }

    #[test]
    fn value_pointer_outside_limits_is_error() {
        let decoded = |pointer: ValuePointer| {
            let mut bytes = Vec::new();
            pointer.put(&mut bytes);
            ValuePointer::decode(&bytes)
        };
        assert!(decoded(ValuePointer { bytes: 3, ..POINTER }).is_err());
        assert!(decoded(ValuePointer { bytes: u64::MAX, ..POINTER }).is_err());
        assert!(decoded(ValuePointer { value_bytes: u64::MAX, ..POINTER }).is_err());
        let end = POINTER.offset + POINTER.bytes + len_u64(BLOB_TRAILER_BYTES);
        assert!(POINTER.check_bounds(end).is_ok());
        assert!(POINTER.check_bounds(end - 1).is_err());
        assert!(ValuePointer { offset: 39, ..POINTER }.check_bounds(end).is_err());
        assert!(ValuePointer { offset: u64::MAX, ..POINTER }.check_bounds(end).is_err());
    }
}

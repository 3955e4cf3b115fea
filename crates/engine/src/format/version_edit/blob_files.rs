//! Blob files in version edits, and references of tables to them.

use lsmx_base::coding::{Decoder, len_u64, put_u64, put_varint};
use lsmx_base::malformed::Malformed;
use lsmx_compaction::FileId;

use crate::format::blob::{BLOB_HEADER_BYTES, BLOB_TRAILER_BYTES};

/// A blob file as described by the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobFileRecord {
    /// Number in the file's name.
    pub id: FileId,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of records.
    pub records: u64,
    /// Total size of all values, decompressed, in bytes.
    pub value_bytes: u64,
    /// Random uid of the file, which seeds its checksums.
    pub uid: u64,
    /// XXH3-64 of the whole file.
    pub checksum: u64,
}

impl BlobFileRecord {
    /// Returns the total size of all records, in bytes.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        self.bytes.saturating_sub(len_u64(BLOB_HEADER_BYTES + BLOB_TRAILER_BYTES))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for field in [self.id.0, self.bytes, self.records, self.value_bytes] {
            put_varint(out, field);
        }
        put_u64(out, self.uid);
        put_u64(out, self.checksum);
    }

    pub(super) fn decode(body: &mut Decoder<'_>) -> Result<BlobFileRecord, Malformed> {
        Ok(BlobFileRecord {
            id: FileId(body.varint("blob file id")?),
            bytes: body.varint("blob file bytes")?,
            records: body.varint("records of a blob file")?,
            value_bytes: body.varint("value bytes of a blob file")?,
            uid: body.u64("blob uid")?,
            checksum: body.u64("blob file checksum")?,
        })
    }
}

/// References of one table to one blob file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobReference {
    /// Number of the blob file.
    pub blob: FileId,
    /// Total size of the referenced records, in bytes.
    pub bytes: u64,
    /// Number of referenced records.
    pub records: u64,
}

pub(super) fn put_blob_references(out: &mut Vec<u8>, references: &[BlobReference]) {
    put_varint(out, len_u64(references.len()));
    for reference in references {
        for field in [reference.blob.0, reference.bytes, reference.records] {
            put_varint(out, field);
        }
    }
}

pub(super) fn get_blob_references(body: &mut Decoder<'_>) -> Result<Vec<BlobReference>, Malformed> {
    let count = body.length("blob files of a table")?;
    // The count is untrusted, so no memory is reserved for it. The loop ends at the end of the body.
    let mut references: Vec<BlobReference> = Vec::new();
    for _ in 0..count {
        let reference = BlobReference {
            blob: FileId(body.varint("blob file of a reference")?),
            bytes: body.varint("bytes of a reference")?,
            records: body.varint("records of a reference")?,
        };
        if references.last().is_some_and(|last| last.blob >= reference.blob) {
            return Err(Malformed::Order { what: "blob files of a table" });
        }
        references.push(reference);
    }
    Ok(references)
}

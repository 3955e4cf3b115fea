//! Descriptions of tables in version edits.
//!
//! The description of a table consists of its fields, an optional varint, and extensions up to the end of the body. The
//! varint is the smallest sequence number of a tombstone. If extensions follow, the varint is always present, and is 0
//! for a table without tombstones. An extension consists of a tag (u8), a length (varint) and a value. If the top bit
//! of the tag is set, a reader must know the extension.

use lsmx_base::coding::{Decoder, put_bytes, put_u64, put_varint};
use lsmx_base::malformed::Malformed;
use lsmx_compaction::{FileId, KeyRange, TableMeta};

use super::{get_key, get_optional, put_optional};
use crate::format::expiry::{
    add_expiring_bytes, decode_expiring_bytes, decode_expiry_summary, put_expiring_bytes,
    put_expiry_summary,
};

/// Appends the description of a table.
pub(super) fn put_table_meta(out: &mut Vec<u8>, meta: &TableMeta) {
    put_varint(out, meta.id.0);
    put_bytes(out, &meta.range.smallest);
    put_bytes(out, &meta.range.largest);
    for field in [meta.bytes, meta.entries, meta.tombstones, meta.value_bytes] {
        put_varint(out, field);
    }
    put_optional(out, meta.oldest_tombstone_us, put_varint);
    for field in [meta.seq_smallest, meta.seq_largest, meta.created_us, meta.creation] {
        put_varint(out, field);
    }
    put_u64(out, meta.uid);
    put_u64(out, meta.checksum);
    // The number is omitted if it is absent and no extension follows. Before an extension, 0 stands for an absent
    // number, because no tombstone has the sequence number 0.
    if meta.tombstone_seq_smallest.is_some() || meta.expiry.is_some() {
        put_varint(out, meta.tombstone_seq_smallest.unwrap_or(0));
    }
    if let Some(bytes) = meta.expiry.and_then(|expiry| expiry.bytes) {
        let mut value = Vec::new();
        put_expiring_bytes(&mut value, &bytes);
        out.push(TABLE_EXPIRING_BYTES);
        put_bytes(out, &value);
    }
    if let Some(expiry) = &meta.expiry {
        let mut value = Vec::new();
        put_expiry_summary(&mut value, expiry);
        out.push(TABLE_EXPIRY);
        put_bytes(out, &value);
    }
}

/// Flag of extensions of a table description that a reader must know.
const REQUIRED_EXTENSION: u8 = 0x80;
/// Extension of a table description: the summary of its expiry times.
const TABLE_EXPIRY: u8 = REQUIRED_EXTENSION | 1;
/// Extension of a table description: the bytes of its expiring entries. A reader that does not know this tag skips it.
const TABLE_EXPIRING_BYTES: u8 = 2;

/// Decodes the extensions of a table description, up to the end of the body.
fn get_table_extensions(body: &mut Decoder<'_>, meta: &mut TableMeta) -> Result<(), Malformed> {
    let (mut previous, mut expiring_bytes) = (None, None);
    while !body.is_empty() {
        let tag = body.u8("extension of a table")?;
        if previous.is_some_and(|previous| previous >= tag) {
            return Err(Malformed::Order { what: "extensions of a table are" });
        }
        previous = Some(tag);
        let mut decoder = Decoder::new(body.bytes("extension of a table")?);
        match tag {
            TABLE_EXPIRY => meta.expiry = Some(decode_expiry_summary(&mut decoder)?),
            TABLE_EXPIRING_BYTES => expiring_bytes = Some(decode_expiring_bytes(&mut decoder)?),
            unknown if unknown & REQUIRED_EXTENSION != 0 => {
                let (what, found) = ("extension of a table", u64::from(unknown));
                return Err(Malformed::invalid_field(what, found, "a known tag"));
            }
            _ => continue,
        }
        decoder.finish("bytes after an extension of a table")?;
    }
    add_expiring_bytes(&mut meta.expiry, expiring_bytes)
}

/// Decodes the metadata of a table. The manifest does not store the time of the last read, so it is set to the time of
/// creation.
pub(super) fn get_table_meta(body: &mut Decoder<'_>) -> Result<TableMeta, Malformed> {
    let id = FileId(body.varint("file id")?);
    let smallest = get_key(body, "smallest key")?;
    let range = KeyRange { smallest, largest: get_key(body, "largest key")? };
    let mut meta = TableMeta {
        bytes: body.varint("file bytes")?,
        entries: body.varint("entries")?,
        tombstones: body.varint("tombstones")?,
        value_bytes: body.varint("value bytes")?,
        oldest_tombstone_us: get_optional(body, |body| body.varint("oldest tombstone"))?,
        seq_smallest: body.varint("smallest sequence number")?,
        seq_largest: body.varint("largest sequence number")?,
        created_us: body.varint("creation time")?,
        creation: body.varint("order of creation")?,
        uid: body.u64("table uid")?,
        checksum: body.u64("file checksum")?,
        ..TableMeta::new(id, range)
    };
    if !body.is_empty() {
        let seq = body.varint("smallest number of a tombstone")?;
        meta.tombstone_seq_smallest = Some(seq).filter(|seq| *seq > 0 || body.is_empty());
    }
    get_table_extensions(body, &mut meta)?;
    meta.last_read_us = meta.created_us;
    Ok(meta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::version_edit::example_table;

    #[test]
    fn extension_of_table_with_unknown_tag_is_skipped_unless_required() {
        let file = TableMeta {
            tombstone_seq_smallest: Some(1),
            ..example_table(1, KeyRange::new("a", "b"))
        };
        let decode = |tag: u8| {
            let mut body = Vec::new();
            put_table_meta(&mut body, &file);
            body.push(tag);
            put_bytes(&mut body, b"of a later build");
            get_table_meta(&mut Decoder::new(&body))
        };
        assert_eq!(decode(3).map(|meta| meta.expiry), Ok(None));
        assert!(decode(REQUIRED_EXTENSION | 3).is_err());
        assert!(decode(TABLE_EXPIRING_BYTES).is_err());
    }
}

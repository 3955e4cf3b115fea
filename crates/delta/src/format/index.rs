//! Sparse index of a sorted part: where the pages lie.
//!
//! ```text
//! varint  pages
//! of each page:
//!   varint  bytes of its first key   the key
//!   varint  offset of its frame in the file
//!   varint  bytes of its frame
//! ```
//!
//! Keys and offsets ascend. All records of a key stand in one page.

use bytes::Bytes;
use lsmx::Malformed;
use lsmx_base::coding::{Decoder, put_bytes, put_varint};

/// A page of a sorted part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) first_key: Bytes,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Appends an index.
pub(crate) fn put_index(out: &mut Vec<u8>, entries: &[IndexEntry]) {
    put_varint(out, lsmx_base::coding::len_u64(entries.len()));
    for entry in entries {
        put_bytes(out, &entry.first_key);
        put_varint(out, entry.offset);
        put_varint(out, entry.bytes);
    }
}

/// Reads an index whose pages all end at or before `end`.
pub(crate) fn decode_index(bytes: &Bytes, end: u64) -> Result<Vec<IndexEntry>, Malformed> {
    let mut decoder = Decoder::new(bytes);
    let count = decoder.varint("pages of an index")?;
    let mut entries: Vec<IndexEntry> = Vec::new();
    for _ in 0..count {
        let first_key = bytes.slice_ref(decoder.bytes("first key of a page")?);
        let offset = decoder.varint("offset of a page")?;
        let bytes = decoder.varint("bytes of a page")?;
        let from = entries.last().map_or(0, |before| before.offset + before.bytes);
        if offset < from || offset.checked_add(bytes).is_none_or(|to| to > end) {
            let expected = "pages one after the other, before the index";
            return Err(Malformed::Field { what: "offset of a page", found: offset, expected });
        }
        if entries.last().is_some_and(|before| before.first_key >= first_key) {
            return Err(Malformed::Order { what: "first keys of pages" });
        }
        entries.push(IndexEntry { first_key, offset, bytes });
    }
    decoder.finish("index")?;
    Ok(entries)
}

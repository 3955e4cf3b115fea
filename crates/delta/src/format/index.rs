//! Index of the pages of a bucket's sorted part.
//!
//! ```text
//! varint  number of pages
//! per page:
//!   varint  length of the page's first key, then the key
//!   varint  file offset of the page's frame
//!   varint  size of the page's frame, in bytes
//! ```
//!
//! Keys and offsets ascend. All records of a key are in the same page.

use bytes::Bytes;
use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};
use lsmx_base::malformed::Malformed;

use super::invalid_field;

/// Error for a sorted part whose pages differ from its index.
pub const INDEX_MISMATCH: Malformed = Malformed::Order { what: "index and pages of a sorted part" };

/// Position of a page in a sorted part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    pub first_key: Bytes,
    pub offset: u64,
    pub bytes: u64,
}

pub fn put_index(out: &mut Vec<u8>, entries: &[IndexEntry]) {
    put_varint(out, len_u64(entries.len()));
    for entry in entries {
        put_bytes(out, &entry.first_key);
        put_varint(out, entry.offset);
        put_varint(out, entry.bytes);
    }
}

/// Decodes an index. Fails if pages overlap, are out of order, or end after offset `end`.
pub fn decode_index(bytes: &Bytes, end: u64) -> Result<Vec<IndexEntry>, Malformed> {
    let mut decoder = Decoder::new(bytes);
    let count = decoder.varint("pages of an index")?;
    let mut entries: Vec<IndexEntry> = Vec::new();
    for _ in 0..count {
        let first_key = bytes.slice_ref(decoder.bytes("first key of a page")?);
        let offset = decoder.varint("offset of a page")?;
        let bytes = decoder.varint("bytes of a page")?;
        let start = entries.last().map_or(0, |before| before.offset + before.bytes);
        if offset < start || offset.checked_add(bytes).is_none_or(|page_end| page_end > end) {
            let expected = "pages in order, before the index";
            return Err(invalid_field("offset of a page", offset, expected));
        }
        if entries.last().is_some_and(|before| before.first_key >= first_key) {
            return Err(Malformed::Order { what: "first keys of pages" });
        }
        entries.push(IndexEntry { first_key, offset, bytes });
    }
    decoder.finish("index")?;
    Ok(entries)
}

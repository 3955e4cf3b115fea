//! End of a key range: one byte for the kind of the end. If the range is bounded, the exclusive end key follows.
//!
//! ```text
//! 0  1    end kind  u8, 0 = a key follows, 1 = the end of the keyspace
//! 1  v+n  end       varint length and bytes; only for end kind 0
//! ```

use lsmx_base::coding::{Decoder, put_bytes};
use lsmx_base::malformed::Malformed;

const END_KEY: u8 = 0;
const END_OF_KEYSPACE: u8 = 1;

/// Appends the end of a range. `None` stands for the end of the keyspace.
pub(super) fn put_range_end(out: &mut Vec<u8>, end: Option<&[u8]>) {
    match end {
        Some(end) => {
            out.push(END_KEY);
            put_bytes(out, end);
        }
        None => out.push(END_OF_KEYSPACE),
    }
}

/// Decodes the end of a range. `None` stands for the end of the keyspace. Error messages use `what` as the name of the
/// range.
pub(super) fn decode_range_end<'a>(
    decoder: &mut Decoder<'a>,
    what: &'static str,
) -> Result<Option<&'a [u8]>, Malformed> {
    match decoder.u8(what)? {
        END_KEY => decoder.bytes(what).map(Some),
        END_OF_KEYSPACE => Ok(None),
        kind => {
            let expected = "0 (a key) or 1 (the end of the keyspace)";
            Err(Malformed::invalid_field(what, u64::from(kind), expected))
        }
    }
}

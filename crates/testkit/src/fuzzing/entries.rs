//! Reads all entries of a cursor.

use lsmx::operand_store::Cursor;
use lsmx::{EntryKind, Result, SeqNo};

/// User key, sequence number, kind and value of an entry.
pub(crate) type Entry = (Vec<u8>, SeqNo, EntryKind, Vec<u8>);

/// Reads all entries of a cursor, forward or backward, and returns them in ascending order. Returns `None` if the
/// cursor has more than `max` entries.
pub(crate) fn read_entries(
    cursor: &mut dyn Cursor,
    is_forward: bool,
    max: usize,
) -> Result<Option<Vec<Entry>>> {
    let mut entries = Vec::new();
    if is_forward {
        cursor.first()?
    } else {
        cursor.last()?
    }
    while cursor.valid() {
        if entries.len() == max {
            return Ok(None);
        }
        let key = cursor.key();
        entries.push((key.user_key.to_vec(), key.seq, key.kind, cursor.value().to_vec()));
        if is_forward { cursor.next()? } else { cursor.prev()? }
    }
    if !is_forward {
        entries.reverse();
    }
    Ok(Some(entries))
}

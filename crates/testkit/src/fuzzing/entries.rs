//! Entries as a cursor returns them.

use lsmx::operand_store::Cursor;
use lsmx::{EntryKind, Result, SeqNo};

/// User key, sequence number, kind and value of an entry.
pub(crate) type Entry = (Vec<u8>, SeqNo, EntryKind, Vec<u8>);

/// Reads all entries of a cursor, in ascending order whatever the direction. Returns `None` if there are more than `max`.
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

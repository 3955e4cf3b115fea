//! Reads the entries of a damaged table.

use std::path::Path;

use bytes::Bytes;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::slice::BlockBytes;

use crate::db::check::repair::damaged_table::DamagedTable;
use crate::db::check::repair::report::{Loss, LossKind};
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::BlockHandle;
use crate::format::data_block::DataBlock;
use crate::format::data_block::cursor::DataBlockCursor;
use crate::format::range_tombstones::FragmentedTombstones;

/// Result of reading a damaged table.
#[derive(Debug, Default)]
pub(crate) struct SalvagedTable {
    /// Unreadable parts of the table: key ranges whose entries are lost, and lost range tombstones.
    pub(crate) lost: Vec<Loss>,
    pub(crate) range_tombstones: Vec<RangeTombstone>,
}

/// Internal key with an owned user key.
type SalvagedKey = (Bytes, SeqNo, EntryKind);

/// Passes all readable entries to `visit`, in key order. `path` is the path of the table in the report.
///
/// The key range of a loss extends from the last readable key before it to the first readable key after it. Versions of
/// these two keys may be lost, too.
///
/// # Errors
/// The errors of `visit`. Damage of the table is not an error.
pub(crate) fn salvage_table(
    table: &DamagedTable<'_>,
    (keyspace, path): (&str, &Path),
    visit: &mut dyn FnMut(InternalKey<'_>, &[u8]) -> Result<()>,
) -> Result<SalvagedTable> {
    let mut salvaged = SalvagedTable::default();
    let mut last: Option<SalvagedKey> = None;
    let mut gap: Option<Loss> = None;
    let new_loss = |what, why: &Error| Loss::new(Some(keyspace), path.to_owned(), what, why);
    let data_end = table.data_blocks(&mut |handle, contents| {
        let entries =
            contents.and_then(|contents| decode_entries(table, handle, &contents, last.as_ref()));
        let entries = match entries {
            Ok(entries) => entries,
            Err(why) => {
                let from = last.as_ref().map(|(key, ..)| key.to_vec());
                let new_gap = || Loss { from, ..new_loss(LossKind::Entries, &why) };
                gap.get_or_insert_with(new_gap).bytes += handle.bytes;
                return Ok(());
            }
        };
        if let (Some(gap), Some(((key, ..), _))) = (gap.take(), entries.first()) {
            salvaged.lost.push(Loss { to: Some(key.to_vec()), ..gap });
        }
        for ((user_key, seq, kind), value) in entries {
            visit(InternalKey { user_key: &user_key, seq, kind }, &value)?;
            last = Some((user_key, seq, kind));
        }
        Ok(())
    })?;
    salvaged.lost.extend(gap);
    match read_range_tombstones(table, data_end) {
        Ok(tombstones) => salvaged.range_tombstones = tombstones,
        Err(why) => salvaged.lost.push(new_loss(LossKind::RangeDeletes, &why)),
    }
    Ok(salvaged)
}

/// Decodes the entries of a data block.
fn decode_entries(
    table: &DamagedTable<'_>,
    handle: BlockHandle,
    contents: &[u8],
    last: Option<&SalvagedKey>,
) -> Result<Vec<(SalvagedKey, Bytes)>> {
    let corrupt = |what: Malformed| Error::malformed(what, table.path(), handle.offset);
    let block = DataBlock::new(BlockBytes::copy_from(contents)).map_err(corrupt)?;
    block.check_invariants().map_err(corrupt)?;
    let mut cursor = DataBlockCursor::new(block);
    let mut entries: Vec<(SalvagedKey, Bytes)> = Vec::new();
    cursor.first().map_err(corrupt)?;
    while cursor.valid() {
        let key = cursor.key();
        let previous = entries.last().map(|(key, _)| key).or(last);
        if previous.is_some_and(|(user_key, seq, kind)| {
            InternalKey { user_key, seq: *seq, kind: *kind } >= key
        }) {
            return Err(corrupt(Malformed::Order { what: "entries are" }));
        }
        let user_key = Bytes::copy_from_slice(key.user_key);
        entries.push(((user_key, key.seq, key.kind), Bytes::copy_from_slice(cursor.value())));
        cursor.next().map_err(corrupt)?;
    }
    Ok(entries)
}

fn read_range_tombstones(table: &DamagedTable<'_>, data_end: u64) -> Result<Vec<RangeTombstone>> {
    let contents = match table.properties() {
        Some(properties) => properties
            .range_tombstones
            .map(|handle| table.read_block(handle, BlockKind::RangeTombstones))
            .transpose()?,
        None => table.find_range_tombstones(data_end)?,
    };
    let Some(contents) = contents else { return Ok(Vec::new()) };
    let tombstones = FragmentedTombstones::decode(&contents)
        .map_err(|what| Error::malformed(what, table.path(), data_end))?;
    Ok(tombstones.as_slice().to_vec())
}

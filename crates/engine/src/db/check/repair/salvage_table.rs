//! Reads the entries of a damaged table.

use bytes::Bytes;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::slice::BlockBytes;

use crate::db::check::repair::damaged_table::DamagedTable;
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::Handle;
use crate::format::data_block::DataBlock;
use crate::format::data_block::cursor::DataBlockCursor;
use crate::format::range_tombstones::FragmentedTombstones;

/// A range of keys whose entries cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct EntryGap {
    /// Last key before the gap, of which older versions may be missing. `None` at the start of the table.
    pub(crate) after: Option<Bytes>,
    /// First key after the gap, of which newer versions may be missing. `None` at the end of the table.
    pub(crate) before: Option<Bytes>,
    /// Unreadable bytes of the file.
    pub(crate) bytes: u64,
    /// Error of the first unreadable block.
    pub(crate) why: Error,
}

/// Result of reading a damaged table.
#[derive(Debug, Default)]
pub(crate) struct SalvagedTable {
    pub(crate) gaps: Vec<EntryGap>,
    pub(crate) range_tombstones: Vec<RangeTombstone>,
    /// Error of the range tombstones, if they cannot be read.
    pub(crate) range_tombstones_lost: Option<Error>,
}

/// A key with memory of its own.
type SalvagedKey = (Bytes, SeqNo, EntryKind);

/// Passes all readable entries to `visit`, in order.
///
/// # Errors
/// Those of `visit`. Damage of the table is not an error.
pub(crate) fn salvage_table(
    table: &DamagedTable<'_>,
    visit: &mut dyn FnMut(InternalKey<'_>, &[u8]) -> Result<()>,
) -> Result<SalvagedTable> {
    let mut salvaged = SalvagedTable::default();
    let mut last: Option<SalvagedKey> = None;
    let mut open_gap: Option<EntryGap> = None;
    let data_end = table.data_blocks(&mut |handle, contents| {
        let entries =
            contents.and_then(|contents| decode_entries(table, handle, &contents, last.as_ref()));
        let entries = match entries {
            Ok(entries) => entries,
            Err(why) => {
                let after = || last.as_ref().map(|(key, ..)| key.clone());
                let gap = open_gap.get_or_insert_with(|| EntryGap {
                    after: after(),
                    before: None,
                    bytes: 0,
                    why,
                });
                gap.bytes += handle.bytes;
                return Ok(());
            }
        };
        if let (Some(gap), Some(((key, ..), _))) = (open_gap.take(), entries.first()) {
            salvaged.gaps.push(EntryGap { before: Some(key.clone()), ..gap });
        }
        for ((user_key, seq, kind), value) in entries {
            visit(InternalKey { user_key: &user_key, seq, kind }, &value)?;
            last = Some((user_key, seq, kind));
        }
        Ok(())
    })?;
    salvaged.gaps.extend(open_gap);
    match read_range_tombstones(table, data_end) {
        Ok(tombstones) => salvaged.range_tombstones = tombstones,
        Err(error) => salvaged.range_tombstones_lost = Some(error),
    }
    Ok(salvaged)
}

/// Decodes the entries of a data block.
fn decode_entries(
    table: &DamagedTable<'_>,
    handle: Handle,
    contents: &[u8],
    last: Option<&SalvagedKey>,
) -> Result<Vec<(SalvagedKey, Bytes)>> {
    let corrupt = |what: Malformed| Error::malformed(what, table.path(), handle.offset);
    let block = DataBlock::new(BlockBytes::copy_from(contents)).map_err(corrupt)?;
    block.check().map_err(corrupt)?;
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
            .map(|handle| table.block(handle, BlockKind::RangeTombstones))
            .transpose()?,
        None => table.find_range_tombstones(data_end)?,
    };
    let Some(contents) = contents else { return Ok(Vec::new()) };
    let tombstones = FragmentedTombstones::decode(&contents)
        .map_err(|what| Error::malformed(what, table.path(), data_end))?;
    Ok(tombstones.as_slice().to_vec())
}

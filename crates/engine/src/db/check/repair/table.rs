//! What is readable of one damaged table, entry by entry.

use bytes::Bytes;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::slice::BlockBytes;

use crate::db::check::repair::blocks::Remains;
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::Handle;
use crate::format::data_block::DataBlock;
use crate::format::data_block::cursor::DataBlockCursor;
use crate::format::range_tombstones::FragmentedTombstones;

/// Keys between which something is missing.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    /// The last key that was read before it; older versions of it may be missing. None at the beginning.
    pub(crate) after: Option<Bytes>,
    /// The first key that was read behind it; newer versions of it may be missing. None at the end.
    pub(crate) before: Option<Bytes>,
    /// Bytes of the file that could not be read.
    pub(crate) bytes: u64,
    /// Why, of the first block.
    pub(crate) why: Error,
}

/// What was read of a table.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    /// Entries that were handed out.
    pub(crate) entries: u64,
    /// Where entries are missing.
    pub(crate) gaps: Vec<Gap>,
    /// Its range deletes.
    pub(crate) spans: Vec<RangeTombstone>,
    /// Why there are none, if that is not because it has none.
    pub(crate) spans_lost: Option<Error>,
}

/// An entry with memory of its own.
type Entry = (Bytes, SeqNo, EntryKind, Bytes);

/// Hands out all entries that can be read, in order.
///
/// # Errors
/// What `visit` says: nothing that is wrong with the table is an error here.
pub(crate) fn salvage(
    remains: &Remains<'_>,
    visit: &mut dyn FnMut(InternalKey<'_>, &[u8]) -> Result<()>,
) -> Result<Salvaged> {
    let mut salvaged = Salvaged::default();
    let mut last: Option<(Bytes, SeqNo, EntryKind)> = None;
    let mut open: Option<Gap> = None;
    let data_end = remains.data_blocks(&mut |handle, contents| {
        let entries = contents.and_then(|contents| entries(remains, handle, &contents, &last));
        let entries = match entries {
            Ok(entries) => entries,
            Err(why) => {
                let after = || last.as_ref().map(|(key, ..)| key.clone());
                let gap =
                    open.get_or_insert_with(|| Gap { after: after(), before: None, bytes: 0, why });
                gap.bytes += handle.bytes;
                return Ok(());
            }
        };
        if let (Some(gap), Some((key, ..))) = (open.take(), entries.first()) {
            salvaged.gaps.push(Gap { before: Some(key.clone()), ..gap });
        }
        for (user_key, seq, kind, value) in entries {
            visit(InternalKey { user_key: &user_key, seq, kind }, &value)?;
            salvaged.entries += 1;
            last = Some((user_key, seq, kind));
        }
        Ok(())
    })?;
    salvaged.gaps.extend(open);
    match spans(remains, data_end) {
        Ok(spans) => salvaged.spans = spans,
        Err(error) => salvaged.spans_lost = Some(error),
    }
    Ok(salvaged)
}

/// The entries of a block, all of them behind `last`.
fn entries(
    remains: &Remains<'_>,
    handle: Handle,
    contents: &[u8],
    last: &Option<(Bytes, SeqNo, EntryKind)>,
) -> Result<Vec<Entry>> {
    let at = |what: Malformed| Error::malformed(what, remains.path(), handle.offset);
    let block = DataBlock::new(BlockBytes::copy_from(contents)).map_err(at)?;
    block.check().map_err(at)?;
    let mut cursor = DataBlockCursor::new(block);
    let mut entries: Vec<Entry> = Vec::new();
    cursor.first().map_err(at)?;
    while cursor.valid() {
        let key = cursor.key();
        let before = match entries.last() {
            Some((key, seq, kind, _)) => Some((key, seq, kind)),
            None => last.as_ref().map(|(key, seq, kind)| (key, seq, kind)),
        };
        let before = before.map(|(user_key, &seq, &kind)| InternalKey { user_key, seq, kind });
        if before.is_some_and(|before| before >= key) {
            return Err(at(Malformed::Order { what: "entries are" }));
        }
        let user_key = Bytes::copy_from_slice(key.user_key);
        entries.push((user_key, key.seq, key.kind, Bytes::copy_from_slice(cursor.value())));
        cursor.next().map_err(at)?;
    }
    Ok(entries)
}

fn spans(remains: &Remains<'_>, data_end: u64) -> Result<Vec<RangeTombstone>> {
    let contents = match remains.properties() {
        Some(properties) => properties
            .range_tombstones
            .map(|handle| remains.block(handle, BlockKind::RangeTombstones))
            .transpose()?,
        None => remains.find_spans(data_end)?,
    };
    let Some(contents) = contents else { return Ok(Vec::new()) };
    let spans = FragmentedTombstones::decode(&contents)
        .map_err(|what| Error::malformed(what, remains.path(), data_end))?;
    Ok(spans.as_slice().to_vec())
}

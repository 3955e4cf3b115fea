//! Warm-up of a table: loads its metadata blocks into the cache.

use lsmx_base::malformed::Malformed;

use crate::cache::{INDEX_OVERHEAD_BYTES, MetadataKind, SLOT_OVERHEAD_BYTES};
use crate::error::{Error, Result};
use crate::format::block::BlockHandle;
use crate::table::read_context::{ReadContext, ReadPurpose};
use crate::table::reader::Table;

/// Result of a warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WarmUpResult {
    /// All blocks of this kind are in memory.
    Complete,
    /// The warm-up was stopped, or the next block would have evicted other metadata.
    Stopped,
}

/// Loads all metadata blocks of one kind that are not in memory.
///
/// Stops if the next block does not fit into the cache without evicting other metadata, or if `may_continue` returns
/// false.
pub(crate) fn warm_up(
    table: &Table,
    kind: MetadataKind,
    may_continue: &dyn Fn() -> bool,
) -> Result<WarmUpResult> {
    let purpose = ReadPurpose::WarmUp;
    let properties = table.properties();
    let fits = |handle: BlockHandle, overhead| {
        may_continue() && table.cache().available_metadata_bytes() >= handle.bytes + overhead
    };
    let warm_block = |handle: Option<BlockHandle>, read: &dyn Fn() -> Result<()>| match handle {
        Some(handle) if !table.is_resident(kind) => match fits(handle, SLOT_OVERHEAD_BYTES) {
            true => read().map(|()| WarmUpResult::Complete),
            false => Ok(WarmUpResult::Stopped),
        },
        _ => Ok(WarmUpResult::Complete),
    };
    match kind {
        MetadataKind::RangeTombstones => {
            warm_block(properties.range_tombstones, &|| table.range_tombstones(purpose).map(drop))
        }
        MetadataKind::TopIndex => warm_block(properties.top_index, &|| {
            table.top_index(&mut ReadContext::new(purpose)).map(drop)
        }),
        MetadataKind::Filter => warm_block(properties.filter, &|| table.load_filter(purpose)),
        MetadataKind::Index => {
            // Index blocks are useless without the top index, so they are loaded only if the top index is in memory.
            let has_top_index = properties.top_index.is_some();
            if !may_continue() || (has_top_index && !table.is_resident(MetadataKind::TopIndex)) {
                return Ok(WarmUpResult::Stopped);
            }
            let context = &mut ReadContext::new(purpose);
            let Some(top) = table.top_index(context)? else { return Ok(WarmUpResult::Complete) };
            let offset = properties.top_index.map_or(0, |handle| handle.offset);
            for ordinal in 0..top.count() {
                let handle = top.handle(ordinal);
                let handle = handle
                    .map_err(|what: Malformed| Error::malformed(what, table.path(), offset))?;
                let Some(handle) = handle else { break };
                if table.is_index_block_resident(ordinal, top.count()) {
                    continue;
                }
                if !fits(handle, INDEX_OVERHEAD_BYTES) {
                    return Ok(WarmUpResult::Stopped);
                }
                table.index_block(ordinal, &top, handle, context)?;
            }
            Ok(WarmUpResult::Complete)
        }
    }
}

//! Explains a point lookup in one table: performs the lookup and reports its steps.

use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::malformed::Malformed;
use serde::Serialize;

use crate::cache::MetadataKind;
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::blob::ValuePointer;
use crate::format::block::BlockHandle;
use crate::format::data_block::DataBlock;
use crate::format::expiry::{expiry_of, without_expiry};
use crate::table::read_context::{ReadContext, ReadPurpose};
use crate::table::reader::Table;

/// Source of a block that a lookup needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockSource {
    /// The block was in the block cache.
    Cache,
    /// The block was read from the file.
    Storage,
}

/// A block that a lookup needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockRead {
    /// Kind of the block.
    pub kind: BlockKind,
    /// Offset of the block in the table file. For a value in the value log, the offset in the blob file.
    pub offset: u64,
    /// Size of the block in the file in bytes.
    pub bytes: u64,
    /// Source of the block.
    pub source: BlockSource,
}

/// Steps of a point lookup in one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableProbe {
    /// Result of the filter. `None` if no filter was used.
    pub(crate) filter_may_contain: Option<bool>,
    /// Blocks in the order in which they were used.
    pub(crate) blocks: Vec<BlockRead>,
    /// The newest visible entry: sequence number, kind, and size of the value in bytes.
    pub(crate) found: Option<(SeqNo, EntryKind, u64)>,
    /// Expiry time of this entry in microseconds. `None` if it does not expire.
    pub(crate) expiry_us: Option<u64>,
    /// Value pointer of this entry. `None` if its value is in the table.
    pub(crate) pointer: Option<Vec<u8>>,
}

impl TableProbe {
    fn record_block(&mut self, kind: BlockKind, handle: BlockHandle, is_resident: bool) {
        let source = if is_resident { BlockSource::Cache } else { BlockSource::Storage };
        self.blocks.push(BlockRead { kind, offset: handle.offset, bytes: handle.bytes, source });
    }
}

/// Performs the same steps as [`Table::get`] and reports them.
///
/// A block is reported as cached if it is in memory immediately before the lookup needs it. After a concurrent
/// eviction, the lookup may still read such a block from the file.
pub(crate) fn explain_get(
    table: &Table,
    user_key: &[u8],
    snapshot: SeqNo,
    use_filter: bool,
) -> Result<TableProbe> {
    let mut probe = TableProbe::default();
    if table.is_invisible_at(snapshot) {
        return Ok(probe);
    }
    if let Some(handle) = table.properties().filter.filter(|_| use_filter) {
        probe.record_block(BlockKind::Filter, handle, table.is_resident(MetadataKind::Filter));
        let may_contain = table.may_contain(user_key)?;
        probe.filter_may_contain = Some(may_contain);
        if !may_contain {
            return Ok(probe);
        }
    }
    let context = &mut ReadContext::new(ReadPurpose::Lookup);
    let Some(top_handle) = table.properties().top_index else { return Ok(probe) };
    probe.record_block(BlockKind::TopIndex, top_handle, table.is_resident(MetadataKind::TopIndex));
    let Some(top) = table.top_index(context)? else { return Ok(probe) };
    let at = |handle: BlockHandle| {
        move |what: Malformed| Error::malformed(what, table.path(), handle.offset)
    };
    let Some((ordinal, index_handle)) = top.seek(user_key, snapshot).map_err(at(top_handle))?
    else {
        return Ok(probe);
    };
    let is_resident = table.is_index_block_resident(ordinal, top.count());
    probe.record_block(BlockKind::Index, index_handle, is_resident);
    let index = table.index_block(ordinal, &top, index_handle, context)?;
    let found = index.seek(user_key, snapshot).map_err(at(index_handle))?;
    let (_, data_handle) = found.ok_or_else(|| table.index_order_error(index_handle))?;
    let is_resident = table.is_data_block_resident(data_handle);
    probe.record_block(BlockKind::Data, data_handle, is_resident);
    let block = DataBlock::new(table.data_block(data_handle, context)?).map_err(at(data_handle))?;
    if let Some(hit) = block.get(user_key, snapshot).map_err(at(data_handle))? {
        let stored = block.bytes().get(hit.value_at..hit.value_end).unwrap_or_default();
        probe.expiry_us = expiry_of(hit.kind, stored);
        let pointer = without_expiry(hit.kind, stored);
        let mut bytes = len_u64(pointer.len());
        if hit.kind.without_expiry() == EntryKind::ValuePointer {
            let decoded = ValuePointer::decode(pointer).map_err(at(data_handle))?;
            bytes = decoded.value_bytes;
            probe.pointer = Some(pointer.to_vec());
        }
        probe.found = Some((table.ingest_seq().unwrap_or(hit.seq), hit.kind, bytes));
    }
    Ok(probe)
}

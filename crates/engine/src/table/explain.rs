//! A lookup in one table that tells what it does.

use lsmx_base::key::{EntryKind, SeqNo};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::blob::ValuePointer;
use crate::format::block::Handle;
use crate::format::data_block::DataBlock;

use crate::table::access::Access;
use crate::table::reader::{FillCache, Table};

/// Where a block came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockSource {
    /// It was in memory.
    Cache,
    /// Storage had to give it.
    Storage,
}

/// A block that a lookup needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockRead {
    /// What the block holds.
    pub kind: BlockKind,
    /// Its offset in the table's file; of a value in the value log, in the blob file.
    pub offset: u64,
    /// Its bytes in the file.
    pub bytes: u64,
    /// Where it came from.
    pub source: BlockSource,
}

/// What a lookup in one table did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableProbe {
    /// What the filter answered; `None` if it was not asked or there is none.
    pub(crate) filter_may_contain: Option<bool>,
    /// Blocks it needed, in order.
    pub(crate) blocks: Vec<BlockRead>,
    /// The newest entry that the reader may see: number, kind, bytes of its value.
    pub(crate) found: Option<(SeqNo, EntryKind, u64)>,
    /// Its value pointer, if it has one.
    pub(crate) pointer: Option<Vec<u8>>,
}

impl Table {
    /// Does what [`Table::get`] does, step by step. A block counts as cached if it was in memory just
    /// before the step that needs it; what another thread does in between is not seen.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub(crate) fn explain(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
        use_filter: bool,
    ) -> Result<TableProbe> {
        let mut probe = TableProbe::default();
        if let Some(handle) = self.properties.filter.filter(|_| use_filter) {
            probe.note(BlockKind::Filter, handle, self.filter_is_resident());
            let may_contain = self.may_contain(user_key)?;
            probe.filter_may_contain = Some(may_contain);
            if !may_contain {
                return Ok(probe);
            }
        }
        let access = &mut Access::of(FillCache::Yes);
        let Some(top_handle) = self.properties.top_index else { return Ok(probe) };
        probe.note(BlockKind::TopIndex, top_handle, self.top_index_is_resident());
        let Some(top) = self.top_index(access)? else { return Ok(probe) };
        let at = |handle: Handle| {
            move |what: lsmx_base::malformed::Malformed| {
                Error::malformed(what, &self.path, handle.offset)
            }
        };
        let Some((ordinal, index_handle)) = top.seek(user_key, snapshot).map_err(at(top_handle))?
        else {
            return Ok(probe);
        };
        let resident = self.index_is_resident(ordinal, top.count());
        probe.note(BlockKind::Index, index_handle, resident);
        let index = self.index_block(ordinal, &top, index_handle, access)?;
        let found = index.seek(user_key, snapshot).map_err(at(index_handle))?;
        let (_, data_handle) = found.ok_or_else(|| self.levels_disagree(index_handle))?;
        let resident = self.data_is_resident(data_handle);
        probe.note(BlockKind::Data, data_handle, resident);
        let block =
            DataBlock::new(self.data_block(data_handle, access)?).map_err(at(data_handle))?;
        if let Some(hit) = block.get(user_key, snapshot).map_err(at(data_handle))? {
            let mut bytes = lsmx_base::coding::len_u64(hit.value_end.saturating_sub(hit.value_at));
            if hit.kind == EntryKind::ValuePointer {
                let pointer = block.bytes().get(hit.value_at..hit.value_end).unwrap_or_default();
                let decoded = ValuePointer::decode(pointer).map_err(at(data_handle))?;
                bytes = decoded.value_bytes;
                probe.pointer = Some(pointer.to_vec());
            }
            probe.found = Some((hit.seq, hit.kind, bytes));
        }
        Ok(probe)
    }
}

impl TableProbe {
    fn note(&mut self, kind: BlockKind, handle: Handle, resident: bool) {
        let source = if resident { BlockSource::Cache } else { BlockSource::Storage };
        self.blocks.push(BlockRead { kind, offset: handle.offset, bytes: handle.bytes, source });
    }
}

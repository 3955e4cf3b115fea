//! Reading a table's metadata before anybody asks for it.

use lsmx_base::malformed::Malformed;

use crate::cache::{INDEX_OVERHEAD_BYTES, MetadataKind, SLOT_OVERHEAD_BYTES};
use crate::error::{Error, Result};
use crate::format::block::Handle;

use crate::table::access::Access;
use crate::table::reader::{FillCache, Table};

/// Whether a warm-up may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warmed {
    /// All of this kind is in memory now.
    Whole,
    /// What comes next would push other metadata out, or the caller wants no more.
    Full,
}

impl Table {
    /// Whether the one block of a kind is in memory.
    fn is_resident(&self, kind: MetadataKind) -> bool {
        match kind {
            MetadataKind::Filter => self.filter_is_resident(),
            MetadataKind::TopIndex => self.top_index_is_resident(),
            MetadataKind::RangeTombstones => self.spans_are_resident(),
            MetadataKind::Index => false,
        }
    }

    /// Reads what is not in memory of one kind of metadata, block by block, as long as there is room and
    /// `go_on` says so.
    ///
    /// # Errors
    /// When a block cannot be read or is damaged.
    pub(crate) fn warm_up(&self, kind: MetadataKind, go_on: &dyn Fn() -> bool) -> Result<Warmed> {
        let fill = FillCache::Ahead;
        let properties = &self.properties;
        let fits = |handle: Handle, overhead| {
            go_on() && self.cache().free_metadata_bytes() >= handle.bytes + overhead
        };
        let one = |handle: Option<Handle>, read: &dyn Fn() -> Result<()>| match handle {
            Some(handle) if !self.is_resident(kind) => match fits(handle, SLOT_OVERHEAD_BYTES) {
                true => read().map(|()| Warmed::Whole),
                false => Ok(Warmed::Full),
            },
            _ => Ok(Warmed::Whole),
        };
        match kind {
            MetadataKind::RangeTombstones => {
                one(properties.range_tombstones, &|| self.spans(fill).map(drop))
            }
            MetadataKind::TopIndex => {
                one(properties.top_index, &|| self.top_index(&mut Access::of(fill)).map(drop))
            }
            MetadataKind::Filter => one(properties.filter, &|| self.read_filter(fill)),
            MetadataKind::Index => {
                // Those were read before.
                if !go_on()
                    || (properties.top_index.is_some() && !self.is_resident(MetadataKind::TopIndex))
                {
                    return Ok(Warmed::Full);
                }
                let access = &mut Access::of(fill);
                let Some(top) = self.top_index(access)? else { return Ok(Warmed::Whole) };
                let at = properties.top_index.map_or(0, |handle| handle.offset);
                for ordinal in 0..top.count() {
                    let handle = top.handle(ordinal);
                    let handle =
                        handle.map_err(|what: Malformed| Error::malformed(what, &self.path, at))?;
                    let Some(handle) = handle else { break };
                    if self.index_is_resident(ordinal, top.count()) {
                        continue;
                    }
                    if !fits(handle, INDEX_OVERHEAD_BYTES) {
                        return Ok(Warmed::Full);
                    }
                    self.index_block(ordinal, &top, handle, access)?;
                }
                Ok(Warmed::Whole)
            }
        }
    }
}

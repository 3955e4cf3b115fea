//! Reading a table's metadata before anybody asks for it.

use crate::cache::Metadata;
use crate::error::{Malformed, Result};
use crate::format::block::Handle;

use super::reader::{FillCache, Table};

/// Whether a warm-up may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warmed {
    /// All of this kind is in memory now.
    Whole,
    /// What comes next would push other metadata out, or the caller wants no more.
    Full,
}

impl Table {
    /// Reads what is not in memory of one kind of metadata, block by block, as long as there is room and
    /// `go_on` says so.
    ///
    /// # Errors
    /// When a block cannot be read or is damaged.
    pub(crate) fn warm_up(&self, kind: Metadata, go_on: &dyn Fn() -> bool) -> Result<Warmed> {
        let fill = FillCache::Ahead;
        let properties = &self.properties;
        let fits = |handle: Handle| go_on() && self.cache().room_beside_metadata() >= handle.bytes;
        let one = |handle: Option<Handle>, read: &dyn Fn() -> Result<()>| match handle {
            None => Ok(Warmed::Whole),
            Some(handle) if fits(handle) => read().map(|()| Warmed::Whole),
            Some(_) => Ok(Warmed::Full),
        };
        match kind {
            Metadata::RangeTombstones => {
                one(properties.range_tombstones, &|| self.spans(fill).map(drop))
            }
            Metadata::TopIndex => one(properties.top_index, &|| self.top_index(fill).map(drop)),
            Metadata::Filter => one(properties.filter, &|| self.read_filter(fill)),
            Metadata::Index => {
                let Some(top) = self.top_index(fill)? else { return Ok(Warmed::Whole) };
                let at = properties.top_index.map_or(0, |handle| handle.offset);
                let blocks = top.entries().map_err(|what: Malformed| what.at(&self.path, at))?;
                for (ordinal, (_, handle)) in blocks.into_iter().enumerate() {
                    if !fits(handle) {
                        return Ok(Warmed::Full);
                    }
                    self.index_block(ordinal, &top, handle, fill)?;
                }
                Ok(Warmed::Whole)
            }
        }
    }
}

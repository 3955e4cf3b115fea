//! Where the bytes of a table lie among its keys, from its index: for who divides work on it.

use lsmx_base::coding::len_u64;
use lsmx_base::malformed::Malformed;

use crate::error::{Error, Result};
use crate::format::index::Separator;

use crate::table::access::Access;
use crate::table::reader::{FillCache, Table};

/// Index blocks from which on the top index alone is fine enough.
const FINE_ENOUGH: usize = 16;

/// A stretch of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// A user key at or after the last of the stretch, and not after the first of the next: only the
    /// versions of one key may lie on both sides.
    pub(crate) until: Vec<u8>,
    /// Bytes, about.
    pub(crate) bytes: u64,
}

impl Table {
    /// All entries as stretches in key order: what one index block covers if there are many, else what
    /// one data block does. None for a table without entries.
    ///
    /// # Errors
    /// When the index cannot be read or is damaged.
    pub(crate) fn weights(&self, fill: FillCache) -> Result<Vec<Weight>> {
        let access = &mut Access::of(fill);
        let Some(top) = self.top_index(access)? else { return Ok(Vec::new()) };
        let largest = || self.properties.largest.to_vec();
        let top_at = self.properties.top_index.map_or(0, |handle| handle.offset);
        let stretches =
            top.entries().map_err(|what: Malformed| Error::malformed(what, &self.path, top_at))?;
        if stretches.len() >= FINE_ENOUGH {
            let bytes = self.identity.bytes / len_u64(stretches.len());
            let weight = |(separator, _): (Option<Separator>, _)| {
                let until = separator.map_or_else(largest, |separator| separator.user_key);
                Weight { until, bytes }
            };
            return Ok(stretches.into_iter().map(weight).collect());
        }
        let mut weights = Vec::new();
        for (ordinal, (after, handle)) in stretches.into_iter().enumerate() {
            let index = self.index_block(ordinal, &top, handle, access)?;
            let blocks = index
                .entries()
                .map_err(|what| Error::malformed(what, &self.path, handle.offset))?;
            weights.extend(blocks.into_iter().map(|(separator, block)| {
                // That after the last block of an index block is in the top index.
                let separator = separator.or_else(|| after.clone());
                let until = separator.map_or_else(largest, |separator| separator.user_key);
                Weight { until, bytes: block.bytes }
            }));
        }
        Ok(weights)
    }
}

//! How tables are written.

use lsmx_base::filter::FilterWidth;

use crate::error::{Error, Result};
use crate::format::block::Compression;

/// Default of [`TableOptions::block_bytes`].
pub const BLOCK_BYTES_DEFAULT: u32 = 4096;

/// Default of [`TableOptions::restart_interval`].
pub const RESTART_INTERVAL_DEFAULT: u32 = 16;

/// Default of [`TableOptions::index_block_bytes`].
pub const INDEX_BLOCK_BYTES_DEFAULT: u32 = 4096;

/// Smallest and largest target of a block.
const BLOCK_BYTES_RANGE: std::ops::RangeInclusive<u32> = 64..=16 << 20;

/// How tables are written. Tables written with other options can be read all the same.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TableOptions {
    /// Target bytes of a data block in the file before compression, 64 to 16 Mi. Blocks end within a
    /// sixteenth of it, where a short separator suffices; an entry that is longer has a block of its
    /// own. Larger: smaller index, more bytes per lookup. Most users
    /// leave it. Default: [`BLOCK_BYTES_DEFAULT`].
    pub block_bytes: u32,
    /// Entries from one full key to the next in a data block, 1 to 4096. Smaller: faster search,
    /// larger blocks. Most users leave it. Default: [`RESTART_INTERVAL_DEFAULT`].
    pub restart_interval: u32,
    /// Whether data blocks have a byte of each key's hash beside their entries, where these have 32 bytes
    /// or more on average: lookups then look at few entries. Default: yes.
    pub block_tags: bool,
    /// Target bytes of an index block, 64 to 16 Mi; it has at most 16,384 data blocks, and boundaries of
    /// about 1 MiB. Smaller: a larger top index, which is needed
    /// for every lookup. Most users leave it. Default: [`INDEX_BLOCK_BYTES_DEFAULT`].
    pub index_block_bytes: u32,
    /// How data blocks are packed. Default: not at all.
    pub compression: Compression,
    /// Which filter is written; the narrow one is about 1 % of a table of 100-byte entries. Without one
    /// every lookup of an absent key reads a data block. Default: [`FilterWidth::Fuse8`].
    pub filter: Option<FilterWidth>,
}

impl Default for TableOptions {
    fn default() -> TableOptions {
        TableOptions {
            block_bytes: BLOCK_BYTES_DEFAULT,
            restart_interval: RESTART_INTERVAL_DEFAULT,
            block_tags: true,
            index_block_bytes: INDEX_BLOCK_BYTES_DEFAULT,
            compression: Compression::None,
            filter: Some(FilterWidth::default()),
        }
    }
}

impl TableOptions {
    /// Checks that every option is within its range.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] names the first that is not.
    pub fn validate(&self) -> Result<()> {
        let checks = [
            (
                "block_bytes",
                self.block_bytes,
                BLOCK_BYTES_RANGE.contains(&self.block_bytes),
                "64 to 16777216",
            ),
            (
                "index_block_bytes",
                self.index_block_bytes,
                BLOCK_BYTES_RANGE.contains(&self.index_block_bytes),
                "64 to 16777216",
            ),
            (
                "restart_interval",
                self.restart_interval,
                (1..=4096).contains(&self.restart_interval),
                "1 to 4096",
            ),
        ];
        for (name, value, valid, must) in checks {
            if !valid {
                return Err(Error::InvalidOption { name, value: value.to_string(), must });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_outside_their_range_are_refused_by_name() {
        assert!(TableOptions::default().validate().is_ok());
        let refused = |options: TableOptions| match options.validate() {
            Err(Error::InvalidOption { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        let default = TableOptions::default;
        assert_eq!(refused(TableOptions { block_bytes: 63, ..default() }), "block_bytes");
        assert_eq!(
            refused(TableOptions { index_block_bytes: u32::MAX, ..default() }),
            "index_block_bytes"
        );
        assert_eq!(refused(TableOptions { restart_interval: 0, ..default() }), "restart_interval");
    }
}

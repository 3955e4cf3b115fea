//! Options of table files.

use std::ops::RangeInclusive;

use lsmx_base::filter::FilterWidth;

use crate::error::{Error, Result};
use crate::format::block::Compression;
use crate::format::prefix_extractor::PrefixExtractor;

/// Default of [`TableOptions::block_bytes`].
const BLOCK_BYTES_DEFAULT: u32 = 4096;

/// Default of [`TableOptions::restart_interval`].
const RESTART_INTERVAL_DEFAULT: u32 = 16;

/// Default of [`TableOptions::index_block_bytes`].
const INDEX_BLOCK_BYTES_DEFAULT: u32 = 4096;

/// Valid range of [`TableOptions::block_bytes`] and [`TableOptions::index_block_bytes`].
const BLOCK_BYTES_RANGE: RangeInclusive<u32> = 64..=16 << 20;

/// Options for writing tables. A database may contain tables with different options.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TableOptions {
    /// Target size of a data block in bytes, before compression. Must be from 64 to 16,777,216.
    ///
    /// The size of a block may differ from the target by up to 1/16, because the writer chooses the block end with the
    /// shortest index key. An entry that is larger than a block has its own block. Larger blocks make the index
    /// smaller, but lookups read more bytes. Most users should keep the default of 4096.
    pub block_bytes: u32,
    /// Number of entries between two restart points in a data block. Must be from 1 to 4096.
    ///
    /// A smaller interval makes searches faster and blocks larger. Most users should keep the default of 16.
    pub restart_interval: u32,
    /// Whether data blocks contain one byte of the hash of each key. With these bytes, a lookup skips most entries.
    /// Blocks whose entries have less than 32 bytes on average never contain them. Default: true.
    pub block_tags: bool,
    /// Target size of an index block in bytes. Must be from 64 to 16,777,216.
    ///
    /// An index block describes at most 16,384 data blocks and contains at most about 1 MiB of boundary keys. Every
    /// lookup reads the top index, and smaller index blocks make it larger. Most users should keep the default of 4096.
    pub index_block_bytes: u32,
    /// Compression of data blocks. Default: no compression.
    pub compression: Compression,
    /// Width of the filter. `None` disables the filter. Default: [`FilterWidth::Fuse8`].
    ///
    /// The 8-bit filter adds about 1 % to a table with entries of 100 bytes. Without a filter, each lookup of an absent
    /// key reads a data block.
    pub filter: Option<FilterWidth>,
    /// Key prefixes that the filter contains in addition to full keys. Default: none.
    pub prefixes: Option<PrefixExtractor>,
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
            prefixes: None,
        }
    }
}

impl TableOptions {
    /// Checks that each option is in its valid range.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for the first option that is not valid.
    pub fn validate(&self) -> Result<()> {
        for (name, value, range, must) in [
            ("block_bytes", self.block_bytes, BLOCK_BYTES_RANGE, "64 to 16777216"),
            ("index_block_bytes", self.index_block_bytes, BLOCK_BYTES_RANGE, "64 to 16777216"),
            ("restart_interval", self.restart_interval, 1..=4096, "1 to 4096"),
        ] {
            if !range.contains(&value) {
                return Err(Error::InvalidOption { name, value: value.to_string(), must });
            }
        }
        if self.prefixes == Some(PrefixExtractor::Length(0)) {
            let (name, must) = ("prefix_filter", "a length of at least 1");
            return Err(Error::InvalidOption { name, value: "0".to_owned(), must });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validate_option_out_of_range_is_named() {
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
        let prefixes = Some(PrefixExtractor::Length(0));
        assert_eq!(refused(TableOptions { prefixes, ..default() }), "prefix_filter");
        assert_eq!(refused(TableOptions { restart_interval: 0, ..default() }), "restart_interval");
    }
}

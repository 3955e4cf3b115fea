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

/// Allowed values of [`TableOptions::block_bytes`] and [`TableOptions::index_block_bytes`].
const BLOCK_BYTES_RANGE: RangeInclusive<u32> = 64..=16 << 20;

/// Options for writing tables. Tables with different options can be read together.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TableOptions {
    /// Target size of a data block before compression, in bytes: 64 to 16,777,216.
    ///
    /// A block ends within 1/16 of the target, where the index key is shortest. A longer entry has a block of its own.
    /// Larger blocks make the index smaller, but a lookup reads more bytes. Most users keep the default,
    /// 4096.
    pub block_bytes: u32,
    /// Number of entries between restart points in a data block, 1 to 4096.
    ///
    /// A smaller interval makes searches faster and blocks larger. Most users keep the default,
    /// 16.
    pub restart_interval: u32,
    /// Whether data blocks contain one hash byte per key, which lets a lookup skip most entries. Blocks whose entries
    /// have less than 32 bytes on average never contain them. Default: true.
    pub block_tags: bool,
    /// Target bytes of an index block, 64 to 16 Mi.
    ///
    /// An index block covers at most 16,384 data blocks and about 1 MiB of boundary keys. Smaller index blocks make
    /// the top index larger, which every lookup needs. Most users keep the default,
    /// 4096.
    pub index_block_bytes: u32,
    /// Compression of data blocks. Default: none.
    pub compression: Compression,
    /// Width of the filter, or `None` for no filter. Default: [`FilterWidth::Fuse8`].
    ///
    /// The 8-bit filter takes about 1 % of a table of 100-byte entries. Without a filter, each lookup of an absent key
    /// reads a data block.
    pub filter: Option<FilterWidth>,
    /// Prefixes of keys that the filter also contains. Default: none.
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
    /// Checks the range of each option.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] with the first option that is out of range.
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

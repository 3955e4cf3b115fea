//! Encoding of all bytes on disk, without I/O. `docs/reference/format.md` describes how the parts form a file.

pub mod batch;
pub mod blob;
pub mod block;
pub mod data_block;
pub(crate) mod expiry;
pub mod footer;
pub mod index;
pub mod log_record;
pub mod manifest_header;
pub mod prefix_extractor;
pub mod properties;
mod range_end;
pub mod range_tombstones;
pub mod segment_header;
pub mod version_edit;
pub mod workload_trace;

/// Maximum size of a user key, in bytes: 64 KiB. An empty key is valid.
pub const KEY_BYTES_MAX: u64 = 64 << 10;

/// Maximum size of a value, in bytes: 1 GiB.
pub const VALUE_BYTES_MAX: u64 = 1 << 30;

/// Newest format version that this build writes and reads.
pub const FORMAT_VERSION: u32 = 2;

/// Kind of a block. A number once stored on disk is never reused.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum BlockKind {
    /// Entries.
    Data = 0,
    /// Separators and handles of data blocks.
    Index = 1,
    /// Separators and handles of index blocks.
    TopIndex = 2,
    /// The table's filter.
    Filter = 3,
    /// Fragmented range tombstones.
    RangeTombstones = 4,
    /// Footer and properties, which are read when a table is opened.
    Open = 5,
    /// Large values in the value log.
    Blob = 6,
    /// Merge operands of a key range.
    Bucket = 7,
}

impl BlockKind {
    /// All kinds, in the order of their numbers.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    pub(crate) const ALL: [BlockKind; 8] = [
        BlockKind::Data,
        BlockKind::Index,
        BlockKind::TopIndex,
        BlockKind::Filter,
        BlockKind::RangeTombstones,
        BlockKind::Open,
        BlockKind::Blob,
        BlockKind::Bucket,
    ];

    /// Returns the name in metrics, which is also the serialized name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            BlockKind::Data => "data",
            BlockKind::Index => "index",
            BlockKind::TopIndex => "top_index",
            BlockKind::Filter => "filter",
            BlockKind::RangeTombstones => "range_tombstones",
            BlockKind::Open => "open",
            BlockKind::Blob => "blob",
            BlockKind::Bucket => "bucket",
        }
    }

    /// Returns the kind stored as `byte`, or `None` if the number is unknown.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn from_u8(byte: u8) -> Option<BlockKind> {
        BlockKind::ALL.get(usize::from(byte)).copied()
    }
}

/// Checks that `is_valid` accepts `bytes`, but no copy with one flipped bit and no proper prefix.
#[cfg(test)]
pub(crate) fn assert_damage_is_detected(bytes: &[u8], is_valid: impl Fn(&[u8]) -> bool) {
    assert!(is_valid(bytes));
    for (bit, damaged) in copies_with_flipped_bit(bytes) {
        assert!(!is_valid(&damaged), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(!is_valid(&bytes[..len]), "{len} bytes");
    }
}

/// Returns all copies of `bytes` with one flipped bit, each with the number of the bit.
#[cfg(test)]
pub(crate) fn copies_with_flipped_bit(bytes: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..bytes.len() * 8).map(|bit| {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        (bit, damaged)
    })
}

//! Encoding and decoding of all file formats. This module performs no I/O. `docs/reference/format.md` describes the
//! files as a whole.

pub mod batch;
pub mod blob;
pub mod block;
pub mod data_block;
pub(crate) mod expiry;
pub(crate) mod follower_files;
pub mod footer;
pub mod index;
pub(crate) mod log_chunk;
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

/// Kind of a block. Files store the kind as a number, which is never reused for another kind.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum BlockKind {
    /// Data block of a table, which contains entries.
    Data = 0,
    /// Index block of a table, which contains boundary keys and locations of data blocks.
    Index = 1,
    /// Top index of a table, which contains boundary keys and locations of index blocks.
    TopIndex = 2,
    /// Filter of a table.
    Filter = 3,
    /// Range tombstones of a table, split into fragments.
    RangeTombstones = 4,
    /// Properties of a table. In metrics, this kind also stands for the footer. Both are read when a table is opened.
    Open = 5,
    /// Large value in a blob file.
    Blob = 6,
    /// Bucket of an operand store, which contains the merge operands of a key range.
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

    /// Returns the name of the kind in metrics. The serialized name is the same.
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

/// Checks that `is_valid` accepts `bytes`, rejects every copy with one flipped bit, and rejects every proper prefix.
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

/// Returns all copies of `bytes` with one flipped bit, each with the index of this bit.
#[cfg(test)]
pub(crate) fn copies_with_flipped_bit(bytes: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..bytes.len() * 8).map(|bit| {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        (bit, damaged)
    })
}

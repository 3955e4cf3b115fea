//! What bytes on disk mean. No I/O here; `docs/format.md` tells how the pieces form a file.

pub(crate) mod batch;
pub mod blob;
pub mod block;
pub(crate) mod data_block;
pub mod edit;
pub mod filename;
pub mod footer;
pub mod frame;
pub mod index;
pub mod manifest_header;
pub mod properties;
pub mod range_tombstones;
pub mod trace;
pub mod wal_header;

/// Most bytes of a user key: 64 KiB. The empty key is a key like any other.
pub const KEY_BYTES_MAX: u64 = 64 << 10;

/// Most bytes of a value: 1 GiB.
pub const VALUE_BYTES_MAX: u64 = 1 << 30;

/// Newest format version that this build writes and reads.
pub const FORMAT_VERSION: u32 = 1;

/// What a block holds. A number once on disk is never reused.
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
    /// Footer and properties, read when a table is opened.
    Open = 5,
    /// Large values in the value log.
    Blob = 6,
    /// Merge operands of a key range.
    Bucket = 7,
}

impl BlockKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [BlockKind; 8] = [
        BlockKind::Data,
        BlockKind::Index,
        BlockKind::TopIndex,
        BlockKind::Filter,
        BlockKind::RangeTombstones,
        BlockKind::Open,
        BlockKind::Blob,
        BlockKind::Bucket,
    ];

    /// The kind that a byte on disk stands for, or `None` for a byte this version does not know.
    #[must_use]
    pub fn from_u8(byte: u8) -> Option<BlockKind> {
        BlockKind::ALL.get(usize::from(byte)).copied()
    }
}

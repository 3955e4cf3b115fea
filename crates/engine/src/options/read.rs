//! Options of a read.

/// Storage tiers that a read may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadTier {
    /// Memory and files.
    #[default]
    Storage,
    /// Memory only. The read opens and reads no file, and waits for no lock that is held during file I/O.
    ///
    /// If data is missing in memory, the read fails with [`Error::WouldBlock`](crate::Error::WouldBlock) and is not
    /// counted in the metrics.
    Memory,
}

/// Options of a lookup, a range read or a cursor.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use lsmx::{Db, Options, ReadOptions, ReadTier};
///
/// let db = Db::open(dir.path().join("data"), Options::default())?;
/// db.put(b"apple", b"red")?;
/// let memory = ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() };
/// assert!(db.default_keyspace().get_with(b"apple", &memory)?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Storage tiers that the read may use. Default: [`ReadTier::Storage`].
    pub tier: ReadTier,
    /// Whether data blocks that the read loads from files are added to the block cache.
    ///
    /// Default: `None`. Lookups then add their blocks. Range reads and cursors add only the first two blocks after each
    /// seek, so that a long scan does not evict the blocks of lookups. With `true`, a range read or a cursor reads each
    /// block alone.
    pub fill_cache: Option<bool>,
    /// Maximum number of bytes of data blocks that a range read or a cursor reads at once from a table.
    ///
    /// A scan begins with 16 KiB and doubles this size with each read. A smaller maximum wastes fewer reads if scans end
    /// early at an unknown key. With 0 each block is read alone. Lookups and reads from the value log ignore this option.
    /// Default: `None`, which means 256 KiB. Larger values have the same effect.
    pub read_ahead_bytes_max: Option<u64>,
}

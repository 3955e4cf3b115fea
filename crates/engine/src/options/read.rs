//! Options of a read.

use std::time::Duration;

/// Storage tiers that a read may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadTier {
    /// Memory and files.
    #[default]
    Storage,
    /// Memory only. The read opens and reads no file, and waits for no lock that is held during file I/O.
    ///
    /// If data is missing in memory, the read fails with [`Error::WouldBlock`](crate::Error::WouldBlock). A lookup is
    /// then not counted in the metrics. A move of a range or a cursor counts the cached blocks that it has used.
    Memory,
}

/// Options of a lookup, a range read or a cursor.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use std::time::Duration;
///
/// use lsmx::{Db, Options, ReadOptions, ReadTier};
///
/// let db = Db::open(dir.path().join("data"), Options::default())?;
/// db.put(b"apple", b"red")?;
/// let memory = ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() };
/// assert!(db.default_keyspace().get_with(b"apple", &memory)?.is_some());
/// let limited = ReadOptions { deadline: Some(Duration::from_secs(1)), ..ReadOptions::default() };
/// assert!(db.default_keyspace().get_with(b"apple", &limited)?.is_some());
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
    /// block alone. Separated values that a range read or a cursor loads are never added.
    pub fill_cache: Option<bool>,
    /// Maximum number of bytes of data blocks that a range read or a cursor reads at once from a table.
    ///
    /// A scan begins with 16 KiB and doubles this size with each read. A smaller maximum wastes fewer reads if scans end
    /// early at an unknown key. With 0 each block is read alone. Lookups and reads from the value log ignore this option.
    /// Default: `None`, which means 256 KiB. Larger values have the same effect.
    pub read_ahead_bytes_max: Option<u64>,
    /// Maximum time of one lookup, or of one move of an iterator or a cursor. After this time, the call fails with
    /// [`Error::Deadline`](crate::Error::Deadline).
    ///
    /// The call checks the deadline before each read of a block or a separated value, and while it skips many versions.
    /// Data in memory is therefore returned even with a deadline of zero. The call may take longer, because it does not
    /// interrupt a file read, a merge operator or an operand store. Iterators with a deadline do not read separated
    /// values ahead. Default: `None`, no limit.
    pub deadline: Option<Duration>,
}

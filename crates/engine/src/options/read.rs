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

/// Options of a lookup or a range read.
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
    /// A range read always adds the block that a seek finds. Default: `None`, which means `true` for lookups and
    /// `false` for range reads.
    pub fill_cache: Option<bool>,
}

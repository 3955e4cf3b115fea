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
/// let memory = ReadOptions::default().tier(ReadTier::Memory);
/// assert!(db.get_with(b"apple", &memory)?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct ReadOptions {
    pub(crate) tier: ReadTier,
    pub(crate) fill_cache: Option<bool>,
}

impl ReadOptions {
    /// Storage tiers that the read may use. Default: [`ReadTier::Storage`].
    pub fn tier(mut self, tier: ReadTier) -> Self {
        self.tier = tier;
        self
    }

    /// Whether data blocks that the read loads from files are added to the block cache.
    ///
    /// A range read always adds the block that a seek finds. Default: true for lookups, false for range reads.
    pub fn fill_cache(mut self, fill: bool) -> Self {
        self.fill_cache = Some(fill);
        self
    }
}

//! Options of a write.

use std::time::Duration;

/// Durability of a write when its call returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Passed to the operating system. The write survives the end of the process. After a power failure, a prefix of all
    /// commits survives.
    #[default]
    Buffered,
    /// On stable storage. The write and all earlier commits survive a power failure.
    Sync,
}

/// Options of a write.
///
/// ```
/// use std::time::Duration;
///
/// use lsmx::{Durability, WriteOptions};
///
/// let synced = WriteOptions::from(Durability::Sync);
/// let limited = WriteOptions { deadline: Some(Duration::from_millis(10)), ..synced };
/// # let _ = limited;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Durability when the call returns. Default: [`Durability::Buffered`].
    pub durability: Durability,
    /// Maximum time to wait. After this time, the call fails with [`Error::Deadline`](crate::Error::Deadline) and
    /// writes nothing.
    ///
    /// If another thread has already taken the write into its commit group, the call fails with
    /// [`Error::Undecided`](crate::Error::Undecided). A thread that leads a group cannot leave it, so its call may
    /// exceed the deadline by the I/O time of the group. Default: `None`, no limit.
    pub deadline: Option<Duration>,
    /// Whether the call fails with [`Error::WouldWait`](crate::Error::WouldWait) instead of waiting for backpressure.
    /// Default: false.
    pub no_slowdown: bool,
}

impl From<Durability> for WriteOptions {
    fn from(durability: Durability) -> WriteOptions {
        WriteOptions { durability, ..WriteOptions::default() }
    }
}

impl From<Duration> for WriteOptions {
    /// Returns options with this deadline.
    fn from(deadline: Duration) -> WriteOptions {
        WriteOptions { deadline: Some(deadline), ..WriteOptions::default() }
    }
}

/// How writes are slowed down when compactions fall behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteControl {
    /// Writes slow down smoothly as the compaction debt grows, and rarely stop.
    #[default]
    Smooth,
    /// Writes run at full speed until they stop. For comparisons with older studies.
    Stop,
}

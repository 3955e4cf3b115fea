//! How one write is to be done.

use std::time::Duration;

/// When a write counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Handed to the operating system before the call returns: survives the end of the process,
    /// and a power loss as part of a prefix.
    #[default]
    Buffered,
    /// On stable storage before the call returns: survives a power loss, with every commit before.
    Sync,
}

/// Options of one write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// When the write counts as done.
    pub durability: Durability,
    /// How long the call may wait before it fails with [`Error::Deadline`](crate::Error::Deadline), nothing
    /// done. If another thread has taken the write into its group of commits by then, the call fails with
    /// [`Error::Undecided`](crate::Error::Undecided). A thread that leads a group itself cannot leave it: its
    /// call may last longer by the device calls of the group. `None`: no limit.
    pub deadline: Option<Duration>,
    /// Answer [`Error::WouldWait`](crate::Error::WouldWait) at once where backpressure would make
    /// the call wait.
    pub no_slowdown: bool,
}

impl From<Durability> for WriteOptions {
    fn from(durability: Durability) -> WriteOptions {
        WriteOptions { durability, ..WriteOptions::default() }
    }
}

/// How writes are slowed down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteControl {
    /// Smoothly, by debt, long before they would stop.
    #[default]
    Smooth,
    /// Not at all until the hard stop: the crude control of older studies, for comparison.
    Stop,
}

//! Deliberate bugs and a full disk, which tests enable by environment variables. Without the feature `testing`, they are
//! not compiled.

use std::sync::LazyLock;

/// Environment variable with the name of a bug.
pub const BUG: &str = "LSMX_KV_BUG";
/// Environment variable with the number of appends to files after which the disk is full.
pub const APPENDS_MAX: &str = "LSMX_KV_APPENDS_MAX";

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Each node answers reads from its own state, without a read index.
    StaleRead,
    /// The state machine ignores request numbers.
    RetryAppliedTwice,
}

impl Bug {
    /// Returns the value of [`BUG`] that enables the bug.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bug::StaleRead => "stale-read",
            Bug::RetryAppliedTwice => "retry-applied-twice",
        }
    }
}

/// Returns whether the bug is enabled. Without the feature `testing`, it is `false` at compile time.
#[must_use]
#[inline]
pub fn is_on(bug: Bug) -> bool {
    static ENABLED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(BUG).ok());
    cfg!(feature = "testing") && ENABLED.as_deref() == Some(bug.name())
}

/// Returns the file system of a node.
#[cfg(feature = "testing")]
#[must_use]
pub fn file_system() -> std::sync::Arc<dyn lsmx::vfs::Vfs> {
    use std::sync::Arc;

    use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
    use lsmx::vfs::OsVfs;

    let Some(appends) = std::env::var(APPENDS_MAX).ok().and_then(|text| text.parse().ok()) else {
        return Arc::new(OsVfs);
    };
    let disk = FaultVfs::new(Arc::new(OsVfs), 1);
    let full = FaultRule::new(Fault::Error(Errno::NoSpace)).for_calls(&[VfsCall::Append]);
    disk.add_rule(full.nth(appends).from_then_on());
    Arc::new(disk)
}

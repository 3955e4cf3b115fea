//! Metrics of the files that the owner keeps for followers.

use serde::{Deserialize, Serialize};

/// Followers of the database, see [`Db::open_follower`](crate::Db::open_follower), and the obsolete files that only they
/// use.
///
/// Each deletion of obsolete files updates the values. Such a deletion follows each flush. The owner keeps all obsolete
/// files while a follower catches up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FollowerFileMetrics {
    /// Number of open followers.
    pub followers: u64,
    /// Number of obsolete files that are kept for followers. [`HeldMetrics::files`](crate::metrics::HeldMetrics::files) does not include them.
    pub files: u64,
    /// Bytes of these files.
    pub file_bytes: u64,
}

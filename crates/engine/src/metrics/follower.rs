//! Metrics of a follower.

use serde::{Deserialize, Serialize};

/// Metrics of a [`Follower`](crate::Follower).
///
/// A follower does not know the newest commit of the owner. [`FollowerMetrics::last_catch_up_age_us`] bounds the time by
/// which it lags behind the synced commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FollowerMetrics {
    /// Sequence number of the last commit that the view shows.
    pub shown_seq: u64,
    /// Number of catch-ups that succeeded, including those that found no new commits.
    pub catch_ups: u64,
    /// Number of catch-ups that replaced the view.
    pub views: u64,
    /// Number of view replacements that replayed only the new commits, because no file of the database had changed. The
    /// other catch-ups that replaced the view replayed the whole WAL.
    pub extensions: u64,
    /// Number of catch-ups that failed.
    pub failures: u64,
    /// Time since the start of the last catch-up that succeeded, or of the open, in microseconds.
    pub last_catch_up_age_us: u64,
    /// Duration of the last catch-up that succeeded, or of the open, in microseconds.
    pub last_catch_up_us: u64,
}

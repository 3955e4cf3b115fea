//! Followers: read-only handles that read a database while its owner writes.
//!
//! A follower has files of its own in the directory `FOLLOWERS` of the database. `N` has six digits.
//!
//! | file | contents |
//! |---|---|
//! | `N.lock` | empty; locked while the follower, one of its views, or an iterator of such a view exists |
//! | `N.files` | the numbers of the table and blob files in use; without this file, the follower may use every file |
//! | `N.old` | the last `N.files` while the follower may use every file |
//! | `N.tmp` | `N.files` under construction; renamed when it is complete |
//!
//! The owner does not delete a file that a follower may use:
//!
//! 1. The owner removes a file from the manifest, or points `CURRENT` to a new manifest. The change is durable.
//! 2. The owner reads the files of the followers.
//! 3. The owner deletes the file, unless a follower may use it.
//!
//! A follower reads a new state of the database in these steps:
//!
//! 1. The follower renames `N.files` to `N.old`. From now on it may use every file.
//! 2. The follower reads `CURRENT`, the manifest and the log, and opens the files of the new state.
//! 3. The follower writes `N.files` with the files of the new state and of all older states that are in use. If step 2 or
//!    this step fails, the follower closes the new files, and renames `N.old` back.
//!
//! If the owner reads the files of the follower before step 1 of the follower, the manifest has changed before step 1,
//! too. The new state of the follower then does not contain the file. Otherwise, the owner keeps the file.
//!
//! A process that ends releases its locks. The owner deletes the files of followers whose lock is free.

mod metrics;
mod pin;
mod pinned_files;

pub use self::metrics::FollowerFileMetrics;
pub(crate) use self::pin::FollowerPin;
pub(crate) use self::pinned_files::{PinnedFiles, find_open_follower};

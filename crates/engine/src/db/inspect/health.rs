//! Report of [`Db::health`](crate::Db::health).

use std::path::PathBuf;

use lsmx_base::sync::Arc;
use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::jobs::quarantine;
use crate::state::DbState;
use crate::tree::Tree;

/// Obstacles to writes and background work. All fields are empty if the database is healthy.
///
/// Errors are serialized as one line of text with all causes.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// Error that made the database read-only, see [`Db::resume`](crate::Db::resume).
    #[serde(serialize_with = "serialize_optional_error")]
    pub read_only: Option<Arc<Error>>,
    /// Files that background jobs cannot read. Compactions do not use these files. Lookups of keys in their damaged
    /// blocks fail.
    pub quarantined: Vec<QuarantinedFile>,
    /// Keyspaces whose compactions do not run, sorted by id.
    pub compaction_blocked: Vec<BlockedCompaction>,
}

impl Health {
    /// Returns true if there are no obstacles.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.read_only.is_none()
            && self.quarantined.is_empty()
            && self.compaction_blocked.is_empty()
    }
}

/// File that background jobs cannot read.
///
/// The engine retries the read after increasing pauses and in [`Db::resume`](crate::Db::resume). The file leaves
/// quarantine when all of it can be read. The quarantine is not persistent and ends when the database is closed.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct QuarantinedFile {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Path of a table, a blob file, or a file of an operand store.
    pub path: PathBuf,
    /// Error of the last read.
    #[serde(serialize_with = "serialize_error")]
    pub cause: Arc<Error>,
    /// Start of the quarantine, in microseconds of the database's clock.
    pub since_us: u64,
    /// Number of failed reads; at least 1.
    pub failed_reads: u32,
    /// Time of the next read, in microseconds of the database's clock. `None` during a read.
    pub next_read_us: Option<u64>,
}

/// Keyspace whose compactions do not run.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct BlockedCompaction {
    /// Name of the keyspace.
    pub keyspace: String,
    /// [`Error::CompactionBlocked`] because of quarantined files, [`Error::PolicyStalled`] because of a custom policy,
    /// or the error of the last compaction.
    #[serde(serialize_with = "serialize_error")]
    pub cause: Arc<Error>,
    /// True if writes to the keyspace fail with `cause`, because L0 has the maximum number of runs.
    pub writes_stopped: bool,
}

fn serialize_error<S: Serializer>(error: &Error, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&error.to_string())
}

fn serialize_optional_error<S: Serializer>(
    error: &Option<Arc<Error>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match error {
        Some(error) => serialize_error(error, serializer),
        None => serializer.serialize_none(),
    }
}

/// Returns the health of a database.
pub(in crate::db) fn current_health(state: &DbState) -> Health {
    let mut health = Health { read_only: state.error_state.read_only_cause(), ..Health::default() };
    for tree in state.all_trees() {
        quarantine::release_unneeded_files(state, &tree);
        add_tree(&tree, &mut health);
    }
    health
}

fn add_tree(tree: &Tree, health: &mut Health) {
    let jobs = tree.jobs.lock();
    let quarantined = jobs.quarantine.files().map(|(_, file)| QuarantinedFile {
        keyspace: tree.name(),
        path: file.path.clone(),
        cause: Arc::clone(&file.cause),
        since_us: file.since_us,
        failed_reads: file.failed_reads,
        next_read_us: file.next_read(),
    });
    health.quarantined.extend(quarantined);
    if let Some(cause) = jobs.compaction_error() {
        health.compaction_blocked.push(BlockedCompaction {
            keyspace: tree.name(),
            cause: Arc::new(cause),
            writes_stopped: tree.is_write_stopped() && jobs.write_error(&tree.name()).is_some(),
        });
    }
}

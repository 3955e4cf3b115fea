//! The health call: obstacles to writes and background work.

use std::path::PathBuf;

use lsmx_base::sync::Arc;
use serde::{Serialize, Serializer};

use crate::db::DbInner;
use crate::error::Error;
use crate::jobs::quarantine;
use crate::tree::Tree;

/// Obstacles to writes and background work. All fields are empty for a healthy database. Errors serialize as one line of text with all causes.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// Why the database is read-only, if it is: see [`Db::resume`](crate::Db::resume).
    #[serde(serialize_with = "optional_chain")]
    pub read_only: Option<Arc<Error>>,
    /// Files that background work cannot read, by keyspace. Compactions leave them alone; lookups of keys in
    /// their damaged blocks fail.
    pub quarantined: Vec<QuarantinedFile>,
    /// Keyspaces whose compactions are not done, sorted by id.
    pub compaction_blocked: Vec<BlockedCompaction>,
}

impl Health {
    /// Whether nothing keeps the database from its work.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.read_only.is_none()
            && self.quarantined.is_empty()
            && self.compaction_blocked.is_empty()
    }
}

/// A file that background work cannot read. It is read again after increasing pauses, and by
/// [`Db::resume`](crate::Db::resume); the first read of the whole file that succeeds ends the quarantine.
/// Nothing of this is stored: after an open no file is quarantined.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct QuarantinedFile {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The file: a table, a blob file, or a file of an operand store.
    pub path: PathBuf,
    /// Why the last read of it failed.
    #[serde(serialize_with = "chain")]
    pub cause: Arc<Error>,
    /// When it was quarantined, in microseconds of the database's clock.
    pub since_us: u64,
    /// Reads of it that failed; at least 1.
    pub failed_reads: u32,
    /// When it is read again, in microseconds of the database's clock; none while it is being read.
    pub next_read_us: Option<u64>,
}

/// A keyspace whose compactions are not done.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct BlockedCompaction {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Why: [`Error::CompactionBlocked`] if quarantined files are the reason, [`Error::PolicyStalled`] if a
    /// custom policy is, else why compactions fail.
    #[serde(serialize_with = "chain")]
    pub cause: Arc<Error>,
    /// Whether L0 is at the policy's hard stop, so that writes to the keyspace fail with the cause.
    pub writes_stopped: bool,
}

fn chain<S: Serializer>(error: &Error, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&error.to_string())
}

fn optional_chain<S: Serializer>(
    error: &Option<Arc<Error>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match error {
        Some(error) => chain(error, serializer),
        None => serializer.serialize_none(),
    }
}

impl DbInner {
    pub(crate) fn health(&self) -> Health {
        let store = &self.state;
        let mut health =
            Health { read_only: store.error_state.read_only_cause(), ..Health::default() };
        for tree in store.all_trees() {
            quarantine::release_unneeded_files(store, &tree);
            add_tree(&tree, &mut health);
        }
        health
    }
}

fn add_tree(tree: &Tree, health: &mut Health) {
    let jobs = tree.jobs.lock();
    let quarantined = jobs.quarantine.files().map(|(_, file)| QuarantinedFile {
        keyspace: tree.name.clone(),
        path: file.path.clone(),
        cause: Arc::clone(&file.cause),
        since_us: file.since_us,
        failed_reads: file.failed_reads,
        next_read_us: file.next_read(),
    });
    health.quarantined.extend(quarantined);
    if let Some(cause) = jobs.compaction_error() {
        health.compaction_blocked.push(BlockedCompaction {
            keyspace: tree.name.clone(),
            cause: Arc::new(cause),
            writes_stopped: tree.is_write_stopped() && jobs.write_error(&tree.name).is_some(),
        });
    }
}

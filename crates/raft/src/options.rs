//! Options of the storage.

use std::fmt;

use lsmx::vfs::{OsVfs, Vfs};
use lsmx::{KeyspaceOptions, Options};
use lsmx_base::sync::Arc;

/// Options of the storage of a Raft node.
///
/// ```
/// use lsmx::{KeyspaceOptions, Options};
/// use lsmx_raft::StoreOptions;
///
/// let options = StoreOptions::default()
///     .db(Options::default().memory_budget(256 << 20))
///     .state_keyspace(KeyspaceOptions::default().block_bytes(16 << 10));
/// ```
#[derive(Clone)]
#[must_use]
pub struct StoreOptions {
    pub(crate) db: Options,
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) log_keyspace: KeyspaceOptions,
    pub(crate) state_keyspace: KeyspaceOptions,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            db: Options::default(),
            vfs: Arc::new(OsVfs),
            log_keyspace: KeyspaceOptions::default(),
            state_keyspace: KeyspaceOptions::default(),
        }
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions").field("db", &self.db).finish_non_exhaustive()
    }
}

impl StoreOptions {
    /// Options of the database. [`StoreOptions::vfs`] replaces its file system. Default: the default of [`Options`].
    pub fn db(mut self, options: Options) -> Self {
        self.db = options;
        self
    }

    /// File system of the database and of the snapshots. Default: that of the operating system.
    pub fn vfs(mut self, vfs: Arc<dyn Vfs>) -> Self {
        self.vfs = vfs;
        self
    }

    /// Options of the keyspace of the log. Default: the default of [`KeyspaceOptions`].
    pub fn log_keyspace(mut self, options: KeyspaceOptions) -> Self {
        self.log_keyspace = options;
        self
    }

    /// Options of the keyspace of the state machine, such as its merge operator. An operand store and a time to live are
    /// not supported. Default: the default of [`KeyspaceOptions`].
    pub fn state_keyspace(mut self, options: KeyspaceOptions) -> Self {
        self.state_keyspace = options;
        self
    }
}

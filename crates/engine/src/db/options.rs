//! Options of a database: each part's own, composed.

use std::collections::BTreeMap;
use std::fmt;

use crate::env::Background;
use crate::error::{Error, Result};
use crate::event::EventListener;
use crate::keyspace::options::KeyspaceOptions;
use crate::sync::Arc;
use crate::wal::{RecoveryMode, WalOptions};
use crate::write::throttle::WriteControl;

/// Default of [`Options::block_cache_bytes`]: 64 MiB.
pub const BLOCK_CACHE_BYTES_DEFAULT: u64 = 64 << 20;
/// Default of [`Options::wal_bytes_max`], in memtables of the default keyspace.
pub const WAL_MEMTABLES_DEFAULT: u64 = 4;

/// Settings of a database: builder methods on plain data, checked when it is opened.
#[derive(Clone)]
pub struct Options {
    pub(crate) create_if_missing: bool,
    pub(crate) background: Background,
    pub(crate) seed: Option<u64>,
    pub(crate) block_cache_bytes: u64,
    pub(crate) wal_bytes_max: Option<u64>,
    pub(crate) memtable_bytes_max: Option<u64>,
    pub(crate) wal: WalOptions,
    pub(crate) write_control: WriteControl,
    pub(crate) recovery: RecoveryMode,
    pub(crate) listener: Option<Arc<dyn EventListener>>,
    pub(crate) keyspace_defaults: KeyspaceOptions,
    pub(crate) keyspaces: BTreeMap<String, KeyspaceOptions>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create_if_missing: true,
            background: Background::default(),
            seed: None,
            block_cache_bytes: BLOCK_CACHE_BYTES_DEFAULT,
            wal_bytes_max: None,
            memtable_bytes_max: None,
            wal: WalOptions::default(),
            write_control: WriteControl::default(),
            recovery: RecoveryMode::default(),
            listener: None,
            keyspace_defaults: KeyspaceOptions::default(),
            keyspaces: BTreeMap::new(),
        }
    }
}

impl Options {
    /// Whether a database is made where there is none. Default: yes.
    #[must_use]
    pub fn create_if_missing(mut self, create: bool) -> Self {
        self.create_if_missing = create;
        self
    }

    /// Who does flushes and compactions. Default: two threads of the engine, and one for flushes.
    #[must_use]
    pub fn background(mut self, background: Background) -> Self {
        self.background = background;
        self
    }

    /// Makes every random number follow from this seed. For tests and experiments.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Bytes for cached blocks of all kinds, metadata before data.
    /// Default: [`BLOCK_CACHE_BYTES_DEFAULT`].
    #[must_use]
    pub fn block_cache_bytes(mut self, bytes: u64) -> Self {
        self.block_cache_bytes = bytes;
        self
    }

    /// Bytes of log past which the keyspace that holds the oldest segment is flushed. Larger: idle
    /// keyspaces are flushed less often, recovery takes longer. Default: four memtables.
    #[must_use]
    pub fn wal_bytes_max(mut self, bytes: u64) -> Self {
        self.wal_bytes_max = Some(bytes);
        self
    }

    /// Bytes of all memtables together past which the largest is flushed. Default: four memtables.
    #[must_use]
    pub fn memtable_bytes_max(mut self, bytes: u64) -> Self {
        self.memtable_bytes_max = Some(bytes);
        self
    }

    /// When segments of the log turn, and when it is synced though nobody asked.
    #[must_use]
    pub fn wal(mut self, wal: WalOptions) -> Self {
        self.wal = wal;
        self
    }

    /// How writes are slowed down when compaction falls behind. Default: smoothly.
    #[must_use]
    pub fn write_control(mut self, control: WriteControl) -> Self {
        self.write_control = control;
        self
    }

    /// What opening does about a damaged log. Default: it is an error.
    #[must_use]
    pub fn recovery(mut self, mode: RecoveryMode) -> Self {
        self.recovery = mode;
        self
    }

    /// Who is told what happens in the background.
    #[must_use]
    pub fn listener(mut self, listener: Arc<dyn EventListener>) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Options of the default keyspace, and of every other until it is opened with its own.
    #[must_use]
    pub fn keyspace_defaults(mut self, options: KeyspaceOptions) -> Self {
        self.keyspace_defaults = options;
        self
    }

    /// Options of one keyspace from the first moment on.
    #[must_use]
    pub fn keyspace(mut self, name: &str, options: KeyspaceOptions) -> Self {
        self.keyspaces.insert(name.to_owned(), options);
        self
    }

    /// The options a keyspace of this name is opened with.
    pub(crate) fn of_keyspace(&self, name: &str) -> &KeyspaceOptions {
        self.keyspaces.get(name).unwrap_or(&self.keyspace_defaults)
    }

    /// Bytes of log past which a keyspace is flushed.
    pub(crate) fn wal_bytes_limit(&self) -> u64 {
        let memtables = WAL_MEMTABLES_DEFAULT.saturating_mul(self.keyspace_defaults.memtable_bytes);
        self.wal_bytes_max.unwrap_or(memtables)
    }

    /// Bytes of memtables past which a keyspace is flushed.
    pub(crate) fn memtable_bytes_limit(&self) -> u64 {
        let memtables = WAL_MEMTABLES_DEFAULT.saturating_mul(self.keyspace_defaults.memtable_bytes);
        self.memtable_bytes_max.unwrap_or(memtables)
    }

    /// How the log is written: segments small enough that the governor can let old ones go.
    pub(crate) fn wal_options(&self) -> WalOptions {
        let mut wal = self.wal.clone();
        wal.segment_bytes = wal.segment_bytes.min(self.wal_bytes_limit().div_ceil(4)).max(1);
        wal
    }

    /// Checks every value and every pair of values that could contradict each other.
    ///
    /// # Errors
    /// [`Error::InvalidOption`], [`Error::Contradiction`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.wal_bytes_max == Some(0) {
            return Err(Error::InvalidOption {
                name: "wal_bytes_max",
                value: "0".to_owned(),
                must: "at least 1",
            });
        }
        let all = std::iter::once(("keyspace_defaults", &self.keyspace_defaults))
            .chain(self.keyspaces.iter().map(|(name, options)| (name.as_str(), options)));
        for (name, options) in all {
            options.check()?;
            if let Some(limit) = self.memtable_bytes_max
                && limit < options.memtable_bytes
            {
                return Err(Error::Contradiction {
                    first: format!("memtable_bytes_max = {limit}"),
                    second: format!("memtable_bytes = {} of {name}", options.memtable_bytes),
                    why: "all memtables together cannot be smaller than one",
                });
            }
        }
        if let Background::Threads { workers: 0 } | Background::Stepped { workers: 0, .. } =
            self.background
        {
            return Err(Error::InvalidOption {
                name: "background",
                value: "0 workers".to_owned(),
                must: "at least one worker, or Background::Inline",
            });
        }
        Ok(())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("background", &self.background)
            .field("block_cache_bytes", &self.block_cache_bytes)
            .field("keyspace_defaults", &self.keyspace_defaults)
            .finish_non_exhaustive()
    }
}

//! Options of a database.

use std::fmt;
use std::time::Duration;

use lsmx_base::sync::Arc;

use crate::cache::BlockCacheKind;
use crate::env::{
    Background, CLOCK_CONFIRMATION_DEFAULT, CLOCK_JUMP_MAX_DEFAULT, ClockRules, ManualClock,
    duration_us,
};
use crate::error::{Error, Result};
use crate::event::EventListener;
use crate::metrics::LatencySampling;
use crate::operand_store::OperandStoreFactory;
use crate::options::invalid_option;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::memory_plan::{MemoryPlan, MemorySettings};
use crate::options::stored::StoredOptions;
use crate::options::write::WriteControl;
use crate::vfs::cache_bypass::CacheBypassRule;
use crate::vfs::catch_panic::CatchPanicVfs;
use crate::vfs::{OsVfs, Vfs};
use crate::wal::{RecoveryMode, WalOptions};

/// Name of the default keyspace, which [`Db::put`](crate::Db::put) and similar methods use.
pub const DEFAULT_KEYSPACE: &str = "default";
/// Default of [`Options::open_files_max`] if the system has no limit.
const OPEN_FILES_DEFAULT: usize = 4096;
/// Number of file descriptors that a database needs, see [`Options::open_files_max`].
pub(crate) const OPEN_FILES_MIN: usize = 12;
/// Number of additional file descriptors for each background thread.
pub(crate) const OPEN_FILES_PER_WORKER: usize = 2;
/// Number of additional file descriptors for each operand store.
pub(crate) const OPEN_FILES_PER_STORE: usize = 4;
/// Default of [`Options::wal_bytes_max`], as a multiple of the memtable size of the default keyspace.
const WAL_MEMTABLES_DEFAULT: u64 = 4;

/// Options of a database. They are checked when the database is opened.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use lsmx::{Db, Options};
///
/// let options = Options::default().memory_budget(256 << 20).direct_reads(true);
/// let db = Db::open(dir.path().join("data"), options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Options {
    pub(crate) must_exist: bool,
    pub(crate) background: Background,
    pub(crate) subcompactions_max: Option<usize>,
    pub(crate) seed: Option<u64>,
    pub(crate) clock: Option<ManualClock>,
    clock_jump_max: Option<Duration>,
    clock_confirmation: Option<Duration>,
    pub(crate) reset_clock: bool,
    pub(crate) memory_budget: Option<u64>,
    pub(crate) block_cache_bytes: Option<u64>,
    pub(crate) block_cache_kind: BlockCacheKind,
    pub(crate) open_files_max: Option<usize>,
    pub(crate) background_io_rate: Option<u64>,
    cache_bypass: Option<CacheBypassRule>,
    pub(crate) direct_reads: bool,
    pub(crate) warm_up: bool,
    pub(crate) memtable_idle_us: Option<u64>,
    pub(crate) wal_bytes_max: Option<u64>,
    pub(crate) memtable_bytes_max: Option<u64>,
    pub(crate) wal: WalOptions,
    pub(crate) write_control: WriteControl,
    pub(crate) recovery: RecoveryMode,
    pub(crate) listener: Option<Arc<dyn EventListener>>,
    pub(crate) explain_decisions: bool,
    pub(crate) keyspace_defaults: KeyspaceOptions,
    pub(crate) operand_stores: Vec<Arc<dyn OperandStoreFactory>>,
    vfs: Option<Arc<dyn Vfs>>,
    pub(crate) read_only: bool,
    pub(crate) latency_sampling: LatencySampling,
    pub(crate) metrics_file_us: Option<u64>,
    pub(crate) follower_interval_us: Option<u64>,
}

impl Options {
    /// Whether an open creates the database if it does not exist. Default: true.
    pub fn create_if_missing(mut self, create: bool) -> Self {
        self.must_exist = !create;
        self
    }

    /// Threads for flushes and compactions. Default: two compaction threads and one flush thread.
    pub fn background(mut self, background: Background) -> Self {
        self.background = background;
        self
    }

    /// Maximum number of subcompactions of a large compaction, at least 1.
    ///
    /// Idle compaction threads run the subcompactions in parallel. Each subcompaction needs the buffers of a job, and
    /// reads at least the size of an output file. With [`Background::Inline`] they run one after another. A run that
    /// the policy keeps in one file is not divided. Default: the number of threads that can run a subcompaction; 2 with
    /// [`Background::Inline`].
    pub fn subcompactions_max(mut self, subcompactions: usize) -> Self {
        self.subcompactions_max = Some(subcompactions);
        self
    }

    /// Whether filters and indexes are loaded in the background after the open, as far as the cache has room.
    ///
    /// See [`Db::warm_up`](crate::Db::warm_up). The first lookups then cost no more than later ones. Default: false, each
    /// is loaded at its first use.
    pub fn warm_up(mut self, warm_up: bool) -> Self {
        self.warm_up = warm_up;
        self
    }

    /// Seed of all random numbers, for reproducible tests and experiments. Default: a random seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// A clock that a test controls. Not allowed with [`Background::Stepped`], which has its own clock.
    ///
    /// Default: the system clock, or a simulated clock with [`Background::Inline`].
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Maximum forward jump of the wall clock that the database clock follows at once.
    ///
    /// A jump is measured from the last reading, or from the time stored in the manifest. After a larger jump, the
    /// database clock advances with the monotonic clock until the wall clock has been consistent for one hour. Readings
    /// after the year 2500 are ignored. The database clock determines the ages of files, which `fifo` and other
    /// time-based triggers use. Default: 24 hours.
    pub fn clock_jump_max(mut self, jump: Duration) -> Self {
        self.clock_jump_max = Some(jump);
        self
    }

    /// Time for which readings of the wall clock must agree after an open before the database clock follows them.
    ///
    /// Until then, the database clock advances from the time stored in the manifest, and values that expired while the
    /// database was closed may be visible. The rule protects values if the wall clock is wrong just after the start of
    /// a machine. With a zero duration, the database clock follows the first reading at once, if it is ahead by at most
    /// [`Options::clock_jump_max`]. Use zero for processes that live for less than a minute, if their wall clock is right
    /// when they start. A read-only database follows each reading at once, because it drops no data. Default: one minute.
    pub fn clock_confirmation(mut self, time: Duration) -> Self {
        self.clock_confirmation = Some(time);
        self
    }

    /// Whether the open ignores the time stored in the manifest, and starts the database clock at the wall clock.
    ///
    /// Use it once after the wall clock was far ahead: otherwise the database clock stays ahead, because it never goes
    /// back. File times in the future become the time of this open. Data with an expired TTL may reappear. The command
    /// `lsmx db PATH reset-clock` does the same. Default: false.
    pub fn reset_clock(mut self, reset: bool) -> Self {
        self.reset_clock = reset;
        self
    }

    /// Memory budget in bytes for memtables, the block cache, open tables and jobs, at least 4 MiB.
    ///
    /// Memtables get 3/8 of the budget. If they reach this limit, writes wait for a flush. Buffers of jobs get 1/8. The
    /// rest is for open tables and cached blocks, and open tables have priority. If [`Options::memtable_bytes_max`] is
    /// set, the block cache gets the remaining bytes. If [`Options::block_cache_bytes`] is set, memtables get the
    /// remaining bytes, but at most 3/8 of the budget. A memtable is limited to half of the memory for memtables, and a
    /// table to 1/16 of the budget. The guide on memory has details. Default: no budget, each part has its own default.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.memory_budget = Some(bytes);
        self
    }

    /// Capacity of the block cache, in bytes. It holds metadata blocks with priority over data blocks.
    ///
    /// Default: the rest of the memory budget, or 64 MiB without one.
    pub fn block_cache_bytes(mut self, bytes: u64) -> Self {
        self.block_cache_bytes = Some(bytes);
        self
    }

    /// Cache implementation for data blocks. Most users keep the default, [`BlockCacheKind::Quick`]: in measurements it
    /// is faster and has no more misses.
    pub fn block_cache_kind(mut self, kind: BlockCacheKind) -> Self {
        self.block_cache_kind = kind;
        self
    }

    /// Maximum number of open tables, blob files and files of operand stores, at least 1.
    ///
    /// Further files are closed, and reopened when they are read; their metadata stays in memory. Files that operand
    /// stores append to use at most half of the limit, but at least one per store. The WAL, the manifest, the lock file and
    /// files that jobs write do not count. If the process runs out of descriptors, half of the files are closed.
    /// Default: a quarter of the descriptors that the process may have, or 4096 without such a limit.
    ///
    /// A database needs 12 descriptors, two more for each background thread ([`Options::background`]), four more for
    /// each operand store, and one for each reading thread. With default options, this is 16 descriptors without reads,
    /// or 20 with an operand store. If the descriptors are not available, opening the database or creating a keyspace
    /// with an operand store fails with [`Error::TooFewDescriptors`].
    pub fn open_files_max(mut self, files: usize) -> Self {
        self.open_files_max = Some(files);
        self
    }

    /// Limit of bytes per second that flushes, compactions, bulk loads and clones read and write. Flushes have priority.
    ///
    /// A lower limit disturbs reads and syncs less, but slows writes down earlier if compactions cannot keep up.
    /// [`Db::set_background_io_rate`](crate::Db::set_background_io_rate) changes it while the database is open. It has no
    /// effect with [`Background::Inline`]. Default: no limit.
    pub fn background_io_rate(mut self, bytes_per_s: u64) -> Self {
        self.background_io_rate = Some(bytes_per_s);
        self
    }

    /// Whether data that compactions read or write stays in the page cache of the operating system.
    ///
    /// If false, compactions use direct I/O. They evict no pages that lookups or other programs use, but the next read of
    /// new tables reads the disk. Files written by flushes always stay. Default: true while the tables and blob files fit
    /// into the memory that the page cache can use, otherwise false. True with [`Options::vfs`].
    pub fn keep_compactions_cached(mut self, keep: bool) -> Self {
        let rule = if keep { CacheBypassRule::Never } else { CacheBypassRule::Always };
        self.cache_bypass = Some(rule);
        self
    }

    /// Size of the tables and blob files above which compactions bypass the page cache, in bytes.
    #[cfg(feature = "internals")]
    pub fn cached_file_bytes_max(mut self, bytes: u64) -> Self {
        self.cache_bypass = Some(CacheBypassRule::ByFileBytes(bytes));
        self
    }

    /// Whether tables bypass the page cache of the operating system, so that only the block cache uses memory for them.
    ///
    /// Each miss of the block cache is then one read of the device. Reads are faster only if the block cache gets the
    /// memory that the page cache would use. A read is rounded to device blocks, half a kilobyte more on average. The WAL
    /// and the manifest are not affected. Files of operand stores are read through the page cache, but do not stay in it.
    /// Default: false.
    pub fn direct_reads(mut self, direct: bool) -> Self {
        self.direct_reads = direct;
        self
    }

    /// Time without writes after which a memtable is flushed, to free its memory and WAL segments.
    ///
    /// The flush may be up to half of this time late. Default: never. The sizes of the WAL and of the memtables are
    /// limited in any case.
    pub fn flush_idle_after(mut self, idle: Duration) -> Self {
        self.memtable_idle_us = Some(duration_us(idle));
        self
    }

    /// Size of the WAL in bytes at which the keyspace with the oldest segment is flushed, at least 1.
    ///
    /// A larger WAL means fewer flushes of idle keyspaces, but a longer recovery. Default: four memtables
    /// of the default keyspace.
    pub fn wal_bytes_max(mut self, bytes: u64) -> Self {
        self.wal_bytes_max = Some(bytes);
        self
    }

    /// Maximum size of all memtables together, in bytes. One batch may exceed it.
    ///
    /// At half of this size, the largest memtable is flushed. At the maximum, writes wait for a flush. Default: 3/8 of
    /// the memory budget, or eight memtables of the default keyspace without one.
    pub fn memtable_bytes_max(mut self, bytes: u64) -> Self {
        self.memtable_bytes_max = Some(bytes);
        self
    }

    /// Options of the write-ahead log: segment size, background syncs, and the disk space reserve.
    pub fn wal(mut self, wal: WalOptions) -> Self {
        self.wal = wal;
        self
    }

    /// How writes are slowed down when compactions fall behind. Default: [`WriteControl::Smooth`].
    #[cfg(feature = "internals")]
    pub fn write_control(mut self, control: WriteControl) -> Self {
        self.write_control = control;
        self
    }

    /// How an open handles a corrupt WAL. Default: it fails.
    pub fn recovery(mut self, mode: RecoveryMode) -> Self {
        self.recovery = mode;
        self
    }

    /// Receiver of events of background work. Default: none.
    pub fn listener(mut self, listener: Arc<dyn EventListener>) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Whether [`Event::Decision`](crate::Event::Decision) reports the scores and candidates of each compaction.
    ///
    /// This makes decisions slower. Default: false.
    pub fn explain_decisions(mut self, explain: bool) -> Self {
        self.explain_decisions = explain;
        self
    }

    /// Options of the default keyspace. [`Db::keyspace`](crate::Db::keyspace) takes the options of other keyspaces.
    ///
    /// Until [`Db::keyspace`](crate::Db::keyspace) opens an existing keyspace, the keyspace uses its stored policy and
    /// the sizes given here. It uses the merge operator and the operand store given here only if the manifest stores
    /// their names for the keyspace.
    pub fn keyspace_defaults(mut self, options: KeyspaceOptions) -> Self {
        self.keyspace_defaults = options;
        self
    }

    /// Adds an operand store factory. The factory opens the existing operand stores that have its name. Several
    /// factories may be added. Default: none.
    ///
    /// This option creates no store. [`KeyspaceOptions::operand_store`] creates the store of a new keyspace.
    pub fn operand_store(mut self, factory: impl OperandStoreFactory + 'static) -> Self {
        self.operand_stores.push(Arc::new(factory));
        self
    }

    /// File system of the database. A panic in one of its calls becomes an error of that call.
    ///
    /// Default: the file system of the operating system, [`OsVfs`].
    pub fn vfs(mut self, vfs: Arc<dyn Vfs>) -> Self {
        self.vfs = Some(vfs);
        self
    }

    /// Whether the database is opened for reading only. Default: false.
    ///
    /// No file is created or changed, and no write permission is needed. After a crash the WAL is replayed into memory,
    /// so the database may show commits that are not on stable storage. Several processes may open it for reading only,
    /// unless another process has it open for writing. Calls that would change the database fail with
    /// [`Error::OpenedReadOnly`].
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Interval in which a [`Follower`](crate::Follower) catches up in the background. Other handles ignore it.
    ///
    /// An error of a background catch-up is reported as [`Event::Failure`](crate::Event::Failure), and the catch-up is
    /// repeated after the next interval. With [`Background::Inline`], there is no background catch-up. Default: no
    /// interval, a follower catches up only in [`Follower::catch_up`](crate::Follower::catch_up).
    pub fn follower_interval(mut self, interval: Duration) -> Self {
        self.follower_interval_us = Some(duration_us(interval));
        self
    }

    /// Which operations are measured for [`Metrics::operation_latency`](crate::Metrics::operation_latency).
    ///
    /// [`Db::set_latency_sampling`](crate::Db::set_latency_sampling) changes it while the database is open. Default:
    /// [`LatencySampling::Off`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// use lsmx::metrics::LatencySampling;
    /// use lsmx::{Db, Options};
    ///
    /// let options = Options::default().latency_sampling(LatencySampling::OneIn(1));
    /// let db = Db::open(dir.path().join("data"), options)?;
    /// db.get("key")?;
    /// assert_eq!(db.metrics().operation_latency.get_ns.count, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn latency_sampling(mut self, sampling: LatencySampling) -> Self {
        self.latency_sampling = sampling;
        self
    }

    /// Writes all metrics to the file `METRICS` of the database directory in this interval, at least 1 µs.
    ///
    /// Another process reads them with [`read_metrics_file`](crate::read_metrics_file) or `lsmx db PATH top`. The file is
    /// JSON and never synced. [`Metrics::metrics_file_failures`](crate::Metrics::metrics_file_failures) counts failed
    /// writes, which have no other effect. A close removes the file. The option has no effect with
    /// [`Background::Inline`] and [`Options::read_only`]. Default: no file.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("data");
    /// use std::time::Duration;
    /// use lsmx::{Db, Options};
    ///
    /// let options = Options::default().metrics_file(Duration::from_secs(1));
    /// let db = Db::open(&path, options)?;
    /// db.close(None)?;
    /// assert!(!path.join("METRICS").exists());
    /// # Ok(())
    /// # }
    /// ```
    pub fn metrics_file(mut self, interval: Duration) -> Self {
        self.metrics_file_us = Some(duration_us(interval));
        self
    }

    /// Returns the rule that decides whether compactions bypass the page cache.
    pub(crate) fn cache_bypass_rule(&self) -> CacheBypassRule {
        match (self.direct_reads, self.cache_bypass) {
            (true, _) => CacheBypassRule::Always,
            (false, Some(rule)) => rule,
            (false, None) if self.vfs.is_some() => CacheBypassRule::Never,
            (false, None) => CacheBypassRule::BySystemMemory,
        }
    }

    /// Returns the file system to use.
    pub(crate) fn file_system(&self) -> Arc<dyn Vfs> {
        match &self.vfs {
            Some(vfs) => CatchPanicVfs::new(Arc::clone(vfs)),
            None => Arc::new(OsVfs),
        }
    }

    /// Returns the options that a stored keyspace uses until [`Db::keyspace`](crate::Db::keyspace) opens it. The
    /// default keyspace is open from the start, so it uses [`Options::keyspace_defaults`].
    pub(crate) fn initial_options(&self, name: &str, stored: &StoredOptions) -> KeyspaceOptions {
        let mut options = self.keyspace_defaults.clone();
        if name == DEFAULT_KEYSPACE {
            return options;
        }
        options.policy = None;
        // The compaction filter and the time to live of the default keyspace could remove data of another keyspace. The
        // policy or the operand store of the other keyspace might not support `delete_persistence`.
        options.compaction_filter = None;
        options.default_ttl = None;
        options.delete_persistence = None;
        let operator_name = stored.merge_operator.as_deref();
        options.merge_operator =
            options.merge_operator.filter(|operator| Some(operator.name()) == operator_name);
        let store_name = stored.store_name();
        options.operand_store =
            options.operand_store.filter(|store| Some(store.name()) == store_name);
        options.value_separation = options.value_separation.filter(|_| stored.value_separation);
        options
    }

    /// Returns the rules of the database clock. A read-only database drops no data, so it follows all readings.
    pub(crate) fn clock_rules(&self, read_only: bool) -> ClockRules {
        let confirmation = self.clock_confirmation.unwrap_or(CLOCK_CONFIRMATION_DEFAULT);
        let jump = self.clock_jump_max.unwrap_or(CLOCK_JUMP_MAX_DEFAULT);
        ClockRules {
            jump_us_max: duration_us(jump),
            confirmation_us: duration_us(confirmation),
            follows_all_readings: read_only,
        }
    }

    /// Returns the size of the WAL at which a keyspace is flushed, in bytes.
    pub(crate) fn wal_bytes_limit(&self) -> u64 {
        let memtables = WAL_MEMTABLES_DEFAULT.saturating_mul(self.keyspace_defaults.memtable_bytes);
        self.wal_bytes_max.unwrap_or(memtables)
    }

    /// Returns the maximum number of open files, see [`Options::open_files_max`].
    pub(crate) fn open_files_limit(&self, vfs: &dyn Vfs) -> usize {
        self.open_files_max.unwrap_or_else(|| {
            let quarter = vfs.open_files_limit().map(|limit| (limit / 4).max(1));
            quarter.and_then(|files| usize::try_from(files).ok()).unwrap_or(OPEN_FILES_DEFAULT)
        })
    }

    /// Returns the options of the WAL. Segments are at most a quarter of the WAL limit, so that old ones can be deleted.
    pub(crate) fn wal_options(&self) -> WalOptions {
        let mut wal = self.wal.clone();
        wal.segment_bytes = wal.segment_bytes.min(self.wal_bytes_limit().div_ceil(4)).max(1);
        wal
    }

    /// Checks the options of a keyspace, alone and against the options of the database.
    pub(crate) fn check_keyspace_options(
        &self,
        name: &str,
        options: &KeyspaceOptions,
    ) -> Result<()> {
        options.check()?;
        // With a memory budget, the memtable size is reduced instead.
        if let (Some(limit), None) = (self.memtable_bytes_max, self.memory_budget)
            && limit < options.memtable_bytes
        {
            return Err(Error::Contradiction {
                first: format!("memtable_bytes_max = {limit}"),
                second: format!("memtable_bytes = {} of keyspace {name:?}", options.memtable_bytes),
                why: "all memtables together cannot be smaller than one",
            });
        }
        Ok(())
    }

    fn memory_settings(&self) -> MemorySettings {
        MemorySettings {
            memory_budget: self.memory_budget,
            block_cache_bytes: self.block_cache_bytes,
            memtable_bytes_max: self.memtable_bytes_max,
            memtable_bytes: self.keyspace_defaults.memtable_bytes,
        }
    }

    /// Returns the memory limits that follow from the options, without checking them.
    pub(crate) fn memory_plan(&self) -> MemoryPlan {
        MemoryPlan::new(&self.memory_settings())
    }

    /// Checks all values, and all pairs of values that may contradict each other.
    pub(crate) fn check(&self) -> Result<()> {
        let zeros = [
            ("wal_bytes_max", self.wal_bytes_max == Some(0)),
            ("subcompactions_max", self.subcompactions_max == Some(0)),
            ("open_files_max", self.open_files_max == Some(0)),
            ("background_io_rate", self.background_io_rate == Some(0)),
            ("flush_idle_after", self.memtable_idle_us == Some(0)),
            ("metrics_file", self.metrics_file_us == Some(0)),
            ("follower_interval", self.follower_interval_us == Some(0)),
        ];
        if let Some((name, _)) = zeros.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(invalid_option(name, 0, "at least 1"));
        }
        self.memory_plan().check(&self.memory_settings())?;
        self.check_keyspace_options(DEFAULT_KEYSPACE, &self.keyspace_defaults)?;
        if let (Some(_), Background::Stepped { .. }) = (&self.clock, self.background) {
            return Err(Error::Contradiction {
                first: "clock".to_owned(),
                second: "background = Background::Stepped".to_owned(),
                why: "a stepped schedule has its own clock",
            });
        }
        match self.background {
            Background::Threads { workers: 0 } | Background::Stepped { workers: 0, .. } => {
                let must = "at least one worker, or Background::Inline";
                Err(invalid_option("background", "0 workers", must))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("background", &self.background)
            .field("memory", &self.memory_plan())
            .field("keyspace_defaults", &self.keyspace_defaults)
            .finish_non_exhaustive()
    }
}

//! Options of a database: each part's own, composed.

use std::fmt;
use std::time::Duration;

use lsmx_base::sync::Arc;

use crate::cache::BlockCacheKind;
use crate::env::{Background, CLOCK_JUMP_MAX_DEFAULT, ManualClock};
use crate::error::{Error, Result};
use crate::event::EventListener;
use crate::operand_store::OperandStoreFactory;
use crate::options::keyspace::{KeyspaceOptions, Persisted};
use crate::options::memory_plan::MemoryPlan;
use crate::options::write::WriteControl;
use crate::vfs::{CatchPanicVfs, OsVfs, Vfs};
use crate::wal::{RecoveryMode, WalOptions};

/// Name of the keyspace that [`Db::put`](crate::Db::put) and its siblings work on.
pub const DEFAULT_KEYSPACE: &str = "default";
/// Default of [`Options::block_cache_bytes`] without a memory budget: 64 MiB.
pub const BLOCK_CACHE_BYTES_DEFAULT: u64 = 64 << 20;
/// Default of [`Options::open_files_max`] where the system has no limit.
pub const OPEN_FILES_DEFAULT: usize = 4096;
/// File descriptors that a database needs, see [`Options::open_files_max`].
pub const OPEN_FILES_MIN: usize = 12;
/// File descriptors that a database needs besides for each of its background threads.
pub const OPEN_FILES_PER_WORKER: usize = 2;
/// File descriptors that a database needs besides for each operand store.
pub const OPEN_FILES_PER_STORE: usize = 4;
/// Default of [`Options::wal_bytes_max`], in memtables of the default keyspace.
pub const WAL_MEMTABLES_DEFAULT: u64 = 4;

/// Settings of a database: builder methods on plain data, checked when it is opened.
#[derive(Clone)]
pub struct Options {
    pub(crate) create_if_missing: bool,
    pub(crate) background: Background,
    pub(crate) merge_parts_max: Option<usize>,
    pub(crate) seed: Option<u64>,
    pub(crate) clock: Option<ManualClock>,
    pub(crate) clock_jump_us_max: u64,
    pub(crate) reset_clock: bool,
    pub(crate) memory_budget: Option<u64>,
    pub(crate) block_cache_bytes: Option<u64>,
    pub(crate) block_cache_kind: BlockCacheKind,
    pub(crate) open_files_max: Option<usize>,
    pub(crate) background_io_rate: Option<u64>,
    pub(crate) keep_cached: bool,
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
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create_if_missing: true,
            background: Background::default(),
            merge_parts_max: None,
            seed: None,
            clock: None,
            clock_jump_us_max: micros(CLOCK_JUMP_MAX_DEFAULT),
            reset_clock: false,
            memory_budget: None,
            block_cache_bytes: None,
            block_cache_kind: BlockCacheKind::default(),
            open_files_max: None,
            background_io_rate: None,
            keep_cached: true,
            direct_reads: false,
            warm_up: false,
            memtable_idle_us: None,
            wal_bytes_max: None,
            memtable_bytes_max: None,
            wal: WalOptions::default(),
            write_control: WriteControl::default(),
            recovery: RecoveryMode::default(),
            listener: None,
            explain_decisions: false,
            keyspace_defaults: KeyspaceOptions::default(),
            operand_stores: Vec::new(),
            vfs: None,
            read_only: false,
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

    /// Most parts that a large merge is divided into, so that compaction threads with nothing else to
    /// do take part in it; each part takes the buffers of a job. 1: merges are not divided. Under
    /// [`Background::Inline`] the caller's thread runs the parts one after another. Default: one for
    /// each thread that could run it, 2 under `Inline`; none reads less than
    /// fills an output file, and runs that their policy keeps in one file are not divided.
    #[must_use]
    pub fn merge_parts_max(mut self, parts: usize) -> Self {
        self.merge_parts_max = Some(parts);
        self
    }

    /// Whether filters and indexes are read in the background from the opening on, as far as they fit
    /// ([`Db::warm_up`](crate::Db::warm_up)): so that the first lookups cost what later ones do. Default:
    /// no, each is read when it is first needed.
    #[must_use]
    pub fn warm_up(mut self, warm_up: bool) -> Self {
        self.warm_up = warm_up;
        self
    }

    /// Makes every random number follow from this seed. For tests and experiments.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Reads the time from a clock that a test sets. Not for [`Background::Stepped`], which has a clock of
    /// its own. Default: system time, or a driven clock under [`Background::Inline`].
    #[must_use]
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Largest forward step of the wall clock that is believed at once, in comparison with the last
    /// reading or with the time that the manifest stores. A larger one is believed after the wall clock
    /// has agreed with it for one hour; until then the database clock advances by the monotonic clock.
    /// The ages of files, which `fifo` and other time-based triggers look at, follow the database clock.
    /// A reading after the year 2500 is never believed. Default: [`CLOCK_JUMP_MAX_DEFAULT`].
    #[must_use]
    pub fn clock_jump_max(mut self, jump: Duration) -> Self {
        self.clock_jump_us_max = micros(jump);
        self
    }

    /// Forgets the time that the manifest stores and starts the database clock at the wall clock. Times of
    /// files in the future become the time of this open. For an operator whose host once had a clock far
    /// ahead: without it, the database clock stays there, because it never goes back. Only this may bring
    /// data back whose TTL had passed. Also `lsmx db PATH reset-clock`. Default: no.
    #[must_use]
    pub fn reset_clock(mut self, reset: bool) -> Self {
        self.reset_clock = reset;
        self
    }

    /// Bytes that memtables, cached blocks, open tables and jobs take together; see `docs/guide/sizing.md`.
    /// Three eighths go to memtables, at which writes wait, one eighth to the buffers of
    /// jobs; the rest goes to open tables first and cached blocks after.
    /// [`Options::block_cache_bytes`] and [`Options::memtable_bytes_max`] set one part, and the
    /// other gets the rest. Whatever a keyspace's own options say, its memtable is flushed at half
    /// the memtables' share, and its tables are at most a sixteenth of the budget. At least 4 MiB.
    /// Default: none, each part has its own default.
    #[must_use]
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.memory_budget = Some(bytes);
        self
    }

    /// Bytes for cached blocks of all kinds, metadata before data. Default: what a memory budget
    /// leaves, [`BLOCK_CACHE_BYTES_DEFAULT`] without one.
    #[must_use]
    pub fn block_cache_bytes(mut self, bytes: u64) -> Self {
        self.block_cache_bytes = Some(bytes);
        self
    }

    /// Which general-purpose cache holds the data blocks; metadata is not in it. Most users leave it.
    /// Default: [`BlockCacheKind::Quick`], which cost less and missed no more wherever the two were
    /// measured.
    #[must_use]
    pub fn block_cache_kind(mut self, kind: BlockCacheKind) -> Self {
        self.block_cache_kind = kind;
        self
    }

    /// Most files of tables, blob files and operand stores that are open at a time. Files beyond that are closed
    /// and opened again when they are read; their metadata stays in memory. At most half of the budget, and at least
    /// one file per store, goes to files that operand stores append to. Log, manifest, lock and the tables and blob
    /// files that jobs write come on top. When the process has no descriptor left, half of the files are closed.
    /// At least 1. Default: a quarter of what the process may have, [`OPEN_FILES_DEFAULT`] where
    /// there is no limit.
    ///
    /// A database needs [`OPEN_FILES_MIN`] descriptors, [`OPEN_FILES_PER_WORKER`] more for each background thread
    /// ([`Options::background`]) and [`OPEN_FILES_PER_STORE`] more for each operand store, plus one for each thread
    /// that reads: without reads 16 by default, 20 with an operand store. If the process cannot have as many at open,
    /// the open fails with [`Error::TooFewDescriptors`]. So does the creation of a keyspace with an operand store.
    #[must_use]
    pub fn open_files_max(mut self, files: usize) -> Self {
        self.open_files_max = Some(files);
        self
    }

    /// Bytes per second that flushes and compactions together read and write; flushes first.
    /// Smaller: foreground reads and syncs are disturbed less, and writes are held back sooner
    /// where compactions cannot keep up. Can be changed while the database is open:
    /// [`Db::set_background_io_rate`](crate::Db::set_background_io_rate). Not for
    /// [`Background::Inline`], where callers would wait for themselves. Default: no limit.
    #[must_use]
    pub fn background_io_rate(mut self, bytes_per_s: u64) -> Self {
        self.background_io_rate = Some(bytes_per_s);
        self
    }

    /// Whether what compactions read and write stays in the system's page cache. If not, they take
    /// no page from other programs, and what they wrote is read from the disk when it is asked for
    /// next. Files written by flushes stay in any case. Default: yes.
    #[must_use]
    pub fn keep_compactions_cached(mut self, keep: bool) -> Self {
        self.keep_cached = keep;
        self
    }

    /// Whether tables are read past the system's page cache, and what is written of them does not stay
    /// there: memory is what the block cache takes and nothing else, and each block that the block cache
    /// misses is one read of the device. Pays where the block cache has the memory that the page cache
    /// would take; where it has not, reads are slower. A read takes whole blocks of the device, so half
    /// a kilobyte more than the table's block on average. Log and manifest are not concerned; what is read of
    /// buckets of an operand store goes through the page cache and does not stay there. Default: no.
    #[must_use]
    pub fn direct_reads(mut self, direct: bool) -> Self {
        self.direct_reads = direct;
        self
    }

    /// A memtable that nothing was written to for this time is flushed, which frees its memory and
    /// its part of the log. It takes up to half the time more until that is seen. Default: never;
    /// log and memory are bounded in any case.
    #[must_use]
    pub fn flush_idle_after(mut self, idle: Duration) -> Self {
        self.memtable_idle_us = Some(micros(idle));
        self
    }

    /// Bytes of log past which the keyspace that holds the oldest segment is flushed. Larger: idle
    /// keyspaces are flushed less often, recovery takes longer. Default: four memtables.
    #[must_use]
    pub fn wal_bytes_max(mut self, bytes: u64) -> Self {
        self.wal_bytes_max = Some(bytes);
        self
    }

    /// Most bytes of all memtables together. Past half of it the largest is flushed; at all of it
    /// writes wait until a flush has made room. One batch may come on top. Default: three eighths
    /// of a memory budget; eight memtables without one.
    #[must_use]
    pub fn memtable_bytes_max(mut self, bytes: u64) -> Self {
        self.memtable_bytes_max = Some(bytes);
        self
    }

    /// When segments of the log turn, when it is synced though nobody asked, and whether room is kept on the disk for
    /// the time when it is full.
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

    /// Behaviour of an open where the log is damaged. Default: the open fails.
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

    /// Whether [`Event::Decision`](crate::Event::Decision) tells what led to each compaction: scores, candidates, the job.
    /// Deciding takes longer then. Default: no.
    #[must_use]
    pub fn explain_decisions(mut self, explain: bool) -> Self {
        self.explain_decisions = explain;
        self
    }

    /// Options of the default keyspace. [`Db::keyspace`](crate::Db::keyspace) takes those of every other keyspace;
    /// until this call a keyspace has the policy that the manifest stores, the sizes given here, and of the
    /// operator and the store given here those that the manifest names for it.
    #[must_use]
    pub fn keyspace_defaults(mut self, options: KeyspaceOptions) -> Self {
        self.keyspace_defaults = options;
        self
    }

    /// Adds the factory of an operand store, which opens the stores of all keyspaces that were created with a
    /// store of this name. Several factories may be added. Default: none.
    ///
    /// This option creates no store. [`KeyspaceOptions::operand_store`] does that for a new keyspace.
    #[must_use]
    pub fn operand_store(mut self, factory: impl OperandStoreFactory + 'static) -> Self {
        self.operand_stores.push(Arc::new(factory));
        self
    }

    /// Sets the file system. A panic in one of its calls is returned as an error of that call.
    /// Default: the operating system's, [`OsVfs`].
    #[must_use]
    pub fn vfs(mut self, vfs: Arc<dyn Vfs>) -> Self {
        self.vfs = Some(vfs);
        self
    }

    /// Opens the database for reading only. Default: no.
    ///
    /// No file is created or changed, also after a crash: the log is replayed into memory. So the database may
    /// show commits that are not on stable storage. Write permission is not needed. Several processes may have
    /// the database open for reading only, but not while another process has it open for writing.
    /// Calls that would change the database return [`Error::OpenedReadOnly`].
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Returns the file system to use.
    pub(crate) fn file_system(&self) -> Arc<dyn Vfs> {
        match &self.vfs {
            Some(vfs) => CatchPanicVfs::new(Arc::clone(vfs)),
            None => Arc::new(OsVfs),
        }
    }

    /// The options of the default keyspace.
    pub(crate) fn of_default(&self) -> &KeyspaceOptions {
        &self.keyspace_defaults
    }

    /// The options of a keyspace that the manifest knows, until [`Db::keyspace`](crate::Db::keyspace) opens
    /// it. The default keyspace is open from the start. Another keyspace has the policy that the manifest
    /// stores, if it is not a custom one; from the options of the default keyspace it takes the operator and the
    /// store only if they are the ones that it has.
    pub(crate) fn until_opened(&self, name: &str, persisted: &Persisted) -> KeyspaceOptions {
        if name == DEFAULT_KEYSPACE {
            return self.of_default().clone();
        }
        let mut options = self.keyspace_defaults.clone();
        options.policy = None;
        let known = persisted.merge_operator.as_deref();
        options.merge_operator = options.merge_operator.filter(|op| Some(op.name()) == known);
        let known = persisted.store_name();
        options.operand_store = options.operand_store.filter(|store| Some(store.name()) == known);
        options.value_separation = options.value_separation.filter(|_| persisted.value_separation);
        options
    }

    /// Bytes of log past which a keyspace is flushed.
    pub(crate) fn wal_bytes_limit(&self) -> u64 {
        let memtables = WAL_MEMTABLES_DEFAULT.saturating_mul(self.keyspace_defaults.memtable_bytes);
        self.wal_bytes_max.unwrap_or(memtables)
    }

    /// Most descriptors of tables.
    pub(crate) fn open_tables_max(&self, vfs: &dyn Vfs) -> usize {
        self.open_files_max.unwrap_or_else(|| {
            let quarter = vfs.open_files_limit().map(|limit| (limit / 4).max(1));
            quarter.map_or(OPEN_FILES_DEFAULT, |quarter| {
                usize::try_from(quarter).unwrap_or(OPEN_FILES_DEFAULT)
            })
        })
    }

    /// How memory is split.
    pub(crate) fn memory_plan(&self) -> MemoryPlan {
        MemoryPlan::of(self)
    }

    /// How the log is written: segments small enough that the governor can let old ones go.
    pub(crate) fn wal_options(&self) -> WalOptions {
        let mut wal = self.wal.clone();
        wal.segment_bytes = wal.segment_bytes.min(self.wal_bytes_limit().div_ceil(4)).max(1);
        wal
    }

    /// Checks the options of a keyspace alone and against those of the database.
    ///
    /// # Errors
    /// [`Error::InvalidOption`], [`Error::Contradiction`].
    pub(crate) fn check_keyspace(&self, name: &str, options: &KeyspaceOptions) -> Result<()> {
        options.check()?;
        // Under a budget keyspaces are fitted into it.
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
        self.memory_plan().check(self)?;
        let zero = [
            ("merge_parts_max", self.merge_parts_max == Some(0)),
            ("open_files_max", self.open_files_max == Some(0)),
            ("background_io_rate", self.background_io_rate == Some(0)),
            ("flush_idle_after", self.memtable_idle_us == Some(0)),
        ];
        if let Some((name, _)) = zero.into_iter().find(|(_, zero)| *zero) {
            return Err(Error::InvalidOption { name, value: "0".to_owned(), must: "at least 1" });
        }
        self.check_keyspace(DEFAULT_KEYSPACE, &self.keyspace_defaults)?;
        if let (Some(_), Background::Stepped { .. }) = (&self.clock, self.background) {
            return Err(Error::Contradiction {
                first: "clock".to_owned(),
                second: "background = Background::Stepped".to_owned(),
                why: "a stepped schedule has a clock of its own",
            });
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

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
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

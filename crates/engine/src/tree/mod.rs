//! One tree: its options, its policy, its current super version, and what its jobs hold.

pub(crate) mod blob_set;
pub(crate) mod counters;
pub(crate) mod file_numbers;
pub(crate) mod guard_history;
pub(crate) mod key_hashes;
pub(crate) mod last_run_filter;
pub(crate) mod merge_resolver;
pub(crate) mod old_super_versions;
pub(crate) mod operand_files;
pub(crate) mod operands;
pub(crate) mod quarantine;
pub(crate) mod snapshots;
pub(crate) mod super_version;
pub(crate) mod table_file;
pub(crate) mod version;
pub(crate) mod version_edit;

use std::collections::HashSet;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, ArcSwap, AtomicBool, AtomicU64, Guard, Mutex, Ordering, std_atomic};
use lsmx_compaction::{CompactionPolicy, FileId, RunningJobs, TreeShape};

use crate::env::Env;
use crate::error::{Error, Result};
use crate::options::filter_bits::{FilterBits, IncomingRun};
use crate::options::keyspace::{FilterLastRun, KeyspaceOptions};
use crate::options::policy::{MissingPolicy, Policy, StoredPolicy};
use crate::options::stored::StoredOptions;
use crate::table::{FilterWidth, Table};
use crate::tree::counters::TreeCounters;
use crate::tree::last_run_filter::LastRunFilter;
use crate::tree::merge_resolver::Merging;
use crate::tree::operands::Beside;
use crate::tree::quarantine::Quarantine;
use crate::tree::snapshots::Pinned;
use crate::tree::version::{OldViews, SuperVersion, Version};

/// One opening of one database in this process. A tree of an earlier opening has other memtables, so
/// what is written to it would not be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening(u64);

impl Opening {
    /// One that no other database has.
    pub(crate) fn new() -> Opening {
        static NEXT: std_atomic::AtomicU64 = std_atomic::AtomicU64::new(0);
        Opening(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Where a tree lives.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) opening: Opening,
    pub(crate) env: Env,
}

/// What the jobs of a tree hold; never held over I/O.
#[derive(Debug, Default)]
pub(crate) struct TreeJobs {
    /// Inputs of running compactions.
    pub(crate) busy: RunningJobs,
    /// Compactions by hand that wait for files: the policy picks nothing until they have them.
    pub(crate) manual_waiting: usize,
    /// Whether a flush is under way: flushes of a tree go one after the other, oldest first.
    pub(crate) flushing: bool,
    /// Compactions that failed in a row.
    pub(crate) failures: u32,
    /// No compaction before this time, after one has failed.
    pub(crate) retry_at_us: u64,
    /// Why the last one failed, until one ends well.
    pub(crate) last_error: Option<Error>,
    /// Whether a write has been told, or is about to be, since one ended well.
    pub(crate) told: bool,
    /// Why the last look at the tree found no job, though one is needed.
    pub(crate) blocked: Option<Blocked>,
    /// Collections of the operand store that failed.
    pub(crate) collection: Retry,
    /// Files that could not be read. Tables among them are withheld in `busy`.
    pub(crate) quarantine: Quarantine,
}

/// Why a look at a tree found no job, though one is needed.
#[derive(Clone, Debug)]
pub(crate) struct Blocked {
    pub(crate) error: Error,
    /// Whether the tree was at the hard stop of its policy, so that no later look finds a job either.
    pub(crate) at_hard_stop: bool,
}

/// When work that failed is tried again.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// Failures in a row.
    pub(crate) failures: u32,
    /// The next try is not before this time.
    pub(crate) retry_at_us: u64,
    /// Why the last try failed, until one succeeds.
    pub(crate) error: Option<Error>,
}

impl TreeJobs {
    /// The error of a write at the hard stop, if no compaction will release runs of L0 for it.
    pub(crate) fn write_trouble(&self, keyspace: &str) -> Option<Error> {
        let blocked = self.blocked.as_ref().filter(|blocked| blocked.at_hard_stop);
        blocked.map(|blocked| blocked.error.clone()).or_else(|| {
            let cause = Arc::new(self.last_error.clone()?);
            let keyspace = Some(keyspace.to_owned());
            Some(Error::Background { work: "compaction", keyspace, cause })
        })
    }

    /// Why compactions of this tree are not done, if they are not.
    pub(crate) fn compaction_trouble(&self) -> Option<Error> {
        let blocked = self.blocked.as_ref().map(|blocked| blocked.error.clone());
        blocked.or_else(|| self.last_error.clone())
    }

    /// Why background work of this tree is not done, if it is not.
    pub(crate) fn trouble(&self) -> Option<Error> {
        let quarantined = || self.quarantine.files().next().map(|(_, file)| (*file.cause).clone());
        self.compaction_trouble().or_else(|| self.collection.error.clone()).or_else(quarantined)
    }

    /// When work that failed is tried again, if some is.
    pub(crate) fn next_try_us(&self) -> Option<u64> {
        let compaction = self.last_error.as_ref().map(|_| self.retry_at_us);
        let collection = self.collection.error.as_ref().map(|_| self.collection.retry_at_us);
        [compaction, collection, self.quarantine.next_read_us()].into_iter().flatten().min()
    }
}

/// How a keyspace is tuned, swapped in one step.
#[derive(Debug)]
pub(crate) struct Settings {
    /// As the caller gave them.
    pub(crate) options: KeyspaceOptions,
    /// The policy as the manifest keeps it.
    pub(crate) stored_policy: StoredPolicy,
    /// What decides on compactions: that policy, or one of the caller's own.
    pub(crate) policy: Arc<dyn CompactionPolicy>,
}

impl Settings {
    fn new(options: KeyspaceOptions, stored_policy: StoredPolicy) -> Settings {
        let policy = options.custom_policy().cloned().unwrap_or_else(|| match &stored_policy {
            StoredPolicy::Spec(spec) => spec.build(),
            StoredPolicy::Custom(name) => Arc::new(MissingPolicy(name.clone())),
        });
        Settings { options, stored_policy, policy }
    }

    /// Returns the policy that decides on compactions.
    pub(crate) fn policy(&self) -> Policy {
        match &self.stored_policy {
            StoredPolicy::Spec(spec) => Policy::Spec(spec.clone()),
            StoredPolicy::Custom(_) => Policy::Custom(Arc::clone(&self.policy)),
        }
    }

    /// Name of the custom policy that the keyspace needs and was not given.
    fn absent_policy(&self) -> Option<&str> {
        match &self.stored_policy {
            StoredPolicy::Custom(name) if self.options.custom_policy().is_none() => Some(name),
            _ => None,
        }
    }
}

/// A keyspace's tree.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Its id in WAL and manifest.
    pub(crate) id: u32,
    /// Its name.
    pub(crate) name: String,
    /// How its operands fold; iterators share it.
    pub(crate) merging: Arc<Merging>,
    /// Where its operands live, if not in the tree.
    pub(crate) beside: Beside,
    /// Which opening of which database it belongs to.
    pub(crate) opening: Opening,
    settings: ArcSwap<Settings>,
    /// Memtables and files. Only swapped by [`Tree::change`], so every change sees the one before.
    super_version: ArcSwap<SuperVersion>,
    /// Those it had before, as long as somebody holds them.
    pub(crate) old_views: OldViews,
    /// Held while a job's result becomes durable and visible, over I/O: no reader, no writer and
    /// no policy takes it. Guards the order of manifest edits of this tree.
    pub(crate) install: Mutex<()>,
    /// What running jobs hold.
    pub(crate) jobs: Mutex<TreeJobs>,
    /// What happened here.
    pub(crate) counters: TreeCounters,
    /// Whether the filter of the last sorted run is asked, if that is left to what lookups find.
    pub(crate) last_run: LastRunFilter,
    /// Bytes per second that writes are admitted at; 0: no limit. Set with `stopped` after every
    /// change of the shape.
    admitted_rate: AtomicU64,
    /// Whether the policy's hard stop is reached.
    stopped: AtomicBool,
    /// What [`Sequence::released`](snapshot::Sequence::released) was when files were last found that
    /// only snapshots hold; [`NOT_HELD`] if there are none.
    held_at: AtomicU64,
    /// When time alone makes a compaction due, in microseconds; [`NEVER`] if it does not.
    due_us: AtomicU64,
    /// How long a tombstone may stay in a memtable, in microseconds; [`NEVER`] without a bound.
    tombstone_wait_us: AtomicU64,
    /// When the active memtable has to be flushed for a tombstone in it; [`NEVER`] if it need not.
    memtable_due_us: AtomicU64,
    /// Whether the policy asks when tables were last read.
    notes_reads: AtomicBool,
    /// Whether values were ever kept apart; it stays so.
    separated: AtomicBool,
    env: Env,
    /// 0 while it lives, [`DROPPING`] while it is being dropped, then the number of its drop.
    dropped: AtomicU64,
}

/// No files of the tree are held by snapshots alone, as far as anybody knows.
const NOT_HELD: u64 = u64::MAX;

/// At no time.
pub(crate) const NEVER: u64 = u64::MAX;

/// The drop has begun and may still fail: nothing is written any more, reads go on.
const DROPPING: u64 = u64::MAX;

impl Tree {
    /// A tree with these files and an empty memtable for all numbers from `first_seq` on.
    pub(crate) fn new(
        origin: Origin,
        id: u32,
        name: String,
        options: KeyspaceOptions,
        stored_policy: StoredPolicy,
        version: Arc<Version>,
        first_seq: SeqNo,
    ) -> Tree {
        let merging = Merging::new(name.clone(), options.merge_operator.clone());
        let options_separate = options.value_separation.is_some();
        let settings = Settings::new(options, stored_policy);
        let Origin { opening, env } = origin;
        Tree {
            env,
            id,
            name,
            merging: Arc::new(merging),
            beside: Beside::default(),
            opening,
            separated: AtomicBool::new(options_separate),
            notes_reads: AtomicBool::new(settings.policy.needs_read_times()),
            settings: ArcSwap::from_pointee(settings),
            super_version: ArcSwap::from_pointee(SuperVersion::fresh(&version, first_seq)),
            old_views: OldViews::default(),
            install: Mutex::new(()),
            jobs: Mutex::new(TreeJobs::default()),
            counters: TreeCounters::default(),
            last_run: LastRunFilter::default(),
            admitted_rate: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            held_at: AtomicU64::new(NOT_HELD),
            due_us: AtomicU64::new(NEVER),
            tombstone_wait_us: AtomicU64::new(NEVER),
            memtable_due_us: AtomicU64::new(NEVER),
            dropped: AtomicU64::new(0),
        }
    }

    /// Says that it is being dropped, or after all is not: from here on the leader of a commit
    /// refuses what touches it, or does so no more.
    pub(crate) fn set_dropping(&self, dropping: bool) {
        self.dropped.store(if dropping { DROPPING } else { 0 }, Ordering::Release);
    }

    /// Says that its drop is durable. Pairs with the checks below: whoever took its view after that
    /// was emptied sees this number.
    pub(crate) fn set_dropped(&self, number: u64) {
        self.dropped.store(number, Ordering::Release);
    }

    /// Whether it was dropped: no job and no wait for one goes on.
    pub(crate) fn is_dropped(&self) -> bool {
        !matches!(self.dropped.load(Ordering::Acquire), 0 | DROPPING)
    }

    /// Fails if it was dropped. A reader takes its view first.
    pub(crate) fn check_live(&self) -> Result<()> {
        if self.is_dropped() { Err(self.gone()) } else { Ok(()) }
    }

    /// Fails if it was dropped before this snapshot was taken.
    pub(crate) fn check_seen_by(&self, snapshot: &Pinned) -> Result<()> {
        match self.dropped.load(Ordering::Acquire) {
            0 | DROPPING => Ok(()),
            number if snapshot.drops_before() < number => Ok(()),
            _ => Err(self.gone()),
        }
    }

    /// Fails if it takes no writes because it was dropped or is about to be, or lacks its operand store.
    pub(crate) fn check_takes_writes(&self) -> Result<()> {
        if self.dropped.load(Ordering::Acquire) != 0 {
            return Err(self.gone());
        }
        self.beside.check()
    }

    #[cold]
    fn gone(&self) -> Error {
        Error::KeyspaceDropped { name: self.name.clone() }
    }

    /// How it is tuned now.
    pub(crate) fn settings(&self) -> Guard<Arc<Settings>> {
        self.settings.load()
    }

    /// Tunes it anew; a policy meets whatever shape the tree has.
    pub(crate) fn set_settings(&self, options: KeyspaceOptions, stored_policy: StoredPolicy) {
        if options.value_separation.is_some() {
            self.note_separated();
        }
        let settings = Settings::new(options, stored_policy);
        self.notes_reads.store(settings.policy.needs_read_times(), Ordering::Relaxed);
        self.settings.store(Arc::new(settings));
    }

    /// Fails if it needs a custom compaction policy that was not given.
    pub(crate) fn check_policy(&self) -> Result<()> {
        match self.settings().absent_policy() {
            None => Ok(()),
            Some(policy) => Err(Error::NoCompactionPolicy {
                keyspace: self.name.clone(),
                policy: policy.to_owned(),
            }),
        }
    }

    /// What the manifest is to keep of it.
    pub(crate) fn persisted(&self) -> StoredOptions {
        let policy = self.settings().stored_policy.to_string();
        StoredOptions {
            policy,
            merge_operator: self.merging.name().map(str::to_owned),
            operand_store: self.beside.stored(),
            value_separation: self.is_separated(),
        }
    }

    /// Whether values were ever kept apart from the tree, as the manifest has it.
    pub(crate) fn is_separated(&self) -> bool {
        self.separated.load(Ordering::Relaxed)
    }

    /// Notes that they were, or are about to be.
    pub(crate) fn note_separated(&self) {
        self.separated.store(true, Ordering::Relaxed);
    }

    /// Whether the filter of the last sorted run is asked.
    pub(crate) fn filter_last_run(&self) -> bool {
        match self.settings().options.filter_last_run {
            FilterLastRun::Off => false,
            FilterLastRun::On => true,
            FilterLastRun::Auto => self.last_run.is_asked(),
        }
    }

    /// Width of the filters of the tables that a flush or a job is about to bring into this shape.
    pub(crate) fn filter_width(&self, shape: &TreeShape, coming: &IncomingRun<'_>) -> FilterWidth {
        let bits = self.settings().options.filter_bits;
        if !matches!(bits, FilterBits::Monkey { .. }) {
            return bits.width(shape, coming, self.filter_last_run(), |_| false);
        }
        let view = self.pin();
        let tables = view.version.runs().iter().flat_map(|run| run.tables().iter());
        let wide = tables.filter(|file| file.table().properties().has_wide_filter());
        let wide: HashSet<FileId> = wide.map(|file| file.table().identity().id).collect();
        bits.width(shape, coming, self.filter_last_run(), |id| wide.contains(&id))
    }

    /// Notes what a lookup found in the last sorted run, if that decides about its filter.
    #[inline]
    pub(crate) fn note_last_run(&self, version: &Version, table: &Table, found: bool) {
        if self.settings().options.filter_last_run == FilterLastRun::Auto {
            self.last_run.note(version, table, found);
        }
    }

    /// What a short read looks at.
    pub(crate) fn view(&self) -> Guard<Arc<SuperVersion>> {
        self.super_version.load()
    }

    /// What a long read looks at.
    pub(crate) fn pin(&self) -> Arc<SuperVersion> {
        self.super_version.load_full()
    }

    /// Who holds the current super version, besides the tree.
    pub(crate) fn current_pins(&self) -> u64 {
        // The tree has one handle of its own, and this is another.
        let current = Arc::strong_count(&self.pin()) as u64;
        current.saturating_sub(2)
    }

    /// The super versions that somebody besides the tree holds.
    pub(crate) fn held_views(&self) -> Vec<Arc<SuperVersion>> {
        let mut held = self.old_views.held();
        if self.current_pins() > 0 {
            held.push(self.pin());
        }
        held
    }

    /// Swaps the super version for one made of the current one. `make` may be called again if
    /// somebody else was faster.
    pub(crate) fn change(&self, make: impl Fn(&SuperVersion) -> SuperVersion) {
        self.old_views.replaced(self.super_version.rcu(|current| make(current)));
    }

    /// The shape of the tree as its policy is to see it now; `snapshots` are the oldest and the newest
    /// that is registered.
    pub(crate) fn shape(&self, now_us: u64, snapshots: Option<(SeqNo, SeqNo)>) -> TreeShape {
        let view = self.view();
        let mut shape = view.version.shape().clone();
        shape.memtables_empty = view.active.is_empty() && view.sealed.is_empty();
        shape.now_us = now_us;
        shape.oldest_snapshot = snapshots.map(|(oldest, _)| oldest.0);
        shape.newest_snapshot = snapshots.map(|(_, newest)| newest.0);
        let settings = self.settings();
        if settings.policy.needs_read_times() {
            view.version.note_reads(&mut shape);
        }
        shape.memtable_bytes = settings.options.memtable_bytes;
        shape.table_bytes = settings.options.table_bytes;
        shape
    }

    /// Says when time alone makes a compaction due, and how long a tombstone may stay in a memtable.
    /// Returns when the tree is to be looked at for either.
    pub(crate) fn set_due(&self, due_us: Option<u64>, tombstone_wait_us: Option<u64>) -> u64 {
        let (due_us, wait_us) = (due_us.unwrap_or(NEVER), tombstone_wait_us.unwrap_or(NEVER));
        self.due_us.store(due_us, Ordering::Relaxed);
        self.tombstone_wait_us.store(wait_us, Ordering::Relaxed);
        let written_us = self.view().active.first_tombstone_us();
        let memtable_us = written_us.map_or(NEVER, |us| us.saturating_add(wait_us));
        self.memtable_due_us.store(memtable_us, Ordering::Relaxed);
        due_us.min(memtable_us)
    }

    /// The active memtable has got its first tombstone now. Returns when it has to be flushed for that.
    pub(crate) fn tombstone_written(&self, now_us: u64) -> u64 {
        let due_us = now_us.saturating_add(self.tombstone_wait_us.load(Ordering::Relaxed));
        self.memtable_due_us.store(due_us, Ordering::Relaxed);
        due_us
    }

    /// When time alone makes a compaction due, and a flush. What has come is taken: until a look says
    /// otherwise, it is due no more.
    pub(crate) fn take_due(&self, now_us: u64) -> (u64, u64) {
        let take = |due: &AtomicU64| {
            let due_us = due.load(Ordering::Relaxed);
            if due_us <= now_us {
                due.store(NEVER, Ordering::Relaxed);
            }
            due_us
        };
        (take(&self.due_us), take(&self.memtable_due_us))
    }

    /// Notes that a lookup or a scan reads this table, if the policy asks for that.
    #[inline]
    pub(crate) fn note_read(&self, table: &Table) {
        if self.notes_reads.load(Ordering::Relaxed) {
            table.record_read(self.env.database_us());
        }
    }

    /// Says how fast writes may come from now on, and whether they must stop.
    pub(crate) fn set_backpressure(&self, admitted_rate: u64, stopped: bool) {
        self.admitted_rate.store(admitted_rate, Ordering::Relaxed);
        self.stopped.store(stopped, Ordering::Release);
    }

    /// Whether writes must wait until a compaction has released runs.
    pub(crate) fn must_stop(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Notes whether there are files that only snapshots hold, when so many had been let go.
    pub(crate) fn set_held(&self, held: bool, released: u64) {
        self.held_at.store(if held { released } else { NOT_HELD }, Ordering::Relaxed);
    }

    /// Whether there are files that only snapshots hold.
    pub(crate) fn is_held(&self) -> bool {
        self.held_at.load(Ordering::Relaxed) != NOT_HELD
    }

    /// Whether, of the snapshots that held files, one may have been let go since.
    pub(crate) fn may_be_free(&self, released: u64) -> bool {
        let held_at = self.held_at.load(Ordering::Relaxed);
        held_at != NOT_HELD && held_at != released
    }

    /// The rate limit of writes, if there is one.
    pub(crate) fn admitted_rate(&self) -> Option<u64> {
        match self.admitted_rate.load(Ordering::Relaxed) {
            0 => None,
            rate => Some(rate),
        }
    }
}

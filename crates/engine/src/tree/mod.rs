//! Tree of a keyspace: its settings, its current super version and the state of its background jobs.

pub(crate) mod blob_set;
pub(crate) mod combined_gets;
pub(crate) mod counters;
pub(crate) mod delete_persistence;
pub(crate) mod file_numbers;
pub(crate) mod guard_history;
pub(crate) mod ingested_ranges;
pub(crate) mod key_hashes;
pub(crate) mod key_prefixes;
pub(crate) mod keyspace_name;
pub(crate) mod last_run_filter;
pub(crate) mod merge_resolver;
pub(crate) mod obsolete_files;
pub(crate) mod operand_files;
pub(crate) mod operand_store_slot;
pub(crate) mod quarantine;
pub(crate) mod snapshots;
pub(crate) mod super_version;
pub(crate) mod table_file;
pub(crate) mod version;
pub(crate) mod version_edit;

use std::collections::HashSet;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, ArcSwap, AtomicBool, AtomicU64, Guard, Mutex, Ordering, std_atomic};
use lsmx_compaction::{
    CompactionPolicy, Debt, DeletePersistence, FileId, Level, RunningJobs, TreeShape,
};

use crate::env::{Env, NEVER_US, duration_us};
use crate::error::{Error, Result};
use crate::metrics::OperationLatencies;
use crate::options::filter_bits::{FilterBits, IncomingRun};
use crate::options::keyspace::KeyspaceOptions;
use crate::options::policy::{MissingPolicy, Policy, StoredPolicy};
use crate::options::stored::StoredOptions;
use crate::table::{FilterWidth, Table};
use crate::tree::combined_gets::CombinedGets;
use crate::tree::counters::TreeCounters;
use crate::tree::delete_persistence::{
    BlobGarbageAges, IteratorRegistry, ReportedHolders, VoidOperandAges,
};
use crate::tree::ingested_ranges::IngestedRanges;
use crate::tree::keyspace_name::KeyspaceName;
use crate::tree::last_run_filter::LastRunFilter;
use crate::tree::merge_resolver::MergeResolver;
use crate::tree::operand_store_slot::OperandStoreSlot;
use crate::tree::quarantine::Quarantine;
use crate::tree::snapshots::{SnapshotGuard, SnapshotTracker};
use crate::tree::super_version::{OldSuperVersions, SuperVersion};
use crate::tree::version::Version;

/// Id of an open database in this process.
///
/// Each open of a directory gets another id. A handle of an earlier open must not be used, because writes to its
/// memtables would be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenId(u64);

impl OpenId {
    /// Returns an id that is unique in this process.
    pub(crate) fn new() -> OpenId {
        static NEXT: std_atomic::AtomicU64 = std_atomic::AtomicU64::new(0);
        OpenId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Parts of the database that a tree uses.
#[derive(Clone, Debug)]
pub(crate) struct TreeContext {
    pub(crate) open_id: OpenId,
    pub(crate) env: Env,
    pub(crate) latencies: Arc<OperationLatencies>,
}

/// State of the background jobs of a tree. The lock of this state is never held during I/O.
#[derive(Debug, Default)]
pub(crate) struct TreeJobState {
    /// Running compactions and blocked files.
    pub(crate) running: RunningJobs,
    /// Number of manual compactions that wait until other jobs release their files. While it is not 0, only L0 runs are
    /// merged, with each other.
    pub(crate) manual_waiting: usize,
    /// Time of the last pick, in microseconds of the database clock.
    pub(crate) picked_at_us: u64,
    /// Whether ingested files are being added to the tree. No job starts while it is set.
    pub(crate) is_ingesting: bool,
    /// Whether a flush is running. The memtables of a tree are flushed one after the other, from oldest to newest.
    pub(crate) flushing: bool,
    /// Number of consecutive failed compactions, except for blob garbage collections.
    pub(crate) failures: u32,
    /// Earliest time of the next compaction after a failure, in microseconds.
    pub(crate) retry_at_us: u64,
    /// Error of the last compaction that was no blob garbage collection. `None` if it succeeded.
    pub(crate) last_error: Option<Error>,
    /// True if a write has returned or will return a compaction error that occurred after the last successful
    /// compaction.
    pub(crate) is_error_reported: bool,
    /// Set if the policy found no job at its last pick, although the tree needs a compaction.
    pub(crate) blocked: Option<CompactionBlock>,
    /// State of failed blob garbage collections. During their pause, other compactions run.
    pub(crate) blob_gc_retry: RetryState,
    /// State of failed collections of the operand store.
    pub(crate) collection_retry: RetryState,
    /// Files that could not be read. The tables among them are blocked in `running`.
    pub(crate) quarantine: Quarantine,
    /// Ages of the garbage in blob files. Updated only if the keyspace has a delete persistence bound.
    pub(crate) blob_garbage: BlobGarbageAges,
    /// Ages of obsolete operands in the operand store. Updated only if the keyspace has a delete persistence bound.
    pub(crate) void_operands: VoidOperandAges,
    /// Holders of overdue data that were reported.
    pub(crate) reported_holders: ReportedHolders,
}

/// Reason why the policy found no job, although the tree needs a compaction.
#[derive(Clone, Debug)]
pub(crate) struct CompactionBlock {
    pub(crate) error: Error,
    /// Whether the tree had reached the hard stop of its policy. Writes then return the error, because no compaction
    /// will reduce the number of runs in L0.
    pub(crate) at_hard_stop: bool,
}

/// Retries of failed background work.
#[derive(Debug, Default)]
pub(crate) struct RetryState {
    /// Number of consecutive failures.
    pub(crate) failures: u32,
    /// Earliest time of the next attempt in microseconds.
    pub(crate) retry_at_us: u64,
    /// Error of the last attempt. `None` if it succeeded.
    pub(crate) error: Option<Error>,
    /// True if a write has returned or will return an error that occurred after the last successful attempt.
    pub(crate) is_error_reported: bool,
}

impl TreeJobState {
    /// Returns the error that a write at the hard stop returns if no compaction will reduce the number of runs in L0.
    pub(crate) fn write_error(&self, keyspace: &str) -> Option<Error> {
        let blocked = self.blocked.as_ref().filter(|blocked| blocked.at_hard_stop);
        blocked.map(|blocked| blocked.error.clone()).or_else(|| {
            let cause = Arc::new(self.last_error.clone()?);
            let keyspace = Some(keyspace.to_owned());
            Some(Error::Background { work: "compaction", keyspace, cause })
        })
    }

    /// Returns an error that prevents compactions of this tree.
    pub(crate) fn compaction_error(&self) -> Option<Error> {
        let blocked = self.blocked.as_ref().map(|blocked| blocked.error.clone());
        let last = || self.last_error.as_ref().or(self.blob_gc_retry.error.as_ref()).cloned();
        blocked.or_else(last)
    }

    /// Returns an error that prevents background work of this tree.
    pub(crate) fn background_error(&self) -> Option<Error> {
        let quarantined = || self.quarantine.files().next().map(|(_, file)| (*file.cause).clone());
        let collection = || self.collection_retry.error.clone();
        self.compaction_error().or_else(collection).or_else(quarantined)
    }

    /// Returns the earliest time of a retry of failed background work, in microseconds.
    pub(crate) fn next_retry_us(&self) -> Option<u64> {
        let compaction = self.last_error.as_ref().map(|_| self.retry_at_us);
        let [blob_gc, collection] = [&self.blob_gc_retry, &self.collection_retry]
            .map(|retry| retry.error.as_ref().map(|_| retry.retry_at_us));
        let read = self.quarantine.next_read_us();
        [compaction, blob_gc, collection, read].into_iter().flatten().min()
    }
}

/// Settings of a keyspace. They are replaced as a whole.
#[derive(Debug)]
pub(crate) struct TreeSettings {
    /// Options that the application passed.
    pub(crate) options: KeyspaceOptions,
    /// Compaction policy as stored in the manifest.
    pub(crate) stored_policy: StoredPolicy,
    /// Compaction policy in use. It is built from `stored_policy`, or passed by the application.
    pub(crate) policy: Arc<dyn CompactionPolicy>,
}

impl TreeSettings {
    fn new(options: KeyspaceOptions, stored_policy: StoredPolicy) -> TreeSettings {
        let policy = options.custom_policy().cloned().unwrap_or_else(|| match &stored_policy {
            StoredPolicy::Spec(spec) => spec.build(),
            StoredPolicy::Custom(name) | StoredPolicy::Unreadable(name, _) => {
                Arc::new(MissingPolicy(name.clone()))
            }
        });
        TreeSettings { options, stored_policy, policy }
    }

    /// Returns whether jobs may change or drop visible values.
    fn has_changing_jobs(&self) -> bool {
        self.options.compaction_filter.is_some() || self.policy.can_drop_data()
    }

    /// Returns [`KeyspaceOptions::default_ttl`] in microseconds. 0 if there is none.
    fn default_ttl_us(&self) -> u64 {
        self.options.default_ttl.map_or(0, duration_us)
    }

    /// Returns the parts of the bound [`KeyspaceOptions::delete_persistence`], or `None` if there is no bound.
    fn delete_persistence(&self) -> Option<DeletePersistence> {
        let bound = self.options.delete_persistence?;
        Some(DeletePersistence::new(duration_us(bound)))
    }

    /// Returns the compaction policy in use as an option value.
    pub(crate) fn policy(&self) -> Policy {
        match &self.stored_policy {
            StoredPolicy::Spec(spec) => Policy::Spec(spec.clone()),
            StoredPolicy::Custom(_) | StoredPolicy::Unreadable(..) => {
                Policy::Custom(Arc::clone(&self.policy))
            }
        }
    }
}

/// The LSM tree of a keyspace.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Id of the keyspace in the WAL and the manifest.
    pub(crate) id: u32,
    name: Arc<KeyspaceName>,
    pub(crate) merge_resolver: Arc<MergeResolver>,
    pub(crate) operand_store: OperandStoreSlot,
    /// The open database to which the tree belongs.
    pub(crate) open_id: OpenId,
    settings: ArcSwap<TreeSettings>,
    /// Replaced only by [`Tree::update_super_version`], so that no concurrent change is lost.
    super_version: ArcSwap<SuperVersion>,
    pub(crate) old_super_versions: OldSuperVersions,
    /// Number of replacements of the super version. Incremented after each replacement.
    super_version_changes: AtomicU64,
    /// Held while the result of a job is made durable and visible, including I/O, and while a policy that drops data is
    /// replaced. The lock orders the manifest edits of this tree. Reads, writes and policies never take this lock.
    pub(crate) install: Mutex<()>,
    pub(crate) jobs: Mutex<TreeJobState>,
    /// Shared with iterators, which do not hold a reference to the tree.
    pub(crate) counters: Arc<TreeCounters>,
    pub(crate) last_run_filter: LastRunFilter,
    pub(crate) combined_gets: CombinedGets,
    pub(crate) ingested_ranges: IngestedRanges,
    /// Live iterators. Without [`KeyspaceOptions::delete_persistence`], iterators are not registered.
    pub(crate) iterators: Arc<IteratorRegistry>,
    /// Whether writes must wait until an ingest has ended.
    is_ingest_waiting: AtomicBool,
    /// Admitted write rate in bytes per second. 0 if the rate is not limited. Set together with `stopped` after each
    /// change of the tree shape.
    admitted_write_rate: AtomicU64,
    /// Compaction debt when `admitted_write_rate` was set.
    debt_pending_bytes: AtomicU64,
    debt_headroom_bytes: AtomicU64,
    /// Whether the tree has reached the hard stop of its policy.
    stopped: AtomicBool,
    /// Number of released snapshots when the last check found files that only snapshots need. [`NOT_HELD`] if it found
    /// no such files.
    held_at: AtomicU64,
    /// Time at which a compaction becomes due without further writes, in microseconds. [`NEVER_US`] if there is none.
    due_us: AtomicU64,
    /// Maximum age of a tombstone in a memtable, in microseconds. [`NEVER_US`] if it is not limited.
    tombstone_wait_us: AtomicU64,
    /// Time at which the active memtable must be flushed because of the age of a tombstone. [`NEVER_US`] if there is
    /// none.
    memtable_due_us: AtomicU64,
    /// True if the policy uses the last read times of tables.
    records_reads: AtomicBool,
    /// Whether values may have been written to the value log. Never reset.
    has_separated_values: AtomicBool,
    /// Whether memtables or tables may contain expiring entries. Set before the first expiring entry becomes visible,
    /// and never reset.
    may_expire: AtomicBool,
    /// Whether the settings have, or had since the open, a compaction filter or a policy that drops data.
    has_changing_jobs: AtomicBool,
    /// True if the keyspace was opened from the manifest, and the application has not passed its options yet.
    awaits_options: AtomicBool,
    /// True if the application has not passed the options for separated values yet.
    awaits_value_separation: AtomicBool,
    /// [`KeyspaceOptions::default_ttl`] in microseconds. 0 if there is none.
    default_ttl_us: AtomicU64,
    env: Env,
    /// 0 while the keyspace exists, and [`DROPPING`] while it is being dropped. After the drop, the number of the drop
    /// that [`SnapshotTracker::record_keyspace_drop`] has assigned.
    dropped: AtomicU64,
}

/// Value of `held_at` if no file is kept only because of snapshots.
const NOT_HELD: u64 = u64::MAX;

/// Value of `dropped` while the keyspace is being dropped. The drop may still fail. Writes fail, and reads succeed.
const DROPPING: u64 = u64::MAX;

impl Tree {
    /// Creates a tree with the files of `version` and an empty memtable, whose sequence numbers start at `first_seq`.
    pub(crate) fn new(
        context: TreeContext,
        id: u32,
        name: Arc<KeyspaceName>,
        options: KeyspaceOptions,
        stored_policy: StoredPolicy,
        version: Arc<Version>,
        first_seq: SeqNo,
    ) -> Tree {
        let operator = options.merge_operator.clone();
        let merge_resolver = MergeResolver::new(Arc::clone(&name), operator);
        let has_separated_values = options.value_separation.is_some();
        let view = SuperVersion::new(options.memtable_kind, &version, first_seq);
        let may_expire = version.shape().files().any(|file| file.expiry.is_some());
        let settings = TreeSettings::new(options, stored_policy);
        let iterators = Arc::<IteratorRegistry>::default();
        iterators.set_enabled(settings.delete_persistence().is_some());
        let TreeContext { open_id, env, latencies } = context;
        Tree {
            env,
            id,
            name,
            merge_resolver: Arc::new(merge_resolver),
            operand_store: OperandStoreSlot::default(),
            open_id,
            has_separated_values: AtomicBool::new(has_separated_values),
            may_expire: AtomicBool::new(may_expire),
            has_changing_jobs: AtomicBool::new(settings.has_changing_jobs()),
            awaits_options: AtomicBool::new(false),
            awaits_value_separation: AtomicBool::new(false),
            default_ttl_us: AtomicU64::new(settings.default_ttl_us()),
            records_reads: AtomicBool::new(settings.policy.needs_file_read_times()),
            last_run_filter: LastRunFilter::new(settings.options.filter_last_run),
            settings: ArcSwap::from_pointee(settings),
            super_version: ArcSwap::from_pointee(view),
            old_super_versions: OldSuperVersions::default(),
            super_version_changes: AtomicU64::new(0),
            install: Mutex::new(()),
            jobs: Mutex::new(TreeJobState::default()),
            counters: Arc::new(TreeCounters::new(latencies)),
            combined_gets: CombinedGets::default(),
            ingested_ranges: IngestedRanges::default(),
            iterators,
            is_ingest_waiting: AtomicBool::new(false),
            admitted_write_rate: AtomicU64::new(0),
            debt_pending_bytes: AtomicU64::new(0),
            debt_headroom_bytes: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            held_at: AtomicU64::new(NOT_HELD),
            due_us: AtomicU64::new(NEVER_US),
            tombstone_wait_us: AtomicU64::new(NEVER_US),
            memtable_due_us: AtomicU64::new(NEVER_US),
            dropped: AtomicU64::new(0),
        }
    }

    /// Records that a drop of the keyspace begins, or that it has failed. In between, the commit leader rejects writes.
    pub(crate) fn set_dropping(&self, dropping: bool) {
        self.dropped.store(if dropping { DROPPING } else { 0 }, Ordering::Release);
    }

    /// Records that the keyspace is dropped. The drop must be durable. `number` is the number of the drop.
    ///
    /// The release store pairs with the acquire loads below: a thread that loads the emptied super version also sees
    /// `number`.
    pub(crate) fn set_dropped(&self, number: u64) {
        self.dropped.store(number, Ordering::Release);
    }

    /// Returns true if the keyspace is dropped. Running jobs and threads that wait for jobs then end.
    pub(crate) fn is_dropped(&self) -> bool {
        !matches!(self.dropped.load(Ordering::Acquire), 0 | DROPPING)
    }

    /// Returns an error if the keyspace is dropped. A reader must load the super version before this call.
    pub(crate) fn check_live(&self) -> Result<()> {
        if self.is_dropped() { Err(self.dropped_error()) } else { Ok(()) }
    }

    /// Returns an error if the keyspace was dropped before the snapshot was taken.
    pub(crate) fn check_visible_to(&self, snapshot: &SnapshotGuard) -> Result<()> {
        match self.dropped.load(Ordering::Acquire) {
            0 | DROPPING => Ok(()),
            number if snapshot.keyspace_drops_before() < number => Ok(()),
            _ => Err(self.dropped_error()),
        }
    }

    /// Returns an error if the keyspace is dropped or being dropped, or if its operand store is not open.
    pub(crate) fn check_accepts_writes(&self) -> Result<()> {
        if self.dropped.load(Ordering::Acquire) != 0 {
            return Err(self.dropped_error());
        }
        self.operand_store.check()
    }

    #[cold]
    fn dropped_error(&self) -> Error {
        Error::KeyspaceDropped { name: self.name() }
    }

    /// Returns a copy of the current name of the keyspace.
    pub(crate) fn name(&self) -> String {
        self.name.get()
    }

    /// Returns the name that the tree shares with its handles.
    pub(crate) fn shared_name(&self) -> &Arc<KeyspaceName> {
        &self.name
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    pub(crate) fn settings(&self) -> Guard<Arc<TreeSettings>> {
        self.settings.load()
    }

    /// Replaces the settings. The new policy starts with the current shape of the tree. After this call, no drop of
    /// the replaced policy is installed.
    ///
    /// The wait for the options for separated values ends if the old or the new settings contain such options.
    pub(crate) fn set_settings(&self, options: KeyspaceOptions, stored_policy: StoredPolicy) {
        if options.value_separation.is_some() {
            self.set_separated_values();
        }
        let old = self.settings();
        let has_separation = old.options.value_separation.or(options.value_separation).is_some();
        let settings = TreeSettings::new(options, stored_policy);
        self.has_changing_jobs.fetch_or(settings.has_changing_jobs(), Ordering::AcqRel);
        self.records_reads.store(settings.policy.needs_file_read_times(), Ordering::Relaxed);
        self.default_ttl_us.store(settings.default_ttl_us(), Ordering::Relaxed);
        self.iterators.set_enabled(settings.delete_persistence().is_some());
        self.last_run_filter.set_option(settings.options.filter_last_run);
        // A drop job checks under this lock that its policy is still in use.
        let install = old.policy.can_drop_data().then(|| self.install.lock());
        self.settings.store(Arc::new(settings));
        drop(install);
        if has_separation {
            self.awaits_value_separation.store(false, Ordering::Release);
        }
    }

    /// Marks the tree as opened from the manifest, which does not contain all options.
    pub(crate) fn set_awaits_options(&self) {
        self.awaits_options.store(true, Ordering::Release);
        self.awaits_value_separation.store(true, Ordering::Release);
    }

    /// Records that the application has passed all options. The settings must contain them.
    pub(crate) fn clear_awaits_options(&self) {
        self.awaits_options.store(false, Ordering::Release);
        self.awaits_value_separation.store(false, Ordering::Release);
    }

    /// Returns true if the application has not passed the options for separated values yet. Jobs then keep the value
    /// pointers of their inputs, and no blob garbage collection starts.
    ///
    /// If the result is false, settings that are loaded later contain the options of the application. Jobs must
    /// therefore call this function before they load the settings.
    pub(crate) fn awaits_value_separation(&self) -> bool {
        self.awaits_value_separation.load(Ordering::Acquire)
    }

    /// Ends the wait for the options for separated values if the settings contain such options. The application has
    /// opened the keyspace without other options. Returns true if the wait has ended.
    pub(crate) fn confirm_value_separation(&self) -> bool {
        self.settings().options.value_separation.is_some()
            && self.awaits_value_separation.swap(false, Ordering::AcqRel)
    }

    /// Returns true if jobs must keep tombstones below newer entries, see [`KeyspaceOptions::delete_persistence`]. Jobs
    /// also keep them until the application has passed the options, because the options may contain a bound.
    pub(crate) fn keeps_covered_tombstones(&self) -> bool {
        self.awaits_options.load(Ordering::Acquire) || self.delete_persistence().is_some()
    }

    /// Returns an error if the manifest names a custom policy that the application did not pass, or contains a policy
    /// that this build cannot read.
    pub(crate) fn check_policy(&self) -> Result<()> {
        let settings = self.settings();
        match &settings.stored_policy {
            _ if settings.options.custom_policy().is_some() => Ok(()),
            StoredPolicy::Spec(_) => Ok(()),
            StoredPolicy::Custom(policy) => {
                Err(Error::NoCompactionPolicy { keyspace: self.name(), policy: policy.clone() })
            }
            StoredPolicy::Unreadable(policy, cause) => Err(Error::UnreadablePolicy {
                keyspace: self.name(),
                policy: policy.clone(),
                cause: Box::new(cause.clone()),
            }),
        }
    }

    /// Returns the options that the manifest stores.
    pub(crate) fn stored_options(&self) -> StoredOptions {
        let policy = self.settings().stored_policy.to_string();
        StoredOptions {
            policy,
            merge_operator: self.merge_resolver.name().map(str::to_owned),
            operand_store: self.operand_store.stored_options(),
            value_separation: self.has_separated_values(),
        }
    }

    /// Returns whether values may have been written to the value log.
    pub(crate) fn has_separated_values(&self) -> bool {
        self.has_separated_values.load(Ordering::Relaxed)
    }

    /// Records that values have been or will be written to the value log.
    pub(crate) fn set_separated_values(&self) {
        self.has_separated_values.store(true, Ordering::Relaxed);
    }

    /// Returns the default time to live of values, in microseconds. Returns `None` if there is none.
    #[inline]
    pub(crate) fn default_ttl_us(&self) -> Option<u64> {
        match self.default_ttl_us.load(Ordering::Relaxed) {
            0 => None,
            ttl_us => Some(ttl_us),
        }
    }

    /// Returns the expiry time of a value that is written now with a time to live. Both are in microseconds.
    pub(crate) fn expiry_us_after(&self, ttl_us: u64) -> u64 {
        self.env.lifetime_start_us().saturating_add(ttl_us)
    }

    /// Returns an error if `options` contains a default time to live, but the keyspace has a merge operator or an
    /// operand store.
    pub(crate) fn check_default_ttl(&self, options: &KeyspaceOptions) -> Result<()> {
        let store = || self.operand_store.is_used().then(|| "operand_store".to_owned());
        let operator = self.merge_resolver.name().map(|name| format!("merge_operator = {name}"));
        options.check_default_ttl(operator.or_else(store).as_deref())
    }

    /// Returns the parts of the delete persistence bound, or `None` if the keyspace has no bound.
    pub(crate) fn delete_persistence(&self) -> Option<DeletePersistence> {
        self.settings().delete_persistence()
    }

    /// Returns an error if the options contain a delete persistence bound that the policy or the open operand store
    /// does not support.
    pub(crate) fn check_delete_persistence(
        &self,
        options: &KeyspaceOptions,
        policy: &StoredPolicy,
    ) -> Result<()> {
        let attached = self.operand_store.attached();
        options.check_delete_persistence(policy, attached.as_ref().map(|it| &it.factory))
    }

    /// Returns whether memtables or tables may contain expiring entries.
    ///
    /// The acquire load pairs with the release store of [`Tree::set_may_expire`]. A thread that has seen the sequence
    /// number of an expiring entry therefore sees true.
    #[inline]
    pub(crate) fn may_expire(&self) -> bool {
        self.may_expire.load(Ordering::Acquire)
    }

    /// Records that an expiring entry will become visible.
    #[inline]
    pub(crate) fn set_may_expire(&self) {
        if !self.may_expire.load(Ordering::Relaxed) {
            self.may_expire.store(true, Ordering::Release);
        }
    }

    /// Replaces the memtables by the memtables of another tree. Both trees then read these memtables, each up to its
    /// own sequence number.
    pub(crate) fn share_memtables(&self, other: &Tree) {
        if other.may_expire() {
            self.set_may_expire();
        }
        let shared = other.super_version();
        self.update_super_version(|current| SuperVersion {
            active: Arc::clone(&shared.active),
            sealed: shared.sealed.clone(),
            ..current.clone()
        });
    }

    /// Returns the filter width for the tables of a new run that a flush or a compaction will add to this shape.
    pub(crate) fn choose_filter_width(
        &self,
        shape: &TreeShape,
        incoming: &IncomingRun<'_>,
    ) -> FilterWidth {
        let bits = self.settings().options.filter_bits;
        if !matches!(bits, FilterBits::Monkey { .. }) {
            return bits.width(shape, incoming, self.last_run_filter.is_used(), |_| false);
        }
        let view = self.pin_super_version();
        let tables = view.version.runs().iter().flat_map(|run| run.tables().iter());
        let wide = tables.filter(|file| file.table().properties().has_16_bit_filter());
        let wide: HashSet<FileId> = wide.map(|file| file.table().identity().id).collect();
        bits.width(shape, incoming, self.last_run_filter.is_used(), |id| wide.contains(&id))
    }

    /// Returns the super version without incrementing its reference count. For reads that end within one call.
    pub(crate) fn super_version(&self) -> Guard<Arc<SuperVersion>> {
        self.super_version.load()
    }

    /// Returns a counted reference to the super version. For long reads, and for references that are passed to other
    /// threads.
    pub(crate) fn pin_super_version(&self) -> Arc<SuperVersion> {
        self.super_version.load_full()
    }

    /// Returns the number of references to the current super version outside of the tree.
    pub(crate) fn count_super_version_pins(&self) -> u64 {
        // Do not count the reference of the tree and the reference that is created here.
        let current = Arc::strong_count(&self.pin_super_version()) as u64;
        current.saturating_sub(2)
    }

    /// Returns the super versions to which there are references outside of the tree.
    pub(crate) fn pinned_super_versions(&self) -> Vec<Arc<SuperVersion>> {
        let mut held = self.old_super_versions.in_use();
        if self.count_super_version_pins() > 0 {
            held.push(self.pin_super_version());
        }
        held
    }

    /// Replaces the super version by the result of `update`.
    pub(crate) fn update_super_version(&self, update: impl Fn(&SuperVersion) -> SuperVersion) {
        self.old_super_versions.add(|| self.super_version.rcu(|current| update(current)));
        self.super_version_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of replacements of the super version. A reader that pins the super version after this call pins
    /// the result of the last of them or a later one.
    #[inline]
    pub(crate) fn super_version_changes(&self) -> u64 {
        self.super_version_changes.load(Ordering::Acquire)
    }

    /// Calls `store` to store a value in a memtable that was combined from a super version in use, unless readers could
    /// then see another value than before. Returns false if `store` was not called, or its result.
    ///
    /// Readers of older super versions share the memtable. Expiry, compaction filters and policies that drop data remove
    /// the base of operands from the current super version, but not from older ones.
    pub(crate) fn store_combined_value(&self, store: impl FnOnce() -> bool) -> bool {
        match self.may_expire() || self.has_changing_jobs.load(Ordering::Acquire) {
            true => self.old_super_versions.run_if_unused(store),
            false => store(),
        }
    }

    /// Returns the current shape of the tree for its policy. `now_us` must be read from the database clock before this
    /// call.
    pub(crate) fn shape(&self, now_us: u64, tracker: &SnapshotTracker) -> TreeShape {
        let snapshots = tracker.oldest_and_newest_snapshot();
        let view = self.super_version();
        let mut shape = view.version.shape().clone();
        shape.memtables_empty = view.active.is_empty() && view.sealed.is_empty();
        shape.now_us = now_us;
        shape.expiry_limit_us = tracker.expiry_limit_us(now_us);
        shape.oldest_snapshot = snapshots.map(|(oldest, _)| oldest.0);
        shape.newest_snapshot = snapshots.map(|(_, newest)| newest.0);
        let settings = self.settings();
        if settings.policy.needs_file_read_times() {
            view.version.set_last_read_times(&mut shape);
        }
        shape.delete_persistence_us = settings.delete_persistence().map(|parts| parts.bound_us());
        shape.memtable_bytes = settings.options.memtable_bytes;
        shape.table_bytes = settings.options.table_target_bytes();
        shape
    }

    /// Returns the deepest level for ingested files. A policy that drops data drops the deepest runs first, so the newest
    /// files must stay in L0.
    pub(crate) fn ingest_level_max(&self) -> Level {
        if self.settings().policy.can_drop_data() { Level(0) } else { Level::MAX }
    }

    /// Sets the time at which the next compaction becomes due, and the maximum age of a tombstone in a memtable.
    ///
    /// Returns the time at which this tree must be checked again, in microseconds.
    pub(crate) fn set_due_times(&self, due_us: Option<u64>, tombstone_wait_us: Option<u64>) -> u64 {
        let (due_us, wait_us) = (due_us.unwrap_or(NEVER_US), tombstone_wait_us.unwrap_or(NEVER_US));
        self.due_us.store(due_us, Ordering::Relaxed);
        self.tombstone_wait_us.store(wait_us, Ordering::Relaxed);
        let first_tombstone_us = || self.super_version().active.first_tombstone_us();
        let memtable_us = self.set_memtable_due_time(first_tombstone_us);
        due_us.min(memtable_us)
    }

    /// Sets and returns the time at which the active memtable must be flushed. `first_tombstone_us` returns the time of
    /// its first tombstone.
    ///
    /// A commit may write the first tombstone meanwhile, and call [`Tree::record_first_tombstone`]. If this call
    /// overwrites the time that the commit has stored, the acquire of the swap pairs with the release of the commit. The
    /// second call of `first_tombstone_us` then returns the tombstone.
    fn set_memtable_due_time(&self, first_tombstone_us: impl Fn() -> Option<u64>) -> u64 {
        let wait_us = self.tombstone_wait_us.load(Ordering::Relaxed);
        let mut written_us = first_tombstone_us();
        loop {
            let due_us = written_us.map_or(NEVER_US, |us| us.saturating_add(wait_us));
            self.memtable_due_us.swap(due_us, Ordering::AcqRel);
            let before_us = std::mem::replace(&mut written_us, first_tombstone_us());
            if before_us == written_us {
                return due_us;
            }
        }
    }

    /// Records that the active memtable contains its first tombstone. Returns the time at which the memtable must be
    /// flushed.
    pub(crate) fn record_first_tombstone(&self, now_us: u64) -> u64 {
        let due_us = || now_us.saturating_add(self.tombstone_wait_us.load(Ordering::Relaxed));
        let mut stored_us = due_us();
        loop {
            self.memtable_due_us.swap(stored_us, Ordering::AcqRel);
            // A concurrent call of `set_due_times` may have changed the wait.
            let before_us = std::mem::replace(&mut stored_us, due_us());
            if before_us == stored_us {
                return stored_us;
            }
        }
    }

    /// Returns the times at which a compaction and a flush become due. Times that have passed are reset to
    /// [`NEVER_US`].
    pub(crate) fn take_due_times(&self, now_us: u64) -> (u64, u64) {
        let take = |due: &AtomicU64| {
            let due_us = due.load(Ordering::Relaxed);
            if due_us <= now_us {
                due.store(NEVER_US, Ordering::Relaxed);
            }
            due_us
        };
        (take(&self.due_us), take(&self.memtable_due_us))
    }

    /// Records the time of a read of this table if the policy uses these times.
    #[inline]
    pub(crate) fn record_read(&self, table: &Table) {
        if self.records_reads.load(Ordering::Relaxed) {
            table.record_read(self.env.database_time_us());
        }
    }

    /// Sets the admitted write rate in bytes per second, and whether writes must stop until a compaction ends.
    pub(crate) fn set_backpressure(&self, admitted_write_rate: u64, stopped: bool) {
        self.admitted_write_rate.store(admitted_write_rate, Ordering::Relaxed);
        self.stopped.store(stopped, Ordering::Release);
    }

    /// Sets the compaction debt for metrics.
    pub(crate) fn set_debt(&self, debt: Debt) {
        self.debt_pending_bytes.store(debt.pending_bytes, Ordering::Relaxed);
        self.debt_headroom_bytes.store(debt.headroom_bytes, Ordering::Relaxed);
    }

    /// Returns the last value that was passed to [`Tree::set_debt`].
    pub(crate) fn debt(&self) -> Debt {
        Debt {
            pending_bytes: self.debt_pending_bytes.load(Ordering::Relaxed),
            headroom_bytes: self.debt_headroom_bytes.load(Ordering::Relaxed),
        }
    }

    /// Sets whether writes must wait until an ingest has ended.
    pub(crate) fn set_ingest_waiting(&self, is_waiting: bool) {
        self.is_ingest_waiting.store(is_waiting, Ordering::Release);
    }

    /// Returns whether writes must wait until an ingest has ended.
    pub(crate) fn is_ingest_waiting(&self) -> bool {
        self.is_ingest_waiting.load(Ordering::Acquire)
    }

    /// Returns whether writes must stop until a compaction reduces the number of runs.
    pub(crate) fn is_write_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Sets whether there are files that only snapshots need. `snapshot_release_count` is the number of snapshots that
    /// had been released before the check.
    pub(crate) fn set_files_held_by_snapshots(&self, held: bool, snapshot_release_count: u64) {
        self.held_at.store(if held { snapshot_release_count } else { NOT_HELD }, Ordering::Relaxed);
    }

    /// Returns whether there are files that only snapshots need.
    pub(crate) fn has_files_held_by_snapshots(&self) -> bool {
        self.held_at.load(Ordering::Relaxed) != NOT_HELD
    }

    /// Returns true if there are files that only snapshots need, and a snapshot was released after the check that found
    /// these files.
    pub(crate) fn may_snapshots_have_released_files(&self, snapshot_release_count: u64) -> bool {
        let held_at = self.held_at.load(Ordering::Relaxed);
        held_at != NOT_HELD && held_at != snapshot_release_count
    }

    /// Returns the admitted write rate in bytes per second, or `None` if the rate is not limited.
    pub(crate) fn admitted_write_rate(&self) -> Option<u64> {
        match self.admitted_write_rate.load(Ordering::Relaxed) {
            0 => None,
            rate => Some(rate),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::db::Db;
    use crate::env::Background;
    use crate::options::db::Options;
    use crate::vfs::MemVfs;

    /// Bug: a commit wrote the first tombstone of a memtable while the due times were set. The time at which the
    /// memtable must be flushed was lost.
    #[test]
    fn set_memtable_due_time_keeps_concurrent_first_tombstone() {
        let options = Options::default().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let tree = &db.inner().default_tree;
        tree.tombstone_wait_us.store(10, Ordering::Relaxed);
        let written_us = Cell::new(None);
        let due_us = tree.set_memtable_due_time(|| {
            let before = written_us.replace(Some(100));
            if before.is_none() {
                assert_eq!(tree.record_first_tombstone(100), 110);
            }
            before
        });
        assert_eq!((due_us, tree.take_due_times(200).1), (110, 110));
    }
}

//! State of a store: the committed view, the prepared views and the log.
//!
//! A view is an immutable list of buckets. Each delivery and each collection prepares a new view, which the engine
//! commits later. Each of them extends the newest view, called the base view.
//!
//! A delivery or collection that fails leaves files in an unknown state and marks the base view as stale. The next
//! delivery, or the engine before the next collection, then recovers the base view from the log, at the token of the last
//! prepared view. After the engine abandoned the prepared views, the recovery uses the token of the committed view. After
//! a recovery, the store does not append to older bucket files.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use lsmx::operand_store::{OperandFileKind, OperandReadTier, StoreContext, StoreToken};
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, RwLock, Weak};

use crate::bucket::Bucket;
use crate::bucket::markers::RemovalRequest;
use crate::bucket::reader::BucketReader;
use crate::cache::OperandCache;
use crate::files::FileTable;
use crate::files::io::io_error;
use crate::log::{FrameBuffer, LogPosition, LogWriter};
use crate::memory::MemoryUsage;
use crate::options::{CACHE_BYTES_DEFAULT, DeltaOptions};
use crate::plan::pick::{CollectionRules, DueBuckets, is_collection_due};
use crate::recovery::{recover, recover_view};
use crate::view::{StoreCounters, StoreResources, StoreView};

/// State of an operand store.
///
/// Lock order: `latest`, then `committed`.
#[derive(Debug)]
pub struct StoreState {
    pub resources: Arc<StoreResources>,
    committed: RwLock<Arc<StoreView>>,
    latest: Mutex<BaseState>,
    /// Writer of the current log. `None` before the first append. A thread that appends takes the writer out, so that
    /// it holds no lock during I/O.
    log: Mutex<Option<LogWriter>>,
    /// Whether a collection was due at the last check.
    is_due: AtomicBool,
    rules: RwLock<Arc<CollectionRules>>,
    /// Smallest key of the due bucket with which the next collection starts if more buckets are due than it rewrites.
    /// Not durable.
    pub next_due_key: Mutex<Bytes>,
    pub buckets_max: usize,
    /// Memory limit for bucket indexes, filters, fingerprints and tails, in bytes. `None` if the database states no budget.
    /// Tails then have their smallest size.
    bucket_memory_bytes: Option<u64>,
}

/// Base view of the next delivery or collection.
#[derive(Debug)]
struct BaseState {
    view: Arc<StoreView>,
    token: Option<StoreToken>,
    committed_token: Option<StoreToken>,
    prepared: Vec<UncommittedView>,
    /// Ids of the buckets that a running collection rewrites. The collection has read their files already, so a delivery
    /// must keep new records of these buckets in memory.
    frozen_bucket_ids: Arc<BTreeSet<u64>>,
    /// Number of calls of [`StoreState::abandon_prepared_views`]. A collection fails if it changes.
    abandon_count: u64,
    next_id: u64,
    /// If true, `view` must be recovered from the log before it is used.
    is_stale: bool,
    /// Abandoned views. Their commits may be durable, so their files are kept until the next commit.
    in_doubt: Vec<Arc<StoreView>>,
    /// Numbers of the existing logs.
    log_numbers: BTreeSet<u64>,
    /// [`LogWriter::void_from`] of the current log, or 0 if it is not known.
    log_void_from: Option<SeqNo>,
    /// All installed views. A view that no reader holds any more is dropped.
    installed: Vec<Weak<StoreView>>,
}

/// A prepared view that is not committed.
#[derive(Debug)]
struct UncommittedView {
    token: StoreToken,
    view: Arc<StoreView>,
    cache_update: Box<dyn CacheUpdate>,
}

/// Cache update of a delivery or collection. It is applied when the engine commits the view.
pub trait CacheUpdate: std::fmt::Debug + Send + Sync {
    /// Updates the cache entries of changed keys to the records in `view`.
    fn update_cache(self: Box<Self>, cache: &OperandCache, view: &StoreView);
}

impl StoreState {
    /// Recovers the state that `token` names. Without a token, returns an empty state.
    pub fn open(
        context: StoreContext,
        token: Option<StoreToken>,
        options: DeltaOptions,
    ) -> Result<StoreState> {
        options.check_bounds()?;
        let half_memory = context.memory_bytes.map(|bytes| bytes / 2);
        let cache_bytes =
            options.cache_bytes.unwrap_or_else(|| half_memory.unwrap_or(CACHE_BYTES_DEFAULT));
        let resources = Arc::new(StoreResources {
            recover_view,
            options,
            cache: OperandCache::new(cache_bytes),
            files: FileTable::new(context),
            memory: MemoryUsage::default(),
            counters: StoreCounters::default(),
        });
        let (view, next_id) = recover_view_or_empty(&resources, token)?;
        resources.counters.log_bytes.store(log_bytes(token), Ordering::Relaxed);
        let latest = BaseState {
            view: view.clone(),
            token,
            committed_token: token,
            prepared: Vec::new(),
            frozen_bucket_ids: Arc::default(),
            abandon_count: 0,
            next_id,
            is_stale: false,
            in_doubt: Vec::new(),
            log_numbers: token.iter().map(|it| LogPosition::from_store_token(*it).number).collect(),
            log_void_from: token.map(|_| SeqNo::ZERO),
            installed: Vec::new(),
        };
        Ok(StoreState {
            resources,
            is_due: AtomicBool::new(is_collection_due(&view, &CollectionRules::default())),
            committed: RwLock::new(view),
            latest: Mutex::new(latest),
            log: Mutex::new(None),
            rules: RwLock::default(),
            next_due_key: Mutex::default(),
            buckets_max: buckets_max(&options, half_memory),
            bucket_memory_bytes: half_memory,
        })
    }

    /// Returns the size at which a delivery writes a tail to the file of its bucket, in bytes of records.
    ///
    /// The size is at least one page and at most an eighth of a bucket. Within these bounds, it is chosen so that the
    /// tails of `bucket_count` buckets fit into the memory limit. A large size is better for lookups, because the
    /// operands of a key are then in fewer pages.
    pub fn tail_bytes_max(&self, bucket_count: usize) -> usize {
        let options = &self.resources.options;
        let page_bytes = options.page_bytes();
        let most = usize::try_from(options.bucket_bytes / 8).unwrap_or(usize::MAX);
        let bucket_count = len_u64(bucket_count).max(1);
        let memory_bytes = self.bucket_memory_bytes.unwrap_or(0);
        let each = (memory_bytes / bucket_count).saturating_sub(metadata_bytes(options));
        // A tail grows from empty to its maximum, so the mean is half of the maximum. With twice the mean as the maximum,
        // all tails together fit into the memory.
        let each = usize::try_from(each.saturating_mul(2)).unwrap_or(usize::MAX);
        each.clamp(page_bytes, most.max(page_bytes))
    }

    pub fn committed_view(&self) -> Arc<StoreView> {
        self.committed.read().clone()
    }

    pub fn committed_log_path(&self) -> PathBuf {
        let token = self.latest.lock().committed_token.unwrap_or_default();
        let number = LogPosition::from_store_token(token).number;
        self.resources.files.context.files.path(OperandFileKind::Log, number)
    }

    /// Returns the base view of the next collection and [`StoreState::abandon_count`], or `None` if the view is stale.
    ///
    /// A collection calls this function at its start, when a delivery may be running. If the collection recovered a
    /// stale view, it would close files to which the delivery appends, and would replace the view that the delivery
    /// installs.
    pub fn base_view_if_valid(&self) -> Result<Option<(Arc<StoreView>, u64)>> {
        self.check_writable()?;
        let latest = self.latest.lock();
        Ok((!latest.is_stale).then(|| (latest.view.clone(), latest.abandon_count)))
    }

    /// Returns the base view of the next delivery or collection. Recovers the view from the log if it is stale.
    ///
    /// Callers are deliveries, the end of a collection and [`OperandStore::recover`](lsmx::operand_store::OperandStore::recover).
    /// The engine runs only one of them at a time.
    pub fn load_base_view(&self) -> Result<Arc<StoreView>> {
        self.check_writable()?;
        let token = {
            let latest = self.latest.lock();
            if !latest.is_stale {
                return Ok(latest.view.clone());
            }
            latest.token
        };
        self.log.lock().take();
        self.resources.files.close_writers();
        let (view, _) = recover_view_or_empty(&self.resources, token)?;
        for file in view.files() {
            file.seal();
        }
        {
            let mut latest = self.latest.lock();
            latest.view = view.clone();
            latest.is_stale = false;
        }
        // The last check may have been that of an abandoned view.
        self.update_collection_due(&view);
        Ok(view)
    }

    fn check_writable(&self) -> Result<()> {
        match self.resources.files.context.read_only {
            true => Err(Error::OpenedReadOnly),
            false => Ok(()),
        }
    }

    /// Marks the base view as stale and closes the log. Called after a failed delivery or collection.
    pub fn mark_base_stale(&self) {
        self.latest.lock().is_stale = true;
        self.log.lock().take();
    }

    pub fn frozen_bucket_ids(&self) -> Arc<BTreeSet<u64>> {
        self.latest.lock().frozen_bucket_ids.clone()
    }

    /// Sets the ids of the buckets that a collection rewrites.
    pub fn freeze_buckets(&self, ids: BTreeSet<u64>) {
        self.latest.lock().frozen_bucket_ids = Arc::new(ids);
    }

    pub fn abandon_count(&self) -> u64 {
        self.latest.lock().abandon_count
    }

    /// Allocates consecutive bucket ids and returns the first.
    pub fn allocate_bucket_ids(&self, count: usize) -> u64 {
        let mut latest = self.latest.lock();
        let first = latest.next_id;
        latest.next_id += len_u64(count);
        first
    }

    /// Appends frames to the log and syncs it. If the log is full, starts a new log with a snapshot of `base` first.
    ///
    /// `has_new_files` states whether the frames refer to new bucket files. In this case the directory is synced too.
    /// `void_from` is a lower bound of the sequence numbers of deletes that may cover operands in the log because of
    /// these frames. For a delivery, it is the oldest marker. For a collection, it is the last delivered sequence
    /// number before the collection. The collection may move an operand of the log to the tree, and a later delete of
    /// its key then has no marker in the store.
    pub fn append_to_log(
        &self,
        base: &StoreView,
        has_new_files: bool,
        void_from: Option<SeqNo>,
        build: impl FnOnce(&mut FrameBuffer) -> Result<()>,
    ) -> Result<StoreToken> {
        let current = self.log.lock().take().filter(|log| !self.is_log_full(log, base));
        let bytes_before = current.as_ref().map_or(0, LogWriter::bytes);
        let is_new = current.is_none();
        let mut log = match current {
            Some(log) => log,
            None => self.start_log(base)?,
        };
        let number = log.number;
        let append = || {
            let mut frames = log.new_frame_buffer();
            build(&mut frames)?;
            log.append(&mut frames)?;
            log.add_void_from(void_from);
            self.sync_log(log, bytes_before, is_new || has_new_files)
        };
        append().inspect_err(|_| {
            if is_new {
                self.discard_log(number);
            }
        })
    }

    /// Returns whether the next append must start a new log with a snapshot of `base`.
    ///
    /// The snapshot of the first log after a recovery contains large tails. Deliveries write their records to bucket
    /// files, but the next recovery would put them into the tails again, with all later records of the log. Without a
    /// new log, the tails would grow with each recovery. Tails within the memory limit do not count. They would cause
    /// additional logs in a store that was not recovered.
    fn is_log_full(&self, log: &LogWriter, base: &StoreView) -> bool {
        let limit = self.bucket_memory_bytes.unwrap_or(u64::MAX);
        let obsolete_bytes = match log.snapshot_tail_bytes() {
            bytes if bytes <= limit => 0,
            bytes => bytes.saturating_sub(base.tail_bytes().max(limit)),
        };
        let bytes = log.bytes_after_snapshot().saturating_add(obsolete_bytes);
        bytes > self.resources.options.log_bytes_max
    }

    /// Starts a new log that contains only a snapshot of `view`.
    pub fn replace_log(&self, view: &StoreView) -> Result<StoreToken> {
        self.log.lock().take();
        let log = self.start_log(view)?;
        let number = log.number;
        self.sync_log(log, 0, true).inspect_err(|_| self.discard_log(number))
    }

    /// Discards a log of which no token was returned.
    fn discard_log(&self, number: u64) {
        self.latest.lock().log_numbers.remove(&number);
        self.resources.files.context.files.discard(OperandFileKind::Log, number);
    }

    /// Syncs the log after an append, and returns the token of its end. `bytes_before` is its size before the append.
    fn sync_log(
        &self,
        log: LogWriter,
        bytes_before: u64,
        has_new_files: bool,
    ) -> Result<StoreToken> {
        log.sync()?;
        if has_new_files {
            self.resources.files.context.files.sync_directory()?;
        }
        let token = log.end_token();
        let counters = &self.resources.counters;
        counters.log_written_bytes.fetch_add(log.bytes() - bytes_before, Ordering::Relaxed);
        counters.log_bytes.store(log.bytes(), Ordering::Relaxed);
        self.latest.lock().log_void_from = log.void_from();
        *self.log.lock() = Some(log);
        Ok(token)
    }

    /// Creates a log that begins with a snapshot of `base`. Syncs the bucket files first, because a recovery from the
    /// log reads them.
    fn start_log(&self, base: &StoreView) -> Result<LogWriter> {
        for file in base.files() {
            file.sync()?;
        }
        let context = &self.resources.files.context;
        let mut log = LogWriter::create(&*context.files, context.env.random_u64())?;
        self.latest.lock().log_numbers.insert(log.number);
        match log.put_snapshot(base, Bucket::to_entry) {
            Ok(()) => Ok(log),
            Err(error) => {
                self.discard_log(log.number);
                Err(error)
            }
        }
    }

    /// Makes a prepared view the base of the next delivery or collection, and returns it.
    pub fn install(
        &self,
        token: StoreToken,
        view: StoreView,
        cache_update: Box<dyn CacheUpdate>,
    ) -> Arc<StoreView> {
        let view = Arc::new(view.with_log_token(token).build_key_search());
        for file in view.files() {
            file.set_obsolete(false);
        }
        self.update_collection_due(&view);
        let mut latest = self.latest.lock();
        latest.view = view.clone();
        latest.token = Some(token);
        latest.installed.retain(|view| view.strong_count() > 0);
        latest.installed.push(Arc::downgrade(&view));
        latest.prepared.push(UncommittedView { token, view: view.clone(), cache_update });
        view
    }

    /// Commits the view that `token` names, and all views prepared before it. Discards obsolete logs and marks obsolete
    /// bucket files.
    pub fn commit(&self, token: StoreToken) {
        let (committed, in_doubt) = {
            let mut latest = self.latest.lock();
            let Some(index) = latest.prepared.iter().position(|it| it.token == token) else {
                return;
            };
            let later = latest.prepared.split_off(index + 1);
            let committed = std::mem::replace(&mut latest.prepared, later);
            latest.committed_token = Some(token);
            (committed, std::mem::take(&mut latest.in_doubt))
        };
        let Some(view) = committed.last().map(|it| it.view.clone()) else { return };
        let previous = std::mem::replace(&mut *self.committed.write(), view);
        if let Some(cache) = &self.resources.cache {
            for prepared in committed {
                prepared.cache_update.update_cache(cache, &prepared.view);
            }
        }
        let (needed_views, obsolete_logs) = {
            let mut latest = self.latest.lock();
            let prepared = latest.prepared.iter().map(|it| it.view.clone());
            let current = [latest.view.clone(), self.committed.read().clone()];
            let needed_views: Vec<Arc<StoreView>> = prepared.chain(current).collect();
            let tokens = latest.prepared.iter().map(|it| it.token).chain([token]);
            let log_numbers = tokens.map(|it| LogPosition::from_store_token(it).number).collect();
            let obsolete_logs: Vec<u64> =
                latest.log_numbers.difference(&log_numbers).copied().collect();
            latest.log_numbers = log_numbers;
            (needed_views, obsolete_logs)
        };
        let needed_files: BTreeSet<u64> =
            needed_views.iter().flat_map(|view| view.files()).map(|file| file.number).collect();
        for file in self.resources.files.live_files() {
            if !needed_files.contains(&file.number) {
                file.set_obsolete(true);
            }
        }
        drop((previous, in_doubt));
        self.reload_views_from_log(&obsolete_logs);
        for number in obsolete_logs {
            self.resources.files.context.files.discard(OperandFileKind::Log, number);
        }
    }

    /// Reloads the views that may have lost pages and whose log is in `log_numbers`, before these logs are discarded.
    fn reload_views_from_log(&self, log_numbers: &[u64]) {
        if !self.resources.files.has_failed_sync() {
            return;
        }
        let installed = self.latest.lock().installed.clone();
        for view in installed.iter().filter_map(Weak::upgrade) {
            let log_number = view.token.map(|token| LogPosition::from_store_token(token).number);
            let needs_log = log_number.is_some_and(|number| log_numbers.contains(&number));
            if needs_log && view.may_have_lost_pages() {
                // An error is ignored here. A later read of the lost pages reports it.
                let _ = view.reload();
            }
        }
    }

    /// Abandons all prepared views. The next delivery extends the committed view.
    ///
    /// The commit of an abandoned view may be durable. The files of these views are therefore kept until the next
    /// commit.
    pub fn abandon_prepared_views(&self) {
        let prepared = self.take_prepared_views();
        self.latest.lock().in_doubt.extend(prepared);
    }

    /// Abandons all prepared views, and discards the files that only they use. The engine must not have started to
    /// commit one of them.
    ///
    /// On a full disk, the files would take the space that the next attempt needs.
    pub fn discard_prepared_views(&self) {
        let discarded = self.take_prepared_views();
        // The next append recovers the committed view first, and starts a new log.
        self.log.lock().take();
        let log_number =
            |token: Option<StoreToken>| token.map(|it| LogPosition::from_store_token(it).number);
        let committed = self.committed.read().clone();
        let (kept, obsolete_logs) = {
            let mut latest = self.latest.lock();
            let kept: Vec<Arc<StoreView>> = latest.in_doubt.to_vec();
            let tokens = kept.iter().map(|view| view.token).chain([latest.committed_token]);
            let kept_logs: BTreeSet<u64> = tokens.filter_map(log_number).collect();
            let logs = discarded.iter().filter_map(|view| log_number(view.token));
            let obsolete_logs: BTreeSet<u64> = logs.filter(|it| !kept_logs.contains(it)).collect();
            latest.log_numbers.retain(|number| !obsolete_logs.contains(number));
            (kept, obsolete_logs)
        };
        let kept_files = kept.iter().chain([&committed]).flat_map(|view| view.files());
        let kept_files: BTreeSet<u64> = kept_files.map(|file| file.number).collect();
        for file in discarded.iter().flat_map(|view| view.files()) {
            if !kept_files.contains(&file.number) {
                file.set_obsolete(true);
            }
        }
        drop(discarded);
        for number in obsolete_logs {
            self.resources.files.context.files.discard(OperandFileKind::Log, number);
        }
    }

    /// Removes and returns all prepared views. The next delivery recovers the committed view.
    fn take_prepared_views(&self) -> Vec<Arc<StoreView>> {
        let committed = self.committed.read().clone();
        let mut latest = self.latest.lock();
        let prepared = std::mem::take(&mut latest.prepared);
        latest.view = committed;
        latest.token = latest.committed_token;
        self.resources.counters.log_bytes.store(log_bytes(latest.token), Ordering::Relaxed);
        // The log of the committed view is an earlier one, so its value is not known.
        latest.log_void_from = latest.token.map(|_| SeqNo::ZERO);
        latest.is_stale = true;
        latest.abandon_count += 1;
        prepared.into_iter().map(|it| it.view).collect()
    }

    pub(crate) fn rules(&self) -> Arc<CollectionRules> {
        self.rules.read().clone()
    }

    fn change_rules(&self, change: impl FnOnce(&mut CollectionRules)) {
        {
            let mut current = self.rules.write();
            let mut rules = (**current).clone();
            change(&mut rules);
            *current = Arc::new(rules);
        }
        let view = self.latest.lock().view.clone();
        self.update_collection_due(&view);
    }

    pub fn set_excluded_file_numbers(&self, numbers: BTreeSet<u64>) {
        self.change_rules(|rules| rules.excluded_files = numbers);
    }

    /// Requests the removal of all operands that are covered by delete markers up to `through`, except for operands
    /// that `snapshots` need.
    pub fn request_removal(&self, through: SeqNo, snapshots: &[SeqNo]) {
        let removal = RemovalRequest { through, snapshots: snapshots.into() };
        self.change_rules(|rules| rules.removal = Some(removal));
    }

    /// Replaces the snapshots of the removal request by the snapshots of a collection.
    ///
    /// Otherwise a snapshot that is newer than the request would count as released. The buckets in which it keeps
    /// operands would then be due repeatedly.
    pub fn set_request_snapshots(&self, snapshots: &[SeqNo]) {
        self.change_rules(|rules| {
            if let Some(removal) = &mut rules.removal {
                removal.snapshots = snapshots.into();
            }
        });
    }

    fn update_collection_due(&self, view: &StoreView) {
        let rules = self.rules();
        let is_due = is_collection_due(view, &rules) || self.is_log_due(&rules);
        self.is_due.store(is_due, Ordering::Release);
    }

    /// Returns true if a collection must replace the log, because a delete of the removal request may cover operands in
    /// the log.
    pub(crate) fn is_log_due(&self, rules: &CollectionRules) -> bool {
        let void_from = self.latest.lock().log_void_from;
        let removal_through = rules.removal.as_ref().map(|removal| removal.through);
        void_from.is_some_and(|from| Some(from) <= removal_through)
            && !failpoint::is_on(Failpoint::StoreLogNotReplaced)
    }

    /// Returns whether the collection that has created `view` must replace the log.
    ///
    /// Returns false as long as `view` has due markers. A new log would contain the tails of `view`, and these may still
    /// contain operands that must be removed. A later collection then replaces the log.
    pub fn must_replace_log(&self, view: &StoreView) -> bool {
        let rules = self.rules();
        let due = DueBuckets::new(view, &rules);
        self.is_log_due(&rules)
            && !(0..view.buckets.len()).any(|index| due.is_due_for_marker(index))
    }

    /// Returns a lower bound of the sequence numbers of deletes that may cover operands in the files of the committed
    /// state. Returns `None` if there are no such operands.
    pub fn oldest_void_delete(&self) -> Option<SeqNo> {
        let log_void_from = self.latest.lock().log_void_from;
        self.committed_view().oldest_marker().into_iter().chain(log_void_from).min()
    }

    /// Reads the committed parts of a bucket file from the device and checks them. Returns the number of bytes read.
    pub fn check_bucket_file(&self, number: u64) -> Result<u64> {
        let view = self.committed_view();
        let bytes = AtomicU64::new(0);
        for index in 0..view.buckets.len() {
            if view.buckets[index].files().any(|file| file.number == number) {
                let mut reader = BucketReader::for_device_check(&bytes);
                let tier = OperandReadTier::Storage;
                view.read_bucket(index, tier, |bucket| bucket.read_records(&mut reader))?;
            }
        }
        Ok(bytes.load(Ordering::Relaxed))
    }

    /// Returns whether a collection is due. Returns false if the base view is stale.
    pub fn is_collection_due(&self) -> bool {
        let is_due = self.is_due.load(Ordering::Acquire);
        is_due && !self.resources.files.context.read_only && !self.latest.lock().is_stale
    }

    pub fn committed_files(&self) -> Vec<(OperandFileKind, u64)> {
        let view = self.committed.read().clone();
        let token = self.latest.lock().committed_token;
        let numbers: BTreeSet<u64> = view.files().map(|file| file.number).collect();
        let log = token.map(|it| (OperandFileKind::Log, LogPosition::from_store_token(it).number));
        log.into_iter().chain(numbers.into_iter().map(|it| (OperandFileKind::Bucket, it))).collect()
    }

    /// Returns the size in bytes of the largest log from which the base view may have to be recovered.
    pub fn recovery_log_bytes_max(&self) -> u64 {
        let latest = self.latest.lock();
        log_bytes(latest.token).max(log_bytes(latest.committed_token))
    }

    pub fn memory_bytes(&self) -> u64 {
        let bucket_count = self.committed.read().buckets.len();
        let bucket_bytes = size_of::<Bucket>() + 256;
        let cache_bytes = self.resources.cache.as_ref().map_or(0, OperandCache::bytes);
        self.resources.memory.bytes() + cache_bytes + len_u64(bucket_count * bucket_bytes)
    }

    /// Returns the error of a collection whose input buckets have changed since it started.
    pub fn changed_input_error(&self, reason: &'static str) -> Error {
        let path = self.resources.files.context.files.path(OperandFileKind::Bucket, 0);
        let dir = path.parent().unwrap_or(&path);
        io_error("end a collection in", dir, std::io::Error::other(reason))
    }
}

/// Recovers the view that `token` names. Without a token, returns an empty view. Also returns the next unused bucket
/// id.
fn recover_view_or_empty(
    resources: &Arc<StoreResources>,
    token: Option<StoreToken>,
) -> Result<(Arc<StoreView>, u64)> {
    let (view, next_id) = match token {
        Some(token) => recover(resources, token)?,
        None => (StoreView::empty(resources.clone()), 1),
    };
    Ok((Arc::new(view.build_key_search()), next_id))
}

/// Returns the size of the log up to the position of a token, in bytes. Without a token, returns 0.
fn log_bytes(token: Option<StoreToken>) -> u64 {
    token.map_or(0, |token| LogPosition::from_store_token(token).end)
}

/// Returns the approximate memory for the index, filter and fingerprints of a full bucket, in bytes.
fn metadata_bytes(options: &DeltaOptions) -> u64 {
    options.bucket_bytes / 64
}

/// Returns the maximum number of buckets that fit into the memory limit. Each bucket needs its metadata and a tail of
/// one page.
fn buckets_max(options: &DeltaOptions, memory_bytes: Option<u64>) -> usize {
    let each = len_u64(options.page_bytes()) + metadata_bytes(options);
    let in_memory = memory_bytes.map_or(u64::MAX, |bytes| bytes / each);
    usize::try_from(options.buckets_max.min(in_memory).max(4)).unwrap_or(usize::MAX)
}

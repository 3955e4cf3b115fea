//! The store of one keyspace: what is committed, what is prepared, and the log.
//!
//! A failure between begin and end of a delivery or a collection leaves files in a state that nobody
//! knows. Nothing is made of it: what is to be built upon next is read again from the log, up to the
//! last token that was given out, or that was committed if all since is in doubt. Files that were there
//! before are never appended to after that.

use std::collections::BTreeSet;

use lsmx::operand_store::{OperandFileKind, OperandMetrics, Place, Token};
use lsmx::{Error, Result};
use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering, RwLock, Weak};

use crate::bucket::reading::Reading;
use crate::cache::Cache;
use crate::charge::Memory;
use crate::files::FileTable;
use crate::log::{Frames, LogWriter, Position};
use crate::options::{CACHE_BYTES_DEFAULT, DeltaOptions};
use crate::recovery::{read_again, recover};
use crate::view::{Counters, Shared, View, count};

/// Range anchors from which on a collection is due that does away with some.
const RANGES_MAX: usize = 64;

/// Parts of files from which on a bucket is collected: each costs a read.
const EXTENTS_MAX: usize = 8;

/// An operand store.
#[derive(Debug)]
pub(crate) struct DeltaStore {
    pub(crate) shared: Arc<Shared>,
    committed: RwLock<Arc<View>>,
    tip: Mutex<Tip>,
    /// Out of its place while something is prepared: no lock is held while files are written.
    log: Mutex<Option<LogWriter>>,
    due: AtomicBool,
    /// Numbers of the files that collections leave out.
    left_out: RwLock<Arc<BTreeSet<u64>>>,
    /// Most buckets.
    pub(crate) buckets_max: usize,
    /// Memory for what is known of buckets, and their tails.
    buckets_memory: u64,
}

/// What the next delivery or collection builds on.
#[derive(Debug)]
struct Tip {
    view: Arc<View>,
    token: Option<Token>,
    token_committed: Option<Token>,
    prepared: Vec<PreparedState>,
    /// Buckets under collection, whose tails must not go to files.
    frozen: Arc<BTreeSet<u64>>,
    /// How often what was prepared was abandoned.
    epoch: u64,
    id_next: u64,
    /// The view is to be read again from its log.
    stale: bool,
    /// Views that may have been committed; their files stay until the next commit.
    in_doubt: Vec<Arc<View>>,
    /// Logs that are there.
    logs: BTreeSet<u64>,
    /// Views that somebody may have.
    installed: Vec<Weak<View>>,
}

/// Something that was prepared and not committed.
#[derive(Debug)]
struct PreparedState {
    token: Token,
    view: Arc<View>,
    then: Box<dyn Then>,
}

/// What a commit does to the cache.
pub(crate) trait Then: std::fmt::Debug + Send + Sync {
    /// Brings entries up to `view`.
    fn refresh(self: Box<Self>, cache: &Cache, view: &View);
}

impl DeltaStore {
    /// Opens the store as of a token.
    pub(crate) fn open(
        place: Place,
        token: Option<Token>,
        options: DeltaOptions,
    ) -> Result<DeltaStore> {
        options.check()?;
        // For the cache, and as much for buckets.
        let half = place.memory_bytes.map(|bytes| bytes / 2);
        let (by_default, buckets_memory) = (half.unwrap_or(CACHE_BYTES_DEFAULT), half.unwrap_or(0));
        let buckets_max = most_buckets(&options, half);
        let shared = Arc::new(Shared {
            recover: read_again,
            options,
            cache: Cache::new(options.cache_bytes.unwrap_or(by_default)),
            table: FileTable::new(place),
            memory: Memory::default(),
            counters: Counters::default(),
        });
        let (view, id_next) = match token {
            Some(token) => recover(&shared, token)?,
            None => (View::empty(shared.clone()), 1),
        };
        let view = Arc::new(view.fenced());
        if let Some(token) = token {
            shared.counters.log_bytes.store(Position::of(token).end, Ordering::Relaxed);
        }
        let tip = Tip {
            view: view.clone(),
            token,
            token_committed: token,
            prepared: Vec::new(),
            frozen: Arc::default(),
            epoch: 0,
            id_next,
            stale: false,
            in_doubt: Vec::new(),
            logs: token.iter().map(|token| Position::of(*token).number).collect(),
            installed: Vec::new(),
        };
        let left_out = RwLock::default();
        let due = AtomicBool::new(is_due(&view, &BTreeSet::new()));
        Ok(DeltaStore {
            shared,
            committed: RwLock::new(view),
            tip: Mutex::new(tip),
            log: Mutex::new(None),
            due,
            left_out,
            buckets_max,
            buckets_memory,
        })
    }

    /// Bytes of records from which on the tail of a bucket goes to its file, where there are so many
    /// buckets: as many as memory suffices for, a page at least, an eighth of a bucket at most. The larger,
    /// the fewer pages the operands of a key come to lie on.
    pub(crate) fn tail_bytes_max(&self, buckets: usize) -> usize {
        let options = &self.shared.options;
        let page_bytes = options.page_bytes();
        let most = usize::try_from(options.bucket_bytes / 8).unwrap_or(usize::MAX);
        let buckets = lsmx_base::coding::len_u64(buckets).max(1);
        let each = (self.buckets_memory / buckets).saturating_sub(known_bytes(options));
        // Tails are half full on average.
        let each = usize::try_from(each.saturating_mul(2)).unwrap_or(usize::MAX);
        each.clamp(page_bytes, most.max(page_bytes))
    }

    /// What is committed.
    pub(crate) fn committed_view(&self) -> Arc<View> {
        self.committed.read().clone()
    }

    /// Where the log that is committed lies.
    pub(crate) fn log_path(&self) -> std::path::PathBuf {
        let token = self.tip.lock().token_committed.unwrap_or_default();
        self.shared.table.place.files.path(OperandFileKind::Log, Position::of(token).number)
    }

    /// What the next delivery or collection builds on; `None` if it must be read again first. Who has not
    /// the turn must not do that: meanwhile a delivery could write to files that this closes, and be
    /// overwritten by what was read.
    pub(crate) fn base_at_hand(&self) -> Result<Option<Arc<View>>> {
        if self.shared.table.place.read_only {
            return Err(Error::OpenedReadOnly);
        }
        let tip = self.tip.lock();
        Ok((!tip.stale).then(|| tip.view.clone()))
    }

    /// What the next delivery or collection builds on, read again if need be. For who has the turn.
    pub(crate) fn base(&self) -> Result<Arc<View>> {
        if self.shared.table.place.read_only {
            return Err(Error::OpenedReadOnly);
        }
        let token = {
            let tip = self.tip.lock();
            if !tip.stale {
                return Ok(tip.view.clone());
            }
            tip.token
        };
        self.log.lock().take();
        self.shared.table.close_writers();
        let (view, _) = match token {
            Some(token) => recover(&self.shared, token)?,
            None => (View::empty(self.shared.clone()), 1),
        };
        for file in view.buckets.iter().flat_map(|bucket| bucket.files()) {
            file.settle();
        }
        let view = Arc::new(view.fenced());
        let mut tip = self.tip.lock();
        tip.view = view.clone();
        tip.stale = false;
        Ok(view)
    }

    /// Has the view read again before anything is built on it.
    pub(crate) fn distrust(&self) {
        self.tip.lock().stale = true;
        self.log.lock().take();
    }

    /// Buckets under collection.
    pub(crate) fn frozen(&self) -> Arc<BTreeSet<u64>> {
        self.tip.lock().frozen.clone()
    }

    pub(crate) fn freeze(&self, ids: BTreeSet<u64>) -> u64 {
        let mut tip = self.tip.lock();
        tip.frozen = Arc::new(ids);
        tip.epoch
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.tip.lock().epoch
    }

    /// Ids for so many buckets, the first of them.
    pub(crate) fn take_ids(&self, count: usize) -> u64 {
        let mut tip = self.tip.lock();
        let first = tip.id_next;
        tip.id_next += lsmx_base::coding::len_u64(count);
        first
    }

    /// Puts frames into the log and on stable storage; into a new one that begins with `base` where the
    /// one there is has enough. `names`: files were made that the frames name.
    pub(crate) fn append(
        &self,
        base: &View,
        names: bool,
        build: impl FnOnce(&mut Frames) -> Result<()>,
    ) -> Result<Token> {
        let counters = &self.shared.counters;
        let place = &self.shared.table.place;
        let log = self.log.lock().take();
        let full = |log: &LogWriter| log.grown_bytes() > self.shared.options.log_bytes_max;
        let (mut log, fresh) = match log.filter(|log| !full(log)) {
            Some(log) => (log, false),
            None => (self.begin_log(base)?, true),
        };
        let before = if fresh { 0 } else { log.bytes() };
        let mut frames = log.frames();
        build(&mut frames)?;
        log.append(&mut frames)?;
        log.sync()?;
        if fresh || names {
            place.files.sync_names()?;
        }
        let token = log.token();
        counters.log_written_bytes.fetch_add(log.bytes() - before, Ordering::Relaxed);
        counters.log_bytes.store(log.bytes(), Ordering::Relaxed);
        *self.log.lock() = Some(log);
        Ok(token)
    }

    /// A new log, which relies on bucket files as far as `base` does: they are synced first.
    fn begin_log(&self, base: &View) -> Result<LogWriter> {
        for file in base.buckets.iter().flat_map(|bucket| bucket.files()) {
            file.sync()?;
        }
        let place = &self.shared.table.place;
        let mut log = LogWriter::create(&*place.files, place.env.random_u64())?;
        self.tip.lock().logs.insert(log.number);
        log.put_snapshot(base, crate::bucket::Bucket::entry)?;
        Ok(log)
    }

    /// Makes what was prepared what the next builds on.
    pub(crate) fn install(&self, token: Token, view: View, then: Box<dyn Then>) -> Arc<View> {
        let view = Arc::new(view.logged(token).fenced());
        for file in view.buckets.iter().flat_map(|bucket| bucket.files()) {
            file.doom(false);
        }
        self.due.store(is_due(&view, &self.left_out()), Ordering::Release);
        let mut tip = self.tip.lock();
        tip.view = view.clone();
        tip.token = Some(token);
        tip.installed.retain(|view| view.strong_count() > 0);
        tip.installed.push(Arc::downgrade(&view));
        tip.prepared.push(PreparedState { token, view: view.clone(), then });
        view
    }

    /// All that was prepared up to a token is real.
    pub(crate) fn commit(&self, token: Token) {
        let (done, in_doubt) = {
            let mut tip = self.tip.lock();
            let Some(place) = tip.prepared.iter().position(|state| state.token == token) else {
                return;
            };
            let later = tip.prepared.split_off(place + 1);
            let done = std::mem::replace(&mut tip.prepared, later);
            tip.token_committed = Some(token);
            (done, std::mem::take(&mut tip.in_doubt))
        };
        let Some(view) = done.last().map(|state| state.view.clone()) else { return };
        let before = std::mem::replace(&mut *self.committed.write(), view);
        if let Some(cache) = &self.shared.cache {
            for state in done {
                state.then.refresh(cache, &state.view);
            }
        }
        // What neither this nor a later view needs goes with its last reader.
        let (needed, gone) = {
            let mut tip = self.tip.lock();
            let views = tip.prepared.iter().map(|state| state.view.clone());
            let mut views: Vec<Arc<View>> = views.collect();
            views.push(tip.view.clone());
            views.push(self.committed.read().clone());
            let tokens = tip.prepared.iter().map(|state| state.token).chain([token]);
            let logs: BTreeSet<u64> = tokens.map(|token| Position::of(token).number).collect();
            let gone: Vec<u64> = tip.logs.difference(&logs).copied().collect();
            tip.logs = logs;
            (views, gone)
        };
        let needed: BTreeSet<u64> = needed
            .iter()
            .flat_map(|view| &view.buckets)
            .flat_map(|bucket| bucket.files())
            .map(|file| file.number)
            .collect();
        for file in self.shared.table.alive() {
            if !needed.contains(&file.number) {
                file.doom(true);
            }
        }
        drop((before, in_doubt));
        self.read_again_before_they_go(&gone);
        for number in gone {
            self.shared.table.place.files.discard(OperandFileKind::Log, number);
        }
    }

    /// Has views that snapshots and iterators still hold, and whose pages may be lost, read again from logs
    /// that are about to go.
    fn read_again_before_they_go(&self, logs: &[u64]) {
        if !self.shared.table.has_lost() {
            return;
        }
        let installed = self.tip.lock().installed.clone();
        for view in installed.iter().filter_map(Weak::upgrade) {
            let log = view.token.map(|token| Position::of(token).number);
            if log.is_some_and(|log| logs.contains(&log)) && view.has_lost() {
                // Whoever reads what could not be read gets an error.
                let _ = view.read_again();
            }
        }
    }

    /// What was prepared may be real or not: the next builds on what is committed.
    pub(crate) fn doubt(&self) {
        let committed = self.committed.read().clone();
        let mut tip = self.tip.lock();
        let states = std::mem::take(&mut tip.prepared);
        tip.in_doubt.extend(states.into_iter().map(|state| state.view));
        tip.view = committed;
        tip.token = tip.token_committed;
        tip.stale = true;
        tip.epoch += 1;
    }

    /// Numbers of the files that collections leave out.
    pub(crate) fn left_out(&self) -> Arc<BTreeSet<u64>> {
        self.left_out.read().clone()
    }

    /// Has collections leave out the bucket files of these numbers.
    pub(crate) fn set_left_out(&self, files: BTreeSet<u64>) {
        *self.left_out.write() = Arc::new(files);
        let view = self.tip.lock().view.clone();
        self.due.store(is_due(&view, &self.left_out()), Ordering::Release);
    }

    /// Reads what is committed of a bucket file from the device and checks it; returns the bytes read.
    pub(crate) fn check_bucket_file(&self, number: u64) -> Result<u64> {
        let view = self.committed_view();
        let bytes = lsmx_base::sync::AtomicU64::new(0);
        for place in 0..view.buckets.len() {
            if view.buckets[place].files().any(|file| file.number == number) {
                let mut reading = Reading::from_device(&bytes);
                view.read_bucket(place, |bucket| bucket.all_records(&mut reading))?;
            }
        }
        Ok(bytes.load(Ordering::Relaxed))
    }

    /// Whether a bucket is to be collected.
    pub(crate) fn is_due(&self) -> bool {
        let due = self.due.load(Ordering::Acquire) && !self.shared.table.place.read_only;
        // A state that must be read again is so by the next delivery.
        due && !self.tip.lock().stale
    }

    /// Files of what is committed.
    pub(crate) fn committed_files(&self) -> Vec<(OperandFileKind, u64)> {
        let view = self.committed.read().clone();
        let token = self.tip.lock().token_committed;
        let files: BTreeSet<u64> =
            view.buckets.iter().flat_map(|bucket| bucket.files()).map(|file| file.number).collect();
        let log = token.map(|token| (OperandFileKind::Log, Position::of(token).number));
        log.into_iter().chain(files.into_iter().map(|it| (OperandFileKind::Bucket, it))).collect()
    }

    /// Bytes of memory in use.
    pub(crate) fn memory(&self) -> u64 {
        let buckets = self.committed.read().buckets.len();
        let each = size_of::<crate::bucket::Bucket>() + 256;
        let cache = self.shared.cache.as_ref().map_or(0, Cache::bytes);
        self.shared.memory.bytes() + cache + lsmx_base::coding::len_u64(buckets * each)
    }
}

/// Bytes of memory that what is known of a full bucket takes, about: index, filter, fingerprints.
fn known_bytes(options: &DeltaOptions) -> u64 {
    options.bucket_bytes / 64
}

/// Buckets that memory suffices for, a page of tail of each included.
fn most_buckets(options: &DeltaOptions, memory_bytes: Option<u64>) -> usize {
    let each = lsmx_base::coding::len_u64(options.page_bytes()) + known_bytes(options);
    let by_memory = memory_bytes.map_or(u64::MAX, |bytes| bytes / each);
    usize::try_from(options.buckets_max.min(by_memory).max(4)).unwrap_or(usize::MAX)
}

/// Whether the bucket at a place is to be collected.
pub(crate) fn bucket_is_due(view: &View, place: usize) -> bool {
    let bucket = &view.buckets[place];
    let capacity = view.shared.options.bucket_bytes;
    let bytes = bucket.bytes();
    // What a collection could not make smaller waits until more has come.
    let grown = bucket.made_bytes < capacity || bytes - bucket.made_bytes >= capacity / 8;
    (bytes >= capacity && grown) || bucket.extents.len() > EXTENTS_MAX
}

/// Whether there are so many range anchors that some must be done with.
pub(crate) fn ranges_are_many(view: &View) -> bool {
    view.ranges.len() > RANGES_MAX
}

/// Whether a bucket at a place has one of these files.
pub(crate) fn is_left_out(view: &View, place: usize, left_out: &BTreeSet<u64>) -> bool {
    !left_out.is_empty() && view.buckets[place].files().any(|file| left_out.contains(&file.number))
}

/// Places of the buckets that a collection is to make anew.
pub(crate) fn victims<'a>(
    view: &'a View,
    left_out: &'a BTreeSet<u64>,
) -> impl Iterator<Item = usize> + 'a {
    let old = match ranges_are_many(view) {
        true => &view.ranges[..view.ranges.len() / 2],
        false => &[],
    };
    let newest = view.newest_overlapping(old);
    let has_void = move |place: usize| {
        let bucket = &view.buckets[place];
        !bucket.is_empty() && newest[place].is_some_and(|newest| bucket.made_through < newest)
    };
    let wanted = move |place: &usize| {
        !is_left_out(view, *place, left_out) && (bucket_is_due(view, *place) || has_void(*place))
    };
    (0..view.buckets.len()).filter(wanted)
}

/// Whether a collection would do something: it has victims, or range anchors that no bucket needs.
pub(crate) fn is_due(view: &View, left_out: &BTreeSet<u64>) -> bool {
    let needs_none = left_out.is_empty() && ranges_are_many(view);
    needs_none || victims(view, left_out).next().is_some()
}

/// What there is of a view, and what was done since opening.
pub(crate) fn metrics_of(view: &View) -> OperandMetrics {
    let Shared { counters, table, memory, .. } = &*view.shared;
    let read = |counter: &lsmx_base::sync::AtomicU64| counter.load(Ordering::Relaxed);
    let bucket_bytes = view.buckets.iter().map(|bucket| bucket.file_bytes());
    let buffered = view.buckets.iter().map(|bucket| bucket.tail.bytes().len()).sum();
    OperandMetrics {
        buckets: lsmx_base::coding::len_u64(view.buckets.len()),
        bucket_bytes: bucket_bytes.fold(0, u64::saturating_add),
        log_bytes: read(&counters.log_bytes),
        buffered_bytes: lsmx_base::coding::len_u64(buffered),
        memory_bytes: memory.bytes(),
        bucket_written_bytes: read(&table.written_bytes),
        bucket_read_bytes: read(&counters.bucket_read_bytes),
        log_written_bytes: read(&counters.log_written_bytes),
        operands: read(&counters.operands),
        anchors: read(&counters.anchors),
        rewrites: read(&counters.rewrites),
        splits: read(&counters.splits),
        merges: read(&counters.merges),
        to_tree: read(&counters.to_tree),
        cache_hits: read(&counters.cache_hits),
        cache_misses: read(&counters.cache_misses),
    }
}

/// Counts what a delivery brought.
pub(crate) fn count_delivery(shared: &Shared, operands: usize, anchors: usize) {
    count(&shared.counters.operands, operands);
    count(&shared.counters.anchors, anchors);
}

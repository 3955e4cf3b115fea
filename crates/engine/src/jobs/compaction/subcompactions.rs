//! A merge that several threads may run, each a part of its keys.
//!
//! The thread that has the job divides it (`parts.rs`), offers the parts to idle workers
//! (`workers.rs`), and takes parts itself as long as there are any. So it never waits for somebody to
//! begin, only for parts that others have begun. The first part that fails, is given up, or panics
//! ends all of them; what the others wrote goes to the janitor.

use std::collections::VecDeque;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use lsmx_compaction::{Job, KeyRange, OutputSplitter, TreeShape};

use crate::cursor::Cursor;
use crate::env::rate_limit::IoPriority;
use crate::env::{Env, WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::iter::merging_iter::MergingCursor;
use crate::iter::run_iter::RunCursor;
use crate::jobs::compaction::output::{Outputs, Written};
use crate::jobs::compaction::retention::Retention;
use crate::jobs::compaction::run::caught;
use crate::jobs::compaction::split_ranges::{Part, divide};
use crate::jobs::compaction::version_filter::VersionFilter;
use crate::jobs::value_log::output_values::ValueSource;
use crate::state::DbState;
use crate::table::{FillCache, FilterWidth};
use crate::trace::{JobBegin, JobSpan};
use crate::tree::Tree;
use crate::tree::version::TableFile;
use crate::write::backpressure;
use crate::write::throttle::Throttle;

/// What all parts of a merge have in common.
#[derive(Debug)]
pub(crate) struct Merge {
    pub(crate) tree: Arc<Tree>,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) job: Job,
    /// The shape that the job was picked from.
    pub(crate) shape: TreeShape,
    pub(crate) input_bytes: u64,
    /// Width of the outputs' filters.
    pub(crate) filter: FilterWidth,
    /// When the oldest tombstone among the inputs was written.
    pub(crate) oldest_tombstone_us: Option<u64>,
    /// When it is to be given up.
    pub(crate) deadline_us: Option<u64>,
    /// The tables of each input, in key order.
    pub(crate) inputs: Vec<Arc<[Arc<TableFile>]>>,
    /// As it is before the first key.
    pub(crate) retention: Retention,
    /// Range deletes that are kept.
    pub(crate) spans: Vec<RangeTombstone>,
    /// Where the values lie that inputs point to.
    pub(crate) values: ValueSource,
}

impl Merge {
    /// Divides it into parts, in key order; one if there is little to do, or nobody to help.
    ///
    /// # Errors
    /// When the index of an input cannot be read or is damaged.
    pub(crate) fn divide(&self, range: &KeyRange, parts_max: usize) -> Result<Vec<Part>> {
        // A policy that wants a run in one file says so by a file that never ends.
        let part_bytes_min = self.job.split.file_bytes;
        if parts_max < 2 || self.input_bytes / 2 < part_bytes_min {
            return Ok(vec![Part::default()]);
        }
        let mut weights = Vec::new();
        for table in self.inputs.iter().flat_map(|tables| tables.iter()) {
            weights.extend(table.table().weights(FillCache::Job)?);
        }
        Ok(divide(weights, range, parts_max, part_bytes_min))
    }

    /// Fails if the result is not wanted any more.
    fn check_wanted(&self, store: &DbState) -> Result<()> {
        if store.is_closing() {
            return Err(Error::Closed);
        }
        if self.deadline_us.is_some_and(|deadline_us| store.env.now_us() >= deadline_us) {
            return Err(Error::Deadline { cause: WaitCause::Compaction.as_str() });
        }
        self.tree.check_live()
    }
}

/// A merge and how far its parts are.
#[derive(Debug)]
pub(crate) struct Division {
    merge: Merge,
    parts: Vec<Part>,
    /// Bytes of finished tables of all parts.
    finished_bytes: AtomicU64,
    /// Set with [`Progress::error`]: those who run a part look here, and stop.
    failed: AtomicBool,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    /// Parts that nobody has begun.
    waiting: VecDeque<usize>,
    /// Parts under way.
    running: usize,
    /// What the parts wrote, once they are done.
    done: Vec<Option<Written>>,
    /// Parts that others ran than who has the job.
    helped: u64,
    /// How long these took.
    helper_ns: Spent,
    /// Why the first of those failed that did.
    error: Option<Error>,
}

/// What came out of a merge.
#[derive(Debug)]
pub(crate) struct Merged {
    /// What each part wrote, in key order.
    pub(crate) parts: Vec<Written>,
    /// Parts that others ran than who has the job.
    pub(crate) helped: u64,
    /// How long these took.
    pub(crate) helper_ns: Spent,
}

/// Time that a thread spent on something, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) elapsed_ns: u64,
    /// On a processor.
    pub(crate) cpu_ns: u64,
}

impl Spent {
    /// A moment of the calling thread, to measure from.
    pub(crate) fn start(env: &Env) -> Spent {
        Spent { elapsed_ns: env.monotonic_ns(), cpu_ns: env.thread_cpu_ns() }
    }

    /// What the calling thread spent since `self`, a moment of its own.
    pub(crate) fn until_now(self, env: &Env) -> Spent {
        let now = Spent::start(env);
        Spent {
            elapsed_ns: now.elapsed_ns.saturating_sub(self.elapsed_ns),
            cpu_ns: now.cpu_ns.saturating_sub(self.cpu_ns),
        }
    }

    pub(crate) fn add(&mut self, other: Spent) {
        self.elapsed_ns += other.elapsed_ns;
        self.cpu_ns += other.cpu_ns;
    }
}

/// Who runs a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The thread that has the job.
    Owner,
    /// Another one, which had nothing to do.
    Helper,
}

impl Division {
    /// A merge of which no part has begun.
    pub(crate) fn new(merge: Merge, parts: Vec<Part>) -> Division {
        let progress = Progress {
            waiting: (0..parts.len()).collect(),
            running: 0,
            done: parts.iter().map(|_| None).collect(),
            helped: 0,
            helper_ns: Spent::default(),
            error: None,
        };
        Division {
            merge,
            parts,
            finished_bytes: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            progress: Mutex::new(progress),
        }
    }

    /// How many parts there are.
    pub(crate) fn count(&self) -> usize {
        self.parts.len()
    }

    /// Whether a part waits for somebody to run it.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.progress.lock().waiting.is_empty()
    }

    /// Runs the first part that nobody has begun; false if there is none. A panic is caught: it is a
    /// failure of the part, and makes the database read-only unless it is one of user code.
    pub(crate) fn run_next(&self, store: &DbState, by: By) -> bool {
        let index = {
            let mut progress = self.progress.lock();
            let Some(index) = progress.waiting.pop_front() else { return false };
            progress.running += 1;
            progress.helped += u64::from(by == By::Helper);
            index
        };
        let run = || match by {
            By::Owner => self.run(store, index),
            By::Helper => self.run_in_span(store, index),
        };
        let start = Spent::start(&store.env);
        // What a panic leaves behind is this part's alone, and goes to the janitor.
        let ran = caught(store, run);
        // Dropped without the lock: files go to the janitor then.
        let mut unwanted = None;
        let mut progress = self.progress.lock();
        progress.running -= 1;
        if by == By::Helper {
            progress.helper_ns.add(start.until_now(&store.env));
        }
        match ran {
            Ok(written) if progress.error.is_none() => progress.done[index] = Some(written),
            Ok(written) => unwanted = Some(written),
            Err(error) => {
                progress.waiting.clear();
                progress.error.get_or_insert(error);
                self.failed.store(true, Ordering::Release);
            }
        }
        drop(progress);
        drop(unwanted);
        true
    }

    /// Waits for parts that others run, and gives what all of them wrote. Called once, by who has the
    /// job, after [`Division::run_next`] has found none.
    ///
    /// # Errors
    /// Why the first of the parts failed that did.
    pub(crate) fn finish(&self, store: &DbState) -> Result<Merged> {
        // Each of those looks every few entries whether it is still wanted, so there is no deadline.
        let ended = || self.progress.lock().running == 0;
        store.env.wait(WaitCause::Subcompactions, &store.progress, None, &mut || ended());
        let mut progress = self.progress.lock();
        let done = std::mem::take(&mut progress.done);
        let (helped, helper_ns) = (progress.helped, progress.helper_ns);
        let error = progress.error.clone();
        drop(progress);
        match error {
            Some(error) => Err(error),
            // Nothing waits, nothing runs, nothing failed: each part is there.
            None => Ok(Merged { parts: done.into_iter().flatten().collect(), helped, helper_ns }),
        }
    }

    /// As [`Division::run`], for those who collect `tracing` data: the job's own span is on another
    /// thread.
    fn run_in_span(&self, store: &DbState, index: usize) -> Result<Written> {
        let merge = &self.merge;
        let start_ns = store.env.monotonic_ns();
        let span = JobSpan::begin(JobBegin {
            kind: "part",
            keyspace: &merge.tree.name,
            inputs: merge.job.input_files().count(),
            reason: &merge.job.reason,
        });
        let ran = self.run(store, index);
        match &ran {
            Ok(written) => {
                let elapsed_us = store.env.monotonic_ns().saturating_sub(start_ns) / 1_000;
                let read_bytes = merge.input_bytes / u64::try_from(self.count()).unwrap_or(1);
                span.done(read_bytes, written.bytes(), elapsed_us);
            }
            Err(error) => span.failed(error),
        }
        ran
    }

    /// Reads the inputs as one, as far as they lie in a part, and writes what must be kept.
    fn run(&self, store: &DbState, index: usize) -> Result<Written> {
        let (merge, part) = (&self.merge, &self.parts[index]);
        // Here others may come to take the parts that are left.
        store.env.yield_point(YieldKind::JobStep);
        self.check_wanted(store)?;
        let (place, tombstone_us) =
            ((merge.job.target.level.0, merge.filter), merge.oldest_tombstone_us);
        let (space, tree) = (&store.tables, &*merge.tree);
        let mut outputs =
            Outputs::in_lane(IoPriority::Compaction, space, tree, place, tombstone_us);
        outputs.take_spans(part.spans(&merge.spans));
        outputs.cut_by(OutputSplitter::new(&merge.job.split, &merge.shape));
        let retention = merge.retention.clone();
        let sources = merge.inputs.iter().map(|tables| {
            // What no snapshot needs is not even read.
            RunCursor::new(part.tables(tables), FillCache::Job, retention.deleted.clone())
        });
        let mut merged = MergingCursor::new(sources.collect());
        outputs.read_from(merge.values.clone());
        let mut keeper =
            VersionFilter::new(retention, &merge.tree.merging).reading(merge.values.clone());
        let mut reported = 0;
        let mut write = |key: InternalKey<'_>, value: &[u8], first_of_key: bool| {
            if first_of_key && outputs.begin_key(key.user_key)? {
                let finished = outputs.finished_bytes();
                self.finished(store, finished - reported);
                reported = finished;
            }
            outputs.add(key, value)
        };
        let mut entries = 0u64;
        match &part.from {
            None => merged.first()?,
            Some(from) => {
                merged.seek(from, SeqNo::MAX)?;
                if merged.valid() && failpoint::is_on(Failpoint::KeyLostAtSubcompaction) {
                    merged.next()?;
                }
            }
        }
        while merged.valid() && !part.ends_before(merged.key().user_key) {
            keeper.take(&merged, &mut write)?;
            entries += 1;
            if entries.is_multiple_of(64) {
                store.env.yield_point(YieldKind::CompactionBlock);
                self.check_wanted(store)?;
            }
            merged.next()?;
        }
        keeper.end(&mut write)?;
        outputs.finish()?;
        self.finished(store, outputs.finished_bytes() - reported);
        Ok(outputs.hand_over(entries))
    }

    /// Notes that tables of so many bytes were finished.
    fn finished(&self, store: &DbState, bytes: u64) {
        let merge = &self.merge;
        {
            let mut jobs = merge.tree.jobs.lock();
            let finished = self.finished_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            jobs.busy.progress(&merge.job, merge.input_bytes.saturating_sub(finished));
        }
        backpressure::refresh_on_progress(store, &merge.throttle, &merge.tree);
    }

    /// Fails if another part has, or the result is not wanted any more.
    fn check_wanted(&self, store: &DbState) -> Result<()> {
        if self.failed.load(Ordering::Acquire)
            && let Some(error) = self.progress.lock().error.clone()
        {
            return Err(error);
        }
        self.merge.check_wanted(store)
    }
}

//! Subcompactions: parts of a merge, each for one key subrange, that run on several threads.
//!
//! The thread that owns the job splits the merge (`split_ranges.rs`), and offers the subcompactions to idle workers
//! (`worker_pool.rs`). As long as subcompactions are pending, the thread runs them itself. It never waits until a
//! worker starts a subcompaction, but only for subcompactions that workers have started. If a subcompaction fails, is
//! cancelled or panics, all subcompactions of the merge end, and the files that they have written are deleted.

use std::collections::VecDeque;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use lsmx_compaction::{Job, KeyRange, OutputSplitter, TreeShape};

use crate::compaction_filter::CompactionFilter;
use crate::cursor::Cursor;
use crate::env::rate_limit::IoPriority;
use crate::env::thread_time::ThreadTime;
use crate::env::{WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::iter::merging_iter::MergingCursor;
use crate::iter::run_iter::RunCursor;
use crate::job_tracing::{JobSpan, JobSpanFields};
use crate::jobs::compaction::entry_filter::{EntryFilter, NewerEntries};
use crate::jobs::compaction::output::{JobOutputs, SubcompactionOutput, TombstoneTime};
use crate::jobs::compaction::retention::Retention;
use crate::jobs::compaction::retry::catch_panics;
use crate::jobs::compaction::split_ranges::{KeySubrange, split_key_range};
use crate::jobs::compaction::version_filter::VersionFilter;
use crate::jobs::value_log::output_values::ValueSource;
use crate::state::DbState;
use crate::table::{FilterWidth, ReadPurpose, estimate_bytes_by_key};
use crate::tree::Tree;
use crate::tree::table_file::TableFile;
use crate::write::backpressure;
use crate::write::throttle::Throttle;

/// Inputs and settings that all subcompactions of a merge share.
#[derive(Debug)]
pub(crate) struct MergeInputs {
    pub(crate) tree: Arc<Tree>,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) job: Job,
    /// The shape for which the job was picked.
    pub(crate) shape: TreeShape,
    pub(crate) input_bytes: u64,
    /// Filter width of the output tables.
    pub(crate) filter: FilterWidth,
    pub(crate) tombstone_time: TombstoneTime,
    /// Time up to which entries have expired for all readers, in microseconds.
    pub(crate) expiry_limit_us: u64,
    /// Deadline of the job in microseconds. `None` if there is none.
    pub(crate) deadline_us: Option<u64>,
    /// Tables of each input run, in key order.
    pub(crate) runs: Vec<Arc<[Arc<TableFile>]>>,
    /// Retention state before the first key.
    pub(crate) retention: Retention,
    /// Range tombstones that the merge writes.
    pub(crate) range_tombstones: Vec<RangeTombstone>,
    /// Blob files to which the inputs point.
    pub(crate) values: ValueSource,
    /// Compaction filter of the keyspace.
    pub(crate) compaction_filter: Option<Arc<dyn CompactionFilter>>,
    /// True if no run outside the job contains older data in the key range of the job.
    pub(crate) is_last_run: bool,
}

impl MergeInputs {
    /// Splits the merge into subranges in key order. Returns one subrange if the merge is small, if it is a blob
    /// garbage collection, or if `count_max` is 1.
    pub(crate) fn split(&self, range: &KeyRange, count_max: usize) -> Result<Vec<KeySubrange>> {
        // If a policy writes each run to one file, the file size is unlimited, and the merge is not split.
        let bytes_min = self.job.split.file_bytes;
        // A blob garbage collection replaces each table by one table. Each boundary between subranges would add a table.
        let is_blob_gc = !self.values.victims.is_empty();
        if count_max < 2 || is_blob_gc || self.input_bytes / 2 < bytes_min {
            return Ok(vec![KeySubrange::default()]);
        }
        let mut weights = Vec::new();
        for table in self.runs.iter().flat_map(|tables| tables.iter()) {
            weights.extend(estimate_bytes_by_key(table.table(), ReadPurpose::Job)?);
        }
        Ok(split_key_range(weights, range, count_max, bytes_min))
    }

    /// Fails if the result of the merge is no longer needed.
    fn check_cancelled(&self, state: &DbState) -> Result<()> {
        if state.is_closing() {
            return Err(Error::Closed);
        }
        if self.deadline_us.is_some_and(|deadline_us| state.env.now_us() >= deadline_us) {
            return Err(Error::Deadline { cause: WaitCause::Compaction.as_str() });
        }
        self.tree.check_live()
    }
}

/// A merge, and the progress of its subcompactions.
#[derive(Debug)]
pub(crate) struct Subcompactions {
    inputs: MergeInputs,
    subranges: Vec<KeySubrange>,
    /// Total size in bytes of the tables that all subcompactions have finished.
    finished_bytes: AtomicU64,
    /// Set together with [`SubcompactionProgress::error`]. Running subcompactions check this flag and stop.
    failed: AtomicBool,
    progress: Mutex<SubcompactionProgress>,
}

#[derive(Debug)]
struct SubcompactionProgress {
    /// Subcompactions that were not started yet, as indices into `subranges`.
    pending: VecDeque<usize>,
    /// Number of running subcompactions.
    running: usize,
    /// Outputs of finished subcompactions, in the order of `subranges`.
    outputs: Vec<Option<SubcompactionOutput>>,
    /// Number of subcompactions that helpers have started.
    helper_count: u64,
    /// Time that helpers have spent on subcompactions.
    helper_time: ThreadTime,
    /// The first error of a subcompaction.
    error: Option<Error>,
}

/// Result of a merge.
#[derive(Debug)]
pub(crate) struct MergeResult {
    /// Outputs of all subcompactions, in key order.
    pub(crate) outputs: Vec<SubcompactionOutput>,
    /// Number of subcompactions that helpers have run.
    pub(crate) helper_count: u64,
    /// Time that helpers have spent on subcompactions.
    pub(crate) helper_time: ThreadTime,
}

/// Role of a thread that runs a subcompaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubcompactionThread {
    /// The thread that owns the job.
    JobOwner,
    /// A worker that would otherwise be idle.
    Helper,
}

impl Subcompactions {
    /// Creates a merge whose subcompactions are all pending.
    pub(crate) fn new(inputs: MergeInputs, subranges: Vec<KeySubrange>) -> Subcompactions {
        let progress = SubcompactionProgress {
            pending: (0..subranges.len()).collect(),
            running: 0,
            outputs: subranges.iter().map(|_| None).collect(),
            helper_count: 0,
            helper_time: ThreadTime::default(),
            error: None,
        };
        Subcompactions {
            inputs,
            subranges,
            finished_bytes: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            progress: Mutex::new(progress),
        }
    }

    /// Returns the number of subcompactions.
    pub(crate) fn count(&self) -> usize {
        self.subranges.len()
    }

    /// Returns whether there is a pending subcompaction.
    pub(crate) fn has_pending(&self) -> bool {
        !self.progress.lock().pending.is_empty()
    }

    /// Runs the first pending subcompaction. Returns false if there is none.
    ///
    /// If the subcompaction panics, it fails. If the panic does not come from user code, the database also becomes
    /// read-only.
    pub(crate) fn run_next(&self, state: &DbState, thread: SubcompactionThread) -> bool {
        let index = {
            let mut progress = self.progress.lock();
            let Some(index) = progress.pending.pop_front() else { return false };
            progress.running += 1;
            progress.helper_count += u64::from(thread == SubcompactionThread::Helper);
            index
        };
        let run = || match thread {
            SubcompactionThread::JobOwner => self.run(state, index),
            SubcompactionThread::Helper => self.run_in_span(state, index),
        };
        let start = ThreadTime::now(&state.env);
        // Unwind safety: only this subcompaction uses the state that a panic could leave inconsistent, and this state
        // is discarded.
        let result = catch_panics(state, run);
        // Dropped after the lock is released, because dropping it deletes files.
        let mut discarded = None;
        let mut progress = self.progress.lock();
        progress.running -= 1;
        if thread == SubcompactionThread::Helper {
            progress.helper_time.add(start.elapsed(&state.env));
        }
        match result {
            Ok(output) if progress.error.is_none() => progress.outputs[index] = Some(output),
            Ok(output) => discarded = Some(output),
            Err(error) => {
                progress.pending.clear();
                progress.error.get_or_insert(error);
                self.failed.store(true, Ordering::Release);
            }
        }
        drop(progress);
        drop(discarded);
        true
    }

    /// Waits for the subcompactions that helpers are running. Returns all outputs.
    ///
    /// The owner of the job must call this once, after [`Subcompactions::run_next`] has returned false.
    pub(crate) fn wait_for_all(&self, state: &DbState) -> Result<MergeResult> {
        // Running subcompactions check every few entries whether they were cancelled. The wait therefore needs no
        // deadline.
        let ended = || self.progress.lock().running == 0;
        state.env.wait(WaitCause::Subcompactions, &state.progress, None, &mut || ended());
        let mut progress = self.progress.lock();
        let outputs = std::mem::take(&mut progress.outputs);
        let (helper_count, helper_time) = (progress.helper_count, progress.helper_time);
        let error = progress.error.clone();
        drop(progress);
        match error {
            Some(error) => Err(error),
            // No subcompaction is pending or running, and none has failed. All outputs are therefore present.
            None => Ok(MergeResult {
                outputs: outputs.into_iter().flatten().collect(),
                helper_count,
                helper_time,
            }),
        }
    }

    /// Runs a subcompaction in a separate `tracing` span, because the span of the job belongs to another thread.
    fn run_in_span(&self, state: &DbState, index: usize) -> Result<SubcompactionOutput> {
        let inputs = &self.inputs;
        let start_ns = state.env.monotonic_ns();
        let span = JobSpan::start(JobSpanFields {
            kind: "part",
            keyspace: &inputs.tree.name(),
            inputs: inputs.job.input_files().count(),
            reason: &inputs.job.reason,
        });
        let result = self.run(state, index);
        match &result {
            Ok(output) => {
                let elapsed_us = state.env.monotonic_ns().saturating_sub(start_ns) / 1_000;
                let read_bytes = inputs.input_bytes / u64::try_from(self.count()).unwrap_or(1);
                span.record_success(read_bytes, output.bytes(), elapsed_us);
            }
            Err(error) => span.record_error(error),
        }
        result
    }

    /// Merges the inputs inside of one subrange, and writes the entries that must be kept.
    fn run(&self, state: &DbState, index: usize) -> Result<SubcompactionOutput> {
        let (inputs, subrange) = (&self.inputs, &self.subranges[index]);
        // Helpers can take further subcompactions at this point.
        state.env.yield_point(YieldKind::JobStep);
        self.check_cancelled(state)?;
        let (target, tombstone_time) =
            ((inputs.job.target.level.0, inputs.filter), inputs.tombstone_time);
        let (table_factory, tree) = (&state.tables, &*inputs.tree);
        let mut outputs =
            JobOutputs::new(IoPriority::Compaction, table_factory, tree, target, tombstone_time);
        outputs.set_range_tombstones(subrange.clip_range_tombstones(&inputs.range_tombstones));
        outputs.set_splitter(OutputSplitter::new(&inputs.job.split, &inputs.shape));
        let retention = inputs.retention.clone();
        let sources = inputs.runs.iter().map(|tables| {
            // The cursor skips blocks and tables that range tombstones cover, without reading them.
            RunCursor::new(
                subrange.overlapping_tables(tables),
                ReadPurpose::Job,
                retention.deleted.clone(),
            )
        });
        let mut cursor = MergingCursor::new(sources.collect());
        outputs.set_value_source(inputs.values.clone());
        let entry_filter = inputs.compaction_filter.as_deref().map(|filter| {
            let newer = NewerEntries::new(tree, inputs.retention.inputs());
            EntryFilter::new(filter, inputs.job.target.level.0, inputs.is_last_run, newer)
        });
        let mut filter = VersionFilter::new(retention, &inputs.tree.merge_resolver)
            .with_value_source(inputs.values.clone())
            .with_expiry_limit(inputs.expiry_limit_us)
            .with_entry_filter(entry_filter);
        let mut reported = 0;
        let mut write = |key: InternalKey<'_>, value: &[u8], is_first: bool| {
            if is_first && outputs.begin_key(key.user_key)? {
                let finished = outputs.finished_bytes();
                self.record_finished(state, finished - reported);
                reported = finished;
            }
            outputs.add(key, value)
        };
        let mut entries = 0u64;
        match &subrange.from {
            None => cursor.first()?,
            Some(from) => {
                cursor.seek(from, SeqNo::MAX)?;
                if cursor.valid() && failpoint::is_on(Failpoint::KeyLostAtSubcompaction) {
                    cursor.next()?;
                }
            }
        }
        while cursor.valid() && !subrange.ends_before(cursor.key().user_key) {
            filter.add_entry(&cursor, &mut write)?;
            entries += 1;
            if entries.is_multiple_of(64) {
                state.env.yield_point(YieldKind::CompactionBlock);
                self.check_cancelled(state)?;
            }
            cursor.next()?;
        }
        filter.finish(&mut write)?;
        outputs.expired.add(filter.expired());
        outputs.finish()?;
        self.record_finished(state, outputs.finished_bytes() - reported);
        let mut output = outputs.into_subcompaction_output(entries);
        output.filter_outcome = filter.into_filter_outcome();
        Ok(output)
    }

    /// Adds the size of newly finished tables to the progress of the job.
    fn record_finished(&self, state: &DbState, bytes: u64) {
        let inputs = &self.inputs;
        {
            let mut jobs = inputs.tree.jobs.lock();
            let finished = self.finished_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            jobs.running.set_bytes_left(&inputs.job, inputs.input_bytes.saturating_sub(finished));
        }
        backpressure::refresh_write_limits_on_job_progress(state, &inputs.throttle, &inputs.tree);
    }

    /// Fails if another subcompaction has failed, or if the result of the merge is no longer needed.
    fn check_cancelled(&self, state: &DbState) -> Result<()> {
        if self.failed.load(Ordering::Acquire)
            && let Some(error) = self.progress.lock().error.clone()
        {
            return Err(error);
        }
        self.inputs.check_cancelled(state)
    }
}

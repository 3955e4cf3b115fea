//! Runs a compaction job: merge, trivial move, drop.

use std::collections::HashSet;

use lsmx_compaction::{FileShape, Job, JobKind, OutputCutter, TreeShape};

use crate::cursor::Cursor;
use crate::env::{WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::event::{CompactionEnd, Event};
use crate::job::install::{install, sync_names};
use crate::job::output::Outputs;
use crate::job::retain::Retention;
use crate::keyspace::counters::add;
use crate::keyspace::{Tree, TreeJobs};
use crate::read::merging::MergingCursor;
use crate::read::run::RunCursor;
use crate::store::Store;
use crate::sync::Arc;
use crate::table::FillCache;
use crate::version::Version;
use crate::write::throttle::Throttle;

/// First pause after a failed compaction; doubles up to [`RETRY_US_MAX`].
const RETRY_US_FIRST: u64 = 100_000;
/// Longest pause between two tries.
const RETRY_US_MAX: u64 = 60_000_000;

/// A job that its policy picked, held in the busy set, and the shape it was picked from.
#[derive(Debug)]
pub(crate) struct Picked {
    job: Job,
    shape: TreeShape,
    /// When it is to be given up; none for the policy's own.
    deadline_us: Option<u64>,
}

/// Asks the policy for the next job and holds its files.
pub(crate) fn pick(store: &Store, tree: &Tree) -> Option<Picked> {
    if store.health.check().is_err() || store.is_closing() {
        return None;
    }
    let now_us = store.env.now_us();
    let mut jobs = tree.jobs.lock();
    if now_us < jobs.retry_at_us || jobs.manual_waiting > 0 || tree.is_dropped() {
        return None;
    }
    let shape = tree.shape(now_us, store.sequence.oldest_snapshot());
    let job = tree.settings().policy.pick(&shape, &jobs.busy)?;
    debug_assert!(
        jobs.busy.admits(&job, &shape).unwrap_or(false),
        "{} picked a job that collides with a running one: {job:?}",
        tree.settings().policy.name()
    );
    Some(hold(&mut jobs, job, shape, None))
}

/// Holds the files of a job that may run now.
pub(crate) fn hold(
    jobs: &mut TreeJobs,
    job: Job,
    shape: TreeShape,
    deadline_us: Option<u64>,
) -> Picked {
    let write_bytes = match job.kind {
        JobKind::Merge | JobKind::Rewrite => input_bytes(&shape, &job),
        JobKind::Move | JobKind::Drop => 0,
    };
    jobs.busy.start(job.clone(), write_bytes);
    Picked { job, shape, deadline_us }
}

/// Whether a job ended because it was not wanted any more.
fn was_given_up(error: &Error) -> bool {
    matches!(error, Error::Closed | Error::KeyspaceDropped { .. } | Error::Deadline { .. })
}

/// Runs a picked job to its end and lets its files go.
///
/// # Errors
/// When a block cannot be read or a table not be written: the tree is as before, and compactions of
/// it pause for a while. When the manifest cannot be written: the database is read-only.
pub(crate) fn run(store: &Store, throttle: &Throttle, tree: &Tree, picked: Picked) -> Result<()> {
    let job = picked.job.clone();
    let ran = execute(store, throttle, tree, picked);
    let mut jobs = tree.jobs.lock();
    match &ran {
        Ok(()) => {
            jobs.busy.finish(&job);
            jobs.failures = 0;
            if jobs.last_error.take().is_some() {
                store.set_failing(tree.id, false);
            }
        }
        Err(error) if was_given_up(error) || matches!(error, Error::ReadOnly { .. }) => {
            jobs.busy.finish(&job);
        }
        Err(error) => {
            if matches!(error, Error::Corrupt { .. }) {
                jobs.damage = Some(error.clone());
            } else {
                jobs.busy.finish(&job);
            }
            let pause = RETRY_US_FIRST.saturating_mul(1 << jobs.failures.min(20));
            jobs.failures = jobs.failures.saturating_add(1);
            jobs.retry_at_us = store.env.now_us().saturating_add(pause.min(RETRY_US_MAX));
            jobs.last_error = Some(error.clone());
            store.set_failing(tree.id, true);
            add(&tree.counters.compaction_failures, 1);
        }
    }
    drop(jobs);
    if let Err(error) = &ran
        && !was_given_up(error)
    {
        store.report("compaction", Some(tree), error);
    }
    store.progress.notify();
    ran
}

fn input_files<'a>(shape: &'a TreeShape, job: &'a Job) -> impl Iterator<Item = &'a Arc<FileShape>> {
    job.inputs.iter().flat_map(|input| {
        let wanted: HashSet<_> = input.files.iter().copied().collect();
        let run = shape.run(input.level, input.run);
        let files = run.into_iter().flat_map(|run| &run.files);
        files.filter(move |file| wanted.contains(&file.id))
    })
}

fn input_bytes(shape: &TreeShape, job: &Job) -> u64 {
    input_files(shape, job).map(|file| file.bytes).sum()
}

fn execute(store: &Store, throttle: &Throttle, tree: &Tree, picked: Picked) -> Result<()> {
    let Picked { job, shape, deadline_us } = picked;
    let start_ns = store.env.monotonic_ns();
    let level = job.target.level.0;
    let oldest_tombstone = input_files(&shape, &job).filter_map(|file| file.oldest_tombstone_us);
    let mut outputs = Outputs::new(&store.tables, tree, level, oldest_tombstone.min());
    let mut entries_read = 0;
    let merges = matches!(job.kind, JobKind::Merge | JobKind::Rewrite);
    if merges {
        let version = Arc::clone(&tree.pin().version);
        entries_read = merge(store, tree, &version, &shape, &job, deadline_us, &mut outputs)?;
        store.env.yield_point(YieldKind::JobStep);
        if !outputs.tables().is_empty() {
            sync_names(store.vfs.as_ref(), &store.dir)?;
        }
    }
    store.env.yield_point(YieldKind::JobStep);
    let shapes: Vec<FileShape> =
        outputs.tables().iter().map(|table| (**table.shape()).clone()).collect();
    let ids = shapes.iter().map(|shape| shape.id).collect();
    let written_bytes = outputs.finished_bytes();
    install(store, tree, &mut outputs, None, Vec::new(), |shape| {
        shape.apply(&job, shapes).map(|applied| applied.shape)
    })?;
    let read_bytes = if merges { input_bytes(&shape, &job) } else { 0 };
    let elapsed_us = store.env.monotonic_ns().saturating_sub(start_ns) / 1_000;
    let counters = &tree.counters;
    match job.kind {
        JobKind::Merge | JobKind::Rewrite => {
            add(&counters.jobs, 1);
            add(&counters.compaction_read_bytes, read_bytes);
            add(&counters.compaction_written_bytes, written_bytes);
            add(&counters.compaction_us, elapsed_us);
            throttle.drained(written_bytes, elapsed_us);
        }
        JobKind::Move => add(&counters.trivial_moves, 1),
        JobKind::Drop => add(&counters.drops, 1),
    }
    store.tell(&Event::Compaction(CompactionEnd {
        keyspace: tree.name.clone(),
        job,
        outputs: ids,
        read_bytes,
        written_bytes,
        entries_read,
        entries_written: outputs.entries,
        elapsed_us,
    }));
    Ok(())
}

/// Fails if the result of a job is not wanted any more.
fn check_wanted(store: &Store, tree: &Tree, deadline_us: Option<u64>) -> Result<()> {
    if store.is_closing() {
        return Err(Error::Closed);
    }
    if deadline_us.is_some_and(|deadline_us| store.env.now_us() >= deadline_us) {
        return Err(Error::Deadline { cause: WaitCause::Compaction.as_str() });
    }
    tree.check_live()
}

/// Reads the inputs as one and writes what must be kept; returns the entries read.
fn merge(
    store: &Store,
    tree: &Tree,
    version: &Version,
    shape: &TreeShape,
    job: &Job,
    deadline_us: Option<u64>,
    outputs: &mut Outputs<'_>,
) -> Result<u64> {
    let mut sources: Vec<Box<dyn Cursor>> = Vec::with_capacity(job.inputs.len());
    for input in &job.inputs {
        let tables = input.files.iter().map(|&file| {
            let table = version.table(file).cloned();
            table.ok_or(lsmx_compaction::Error::UnknownFile { file })
        });
        let tables = tables.collect::<Result<Arc<[_]>, _>>()?;
        sources.push(Box::new(RunCursor::new(tables, FillCache::Job)));
    }
    let mut merged = MergingCursor::new(sources);
    let mut retention = Retention::for_job(store.sequence.snapshots(), shape, job);
    let mut cutter = OutputCutter::new(&job.cut, shape);
    let input_bytes = input_bytes(shape, job);
    let mut entries = 0u64;
    // Whether the user key at hand has an entry in the outputs yet.
    let mut begun = false;
    merged.first()?;
    while merged.valid() {
        let key = merged.key();
        let verdict = retention.keep(key);
        begun &= !verdict.first_of_key;
        if verdict.kept {
            if !begun && cutter.cut_before(key.user_key, outputs.current_bytes()) {
                outputs.end_table()?;
                let left = input_bytes.saturating_sub(outputs.finished_bytes());
                tree.jobs.lock().busy.progress(job, left);
            }
            begun = true;
            outputs.add(key, merged.value())?;
        }
        entries += 1;
        if entries.is_multiple_of(64) {
            store.env.yield_point(YieldKind::CompactionBlock);
            check_wanted(store, tree, deadline_us)?;
        }
        merged.next()?;
    }
    outputs.end_table()?;
    Ok(entries)
}

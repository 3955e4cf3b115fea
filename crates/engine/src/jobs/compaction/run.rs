//! Runs a compaction job: merge, trivial move, drop.

use std::collections::{BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;
use lsmx_compaction::{CompactionPolicy, FileId, Job, JobKind, Reason, TableMeta, TreeShape};

use crate::callback::{self, Context};
use crate::env::YieldKind;
use crate::env::rate_limit::IoPriority;
use crate::error::{Error, JobRule, Result, UserCode};
use crate::event::{CompactionBegin, CompactionEnd, Decision, Event};
use crate::jobs::compaction::output::Outputs;
use crate::jobs::compaction::retention::Retention;
use crate::jobs::compaction::subcompactions::{Division, Merge, Spent};
use crate::jobs::compaction::{delete_only, quarantine_bypass};
use crate::jobs::quarantine;
use crate::jobs::value_log::garbage::{self, Collection};
use crate::jobs::value_log::output_values::ValueSource;
use crate::jobs::version_installer::{install, sync_names};
use crate::jobs::worker_pool::Workers;
use crate::options::filter_bits::Coming;
use crate::state::DbState;
use crate::table::FillCache;
use crate::trace::{JobBegin, JobSpan};
use crate::tree::counters::add;
use crate::tree::version::Version;
use crate::tree::{Blocked, Tree, TreeJobs};
use crate::write::throttle::Throttle;

/// First pause after a failed compaction; doubles up to [`RETRY_US_MAX`].
const RETRY_US_FIRST: u64 = 100_000;
/// Longest pause between two tries.
const RETRY_US_MAX: u64 = 60_000_000;

/// A job that its policy picked, held in the busy set, and the shape it was picked from.
#[derive(Clone, Debug)]
pub(crate) struct Picked {
    job: Job,
    shape: TreeShape,
    /// When it is to be given up; none for the policy's own.
    deadline_us: Option<u64>,
    /// The blob files that it is to empty.
    victims: Arc<BTreeSet<FileId>>,
}

/// Finds the next job and holds its files: to let files go that range deletes cover, or what the
/// policy says.
pub(crate) fn pick(store: &DbState, tree: &Tree) -> Option<Picked> {
    if store.health.check().is_err() || store.is_closing() {
        return None;
    }
    let now_us = store.env.now_us();
    let blocked = |jobs: &TreeJobs| now_us < jobs.retry_at_us || jobs.manual_waiting > 0;
    if tree.is_dropped() || blocked(&tree.jobs.lock()) {
        return None;
    }
    let version = Arc::clone(&tree.pin().version);
    let dropped = version.has_spans().then(|| covered_files(store, tree, &version)).flatten();
    let mut jobs = tree.jobs.lock();
    if blocked(&jobs) {
        return None;
    }
    let shape = tree.shape(store.env.database_us(), store.sequence.snapshot_bounds());
    // What was found in a version that is no longer the current one is there still, or refused. A drop reads
    // no file, so it may take quarantined ones.
    let dropped = dropped.and_then(|job| jobs.busy.without_blocked_files().admit(job, &shape));
    // Blob files go before the policy where space is short, else after it.
    let collection = |jobs: &TreeJobs, urgent| collection(tree, &version, &shape, jobs, urgent);
    let mut victims = Arc::default();
    let mut emptying = |found: Collection| {
        victims = Arc::new(found.victims);
        found.job
    };
    let first = dropped.or_else(|| collection(&jobs, true).map(&mut emptying));
    let job = match first {
        Some(job) => job,
        None => match policy_job(store, tree, &mut jobs, &shape) {
            Ok(Some(job)) => job,
            Ok(None) => match collection(&jobs, false).map(&mut emptying) {
                Some(job) => job,
                None => {
                    forget_failure(store, tree, &mut jobs, &shape);
                    return None;
                }
            },
            Err(error) => {
                drop(jobs);
                if error.is_user_panic() {
                    note_failure(store, tree, &error);
                }
                store.report("compaction", Some(tree), &error);
                tell_next_write(store, "compaction", tree, &error);
                return None;
            }
        },
    };
    let policy = store.explains.then(|| Arc::clone(&tree.settings().policy));
    let explained = policy.and_then(|policy| {
        // Without an explanation the job runs all the same.
        let explain = || policy.explain(&shape, &jobs.busy);
        let explanation =
            Error::catch_user(|| UserCode::CompactionPolicy(policy.name().to_owned()), explain)
                .ok()?;
        let (keyspace, policy) = (tree.name.clone(), policy.name().to_owned());
        Some(Decision { keyspace, policy, explanation })
    });
    let picked = Picked { victims, ..hold(&mut jobs, job, shape, None) };
    drop(jobs);
    // That range deletes cover a file is nothing that a policy decides.
    if let Some(decision) = explained.filter(|d| d.explanation.picked.as_ref() == Some(&picked.job))
    {
        store.tell(&Event::Decision(Arc::new(decision)));
    }
    Some(picked)
}

/// A job that empties blob files, found in a version that may no longer be the current one.
fn collection(
    tree: &Tree,
    version: &Version,
    shape: &TreeShape,
    jobs: &TreeJobs,
    urgent: bool,
) -> Option<Collection> {
    if version.blobs().is_empty() {
        return None;
    }
    let settings = tree.settings();
    // In a queue that drops files whole, values leave with them, and a table that was written again would
    // count as young.
    if settings.policy.can_drop_data() {
        return None;
    }
    let separation = settings.options.value_separation.unwrap_or_default();
    if urgent && !garbage::is_urgent(version.blobs(), &separation) {
        return None;
    }
    // Pointers take no more room than before; values that come back into the tree do.
    let table_bytes = match settings.options.value_separation {
        Some(_) => u64::MAX,
        None => settings.options.table_bytes,
    };
    garbage::look(
        version,
        shape,
        (&jobs.busy, &jobs.quarantine.blobs()),
        (&separation, table_bytes),
    )
}

/// What the policy says. One of the user's own may be wrong: then it is asked again after a pause.
fn policy_job(
    store: &DbState,
    tree: &Tree,
    jobs: &mut TreeJobs,
    shape: &TreeShape,
) -> Result<Option<Job>> {
    let policy = Arc::clone(&tree.settings().policy);
    jobs.blocked = None;
    let _inside = callback::enter(Context::CompactionPolicy);
    let pick = || {
        let job = policy.pick(shape, &jobs.busy);
        let waits = job.is_none() && policy.is_waiting_for_snapshots(shape);
        (job, waits)
    };
    let code = || UserCode::CompactionPolicy(policy.name().to_owned());
    let (job, waits) = Error::catch_user(code, pick)?;
    if waits {
        tree.set_held(true, store.sequence.released());
    }
    let Some(job) = job else {
        let around = || {
            let job = job_around_quarantine(tree, jobs, shape);
            if job.is_none() && jobs.blocked.is_none() {
                jobs.blocked = stalled(tree, &*policy, jobs, shape);
            }
            job
        };
        return Error::catch_user(code, around);
    };
    let own = tree.settings().options.custom_policy().is_some();
    let rule = match jobs.busy.can_run(&job, shape) {
        Ok(true) if job.kind == JobKind::Drop && !policy.can_drop_data() => JobRule::DropsData,
        // Jobs of the presets are checked when they are applied, and by tests.
        Ok(true) if !own && !cfg!(debug_assertions) => return Ok(Some(job)),
        Ok(true) => match shape.check_job(&job) {
            Ok(()) => return Ok(Some(job)),
            Err(broken) => JobRule::Shape(broken),
        },
        Ok(false) => JobRule::Busy,
        Err(broken) => JobRule::Shape(broken),
    };
    debug_assert!(own, "{}: {job}: {rule}", policy.name());
    let (policy, job) = (policy.name().to_owned(), job.to_string());
    let error = Error::PolicyMistake { policy, job, rule: Arc::new(rule) };
    jobs.retry_at_us = store.env.now_us().saturating_add(RETRY_US_MAX);
    jobs.last_error = Some(error.clone());
    store.set_failing(tree.id, true);
    Err(error)
}

/// The error of writes to a tree whose policy stops them although it picks no job and none runs. They would wait
/// without end.
fn stalled(
    tree: &Tree,
    policy: &dyn CompactionPolicy,
    jobs: &TreeJobs,
    shape: &TreeShape,
) -> Option<Blocked> {
    let stopped = policy.must_stop(&jobs.quarantine.counted(shape));
    if !stopped || !jobs.busy.jobs.is_empty() {
        return None;
    }
    let error = Error::PolicyStalled {
        keyspace: tree.name.clone(),
        policy: policy.name().to_owned(),
        shape: describe(shape),
    };
    (!failpoint::is_on(Failpoint::StallUnnoticed)).then_some(Blocked { error, at_hard_stop: true })
}

/// Runs, files and bytes of each level that holds something.
fn describe(shape: &TreeShape) -> String {
    let levels = (0..).zip(&shape.levels).filter(|(_, level)| !level.runs.is_empty());
    let levels = levels.map(|(number, level): (u32, _)| {
        let (runs, files) = (level.runs.len(), level.files().count());
        format!("L{number} has {runs} runs of {files} files, {} bytes", level.bytes())
    });
    levels.collect::<Vec<_>>().join("; ")
}

/// Picks a job while files are quarantined: the job that the policy wants if it reads none of them, else a merge
/// of other files.
fn job_around_quarantine(tree: &Tree, jobs: &mut TreeJobs, shape: &TreeShape) -> Option<Job> {
    if jobs.quarantine.is_empty() {
        return None;
    }
    let policy = Arc::clone(&tree.settings().policy);
    let running = jobs.busy.without_blocked_files();
    let wanted = policy.pick(shape, &running).filter(|job| !job.inputs.is_empty())?;
    if matches!(wanted.kind, JobKind::Move | JobKind::Drop) {
        let allowed = wanted.kind == JobKind::Move || policy.can_drop_data();
        return running.admit(wanted, shape).filter(|_| allowed);
    }
    let Some((file, error)) = quarantine::blocking(tree, jobs, wanted.input_files()) else {
        return jobs.busy.admit(wanted, shape);
    };
    let stopped = policy.must_stop(&jobs.quarantine.counted(shape));
    let around = quarantine_bypass::merge_in_l0(shape, &jobs.busy, file, stopped);
    if around.is_none() && jobs.busy.jobs.is_empty() {
        jobs.blocked = Some(Blocked { error, at_hard_stop: stopped });
    }
    around
}

/// Clears the last failure once there is no job left that could fail again: otherwise `wait_idle` would report it and
/// threads would look at the tree until some later job ends well.
fn forget_failure(store: &DbState, tree: &Tree, jobs: &mut TreeJobs, shape: &TreeShape) {
    let running = jobs.busy.any_busy(shape.files().map(|file| file.id));
    if !running && jobs.last_error.take().is_some() {
        (jobs.failures, jobs.told) = (0, false);
        if jobs.next_try_us().is_none() {
            store.set_failing(tree.id, false);
        }
    }
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
    Picked { job, shape, deadline_us, victims: Arc::default() }
}

/// Whether a job ended because it was not wanted any more.
pub(crate) fn was_given_up(error: &Error) -> bool {
    matches!(error, Error::Closed | Error::KeyspaceDropped { .. } | Error::Deadline { .. })
}

/// The job that lets files go which nobody can see into, if there are any.
fn covered_files(store: &DbState, tree: &Tree, version: &Version) -> Option<Job> {
    let released = store.sequence.released();
    let snapshots = store.sequence.snapshots();
    let spans = match version.spans() {
        Ok(spans) => spans?,
        // It was reported when the file was quarantined.
        Err(error) if quarantine::is_known(tree, &error) => return None,
        Err(error) => {
            // The files that they may cover stay until a later look.
            quarantine::admit(store, tree, &error);
            store.report("a look for deleted files", Some(tree), &error);
            tell_next_write(store, "a look for deleted files", tree, &error);
            return None;
        }
    };
    let busy = tree.jobs.lock().busy.without_blocked_files();
    let is_busy = |file: &TableMeta| busy.is_busy(file.id);
    let covered = delete_only::look(version.shape(), &spans, &snapshots, is_busy);
    tree.set_held(covered.held, released);
    covered.job
}

/// Runs a picked job to its end and frees its files.
///
/// # Errors
/// The tree is as before. When a file of the tree cannot be read, that file is quarantined. When a table
/// cannot be written, compactions of the tree pause. When the manifest cannot be written, the database is
/// read-only.
pub(crate) fn run(
    store: &DbState,
    throttle: &Arc<Throttle>,
    workers: &Workers,
    tree: &Arc<Tree>,
    picked: Picked,
) -> Result<()> {
    let job = picked.job.clone();
    let span = JobSpan::begin(JobBegin {
        kind: kind_name(job.kind),
        keyspace: &tree.name,
        inputs: job.input_files().count(),
        reason: &job.reason,
    });
    let ran = caught(store, || execute(store, throttle, workers, tree, picked, &span));
    if let Err(error) = &ran {
        span.failed(error);
    }
    // Before the job's files are free: no other job may take the file that could not be read, and none begins
    // at once after another failure.
    match &ran {
        Ok(()) => note_success(store, tree),
        Err(error) if quarantine::admit(store, tree, error) => {
            add(&tree.counters.compaction_failures, 1);
        }
        Err(error) => note_failure(store, tree, error),
    }
    if !failpoint::is_on(Failpoint::DamagedInputsStayBusy)
        || !matches!(ran, Err(Error::Corrupt { .. }))
    {
        tree.jobs.lock().busy.finish(&job);
    }
    for first in store.tables.descriptors.take_repeated() {
        store.tell(&Event::ReadRepeated(Arc::new(first)));
    }
    if let Err(error) = &ran
        && !was_given_up(error)
    {
        store.report("compaction", Some(tree), error);
    }
    store.progress.notify();
    ran
}

/// Runs a job. A panic of user code fails it as an error does; one of the engine makes the database read-only, for
/// nothing that it left half done may become durable.
pub(crate) fn caught<T>(store: &DbState, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let error = Error::panicked(&*panic);
        Err(if error.is_user_panic() { error } else { store.fail(error) })
    })
}

/// Notes and reports that background work other than a running job has failed: it is tried again after a pause.
pub(crate) fn failed(store: &DbState, work: &'static str, tree: &Tree, error: &Error) {
    note_failure(store, tree, error);
    store.report(work, Some(tree), error);
    tell_next_write(store, work, tree, error);
}

/// A job that rewrites data has ended well: the next failure is the first, and the pause after the last one is
/// over. Nobody would look at the tree at its end any more: a job that fails beside one that ends well
/// must not leave writes waiting for a compaction that never comes.
pub(crate) fn note_success(store: &DbState, tree: &Tree) {
    let mut jobs = tree.jobs.lock();
    (jobs.failures, jobs.retry_at_us, jobs.told) = (0, 0, false);
    if jobs.last_error.take().is_some() && jobs.next_try_us().is_none() {
        store.set_failing(tree.id, false);
    }
}

/// A job that rewrites data has failed: the next one begins after a pause, unless this was not wanted any
/// more.
pub(crate) fn note_failure(store: &DbState, tree: &Tree, error: &Error) {
    if was_given_up(error) || matches!(error, Error::ReadOnly { .. }) {
        return;
    }
    let mut jobs = tree.jobs.lock();
    jobs.retry_at_us = store.env.now_us().saturating_add(pause_us(jobs.failures));
    jobs.failures = jobs.failures.saturating_add(1);
    if failpoint::is_on(Failpoint::RetriedWithoutPause) {
        jobs.retry_at_us = 0;
    }
    jobs.last_error = Some(error.clone());
    store.set_failing(tree.id, true);
    add(&tree.counters.compaction_failures, 1);
}

/// Pause after so many failures in a row and one more.
pub(crate) fn pause_us(failures: u32) -> u64 {
    RETRY_US_FIRST.saturating_mul(1 << failures.min(20)).min(RETRY_US_MAX)
}

/// Has the next write told of background work that failed, if that is the first since some ended well: who
/// writes on meanwhile gets one error and not one for each try.
pub(crate) fn tell_next_write(store: &DbState, work: &'static str, tree: &Tree, error: &Error) {
    // Of a database that is read-only every write is told.
    if was_given_up(error) || matches!(error, Error::ReadOnly { .. }) {
        return;
    }
    let mut jobs = tree.jobs.lock();
    // Where the next write is told of another failure, the next try of this may be told.
    jobs.told = jobs.told || store.owe(work, Some(tree), error);
}

fn kind_name(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Merge => "merge",
        JobKind::Rewrite => "rewrite",
        JobKind::Move => "move",
        JobKind::Drop => "drop",
    }
}

fn input_files<'a>(shape: &'a TreeShape, job: &'a Job) -> impl Iterator<Item = &'a Arc<TableMeta>> {
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

/// When the oldest tombstone among the inputs was written.
fn oldest_tombstone_us(shape: &TreeShape, job: &Job) -> Option<u64> {
    let with_tombstones = input_files(shape, job).filter(|file| file.tombstones > 0);
    with_tombstones.filter_map(|file| file.oldest_tombstone_us).min()
}

/// Bytes of the inputs that come from other levels than the target.
fn arriving_bytes(shape: &TreeShape, job: &Job) -> u64 {
    let own: HashSet<_> = job
        .inputs
        .iter()
        .filter(|input| input.level == job.target.level)
        .flat_map(|input| input.files.iter().copied())
        .collect();
    input_files(shape, job).filter(|file| !own.contains(&file.id)).map(|file| file.bytes).sum()
}

fn execute(
    store: &DbState,
    throttle: &Arc<Throttle>,
    workers: &Workers,
    tree: &Arc<Tree>,
    picked: Picked,
    span: &JobSpan,
) -> Result<()> {
    let Picked { job, shape, .. } = picked.clone();
    // Entries that were not deleted are dropped only while no snapshot sees them.
    let leaves = job.kind == JobKind::Drop && job.reason != Reason::RangeDeleted;
    // `Db::snapshot` waits until `_leaving` is dropped, and a listener may call it.
    let _events = leaves.then(|| store.hold_events());
    let _leaving = match leaves.then(|| Leaving::begin(store, &shape, &job)) {
        Some(None) => return Ok(()),
        Some(leaving) => leaving,
        None => None,
    };
    let start = Spent::start(&store.env);
    store.tell(&Event::CompactionBegin(CompactionBegin {
        keyspace: tree.name.clone(),
        job: job.clone(),
        input_bytes: input_bytes(&shape, &job),
    }));
    let level = job.target.level.0;
    let filter = tree.filter_width(&shape, &Coming::Job(&job));
    let place = (level, filter);
    let mut outputs = Outputs::in_lane(IoPriority::Compaction, &store.tables, tree, place, None);
    let mut reading = Reading::default();
    let merges = matches!(job.kind, JobKind::Merge | JobKind::Rewrite);
    if merges {
        let version = Arc::clone(&tree.pin().version);
        reading = merge(store, throttle, workers, tree, &version, picked, &mut outputs)?;
        store.env.yield_point(YieldKind::JobStep);
        if !outputs.tables().is_empty() {
            sync_names(store.vfs.as_ref(), &store.dir)?;
        }
    }
    store.env.yield_point(YieldKind::JobStep);
    let shapes: Vec<TableMeta> =
        outputs.tables().iter().map(|table| (**table.shape()).clone()).collect();
    let ids = shapes.iter().map(|shape| shape.id).collect();
    let tombstones_written = shapes.iter().map(|shape| shape.tombstones).sum();
    let written_bytes = outputs.finished_bytes();
    install(store, tree, &mut outputs, None, Vec::new(), |shape| {
        shape.apply(&job, shapes).map(|applied| applied.shape)
    })?;
    let read_bytes = if merges { input_bytes(&shape, &job) } else { 0 };
    let mut spent = start.until_now(&store.env);
    let elapsed_us = spent.elapsed_ns / 1_000;
    spent.add(reading.helper_ns);
    span.done(read_bytes, written_bytes, elapsed_us);
    let counters = &tree.counters;
    match job.kind {
        JobKind::Merge | JobKind::Rewrite => {
            add(&counters.jobs, 1);
            if matches!(job.reason, Reason::BlobGarbage { .. }) {
                add(&counters.blob_rewrites, 1);
            }
            if reading.parts > 1 {
                add(&counters.jobs_divided, 1);
                add(&counters.parts, len_u64(reading.parts));
                add(&counters.parts_helped, reading.helped);
            }
            add(&counters.compaction_read_bytes, read_bytes);
            add(&counters.compaction_written_bytes, written_bytes);
            add(&counters.compaction_us, elapsed_us);
            throttle.drained(written_bytes, elapsed_us);
            counters.flowed(level, |flow| {
                flow.jobs += 1;
                flow.came_bytes += arriving_bytes(&shape, &job);
                flow.read_bytes += read_bytes;
                flow.written_bytes += written_bytes;
                flow.us_total += elapsed_us;
            });
            store.compaction_us.record(elapsed_us);
        }
        JobKind::Move => {
            add(&counters.trivial_moves, 1);
            counters.flowed(level, |flow| flow.moved_bytes += input_bytes(&shape, &job));
        }
        JobKind::Drop => add(&counters.drops, 1),
    }
    let left = job.kind != JobKind::Move;
    let tombstones_read = input_files(&shape, &job).map(|file| file.tombstones).sum();
    store.tell(&Event::Compaction(CompactionEnd {
        keyspace: tree.name.clone(),
        released_bytes: if left { input_bytes(&shape, &job) } else { 0 },
        tombstones_read: if left { tombstones_read } else { 0 },
        tombstones_written,
        oldest_tombstone_us: oldest_tombstone_us(&shape, &job),
        job,
        outputs: ids,
        read_bytes,
        written_bytes,
        entries_read: reading.entries,
        entries_written: outputs.entries,
        parts: reading.parts.max(1),
        elapsed_us,
        thread_us: spent.elapsed_ns / 1_000,
        cpu_us: spent.cpu_ns / 1_000,
        ended_us: store.env.database_us(),
    }));
    Ok(())
}

/// Entries that nobody deleted are leaving: no snapshot is registered meanwhile.
struct Leaving<'a>(&'a DbState);

impl<'a> Leaving<'a> {
    /// `None` if a snapshot sees them.
    fn begin(store: &'a DbState, shape: &TreeShape, job: &Job) -> Option<Leaving<'a>> {
        let smallest = input_files(shape, job).map(|file| file.seq_smallest).min()?;
        let begun = store.sequence.begin_leaving(SeqNo(smallest));
        (begun || failpoint::is_on(Failpoint::BlockedDropCountsAsDone))
            .then(|| Leaving(store))
            .filter(|_| begun)
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.sequence.end_leaving();
        self.0.progress.notify();
    }
}

/// What a merge did, apart from its outputs.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    entries: u64,
    /// How many ranges of keys it was divided into.
    parts: usize,
    /// How many of these other threads ran.
    helped: u64,
    /// How long these took.
    helper_ns: Spent,
}

/// The blob files whose values a job may copy to have them beside their neighbours. None after
/// a job that failed: what was lacking, room on the disk perhaps, may suffice for one that does what it must.
fn gatherable(tree: &Tree, version: &Version) -> BTreeSet<FileId> {
    let separation = tree.settings().options.value_separation;
    match separation.filter(|separation| separation.scan_read_bytes > 0) {
        Some(separation) if tree.jobs.lock().failures == 0 => {
            garbage::gatherable(version, &separation)
        }
        _ => BTreeSet::new(),
    }
}

/// Reads the inputs as one and writes what must be kept, in parts if there is much of it.
fn merge(
    store: &DbState,
    throttle: &Arc<Throttle>,
    workers: &Workers,
    tree: &Arc<Tree>,
    version: &Version,
    picked: Picked,
    outputs: &mut Outputs<'_>,
) -> Result<Reading> {
    let Picked { job, shape, deadline_us, victims } = picked;
    let (mut inputs, mut spans) = (Vec::with_capacity(job.inputs.len()), Vec::new());
    for input in &job.inputs {
        let tables = input.files.iter().map(|&file| {
            let table = version.table(file).cloned();
            table.ok_or(lsmx_compaction::Error::UnknownFile { file })
        });
        let tables = tables.collect::<Result<Arc<[_]>, _>>()?;
        for table in tables.iter().filter(|table| table.has_spans()) {
            spans.extend_from_slice(table.table().spans(FillCache::Job)?.as_slice());
        }
        inputs.push(tables);
    }
    let mut retention = Retention::for_job(store.sequence.snapshots(), &shape, &job);
    let range = job.range(&shape)?;
    let spans = retention.heed(&spans, Some((&range.smallest, &range.largest)));
    // A job that frees space does nothing else.
    let gathers = victims.is_empty() && retention.is_last(&range);
    let gatherable = if gathers { gatherable(tree, version) } else { BTreeSet::new() };
    let merge = Merge {
        tree: Arc::clone(tree),
        throttle: Arc::clone(throttle),
        input_bytes: input_bytes(&shape, &job),
        filter: outputs.filter(),
        oldest_tombstone_us: oldest_tombstone_us(&shape, &job),
        job,
        shape,
        deadline_us,
        inputs,
        retention,
        spans,
        values: ValueSource {
            blobs: Arc::clone(version.blobs()),
            victims,
            gatherable: Arc::new(gatherable),
            quarantined: Arc::new(tree.jobs.lock().quarantine.blobs()),
        },
    };
    let parts = merge.divide(&range, workers.parts_max())?;
    let mut reading = Reading { parts: parts.len(), ..Reading::default() };
    let merged = workers.run(store, Division::new(merge, parts))?;
    reading.helped = merged.helped;
    reading.helper_ns = merged.helper_ns;
    for part in merged.parts {
        reading.entries += part.entries_read;
        outputs.adopt(part);
    }
    Ok(reading)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Background;
    use crate::vfs::MemVfs;
    use crate::{Db, KeyspaceOptions, Options, ValueSeparation};

    /// Two jobs of one tree run; one fails, and then the other ends well. The pause of the first went on
    /// with nobody to look at the tree after it, so writes that waited for a compaction waited for ever.
    #[test]
    fn a_job_that_ends_well_ends_the_pause_after_one_that_did_not() {
        let options = Options::default().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let core = db.core();
        let (store, tree) = (&core.store, &core.default);
        let failed = std::io::Error::other("no space");
        note_failure(store, tree, &Error::io("append to", std::path::Path::new("1.sst"), failed));
        assert!(tree.jobs.lock().retry_at_us > store.env.now_us());
        assert_eq!(store.failing_trees().len(), 1);
        note_success(store, tree);
        let blocked = store.env.now_us() < tree.jobs.lock().retry_at_us;
        assert_eq!((blocked, store.failing_trees().len()), (false, 0));
    }

    #[test]
    fn what_may_be_copied_without_need_is_bounded_and_nothing_after_a_failure() {
        let separation = ValueSeparation::default().threshold_bytes(1);
        let keyspace = KeyspaceOptions::default().value_separation(separation);
        let options = Options::default().background(Background::Inline).keyspace_defaults(keyspace);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        // Three files of about 1000, 100 and 400 bytes; 450 may be copied.
        for bytes in [1000, 100, 400] {
            db.put(format!("key-{bytes}"), vec![1; bytes]).unwrap();
            db.flush().unwrap();
        }
        let core = db.core();
        let (store, tree) = (&core.store, &core.default);
        let copied = || {
            let view = tree.pin();
            let of = |id: &FileId| view.version.blobs().file(*id).unwrap().record().bytes;
            let found = gatherable(tree, &view.version);
            found.iter().map(of).collect::<Vec<_>>()
        };
        let bytes = copied();
        assert!(bytes.len() == 1 && bytes[0] < 300, "{bytes:?}");
        let failed = std::io::Error::other("no space");
        note_failure(store, tree, &Error::io("append to", std::path::Path::new("1.blob"), failed));
        assert!(copied().is_empty());
        note_success(store, tree);
        assert_eq!(copied(), bytes);
    }
}

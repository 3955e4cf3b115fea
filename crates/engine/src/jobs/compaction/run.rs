//! Runs compaction jobs: merges, rewrites, trivial moves and drops.

use std::collections::BTreeSet;

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, Job, JobKind, JobReason};

use crate::compaction_filter::CompactionFilter;
use crate::env::YieldKind;
use crate::env::rate_limit::IoPriority;
use crate::env::thread_time::{IoKind, ThreadTime, measure_wait};
use crate::error::{Error, Result};
use crate::event::{CompactionBegin, CompactionEnd, CompactionFilterFailed, Event};
use crate::job_tracing::{JobSpan, JobSpanFields};
use crate::jobs::compaction::entry_filter::FilterOutcome;
use crate::jobs::compaction::output::{JobOutputs, TombstoneTime};
use crate::jobs::compaction::pick::PickedJob;
use crate::jobs::compaction::retention::Retention;
use crate::jobs::compaction::retry::{
    catch_panics, is_cancelled, record_blob_gc_failure, record_blob_gc_success, record_failure,
    record_success,
};
use crate::jobs::compaction::subcompactions::{MergeInputs, Subcompactions};
use crate::jobs::quarantine;
use crate::jobs::value_log::garbage_collection::{
    find_relocatable_files, find_uncollectable_files,
};
use crate::jobs::value_log::output_values::ValueSource;
use crate::jobs::version_installer::{install_version, sync_directory};
use crate::jobs::worker_pool::WorkerPool;
use crate::options::filter_bits::IncomingRun;
use crate::state::{DbState, HeldEvents};
use crate::table::ReadPurpose;
use crate::tree::Tree;
use crate::tree::version::Version;
use crate::write::throttle::Throttle;

/// Runs a picked job, and releases its inputs.
///
/// # Errors
/// After an error, the tree is unchanged. If a file of the tree cannot be read, the file is quarantined. If a table
/// cannot be written, the next compaction of the tree starts after a pause. After a blob garbage collection, only the
/// next collection waits for the pause. If the manifest cannot be written, the database becomes read-only.
pub(crate) fn run_job(
    state: &DbState,
    throttle: &Arc<Throttle>,
    workers: &WorkerPool,
    tree: &Arc<Tree>,
    picked: &PickedJob,
) -> Result<()> {
    let job = &picked.job;
    let span = JobSpan::start(JobSpanFields {
        kind: match job.kind {
            JobKind::Merge => "merge",
            JobKind::Rewrite => "rewrite",
            JobKind::Move => "move",
            JobKind::Drop => "drop",
        },
        keyspace: &tree.name(),
        inputs: job.input_files().count(),
        reason: &job.reason,
    });
    let result =
        catch_panics(state, || run_picked_job(state, throttle, workers, tree, picked, &span));
    // If the keyspace is dropped during the job, its files may disappear, and the job can fail with any error. The
    // error is then replaced by the error for a dropped keyspace.
    let result = result.map_err(|error| tree.check_live().err().unwrap_or(error));
    if let Err(error) = &result {
        span.record_error(error);
    }
    // The result is recorded before the inputs are released. Otherwise, another job could use an unreadable file, or
    // could start before the pause.
    let is_blob_gc = !picked.victims.is_empty();
    match &result {
        Ok(()) if is_blob_gc => record_blob_gc_success(state, tree),
        Ok(()) => record_success(state, tree),
        Err(error) if quarantine::quarantine_file(state, tree, error) => {
            tree.counters.update(|counts| counts.compaction.failures += 1);
        }
        Err(error) if is_blob_gc => record_blob_gc_failure(state, tree, error),
        Err(error) => record_failure(state, tree, error),
    }
    let is_corrupt = matches!(result, Err(Error::Corrupt { .. }));
    if !failpoint::is_on(Failpoint::DamagedInputsStayBusy) || !is_corrupt {
        tree.jobs.lock().running.finish(job);
    }
    for first in state.tables.descriptors.take_repeated_reads() {
        state.emit(&Event::ReadRepeated(Arc::new(first)));
    }
    if let Err(error) = &result
        && !is_cancelled(error)
    {
        state.report_background_error("compaction", Some(tree), error);
    }
    state.progress.notify();
    result
}

fn run_picked_job(
    state: &DbState,
    throttle: &Arc<Throttle>,
    workers: &WorkerPool,
    tree: &Arc<Tree>,
    picked: &PickedJob,
    span: &JobSpan,
) -> Result<()> {
    let PickedJob { job, shape, .. } = picked;
    // A drop job of the policy may remove live entries. It runs only if no snapshot sees these entries, and only while
    // the policy is in use.
    let drops_live_data = picked.dropping_policy.is_some();
    let is_policy_replaced = || {
        let dropping_policy = picked.dropping_policy.as_ref();
        dropping_policy.is_some_and(|policy| !Arc::ptr_eq(policy, &tree.settings().policy))
    };
    if is_policy_replaced() {
        return Ok(());
    }
    // While `_guard` exists, `Db::snapshot` waits. Events are deferred, because a listener may call `Db::snapshot`.
    let _events = drops_live_data.then(|| state.defer_events());
    let _guard =
        match drops_live_data.then(|| SnapshotsBlockedGuard::block_snapshots(state, picked)) {
            Some(None) => return Ok(()),
            Some(guard) => guard,
            None => None,
        };
    state.select_cache_bypass();
    let start = ThreadTime::now(&state.env);
    state.emit(&Event::CompactionBegin(CompactionBegin {
        keyspace: tree.name(),
        job: job.clone(),
        input_bytes: picked.input_bytes(),
    }));
    let target = (job.target.level.0, tree.choose_filter_width(shape, &IncomingRun::Job(job)));
    let new_outputs = || JobOutputs::new(IoPriority::Compaction, &state.tables, tree, target, None);
    let mut outputs = new_outputs();
    let mut stats = MergeStats::default();
    let mut filter_guard = None;
    if matches!(job.kind, JobKind::Merge | JobKind::Rewrite) {
        let version = Arc::clone(&tree.pin_super_version().version);
        let run_merge = |filter, outputs: &mut JobOutputs<'_>| -> Result<MergeStats> {
            let stats = merge(state, throttle, workers, tree, &version, picked, filter, outputs)?;
            state.env.yield_point(YieldKind::JobStep);
            if !outputs.tables().is_empty() {
                measure_wait(&state.env, IoKind::Sync, || {
                    sync_directory(state.vfs.as_ref(), &state.dir)
                })?;
            }
            Ok(stats)
        };
        let filter = filter_of_job(tree, job);
        stats = run_merge(filter.clone(), &mut outputs)?;
        report_filter_errors(state, tree, filter.as_deref(), &stats.filter);
        if let Some(seq) = stats.filter.seq_smallest {
            filter_guard = FilterInstallGuard::begin(state, seq);
            if filter_guard.is_none() {
                // A snapshot that was taken during the merge sees a value that the filter removed or changed. The merge
                // is repeated without the filter.
                tree.counters.update(|counts| counts.compaction_filter.repeated_merges += 1);
                outputs = new_outputs();
                stats = run_merge(None, &mut outputs)?;
            }
        }
    }
    state.env.yield_point(YieldKind::JobStep);
    let output_ids = outputs.tables().iter().map(|table| table.shape().id).collect();
    let tombstones_written = outputs.tables().iter().map(|table| table.shape().tombstones).sum();
    let written_bytes = outputs.finished_bytes();
    let is_installed =
        install_version(state, tree, &mut outputs, None, None, Vec::new(), |shape, files| {
            // This closure is called under the lock that `Tree::set_settings` takes.
            match is_policy_replaced() {
                true => Ok(None),
                false => shape.apply_job(job, files).map(Some),
            }
        })?;
    if !is_installed {
        return Ok(());
    }
    drop(filter_guard);
    let mut time = start.elapsed(&state.env);
    let elapsed_us = time.elapsed_ns / 1_000;
    time.add(stats.helper_time);
    span.record_success(stats.read_bytes, written_bytes, elapsed_us);
    update_metrics(state, throttle, tree, picked, &stats, written_bytes, elapsed_us);
    if outputs.expired.entries > 0 {
        tree.counters.update(|counts| outputs.expired.add_to(&mut counts.expired));
    }
    let removes_inputs = job.kind != JobKind::Move;
    let tombstones_read = picked.input_files().map(|file| file.tombstones).sum();
    state.emit(&Event::Compaction(CompactionEnd {
        keyspace: tree.name(),
        released_bytes: if removes_inputs { picked.input_bytes() } else { 0 },
        tombstones_read: if removes_inputs { tombstones_read } else { 0 },
        tombstones_written,
        oldest_tombstone_us: picked.oldest_tombstone_us(),
        job: job.clone(),
        outputs: output_ids,
        read_bytes: stats.read_bytes,
        written_bytes,
        entries_read: stats.entries,
        entries_written: outputs.entries,
        parts: stats.subcompactions.max(1),
        elapsed_us,
        thread_us: time.elapsed_ns / 1_000,
        cpu_us: time.cpu_ns / 1_000,
        read_wait_us: time.waited_us(IoKind::Read),
        write_wait_us: time.waited_us(IoKind::Write),
        sync_wait_us: time.waited_us(IoKind::Sync),
        ended_us: state.env.database_time_us(),
    }));
    Ok(())
}

fn update_metrics(
    state: &DbState,
    throttle: &Throttle,
    tree: &Tree,
    picked: &PickedJob,
    stats: &MergeStats,
    written_bytes: u64,
    elapsed_us: u64,
) {
    let job = &picked.job;
    tree.counters.update(|counts| {
        let compaction = &mut counts.compaction;
        match job.kind {
            JobKind::Merge | JobKind::Rewrite => {
                compaction.jobs += 1;
                if stats.subcompactions > 1 {
                    compaction.divided_jobs += 1;
                    compaction.subcompactions += len_u64(stats.subcompactions);
                    compaction.helper_subcompactions += stats.helper_count;
                }
                compaction.read_bytes += stats.read_bytes;
                compaction.written_bytes += written_bytes;
                compaction.us_total += elapsed_us;
                counts.compaction_filter.passed += stats.filter.passed;
                counts.compaction_filter.removed += stats.filter.removed;
                counts.compaction_filter.changed += stats.filter.changed;
                let is_collection = matches!(job.reason, JobReason::BlobGarbage { .. });
                counts.value_log.rewrites += u64::from(is_collection);
                let writes = &mut counts.level_mut(job.target.level.0).flow;
                writes.jobs += 1;
                writes.incoming_bytes += picked.incoming_bytes();
                writes.read_bytes += stats.read_bytes;
                writes.written_bytes += written_bytes;
                writes.us_total += elapsed_us;
            }
            JobKind::Move => {
                compaction.trivial_moves += 1;
                counts.level_mut(job.target.level.0).flow.moved_bytes += picked.input_bytes();
            }
            JobKind::Drop => compaction.drops += 1,
        }
    });
    if matches!(job.kind, JobKind::Merge | JobKind::Rewrite) {
        // A blob garbage collection copies values, and writes few bytes of tables. Its rate does not state how fast merges
        // reduce the compaction debt.
        if picked.victims.is_empty() {
            throttle.record_compaction(written_bytes, elapsed_us);
        }
        state.compaction_us.record(elapsed_us);
    }
}

/// Prevents new snapshots while a job removes live entries.
struct SnapshotsBlockedGuard<'a>(&'a DbState);

impl<'a> SnapshotsBlockedGuard<'a> {
    /// Returns `None` if a snapshot sees an entry of the inputs.
    fn block_snapshots(
        state: &'a DbState,
        picked: &PickedJob,
    ) -> Option<SnapshotsBlockedGuard<'a>> {
        let smallest = picked.input_files().map(|file| file.seq_smallest).min()?;
        let begun = state.sequence.begin_entry_removal(SeqNo(smallest));
        (begun || failpoint::is_on(Failpoint::BlockedDropCountsAsDone))
            .then(|| SnapshotsBlockedGuard(state))
            .filter(|_| begun)
    }
}

/// Prevents new snapshots while the result of a compaction filter is installed.
struct FilterInstallGuard<'a> {
    _snapshots: SnapshotsBlockedGuard<'a>,
    /// Dropped after `_snapshots`, because a listener may call `Db::snapshot`, which waits until `_snapshots` is
    /// dropped.
    _events: HeldEvents<'a>,
}

impl<'a> FilterInstallGuard<'a> {
    /// Returns `None` if a snapshot sees a value that the filter has removed or changed. `seq_smallest` is the smallest
    /// sequence number of these values.
    fn begin(state: &'a DbState, seq_smallest: SeqNo) -> Option<FilterInstallGuard<'a>> {
        let seq_smallest = match failpoint::is_on(Failpoint::FilterIgnoresSnapshots) {
            true => SeqNo::MAX,
            false => seq_smallest,
        };
        let events = state.defer_events();
        let begun = state.sequence.begin_entry_removal(seq_smallest);
        begun.then(|| FilterInstallGuard {
            _snapshots: SnapshotsBlockedGuard(state),
            _events: events,
        })
    }
}

/// Returns the compaction filter for a merge.
///
/// Blob garbage collections do not use a compaction filter. Otherwise, a filter that changes all values would create
/// new garbage in each collection, and the collections would never end.
fn filter_of_job(tree: &Tree, job: &Job) -> Option<Arc<dyn CompactionFilter>> {
    match job.reason {
        JobReason::BlobGarbage { .. } => None,
        _ => tree.settings().options.compaction_filter.clone(),
    }
}

/// Counts and reports calls of a compaction filter that have failed.
fn report_filter_errors(
    state: &DbState,
    tree: &Tree,
    filter: Option<&dyn CompactionFilter>,
    outcome: &FilterOutcome,
) {
    let (Some(filter), Some((key, error))) = (filter, &outcome.first_error) else { return };
    tree.counters.update(|counts| counts.compaction_filter.errors += outcome.errors);
    state.emit(&Event::CompactionFilterFailed(CompactionFilterFailed {
        keyspace: tree.name(),
        filter: filter.name().to_owned(),
        failures: outcome.errors,
        key: key.clone(),
        error: error.clone(),
    }));
}

impl Drop for SnapshotsBlockedGuard<'_> {
    fn drop(&mut self) {
        self.0.sequence.end_entry_removal();
        self.0.progress.notify();
    }
}

/// Statistics of a merge or rewrite. All fields are zero for moves and drops.
#[derive(Debug, Default)]
struct MergeStats {
    /// Number of entries that were read.
    entries: u64,
    read_bytes: u64,
    subcompactions: usize,
    /// Number of subcompactions that helpers have run.
    helper_count: u64,
    /// Time that helpers have spent on subcompactions.
    helper_time: ThreadTime,
    /// Results of the compaction filter.
    filter: FilterOutcome,
}

/// Returns the blob files whose values a merge may relocate.
///
/// Returns no files after a failed compaction or blob garbage collection, until the next one succeeds. Relocation is
/// optional, and must not use disk space that other jobs need. Returns no files until the application has passed the
/// options of the keyspace.
fn select_relocatable_files(tree: &Tree, version: &Version) -> BTreeSet<FileId> {
    if tree.awaits_value_separation() {
        return BTreeSet::new();
    }
    let separation = tree.settings().options.value_separation;
    match separation.filter(|separation| separation.scan_read_bytes > 0) {
        Some(separation) => {
            let jobs = tree.jobs.lock();
            if jobs.failures > 0 || jobs.blob_gc_retry.failures > 0 {
                return BTreeSet::new();
            }
            let excluded = find_uncollectable_files(version, &jobs);
            drop(jobs);
            find_relocatable_files(version, &excluded, &separation)
        }
        None => BTreeSet::new(),
    }
}

/// Merges the inputs into `outputs`. A large merge is split into subcompactions.
#[expect(clippy::too_many_arguments, reason = "each is used once")]
fn merge(
    state: &DbState,
    throttle: &Arc<Throttle>,
    workers: &WorkerPool,
    tree: &Arc<Tree>,
    version: &Version,
    picked: &PickedJob,
    compaction_filter: Option<Arc<dyn CompactionFilter>>,
    outputs: &mut JobOutputs<'_>,
) -> Result<MergeStats> {
    let PickedJob { job, shape, deadline_us, victims, .. } = picked;
    let (mut runs, mut tombstones) = (Vec::with_capacity(job.inputs.len()), Vec::new());
    for input in &job.inputs {
        let tables = input.files.iter().map(|&file| {
            let table = version.table(file).cloned();
            table.ok_or(lsmx_compaction::Error::UnknownFile { file })
        });
        let tables = tables.collect::<Result<Arc<[_]>, _>>()?;
        for table in tables.iter().filter(|table| table.has_range_tombstones()) {
            tombstones
                .extend_from_slice(table.table().range_tombstones(ReadPurpose::Job)?.as_slice());
        }
        runs.push(tables);
    }
    let mut retention = Retention::for_job(state.sequence.snapshot_seqs(), shape, job)
        .keep_covered_tombstones(tree.keeps_covered_tombstones());
    let range = job.input_key_range(shape)?;
    let range_tombstones =
        retention.add_range_tombstones(&tombstones, Some((&range.smallest, &range.largest)));
    // A job that frees space in the value log does not relocate values.
    let is_last_run = retention.is_last_run(&range);
    let may_relocate = victims.is_empty() && is_last_run;
    let relocatable =
        if may_relocate { select_relocatable_files(tree, version) } else { BTreeSet::new() };
    let inputs = MergeInputs {
        tree: Arc::clone(tree),
        throttle: Arc::clone(throttle),
        job: job.clone(),
        shape: shape.clone(),
        input_bytes: picked.input_bytes(),
        filter: outputs.filter_width(),
        tombstone_time: match picked.has_tombstones() {
            true => TombstoneTime::OfInputs(picked.oldest_tombstone_us()),
            // Tombstones may replace operands, and removed or expired values.
            false => TombstoneTime::OfJob(state.env.database_time_us()),
        },
        expiry_limit_us: state.expiry_limit_us(),
        deadline_us: *deadline_us,
        runs,
        retention,
        range_tombstones,
        values: ValueSource {
            blobs: Arc::clone(version.blobs()),
            victims: Arc::clone(victims),
            relocatable: Arc::new(relocatable),
            quarantined: Arc::new(tree.jobs.lock().quarantine.blobs()),
        },
        compaction_filter,
        is_last_run,
    };
    let subranges = inputs.split(&range, workers.max_subcompactions())?;
    let (subcompactions, read_bytes) = (subranges.len(), picked.input_bytes());
    let merged = workers.run(state, Subcompactions::new(inputs, subranges))?;
    let entries = merged.outputs.iter().map(|output| output.entries_read).sum();
    let mut filter = FilterOutcome::default();
    for mut output in merged.outputs {
        filter.add(std::mem::take(&mut output.filter_outcome));
        outputs.append(output);
    }
    let (helper_count, helper_time) = (merged.helper_count, merged.helper_time);
    Ok(MergeStats { entries, read_bytes, subcompactions, helper_count, helper_time, filter })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::env::Background;
    use crate::options::db::Options;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::options::value_separation::ValueSeparation;
    use crate::vfs::MemVfs;

    #[test]
    fn relocatable_files_are_bounded_and_none_after_a_failure() {
        let separation = ValueSeparation { threshold_bytes: 1, ..ValueSeparation::default() };
        let keyspace = KeyspaceOptions::default().value_separation(separation);
        let options = Options::default().background(Background::Inline).keyspace_defaults(keyspace);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        for bytes in [1000, 100, 400] {
            db.put(format!("key-{bytes}"), vec![1; bytes]).unwrap();
            db.flush().unwrap();
        }
        let core = db.inner();
        let (state, tree) = (&core.state, &core.default_tree);
        let relocatable_bytes = || {
            let view = tree.pin_super_version();
            let bytes_of = |id: &FileId| view.version.blobs().file(*id).unwrap().record().bytes;
            let found = select_relocatable_files(tree, &view.version);
            found.iter().map(bytes_of).collect::<Vec<_>>()
        };
        let bytes = relocatable_bytes();
        assert!(bytes.len() == 1 && bytes[0] < 300, "{bytes:?}");
        let cause = std::io::Error::other("no space");
        record_failure(state, tree, &Error::io("append to", std::path::Path::new("1.blob"), cause));
        assert!(relocatable_bytes().is_empty());
        record_success(state, tree);
        assert_eq!(relocatable_bytes(), bytes);
    }
}

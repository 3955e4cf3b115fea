//! Blob garbage collection: picks jobs that remove garbage from the value log.
//!
//! A record of a blob file is garbage if no table references it. A blob file is deleted when no table references any of
//! its records. If the keys of a blob file are distributed over the whole keyspace, ordinary compactions rarely remove
//! all of its references. A separate job therefore rewrites tables without changing their run or their bounds. The job
//! copies the values of some blob files, called victims, to new blob files.
//!
//! 1. A blob file is a victim if its share of garbage exceeds `garbage_ratio`. If the value log exceeds its space
//!    limit, every blob file with garbage may be a victim, and the job has priority over the jobs of the policy.
//!    If the keyspace has a delete persistence bound, a file is also a victim when its garbage reaches the maximum age.
//! 2. The job rewrites tables of the run that references the most bytes of the victims.
//! 3. A table is always rewritten completely, and usually references many blob files. A job therefore has several
//!    victims, up to a limit of copied bytes.
//!
//! Each job removes references to files with garbage, and writes files without garbage. The collection therefore ends
//! at some point.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lsmx_base::sync::Arc;
use lsmx_compaction::{
    FileId, Job, JobInput, JobKind, JobReason, Level, OutputPlacement, OutputTarget, RunId,
    RunningJobs, SplitRule, TreeShape,
};

use crate::options::value_separation::ValueSeparation;
use crate::tree::TreeJobState;
use crate::tree::blob_set::BlobSet;
use crate::tree::table_file::TableFile;
use crate::tree::version::{OpenRun, Version};

/// The number of bytes that a job may copy is the total number of referenced bytes in all blob files, divided by this
/// number. The values of the first victim are always copied.
const COPIED_DIVISOR: u64 = 8;

/// A job that removes the references to the victims.
#[derive(Debug)]
pub(crate) struct BlobGcJob {
    pub(crate) job: Job,
    /// Blob files whose values the job copies to new files.
    pub(crate) victims: BTreeSet<FileId>,
}

/// Size and referenced bytes of a blob file.
#[derive(Clone, Copy, Debug)]
struct GcCandidate {
    id: FileId,
    /// Total size of all records in bytes.
    bytes: u64,
    /// Total size in bytes of the records that tables reference.
    referenced: u64,
}

impl GcCandidate {
    fn garbage_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.referenced)
    }

    /// Returns the share of garbage in the file in parts per million.
    fn garbage_ppm(&self) -> u64 {
        let share = u128::from(self.garbage_bytes()) * 1_000_000 / u128::from(self.bytes.max(1));
        u64::try_from(share).unwrap_or(1_000_000)
    }
}

/// Returns by how many bytes the value log is below its space limit. The result is negative if the limit is exceeded.
///
/// Files in `excluded` do not count, because no job can remove their garbage. Otherwise, one of them could exceed the
/// limit until the database is repaired.
fn remaining_blob_bytes(
    blobs: &BlobSet,
    excluded: &BTreeSet<FileId>,
    separation: &ValueSeparation,
) -> f64 {
    let (mut bytes, mut referenced) = (0u64, 0u64);
    for used in blobs.files().filter(|used| !excluded.contains(&used.file.record().id)) {
        bytes += used.file.record().record_bytes();
        referenced += used.bytes;
    }
    referenced as f64 * separation.space_amplification_max - bytes as f64
}

/// Returns whether the value log exceeds its space limit. `excluded` is the result of [`find_uncollectable_files`].
pub(crate) fn is_over_space_limit(
    blobs: &BlobSet,
    excluded: &BTreeSet<FileId>,
    separation: &ValueSeparation,
) -> bool {
    remaining_blob_bytes(blobs, excluded, separation) < 0.0
}

/// Returns the blob files whose values merges may relocate to make scans faster. Relocated values become garbage in
/// their old files. The total size of the returned files is limited, so that the value log stays below its space limit
/// even if all of their values are relocated.
///
/// All merges must choose the same files, independent of their key ranges. Otherwise, merges would leave garbage in
/// many files and would not remove all references to any of them. Files with the lowest density are chosen first. The
/// density is the number of referenced bytes per referencing table, multiplied by the referenced share of the file.
///
/// `excluded` is the result of [`find_uncollectable_files`]. These files are not returned.
pub(crate) fn find_relocatable_files(
    version: &Version,
    excluded: &BTreeSet<FileId>,
    separation: &ValueSeparation,
) -> BTreeSet<FileId> {
    let mut tables = BTreeMap::new();
    let all = version.runs().iter().flat_map(|run| run.tables().iter());
    for used in all.flat_map(|table| table.blobs()) {
        *tables.entry(used.file.record().id).or_insert(0u32) += 1;
    }
    let collectable =
        version.blobs().files().filter(|used| !excluded.contains(&used.file.record().id));
    let files = collectable.map(|used| {
        let (record, referenced) = (used.file.record(), used.bytes as f64);
        let live_share = referenced / record.record_bytes().max(1) as f64;
        let density = referenced / f64::from(tables.get(&record.id).copied().unwrap_or(1));
        (live_share * density, record.id, referenced)
    });
    let mut files: Vec<_> = files.collect();
    files.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut allowance = remaining_blob_bytes(version.blobs(), excluded, separation);
    let selected = files.into_iter().filter(|&(.., referenced)| {
        let fits = referenced <= allowance;
        allowance -= if fits { referenced } else { 0.0 };
        fits
    });
    selected.map(|(_, id, _)| id).collect()
}

/// Returns the blob files whose garbage no job can remove: quarantined files, and files that only quarantined tables
/// reference.
pub(crate) fn find_uncollectable_files(version: &Version, jobs: &TreeJobState) -> BTreeSet<FileId> {
    &jobs.quarantine.blobs() | &find_unreachable_files(version, &jobs.running)
}

/// Returns the blob files that only quarantined tables reference. No job can remove these references.
fn find_unreachable_files(version: &Version, busy: &RunningJobs) -> BTreeSet<FileId> {
    let running = busy.without_blocked_files();
    if running.files.len() == busy.files.len() {
        return BTreeSet::new();
    }
    let is_quarantined = |table: &&Arc<TableFile>| {
        let id = table.shape().id;
        busy.is_file_busy(id) && !running.is_file_busy(id)
    };
    let tables = version.runs().iter().flat_map(|run| run.tables().iter());
    let (quarantined, others): (Vec<_>, Vec<_>) = tables.partition(is_quarantined);
    let blob_ids = |tables: Vec<&Arc<TableFile>>| -> BTreeSet<FileId> {
        let used = tables.into_iter().flat_map(|table| table.blobs());
        used.map(|used| used.file.record().id).collect()
    };
    &blob_ids(quarantined) - &blob_ids(others)
}

/// Returns the victims, in order of descending share of garbage. Files in `excluded` are never victims.
/// `overdue` contains the files whose garbage has reached its maximum age.
fn select_victims(
    blobs: &BlobSet,
    separation: &ValueSeparation,
    (excluded, overdue): (&BTreeSet<FileId>, &BTreeSet<FileId>),
) -> Vec<GcCandidate> {
    let over_limit = is_over_space_limit(blobs, excluded, separation);
    let readable = blobs.files().filter(|used| !excluded.contains(&used.file.record().id));
    let all_files = readable.map(|used| GcCandidate {
        id: used.file.record().id,
        bytes: used.file.record().record_bytes(),
        referenced: used.bytes,
    });
    let is_victim = |file: &GcCandidate| {
        let exceeds_ratio =
            file.garbage_bytes() as f64 > file.bytes as f64 * separation.garbage_ratio;
        let is_overdue = overdue.contains(&file.id);
        file.garbage_bytes() > 0 && (over_limit || exceeds_ratio || is_overdue)
    };
    let mut victims: Vec<_> = all_files.filter(is_victim).collect();
    victims.sort_by_key(|file| (Reverse(file.garbage_ppm()), file.id));
    let referenced: u64 = blobs.files().map(|used| used.bytes).sum();
    let mut budget = referenced / COPIED_DIVISOR;
    let selected = victims.iter().enumerate().take_while(|(index, file)| {
        let fits = file.referenced <= budget;
        budget = budget.saturating_sub(file.referenced);
        fits || *index == 0
    });
    let count = selected.count();
    victims.truncate(count);
    victims
}

/// Returns a job that copies the values of victims. No other job uses its input tables. `table_bytes` is the target size
/// of a table, see [`build_rewrite`]. `excluded` is the result of [`find_uncollectable_files`]. If one of these files was a
/// victim, it could use up the limit of copied bytes, and no file would be collected.
pub(crate) fn pick_blob_gc(
    version: &Version,
    shape: &TreeShape,
    (busy, excluded, overdue): (&RunningJobs, &BTreeSet<FileId>, &BTreeSet<FileId>),
    (separation, table_bytes): (&ValueSeparation, u64),
) -> Option<BlobGcJob> {
    let candidates = select_victims(version.blobs(), separation, (excluded, overdue));
    let worst = *candidates.first()?;
    let victims: BTreeSet<FileId> = candidates.iter().map(|file| file.id).collect();
    let mut runs: Vec<_> = version
        .runs()
        .iter()
        .zip(version.shape().runs())
        .map(|(run, (level, shape))| (victim_bytes_of_run(run, &victims), level, shape.id, run))
        .filter(|(bytes, ..)| *bytes > 0)
        .collect();
    // The sort is stable. Runs with equal numbers of bytes stay ordered from newest to oldest.
    runs.sort_by_key(|(bytes, ..)| Reverse(*bytes));
    for (_, level, run, run_tables) in runs {
        let references_victim =
            |table: &&Arc<TableFile>| victim_bytes_of_table(table, &victims) > 0;
        let is_idle = |table: &&Arc<TableFile>| !busy.is_file_busy(table.shape().id);
        let tables: Vec<_> =
            run_tables.tables().iter().filter(references_victim).filter(is_idle).collect();
        if tables.is_empty() {
            continue;
        }
        let job =
            |tables: &[&Arc<TableFile>]| build_rewrite((level, run), tables, table_bytes, worst);
        let whole = busy.admit_job(job(&tables), shape);
        // A job for all tables may conflict with running jobs that write to the same level. A job for a single table
        // may still be possible.
        let mut single = tables
            .iter()
            .filter_map(|table| busy.admit_job(job(std::slice::from_ref(table)), shape));
        if let Some(job) = whole.or_else(|| single.next()) {
            return Some(BlobGcJob { job, victims });
        }
    }
    None
}

/// Returns the number of bytes of the victims that a run references.
fn victim_bytes_of_run(run: &OpenRun, victims: &BTreeSet<FileId>) -> u64 {
    run.tables().iter().map(|table| victim_bytes_of_table(table, victims)).sum()
}

fn victim_bytes_of_table(table: &TableFile, victims: &BTreeSet<FileId>) -> u64 {
    let uses = table.blobs().iter().filter(|used| victims.contains(&used.file.record().id));
    uses.map(|used| used.bytes).sum()
}

/// Returns a job that rewrites each table to a table with the same bounds.
///
/// Values below the current separation threshold are moved to the tables. An output is therefore split into several
/// tables if it has become `table_bytes` larger than the largest input. An output whose values stay in the value log has
/// about the size of its input, and is not split.
fn build_rewrite(
    (level, run): (Level, RunId),
    tables: &[&Arc<TableFile>],
    table_bytes: u64,
    worst: GcCandidate,
) -> Job {
    let largest = tables.iter().map(|table| table.shape().bytes).max().unwrap_or(0);
    let file_bytes = table_bytes.saturating_add(largest);
    let starts = tables.iter().skip(1).map(|table| table.shape().range.smallest.clone());
    Job {
        kind: JobKind::Rewrite,
        inputs: vec![JobInput {
            level,
            run,
            files: tables.iter().map(|table| table.shape().id).collect(),
        }],
        target: OutputTarget { level, placement: OutputPlacement::JoinRun(run) },
        split: SplitRule { file_bytes, grandparent: None, boundaries: starts.collect() },
        reason: JobReason::BlobGarbage { blob: worst.id, ppm: worst.garbage_ppm() },
    }
}

//! Blob garbage collection: picks blob files to be emptied, and the job that empties them.
//!
//! Records of a blob file that no table references are garbage. Ordinary compactions rarely empty a file whose keys
//! are spread over the key space. A separate job therefore rewrites tables in place (same run, same bounds) and copies
//! the values they reference in the worst files to new files. A file is removed when no table references it.
//!
//! 1. A file qualifies if its share of garbage exceeds the ratio. If all files together exceed the space limit
//!    relative to their referenced bytes, the worst files qualify regardless of their share, and the job precedes
//!    all others.
//! 2. The job rewrites tables of the run that references most bytes of the selected files.
//! 3. A table is rewritten whole and has pointers to many files. Other qualifying files are therefore emptied together
//!    with the worst one, as long as the copied bytes stay bounded.
//!
//! Each job removes references to files with garbage and writes files without any, so the process ends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lsmx_base::sync::Arc;
use lsmx_compaction::{
    FileId, Job, JobInput, JobKind, JobReason, Level, OutputPlacement, OutputTarget, RunId,
    RunningJobs, SplitRule, TreeShape,
};

use crate::options::value_separation::ValueSeparation;
use crate::tree::blob_set::BlobSet;
use crate::tree::table_file::TableFile;
use crate::tree::version::{OpenRun, Version};

/// A job copies at most the referenced bytes of all blob files divided by this number, or the values of one file if
/// these are more.
const COPIED_DIVISOR: u64 = 8;

/// A job that empties blob files.
#[derive(Debug)]
pub(crate) struct BlobGcJob {
    pub(crate) job: Job,
    /// Files to be emptied.
    pub(crate) victims: BTreeSet<FileId>,
}

/// A blob file and its garbage.
#[derive(Clone, Copy, Debug)]
struct GcCandidate {
    id: FileId,
    /// Total size of its records, in bytes.
    bytes: u64,
    /// Size of the records that tables reference, in bytes.
    referenced: u64,
}

impl GcCandidate {
    fn garbage_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.referenced)
    }

    /// Share of garbage, in millionths.
    fn garbage_ppm(&self) -> u64 {
        let share = u128::from(self.garbage_bytes()) * 1_000_000 / u128::from(self.bytes.max(1));
        u64::try_from(share).unwrap_or(1_000_000)
    }
}

/// Returns by how many bytes the blob files may grow before the space limit; negative if they exceed it.
fn remaining_blob_bytes(blobs: &BlobSet, separation: &ValueSeparation) -> f64 {
    let (mut bytes, mut referenced) = (0u64, 0u64);
    for used in blobs.files() {
        bytes += used.file.record().record_bytes();
        referenced += used.bytes;
    }
    referenced as f64 * separation.space_amplification_max - bytes as f64
}

/// Whether the blob files exceed the space limit.
pub(crate) fn is_over_space_limit(blobs: &BlobSet, separation: &ValueSeparation) -> bool {
    remaining_blob_bytes(blobs, separation) < 0.0
}

/// Returns the blob files whose values merges may relocate to improve scans. If all values of these files become
/// garbage, the value log stays within its space limit.
///
/// All merges must choose the same files, whatever their key range. Otherwise each merge would turn a part of many
/// files into garbage and empty none. Files are selected by ascending density: the referenced bytes per table,
/// multiplied by the share of the file that is referenced.
pub(crate) fn find_relocatable_files(
    version: &Version,
    separation: &ValueSeparation,
) -> BTreeSet<FileId> {
    let mut tables = BTreeMap::new();
    let all = version.runs().iter().flat_map(|run| run.tables().iter());
    for used in all.flat_map(|table| table.blobs()) {
        *tables.entry(used.file.record().id).or_insert(0u32) += 1;
    }
    let files = version.blobs().files().map(|used| {
        let (record, referenced) = (used.file.record(), used.bytes as f64);
        let live_share = referenced / record.record_bytes().max(1) as f64;
        let density = referenced / f64::from(tables.get(&record.id).copied().unwrap_or(1));
        (live_share * density, record.id, referenced)
    });
    let mut files: Vec<_> = files.collect();
    files.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut allowance = remaining_blob_bytes(version.blobs(), separation);
    let selected = files.into_iter().filter(|&(.., referenced)| {
        let fits = referenced <= allowance;
        allowance -= if fits { referenced } else { 0.0 };
        fits
    });
    selected.map(|(_, id, _)| id).collect()
}

/// Returns the readable files to be emptied, worst first.
fn select_victims(
    blobs: &BlobSet,
    separation: &ValueSeparation,
    quarantined: &BTreeSet<FileId>,
) -> Vec<GcCandidate> {
    let over_limit = is_over_space_limit(blobs, separation);
    let readable = blobs.files().filter(|used| !quarantined.contains(&used.file.record().id));
    let all_files = readable.map(|used| GcCandidate {
        id: used.file.record().id,
        bytes: used.file.record().record_bytes(),
        referenced: used.bytes,
    });
    let is_victim = |file: &GcCandidate| {
        let exceeds_ratio =
            file.garbage_bytes() as f64 > file.bytes as f64 * separation.garbage_ratio;
        file.garbage_bytes() > 0 && (over_limit || exceeds_ratio)
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

/// Returns a job that empties blob files, with idle input tables and outputs of at most `table_bytes`.
pub(crate) fn pick_blob_gc(
    version: &Version,
    shape: &TreeShape,
    (busy, quarantined): (&RunningJobs, &BTreeSet<FileId>),
    (separation, table_bytes): (&ValueSeparation, u64),
) -> Option<BlobGcJob> {
    let candidates = select_victims(version.blobs(), separation, quarantined);
    let worst = *candidates.first()?;
    let victims: BTreeSet<FileId> = candidates.iter().map(|file| file.id).collect();
    let mut runs: Vec<_> = version
        .runs()
        .iter()
        .zip(version.shape().runs())
        .map(|(run, (level, shape))| (victim_bytes_of_run(run, &victims), level, shape.id, run))
        .filter(|(bytes, ..)| *bytes > 0)
        .collect();
    // The sort is stable, so of runs with equal bytes the newest comes first.
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
        // Running jobs into the level may conflict with some of the tables.
        let mut single = tables
            .iter()
            .filter_map(|table| busy.admit_job(job(std::slice::from_ref(table)), shape));
        if let Some(job) = whole.or_else(|| single.next()) {
            return Some(BlobGcJob { job, victims });
        }
    }
    None
}

/// Returns how many bytes of the victims a run references.
fn victim_bytes_of_run(run: &OpenRun, victims: &BTreeSet<FileId>) -> u64 {
    run.tables().iter().map(|table| victim_bytes_of_table(table, victims)).sum()
}

fn victim_bytes_of_table(table: &TableFile, victims: &BTreeSet<FileId>) -> u64 {
    let uses = table.blobs().iter().filter(|used| victims.contains(&used.file.record().id));
    uses.map(|used| used.bytes).sum()
}

/// Builds a job that rewrites each table into one with the same bounds, or several if it exceeds `file_bytes`.
fn build_rewrite(
    (level, run): (Level, RunId),
    tables: &[&Arc<TableFile>],
    file_bytes: u64,
    worst: GcCandidate,
) -> Job {
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

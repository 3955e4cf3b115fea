//! Which blob files are to be emptied, and by which job.
//!
//! What no table references of a blob file is garbage. Compactions make garbage and never empty a file
//! whose keys lie all over the key space, so a job of its own does: it rewrites tables in place, same
//! run and same bounds, and copies what they reference of the worst files to new ones. A file goes when
//! the last table that references it was rewritten.
//!
//! 1. A file is *bad* if its share of garbage is past the ratio. If all files together have more bytes
//!    than is allowed for what is referenced, the worst are bad whatever their share: then the job goes
//!    before all others.
//! 2. The worst file gives the run: the one whose tables reference most of the bad files' bytes.
//! 3. Tables have pointers to many files, and one is rewritten whole whatever it is rewritten for. So
//!    other bad files are emptied with the worst, as long as what is copied stays bounded.
//!
//! Each job takes away references to files with garbage and adds files without any, so there is an end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lsmx_base::sync::Arc;
use lsmx_compaction::{
    FileId, Job, JobInput, JobKind, Level, Placement, Reason, RunId, RunningJobs, SplitRule,
    Target, TreeShape,
};

use crate::options::value_separation::ValueSeparation;
use crate::tree::version::{BlobSet, Run, TableFile, Version};

/// What one job copies at most, as a part of all that is referenced; or one file if that is more.
const COPIED_PART: u64 = 8;

/// A job that empties blob files.
#[derive(Debug)]
pub(crate) struct Collection {
    pub(crate) job: Job,
    /// The files.
    pub(crate) victims: BTreeSet<FileId>,
}

/// A blob file by what it would bring to empty it.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: FileId,
    /// Bytes of its records.
    bytes: u64,
    /// Bytes of those that tables reference.
    referenced: u64,
}

impl Candidate {
    fn garbage(&self) -> u64 {
        self.bytes.saturating_sub(self.referenced)
    }

    /// In millionths.
    fn garbage_ppm(&self) -> u64 {
        let share = u128::from(self.garbage()) * 1_000_000 / u128::from(self.bytes.max(1));
        u64::try_from(share).unwrap_or(1_000_000)
    }
}

/// Bytes that the blob files may still grow by for what is referenced of them; below 0 if they have too many.
fn slack(blobs: &BlobSet, separation: &ValueSeparation) -> f64 {
    let (mut bytes, mut referenced) = (0u64, 0u64);
    for used in blobs.files() {
        bytes += used.file.record().record_bytes();
        referenced += used.bytes;
    }
    referenced as f64 * separation.space_amplification_max - bytes as f64
}

/// Whether the blob files have more bytes than is allowed for what is referenced of them.
pub(crate) fn is_urgent(blobs: &BlobSet, separation: &ValueSeparation) -> bool {
    slack(blobs, separation) < 0.0
}

/// The blob files whose values merges may copy though nothing has to be freed: as many as may be garbage once
/// they are copied whole.
///
/// All merges have to choose the same, whatever keys they are over, or each leaves its part of many files behind as
/// garbage, and none is ever emptied. So it is not those of which a merge meets least, but those of which
/// a table has least on average, and before others those that lost most.
pub(crate) fn gatherable(version: &Version, separation: &ValueSeparation) -> BTreeSet<FileId> {
    let mut tables = BTreeMap::new();
    let all = version.runs().iter().flat_map(|run| run.tables().iter());
    for used in all.flat_map(|table| table.blobs()) {
        *tables.entry(used.file.record().id).or_insert(0u32) += 1;
    }
    let files = version.blobs().files().map(|used| {
        let (record, referenced) = (used.file.record(), used.bytes as f64);
        let alive = referenced / record.record_bytes().max(1) as f64;
        let density = referenced / f64::from(tables.get(&record.id).copied().unwrap_or(1));
        (alive * density, record.id, referenced)
    });
    let mut files: Vec<_> = files.collect();
    files.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut slack = slack(version.blobs(), separation);
    let fitting = files.into_iter().filter(|&(.., referenced)| {
        let fits = referenced <= slack;
        slack -= if fits { referenced } else { 0.0 };
        fits
    });
    fitting.map(|(_, id, _)| id).collect()
}

/// The files to be emptied, worst first; none of those that cannot be read.
fn bad_files(
    blobs: &BlobSet,
    separation: &ValueSeparation,
    quarantined: &BTreeSet<FileId>,
) -> Vec<Candidate> {
    let urgent = is_urgent(blobs, separation);
    let readable = blobs.files().filter(|used| !quarantined.contains(&used.file.record().id));
    let candidates = readable.map(|used| Candidate {
        id: used.file.record().id,
        bytes: used.file.record().record_bytes(),
        referenced: used.bytes,
    });
    let is_bad = |file: &Candidate| {
        let past = file.garbage() as f64 > file.bytes as f64 * separation.garbage_ratio;
        file.garbage() > 0 && (urgent || past)
    };
    let mut bad: Vec<_> = candidates.filter(is_bad).collect();
    bad.sort_by_key(|file| (Reverse(file.garbage_ppm()), file.id));
    let all: u64 = blobs.files().map(|used| used.bytes).sum();
    let mut left = all / COPIED_PART;
    let taken = bad.iter().enumerate().take_while(|(index, file)| {
        let fits = file.referenced <= left;
        left = left.saturating_sub(file.referenced);
        fits || *index == 0
    });
    let count = taken.count();
    bad.truncate(count);
    bad
}

/// Looks for a job that empties blob files, of tables that nobody is at, into tables of so many bytes.
pub(crate) fn look(
    version: &Version,
    shape: &TreeShape,
    (busy, quarantined): (&RunningJobs, &BTreeSet<FileId>),
    (separation, table_bytes): (&ValueSeparation, u64),
) -> Option<Collection> {
    let bad = bad_files(version.blobs(), separation, quarantined);
    let worst = *bad.first()?;
    let victims: BTreeSet<FileId> = bad.iter().map(|file| file.id).collect();
    let mut runs: Vec<_> = version
        .runs()
        .iter()
        .zip(version.shape().runs())
        .map(|(run, (level, shape))| (referenced(run, &victims), level, shape.id, run))
        .filter(|(bytes, ..)| *bytes > 0)
        .collect();
    // Stable, so that of equals the newest comes first.
    runs.sort_by_key(|(bytes, ..)| Reverse(*bytes));
    for (_, level, run, open) in runs {
        let points = |table: &&Arc<TableFile>| bytes_in(table, &victims) > 0;
        let free = |table: &&Arc<TableFile>| !busy.is_busy(table.shape().id);
        let tables: Vec<_> = open.tables().iter().filter(points).filter(free).collect();
        if tables.is_empty() {
            continue;
        }
        let job = |tables: &[&Arc<TableFile>]| job((level, run), tables, table_bytes, worst);
        let whole = busy.admit(job(&tables), shape);
        // Jobs into the level may be in the way of some.
        let mut single =
            tables.iter().filter_map(|table| busy.admit(job(std::slice::from_ref(table)), shape));
        if let Some(job) = whole.or_else(|| single.next()) {
            return Some(Collection { job, victims });
        }
    }
    None
}

/// What a run references of these files.
fn referenced(run: &Run, victims: &BTreeSet<FileId>) -> u64 {
    run.tables().iter().map(|table| bytes_in(table, victims)).sum()
}

fn bytes_in(table: &TableFile, victims: &BTreeSet<FileId>) -> u64 {
    let uses = table.blobs().iter().filter(|used| victims.contains(&used.file.record().id));
    uses.map(|used| used.bytes).sum()
}

/// Each table becomes one again, unless that would have more than so many bytes, with the same bounds at
/// most.
fn job(
    (level, run): (Level, RunId),
    tables: &[&Arc<TableFile>],
    file_bytes: u64,
    worst: Candidate,
) -> Job {
    let starts = tables.iter().skip(1).map(|table| table.shape().range.smallest.clone());
    Job {
        kind: JobKind::Rewrite,
        inputs: vec![JobInput {
            level,
            run,
            files: tables.iter().map(|table| table.shape().id).collect(),
        }],
        target: Target { level, placement: Placement::JoinRun(run) },
        split: SplitRule { file_bytes, grandparent: None, boundaries: starts.collect() },
        reason: Reason::BlobGarbage { blob: worst.id, ppm: worst.garbage_ppm() },
    }
}

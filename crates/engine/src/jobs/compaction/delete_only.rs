//! Delete-only compactions: drop files whose entries no reader can see, without reading the files.
//!
//! A file can be dropped in two cases:
//!
//! 1. Range tombstones in newer runs cover the whole key range of the file and are newer than all of its entries. Every
//!    snapshot that sees an entry of the file also sees these range tombstones. They exist at least as long as the
//!    file, because a job drops a range tombstone only if no older run overlaps it. They also hide all older versions
//!    of these keys, so the tombstones in the file are not needed any more.
//! 2. No older run overlaps the file, and either the file has no entries, or its own range tombstones cover its whole
//!    key range.
//!
//! A file that meets the conditions of case 1 meets them later as well, because later snapshots also see these range
//! tombstones. If only a snapshot needs a file, the file is checked again after the release of a snapshot.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::tombstone_index::TombstoneIndex;
use lsmx_compaction::{
    Job, JobInput, JobKind, JobReason, Level, OutputPlacement, OutputTarget, SortedRun, SplitRule,
    TableMeta, TreeShape,
};

/// Result of a search for files to drop.
#[derive(Debug, Default)]
pub(crate) struct DeleteOnlyPick {
    /// Job that drops all files that were found.
    pub(crate) job: Option<Job>,
    /// True if further files can be dropped after snapshots are released.
    pub(crate) waits_for_snapshot: bool,
}

/// Returns a job that drops all files whose entries no reader can see. Files for which `busy` returns true are skipped.
///
/// `tombstones` contains the range tombstones of all tables. `snapshots` must be in ascending order and must be read
/// after `shape`.
pub(crate) fn pick_delete_only(
    shape: &TreeShape,
    tombstones: &TombstoneIndex,
    snapshots: &[SeqNo],
    busy: impl Fn(&TableMeta) -> bool,
) -> DeleteOnlyPick {
    let mut pick = DeleteOnlyPick::default();
    let mut inputs = Vec::new();
    let runs: Vec<_> = shape.runs().collect();
    for (index, (level, run)) in runs.iter().enumerate() {
        let mut files = Vec::new();
        for file in &run.files {
            let is_last_run = || !runs[index + 1..].iter().any(|(_, run)| overlaps(run, file));
            let is_obsolete = match compute_coverage(tombstones, snapshots, file) {
                Coverage::NewerTombstones => true,
                Coverage::OwnTombstones => is_last_run(),
                _ if file.entries == 0 => is_last_run(),
                Coverage::VisibleToSnapshot => {
                    pick.waits_for_snapshot = true;
                    false
                }
                Coverage::None => false,
            };
            if is_obsolete && !busy(file) {
                files.push(file.id);
            }
        }
        if !files.is_empty() {
            inputs.push(JobInput { level: *level, run: run.id, files });
        }
    }
    pick.job = (!inputs.is_empty()).then(|| Job {
        kind: JobKind::Drop,
        inputs,
        target: OutputTarget {
            level: Level(0),
            placement: OutputPlacement::NewRun { before: None },
        },
        split: SplitRule { file_bytes: u64::MAX, grandparent: None, boundaries: Vec::new() },
        reason: JobReason::RangeDeleted,
    });
    pick
}

fn overlaps(run: &SortedRun, file: &TableMeta) -> bool {
    !run.files.overlapping_indices(&file.range).is_empty()
}

/// Coverage of the key range of a file by range tombstones. The larger the value, the more files can be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Coverage {
    None,
    /// A snapshot still sees entries of the file.
    VisibleToSnapshot,
    /// Range tombstones cover the key range, but some of them may be in the file itself.
    OwnTombstones,
    /// Range tombstones in newer files cover the key range.
    NewerTombstones,
}

fn compute_coverage(
    tombstones: &TombstoneIndex,
    snapshots: &[SeqNo],
    file: &TableMeta,
) -> Coverage {
    let (smallest, largest) = (SeqNo(file.seq_smallest), SeqNo(file.seq_largest));
    let first_seeing = snapshots.partition_point(|snapshot| *snapshot < smallest);
    let limit = match snapshots.get(first_seeing) {
        Some(_) if failpoint::is_on(Failpoint::CoveredFileDroppedEarly) => SeqNo::MAX,
        Some(snapshot) => *snapshot,
        None => SeqNo::MAX,
    };
    let mut coverage = Coverage::NewerTombstones;
    let mut start = &file.range.smallest;
    loop {
        let (visible, newest) =
            (tombstones.coverage_range(start, limit), tombstones.coverage_range(start, SeqNo::MAX));
        // A range tombstone and an entry never have the same sequence number. A range tombstone with the largest
        // sequence number of the file is therefore newer than all entries of the file.
        let coverage_here = match (visible.newest, newest.newest) {
            (Some(seq), _) if seq > largest => Coverage::NewerTombstones,
            (Some(seq), _) if seq == largest => Coverage::OwnTombstones,
            (_, Some(newest)) if newest >= largest => Coverage::VisibleToSnapshot,
            _ => return Coverage::None,
        };
        coverage = coverage.min(coverage_here);
        let end = match (visible.end, newest.end) {
            (Some(first), Some(second)) => Some(first.min(second)),
            (first, second) => first.or(second),
        };
        match end {
            Some(end) if *end <= file.range.largest => start = end,
            _ => return coverage,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lsmx_base::sync::Arc;
    use lsmx_compaction::{FileId, KeyRange};

    use super::*;
    use lsmx_base::range_tombstone::{RangeTombstone, build_index};

    fn tombstone(start: &'static str, end: Option<&'static str>, seqs: &[u64]) -> RangeTombstone {
        let (start, end) = (Bytes::from(start), end.map(Bytes::from));
        RangeTombstone { start, end, seqs: seqs.iter().copied().map(SeqNo).collect() }
    }

    fn file(
        id: u64,
        range: (&'static str, &'static str),
        seqs: (u64, u64),
        entries: u64,
    ) -> Arc<TableMeta> {
        Arc::new(TableMeta {
            bytes: 10,
            entries,
            seq_smallest: seqs.0,
            seq_largest: seqs.1,
            ..TableMeta::new(FileId(id), KeyRange::new(range.0, range.1))
        })
    }

    fn coverage_with(tombstones: &[RangeTombstone], snapshots: &[u64]) -> Coverage {
        let snapshots: Vec<_> = snapshots.iter().copied().map(SeqNo).collect();
        compute_coverage(&build_index(tombstones), &snapshots, &file(1, ("d", "m"), (10, 20), 5))
    }

    #[test]
    fn coverage_adjacent_tombstones_cover_and_a_gap_does_not() {
        assert_eq!(coverage_with(&[tombstone("a", None, &[21])], &[]), Coverage::NewerTombstones);
        assert_eq!(
            coverage_with(&[tombstone("d", Some("m\0"), &[21])], &[]),
            Coverage::NewerTombstones
        );
        assert_eq!(coverage_with(&[tombstone("d", Some("m"), &[21])], &[]), Coverage::None);
        assert_eq!(coverage_with(&[tombstone("d\0", None, &[21])], &[]), Coverage::None);
        let halves = [tombstone("a", Some("g"), &[30]), tombstone("g", Some("z"), &[25])];
        assert_eq!(coverage_with(&halves, &[]), Coverage::NewerTombstones);
        let apart = [tombstone("a", Some("g"), &[30]), tombstone("g\0", Some("z"), &[25])];
        assert_eq!(coverage_with(&apart, &[]), Coverage::None);
        assert_eq!(coverage_with(&[], &[]), Coverage::None);
    }

    #[test]
    fn coverage_tombstone_older_than_an_entry_is_none() {
        assert_eq!(coverage_with(&[tombstone("a", None, &[20])], &[]), Coverage::OwnTombstones);
        assert_eq!(
            coverage_with(&[tombstone("a", None, &[20])], &[15]),
            Coverage::VisibleToSnapshot
        );
        assert_eq!(coverage_with(&[tombstone("a", None, &[19])], &[]), Coverage::None);
        let halves = [tombstone("a", Some("g"), &[30]), tombstone("g", Some("z"), &[20])];
        assert_eq!(coverage_with(&halves, &[]), Coverage::OwnTombstones);
    }

    #[test]
    fn coverage_snapshot_between_file_and_tombstone_is_visible() {
        let all = [tombstone("a", None, &[30])];
        for (snapshots, expected) in [
            (&[9][..], Coverage::NewerTombstones),
            (&[10], Coverage::VisibleToSnapshot),
            (&[29], Coverage::VisibleToSnapshot),
            (&[30], Coverage::NewerTombstones),
            (&[9, 30], Coverage::NewerTombstones),
            (&[9, 15, 40], Coverage::VisibleToSnapshot),
        ] {
            assert_eq!(coverage_with(&all, snapshots), expected, "{snapshots:?}");
        }
        // The snapshot sees the older range tombstone, but not the newer one.
        assert_eq!(
            coverage_with(&[tombstone("a", None, &[30, 22])], &[25]),
            Coverage::NewerTombstones
        );
    }

    #[test]
    fn pick_file_of_tombstones_over_empty_runs_is_dropped() {
        let shape = TreeShape::default()
            .with_flushed_run(vec![file(1, ("d", "m"), (10, 20), 5)])
            .unwrap()
            .shape;
        let shape = shape.with_flushed_run(vec![file(2, ("a", "z"), (30, 30), 0)]).unwrap().shape;
        let tombstones = build_index(&[tombstone("a", Some("z\0"), &[30])]);
        let pick = pick_delete_only(&shape, &tombstones, &[], |_| false);
        let job = pick.job.unwrap();
        assert_eq!(job.to_string(), "drop L0{1}   why: covered by range tombstones");
        let shape = shape.apply_job(&job, Vec::new()).unwrap().shape;
        assert!(
            pick_delete_only(&shape, &tombstones, &[], |file| file.id == FileId(2)).job.is_none()
        );
        let job = pick_delete_only(&shape, &tombstones, &[SeqNo(5)], |_| false).job.unwrap();
        assert_eq!(shape.apply_job(&job, Vec::new()).unwrap().shape.files().count(), 0);
    }
}

//! Files that nobody can see into any more leave the tree without being read.
//!
//! 1. A file whose whole range is covered by range deletes that are newer than anything in it, with no
//!    registered snapshot in between. Those lie in newer runs, and stay there as long as the file
//!    does: a job drops a range delete only when no older run overlaps it. What is older than the
//!    file in its range is hidden by the same range deletes, so no tombstone of it is missed.
//! 2. A file without entries, or one that is covered so by its own range deletes, below which nothing is
//!    left that those could delete.
//!
//! Whether that is so never changes back: a snapshot taken later sees the range deletes. What stays
//! for a snapshot alone is looked at again when one has been let go.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::tombstone_index::TombstoneIndex;
use lsmx_compaction::{
    Job, JobInput, JobKind, Level, Placement, Reason, SortedRun, SplitRule, TableMeta, Target,
    TreeShape,
};

/// What a look at a tree found.
#[derive(Debug, Default)]
pub(crate) struct Covered {
    /// Lets the files go that can go now.
    pub(crate) job: Option<Job>,
    /// Whether others could but for a snapshot.
    pub(crate) held: bool,
}

/// Looks for files that can go. `snapshots` are the registered ones, ascending, listed after the shape
/// was; `spans` are all range deletes of its tables; files in `busy` are left alone.
pub(crate) fn look(
    shape: &TreeShape,
    spans: &TombstoneIndex,
    snapshots: &[SeqNo],
    busy: impl Fn(&TableMeta) -> bool,
) -> Covered {
    let mut found = Covered::default();
    let mut inputs = Vec::new();
    let runs: Vec<_> = shape.runs().collect();
    for (index, (level, run)) in runs.iter().enumerate() {
        let mut files = Vec::new();
        for file in &run.files {
            let last = || !runs[index + 1..].iter().any(|(_, run)| overlaps(run, file));
            let goes = match cover(spans, snapshots, file) {
                Cover::ByNewer => true,
                Cover::ByItself => last(),
                _ if file.entries == 0 => last(),
                Cover::ButForSnapshots => {
                    found.held = true;
                    false
                }
                Cover::No => false,
            };
            if goes && !busy(file) {
                files.push(file.id);
            }
        }
        if !files.is_empty() {
            inputs.push(JobInput { level: *level, run: run.id, files });
        }
    }
    found.job = (!inputs.is_empty()).then(|| Job {
        kind: JobKind::Drop,
        inputs,
        target: Target { level: Level(0), placement: Placement::NewRun { before: None } },
        split: SplitRule { file_bytes: u64::MAX, grandparent: None, boundaries: Vec::new() },
        reason: Reason::RangeDeleted,
    });
    found
}

fn overlaps(run: &SortedRun, file: &TableMeta) -> bool {
    !run.overlapping_indices(&file.range).is_empty()
}

/// How range deletes cover the range of a file, from worse to better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cover {
    No,
    /// A registered snapshot sees into the file.
    ButForSnapshots,
    /// With one that may be its own.
    ByItself,
    ByNewer,
}

fn cover(spans: &TombstoneIndex, snapshots: &[SeqNo], file: &TableMeta) -> Cover {
    let (smallest, largest) = (SeqNo(file.seq_smallest), SeqNo(file.seq_largest));
    let first_that_sees = snapshots.partition_point(|snapshot| *snapshot < smallest);
    let limit = match snapshots.get(first_that_sees) {
        Some(_) if failpoint::is_on(Failpoint::CoveredFileDroppedEarly) => SeqNo::MAX,
        Some(snapshot) => *snapshot,
        None => SeqNo::MAX,
    };
    let mut cover = Cover::ByNewer;
    let mut from = &file.range.smallest;
    loop {
        let (visible, newest) =
            (spans.coverage_range(from, limit), spans.coverage_range(from, SeqNo::MAX));
        // The number of a range delete is that of no entry: one that is the file's largest is newer
        // than all its entries.
        let here = match (visible.newest, newest.newest) {
            (Some(seq), _) if seq > largest => Cover::ByNewer,
            (Some(seq), _) if seq == largest => Cover::ByItself,
            (_, Some(newest)) if newest >= largest => Cover::ButForSnapshots,
            _ => return Cover::No,
        };
        cover = cover.min(here);
        let end = match (visible.end, newest.end) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        match end {
            Some(end) if *end <= file.range.largest => from = end,
            _ => return cover,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lsmx_compaction::{FileId, KeyRange};

    use super::*;
    use lsmx_base::range_tombstone::{RangeTombstone, build_index};

    fn span(start: &'static str, end: Option<&'static str>, seqs: &[u64]) -> RangeTombstone {
        let (start, end) = (Bytes::from(start), end.map(Bytes::from));
        RangeTombstone { start, end, seqs: seqs.iter().copied().map(SeqNo).collect() }
    }

    fn file(
        id: u64,
        range: (&'static str, &'static str),
        seqs: (u64, u64),
        entries: u64,
    ) -> TableMeta {
        TableMeta {
            id: FileId(id),
            range: KeyRange::new(range.0, range.1),
            bytes: 10,
            entries,
            tombstones: 0,
            tombstone_seq_smallest: None,
            value_bytes: 0,
            oldest_tombstone_us: None,
            seq_smallest: seqs.0,
            seq_largest: seqs.1,
            last_read_us: 0,
            created_us: 0,
            creation: id,
        }
    }

    fn cover_of(spans: &[RangeTombstone], snapshots: &[u64]) -> Cover {
        let snapshots: Vec<_> = snapshots.iter().copied().map(SeqNo).collect();
        cover(&build_index(spans), &snapshots, &file(1, ("d", "m"), (10, 20), 5))
    }

    #[test]
    fn neighbouring_spans_cover_together_and_a_gap_does_not() {
        assert_eq!(cover_of(&[span("a", None, &[21])], &[]), Cover::ByNewer);
        assert_eq!(cover_of(&[span("d", Some("m\0"), &[21])], &[]), Cover::ByNewer);
        assert_eq!(cover_of(&[span("d", Some("m"), &[21])], &[]), Cover::No);
        assert_eq!(cover_of(&[span("d\0", None, &[21])], &[]), Cover::No);
        let halves = [span("a", Some("g"), &[30]), span("g", Some("z"), &[25])];
        assert_eq!(cover_of(&halves, &[]), Cover::ByNewer);
        let apart = [span("a", Some("g"), &[30]), span("g\0", Some("z"), &[25])];
        assert_eq!(cover_of(&apart, &[]), Cover::No);
        assert_eq!(cover_of(&[], &[]), Cover::No);
    }

    #[test]
    fn only_what_is_newer_than_the_whole_file_covers_it() {
        assert_eq!(cover_of(&[span("a", None, &[20])], &[]), Cover::ByItself);
        assert_eq!(cover_of(&[span("a", None, &[20])], &[15]), Cover::ButForSnapshots);
        assert_eq!(cover_of(&[span("a", None, &[19])], &[]), Cover::No);
        let halves = [span("a", Some("g"), &[30]), span("g", Some("z"), &[20])];
        assert_eq!(cover_of(&halves, &[]), Cover::ByItself);
    }

    #[test]
    fn a_snapshot_between_file_and_delete_holds_the_file() {
        let all = [span("a", None, &[30])];
        for (snapshots, expected) in [
            (&[9][..], Cover::ByNewer),
            (&[10], Cover::ButForSnapshots),
            (&[29], Cover::ButForSnapshots),
            (&[30], Cover::ByNewer),
            (&[9, 30], Cover::ByNewer),
            (&[9, 15, 40], Cover::ButForSnapshots),
        ] {
            assert_eq!(cover_of(&all, snapshots), expected, "{snapshots:?}");
        }
        // An older range delete is enough where the newer one is too new.
        assert_eq!(cover_of(&[span("a", None, &[30, 22])], &[25]), Cover::ByNewer);
    }

    #[test]
    fn a_file_of_range_deletes_goes_when_nothing_older_is_left() {
        let (shape, _) =
            TreeShape::default().with_flush(vec![file(1, ("d", "m"), (10, 20), 5)]).unwrap();
        let (shape, _) = shape.with_flush(vec![file(2, ("a", "z"), (30, 30), 0)]).unwrap();
        let spans = build_index(&[span("a", Some("z\0"), &[30])]);
        let found = look(&shape, &spans, &[], |_| false);
        let job = found.job.unwrap();
        assert_eq!(job.to_string(), "drop L0{1}   why: range deletes cover it");
        let shape = shape.apply(&job, Vec::new()).unwrap().shape;
        assert!(look(&shape, &spans, &[], |file| file.id == FileId(2)).job.is_none());
        let job = look(&shape, &spans, &[SeqNo(5)], |_| false).job.unwrap();
        assert_eq!(shape.apply(&job, Vec::new()).unwrap().shape.files().count(), 0);
    }
}

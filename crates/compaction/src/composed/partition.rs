//! Spooky: upper levels merge preemptively, the large ones group by group.
//!
//! Let X stand `above` levels over the last one. What is merged into X is cut where the files of the
//! last level begin ("dividing merge"), so that each of its files lies over one file of the last
//! level. Once X is full, the groups of files over one another are merged one at a time, in key
//! order, into the smallest level that can hold what X and the levels down to it have ("partitioned
//! merge"). Each merge is small beside the tree, wastes nothing at the edges of files, and needs
//! little room beside its outputs.
//!
//! A pass over X is not remembered apart from the level's cursor: it is under way while every file of
//! X lies behind the cursor.
//!
//! Source: Dayan et al., "Spooky", PVLDB 15 (2022), section 4.

use std::sync::Arc;

use super::leveling::Leveling;
use super::look::score;
use super::{L0, SCORE_DUE};
use crate::granularity::Granularity;
use crate::{
    CutRule, FileShape, Job, JobInput, JobKind, Key, KeyRange, Level, Placement, Reason, RunShape,
    Target,
};

impl Leveling<'_> {
    pub(super) fn pick_partition(&self, above: u8) -> Option<Job> {
        let shape = self.look.shape;
        let (first, last) = (self.first_partitioned(above), self.capacities.last);
        // Partitioned merges make room for dividing ones. A level below X that holds too much was
        // left so by another policy.
        let partitioned = (first.0..last.0).map(Level).find_map(|level| {
            let [run] = shape.runs_of(level) else { return None };
            let under_way = level == first && self.pass_is_under_way(level, run);
            let score_milli = score(run.bytes(), self.capacities.bytes(level));
            self.look.notes.score(level, "level-full", score_milli);
            let over =
                if level == first { score_milli >= SCORE_DUE } else { score_milli > SCORE_DUE };
            if !over && !under_way {
                return None;
            }
            let reason = Reason::LevelFull { level, score_milli };
            self.partitioned_job(level, run, under_way, &reason)
        });
        partitioned.or_else(|| self.pick_dividing(first))
    }

    /// The level whose groups are merged one by one. In a young tree that is the last level, and
    /// everything goes there at once.
    pub(super) fn first_partitioned(&self, above: u8) -> Level {
        Level(self.capacities.last.0.saturating_sub(above)).max(self.capacities.base)
    }

    /// A merge of L0, or of what does not fit above X, into a level down to X.
    fn pick_dividing(&self, first: Level) -> Option<Job> {
        self.sources(first).into_iter().find_map(|(level, reason)| {
            let shape = self.look.shape;
            if level > L0 && shape.runs_of(level).len() > 1 {
                return self.look.merge_in_place(level);
            }
            if level >= first {
                return None;
            }
            let target = self.reach_of_flush(level, first)?;
            let mut job = self.preemptive_job(level, target, reason)?;
            job.cut = match target {
                _ if target == self.capacities.last => self.last_cut(),
                _ if target == first => self.dividing_cut(),
                _ => one_file(),
            };
            Some(job)
        })
    }

    /// Outputs end where files of the last level begin.
    fn dividing_cut(&self) -> CutRule {
        let last = self.look.shape.runs_of(self.capacities.last);
        let boundaries: Vec<Key> = match last {
            [run] => run.files.iter().skip(1).map(|file| file.range.smallest.clone()).collect(),
            _ => Vec::new(),
        };
        let file_bytes = if boundaries.is_empty() { self.last_file_bytes() } else { u64::MAX };
        CutRule { file_bytes, grandparent: None, boundaries }
    }

    fn last_cut(&self) -> CutRule {
        let file_bytes = self.last_file_bytes();
        CutRule { file_bytes, grandparent: None, boundaries: Vec::new() }
    }

    /// Bytes of a file in the last level: the capacity of X.
    fn last_file_bytes(&self) -> u64 {
        let above = match self.rule.granularity {
            Granularity::Partition { above } => above,
            _ => 0,
        };
        let bytes = self.capacities.bytes(self.first_partitioned(above));
        if bytes == u64::MAX { self.look.file_bytes() } else { bytes.max(self.look.file_bytes()) }
    }

    fn cursor(&self, level: Level) -> Option<&Key> {
        self.look.shape.level(level).and_then(|level| level.cursor.as_ref())
    }

    fn pass_is_under_way(&self, level: Level, run: &RunShape) -> bool {
        let Some(first) = run.files.first() else { return false };
        self.cursor(level).is_some_and(|cursor| first.range.smallest > *cursor)
    }

    /// The next group of files over one another, merged into one level.
    fn partitioned_job(
        &self,
        level: Level,
        run: &RunShape,
        under_way: bool,
        reason: &Reason,
    ) -> Option<Job> {
        let target = self.partition_target(level, under_way)?;
        if self.look.shape.runs_of(target).len() > 1 {
            return self.look.merge_in_place(target);
        }
        let free = |file: &&Arc<FileShape>| !self.look.busy.is_busy(file.id);
        run.files.iter().filter(free).find_map(|file| {
            let range = self.group_range(level, target, &file.range);
            let mut inputs = Vec::new();
            let mut overlaps_below = false;
            for between in (level.0..=target.0).map(Level) {
                for run in self.look.shape.runs_of(between) {
                    let files = run.overlapping(&range);
                    if !files.is_empty() {
                        overlaps_below |= between > level;
                        let files = files.iter().map(|file| file.id).collect();
                        inputs.push(JobInput { level: between, run: run.id, files });
                    }
                }
            }
            let placement = match self.look.shape.runs_of(target) {
                [run] => Placement::JoinRun(run.id),
                _ => Placement::NewRun { before: None },
            };
            let kind = if overlaps_below { JobKind::Merge } else { JobKind::Move };
            let cut = match target {
                _ if target == self.capacities.last => self.last_cut(),
                _ => self.dividing_cut(),
            };
            let target = Target { level: target, placement };
            self.look.admitted(Job { kind, inputs, target, cut, reason: reason.clone() })
        })
    }

    /// The smallest level that can hold what X and all levels down to it have. Of a pass that is
    /// under way, the first level that still has something where it has been: the levels above it
    /// were emptied there.
    fn partition_target(&self, level: Level, under_way: bool) -> Option<Level> {
        let (shape, last) = (self.look.shape, self.capacities.last);
        if under_way && let Some(cursor) = self.cursor(level) {
            let reached = |below: &Level| {
                let runs = shape.runs_of(*below).iter();
                runs.flat_map(|run| run.files.first()).any(|file| file.range.smallest <= *cursor)
            };
            return (level.0 + 1..=last.0).map(Level).find(reached).or(Some(last));
        }
        self.reach_of_flush(level, last)
    }

    /// The range of the group that a file of `level` belongs to: whatever lies over or under it down to
    /// `target`, as far as that overlaps. Small files of the target come along until they make a
    /// large one.
    fn group_range(&self, level: Level, target: Level, range: &KeyRange) -> KeyRange {
        let shape = self.look.shape;
        let mut range = range.clone();
        let between = || (level.0..=target.0).map(Level).flat_map(|level| shape.runs_of(level));
        // Groups overlap perfectly but for what another policy has left, so this ends soon.
        loop {
            let mut wider = range.clone();
            for run in between() {
                let files = run.overlapping(&wider);
                let ranges = files.iter().map(|file| &file.range).chain([&wider]);
                wider = KeyRange::hull_of(ranges).unwrap_or(wider);
            }
            let grew = wider != range;
            range = wider;
            if grew {
                continue;
            }
            let [run] = shape.runs_of(target) else { return range };
            let indices = run.overlapping_indices(&range);
            let bytes: u64 = run.files[indices.clone()].iter().map(|file| file.bytes).sum();
            let small = target == self.capacities.last && bytes < self.last_file_bytes() / 4;
            match run.files.get(indices.end) {
                Some(next) if small && !self.look.busy.is_busy(next.id) => {
                    range = KeyRange::hull_of([&range, &next.range]).unwrap_or(range);
                }
                _ => return range,
            }
        }
    }
}

/// A run of one file, however large.
fn one_file() -> CutRule {
    CutRule { file_bytes: u64::MAX, grandparent: None, boundaries: Vec::new() }
}

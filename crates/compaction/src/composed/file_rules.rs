//! Triggers that test single files of all levels: tombstone density, tombstone age, file age, expired entries, and the
//! bound within which deleted values must be removed.
//!
//! A file with tombstones moves down, one level at a time, until no older file overlaps it. It is then rewritten
//! without its tombstones. The sequence of such jobs is therefore finite. Tombstones that a snapshot needs make a job
//! due only for delete persistence.

use std::sync::Arc;

use crate::composed::context::{PickContext, is_oldest_in_range};
use crate::composed::primitives::{CompactionRule, L0, PolicyPrimitives};
use crate::delete_persistence::DeletePersistence;
use crate::explain::CANDIDATES_MAX;
use crate::ids::Level;
use crate::job::{Job, JobInput, JobKind, JobReason, OutputTarget};
use crate::key_range::KeyRange;
use crate::run::SortedRun;
use crate::shape::TreeShape;
use crate::table_meta::TableMeta;
use crate::trigger::Trigger;
use crate::ttl::TombstoneAges;

/// Condition that makes a file due.
enum FileDueCondition<'a> {
    Density {
        ppm: u64,
    },
    TombstoneAge(TombstoneAges),
    /// The file is older than `ttl_us` and not in the oldest run.
    Stale {
        ttl_us: u64,
        oldest: Option<&'a SortedRun>,
    },
}

impl<'a> FileDueCondition<'a> {
    /// Returns the condition of a trigger. Returns `None` if the trigger does not test single files.
    fn from_trigger(trigger: &Trigger, shape: &'a TreeShape) -> Option<FileDueCondition<'a>> {
        Some(match *trigger {
            Trigger::TombstoneDensity { ppm } => FileDueCondition::Density { ppm },
            Trigger::TombstoneTtl { bound_us, size_ratio } => {
                FileDueCondition::TombstoneAge(TombstoneAges::new(shape, bound_us, size_ratio))
            }
            Trigger::FileStaleness { ttl_us } => {
                FileDueCondition::Stale { ttl_us, oldest: shape.last_run().map(|(_, run)| &**run) }
            }
            _ => return None,
        })
    }

    /// Returns the reason for a job if the file is due, otherwise `None`.
    fn due_job_reason(
        &self,
        shape: &TreeShape,
        level: Level,
        run: &SortedRun,
        file: &TableMeta,
    ) -> Option<JobReason> {
        if let FileDueCondition::Density { ppm } = self {
            let density = tombstone_ppm(file);
            let is_due = density >= *ppm && shape.has_droppable_tombstone(file);
            return is_due.then_some(JobReason::TombstoneDensity { file: file.id, ppm: density });
        }
        let due_us = self.file_due_us(shape, level, run, file)?;
        if due_us > shape.now_us {
            return None;
        }
        Some(match self {
            FileDueCondition::Stale { .. } => {
                let age_us = shape.now_us.saturating_sub(file.created_us);
                JobReason::Stale { file: file.id, age_us }
            }
            _ => {
                let since_us = file.oldest_tombstone_us.unwrap_or(file.created_us);
                let age_us = shape.now_us.saturating_sub(since_us);
                JobReason::TombstoneAge { file: file.id, age_us }
            }
        })
    }

    /// Returns the time at which the file becomes due without further writes.
    fn file_due_us(
        &self,
        shape: &TreeShape,
        level: Level,
        run: &SortedRun,
        file: &TableMeta,
    ) -> Option<u64> {
        match self {
            FileDueCondition::Density { .. } => None,
            FileDueCondition::TombstoneAge(ages) => ages.file_due_us(shape, level, file),
            FileDueCondition::Stale { ttl_us, oldest } => (oldest
                .is_none_or(|oldest| oldest.id != run.id))
            .then(|| file.created_us.saturating_add(*ttl_us)),
        }
    }

    /// Returns whether the condition depends on tombstones. If so, rewriting a file that no older file overlaps removes
    /// its tombstones, and the file is no longer due.
    fn needs_tombstones(&self) -> bool {
        !matches!(self, FileDueCondition::Stale { .. })
    }

    /// Returns the files of a run that may be due, each with its index.
    fn candidate_files<'r>(
        &self,
        run: &'r SortedRun,
    ) -> Box<dyn Iterator<Item = (usize, &'r Arc<TableMeta>)> + 'r> {
        match self {
            FileDueCondition::Stale { .. } => Box::new(run.files.iter().enumerate()),
            _ => Box::new(run.files.with_tombstones()),
        }
    }
}

/// Returns the number of tombstones per million entries. The result may exceed one million, because range tombstones do
/// not count as entries.
fn tombstone_ppm(file: &TableMeta) -> u64 {
    let ppm = u128::from(file.tombstones) * 1_000_000 / u128::from(file.entries.max(1));
    u64::try_from(ppm).unwrap_or(u64::MAX)
}

/// A file that is due because of a rule.
pub(super) struct FileToCompact<'a> {
    pub(super) level: Level,
    pub(super) run: &'a Arc<SortedRun>,
    /// Index of the file in its run.
    pub(super) index: usize,
    pub(super) reason: JobReason,
    /// True if the job rewrites the file in place instead of merging it into older runs. For a file with due
    /// tombstones, this is possible if no older file overlaps the file.
    pub(super) can_rewrite: bool,
}

/// Returns the files that are due because of a rule and not busy, in the order of the rule's file picker.
pub(super) fn find_due_files<'a>(
    context: &PickContext<'a>,
    rule: &CompactionRule,
) -> Vec<FileToCompact<'a>> {
    let shape = context.shape;
    let Some(condition) = FileDueCondition::from_trigger(&rule.trigger, shape) else {
        return Vec::new();
    };
    let mut due = Vec::new();
    for (level, run) in shape.runs() {
        for (index, file) in condition.candidate_files(run) {
            if context.running.is_file_busy(file.id) {
                continue;
            }
            let Some(reason) = condition.due_job_reason(shape, level, run, file) else {
                continue;
            };
            let range = rewritten_range(level, run, file);
            let can_rewrite =
                condition.needs_tombstones() && is_oldest_in_range(shape, level, run, &range);
            due.push(FileToCompact { level, run, index, reason, can_rewrite });
        }
    }
    due.sort_by_key(|due| (rule.movement.rank(&due.run.files[due.index]), due.level, due.index));
    context.explanation.add_candidates(|| {
        let line = |due: &FileToCompact<'_>| format!("in {}: {}", due.level, due.reason);
        due.iter().take(CANDIDATES_MAX).map(line).collect()
    });
    due
}

/// Returns the key range of a job that rewrites a file. In L0, the job takes the whole run.
fn rewritten_range(level: Level, run: &SortedRun, file: &TableMeta) -> KeyRange {
    run.range().filter(|_| level == L0).unwrap_or_else(|| file.range.clone())
}

/// A file, and the time at which delete persistence makes the file due.
struct PersistenceDeadline<'a> {
    due_us: u64,
    level: Level,
    run: &'a Arc<SortedRun>,
    index: usize,
    /// True if an expired entry makes the file due, false if a tombstone does.
    has_expired: bool,
}

impl<'a> PersistenceDeadline<'a> {
    fn file(&self) -> &'a Arc<TableMeta> {
        &self.run.files[self.index]
    }
}

/// Returns the files that delete persistence makes due without further writes, each with the time at which it is due. A
/// file with tombstones and with expiring entries occurs twice.
///
/// 1. A tombstone is due at the maximum age of its level, or at once if its age is unknown. If a snapshot needs the
///    tombstone, the file still moves down, so that jobs remove the values that no snapshot needs. Such a file is due
///    only while an older file overlaps it.
/// 2. An expired entry is due after its part of the bound, unless a snapshot still sees it.
fn persistence_deadlines<'a>(
    primitives: &PolicyPrimitives,
    shape: &'a TreeShape,
) -> Vec<PersistenceDeadline<'a>> {
    let Some(bound_us) = shape.delete_persistence_us.filter(|_| !primitives.can_drop_data()) else {
        return Vec::new();
    };
    let parts = DeletePersistence::new(bound_us);
    let ages = parts.tombstone_ages(shape, primitives.size_ratio());
    let mut deadlines = Vec::new();
    for (level, run) in shape.runs() {
        for (index, file) in run.files.with_tombstones() {
            let may_remove = || {
                let range = rewritten_range(level, run, file);
                shape.has_droppable_tombstone(file)
                    || !is_oldest_in_range(shape, level, run, &range)
            };
            let due_us =
                file.oldest_tombstone_us.map_or(0, |us| us.saturating_add(ages.level_us(level)));
            if may_remove() {
                let has_expired = false;
                deadlines.push(PersistenceDeadline { due_us, level, run, index, has_expired });
            }
        }
        for (index, file) in run.files.with_expiring_entries() {
            let Some(expiry) = &file.expiry else { continue };
            // Without a snapshot, `expiry_limit_us` is the current time, so no entry is held.
            let is_held =
                expiry.earliest_us <= shape.now_us && expiry.earliest_us > shape.expiry_limit_us;
            if !is_held {
                let (due_us, has_expired) =
                    (expiry.earliest_us.saturating_add(parts.expiry_us()), true);
                deadlines.push(PersistenceDeadline { due_us, level, run, index, has_expired });
            }
        }
    }
    deadlines
}

/// Returns the files that delete persistence makes due and that are not busy. The file that was due first comes first.
pub(super) fn find_files_due_by_persistence<'a>(
    context: &PickContext<'a>,
) -> Vec<FileToCompact<'a>> {
    let shape = context.shape;
    let is_due = |deadline: &PersistenceDeadline<'_>| {
        deadline.due_us <= shape.now_us && !context.running.is_file_busy(deadline.file().id)
    };
    let mut deadlines = persistence_deadlines(context.primitives, shape);
    deadlines.retain(is_due);
    deadlines.sort_by_key(|due| (due.due_us, due.level, due.index));
    let due: Vec<_> = deadlines
        .into_iter()
        .map(|deadline| {
            let PersistenceDeadline { level, run, index, has_expired, .. } = deadline;
            let file = deadline.file();
            let since_us = match (&file.expiry, has_expired) {
                (Some(expiry), true) => expiry.earliest_us,
                _ => file.oldest_tombstone_us.unwrap_or(file.created_us),
            };
            let (file_id, age_us) = (file.id, shape.now_us.saturating_sub(since_us));
            let reason = match has_expired {
                true => JobReason::EntryExpired { file: file_id, age_us },
                false => JobReason::TombstoneAge { file: file_id, age_us },
            };
            let range = rewritten_range(level, run, file);
            let can_rewrite = has_expired || is_oldest_in_range(shape, level, run, &range);
            FileToCompact { level, run, index, reason, can_rewrite }
        })
        .collect();
    context.explanation.add_candidates(|| {
        let line = |due: &FileToCompact<'_>| format!("in {}: {}", due.level, due.reason);
        due.iter().take(CANDIDATES_MAX).map(line).collect()
    });
    due
}

/// Returns whether delete persistence is set and a snapshot prevents the removal of a tombstone or an expired entry.
pub(super) fn is_persistence_held(shape: &TreeShape) -> bool {
    let is_held = |us: u64| us <= shape.now_us && us > shape.expiry_limit_us;
    shape.delete_persistence_us.is_some()
        && shape.files().any(|file| {
            (file.tombstones > 0 && !shape.has_droppable_tombstone(file))
                || file.expiry.is_some_and(|expiry| is_held(expiry.earliest_us))
        })
}

/// Returns a job that rewrites the file. In L0, the job rewrites the whole run of the file.
pub(super) fn rewrite_job(context: &PickContext<'_>, due: &FileToCompact<'_>) -> Option<Job> {
    let FileToCompact { level, run, index, .. } = *due;
    let input = match level {
        L0 => JobInput::from_run(L0, run),
        _ => JobInput::from_files(level, run, index..index + 1),
    };
    let target = OutputTarget::join_run(level, run.id);
    context.build_job(JobKind::Rewrite, vec![input], target, due.reason.clone())
}

/// Returns a job for a file of which half has expired, see [`TableMeta::half_expired_us`]. Prefers the file that reached
/// this share first.
///
/// Every layout except FIFO uses this rule. The job rewrites the file in place. It drops each expired entry, or
/// replaces the entry by a tombstone if an older version may exist. The remaining entries expire later, so the file is
/// no longer due.
pub(super) fn pick_expired_file_job(context: &PickContext<'_>) -> Option<Job> {
    let shape = context.shape;
    let mut due = Vec::new();
    for (level, run) in shape.runs() {
        for (index, file) in run.files.with_expiring_entries() {
            let Some(due_us) = file.half_expired_us().filter(|us| *us <= shape.expiry_limit_us)
            else {
                continue;
            };
            if context.running.is_file_busy(file.id) {
                continue;
            }
            let age_us = shape.now_us.saturating_sub(due_us);
            let reason = JobReason::Expired { file: file.id, age_us };
            due.push((due_us, FileToCompact { level, run, index, reason, can_rewrite: true }));
        }
    }
    due.sort_by_key(|(due_us, file)| (*due_us, file.level, file.index));
    context.explanation.add_candidates(|| {
        let line =
            |(_, due): &(u64, FileToCompact<'_>)| format!("in {}: {}", due.level, due.reason);
        due.iter().take(CANDIDATES_MAX).map(line).collect()
    });
    due.iter().find_map(|(_, due)| rewrite_job(context, due))
}

/// Returns whether half of a file has expired, but a snapshot still sees some of these entries.
pub(super) fn is_expired_file_held(shape: &TreeShape) -> bool {
    let is_held =
        |us: u64| us <= shape.now_us && us > shape.expiry_limit_us && shape.expiry_limit_us > 0;
    shape.runs().any(|(_, run)| {
        let mut files = run.files.with_expiring_entries();
        files.any(|(_, file)| file.half_expired_us().is_some_and(is_held))
    })
}

/// Returns the first time after the current time at which half of a file has expired.
fn next_half_expired_us(shape: &TreeShape) -> Option<u64> {
    let times = shape.runs().flat_map(|(_, run)| {
        run.files.with_expiring_entries().filter_map(|(_, file)| file.half_expired_us())
    });
    times.filter(|us| *us > shape.now_us).min()
}

/// Returns the first time after the current time at which a file becomes due without further writes.
pub(super) fn next_file_due_us(primitives: &PolicyPrimitives, shape: &TreeShape) -> Option<u64> {
    let is_fifo = primitives.can_drop_data();
    let is_later = |at_us: &u64| *at_us > shape.now_us;
    let expired_us = if is_fifo { None } else { next_half_expired_us(shape) };
    let rule_due_us = |rule: &CompactionRule| {
        if let (Trigger::FileStaleness { ttl_us }, true) = (&rule.trigger, is_fifo) {
            // A FIFO layout drops files of the oldest run only.
            let (_, run) = shape.last_run()?;
            let due_us = run.files.iter().map(|file| file.created_us.saturating_add(*ttl_us));
            return due_us.filter(is_later).min();
        }
        let condition = FileDueCondition::from_trigger(&rule.trigger, shape)?;
        let due_us = shape.runs().flat_map(|(level, run)| {
            let condition = &condition;
            let files = condition.candidate_files(run);
            files.filter_map(move |(_, file)| condition.file_due_us(shape, level, run, file))
        });
        due_us.filter(is_later).min()
    };
    let deadlines = persistence_deadlines(primitives, shape).into_iter();
    let persistence_us = deadlines.map(|deadline| deadline.due_us).filter(is_later).min();
    let rules = primitives.rules.iter().filter_map(rule_due_us);
    rules.chain(expired_us).chain(persistence_us).min()
}

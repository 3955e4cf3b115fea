//! Positions of ingested files in a tree.
//!
//! An ingested file is newer than all other files. It is added to the deepest level that satisfies two conditions:
//!
//! 1. No file of this level or of a level above overlaps the ingested file. Otherwise an older entry would be above a
//!    newer entry.
//! 2. No running job that overlaps the ingested file reads from or writes to this level or a level above. Otherwise the
//!    outputs of the job could overlap the ingested file, or change their order of age relative to it.
//!
//! If there is no such level below L0, the file becomes part of a new run of L0, like the output of a flush. A policy that
//! drops the oldest data needs all files in L0, because it regards deeper levels as older.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Error;
use crate::ids::{Level, RunId};
use crate::job::JobKind;
use crate::key_range::KeyRange;
use crate::running_jobs::RunningJobs;
use crate::shape::TreeShape;
use crate::table_meta::TableMeta;
use crate::tree_edit::{AddedFile, EditError, TreeEdit, TreeUpdate};

impl TreeShape {
    /// Returns the tree with ingested files, each in the deepest level in which no older entry hides its entries.
    ///
    /// The files are disjoint and newer than all files of the tree. Levels below the deepest level of the tree are not
    /// used, except L1. Levels below `level_max` are not used either. In a level with several runs, a file joins the
    /// oldest run.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Overlap`] or [`Error::InvertedRange`] if the files overlap each other, and with
    /// [`Error::DuplicateFile`] if a file is already in the tree.
    ///
    /// ```
    /// use lsmx_compaction::{FileId, KeyRange, Level, RunningJobs, TableMeta, TreeShape};
    ///
    /// let file = |id, smallest, largest| {
    ///     std::sync::Arc::new(TableMeta::new(FileId(id), KeyRange::new(smallest, largest)))
    /// };
    /// let shape = TreeShape::default().with_flushed_run(vec![file(1, "a", "f")])?.shape;
    /// let files = [file(2, "c", "d"), file(3, "g", "h")];
    /// let shape = shape.with_ingested_files(&files, &RunningJobs::default(), Level::MAX)?.shape;
    /// // The first file overlaps a file of L0.
    /// assert_eq!(shape.runs_of(Level(0)).len(), 2);
    /// assert_eq!(shape.runs_of(Level(1))[0].files.len(), 1);
    /// # Ok::<(), lsmx_compaction::Error>(())
    /// ```
    pub fn with_ingested_files(
        &self,
        files: &[Arc<TableMeta>],
        running: &RunningJobs,
        level_max: Level,
    ) -> Result<TreeUpdate, Error> {
        let (mut shape, mut edit) = (self.clone(), TreeEdit::default());
        let mut runs: BTreeMap<Level, RunId> = BTreeMap::new();
        for file in files {
            let level = self.ingest_level(&file.range, running, level_max);
            let run = *runs.entry(level).or_insert_with(|| match self.runs_of(level).last() {
                Some(oldest) if level > Level(0) => oldest.id,
                _ => shape.new_run_id(),
            });
            edit.added.push(AddedFile { level, run, file: Arc::clone(file) });
        }
        edit.added.sort_unstable_by_key(|added| added.file.id);
        for (&level, &run) in &runs {
            let known = || self.runs_of(level).iter().map(|run| run.id);
            if !known().any(|id| id == run) {
                edit.run_orders.push((level, std::iter::once(run).chain(known()).collect()));
            }
        }
        edit.run_id_next = (shape.run_id_next != self.run_id_next).then_some(shape.run_id_next);
        shape.apply_edit(&edit).map_err(|error| match error {
            EditError::UnknownFile(file) | EditError::DuplicateFile(file) => {
                Error::DuplicateFile { file }
            }
            EditError::DuplicateRun(run) | EditError::RunOrder(run) => Error::DuplicateRun { run },
        })?;
        for (&level, &run) in &runs {
            if let Some(run) = shape.run(level, run) {
                run.check_files(level)?;
            }
        }
        Ok(TreeUpdate { shape, edit })
    }

    /// Returns the level for an ingested file with this key range.
    fn ingest_level(&self, range: &KeyRange, running: &RunningJobs, level_max: Level) -> Level {
        let deepest = self.deepest_level().map_or(1, |level| level.0.max(1)).min(level_max.0);
        let is_free = |level: &u8| {
            let mut runs = self.runs_of(Level(*level)).iter();
            runs.all(|run| run.files.overlapping_indices(range).is_empty())
                && !self.has_overlapping_job(Level(*level), range, running)
        };
        Level((0..=deepest).take_while(is_free).last().unwrap_or(0))
    }

    /// Returns whether a running job whose inputs overlap `range` uses `level`.
    fn has_overlapping_job(&self, level: Level, range: &KeyRange, running: &RunningJobs) -> bool {
        running.jobs.iter().any(|(job, _)| {
            let uses_level =
                job.target.level == level || job.inputs.iter().any(|input| input.level == level);
            // A job whose inputs are missing has just ended. It counts as a conflict.
            uses_level
                && job.kind != JobKind::Drop
                && job.input_key_range(self).map_or(true, |inputs| inputs.overlaps(range))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::FileId;
    use crate::job::{Job, JobInput, JobReason, OutputTarget, SplitRule};

    fn file(id: u64, smallest: &'static str, largest: &'static str) -> Arc<TableMeta> {
        Arc::new(TableMeta::new(FileId(id), KeyRange::new(smallest, largest)))
    }

    /// Returns levels, runs and files as text, newest run first.
    fn describe(shape: &TreeShape) -> String {
        let runs = shape.runs().map(|(level, run)| {
            let files: Vec<_> = run.files.iter().map(|file| file.id.0.to_string()).collect();
            format!("L{}:{}", level.0, files.join(" "))
        });
        runs.collect::<Vec<_>>().join(" / ")
    }

    fn ingest(shape: &TreeShape, files: &[Arc<TableMeta>], running: &RunningJobs) -> TreeShape {
        ingest_down_to(shape, files, running, Level::MAX)
    }

    fn ingest_down_to(
        shape: &TreeShape,
        files: &[Arc<TableMeta>],
        running: &RunningJobs,
        level_max: Level,
    ) -> TreeShape {
        let update = shape.with_ingested_files(files, running, level_max).unwrap();
        let mut replayed = shape.clone();
        replayed.apply_edit(&update.edit).unwrap();
        assert_eq!(replayed, update.shape);
        update.shape.check_invariants().unwrap();
        update.shape
    }

    #[test]
    fn ingested_files_of_empty_tree_form_one_run_in_l1() {
        let files = [file(1, "a", "b"), file(2, "c", "d")];
        let shape = ingest(&TreeShape::default(), &files, &RunningJobs::default());
        assert_eq!(describe(&shape), "L1:1 2");
    }

    #[test]
    fn ingested_files_form_newest_run_of_l0_if_deeper_levels_are_excluded() {
        let running = RunningJobs::default();
        let ingest =
            |shape: &TreeShape, files: &[_]| ingest_down_to(shape, files, &running, Level(0));
        let shape = ingest(&TreeShape::default(), &[file(1, "a", "b"), file(2, "c", "d")]);
        let shape = ingest(&shape, &[file(3, "e", "f")]);
        assert_eq!(describe(&shape), "L0:3 / L0:1 2");
    }

    #[test]
    fn ingested_file_is_above_every_overlapping_file() {
        let running = RunningJobs::default();
        let shape =
            ingest(&TreeShape::default(), &[file(1, "a", "c"), file(2, "p", "r")], &running);
        let shape = ingest(&shape, &[file(3, "e", "g"), file(4, "b", "b")], &running);
        assert_eq!(describe(&shape), "L0:4 / L1:1 3 2");
        // A shared bound is an overlap. Files of L0 keep new files above them.
        let shape = ingest(&shape, &[file(5, "r", "z")], &running);
        assert_eq!(describe(&shape), "L0:5 / L0:4 / L1:1 3 2");
        let shape = ingest(&shape, &[file(6, "t", "t")], &running);
        assert_eq!(describe(&shape), "L0:6 / L0:5 / L0:4 / L1:1 3 2");
    }

    #[test]
    fn ingested_file_between_inputs_of_running_job_goes_to_l0() {
        let shape = [file(1, "a", "c"), file(2, "p", "r")];
        let shape = ingest(&TreeShape::default(), &shape, &RunningJobs::default());
        let run = &shape.runs_of(Level(1))[0];
        let inputs = vec![JobInput::from_run(Level(1), run)];
        let job = Job {
            kind: JobKind::Merge,
            inputs,
            target: OutputTarget::oldest_run(Level(1)),
            split: SplitRule::by_size(1),
            reason: JobReason::Manual,
        };
        let mut running = RunningJobs::default();
        running.start(job, 1);
        let shape = ingest(&shape, &[file(3, "e", "g"), file(4, "s", "t")], &running);
        assert_eq!(describe(&shape), "L0:3 / L1:1 2 4");
    }

    #[test]
    fn ingested_files_that_overlap_each_other_are_error() {
        let files = [file(1, "a", "c"), file(2, "c", "d")];
        let (shape, running) = (TreeShape::default(), RunningJobs::default());
        let ingested = shape.with_ingested_files(&files, &running, Level::MAX);
        assert!(matches!(ingested, Err(Error::Overlap { .. })), "{ingested:?}");
    }
}

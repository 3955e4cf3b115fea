//! Applies a job or a flush to a tree. The engine, the simulator and tests share this code.
//!
//! 1. Find the inputs in the tree. They must exist and be ordered from the newest run to the oldest.
//! 2. Find the position of the outputs among the current runs.
//! 3. Check that the job does not change the order of age between an input and an overlapping file that stays in the
//!    tree. Otherwise an older version of a key could hide a newer version.
//! 4. Rebuild the changed runs and levels. All others are shared with the old tree.
//!
//! L0 has stricter rules: a job takes whole adjacent runs, and the oldest runs leave L0 first.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;
use crate::ids::{FileId, Level, RunId};
use crate::job::{Job, JobKind, OutputPlacement};
use crate::key_range::{Key, KeyRange};
use crate::run::SortedRun;
use crate::shape::{LevelShape, TreeShape};
use crate::table_meta::TableMeta;
use crate::tree_edit::{AddedFile, TreeEdit, TreeUpdate};

/// Maximum number of removed ranges plus added files for which a run is changed in place. With more changes, the run is
/// rebuilt.
const REBUILD_MIN: usize = 8;

/// Position of a run, or of a gap before or after a run. Positions are ordered from newest to oldest.
///
/// The first field is the level. For the run at `index` in its level, the second field is `2 * index + 1`. For the gap
/// before that run, the second field is `2 * index`.
type RunPosition = (Level, usize);

fn run_position(level: Level, index: usize) -> RunPosition {
    (level, 2 * index + 1)
}

/// Position of the outputs of a job.
struct OutputPosition {
    position: RunPosition,
    /// Run at `position` that receives the outputs. `None` if the outputs form a new run.
    joined: Option<RunId>,
}

/// An input whose run and files were found in the tree.
struct ResolvedInput<'a> {
    level: Level,
    /// Index of the run in its level.
    index: usize,
    run: &'a Arc<SortedRun>,
    /// Indices of the files in their run, in ascending order.
    indices: Vec<usize>,
}

impl<'a> ResolvedInput<'a> {
    fn files(&self) -> impl DoubleEndedIterator<Item = &'a Arc<TableMeta>> {
        self.indices.iter().map(|&index| &self.run.files[index])
    }
}

/// Files that a job removes from a run.
struct RemovedFiles {
    level: Level,
    /// Index of the run in its level.
    index: usize,
    /// Ranges of file indices, in ascending order.
    ranges: Vec<Range<usize>>,
}

/// Change of a tree by a job. All rules are checked, except that the outputs do not overlap their neighbours in the
/// run.
struct JobChange {
    removed: Vec<RemovedFiles>,
    destination: Option<OutputPosition>,
    placed: Vec<Arc<TableMeta>>,
    cursor: Option<(Level, Key)>,
}

impl TreeShape {
    /// Returns the tree after `job`, which wrote `outputs` in key order. A move or drop has no outputs.
    ///
    /// The input files are removed from their runs. Empty runs, and empty levels at the end, are removed. A merge or
    /// move sets the cursor of its newest input level to the largest key that it took from this level.
    ///
    /// The inputs must still exist, but the tree may have changed since the job was picked. Jobs that [can
    /// run](crate::RunningJobs::can_run_job) at the same time may end in any order. If the target run no longer exists,
    /// the outputs form a new run directly after the oldest input from the target level. If the job has no input from
    /// that level, the new run is the newest run there.
    ///
    /// # Errors
    ///
    /// Fails if inputs are missing, if outputs overlap or exceed the key range of the inputs, or if an older entry
    /// could hide a newer entry.
    pub fn apply_job(&self, job: &Job, outputs: Vec<Arc<TableMeta>>) -> Result<TreeUpdate, Error> {
        let change = self.plan_change(job, outputs)?;
        self.clone().make_change(job, change)
    }

    /// Works like [`TreeShape::apply_job`], but changes runs and levels in place if no other tree shares them. The cost
    /// of a small job then hardly depends on the size of the tree.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`TreeShape::apply_job`]. A failure drops the tree.
    pub fn apply_job_in_place(
        self,
        job: &Job,
        outputs: Vec<Arc<TableMeta>>,
    ) -> Result<TreeUpdate, Error> {
        let change = self.plan_change(job, outputs)?;
        self.make_change(job, change)
    }

    /// Returns the tree with the outputs of a flush as the newest run of L0. Returns the same tree if `files` is empty.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Overlap`] or [`Error::InvertedRange`] if the files overlap or are not in key order.
    pub fn with_flushed_run(&self, files: Vec<Arc<TableMeta>>) -> Result<TreeUpdate, Error> {
        self.with_flushed_runs(vec![files])
    }

    /// Works like [`TreeShape::with_flushed_run`] for the outputs of several flushes, oldest first. Ignores runs
    /// without files.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`TreeShape::with_flushed_run`].
    pub fn with_flushed_runs(&self, runs: Vec<Vec<Arc<TableMeta>>>) -> Result<TreeUpdate, Error> {
        let (mut shape, mut edit) = (self.clone(), TreeEdit::default());
        for files in runs.into_iter().filter(|files| !files.is_empty()) {
            let (level, id) = (Level(0), shape.new_run_id());
            let placed =
                files.iter().map(|file| AddedFile { level, run: id, file: Arc::clone(file) });
            edit.added.extend(placed);
            let run = SortedRun { id, files: files.into() };
            run.check_files(level)?;
            if shape.levels.is_empty() {
                shape.levels.push(Arc::default());
            }
            Arc::make_mut(&mut shape.levels[0]).runs.insert(0, Arc::new(run));
        }
        if !edit.added.is_empty() {
            let l0 = shape.runs_of(Level(0)).iter().map(|run| run.id).collect();
            edit.run_orders.push((Level(0), l0));
            edit.run_id_next = Some(shape.run_id_next);
            edit.added.sort_unstable_by_key(|placed| placed.file.id);
        }
        Ok(TreeUpdate { shape, edit })
    }

    /// Checks a job before it runs. Checks the same rules as [`TreeShape::apply_job`], except those for outputs.
    ///
    /// # Errors
    ///
    /// Returns the first rule that the job breaks.
    pub fn check_job(&self, job: &Job) -> Result<(), Error> {
        job.split.check_boundary_order()?;
        let inputs = self.resolve_inputs(job)?;
        self.find_destination(job, &inputs)?;
        match job.kind {
            JobKind::Move => collect_moved_files(&inputs).map(drop),
            JobKind::Merge | JobKind::Rewrite | JobKind::Drop => Ok(()),
        }
    }

    /// Checks a job and its outputs. Returns the resulting change of the tree.
    fn plan_change(&self, job: &Job, outputs: Vec<Arc<TableMeta>>) -> Result<JobChange, Error> {
        let inputs = self.resolve_inputs(job)?;
        let writes = matches!(job.kind, JobKind::Merge | JobKind::Rewrite);
        if !writes && !outputs.is_empty() {
            return Err(Error::UnexpectedOutputs { outputs: outputs.len() });
        }
        let destination = self.find_destination(job, &inputs)?;
        let placed = match job.kind {
            JobKind::Drop => Vec::new(),
            JobKind::Move => collect_moved_files(&inputs)?,
            JobKind::Merge | JobKind::Rewrite => check_outputs(&inputs, outputs)?,
        };
        let cursor = match job.kind {
            JobKind::Merge | JobKind::Move => find_source_cursor(&inputs),
            JobKind::Drop | JobKind::Rewrite => None,
        };
        let removed = inputs.iter().map(|input| {
            let ranges = group_adjacent_indices(&input.indices);
            RemovedFiles { level: input.level, index: input.index, ranges }
        });
        Ok(JobChange { removed: removed.collect(), destination, placed, cursor })
    }

    /// Returns the checked position of the outputs. Returns `None` if the job drops its inputs.
    fn find_destination(
        &self,
        job: &Job,
        inputs: &[ResolvedInput<'_>],
    ) -> Result<Option<OutputPosition>, Error> {
        Ok(match job.kind {
            JobKind::Drop => None,
            JobKind::Rewrite => Some(rewrite_destination(job, inputs)?),
            JobKind::Merge | JobKind::Move => {
                let destination = self.target_destination(job, inputs);
                self.check_l0_order(inputs, destination.position)?;
                self.check_input_age_order(inputs, destination.position)?;
                Some(destination)
            }
        })
    }

    /// Finds all inputs in the tree. Fails unless each input is older than the input before it.
    fn resolve_inputs(&self, job: &Job) -> Result<Vec<ResolvedInput<'_>>, Error> {
        let mut inputs: Vec<ResolvedInput<'_>> = Vec::with_capacity(job.inputs.len());
        for input in &job.inputs {
            let (level, run) = (input.level, input.run);
            let runs = self.runs_of(level);
            let index = runs.iter().position(|r| r.id == run);
            let index = index.ok_or(Error::NoSuchRun { level, run })?;
            let indices = input.file_indices(&runs[index])?;
            if indices.is_empty() {
                return Err(Error::NoInputs);
            }
            if inputs.last().is_some_and(|last| (last.level, last.index) >= (level, index)) {
                return Err(Error::InputOrder { level, run });
            }
            inputs.push(ResolvedInput { level, index, run: &runs[index], indices });
        }
        if inputs.is_empty() { Err(Error::NoInputs) } else { Ok(inputs) }
    }

    /// Returns the position of the outputs. If the target run no longer exists, the outputs form a new run, as
    /// documented at [`TreeShape::apply_job`].
    fn target_destination(&self, job: &Job, inputs: &[ResolvedInput<'_>]) -> OutputPosition {
        let level = job.target.level;
        let runs = self.runs_of(level);
        let index_of = |run: RunId| runs.iter().position(|r| r.id == run);
        let new_run = |gap: usize| OutputPosition { position: (level, 2 * gap), joined: None };
        match job.target.placement {
            OutputPlacement::JoinRun(run) => {
                if let Some(index) = index_of(run) {
                    let position = run_position(level, index);
                    return OutputPosition { position, joined: Some(run) };
                }
            }
            OutputPlacement::NewRun { before: None } => return new_run(runs.len()),
            OutputPlacement::NewRun { before: Some(run) } => {
                if let Some(index) = index_of(run) {
                    return new_run(index);
                }
            }
        }
        // Another job has taken all files of the target run since this job was picked.
        let oldest = inputs.iter().rev().find(|input| input.level == level);
        new_run(oldest.map_or(0, |input| input.index + 1))
    }

    /// Checks the rules of L0: a job takes whole adjacent runs. If the outputs go to a deeper level, it must take the
    /// oldest runs.
    fn check_l0_order(
        &self,
        inputs: &[ResolvedInput<'_>],
        position: RunPosition,
    ) -> Result<(), Error> {
        let l0 = Level(0);
        let l0_inputs: Vec<_> = inputs.iter().take_while(|input| input.level == l0).collect();
        let count = self.runs_of(l0).len();
        let (Some(first), Some(last)) = (l0_inputs.first(), l0_inputs.last()) else {
            let is_inside = position.0 == l0 && position.1 < 2 * count;
            return match self.runs_of(l0).last() {
                Some(run) if is_inside => {
                    let why = "entries of deeper levels cannot be placed before it";
                    Err(Error::L0Order { run: run.id, why })
                }
                _ => Ok(()),
            };
        };
        let broken =
            |input: &ResolvedInput<'_>, why| Err(Error::L0Order { run: input.run.id, why });
        for input in &l0_inputs {
            if input.indices.len() != input.run.files.len() {
                return broken(input, "a job must take all of its files or none");
            }
        }
        if last.index - first.index + 1 != l0_inputs.len() {
            return broken(last, "the runs of a job must be adjacent");
        }
        if position.0 > l0 && last.index + 1 != count {
            return broken(last, "older runs must leave L0 first");
        }
        if position.0 == l0 && !(2 * first.index..=2 * (last.index + 1)).contains(&position.1) {
            return broken(first, "a job within L0 must keep its position");
        }
        Ok(())
    }

    /// Checks that no input file changes its order of age relative to an overlapping file that stays in the tree.
    fn check_input_age_order(
        &self,
        inputs: &[ResolvedInput<'_>],
        position: RunPosition,
    ) -> Result<(), Error> {
        for input in inputs {
            let from = run_position(input.level, input.index);
            let (upper, lower) = (from.min(position), from.max(position));
            for level in upper.0.0..=lower.0.0 {
                let level = Level(level);
                for (index, run) in self.runs_of(level).iter().enumerate() {
                    let between = run_position(level, index);
                    if between <= upper || between >= lower {
                        continue;
                    }
                    let removed = inputs.iter().find(|i| i.level == level && i.index == index);
                    let removed = removed.map_or(&[][..], |i| &i.indices);
                    if removed.len() < run.files.len() {
                        check_age_order_in_run(input, run, removed)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies a checked change. Returns the changed tree and the edit for the manifest.
    fn make_change(mut self, job: &Job, change: JobChange) -> Result<TreeUpdate, Error> {
        let JobChange { removed, destination, placed, cursor } = change;
        let (run_id_next, old_cursors) = (self.run_id_next, self.cursors());
        let destination = destination.filter(|_| !placed.is_empty());
        let output_run =
            destination.as_ref().map(|d| d.joined.unwrap_or_else(|| self.new_run_id()));
        let target = destination.as_ref().map(|d| d.position.0);
        let mut changed: Vec<Level> = removed.iter().map(|removed| removed.level).collect();
        changed.extend(target);
        changed.sort_unstable();
        changed.dedup();
        let mut edit = TreeEdit { removed: job.input_files().collect(), ..TreeEdit::default() };
        edit.removed.sort_unstable();
        for &level in &changed {
            let output = match (&destination, output_run) {
                (Some(d), Some(run)) if d.position.0 == level => Some((d.position.1, run)),
                _ => None,
            };
            while self.levels.len() <= level.index() {
                self.levels.push(Arc::default());
            }
            let LevelShape { runs, cursor: last } = Arc::make_mut(&mut self.levels[level.index()]);
            let of_level = removed.iter().filter(|removed| removed.level == level);
            *runs = rebuild_runs(std::mem::take(runs), level, of_level, output, &placed)?;
            if !runs.is_empty() {
                edit.run_orders.push((level, runs.iter().map(|run| run.id).collect()));
            }
            if let Some((_, key)) = cursor.as_ref().filter(|(of, _)| *of == level) {
                *last = Some(key.clone());
            }
        }
        self.remove_empty_last_levels();
        if let (Some(level), Some(run)) = (target, output_run) {
            edit.added = placed.into_iter().map(|file| AddedFile { level, run, file }).collect();
            edit.added.sort_unstable_by_key(|placed| placed.file.id);
        }
        edit.cursors = self.changed_cursors(&old_cursors);
        edit.run_id_next = (self.run_id_next != run_id_next).then_some(self.run_id_next);
        Ok(TreeUpdate { shape: self, edit })
    }

    /// Returns the cursors of all levels.
    fn cursors(&self) -> Vec<Option<Key>> {
        self.levels.iter().map(|level| level.cursor.clone()).collect()
    }

    /// Returns the cursors that differ from `old`, with their levels. The cursor of a removed level is `None`.
    fn changed_cursors(&self, old: &[Option<Key>]) -> Vec<(Level, Option<Key>)> {
        let levels = (0..=u8::MAX).zip(0..self.levels.len().max(old.len()));
        let cursors = levels.map(|(level, index)| {
            let new = self.levels.get(index).and_then(|level| level.cursor.as_ref());
            (Level(level), old.get(index).and_then(Option::as_ref), new)
        });
        let changed = cursors.filter(|(_, old, new)| old != new);
        changed.map(|(level, _, new)| (level, new.cloned())).collect()
    }
}

/// Returns the position for the outputs of a job that rewrites one run in place.
///
/// Fails unless the job has exactly one input run, and this run is its target.
fn rewrite_destination(job: &Job, inputs: &[ResolvedInput<'_>]) -> Result<OutputPosition, Error> {
    match inputs {
        [only]
            if job.target.level == only.level
                && job.target.placement == OutputPlacement::JoinRun(only.run.id) =>
        {
            let position = run_position(only.level, only.index);
            Ok(OutputPosition { position, joined: Some(only.run.id) })
        }
        _ => Err(Error::RewriteTarget),
    }
}

/// Groups ascending indices into ranges of adjacent indices.
fn group_adjacent_indices(indices: &[usize]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for &index in indices {
        match ranges.last_mut() {
            Some(last) if last.end == index => last.end += 1,
            _ => ranges.push(index..index + 1),
        }
    }
    ranges
}

/// Checks that no file of an input changes its order of age relative to an overlapping file of `run`.
///
/// Files of `run` at the indices `removed` are not checked, because the job takes them too.
fn check_age_order_in_run(
    input: &ResolvedInput<'_>,
    run: &SortedRun,
    removed: &[usize],
) -> Result<(), Error> {
    for file in input.files() {
        let mut passed = run.files.overlapping_indices(&file.range);
        if let Some(other) = passed.find(|index| removed.binary_search(index).is_err()) {
            return Err(Error::PassesOverlap { input: file.id, other: run.files[other].id });
        }
    }
    Ok(())
}

/// Returns the input files of a move in key order. Fails if they overlap.
fn collect_moved_files(inputs: &[ResolvedInput<'_>]) -> Result<Vec<Arc<TableMeta>>, Error> {
    let mut files: Vec<_> = inputs.iter().flat_map(ResolvedInput::files).cloned().collect();
    files.sort_by(|a, b| a.range.smallest.cmp(&b.range.smallest));
    match files.windows(2).find(|pair| pair[0].range.overlaps(&pair[1].range)) {
        Some(pair) => Err(Error::MoveOverlap { left: pair[0].id, right: pair[1].id }),
        None => Ok(files),
    }
}

/// Checks that the outputs have unique numbers and do not exceed the key range of the inputs.
///
/// [`SortedRun::check_files`] checks later whether they overlap.
fn check_outputs(
    inputs: &[ResolvedInput<'_>],
    mut outputs: Vec<Arc<TableMeta>>,
) -> Result<Vec<Arc<TableMeta>>, Error> {
    check_file_ids(inputs, &outputs)?;
    let files = inputs.iter().flat_map(ResolvedInput::files);
    let hull = KeyRange::enclosing_range(files.map(|file| &file.range)).ok_or(Error::NoInputs)?;
    if let Some(output) = outputs.iter().find(|output| !hull.covers(&output.range)) {
        return Err(Error::OutputOutsideInputs { file: output.id });
    }
    outputs.sort_by(|a, b| a.range.smallest.cmp(&b.range.smallest));
    Ok(outputs)
}

/// Checks that no output has the number of an input or of another output.
fn check_file_ids(inputs: &[ResolvedInput<'_>], outputs: &[Arc<TableMeta>]) -> Result<(), Error> {
    let mut input_ids = inputs.iter().flat_map(ResolvedInput::files).map(|file| file.id);
    // Usually the outputs have ascending numbers that are greater than those of all inputs. The numbers are then
    // unique.
    let ascend = outputs.windows(2).all(|pair| pair[0].id < pair[1].id);
    if ascend && outputs.first().is_none_or(|first| input_ids.all(|id| id < first.id)) {
        return Ok(());
    }
    let inputs = inputs.iter().flat_map(ResolvedInput::files);
    let mut ids: HashSet<FileId> = inputs.map(|file| file.id).collect();
    match outputs.iter().find(|output| !ids.insert(output.id)) {
        Some(output) => Err(Error::DuplicateFile { file: output.id }),
        None => Ok(()),
    }
}

/// Returns the newest input level, and the largest key that the job takes from it.
fn find_source_cursor(inputs: &[ResolvedInput<'_>]) -> Option<(Level, Key)> {
    let level = inputs.first()?.level;
    let of_source = inputs.iter().take_while(|input| input.level == level);
    let last_files = of_source.filter_map(|input| input.files().next_back());
    let largest = last_files.map(|file| &file.range.largest).max()?;
    Some((level, largest.clone()))
}

/// Returns the runs of a level without the files in `removed`, and with `files` added at the position `output`.
fn rebuild_runs<'a>(
    runs: Vec<Arc<SortedRun>>,
    level: Level,
    removed: impl Iterator<Item = &'a RemovedFiles>,
    output: Option<(usize, RunId)>,
    files: &[Arc<TableMeta>],
) -> Result<Vec<Arc<SortedRun>>, Error> {
    let mut removed = removed.peekable();
    let count = runs.len();
    let mut rebuilt = Vec::with_capacity(count + 1);
    let output_at = |at: usize| output.filter(|(position, _)| *position == at);
    let new_run = |id: RunId| -> Result<Arc<SortedRun>, Error> {
        let run = SortedRun { id, files: files.iter().cloned().collect() };
        run.check_files(level)?;
        Ok(Arc::new(run))
    };
    for (index, mut run) in runs.into_iter().enumerate() {
        if let Some((_, id)) = output_at(2 * index) {
            rebuilt.push(new_run(id)?);
        }
        let removed = removed.next_if(|removed| removed.index == index);
        let is_joined = output_at(2 * index + 1).is_some();
        if removed.is_none() && !is_joined {
            rebuilt.push(run);
            continue;
        }
        let ranges = removed.map_or(&[][..], |removed| &removed.ranges);
        let added = if is_joined { files } else { &[] };
        replace_files(Arc::make_mut(&mut run), level, ranges, added)?;
        if !run.files.is_empty() {
            rebuilt.push(run);
        }
    }
    if let Some((_, id)) = output_at(2 * count) {
        rebuilt.push(new_run(id)?);
    }
    Ok(rebuilt)
}

/// Removes ranges of files from a run and adds files. The added files must be in key order.
fn replace_files(
    run: &mut SortedRun,
    level: Level,
    removed: &[Range<usize>],
    added: &[Arc<TableMeta>],
) -> Result<(), Error> {
    if let ([only], [first, .., last] | [first @ last]) = (removed, added) {
        // Usually the outputs fit into the gap that the inputs leave.
        let before = only.start.checked_sub(1).map(|index| &run.files[index].range.smallest);
        let after = run.files.get(only.end).map(|file| &file.range.smallest);
        if before.is_none_or(|before| *before < first.range.smallest)
            && after.is_none_or(|after| last.range.smallest < *after)
        {
            run.files.splice(only.clone(), added.to_vec());
            return run.check_changed_files(level, only.start..only.start + added.len());
        }
    }
    if removed.len() + added.len() > REBUILD_MIN {
        let mut files: Vec<Arc<TableMeta>> = std::mem::take(&mut run.files).into();
        for range in removed.iter().rev() {
            files.drain(range.clone());
        }
        files.extend(added.iter().cloned());
        // The files consist of two sorted parts. A stable sort merges them in linear time.
        files.sort_by(|a, b| a.range.smallest.cmp(&b.range.smallest));
        run.files = files.into();
        return if run.files.is_empty() { Ok(()) } else { run.check_files(level) };
    }
    for range in removed.iter().rev() {
        run.files.splice(range.clone(), Vec::new());
    }
    for file in added {
        let at = run.files.partition_point(|other| other.range.smallest < file.range.smallest);
        run.files.splice(at..at, vec![Arc::clone(file)]);
        run.check_changed_files(level, at..at + 1)?;
    }
    Ok(())
}

//! Shape + job + outputs → next shape: the only copy of that logic, for engine, simulator, tests.
//!
//! 1. The inputs are looked up: they exist, and stand newest first.
//! 2. The place of the outputs is found, among the runs as they stand now.
//! 3. Every input file must be able to get there: a file that stays, in a run passed on the way,
//!    must not overlap it. Else an older version of a key could come to stand above a newer one.
//! 4. The levels concerned are built anew; all others, and all other runs, are shared.
//!
//! L0 is held to a stricter order, in return for which [`TreeShape::check`] can tell more from a
//! shape: whole, neighbouring runs only, and the oldest leave first.

use std::collections::HashSet;
use std::sync::Arc;

use crate::{
    Error, FileId, FileShape, Job, JobKind, Key, KeyRange, Level, LevelShape, Placement, RunId,
    RunShape, TreeShape,
};

/// A tree after a job, and the difference that a manifest edit has to record.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The tree after the job.
    pub shape: TreeShape,
    /// The run that holds the outputs, if there are any.
    pub output_run: Option<RunId>,
    /// Files that left the tree, in input order. Moved files are not among them.
    pub removed: Vec<FileId>,
    /// Files with a new place: outputs, or the files of a move. In key order.
    pub placed: Vec<PlacedFile>,
    /// The order of runs, newest first, in each level that changed, from L0 downward.
    pub run_orders: Vec<(Level, Vec<RunId>)>,
    /// The cursor that was set, and its level.
    pub cursor: Option<(Level, Key)>,
}

/// A file and the place where it now stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedFile {
    /// Its level.
    pub level: Level,
    /// Its run.
    pub run: RunId,
    /// The file.
    pub file: Arc<FileShape>,
}

/// A place among the runs of a tree, newest first: level, then 2 × index + 1 for a run, and
/// 2 × index for the gap before it.
type Place = (Level, usize);

fn place_of_run(level: Level, index: usize) -> Place {
    (level, 2 * index + 1)
}

/// Where the outputs go.
struct Destination {
    place: Place,
    /// The run that they join, at that place; a new run otherwise.
    joined: Option<RunId>,
}

/// An input with what the tree knows of it.
struct Input<'a> {
    level: Level,
    /// Place of the run in its level.
    index: usize,
    run: &'a Arc<RunShape>,
    files: Vec<&'a Arc<FileShape>>,
}

impl TreeShape {
    /// Returns the tree after `job`, which wrote `outputs` (none for a move or a drop), in key
    /// order.
    ///
    /// Inputs leave their runs, runs left empty leave the tree, and so do empty levels at its end.
    /// A merge or a move sets the cursor of its newest input level to the end key of the files that
    /// it took from there.
    ///
    /// The tree may have changed since the job was picked, as long as its inputs still stand: jobs
    /// that [`BusyFiles::admits`](crate::BusyFiles::admits) let run together may end in any order.
    /// If a run that the target names has gone meanwhile, outputs form a new run where the oldest
    /// input of the target level stands, or in front of the level if no input is from there.
    ///
    /// # Errors
    ///
    /// Inputs that are not there, outputs that reach beyond the inputs or overlap, and a target that
    /// would break the age order. The tree stays as it was.
    pub fn apply(&self, job: &Job, outputs: Vec<FileShape>) -> Result<Applied, Error> {
        let inputs = self.resolve_inputs(job)?;
        let writes = matches!(job.kind, JobKind::Merge | JobKind::Rewrite);
        if !writes && !outputs.is_empty() {
            return Err(Error::UnexpectedOutputs { outputs: outputs.len() });
        }
        let destination = match job.kind {
            JobKind::Drop => None,
            JobKind::Rewrite => Some(self.rewrite_place(job, &inputs)?),
            JobKind::Merge | JobKind::Move => {
                let destination = self.destination(job, &inputs);
                self.check_l0_order(&inputs, destination.place)?;
                self.check_passage(&inputs, destination.place)?;
                Some(destination)
            }
        };
        let placed = match job.kind {
            JobKind::Drop => Vec::new(),
            JobKind::Move => moved_files(&inputs)?,
            JobKind::Merge | JobKind::Rewrite => checked_outputs(&inputs, outputs)?,
        };
        let cursor = match job.kind {
            JobKind::Merge | JobKind::Move => end_of_source(&inputs),
            JobKind::Drop | JobKind::Rewrite => None,
        };
        self.rebuild(job, &inputs, destination, placed, cursor)
    }

    /// Looks up all inputs, and verifies that each stands below the one before it.
    fn resolve_inputs(&self, job: &Job) -> Result<Vec<Input<'_>>, Error> {
        let mut inputs: Vec<Input<'_>> = Vec::with_capacity(job.inputs.len());
        for input in &job.inputs {
            let (level, run) = (input.level, input.run);
            let files = input.resolve(self)?;
            let runs = self.runs_of(level);
            let index = runs.iter().position(|r| r.id == run);
            let index = index.ok_or(Error::NoSuchRun { level, run })?;
            if files.is_empty() {
                return Err(Error::NoInputs);
            }
            if inputs.last().is_some_and(|last| (last.level, last.index) >= (level, index)) {
                return Err(Error::InputOrder { level, run });
            }
            inputs.push(Input { level, index, run: &runs[index], files });
        }
        if inputs.is_empty() { Err(Error::NoInputs) } else { Ok(inputs) }
    }

    /// A rewrite stays where it is.
    fn rewrite_place(&self, job: &Job, inputs: &[Input<'_>]) -> Result<Destination, Error> {
        match inputs {
            [only]
                if job.target.level == only.level
                    && job.target.placement == Placement::JoinRun(only.run.id) =>
            {
                let place = place_of_run(only.level, only.index);
                Ok(Destination { place, joined: Some(only.run.id) })
            }
            _ => Err(Error::RewriteElsewhere),
        }
    }

    fn destination(&self, job: &Job, inputs: &[Input<'_>]) -> Destination {
        let level = job.target.level;
        let runs = self.runs_of(level);
        let index_of = |run: RunId| runs.iter().position(|r| r.id == run);
        let new_run = |gap: usize| Destination { place: (level, 2 * gap), joined: None };
        match job.target.placement {
            Placement::JoinRun(run) => {
                if let Some(index) = index_of(run) {
                    let place = place_of_run(level, index);
                    return Destination { place, joined: Some(run) };
                }
            }
            Placement::NewRun { before: None } => return new_run(runs.len()),
            Placement::NewRun { before: Some(run) } => {
                if let Some(index) = index_of(run) {
                    return new_run(index);
                }
            }
        }
        // The run has gone: another job took all of it while this one ran.
        let oldest = inputs.iter().rev().find(|input| input.level == level);
        new_run(oldest.map_or(0, |input| input.index + 1))
    }

    /// L0: whole neighbouring runs, which stay in their place or leave as the oldest.
    fn check_l0_order(&self, inputs: &[Input<'_>], place: Place) -> Result<(), Error> {
        let l0 = Level(0);
        let of_l0: Vec<_> = inputs.iter().take_while(|input| input.level == l0).collect();
        let count = self.runs_of(l0).len();
        let (Some(first), Some(last)) = (of_l0.first(), of_l0.last()) else {
            let inside = place.0 == l0 && place.1 < 2 * count;
            return match self.runs_of(l0).last() {
                Some(run) if inside => {
                    Err(Error::L0Order { run: run.id, why: "older entries go behind it" })
                }
                _ => Ok(()),
            };
        };
        let broken = |input: &Input<'_>, why| Err(Error::L0Order { run: input.run.id, why });
        for input in &of_l0 {
            if input.files.len() != input.run.files.len() {
                return broken(input, "a job takes all its files or none");
            }
        }
        if last.index - first.index + 1 != of_l0.len() {
            return broken(last, "the runs of a job are neighbours");
        }
        if place.0 > l0 && last.index + 1 != count {
            return broken(last, "older runs leave before it");
        }
        if place.0 == l0 && !(2 * first.index..=2 * (last.index + 1)).contains(&place.1) {
            return broken(first, "its entries stay where they are in L0");
        }
        Ok(())
    }

    /// No input may pass a file that stays and may hold the same keys.
    fn check_passage(&self, inputs: &[Input<'_>], place: Place) -> Result<(), Error> {
        for input in inputs {
            let from = place_of_run(input.level, input.index);
            let (upper, lower) = (from.min(place), from.max(place));
            for level in upper.0.0..=lower.0.0 {
                let level = Level(level);
                for (index, run) in self.runs_of(level).iter().enumerate() {
                    let between = place_of_run(level, index);
                    if between <= upper || between >= lower {
                        continue;
                    }
                    let taken = inputs.iter().find(|i| i.level == level && i.index == index);
                    let taken = taken.map_or(&[][..], |i| &i.files);
                    if taken.len() < run.files.len() {
                        check_pair_passage(input, run, taken)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn rebuild(
        &self,
        job: &Job,
        inputs: &[Input<'_>],
        destination: Option<Destination>,
        files: Vec<Arc<FileShape>>,
        cursor: Option<(Level, Key)>,
    ) -> Result<Applied, Error> {
        let mut shape = self.clone();
        let destination = destination.filter(|_| !files.is_empty());
        let output_run =
            destination.as_ref().map(|d| d.joined.unwrap_or_else(|| shape.new_run_id()));
        let target = destination.as_ref().map(|d| d.place.0);
        let mut changed: Vec<Level> = inputs.iter().map(|input| input.level).collect();
        changed.extend(target);
        changed.sort_unstable();
        changed.dedup();
        let mut run_orders = Vec::with_capacity(changed.len());
        for &level in &changed {
            let landing = match (&destination, output_run) {
                (Some(d), Some(run)) if d.place.0 == level => Some((d.place.1, run)),
                _ => None,
            };
            let runs = rebuild_level(self.runs_of(level), level, inputs, landing, &files)?;
            run_orders.push((level, runs.iter().map(|run| run.id).collect()));
            let old_cursor = self.level(level).and_then(|level| level.cursor.clone());
            let new_cursor =
                cursor.as_ref().filter(|(l, _)| *l == level).map(|(_, key)| key.clone());
            while shape.levels.len() <= level.index() {
                shape.levels.push(Arc::default());
            }
            shape.levels[level.index()] =
                Arc::new(LevelShape { runs, cursor: new_cursor.or(old_cursor) });
        }
        shape.trim();
        let removed =
            if job.kind == JobKind::Move { Vec::new() } else { job.input_files().collect() };
        let placed = match (target, output_run) {
            (Some(level), Some(run)) => {
                files.into_iter().map(|file| PlacedFile { level, run, file }).collect()
            }
            _ => Vec::new(),
        };
        Ok(Applied { shape, output_run, removed, placed, run_orders, cursor })
    }
}

/// One input against one run that it passes, of which `taken` files leave too.
fn check_pair_passage(
    input: &Input<'_>,
    run: &RunShape,
    taken: &[&Arc<FileShape>],
) -> Result<(), Error> {
    let taken: HashSet<FileId> = taken.iter().map(|file| file.id).collect();
    for file in &input.files {
        if let Some(other) = run.overlapping(&file.range).iter().find(|f| !taken.contains(&f.id)) {
            return Err(Error::PassesOver { input: file.id, other: other.id });
        }
    }
    Ok(())
}

/// The files of a move as one run.
fn moved_files(inputs: &[Input<'_>]) -> Result<Vec<Arc<FileShape>>, Error> {
    let mut files: Vec<_> =
        inputs.iter().flat_map(|input| input.files.iter().map(|&f| Arc::clone(f))).collect();
    files.sort_by(|a, b| a.range.smallest.cmp(&b.range.smallest));
    match files.windows(2).find(|pair| pair[0].range.overlaps(&pair[1].range)) {
        Some(pair) => Err(Error::MoveOverlap { left: pair[0].id, right: pair[1].id }),
        None => Ok(files),
    }
}

/// Outputs lie inside the inputs and have names of their own. Whether they overlap is seen when
/// they take their place.
fn checked_outputs(
    inputs: &[Input<'_>],
    outputs: Vec<FileShape>,
) -> Result<Vec<Arc<FileShape>>, Error> {
    let files = || inputs.iter().flat_map(|input| &input.files);
    let mut names: HashSet<FileId> = files().map(|file| file.id).collect();
    let hull = KeyRange::hull_of(files().map(|file| &file.range)).ok_or(Error::NoInputs)?;
    for output in &outputs {
        if !names.insert(output.id) {
            return Err(Error::FileTwice { file: output.id });
        }
        if !hull.covers(&output.range) {
            return Err(Error::OutputOutside { file: output.id });
        }
    }
    let mut outputs: Vec<_> = outputs.into_iter().map(Arc::new).collect();
    outputs.sort_by(|a, b| a.range.smallest.cmp(&b.range.smallest));
    Ok(outputs)
}

/// Newest input level, and the largest key taken from it.
fn end_of_source(inputs: &[Input<'_>]) -> Option<(Level, Key)> {
    let level = inputs.first()?.level;
    let of_source = inputs.iter().take_while(|input| input.level == level);
    let largest =
        of_source.filter_map(|input| input.files.last()).map(|f| &f.range.largest).max()?;
    Some((level, largest.clone()))
}

/// Runs of a level without the inputs, with `files` at the landing place.
fn rebuild_level(
    runs: &[Arc<RunShape>],
    level: Level,
    inputs: &[Input<'_>],
    landing: Option<(usize, RunId)>,
    files: &[Arc<FileShape>],
) -> Result<Vec<Arc<RunShape>>, Error> {
    let mut rebuilt = Vec::with_capacity(runs.len() + 1);
    let place_new = |at: usize| landing.filter(|(place, _)| *place == at);
    for (index, run) in runs.iter().enumerate() {
        if let Some((_, id)) = place_new(2 * index) {
            rebuilt.push(joined_run(id, level, Vec::new(), files)?);
        }
        let taken = inputs.iter().find(|input| input.level == level && input.index == index);
        let lands_here = place_new(2 * index + 1).is_some();
        if taken.is_none() && !lands_here {
            rebuilt.push(Arc::clone(run));
            continue;
        }
        let left = files_left(run, taken.map_or(&[], |input| &input.files));
        if lands_here {
            rebuilt.push(joined_run(run.id, level, left, files)?);
        } else if !left.is_empty() {
            rebuilt.push(Arc::new(RunShape { id: run.id, files: left }));
        }
    }
    if let Some((_, id)) = place_new(2 * runs.len()) {
        rebuilt.push(joined_run(id, level, Vec::new(), files)?);
    }
    Ok(rebuilt)
}

/// Both are in key order, so one walk is enough.
fn files_left(run: &RunShape, taken: &[&Arc<FileShape>]) -> Vec<Arc<FileShape>> {
    let mut taken = taken.iter().peekable();
    let stays = |file: &&Arc<FileShape>| taken.next_if(|t| t.id == file.id).is_none();
    run.files.iter().filter(stays).cloned().collect()
}

fn joined_run(
    id: RunId,
    level: Level,
    mut left: Vec<Arc<FileShape>>,
    files: &[Arc<FileShape>],
) -> Result<Arc<RunShape>, Error> {
    left.extend(files.iter().cloned());
    // Two sorted pieces: the sort sees them as such and merges them.
    left.sort_by(|a, b| a.range.smallest.cmp(&b.range.smallest));
    let run = RunShape { id, files: left };
    run.check(level)?;
    Ok(Arc::new(run))
}

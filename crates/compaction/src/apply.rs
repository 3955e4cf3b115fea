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
use std::ops::Range;
use std::sync::Arc;

use crate::{
    Error, FileId, FileShape, Files, Job, JobKind, Key, KeyRange, Level, LevelShape, Placement,
    RunId, RunShape, TreeShape,
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

/// From so many pieces that leave or join a run on it is made anew.
const PIECES_MAX: usize = 8;

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
    /// Indices of the files in their run, ascending.
    indices: Vec<usize>,
}

impl<'a> Input<'a> {
    fn files(&self) -> impl DoubleEndedIterator<Item = &'a Arc<FileShape>> {
        self.indices.iter().map(|&index| &self.run.files[index])
    }
}

/// What leaves a run.
struct Taken {
    level: Level,
    index: usize,
    /// Stretches of neighbours, as indices, ascending.
    stretches: Vec<Range<usize>>,
}

/// A tree's change, with every check done but whether outputs fit where they go.
struct Change {
    taken: Vec<Taken>,
    destination: Option<Destination>,
    placed: Vec<Arc<FileShape>>,
    cursor: Option<(Level, Key)>,
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
        let change = self.change(job, outputs)?;
        self.clone().changed(job, change)
    }

    /// [`TreeShape::apply`] for who needs the old tree no more: a run that nobody shares is changed
    /// where it stands, so that a job on a few files costs no more in a tree of many.
    ///
    /// # Errors
    ///
    /// As [`TreeShape::apply`]; then the tree is gone.
    pub fn into_applied(self, job: &Job, outputs: Vec<FileShape>) -> Result<Applied, Error> {
        let change = self.change(job, outputs)?;
        self.changed(job, change)
    }

    /// Checks the inputs and the target of a job before it runs: all that [`TreeShape::apply`] checks of a job
    /// whatever its outputs are.
    ///
    /// # Errors
    ///
    /// The rule that the job breaks.
    pub fn check_job(&self, job: &Job) -> Result<(), Error> {
        let inputs = self.resolve_inputs(job)?;
        self.checked_destination(job, &inputs)?;
        match job.kind {
            JobKind::Move => moved_files(&inputs).map(drop),
            JobKind::Merge | JobKind::Rewrite | JobKind::Drop => Ok(()),
        }
    }

    /// What a job changes.
    fn change(&self, job: &Job, outputs: Vec<FileShape>) -> Result<Change, Error> {
        let inputs = self.resolve_inputs(job)?;
        let writes = matches!(job.kind, JobKind::Merge | JobKind::Rewrite);
        if !writes && !outputs.is_empty() {
            return Err(Error::UnexpectedOutputs { outputs: outputs.len() });
        }
        let destination = self.checked_destination(job, &inputs)?;
        let placed = match job.kind {
            JobKind::Drop => Vec::new(),
            JobKind::Move => moved_files(&inputs)?,
            JobKind::Merge | JobKind::Rewrite => checked_outputs(&inputs, outputs)?,
        };
        let cursor = match job.kind {
            JobKind::Merge | JobKind::Move => end_of_source(&inputs),
            JobKind::Drop | JobKind::Rewrite => None,
        };
        let taken = inputs
            .iter()
            .map(|input| {
                let stretches = stretches(&input.indices);
                Taken { level: input.level, index: input.index, stretches }
            })
            .collect();
        Ok(Change { taken, destination, placed, cursor })
    }

    /// Where the outputs of a job go, once every input may go there. A drop has no outputs.
    fn checked_destination(
        &self,
        job: &Job,
        inputs: &[Input<'_>],
    ) -> Result<Option<Destination>, Error> {
        Ok(match job.kind {
            JobKind::Drop => None,
            JobKind::Rewrite => Some(self.rewrite_place(job, inputs)?),
            JobKind::Merge | JobKind::Move => {
                let destination = self.destination(job, inputs);
                self.check_l0_order(inputs, destination.place)?;
                self.check_passage(inputs, destination.place)?;
                Some(destination)
            }
        })
    }

    /// Looks up all inputs, and verifies that each stands below the one before it.
    fn resolve_inputs(&self, job: &Job) -> Result<Vec<Input<'_>>, Error> {
        let mut inputs: Vec<Input<'_>> = Vec::with_capacity(job.inputs.len());
        for input in &job.inputs {
            let (level, run) = (input.level, input.run);
            let runs = self.runs_of(level);
            let index = runs.iter().position(|r| r.id == run);
            let index = index.ok_or(Error::NoSuchRun { level, run })?;
            let indices = input.indices(&runs[index])?;
            if indices.is_empty() {
                return Err(Error::NoInputs);
            }
            if inputs.last().is_some_and(|last| (last.level, last.index) >= (level, index)) {
                return Err(Error::InputOrder { level, run });
            }
            inputs.push(Input { level, index, run: &runs[index], indices });
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
            if input.indices.len() != input.run.files.len() {
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
                    let taken = taken.map_or(&[][..], |i| &i.indices);
                    if taken.len() < run.files.len() {
                        check_pair_passage(input, run, taken)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The tree with a change made. Levels and runs that nobody shares are changed in place.
    fn changed(mut self, job: &Job, change: Change) -> Result<Applied, Error> {
        let Change { taken, destination, placed, cursor } = change;
        let destination = destination.filter(|_| !placed.is_empty());
        let output_run =
            destination.as_ref().map(|d| d.joined.unwrap_or_else(|| self.new_run_id()));
        let target = destination.as_ref().map(|d| d.place.0);
        let mut changed: Vec<Level> = taken.iter().map(|taken| taken.level).collect();
        changed.extend(target);
        changed.sort_unstable();
        changed.dedup();
        let mut run_orders = Vec::with_capacity(changed.len());
        for &level in &changed {
            let landing = match (&destination, output_run) {
                (Some(d), Some(run)) if d.place.0 == level => Some((d.place.1, run)),
                _ => None,
            };
            while self.levels.len() <= level.index() {
                self.levels.push(Arc::default());
            }
            let LevelShape { runs, cursor: last } = Arc::make_mut(&mut self.levels[level.index()]);
            let leaving = taken.iter().filter(|taken| taken.level == level);
            *runs = rebuilt(std::mem::take(runs), level, leaving, landing, &placed)?;
            run_orders.push((level, runs.iter().map(|run| run.id).collect()));
            if let Some((_, key)) = cursor.as_ref().filter(|(of, _)| *of == level) {
                *last = Some(key.clone());
            }
        }
        self.trim();
        let removed =
            if job.kind == JobKind::Move { Vec::new() } else { job.input_files().collect() };
        let placed = match (target, output_run) {
            (Some(level), Some(run)) => {
                placed.into_iter().map(|file| PlacedFile { level, run, file }).collect()
            }
            _ => Vec::new(),
        };
        Ok(Applied { shape: self, output_run, removed, placed, run_orders, cursor })
    }
}

/// Neighbours among ascending indices.
fn stretches(indices: &[usize]) -> Vec<Range<usize>> {
    let mut stretches: Vec<Range<usize>> = Vec::new();
    for &index in indices {
        match stretches.last_mut() {
            Some(last) if last.end == index => last.end += 1,
            _ => stretches.push(index..index + 1),
        }
    }
    stretches
}

/// One input against one run that it passes, of which `taken` files leave too.
fn check_pair_passage(input: &Input<'_>, run: &RunShape, taken: &[usize]) -> Result<(), Error> {
    for file in input.files() {
        let mut passed = run.overlapping_indices(&file.range);
        if let Some(other) = passed.find(|index| taken.binary_search(index).is_err()) {
            return Err(Error::PassesOver { input: file.id, other: run.files[other].id });
        }
    }
    Ok(())
}

/// The files of a move as one run.
fn moved_files(inputs: &[Input<'_>]) -> Result<Vec<Arc<FileShape>>, Error> {
    let mut files: Vec<_> = inputs.iter().flat_map(Input::files).cloned().collect();
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
    let files = || inputs.iter().flat_map(Input::files);
    check_names(inputs, &outputs)?;
    let hull = KeyRange::hull_of(files().map(|file| &file.range)).ok_or(Error::NoInputs)?;
    for output in &outputs {
        if !hull.covers(&output.range) {
            return Err(Error::OutputOutside { file: output.id });
        }
    }
    let mut outputs: Vec<_> = outputs.into_iter().map(Arc::new).collect();
    outputs.sort_by(|a, b| a.range.smallest.cmp(&b.range.smallest));
    Ok(outputs)
}

/// No output has the name of an input or of another output.
fn check_names(inputs: &[Input<'_>], outputs: &[FileShape]) -> Result<(), Error> {
    let mut inputs_of = inputs.iter().flat_map(Input::files).map(|file| file.id);
    // Names are mostly given out in order, so that a look at neighbours tells.
    let ascends = outputs.windows(2).all(|pair| pair[0].id < pair[1].id);
    if ascends && outputs.first().is_none_or(|first| inputs_of.all(|id| id < first.id)) {
        return Ok(());
    }
    let inputs = inputs.iter().flat_map(Input::files);
    let mut names: HashSet<FileId> = inputs.map(|file| file.id).collect();
    match outputs.iter().find(|output| !names.insert(output.id)) {
        Some(output) => Err(Error::FileTwice { file: output.id }),
        None => Ok(()),
    }
}

/// Newest input level, and the largest key taken from it.
fn end_of_source(inputs: &[Input<'_>]) -> Option<(Level, Key)> {
    let level = inputs.first()?.level;
    let of_source = inputs.iter().take_while(|input| input.level == level);
    let largest =
        of_source.filter_map(|input| input.files().next_back()).map(|f| &f.range.largest).max()?;
    Some((level, largest.clone()))
}

/// Runs of a level without what leaves them, with `files` at the landing place.
fn rebuilt<'a>(
    runs: Vec<Arc<RunShape>>,
    level: Level,
    leaving: impl Iterator<Item = &'a Taken>,
    landing: Option<(usize, RunId)>,
    files: &[Arc<FileShape>],
) -> Result<Vec<Arc<RunShape>>, Error> {
    let mut leaving = leaving.peekable();
    let count = runs.len();
    let mut rebuilt = Vec::with_capacity(count + 1);
    let place_new = |at: usize| landing.filter(|(place, _)| *place == at);
    let new_run = |id: RunId| -> Result<Arc<RunShape>, Error> {
        let run = RunShape { id, files: files.iter().cloned().collect() };
        run.check(level)?;
        Ok(Arc::new(run))
    };
    for (index, mut run) in runs.into_iter().enumerate() {
        if let Some((_, id)) = place_new(2 * index) {
            rebuilt.push(new_run(id)?);
        }
        let taken = leaving.next_if(|taken| taken.index == index);
        let lands_here = place_new(2 * index + 1).is_some();
        if taken.is_none() && !lands_here {
            rebuilt.push(run);
            continue;
        }
        let stretches = taken.map_or(&[][..], |taken| &taken.stretches);
        let joining = if lands_here { files } else { &[] };
        exchange(Arc::make_mut(&mut run), level, stretches, joining)?;
        if !run.files.is_empty() {
            rebuilt.push(run);
        }
    }
    if let Some((_, id)) = place_new(2 * count) {
        rebuilt.push(new_run(id)?);
    }
    Ok(rebuilt)
}

/// Takes stretches of files out of a run, and puts others in, given in key order.
fn exchange(
    run: &mut RunShape,
    level: Level,
    out: &[Range<usize>],
    files: &[Arc<FileShape>],
) -> Result<(), Error> {
    if let ([only], [first, .., last] | [first @ last]) = (out, files) {
        // Mostly what goes in takes the place of what goes out.
        let starts = only
            .start
            .checked_sub(1)
            .is_none_or(|before| run.files[before].range.smallest < first.range.smallest);
        let ends =
            run.files.get(only.end).is_none_or(|after| last.range.smallest < after.range.smallest);
        if starts && ends {
            run.files.splice(only.clone(), files.to_vec());
            return run.check_files(level, only.start..only.start + files.len());
        }
    }
    if out.len() + files.len() > PIECES_MAX {
        let mut left: Vec<Arc<FileShape>> = Files::into(std::mem::take(&mut run.files));
        for stretch in out.iter().rev() {
            left.drain(stretch.clone());
        }
        left.extend(files.iter().cloned());
        // Two sorted pieces: the sort sees them as such and merges them.
        left.sort_by(|a, b| a.range.smallest.cmp(&b.range.smallest));
        run.files = left.into();
        return if run.files.is_empty() { Ok(()) } else { run.check(level) };
    }
    for stretch in out.iter().rev() {
        run.files.splice(stretch.clone(), Vec::new());
    }
    for file in files {
        let at = run.files.partition_point(|other| other.range.smallest < file.range.smallest);
        run.files.splice(at..at, vec![Arc::clone(file)]);
        run.check_files(level, at..at + 1)?;
    }
    Ok(())
}

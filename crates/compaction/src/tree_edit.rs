//! Edits of a tree. The manifest stores them, and recovery replays them.

use std::collections::HashSet;
use std::sync::Arc;

use crate::ids::{FileId, Level, RunId};
use crate::key_range::Key;
use crate::run::SortedRun;
use crate::shape::TreeShape;
use crate::table_meta::TableMeta;

/// Change of a tree. [`TreeShape::apply_edit`] applies it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeEdit {
    /// Files that are removed from their runs. A moved file is in `added` too.
    pub removed: Vec<FileId>,
    /// Files that are added to runs. If a level does not have the run, the run becomes the newest run of the level.
    pub added: Vec<AddedFile>,
    /// Order of the runs in each changed level after the edit, newest first. Lists all runs of the level.
    pub run_orders: Vec<(Level, Vec<RunId>)>,
    /// New cursors and their levels. Contains only changed cursors. See
    /// [`LevelShape::cursor`](crate::LevelShape::cursor).
    pub cursors: Vec<(Level, Option<Key>)>,
    /// Number that the next new run gets, if it changed.
    pub run_id_next: Option<u64>,
}

/// A file and its new position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedFile {
    /// Level of the run.
    pub level: Level,
    /// Run of the file.
    pub run: RunId,
    /// The file.
    pub file: Arc<TableMeta>,
}

/// A tree after a change, and the edit that makes this change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeUpdate {
    /// The tree after the change.
    pub shape: TreeShape,
    /// Edit that changes the previous tree to `shape`.
    pub edit: TreeEdit,
}

/// Reason why an edit cannot be applied to a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// A removed file is not in the tree.
    #[error("removed file {} is not in the tree", .0.0)]
    UnknownFile(FileId),
    /// An added file is in the tree already.
    #[error("added file {} is in the tree already", .0.0)]
    DuplicateFile(FileId),
    /// A run is in two levels.
    #[error("run {} is in two levels", .0.0)]
    DuplicateRun(RunId),
    /// The run order of a level does not contain this run exactly once.
    #[error("an order of runs does not list run {} exactly once", .0.0)]
    RunOrder(RunId),
}

impl TreeShape {
    /// Applies an edit: removes files, adds files, orders runs and sets cursors. Removes empty runs, and empty levels
    /// at the end.
    ///
    /// Does not check key ranges. [`TreeShape::check_invariants`] checks them.
    ///
    /// # Errors
    ///
    /// Fails if the edit does not fit the tree. A failure leaves the tree partly changed, so the caller must drop it.
    pub fn apply_edit(&mut self, edit: &TreeEdit) -> Result<(), EditError> {
        for &file in &edit.removed {
            self.remove_file(file)?;
        }
        for AddedFile { level, run, file } in &edit.added {
            self.add_file(*level, *run, file);
        }
        for level in &mut self.levels {
            if level.runs.iter().any(|run| run.files.is_empty()) {
                Arc::make_mut(level).runs.retain(|run| !run.files.is_empty());
            }
        }
        for (level, order) in &edit.run_orders {
            self.reorder_runs(*level, order)?;
        }
        for (level, cursor) in &edit.cursors {
            if let Some(level) = self.levels.get_mut(level.index()) {
                Arc::make_mut(level).cursor.clone_from(cursor);
            }
        }
        self.remove_empty_last_levels();
        self.run_id_next = self.run_id_next.max(edit.run_id_next.unwrap_or(0));
        self.check_unique_ids(&edit.added)
    }

    fn remove_file(&mut self, id: FileId) -> Result<(), EditError> {
        for level in &mut self.levels {
            for (index, run) in level.runs.iter().enumerate() {
                if let Some(at) = run.files.iter().position(|file| file.id == id) {
                    let run = &mut Arc::make_mut(level).runs[index];
                    Arc::make_mut(run).files.splice(at..at + 1, Vec::new());
                    return Ok(());
                }
            }
        }
        Err(EditError::UnknownFile(id))
    }

    fn add_file(&mut self, level: Level, run: RunId, file: &Arc<TableMeta>) {
        if self.levels.len() <= level.index() {
            self.levels.resize_with(level.index() + 1, Arc::default);
        }
        let runs = &mut Arc::make_mut(&mut self.levels[level.index()]).runs;
        let at = runs.iter().position(|known| known.id == run).unwrap_or_else(|| {
            runs.insert(0, Arc::new(SortedRun { id: run, files: Vec::new().into() }));
            0
        });
        let files = &mut Arc::make_mut(&mut runs[at]).files;
        let index = files.partition_point(|other| other.range.smallest <= file.range.smallest);
        files.splice(index..index, vec![Arc::clone(file)]);
        self.run_id_next = self.run_id_next.max(run.0.saturating_add(1));
    }

    /// Sets the order of the runs of a level. `order` must contain each run of the level once.
    fn reorder_runs(&mut self, level: Level, order: &[RunId]) -> Result<(), EditError> {
        let runs = self.runs_of(level);
        let reordered = order.iter().map(|&id| {
            let run = runs.iter().find(|run| run.id == id);
            run.cloned().ok_or(EditError::RunOrder(id))
        });
        let reordered = reordered.collect::<Result<Vec<_>, _>>()?;
        let mut listed = HashSet::new();
        if let Some(&twice) = order.iter().find(|&id| !listed.insert(*id)) {
            return Err(EditError::RunOrder(twice));
        }
        if let Some(missing) = runs.iter().find(|run| !listed.contains(&run.id)) {
            return Err(EditError::RunOrder(missing.id));
        }
        if let Some(level) = self.levels.get_mut(level.index()).filter(|_| !order.is_empty()) {
            Arc::make_mut(level).runs = reordered;
        }
        Ok(())
    }

    /// Checks that each added file is in the tree only once, and that each run is in one level only.
    ///
    /// The tree had no duplicate file before the edit, so only added files can be duplicates.
    fn check_unique_ids(&self, added: &[AddedFile]) -> Result<(), EditError> {
        if added.is_empty() {
            return Ok(());
        }
        let mut ids: Vec<FileId> = added.iter().map(|added| added.file.id).collect();
        ids.sort_unstable();
        let mut found = vec![false; ids.len()];
        for file in self.files() {
            if let Ok(index) = ids.binary_search(&file.id)
                && std::mem::replace(&mut found[index], true)
            {
                return Err(EditError::DuplicateFile(file.id));
            }
        }
        let mut runs = HashSet::new();
        match self.runs().find(|(_, run)| !runs.insert(run.id)) {
            Some((_, run)) => Err(EditError::DuplicateRun(run.id)),
            None => Ok(()),
        }
    }
}

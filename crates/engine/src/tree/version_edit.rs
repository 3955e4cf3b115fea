//! The manifest changes that lead from one shape of a tree to the next.

use std::collections::HashMap;

use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, Level, LevelShape, RunId, TableMeta, TreeShape};

use crate::format::version_edit::{Change, FileRecord};

/// Where a file stands.
type Place = (Level, RunId);

fn places(levels: &[Arc<LevelShape>], changed: &[u8]) -> HashMap<FileId, (Place, Arc<TableMeta>)> {
    let mut places = HashMap::new();
    for &level in changed {
        for run in levels.get(usize::from(level)).iter().flat_map(|level| &level.runs) {
            for file in &run.files {
                places.insert(file.id, ((Level(level), run.id), Arc::clone(file)));
            }
        }
    }
    places
}

/// What an edit must say so that a replay of the manifest turns `before` into `after`: files that
/// leave, files that come or move, the order of runs in each changed level, cursors.
///
/// `record` gives what the manifest keeps of a file that comes or moves.
///
/// # Errors
/// What `record` answers.
pub(crate) fn changes_between<E>(
    keyspace: u32,
    before: &TreeShape,
    after: &TreeShape,
    record: impl Fn(&Arc<TableMeta>) -> Result<Arc<FileRecord>, E>,
) -> Result<Vec<Change>, E> {
    let nothing = Arc::new(LevelShape::default());
    let level_of = |shape: &TreeShape, level: u8| -> Arc<LevelShape> {
        Arc::clone(shape.levels.get(usize::from(level)).unwrap_or(&nothing))
    };
    let count = before.levels.len().max(after.levels.len());
    let changed: Vec<u8> = (0..u8::try_from(count).unwrap_or(u8::MAX))
        .filter(|&level| !Arc::ptr_eq(&level_of(before, level), &level_of(after, level)))
        .collect();
    let old = places(&before.levels, &changed);
    let new = places(&after.levels, &changed);

    let mut changes = Vec::new();
    let mut gone: Vec<FileId> = old
        .iter()
        .filter(|(id, (place, _))| new.get(id).is_none_or(|(now, _)| now != place))
        .map(|(&id, _)| id)
        .collect();
    gone.sort_unstable();
    changes.extend(gone.into_iter().map(|id| Change::RemoveFile { keyspace, id }));

    let mut come: Vec<_> = new
        .iter()
        .filter(|(id, (place, _))| old.get(id).is_none_or(|(then, _)| then != place))
        .collect();
    come.sort_unstable_by_key(|(id, _)| **id);
    for (_, ((level, run), file)) in come {
        let (level, run) = (*level, *run);
        changes.push(Change::AddFile { keyspace, level, run, file: record(file)? });
    }
    for level in changed {
        let (was, is) = (level_of(before, level), level_of(after, level));
        let runs: Vec<RunId> = is.runs.iter().map(|run| run.id).collect();
        if !runs.is_empty() {
            changes.push(Change::RunOrder { keyspace, level: Level(level), runs });
        }
        if was.cursor != is.cursor {
            let (level, key) = (Level(level), is.cursor.clone());
            changes.push(Change::Cursor { keyspace, level, key });
        }
    }
    if before.run_id_next != after.run_id_next {
        changes.push(Change::RunIdNext { keyspace, next: after.run_id_next });
    }
    Ok(changes)
}

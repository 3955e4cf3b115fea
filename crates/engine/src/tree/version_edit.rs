//! Manifest changes between two states of a tree.

use std::collections::{HashMap, HashSet};

use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, Level, LevelShape, RunId, TableMeta, TreeShape};

use crate::format::version_edit::Change;
use crate::tree::blob_set::BlobUsage;
use crate::tree::version::Version;

/// Level and run of a file.
type RunPosition = (Level, RunId);

/// Returns the position of each file in the levels `changed`.
fn file_positions(
    levels: &[Arc<LevelShape>],
    changed: &[u8],
) -> HashMap<FileId, (RunPosition, Arc<TableMeta>)> {
    let mut positions = HashMap::new();
    for &level in changed {
        for run in levels.get(usize::from(level)).iter().flat_map(|level| &level.runs) {
            for file in &run.files {
                positions.insert(file.id, ((Level(level), run.id), Arc::clone(file)));
            }
        }
    }
    positions
}

/// Returns the changes that turn `before` into `after` when the manifest is replayed.
///
/// They remove files, add new and moved files, and set the order of runs and the cursor of each changed level.
pub(crate) fn diff_shapes(keyspace: u32, before: &TreeShape, after: &TreeShape) -> Vec<Change> {
    let empty = Arc::new(LevelShape::default());
    let level_of = |shape: &TreeShape, level: u8| -> Arc<LevelShape> {
        Arc::clone(shape.levels.get(usize::from(level)).unwrap_or(&empty))
    };
    let count = before.levels.len().max(after.levels.len());
    let changed: Vec<u8> = (0..u8::try_from(count).unwrap_or(u8::MAX))
        .filter(|&level| !Arc::ptr_eq(&level_of(before, level), &level_of(after, level)))
        .collect();
    let old = file_positions(&before.levels, &changed);
    let new = file_positions(&after.levels, &changed);

    let mut changes = Vec::new();
    let mut removed: Vec<FileId> = old
        .iter()
        .filter(|(id, (position, _))| new.get(id).is_none_or(|(now, _)| now != position))
        .map(|(&id, _)| id)
        .collect();
    removed.sort_unstable();
    changes.extend(removed.into_iter().map(|id| Change::RemoveFile { keyspace, id }));

    let mut added: Vec<_> = new
        .iter()
        .filter(|(id, (position, _))| old.get(id).is_none_or(|(before, _)| before != position))
        .collect();
    added.sort_unstable_by_key(|(id, _)| **id);
    for (_, ((level, run), file)) in added {
        let (level, run) = (*level, *run);
        changes.push(Change::AddFile { keyspace, level, run, file: Arc::clone(file) });
    }
    for level in changed {
        let (old, new) = (level_of(before, level), level_of(after, level));
        let runs: Vec<RunId> = new.runs.iter().map(|run| run.id).collect();
        if !runs.is_empty() {
            changes.push(Change::RunOrder { keyspace, level: Level(level), runs });
        }
        if old.cursor != new.cursor {
            let (level, key) = (Level(level), new.cursor.clone());
            changes.push(Change::Cursor { keyspace, level, key });
        }
    }
    if before.run_id_next != after.run_id_next {
        changes.push(Change::RunIdNext { keyspace, next: after.run_id_next });
    }
    changes
}

/// Returns the changes that turn the blob files of `shape` into those of `after` when the manifest is replayed.
///
/// They add and remove blob files, and add the references of tables that are not in `shape`.
pub(crate) fn diff_blob_files(
    keyspace: u32,
    (shape, blobs): (&TreeShape, &[FileId]),
    after: &Version,
) -> Vec<Change> {
    if blobs.is_empty() && after.blobs().is_empty() {
        return Vec::new();
    }
    let old_blobs: HashSet<FileId> = blobs.iter().copied().collect();
    let old_tables: HashSet<FileId> = shape.files().map(|file| file.id).collect();
    let added = after.blobs().files().filter(|used| !old_blobs.contains(&used.file.record().id));
    let mut changes: Vec<Change> =
        added.map(|used| Change::AddBlob { keyspace, blob: *used.file.record() }).collect();
    let removed = blobs.iter().filter(|id| after.blobs().file(**id).is_none());
    changes.extend(removed.map(|&id| Change::RemoveBlob { keyspace, id }));
    let tables = after.runs().iter().flat_map(|run| run.tables().iter());
    let new_tables =
        tables.filter(|table| !table.blobs().is_empty() && !old_tables.contains(&table.shape().id));
    changes.extend(new_tables.map(|table| Change::References {
        keyspace,
        table: table.shape().id,
        blobs: table.blobs().iter().map(BlobUsage::reference).collect(),
    }));
    changes
}

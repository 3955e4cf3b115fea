//! Checkpoints during writes. Each must open, with all commits from before the call and none from after it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::vfs::OsVfs;
use lsmx::{Db, Options};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use crate::compare::KeyspaceView;
use crate::{Outcome, keyspace_churn, open};

/// Bounds of the contents of a checkpoint.
pub(crate) struct CheckpointBounds {
    /// Commits of each writer before the call.
    pub(crate) least: Vec<u64>,
    /// Commits of each writer after the call.
    pub(crate) most: Vec<u64>,
    /// Steps of the keyspace churn. The thread that makes the checkpoint also does the steps.
    pub(crate) steps: u64,
}

/// Returns the directory of the checkpoint of a database.
pub(crate) fn checkpoint_dir(dir: &Path) -> PathBuf {
    dir.with_file_name("checkpoint")
}

/// Removes a checkpoint, complete or not, if there is one.
pub(crate) fn remove_checkpoint(dir: &Path) -> Outcome {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("{} cannot be removed: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Opens a checkpoint with options from a seed, compares all of its contents, closes and verifies it.
pub(crate) fn check_checkpoint(
    dir: &Path,
    seed: u64,
    options_seed: u64,
    bounds: &CheckpointBounds,
) -> Outcome {
    let (db, keyspaces) = open(Arc::new(OsVfs), dir, options_seed)?;
    let view = KeyspaceView { keyspaces: &keyspaces, snapshot: None };
    let mut counts = Vec::new();
    for (writer, (least, most)) in (0..).zip(bounds.least.iter().zip(&bounds.most)) {
        let found = view.commits_of(writer)?;
        if !(*least..=*most).contains(&found) {
            return Err(format!("writer {writer}: {found} commits, not {least} to {most}"));
        }
        counts.push(found);
    }
    let steps = keyspace_churn::count_steps(&db, &keyspaces[0])?;
    if steps != bounds.steps {
        return Err(format!("step {steps}, not {}", bounds.steps));
    }
    counts.push(steps);
    view.check(seed, &counts)?;
    drop(keyspaces);
    close_and_verify(db, dir)
}

/// Closes a database and verifies its files.
pub(crate) fn close_and_verify(db: Db, dir: &Path) -> Outcome {
    db.close(None).map_err(|error| format!("closing: {error}"))?;
    drop(db);
    let options = Options::default().operand_store(DeltaStoreFactory::new(DeltaOptions::default()));
    let mut report =
        lsmx::verify(dir, &options).map_err(|error| format!("verification: {error:?}"))?;
    // Bucket files whose records are still in the log; the next open removes them.
    let is_bucket =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "bucket");
    report.orphans.retain(|orphan| !is_bucket(orphan));
    if !report.orphans.is_empty() || !report.operands_unchecked.is_empty() {
        let (orphans, unchecked) = (report.orphans, report.operands_unchecked);
        return Err(format!("orphans: {orphans:?}, stores not checked: {unchecked:?}"));
    }
    Ok(())
}

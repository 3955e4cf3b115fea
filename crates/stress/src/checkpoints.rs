//! Tests checkpoints that are taken while other threads write.
//!
//! A checkpoint must contain all commits that were acknowledged before the call of `checkpoint`. It must contain no
//! commits that began after the call returned.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::vfs::OsVfs;
use lsmx::{Db, Options};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use crate::compare::KeyspaceView;
use crate::{KEYSPACES, Outcome, counter_key, keyspace_churn, loads, open};

/// Minimum and maximum number of commits of each writer that a checkpoint may contain.
pub(crate) struct CheckpointBounds {
    /// Number of commits of each writer that were visible before the checkpoint was taken.
    pub(crate) least: Vec<u64>,
    /// Number of commits of each writer that were visible after the checkpoint was taken.
    pub(crate) most: Vec<u64>,
    /// Number of completed steps of the keyspace churn (see [`crate::keyspace_churn`]). The same thread runs these
    /// steps and takes the checkpoint, so the checkpoint contains exactly this number of steps.
    pub(crate) steps: u64,
    /// Number of completed loads (see [`crate::loads`]), which the same thread runs.
    pub(crate) loads: u64,
}

/// Returns the path for a checkpoint of the database in `dir`.
pub(crate) fn checkpoint_dir(dir: &Path) -> PathBuf {
    dir.with_file_name("checkpoint")
}

/// Removes a complete or partial checkpoint. Does nothing if the directory does not exist.
pub(crate) fn remove_checkpoint(dir: &Path) -> Outcome {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("{} cannot be removed: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Opens a checkpoint with random options, compares its contents with the model, closes it and verifies its files.
pub(crate) fn check_checkpoint(
    dir: &Path,
    seed: u64,
    options_seed: u64,
    bounds: &CheckpointBounds,
) -> Outcome {
    let (db, keyspaces) = open(Arc::new(OsVfs), dir, options_seed)?;
    let view = KeyspaceView { db: &db, keyspaces: &keyspaces, snapshot: None };
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
    let loads = loads::count(&view)?;
    if loads != bounds.loads {
        return Err(format!("load {loads}, not {}", bounds.loads));
    }
    counts.extend([steps, loads]);
    view.check(seed, &counts)?;
    drop(keyspaces);
    close_and_verify(db, dir, counts[0])
}

/// Closes the database, verifies its files and searches them. `commits` is the number of commits of the first writer.
pub(crate) fn close_and_verify(db: Db, dir: &Path, commits: u64) -> Outcome {
    db.close(None).map_err(|error| format!("closing: {error}"))?;
    drop(db);
    match lsmx::read_metrics_file(dir, &Options::default()) {
        Ok(None) => {}
        reading => return Err(format!("a metrics file of a closed database: {reading:?}")),
    }
    let options = Options::default().operand_store(DeltaStoreFactory::new(DeltaOptions::default()));
    let mut report =
        lsmx::verify(dir, &options).map_err(|error| format!("verification: {error:?}"))?;
    // An unreferenced bucket file is allowed while its records are still in the operand log. The next open removes the
    // file.
    let is_bucket =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "bucket");
    report.orphans.retain(|orphan| !is_bucket(orphan));
    if !report.orphans.is_empty() || !report.operands_unchecked.is_empty() {
        let (orphans, unchecked) = (report.orphans, report.operands_unchecked);
        return Err(format!("orphans: {orphans:?}, stores not checked: {unchecked:?}"));
    }
    check_key_search(dir, &options, commits)
}

/// Checks that a search of the files finds the counter of the first writer in each keyspace, if the writer has commits,
/// and that it finds no key that was never written.
fn check_key_search(dir: &Path, options: &Options, commits: u64) -> Outcome {
    let search = |key: &[u8]| {
        let report = lsmx::search_key(dir, options, None, key);
        report.map_err(|error| format!("a search of the files: {error:?}"))
    };
    let counter = search(&counter_key(0))?;
    let is_in =
        |name: &str| counter.entries.iter().any(|entry| entry.keyspace.as_deref() == Some(name));
    let absent = search(b"never written")?;
    if commits > 0 && !KEYSPACES.into_iter().all(is_in) || !absent.entries.is_empty() {
        return Err(format!("searches of the files find {counter:?} and {absent:?}"));
    }
    Ok(())
}

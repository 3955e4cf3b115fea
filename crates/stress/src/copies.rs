//! Checkpoints that are made while all go on writing. Each opens as a database of its own, with what was committed
//! before and no more than was begun, in which nothing is missing or made up.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::Db;
use lsmx::vfs::OsVfs;

use crate::tuning::stores;
use crate::view::View;
use crate::{Outcome, open, passing};

/// What a copy has to hold.
pub(crate) struct Bounds {
    /// Commits of each writer before it was asked for.
    pub(crate) least: Vec<u64>,
    /// Commits of each writer when it was there.
    pub(crate) most: Vec<u64>,
    /// Steps of the keyspace that comes and goes: nobody made one meanwhile.
    pub(crate) steps: u64,
}

/// Where the copies of a database go, one at a time.
pub(crate) fn place_of(dir: &Path) -> PathBuf {
    dir.with_file_name("checkpoint")
}

/// Takes a copy away, whole or not.
pub(crate) fn remove(place: &Path) -> Outcome {
    match std::fs::remove_dir_all(place) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("{} cannot be removed: {error}", place.display()))
        }
        _ => Ok(()),
    }
}

/// Opens a copy under drawn options, compares all of it, closes it, has its files verified.
pub(crate) fn compare(place: &Path, seed: u64, drawn: u64, bounds: &Bounds) -> Outcome {
    let (db, keyspaces) = open(Arc::new(OsVfs), place, drawn)?;
    let view = View { keyspaces: &keyspaces, snapshot: None };
    let mut counts = Vec::new();
    for (writer, (least, most)) in (0..).zip(bounds.least.iter().zip(&bounds.most)) {
        let found = view.count_of(writer)?;
        if !(*least..=*most).contains(&found) {
            return Err(format!("writer {writer}: {found} commits, not {least} to {most}"));
        }
        counts.push(found);
    }
    let steps = passing::steps(&db, &keyspaces[0])?;
    if steps != bounds.steps {
        return Err(format!("step {steps}, not {}", bounds.steps));
    }
    counts.push(steps);
    view.check(seed, &counts)?;
    drop(keyspaces);
    close_and_verify(db, place)
}

/// Closes a database and has its files checked from end to end.
pub(crate) fn close_and_verify(db: Db, dir: &Path) -> Outcome {
    db.close(None).map_err(|error| format!("closing: {error}"))?;
    drop(db);
    let report = lsmx::verify(
        dir,
        &stores()
            .iter()
            .cloned()
            .fold(lsmx::Options::default().vfs(Arc::new(OsVfs)), lsmx::Options::operand_store),
    );
    let mut report = report.map_err(|error| format!("verification: {error:?}"))?;
    // Pages of buckets whose records the log of their store still has: the next opening removes them.
    let is_bucket =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "bucket");
    report.orphans.retain(|orphan| !is_bucket(orphan));
    if !report.orphans.is_empty() || !report.operands_unchecked.is_empty() {
        let (orphans, unchecked) = (report.orphans, report.operands_unchecked);
        return Err(format!("orphans: {orphans:?}, stores not checked: {unchecked:?}"));
    }
    Ok(())
}

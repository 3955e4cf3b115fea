//! Checks of the parts of a run outside its commits: a keyspace that is created, filled and dropped again and again, and
//! checkpoints.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Error, Keyspace};
use lsmx_testkit::TestRng;

use super::history::History;
use super::oracle::{self, Trouble};
use super::recorder::Presence;
use super::{Outcome, options};

/// Name of the keyspace.
pub(crate) const PASSING: &str = "passing";

/// Known state of the keyspace. Its keys are the numbers from 0, its values the number of its life.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passing {
    pub(crate) presence: Presence,
    /// Number of lives so far. A dropped keyspace must not reappear in a later life.
    pub(crate) life: u64,
    /// Number of keys that must exist.
    pub(crate) synced: u64,
    /// Maximum number of keys that may exist.
    pub(crate) written: u64,
}

/// Returns the key with a number.
pub(crate) fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Compares the keyspace with its known state. Returns its number of keys, if it exists.
pub(crate) fn check(db: &Db, known: &Passing) -> Result<Option<u64>, Trouble> {
    let wrong = |what: String| Err(Trouble::Wrong(what));
    let keyspace = match (db.open_keyspace(PASSING, None), known.presence) {
        (Err(_), Presence::No | Presence::Maybe) => return Ok(None),
        (Err(error), Presence::Yes) => {
            return wrong(format!("a created keyspace is missing: {error:?}"));
        }
        (Ok(_), Presence::No) => return wrong("a dropped keyspace exists".to_owned()),
        (Ok(keyspace), _) => keyspace,
    };
    let count = contents(&keyspace, known.life)?;
    // A drop follows a sync, so a started drop loses no keys.
    if !(known.synced..=known.written).contains(&count) {
        return wrong(format!("[{PASSING}] has {count} keys, known is {known:?}"));
    }
    Ok(Some(count))
}

/// Returns the number of keys. Checks that they are the first ones of this life.
fn contents(keyspace: &Keyspace, life: u64) -> Result<u64, Trouble> {
    let mut count = 0;
    for entry in keyspace.iter() {
        let (found, value) = entry?;
        if found[..] != key(count) || value[..] != life.to_le_bytes() {
            return Err(Trouble::Wrong(format!(
                "[{PASSING}] entry {count} of life {life} is {found:?} = {value:?}"
            )));
        }
        count += 1;
    }
    Ok(count)
}

/// A checkpoint, complete or not.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) path: String,
    /// Number of its commits.
    pub(crate) commits: u64,
    /// Whether the call has returned without error.
    pub(crate) done: bool,
}

/// Opens a checkpoint. It must be complete, or, if the call did not return, no database.
pub(crate) fn check_checkpoint(
    disk: &MemVfs,
    checkpoint: &Checkpoint,
    history: &History,
    rng: &mut TestRng,
) -> Outcome {
    let Checkpoint { path, commits, done } = checkpoint;
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    let options = options::draw(rng, Background::Inline).create_if_missing(false);
    let db = match Db::open(path, options.vfs(vfs)) {
        Ok(db) => db,
        Err(Error::NotADatabase { .. }) if !done => return Ok(()),
        Err(error) => return Err(format!("{checkpoint:?} does not open: {error:?}")),
    };
    let n = oracle::counter(&db)?;
    if n != *commits {
        return Err(format!("{checkpoint:?} has {n} commits"));
    }
    oracle::compare(&db, &history.state(n), rng)
        .map_err(|what| format!("{checkpoint:?}: {}", String::from(what)))
}

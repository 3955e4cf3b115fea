//! What comes and goes beside the numbered commits: a keyspace that is made, filled and dropped over
//! and over, and checkpoints.

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

/// What is known of the keyspace: it holds the keys from the first on, each with the number of the
/// keyspace's life as its value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passing {
    pub(crate) presence: Presence,
    /// Which life it is; one that was dropped never comes back under the next one's name.
    pub(crate) life: u64,
    /// So many keys must be there.
    pub(crate) synced: u64,
    /// So many were written, or may have been.
    pub(crate) written: u64,
}

/// The key with this number.
pub(crate) fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Compares the keyspace with what is known of it; returns how many keys it has, if it is there.
pub(crate) fn check(db: &Db, known: &Passing) -> Result<Option<u64>, Trouble> {
    let wrong = |what: String| Err(Trouble::Wrong(what));
    let keyspace = match (db.open_keyspace(PASSING, None), known.presence) {
        (Err(_), Presence::No | Presence::Maybe) => return Ok(None),
        (Err(error), Presence::Yes) => return wrong(format!("it was made: {error:?}")),
        (Ok(_), Presence::No) => return wrong("a keyspace that was dropped is there".to_owned()),
        (Ok(keyspace), _) => keyspace,
    };
    let count = contents(&keyspace, known.life)?;
    // The drop that may have begun was behind a sync, so nothing is lost with it either.
    if !(known.synced..=known.written).contains(&count) {
        return wrong(format!("[{PASSING}] has {count} keys, known is {known:?}"));
    }
    Ok(Some(count))
}

/// How many keys there are: the first ones, of this life.
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

/// A checkpoint that was begun.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) path: String,
    /// It holds so many commits.
    pub(crate) commits: u64,
    /// Whether the call has returned well.
    pub(crate) done: bool,
}

/// Opens a checkpoint: it is whole, or, if it never got done, no database at all.
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

//! Checks of three features in recorded workloads: checkpoints, a keyspace that is repeatedly created, filled, renamed and
//! dropped, and a keyspace that is repeatedly cloned from another one and dropped.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Error, Keyspace};
use lsmx_testkit::TestRng;
use lsmx_testkit::world::compare_pairs;

use super::history::{Contents, History};
use super::oracle::{self, Trouble};
use super::recorder::Presence;
use super::{Outcome, options};

/// The names of the keyspace that is repeatedly created, filled, renamed and dropped. It is created with the first name.
pub(crate) const NAMES: [&str; 2] = ["passing", "renamed"];

/// The known state of the keyspace [`NAMES`]. Its keys are consecutive numbers from 0. Its values are the value of
/// `life` when the key was written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passing {
    pub(crate) presence: Presence,
    /// Number of times that the keyspace has been created. Data from before a drop must not reappear.
    pub(crate) life: u64,
    /// Minimum number of keys.
    pub(crate) synced: u64,
    /// Maximum number of keys.
    pub(crate) written: u64,
    /// Index of its name.
    pub(crate) name: usize,
    /// Whether a rename to the other name has begun.
    pub(crate) is_renaming: bool,
}

pub(crate) fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Compares the keyspace [`NAMES`] with the known state. Returns the number of keys and the index of the name, or `None`
/// if the keyspace does not exist.
pub(crate) fn check(db: &Db, known: &Passing) -> Result<Option<(u64, usize)>, Trouble> {
    let wrong = |what: String| Err(Trouble::Wrong(what));
    let opened = NAMES.map(|name| db.open_keyspace(name, None));
    let (keyspace, name) = match (opened, known.presence) {
        ([Ok(_), Ok(_)], _) => return wrong("a renamed keyspace has both names".to_owned()),
        ([Err(_), Err(_)], Presence::No | Presence::Maybe) => return Ok(None),
        ([Err(error), Err(_)], Presence::Yes) => {
            return wrong(format!("a created keyspace is missing: {error:?}"));
        }
        (_, Presence::No) => return wrong("a dropped keyspace exists".to_owned()),
        ([Ok(keyspace), _], _) => (keyspace, 0),
        ([_, Ok(keyspace)], _) => (keyspace, 1),
    };
    if name != known.name && !known.is_renaming {
        return wrong(format!("the name is {:?}, known is {known:?}", NAMES[name]));
    }
    let count = contents(&keyspace, known.life)?;
    // The workload syncs all keys before a drop. An interrupted drop therefore leaves all keys or none.
    if !(known.synced..=known.written).contains(&count) {
        return wrong(format!("[{}] has {count} keys, known is {known:?}", NAMES[name]));
    }
    Ok(Some((count, name)))
}

/// Returns the number of keys. Checks that the keys are consecutive from 0, and that each value is `life`.
fn contents(keyspace: &Keyspace, life: u64) -> Result<u64, Trouble> {
    let mut count = 0;
    for entry in keyspace.iter() {
        let (found, value) = entry?;
        if found[..] != key(count) || value[..] != life.to_le_bytes() {
            return Err(Trouble::Wrong(format!(
                "[{}] entry {count} of life {life} is {found:?} = {value:?}",
                keyspace.name()
            )));
        }
        count += 1;
    }
    Ok(count)
}

/// The name of the keyspace that is repeatedly cloned from another one and dropped.
pub(crate) const CLONE: &str = "clone";

/// The known state of the keyspace [`CLONE`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Cloned {
    pub(crate) presence: Presence,
    pub(crate) contents: Arc<Contents>,
}

/// Compares the keyspace [`CLONE`] with the known state. Returns whether the keyspace exists.
pub(crate) fn check_clone(db: &Db, known: &Cloned) -> Result<bool, Trouble> {
    match (db.open_keyspace(CLONE, None), known.presence) {
        (Err(_), Presence::No | Presence::Maybe) => Ok(false),
        (Err(error), Presence::Yes) => {
            Err(Trouble::Wrong(format!("a clone is missing: {error:?}")))
        }
        (Ok(_), Presence::No) => Err(Trouble::Wrong("a clone exists".to_owned())),
        (Ok(keyspace), _) => {
            let pairs = known.contents.at(db.env().now_us());
            compare_pairs(CLONE, keyspace.iter(), pairs.iter())?;
            Ok(true)
        }
    }
}

/// A checkpoint that a workload has started.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) path: String,
    /// Number of commits that the checkpoint must contain.
    pub(crate) commits: u64,
    pub(crate) done: bool,
}

/// Opens a checkpoint and compares it with the history. The directory may lack a database if the call of `checkpoint`
/// has not returned.
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

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
#[derive(Clone, Debug, Default)]
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
    /// Whether the keyspace has no merge operator, so that it may have a default time to live. All its writes are then
    /// synced, because a missing key could otherwise be a lost key or an expired key.
    pub(crate) may_expire: bool,
    /// For each written key the time at which it expires, in microseconds. The largest number stands for no expiry.
    pub(crate) expiry_us: Vec<u64>,
}

impl Passing {
    /// Returns which of the first `count` keys are visible at a time of the database clock.
    pub(crate) fn visible_keys(&self, count: u64, now_us: u64) -> Vec<u64> {
        let keys = (0..count).zip(&self.expiry_us);
        keys.filter(|(_, expiry_us)| **expiry_us > now_us).map(|(number, _)| number).collect()
    }
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
    let found = read_keys(&keyspace, known.life)?;
    let now_us = db.env().now_us();
    // The workload syncs all keys before a drop. An interrupted drop therefore leaves all keys or none.
    let mut counts = (known.synced..=known.written).rev();
    match counts.find(|count| known.visible_keys(*count, now_us) == found) {
        Some(count) => Ok(Some((count, name))),
        None => {
            let name = NAMES[name];
            wrong(format!("[{name}] has the keys {found:?} at {now_us}, known is {known:?}"))
        }
    }
}

/// Returns the keys. Checks that each value is `life`.
fn read_keys(keyspace: &Keyspace, life: u64) -> Result<Vec<u64>, Trouble> {
    let mut keys = Vec::new();
    for entry in keyspace.iter() {
        let (found, value) = entry?;
        match <[u8; 8]>::try_from(&*found) {
            Ok(bytes) if value[..] == life.to_le_bytes() => keys.push(u64::from_be_bytes(bytes)),
            _ => {
                let name = keyspace.name();
                let what = format!("[{name}] an entry of life {life} is {found:?} = {value:?}");
                return Err(Trouble::Wrong(what));
            }
        }
    }
    Ok(keys)
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

//! Keyspace churn: a thread repeatedly creates a keyspace, writes to it, renames it, clones it and drops it.
//!
//! The steps are numbered from 1. The number of completed steps can be derived from the contents of the database.

use lsmx::merge_operator::Append;
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Result, Slice, WriteBatch};

use crate::Outcome;
use crate::number;
use crate::options::{draw_keyspace, draw_store, draw_without_store};
use lsmx_testkit::TestRng;

/// Name of the churned keyspace from its creation to its rename.
///
/// In the first keyspace of the database, the key with this name stores the number of the last step that put an entry.
pub(crate) const NAME: &str = "passing";
/// Name of the keyspace after its rename.
const SECOND_NAME: &str = "passing-renamed";
const CLONE_NAME: &str = "passing-clone";
/// Number of churn steps from the creation of the keyspace to its drop (one incarnation). The first step creates the
/// keyspace, the last step drops it, and each other step puts an entry.
const STEPS_PER_LIFE: u64 = 8;
/// Index of the churn step that moves operands from the operand store to the tree, in every second incarnation of the
/// keyspace.
const TO_TREE: u64 = 5;
/// Index of the churn step that renames the keyspace before it puts an entry.
const RENAME: u64 = 3;
/// Index of the churn step that clones the keyspace before it puts an entry.
const CLONE: u64 = 4;
/// Key whose value each put step extends by a merge operand.
const APPENDED_KEY: &[u8] = b"appended";

/// Returns the incarnation of the keyspace to which a churn step belongs, and the index of the step in this
/// incarnation. Both start at 0.
fn life_and_index(step: u64) -> (u64, u64) {
    ((step - 1) / STEPS_PER_LIFE, (step - 1) % STEPS_PER_LIFE)
}

/// Returns whether a churn step renames the keyspace.
pub(crate) fn is_rename(step: u64) -> bool {
    life_and_index(step).1 == RENAME
}

/// Returns whether a churn step clones the keyspace.
pub(crate) fn is_clone(step: u64) -> bool {
    life_and_index(step).1 == CLONE
}

/// Returns the key, the value and the merge operand that churn step `at` of incarnation `life` writes.
fn entry(life: u64, at: u64) -> ([u8; 8], Vec<u8>, [u8; 8]) {
    (at.to_be_bytes(), life.to_le_bytes().repeat(100), (life ^ at << 32).to_le_bytes())
}

/// Returns the expected contents of incarnation `life` of the keyspace after `puts` put steps.
fn contents(life: u64, puts: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut contents = Vec::new();
    let mut appended = Vec::new();
    for at in 1..=puts {
        let (key, value, operand) = entry(life, at);
        contents.push((key.to_vec(), value));
        appended.extend(operand);
    }
    if puts > 0 {
        contents.push((APPENDED_KEY.to_vec(), appended));
    }
    contents
}

/// Drops the clone, if it exists.
fn drop_clone(db: &Db) -> Result<()> {
    match db.drop_keyspace(CLONE_NAME) {
        Err(Error::UnknownKeyspace { .. }) => Ok(()),
        dropped => dropped,
    }
}

pub(crate) fn draw_options(rng: &mut TestRng) -> KeyspaceOptions {
    draw_keyspace(rng).memtable_bytes(2048).merge_operator(Append::default())
}

/// Opens the keyspace under one of its names.
fn open(db: &Db) -> Result<Keyspace> {
    match db.open_keyspace(NAME, None) {
        Err(Error::UnknownKeyspace { .. }) => db.open_keyspace(SECOND_NAME, None),
        opened => opened,
    }
}

/// Opens the keyspace with random options, if it exists. If the keyspace uses an operand store, the options contain one
/// too.
pub(crate) fn reopen(db: &Db, rng: &mut TestRng) -> Result<()> {
    let drawn = draw_options(rng);
    let Ok(keyspace) = open(db) else { return Ok(()) };
    let options = match keyspace.options().operand_store {
        Some(_) => drawn.operand_store(draw_store(rng)),
        None => drawn,
    };
    db.keyspace(&keyspace.name(), options).map(drop)
}

pub(crate) fn run_step(db: &Db, notes: &Keyspace, step: u64) -> Result<()> {
    let (life, at) = life_and_index(step);
    if at == 0 {
        return db.keyspace(NAME, draw_options(&mut TestRng::new(life))).map(drop);
    }
    let keyspace = open(db)?;
    if at == STEPS_PER_LIFE - 1 {
        drop_clone(db)?;
        return db.drop_keyspace(&keyspace.name());
    }
    // An earlier attempt may have been killed after the rename, so the keyspace may already have its second name.
    if at == RENAME && keyspace.name() == NAME {
        db.rename_keyspace(NAME, SECOND_NAME)?;
    }
    if at == CLONE {
        // An earlier attempt may have been killed after it created the clone.
        drop_clone(db)?;
        let options = draw_without_store(&mut TestRng::new(step)).merge_operator(Append::default());
        db.clone_keyspace(&keyspace.name(), CLONE_NAME, options)?;
    }
    if at == TO_TREE && life % 2 == 1 {
        match keyspace.operands_to_tree() {
            Ok(()) | Err(Error::SnapshotsHeld { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let (key, value, operand) = entry(life, at);
    let mut batch = WriteBatch::new();
    batch.put(&keyspace, key, value);
    batch.merge(&keyspace, APPENDED_KEY, operand);
    batch.put(notes, NAME, step.to_le_bytes());
    db.write(batch, Durability::Buffered)
}

/// Returns the expected entry with the key [`NAME`] in the first keyspace, after `steps` churn steps.
pub(crate) fn expected_note(steps: u64) -> Option<(Vec<u8>, Vec<u8>)> {
    let puts = |step: &u64| (1..STEPS_PER_LIFE - 1).contains(&life_and_index(*step).1);
    let last = (1..=steps).rev().take(3).find(puts)?;
    Some((NAME.into(), last.to_le_bytes().to_vec()))
}

fn read_entries(keyspace: &Keyspace) -> Outcome<Vec<(Vec<u8>, Vec<u8>)>> {
    let pair = |(key, value): (Slice, Slice)| (key.to_vec(), value.to_vec());
    let entries = keyspace.iter().map(|item| item.map(pair)).collect::<Result<_>>();
    entries.map_err(|error| format!("{}: {error:?}", keyspace.name()))
}

/// Checks that the clone, if it exists, has the contents that the keyspace had before the step [`CLONE`].
fn check_clone(db: &Db, noted: u64) -> Outcome {
    let clone = match db.open_keyspace(CLONE_NAME, None) {
        Ok(clone) => clone,
        Err(Error::UnknownKeyspace { .. }) => return Ok(()),
        Err(error) => return Err(format!("{CLONE_NAME} after step {noted}: {error:?}")),
    };
    let found = read_entries(&clone)?;
    let (life, at) = life_and_index(noted.max(1));
    match at + 1 >= CLONE && found == contents(life, CLONE - 1) {
        true => Ok(()),
        false => {
            let keys: Vec<_> = found.iter().map(|(key, value)| (key, value.first())).collect();
            Err(format!("{CLONE_NAME} holds {keys:?} after step {noted}"))
        }
    }
}

/// Derives the number of completed churn steps from the contents of the database.
///
/// # Errors
/// Returns an error if a read fails, or if the contents match no number of churn steps.
pub(crate) fn count_steps(db: &Db, notes: &Keyspace) -> Outcome<u64> {
    let noted = notes.get(NAME).map_err(|error| format!("notes: {error:?}"))?;
    let noted = number(noted.as_deref())?;
    let life_is_over = noted == 0 || life_and_index(noted).1 == STEPS_PER_LIFE - 2;
    let keyspace = match open(db) {
        Ok(keyspace) => keyspace,
        Err(Error::UnknownKeyspace { .. }) if noted == 0 => return Ok(0),
        Err(Error::UnknownKeyspace { .. }) if life_is_over => return Ok(noted + 1),
        Err(error) => return Err(format!("{NAME} after step {noted}: {error:?}")),
    };
    // `Some(true)` if the keyspace must have its second name, `None` if both names are possible. The step that renames
    // the keyspace may have been killed between the rename and the put.
    let renamed = match noted {
        0 => Some(false),
        _ if life_is_over => None,
        _ => match life_and_index(noted).1 {
            at if at + 1 == RENAME => None,
            at => Some(at >= RENAME),
        },
    };
    let name = keyspace.name();
    if renamed.is_some_and(|renamed| renamed != (name == SECOND_NAME)) {
        return Err(format!("{NAME} has the name {name:?} after step {noted}"));
    }
    check_clone(db, noted)?;
    let found = read_entries(&keyspace)?;
    if found.is_empty() && life_is_over {
        return Ok(if noted == 0 { 1 } else { noted + 2 });
    }
    let expected: Vec<_> = match noted {
        0 => Vec::new(),
        _ => contents(life_and_index(noted).0, life_and_index(noted).1),
    };
    match found == expected {
        true => Ok(noted),
        false => {
            let keys: Vec<_> = found.iter().map(|(key, value)| (key, value.first())).collect();
            Err(format!("{NAME} holds {keys:?} after step {noted}"))
        }
    }
}

//! Keyspace churn: one thread creates a keyspace, writes to it and drops it, again and again. Steps count from 1. The
//! contents of the database show how many steps were done.

use lsmx::merge_operator::Append;
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Result, WriteBatch};

use crate::Outcome;
use crate::number;
use crate::options::{draw_keyspace, draw_store};
use lsmx_testkit::TestRng;

/// Name of the keyspace, and the key in the first keyspace that holds the last step with a put.
pub(crate) const NAME: &str = "passing";
/// Steps of one life: the first creates the keyspace, the last drops it, the others put.
const STEPS_PER_LIFE: u64 = 8;
/// Step of every other life that moves operands from a store to the tree.
const TO_TREE: u64 = 5;
/// Key to which each put step appends.
const APPENDED_KEY: &[u8] = b"appended";

/// Returns the life of a step and the index of the step in it, both from 0.
fn life_and_index(step: u64) -> (u64, u64) {
    ((step - 1) / STEPS_PER_LIFE, (step - 1) % STEPS_PER_LIFE)
}

/// Returns the key and value that a step puts, and the operand that it appends.
fn entry(life: u64, at: u64) -> ([u8; 8], Vec<u8>, [u8; 8]) {
    (at.to_be_bytes(), life.to_le_bytes().repeat(100), (life ^ at << 32).to_le_bytes())
}

/// Returns the contents after a number of puts of a life.
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

pub(crate) fn draw_options(rng: &mut TestRng) -> KeyspaceOptions {
    draw_keyspace(rng).memtable_bytes(2048).merge_operator(Append::default())
}

/// Opens the keyspace with its merge operator and its operand store, if it exists.
pub(crate) fn reopen(db: &Db, rng: &mut TestRng) -> Result<()> {
    let drawn = draw_options(rng);
    let Ok(keyspace) = db.open_keyspace(NAME, None) else { return Ok(()) };
    let options = match keyspace.options().operand_store {
        Some(_) => drawn.operand_store(draw_store(rng)),
        None => drawn,
    };
    db.keyspace(NAME, options).map(drop)
}

pub(crate) fn run_step(db: &Db, notes: &Keyspace, step: u64) -> Result<()> {
    let (life, at) = life_and_index(step);
    if at == 0 {
        return db.keyspace(NAME, draw_options(&mut TestRng::new(life))).map(drop);
    }
    if at == STEPS_PER_LIFE - 1 {
        return db.drop_keyspace(NAME);
    }
    let keyspace = db.open_keyspace(NAME, None)?;
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

/// Returns the entry of [`NAME`] in the first keyspace after a number of steps.
pub(crate) fn expected_note(steps: u64) -> Option<(Vec<u8>, Vec<u8>)> {
    let puts = |step: &u64| (1..STEPS_PER_LIFE - 1).contains(&life_and_index(*step).1);
    let last = (1..=steps).rev().take(3).find(puts)?;
    Some((NAME.into(), last.to_le_bytes().to_vec()))
}

/// Returns the number of steps that the contents show.
///
/// # Errors
/// A read fails, or no number of steps gives the contents.
pub(crate) fn count_steps(db: &Db, notes: &Keyspace) -> Outcome<u64> {
    let noted = notes.get(NAME).map_err(|error| format!("notes: {error:?}"))?;
    let noted = number(noted.as_deref())?;
    let life_is_over = noted == 0 || life_and_index(noted).1 == STEPS_PER_LIFE - 2;
    let keyspace = match db.open_keyspace(NAME, None) {
        Ok(keyspace) => keyspace,
        Err(Error::UnknownKeyspace { .. }) if noted == 0 => return Ok(0),
        Err(Error::UnknownKeyspace { .. }) if life_is_over => return Ok(noted + 1),
        Err(error) => return Err(format!("{NAME} after step {noted}: {error:?}")),
    };
    let mut found = Vec::new();
    for item in keyspace.iter() {
        let (key, value) = item.map_err(|error| format!("{NAME}: {error:?}"))?;
        found.push((key.to_vec(), value.to_vec()));
    }
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

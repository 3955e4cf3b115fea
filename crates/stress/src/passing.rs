//! A keyspace that is made, written to and dropped, over and over, by one thread. Its steps are
//! counted from 1, and how many there were can be told from what is there.

use lsmx::merge_operator::Append;
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Result, WriteBatch};

use crate::Outcome;
use crate::number;
use crate::tuning::{draw_keyspace, draw_store};
use lsmx_testkit::TestRng;

/// The keyspace, and the key of another one that says which was the last step that put something.
pub(crate) const NAME: &str = "passing";
/// Steps of one life: it is made, then put to, at last dropped.
const STEPS: u64 = 8;
/// The step of every other life at which its operands leave their store, if they are in one.
const TO_TREE: u64 = 5;
/// What each step that puts appends to, too.
const APPENDED: &[u8] = b"appended";

/// Which life a step belongs to, and the which in it, from 0.
fn place(step: u64) -> (u64, u64) {
    ((step - 1) / STEPS, (step - 1) % STEPS)
}

/// What the step puts and what it appends.
fn entry(life: u64, at: u64) -> ([u8; 8], Vec<u8>, [u8; 8]) {
    (at.to_be_bytes(), life.to_le_bytes().repeat(100), (life ^ at << 32).to_le_bytes())
}

/// What is in it after that many steps of a life that put.
fn contents(life: u64, puts: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut contents = Vec::new();
    let mut appended = Vec::new();
    for at in 1..=puts {
        let (key, value, operand) = entry(life, at);
        contents.push((key.to_vec(), value));
        appended.extend(operand);
    }
    if puts > 0 {
        contents.push((APPENDED.to_vec(), appended));
    }
    contents
}

/// Its tuning, drawn.
pub(crate) fn options(rng: &mut TestRng) -> KeyspaceOptions {
    draw_keyspace(rng).memtable_bytes(2048).merge_operator(Append::default())
}

/// Opens it with its merge operator and its operand store after the database was opened, if it is there.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn reopen(db: &Db, rng: &mut TestRng) -> Result<()> {
    let drawn = options(rng);
    let Ok(keyspace) = db.open_keyspace(NAME, None) else { return Ok(()) };
    let options = match keyspace.options().operand_store {
        Some(_) => drawn.operand_store(draw_store(rng)),
        None => drawn,
    };
    db.keyspace(NAME, options).map(drop)
}

/// Does a step.
pub(crate) fn step(db: &Db, notes: &Keyspace, step: u64) -> Result<()> {
    let (life, at) = place(step);
    if at == 0 {
        return db.keyspace(NAME, options(&mut TestRng::new(life))).map(drop);
    }
    if at == STEPS - 1 {
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
    batch.merge(&keyspace, APPENDED, operand);
    batch.put(notes, NAME, step.to_le_bytes());
    db.write(batch, Durability::Buffered)
}

/// What the notes say after so many steps.
pub(crate) fn noted(steps: u64) -> Option<(Vec<u8>, Vec<u8>)> {
    let puts = |step: &u64| (1..STEPS - 1).contains(&place(*step).1);
    let last = (1..=steps).rev().take(3).find(puts)?;
    Some((NAME.into(), last.to_le_bytes().to_vec()))
}

/// How many steps there were.
///
/// # Errors
/// When a read fails, or what is there is what no number of steps leaves.
pub(crate) fn steps(db: &Db, notes: &Keyspace) -> Outcome<u64> {
    let noted = notes.get(NAME).map_err(|error| format!("notes: {error:?}"))?;
    let noted = number(noted.as_deref())?;
    let life_is_over = noted == 0 || place(noted).1 == STEPS - 2;
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
        _ => contents(place(noted).0, place(noted).1),
    };
    match found == expected {
        true => Ok(noted),
        false => {
            let keys: Vec<_> = found.iter().map(|(key, value)| (key, value.first())).collect();
            Err(format!("{NAME} holds {keys:?} after step {noted}"))
        }
    }
}

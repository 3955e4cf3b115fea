//! Random moves of cursors, compared with an ordered map.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use lsmx::Keyspace;
use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx_testkit::TestRng;
use lsmx_testkit::world::{
    Bounds, Bytes, Change, CheckedCursor, CursorMove, Pairs, Trouble, random_read_options,
};

use super::options::{self, Stores};
use super::{Outcome, oracle};

/// Number of writes of one run.
const WRITES: u64 = 300;
/// Maximum number of open cursors.
const CURSORS_MAX: usize = 3;

/// Draws a key from a small set. Many keys are prefixes of other keys.
fn draw_key(rng: &mut TestRng) -> Bytes {
    let bytes = rng.below(4);
    (0..bytes).map(|_| *rng.choose(b"abc\0\xff")).collect()
}

fn draw_bounds(rng: &mut TestRng) -> Bounds {
    let mut bound = || match rng.below(4) {
        0 => Bound::Included(draw_key(rng)),
        1 => Bound::Excluded(draw_key(rng)),
        _ => Bound::Unbounded,
    };
    (bound(), bound())
}

fn draw_change(rng: &mut TestRng, number: u64) -> Change {
    let key = draw_key(rng);
    let value_bytes = *rng.choose(&[8, 20, 90]);
    let value: Bytes = number.to_be_bytes().into_iter().cycle().take(value_bytes).collect();
    match rng.below(20) {
        0 => Change::DeleteRange(draw_bounds(rng)),
        1..4 => Change::Delete(key),
        4..9 => Change::Merge(key, value),
        _ => Change::Put(key, value),
    }
}

fn open_cursor(
    keyspace: &Keyspace,
    rng: &mut TestRng,
    pairs: &Pairs,
) -> lsmx::Result<CheckedCursor> {
    let cursor = keyspace.cursor(&random_read_options(rng))?;
    if rng.is_one_in(4) {
        let prefix = draw_key(rng);
        let cursor = cursor.with_prefix(&prefix);
        return Ok(CheckedCursor::new(cursor, pairs, |key| key.starts_with(&prefix)));
    }
    let bounds = draw_bounds(rng);
    let cursor = cursor.with_bounds::<Bytes>(bounds.clone());
    Ok(CheckedCursor::new(cursor, pairs, |key| bounds.contains(key)))
}

/// Writes random entries, with flushes and compactions. After each write, moves cursors that were opened before it.
pub(crate) fn cursor_moves_equal_the_model(seed: u64) -> Outcome {
    options::set_stores(Stores::of_seed(seed));
    let moved = move_cursors(seed);
    options::set_stores(Stores::None);
    moved.map_err(|trouble| format!("seed {seed}: {}", String::from(trouble)))
}

fn move_cursors(seed: u64) -> Result<(), Trouble> {
    let mut rng = TestRng::new(seed);
    let options = options::draw(&mut rng, Background::Inline);
    let db = oracle::open(&MemVfs::new(), options).map_err(Trouble::Wrong)?;
    let keyspace = db.default_keyspace();
    let (mut pairs, mut cursors) = (Pairs::new(), Vec::new());
    for number in 0..WRITES {
        let change = draw_change(&mut rng, number);
        change.commit(&keyspace)?;
        change.apply(&mut pairs, &Append::default());
        match rng.below(60) {
            0 => db.flush()?,
            1 => keyspace.compact_range::<Bytes>(draw_bounds(&mut rng))?,
            _ => {}
        }
        if rng.is_one_in(10) {
            if cursors.len() == CURSORS_MAX {
                cursors.remove(0);
            }
            cursors.push(open_cursor(&keyspace, &mut rng, &pairs)?);
        }
        for cursor in &mut cursors {
            for _ in 0..rng.below(4) {
                let key = draw_key(&mut rng);
                cursor.apply(&CursorMove::random(&mut rng, Arc::clone(&key)))?;
            }
        }
    }
    Ok(())
}

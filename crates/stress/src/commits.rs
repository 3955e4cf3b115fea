//! The changes of each commit, and their effect on a model. Both follow from the seed.

use std::collections::BTreeMap;
use std::ops::Range;

use lsmx_testkit::{TestRng, mix_seeds};

/// Keys of one writer in each keyspace with puts and deletes.
const KEYS: u64 = 300;
/// Keys of one writer in each keyspace with merges.
const MERGED_KEYS: u64 = 30;
/// Each commit appends to one value. After so many commits a put replaces it.
const APPENDS: u64 = 500;

/// Expected contents of a keyspace.
pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A write of a commit in one keyspace.
pub(crate) enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Merge(Vec<u8>, Vec<u8>),
    DeleteRange(Range<Vec<u8>>),
}

fn plain_key(writer: u64, number: u64) -> Vec<u8> {
    format!("{writer}/{number:03}").into_bytes()
}

fn merged_key(writer: u64, number: u64) -> Vec<u8> {
    format!("{writer}+{number:02}").into_bytes()
}

/// Returns the append of a commit: a byte that follows from its number.
fn append(writer: u64, number: u64) -> Change {
    let key = format!("{writer}:appended").into_bytes();
    let [byte, ..] = number.to_le_bytes();
    match number % APPENDS {
        0 => Change::Put(key, vec![byte]),
        _ => Change::Merge(key, vec![byte]),
    }
}

/// Draws a range of the keys of a writer. One in 20 has all put keys, one in 20 all keys.
fn draw_range(rng: &mut TestRng, writer: u64) -> Range<Vec<u8>> {
    let (from, merged_from) = (rng.below(KEYS), rng.below(MERGED_KEYS));
    match rng.below(20) {
        0 => plain_key(writer, 0)..plain_key(writer, KEYS),
        1 => merged_key(writer, 0)..plain_key(writer, KEYS),
        2..8 => merged_key(writer, merged_from)..merged_key(writer, merged_from + 1 + from % 8),
        _ => plain_key(writer, from)..plain_key(writer, from + 1 + rng.below(40)),
    }
}

/// Draws the changes of a commit with their keyspaces, without its counters, and whether the commit is synced. Numbers
/// count from 1.
pub(crate) fn draw_changes(seed: u64, writer: u64, number: u64) -> (Vec<(usize, Change)>, bool) {
    let mut rng = TestRng::new(mix_seeds(mix_seeds(seed, writer), number));
    let count = if rng.is_one_in(50) { 60 } else { rng.below(5) };
    let changes = (0..count).map(|_| {
        let keyspace = usize::from(rng.is_one_in(2));
        let key = plain_key(writer, rng.below(KEYS));
        let change = match rng.below(32) {
            0..7 => Change::Delete(key),
            7..14 => {
                // The first keyspace adds numbers of 8 bytes, the second appends anything.
                let len = if keyspace == 0 { 8 } else { rng.below(12) };
                let operand = rng.bytes(len);
                Change::Merge(merged_key(writer, rng.below(MERGED_KEYS)), operand)
            }
            14 => Change::Delete(merged_key(writer, rng.below(MERGED_KEYS))),
            15 => Change::Put(merged_key(writer, rng.below(MERGED_KEYS)), rng.bytes(8)),
            16 => Change::DeleteRange(draw_range(&mut rng, writer)),
            _ => {
                let longest = if rng.is_one_in(40) { 5000 } else { 120 };
                let len = rng.below(longest);
                Change::Put(key, rng.bytes(len))
            }
        };
        (keyspace, change)
    });
    let mut changes: Vec<_> = changes.collect();
    changes.push((1, append(writer, number)));
    (changes, rng.is_one_in(25))
}

impl Change {
    /// Applies the change to the model of its keyspace.
    pub(crate) fn apply(self, keyspace: usize, model: &mut Model) {
        match self {
            Change::Put(key, value) => drop(model.insert(key, value)),
            Change::Delete(key) => drop(model.remove(&key)),
            Change::DeleteRange(range) => model.retain(|key, _| !range.contains(key)),
            Change::Merge(key, operand) => match (keyspace, model.get_mut(&key)) {
                (_, None) => drop(model.insert(key, operand)),
                (0, Some(value)) => *value = sum(value, &operand),
                (_, Some(value)) => value.extend_from_slice(&operand),
            },
        }
    }
}

/// Adds two little-endian numbers of 8 bytes, independently of the operator under test.
fn sum(one: &[u8], other: &[u8]) -> Vec<u8> {
    let mut carry = 0;
    let digits = one.iter().zip(other).map(|(one, other)| {
        let sum = u16::from(*one) + u16::from(*other) + carry;
        carry = sum >> 8;
        sum.to_le_bytes()[0]
    });
    digits.collect()
}

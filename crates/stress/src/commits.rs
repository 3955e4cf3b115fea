//! Draws the changes of each commit from a seed, and applies them to the model.

use std::collections::BTreeMap;
use std::ops::Range;

use lsmx_testkit::{TestRng, mix_seeds};

/// Number of keys that a writer puts and deletes in each keyspace.
const KEYS: u64 = 300;
/// Number of keys in each keyspace to which a writer applies merges.
const MERGED_KEYS: u64 = 30;
/// Each commit of a writer appends a byte to the same value. If the commit number is divisible by this constant, the
/// commit replaces the value by a single byte instead.
const APPENDS: u64 = 500;

/// Expected contents of a keyspace.
pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// One write of a commit.
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

/// Returns the change that appends the low byte of the commit number to the value of the key `{writer}:appended`.
fn append(writer: u64, number: u64) -> Change {
    let key = format!("{writer}:appended").into_bytes();
    let [byte, ..] = number.to_le_bytes();
    match number % APPENDS {
        0 => Change::Put(key, vec![byte]),
        _ => Change::Merge(key, vec![byte]),
    }
}

/// Draws a key range of a writer.
///
/// With a probability of 5 %, the range contains all keys that the writer puts. With another 5 %, it contains all keys
/// that the writer puts or merges.
fn draw_range(rng: &mut TestRng, writer: u64) -> Range<Vec<u8>> {
    let (from, merged_from) = (rng.below(KEYS), rng.below(MERGED_KEYS));
    match rng.below(20) {
        0 => plain_key(writer, 0)..plain_key(writer, KEYS),
        1 => merged_key(writer, 0)..plain_key(writer, KEYS),
        2..8 => merged_key(writer, merged_from)..merged_key(writer, merged_from + 1 + from % 8),
        _ => plain_key(writer, from)..plain_key(writer, from + 1 + rng.below(40)),
    }
}

/// Draws the changes of the commit `number`, which is at least 1. The updates of the commit counters are not included.
///
/// Returns the changes, each with the index of its keyspace. The boolean is true if the commit is synced.
pub(crate) fn draw_changes(seed: u64, writer: u64, number: u64) -> (Vec<(usize, Change)>, bool) {
    let mut rng = TestRng::new(mix_seeds(mix_seeds(seed, writer), number));
    let count = if rng.is_one_in(50) { 60 } else { rng.below(5) };
    let changes = (0..count).map(|_| {
        let keyspace = usize::from(rng.is_one_in(2));
        let key = plain_key(writer, rng.below(KEYS));
        let change = match rng.below(32) {
            0..7 => Change::Delete(key),
            7..14 => {
                // The merge operator of the first keyspace adds numbers of 8 bytes. The merge operator of the second
                // keyspace appends operands of any length.
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

/// Adds two little-endian numbers of 8 bytes, without the merge operator under test.
fn sum(one: &[u8], other: &[u8]) -> Vec<u8> {
    let mut carry = 0;
    let digits = one.iter().zip(other).map(|(one, other)| {
        let sum = u16::from(*one) + u16::from(*other) + carry;
        carry = sum >> 8;
        sum.to_le_bytes()[0]
    });
    digits.collect()
}

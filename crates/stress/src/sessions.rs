//! Values that expire while the stress test runs.
//!
//! Commits put values into a keyspace with a default time to live. For each value, the same commit puts a record, which
//! does not expire. The record contains the commit number and the times between which the value expires. The process that
//! writes the value reads the clock, so the times are only known to the record.
//!
//! A value must be visible before the first of the two times, and must be invisible from the second one on. Between them,
//! both are correct. All times are those of the database clock, which never goes back. The commit number shows that no
//! commit was lost and that no older value reappeared.

use std::collections::BTreeMap;
use std::time::Duration;

use lsmx::{Db, Keyspace, Result, Slice};
use lsmx_testkit::world::Change as Write;
use lsmx_testkit::{TestRng, mix_seeds};

use crate::compare::KeyspaceView;
use crate::{NEVER_US, Outcome, number};

/// Name of the keyspace.
pub(crate) const NAME: &str = "sessions";
/// Default time to live of values in the keyspace.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_micros(DEFAULT_TTL_US);
const DEFAULT_TTL_US: u64 = 100_000;

/// Number of keys of a writer.
const KEYS: u64 = 40;
/// Times to live, in microseconds.
const TTLS_US: [u64; 6] = [1_000, 20_000, 100_000, 400_000, 2_000_000, 3_600_000_000];
/// The clock of the writer may differ by this from the clock from which a time to live counts, in microseconds.
const CLOCK_DIFFERENCE_US: u64 = 20_000;
/// Constant that makes the draws of this module independent of other draws with the same seed.
const SEED_SALT: u64 = 0x7365_7373;

/// How a commit changes a key.
#[derive(Clone, Copy)]
enum SessionChange {
    /// Puts a value that expires after a time in microseconds.
    PutUntil(u64),
    /// Puts a value with a time to live in microseconds.
    PutWithTtl(u64),
    /// Puts a value with the default time to live.
    Put,
    Delete,
}

/// Draws the changes of a commit, by key.
fn draw_changes(seed: u64, writer: u64, commit: u64) -> BTreeMap<Vec<u8>, SessionChange> {
    let mut rng = TestRng::new(mix_seeds(mix_seeds(seed ^ SEED_SALT, writer), commit));
    let count = rng.below(3);
    let changes = (0..count).map(|_| {
        let key = format!("{writer}/{:02}", rng.below(KEYS)).into_bytes();
        let ttl_us = *rng.choose(&TTLS_US);
        let change = match rng.below(8) {
            0..3 => SessionChange::PutUntil(ttl_us),
            3..5 => SessionChange::PutWithTtl(ttl_us),
            5..7 => SessionChange::Put,
            _ => SessionChange::Delete,
        };
        (key, change)
    });
    changes.collect()
}

/// Returns the key of the record about a value.
fn record_key(key: &[u8]) -> Vec<u8> {
    [key, b"="].concat()
}

/// Returns the value that a commit writes. The values have different lengths, and some are moved to blob files.
fn value(commit: u64) -> Vec<u8> {
    let words = 1 + usize::from(commit.to_le_bytes()[0] % 16);
    commit.to_le_bytes().repeat(words)
}

/// Adds the changes of a commit to a batch or to a transaction, by calling `add` for each write.
pub(crate) fn add_changes(
    db: &Db,
    seed: u64,
    (writer, commit): (u64, u64),
    mut add: impl FnMut(Write) -> Result<()>,
) -> Result<()> {
    let env = db.env();
    for (key, change) in draw_changes(seed, writer, commit) {
        let (record, key, value) = (record_key(&key), key.into(), value(commit).into());
        let before_us = env.database_time_us();
        let (write, ttl_us) = match change {
            SessionChange::PutUntil(ttl_us) => {
                (Write::PutUntil(key, value, before_us + ttl_us), ttl_us)
            }
            SessionChange::PutWithTtl(ttl_us) => {
                let ttl = Duration::from_micros(ttl_us);
                (Write::PutWithTtl(key, value, ttl, 0), ttl_us)
            }
            SessionChange::Put => (Write::Put(key, value), DEFAULT_TTL_US),
            SessionChange::Delete => (Write::Delete(key), 0),
        };
        add(write)?;
        let after_us = env.database_time_us().max(env.now_us()) + CLOCK_DIFFERENCE_US;
        let (first_us, last_us) = match change {
            SessionChange::PutUntil(_) => (before_us + ttl_us, before_us + ttl_us),
            SessionChange::Delete => (0, 0),
            _ => (before_us + ttl_us, after_us + ttl_us),
        };
        let fields = [commit, first_us, last_us].map(u64::to_le_bytes).concat();
        add(Write::PutUntil(record.into(), fields.into(), NEVER_US))?;
    }
    Ok(())
}

/// A record about a value.
struct Record {
    commit: u64,
    first_us: u64,
    last_us: u64,
}

impl Record {
    fn from_bytes(bytes: &[u8]) -> Outcome<Record> {
        let field = |index: usize| number(bytes.get(8 * index..8 * index + 8));
        match bytes.len() {
            24 => Ok(Record { commit: field(0)?, first_us: field(1)?, last_us: field(2)? }),
            len => Err(format!("a record has {len} bytes")),
        }
    }
}

/// Compares the values and records of all writers with the model. `counts` has the number of commits of each writer.
pub(crate) fn check(
    view: &KeyspaceView<'_>,
    keyspace: &Keyspace,
    seed: u64,
    counts: &[u64],
) -> Outcome {
    let read_from_us = view.db.env().database_time_us();
    let mut found = read(view.iter(keyspace))?;
    let backward = read(view.iter(keyspace).rev())?;
    let read_until_us = view.db.env().database_time_us();
    let times_us = match view.snapshot {
        Some(snapshot) => snapshot.times_us,
        None => (read_from_us, read_until_us),
    };
    // Values may expire between the two scans.
    if let Some((key, _)) = backward.iter().find(|(key, value)| found.get(*key) != Some(value)) {
        return Err(format!("{} is only in a backward scan", key.escape_ascii()));
    }
    for (writer, &count) in (0..).zip(counts) {
        let mut commits = BTreeMap::new();
        for commit in 1..=count {
            commits.extend(draw_changes(seed, writer, commit).into_keys().map(|key| (key, commit)));
        }
        for (key, commit) in commits {
            let record = found.remove(&record_key(&key));
            let record = record.ok_or_else(|| format!("no record of {}", key.escape_ascii()))?;
            let record = Record::from_bytes(&record)?;
            let wrong = |what: &str| {
                let Record { commit: recorded, first_us, last_us } = record;
                Err(format!(
                    "{} of commit {commit} {what}; its record names commit {recorded} and the times {first_us} to \
                     {last_us}; it was read from {} to {}",
                    key.escape_ascii(),
                    times_us.0,
                    times_us.1
                ))
            };
            match found.remove(&key) {
                _ if record.commit != commit => return wrong("has another record"),
                Some(found) if found != value(commit) => return wrong("has another value"),
                Some(_) if times_us.0 >= record.last_us => return wrong("has expired"),
                None if times_us.1 < record.first_us => return wrong("is missing"),
                _ => {}
            }
        }
    }
    match found.keys().next() {
        Some(key) => Err(format!("{} was never written", key.escape_ascii())),
        None => Ok(()),
    }
}

/// Reads the entries of the writers, whose keys begin with digits.
fn read(
    entries: impl Iterator<Item = Result<(Slice, Slice)>>,
) -> Outcome<BTreeMap<Vec<u8>, Vec<u8>>> {
    let pairs = entries.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())));
    let mut pairs: BTreeMap<_, _> =
        pairs.collect::<Result<_>>().map_err(|error| format!("{NAME}: {error:?}"))?;
    pairs.retain(|key: &Vec<u8>, _| key.first().is_some_and(u8::is_ascii_digit));
    Ok(pairs)
}

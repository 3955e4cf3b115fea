//! Reads of the newest state while another thread changes the super version.

use std::time::Duration;

use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Keyspace, KeyspaceOptions, Options, RmwMode, Update};

use super::{Outcome, oracle};

const ROUNDS: u64 = 12;
const KEY: &str = "k";

/// Another thread ingests a value of a key and then merges an operand into the key. Each read returns a state that
/// existed: the last one, the value, or the value with the operand.
///
/// Regression: a read pinned its view before the ingest, and read up to a sequence number after the merge. The operand
/// was in the memtable of its view, but the ingested value was not. The adaptive mode stored the combined value.
pub(crate) fn reads_during_ingests_return_states_that_existed(seed: u64) -> Outcome {
    let tuning = KeyspaceOptions::default();
    let tuning = tuning.merge_operator(Append::default()).rmw_mode(RmwMode::Adaptive);
    let options = Options::default().background(Background::Stepped { seed, workers: 1 });
    let db = oracle::open(&MemVfs::new(), options.keyspace_defaults(tuning))?;
    let keyspace = db.default_keyspace();
    let mut last = String::new();
    for round in 0..ROUNDS {
        let (value, merged) = (format!("{round}"), format!("{round}+"));
        // The memtable is empty, so the ingest keeps it.
        db.flush().map_err(|error| format!("{error:?}"))?;
        let (writer, ingested) = (keyspace.clone(), value.clone());
        let write = move || {
            let path = format!("external-{round}");
            let mut table = writer.external_table_writer(&path).expect("a new table");
            table.put(KEY, ingested).expect("an entry");
            table.finish().expect("the end of a table");
            writer.ingest([path]).expect("an ingest");
            writer.merge(KEY, "+").expect("a merge");
        };
        let thread = db.env().spawn("writer", write).map_err(|error| error.to_string())?;
        while db.snapshot().get(&keyspace, KEY).ok().flatten().is_none_or(|at| at != *merged) {
            let found = read(&keyspace, seed.wrapping_add(round))?;
            if ![&last, &value, &merged].contains(&&found) {
                return Err(format!("{found:?} after {last:?} and before {merged:?}"));
            }
        }
        db.env().join(thread).map_err(|_| "a thread panicked".to_owned())?;
        let found = get(&db)?;
        if found != merged {
            return Err(format!("{found:?} after the merge, not {merged:?}"));
        }
        last = merged;
    }
    Ok(())
}

/// Another thread renews a value before it expires, and commits so much that memtables are sealed. Each read finds the
/// value.
///
/// Regression: a read pinned its view before a memtable was sealed, and took its time after the first value had expired.
/// The renewed value was in the new memtable, which its view did not contain.
pub(crate) fn reads_find_renewed_values(seed: u64) -> Outcome {
    const TTL: Duration = Duration::from_secs(1);
    let tuning = KeyspaceOptions::default().memtable_bytes(1 << 10);
    let options = Options::default().background(Background::Stepped { seed, workers: 1 });
    let db = oracle::open(&MemVfs::new(), options.keyspace_defaults(tuning))?;
    let keyspace = db.default_keyspace();
    keyspace.put_with_ttl(KEY, "value", TTL).map_err(|error| format!("{error:?}"))?;
    let writer = db.clone();
    let renew = move || {
        for _ in 0..ROUNDS {
            writer.put("other", [0; 2 << 10]).expect("a put");
            writer.default_keyspace().put_with_ttl(KEY, "value", TTL).expect("a renewal");
            writer.env().advance_us(600_000);
        }
    };
    let thread = db.env().spawn("writer", renew).map_err(|error| error.to_string())?;
    for number in 0..2 * ROUNDS {
        if read(&keyspace, number)?.is_empty() {
            return Err(format!("read {number} misses the value"));
        }
    }
    db.env().join(thread).map_err(|_| "a thread panicked".to_owned())
}

fn get(db: &Db) -> Outcome<String> {
    let found = db.get(KEY).map_err(|error| format!("{error:?}"))?;
    Ok(String::from_utf8_lossy(&found.unwrap_or_default()).into_owned())
}

/// Reads the key by one of the calls that read the newest state.
fn read(keyspace: &Keyspace, number: u64) -> Outcome<String> {
    let found = match number % 4 {
        0 => keyspace.get(KEY),
        1 => keyspace.multi_get([KEY]).map(|mut values| values.remove(0)),
        2 => keyspace.iter().next().transpose().map(|entry| entry.map(|(_, value)| value)),
        _ => keyspace.fetch_update(KEY, |_| Update::Keep),
    };
    let found = found.map_err(|error| format!("{error:?}"))?;
    Ok(String::from_utf8_lossy(&found.unwrap_or_default()).into_owned())
}

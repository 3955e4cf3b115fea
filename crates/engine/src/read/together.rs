//! Many keys whose blocks are not in memory: what has to be read for them is read at once.
//!
//! Each key is looked up in memory first, which tells the block that it lacks. Where the file system
//! reads ahead, it is told all of these before the first is read; where it does not, as past the page
//! cache, several threads look keys up. Keys that lack the same block go one after the other, so that
//! it is read once. What a key needs after its first block is read as for a single one: with metadata
//! in memory there is nothing more. What lacks operands of a store is looked up after all others.

use crate::env::Env;
use crate::error::Result;
use crate::format::block::Handle;
use crate::key::SeqNo;
use crate::keyspace::Tree;
use crate::read::get::{self, Attempt, Reads};
use crate::slice::Slice;
use crate::sync::{Arc, Mutex};
use crate::table::Table;
use crate::version::SuperVersion;

/// Most threads, the caller's among them: as many reads as a device serves well at a time, and few enough
/// to start for one call.
const THREADS_MAX: usize = 8;

/// Keys that lack the same block: their places, and the block.
struct Lacking<'a> {
    places: Vec<usize>,
    table: &'a Arc<Table>,
    block: Handle,
}

/// The values of keys in key order, as of `snapshot`.
///
/// # Errors
/// As [`get::value`]; of several the first in the order of the keys.
pub(crate) fn values(
    env: &Env,
    tree: &Tree,
    view: &SuperVersion,
    keys: &[&[u8]],
    snapshot: SeqNo,
) -> Result<Vec<Option<Slice>>> {
    let mut values = vec![None; keys.len()];
    let mut lacking: Vec<Lacking<'_>> = Vec::new();
    let mut lacking_operands = Vec::new();
    for (place, key) in keys.iter().enumerate() {
        match get::attempt(tree, view, key, snapshot)? {
            Attempt::Value(value) => values[place] = value,
            Attempt::LacksOperands => lacking_operands.push(place),
            Attempt::Lacks { table, block } => match lacking.last_mut() {
                Some(last) if Arc::ptr_eq(last.table, table) && last.block == block => {
                    last.places.push(place);
                }
                _ => lacking.push(Lacking { places: vec![place], table, block }),
            },
        }
    }
    let value = |place: usize| get::value(tree, view, keys[place], snapshot, Reads::Storage);
    let look_up = |lacking: &Lacking<'_>| -> Vec<(usize, Result<Option<Slice>>)> {
        lacking.places.iter().map(|&place| (place, value(place))).collect()
    };
    // A file that cannot be opened is an error of the lookup that needs it.
    let ahead = |lacking: &Lacking<'_>| lacking.table.will_need(lacking.block).unwrap_or(true);
    let mut found = if lacking.len() < 2 || lacking.iter().all(ahead) {
        lacking.iter().flat_map(look_up).collect()
    } else {
        let found = Mutex::new(Vec::new());
        env.fan_out(lacking.len(), THREADS_MAX, &|index| {
            let looked_up = look_up(&lacking[index]);
            found.lock().extend(looked_up);
        });
        std::mem::take(&mut *found.lock())
    };
    found.extend(lacking_operands.into_iter().map(|place| (place, value(place))));
    found.sort_by_key(|(place, _)| *place);
    for (place, value) in found {
        values[place] = value?;
    }
    Ok(values)
}

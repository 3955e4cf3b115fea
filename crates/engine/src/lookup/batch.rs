//! Many keys whose blocks are not in memory: what has to be read for them is read at once.
//!
//! Each key is looked up in memory first, which tells the block that it lacks. Where the file system
//! reads ahead, it is told all of these before the first is read; where it does not, as past the page
//! cache, several threads look keys up. Keys that lack the same block go one after the other, so that
//! it is read once. What a key needs of the tables after its first block is read as for a single one: with
//! metadata in memory there is nothing more. Then values in the value log go the same way: all that are
//! lacking are told before the first is read. What lacks operands of a store is looked up after all others.

use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, Mutex};

use crate::env::{Background, Env};
use crate::error::Result;
use crate::format::block::Handle;
use crate::lookup::point::{self, Attempt, Pending, Reads};
use crate::table::Table;
use crate::tree::Tree;
use crate::tree::version::SuperVersion;

/// Most threads, the caller's among them: as many reads as a device serves well at a time, and few enough
/// to start for one call.
const THREADS_MAX: usize = 8;

/// A lookup or a read that takes so long has read a device: nothing else comes near it.
const DEVICE_READ_NS: u64 = 30_000;

/// Whether a read that took so long has waited for a device. Where time is driven nothing takes any: there all
/// do.
pub(crate) fn is_device(env: &Env, elapsed_ns: u64) -> bool {
    let driven = !matches!(env.background(), Background::Threads { .. });
    driven || elapsed_ns >= DEVICE_READ_NS
}

/// Keys that lack the same block: their places, and the block.
struct Lacking<'a> {
    places: Vec<usize>,
    table: &'a Arc<Table>,
    block: Handle,
}

/// A lookup that lacks its value alone, and the place of its key.
struct Valueless<'a> {
    place: usize,
    /// Taken out by who reads it.
    pending: Mutex<Option<Box<Pending<'a>>>>,
    /// Whether the file system reads it ahead.
    ahead: bool,
}

impl<'a> Valueless<'a> {
    /// Tells the file system at once.
    fn told(place: usize, pending: Box<Pending<'a>>) -> Valueless<'a> {
        let ahead = pending.will_need();
        Valueless { place, pending: Mutex::new(Some(pending)), ahead }
    }
}

/// What was found, by place.
type Found = Vec<(usize, Result<Option<Slice>>)>;

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
    let mut valueless: Vec<Valueless<'_>> = Vec::new();
    for (place, key) in keys.iter().enumerate() {
        match point::attempt(tree, view, key, snapshot, Reads::Memory)? {
            Attempt::Value(value) => values[place] = value,
            Attempt::LacksOperands => lacking_operands.push(place),
            Attempt::Pending(pending) => valueless.push(Valueless::told(place, pending)),
            Attempt::Lacks { table, block } => match lacking.last_mut() {
                Some(last) if Arc::ptr_eq(last.table, table) && last.block == block => {
                    last.places.push(place);
                }
                _ => lacking.push(Lacking { places: vec![place], table, block }),
            },
        }
    }
    // A file that cannot be opened is an error of the lookup that needs it.
    let ahead = |lacking: &Lacking<'_>| lacking.table.will_need(lacking.block).unwrap_or(true);
    let attempts = at_once(env, &lacking, ahead, |lacking| {
        let attempt =
            |place: usize| point::attempt(tree, view, keys[place], snapshot, Reads::Tables);
        lacking.places.iter().map(|&place| (place, attempt(place))).collect()
    });
    let mut found = Found::new();
    for (place, attempt) in attempts {
        match attempt {
            Ok(Attempt::Value(value)) => found.push((place, Ok(value))),
            Ok(Attempt::Pending(pending)) => valueless.push(Valueless::told(place, pending)),
            // One that may read blocks lacks none.
            Ok(Attempt::Lacks { .. } | Attempt::LacksOperands) => {
                let value = point::value(tree, view, keys[place], snapshot, Reads::Storage);
                found.push((place, value));
            }
            Err(error) => found.push((place, Err(error))),
        }
    }
    found.extend(at_once(
        env,
        &valueless,
        |valueless| valueless.ahead,
        |valueless| {
            let pending = valueless.pending.lock().take();
            let read = |pending: Box<Pending<'_>>| pending.read(tree, view, keys[valueless.place]);
            pending.map(|pending| (valueless.place, read(pending))).into_iter().collect()
        },
    ));
    found.extend(
        lacking_operands
            .into_iter()
            .map(|place| (place, point::value(tree, view, keys[place], snapshot, Reads::Storage))),
    );
    found.sort_by_key(|(place, _)| *place);
    for (place, value) in found {
        values[place] = value?;
    }
    Ok(values)
}

/// Does something that reads for each item: one after the other where the file system reads ahead, which
/// `ahead` tells it, by several threads where it does not.
pub(crate) fn at_once<T: Sync, R: Send>(
    env: &Env,
    items: &[T],
    ahead: impl Fn(&T) -> bool,
    read: impl Fn(&T) -> Vec<R> + Sync,
) -> Vec<R> {
    if items.len() < 2 || items.iter().all(ahead) {
        return items.iter().flat_map(read).collect();
    }
    let found = Mutex::new(Vec::new());
    env.run_parallel(items.len(), THREADS_MAX, &|index| {
        let read = read(&items[index]);
        found.lock().extend(read);
    });
    std::mem::take(&mut *found.lock())
}

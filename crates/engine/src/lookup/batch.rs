//! Lookups of several keys with concurrent reads.
//!
//! 1. Each key is looked up in memory. Keys that need the same missing block form a group, so that the block is read
//!    only once.
//! 2. The groups are read concurrently. If the file system supports read-ahead hints, the hints for all blocks are
//!    given before the first read. Otherwise, for example with direct I/O, several threads read the blocks. If a key
//!    needs further blocks, they are read one after the other. If the metadata is cached, a key needs only one block.
//! 3. Values in the value log are read in the same way.
//! 4. Keys that need operands from the operand store are looked up last.

use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, Mutex};

use crate::env::{Background, Env};
use crate::error::Result;
use crate::format::block::BlockHandle;
use crate::lookup::point::{self, LookupAttempt, PendingValue, ReadScope};
use crate::table::Table;
use crate::tree::Tree;
use crate::tree::snapshots::ReadPoint;
use crate::tree::super_version::SuperVersion;

/// Maximum number of threads that read for one call, including the calling thread.
///
/// Devices perform this number of concurrent reads efficiently, and starting this number of threads is cheap enough for
/// one call.
const THREADS_MAX: usize = 8;

/// Minimum duration of a read from a device in nanoseconds. Reads from memory are much shorter.
const DEVICE_READ_NS: u64 = 30_000;

/// Returns whether a read of this duration has accessed a device.
///
/// With a simulated clock, reads have no duration. Every read then counts as a device access.
pub(crate) fn is_device_read(env: &Env, elapsed_ns: u64) -> bool {
    let is_simulated = !matches!(env.background(), Background::Threads { .. });
    is_simulated || elapsed_ns >= DEVICE_READ_NS
}

/// Keys whose lookups need the same block. The block is not in memory.
struct MissingBlock<'a> {
    /// Indexes of these keys.
    indexes: Vec<usize>,
    table: &'a Arc<Table>,
    block: BlockHandle,
}

/// A lookup that is complete except for one read from the value log.
struct PendingLookup<'a> {
    /// Index of the key.
    index: usize,
    /// `None` after a thread has taken it to read the value.
    pending: Mutex<Option<Box<PendingValue<'a>>>>,
    /// True if the file system prefetches the value or has it in memory.
    is_announced: bool,
}

impl<'a> PendingLookup<'a> {
    /// Creates the lookup, and issues a read-ahead hint for the value.
    fn new(index: usize, pending: Box<PendingValue<'a>>) -> PendingLookup<'a> {
        let is_announced = pending.will_need();
        PendingLookup { index, pending: Mutex::new(Some(pending)), is_announced }
    }
}

/// Returns the values of `keys` that are visible at `read_point`. `keys` must be in ascending order.
///
/// # Errors
/// Same as [`point::get`]. If several keys fail, returns the error of the first one.
pub(crate) fn multi_get(
    env: &Env,
    tree: &Tree,
    view: &SuperVersion,
    keys: &[&[u8]],
    read_point: ReadPoint,
) -> Result<Vec<Option<Slice>>> {
    let mut values = vec![None; keys.len()];
    let mut missing_blocks: Vec<MissingBlock<'_>> = Vec::new();
    let mut missing_operands = Vec::new();
    let mut pending_lookups: Vec<PendingLookup<'_>> = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        match point::try_get(tree, view, key, read_point, ReadScope::Memory)? {
            LookupAttempt::Value(value) => values[index] = value,
            LookupAttempt::MissingOperands => missing_operands.push(index),
            LookupAttempt::PendingValue(pending) => {
                pending_lookups.push(PendingLookup::new(index, pending));
            }
            LookupAttempt::MissingBlock { table, block } => match missing_blocks.last_mut() {
                Some(last) if Arc::ptr_eq(last.table, table) && last.block == block => {
                    last.indexes.push(index);
                }
                _ => missing_blocks.push(MissingBlock { indexes: vec![index], table, block }),
            },
        }
    }
    // If a file cannot be opened, the lookup returns the error.
    let announce =
        |missing: &MissingBlock<'_>| missing.table.will_need(missing.block).unwrap_or(true);
    let attempts = read_concurrently(env, &missing_blocks, announce, |missing| {
        let try_get =
            |index: usize| point::try_get(tree, view, keys[index], read_point, ReadScope::Tables);
        missing.indexes.iter().map(|&index| (index, try_get(index))).collect()
    });
    let get = |index: usize| point::get(tree, view, keys[index], read_point, ReadScope::Storage);
    let mut results = Vec::new();
    for (index, attempt) in attempts {
        match attempt {
            Ok(LookupAttempt::Value(value)) => results.push((index, Ok(value))),
            Ok(LookupAttempt::PendingValue(pending)) => {
                pending_lookups.push(PendingLookup::new(index, pending));
            }
            // This is unreachable, because the scope allows reads of blocks and operands.
            Ok(LookupAttempt::MissingBlock { .. } | LookupAttempt::MissingOperands) => {
                results.push((index, get(index)));
            }
            Err(error) => results.push((index, Err(error))),
        }
    }
    let is_announced = |lookup: &PendingLookup<'_>| lookup.is_announced;
    results.extend(read_concurrently(env, &pending_lookups, is_announced, |lookup| {
        let pending = lookup.pending.lock().take();
        let read = |pending: Box<PendingValue<'_>>| pending.read(tree, view, keys[lookup.index]);
        pending.map(|pending| (lookup.index, read(pending))).into_iter().collect()
    }));
    results.extend(missing_operands.into_iter().map(|index| (index, get(index))));
    results.sort_by_key(|(index, _)| *index);
    for (index, value) in results {
        values[index] = value?;
    }
    Ok(values)
}

/// Applies `read` to each item and returns all results.
///
/// `announce` issues a read-ahead hint for an item, and returns true if the file system supports such hints. If it
/// returns true for all items, the items are read one after the other. Otherwise, several threads read them.
pub(crate) fn read_concurrently<T: Sync, R: Send>(
    env: &Env,
    items: &[T],
    announce: impl Fn(&T) -> bool,
    read: impl Fn(&T) -> Vec<R> + Sync,
) -> Vec<R> {
    if items.len() < 2 || items.iter().all(announce) {
        return items.iter().flat_map(read).collect();
    }
    let results = Mutex::new(Vec::new());
    env.run_parallel(items.len(), THREADS_MAX, &|index| {
        let read = read(&items[index]);
        results.lock().extend(read);
    });
    std::mem::take(&mut *results.lock())
}

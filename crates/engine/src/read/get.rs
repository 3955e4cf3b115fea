//! One key: memtables, then sorted runs from newest to oldest, until nothing older counts.

use crate::cursor::Cursor;
use crate::error::Result;
use crate::key::SeqNo;
use crate::keyspace::Tree;
use crate::read::fold::Fold;
use crate::sabotage::{self, Bug};
use crate::slice::Slice;
use crate::sync::Arc;
use crate::table::{FillCache, Table};
use crate::version::SuperVersion;

/// The value of `user_key` as of `snapshot`.
///
/// The filter of the last sorted run is asked only if the tree's settings say so: most hits end
/// there, and its filter is most of the filter bytes of a tree.
///
/// # Errors
/// When a block cannot be read (what could not be read is never taken for absent), or when operands
/// do not fold.
pub(crate) fn value(
    tree: &Tree,
    view: &SuperVersion,
    user_key: &[u8],
    snapshot: SeqNo,
) -> Result<Option<Slice>> {
    let mut fold = Fold::default();
    for memtable in view.memtables() {
        let covering = memtable.covering(user_key, snapshot);
        let ended = memtable.walk(user_key, snapshot, |seq, kind, value| {
            covering < Some(seq) && fold.older(kind, value)
        });
        // What lies in older places is older than any range delete here.
        if ended || covering.is_some() {
            return fold.finish(&tree.merging, user_key);
        }
    }
    let filter_last_run = tree.filter_last_run();
    let runs = view.version.runs();
    for (index, run) in runs.iter().enumerate() {
        let Some(file) = run.table_for(user_key) else { continue };
        let is_last = index + 1 == runs.len();
        let use_filter = filter_last_run || !is_last;
        let table = file.table();
        // The filter knows the keys of entries alone, so it is not asked here.
        let covering = match sabotage::on(Bug::SpanBehindFilter) && !table.may_contain(user_key)? {
            true => None,
            false => table.covering_span(user_key, snapshot)?,
        };
        let found = match table.get(user_key, snapshot, use_filter) {
            Err(_) if sabotage::on(Bug::ReadErrorIsNotFound) => None,
            found => found?,
        };
        if found.is_some() || !use_filter {
            tree.note_read(table);
        }
        if is_last {
            tree.note_last_run(&view.version, table, found.is_some());
        }
        if let Some(found) = found
            && covering < Some(found.seq)
            && (!fold.older(found.kind, found.value)
                || older_operands(table, user_key, found.seq, covering, &mut fold)?)
        {
            break;
        }
        if covering.is_some() {
            break;
        }
    }
    fold.finish(&tree.merging, user_key)
}

/// Gathers what a table holds of a key below an operand, down to the newest range delete of the table
/// over it; returns whether nothing older counts.
///
/// A table that holds several versions of a key holds them side by side, so a cursor reads each
/// block once, however many there are.
#[cold]
fn older_operands(
    table: &Arc<Table>,
    user_key: &[u8],
    operand: SeqNo,
    covering: Option<SeqNo>,
    fold: &mut Fold,
) -> Result<bool> {
    let Some(below) = operand.0.checked_sub(1) else { return Ok(false) };
    let mut cursor = table.cursor(FillCache::Yes);
    cursor.seek(user_key, SeqNo(below))?;
    while cursor.valid() && cursor.key().user_key == user_key {
        let key = cursor.key();
        if covering >= Some(key.seq) || !fold.older(key.kind, cursor.value_slice()) {
            return Ok(true);
        }
        cursor.next()?;
    }
    Ok(false)
}

//! One key: memtables, then sorted runs from newest to oldest, until an entry is found.

use crate::error::Result;
use crate::key::{Kind, SeqNo};
use crate::sabotage::{self, Bug};
use crate::slice::Slice;
use crate::version::SuperVersion;

/// The value of `user_key` as of `snapshot`.
///
/// The filter of the last sorted run is asked only if `filter_last_run`: most hits end there, and
/// its filter is most of the filter bytes of a tree.
///
/// # Errors
/// When a block cannot be read; what could not be read is never taken for absent.
pub(crate) fn value(
    view: &SuperVersion,
    user_key: &[u8],
    snapshot: SeqNo,
    filter_last_run: bool,
) -> Result<Option<Slice>> {
    for memtable in view.memtables() {
        let found = memtable.get(user_key, snapshot);
        if let Some(answer) = answer(found, memtable.covering(user_key, snapshot)) {
            return Ok(answer);
        }
    }
    let runs = view.version.runs();
    for (index, run) in runs.iter().enumerate() {
        let Some(file) = run.table_for(user_key) else { continue };
        let use_filter = filter_last_run || index + 1 < runs.len();
        let table = file.table();
        // The filter knows the keys of entries alone, so it is not asked here.
        let covering = match sabotage::on(Bug::SpanBehindFilter) && !table.may_contain(user_key)? {
            true => None,
            false => table.covering_span(user_key, snapshot)?,
        };
        let found = match table.get(user_key, snapshot, use_filter) {
            Err(_) if sabotage::on(Bug::ReadErrorIsNotFound) => None,
            found => found?.map(|found| (found.seq, found.kind, found.value)),
        };
        if let Some(answer) = answer(found, covering) {
            return Ok(answer);
        }
    }
    Ok(None)
}

/// What one memtable or run says of a key that has this entry there, and this newest range delete
/// over it; `None` if older places must be asked. What lies there is older than both.
fn answer(found: Option<(SeqNo, Kind, Slice)>, covering: Option<SeqNo>) -> Option<Option<Slice>> {
    match found {
        Some((seq, kind, value)) if covering < Some(seq) => {
            Some((kind != Kind::Delete).then_some(value))
        }
        _ => covering.map(|_| None),
    }
}

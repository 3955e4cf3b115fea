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
    let visible = |kind, value| Ok((kind != Kind::Delete).then_some(value));
    for memtable in view.memtables() {
        if let Some((_, kind, value)) = memtable.get(user_key, snapshot) {
            return visible(kind, value);
        }
    }
    let runs = view.version.runs();
    for (index, run) in runs.iter().enumerate() {
        let Some(file) = run.table_for(user_key) else { continue };
        let use_filter = filter_last_run || index + 1 < runs.len();
        let found = match file.table().get(user_key, snapshot, use_filter) {
            Err(_) if sabotage::on(Bug::ReadErrorIsNotFound) => None,
            found => found?,
        };
        if let Some(found) = found {
            return visible(found.kind, found.value);
        }
    }
    Ok(None)
}

//! One key: memtables, then sorted runs from newest to oldest, until an entry is found.

use crate::error::Result;
use crate::key::{Kind, SeqNo};
use crate::slice::Slice;
use crate::version::SuperVersion;

/// The newest entry of a key that a reader may see.
#[derive(Debug)]
pub(crate) struct Newest {
    /// Its number.
    pub(crate) seq: SeqNo,
    /// What it does.
    pub(crate) kind: Kind,
    /// Its value.
    pub(crate) value: Slice,
}

/// Finds the newest entry of `user_key` not newer than `snapshot`.
///
/// The filter of the last sorted run is asked only if `filter_last_run`: most hits end there, and
/// its filter is most of the filter bytes of a tree.
///
/// # Errors
/// When a block cannot be read; what could not be read is never taken for absent.
pub(crate) fn newest(
    view: &SuperVersion,
    user_key: &[u8],
    snapshot: SeqNo,
    filter_last_run: bool,
) -> Result<Option<Newest>> {
    for memtable in view.memtables() {
        if let Some((seq, kind, value)) = memtable.get(user_key, snapshot) {
            return Ok(Some(Newest { seq, kind, value }));
        }
    }
    let runs = view.version.runs();
    for (index, run) in runs.iter().enumerate() {
        let Some(file) = run.table_for(user_key) else { continue };
        let use_filter = filter_last_run || index + 1 < runs.len();
        let found = match file.table().get(user_key, snapshot, use_filter) {
            Err(_) if crate::sabotage::on(crate::sabotage::Bug::ReadErrorIsNotFound) => None,
            found => found?,
        };
        if let Some(found) = found {
            return Ok(Some(Newest { seq: found.seq, kind: found.kind, value: found.value }));
        }
    }
    Ok(None)
}

/// The value of `user_key` as of `snapshot`.
///
/// # Errors
/// As [`newest`].
pub(crate) fn value(
    view: &SuperVersion,
    user_key: &[u8],
    snapshot: SeqNo,
    filter_last_run: bool,
) -> Result<Option<Slice>> {
    let found = newest(view, user_key, snapshot, filter_last_run)?;
    Ok(found.filter(|entry| entry.kind != Kind::Delete).map(|entry| entry.value))
}

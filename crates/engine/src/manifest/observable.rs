//! Decides which manifest edits change the results of reads or the structure of the database.

use lsmx_base::key::SeqNo;

use crate::format::version_edit::{Change, VersionEdit};
use crate::manifest::ManifestState;

/// Returns true if an edit changes the results of reads or the structure of the database. For example, the drop of a
/// keyspace, new options and an ingest do, but flushes and compactions do not. `state` is the state before the edit.
pub(crate) fn is_observable(state: &ManifestState, edit: &VersionEdit) -> bool {
    edit.changes.iter().any(|change| match change {
        // An ingest adds a table with sequence numbers that no flush covers. A compaction may rewrite such a table, so
        // the sequence numbers are also compared with those of the removed tables.
        Change::AddFile { keyspace, file, .. } => {
            let flushed = edit.changes.iter().find_map(|change| match change {
                Change::FlushedThrough { keyspace: flushed, seq } if flushed == keyspace => {
                    Some(*seq)
                }
                _ => None,
            });
            let before = state.keyspaces.get(keyspace).map(|keyspace| keyspace.flushed_through);
            let added = SeqNo(file.seq_largest);
            added > flushed.max(before).unwrap_or_default()
                && added > largest_removed_seq(state, edit, *keyspace)
        }
        Change::RemoveFile { .. }
        | Change::AddBlob { .. }
        | Change::RemoveBlob { .. }
        | Change::References { .. }
        | Change::RunOrder { .. }
        | Change::RunIdNext { .. }
        | Change::Cursor { .. }
        | Change::OperandToken { .. }
        | Change::CleanClose { .. }
        | Change::FlushedThrough { .. }
        | Change::WalOldest { .. }
        | Change::WalSegment { .. }
        | Change::WalMark { .. }
        | Change::FileNumberNext(_)
        | Change::LastSeq(_)
        | Change::ReserveKeyspaceId(_)
        | Change::ClockUs(_) => false,
        Change::CreateKeyspace { .. }
        | Change::DropKeyspace { .. }
        | Change::RenameKeyspace { .. }
        | Change::SetOptions { .. }
        | Change::Opened
        | Change::KeyspaceIdNext(_) => true,
    })
}

/// Returns the largest sequence number in the tables that an edit removes from a keyspace.
fn largest_removed_seq(state: &ManifestState, edit: &VersionEdit, keyspace: u32) -> SeqNo {
    let is_removed = |id| {
        edit.changes.iter().any(|change| match change {
            Change::RemoveFile { keyspace: of, id: removed } => *of == keyspace && *removed == id,
            _ => false,
        })
    };
    let tables = state.keyspaces.get(&keyspace).into_iter().flat_map(|it| it.tree.files());
    let removed = tables.filter(|table| is_removed(table.id)).map(|table| table.seq_largest);
    SeqNo(removed.max().unwrap_or(0))
}

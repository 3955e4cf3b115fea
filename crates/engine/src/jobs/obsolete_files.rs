//! Obsolete WAL segments and manifests.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::key::SeqNo;

use crate::error::Result;
use crate::event::Event;
use crate::format::version_edit::{Change, VersionEdit};
use crate::state::DbState;

/// Queues WAL segments for deletion if no memtable and no log archiver needs them. Before a segment is deleted, a
/// manifest edit records a newer segment as the oldest one.
///
/// # Errors
/// Fails if the manifest cannot be written. The database then becomes read-only.
pub(crate) fn retire_segments(state: &DbState) -> Result<()> {
    let retired = retire_segments_locked(state);
    state.emit_pending_events();
    retired
}

fn retire_segments_locked(state: &DbState) -> Result<()> {
    // The lock is held until the manifest edit is written, so that the oldest segment in the manifest never decreases.
    let _lock = state.retiring.lock();
    let published = state.sequence.published();
    let trees = state.all_trees();
    let needed = trees.iter().filter_map(|tree| tree.super_version().first_unflushed_seq()).min();
    let through = needed.map_or(published, |first| published.min(SeqNo(first.0 - 1)));
    let retired = state.wal.retire_segments(through);
    if retired.is_empty() {
        return Ok(());
    }
    let oldest = state.wal.segments().first().map(|segment| segment.id);
    if let Some(segment) = oldest {
        if failpoint::is_on(Failpoint::SegmentDeletedEarly) {
            for segment in &retired {
                let _ = state.vfs.remove(&FileName::Segment(segment.id).in_dir(&state.dir));
            }
        }
        let edit = VersionEdit { changes: vec![Change::WalOldest { segment }] };
        state.manifest.append(&edit).map_err(|error| state.make_read_only_under_lock(error))?;
        state.discard_segments(state.log_holds.keep_retired_segments(retired));
    }
    Ok(())
}

/// Writes a new manifest if the current manifest has become twice as large as the state that it describes.
///
/// # Errors
/// Fails if the manifest cannot be written. Its contents are then unknown, and the database becomes read-only.
pub(crate) fn rewrite_manifest(state: &DbState) -> Result<()> {
    if state.manifest.needs_rewrite() {
        let number = state.files.allocate();
        let old = state.manifest.rewrite(number, &[]);
        let old = old.map_err(|error| state.make_read_only(error))?;
        state.obsolete_files.discard(FileName::Manifest(old).in_dir(&state.dir));
        state.emit(&Event::ManifestCreated(number));
    }
    Ok(())
}

//! Takes away what nobody needs any more: WAL segments whose writes are all in tables, files that
//! the janitor holds.

use lsmx_base::failpoint::{self, Failpoint};

use crate::error::Result;
use crate::event::Event;
use crate::format::file_name::FileName;
use crate::format::version_edit::{Change, VersionEdit};
use crate::state::DbState;

/// Lets WAL segments go that no memtable needs. Their files are removed only once the manifest
/// names a younger segment as the oldest.
///
/// # Errors
/// When the manifest cannot be written; the database is read-only then.
pub(crate) fn retire_segments(store: &DbState) -> Result<()> {
    let retired = retire_in_order(store);
    store.tell_pending();
    retired
}

fn retire_in_order(store: &DbState) -> Result<()> {
    // One at a time from the choice to the edit, so that the oldest segment only ever moves on.
    let _one_at_a_time = store.retiring.lock();
    let published = store.sequence.published();
    let trees = store.all_trees();
    let needed = trees.iter().filter_map(|tree| tree.view().first_unflushed()).min();
    let through = needed.map_or(published, |first| published.min(crate::SeqNo(first.0 - 1)));
    let retired = store.wal.retire_segments(through);
    if retired.is_empty() {
        return Ok(());
    }
    let oldest = store.wal.segments().first().map(|segment| segment.id);
    if let Some(segment) = oldest {
        if failpoint::is_on(Failpoint::SegmentDeletedEarly) {
            for &id in &retired {
                let _ = store.vfs.remove(&FileName::Segment(id).in_dir(&store.dir));
            }
        }
        let edit = VersionEdit { changes: vec![Change::WalOldest { segment }] };
        store.manifest.append(&edit).map_err(|error| store.fail_locked(error))?;
        for id in retired {
            store.janitor.discard(FileName::Segment(id).in_dir(&store.dir));
        }
    }
    Ok(())
}

/// Begins a new manifest when the one in use has grown to twice what its state takes.
///
/// # Errors
/// When it cannot be written: the manifest is in doubt, and the database read-only.
pub(crate) fn shorten_manifest(store: &DbState) -> Result<()> {
    if store.manifest.needs_rewrite() {
        let number = store.files.allocate();
        let old = store.manifest.rewrite(number, None);
        let old = old.map_err(|error| store.fail(error))?;
        store.janitor.discard(FileName::Manifest(old).in_dir(&store.dir));
        store.tell(&Event::ManifestAfresh(number));
    }
    Ok(())
}

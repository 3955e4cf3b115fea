//! Reads the state of a database while its owner changes it.
//!
//! 1. Pin all files.
//! 2. Read the manifest, except for edits that are not known to be on stable storage.
//! 3. Find the end of the synced commits in the log.
//! 4. Read the manifest again. If an edit was added that users can observe, such as a dropped keyspace or an ingest, start
//!    again at step 2. Otherwise, all observable edits before the last synced commit are part of the state. The owner
//!    syncs the log before it writes such an edit, so all commits before the edits are also part of the state.
//! 5. Open the tables, and replay the synced commits into memtables.
//! 6. Pin only the files of this state and of earlier states in use.
//!
//! Commits that are not synced are not shown, because the owner may discard them: [`Db::resume`](crate::Db::resume)
//! discards commits whose append or sync failed. Synced commits survive a crash of the owner.

use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use crate::db::inner::DbInner;
use crate::db::open::log_source::LogSource;
use crate::db::open::read_only::assemble_read_only;
use crate::db::open::recovery::Recovery;
use crate::db::open::{database_exists, not_a_database};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::followers::FollowerPin;
use crate::format::version_edit::{Change, VersionEdit};
use crate::manifest::{LoadedManifest, Manifest, ManifestState};
use crate::options::db::Options;
use crate::tree::obsolete_files::ObsoleteFiles;
use crate::vfs::Vfs;
use crate::wal::RecoveryMode;

/// Maximum number of attempts of [`read_matching_state`].
const ATTEMPTS_MAX: u32 = 100;

/// Position of a state of a follower in the manifest and in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FollowedState {
    manifest: u64,
    edits: u64,
    last_seq: SeqNo,
}

/// A manifest and the end of the log that match.
struct ReadState {
    loaded: LoadedManifest,
    position: FollowedState,
}

/// Opens the first view of a follower.
pub(super) fn read_first_state(
    dir: &Path,
    options: Options,
    env: Env,
) -> Result<(DbInner, FollowedState)> {
    let vfs = options.file_system();
    if !database_exists(vfs.as_ref(), dir)? {
        return Err(not_a_database(vfs.as_ref(), dir));
    }
    let pin = FollowerPin::create(&vfs, dir)?;
    let ReadState { loaded, position } = read_matching_state(vfs.as_ref(), dir)?;
    let mut recovery =
        Recovery::new_follower(vfs, dir, options, env, (loaded.state, &loaded.path), pin)?;
    recovery.replay_through(position.last_seq)?;
    let inner = assemble_read_only(recovery, loaded.number, None)?;
    pin_open_files(&inner.state.obsolete_files)?;
    Ok((inner, position))
}

/// Opens the view after `before`, or returns `None` if nothing has changed.
pub(super) fn read_next_state(
    before: &DbInner,
    position: &FollowedState,
) -> Result<Option<(DbInner, FollowedState)>> {
    let obsolete_files = &before.state.obsolete_files;
    if let Some(pin) = obsolete_files.follower_pin() {
        pin.pin_all()?;
    }
    let next = open_next_state(before, position);
    let pinned = next.and_then(|next| pin_open_files(obsolete_files).map(|()| next));
    // An error has closed the files that only the next state uses.
    if let (Err(_), Some(pin)) = (&pinned, obsolete_files.follower_pin()) {
        pin.restore()?;
    }
    pinned
}

fn open_next_state(
    before: &DbInner,
    position: &FollowedState,
) -> Result<Option<(DbInner, FollowedState)>> {
    let (vfs, dir) = (before.state.vfs.as_ref(), &before.state.dir);
    let ReadState { loaded, position: next } = read_matching_state(vfs, dir)?;
    let LoadedManifest { state, path, number, .. } = loaded;
    let (expected, found) = (before.state.manifest.db_uid(), state.db_uid);
    if expected != found {
        let what = "database uid";
        return Err(Error::malformed(Malformed::Identity { what, expected, found }, &path, 0));
    }
    // A failed sync of the owner may have lost the last sync marks, and the commits that they cover are shown already.
    if next == *position || next.last_seq < position.last_seq {
        return Ok(None);
    }
    let mut recovery = Recovery::following(before, (state, &path))?;
    recovery.replay_through(next.last_seq)?;
    let inner = assemble_read_only(recovery, number, None)?;
    Ok(Some((inner, next)))
}

/// Pins only the files that are open.
fn pin_open_files(obsolete_files: &ObsoleteFiles) -> Result<()> {
    match obsolete_files.follower_pin() {
        Some(pin) => pin.pin(obsolete_files.open_file_numbers()),
        None => Ok(()),
    }
}

/// Reads the manifest, and then finds the end of the log. Repeats both if the owner has meanwhile added an edit to the
/// manifest whose effect users can observe, see [`can_observe`].
fn read_matching_state(vfs: &dyn Vfs, dir: &Path) -> Result<ReadState> {
    for _ in 0..ATTEMPTS_MAX {
        let loaded = load_manifest(vfs, dir, &mut |_, _, _| {})?;
        let source = LogSource {
            vfs,
            dir,
            state: &loaded.state,
            manifest: &loaded.path,
            mode: RecoveryMode::Strict,
        };
        let last_seq = source.find_last_synced_seq()?;
        if failpoint::is_on(Failpoint::FollowerSkipsManifestCheck)
            || !has_observable_edit_after(vfs, dir, &loaded)?
        {
            let LoadedManifest { number: manifest, edits, .. } = loaded;
            let position = FollowedState { manifest, edits, last_seq };
            return Ok(ReadState { loaded, position });
        }
    }
    Err(Error::FollowerOvertaken { path: dir.to_owned(), attempts: ATTEMPTS_MAX })
}

/// Reads the manifest. Calls `observe` for each edit.
fn load_manifest(
    vfs: &dyn Vfs,
    dir: &Path,
    observe: &mut dyn FnMut(u64, &ManifestState, &VersionEdit),
) -> Result<LoadedManifest> {
    let mut last_corruption = None;
    loop {
        match Manifest::load_synced(vfs, dir, observe) {
            Err(Error::Corrupt { path, offset, source }) => {
                let place = (path.clone(), offset);
                // The record was complete before the sync mark was written that proves the corruption. The second read
                // would have found it.
                if last_corruption.as_ref() == Some(&place) {
                    return Err(Error::Corrupt { path, offset, source });
                }
                last_corruption = Some(place);
            }
            loaded => return loaded,
        }
    }
}

/// Returns whether an edit that users can observe was added to the manifest after `loaded` was read. Also returns true if
/// `CURRENT` names a newer manifest file, whose first edit contains the whole state.
fn has_observable_edit_after(vfs: &dyn Vfs, dir: &Path, loaded: &LoadedManifest) -> Result<bool> {
    let mut is_observable = false;
    let now = load_manifest(vfs, dir, &mut |number, state, edit| {
        is_observable |= number > loaded.edits && can_observe(state, edit);
    })?;
    Ok(is_observable || now.number != loaded.number)
}

/// Returns whether an edit changes the results of reads, as the drop of a keyspace or an ingest does. Flushes and
/// compactions change no result. `state` is the state before the edit.
fn can_observe(state: &ManifestState, edit: &VersionEdit) -> bool {
    edit.changes.iter().any(|change| match change {
        // An ingest adds a table with sequence numbers that no flush covers.
        Change::AddFile { keyspace, file, .. } => {
            let flushed = edit.changes.iter().find_map(|change| match change {
                Change::FlushedThrough { keyspace: flushed, seq } if flushed == keyspace => {
                    Some(*seq)
                }
                _ => None,
            });
            let before = state.keyspaces.get(keyspace).map(|keyspace| keyspace.flushed_through);
            SeqNo(file.seq_largest) > flushed.max(before).unwrap_or_default()
        }
        Change::RemoveFile { .. }
        | Change::AddBlob { .. }
        | Change::RemoveBlob { .. }
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
        | Change::ClockUs(_) => false,
        _ => true,
    })
}

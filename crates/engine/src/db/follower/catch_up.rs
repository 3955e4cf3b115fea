//! Reads the state of a database while its owner changes it.
//!
//! 1. Pin all files.
//! 2. Read the manifest up to the last edit that is known to be on stable storage.
//! 3. Find the end of the synced commits in the log.
//! 4. Read the manifest again. An edit is *observable* if it changes the results of reads, such as an ingest or the
//!    drop of a keyspace. If an observable edit was added since step 2, return to step 2. Otherwise, the state contains
//!    all observable edits before the last synced commit. The owner syncs the log before it writes an observable edit.
//!    So the state also contains all commits before such an edit.
//! 5. Open the tables, and replay the synced commits into memtables.
//! 6. Pin only the files of this state and of earlier states in use.
//!
//! Commits that are not synced are not shown, because the owner may discard them: [`Db::resume`](crate::Db::resume)
//! discards commits whose append or sync failed. Synced commits survive a crash of the owner.
//!
//! A missing file is an error only if `CURRENT` has not changed during these steps, see [`read_current_state`].
//!
//! **Extension.** If all new manifest edits concern log segments, the next view has the same tables. Its trees then
//! share the memtables of the current view. Steps 3 and 5 read only the log after the current view. Steps 1 and 6 are
//! omitted, because no file is opened. Each view reads the shared memtables up to its own sequence number, as a reader
//! of a writable database does.

use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::{Arc, AtomicBool, Ordering};

use crate::db::inner::DbInner;
use crate::db::open::log_source::{LogSource, SyncedEnd};
use crate::db::open::read_only::assemble_read_only;
use crate::db::open::recovery::Recovery;
use crate::db::open::{database_exists, not_a_database};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::followers::FollowerPin;
use crate::format::version_edit::{Change, VersionEdit};
use crate::manifest::{LoadedManifest, Manifest, ManifestState, is_observable};
use crate::options::db::Options;
use crate::tree::obsolete_files::ObsoleteFiles;
use crate::vfs::Vfs;
use crate::wal::{LogPosition, RecoveryMode};

/// Maximum number of attempts of [`read_matching_state`] and of [`read_current_state`].
const ATTEMPTS_MAX: u32 = 100;

/// Manifest state and log position that a view of a follower shows.
#[derive(Clone, Debug)]
pub(super) struct FollowedState {
    loaded: Arc<LoadedManifest>,
    /// Last sequence number that the view shows.
    last_seq: SeqNo,
    /// Last sequence number in the memtables. It exceeds `last_seq` if `last_seq` lies within a commit.
    replayed: SeqNo,
    /// Position before which all commits are in tables or memtables.
    log: Option<LogPosition>,
    /// True if the memtables contain no commit after `replayed`. An extension clears it before it inserts later
    /// commits. If the extension fails, the next catch-up therefore does not insert these commits again.
    is_extendable: Arc<AtomicBool>,
}

impl FollowedState {
    fn new(loaded: Arc<LoadedManifest>, end: SyncedEnd, replayed: SeqNo) -> FollowedState {
        let SyncedEnd { last_seq, position: log } = end;
        FollowedState {
            loaded,
            last_seq,
            replayed,
            log,
            is_extendable: Arc::new(AtomicBool::new(true)),
        }
    }
}

/// Result of a catch-up.
pub(super) enum CatchUp {
    /// The view still shows the newest state.
    Unchanged(FollowedState),
    /// The next view shows newer commits or other files.
    Next {
        view: Box<DbInner>,
        state: FollowedState,
        /// True if the view shares the memtables of the previous view.
        is_extension: bool,
    },
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
    read_current_state(vfs.as_ref(), dir, || {
        let pin = FollowerPin::create(&vfs, dir)?;
        let (loaded, end) = read_matching_state(vfs.as_ref(), dir, None)?;
        let state = (loaded.state.clone(), &*loaded.path);
        let (vfs, options, env) = (Arc::clone(&vfs), options.clone(), env.clone());
        let mut recovery = Recovery::new_follower(vfs, dir, options, env, state, pin)?;
        let replayed = recovery.replay_through(end.last_seq, None)?;
        let inner = assemble_read_only(recovery, loaded.number, None)?;
        pin_open_files(&inner.state.obsolete_files)?;
        Ok((inner, FollowedState::new(loaded, end, replayed)))
    })
}

/// Calls `read`, which reads the state that `CURRENT` names. If a file is missing, and `CURRENT` has been replaced during
/// the call, the function calls `read` again.
///
/// A failed sync of the owner may lose the sync mark of an edit. Until the owner has recovered, a follower does not see
/// the edit, but the owner may have deleted files because of it. A recovery replaces `CURRENT`.
fn read_current_state<T>(
    vfs: &dyn Vfs,
    dir: &Path,
    mut read: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut current = Manifest::read_current(vfs, dir)?;
    for _ in 1..ATTEMPTS_MAX {
        let result = read();
        if !result.as_ref().is_err_and(Error::is_missing_file) {
            return result;
        }
        match Manifest::read_current(vfs, dir) {
            Ok(now) if now != current => current = now,
            _ => return result,
        }
    }
    read()
}

/// Opens the next view, unless nothing has changed. `before` is the current view, and `state` is its manifest state and
/// log position.
pub(super) fn read_next_state(before: &DbInner, state: &FollowedState) -> Result<CatchUp> {
    // If the extension fails, the whole state is read. If the error persists, the read of the whole state returns it.
    if let Ok(Some(next)) = extend_state(before, state) {
        return Ok(next);
    }
    let obsolete_files = &before.state.obsolete_files;
    if let Some(pin) = obsolete_files.follower_pin() {
        pin.pin_all()?;
    }
    let (vfs, dir) = (before.state.vfs.as_ref(), &*before.state.dir);
    let next = read_current_state(vfs, dir, || open_next_state(before, state));
    let pinned = next.and_then(|next| pin_open_files(obsolete_files).map(|()| next));
    // After an error, the files that only the next view would use are closed. The owner may delete them again.
    if let (Err(_), Some(pin)) = (&pinned, obsolete_files.follower_pin()) {
        // After another error, the owner keeps all files until the next catch-up.
        let _ = pin.restore();
    }
    pinned
}

/// Opens the next view if only the log has changed, see the module documentation. Returns `None` if the whole state must be
/// read.
fn extend_state(before: &DbInner, state: &FollowedState) -> Result<Option<CatchUp>> {
    let (vfs, dir) = (before.state.vfs.as_ref(), &*before.state.dir);
    let position = state.log.filter(|_| state.is_extendable.load(Ordering::Acquire));
    let Some(position) = position else { return Ok(None) };
    let Some(loaded) = load_log_edits(vfs, dir, &state.loaded)? else { return Ok(None) };
    if Arc::ptr_eq(&loaded, &state.loaded) && !position.may_have_record(vfs, dir)? {
        return Ok(Some(CatchUp::Unchanged(state.clone())));
    }
    if position.segment < loaded.state.wal_oldest {
        return Ok(None);
    }
    let end = log_source(vfs, dir, &loaded).find_synced_end(Some(position), state.last_seq)?;
    if end.last_seq <= state.last_seq {
        let log = end.position;
        return Ok(Some(CatchUp::Unchanged(FollowedState { loaded, log, ..state.clone() })));
    }
    if !failpoint::is_on(Failpoint::FollowerSkipsManifestCheck)
        && load_log_edits(vfs, dir, &loaded)?.is_none()
    {
        return Ok(None);
    }
    state.is_extendable.store(false, Ordering::Release);
    let mut recovery = Recovery::following(before, (loaded.state.clone(), &loaded.path), true)?;
    let replayed = recovery.replay_through(end.last_seq, Some((state.replayed, position)))?;
    let view = Box::new(assemble_read_only(recovery, loaded.number, None)?);
    let state = FollowedState::new(loaded, end, replayed);
    Ok(Some(CatchUp::Next { view, state, is_extension: true }))
}

fn open_next_state(before: &DbInner, state: &FollowedState) -> Result<CatchUp> {
    let (vfs, dir) = (before.state.vfs.as_ref(), &*before.state.dir);
    let (loaded, end) = read_matching_state(vfs, dir, Some(state))?;
    let (expected, found) = (before.state.manifest.db_uid(), loaded.state.db_uid);
    if expected != found {
        let what = "database uid";
        let what = Malformed::Identity { what, expected, found };
        return Err(Error::malformed(what, &loaded.path, 0));
    }
    let position = |loaded: &LoadedManifest| (loaded.number, loaded.edits);
    if end.last_seq == state.last_seq && position(&loaded) == position(&state.loaded) {
        let log = end.position;
        return Ok(CatchUp::Unchanged(FollowedState { loaded, log, ..state.clone() }));
    }
    let mut recovery = Recovery::following(before, (loaded.state.clone(), &loaded.path), false)?;
    let replayed = recovery.replay_through(end.last_seq, None)?;
    let view = Box::new(assemble_read_only(recovery, loaded.number, None)?);
    let state = FollowedState::new(loaded, end, replayed);
    Ok(CatchUp::Next { view, state, is_extension: false })
}

/// Allows the deletion of files that were closed since the last catch-up.
pub(super) fn unpin_closed_files(view: &DbInner) {
    let obsolete_files = &view.state.obsolete_files;
    if let Some(pin) = obsolete_files.follower_pin() {
        // After an error, the owner keeps the files until the next catch-up.
        let _ = pin.unpin_others(obsolete_files.open_file_numbers());
    }
}

/// Pins only the files that are open.
fn pin_open_files(obsolete_files: &ObsoleteFiles) -> Result<()> {
    match obsolete_files.follower_pin() {
        Some(pin) => pin.pin(obsolete_files.open_file_numbers()),
        None => Ok(()),
    }
}

/// Reads the manifest, and then finds the end of the synced commits in the log. Repeats both steps if the owner has
/// added an observable edit to the manifest in between; see [`is_observable`]. Reads only manifest edits that are not
/// in the state `before`.
fn read_matching_state(
    vfs: &dyn Vfs,
    dir: &Path,
    before: Option<&FollowedState>,
) -> Result<(Arc<LoadedManifest>, SyncedEnd)> {
    let shown = before.map_or(SeqNo(0), |before| before.last_seq);
    for _ in 0..ATTEMPTS_MAX {
        let loaded =
            load_manifest(vfs, dir, before.map(|before| &before.loaded), &mut |_, _, _| {})?;
        let end = log_source(vfs, dir, &loaded).find_synced_end(None, shown)?;
        if failpoint::is_on(Failpoint::FollowerSkipsManifestCheck)
            || !has_observable_edit_after(vfs, dir, &loaded)?
        {
            return Ok((loaded, end));
        }
    }
    Err(Error::FollowerOvertaken { path: dir.to_owned(), attempts: ATTEMPTS_MAX })
}

fn log_source<'a>(vfs: &'a dyn Vfs, dir: &'a Path, loaded: &'a LoadedManifest) -> LogSource<'a> {
    let LoadedManifest { state, path: manifest, .. } = loaded;
    LogSource { vfs, dir, state, manifest, mode: RecoveryMode::Strict }
}

/// Reads the manifest edits that are not in `before`. Without `before`, reads all edits. Calls `observe` for each edit.
fn load_manifest(
    vfs: &dyn Vfs,
    dir: &Path,
    before: Option<&Arc<LoadedManifest>>,
    observe: &mut dyn FnMut(u64, &ManifestState, &VersionEdit),
) -> Result<Arc<LoadedManifest>> {
    let mut last_corruption = None;
    loop {
        let loaded = match before.filter(|_| last_corruption.is_none()) {
            Some(before) => Manifest::load_synced_after(vfs, dir, before, observe),
            None => Manifest::load_synced(vfs, dir, observe).map(Arc::new),
        };
        match loaded {
            Err(Error::Corrupt { path, offset, source }) => {
                let place = (path.clone(), offset);
                // The first read may have seen an incomplete record, and then a sync mark that covers the record. The
                // owner completes a record before it writes the mark. So the second read finds the record complete,
                // unless it is corrupt.
                if last_corruption.as_ref() == Some(&place) {
                    return Err(Error::Corrupt { path, offset, source });
                }
                last_corruption = Some(place);
            }
            loaded => return loaded,
        }
    }
}

/// Returns true if an observable edit was added to the manifest after `loaded` was read. Also returns true if `CURRENT`
/// names a newer manifest, because its first edit contains the whole state.
fn has_observable_edit_after(
    vfs: &dyn Vfs,
    dir: &Path,
    loaded: &Arc<LoadedManifest>,
) -> Result<bool> {
    let mut has_observable = false;
    let now = load_manifest(vfs, dir, Some(loaded), &mut |number, state, edit| {
        has_observable |= number > loaded.edits && is_observable(state, edit);
    })?;
    Ok(has_observable || now.number != loaded.number)
}

/// Reads the manifest edits that are not in `before`. Returns `None` if an edit changes more than the log, or if
/// `CURRENT` names another manifest.
fn load_log_edits(
    vfs: &dyn Vfs,
    dir: &Path,
    before: &Arc<LoadedManifest>,
) -> Result<Option<Arc<LoadedManifest>>> {
    let mut is_log_only = true;
    let now = Manifest::load_synced_after(vfs, dir, before, &mut |_, _, edit| {
        is_log_only &= edit.changes.iter().all(|change| {
            matches!(
                change,
                Change::WalOldest { .. }
                    | Change::WalSegment { .. }
                    | Change::WalMark { .. }
                    | Change::FileNumberNext(_)
                    | Change::LastSeq(_)
                    | Change::ClockUs(_)
            )
        });
    })?;
    Ok(Some(now).filter(|now| is_log_only && now.number == before.number))
}

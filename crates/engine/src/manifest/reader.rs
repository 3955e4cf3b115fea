//! Reads manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::log_record::LogChecksumSeed;
use crate::format::manifest_header::{
    CURRENT_BYTES_MAX, CurrentFile, MANIFEST_HEADER_BYTES, ManifestHeader,
};
use crate::format::segment_header::SEGMENT_HEADER_BYTES;
use crate::format::version_edit::{Change, VersionEdit};
use crate::log_reader::{LogRead, LogReader};
use crate::manifest::{KeyspaceState, ManifestState};
use crate::vfs::{File, Vfs, missing_dir_reason};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

/// A manifest as read from disk.
#[derive(Clone, Debug)]
pub struct LoadedManifest {
    /// State after all edits of the manifest.
    pub state: ManifestState,
    /// Number of the manifest.
    pub number: u64,
    /// Path of the manifest.
    pub path: PathBuf,
    /// Number of edits that the state contains.
    pub edits: u64,
    /// Offset after the last edit that the state contains. [`Manifest::load_synced_after`] continues there.
    ///
    /// [`Manifest::load_synced_after`]: crate::manifest::Manifest::load_synced_after
    pub(crate) edits_end: u64,
    /// Bytes of unacknowledged edits at the end of the manifest. These edits are ignored.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "read by tests and fuzz targets")
    )]
    pub bytes_cut: u64,
}

/// The readable part of a manifest that is corrupt or not current.
#[derive(Clone, Debug)]
pub struct SalvagedManifest {
    /// State after all readable edits. Changes that are inconsistent with the state are omitted.
    pub state: ManifestState,
    /// Path of the manifest.
    pub path: PathBuf,
    /// Error of the first edit that is unreadable or inconsistent with the state.
    pub lost: Option<Error>,
    /// Numbers of the tables and blob files removed by edits, and of the tables of dropped keyspaces.
    pub removed: BTreeSet<u64>,
    /// Ids of the keyspaces dropped by edits.
    pub dropped: BTreeSet<u32>,
}

/// Implements [`Manifest::salvage`](crate::manifest::Manifest::salvage).
///
/// The uid of the database is the seed of the record checksums. If neither the header of the manifest nor `CURRENT`
/// states the uid, the function returns `None`.
pub(crate) fn salvage(vfs: &dyn Vfs, dir: &Path, number: u64) -> Result<Option<SalvagedManifest>> {
    let path = FileName::Manifest(number).in_dir(dir);
    let file = vfs.open(&path).map_err(|source| Error::io("open", &path, source))?;
    let bytes = file.len().map_err(|source| Error::io("read", &path, source))?;
    let mut first = [0; MANIFEST_HEADER_BYTES];
    let read = file.read_at(&mut first, 0);
    let read = read.map_err(|source| Error::io("read", &path, source))?;
    let current = read_current_file(vfs, dir).ok().filter(|current| current.manifest == number);
    let (db_uid, lost) = match ManifestHeader::decode(&first[..read]) {
        Ok(header) if header.number == number => (header.db_uid, None),
        Ok(header) => {
            let (what, expected, found) = ("manifest number", number, header.number);
            let wrong = Error::malformed(Malformed::Identity { what, expected, found }, &path, 0);
            (header.db_uid, Some(wrong))
        }
        Err(newer @ Malformed::Version { .. }) => return Err(Error::malformed(newer, &path, 0)),
        Err(what) => match &current {
            Some(current) => (current.db_uid, Some(Error::malformed(what, &path, 0))),
            None => return Ok(None),
        },
    };
    let seed = LogChecksumSeed::new(db_uid, number);
    let mut reader = EditReader {
        path: &path,
        reader: LogReader::new(&*file, &path, seed, bytes),
        state: ManifestState { db_uid, ..ManifestState::default() },
        edit_next: 1,
        edits_end: len_u64(MANIFEST_HEADER_BYTES),
    };
    let synced = current.map_or(0, |current| current.bytes);
    let (removals, edits_lost) = reader.salvage(synced)?;
    if reader.edit_next == 1 {
        return Ok(None);
    }
    let (state, lost) = (reader.state, lost.filter(|_| edits_lost.is_some()).or(edits_lost));
    let RemovedIds { removed, dropped } = removals;
    Ok(Some(SalvagedManifest { state, path, lost, removed, dropped }))
}

pub(crate) fn load(vfs: &dyn Vfs, dir: &Path) -> Result<LoadedManifest> {
    load_named(vfs, dir, read_current_file(vfs, dir)?)
}

/// Implements [`Manifest::load_named`](crate::manifest::Manifest::load_named).
pub(crate) fn load_named(
    vfs: &dyn Vfs,
    dir: &Path,
    current: CurrentFile,
) -> Result<LoadedManifest> {
    load_edits(vfs, dir, current, EditsToApply::Complete, &mut |_, _, _| {})
}

/// Implements [`Manifest::load_synced`](crate::manifest::Manifest::load_synced).
pub(crate) fn load_synced(
    vfs: &dyn Vfs,
    dir: &Path,
    observe: &mut EditObserver<'_>,
) -> Result<LoadedManifest> {
    let current = read_current_file(vfs, dir)?;
    load_edits(vfs, dir, current, EditsToApply::Synced, observe)
}

/// Implements [`Manifest::load_synced_after`](crate::manifest::Manifest::load_synced_after).
pub(crate) fn load_synced_after(
    vfs: &dyn Vfs,
    dir: &Path,
    before: &Arc<LoadedManifest>,
    observe: &mut EditObserver<'_>,
) -> Result<Arc<LoadedManifest>> {
    let current = read_current_file(vfs, dir)?;
    if (current.manifest, current.db_uid) != (before.number, before.state.db_uid) {
        return load_edits(vfs, dir, current, EditsToApply::Synced, observe).map(Arc::new);
    }
    let LoadedManifest { path, edits, edits_end, .. } = &**before;
    let file = open_manifest(vfs, dir, path)?;
    let bytes = file.len().map_err(|source| Error::io("read", path, source))?;
    if bytes == *edits_end {
        return Ok(Arc::clone(before));
    }
    let seed = LogChecksumSeed::new(current.db_uid, current.manifest);
    let mut reader = EditReader {
        path,
        reader: LogReader::new(&*file, path, seed, bytes),
        state: before.state.clone(),
        edit_next: edits + 1,
        edits_end: *edits_end,
    };
    let end = reader.replay(current.bytes, EditsToApply::Synced, observe)?;
    Ok(Arc::new(reader.into_loaded(current.manifest, bytes - end)))
}

/// Called for each applied edit, with the number of the edit and the state before the edit.
pub(crate) type EditObserver<'a> = dyn FnMut(u64, &ManifestState, &VersionEdit) + 'a;

/// Determines which edits at the end of a manifest are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EditsToApply {
    /// All complete edits.
    Complete,
    /// Edits that a later sync mark covers. The owner may discard other edits after an error.
    Synced,
}

/// An earlier state of a keyspace.
#[derive(Clone, Debug)]
pub(crate) struct EarlierKeyspace {
    pub(crate) state: KeyspaceState,
    /// Id of the oldest segment of the log at that time. The log from this segment on contains all commits of the
    /// keyspace that are not flushed in this state.
    pub(crate) wal_oldest: u64,
}

/// Implements
/// [`Manifest::load_keyspace_states_before_flush`](crate::manifest::Manifest::load_keyspace_states_before_flush).
pub(crate) fn load_keyspace_states_before_flush(
    vfs: &dyn Vfs,
    dir: &Path,
    seq: SeqNo,
) -> Result<BTreeMap<u32, Option<EarlierKeyspace>>> {
    let mut before = BTreeMap::new();
    let current = read_current_file(vfs, dir)?;
    load_edits(vfs, dir, current, EditsToApply::Complete, &mut |_, state, edit| {
        for change in &edit.changes {
            let later = match change {
                Change::FlushedThrough { keyspace, seq: through } if *through > seq => keyspace,
                // An ingest adds tables without changing `FlushedThrough`.
                Change::AddFile { keyspace, file, .. } if file.seq_smallest > seq.0 => keyspace,
                _ => continue,
            };
            before.entry(*later).or_insert_with(|| {
                let (keyspace, wal_oldest) = (state.keyspaces.get(later)?, state.wal_oldest);
                Some(EarlierKeyspace { state: keyspace.clone(), wal_oldest })
            });
        }
    })?;
    Ok(before)
}

/// Opens the manifest that `CURRENT` names.
fn open_manifest(vfs: &dyn Vfs, dir: &Path, path: &Path) -> Result<Arc<dyn File>> {
    vfs.open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            let named_by = FileName::Current.in_dir(dir);
            Error::Missing { path: path.to_owned(), named_by }
        }
        _ => Error::io("open", path, source),
    })
}

/// Reads the manifest that `current` names. Calls `observe` for each applied edit.
fn load_edits(
    vfs: &dyn Vfs,
    dir: &Path,
    current: CurrentFile,
    applied: EditsToApply,
    observe: &mut EditObserver<'_>,
) -> Result<LoadedManifest> {
    let path = FileName::Manifest(current.manifest).in_dir(dir);
    let file = open_manifest(vfs, dir, &path)?;
    let bytes = file.len().map_err(|source| Error::io("read", &path, source))?;
    let mut first = [0; MANIFEST_HEADER_BYTES];
    let read = file.read_at(&mut first, 0);
    let read = read.map_err(|source| Error::io("read", &path, source))?;
    let header =
        ManifestHeader::decode(&first[..read]).map_err(|what| Error::malformed(what, &path, 0))?;
    for (what, expected, found) in [
        ("database uid", current.db_uid, header.db_uid),
        ("manifest number", current.manifest, header.number),
    ] {
        if expected != found {
            return Err(Error::malformed(Malformed::Identity { what, expected, found }, &path, 0));
        }
    }
    let seed = LogChecksumSeed::new(current.db_uid, current.manifest);
    let mut reader = EditReader {
        path: &path,
        reader: LogReader::new(&*file, &path, seed, bytes),
        state: ManifestState { db_uid: current.db_uid, ..ManifestState::default() },
        edit_next: 1,
        edits_end: len_u64(MANIFEST_HEADER_BYTES),
    };
    let end = reader.replay(current.bytes, applied, observe)?;
    Ok(reader.into_loaded(current.manifest, bytes - end))
}

/// Numbers of the files and ids of the keyspaces that edits have removed.
#[derive(Debug, Default)]
struct RemovedIds {
    removed: BTreeSet<u64>,
    dropped: BTreeSet<u32>,
}

/// Reads the edits of one manifest.
struct EditReader<'a> {
    path: &'a Path,
    reader: LogReader<'a>,
    state: ManifestState,
    edit_next: u64,
    /// Offset after the last applied edit and the mark-only records after it.
    edits_end: u64,
}

impl EditReader<'_> {
    fn into_loaded(self, number: u64, bytes_cut: u64) -> LoadedManifest {
        let EditReader { path, state, edit_next, edits_end, .. } = self;
        let (path, edits) = (path.to_owned(), edit_next - 1);
        LoadedManifest { state, number, path, edits, edits_end, bytes_cut }
    }

    /// Applies the changes of all readable edits that are consistent with the state. The first `synced` bytes were on
    /// stable storage. Returns the removed ids, and the error of the first edit that is missing or inconsistent.
    fn salvage(&mut self, synced: u64) -> Result<(RemovedIds, Option<Error>)> {
        let (mut removals, mut lost) = (RemovedIds::default(), None);
        let mut offset = len_u64(MANIFEST_HEADER_BYTES);
        loop {
            let what = match self.reader.read_record(offset)? {
                LogRead::Record(header, payload) => {
                    let edit = (!header.is_mark_only()).then(|| VersionEdit::decode(payload));
                    let (at, number) = (offset, header.first_seq);
                    offset += header.record_bytes();
                    match edit {
                        None => {}
                        Some(Ok(edit)) => {
                            let expected = self.edit_next;
                            let applied = self.apply_fitting_changes(&edit, &mut removals);
                            let applied = applied.and_then(|()| match number == expected {
                                true => Ok(()),
                                false => {
                                    let (what, found) = ("number of an edit", number);
                                    Err(Malformed::Identity { what, expected, found })
                                }
                            });
                            self.edit_next = number.saturating_add(1);
                            if let Err(what) = applied {
                                lost.get_or_insert(Error::malformed(what, self.path, at));
                            }
                        }
                        Some(Err(what)) => {
                            lost.get_or_insert(Error::malformed(what, self.path, at));
                        }
                    }
                    continue;
                }
                LogRead::End if offset >= synced => return Ok((removals, lost)),
                LogRead::End => {
                    Malformed::Truncated { what: "manifest", needed: synced, found: offset }
                }
                LogRead::Malformed(what) => what,
            };
            let next = self.reader.find_next_record(offset)?;
            if next.is_some() || offset < synced {
                lost.get_or_insert(Error::malformed(what, self.path, offset));
            }
            // If no valid record follows, and the invalid record is not in the synced bytes, the invalid record is an
            // edit that was never acknowledged.
            let Some(next) = next else { return Ok((removals, lost)) };
            offset = next;
        }
    }

    fn apply_fitting_changes(
        &mut self,
        edit: &VersionEdit,
        removals: &mut RemovedIds,
    ) -> std::result::Result<(), Malformed> {
        for change in &edit.changes {
            match change {
                Change::RemoveFile { id, .. } | Change::RemoveBlob { id, .. } => {
                    removals.removed.insert(id.0);
                }
                Change::DropKeyspace { id } => {
                    removals.dropped.insert(*id);
                    let keyspace = self.state.keyspaces.get(id).into_iter();
                    let tables = keyspace.flat_map(|keyspace| keyspace.tree.files());
                    removals.removed.extend(tables.map(|file| file.id.0));
                }
                _ => {}
            }
        }
        // A trivial move removes a table and adds the same table in one edit.
        for change in &edit.changes {
            if let Change::AddFile { file, .. } = change {
                removals.removed.remove(&file.id.0);
            }
        }
        let applied = self.state.apply_edit(edit);
        if applied.is_err() {
            for change in &edit.changes {
                // A change that is inconsistent with the state depends on a lost edit, so its error is ignored.
                let _ = self.state.apply_edit(&VersionEdit { changes: vec![change.clone()] });
            }
        }
        applied
    }

    /// Applies the edits from `edits_end` on. Returns the offset after the last valid record. The first `synced` bytes
    /// were on stable storage. Calls `observe` for each applied edit.
    ///
    /// # Errors
    /// Fails when an invalid record was on stable storage. Any other invalid record is an edit that was never
    /// acknowledged. Such a record ends the replay without an error.
    fn replay(
        &mut self,
        synced: u64,
        applied: EditsToApply,
        observe: &mut EditObserver<'_>,
    ) -> Result<u64> {
        let mut offset = self.edits_end;
        // The last edit that is not applied yet, and its offset.
        let mut pending = None;
        loop {
            let what = match self.reader.read_record(offset)? {
                LogRead::Record(header, payload) => {
                    let number = header.first_seq;
                    let at = |what: Malformed| Error::malformed(what, self.path, offset);
                    let next = match header.is_mark_only() {
                        true => None,
                        false => Some((offset, number, VersionEdit::decode(payload).map_err(at)?)),
                    };
                    let record_bytes = header.record_bytes();
                    if header.mark.position.max(synced) >= offset
                        && let Some(edit) = pending.take()
                    {
                        self.apply(edit, observe)?;
                    }
                    offset += record_bytes;
                    match (next, applied) {
                        (Some(edit), EditsToApply::Complete) => self.apply(edit, observe)?,
                        (Some(edit), EditsToApply::Synced) => pending = Some(edit),
                        (None, _) => {}
                    }
                    if pending.is_none() {
                        self.edits_end = offset;
                    }
                    continue;
                }
                LogRead::End if offset >= synced => None,
                LogRead::End => {
                    Some(Malformed::Truncated { what: "manifest", needed: synced, found: offset })
                }
                LogRead::Malformed(what) => Some(what),
            };
            if let Some(what) = what
                && self.reader.scan_tail(offset)?.position.max(synced) > offset
            {
                return Err(Error::malformed(what, self.path, offset));
            }
            if let Some(edit) = pending.take().filter(|_| synced >= offset) {
                self.apply(edit, observe)?;
                self.edits_end = offset;
            }
            return Ok(offset);
        }
    }

    /// Applies an edit. `offset` and `number` are its position and its number in the manifest.
    fn apply(
        &mut self,
        (offset, number, edit): (u64, u64, VersionEdit),
        observe: &mut EditObserver<'_>,
    ) -> Result<()> {
        let at = |what: Malformed| Error::malformed(what, self.path, offset);
        let (what, expected, found) = ("number of an edit", self.edit_next, number);
        if expected != found {
            return Err(at(Malformed::Identity { what, expected, found }));
        }
        observe(number, &self.state, &edit);
        self.state.apply_edit(&edit).map_err(at)?;
        self.edit_next += 1;
        Ok(())
    }
}

pub(crate) fn read_current_file(vfs: &dyn Vfs, dir: &Path) -> Result<CurrentFile> {
    let path = FileName::Current.in_dir(dir);
    let file = match vfs.open(&path) {
        Ok(file) => file,
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            return Err(missing_current_error(vfs, dir));
        }
        Err(source) => return Err(Error::io_in_database("open", &path, source)),
    };
    let mut line = [0; CURRENT_BYTES_MAX];
    let read = file.read_at(&mut line, 0);
    let read = read.map_err(|source| Error::io("read", &path, source))?;
    CurrentFile::decode(&line[..read]).map_err(|what| Error::malformed(what, &path, 0))
}

/// Returns the error for a missing `CURRENT`.
///
/// If the directory contains no data files and no commits, it is not a database, or the creation of the database was
/// interrupted. Otherwise `CURRENT` is lost, and the directory must not be initialized again.
fn missing_current_error(vfs: &dyn Vfs, dir: &Path) -> Error {
    let names = match vfs.list(dir) {
        Ok(names) => names,
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            let why = missing_dir_reason(vfs, dir);
            return Error::NotADatabase { path: dir.to_owned(), why };
        }
        Err(source) => return Error::io("list", dir, source),
    };
    let files: Vec<FileName> = names.iter().filter_map(|name| FileName::parse(name)).collect();
    for file in &files {
        let path = file.in_dir(dir);
        let holds_data = match file {
            FileName::Table(_)
            | FileName::Blob(_)
            | FileName::Operands(_)
            | FileName::Bucket(_) => true,
            FileName::Segment(_) => match vfs.open(&path).and_then(|file| file.len()) {
                Ok(bytes) => bytes > len_u64(SEGMENT_HEADER_BYTES),
                Err(source) => return Error::io("read", &path, source),
            },
            _ => false,
        };
        if holds_data {
            let named_by = dir.to_owned();
            return Error::Missing { path: FileName::Current.in_dir(dir), named_by };
        }
    }
    let has_manifest = files.iter().any(|file| matches!(file, FileName::Manifest(_)));
    let why = match has_manifest {
        true => "its creation was cut short before CURRENT was written",
        false => "it holds no CURRENT",
    };
    Error::NotADatabase { path: dir.to_owned(), why }
}

//! Reading a manifest back.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;

use crate::format::file_name::FileName;
use crate::format::log_record::LogSeed;
use crate::format::manifest_header::{
    CURRENT_BYTES_MAX, CurrentFile, MANIFEST_HEADER_BYTES, ManifestHeader,
};
use crate::format::segment_header::SEGMENT_HEADER_BYTES;
use crate::format::version_edit::{Change, VersionEdit};
use crate::log::{Found, LogReader};
use crate::manifest::{KeyspaceState, ManifestState};
use crate::vfs::{Vfs, missing_dir_reason};
use crate::{Error, Malformed, Result, SeqNo};

/// A manifest as it was found.
#[derive(Clone, Debug)]
pub struct LoadedManifest {
    /// The state after all its edits.
    pub state: ManifestState,
    /// Its number.
    pub number: u64,
    /// Its path.
    pub path: PathBuf,
    /// Bytes of edits at its end that were never acknowledged, and do not count.
    pub bytes_cut: u64,
}

/// What can be read of a manifest that is damaged, or that nothing points to.
#[derive(Clone, Debug)]
pub struct SalvagedManifest {
    /// The state after all edits that could be read, each as far as it fits.
    pub state: ManifestState,
    /// Its path.
    pub path: PathBuf,
    /// What is wrong with the first edit that could not be read, or does not fit.
    pub lost: Option<Error>,
    /// Numbers of the tables and blob files that edits let go.
    pub removed: BTreeSet<u64>,
    /// Ids of the keyspaces that edits dropped.
    pub dropped: BTreeSet<u32>,
}

/// Reads a manifest past what is damaged. `None` if nothing of it can be read, not even whose it is.
///
/// # Errors
/// It cannot be read, or a newer version wrote it.
pub(crate) fn salvage(vfs: &dyn Vfs, dir: &Path, number: u64) -> Result<Option<SalvagedManifest>> {
    let path = FileName::Manifest(number).in_dir(dir);
    let file = vfs.open(&path).map_err(|source| Error::io("open", &path, source))?;
    let bytes = file.len().map_err(|source| Error::io("read", &path, source))?;
    let mut first = [0; MANIFEST_HEADER_BYTES];
    let read = file.read_at(&mut first, 0);
    let read = read.map_err(|source| Error::io("read", &path, source))?;
    let current = read_current(vfs, dir).ok().filter(|current| current.manifest == number);
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
    let seed = LogSeed::new(db_uid, number);
    let mut edits = Edits {
        path: &path,
        reader: LogReader::new(&*file, &path, seed, bytes),
        state: ManifestState { db_uid, ..ManifestState::default() },
        edit_next: 1,
    };
    let synced = current.map_or(0, |current| current.bytes);
    let (gone, edits_lost) = edits.salvage(synced)?;
    if edits.edit_next == 1 {
        return Ok(None);
    }
    let (state, lost) = (edits.state, lost.filter(|_| edits_lost.is_some()).or(edits_lost));
    let Gone { removed, dropped } = gone;
    Ok(Some(SalvagedManifest { state, path, lost, removed, dropped }))
}

pub(crate) fn load(vfs: &dyn Vfs, dir: &Path) -> Result<LoadedManifest> {
    load_observed(vfs, dir, &mut |_, _| {})
}

/// Returns the state of each keyspace that was flushed past a sequence number, as it was before the first such
/// flush. `None` for a keyspace whose flushes the manifest does not tell apart, because it begins after them.
///
/// # Errors
/// As [`load`].
pub(crate) fn states_before_flushes_past(
    vfs: &dyn Vfs,
    dir: &Path,
    seq: SeqNo,
) -> Result<BTreeMap<u32, Option<KeyspaceState>>> {
    let mut before = BTreeMap::new();
    load_observed(vfs, dir, &mut |state, edit| {
        for change in &edit.changes {
            if let Change::FlushedThrough { keyspace, seq: through } = change
                && *through > seq
            {
                before.entry(*keyspace).or_insert_with(|| state.keyspaces.get(keyspace).cloned());
            }
        }
    })?;
    Ok(before)
}

/// Reads the manifest that `CURRENT` names. Calls `observe` for each edit, with the state before it.
fn load_observed(
    vfs: &dyn Vfs,
    dir: &Path,
    observe: &mut dyn FnMut(&ManifestState, &VersionEdit),
) -> Result<LoadedManifest> {
    let current = read_current(vfs, dir)?;
    let path = FileName::Manifest(current.manifest).in_dir(dir);
    let file = vfs.open(&path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            let named_by = FileName::Current.in_dir(dir);
            Error::Missing { path: path.clone(), named_by }
        }
        _ => Error::io("open", &path, source),
    })?;
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
    let seed = LogSeed::new(current.db_uid, current.manifest);
    let mut edits = Edits {
        path: &path,
        reader: LogReader::new(&*file, &path, seed, bytes),
        state: ManifestState { db_uid: current.db_uid, ..ManifestState::default() },
        edit_next: 1,
    };
    let end = edits.replay(current.bytes, observe)?;
    let state = edits.state;
    Ok(LoadedManifest { state, number: current.manifest, path, bytes_cut: bytes - end })
}

/// What edits let go: numbers of files, ids of keyspaces.
#[derive(Debug, Default)]
struct Gone {
    removed: BTreeSet<u64>,
    dropped: BTreeSet<u32>,
}

/// The edits of one manifest.
struct Edits<'a> {
    path: &'a Path,
    reader: LogReader<'a>,
    state: ManifestState,
    edit_next: u64,
}

impl Edits<'_> {
    /// Applies all edits that can be read, each as far as it fits. Returns what they let go, and what is
    /// wrong with the first that is missing or does not fit.
    fn salvage(&mut self, synced: u64) -> Result<(Gone, Option<Error>)> {
        let (mut gone, mut lost) = (Gone::default(), None);
        let mut offset = len_u64(MANIFEST_HEADER_BYTES);
        loop {
            let what = match self.reader.record(offset)? {
                Found::Record(header, payload) => {
                    let edit = (!header.is_mark_only()).then(|| VersionEdit::decode(payload));
                    let (at, number) = (offset, header.first_seq);
                    offset += header.record_bytes();
                    match edit {
                        None => {}
                        Some(Ok(edit)) => {
                            let expected = self.edit_next;
                            let fits = self.take_as_far_as_it_fits(&edit, &mut gone);
                            let fits = fits.and_then(|()| match number == expected {
                                true => Ok(()),
                                false => {
                                    let (what, found) = ("number of an edit", number);
                                    Err(Malformed::Identity { what, expected, found })
                                }
                            });
                            self.edit_next = number.saturating_add(1);
                            if let Err(what) = fits {
                                lost.get_or_insert(Error::malformed(what, self.path, at));
                            }
                        }
                        Some(Err(what)) => {
                            lost.get_or_insert(Error::malformed(what, self.path, at));
                        }
                    }
                    continue;
                }
                Found::End if offset >= synced => return Ok((gone, lost)),
                Found::End => {
                    Malformed::Truncated { what: "manifest", needed: synced, found: offset }
                }
                Found::Bad(what) => what,
            };
            let next = self.reader.next_record(offset)?;
            if next.is_some() || offset < synced {
                lost.get_or_insert(Error::malformed(what, self.path, offset));
            }
            // Else it is an edit that was never acknowledged.
            let Some(next) = next else { return Ok((gone, lost)) };
            offset = next;
        }
    }

    fn take_as_far_as_it_fits(
        &mut self,
        edit: &VersionEdit,
        gone: &mut Gone,
    ) -> std::result::Result<(), Malformed> {
        for change in &edit.changes {
            match change {
                Change::RemoveFile { id, .. } | Change::RemoveBlob { id, .. } => {
                    gone.removed.insert(id.0);
                }
                Change::DropKeyspace { id } => {
                    gone.dropped.insert(*id);
                }
                _ => {}
            }
        }
        // A table that moves leaves and comes in one edit.
        for change in &edit.changes {
            if let Change::AddFile { file, .. } = change {
                gone.removed.remove(&file.id.0);
            }
        }
        let whole = self.state.apply(edit);
        if whole.is_err() {
            for change in &edit.changes {
                // What does not fit is what the lost edit had changed.
                let _ = self.state.apply(&VersionEdit { changes: vec![change.clone()] });
            }
        }
        whole
    }

    /// Applies all edits. Returns where the last good record ends; `synced` bytes are known to have
    /// been on stable storage. Calls `observe` for each edit, with the state before it.
    fn replay(
        &mut self,
        synced: u64,
        observe: &mut dyn FnMut(&ManifestState, &VersionEdit),
    ) -> Result<u64> {
        let mut offset = len_u64(MANIFEST_HEADER_BYTES);
        loop {
            let at = |what: Malformed| Error::malformed(what, self.path, offset);
            let what = match self.reader.record(offset)? {
                Found::Record(header, payload) => {
                    if !header.is_mark_only() {
                        let (expected, found) = (self.edit_next, header.first_seq);
                        if expected != found {
                            let what = "number of an edit";
                            return Err(at(Malformed::Identity { what, expected, found }));
                        }
                        let edit = VersionEdit::decode(payload).map_err(at)?;
                        observe(&self.state, &edit);
                        self.state.apply(&edit).map_err(at)?;
                        self.edit_next += 1;
                    }
                    offset += header.record_bytes();
                    continue;
                }
                Found::End if offset >= synced => return Ok(offset),
                Found::End => {
                    Malformed::Truncated { what: "manifest", needed: synced, found: offset }
                }
                Found::Bad(what) => what,
            };
            let marked = self.reader.beyond(offset)?.position.max(synced);
            if marked > offset {
                return Err(Error::malformed(what, self.path, offset));
            }
            return Ok(offset);
        }
    }
}

fn read_current(vfs: &dyn Vfs, dir: &Path) -> Result<CurrentFile> {
    let path = FileName::Current.in_dir(dir);
    let file = match vfs.open(&path) {
        Ok(file) => file,
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            return Err(without_current(vfs, dir));
        }
        Err(source) => return Err(Error::inside("open", &path, source)),
    };
    let mut line = [0; CURRENT_BYTES_MAX];
    let read = file.read_at(&mut line, 0);
    let read = read.map_err(|source| Error::io("read", &path, source))?;
    CurrentFile::decode(&line[..read]).map_err(|what| Error::malformed(what, &path, 0))
}

/// Why there is no `CURRENT`: nothing is there at all, or a creation was cut short, which had not
/// got as far as a table or a commit; else `CURRENT` was lost, and nobody may begin anew here.
fn without_current(vfs: &dyn Vfs, dir: &Path) -> Error {
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
    let begun = files.iter().any(|file| matches!(file, FileName::Manifest(_)));
    let why = match begun {
        true => "its creation was cut short before CURRENT was written",
        false => "it holds no CURRENT",
    };
    Error::NotADatabase { path: dir.to_owned(), why }
}

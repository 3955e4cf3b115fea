//! Reading a manifest back.

use std::io;
use std::path::{Path, PathBuf};

use super::ManifestState;
use crate::coding::len_u64;
use crate::format::edit::Edit;
use crate::format::filename::FileName;
use crate::format::frame::LogSeed;
use crate::format::manifest_header::{
    CURRENT_BYTES_MAX, Current, MANIFEST_HEADER_BYTES, ManifestHeader,
};
use crate::format::wal_header::SEGMENT_HEADER_BYTES;
use crate::log::{Found, LogReader};
use crate::vfs::Vfs;
use crate::{Error, Malformed, Result};

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

pub(super) fn load(vfs: &dyn Vfs, dir: &Path) -> Result<LoadedManifest> {
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
    let header = ManifestHeader::decode(&first[..read]).map_err(|what| what.at(&path, 0))?;
    for (what, expected, found) in [
        ("database uid", current.db_uid, header.db_uid),
        ("manifest number", current.manifest, header.number),
    ] {
        if expected != found {
            return Err(Malformed::Identity { what, expected, found }.at(&path, 0));
        }
    }
    let seed = LogSeed::new(current.db_uid, current.manifest);
    let mut edits = Edits {
        path: &path,
        reader: LogReader::new(&*file, &path, seed, bytes),
        state: ManifestState { db_uid: current.db_uid, ..ManifestState::default() },
        edit_next: 1,
    };
    let end = edits.replay(current.bytes)?;
    let state = edits.state;
    Ok(LoadedManifest { state, number: current.manifest, path, bytes_cut: bytes - end })
}

/// The edits of one manifest.
struct Edits<'a> {
    path: &'a Path,
    reader: LogReader<'a>,
    state: ManifestState,
    edit_next: u64,
}

impl Edits<'_> {
    /// Applies all edits. Returns where the last good record ends; `synced` bytes are known to have
    /// been on stable storage.
    fn replay(&mut self, synced: u64) -> Result<u64> {
        let mut offset = len_u64(MANIFEST_HEADER_BYTES);
        loop {
            let at = |what: Malformed| what.at(self.path, offset);
            let what = match self.reader.record(offset)? {
                Found::Record(header, payload) => {
                    if !header.is_mark_only() {
                        let (expected, found) = (self.edit_next, header.first_seq);
                        if expected != found {
                            let what = "number of an edit";
                            return Err(at(Malformed::Identity { what, expected, found }));
                        }
                        let edit = Edit::decode(payload).map_err(at)?;
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
                return Err(what.at(self.path, offset));
            }
            return Ok(offset);
        }
    }
}

fn read_current(vfs: &dyn Vfs, dir: &Path) -> Result<Current> {
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
    Current::decode(&line[..read]).map_err(|what| what.at(&path, 0))
}

/// Why there is no `CURRENT`: nothing is there at all, or a creation was cut short, which had not
/// got as far as a table or a commit; else `CURRENT` was lost, and nobody may begin anew here.
fn without_current(vfs: &dyn Vfs, dir: &Path) -> Error {
    let names = match vfs.list(dir) {
        Ok(names) => names,
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            let why = "there is no such directory";
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
            return Error::Missing { path: FileName::Current.in_dir(dir), named_by: path };
        }
    }
    let begun = files.iter().any(|file| matches!(file, FileName::Manifest(_)));
    let why = match begun {
        true => "its creation was cut short before CURRENT was written",
        false => "it holds no CURRENT",
    };
    Error::NotADatabase { path: dir.to_owned(), why }
}

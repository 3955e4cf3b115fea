//! What a damaged database consists of: what its manifest says, or as much as can be known without it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lsmx_base::key::SeqNo;

use crate::db::DEFAULT_KEYSPACE;
use crate::db::check::repair::blocks::Remains;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::batch::BatchOperations;
use crate::format::file_name::{CURRENT, FileName};
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::manifest::{KeyspaceState, Manifest, ManifestState};
use crate::options::keyspace::{KeyspaceOptions, Persisted};
use crate::vfs::Vfs;
use crate::wal::{RecoveryMode, ReplayFrom, ReplayedRecord, replay};

/// First bytes of the magic numbers of all files and of the line in `CURRENT`, in upper or lower case.
const PREFIX: &[u8] = b"lsmx";
/// Bytes of a magic number; tables end with theirs.
const MAGIC_BYTES: usize = 8;

/// What there is to begin with.
#[derive(Debug)]
pub(crate) struct Basis {
    /// What the manifest says, as far as it can be read.
    pub(crate) state: ManifestState,
    /// The manifest, or `CURRENT` where there is none.
    pub(crate) path: PathBuf,
    /// Why `CURRENT` and the manifest it names do not do.
    pub(crate) wrong: Option<Error>,
    /// What of the manifest is lost, if that makes the state doubtful: tables it names may be gone for good
    /// reason, and others may belong to it.
    pub(crate) doubt: Option<Error>,
    /// Numbers of files that it let go.
    pub(crate) removed: BTreeSet<u64>,
}

/// Looks for the best manifest that there is.
///
/// # Errors
/// The directory or a manifest cannot be read; a newer version wrote it; there is no file of a database.
pub(crate) fn find(vfs: &dyn Vfs, dir: &Path, env: &Env) -> Result<Basis> {
    let wrong = match Manifest::load(vfs, dir) {
        Ok(loaded) => {
            let (mut state, path) = (loaded.state, loaded.path);
            let doubt = cut_short(vfs, dir, &state, &path)?;
            if doubt.is_some() {
                let files = files(vfs, dir)?;
                add_unknown_keyspaces(vfs, dir, &files, &BTreeSet::new(), &mut state)?;
            }
            let (wrong, removed) = (doubt.clone(), BTreeSet::new());
            return Ok(Basis { state, path, wrong, doubt, removed });
        }
        Err(newer @ Error::UnsupportedVersion { .. }) => return Err(newer),
        Err(error) => error,
    };
    let files = files(vfs, dir)?;
    let mut manifests: Vec<u64> = files
        .iter()
        .filter_map(|file| match file {
            FileName::Manifest(number) => Some(*number),
            _ => None,
        })
        .collect();
    manifests.sort_unstable();
    // The newest one that begins with a whole state: it was on stable storage before anything pointed to it.
    for number in manifests.into_iter().rev() {
        if let Some(found) = Manifest::salvage(vfs, dir, number)?
            && !found.state.keyspaces.is_empty()
        {
            let (mut state, path, removed) = (found.state, found.path, found.removed);
            if found.lost.is_some() {
                add_unknown_keyspaces(vfs, dir, &files, &found.dropped, &mut state)?;
            }
            return Ok(Basis { state, path, wrong: Some(wrong), doubt: found.lost, removed });
        }
    }
    if !files.iter().any(|file| matches!(file, FileName::Table(_) | FileName::Segment(_))) {
        return Err(wrong);
    }
    let mut state = without_manifest(vfs, dir, &files, env)?;
    add_unknown_keyspaces(vfs, dir, &files, &BTreeSet::new(), &mut state)?;
    let (path, doubt) = (dir.join(CURRENT), Some(wrong.clone()));
    Ok(Basis { state, path, wrong: Some(wrong), doubt, removed: BTreeSet::new() })
}

/// Whether a manifest that can be read to its end was longer once. Of a database that was killed nothing
/// vouches for the last edits, but files go only after the edit that lets them go: if the log lacks its
/// beginning, or a table is missing while there is one that nothing names, such an edit is lost.
fn cut_short(
    vfs: &dyn Vfs,
    dir: &Path,
    state: &ManifestState,
    manifest: &Path,
) -> Result<Option<Error>> {
    if state.clean_close {
        return Ok(None);
    }
    let files = files(vfs, dir)?;
    let missing =
        |file: FileName| Error::Missing { path: file.in_dir(dir), named_by: manifest.to_owned() };
    let oldest = FileName::Segment(state.wal_oldest);
    if state.wal_oldest > 0 && !files.contains(&oldest) {
        return Ok(Some(missing(oldest)));
    }
    let mut tables = state.keyspaces.values().flat_map(KeyspaceState::files);
    let lacks = tables.find(|(.., table)| !files.contains(&FileName::Table(table.id.0)));
    let Some((.., lacks)) = lacks else { return Ok(None) };
    let named = state.file_numbers();
    let whole = |file: &FileName| {
        matches!(file, FileName::Table(id) if !named.contains(id))
            && Remains::open(vfs, &file.in_dir(dir), None).is_ok()
    };
    Ok(files.iter().any(whole).then(|| missing(FileName::Table(lacks.id.0))))
}

/// The files of a database in a directory.
pub(crate) fn files(vfs: &dyn Vfs, dir: &Path) -> Result<Vec<FileName>> {
    let names = vfs.list(dir).map_err(|error| Error::io("list", dir, error))?;
    Ok(names.iter().filter_map(|name| FileName::parse(name)).collect())
}

/// Whether a file of the directory carries a magic number of lsmx, at its beginning or its end.
///
/// # Errors
/// A file that is there cannot be opened or read.
pub(crate) fn has_magic(vfs: &dyn Vfs, dir: &Path, files: &[FileName]) -> Result<bool> {
    for file in files {
        let path = file.in_dir(dir);
        let file = vfs.open(&path).map_err(|error| Error::io("open", &path, error))?;
        let bytes = file.len().map_err(|error| Error::io("read the size of", &path, error))?;
        for offset in [0, bytes.saturating_sub(MAGIC_BYTES as u64)] {
            let mut found = [0; MAGIC_BYTES];
            // An unreadable file counts as one without a magic number.
            if file.read_at(&mut found, offset).is_ok()
                && found.get(..PREFIX.len()).is_some_and(|it| it.eq_ignore_ascii_case(PREFIX))
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The database that the log is of; keyspaces are added by [`add_unknown_keyspaces`].
fn without_manifest(
    vfs: &dyn Vfs,
    dir: &Path,
    files: &[FileName],
    env: &Env,
) -> Result<ManifestState> {
    let segment = oldest_segment(vfs, dir, files)?;
    let (wal_oldest, db_uid) = segment.unwrap_or_else(|| (0, env.random_u64()));
    Ok(ManifestState { db_uid, wal_oldest, ..ManifestState::default() })
}

/// Adds the keyspaces that tables name or the log has operations for, but for those that were dropped. The
/// default keyspace is always there.
fn add_unknown_keyspaces(
    vfs: &dyn Vfs,
    dir: &Path,
    files: &[FileName],
    dropped: &BTreeSet<u32>,
    state: &mut ManifestState,
) -> Result<()> {
    let mut names = BTreeMap::from([(0, DEFAULT_KEYSPACE.to_owned())]);
    for file in files {
        let path = file.in_dir(dir);
        if matches!(file, FileName::Table(_))
            && let Ok(remains) = Remains::open(vfs, &path, None)
            && let Some((id, name)) = remains.properties().and_then(|found| found.keyspace.clone())
        {
            names.insert(id, name);
        }
    }
    if let Some((oldest, _)) = oldest_segment(vfs, dir, files)? {
        for id in keyspaces_of_log(vfs, dir, state.db_uid, oldest.max(state.wal_oldest)) {
            names.entry(id).or_insert_with(|| format!("keyspace-{id}"));
        }
    }
    let options = Persisted::of_new(&KeyspaceOptions::default()).encode();
    for (id, name) in names {
        // Ids are never used twice, names are.
        if dropped.contains(&id) || id == u32::MAX || state.keyspaces.contains_key(&id) {
            continue;
        }
        let name = match state.keyspace_named(&name) {
            Some(_) => format!("{name}-{id}"),
            None => name,
        };
        let keyspace = KeyspaceState { name, options: options.clone(), ..KeyspaceState::default() };
        state.keyspaces.insert(id, keyspace);
        state.keyspace_id_next = state.keyspace_id_next.max(id + 1);
    }
    Ok(())
}

/// The first segment of the log with a sound header, and the uid of its database.
///
/// There may be several chains: a kept log, and what an open left that did not come to its end. The log is the
/// chain with commits whose first sequence number is the largest; a kept log starts with number 1.
pub(crate) fn oldest_segment(
    vfs: &dyn Vfs,
    dir: &Path,
    files: &[FileName],
) -> Result<Option<(u64, u64)>> {
    let mut chains = Vec::new();
    for (header, commits) in chains_of(vfs, dir, files)? {
        chains.push((commits > 0, header.first_seq, Reverse(header.id), header.db_uid));
    }
    Ok(chains.into_iter().max().map(|(.., Reverse(id), db_uid)| (id, db_uid)))
}

/// The first sound header of each chain of segments, and how many commits the chain has.
pub(crate) fn chains_of(
    vfs: &dyn Vfs,
    dir: &Path,
    files: &[FileName],
) -> Result<Vec<(SegmentHeader, u64)>> {
    let mut headers = BTreeMap::new();
    for file in files {
        if let FileName::Segment(id) = file
            && let Some(header) = segment_header(vfs, &file.in_dir(dir))?
            && header.id == *id
        {
            headers.insert(*id, header);
        }
    }
    let follows = |header: &SegmentHeader| {
        header.predecessor.is_some_and(|before| headers.contains_key(&before.id))
    };
    let starts = headers.values().filter(|header| !follows(header));
    let counted = starts.map(|header| {
        let from = ReplayFrom {
            oldest_segment: header.id,
            named: Vec::new(),
            mark: None,
            named_by: dir.join(CURRENT),
        };
        let (mut commits, mode) = (0, RecoveryMode::Tolerant);
        // What ends it early ends the repair's own reading of the log as well, which says so.
        let _ = replay(vfs, dir, header.db_uid, &from, mode, &mut |_| {
            commits += 1;
            Ok(())
        });
        (*header, commits)
    });
    Ok(counted.collect())
}

/// Returns the smallest sequence number that a record of a segment can have. `None` if its header is damaged.
pub(crate) fn first_seq(vfs: &dyn Vfs, dir: &Path, segment: u64) -> Result<Option<SeqNo>> {
    let header = segment_header(vfs, &FileName::Segment(segment).in_dir(dir))?;
    Ok(header.map(|header| SeqNo(header.first_seq)))
}

/// Keyspaces that the log has operations for, as far as it can be read.
fn keyspaces_of_log(vfs: &dyn Vfs, dir: &Path, db_uid: u64, oldest_segment: u64) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let named_by = dir.join(CURRENT);
    let from = ReplayFrom { oldest_segment, named: Vec::new(), mark: None, named_by };
    let mut take = |record: ReplayedRecord<'_>| {
        found.extend(
            BatchOperations::new(record.payload).flatten().map(|operation| operation.keyspace),
        );
        Ok(())
    };
    // What ends it early ends the repair's own reading of the log as well, which says so.
    let _ = replay(vfs, dir, db_uid, &from, RecoveryMode::Tolerant, &mut take);
    found
}

/// The header of a segment of the log, if it is sound.
fn segment_header(vfs: &dyn Vfs, path: &Path) -> Result<Option<SegmentHeader>> {
    let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
    let mut first = [0; SEGMENT_HEADER_BYTES];
    let read = file.read_at(&mut first, 0).map_err(|error| Error::io("read", path, error))?;
    Ok(SegmentHeader::decode(&first[..read]).ok())
}

//! State from which a repair starts: the state of a manifest, or a state derived from the other files.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lsmx_base::file_name::{CURRENT, FileName};
use lsmx_base::key::SeqNo;

use crate::db::check::repair::damaged_table::DamagedTable;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::batch::BatchOperationIter;
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::version_edit::KEYSPACE_NAME_BYTES_MAX;
use crate::manifest::{KeyspaceState, Manifest, ManifestState};
use crate::options::db::DEFAULT_KEYSPACE;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::stored::StoredOptions;
use crate::vfs::Vfs;
use crate::wal::{RecoveryMode, ReplayStart, ReplayedRecord, replay};

/// First bytes of every magic number and of the contents of `CURRENT`. The case varies.
const MAGIC_PREFIX: &[u8] = b"lsmx";
/// Bytes of a magic number. A table has its magic number at the end.
const MAGIC_BYTES: usize = 8;

/// State from which a repair starts.
#[derive(Debug)]
pub(crate) struct StartingState {
    pub(crate) state: ManifestState,
    /// Path of the manifest from which the state was read, or of `CURRENT` if no manifest is readable.
    pub(crate) path: PathBuf,
    /// Damage of `CURRENT` or the manifest.
    pub(crate) damage: Option<Error>,
    /// Damage that makes the state incomplete, so that it is unknown which tables belong to a tree.
    pub(crate) doubt: Option<Error>,
    /// Numbers of the files that manifest edits removed.
    pub(crate) removed: BTreeSet<u64>,
}

impl StartingState {
    /// Reads the newest usable manifest. Without one, derives the state from tables and log.
    pub(crate) fn find(vfs: &dyn Vfs, dir: &Path, env: &Env) -> Result<StartingState> {
        let no_ids = BTreeSet::new();
        let damage = match Manifest::load(vfs, dir) {
            Ok(loaded) => {
                let (mut state, path) = (loaded.state, loaded.path);
                let doubt = find_lost_edit(vfs, dir, &state, &path)?;
                let mut removed = BTreeSet::new();
                if doubt.is_some() {
                    // The edits of the readable manifest state which files and keyspaces must not be restored.
                    let found = Manifest::salvage(vfs, dir, loaded.number)?;
                    let found = found.map(|found| (found.removed, found.dropped));
                    let dropped;
                    (removed, dropped) = found.unwrap_or_default();
                    add_unlisted_keyspaces(vfs, dir, &list_files(vfs, dir)?, &dropped, &mut state)?;
                }
                let damage = doubt.clone();
                return Ok(StartingState { state, path, damage, doubt, removed });
            }
            Err(newer @ Error::UnsupportedVersion { .. }) => return Err(newer),
            Err(error) => error,
        };
        let files = list_files(vfs, dir)?;
        let manifests: BTreeSet<u64> = files
            .iter()
            .filter_map(|file| match file {
                FileName::Manifest(number) => Some(*number),
                _ => None,
            })
            .collect();
        // Finds the newest manifest with a complete first edit. The first edit of a manifest is durable before
        // `CURRENT` names the manifest.
        for number in manifests.into_iter().rev() {
            if let Some(found) = Manifest::salvage(vfs, dir, number)?
                && !found.state.keyspaces.is_empty()
            {
                let (mut state, path, removed) = (found.state, found.path, found.removed);
                if found.lost.is_some() {
                    add_unlisted_keyspaces(vfs, dir, &files, &found.dropped, &mut state)?;
                }
                let (damage, doubt) = (Some(damage), found.lost);
                return Ok(StartingState { state, path, damage, doubt, removed });
            }
        }
        if !files.iter().any(|file| matches!(file, FileName::Table(_) | FileName::Segment(_))) {
            return Err(damage);
        }
        let log_start = find_log_start(vfs, dir, &files)?;
        let (wal_oldest, db_uid) = log_start.unwrap_or_else(|| (0, env.random_u64()));
        let mut state = ManifestState { db_uid, wal_oldest, ..ManifestState::default() };
        add_unlisted_keyspaces(vfs, dir, &files, &no_ids, &mut state)?;
        let (path, doubt, damage) = (dir.join(CURRENT), Some(damage.clone()), Some(damage));
        Ok(StartingState { state, path, damage, doubt, removed: BTreeSet::new() })
    }
}

/// Returns an error if a missing file shows that the last edits of a readable manifest are lost.
///
/// The end of a manifest cannot be verified unless the database was closed. But a file is deleted only after a manifest
/// edit has removed it. So two observations show that an edit is lost: the first segment of the log is missing, or a
/// table is missing while another table is not in the manifest.
fn find_lost_edit(
    vfs: &dyn Vfs,
    dir: &Path,
    state: &ManifestState,
    manifest: &Path,
) -> Result<Option<Error>> {
    if state.clean_close {
        return Ok(None);
    }
    let files = list_files(vfs, dir)?;
    let missing =
        |file: FileName| Error::Missing { path: file.in_dir(dir), named_by: manifest.to_owned() };
    let oldest = FileName::Segment(state.wal_oldest);
    if state.wal_oldest > 0 && !files.contains(&oldest) {
        return Ok(Some(missing(oldest)));
    }
    let mut tables = state.keyspaces.values().flat_map(|keyspace| keyspace.tree.files());
    let lacks = tables.find(|table| !files.contains(&FileName::Table(table.id.0)));
    let Some(lacks) = lacks else { return Ok(None) };
    let listed = state.file_numbers();
    let is_unlisted_table = |file: &FileName| {
        matches!(file, FileName::Table(id) if !listed.contains(id))
            && DamagedTable::open(vfs, &file.in_dir(dir), None).is_ok()
    };
    Ok(files.iter().any(is_unlisted_table).then(|| missing(FileName::Table(lacks.id.0))))
}

/// Returns the database files of a directory.
pub(crate) fn list_files(vfs: &dyn Vfs, dir: &Path) -> Result<Vec<FileName>> {
    let names = vfs.list(dir).map_err(|error| Error::io("list", dir, error))?;
    Ok(names.iter().filter_map(|name| FileName::parse(name)).collect())
}

/// Returns whether a file has an lsmx magic number at its start or end.
pub(crate) fn has_lsmx_magic(vfs: &dyn Vfs, dir: &Path, files: &[FileName]) -> Result<bool> {
    for file in files {
        let path = file.in_dir(dir);
        let file = vfs.open(&path).map_err(|error| Error::io("open", &path, error))?;
        let bytes = file.len().map_err(|error| Error::io("read the size of", &path, error))?;
        for offset in [0, bytes.saturating_sub(MAGIC_BYTES as u64)] {
            let mut found = [0; MAGIC_BYTES];
            // An unreadable file counts as a file without a magic number.
            if file.read_at(&mut found, offset).is_ok()
                && found[..MAGIC_PREFIX.len()].eq_ignore_ascii_case(MAGIC_PREFIX)
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Adds the default keyspace and all keyspaces found in tables or in the log. Keyspaces in `dropped` are skipped.
fn add_unlisted_keyspaces(
    vfs: &dyn Vfs,
    dir: &Path,
    files: &[FileName],
    dropped: &BTreeSet<u32>,
    state: &mut ManifestState,
) -> Result<()> {
    let mut names = BTreeMap::from([(0, DEFAULT_KEYSPACE.to_owned())]);
    // A rename changes the name in later tables, so the newest table counts.
    let tables: BTreeSet<_> =
        files.iter().filter(|file| matches!(file, FileName::Table(_))).collect();
    for table in tables {
        if let Ok(table) = DamagedTable::open(vfs, &table.in_dir(dir), None)
            && let Some((id, name)) = table.properties().and_then(|found| found.keyspace.clone())
        {
            names.insert(id, name);
        }
    }
    if let Some((oldest, _)) = find_log_start(vfs, dir, files)? {
        let from = replay_start(dir, oldest.max(state.wal_oldest));
        visit_readable_records(vfs, dir, state.db_uid, &from, &mut |record| {
            for operation in BatchOperationIter::new(record.payload).flatten() {
                let id = operation.keyspace;
                names.entry(id).or_insert_with(|| format!("keyspace-{id}"));
            }
        });
    }
    // The log may contain operations of a dropped keyspace whose creation is lost. Its id counts as used.
    let used_ids = names.keys().chain(dropped).filter(|id| **id != u32::MAX);
    let id_next = used_ids.max().map_or(0, |id| id + 1);
    state.keyspace_id_next = state.keyspace_id_next.max(id_next);
    let options = StoredOptions::new(&KeyspaceOptions::default()).encode();
    for (id, name) in names {
        // The id of a dropped keyspace is never reused, but its name may be.
        if dropped.contains(&id) || id == u32::MAX || state.keyspaces.contains_key(&id) {
            continue;
        }
        let name = choose_free_name(state, id, name);
        let keyspace = KeyspaceState { name, options: options.clone(), ..KeyspaceState::default() };
        state.keyspaces.insert(id, keyspace);
    }
    Ok(())
}

/// Returns a name for the keyspace `id` that no keyspace in `state` has: `name` if it is free, and otherwise a name that
/// contains the id.
fn choose_free_name(state: &ManifestState, id: u32, name: String) -> String {
    let with_id = format!("{name}-{id}");
    let preferred = [name, with_id, format!("keyspace-{id}")].into_iter();
    let mut names = preferred.chain((1u64..).map(|number| format!("keyspace-{id}-{number}")));
    let is_free = |name: &String| {
        name.len() <= KEYSPACE_NAME_BYTES_MAX && state.keyspace_named(name).is_none()
    };
    // The state has fewer keyspaces than there are numbers, so a name is free.
    names.find(is_free).unwrap_or_default()
}

/// Returns the id of the first segment of the log and the uid of the database.
///
/// A directory may contain several sequences of segments: the log, logs that are kept for operand stores, and the new
/// segments of an open that was interrupted. The log is the sequence that contains commits and has the largest first
/// sequence number. A log that is kept for an operand store starts with sequence number 1.
pub(crate) fn find_log_start(
    vfs: &dyn Vfs,
    dir: &Path,
    files: &[FileName],
) -> Result<Option<(u64, u64)>> {
    let chains = find_log_chains(vfs, dir, files)?.into_iter().map(|(header, commits)| {
        (commits > 0, header.first_seq, Reverse(header.id), header.db_uid)
    });
    Ok(chains.max().map(|(.., Reverse(id), db_uid)| (id, db_uid)))
}

/// Returns the first valid segment header of each chain of segments, and the number of commits in the chain.
pub(crate) fn find_log_chains(
    vfs: &dyn Vfs,
    dir: &Path,
    files: &[FileName],
) -> Result<Vec<(SegmentHeader, u64)>> {
    let mut headers = BTreeMap::new();
    for file in files {
        if let FileName::Segment(id) = file
            && let Some(header) = read_segment_header(vfs, &file.in_dir(dir))?
            && header.id == *id
        {
            headers.insert(*id, header);
        }
    }
    let is_first = |header: &&SegmentHeader| {
        !header.predecessor.is_some_and(|before| headers.contains_key(&before.id))
    };
    let chains = headers.values().filter(is_first).map(|header| {
        let (from, mut commits) = (replay_start(dir, header.id), 0);
        visit_readable_records(vfs, dir, header.db_uid, &from, &mut |_| commits += 1);
        (*header, commits)
    });
    Ok(chains.collect())
}

/// Returns the lower bound of the sequence numbers in a segment, or `None` if its header is damaged.
pub(crate) fn first_seq(vfs: &dyn Vfs, dir: &Path, segment: u64) -> Result<Option<SeqNo>> {
    let header = read_segment_header(vfs, &FileName::Segment(segment).in_dir(dir))?;
    Ok(header.map(|header| SeqNo(header.first_seq)))
}

fn replay_start(dir: &Path, oldest_segment: u64) -> ReplayStart {
    ReplayStart { oldest_segment, named: Vec::new(), mark: None, named_by: dir.join(CURRENT) }
}

/// Visits the records of a log up to the first error. The repair reads the log again later and reports the error.
fn visit_readable_records(
    vfs: &dyn Vfs,
    dir: &Path,
    db_uid: u64,
    from: &ReplayStart,
    visit: &mut dyn FnMut(ReplayedRecord<'_>),
) {
    let _ = replay(vfs, dir, db_uid, from, RecoveryMode::Tolerant, &mut |record| {
        visit(record);
        Ok(())
    });
}

/// Reads the header of a segment. Returns `None` if the header is damaged.
fn read_segment_header(vfs: &dyn Vfs, path: &Path) -> Result<Option<SegmentHeader>> {
    let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
    let mut first = [0; SEGMENT_HEADER_BYTES];
    let read = file.read_at(&mut first, 0).map_err(|error| Error::io("read", path, error))?;
    Ok(SegmentHeader::decode(&first[..read]).ok())
}

//! Preparation of an external table: link or copy, sync, verification.

use std::path::Path;

use lsmx_base::checksum::StreamingChecksum;
use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_compaction::{FileId, KeyRange, TableMeta};

use crate::db::copy_file::{copy_file, is_link_unsupported};
use crate::db::ingest::prepared::{NewFiles, PreparedTable};
use crate::db::inner::DbInner;
use crate::env::YieldKind;
use crate::error::{Error, Result};
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::table::{Table, TableIdentity, verify_table_blocks};
use crate::tree::Tree;
use crate::vfs::File;

/// Maximum size of one read for the checksum of a file, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Links or copies an external table into the database directory, and verifies the linked or copied file. The flag of
/// `source` forces a copy.
pub(super) fn prepare_table(
    inner: &DbInner,
    tree: &Tree,
    source: (&Path, bool),
    new_files: &mut NewFiles,
) -> Result<PreparedTable> {
    let prepared = try_prepare(inner, tree, source, new_files);
    // The copy in the database directory is removed, so errors name the source.
    let path = || source.0.to_owned();
    prepared.map_err(|error| match error {
        Error::Corrupt { offset, source, .. } => Error::Corrupt { path: path(), offset, source },
        Error::UnsupportedVersion { found, supported, .. } => {
            Error::UnsupportedVersion { path: path(), found, supported }
        }
        other => other,
    })
}

fn try_prepare(
    inner: &DbInner,
    tree: &Tree,
    (source, copies): (&Path, bool),
    new_files: &mut NewFiles,
) -> Result<PreparedTable> {
    let state = &inner.state;
    let vfs = state.vfs.as_ref();
    let id = FileId(state.files.allocate());
    let path = state.tables.path(id);
    let check = || {
        state.env.yield_point(YieldKind::JobStep);
        inner.check_can_write_files()
    };
    check()?;
    new_files.add(path.clone());
    let linked = if copies { None } else { Some(vfs.hard_link(source, &path)) };
    let is_written = match linked {
        Some(Ok(())) => false,
        Some(Err(error)) if !is_link_unsupported(&error) => {
            return Err(Error::io("link", source, error));
        }
        None | Some(Err(_)) => {
            let file = vfs.open(source).map_err(|error| Error::io("open", source, error))?;
            let bytes = file.len();
            let bytes = bytes.map_err(|error| Error::io("read the size of", source, error))?;
            copy_file((vfs, source), (vfs, &path), bytes, &check)?;
            true
        }
    };
    let file = vfs.open(&path).map_err(|error| Error::io("open", &path, error))?;
    // Another program may have written a linked file without a sync.
    file.sync().map_err(|error| Error::io("sync", source, error))?;
    let identity = read_identity(&*file, &path, id, &check)?;
    let tables = &state.tables;
    let table = Table::open_cached(&tables.descriptors, &path, &identity, &tables.cache)?;
    check_table(&table, tree, source)?;
    verify_table_blocks(&table)?;
    // The blocks do not prove the checksum of the file. A wrong one would make the table corrupt for `verify`.
    let found = read_identity(&*file, &path, id, &check)?.checksum;
    if found != identity.checksum {
        let wrong = Malformed::Checksum { expected: identity.checksum, found };
        return Err(Error::malformed(wrong, &path, 0));
    }
    let properties = table.properties();
    let range = KeyRange::new(properties.smallest.clone(), properties.largest.clone());
    let meta = TableMeta {
        bytes: identity.bytes,
        entries: properties.entries,
        tombstones: properties.tombstones,
        value_bytes: properties.value_bytes,
        uid: identity.uid,
        checksum: identity.checksum,
        ..TableMeta::new(id, range)
    };
    Ok(PreparedTable { table, meta, is_written })
}

/// Reads a whole file. Returns its size, its checksum and the uid in its footer.
fn read_identity(
    file: &dyn File,
    path: &Path,
    id: FileId,
    check: &dyn Fn() -> Result<()>,
) -> Result<TableIdentity> {
    let read_error = |error| Error::io("read", path, error);
    let bytes = file.len().map_err(|error| Error::io("read the size of", path, error))?;
    let (what, needed) = ("table footer", len_u64(FOOTER_BYTES));
    let truncated =
        || Error::malformed(Malformed::Truncated { what, needed, found: bytes }, path, 0);
    let footer_at = bytes.checked_sub(needed).ok_or_else(truncated)?;
    let mut footer = [0; FOOTER_BYTES];
    let read = file.read_at(&mut footer, footer_at).map_err(read_error)?;
    let footer =
        Footer::decode(&footer[..read]).map_err(|what| Error::malformed(what, path, footer_at))?;
    let (mut checksum, mut offset) = (StreamingChecksum::new(0), 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    while offset < bytes {
        let read = file.read_at(&mut chunk, offset).map_err(read_error)?;
        if read == 0 {
            return Err(truncated());
        }
        checksum.update(&chunk[..read]);
        offset += len_u64(read);
        check()?;
    }
    let checksum = checksum.digest();
    Ok(TableIdentity { id, bytes, uid: footer.uid, checksum, seq_largest: SeqNo::ZERO })
}

/// Checks that a table can become a part of a keyspace.
fn check_table(table: &Table, tree: &Tree, source: &Path) -> Result<()> {
    let properties = table.properties();
    let why = if !properties.is_external {
        "it is not an external table"
    } else if properties.keyspace.as_ref().is_some_and(|(id, _)| *id != tree.id) {
        "it belongs to another keyspace"
    } else {
        return Ok(());
    };
    let (keyspace, file) = (tree.name(), Some(source.to_owned()));
    Err(Error::IngestRefused { keyspace, file, why })
}

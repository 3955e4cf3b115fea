//! File numbers of an open database.
//!
//! A file number must never be used twice. After a power loss, the directory may lack entries that were not synced, so
//! the used numbers are unknown. Therefore an open skips [`FILE_NUMBER_GAP`] numbers after an unclean shutdown. An open
//! also reserves the numbers that it uses: it creates a file with a larger number and syncs the directory.

use std::path::{Path, PathBuf};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::{FILE_NUMBER_MAX, FileName};
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Mutex;

use crate::error::{Error, Result};
use crate::jobs::version_installer::sync_directory;
use crate::manifest::ManifestState;
use crate::state::table_factory::TableFactory;
use crate::vfs::Vfs;

/// Number of file numbers that an open skips after an unclean shutdown.
pub(crate) const FILE_NUMBER_GAP: u64 = 1_000;
/// Number of file numbers that an open reserves at a time. One flush must allocate fewer than half of them. The delivery
/// of a flush to an `lsmx-delta` store creates up to 32,768 files by default.
const RESERVED_NUMBERS: u64 = 1 << 17;

/// Returns the largest file number in a directory, or 0 without database files. Files with implausibly large numbers
/// are ignored; see [`FileName::has_unallocated_number`].
pub(crate) fn largest_number(vfs: &dyn Vfs, dir: &Path, next: Option<u64>) -> Result<u64> {
    let names = vfs.list(dir).map_err(|error| Error::io("list", dir, error))?;
    let files = names.iter().filter_map(|name| FileName::parse(name));
    let numbers =
        files.filter(|file| !file.has_unallocated_number(next)).filter_map(FileName::number);
    Ok(numbers.max().unwrap_or(0))
}

/// Returns the first file number that an open may use.
pub(crate) fn first_free_number(vfs: &dyn Vfs, dir: &Path, state: &ManifestState) -> Result<u64> {
    let next = state.file_number_next;
    if failpoint::is_on(Failpoint::FileNumberReused) {
        return Ok(next.max(1));
    }
    let gap = if state.clean_close { 0 } else { FILE_NUMBER_GAP };
    let number = next.max(largest_number(vfs, dir, Some(next))? + 1) + gap;
    if number > FILE_NUMBER_MAX {
        let what = Malformed::invalid_field("number of the next file", number, "at most 2^56 - 1");
        return Err(Error::malformed(what, dir, 0));
    }
    Ok(number)
}

/// Returns the creation counter of the next table.
pub(crate) fn next_creation_number(state: &ManifestState) -> u64 {
    let files = state.keyspaces.values().flat_map(|keyspace| keyspace.tree.files());
    files.map(|file| file.creation.saturating_add(1)).max().unwrap_or(0)
}

/// Reservation of file numbers by an empty file with a high number, whose directory entry is synced.
///
/// The next open uses only numbers above the highest one in the directory, so it reuses no number below the file's own.
#[derive(Debug, Default)]
pub(crate) struct FileNumberReservation {
    /// Path of the file, and its number.
    file: Mutex<Option<(PathBuf, u64)>>,
}

impl FileNumberReservation {
    /// Reserves the next file numbers, unless enough are reserved. Must be called before the numbers are allocated.
    pub(crate) fn extend(&self, tables: &TableFactory) -> Result<()> {
        let next = tables.files.next();
        let reserved = self.file.lock().as_ref().map(|&(_, number)| number);
        if reserved.is_some_and(|number| next + RESERVED_NUMBERS / 2 < number)
            || failpoint::is_on(Failpoint::FileNumbersNotReserved)
        {
            return Ok(());
        }
        let number = (next + RESERVED_NUMBERS).min(FILE_NUMBER_MAX);
        let path = FileName::Temporary(number).in_dir(&tables.dir);
        tables.vfs.create(&path).map_err(|source| Error::io("create", &path, source))?;
        let before = self.file.lock().replace((path, number));
        sync_directory(tables.vfs.as_ref(), &tables.dir)?;
        if let Some((path, _)) = before {
            try_remove(tables.vfs.as_ref(), &path);
        }
        Ok(())
    }

    /// Removes the reservation. Called when a manifest lists the used numbers, or when the open failed.
    pub(crate) fn remove(&self, vfs: &dyn Vfs) {
        let reservation = self.file.lock().take();
        if let Some((path, _)) = reservation {
            try_remove(vfs, &path);
        }
    }
}

/// Removes a file. After an error, the next open removes the file, because no manifest lists it.
fn try_remove(vfs: &dyn Vfs, path: &Path) {
    let _ = vfs.remove(path);
}

//! Checks at open that the process may open enough files.

use std::path::Path;

use lsmx_base::coding::len_u64;

use crate::env::Background;
use crate::error::{Error, Result};
use crate::format::file_name::LOCK;
use crate::options::db::{OPEN_FILES_MIN, OPEN_FILES_PER_STORE, OPEN_FILES_PER_WORKER};
use crate::vfs::{Vfs, out_of_descriptors};

/// Descriptors that an open database without work has: manifest and log.
const HELD_AT_REST: usize = 2;
const _: () = assert!(HELD_AT_REST < OPEN_FILES_MIN, "a difference of the two is positive");

/// Fails unless the process can open as many more files as a database with such threads and so many operand stores
/// needs. Opens the lock file in `dir` as often. File systems that name no limit have enough.
///
/// # Errors
/// [`Error::TooFewDescriptors`].
pub(crate) fn check_available(
    vfs: &dyn Vfs,
    dir: &Path,
    background: Background,
    stores: usize,
) -> Result<()> {
    check(vfs, dir, needed(background, stores))
}

/// As [`check_available`], for an open database that is given one more operand store. So it is not refused when it
/// is opened again.
///
/// # Errors
/// [`Error::TooFewDescriptors`].
pub(crate) fn check_available_for_store(
    vfs: &dyn Vfs,
    dir: &Path,
    background: Background,
    stores: usize,
) -> Result<()> {
    check(vfs, dir, needed(background, stores.saturating_add(1)) - HELD_AT_REST)
}

fn needed(background: Background, stores: usize) -> usize {
    let workers = match background {
        Background::Threads { workers } | Background::Stepped { workers, .. } => workers,
        Background::Inline => 0,
    };
    let of_workers = OPEN_FILES_PER_WORKER.saturating_mul(workers);
    let of_stores = OPEN_FILES_PER_STORE.saturating_mul(stores);
    OPEN_FILES_MIN.saturating_add(of_workers).saturating_add(of_stores)
}

fn check(vfs: &dyn Vfs, dir: &Path, needed: usize) -> Result<()> {
    if vfs.open_files_limit().is_none() {
        return Ok(());
    }
    let path = dir.join(LOCK);
    let mut open = Vec::new();
    while open.len() < needed {
        match vfs.open(&path) {
            Ok(file) => open.push(file),
            Err(error) if out_of_descriptors(&error) => {
                let (available, needed) = (len_u64(open.len()), len_u64(needed));
                return Err(Error::TooFewDescriptors { available, needed });
            }
            // Any other error, such as that of a missing lock file, does not tell how many there are.
            Err(_) => break,
        }
    }
    Ok(())
}

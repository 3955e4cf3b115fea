//! Checks the limit of open files of the process.

use std::path::Path;

use lsmx_base::coding::len_u64;
use lsmx_base::file_name::LOCK;

use crate::env::Background;
use crate::error::{Error, Result};
use crate::options::db::{OPEN_FILES_MIN, OPEN_FILES_PER_STORE, OPEN_FILES_PER_WORKER};
use crate::vfs::{Vfs, is_out_of_descriptors};

/// Number of file descriptors of an idle open database: the manifest and the WAL segment.
pub(crate) const IDLE_DESCRIPTORS: usize = 2;
const _: () = assert!(IDLE_DESCRIPTORS < OPEN_FILES_MIN, "their difference must be positive");

/// Returns the maximum number of files that a database has open with these background threads and operand stores.
pub(crate) fn needed_descriptors(background: Background, stores: usize) -> usize {
    let workers = match background {
        Background::Threads { workers } | Background::Stepped { workers, .. } => workers,
        Background::Inline => 0,
    };
    let for_workers = OPEN_FILES_PER_WORKER.saturating_mul(workers);
    let for_stores = OPEN_FILES_PER_STORE.saturating_mul(stores);
    OPEN_FILES_MIN.saturating_add(for_workers).saturating_add(for_stores)
}

/// Checks that the process can open `needed` more files, by opening the lock file in `dir` that many times. File
/// systems without a limit of open files always pass.
///
/// # Errors
/// [`Error::TooFewDescriptors`] if fewer files can be opened.
pub(crate) fn check_descriptors_available(vfs: &dyn Vfs, dir: &Path, needed: usize) -> Result<()> {
    if vfs.open_files_limit().is_none() {
        return Ok(());
    }
    let path = dir.join(LOCK);
    let mut open = Vec::new();
    while open.len() < needed {
        match vfs.open(&path) {
            Ok(file) => open.push(file),
            Err(error) if is_out_of_descriptors(&error) => {
                let (available, needed) = (len_u64(open.len()), len_u64(needed));
                return Err(Error::TooFewDescriptors { available, needed });
            }
            // Other errors, such as a missing lock file, are unrelated to the limit.
            Err(_) => break,
        }
    }
    Ok(())
}

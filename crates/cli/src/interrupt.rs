//! Temporary directories that go when the run ends, also when it is interrupted.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use lsmx_bench::temporary::Temporary;

use crate::failure::Failure;
use crate::output;

/// Exit code of a program that SIGINT ended, by convention of shells.
const INTERRUPTED: i32 = 130;
/// A directory in which somebody still makes files may not go at the first try.
const TRIES: usize = 100;

/// Whether the user has interrupted the run. Set before anything is removed, so that whoever fails for
/// want of a file sees it.
static INTERRUPTED_BY_USER: AtomicBool = AtomicBool::new(false);

/// Waits for the end of the process if the user has interrupted the run: what fails meanwhile fails because its
/// files are being removed, and is no failure to report.
pub(crate) fn yield_to_the_end() {
    while INTERRUPTED_BY_USER.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// A new directory in `parent`, removed with the handle or when the user interrupts the run; then
/// `parting` is said, if there is something to say. Called at most once by a command.
pub(crate) fn temporary_directory(
    prefix: &str,
    parent: &Path,
    parting: Option<String>,
) -> Result<Temporary, Failure> {
    let directory = lsmx_bench::temporary::directory(prefix, parent)?;
    let path = directory.path().to_owned();
    ctrlc::set_handler(move || {
        INTERRUPTED_BY_USER.store(true, Ordering::SeqCst);
        for _ in 0..TRIES {
            match std::fs::remove_dir_all(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {}
                _ => break,
            }
        }
        if let Some(parting) = &parting {
            output::stderr(parting);
        }
        std::process::exit(INTERRUPTED);
    })
    .map_err(|error| Failure::Run(Box::new(error)))?;
    Ok(directory)
}

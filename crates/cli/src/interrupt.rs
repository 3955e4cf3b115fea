//! Temporary directories that are removed at the end of the run, also after an interrupt.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use lsmx_bench::temporary::Temporary;

use crate::failure::Failure;
use crate::output;

/// Exit code after SIGINT, by the convention of shells.
const INTERRUPTED: i32 = 130;
/// Number of attempts to remove the directory. Threads that still create files can make one fail.
const TRIES: usize = 100;

/// Whether the user has interrupted the run. Set before files are removed, so that a thread that misses a file can check
/// it.
static INTERRUPTED_BY_USER: AtomicBool = AtomicBool::new(false);

/// Blocks until the process ends if the user has interrupted the run. Errors after an interrupt are not reported, because
/// the files of the run are being removed.
pub(crate) fn wait_if_interrupted() {
    while INTERRUPTED_BY_USER.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Creates a directory in `parent`. It is removed when the handle is dropped, or on an interrupt, which also prints
/// `parting`. A command calls this at most once.
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

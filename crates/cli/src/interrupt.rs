//! Temporary directories that are removed at the end of the run, also after an interrupt.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use lsmx_bench::temporary::Temporary;

use crate::failure::Failure;
use crate::output;

/// Exit code after SIGINT, by the convention of shells.
const EXIT_CODE: i32 = 130;
/// Number of attempts to remove the directory. An attempt fails if another thread creates a file meanwhile.
const TRIES: usize = 100;

/// Set before the handler removes files. Threads that fail because of missing files check it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Blocks until the process ends if the user has interrupted the run, so that no error about removed files is printed.
pub(crate) fn wait_if_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Replaces `directory` by a new temporary directory in it. A command calls this at most once.
///
/// The temporary directory is removed when the handle is dropped, or on an interrupt. An interrupt also prints that
/// finished cells are in `resume`.
pub(crate) fn make_temporary(
    prefix: &str,
    directory: &mut PathBuf,
    resume: Option<&Path>,
) -> Result<Temporary, Failure> {
    let temporary = lsmx_bench::temporary::directory(prefix, directory)?;
    *directory = temporary.path().to_owned();
    let (path, resume) = (directory.clone(), resume.map(Path::to_owned));
    ctrlc::set_handler(move || {
        INTERRUPTED.store(true, Ordering::SeqCst);
        for _ in 0..TRIES {
            match std::fs::remove_dir_all(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {}
                _ => break,
            }
        }
        if let Some(resume) = &resume {
            let cells = resume.display();
            output::stderr(&format!(
                "interrupted; finished cells are in {cells}, the same command continues with the others"
            ));
        }
        std::process::exit(EXIT_CODE);
    })
    .map_err(|error| Failure::Run(Box::new(error)))?;
    Ok(temporary)
}

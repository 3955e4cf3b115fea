//! Runs actions when SIGINT interrupts a command, and creates temporary directories. A temporary directory is removed
//! when the command ends or is interrupted.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lsmx_bench::temporary::TemporaryDirectory;

use crate::failure::Failure;
use crate::output;

/// Exit code after SIGINT: 128 plus the signal number, as in shells.
const EXIT_CODE: i32 = 130;
/// Maximum number of attempts to remove a temporary directory. An attempt fails if another thread creates a file in the
/// directory at the same time.
const TRIES: usize = 100;

/// The SIGINT handler sets this flag before it removes files. A thread that fails because of a removed file checks the
/// flag.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

type Action = Box<dyn Fn() + Send>;

/// Actions of the SIGINT handler. The handler is installed with the first action.
static ACTIONS: Mutex<Vec<Action>> = Mutex::new(Vec::new());

/// After SIGINT, blocks until the process exits, so that the caller prints no error about removed files.
pub(crate) fn wait_if_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Creates a temporary directory in `directory` and sets `directory` to its path.
///
/// The temporary directory is removed when the returned handle is dropped or when SIGINT arrives. If `resume` is set,
/// the SIGINT handler also prints that the directory `resume` contains the finished results.
pub(crate) fn make_temporary(
    prefix: &str,
    directory: &mut PathBuf,
    resume: Option<&Path>,
) -> Result<TemporaryDirectory, Failure> {
    let temporary = lsmx_bench::temporary::create_temporary_directory(prefix, directory)?;
    *directory = temporary.path().to_owned();
    let (path, resume) = (directory.clone(), resume.map(Path::to_owned));
    on_interrupt(move || {
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
    })?;
    Ok(temporary)
}

/// Adds an action that the SIGINT handler executes before the process exits. Actions are executed in the order of the
/// calls.
pub(crate) fn on_interrupt(action: impl Fn() + Send + 'static) -> Result<(), Failure> {
    let mut actions = lock_actions();
    actions.push(Box::new(action));
    if actions.len() > 1 {
        return Ok(());
    }
    ctrlc::set_handler(|| {
        INTERRUPTED.store(true, Ordering::SeqCst);
        lock_actions().iter().for_each(|action| action());
        std::process::exit(EXIT_CODE);
    })
    .map_err(|error| Failure::Run(Box::new(error)))
}

fn lock_actions() -> MutexGuard<'static, Vec<Action>> {
    ACTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

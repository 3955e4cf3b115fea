//! Temporary directories for the databases of an experiment.
//!
//! A killed process does not remove its directories. Each process therefore locks its directories, and the operating
//! system releases the locks when the process ends. The next run removes unlocked directories with the same prefix. If
//! the system cannot lock directories, no run removes them.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::error::{Error, Result};

/// Number of random letters and digits in the name of a temporary directory.
const RANDOM_BYTES: usize = 12;
/// Suffix of all temporary directories. Directories without this suffix are never removed.
const SUFFIX: &str = ".lsmx-temporary";
/// Name of the file that protects a temporary directory from removal.
const KEPT: &str = "KEPT";

/// A temporary directory. Dropping the handle removes the directory.
#[derive(Debug)]
pub struct TemporaryDirectory {
    // This field is dropped before `_lock`, so the directory is still locked during its removal.
    directory: TempDir,
    _lock: Option<File>,
}

impl TemporaryDirectory {
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Keeps the directory for inspection. Later runs do not remove the directory. After an error, the directory exists, but a
    /// later run may remove it.
    pub fn keep(self) -> io::Result<()> {
        let path = self.directory.keep();
        #[expect(clippy::disallowed_methods, reason = "not a file of a database")]
        File::create(path.join(KEPT)).map(drop)
    }
}

/// Creates a temporary directory in `parent`. First removes directories with the same prefix whose processes have
/// ended.
pub fn create_temporary_directory(prefix: &str, parent: &Path) -> Result<TemporaryDirectory> {
    remove_abandoned_directories(prefix, parent);
    loop {
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix).suffix(SUFFIX).rand_bytes(RANDOM_BYTES);
        let directory = builder.tempdir_in(parent).map_err(|error| {
            // Errors of `tempfile` contain a random path. If `parent` is missing, reading `parent` gives a clearer
            // error.
            let source = fs::read_dir(parent).err().unwrap_or(error);
            Error::io("make a directory in", parent)(source)
        })?;
        let lock = try_lock_directory(directory.path());
        // Another process may have removed or locked the directory before this process locked it.
        if directory.path().is_dir() && !matches!(lock, LockAttempt::Held) {
            let lock = if let LockAttempt::Taken(file) = lock { Some(file) } else { None };
            return Ok(TemporaryDirectory { directory, _lock: lock });
        }
    }
}

/// Removes the directories of ended processes. Ignores directories that cannot be removed.
fn remove_abandoned_directories(prefix: &str, parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(SUFFIX));
        let is_random = |random: &str| {
            random.len() == RANDOM_BYTES && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        // `is_dir` is false for symbolic links.
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let path = entry.path();
        if random.is_some_and(is_random)
            && is_directory
            && let LockAttempt::Taken(_lock) = try_lock_directory(&path)
            && !path.join(KEPT).exists()
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Result of an attempt to lock a directory.
enum LockAttempt {
    Taken(File),
    /// Another process holds the lock.
    Held,
    /// The system cannot lock directories, or the directory does not exist.
    Impossible,
}

fn try_lock_directory(directory: &Path) -> LockAttempt {
    #[expect(clippy::disallowed_methods, reason = "not a directory of a database")]
    let Ok(file) = File::open(directory) else { return LockAttempt::Impossible };
    match file.try_lock() {
        Ok(()) => LockAttempt::Taken(file),
        Err(TryLockError::WouldBlock) => LockAttempt::Held,
        Err(TryLockError::Error(_)) => LockAttempt::Impossible,
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "files of the test")]
mod tests {
    use super::*;

    #[test]
    fn directory_in_missing_parent_error_names_only_the_parent() {
        let parent = tempfile::tempdir().unwrap();
        let missing = parent.path().join("missing");
        let error = create_temporary_directory("lsmx-", &missing).unwrap_err();
        let cause = io::Error::from_raw_os_error(2);
        let text = format!("cannot make a directory in {}: {cause}", missing.display());
        assert_eq!(error.to_string(), text);
    }

    #[cfg(unix)]
    #[test]
    fn directory_removes_only_unlocked_directories_of_its_prefix() {
        let parent = tempfile::tempdir().unwrap();
        let living = create_temporary_directory("lsmx-a-", parent.path()).unwrap();
        fs::write(living.path().join("data"), "x").unwrap();
        let left_over = parent.path().join(format!("lsmx-a-0123456789ab{SUFFIX}"));
        let others = [
            format!("lsmx-b-0123456789ab{SUFFIX}"),
            format!("lsmx-a-results{SUFFIX}"),
            "lsmx-a-0123456789ab".to_owned(),
            "lsmx-a-".to_owned(),
        ];
        let others = others.map(|name| parent.path().join(name));
        for path in others.iter().chain([&left_over]) {
            fs::create_dir(path).unwrap();
            fs::write(path.join("data"), "x").unwrap();
        }
        let link = parent.path().join(format!("lsmx-a-abcdefghijkl{SUFFIX}"));
        std::os::unix::fs::symlink(&others[0], &link).unwrap();
        let kept = create_temporary_directory("lsmx-a-", parent.path()).unwrap();
        let kept_path = kept.path().to_owned();
        kept.keep().unwrap();
        let second = create_temporary_directory("lsmx-a-", parent.path()).unwrap();
        assert!(kept_path.exists() && !left_over.exists());
        for path in others.iter().map(|path| path.as_path()).chain([living.path()]) {
            assert!(path.join("data").exists(), "{}", path.display());
        }
        assert!(link.exists() && second.path().exists());
        let paths = [living.path().to_owned(), second.path().to_owned()];
        drop((living, second));
        assert!(paths.iter().all(|path| !path.exists()));
    }
}

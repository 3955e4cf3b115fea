//! Temporary directories for the databases of an experiment.
//!
//! A killed process leaves its directory behind. Each owner therefore holds a lock on its directory, which ends with
//! the process. The next run removes each directory of the same kind that no process has locked. Where the system has no locks on directories, left-overs stay.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::error::{Error, Result};

/// Random letters and digits in a name.
const RANDOM_BYTES: usize = 12;
/// End of every name, so that no directory of a user is taken for a left-over.
const SUFFIX: &str = ".lsmx-temporary";
/// A file in a directory that was left on purpose.
const KEPT: &str = "KEPT";

/// A temporary directory. Dropping the handle removes it.
#[derive(Debug)]
pub struct Temporary {
    // Removed while the lock is still held.
    directory: TempDir,
    _lock: Option<File>,
}

impl Temporary {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Leaves the directory where it is, for a person to look at. No later run removes it.
    ///
    /// # Errors
    /// The file that marks it cannot be created.
    pub fn keep(self) -> io::Result<()> {
        #[expect(clippy::disallowed_methods, reason = "a file of which no database knows")]
        File::create(self.directory.path().join(KEPT))?;
        let _ = self.directory.keep();
        Ok(())
    }
}

/// Creates a directory in `parent`, after removing directories with this prefix that dead processes left there.
///
/// # Errors
/// [`Error::Io`] that names `parent` if the directory cannot be created.
pub fn directory(prefix: &str, parent: &Path) -> Result<Temporary> {
    remove_left_overs(prefix, parent);
    loop {
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix).suffix(SUFFIX).rand_bytes(RANDOM_BYTES);
        // The error of `tempfile` names a random path; that of a missing parent is clearer.
        let directory = builder.tempdir_in(parent).map_err(|error| Error::Io {
            action: "make a directory in",
            path: parent.to_owned(),
            source: fs::read_dir(parent).err().unwrap_or(error),
        })?;
        let lock = lock(directory.path());
        // Another process may have taken it for a left-over before it was locked.
        if directory.path().is_dir() && !matches!(lock, Lock::Held) {
            return Ok(Temporary { directory, _lock: lock.taken() });
        }
    }
}

/// Removes directories that dead processes left. A directory that cannot be removed stays for the next run.
fn remove_left_overs(prefix: &str, parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(SUFFIX));
        let ours = |random: &str| {
            random.len() == RANDOM_BYTES && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        // Not a symbolic link.
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if random.is_some_and(ours) && is_directory {
            let path = entry.path();
            // Held until the directory is removed.
            if let Lock::Taken(_lock) = lock(&path)
                && !path.join(KEPT).exists()
            {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

/// Result of an attempt to lock a directory.
enum Lock {
    Taken(File),
    /// A live process has it.
    Held,
    /// The system cannot lock directories, or the directory does not exist.
    Impossible,
}

impl Lock {
    fn taken(self) -> Option<File> {
        match self {
            Lock::Taken(file) => Some(file),
            Lock::Held | Lock::Impossible => None,
        }
    }
}

fn lock(directory: &Path) -> Lock {
    #[expect(clippy::disallowed_methods, reason = "a directory, of which no database knows")]
    let Ok(file) = File::open(directory) else { return Lock::Impossible };
    match file.try_lock() {
        Ok(()) => Lock::Taken(file),
        Err(TryLockError::WouldBlock) => Lock::Held,
        Err(TryLockError::Error(_)) => Lock::Impossible,
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test works on files of its own")]
mod tests {
    use super::*;

    #[test]
    fn directory_in_missing_parent_error_names_only_the_parent() {
        let parent = tempfile::tempdir().unwrap();
        let missing = parent.path().join("missing");
        let error = directory("lsmx-", &missing).unwrap_err();
        let cause = io::Error::from_raw_os_error(2);
        let text = format!("cannot make a directory in {}: {cause}", missing.display());
        assert_eq!(error.to_string(), text);
    }

    #[cfg(unix)]
    #[test]
    fn left_overs_of_dead_owners_are_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let living = directory("lsmx-a-", parent.path()).unwrap();
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
        let kept = directory("lsmx-a-", parent.path()).unwrap();
        let kept_path = kept.path().to_owned();
        kept.keep().unwrap();
        let second = directory("lsmx-a-", parent.path()).unwrap();
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

//! Temporary directories for the databases of an experiment.

use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::error::{Error, Result};

/// Creates a directory in `parent`. Dropping the handle removes it.
///
/// # Errors
/// [`Error::Io`] that names `parent` if the directory cannot be created.
pub fn directory(prefix: &str, parent: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix(prefix).tempdir_in(parent);
    made.map_err(|error| Error::Io {
        action: "make a directory in",
        path: parent.to_owned(),
        source: without_path(error),
    })
}

/// Removes the random path that `tempfile` adds to an error. That path never existed, so it would mislead.
fn without_path(error: io::Error) -> io::Error {
    let cause = error.get_ref().and_then(|inner| inner.source());
    let code = cause.and_then(|cause| cause.downcast_ref()).and_then(io::Error::raw_os_error);
    code.map_or(error, io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn directory_in_missing_parent_error_names_only_the_parent() {
        let parent = tempfile::tempdir().unwrap();
        let missing = parent.path().join("missing");
        let error = directory("lsmx-", &missing).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot make a directory in {}", missing.display()));
        let source = error.source().unwrap();
        assert_eq!(source.to_string(), io::Error::from_raw_os_error(2).to_string());
    }
}

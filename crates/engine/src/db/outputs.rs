//! Paths that a caller names for new files and directories.

use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};

use crate::error::{Error, Result};
use crate::format::file_name::{CURRENT, FileName, LOCK};
use crate::vfs::Vfs;

/// Refuses an output that would have, or lie below, the name of an engine file in a database directory: the
/// next open of that database would remove it as an orphan, or a new file of the engine would meet it.
///
/// Each component is checked where the file system finds it, so the spelling of the path does not matter:
/// relative, absolute, with `.` or `..`, or through symbolic links.
///
/// # Errors
/// [`Error::OutputInDatabase`]; [`Error::Io`] if a directory cannot be looked at.
pub(crate) fn check_output(vfs: &dyn Vfs, path: &Path) -> Result<()> {
    if failpoint::is_on(Failpoint::OutputOverwritesEngineFile) {
        return Ok(());
    }
    for inner in path.ancestors() {
        let name = inner.file_name().and_then(|name| name.to_str());
        let (Some(_), Some(dir)) = (name.and_then(FileName::parse), inner.parent()) else {
            continue;
        };
        for mark in [CURRENT, LOCK] {
            let mark = dir.join(mark);
            match vfs.exists(&mark) {
                Ok(true) => return Err(Error::OutputInDatabase { path: path.to_owned() }),
                Ok(false) => {}
                Err(error) => match error.kind() {
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {}
                    _ => return Err(Error::io("look for", &mark, error)),
                },
            }
        }
    }
    Ok(())
}

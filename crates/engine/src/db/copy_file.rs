//! Copies of whole files, for checkpoints and ingests.

use std::io;
use std::path::Path;

use lsmx_base::coding::len_u64;
use lsmx_base::malformed::Malformed;

use crate::error::{Error, Result};
use crate::vfs::Vfs;

/// Maximum size of one read, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Copies the first `bytes` of a file and syncs the copy. Calls `check` after each chunk.
///
/// # Errors
/// Those of `check`; [`Error::Io`]; [`Error::Corrupt`] if the file is shorter than `bytes`.
pub(super) fn copy_file(
    (source_vfs, from): (&dyn Vfs, &Path),
    (target_vfs, to): (&dyn Vfs, &Path),
    bytes: u64,
    check: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let source = source_vfs.open(from).map_err(|error| Error::io("open", from, error))?;
    let target = target_vfs.create(to).map_err(|error| Error::io("create", to, error))?;
    let mut buffer = Vec::new();
    let mut offset = 0;
    while offset < bytes {
        let remaining = usize::try_from(bytes - offset).unwrap_or(usize::MAX);
        buffer.resize(remaining.min(CHUNK_BYTES), 0);
        let read = source.read_at(&mut buffer, offset);
        let read = read.map_err(|error| Error::io("read", from, error))?;
        if read < buffer.len() {
            let found = offset + len_u64(read);
            let truncated = Malformed::Truncated { what: "file", needed: bytes, found };
            return Err(Error::malformed(truncated, from, found));
        }
        target.append(&buffer).map_err(|error| Error::io("append to", to, error))?;
        offset += len_u64(buffer.len());
        check()?;
    }
    target.sync().map_err(|error| Error::io("sync", to, error))
}

/// Returns true if a hard link failed because the file system cannot link the two paths.
pub(super) fn is_link_unsupported(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::CrossesDevices
            | io::ErrorKind::Unsupported
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::TooManyLinks
    )
}

//! Read functions and errors for bucket files and logs.

use std::io;
use std::path::Path;

use lsmx::vfs::File;
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::file_header::FileHeaderFormat;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::format::header::{HEADER_BYTES, decode_header};

/// Maximum size of a read that allocates its buffer without a check of the file length, in bytes.
const UNCHECKED_READ_BYTES_MAX: usize = 1 << 20;

pub fn io_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { action, path: path.to_owned(), source: Arc::new(source) }
}

/// Reads exactly `len` bytes. Fails with [`Malformed::Truncated`] if the file ends before.
pub fn read_exactly(file: &dyn File, path: &Path, offset: u64, len: usize) -> Result<Vec<u8>> {
    let needed = len_u64(len);
    let truncated = |found| {
        let malformed = Malformed::Truncated { what: "file", needed, found };
        Err(Error::malformed(malformed, path, offset))
    };
    if len > UNCHECKED_READ_BYTES_MAX {
        let file_len = file.len().map_err(|e| io_error("read the size of", path, e))?;
        let found = file_len.saturating_sub(offset);
        if found < needed {
            return truncated(found);
        }
    }
    let mut buffer = vec![0; len];
    let read = file.read_at(&mut buffer, offset).map_err(|e| io_error("read", path, e))?;
    if read < len {
        return truncated(len_u64(read));
    }
    Ok(buffer)
}

/// Checks that a file begins with a valid header that contains the given uid.
pub fn check_header(
    file: &dyn File,
    path: &Path,
    format: FileHeaderFormat,
    uid: u64,
    what: &'static str,
) -> Result<()> {
    let bytes = read_exactly(file, path, 0, HEADER_BYTES)?;
    let located = |malformed: Malformed| Error::malformed(malformed, path, 0);
    let found = decode_header(&bytes, format).map_err(located)?;
    if found != uid {
        return Err(located(Malformed::Identity { what, expected: uid, found }));
    }
    Ok(())
}

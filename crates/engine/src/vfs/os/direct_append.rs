//! Appends that bypass the page cache.
//!
//! The operating system requires that the offset, the length and the memory address of a direct write are multiples of
//! the logical block size of the device. Appended bytes are copied to an aligned buffer in parts of [`PART_BYTES`].
//! Small parts keep the queue of the device short, which reduces the latency of concurrent reads.

use std::fs;
use std::io;

use crate::vfs::DIRECT_APPEND_BYTES;

/// Maximum bytes of one system call.
const PART_BYTES: usize = 256 << 10;

/// Writes appended bytes from aligned memory.
#[derive(Debug)]
pub(super) struct DirectAppender {
    /// Buffer of one part plus the alignment. Allocated by the first append of at least one block.
    buffer: Vec<u8>,
}

impl DirectAppender {
    /// Switches a file to direct writes. Returns `None` if the file system does not support direct writes.
    pub(super) fn enable(file: &fs::File) -> Option<DirectAppender> {
        set_direct(file, true).ok()?;
        Some(DirectAppender { buffer: Vec::new() })
    }

    /// Switches a file back to the page cache.
    pub(super) fn disable(file: &fs::File) -> io::Result<()> {
        set_direct(file, false)
    }

    /// Appends as many whole blocks of `bytes` as possible. Returns the remaining bytes, which must be appended through
    /// the page cache.
    ///
    /// `append_once` writes a slice of aligned memory to the end of the file and returns the number of bytes written.
    ///
    /// # Errors
    /// Those of `append_once`, except `InvalidInput`. This error means that the file system accepts no direct write, so
    /// the bytes are returned.
    pub(super) fn append<'a>(
        &mut self,
        mut bytes: &'a [u8],
        append_once: impl Fn(&[u8]) -> io::Result<usize>,
    ) -> io::Result<&'a [u8]> {
        if bytes.len() >= DIRECT_APPEND_BYTES {
            self.buffer.resize(PART_BYTES + DIRECT_APPEND_BYTES, 0);
        }
        let start = self.buffer.as_ptr().align_offset(DIRECT_APPEND_BYTES);
        while bytes.len() >= DIRECT_APPEND_BYTES {
            let part = bytes.len().min(PART_BYTES);
            let part = part - part % DIRECT_APPEND_BYTES;
            // `align_offset` fails only in constant evaluation.
            let Some(aligned) = self.buffer.get_mut(start..start.saturating_add(part)) else {
                break;
            };
            aligned.copy_from_slice(&bytes[..part]);
            match append_once(aligned) {
                Ok(written) => {
                    bytes = &bytes[written..];
                    if written % DIRECT_APPEND_BYTES != 0 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn set_direct(file: &fs::File, direct: bool) -> io::Result<()> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    Ok(fcntl_setfl(file, flags)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn set_direct(_: &fs::File, direct: bool) -> io::Result<()> {
    if direct { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
}

//! Direct reads, which bypass the page cache, at any offset and with any length.
//!
//! The operating system requires that the offset, the length and the memory address of a direct read are multiples of
//! the logical block size of the device. If the caller's read is not aligned, whole blocks are read into an aligned
//! thread-local buffer, and the requested bytes are copied. Nearly all devices have blocks of 512 bytes. If the system
//! rejects this size, the file uses 4096 bytes from then on.

use std::cell::RefCell;
use std::fs;
use std::io;

use lsmx_base::sync::{AtomicU64, Ordering};

use crate::vfs::File;
use crate::vfs::os::syscalls::{read_once, sync_file};

/// Block sizes in bytes. Reads use the small size until the system rejects it.
const BLOCK_BYTES: u64 = 512;
const BLOCK_BYTES_MAX: u64 = 4096;
/// Maximum bytes of one system call. Longer reads are split.
const CHUNK_READ_BYTES: usize = 1 << 20;
/// Maximum bytes of the buffer that a thread keeps. Longer reads allocate a temporary buffer.
const BUFFER_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A file opened for direct reads.
#[derive(Debug)]
pub(crate) struct DirectFile {
    file: fs::File,
    /// Block size for unaligned reads. Never decreases. Accesses are relaxed, because no other data depends on the
    /// value.
    block_bytes: AtomicU64,
}

impl DirectFile {
    /// Wraps a file that was opened with direct reads.
    pub(crate) fn new(file: fs::File) -> DirectFile {
        DirectFile { file, block_bytes: AtomicU64::new(BLOCK_BYTES) }
    }

    /// Fills `buffer`. Returns fewer bytes only at the end of the file.
    fn read_chunk(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // A read into aligned memory needs no copy.
        let is_aligned = |at: u64| at.is_multiple_of(BLOCK_BYTES_MAX);
        if is_aligned(offset)
            && is_aligned(buffer.len() as u64)
            && is_aligned(buffer.as_ptr().addr() as u64)
        {
            let block = usize::try_from(BLOCK_BYTES_MAX).map_err(io::Error::other)?;
            return read_blocks(&self.file, buffer, offset, block);
        }
        let block = self.block_bytes.load(Ordering::Relaxed);
        match read_aligned(&self.file, buffer, offset, block) {
            Err(error)
                if error.kind() == io::ErrorKind::InvalidInput && block < BLOCK_BYTES_MAX =>
            {
                let read = read_aligned(&self.file, buffer, offset, BLOCK_BYTES_MAX)?;
                self.block_bytes.store(BLOCK_BYTES_MAX, Ordering::Relaxed);
                Ok(read)
            }
            done => done,
        }
    }
}

impl File for DirectFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // No file has bytes at offsets that exceed `i64`, see `read_full`.
        if i64::try_from(offset.saturating_add(buffer.len() as u64 + BLOCK_BYTES_MAX)).is_err() {
            return Ok(0);
        }
        let mut filled = 0;
        for chunk in buffer.chunks_mut(CHUNK_READ_BYTES) {
            let read = self.read_chunk(chunk, offset + filled as u64)?;
            filled += read;
            if read < chunk.len() {
                break;
            }
        }
        Ok(filled)
    }

    fn append(&self, _: &[u8]) -> io::Result<()> {
        Err(crate::vfs::read_only_file_error())
    }

    fn sync(&self) -> io::Result<()> {
        sync_file(&self.file)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

/// Reads the blocks that contain the requested bytes and copies the requested bytes to `buffer`. Returns fewer bytes
/// only at the end of the file.
fn read_aligned(file: &fs::File, buffer: &mut [u8], offset: u64, block: u64) -> io::Result<usize> {
    let from = offset - offset % block;
    let to = (offset + buffer.len() as u64).next_multiple_of(block);
    let to_usize = |bytes: u64| usize::try_from(bytes).map_err(io::Error::other);
    let (bytes, skipped) = (to_usize(to - from)?, to_usize(offset - from)?);
    with_aligned_buffer(bytes, to_usize(block)?, |aligned| {
        let read = read_blocks(file, aligned, from, to_usize(block)?)?;
        let wanted = read.saturating_sub(skipped).min(buffer.len());
        buffer[..wanted].copy_from_slice(&aligned[skipped..skipped + wanted]);
        Ok(wanted)
    })
}

/// Fills an aligned buffer from an aligned offset, up to the end of the file.
fn read_blocks(file: &fs::File, aligned: &mut [u8], from: u64, block: usize) -> io::Result<usize> {
    let mut filled = 0;
    while filled < aligned.len() {
        match read_once(file, &mut aligned[filled..], from + filled as u64) {
            Ok(0) => break,
            Ok(read) => {
                filled += read;
                // A partial block is the last block of the file. Reading on from the middle of a block would fail.
                if read % block != 0 {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Calls `read` with a buffer of `bytes` bytes and this alignment. The buffer may contain bytes of earlier reads.
fn with_aligned_buffer<R>(
    bytes: usize,
    alignment: usize,
    read: impl FnOnce(&mut [u8]) -> io::Result<R>,
) -> io::Result<R> {
    let needed = bytes + alignment;
    let mut memory = match needed {
        // During a nested call, and at the end of a thread, the thread-local buffer is unavailable. A new buffer is
        // then allocated.
        ..=BUFFER_BYTES_MAX => BUFFER.try_with(RefCell::take).unwrap_or_default(),
        _ => Vec::new(),
    };
    if memory.len() < needed {
        memory.resize(needed, 0);
    }
    let start = memory.as_ptr().align_offset(alignment);
    let result = match memory.get_mut(start..start.saturating_add(bytes)) {
        Some(aligned) => read(aligned),
        // `align_offset` fails only in constant evaluation.
        None => Err(io::Error::other("memory cannot be aligned")),
    };
    if memory.len() <= BUFFER_BYTES_MAX {
        let _ = BUFFER.try_with(|kept| kept.replace(memory));
    }
    result
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::vfs::{OsVfs, Vfs};

    /// Opens a file for direct reads. On file systems without direct reads, opens it without the direct flag, which
    /// exercises the same code.
    fn open(path: &Path) -> DirectFile {
        match super::super::open_direct(path) {
            Ok(file) => file,
            Err(_) => DirectFile::new(fs::OpenOptions::new().read(true).open(path).unwrap()),
        }
    }

    #[test]
    fn direct_read_of_any_offset_and_length_equals_cached_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        for bytes in [0_usize, 1, 511, 512, 513, 4096, 4097, 70_001, (2 << 20) + 777] {
            let content: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251).to_le_bytes()[0]).collect();
            let file = OsVfs.create(&path).unwrap();
            file.append(&content).unwrap();
            file.sync().unwrap();
            let (direct, cached) = (open(&path), OsVfs.open(&path).unwrap());
            assert_eq!(direct.len().unwrap(), bytes as u64);
            let offsets =
                [0, 1, 510, 512, 4000, 4096, bytes.saturating_sub(1), bytes, bytes + 5000];
            for at in offsets {
                for length in [0, 1, 2, 511, 512, 600, 4096, 9000, (1 << 20) + 1, 3 << 20] {
                    let (mut a, mut b) = (vec![0; length], vec![0; length]);
                    let read = direct.read_at(&mut a, at as u64).unwrap();
                    assert_eq!(read, cached.read_at(&mut b, at as u64).unwrap(), "{at} {length}");
                    assert!(a == b, "{bytes} bytes, {length} at {at}");
                }
            }
            assert_eq!(direct.read_at(&mut [0; 10], u64::MAX - 3).unwrap(), 0);
            assert!(direct.append(b"x").is_err());
            OsVfs.remove(&path).unwrap();
        }
    }

    #[test]
    fn aligned_buffer_is_aligned_and_kept_unless_large() {
        for alignment in [512, 4096] {
            for bytes in [512, 4096, 40_960, 1 << 20] {
                with_aligned_buffer(bytes, alignment, |memory| {
                    assert_eq!((memory.len(), memory.as_ptr().addr() % alignment), (bytes, 0));
                    Ok(())
                })
                .unwrap();
            }
        }
        assert_eq!(BUFFER.with_borrow(Vec::len), 40_960 + 4096);
    }
}

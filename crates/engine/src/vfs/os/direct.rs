//! Reads past the system's page cache, of any place and length.
//!
//! The system takes such reads only at places, of lengths and into memory that are multiples of the
//! device's logical block, so the bytes around what is wanted are read too, into memory of the
//! thread's, and what is wanted is copied out of there. That block has 512 bytes nearly everywhere;
//! where the system refuses these, 4096 are tried, and remembered.

use std::cell::RefCell;
use std::fs;
use std::io;

use lsmx_base::sync::{AtomicU64, Ordering};

use crate::vfs::File;
use crate::vfs::os::{positioned, sync_file};

/// Logical blocks of devices, in the order in which they are tried.
const BLOCK_BYTES: u64 = 512;
const BLOCK_BYTES_MAX: u64 = 4096;
/// Longer reads are done in parts.
const PART_BYTES: usize = 1 << 20;
/// Most memory that a thread keeps; longer reads get their own.
const KEPT_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static ALIGNED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A file that was opened for reads past the page cache.
#[derive(Debug)]
pub(crate) struct DirectFile {
    file: fs::File,
    /// What the system was found to take. Only grows; pairs with nothing.
    block_bytes: AtomicU64,
}

impl DirectFile {
    /// Takes over a file that the system opened for direct reads.
    pub(crate) fn new(file: fs::File) -> DirectFile {
        DirectFile { file, block_bytes: AtomicU64::new(BLOCK_BYTES) }
    }

    /// Reads one part into `buffer`; less than its length only at the end of the file.
    fn read_part(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
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
        // As for other files, see `read_full`.
        if i64::try_from(offset.saturating_add(buffer.len() as u64 + BLOCK_BYTES_MAX)).is_err() {
            return Ok(0);
        }
        let mut filled = 0;
        for part in buffer.chunks_mut(PART_BYTES) {
            let read = self.read_part(part, offset + filled as u64)?;
            filled += read;
            if read < part.len() {
                break;
            }
        }
        Ok(filled)
    }

    fn append(&self, _: &[u8]) -> io::Result<()> {
        Err(crate::vfs::opened_for_reading())
    }

    fn sync(&self) -> io::Result<()> {
        sync_file(&self.file)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

/// Reads the blocks that hold the bytes wanted, and copies these; less only at the end of the file.
fn read_aligned(file: &fs::File, buffer: &mut [u8], offset: u64, block: u64) -> io::Result<usize> {
    let from = offset - offset % block;
    let to = (offset + buffer.len() as u64).next_multiple_of(block);
    let in_memory = |bytes: u64| usize::try_from(bytes).map_err(io::Error::other);
    let (bytes, skipped) = (in_memory(to - from)?, in_memory(offset - from)?);
    with_aligned(bytes, in_memory(block)?, |aligned| {
        let read = read_blocks(file, aligned, from, in_memory(block)?)?;
        let wanted = read.saturating_sub(skipped).min(buffer.len());
        buffer[..wanted].copy_from_slice(&aligned[skipped..skipped + wanted]);
        Ok(wanted)
    })
}

/// Fills aligned memory from an aligned place, as far as the file goes.
fn read_blocks(file: &fs::File, aligned: &mut [u8], from: u64, block: usize) -> io::Result<usize> {
    let mut filled = 0;
    while filled < aligned.len() {
        match positioned::read_at(file, &mut aligned[filled..], from + filled as u64) {
            Ok(0) => break,
            Ok(read) => {
                filled += read;
                // Only the last block of a file is short, and going on from the middle of one would
                // be refused.
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

/// Lends `use_it` memory of this length that begins at a multiple of `alignment`, with anything in it.
fn with_aligned<R>(
    bytes: usize,
    alignment: usize,
    use_it: impl FnOnce(&mut [u8]) -> io::Result<R>,
) -> io::Result<R> {
    let needed = bytes + alignment;
    let mut memory = match needed {
        // What is taken out is nobody else's; a thread that is ending has none.
        ..=KEPT_BYTES_MAX => ALIGNED.try_with(RefCell::take).unwrap_or_default(),
        _ => Vec::new(),
    };
    if memory.len() < needed {
        memory.resize(needed, 0);
    }
    let at = memory.as_ptr().align_offset(alignment);
    let result = match memory.get_mut(at..at.saturating_add(bytes)) {
        Some(aligned) => use_it(aligned),
        // The standard library may refuse to align; it does so in constants alone.
        None => Err(io::Error::other("memory cannot be aligned")),
    };
    if memory.len() <= KEPT_BYTES_MAX {
        let _ = ALIGNED.try_with(|kept| kept.replace(memory));
    }
    result
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::vfs::{OsVfs, Vfs};

    /// The file systems of test machines may lack direct reads; what is tested without is the same but
    /// for the flag.
    fn open(path: &Path) -> DirectFile {
        match crate::vfs::os::open_direct(path) {
            Ok(file) => file,
            Err(_) => DirectFile::new(fs::OpenOptions::new().read(true).open(path).unwrap()),
        }
    }

    #[test]
    fn any_place_and_length_is_read_as_through_the_page_cache() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        for bytes in [0_usize, 1, 511, 512, 513, 4096, 4097, 70_001, (2 << 20) + 777] {
            let content: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251).to_le_bytes()[0]).collect();
            let file = OsVfs.create(&path).unwrap();
            file.append(&content).unwrap();
            file.sync().unwrap();
            let (direct, cached) = (open(&path), OsVfs.open(&path).unwrap());
            assert_eq!(direct.len().unwrap(), bytes as u64);
            let places = [0, 1, 510, 512, 4000, 4096, bytes.saturating_sub(1), bytes, bytes + 5000];
            for at in places {
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
    fn memory_is_aligned_and_kept_unless_it_is_long() {
        for alignment in [512, 4096] {
            for bytes in [512, 4096, 40_960, 1 << 20] {
                with_aligned(bytes, alignment, |memory| {
                    assert_eq!((memory.len(), memory.as_ptr().addr() % alignment), (bytes, 0));
                    Ok(())
                })
                .unwrap();
            }
        }
        assert_eq!(ALIGNED.with_borrow(Vec::len), 40_960 + 4096);
    }
}

//! Files that were created for appending.

use std::fs;
use std::io;

use lsmx_base::sync::{AtomicU64, Mutex, Ordering};

use crate::vfs::File;
use crate::vfs::os::direct_append::DirectAppender;
use crate::vfs::os::syscalls::{drop_cached_pages, read_full, sync_file, will_need, write_once};

/// Minimum and maximum bytes of zeros preallocated after the end of a file. Between these limits, the number of zeros
/// equals the length of the file.
pub(super) const PREALLOCATE_BYTES_MIN: u64 = 16 << 10;
pub(super) const PREALLOCATE_BYTES_MAX: u64 = 1 << 20;
/// Zeros that are written after the end of a file whose syncs are small. The file system allocates no blocks for zeros that were
/// only preallocated. A sync of a new block also commits the journal of the file system, and takes twice as long.
static WRITTEN_ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Largest average number of bytes per sync for which zeros are written. Larger syncs allocate blocks more rarely per byte.
const SMALL_SYNC_BYTES: u64 = 2 << 10;

/// A file that this handle created. No other handle appends to it.
#[derive(Debug)]
pub(super) struct AppendFile {
    file: fs::File,
    /// Number of appended bytes. The release store after a write pairs with the acquire load in `len`.
    end: AtomicU64,
    /// This lock also serializes appends: an append holds the lock from the load of `end` to the store.
    state: Mutex<AppendState>,
    /// Number of syncs since the last decision whether to write zeros.
    syncs: AtomicU64,
}

/// State of an [`AppendFile`] that its lock guards.
#[derive(Debug, Default)]
struct AppendState {
    /// Length of the file including preallocated zeros, or `None` if preallocation is off.
    preallocated: Option<u64>,
    /// End of the file at which the next decision is made whether to write zeros.
    next_decision: u64,
    /// `None` if appends go through the page cache.
    direct: Option<DirectAppender>,
}

impl AppendFile {
    /// Wraps an empty file.
    pub(super) fn new(file: fs::File) -> AppendFile {
        AppendFile {
            file,
            end: AtomicU64::new(0),
            state: Mutex::default(),
            syncs: AtomicU64::new(0),
        }
    }

    /// Preallocates more zeros if `end` exceeds the preallocated length.
    fn preallocate(&self, preallocated: &mut Option<u64>, end: u64) {
        if let Some(len) = preallocated
            && end > *len
        {
            let ahead = end.clamp(PREALLOCATE_BYTES_MIN, PREALLOCATE_BYTES_MAX);
            // A failure is harmless: the next write extends the file.
            if self.file.set_len(end + ahead).is_ok() {
                *len = end + ahead;
            }
        }
    }

    /// Writes preallocated zeros at `end`, the end of the last append, if syncs are small.
    ///
    /// On a full disk, zeros that were written before the append could take its space.
    fn write_zeros(&self, state: &mut AppendState, end: u64) {
        let Some(len) = &mut state.preallocated else { return };
        if end > state.next_decision {
            let appended = end - state.next_decision.saturating_sub(WRITTEN_ZEROS.len() as u64);
            state.next_decision = end + WRITTEN_ZEROS.len() as u64;
            let syncs = self.syncs.swap(0, Ordering::Relaxed);
            if syncs > 0 && appended / syncs <= SMALL_SYNC_BYTES {
                // A failure is harmless.
                let written = write_once(&self.file, &WRITTEN_ZEROS, end);
                *len = (*len).max(end + written.unwrap_or(0) as u64);
            }
        }
    }

    /// Makes one system call that writes at the end of the file. Returns the number of bytes written.
    fn append_once(&self, bytes: &[u8]) -> io::Result<usize> {
        // The caller holds the lock of `state`, which excludes other appends, so a relaxed load is enough.
        let end = self.end.load(Ordering::Relaxed);
        loop {
            match write_once(&self.file, bytes, end) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.end.store(end + written as u64, Ordering::Release);
                    return Ok(written);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Switches the file from direct writes to the page cache. Later reads and writes may have any offset and length.
    fn end_direct_appends(&self, state: &mut AppendState) -> io::Result<()> {
        state.direct.take().map_or(Ok(()), |_| DirectAppender::disable(&self.file))
    }
}

impl Drop for AppendFile {
    fn drop(&mut self) {
        self.disable_preallocation();
    }
}

impl File for AppendFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // In direct mode, the read would need an aligned buffer.
        self.end_direct_appends(&mut self.state.lock())?;
        let available = usize::try_from(self.len()?.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(available);
        read_full(&self.file, &mut buffer[..wanted], offset)
    }

    fn append(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let end = self.end.load(Ordering::Relaxed) + bytes.len() as u64;
        self.preallocate(&mut state.preallocated, end);
        if let Some(direct) = &mut state.direct {
            bytes = direct.append(bytes, |aligned| self.append_once(aligned))?;
            if bytes.is_empty() {
                return Ok(());
            }
            self.end_direct_appends(state)?;
        }
        while !bytes.is_empty() {
            bytes = &bytes[self.append_once(bytes)?..];
        }
        self.write_zeros(state, end);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        sync_file(&self.file)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.end.load(Ordering::Acquire))
    }

    fn enable_preallocation(&self) {
        let mut state = self.state.lock();
        // The lock excludes appends, so a relaxed load is enough.
        state.preallocated.get_or_insert(self.end.load(Ordering::Relaxed));
    }

    fn disable_preallocation(&self) {
        let mut state = self.state.lock();
        let end = self.end.load(Ordering::Relaxed);
        if state.preallocated.take().is_some_and(|len| len > end) {
            // A failure is harmless: readers must accept zeros at the end of the file, because a crash leaves them too.
            let _ = self.file.set_len(end);
        }
    }

    fn will_need(&self, offset: u64, bytes: u64) -> bool {
        will_need(&self.file, offset, bytes)
    }

    fn drop_cached_pages(&self, offset: u64, bytes: u64) {
        if bytes == u64::MAX {
            let mut state = self.state.lock();
            if self.end.load(Ordering::Relaxed) == 0 && state.direct.is_none() {
                state.direct = DirectAppender::enable(&self.file);
            }
            return;
        }
        drop_cached_pages(&self.file, offset, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::vfs::{DIRECT_APPEND_BYTES, OsVfs, Vfs};

    #[test]
    fn zeros_are_written_ahead_of_small_syncs_only() -> io::Result<()> {
        const SMALL: usize = 1000;
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("f");
        for (length, is_written) in [(SMALL, true), (16 * SMALL, false)] {
            let file = OsVfs.create(&path)?;
            file.enable_preallocation();
            // The file decides after `WRITTEN_ZEROS.len()` bytes.
            let appends = WRITTEN_ZEROS.len() * 3 / 2 / length;
            for _ in 0..appends {
                file.append(&vec![7; length])?;
                file.sync()?;
            }
            let end = (appends * length) as u64;
            let allocated = 512 * fs::metadata(&path)?.blocks();
            assert_eq!(allocated > end + 16 * 1024, is_written, "{allocated} for {end}");
            assert_eq!(file.len()?, end);
            drop(file);
            let mut found = vec![0; appends * length + 1];
            assert_eq!(OsVfs.open(&path)?.read_at(&mut found, 0)?, appends * length);
            assert!(found[..appends * length].iter().all(|&byte| byte == 7));
            OsVfs.remove(&path)?;
        }
        Ok(())
    }

    #[test]
    fn direct_appends_of_any_length_are_read_back() -> io::Result<()> {
        const UNIT: usize = DIRECT_APPEND_BYTES;
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("f");
        let lengths: [&[usize]; 7] = [
            &[UNIT],
            &[UNIT, 3 * UNIT, 100],
            &[UNIT, 0, UNIT + 1, UNIT],
            &[100, UNIT, UNIT],
            &[1 << 20, UNIT, 5],
            &[(1 << 20) + UNIT, 7, 1 << 20],
            &[0],
        ];
        for lengths in lengths {
            // A read ends direct appends, so the second run reads after each append.
            for reads_between in [false, true] {
                let file = OsVfs.create(&path)?;
                file.drop_cached_pages(0, u64::MAX);
                let mut expected = Vec::new();
                for (number, &length) in (1u8..).zip(lengths) {
                    let bytes: Vec<u8> =
                        (0..length).map(|at| (at % 251).to_le_bytes()[0] ^ number).collect();
                    file.append(&bytes)?;
                    expected.extend_from_slice(&bytes);
                    assert_eq!(file.len()?, expected.len() as u64);
                    if reads_between {
                        let mut found = vec![0; length + 1];
                        assert_eq!(
                            file.read_at(&mut found, (expected.len() - length) as u64)?,
                            length
                        );
                        assert!(found[..length] == bytes);
                    }
                }
                file.sync()?;
                let mut found = vec![0; expected.len() + 1];
                assert_eq!(OsVfs.open(&path)?.read_at(&mut found, 0)?, expected.len());
                assert!(found[..expected.len()] == expected, "{lengths:?}");
                OsVfs.remove(&path)?;
            }
        }
        Ok(())
    }
}

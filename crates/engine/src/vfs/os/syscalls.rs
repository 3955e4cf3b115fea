//! Reads, writes, syncs and cache hints of open files, by operating system.

use std::fs;
use std::io;

#[cfg(unix)]
pub(crate) fn read_once(file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

#[cfg(unix)]
pub(crate) fn write_once(file: &fs::File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::write_at(file, bytes, offset)
}

/// Also moves the file cursor, which the engine does not use.
#[cfg(windows)]
pub(crate) fn read_once(file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}

/// Also moves the file cursor, which the engine does not use.
#[cfg(windows)]
pub(crate) fn write_once(file: &fs::File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_write(file, bytes, offset)
}

#[cfg(not(any(unix, windows)))]
compile_error!("vfs/os/syscalls.rs needs positioned reads and writes for this system");

/// Reads at `offset` until `buffer` is full or the file ends. Returns the number of bytes read.
pub(crate) fn read_full(file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    // No file has bytes at offsets that exceed `i64`. A corrupt file can contain such an offset. The system would
    // return `InvalidInput`, but the caller must see the end of the file.
    if i64::try_from(offset).is_err() {
        return Ok(0);
    }
    let mut filled = 0;
    while filled < buffer.len() {
        match read_once(file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

pub(crate) fn sync_file(file: &fs::File) -> io::Result<()> {
    // On Apple systems, `fdatasync` leaves bytes in the cache of the drive. `sync_all` also flushes this cache.
    if cfg!(target_vendor = "apple") { file.sync_all() } else { file.sync_data() }
}

/// Disables the system's read-ahead for a handle.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub(crate) fn expect_random_reads(file: &fs::File) {
    // A failure is harmless: read-ahead only stays enabled.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub(crate) fn expect_random_reads(_: &fs::File) {}

/// Starts to prefetch a range into the page cache. Returns whether the system accepted the hint.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub(crate) fn will_need(file: &fs::File, offset: u64, bytes: u64) -> bool {
    let advised = std::num::NonZeroU64::new(bytes)
        .map(|bytes| rustix::fs::fadvise(file, offset, Some(bytes), rustix::fs::Advice::WillNeed));
    advised.is_none_or(|advised| advised.is_ok())
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub(crate) fn will_need(_: &fs::File, _: u64, _: u64) -> bool {
    false
}

/// Drops a range from the page cache. Linux drops clean pages, and starts the writeback of dirty pages without
/// waiting.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub(crate) fn drop_cached_pages(file: &fs::File, offset: u64, bytes: u64) {
    if let Some(bytes) = std::num::NonZeroU64::new(bytes) {
        // A failure is harmless: the pages only stay in the page cache.
        let _ = rustix::fs::fadvise(file, offset, Some(bytes), rustix::fs::Advice::DontNeed);
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub(crate) fn drop_cached_pages(_: &fs::File, _: u64, _: u64) {}

//! Real files by plain system calls, so that outside tools can watch and disturb them.
//!
//! Short reads, short writes and interrupted calls are handled here and nowhere else.

use std::fs;
use std::io;
use std::path::Path;

use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering};

use crate::vfs::{File, LockGuard, Vfs};

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
mod direct;

/// Least and most bytes that a file grows ahead of its end; in between as much as it has.
const GROWN_AHEAD_MIN: u64 = 16 << 10;
const GROWN_AHEAD_MAX: u64 = 1 << 20;

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsVfs;

impl Vfs for OsVfs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(NewFile { file, end: AtomicU64::new(0), size: Mutex::new(None) }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        #[expect(clippy::disallowed_methods, reason = "this is where the engine opens files")]
        let file = fs::File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(Arc::new(OldFile {
            file,
            #[cfg(windows)]
            path: path.to_owned(),
        }))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        open_direct(path).map(|file| Arc::new(file) as Arc<dyn File>)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        #[expect(clippy::disallowed_methods, reason = "this is where the engine renames files")]
        fs::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        #[expect(clippy::disallowed_methods, reason = "this is where the engine removes files")]
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            // The engine writes plain ASCII names. A foreign one that is no Unicode is shown as
            // well as it can be: it must look like something that is there and is not ours.
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match fs::symlink_metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    #[cfg(unix)]
    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        if file.metadata()?.len() > bytes {
            return file.set_len(bytes);
        }
        loop {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
                Err(rustix::io::Errno::INTR) => {}
                // What file systems without this call answer; some have it answer for them.
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                done => return Ok(done?),
            }
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        // Windows has no call that syncs a directory: NTFS logs names in order by itself, and
        // flushing a directory handle is refused. The name is still looked for.
        if cfg!(windows) {
            return if fs::metadata(path)?.is_dir() {
                Ok(())
            } else {
                Err(io::ErrorKind::NotADirectory.into())
            };
        }
        #[expect(clippy::disallowed_methods, reason = "this is where the engine opens files")]
        let directory = fs::File::open(path)?;
        if !directory.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        directory.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        loop {
            let file = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            // The lock belongs to this opening of the file, not to the process: a second opening is
            // refused in this process too, and a killed owner leaves none.
            match file.try_lock() {
                // Another process may have removed the name between the two calls.
                Ok(()) if !has_name(&file, path)? => {}
                Ok(()) => return Ok(Box::new(OsLock(file))),
                Err(fs::TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    #[cfg(unix)]
    fn open_files_limit(&self) -> Option<u64> {
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        loop {
            #[expect(clippy::disallowed_methods, reason = "this is where the engine opens files")]
            let file = fs::File::open(path)?;
            match file.try_lock_shared() {
                Ok(()) if !has_name(&file, path)? => {}
                Ok(()) => return Ok(Box::new(OsLock(file))),
                Err(fs::TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

/// Whether a path stands for this open file.
#[cfg(unix)]
fn has_name(file: &fs::File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let open = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a path stands for this open file. Other systems have no portable file identity; the engine never
/// removes a lock file there.
#[cfg(not(unix))]
fn has_name(_: &fs::File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

/// A locked file.
#[derive(Debug)]
struct OsLock(fs::File);

impl LockGuard for OsLock {}

impl Drop for OsLock {
    fn drop(&mut self) {
        // Closing would free the lock too, but not while a child process that was forked and has
        // not yet replaced its image shares the descriptor. If unlocking fails, closing is left.
        let _ = self.0.unlock();
    }
}

/// A file that this handle created: grows at its end, which only this handle moves.
#[derive(Debug)]
struct NewFile {
    file: fs::File,
    /// Bytes in the file; stored after they are written, so a reader of `len` finds them.
    end: AtomicU64,
    /// Length that the file was given ahead of its end, if it grows so. Held from reading `end` to
    /// storing it.
    size: Mutex<Option<u64>>,
}

impl NewFile {
    /// Sees that so many bytes fit before the file's length.
    fn make_place(&self, size: &mut Option<u64>, end: u64) {
        if let Some(size) = size
            && end > *size
        {
            let ahead = end.clamp(GROWN_AHEAD_MIN, GROWN_AHEAD_MAX);
            // If it fails, the write makes the file longer, as ever.
            if self.file.set_len(end + ahead).is_ok() {
                *size = end + ahead;
            }
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        self.stop_growing();
    }
}

impl File for NewFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let there = usize::try_from(self.len()?.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(there);
        read_full(&self.file, &mut buffer[..wanted], offset)
    }

    fn append(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut size = self.size.lock();
        let mut end = self.end.load(Ordering::Relaxed);
        self.make_place(&mut size, end + bytes.len() as u64);
        while !bytes.is_empty() {
            match positioned::write_at(&self.file, bytes, end) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    end += written as u64;
                    self.end.store(end, Ordering::Release);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        sync_file(&self.file)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.end.load(Ordering::Acquire))
    }

    fn grow_ahead(&self) {
        let mut size = self.size.lock();
        // Read under the lock: nobody appends.
        size.get_or_insert(self.end.load(Ordering::Relaxed));
    }

    fn stop_growing(&self) {
        let mut size = self.size.lock();
        let end = self.end.load(Ordering::Relaxed);
        if size.take().is_some_and(|size| size > end) {
            // Zeros that stay do no harm.
            let _ = self.file.set_len(end);
        }
    }

    fn will_need(&self, offset: u64, bytes: u64) -> bool {
        will_need(&self.file, offset, bytes)
    }

    fn forget(&self, offset: u64, bytes: u64) {
        forget(&self.file, offset, bytes);
    }
}

/// A file that was there before: for reading.
#[derive(Debug)]
struct OldFile {
    file: fs::File,
    /// Windows syncs only what is open for writing, so it is opened once more for that.
    #[cfg(windows)]
    path: std::path::PathBuf,
}

impl File for OldFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        read_full(&self.file, buffer, offset)
    }

    fn append(&self, _: &[u8]) -> io::Result<()> {
        Err(crate::vfs::opened_for_reading())
    }

    #[cfg(not(windows))]
    fn sync(&self) -> io::Result<()> {
        sync_file(&self.file)
    }

    #[cfg(windows)]
    fn sync(&self) -> io::Result<()> {
        sync_file(&fs::OpenOptions::new().write(true).open(&self.path)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn will_need(&self, offset: u64, bytes: u64) -> bool {
        will_need(&self.file, offset, bytes)
    }

    fn forget(&self, offset: u64, bytes: u64) {
        forget(&self.file, offset, bytes);
    }
}

fn read_full(file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    // Past what the system can count no file has bytes; it would call the offset invalid, which
    // sounds like a fault of the caller's and not of the file that named the offset.
    if i64::try_from(offset).is_err() {
        return Ok(0);
    }
    let mut filled = 0;
    while filled < buffer.len() {
        match positioned::read_at(file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Opens a file for reads that go past the page cache.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn open_direct(path: &Path) -> io::Result<direct::DirectFile> {
    use rustix::fs::{Mode, OFlags};

    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok(direct::DirectFile::new(file))
}

/// Opens a file whose pages the system does not keep.
#[cfg(target_vendor = "apple")]
fn open_direct(path: &Path) -> io::Result<OldFile> {
    #[expect(clippy::disallowed_methods, reason = "this is where the engine opens files")]
    let file = fs::File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(OldFile { file })
}

#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_vendor = "apple"
)))]
fn open_direct(_: &Path) -> io::Result<OldFile> {
    Err(crate::vfs::no_direct_reads())
}

/// Has the system begin to read bytes into its cache.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn will_need(file: &fs::File, offset: u64, bytes: u64) -> bool {
    let advised = std::num::NonZeroU64::new(bytes)
        .map(|bytes| rustix::fs::fadvise(file, offset, Some(bytes), rustix::fs::Advice::WillNeed));
    advised.is_none_or(|advised| advised.is_ok())
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn will_need(_: &fs::File, _: u64, _: u64) -> bool {
    false
}

/// Linux lets clean pages go, and begins to write dirty ones without waiting for them.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn forget(file: &fs::File, offset: u64, bytes: u64) {
    if let Some(bytes) = std::num::NonZeroU64::new(bytes) {
        // A hint: where the file system knows no advice, there is nothing to do about it.
        let _ = rustix::fs::fadvise(file, offset, Some(bytes), rustix::fs::Advice::DontNeed);
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn forget(_: &fs::File, _: u64, _: u64) {}

fn sync_file(file: &fs::File) -> io::Result<()> {
    // Apple's `fdatasync` leaves the bytes in the drive's cache; `sync_all` empties that too.
    if cfg!(target_vendor = "apple") { file.sync_all() } else { file.sync_data() }
}

/// Reading and writing at an offset, once for each family of systems.
#[cfg(unix)]
mod positioned {
    use std::os::unix::fs::FileExt;
    use std::{fs, io};

    pub(crate) fn read_at(file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buffer, offset)
    }

    pub(crate) fn write_at(file: &fs::File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(bytes, offset)
    }
}

/// Reading and writing at an offset, once for each family of systems. These calls move the file's
/// cursor, which nothing else here looks at.
#[cfg(windows)]
mod positioned {
    use std::os::windows::fs::FileExt;
    use std::{fs, io};

    pub(crate) fn read_at(file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.seek_read(buffer, offset)
    }

    pub(crate) fn write_at(file: &fs::File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.seek_write(bytes, offset)
    }
}

#[cfg(not(any(unix, windows)))]
compile_error!("vfs/os.rs needs positioned reads and writes of this system");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::MemVfs;
    use proptest::prelude::*;

    /// Threads lock a file, and the owner of the lock removes the file. A thread that had opened the file before
    /// got the lock of a file without a name, beside the owner of the next file.
    #[cfg(unix)]
    #[test]
    fn lock_of_a_removed_file_is_not_returned() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let file_systems: [Arc<dyn Vfs>; 2] = [Arc::new(OsVfs), Arc::new(MemVfs::new())];
        for (vfs, path) in
            file_systems.into_iter().zip([&*dir.path().join("lock"), Path::new("lock")])
        {
            let owners = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let contend = |shared: bool| {
                    let (vfs, owners) = (&vfs, &owners);
                    scope.spawn(move || -> io::Result<()> {
                        for _ in 0..3_000 {
                            let locked =
                                if shared { vfs.lock_shared(path) } else { vfs.lock(path) };
                            let guard = match locked {
                                Err(error)
                                    if matches!(
                                        error.kind(),
                                        io::ErrorKind::WouldBlock | io::ErrorKind::NotFound
                                    ) =>
                                {
                                    continue;
                                }
                                locked => locked?,
                            };
                            assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0, "two owners");
                            owners.fetch_sub(1, Ordering::SeqCst);
                            // Without its name the file keeps no thread from locking the next one.
                            if !shared {
                                vfs.remove(path)?;
                            }
                            drop(guard);
                        }
                        Ok(())
                    })
                };
                let threads = [contend(false), contend(false), contend(true)];
                threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
            })?;
        }
        Ok(())
    }

    #[cfg(unix)]
    #[test]
    fn room_is_taken_and_given_back() -> io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("room");
        for bytes in [100_000, 300_000, 200_000] {
            match OsVfs.reserve(&path, bytes) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(()),
                taken => taken?,
            }
            let taken = fs::metadata(&path)?.blocks() * 512;
            assert!((bytes..bytes + 100_000).contains(&taken), "{bytes}: {taken}");
        }
        OsVfs.remove(&path)?;
        assert!(!OsVfs.exists(&path)?);
        assert!(OsVfs.reserve(&path, u64::MAX / 4).is_err());
        Ok(())
    }

    #[test]
    fn a_file_holds_what_was_appended() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("f");
        let file = OsVfs.create(&path)?;
        assert!(file.is_empty()?);
        file.append(b"abc")?;
        file.append(&[])?;
        file.append(b"def")?;
        file.sync()?;
        OsVfs.sync_dir(dir.path())?;
        assert_eq!(file.len()?, 6);
        let old = OsVfs.open(&path)?;
        for file in [&file, &old] {
            let mut buffer = [0; 4];
            assert_eq!(file.read_at(&mut buffer, 1)?, 4);
            assert_eq!(&buffer, b"bcde");
            assert_eq!(file.read_at(&mut buffer, 5)?, 1);
            assert_eq!(file.read_at(&mut buffer, 6)?, 0);
            assert_eq!(file.read_at(&mut buffer, u64::MAX)?, 0);
        }
        assert_eq!(old.len()?, 6);
        assert_eq!(old.append(b"x").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        // Recovery syncs files that it opened only for reading.
        old.sync()
    }

    #[test]
    fn a_file_that_grows_ahead_ends_where_it_was_written_to() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("f");
        let file = OsVfs.create(&path)?;
        file.append(b"header")?;
        file.grow_ahead();
        for _ in 0..3_000 {
            file.append(&[7; 100])?;
        }
        let length = OsVfs.open(&path)?.len()?;
        assert!(length > 300_006 + GROWN_AHEAD_MIN && length <= 2 * 300_006 + GROWN_AHEAD_MIN);
        assert_eq!(file.len()?, 300_006);
        let mut bytes = vec![1; 300];
        assert_eq!(file.read_at(&mut bytes, 299_906)?, 100);
        assert_eq!(file.read_at(&mut bytes, 300_006)?, 0);
        drop(file);
        assert_eq!(OsVfs.open(&path)?.len()?, 300_006);
        Ok(())
    }

    #[test]
    fn appends_of_several_threads_are_each_whole() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let file = OsVfs.create(&dir.path().join("f"))?;
        std::thread::scope(|scope| {
            for byte in 1..=4u8 {
                let file = &file;
                scope.spawn(move || (0..200).try_for_each(|_| file.append(&[byte; 7])));
            }
        });
        let mut bytes = vec![0; 4 * 200 * 7];
        assert_eq!(file.read_at(&mut bytes, 0)?, bytes.len());
        assert!(bytes.chunks(7).all(|chunk| chunk[0] != 0 && *chunk == [chunk[0]; 7]));
        Ok(())
    }

    #[test]
    fn bytes_that_were_to_be_forgotten_are_still_there() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("f");
        let file = OsVfs.create(&path)?;
        file.append(&vec![7; 1 << 20])?;
        file.forget(0, 1 << 20);
        file.sync()?;
        let old = OsVfs.open(&path)?;
        for file in [&file, &old] {
            file.forget(0, 1 << 20);
            file.forget(5, 0);
            file.forget(u64::MAX, u64::MAX);
            let mut buffer = vec![0; 1 << 20];
            assert_eq!(file.read_at(&mut buffer, 0)?, 1 << 20);
            assert!(buffer.iter().all(|&byte| byte == 7));
        }
        Ok(())
    }

    #[test]
    #[cfg(unix)]
    fn the_process_has_a_limit_of_open_files_or_none() {
        assert!(OsVfs.open_files_limit().is_none_or(|limit| limit >= 3));
    }

    #[test]
    fn a_lock_is_refused_to_a_second_opener_in_this_process() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("lock");
        let guard = OsVfs.lock(&path)?;
        assert_eq!(OsVfs.lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(guard);
        drop(OsVfs.lock(&path)?);
        Ok(())
    }

    #[test]
    fn readers_share_a_lock_that_a_writer_cannot_have() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("lock");
        assert_eq!(OsVfs.lock_shared(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let guard = OsVfs.lock(&path)?;
        assert_eq!(OsVfs.lock_shared(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(guard);
        let readers = [OsVfs.lock_shared(&path)?, OsVfs.lock_shared(&path)?];
        assert_eq!(OsVfs.lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(readers);
        drop(OsVfs.lock(&path)?);
        Ok(())
    }

    #[test]
    fn a_name_that_is_no_unicode_is_listed() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        OsVfs.create(&dir.path().join("ours"))?;
        #[cfg(target_os = "linux")]
        {
            use std::os::unix::ffi::OsStrExt;
            OsVfs.create(&dir.path().join(std::ffi::OsStr::from_bytes(b"\xff")))?;
            assert_eq!(OsVfs.list(dir.path())?, ["ours", "\u{fffd}"]);
        }
        Ok(())
    }

    #[derive(Clone, Debug)]
    enum Step {
        Create(usize),
        Open(usize),
        Rename(usize, usize),
        Remove(usize),
        CreateDir(usize),
        List(usize),
        Exists(usize),
        SyncDir(usize),
        Lock(usize),
        Unlock(usize),
        Append(usize, usize),
        Read(usize, u64, usize),
        Sync(usize),
        Len(usize),
    }

    /// Files, directories, names below either, and what is never there.
    const PATHS: [&str; 10] =
        ["a", "b", "d", "d/a", "d/e", "d/e/a", "a/z", "none/a", "d/../b", "d/./a"];

    fn step() -> impl Strategy<Value = Step> {
        let path = || 0..PATHS.len();
        prop_oneof![
            4 => path().prop_map(Step::Create),
            2 => path().prop_map(Step::Open),
            2 => (path(), path()).prop_map(|(from, to)| Step::Rename(from, to)),
            1 => path().prop_map(Step::Remove),
            2 => path().prop_map(Step::CreateDir),
            1 => path().prop_map(Step::List),
            1 => path().prop_map(Step::Exists),
            1 => path().prop_map(Step::SyncDir),
            1 => path().prop_map(Step::Lock),
            1 => (0..9usize).prop_map(Step::Unlock),
            4 => (0..9usize, 0..40_000usize).prop_map(|(file, len)| Step::Append(file, len)),
            4 => (0..9usize, 0..50_000u64, 0..40_000usize)
                .prop_map(|(file, offset, len)| Step::Read(file, offset, len)),
            1 => (0..9usize).prop_map(Step::Sync),
            1 => (0..9usize).prop_map(Step::Len),
        ]
    }

    /// One file system with what a process has open in it.
    struct Process<'a> {
        vfs: &'a dyn Vfs,
        root: &'a Path,
        files: Vec<Arc<dyn File>>,
        locks: Vec<Box<dyn LockGuard>>,
    }

    impl Process<'_> {
        /// Does the step and says what came of it.
        fn go(&mut self, step: &Step, round: u8) -> io::Result<String> {
            let path = |at: usize| self.root.join(PATHS[at]);
            match *step {
                Step::Create(at) => self.files.push(self.vfs.create(&path(at))?),
                Step::Open(at) => self.files.push(self.vfs.open(&path(at))?),
                Step::Rename(from, to) => self.vfs.rename(&path(from), &path(to))?,
                Step::Remove(at) => self.vfs.remove(&path(at))?,
                Step::CreateDir(at) => self.vfs.create_dir(&path(at))?,
                Step::List(at) => return Ok(format!("{:?}", self.vfs.list(&path(at))?)),
                Step::Exists(at) => return Ok(self.vfs.exists(&path(at))?.to_string()),
                Step::SyncDir(at) => self.vfs.sync_dir(&path(at))?,
                Step::Lock(at) => self.locks.push(self.vfs.lock(&path(at))?),
                Step::Unlock(at) if at < self.locks.len() => drop(self.locks.remove(at)),
                Step::Append(at, len) if at < self.files.len() => {
                    self.files[at].append(&vec![round; len])?;
                }
                Step::Read(at, offset, len) if at < self.files.len() => {
                    let mut buffer = vec![0; len];
                    let read = self.files[at].read_at(&mut buffer, offset)?;
                    let hash = xxhash_rust::xxh3::xxh3_64(&buffer);
                    return Ok(format!("{read} bytes, {hash}"));
                }
                Step::Sync(at) if at < self.files.len() => self.files[at].sync()?,
                Step::Len(at) if at < self.files.len() => {
                    return Ok(self.files[at].len()?.to_string());
                }
                _ => {}
            }
            Ok(String::new())
        }
    }

    proptest! {
        // The kinds of errors are Linux's; other systems name some of them otherwise.
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        #[cfg(target_os = "linux")]
        fn real_files_and_files_in_memory_answer_alike(
            steps in prop::collection::vec(step(), 1..60),
        ) {
            let dir = tempfile::tempdir()?;
            let mem = MemVfs::new();
            let process = |vfs, root| Process { vfs, root, files: Vec::new(), locks: Vec::new() };
            let mut real = process(&OsVfs as &dyn Vfs, dir.path());
            let mut memory = process(&mem as &dyn Vfs, Path::new("/"));
            for (at, step) in steps.iter().enumerate() {
                let round = u8::try_from(at + 1)?;
                let answers = [&mut real, &mut memory]
                    .map(|process| process.go(step, round).map_err(|error| error.kind()));
                prop_assert_eq!(&answers[0], &answers[1], "step {}: {:?}", at, step);
            }
        }
    }
}

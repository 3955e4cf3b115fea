//! The file system of the operating system, accessed by plain system calls.
//!
//! This module handles short reads, short writes and interrupted system calls, so that callers need not handle them.

use std::fs;
use std::io;
use std::path::Path;

use crate::vfs::{File, LockGuard, Vfs};
use append_file::AppendFile;
use syscalls::{drop_cached_pages, expect_random_reads, read_full, sync_file, will_need};

use lsmx_base::sync::Arc;

mod append_file;
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
mod direct;
mod direct_append;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod memory;
mod syscalls;

/// The file system of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsVfs;

impl Vfs for OsVfs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(AppendFile::new(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = open_for_reading(path)?;
        // Lookups read at random offsets, see `Vfs::open`.
        expect_random_reads(&file);
        Ok(Arc::new(ReadOnlyFile {
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

    #[cfg(unix)]
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        use rustix::fs::{AtFlags, CWD, linkat};
        // `fs::hard_link` would link a symbolic link itself.
        Ok(linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW)?)
    }

    #[cfg(not(unix))]
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        // `fs::hard_link` would link a symbolic link itself.
        fs::hard_link(fs::canonicalize(from)?, to)
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
            // The engine creates only ASCII names. Other files in the directory may have names that are not Unicode.
            // The lossy conversion lists these files under names that the engine does not use.
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
    fn reserve_space(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        if file.metadata()?.len() > bytes {
            return file.set_len(bytes);
        }
        loop {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
                Err(rustix::io::Errno::INTR) => {}
                // File systems without `fallocate` return one of these errors.
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                done => return Ok(done?),
            }
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        // Windows cannot sync a directory. NTFS logs name changes in order. This function then only checks that the
        // directory exists.
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
        lock_file(
            path,
            fs::OpenOptions::new().read(true).write(true).create(true),
            fs::File::try_lock,
        )
    }

    #[cfg(unix)]
    fn open_files_limit(&self) -> Option<u64> {
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        lock_file(path, fs::OpenOptions::new().read(true), fs::File::try_lock_shared)
    }
}

/// Returns the memory that the page cache can use, in bytes, or `None` if unknown.
pub(crate) fn page_cache_bytes() -> Option<u64> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return memory::page_cache_bytes(Path::new("/"));
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    None
}

/// Opens a file and locks it by `try_lock`. On return the path refers to the locked file.
fn lock_file(
    path: &Path,
    options: &fs::OpenOptions,
    try_lock: impl Fn(&fs::File) -> Result<(), fs::TryLockError>,
) -> io::Result<Box<dyn LockGuard>> {
    loop {
        let file = options.open(path)?;
        // The lock belongs to the open file description, not to the process. Therefore a second open in this process
        // cannot acquire the lock, and the lock is released if the process is killed.
        match try_lock(&file) {
            // Another process removed the name between the open and the lock, so the loop tries again.
            Ok(()) if !is_path_of_file(&file, path)? => {}
            Ok(()) => return Ok(Box::new(OsLock(file))),
            Err(fs::TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Returns whether a path refers to this open file.
#[cfg(unix)]
fn is_path_of_file(file: &fs::File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let open = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true, because other systems have no portable file identity. On these systems lock files are not removed.
#[cfg(not(unix))]
fn is_path_of_file(_: &fs::File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

#[derive(Debug)]
struct OsLock(fs::File);

impl LockGuard for OsLock {}

impl Drop for OsLock {
    fn drop(&mut self) {
        // A forked child process shares the descriptor until the child calls `exec`. Closing the file would not release
        // the lock until then, but an explicit unlock does. If unlocking fails, closing the file releases the lock
        // later.
        let _ = self.0.unlock();
    }
}

/// An existing file, opened for reading.
#[derive(Debug)]
struct ReadOnlyFile {
    file: fs::File,
    /// Windows syncs only files that are open for writing, so `sync` opens the file again.
    #[cfg(windows)]
    path: std::path::PathBuf,
}

impl File for ReadOnlyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        read_full(&self.file, buffer, offset)
    }

    fn append(&self, _: &[u8]) -> io::Result<()> {
        Err(super::read_only_file_error())
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

    fn drop_cached_pages(&self, offset: u64, bytes: u64) {
        drop_cached_pages(&self.file, offset, bytes);
    }
}

fn open_for_reading(path: &Path) -> io::Result<fs::File> {
    #[expect(clippy::disallowed_methods, reason = "this is where the engine opens files")]
    check_is_file(fs::File::open(path)?)
}

fn check_is_file(file: fs::File) -> io::Result<fs::File> {
    match file.metadata()?.is_dir() {
        true => Err(io::ErrorKind::IsADirectory.into()),
        false => Ok(file),
    }
}

/// Opens a file for reads that bypass the page cache.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn open_direct(path: &Path) -> io::Result<direct::DirectFile> {
    use rustix::fs::{Mode, OFlags};

    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    Ok(direct::DirectFile::new(check_is_file(file)?))
}

/// Opens a file whose pages the system does not cache.
#[cfg(target_vendor = "apple")]
fn open_direct(path: &Path) -> io::Result<ReadOnlyFile> {
    let file = open_for_reading(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(ReadOnlyFile { file })
}

#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_vendor = "apple"
)))]
fn open_direct(_: &Path) -> io::Result<ReadOnlyFile> {
    Err(super::unsupported_direct_read_error())
}

#[cfg(test)]
mod tests {
    use lsmx_base::sync::{AtomicU64, Ordering};

    use super::*;
    use crate::vfs::MemVfs;
    use crate::vfs::os::append_file::PREALLOCATE_BYTES_MIN;
    use proptest::prelude::*;

    /// Bug: a thread opened a lock file, the owner removed the file, and the thread then locked a file without a name.
    /// Another thread could lock a new file with the same name at the same time.
    #[cfg(unix)]
    #[test]
    fn lock_of_removed_file_is_not_returned() -> io::Result<()> {
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
                            // After the removal, other threads can lock a new file with this name.
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
    fn reserve_occupies_and_frees_disk_space() -> io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("reserved");
        for bytes in [100_000, 300_000, 200_000] {
            match OsVfs.reserve_space(&path, bytes) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(()),
                taken => taken?,
            }
            let taken = fs::metadata(&path)?.blocks() * 512;
            assert!((bytes..bytes + 100_000).contains(&taken), "{bytes}: {taken}");
        }
        OsVfs.remove(&path)?;
        assert!(!OsVfs.exists(&path)?);
        assert!(OsVfs.reserve_space(&path, u64::MAX / 4).is_err());
        Ok(())
    }

    /// Bug: the new name was a symbolic link, which did not keep the file.
    #[cfg(unix)]
    #[test]
    fn hard_link_of_symbolic_link_keeps_the_file() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let [target, symbolic, link] =
            ["target", "symbolic", "link"].map(|name| dir.path().join(name));
        OsVfs.create(&target)?.append(b"abc")?;
        std::os::unix::fs::symlink(&target, &symbolic)?;
        OsVfs.hard_link(&symbolic, &link)?;
        assert!(fs::symlink_metadata(&link)?.is_file());
        OsVfs.remove(&symbolic)?;
        OsVfs.remove(&target)?;
        assert_eq!(OsVfs.open(&link)?.len()?, 3);
        // The target of the symbolic link does not exist.
        std::os::unix::fs::symlink(&target, &symbolic)?;
        let refused = OsVfs.hard_link(&symbolic, &dir.path().join("other")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        Ok(())
    }

    #[test]
    fn appended_bytes_are_read_back() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("f");
        let file = OsVfs.create(&path)?;
        assert_eq!(file.len()?, 0);
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
        // Recovery syncs files that it opened for reading.
        old.sync()
    }

    #[test]
    fn preallocated_file_ends_at_its_last_append() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("f");
        let file = OsVfs.create(&path)?;
        file.append(b"header")?;
        file.enable_preallocation();
        for _ in 0..3_000 {
            file.append(&[7; 100])?;
        }
        let length = OsVfs.open(&path)?.len()?;
        assert!(
            length > 300_006 + PREALLOCATE_BYTES_MIN
                && length <= 2 * 300_006 + PREALLOCATE_BYTES_MIN
        );
        assert_eq!(file.len()?, 300_006);
        let mut bytes = vec![1; 300];
        assert_eq!(file.read_at(&mut bytes, 299_906)?, 100);
        assert_eq!(file.read_at(&mut bytes, 300_006)?, 0);
        drop(file);
        assert_eq!(OsVfs.open(&path)?.len()?, 300_006);
        Ok(())
    }

    #[test]
    fn concurrent_appends_do_not_interleave() -> io::Result<()> {
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
    fn forgotten_bytes_are_read_back() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("f");
        let file = OsVfs.create(&path)?;
        file.append(&vec![7; 1 << 20])?;
        file.drop_cached_pages(0, 1 << 20);
        file.sync()?;
        let old = OsVfs.open(&path)?;
        for file in [&file, &old] {
            file.drop_cached_pages(0, 1 << 20);
            file.drop_cached_pages(5, 0);
            file.drop_cached_pages(u64::MAX, u64::MAX);
            let mut buffer = vec![0; 1 << 20];
            assert_eq!(file.read_at(&mut buffer, 0)?, 1 << 20);
            assert!(buffer.iter().all(|&byte| byte == 7));
        }
        Ok(())
    }

    #[test]
    #[cfg(unix)]
    fn open_files_limit_is_plausible_if_present() {
        assert!(OsVfs.open_files_limit().is_none_or(|limit| limit >= 3));
    }

    #[test]
    fn exclusive_lock_excludes_all_others_and_shared_locks_coexist() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("lock");
        assert_eq!(OsVfs.lock_shared(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let guard = OsVfs.lock(&path)?;
        assert_eq!(OsVfs.lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(OsVfs.lock_shared(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(guard);
        drop(OsVfs.lock(&path)?);
        let readers = [OsVfs.lock_shared(&path)?, OsVfs.lock_shared(&path)?];
        assert_eq!(OsVfs.lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(readers);
        drop(OsVfs.lock(&path)?);
        Ok(())
    }

    #[test]
    fn list_includes_names_that_are_not_unicode() -> io::Result<()> {
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
    enum VfsStep {
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

    /// Paths of files and directories, paths below both, and paths that never exist.
    const PATHS: [&str; 10] =
        ["a", "b", "d", "d/a", "d/e", "d/e/a", "a/z", "none/a", "d/../b", "d/./a"];

    fn step() -> impl Strategy<Value = VfsStep> {
        let path = || 0..PATHS.len();
        prop_oneof![
            4 => path().prop_map(VfsStep::Create),
            2 => path().prop_map(VfsStep::Open),
            2 => (path(), path()).prop_map(|(from, to)| VfsStep::Rename(from, to)),
            1 => path().prop_map(VfsStep::Remove),
            2 => path().prop_map(VfsStep::CreateDir),
            1 => path().prop_map(VfsStep::List),
            1 => path().prop_map(VfsStep::Exists),
            1 => path().prop_map(VfsStep::SyncDir),
            1 => path().prop_map(VfsStep::Lock),
            1 => (0..9usize).prop_map(VfsStep::Unlock),
            4 => (0..9usize, 0..40_000usize).prop_map(|(file, len)| VfsStep::Append(file, len)),
            4 => (0..9usize, 0..50_000u64, 0..40_000usize)
                .prop_map(|(file, offset, len)| VfsStep::Read(file, offset, len)),
            1 => (0..9usize).prop_map(VfsStep::Sync),
            1 => (0..9usize).prop_map(VfsStep::Len),
        ]
    }

    /// A file system with the open files and locks of a process.
    struct VfsProcess<'a> {
        vfs: &'a dyn Vfs,
        root: &'a Path,
        files: Vec<Arc<dyn File>>,
        locks: Vec<Box<dyn LockGuard>>,
    }

    impl VfsProcess<'_> {
        /// Performs a step and describes its result.
        fn perform(&mut self, step: &VfsStep, round: u8) -> io::Result<String> {
            let path = |at: usize| self.root.join(PATHS[at]);
            match *step {
                VfsStep::Create(at) => self.files.push(self.vfs.create(&path(at))?),
                VfsStep::Open(at) => self.files.push(self.vfs.open(&path(at))?),
                VfsStep::Rename(from, to) => self.vfs.rename(&path(from), &path(to))?,
                VfsStep::Remove(at) => self.vfs.remove(&path(at))?,
                VfsStep::CreateDir(at) => self.vfs.create_dir(&path(at))?,
                VfsStep::List(at) => return Ok(format!("{:?}", self.vfs.list(&path(at))?)),
                VfsStep::Exists(at) => return Ok(self.vfs.exists(&path(at))?.to_string()),
                VfsStep::SyncDir(at) => self.vfs.sync_dir(&path(at))?,
                VfsStep::Lock(at) => self.locks.push(self.vfs.lock(&path(at))?),
                VfsStep::Unlock(at) if at < self.locks.len() => drop(self.locks.remove(at)),
                VfsStep::Append(at, len) if at < self.files.len() => {
                    self.files[at].append(&vec![round; len])?;
                }
                VfsStep::Read(at, offset, len) if at < self.files.len() => {
                    let mut buffer = vec![0; len];
                    let read = self.files[at].read_at(&mut buffer, offset)?;
                    let hash = xxhash_rust::xxh3::xxh3_64(&buffer);
                    return Ok(format!("{read} bytes, {hash}"));
                }
                VfsStep::Sync(at) if at < self.files.len() => self.files[at].sync()?,
                VfsStep::Len(at) if at < self.files.len() => {
                    return Ok(self.files[at].len()?.to_string());
                }
                _ => {}
            }
            Ok(String::new())
        }
    }

    proptest! {
        // The test runs only on Linux, because other systems return other error kinds.
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        #[cfg(target_os = "linux")]
        fn os_vfs_and_mem_vfs_return_equal_results(
            steps in prop::collection::vec(step(), 1..60),
        ) {
            let dir = tempfile::tempdir()?;
            let mem = MemVfs::new();
            let process = |vfs, root| VfsProcess { vfs, root, files: Vec::new(), locks: Vec::new() };
            let mut real = process(&OsVfs as &dyn Vfs, dir.path());
            let mut memory = process(&mem as &dyn Vfs, Path::new("/"));
            for (at, step) in steps.iter().enumerate() {
                let round = u8::try_from(at + 1)?;
                let results = [&mut real, &mut memory]
                    .map(|process| process.perform(step, round).map_err(|error| error.kind()));
                prop_assert_eq!(&results[0], &results[1], "step {}: {:?}", at, step);
            }
        }
    }
}

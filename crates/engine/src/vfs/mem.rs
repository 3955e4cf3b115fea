//! Files in memory with the strictest reading of what POSIX promises about a power loss.
//!
//! 1. A file has the bytes that processes see, a length up to which the disk has them, and the
//!    appends since, in order. A directory has the names that processes see, the names the disk
//!    has, and the changes between them. A file that grows ahead of its end ([`File::grow_ahead`])
//!    ends in zeros until its writing handle is dropped; the longer length, too, is unsynced at first.
//! 2. [`File::sync`] brings a file's bytes to the disk, not its name. Creating, renaming and
//!    removing last only after [`Vfs::sync_dir`] of the directory; a rename across directories
//!    needs both.
//! 3. [`MemVfs::crash`] builds what a machine could find after a power loss at this moment, as an
//!    independent file system. The old one lives on: late threads of the "dead" process go on
//!    writing there and nowhere else.
//!
//! Copies share bytes in chunks, so an image costs the number of names and of unsynced bytes, not
//! the size of the files.

mod content;
mod crash;
mod damage;
mod node;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

pub use crash::Image;
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, RwLock};
use node::{Dir, DirId, Entry, FileData, FileNode, NameChange};

use crate::vfs::{File, LockGuard, Vfs};

/// Kind of an operation that changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    /// A file gets made, by [`Vfs::create`] or as a lock file.
    Create,
    /// Bytes are appended.
    Append,
    /// A file is synced.
    Sync,
    /// A name changes.
    Rename,
    /// A file gets a second name, which is the path here.
    HardLink,
    /// A name goes away.
    Remove,
    /// A directory gets made.
    CreateDir,
    /// The names of a directory are synced.
    SyncDir,
}

/// An operation that is about to change something.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// What is about to be done.
    pub kind: OperationKind,
    /// The file or directory; the old name of a rename. A file that was renamed while open goes by
    /// the name under which it was opened.
    pub path: &'a Path,
    /// How many operations there were before.
    pub index: u64,
}

/// Called before every operation that changes something; see [`MemVfs::set_observer`].
pub type Observer = Arc<dyn Fn(&MemVfs, Operation<'_>) + Send + Sync>;

/// A file system in memory that can crash. Clones are the same file system.
///
/// There is one root; absolute and relative paths both start there.
#[derive(Clone)]
pub struct MemVfs(Arc<Shared>);

struct Shared {
    /// Held shared by whatever changes something, alone by `crash`, which therefore sees one moment
    /// of all files. Taken before `names`, that before any file's data.
    moment: RwLock<()>,
    names: Mutex<Names>,
    operations: AtomicU64,
    observer: RwLock<Option<Observer>>,
    /// Room for all files that have a name.
    capacity: AtomicU64,
    /// At least as many bytes as these files take, so that few appends sum them up. Taken before `names`.
    used_at_most: Mutex<u64>,
}

/// Capacity of a new [`MemVfs`]: 1 TiB.
pub const MEM_CAPACITY_DEFAULT: u64 = 1 << 40;

impl fmt::Debug for MemVfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemVfs").field("operations", &self.operations()).finish_non_exhaustive()
    }
}

impl Default for MemVfs {
    fn default() -> MemVfs {
        MemVfs::new()
    }
}

impl MemVfs {
    /// A file system with an empty root directory.
    #[must_use]
    pub fn new() -> MemVfs {
        MemVfs::from_names(Names::new(BTreeMap::from([(ROOT, Dir::default())])))
    }

    fn from_names(names: Names) -> MemVfs {
        MemVfs(Arc::new(Shared {
            moment: RwLock::new(()),
            names: Mutex::new(names),
            operations: AtomicU64::new(0),
            observer: RwLock::new(None),
            capacity: AtomicU64::new(MEM_CAPACITY_DEFAULT),
            used_at_most: Mutex::new(u64::MAX),
        }))
    }

    /// How many operations that change something were begun: see [`OperationKind`].
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.0.operations.load(Ordering::Relaxed)
    }

    /// Has `observer` called before every operation that changes something, on the thread that is
    /// about to do it and with no lock of the file system held, so that it may call
    /// [`MemVfs::crash`]. Images have no observer. An observer that keeps a clone of the file
    /// system keeps it alive until it is replaced.
    pub fn set_observer(&self, observer: Option<Observer>) {
        *self.0.observer.write() = observer;
    }

    /// Sets the room for files that have a name, in bytes; names take none. Without a limit the file system
    /// cannot keep room ([`Vfs::reserve`]). Default, for images too: [`MEM_CAPACITY_DEFAULT`].
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.capacity.store(bytes.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Bytes that files with a name take.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let names = self.0.names.lock();
        let entries = names.dirs.values().flat_map(|dir| dir.current.values());
        let mut seen = std::collections::BTreeSet::new();
        let files = entries.filter_map(|entry| match entry {
            Entry::File(node) => seen.insert(Arc::as_ptr(node)).then_some(node),
            Entry::Dir(_) => None,
        });
        files.map(|node| node.data.read().bytes()).sum()
    }

    /// Takes room for `bytes` more bytes. Returns for how many there is room.
    fn take_room(&self, bytes: u64) -> u64 {
        let capacity = self.0.capacity.load(Ordering::Relaxed);
        if capacity == u64::MAX {
            return bytes;
        }
        let mut used = self.0.used_at_most.lock();
        if used.checked_add(bytes).is_none_or(|sum| sum > capacity) {
            *used = self.used_bytes();
        }
        let taken = bytes.min(capacity.saturating_sub(*used));
        *used += taken;
        taken
    }

    fn begin(&self, kind: OperationKind, path: &Path) {
        let index = self.0.operations.fetch_add(1, Ordering::Relaxed);
        let observer = self.0.observer.read().clone();
        if let Some(observer) = observer {
            observer(self, Operation { kind, path, index });
        }
    }

    fn file(&self, node: Arc<FileNode>, path: &Path, writable: bool) -> Arc<dyn File> {
        Arc::new(MemFile { fs: self.clone(), node, path: path.to_owned(), writable })
    }
}

const ROOT: DirId = 0;

/// All directories.
#[derive(Debug)]
struct Names {
    dirs: BTreeMap<DirId, Dir>,
    next: DirId,
}

impl Names {
    fn new(dirs: BTreeMap<DirId, Dir>) -> Names {
        let next = dirs.keys().next_back().map_or(ROOT, |last| last + 1);
        Names { dirs, next }
    }

    fn dir(&self, id: DirId) -> &Dir {
        // Entries name only directories of the map, and none is ever taken out of it.
        &self.dirs[&id]
    }

    fn dir_mut(&mut self, id: DirId) -> io::Result<&mut Dir> {
        self.dirs.get_mut(&id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// What the path stands for.
    fn find(&self, path: &Path) -> io::Result<Entry> {
        self.walk(&components(path)?)
    }

    fn find_dir(&self, path: &Path) -> io::Result<DirId> {
        match self.find(path)? {
            Entry::Dir(id) => Ok(id),
            Entry::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn walk(&self, components: &[&str]) -> io::Result<Entry> {
        let mut at = Entry::Dir(ROOT);
        let mut above = Vec::new();
        for name in components {
            let Entry::Dir(id) = at else { return Err(io::ErrorKind::NotADirectory.into()) };
            if *name == ".." {
                at = Entry::Dir(above.pop().unwrap_or(ROOT));
            } else {
                at = self.dir(id).current.get(*name).cloned().ok_or(io::ErrorKind::NotFound)?;
                above.push(id);
            }
        }
        Ok(at)
    }

    /// The directory in which the path's last component is, or would be, a name.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<(DirId, &'a str)> {
        let components = components(path)?;
        let Some((name, parent)) = components.split_last().filter(|(name, _)| **name != "..")
        else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path ends in no name"));
        };
        match self.walk(parent)? {
            Entry::Dir(id) => Ok((id, name)),
            Entry::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// The file of this name, which is made if there is none.
    fn file_or_new(&mut self, path: &Path) -> io::Result<Arc<FileNode>> {
        let (parent, name) = self.parent(path)?;
        let parent = self.dir_mut(parent)?;
        match parent.current.get(name) {
            Some(Entry::File(node)) => Ok(node.clone()),
            Some(Entry::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None => {
                let node = Arc::new(FileNode::default());
                parent.change(NameChange::Link(name.into(), Entry::File(node.clone())));
                Ok(node)
            }
        }
    }

    /// Whether the path stands for this file.
    fn is_file(&self, path: &Path, file: &Arc<FileNode>) -> bool {
        matches!(self.find(path), Ok(Entry::File(found)) if Arc::ptr_eq(&found, file))
    }

    /// Whether `inner` is `outer` or below it.
    fn contains(&self, outer: DirId, inner: DirId) -> bool {
        outer == inner
            || self.dir(outer).current.values().any(|entry| match entry {
                Entry::Dir(id) => self.contains(*id, inner),
                Entry::File(_) => false,
            })
    }
}

/// The names on the way from the root, and `..` where a step goes up.
fn components(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
            Component::ParentDir => names.push(".."),
            Component::Normal(name) => names.push(name.to_str().ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, "the path is not Unicode")
            })?),
        }
    }
    Ok(names)
}

impl Vfs for MemVfs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.begin(OperationKind::Create, path);
        let _moment = self.0.moment.read();
        let mut names = self.0.names.lock();
        let (parent, name) = names.parent(path)?;
        let parent = names.dir_mut(parent)?;
        if parent.current.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let node = Arc::new(FileNode::default());
        parent.change(NameChange::Link(name.into(), Entry::File(node.clone())));
        Ok(self.file(node, path, true))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        match self.0.names.lock().find(path)? {
            Entry::File(node) => Ok(self.file(node, path, false)),
            Entry::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin(OperationKind::Rename, from);
        let _moment = self.0.moment.read();
        let mut names = self.0.names.lock();
        let (from_parent, from_name) = names.parent(from)?;
        let (to_parent, to_name) = names.parent(to)?;
        let entry = names.dir(from_parent).current.get(from_name).cloned();
        let entry = entry.ok_or(io::ErrorKind::NotFound)?;
        if let Entry::Dir(id) = entry
            && names.contains(id, to_parent)
            && !(from_parent == to_parent && from_name == to_name)
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let Some(replaced) = names.dir(to_parent).current.get(to_name) {
            // Two names of one file: POSIX says nothing is done.
            if replaced.is_same(&entry) {
                return Ok(());
            }
            if let Entry::Dir(id) = replaced
                && names.contains(*id, from_parent)
            {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            match (&entry, replaced) {
                (Entry::File(_), Entry::File(_)) => {}
                (Entry::File(_), Entry::Dir(_)) => {
                    return Err(io::ErrorKind::IsADirectory.into());
                }
                (Entry::Dir(_), Entry::File(_)) => {
                    return Err(io::ErrorKind::NotADirectory.into());
                }
                (Entry::Dir(_), Entry::Dir(id)) if names.dir(*id).current.is_empty() => {}
                (Entry::Dir(_), Entry::Dir(_)) => {
                    return Err(io::ErrorKind::DirectoryNotEmpty.into());
                }
            }
        }
        if from_parent == to_parent {
            let change = NameChange::Rename(from_name.into(), to_name.into(), entry);
            names.dir_mut(from_parent)?.change(change);
        } else {
            names.dir_mut(from_parent)?.change(NameChange::Unlink(from_name.into()));
            names.dir_mut(to_parent)?.change(NameChange::Link(to_name.into(), entry));
        }
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin(OperationKind::HardLink, to);
        let _moment = self.0.moment.read();
        let mut names = self.0.names.lock();
        let Entry::File(node) = names.find(from)? else {
            return Err(io::ErrorKind::PermissionDenied.into());
        };
        let (parent, name) = names.parent(to)?;
        let parent = names.dir_mut(parent)?;
        if parent.current.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        parent.change(NameChange::Link(name.into(), Entry::File(node)));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.begin(OperationKind::Remove, path);
        let _moment = self.0.moment.read();
        let mut names = self.0.names.lock();
        let (parent, name) = names.parent(path)?;
        let parent = names.dir_mut(parent)?;
        match parent.current.get(name) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(Entry::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            Some(Entry::File(_)) => {
                parent.change(NameChange::Unlink(name.into()));
                Ok(())
            }
        }
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.begin(OperationKind::Remove, path);
        let _moment = self.0.moment.read();
        let mut names = self.0.names.lock();
        let (parent, name) = names.parent(path)?;
        match names.dir(parent).current.get(name) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(Entry::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            Some(Entry::Dir(id)) if !names.dir(*id).current.is_empty() => {
                Err(io::ErrorKind::DirectoryNotEmpty.into())
            }
            Some(Entry::Dir(_)) => {
                names.dir_mut(parent)?.change(NameChange::Unlink(name.into()));
                Ok(())
            }
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.begin(OperationKind::CreateDir, path);
        let _moment = self.0.moment.read();
        let mut names = self.0.names.lock();
        let (parent, name) = names.parent(path)?;
        if names.dir(parent).current.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = names.next;
        names.next += 1;
        names.dirs.insert(id, Dir::default());
        names.dir_mut(parent)?.change(NameChange::Link(name.into(), Entry::Dir(id)));
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = self.0.names.lock();
        let dir = names.find_dir(path)?;
        Ok(names.dir(dir).current.keys().map(|name| name.to_string()).collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.0.names.lock().find(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        if self.0.capacity.load(Ordering::Relaxed) == u64::MAX {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let _moment = self.0.moment.read();
        let node = self.0.names.lock().file_or_new(path)?;
        let there = node.data.read().bytes();
        // As file systems do, it takes what there is before it says that it is not enough.
        let taken = self.take_room(bytes.saturating_sub(there));
        let mut data = node.data.write();
        data.reserved = bytes.min(there + taken);
        if data.reserved < bytes { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.begin(OperationKind::SyncDir, path);
        let _moment = self.0.moment.read();
        let mut names = self.0.names.lock();
        let dir = names.find_dir(path)?;
        names.dir_mut(dir)?.sync();
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        loop {
            let found = self.0.names.lock().find(path);
            let node = match found {
                Ok(Entry::File(node)) => node,
                Ok(Entry::Dir(_)) => return Err(io::ErrorKind::IsADirectory.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.begin(OperationKind::Create, path);
                    let _moment = self.0.moment.read();
                    let mut names = self.0.names.lock();
                    // Another thread may have been quicker.
                    names.file_or_new(path)?
                }
                Err(error) => return Err(error),
            };
            let guard = MemLock::take(Arc::clone(&node), false)?;
            // Another thread may have removed the name before the lock was taken.
            if self.0.names.lock().is_file(path, &node) {
                return Ok(guard);
            }
        }
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        loop {
            let Entry::File(node) = self.0.names.lock().find(path)? else {
                return Err(io::ErrorKind::IsADirectory.into());
            };
            let guard = MemLock::take(Arc::clone(&node), true)?;
            if self.0.names.lock().is_file(path, &node) {
                return Ok(guard);
            }
        }
    }
}

/// Holds a file's lock.
#[derive(Debug)]
struct MemLock(Arc<FileNode>);

impl MemLock {
    fn take(node: Arc<FileNode>, shared: bool) -> io::Result<Box<dyn LockGuard>> {
        if node.lock(shared) {
            Ok(Box::new(MemLock(node)))
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }
}

impl LockGuard for MemLock {}

impl Drop for MemLock {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// A handle; belongs to the file system in which it was opened, whatever crashes.
#[derive(Debug)]
struct MemFile {
    fs: MemVfs,
    node: Arc<FileNode>,
    path: PathBuf,
    writable: bool,
}

impl MemFile {
    /// Length that this handle shows: the one that appends knows where they end, others see the zeros
    /// behind.
    fn visible(&self, data: &FileData) -> usize {
        if self.writable { data.end } else { data.content.len() }
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        if self.writable {
            let _moment = self.fs.0.moment.read();
            self.stop_growing();
        }
    }
}

impl File for MemFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // Past what memory can hold no file has bytes.
        let Ok(offset) = usize::try_from(offset) else { return Ok(0) };
        let data = self.node.data.read();
        let there = self.visible(&data).saturating_sub(offset).min(buffer.len());
        Ok(data.content.read(&mut buffer[..there], offset))
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        if !self.writable {
            return Err(crate::vfs::opened_for_reading());
        }
        self.fs.begin(OperationKind::Append, &self.path);
        let _moment = self.fs.0.moment.read();
        let fits = usize::try_from(self.fs.take_room(bytes.len() as u64)).unwrap_or(usize::MAX);
        self.node.data.write().append(&bytes[..fits]);
        if fits < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.begin(OperationKind::Sync, &self.path);
        let _moment = self.fs.0.moment.read();
        self.node.data.write().sync();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.visible(&self.node.data.read()) as u64)
    }

    fn grow_ahead(&self) {
        self.node.data.write().grow_ahead();
    }

    fn stop_growing(&self) {
        self.node.data.write().trim();
    }

    fn will_need(&self, _: u64, _: u64) -> bool {
        true
    }

    fn drop_unsynced(&self, cached: bool) -> bool {
        let _moment = self.fs.0.moment.read();
        self.node.data.write().drop_unsynced(cached);
        true
    }
}

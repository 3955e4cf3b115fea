//! In-memory file system that simulates power loss. It gives only the weakest guarantees that POSIX allows.
//!
//! 1. A file stores the bytes that processes see, the synced length, and the unsynced appends in order. A directory
//!    stores the names that processes see, the synced names, and the changes between them. A file with preallocation
//!    ([`File::enable_preallocation`]) ends in zeros until its writing handle is dropped. The preallocated length is
//!    unsynced until the next sync.
//! 2. [`File::sync`] syncs the bytes of a file, not its name. Creating, renaming and removing a file survive a crash
//!    only after [`Vfs::sync_dir`] of the directory. A rename across directories needs a sync of both directories.
//! 3. [`MemVfs::crash`] returns a crash image: an independent file system in a state that is possible after a power
//!    loss. The original file system does not change. Threads that still run write only to the original.
//!
//! A crash image shares copy-on-write chunks of bytes with the original. The cost of an image depends on the number of
//! names and on the unsynced bytes, not on the size of the files.

mod content;
mod crash;
#[cfg(feature = "internals")]
mod damage;
mod node;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

pub use crash::CrashImage;
use node::{DirEntry, DirId, DirNode, FileNode, FileState, NameChange};

use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, RwLock};

use crate::vfs::{File, LockGuard, Vfs};

/// Kind of an operation that changes a [`MemVfs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemOperationKind {
    /// Creates a file, by [`Vfs::create`] or [`Vfs::lock`].
    Create,
    /// Appends bytes.
    Append,
    /// Syncs a file.
    Sync,
    /// Renames a file or directory.
    Rename,
    /// Creates a hard link. The path of the operation is the new name.
    HardLink,
    /// Removes a name.
    Remove,
    /// Creates a directory.
    CreateDir,
    /// Syncs the names of a directory.
    SyncDir,
}

/// An operation that changes a [`MemVfs`]. The observer receives the operation before the change.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "internals"), expect(dead_code, reason = "only observers read it"))]
pub struct MemOperation<'a> {
    /// Kind of the operation.
    pub kind: MemOperationKind,
    /// Path of the file or directory. For a rename, the old name. For an open file, the path by which it was opened.
    pub path: &'a Path,
    /// Number of operations before this one.
    pub index: u64,
}

/// Called before every changing operation; see [`MemVfs::set_observer`].
pub type Observer = Arc<dyn Fn(&MemVfs, MemOperation<'_>) + Send + Sync>;

/// An in-memory file system that can simulate crashes. Clones refer to the same files.
///
/// Absolute and relative paths both start at the single root.
#[derive(Clone)]
pub struct MemVfs(Arc<MemVfsInner>);

struct MemVfsInner {
    /// Every change holds this lock in shared mode. `crash` holds it exclusively, so that a crash image shows all
    /// files at one point in time. Lock order: `changes`, `tree`, data of a file.
    changes: RwLock<()>,
    tree: Mutex<DirTree>,
    operations: AtomicU64,
    observer: RwLock<Option<Observer>>,
    /// Maximum bytes of all named files; `u64::MAX` is no limit.
    capacity: AtomicU64,
    /// Upper bound of the bytes of all named files. The exact sum is computed only if this bound exceeds the capacity,
    /// so most appends need no summation. Locked before `tree`.
    used_bytes_max: Mutex<u64>,
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
    /// Creates a file system with an empty root directory.
    #[must_use]
    pub fn new() -> MemVfs {
        MemVfs::from_tree(DirTree::new(BTreeMap::from([(ROOT, DirNode::default())])))
    }

    fn from_tree(tree: DirTree) -> MemVfs {
        MemVfs(Arc::new(MemVfsInner {
            changes: RwLock::new(()),
            tree: Mutex::new(tree),
            operations: AtomicU64::new(0),
            observer: RwLock::new(None),
            capacity: AtomicU64::new(MEM_CAPACITY_DEFAULT),
            used_bytes_max: Mutex::new(u64::MAX),
        }))
    }

    /// Returns the number of operations started so far, of the kinds in [`MemOperationKind`]. Includes failed
    /// operations.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn operations(&self) -> u64 {
        self.0.operations.load(Ordering::Relaxed)
    }

    /// Sets a function to call before every changing operation.
    ///
    /// The thread that makes the operation calls the function. The thread holds no lock of the file system at this
    /// time, so the function may call [`MemVfs::crash`]. Crash images have no observer. A function that owns a clone of
    /// this file system keeps the file system alive.
    #[cfg(feature = "internals")]
    pub fn set_observer(&self, observer: Option<Observer>) {
        *self.0.observer.write() = observer;
    }

    /// Sets the maximum bytes of all named files. `None` removes the limit; [`Vfs::reserve_space`] is then unsupported.
    /// The default is [`MEM_CAPACITY_DEFAULT`], which also applies to crash images.
    #[cfg(feature = "internals")]
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.capacity.store(bytes.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the bytes of all named files.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn used_bytes(&self) -> u64 {
        let tree = self.0.tree.lock();
        let entries = tree.dirs.values().flat_map(|dir| dir.current.values());
        let mut seen = std::collections::BTreeSet::new();
        let files = entries.filter_map(|entry| match entry {
            DirEntry::File(node) => seen.insert(Arc::as_ptr(node)).then_some(node),
            DirEntry::Dir(_) => None,
        });
        files.map(|node| node.data.read().bytes()).sum()
    }

    /// Allocates up to `bytes` bytes of the capacity. Returns the number of bytes allocated.
    fn allocate(&self, bytes: u64) -> u64 {
        let capacity = self.0.capacity.load(Ordering::Relaxed);
        if capacity == u64::MAX {
            return bytes;
        }
        let mut used = self.0.used_bytes_max.lock();
        if used.checked_add(bytes).is_none_or(|sum| sum > capacity) {
            *used = self.used_bytes();
        }
        let allocated = bytes.min(capacity.saturating_sub(*used));
        *used += allocated;
        allocated
    }

    fn start_operation(&self, kind: MemOperationKind, path: &Path) {
        let index = self.0.operations.fetch_add(1, Ordering::Relaxed);
        let observer = self.0.observer.read().clone();
        if let Some(observer) = observer {
            observer(self, MemOperation { kind, path, index });
        }
    }

    fn new_handle(&self, node: Arc<FileNode>, path: &Path, writable: bool) -> Arc<dyn File> {
        Arc::new(MemFile { fs: self.clone(), node, path: path.to_owned(), writable })
    }
}

const ROOT: DirId = 0;

/// All directories by id.
#[derive(Debug)]
struct DirTree {
    dirs: BTreeMap<DirId, DirNode>,
    next_id: DirId,
}

impl DirTree {
    fn new(dirs: BTreeMap<DirId, DirNode>) -> DirTree {
        let next_id = dirs.keys().next_back().map_or(ROOT, |last| last + 1);
        DirTree { dirs, next_id }
    }

    fn dir(&self, id: DirId) -> &DirNode {
        // Every directory entry has an id in the map, because directories are never removed from the map.
        &self.dirs[&id]
    }

    fn dir_mut(&mut self, id: DirId) -> io::Result<&mut DirNode> {
        self.dirs.get_mut(&id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Resolves a path.
    fn find(&self, path: &Path) -> io::Result<DirEntry> {
        self.resolve(&split_path(path)?)
    }

    fn find_dir(&self, path: &Path) -> io::Result<DirId> {
        match self.find(path)? {
            DirEntry::Dir(id) => Ok(id),
            DirEntry::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn resolve(&self, components: &[&str]) -> io::Result<DirEntry> {
        let mut current = DirEntry::Dir(ROOT);
        let mut parents = Vec::new();
        for name in components {
            let DirEntry::Dir(id) = current else {
                return Err(io::ErrorKind::NotADirectory.into());
            };
            if *name == ".." {
                current = DirEntry::Dir(parents.pop().unwrap_or(ROOT));
            } else {
                current =
                    self.dir(id).current.get(*name).cloned().ok_or(io::ErrorKind::NotFound)?;
                parents.push(id);
            }
        }
        Ok(current)
    }

    /// Returns the directory of the last component of a path, and that component.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<(DirId, &'a str)> {
        let components = split_path(path)?;
        let Some((name, parent)) = components.split_last().filter(|(name, _)| **name != "..")
        else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"));
        };
        match self.resolve(parent)? {
            DirEntry::Dir(id) => Ok((id, name)),
            DirEntry::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// Adds a name for a file or directory. Fails if the name exists.
    fn add_name(&mut self, path: &Path, entry: DirEntry) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let parent = self.dir_mut(parent)?;
        if parent.current.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        parent.record_change(NameChange::Link(name.into(), entry));
        Ok(())
    }

    /// Returns the file of a path. Creates it if it is missing.
    fn find_or_create_file(&mut self, path: &Path) -> io::Result<Arc<FileNode>> {
        let (parent, name) = self.parent(path)?;
        let parent = self.dir_mut(parent)?;
        match parent.current.get(name) {
            Some(DirEntry::File(node)) => Ok(node.clone()),
            Some(DirEntry::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None => {
                let node = Arc::new(FileNode::default());
                parent.record_change(NameChange::Link(name.into(), DirEntry::File(node.clone())));
                Ok(node)
            }
        }
    }

    /// Returns whether the path currently refers to this file.
    fn is_named(&self, path: &Path, file: &Arc<FileNode>) -> bool {
        matches!(self.find(path), Ok(DirEntry::File(found)) if Arc::ptr_eq(&found, file))
    }

    /// Returns whether `inner` is `outer` or one of its descendants.
    fn contains(&self, outer: DirId, inner: DirId) -> bool {
        outer == inner
            || self.dir(outer).current.values().any(|entry| match entry {
                DirEntry::Dir(id) => self.contains(*id, inner),
                DirEntry::File(_) => false,
            })
    }
}

/// Splits a path into its components: names and `..`. Ignores prefixes, the root and `.`.
fn split_path(path: &Path) -> io::Result<Vec<&str>> {
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
        self.start_operation(MemOperationKind::Create, path);
        let _changes = self.0.changes.read();
        let node = Arc::new(FileNode::default());
        self.0.tree.lock().add_name(path, DirEntry::File(node.clone()))?;
        Ok(self.new_handle(node, path, true))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        match self.0.tree.lock().find(path)? {
            DirEntry::File(node) => Ok(self.new_handle(node, path, false)),
            DirEntry::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.start_operation(MemOperationKind::Rename, from);
        let _changes = self.0.changes.read();
        let mut tree = self.0.tree.lock();
        let (from_parent, from_name) = tree.parent(from)?;
        let (to_parent, to_name) = tree.parent(to)?;
        let entry = tree.dir(from_parent).current.get(from_name).cloned();
        let entry = entry.ok_or(io::ErrorKind::NotFound)?;
        if let DirEntry::Dir(id) = entry
            && tree.contains(id, to_parent)
            && !(from_parent == to_parent && from_name == to_name)
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let Some(replaced) = tree.dir(to_parent).current.get(to_name) {
            // POSIX: a rename between two names of one file has no effect.
            if replaced.is_same_node(&entry) {
                return Ok(());
            }
            if let DirEntry::Dir(id) = replaced
                && tree.contains(*id, from_parent)
            {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            match (&entry, replaced) {
                (DirEntry::File(_), DirEntry::File(_)) => {}
                (DirEntry::File(_), DirEntry::Dir(_)) => {
                    return Err(io::ErrorKind::IsADirectory.into());
                }
                (DirEntry::Dir(_), DirEntry::File(_)) => {
                    return Err(io::ErrorKind::NotADirectory.into());
                }
                (DirEntry::Dir(_), DirEntry::Dir(id)) if tree.dir(*id).current.is_empty() => {}
                (DirEntry::Dir(_), DirEntry::Dir(_)) => {
                    return Err(io::ErrorKind::DirectoryNotEmpty.into());
                }
            }
        }
        if from_parent == to_parent {
            let change = NameChange::Rename(from_name.into(), to_name.into(), entry);
            tree.dir_mut(from_parent)?.record_change(change);
        } else {
            tree.dir_mut(from_parent)?.record_change(NameChange::Unlink(from_name.into()));
            tree.dir_mut(to_parent)?.record_change(NameChange::Link(to_name.into(), entry));
        }
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.start_operation(MemOperationKind::HardLink, to);
        let _changes = self.0.changes.read();
        let mut tree = self.0.tree.lock();
        let DirEntry::File(node) = tree.find(from)? else {
            return Err(io::ErrorKind::PermissionDenied.into());
        };
        tree.add_name(to, DirEntry::File(node))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.start_operation(MemOperationKind::Remove, path);
        let _changes = self.0.changes.read();
        let mut tree = self.0.tree.lock();
        let (parent, name) = tree.parent(path)?;
        let parent = tree.dir_mut(parent)?;
        match parent.current.get(name) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(DirEntry::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            Some(DirEntry::File(_)) => {
                parent.record_change(NameChange::Unlink(name.into()));
                Ok(())
            }
        }
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.start_operation(MemOperationKind::Remove, path);
        let _changes = self.0.changes.read();
        let mut tree = self.0.tree.lock();
        let (parent, name) = tree.parent(path)?;
        match tree.dir(parent).current.get(name) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(DirEntry::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            Some(DirEntry::Dir(id)) if !tree.dir(*id).current.is_empty() => {
                Err(io::ErrorKind::DirectoryNotEmpty.into())
            }
            Some(DirEntry::Dir(_)) => {
                tree.dir_mut(parent)?.record_change(NameChange::Unlink(name.into()));
                Ok(())
            }
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.start_operation(MemOperationKind::CreateDir, path);
        let _changes = self.0.changes.read();
        let mut tree = self.0.tree.lock();
        let id = tree.next_id;
        tree.add_name(path, DirEntry::Dir(id))?;
        tree.next_id += 1;
        tree.dirs.insert(id, DirNode::default());
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let tree = self.0.tree.lock();
        let dir = tree.find_dir(path)?;
        Ok(tree.dir(dir).current.keys().map(|name| name.to_string()).collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.0.tree.lock().find(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn reserve_space(&self, path: &Path, bytes: u64) -> io::Result<()> {
        if self.0.capacity.load(Ordering::Relaxed) == u64::MAX {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let _changes = self.0.changes.read();
        let node = self.0.tree.lock().find_or_create_file(path)?;
        let present = node.data.read().bytes();
        // Like a real file system, allocates the remaining space before it reports a full disk.
        let allocated = self.allocate(bytes.saturating_sub(present));
        let mut data = node.data.write();
        data.reserved_bytes = bytes.min(present + allocated);
        if data.reserved_bytes < bytes { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.start_operation(MemOperationKind::SyncDir, path);
        let _changes = self.0.changes.read();
        let mut tree = self.0.tree.lock();
        let dir = tree.find_dir(path)?;
        tree.dir_mut(dir)?.sync();
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        loop {
            let found = self.0.tree.lock().find(path);
            let node = match found {
                Ok(DirEntry::File(node)) => node,
                Ok(DirEntry::Dir(_)) => return Err(io::ErrorKind::IsADirectory.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.start_operation(MemOperationKind::Create, path);
                    let _changes = self.0.changes.read();
                    let mut tree = self.0.tree.lock();
                    // Another thread may have created the file since the lookup.
                    tree.find_or_create_file(path)?
                }
                Err(error) => return Err(error),
            };
            let guard = MemLock::acquire(Arc::clone(&node), false)?;
            // Another thread may have removed the name before the lock was acquired.
            if self.0.tree.lock().is_named(path, &node) {
                return Ok(guard);
            }
        }
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        loop {
            let DirEntry::File(node) = self.0.tree.lock().find(path)? else {
                return Err(io::ErrorKind::IsADirectory.into());
            };
            let guard = MemLock::acquire(Arc::clone(&node), true)?;
            if self.0.tree.lock().is_named(path, &node) {
                return Ok(guard);
            }
        }
    }
}

#[derive(Debug)]
struct MemLock(Arc<FileNode>);

impl MemLock {
    fn acquire(node: Arc<FileNode>, shared: bool) -> io::Result<Box<dyn LockGuard>> {
        if node.try_lock(shared) {
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

/// An open file. After a simulated crash, the handle still refers to the original file system.
#[derive(Debug)]
struct MemFile {
    fs: MemVfs,
    node: Arc<FileNode>,
    path: PathBuf,
    writable: bool,
}

impl MemFile {
    /// Returns the length that this handle reports. Only the writing handle hides preallocated zeros.
    fn visible_len(&self, data: &FileState) -> usize {
        if self.writable { data.end } else { data.content.len() }
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        if self.writable {
            let _changes = self.fs.0.changes.read();
            self.disable_preallocation();
        }
    }
}

impl File for MemFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // No file has bytes at offsets that exceed `usize`.
        let Ok(offset) = usize::try_from(offset) else { return Ok(0) };
        let data = self.node.data.read();
        let available = self.visible_len(&data).saturating_sub(offset).min(buffer.len());
        Ok(data.content.read(&mut buffer[..available], offset))
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        if !self.writable {
            return Err(super::read_only_file_error());
        }
        self.fs.start_operation(MemOperationKind::Append, &self.path);
        let _changes = self.fs.0.changes.read();
        let fits = usize::try_from(self.fs.allocate(bytes.len() as u64)).unwrap_or(usize::MAX);
        self.node.data.write().append(&bytes[..fits]);
        if fits < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.start_operation(MemOperationKind::Sync, &self.path);
        let _changes = self.fs.0.changes.read();
        self.node.data.write().sync();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.visible_len(&self.node.data.read()) as u64)
    }

    fn enable_preallocation(&self) {
        self.node.data.write().enable_preallocation();
    }

    fn disable_preallocation(&self) {
        self.node.data.write().disable_preallocation();
    }

    fn will_need(&self, _: u64, _: u64) -> bool {
        true
    }

    fn drop_unsynced(&self, cached: bool) -> bool {
        let _changes = self.fs.0.changes.read();
        self.node.data.write().drop_unsynced(cached);
        true
    }
}

//! Test functions that read whole files and that damage files.
//!
//! These functions are not counted as operations and do not call the observer. A changed file is fully synced.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::sync::Arc;

use crate::vfs::mem::content::FileContent;
use crate::vfs::mem::node::{DirEntry, DirId, FileNode};
use crate::vfs::mem::{DirTree, MemVfs, ROOT};

impl MemVfs {
    /// Flips the bits of `mask` in one byte.
    ///
    /// # Errors
    /// Fails when the file or the byte does not exist.
    pub fn flip_bits(&self, path: &Path, offset: u64, mask: u8) -> io::Result<()> {
        self.damage_range(path, offset, 1, |_, bytes| {
            bytes.iter_mut().for_each(|byte| *byte ^= mask);
        })
    }

    /// Overwrites bytes at `offset`.
    ///
    /// # Errors
    /// Fails when the file or one of the bytes does not exist.
    pub fn overwrite(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.damage_range(path, offset, bytes.len(), |done, old| {
            old.copy_from_slice(&bytes[done..done + old.len()]);
        })
    }

    /// Truncates a file to `len` bytes. A shorter file does not change.
    ///
    /// # Errors
    /// Fails when the file does not exist.
    pub fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.modify_content(path, |content| {
            // A length that exceeds `usize` truncates nothing.
            content.truncate(usize::try_from(len).unwrap_or(usize::MAX));
            Ok(())
        })
    }

    /// Returns the bytes of a file.
    ///
    /// # Errors
    /// Fails when the file does not exist.
    pub fn read_all(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(self.node(path)?.data.read().content.to_vec())
    }

    /// Creates a file with these bytes, or replaces the bytes of an existing file. Bytes and name are synced.
    ///
    /// # Errors
    /// Fails when the parent directory does not exist, or when a directory has this path.
    pub fn write_all(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let exists = match self.node(path) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if exists {
            return self.modify_content(path, |content| {
                *content = FileContent::from(bytes);
                Ok(())
            });
        }
        let _changes = self.0.changes.read();
        let mut tree = self.0.tree.lock();
        let (parent, name) = tree.parent(path)?;
        let parent = tree.dir_mut(parent)?;
        let entry =
            DirEntry::File(Arc::new(FileNode::from_synced_content(FileContent::from(bytes))));
        Arc::make_mut(&mut parent.current).insert(name.into(), entry.clone());
        Arc::make_mut(&mut parent.synced).insert(name.into(), entry);
        Ok(())
    }

    /// Returns the sorted paths of all files, relative to the root.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.files().into_keys().collect()
    }

    /// Returns the bytes of all files by path.
    #[must_use]
    pub fn snapshot_all(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let _changes = self.0.changes.write();
        self.files()
            .into_iter()
            .map(|(path, node)| {
                let bytes = node.data.read().content.to_vec();
                (path, bytes)
            })
            .collect()
    }

    fn files(&self) -> BTreeMap<PathBuf, Arc<FileNode>> {
        fn visit_dir(
            tree: &DirTree,
            dir: DirId,
            path: &Path,
            files: &mut BTreeMap<PathBuf, Arc<FileNode>>,
        ) {
            for (name, entry) in tree.dir(dir).current.iter() {
                let path = path.join(&**name);
                match entry {
                    DirEntry::File(node) => {
                        files.insert(path, node.clone());
                    }
                    DirEntry::Dir(below) => visit_dir(tree, *below, &path, files),
                }
            }
        }
        let mut files = BTreeMap::new();
        visit_dir(&self.0.tree.lock(), ROOT, Path::new(""), &mut files);
        files
    }

    fn node(&self, path: &Path) -> io::Result<Arc<FileNode>> {
        match self.0.tree.lock().find(path)? {
            DirEntry::File(node) => Ok(node),
            DirEntry::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    /// Calls `change` for each contiguous part of a range, with the offset of the part from the start of the range.
    fn damage_range(
        &self,
        path: &Path,
        offset: u64,
        len: usize,
        mut change: impl FnMut(usize, &mut [u8]),
    ) -> io::Result<()> {
        self.modify_content(path, |content| {
            let start = usize::try_from(offset)
                .ok()
                .filter(|start| start.checked_add(len).is_some_and(|end| end <= content.len()));
            let start = start.ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, "the range exceeds the file")
            })?;
            content.modify_range(start..start + len, |at, bytes| change(at - start, bytes));
            Ok(())
        })
    }

    fn modify_content(
        &self,
        path: &Path,
        change: impl FnOnce(&mut FileContent) -> io::Result<()>,
    ) -> io::Result<()> {
        let node = self.node(path)?;
        let _changes = self.0.changes.read();
        let mut data = node.data.write();
        let mut content = data.content.clone();
        change(&mut content)?;
        data.replace_content(content);
        Ok(())
    }
}

//! Conveniences of tests: looking at all bytes, and changing them as a failing disk would.
//!
//! None of these counts as an operation. A file that is changed here counts as wholly on the disk.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::sync::Arc;

use crate::vfs::mem::content::Content;
use crate::vfs::mem::node::{DirId, Entry, FileNode};
use crate::vfs::mem::{MemVfs, Names, ROOT};

impl MemVfs {
    /// Flips the bits of `mask` in one byte.
    ///
    /// # Errors
    /// If the file or the byte is not there.
    pub fn flip(&self, path: &Path, offset: u64, mask: u8) -> io::Result<()> {
        self.damage(path, offset, 1, |_, bytes| {
            bytes.iter_mut().for_each(|byte| *byte ^= mask);
        })
    }

    /// Puts `bytes` in place of as many bytes at `offset`.
    ///
    /// # Errors
    /// If the file or one of the bytes is not there.
    pub fn overwrite(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.damage(path, offset, bytes.len(), |done, old| {
            old.copy_from_slice(&bytes[done..done + old.len()]);
        })
    }

    /// Cuts the file to `len` bytes; a shorter one stays as it is.
    ///
    /// # Errors
    /// If the file is not there.
    pub fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.replace(path, |content| {
            // A length that memory cannot hold cuts nothing.
            content.truncate(usize::try_from(len).unwrap_or(usize::MAX));
            Ok(())
        })
    }

    /// All bytes of a file.
    ///
    /// # Errors
    /// If the file is not there.
    pub fn read_all(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(self.node(path)?.data.read().content.to_vec())
    }

    /// Makes a file with these bytes, or puts them in place of what the file holds. Bytes and name
    /// are on the disk, if the names of the directories above are.
    ///
    /// # Errors
    /// If the directory is not there, or the path names one.
    pub fn write_all(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let exists = match self.node(path) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if exists {
            return self.replace(path, |content| {
                *content = Content::from(bytes);
                Ok(())
            });
        }
        let _moment = self.0.moment.read();
        let mut names = self.0.names.lock();
        let (parent, name) = names.parent(path)?;
        let parent = names.dir_mut(parent)?;
        let entry = Entry::File(Arc::new(FileNode::on_disk(Content::from(bytes))));
        Arc::make_mut(&mut parent.current).insert(name.into(), entry.clone());
        Arc::make_mut(&mut parent.synced).insert(name.into(), entry);
        Ok(())
    }

    /// All files, in order of their paths, which start at the root without a `/`.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.files().into_keys().collect()
    }

    /// All bytes of all files, to compare.
    #[must_use]
    pub fn snapshot_all(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let _moment = self.0.moment.write();
        self.files()
            .into_iter()
            .map(|(path, node)| {
                let bytes = node.data.read().content.to_vec();
                (path, bytes)
            })
            .collect()
    }

    fn files(&self) -> BTreeMap<PathBuf, Arc<FileNode>> {
        fn walk(
            names: &Names,
            dir: DirId,
            path: &Path,
            files: &mut BTreeMap<PathBuf, Arc<FileNode>>,
        ) {
            for (name, entry) in names.dir(dir).current.iter() {
                let path = path.join(&**name);
                match entry {
                    Entry::File(node) => {
                        files.insert(path, node.clone());
                    }
                    Entry::Dir(below) => walk(names, *below, &path, files),
                }
            }
        }
        let mut files = BTreeMap::new();
        walk(&self.0.names.lock(), ROOT, Path::new(""), &mut files);
        files
    }

    fn node(&self, path: &Path) -> io::Result<Arc<FileNode>> {
        match self.0.names.lock().find(path)? {
            Entry::File(node) => Ok(node),
            Entry::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    /// Hands `len` bytes at `offset` to `change`, piece by piece, each with the count of those
    /// before it.
    fn damage(
        &self,
        path: &Path,
        offset: u64,
        len: usize,
        mut change: impl FnMut(usize, &mut [u8]),
    ) -> io::Result<()> {
        self.replace(path, |content| {
            let start = usize::try_from(offset)
                .ok()
                .filter(|start| start.checked_add(len).is_some_and(|end| end <= content.len()));
            let start = start.ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, "the file has no such bytes")
            })?;
            content.change(start..start + len, |at, bytes| change(at - start, bytes));
            Ok(())
        })
    }

    fn replace(
        &self,
        path: &Path,
        change: impl FnOnce(&mut Content) -> io::Result<()>,
    ) -> io::Result<()> {
        let node = self.node(path)?;
        let _moment = self.0.moment.read();
        let mut data = node.data.write();
        let mut content = data.content.clone();
        change(&mut content)?;
        data.replace(content);
        Ok(())
    }
}

//! Journal of the received frames of a snapshot. After a restart, it shows which part of the files is intact.
//!
//! ```text
//!  0  8  magic
//!  8  8  stream key of the sender, u64 little-endian
//! 16  8  checksum of frame 0, u64 little-endian
//! 24  8  checksum of frame 1
//! …
//! ```
//!
//! The journal needs no checksum and no order of syncs. A frame counts as received only if its checksum in the journal is that
//! of the frame that the sender would produce from the received files. The seed of this checksum contains the stream key and
//! the number of the frame.

use std::path::PathBuf;

use lsmx::vfs::File;
use lsmx_base::sync::Arc;

use crate::error::Error;
use crate::snapshot::dir::SnapshotDir;

const MAGIC: [u8; 8] = *b"lsmxfrms";
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = size_of::<u64>();

/// Writer of a journal.
#[derive(Debug)]
pub(crate) struct FrameJournal {
    file: Arc<dyn File>,
    path: PathBuf,
}

impl FrameJournal {
    /// Creates the journal of a directory, or replaces it atomically. `checksums` are those of the first frames.
    pub(crate) fn create(
        dir: &SnapshotDir,
        stream_key: u64,
        checksums: &[u64],
    ) -> Result<FrameJournal, Error> {
        let (vfs, path) = (&dir.root.vfs, dir.journal_path());
        let new_path = path.with_extension("new");
        let mut bytes = MAGIC.to_vec();
        bytes.extend(stream_key.to_le_bytes());
        bytes.extend(checksums.iter().flat_map(|checksum| checksum.to_le_bytes()));
        let create = || {
            let file = vfs.create(&new_path).map_err(Error::io("create", &new_path))?;
            file.append(&bytes).map_err(Error::io("write", &new_path))?;
            file.sync().map_err(Error::io("sync", &new_path))?;
            vfs.rename(&new_path, &path).map_err(Error::io("create", &path))?;
            Ok(file)
        };
        let file = create().inspect_err(|_: &Error| {
            // The next open removes a file that cannot be removed now.
            let _ = vfs.remove(&new_path);
        })?;
        Ok(FrameJournal { file, path })
    }

    pub(crate) fn append(&self, checksum: u64) -> Result<(), Error> {
        self.file.append(&checksum.to_le_bytes()).map_err(Error::io("write", &self.path))
    }

    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.file.sync().map_err(Error::io("sync", &self.path))
    }

    /// Reads the checksums in the journal of a directory. Returns none if the journal has another stream key or cannot be
    /// read.
    pub(crate) fn read(dir: &SnapshotDir, stream_key: u64) -> Vec<u64> {
        let read = || {
            let file = dir.root.vfs.open(&dir.journal_path())?;
            let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or_default()];
            let len = file.read_at(&mut bytes, 0)?;
            bytes.truncate(len);
            Ok::<_, std::io::Error>(bytes)
        };
        decode(&read().unwrap_or_default(), stream_key)
    }
}

/// Decodes the checksums of complete entries.
fn decode(bytes: &[u8], stream_key: u64) -> Vec<u64> {
    match bytes.split_at_checked(HEADER_BYTES) {
        Some((header, entries)) if header == [MAGIC, stream_key.to_le_bytes()].concat() => {
            let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
            entries.iter().map(|entry| u64::from_le_bytes(*entry)).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_truncations_leave_complete_entries() {
        let bytes = *b"lsmxfrms\x07\0\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x03\0\0\0\0\0\0\0";
        assert_eq!(decode(&bytes, 7), [0x201, 3]);
        assert!(decode(&bytes, 8).is_empty());
        for len in 0..bytes.len() {
            let expected: &[u64] = if len < 24 { &[] } else { &[0x201] };
            assert_eq!(decode(&bytes[..len], 7), expected, "{len}");
        }
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged, 7).is_empty(), "{bit}");
        }
    }
}

//! Receiver of a snapshot stream.

use std::collections::VecDeque;
use std::path::{Component, Path};

use lsmx::vfs::File;
use lsmx::{Options, verify};
use lsmx_base::sync::Arc;

use crate::error::{Error, StreamFault};
use crate::snapshot::dir::{SnapshotDir, SnapshotRoot};
use crate::snapshot::format::{FRAME_BYTES, FileRecord, HEADER_BYTES, StreamHeader, open_frame};

/// Verifies the frames of a stream and writes its files to a new directory.
///
/// A sender may send a part again, so writes may start before the end of the received bytes. After an error, the receiver
/// discards everything and starts again at offset 0.
#[derive(Debug)]
pub(crate) struct SnapshotReceiver {
    root: SnapshotRoot,
    /// Bytes of the stream whose frames are verified and written.
    verified_bytes: u64,
    /// Received part of the next frame.
    frame: Vec<u8>,
    unpacker: Unpacker,
    /// The complete directory.
    received: Option<Arc<SnapshotDir>>,
}

impl SnapshotReceiver {
    pub(crate) fn new(root: SnapshotRoot) -> SnapshotReceiver {
        let unpacker = Unpacker::Header(Vec::new());
        SnapshotReceiver { root, verified_bytes: 0, frame: Vec::new(), unpacker, received: None }
    }

    /// Returns the number of received bytes.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.verified_bytes + self.frame.len() as u64
    }

    /// Adds bytes of the stream at an offset. Skips bytes that were already received.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let written = self.try_write(offset, bytes);
        self.reset_after_error(written)
    }

    /// Verifies that the stream is complete and that its files are an intact database. Makes the files durable.
    pub(crate) fn finish(&mut self) -> Result<Arc<SnapshotDir>, Error> {
        let finished = self.try_finish();
        self.reset_after_error(finished)
    }

    fn reset_after_error<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if result.is_err() {
            *self = SnapshotReceiver::new(self.root.clone());
        }
        result
    }

    fn try_write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let received = self.received_bytes();
        let Some(known) = received.checked_sub(offset) else {
            return Err(StreamFault::Hole { position: offset }.at(received));
        };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let mut bytes = bytes.get(known..).unwrap_or_default();
        while !bytes.is_empty() {
            let (head, tail) = bytes.split_at(bytes.len().min(FRAME_BYTES - self.frame.len()));
            self.frame.extend(head);
            bytes = tail;
            if self.frame.len() == FRAME_BYTES {
                self.consume_frame()?;
            }
        }
        Ok(())
    }

    fn consume_frame(&mut self) -> Result<(), Error> {
        let at = self.verified_bytes;
        let number = at / FRAME_BYTES as u64;
        let payload = open_frame(&self.frame, self.unpacker.stream_key(), number)
            .map_err(|fault| fault.at(at))?;
        self.unpacker.unpack(&self.root, payload, at)?;
        self.verified_bytes += self.frame.len() as u64;
        self.frame.clear();
        Ok(())
    }

    fn try_finish(&mut self) -> Result<Arc<SnapshotDir>, Error> {
        if let Some(received) = &self.received {
            return Ok(Arc::clone(received));
        }
        if !self.frame.is_empty() {
            self.consume_frame().map_err(|error| match error {
                // A cut frame ends with other bytes than its checksum.
                Error::Stream { offset, source: StreamFault::Checksum { .. } } => {
                    StreamFault::Truncated.at(offset)
                }
                error => error,
            })?;
        }
        let Unpacker::Files(files) = &self.unpacker else {
            return Err(StreamFault::Truncated.at(self.verified_bytes));
        };
        if !files.is_complete() {
            return Err(StreamFault::Truncated.at(self.verified_bytes));
        }
        let dir = Arc::clone(&files.dir);
        // The checksums of the stream do not detect damage that the files already had at the sender. An error here is
        // returned to the sender. An error in the later installation would stop this node.
        verify(&dir.path, &Options::default().vfs(Arc::clone(&self.root.vfs)))?;
        self.root.vfs.sync_dir(&dir.path).map_err(Error::io("sync", &dir.path))?;
        self.root.sync()?;
        self.received = Some(Arc::clone(&dir));
        Ok(dir)
    }
}

/// State of the division of the content into files.
#[derive(Debug)]
enum Unpacker {
    /// Received part of the header and of the file list.
    Header(Vec<u8>),
    Files(UnpackedFiles),
}

#[derive(Debug)]
struct UnpackedFiles {
    dir: Arc<SnapshotDir>,
    stream_key: u64,
    /// Files that are not complete. The first one may be open.
    missing: VecDeque<FileRecord>,
    /// The first of the missing files, with the number of bytes that are missing.
    open: Option<(Arc<dyn File>, u64)>,
}

impl Unpacker {
    /// Returns the random number that seeds the checksums of the stream. Returns `None` until the header has been received.
    fn stream_key(&self) -> Option<u64> {
        match self {
            // With an incomplete file list, the header has been received in the first frame.
            Unpacker::Header(bytes) => StreamHeader::decode(bytes).ok().map(|it| it.stream_key),
            Unpacker::Files(files) => Some(files.stream_key),
        }
    }

    /// Adds a part of the content, whose frame starts at `offset` of the stream.
    fn unpack(&mut self, root: &SnapshotRoot, content: &[u8], offset: u64) -> Result<(), Error> {
        match self {
            Unpacker::Header(bytes) => {
                bytes.extend(content);
                let header = StreamHeader::decode(bytes).map_err(|fault| fault.at(offset))?;
                let list_end = HEADER_BYTES + header.file_list_bytes as usize;
                let Some((prologue, rest)) = bytes.split_at_checked(list_end) else {
                    return Ok(());
                };
                let missing = decode_file_list(&prologue[HEADER_BYTES..]);
                let missing = missing.map_err(|fault| fault.at(offset))?;
                let dir = Arc::new(root.new_dir()?);
                root.vfs.create_dir(&dir.path).map_err(Error::io("create", &dir.path))?;
                let stream_key = header.stream_key;
                let mut files = UnpackedFiles { dir, stream_key, missing, open: None };
                files.append(rest, offset)?;
                *self = Unpacker::Files(files);
                Ok(())
            }
            Unpacker::Files(files) => files.append(content, offset),
        }
    }
}

impl UnpackedFiles {
    fn append(&mut self, mut content: &[u8], offset: u64) -> Result<(), Error> {
        // Empty files at the end of the stream have no content.
        while let Some(first) = self.missing.front() {
            let path = self.dir.path.join(&first.name);
            let (file, missing_bytes) = match self.open.take() {
                Some(open) => open,
                None => {
                    let created = self.dir.root.vfs.create(&path);
                    (created.map_err(Error::io("create", &path))?, first.bytes)
                }
            };
            let len = content.len().min(usize::try_from(missing_bytes).unwrap_or(usize::MAX));
            let (head, tail) = content.split_at(len);
            file.append(head).map_err(Error::io("write", &path))?;
            content = tail;
            if missing_bytes > len as u64 {
                self.open = Some((file, missing_bytes - len as u64));
                break;
            }
            file.sync().map_err(Error::io("sync", &path))?;
            self.missing.pop_front();
        }
        if content.is_empty() { Ok(()) } else { Err(StreamFault::TooLong.at(offset)) }
    }

    fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }
}

/// Decodes the list of files. The names must not lead out of the directory of the snapshot.
fn decode_file_list(bytes: &[u8]) -> Result<VecDeque<FileRecord>, StreamFault> {
    let list: VecDeque<FileRecord> =
        postcard::from_bytes(bytes).map_err(|source| StreamFault::FileList { source })?;
    let is_name = |file: &&FileRecord| {
        let mut components = Path::new(&file.name).components();
        let is_normal = matches!(components.next(), Some(Component::Normal(name)) if name == file.name.as_str());
        is_normal && components.next().is_none() && !file.name.contains('\\')
    };
    match list.iter().find(|file| !is_name(file)) {
        Some(file) => Err(StreamFault::FileName { name: file.name.clone() }),
        None => Ok(list),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_list_with_paths_is_refused() {
        for name in ["", ".", "..", "/etc/passwd", "a/b", "a\\b", "a/"] {
            let list = vec![FileRecord { name: name.to_owned(), bytes: 1 }];
            let decoded = decode_file_list(&postcard::to_stdvec(&list).unwrap());
            assert!(matches!(decoded, Err(StreamFault::FileName { .. })), "{name:?}");
        }
        let list = vec![FileRecord { name: "000001.sst".to_owned(), bytes: 1 }];
        assert!(decode_file_list(&postcard::to_stdvec(&list).unwrap()).is_ok());
    }
}

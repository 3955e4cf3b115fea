//! Receiver of a snapshot stream.

use std::path::{Component, Path};

use lsmx::{Options, verify};
use lsmx_base::sync::Arc;

use crate::error::{Error, StreamFault};
use crate::snapshot::dir::SnapshotDir;
use crate::snapshot::format::{
    FRAME_BYTES, FileRecord, HEADER_BYTES, StreamHeader, frame_checksum, open_frame,
};
use crate::snapshot::partial::{PartialSnapshot, Prologue};
use crate::snapshot::partial_slot::PartialSlot;

/// Verifies the frames of a stream and writes its files to a directory.
///
/// A sender may send a part again, so writes may start before the end of the received bytes. After a damaged or missing part,
/// the verified frames remain. After another error, the receiver discards everything.
#[derive(Debug)]
pub(crate) struct SnapshotReceiver {
    slot: Arc<PartialSlot>,
    /// Bytes of the stream whose frames are verified and written.
    verified_bytes: u64,
    /// Received part of the next frame.
    frame: Vec<u8>,
    unpacker: Unpacker,
    /// The complete directory.
    received: Option<Arc<SnapshotDir>>,
}

/// State of the division of the content into files.
#[derive(Debug)]
enum Unpacker {
    /// Received part of the header and of the file list, and the checksums of its frames.
    Prologue(Vec<u8>, Vec<u64>),
    Files(PartialSnapshot),
}

impl SnapshotReceiver {
    pub(crate) fn new(slot: Arc<PartialSlot>) -> SnapshotReceiver {
        let unpacker = Unpacker::Prologue(Vec::new(), Vec::new());
        SnapshotReceiver { slot, verified_bytes: 0, frame: Vec::new(), unpacker, received: None }
    }

    /// Returns the number of received bytes.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.verified_bytes + self.frame.len() as u64
    }

    /// Adds bytes of the stream at an offset. Skips bytes that were already received.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.compare_header(offset, bytes);
        let written = self.try_write(offset, bytes);
        self.clean_up_after_error(written)
    }

    /// Verifies that the stream is complete and that its files are an intact database. Makes the files durable.
    pub(crate) fn finish(&mut self) -> Result<Arc<SnapshotDir>, Error> {
        let finished = self.try_finish();
        self.clean_up_after_error(finished)
    }

    fn clean_up_after_error<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        use StreamFault::{Checksum, Hole, Truncated};
        match &result {
            Ok(_) => {}
            // The verified frames are those of the sender.
            Err(Error::Stream { source: Checksum { .. } | Hole { .. } | Truncated, .. }) => {
                self.frame.clear();
            }
            Err(_) => {
                if let Unpacker::Files(partial) = &mut self.unpacker {
                    partial.end();
                }
                self.restart();
            }
        }
        result
    }

    fn restart(&mut self) {
        *self = SnapshotReceiver::new(Arc::clone(&self.slot));
    }

    /// Restarts the receipt if bytes differ from those of the received header, because they belong to another snapshot.
    ///
    /// The slot keeps the received part until the checksum of the new header is verified, because the bytes may be damaged.
    fn compare_header(&mut self, offset: u64, bytes: &[u8]) {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        if at >= HEADER_BYTES {
            return;
        }
        let mut known = match &self.unpacker {
            Unpacker::Files(partial) => partial.header.encode(),
            Unpacker::Prologue(content, _) => {
                content.iter().chain(&self.frame).take(HEADER_BYTES).copied().collect()
            }
        };
        let rest = known.get(at..).unwrap_or_default();
        let len = rest.len().min(bytes.len());
        if rest[..len] != bytes[..len] {
            known.truncate(at);
            self.restart();
            self.frame = known;
        }
    }

    fn try_write(&mut self, mut offset: u64, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            // A frame that completes the file list may increase it by the part that an earlier stream has received.
            let received = self.received_bytes();
            let Some(known) = received.checked_sub(offset) else {
                return Err(StreamFault::Hole { position: offset }.at(received));
            };
            let is_new = known == 0;
            let len_max = if is_new { (FRAME_BYTES - self.frame.len()) as u64 } else { known };
            let len = bytes.len().min(usize::try_from(len_max).unwrap_or(usize::MAX));
            let (head, tail) = bytes.split_at(len);
            (offset, bytes) = (offset + len as u64, tail);
            if is_new {
                self.frame.extend(head);
                if self.frame.len() == FRAME_BYTES {
                    self.consume_frame()?;
                }
            }
        }
        Ok(())
    }

    fn consume_frame(&mut self) -> Result<(), Error> {
        let at = self.verified_bytes;
        let number = at / FRAME_BYTES as u64;
        let payload = open_frame(&self.frame, self.unpacker.stream_key(), number)
            .map_err(|fault| fault.at(at))?;
        // A verified frame has a checksum.
        let checksum = frame_checksum(&self.frame).unwrap_or_default();
        self.verified_bytes += self.frame.len() as u64;
        match &mut self.unpacker {
            Unpacker::Prologue(content, checksums) => {
                content.extend(payload);
                checksums.push(checksum);
                if let Some((prologue, rest)) = split_prologue(content, checksums, at)? {
                    let (partial, received_bytes) =
                        PartialSnapshot::begin(&self.slot, prologue, &rest)?;
                    self.unpacker = Unpacker::Files(partial);
                    self.verified_bytes = received_bytes;
                }
            }
            Unpacker::Files(partial) => partial.add_frame(payload, checksum, at)?,
        }
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
        let partial = match &mut self.unpacker {
            Unpacker::Files(partial) if partial.is_complete() => partial,
            _ => return Err(StreamFault::Truncated.at(self.verified_bytes)),
        };
        let (dir, root) = (Arc::clone(partial.dir()), &self.slot.root);
        // The checksums of the stream do not detect damage that the files already had at the sender. An error here is
        // returned to the sender. An error in the later installation would stop this node.
        verify(&dir.path, &Options::default().vfs(Arc::clone(&root.vfs)))?;
        root.vfs.sync_dir(&dir.path).map_err(Error::io("sync", &dir.path))?;
        root.sync()?;
        partial.end();
        self.received = Some(Arc::clone(&dir));
        Ok(dir)
    }
}

impl Unpacker {
    /// Returns the random number that seeds the checksums of the stream. Returns `None` until the header has been received.
    fn stream_key(&self) -> Option<u64> {
        match self {
            // With an incomplete file list, the header has been received in the first frame.
            Unpacker::Prologue(bytes, _) => {
                StreamHeader::decode(bytes).ok().map(|it| it.stream_key)
            }
            Unpacker::Files(partial) => Some(partial.header.stream_key),
        }
    }
}

/// Divides the content of the first frames into the prologue and the bytes that follow it. Returns `None` if the file list is
/// incomplete. `offset` is the start of the last frame in the stream.
fn split_prologue(
    content: &[u8],
    checksums: &[u64],
    offset: u64,
) -> Result<Option<(Prologue, Vec<u8>)>, Error> {
    let header = StreamHeader::decode(content).map_err(|fault| fault.at(offset))?;
    let list_end = HEADER_BYTES + header.file_list_bytes as usize;
    let Some((bytes, rest)) = content.split_at_checked(list_end) else { return Ok(None) };
    let files = decode_file_list(&bytes[HEADER_BYTES..]).map_err(|fault| fault.at(offset))?;
    let (bytes, checksums) = (bytes.to_vec(), checksums.to_vec());
    Ok(Some((Prologue { header, files, bytes, checksums }, rest.to_vec())))
}

/// Decodes the list of files. The names must not lead out of the directory of the snapshot.
fn decode_file_list(bytes: &[u8]) -> Result<Vec<FileRecord>, StreamFault> {
    let list: Vec<FileRecord> =
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

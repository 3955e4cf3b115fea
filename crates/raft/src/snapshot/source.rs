//! Sender of a snapshot stream.

use lsmx_base::sync::Arc;

use crate::error::{Error, StreamFault};
use crate::record::encode;
use crate::snapshot::dir::SnapshotDir;
use crate::snapshot::format::{
    FILE_LIST_BYTES_MAX, FRAME_PAYLOAD_BYTES, FileRecord, HEADER_BYTES, StreamHeader, seal_frame,
    stream_bytes,
};

/// Produces the frames of a stream from the files of a snapshot, in any order. No copy of the stream exists.
#[derive(Debug)]
pub(crate) struct SnapshotSource {
    dir: Arc<SnapshotDir>,
    /// Header and file list.
    prologue: Vec<u8>,
    /// The files, each with the offset of its first byte in the content.
    files: Vec<(u64, FileRecord)>,
    content_bytes: u64,
}

impl SnapshotSource {
    pub(crate) fn open(dir: Arc<SnapshotDir>) -> Result<SnapshotSource, Error> {
        let vfs = &dir.root.vfs;
        let mut list = Vec::new();
        for name in vfs.list(&dir.path).map_err(Error::io("list", &dir.path))? {
            let path = dir.path.join(&name);
            let len = vfs.open(&path).and_then(|file| file.len());
            list.push(FileRecord { name, bytes: len.map_err(Error::io("open", path))? });
        }
        let encoded = encode("file list", &list)?;
        let file_list_bytes = u32::try_from(encoded.len()).unwrap_or(u32::MAX);
        if file_list_bytes > FILE_LIST_BYTES_MAX {
            return Err(StreamFault::FileListTooLarge { bytes: file_list_bytes }.at(0));
        }
        let header = StreamHeader { stream_key: dir.stream_key, file_list_bytes };
        let prologue = [header.encode(), encoded].concat();
        debug_assert_eq!(prologue.len(), HEADER_BYTES + file_list_bytes as usize);
        let mut content_bytes = prologue.len() as u64;
        let mut files = Vec::with_capacity(list.len());
        for file in list {
            let start = content_bytes;
            content_bytes += file.bytes;
            files.push((start, file));
        }
        Ok(SnapshotSource { dir, prologue, files, content_bytes })
    }

    /// Returns the length of the stream.
    pub(crate) fn stream_bytes(&self) -> u64 {
        stream_bytes(self.content_bytes)
    }

    /// Returns a frame with its checksum. The frame must be part of the stream.
    pub(crate) fn read_frame(&self, frame_number: u64) -> Result<Vec<u8>, Error> {
        let start = frame_number * FRAME_PAYLOAD_BYTES as u64;
        let end = self.content_bytes.min(start + FRAME_PAYLOAD_BYTES as u64);
        let mut frame = Vec::with_capacity(FRAME_PAYLOAD_BYTES + size_of::<u64>());
        let prologue = self.prologue.iter().skip(usize::try_from(start).unwrap_or(usize::MAX));
        frame.extend(prologue.take(FRAME_PAYLOAD_BYTES));
        let first = self.files.partition_point(|(offset, file)| offset + file.bytes <= start);
        for (offset, file) in &self.files[first..] {
            let at = start + frame.len() as u64;
            if at >= end {
                break;
            }
            self.read_file(file, at - offset, end - at, &mut frame)?;
        }
        seal_frame(&mut frame, self.dir.stream_key, frame_number);
        Ok(frame)
    }

    /// Appends up to `bytes_max` bytes of a file, starting at `offset`, to `frame`.
    fn read_file(
        &self,
        file: &FileRecord,
        offset: u64,
        bytes_max: u64,
        frame: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let path = self.dir.path.join(&file.name);
        let bytes = (file.bytes - offset).min(bytes_max);
        let at = frame.len();
        // At most the payload of one frame.
        frame.resize(at + usize::try_from(bytes).unwrap_or(FRAME_PAYLOAD_BYTES), 0);
        let handle = self.dir.root.vfs.open(&path).map_err(Error::io("open", &path))?;
        let read = handle.read_at(&mut frame[at..], offset).map_err(Error::io("read", &path))?;
        if (read as u64) < bytes {
            return Err(Error::io("read", path)(std::io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }
}

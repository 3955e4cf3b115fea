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
    /// Seed of the checksums.
    stream_key: u64,
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
        let stream_key = dir.stream_key;
        Ok(SnapshotSource::new(dir, stream_key, prologue, list))
    }

    /// Creates the source of a stream whose files may be incomplete.
    pub(crate) fn new(
        dir: Arc<SnapshotDir>,
        stream_key: u64,
        prologue: Vec<u8>,
        list: Vec<FileRecord>,
    ) -> SnapshotSource {
        let mut content_bytes = prologue.len() as u64;
        let mut files = Vec::with_capacity(list.len());
        for file in list {
            let start = content_bytes;
            // A received list may have any lengths.
            content_bytes = content_bytes.saturating_add(file.bytes);
            files.push((start, file));
        }
        SnapshotSource { dir, stream_key, prologue, files, content_bytes }
    }

    pub(crate) fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    pub(crate) fn frame_count(&self) -> u64 {
        self.content_bytes.div_ceil(FRAME_PAYLOAD_BYTES as u64)
    }

    /// Returns the index of the file that contains a byte of the content, and the offset in the file. The byte must follow the
    /// prologue.
    pub(crate) fn locate(&self, content_offset: u64) -> (usize, u64) {
        let index = self.first_file_after(content_offset);
        let start = self.files.get(index).map_or(content_offset, |(start, _)| *start);
        (index, content_offset.saturating_sub(start))
    }

    /// Returns the index of the first file that ends after a byte of the content.
    fn first_file_after(&self, content_offset: u64) -> usize {
        self.files
            .partition_point(|(start, file)| start.saturating_add(file.bytes) <= content_offset)
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
        for (offset, file) in &self.files[self.first_file_after(start)..] {
            let at = start + frame.len() as u64;
            if at >= end {
                break;
            }
            self.read_file(file, at - offset, end - at, &mut frame)?;
        }
        seal_frame(&mut frame, self.stream_key, frame_number);
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

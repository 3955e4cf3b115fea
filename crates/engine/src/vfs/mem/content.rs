//! Contents of a file in copy-on-write chunks.

use std::ops::Range;

use lsmx_base::sync::Arc;

/// Size of a chunk in bytes. The first append to a clone copies the list of chunks and the last chunk. Large chunks
/// make the copy of the chunk expensive. Small chunks make the copy of the list expensive.
const CHUNK_BYTES: usize = 32 << 10;

/// Contents of a file. Cloning only increments one reference count.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileContent {
    /// All chunks except the last have [`CHUNK_BYTES`] bytes. The last has at least one byte.
    chunks: Arc<Vec<Arc<Vec<u8>>>>,
    len: usize,
}

impl FileContent {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Reads at `offset` until `buffer` is full or the contents end. Returns the number of bytes read.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: usize) -> usize {
        let wanted = buffer.len().min(self.len.saturating_sub(offset));
        let mut filled = 0;
        while filled < wanted {
            let at = offset + filled;
            let chunk = &self.chunks[at / CHUNK_BYTES][at % CHUNK_BYTES..];
            let part = chunk.len().min(wanted - filled);
            buffer[filled..filled + part].copy_from_slice(&chunk[..part]);
            filled += part;
        }
        filled
    }

    pub(crate) fn append(&mut self, mut bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let chunks = Arc::make_mut(&mut self.chunks);
        while !bytes.is_empty() {
            let used = self.len % CHUNK_BYTES;
            let part = bytes.len().min(CHUNK_BYTES - used);
            match chunks.last_mut() {
                Some(last) if used > 0 => Arc::make_mut(last).extend_from_slice(&bytes[..part]),
                _ => chunks.push(Arc::new(bytes[..part].to_vec())),
            }
            self.len += part;
            bytes = &bytes[part..];
        }
    }

    /// Writes `bytes` at `offset`, which must not exceed the length. Extends the contents if needed.
    pub(crate) fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        let (inside, appended) = bytes.split_at(bytes.len().min(self.len - offset));
        self.modify_range(offset..offset + inside.len(), |at, old| {
            old.copy_from_slice(&inside[at - offset..at - offset + old.len()]);
        });
        self.append(appended);
    }

    /// Appends zeros up to a length of `len` bytes.
    pub(crate) fn grow(&mut self, len: usize) {
        while self.len < len {
            let zeros = [0; 1024];
            self.append(&zeros[..zeros.len().min(len - self.len)]);
        }
    }

    /// Truncates to `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        let chunks = Arc::make_mut(&mut self.chunks);
        chunks.truncate(len.div_ceil(CHUNK_BYTES));
        if let Some(last) = chunks.last_mut()
            && !len.is_multiple_of(CHUNK_BYTES)
        {
            *last = Arc::new(last[..len % CHUNK_BYTES].to_vec());
        }
        self.len = len;
    }

    /// Calls `change` for the part of `range` inside the contents, once per chunk, with the offset and the bytes.
    pub(crate) fn modify_range(
        &mut self,
        range: Range<usize>,
        mut change: impl FnMut(usize, &mut [u8]),
    ) {
        let end = range.end.min(self.len);
        if range.start >= end {
            return;
        }
        let chunks = Arc::make_mut(&mut self.chunks);
        let mut at = range.start;
        while at < end {
            let chunk = Arc::make_mut(&mut chunks[at / CHUNK_BYTES]);
            let from = at % CHUNK_BYTES;
            let part = (CHUNK_BYTES - from).min(end - at);
            change(at, &mut chunk[from..from + part]);
            at += part;
        }
    }

    pub(crate) fn zero_range(&mut self, range: Range<usize>) {
        self.modify_range(range, |_, bytes| bytes.fill(0));
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect()
    }
}

impl From<&[u8]> for FileContent {
    fn from(bytes: &[u8]) -> FileContent {
        let mut content = FileContent::default();
        content.append(bytes);
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum ContentStep {
        Append(usize),
        Truncate(usize),
        Change(usize, usize),
        WriteAt(usize, usize),
        Grow(usize),
        Copy,
    }

    fn step() -> impl Strategy<Value = ContentStep> {
        // Lengths near multiples of the chunk size.
        let near = prop_oneof![
            0..100usize,
            CHUNK_BYTES - 2..CHUNK_BYTES + 3,
            0..3 * CHUNK_BYTES,
            Just(CHUNK_BYTES),
            Just(2 * CHUNK_BYTES)
        ];
        prop_oneof![
            near.clone().prop_map(ContentStep::Append),
            near.clone().prop_map(ContentStep::Truncate),
            (near.clone(), near.clone()).prop_map(|(from, len)| ContentStep::Change(from, len)),
            (near.clone(), near.clone()).prop_map(|(at, len)| ContentStep::WriteAt(at, len)),
            near.prop_map(ContentStep::Grow),
            Just(ContentStep::Copy),
        ]
    }

    proptest! {
        #[test]
        fn content_equals_vector_model_and_copies_are_independent(
            steps in prop::collection::vec(step(), 1..12),
        ) {
            let mut content = FileContent::default();
            let mut model: Vec<u8> = Vec::new();
            let mut copies = Vec::new();
            for (round, step) in (1u8..).zip(steps) {
                match step {
                    ContentStep::Append(len) => {
                        content.append(&vec![round; len]);
                        model.resize(model.len() + len, round);
                    }
                    ContentStep::Truncate(len) => {
                        content.truncate(len);
                        model.truncate(len);
                    }
                    ContentStep::Change(from, len) => {
                        content.modify_range(from..from + len, |at, bytes| {
                            assert!(at >= from);
                            bytes.iter_mut().for_each(|byte| *byte ^= round);
                        });
                        model.iter_mut().skip(from).take(len).for_each(|byte| *byte ^= round);
                    }
                    ContentStep::WriteAt(at, len) => {
                        let at = at.min(model.len());
                        content.write_at(at, &vec![round; len]);
                        model.resize(model.len().max(at + len), 0);
                        model[at..at + len].fill(round);
                    }
                    ContentStep::Grow(len) => {
                        content.grow(len);
                        model.resize(model.len().max(len), 0);
                    }
                    ContentStep::Copy => copies.push((content.clone(), model.clone())),
                }
                prop_assert_eq!(content.len(), model.len());
                let offset = model.len() / 2;
                let mut buffer = vec![0; model.len()];
                let read = content.read(&mut buffer, offset);
                prop_assert_eq!(&buffer[..read], &model[offset..]);
            }
            copies.push((content, model));
            for (content, model) in copies {
                prop_assert!(content.to_vec() == model);
            }
        }
    }
}

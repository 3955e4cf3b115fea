//! The bytes of one file, in chunks that copies share until one of them writes.

use std::ops::Range;

use lsmx_base::sync::Arc;

/// Bytes of a chunk. An append after a copy was taken copies one chunk; so small, but not so small
/// that the list of chunks costs more.
const CHUNK_BYTES: usize = 32 << 10;

/// The bytes of one file. A clone costs one reference count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    /// All but the last hold exactly [`CHUNK_BYTES`]; the last holds at least one byte.
    chunks: Arc<Vec<Arc<Vec<u8>>>>,
    len: usize,
}

impl Content {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Reads at `offset` until `buffer` is full or the content ends; returns the bytes read.
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

    /// Puts `bytes` at `offset`, which is not past the end: in place of what is there, and behind it.
    pub(crate) fn put(&mut self, offset: usize, bytes: &[u8]) {
        let (inside, behind) = bytes.split_at(bytes.len().min(self.len - offset));
        self.change(offset..offset + inside.len(), |at, old| {
            old.copy_from_slice(&inside[at - offset..at - offset + old.len()]);
        });
        self.append(behind);
    }

    /// Appends zeros up to `len` bytes, if it has fewer.
    pub(crate) fn grow(&mut self, len: usize) {
        while self.len < len {
            let zeros = [0; 1024];
            self.append(&zeros[..zeros.len().min(len - self.len)]);
        }
    }

    /// Cuts to `len` bytes, if it has more.
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

    /// Hands the bytes of `range` that are there to `change`, piece by piece, each with the offset
    /// of its first byte.
    pub(crate) fn change(&mut self, range: Range<usize>, mut change: impl FnMut(usize, &mut [u8])) {
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

    pub(crate) fn zero(&mut self, range: Range<usize>) {
        self.change(range, |_, bytes| bytes.fill(0));
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect()
    }
}

impl From<&[u8]> for Content {
    fn from(bytes: &[u8]) -> Content {
        let mut content = Content::default();
        content.append(bytes);
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Append(usize),
        Truncate(usize),
        Change(usize, usize),
        Put(usize, usize),
        Grow(usize),
        Copy,
    }

    fn step() -> impl Strategy<Value = Step> {
        // Lengths around the chunk size, where the arithmetic has its corners.
        let near = prop_oneof![
            0..100usize,
            CHUNK_BYTES - 2..CHUNK_BYTES + 3,
            0..3 * CHUNK_BYTES,
            Just(CHUNK_BYTES),
            Just(2 * CHUNK_BYTES)
        ];
        prop_oneof![
            near.clone().prop_map(Step::Append),
            near.clone().prop_map(Step::Truncate),
            (near.clone(), near.clone()).prop_map(|(from, len)| Step::Change(from, len)),
            (near.clone(), near.clone()).prop_map(|(at, len)| Step::Put(at, len)),
            near.prop_map(Step::Grow),
            Just(Step::Copy),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_vector_and_copies_stay_as_they_were(
            steps in prop::collection::vec(step(), 1..12),
        ) {
            let mut content = Content::default();
            let mut model: Vec<u8> = Vec::new();
            let mut copies = Vec::new();
            for (round, step) in (1u8..).zip(steps) {
                match step {
                    Step::Append(len) => {
                        content.append(&vec![round; len]);
                        model.resize(model.len() + len, round);
                    }
                    Step::Truncate(len) => {
                        content.truncate(len);
                        model.truncate(len);
                    }
                    Step::Change(from, len) => {
                        content.change(from..from + len, |at, bytes| {
                            assert!(at >= from);
                            bytes.iter_mut().for_each(|byte| *byte ^= round);
                        });
                        model.iter_mut().skip(from).take(len).for_each(|byte| *byte ^= round);
                    }
                    Step::Put(at, len) => {
                        let at = at.min(model.len());
                        content.put(at, &vec![round; len]);
                        model.resize(model.len().max(at + len), 0);
                        model[at..at + len].fill(round);
                    }
                    Step::Grow(len) => {
                        content.grow(len);
                        model.resize(model.len().max(len), 0);
                    }
                    Step::Copy => copies.push((content.clone(), model.clone())),
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

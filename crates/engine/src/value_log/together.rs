//! Values of several entries that are known at once, such as the next ones of a scan.
//!
//! Values of one blob file lie in key order, so those of neighbouring keys are near each other wherever they
//! were written together: a stretch of the file is one read. What lies in different places can be read at
//! the same time.

use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cache::BlockCache;
use crate::error::Result;
use crate::format::blob::ValuePointer;
use crate::table::FillCache;

use crate::value_log::Blob;

/// Bytes between two values that are read along, since another read costs more: of the system's cache, and of
/// a device.
const GAP_BYTES: [u64; 2] = [2 << 10, 32 << 10];
/// Most bytes of a stretch, but for one longer value.
const STRETCH_BYTES_MAX: u64 = 256 << 10;

/// A value that is to be read, of a blob file that is held by way of an `F`.
#[derive(Debug)]
pub(crate) struct Wanted<F> {
    /// Its place among the entries that are read together.
    pub(crate) place: usize,
    pub(crate) seq: SeqNo,
    pub(crate) file: Arc<F>,
    /// Where it lies, checked to be within the file.
    pub(crate) pointer: ValuePointer,
}

impl<F: AsRef<Blob>> Wanted<F> {
    fn blob(&self) -> &Blob {
        (*self.file).as_ref()
    }

    fn end(&self) -> u64 {
        self.pointer.offset + self.pointer.bytes
    }
}

/// A part of one blob file, from the first of some values to the end of the last.
#[derive(Debug)]
pub(crate) struct Stretch<'a, F> {
    /// In the order of the file; not empty.
    wanted: &'a [Wanted<F>],
    from: u64,
    to: u64,
}

/// What stretches are read into, counted with what else is read ahead while it lives.
#[derive(Debug, Default)]
pub(crate) struct StretchBuffer {
    bytes: Vec<u8>,
    /// Where it is counted, once it has bytes.
    counted: Option<Arc<BlockCache>>,
}

impl StretchBuffer {
    /// So many bytes of it, with anything in them.
    fn lend(&mut self, bytes: usize, cache: &Arc<BlockCache>) -> &mut [u8] {
        if let Some(more) = bytes.checked_sub(self.bytes.len()) {
            self.counted
                .get_or_insert_with(|| Arc::clone(cache))
                .add_read_ahead_bytes(len_u64(more));
            self.bytes.resize(bytes, 0);
        }
        &mut self.bytes[..bytes]
    }
}

impl Drop for StretchBuffer {
    fn drop(&mut self) {
        if let Some(cache) = &self.counted {
            cache.sub_read_ahead_bytes(len_u64(self.bytes.len()));
        }
    }
}

/// Where all these values are to be read, from a device or from the system's cache.
pub(crate) fn stretches<F: AsRef<Blob>>(
    wanted: &mut [Wanted<F>],
    of_device: bool,
) -> Vec<Stretch<'_, F>> {
    wanted.sort_unstable_by_key(|it| (it.pointer.file, it.pointer.offset));
    let gap_bytes = GAP_BYTES[usize::from(of_device)];
    let mut stretches = Vec::new();
    let mut left = &*wanted;
    while let Some(first) = left.first() {
        let from = first.pointer.offset;
        let mut to = first.end();
        let others = left[1..].iter().take_while(|it| {
            let near = it.pointer.file == first.pointer.file
                && it.pointer.offset <= to.saturating_add(gap_bytes)
                && it.end() <= from.saturating_add(STRETCH_BYTES_MAX);
            if near {
                to = to.max(it.end());
            }
            near
        });
        let count = 1 + others.count();
        let (wanted, behind) = left.split_at(count);
        stretches.push(Stretch { wanted, from, to });
        left = behind;
    }
    stretches
}

impl<F: AsRef<Blob>> Stretch<'_, F> {
    /// Says that it is about to be read; returns whether the file system reads it ahead.
    pub(crate) fn will_need(&self) -> bool {
        // A file that cannot be opened is an error of the read.
        let told = |first: &Wanted<F>| first.blob().will_need(self.from, self.bytes());
        self.wanted.first().is_none_or(|first| told(first).unwrap_or(true))
    }

    /// Bytes that are read for it.
    pub(crate) fn bytes(&self) -> u64 {
        self.to - self.from
    }

    /// Reads it and opens its values, each of which is given with its place. Where it cannot be read each
    /// of them is told: nobody tries again behind their back.
    pub(crate) fn read<'k>(
        &self,
        buffer: &mut StretchBuffer,
        fill: FillCache,
        key: impl Fn(usize) -> &'k [u8],
        mut give: impl FnMut(usize, Result<Slice>),
    ) {
        let Some(first) = self.wanted.first() else { return };
        // The file is so long.
        let bytes = usize::try_from(self.bytes()).unwrap_or(0);
        let buffer = buffer.lend(bytes, first.blob().cache());
        let read = first.blob().fill(self.from, buffer, fill);
        for wanted in self.wanted {
            let Wanted { place, seq, pointer, .. } = wanted;
            let value = read.clone().and_then(|()| {
                // A stretch goes from its first value to the end of its last.
                let at = usize::try_from(pointer.offset - self.from).unwrap_or(0);
                let end = at + usize::try_from(pointer.bytes).unwrap_or(0);
                let whose = (key(*place), *seq);
                wanted.blob().open_record(&buffer[at..end], whose, pointer, fill)
            });
            give(*place, value.map(Slice::from_block));
        }
    }
}

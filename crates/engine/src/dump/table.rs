//! Tables: footer, properties, filter, range tombstones, then every block in key order.

use bytes::Bytes;
use lsmx_base::coding::len_u64;
use lsmx_base::filter::Filter;
use lsmx_base::key::{EntryKind, InternalKey};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;

use crate::dump::{Input, Lines, Shown};
use crate::error::Error;
use crate::format::BlockKind;
use crate::format::blob::ValuePointer;
use crate::format::block::{self, Handle};
use crate::format::data_block::DataBlock;
use crate::format::data_block::cursor::DataBlockCursor;
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::index::{IndexBlock, Separator, VersionSide};
use crate::format::properties::TableProperties;
use crate::format::range_tombstones::FragmentedTombstones;

pub(crate) fn show(input: &Input<'_>, lines: &mut Lines<'_>) -> Shown {
    let footer_at = input.bytes.saturating_sub(len_u64(FOOTER_BYTES));
    let footer = input.read(footer_at, input.bytes - footer_at)?;
    let footer =
        Footer::decode(&footer).map_err(|what| Error::malformed(what, input.path, footer_at))?;
    let Handle { offset, bytes } = footer.properties;
    lines.line(format_args!(
        "footer at {footer_at}: format version {}, uid {:016x}, properties at {offset}, {bytes} bytes",
        footer.version, footer.uid
    ))?;
    let blocks = Blocks { input, uid: footer.uid };
    let decoded = blocks.read(footer.properties, BlockKind::Open).and_then(|contents| {
        let properties = TableProperties::decode(&contents);
        properties.map_err(|what| Error::malformed(what, input.path, offset))
    });
    // Only they say where everything else is.
    let properties = decoded?;
    show_properties(&properties, lines)?;
    if let Some(handle) = properties.filter {
        blocks.show_filter(handle, lines)?;
    }
    if let Some(handle) = properties.range_tombstones {
        blocks.show_spans(handle, lines)?;
    }
    match properties.top_index {
        Some(handle) => blocks.show_index(handle, lines),
        None => Ok(()),
    }
}

fn show_properties(properties: &TableProperties, lines: &mut Lines<'_>) -> Shown {
    let p = properties;
    lines.line(format_args!(
        "properties: {} entries, {} tombstones, {} range tombstones, {} key bytes, {} value bytes",
        p.entries, p.tombstones, p.range_tombstone_count, p.key_bytes, p.value_bytes
    ))?;
    lines.line(format_args!(
        "properties: {} data blocks of {} bytes, {} index blocks of {} bytes",
        p.data_blocks, p.data_bytes, p.index_blocks, p.index_bytes
    ))?;
    let (smallest, largest) = (lines.key(&p.smallest), lines.key(&p.largest));
    lines.line(format_args!(
        "properties: keys {smallest} to {largest}, numbers {} to {}, created at {} us",
        p.seq_smallest, p.seq_largest, p.created_us
    ))
}

/// The blocks of one table.
struct Blocks<'a> {
    input: &'a Input<'a>,
    uid: u64,
}

impl Blocks<'_> {
    fn read(&self, handle: Handle, kind: BlockKind) -> Result<Bytes, Error> {
        let at = |what: Malformed| Error::malformed(what, self.input.path, handle.offset);
        handle.check(self.input.bytes).map_err(at)?;
        let stored = self.input.read(handle.offset, handle.bytes)?;
        block::open(stored, kind, self.uid, handle.offset).map_err(at)
    }

    /// Reads and decodes a block; `None` if it is damaged, which has been shown then.
    fn decoded<T>(
        &self,
        handle: Handle,
        kind: BlockKind,
        lines: &mut Lines<'_>,
        decode: impl FnOnce(Bytes) -> Result<T, Malformed>,
    ) -> Shown<Option<T>> {
        let at = |what: Malformed| Error::malformed(what, self.input.path, handle.offset);
        match self.read(handle, kind).and_then(|contents| decode(contents).map_err(at)) {
            Ok(decoded) => Ok(Some(decoded)),
            Err(error @ Error::Io { .. }) => Err(error.into()),
            Err(error) => lines.damaged(error).map(|()| None),
        }
    }

    fn show_filter(&self, handle: Handle, lines: &mut Lines<'_>) -> Shown {
        let Some(filter) = self.decoded(handle, BlockKind::Filter, lines, Filter::new)? else {
            return Ok(());
        };
        let Handle { offset, bytes } = handle;
        let (width, memory) = (filter.width().fingerprint_bits(), filter.bytes());
        lines.line(format_args!(
            "filter at {offset}, {bytes} bytes, {memory} in memory, fingerprints of {width} bits"
        ))
    }

    fn show_spans(&self, handle: Handle, lines: &mut Lines<'_>) -> Shown {
        let decode = |contents: Bytes| FragmentedTombstones::decode(&contents);
        let spans = self.decoded(handle, BlockKind::RangeTombstones, lines, decode)?;
        let Some(spans) = spans else { return Ok(()) };
        let Handle { offset, bytes } = handle;
        lines.line(format_args!("range tombstones at {offset}, {bytes} bytes"))?;
        for span in spans.as_slice() {
            let start = lines.key(&span.start);
            let end = span.end.as_ref().map_or("the end".to_owned(), |end| lines.key(end));
            let numbers: Vec<String> = span.seqs.iter().map(ToString::to_string).collect();
            lines.line(format_args!("  {start} to before {end} at {}", numbers.join(", ")))?;
        }
        Ok(())
    }

    fn entries(
        &self,
        handle: Handle,
        kind: BlockKind,
        lines: &mut Lines<'_>,
    ) -> Shown<Vec<(Option<Separator>, Handle)>> {
        let decode = |contents| IndexBlock::new(contents).and_then(|index| index.entries());
        Ok(self.decoded(handle, kind, lines, decode)?.unwrap_or_default())
    }

    fn show_index(&self, top: Handle, lines: &mut Lines<'_>) -> Shown {
        let indexes = self.entries(top, BlockKind::TopIndex, lines)?;
        lines.line(format_args!(
            "top index at {}, {} bytes, {} index blocks",
            top.offset,
            top.bytes,
            indexes.len()
        ))?;
        for (number, (separator, handle)) in indexes.into_iter().enumerate() {
            let blocks = self.entries(handle, BlockKind::Index, lines)?;
            let up_to = separator_text(separator.as_ref(), lines);
            lines.line(format_args!(
                "index block {number} at {}, {} bytes, {} data blocks, {up_to}",
                handle.offset,
                handle.bytes,
                blocks.len()
            ))?;
            for (after, handle) in blocks {
                self.show_data(after.as_ref().or(separator.as_ref()), handle, lines)?;
            }
        }
        Ok(())
    }

    fn show_data(
        &self,
        separator: Option<&Separator>,
        handle: Handle,
        lines: &mut Lines<'_>,
    ) -> Shown {
        let checked = |contents: Bytes| {
            let block = DataBlock::new(BlockBytes::copy_from(&contents))?;
            block.check().map(|()| block)
        };
        let Some(block) = self.decoded(handle, BlockKind::Data, lines, checked)? else {
            return Ok(());
        };
        let at = |what: Malformed| Error::malformed(what, self.input.path, handle.offset);
        let mut shown = Vec::new();
        let mut entries = 0u64;
        let mut cursor = DataBlockCursor::new(block.clone());
        cursor.first().map_err(at)?;
        while cursor.valid() {
            if lines.options.entries {
                shown.push(entry_text("entry", cursor.key(), cursor.value(), lines));
            }
            entries += 1;
            cursor.next().map_err(at)?;
        }
        let up_to = separator_text(separator, lines);
        lines.line(format_args!(
            "  data block at {}, {} bytes, {entries} entries, {} restarts{}, {up_to}",
            handle.offset,
            handle.bytes,
            block.restarts(),
            if block.has_tags() { ", tags" } else { "" },
        ))?;
        if lines.options.entries {
            return shown.iter().try_for_each(|line| lines.line(format_args!("    {line}")));
        }
        for index in 0..block.restarts() {
            let offset = block.restart(index).map_err(at)?;
            let entry = block.entry(offset).map_err(at)?;
            let key = InternalKey { user_key: entry.suffix, seq: entry.seq, kind: entry.kind };
            let value = block.bytes().get(entry.value_at..entry.next).unwrap_or_default();
            let text = entry_text("restart", key, value, lines);
            lines.line(format_args!("    {text}, offset {offset} in the block"))?;
        }
        Ok(())
    }
}

fn separator_text(separator: Option<&Separator>, lines: &Lines<'_>) -> String {
    let Some(separator) = separator else { return "up to its last entry".to_owned() };
    let key = lines.key(&separator.user_key);
    match separator.versions {
        VersionSide::Before => format!("up to {key}"),
        VersionSide::Split(seq) => format!("up to {key} at {seq}"),
        VersionSide::After => format!("before {key}"),
    }
}

fn entry_text(what: &str, key: InternalKey<'_>, value: &[u8], lines: &Lines<'_>) -> String {
    let (user_key, value_bytes) = (lines.key(key.user_key), value.len());
    if key.kind == EntryKind::ValuePointer
        && let Ok(at) = ValuePointer::decode(value)
    {
        let ValuePointer { file, offset, bytes, value_bytes } = at;
        return format!(
            "{what} {user_key} ValuePointer at {}, value of {value_bytes} bytes in blob {file:06} at \
             {offset}, record of {bytes} bytes",
            key.seq
        );
    }
    format!("{what} {user_key} {:?} at {}, value of {value_bytes} bytes", key.kind, key.seq)
}

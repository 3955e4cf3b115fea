//! Dump of a table: footer, properties, filter, range tombstones, and all blocks in key order.

use bytes::Bytes;
use lsmx_base::coding::len_u64;
use lsmx_base::filter::Filter;
use lsmx_base::key::{EntryKind, InternalKey};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;

use crate::dump::{DumpInput, DumpResult, DumpWriter};
use crate::error::Error;
use crate::format::BlockKind;
use crate::format::blob::ValuePointer;
use crate::format::block::{self, BlockHandle};
use crate::format::data_block::DataBlock;
use crate::format::data_block::cursor::DataBlockCursor;
use crate::format::expiry::{expiry_of, without_expiry};
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::index::{IndexBlock, Separator, SeparatorSide};
use crate::format::prefix_extractor::PrefixExtractor;
use crate::format::properties::TableProperties;
use crate::format::range_tombstones::FragmentedTombstones;

pub(crate) fn dump_table(input: &DumpInput<'_>, out: &mut DumpWriter<'_>) -> DumpResult {
    let footer_offset = input.bytes.saturating_sub(len_u64(FOOTER_BYTES));
    let footer = Footer::decode(&input.read(footer_offset, input.bytes - footer_offset)?)
        .map_err(|what| input.malformed_error(what, footer_offset))?;
    let BlockHandle { offset, bytes } = footer.properties;
    writeln!(
        out,
        "footer at {footer_offset}: format version {}, uid {:016x}, properties at {offset}, {bytes} bytes",
        footer.version, footer.uid
    )?;
    let table = DumpedTable { input, uid: footer.uid };
    // The properties have the handles of all other blocks. Without them nothing can be read.
    let properties = table.read(footer.properties, BlockKind::Open)?;
    let properties =
        TableProperties::decode(&properties).map_err(|what| input.malformed_error(what, offset))?;
    dump_properties(&properties, out)?;
    if let Some(handle) = properties.filter {
        table.dump_filter(handle, out)?;
    }
    if let Some(handle) = properties.range_tombstones {
        table.dump_range_tombstones(handle, out)?;
    }
    match properties.top_index {
        Some(handle) => table.dump_index(handle, out),
        None => Ok(()),
    }
}

fn dump_properties(properties: &TableProperties, out: &mut DumpWriter<'_>) -> DumpResult {
    let p = properties;
    writeln!(
        out,
        "properties: {} entries, {} tombstones, {} range tombstones, {} key bytes, {} value bytes",
        p.entries, p.tombstones, p.range_tombstone_count, p.key_bytes, p.value_bytes
    )?;
    writeln!(
        out,
        "properties: {} data blocks of {} bytes, {} index blocks of {} bytes",
        p.data_blocks, p.data_bytes, p.index_blocks, p.index_bytes
    )?;
    let (smallest, largest) = (out.format_key(&p.smallest), out.format_key(&p.largest));
    writeln!(
        out,
        "properties: keys {smallest} to {largest}, sequence numbers {} to {}, created at {} us",
        p.seq_smallest, p.seq_largest, p.created_us
    )?;
    if p.is_external {
        writeln!(out, "properties: external, the manifest states the sequence number")?;
    }
    match p.prefixes {
        Some(PrefixExtractor::Length(length)) => {
            writeln!(out, "properties: the filter contains the first {length} bytes of keys")?;
        }
        Some(PrefixExtractor::Delimiter(delimiter)) => {
            let delimiter = out.format_key(&[delimiter]);
            writeln!(out, "properties: the filter contains keys up to the byte {delimiter}")?;
        }
        None => {}
    }
    if let Some(expiry) = &p.expiry {
        writeln!(
            out,
            "properties: {} entries expire at {} to {} us, about half of them by {} us",
            expiry.entries, expiry.earliest_us, expiry.latest_us, expiry.median_us
        )?;
        if let Some(bytes) = &expiry.bytes {
            writeln!(
                out,
                "properties: {} of {} bytes expire, about half of them by {} us",
                bytes.expiring, bytes.total, bytes.median_us
            )?;
        }
    }
    Ok(())
}

/// Reads and dumps the blocks of one table.
struct DumpedTable<'a> {
    input: &'a DumpInput<'a>,
    uid: u64,
}

impl DumpedTable<'_> {
    fn read(&self, handle: BlockHandle, kind: BlockKind) -> Result<Bytes, Error> {
        let at = |what: Malformed| self.input.malformed_error(what, handle.offset);
        handle.check_bounds(self.input.bytes).map_err(at)?;
        let stored = self.input.read(handle.offset, handle.bytes)?;
        block::decode_block(stored, kind, self.uid, handle.offset).map_err(at)
    }

    /// Reads and decodes a block. Reports a damaged block and returns `None`.
    fn decode<T>(
        &self,
        handle: BlockHandle,
        kind: BlockKind,
        out: &mut DumpWriter<'_>,
        decode: impl FnOnce(Bytes) -> Result<T, Malformed>,
    ) -> DumpResult<Option<T>> {
        let at = |what: Malformed| self.input.malformed_error(what, handle.offset);
        match self.read(handle, kind).and_then(|contents| decode(contents).map_err(at)) {
            Ok(decoded) => Ok(Some(decoded)),
            Err(error @ Error::Io { .. }) => Err(error.into()),
            Err(error) => out.write_damage_line(error).map(|()| None),
        }
    }

    fn dump_filter(&self, handle: BlockHandle, out: &mut DumpWriter<'_>) -> DumpResult {
        let Some(filter) = self.decode(handle, BlockKind::Filter, out, Filter::new)? else {
            return Ok(());
        };
        let BlockHandle { offset, bytes } = handle;
        let (width, memory) = (filter.width().fingerprint_bits(), filter.bytes());
        writeln!(
            out,
            "filter at {offset}, {bytes} bytes, {memory} in memory, fingerprints of {width} bits"
        )
    }

    fn dump_range_tombstones(&self, handle: BlockHandle, out: &mut DumpWriter<'_>) -> DumpResult {
        let decode = |contents: Bytes| FragmentedTombstones::decode(&contents);
        let tombstones = self.decode(handle, BlockKind::RangeTombstones, out, decode)?;
        let Some(tombstones) = tombstones else { return Ok(()) };
        let BlockHandle { offset, bytes } = handle;
        writeln!(out, "range tombstones at {offset}, {bytes} bytes")?;
        for tombstone in tombstones.as_slice() {
            let start = out.format_key(&tombstone.start);
            let end =
                tombstone.end.as_ref().map_or("the end".to_owned(), |end| out.format_key(end));
            let seqs: Vec<String> = tombstone.seqs.iter().map(ToString::to_string).collect();
            writeln!(out, "  {start} to before {end} at {}", seqs.join(", "))?;
        }
        Ok(())
    }

    fn read_index(
        &self,
        handle: BlockHandle,
        kind: BlockKind,
        out: &mut DumpWriter<'_>,
    ) -> DumpResult<Vec<(Option<Separator>, BlockHandle)>> {
        let decode = |contents| IndexBlock::new(contents).and_then(|index| index.entries());
        Ok(self.decode(handle, kind, out, decode)?.unwrap_or_default())
    }

    fn dump_index(&self, top: BlockHandle, out: &mut DumpWriter<'_>) -> DumpResult {
        let indexes = self.read_index(top, BlockKind::TopIndex, out)?;
        writeln!(
            out,
            "top index at {}, {} bytes, {} index blocks",
            top.offset,
            top.bytes,
            indexes.len()
        )?;
        for (number, (separator, handle)) in indexes.into_iter().enumerate() {
            let blocks = self.read_index(handle, BlockKind::Index, out)?;
            let up_to = format_separator(separator.as_ref(), out);
            writeln!(
                out,
                "index block {number} at {}, {} bytes, {} data blocks, {up_to}",
                handle.offset,
                handle.bytes,
                blocks.len()
            )?;
            for (block_separator, handle) in blocks {
                let separator = block_separator.as_ref().or(separator.as_ref());
                self.dump_data_block(separator, handle, out)?;
            }
        }
        Ok(())
    }

    fn dump_data_block(
        &self,
        separator: Option<&Separator>,
        handle: BlockHandle,
        out: &mut DumpWriter<'_>,
    ) -> DumpResult {
        let decode = |contents: Bytes| {
            let block = DataBlock::new(BlockBytes::copy_from(&contents))?;
            block.check_invariants().map(|()| block)
        };
        let Some(block) = self.decode(handle, BlockKind::Data, out, decode)? else {
            return Ok(());
        };
        let at = |what: Malformed| self.input.malformed_error(what, handle.offset);
        let (mut entries, mut entry_lines) = (0u64, Vec::new());
        let mut cursor = DataBlockCursor::new(block.clone());
        cursor.first().map_err(at)?;
        while cursor.valid() {
            if out.options.entries {
                entry_lines.push(format_entry("entry", cursor.key(), cursor.value(), out));
            }
            entries += 1;
            cursor.next().map_err(at)?;
        }
        let up_to = format_separator(separator, out);
        writeln!(
            out,
            "  data block at {}, {} bytes, {entries} entries, {} restarts{}, {up_to}",
            handle.offset,
            handle.bytes,
            block.restart_count(),
            if block.has_tags() { ", tags" } else { "" }
        )?;
        if out.options.entries {
            return entry_lines.iter().try_for_each(|line| writeln!(out, "    {line}"));
        }
        for index in 0..block.restart_count() {
            let offset = block.restart_offset(index).map_err(at)?;
            let entry = block.entry(offset).map_err(at)?;
            let key = InternalKey { user_key: entry.suffix, seq: entry.seq, kind: entry.kind };
            let value = block.bytes().get(entry.value_at..entry.next).unwrap_or_default();
            let text = format_entry("restart", key, value, out);
            writeln!(out, "    {text}, offset {offset} in the block")?;
        }
        Ok(())
    }
}

fn format_separator(separator: Option<&Separator>, out: &DumpWriter<'_>) -> String {
    let Some(separator) = separator else { return "up to its last entry".to_owned() };
    let key = out.format_key(&separator.user_key);
    match separator.versions {
        SeparatorSide::Before => format!("up to {key}"),
        SeparatorSide::Split(seq) => format!("up to {key} at {seq}"),
        SeparatorSide::After => format!("before {key}"),
    }
}

fn format_entry(label: &str, key: InternalKey<'_>, value: &[u8], out: &DumpWriter<'_>) -> String {
    let (user_key, value_bytes) =
        (out.format_key(key.user_key), without_expiry(key.kind, value).len());
    let expiry = expiry_of(key.kind, value);
    let expiry = expiry.map_or(String::new(), |expiry_us| format!(", expires at {expiry_us} us"));
    if key.kind.without_expiry() == EntryKind::ValuePointer
        && let Ok(pointer) = ValuePointer::decode(without_expiry(key.kind, value))
    {
        let ValuePointer { file, offset, bytes, value_bytes } = pointer;
        return format!(
            "{label} {user_key} {:?} at {}, value of {value_bytes} bytes in blob {file:06} at \
             {offset}, record of {bytes} bytes{expiry}",
            key.kind, key.seq
        );
    }
    format!(
        "{label} {user_key} {:?} at {}, value of {value_bytes} bytes{expiry}",
        key.kind, key.seq
    )
}

//! Bytes that tables and memtables of the engine take for what they hold.
//!
//! The formulas are those of the engine's writers (`docs/format.md` has the pictures). Data blocks
//! of [`BLOCK_BYTES`] each lose what the next entry does not fit into, on average; keys are cut to what they do
//! not share with the one before, which depends on how dense the table's keys lie. What the formulas
//! leave out (the lengths of separators, how full the nodes of a memtable are) was measured on the
//! engine; the constants say so. `crates/bench/tests/simulation.rs` holds both against the engine.

use lsmx_compaction::TableMeta;

use crate::content::Content;
use crate::numbers::{count, ratio, real, whole};

/// Target bytes of a data block and of an index block, as by default.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Entries from one full key to the next, as by default.
const RESTART_INTERVAL: f64 = 16.0;
/// Offset of a restart, in a block without tags and in one with.
const RESTART_BYTES: f64 = 4.0;
const SHORT_RESTART_BYTES: f64 = 2.0;
/// Tag of an entry.
const TAG_BYTES: f64 = 1.0;
/// Entries that are so long have tags.
const TAGGED_ENTRY_BYTES_MIN: f64 = 32.0;
/// Coding, counts and trailer of a data block with tags; one byte more without.
const BLOCK_FRAME_BYTES: f64 = 1.0 + 3.0 + 10.0;
/// Lengths of the shared and the other part of a key, and the kind.
const ENTRY_HEAD_BYTES: f64 = 3.0;
/// What an index block takes for a data block: a boundary and a place, packed. Measured.
const INDEX_ENTRY_BYTES: f64 = 2.0;
/// What it takes besides: what boundaries have in common, and the trailer. Measured.
const INDEX_FRAME_BYTES: f64 = 45.0;
/// The same in the top index, whose offsets are longer.
const TOP_INDEX_ENTRY_BYTES: f64 = 9.0;
/// Index blocks from which on the engine goes by them alone where it divides a merge.
const INDEX_BLOCKS_MANY: f64 = 15.0;
/// Properties and footer, besides the two keys that the properties name.
const FRAME_BYTES: f64 = 221.0;
/// The part of [`FRAME_BYTES`] that a writer counts while it writes.
const FOOTER_BYTES: f64 = 40.0;
/// Bytes of filter that a writer counts per key before it has built it.
const FILTER_BYTES_COUNTED: f64 = 1.125;
/// How much the bytes of entries that are alike differ by what keys happen to share, as a standard
/// deviation.
const ENTRY_BYTES_DEVIATION: f64 = 0.6;
/// What a memtable counts before its first entry. Measured, where memtables are small.
pub(super) const MEMTABLE_BYTES_AT_FIRST: f64 = 500.0;
/// What a memtable takes per entry besides key and value: the entry, its share of the nodes of its
/// tree when keys come in any order, and of what is left of memory chunks. Measured.
const MEMTABLE_ENTRY_BYTES: f64 = 97.5;
/// The same where keys ascend, which leaves nodes half full. Measured.
const MEMTABLE_ENTRY_BYTES_ASCENDING: f64 = 110.0;
/// What a merge operand takes in a memtable besides.
const MEMTABLE_OPERAND_BYTES: f64 = 104.0;
/// What a range delete takes in a memtable besides its two keys, about.
const MEMTABLE_SPAN_BYTES: f64 = 416.0;
/// Offset and length before the bytes of a field in an operand.
const OPERAND_HEAD_BYTES: u64 = 5;
/// Bytes of a value that a merge of a workload writes.
const FIELD_BYTES: u64 = 8;

/// Sizes of one workload's records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) key_bytes: u64,
    pub(super) value_bytes: u64,
    /// Bytes of a sequence number, on average.
    seq_bytes: f64,
}

/// What is in a table, as far as its size depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    pub(super) puts: f64,
    pub(super) operands: f64,
    pub(super) tombstones: f64,
    pub(super) spans: f64,
}

impl Load {
    pub(super) fn of(contents: &[Content], spans: f64) -> Load {
        let mut load = Load { spans, ..Load::default() };
        for content in contents {
            load.puts += content.puts();
            load.operands += content.operands;
            load.tombstones += content.tombstones();
        }
        load
    }

    pub(super) fn add(&mut self, other: &Load) {
        self.puts += other.puts;
        self.operands += other.operands;
        self.tombstones += other.tombstones;
        self.spans += other.spans;
    }

    pub(super) fn entries(&self) -> f64 {
        self.puts + self.operands + self.tombstones
    }
}

/// A table in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TableBytes {
    /// Data blocks.
    pub(super) data_blocks: f64,
    pub(super) data: f64,
    /// Index blocks.
    pub(super) index_blocks: f64,
    pub(super) index: f64,
    pub(super) top_index: f64,
    pub(super) filter: f64,
    pub(super) all: f64,
}

impl Sizes {
    /// For records of these lengths, in a workload of so many writes.
    pub(super) fn new(key_bytes: u64, value_bytes: u64, writes: u64) -> Sizes {
        Sizes { key_bytes, value_bytes, seq_bytes: varint_bytes_mean(writes.max(1)) }
    }

    /// Bytes of a value that merges changed in part.
    pub(super) fn operand_bytes(&self) -> u64 {
        OPERAND_HEAD_BYTES + self.value_bytes.min(FIELD_BYTES)
    }

    /// Bytes of the values of so many entries.
    pub(super) fn value_bytes_of(&self, load: &Load) -> f64 {
        load.puts * real(self.value_bytes) + load.operands * real(self.operand_bytes())
    }

    /// Bytes of a key in a data block where so many lie over the whole key domain as are this dense:
    /// one byte less for each 256-fold density, whole where a restart stands.
    fn key_bytes_stored(&self, density: f64) -> f64 {
        // Neighbours among n keys have log₂₅₆ n bytes in common, less 0.55: their gap is not the
        // mean gap.
        let shared = (libm::log2(density.max(1.0)) / 8.0 - 0.55).max(0.0);
        let shared = shared.min(real(self.key_bytes));
        real(self.key_bytes) - shared * (1.0 - 1.0 / RESTART_INTERVAL)
    }

    /// Bytes of a put, an operand and a tombstone in a data block.
    fn entry_bytes(&self, density: f64) -> (f64, f64, f64) {
        let entry = ENTRY_HEAD_BYTES + self.seq_bytes + self.key_bytes_stored(density);
        // Whether a block has tags hangs on what most of its entries are.
        let all = match entry + real(self.value_bytes) >= TAGGED_ENTRY_BYTES_MIN {
            true => entry + TAG_BYTES + SHORT_RESTART_BYTES / RESTART_INTERVAL,
            false => entry + RESTART_BYTES / RESTART_INTERVAL,
        };
        let with = |value: u64| all + real(value) + varint_bytes(value);
        (with(self.value_bytes), with(self.operand_bytes()), with(0))
    }

    /// How much data blocks take for each byte of entries: their frame, and the room that is left
    /// because the next entry does not fit.
    fn block_share(&self, load: &Load, density: f64) -> f64 {
        let (put, operand, tombstone) = self.entry_bytes(density);
        let bytes = load.puts * put + load.operands * operand + load.tombstones * tombstone;
        let entries = load.entries();
        if entries <= 0.0 {
            return 1.0;
        }
        let mean = bytes / entries;
        let room = real(BLOCK_BYTES) - BLOCK_FRAME_BYTES;
        // Blocks end around their target, so the last gap is half an entry, on average.
        let fitting = (room / mean - 0.5).max(1.0);
        (fitting * mean + BLOCK_FRAME_BYTES) / (fitting * mean)
    }

    /// Bytes of data blocks and of their places in index blocks, per put, operand and tombstone, and
    /// the size of a block.
    pub(super) fn rates(&self, load: &Load, density: f64) -> Rates {
        let share = self.block_share(load, density);
        let (put, operand, tombstone) = self.entry_bytes(density);
        // The last block is as long as the first, but an entry may be longer than a block.
        let mean = ratio(
            load.puts * put + load.operands * operand + load.tombstones * tombstone,
            load.entries(),
        );
        let block = (mean * share).max(
            BLOCK_FRAME_BYTES / (1.0 - 1.0 / share).max(1e-9), // frame ÷ its part of the block
        );
        let index = INDEX_ENTRY_BYTES / block;
        Rates {
            put: put * share,
            operand: operand * share,
            tombstone: tombstone * share,
            span: 2.0 * real(self.key_bytes) + 12.0,
            block,
            index,
        }
    }

    /// The size of a finished table with so many entries, whose keys are `density` to the domain.
    pub(super) fn table(&self, load: &Load, density: f64) -> TableBytes {
        let rates = self.rates(load, density);
        let data = rates.data(load);
        let data_blocks = if data > 0.0 { (data / rates.block).max(1.0) } else { 0.0 };
        let index_entries = data_blocks * INDEX_ENTRY_BYTES;
        let index_blocks = (index_entries / real(BLOCK_BYTES)).ceil();
        let index = index_entries + index_blocks * INDEX_FRAME_BYTES;
        let top_index = if data_blocks > 0.0 {
            index_blocks * TOP_INDEX_ENTRY_BYTES + BLOCK_FRAME_BYTES
        } else {
            0.0
        };
        let filter = filter_bytes(load.entries());
        let frame = FRAME_BYTES + 2.0 * real(self.key_bytes);
        let spans = load.spans * rates.span;
        let all = data + index + top_index + filter + spans + frame;
        TableBytes { data_blocks, data, index_blocks, index, top_index, filter, all }
    }

    /// Bytes of a table as the engine counts them where it divides a merge: those of its data blocks, but
    /// of a table with many index blocks all of them.
    pub(super) fn weight(&self, file: &TableMeta) -> f64 {
        let (bytes, entries) = (real(file.bytes), real(file.entries));
        let frame = FRAME_BYTES + 2.0 * real(self.key_bytes);
        let blocks = (bytes - filter_bytes(entries) - frame).max(0.0);
        let index = blocks / real(BLOCK_BYTES) * INDEX_ENTRY_BYTES;
        if index > INDEX_BLOCKS_MANY * real(BLOCK_BYTES) {
            return bytes;
        }
        (blocks - index).max(1.0)
    }

    /// Bytes that a memtable grows by with a put.
    pub(super) fn memtable_put(&self, ascending: bool) -> f64 {
        real(self.key_bytes + self.value_bytes) + memtable_entry(ascending)
    }

    /// With a tombstone.
    pub(super) fn memtable_delete(&self, ascending: bool) -> f64 {
        real(self.key_bytes) + memtable_entry(ascending)
    }

    /// With an operand.
    pub(super) fn memtable_merge(&self, ascending: bool) -> f64 {
        let bytes = self.key_bytes + self.operand_bytes();
        real(bytes) + memtable_entry(ascending) + MEMTABLE_OPERAND_BYTES
    }

    /// With a range delete.
    pub(super) fn memtable_span(&self) -> f64 {
        2.0 * real(self.key_bytes) + MEMTABLE_SPAN_BYTES
    }
}

fn memtable_entry(ascending: bool) -> f64 {
    if ascending { MEMTABLE_ENTRY_BYTES_ASCENDING } else { MEMTABLE_ENTRY_BYTES }
}

/// What grows with each entry of a table that is being written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    put: f64,
    operand: f64,
    tombstone: f64,
    span: f64,
    /// Bytes of a data block.
    block: f64,
    /// Bytes of index for each byte of data.
    index: f64,
}

impl Rates {
    /// Bytes of data blocks.
    fn data(&self, load: &Load) -> f64 {
        load.puts * self.put + load.operands * self.operand + load.tombstones * self.tombstone
    }

    /// What the engine's writer says it has written after these entries: what outputs are cut by.
    pub(super) fn written(&self, load: &Load) -> f64 {
        self.data(load) * (1.0 + self.index)
            + load.entries() * FILTER_BYTES_COUNTED
            + load.spans * self.span
    }

    /// Standard deviation of [`Rates::written`] after so many bytes.
    pub(super) fn deviation(&self, bytes: f64) -> f64 {
        ENTRY_BYTES_DEVIATION * (bytes / self.put.max(1.0)).max(0.0).sqrt()
    }

    /// What it says before the first entry.
    pub(super) const WRITTEN_AT_FIRST: f64 = FOOTER_BYTES;
}

/// Bytes of a filter block: three-wise binary fuse, a byte for each place.
///
/// Source: Graf and Lemire, ACM JEA 27 (2022), and the package that builds it.
pub(super) fn filter_bytes(keys: f64) -> f64 {
    const FRAME: f64 = 17.0 + 10.0;
    if keys < 1.0 {
        return 0.0;
    }
    /// Natural logarithms of 3.33 and of a million.
    const LN_BASE: f64 = 1.202_972_304;
    const LN_MILLION: f64 = 13.815_510_558;
    let n = keys.max(2.0);
    let ln = libm::log(n);
    let exponent = libm::floor(ln / LN_BASE + 2.25).clamp(2.0, 18.0);
    let segment = real(1 << whole(exponent));
    let factor = (0.875 + 0.25 * LN_MILLION / ln).max(1.125);
    let segments = (n * factor / segment).ceil().max(3.0);
    FRAME + segments * segment
}

/// Bytes of a number as a varint.
fn varint_bytes(n: u64) -> f64 {
    let bits = u64::BITS - n.max(1).leading_zeros();
    f64::from(bits.div_ceil(7))
}

/// Bytes of the numbers 1 to `n` as varints, on average.
fn varint_bytes_mean(n: u64) -> f64 {
    let (mut bytes, mut total, mut from) = (1.0, 0.0, 1_u64);
    loop {
        let next = from.saturating_mul(128);
        // The largest numbers have no power of 128 above them.
        let last = if next == u64::MAX { n } else { n.min(next - 1) };
        total += (real(last - from) + 1.0) * bytes;
        if last == n {
            return total / real(n);
        }
        from = next;
        bytes += 1.0;
    }
}

/// Rounded, and never empty.
pub(super) fn at_least_one(x: f64) -> u64 {
    whole(x).max(count(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_the_bytes_that_they_take() {
        for (n, mean) in [(127, 1.0), (128, 129.0 / 128.0), (16_383, 2.0 - 127.0 / 16_383.0)] {
            assert!((varint_bytes_mean(n) - mean).abs() < 1e-9, "{n}");
        }
        assert!(varint_bytes_mean(20_000_000_000) > 4.9);
        assert!((varint_bytes(112) - 1.0).abs() < 1e-9 && (varint_bytes(128) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn an_entry_more_costs_more_and_blocks_cost_a_few_per_cent() {
        let sizes = Sizes::new(16, 112, 1_000_000);
        let load = |puts| Load { puts, ..Load::default() };
        let table = sizes.table(&load(6000.0), 6000.0);
        let raw = 6000.0 * 128.0;
        assert!(table.all > 1.05 * raw && table.all < 1.12 * raw, "{table:?}");
        assert!(sizes.table(&load(6001.0), 6000.0).all > table.all);
        // Denser keys share more of themselves.
        assert!(sizes.table(&load(6000.0), 1e6).all < table.all);
        let rates = sizes.rates(&load(1.0), 6000.0);
        assert!((rates.written(&load(6000.0)) / table.all - 1.0).abs() < 0.01);
    }

    #[test]
    fn filters_take_nine_bits_and_more_when_small() {
        assert!((1.12..1.2).contains(&(filter_bytes(5e6) / 5e6)));
        assert!((1.2..1.7).contains(&(filter_bytes(6000.0) / 6000.0)));
        assert!(filter_bytes(0.0).abs() < f64::EPSILON);
    }
}

//! Size model of the engine's tables and memtables.
//!
//! The formulas describe the engine's writers. `docs/reference/format.md` describes the layouts. Each data block is
//! padded where the next entry does not fit. A key is stored without the prefix that it shares with the previous key.
//! The length of this prefix depends on the density of the keys.
//!
//! Constants with the note "Measured" cover details that the formulas omit, such as the length of separators and the
//! fill of memtable nodes. `crates/bench/tests/simulation.rs` compares the model with the engine.

use lsmx_compaction::TableMeta;

use crate::entry_counts::EntryCounts;
use crate::math::{ratio, round_to_u64, to_f64};
use crate::write_counts::WriteCounts;

/// Default target size of data blocks and index blocks, in bytes.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Default number of entries between two restart points of a block.
const RESTART_INTERVAL: f64 = 16.0;
/// Bytes of a restart offset in a block without tags. Tags are one-byte hashes of the keys.
const RESTART_BYTES: f64 = 4.0;
/// Bytes of a restart offset in a block with tags.
const SHORT_RESTART_BYTES: f64 = 2.0;
const TAG_BYTES: f64 = 1.0;
/// Minimum mean size of the entries in a block with tags, in bytes.
const TAGGED_ENTRY_BYTES_MIN: f64 = 32.0;
/// Bytes of a data block with tags that are not part of entries: encoding, counts and trailer. A block without tags has
/// one byte more.
const BLOCK_FRAME_BYTES: f64 = 1.0 + 3.0 + 10.0;
/// Bytes of an entry for the lengths of the shared and the stored part of the key, and for the entry kind.
const ENTRY_HEAD_BYTES: f64 = 3.0;
/// Maximum padding of a data block, as a share of [`BLOCK_BYTES`].
const PADDING_SHARE_MAX: f64 = 1.0 / 16.0;
/// Bytes of an index block per data block, for a compressed separator. Measured.
const INDEX_ENTRY_BYTES: f64 = 1.7;
/// Other bytes of an index block: the common prefix of the separators, and the trailer. Measured.
const INDEX_FRAME_BYTES: f64 = 45.0;
/// Bytes of the top index per index block. Measured.
const TOP_INDEX_ENTRY_BYTES: f64 = 9.0;
/// When the engine divides a merge, it counts the data block bytes of tables with at most this number of index blocks.
/// For larger tables, it counts the whole file.
const INDEX_BLOCKS_MANY: f64 = 15.0;
/// Bytes of the properties and the footer, without the two keys in the properties.
const TABLE_FRAME_BYTES: f64 = 221.0;
/// Bytes of the footer. The writer of a table includes them in its size from the start, in contrast to the rest of
/// [`TABLE_FRAME_BYTES`].
const FOOTER_BYTES: f64 = 40.0;
/// Filter bytes per key that the writer of a table assumes before it builds the filter.
const FILTER_BYTES_PER_KEY: f64 = 1.125;
/// Standard deviation of the size of an entry, in bytes. It results from the random lengths of shared key prefixes.
const ENTRY_BYTES_DEVIATION: f64 = 0.6;
/// Bytes of an empty memtable. Measured with small memtables.
pub(crate) const MEMTABLE_BYTES_EMPTY: f64 = 500.0;
/// Bytes of a memtable per entry, without key and value, for keys in random order. Includes a share of tree nodes and
/// of unused chunk memory. Measured.
const MEMTABLE_ENTRY_BYTES: f64 = 97.5;
/// Bytes of a memtable per entry, without key and value, for keys in ascending order, which leave nodes half full.
/// Measured.
const MEMTABLE_ENTRY_BYTES_ASCENDING: f64 = 110.0;
/// Additional bytes of a memtable per merge operand.
const MEMTABLE_OPERAND_BYTES: f64 = 104.0;
/// Approximate bytes of a memtable per range delete, without the two keys.
const MEMTABLE_RANGE_TOMBSTONE_BYTES: f64 = 416.0;
/// Bytes of an operand before its field bytes: an offset and a length.
const OPERAND_HEAD_BYTES: u64 = 5;
/// Bytes of the value that one merge operand of a workload replaces.
const OPERAND_FIELD_BYTES: u64 = 8;

/// Sizes of the records of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeModel {
    pub(crate) key_bytes: u64,
    pub(crate) value_bytes: u64,
    /// Mean encoded length of a sequence number, in bytes.
    seq_bytes: f64,
}

/// Numbers of entries of a table, which determine its size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct EntryTotals {
    pub(crate) puts: f64,
    pub(crate) operands: f64,
    pub(crate) tombstones: f64,
    pub(crate) range_tombstones: f64,
}

impl EntryTotals {
    /// Returns the sums of the counts over all popularity classes.
    pub(crate) fn from_counts(counts: &[EntryCounts], range_tombstones: f64) -> EntryTotals {
        let mut totals = EntryTotals { range_tombstones, ..EntryTotals::default() };
        for class in counts {
            totals.puts += class.puts();
            totals.operands += class.operands;
            totals.tombstones += class.tombstones();
        }
        totals
    }

    pub(crate) fn add(&mut self, other: &EntryTotals) {
        self.puts += other.puts;
        self.operands += other.operands;
        self.tombstones += other.tombstones;
        self.range_tombstones += other.range_tombstones;
    }

    /// Returns the bytes of all entries. The arguments are the bytes of one put, one operand and one tombstone.
    fn bytes_by_kind(&self, [put, operand, tombstone]: [f64; 3]) -> f64 {
        self.puts * put + self.operands * operand + self.tombstones * tombstone
    }

    /// Returns the number of entries without range tombstones.
    pub(crate) fn entries(&self) -> f64 {
        self.puts + self.operands + self.tombstones
    }
}

/// Estimated size of a table and its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TableSize {
    /// Number of data blocks.
    pub(crate) data_blocks: f64,
    pub(crate) data_bytes: f64,
    pub(crate) index_bytes: f64,
    pub(crate) top_index_bytes: f64,
    pub(crate) filter_bytes: f64,
    pub(crate) total_bytes: f64,
}

/// Returns the mean of ⌊x⌋ for a normally distributed number x.
fn mean_floor(mean: f64, deviation: f64) -> f64 {
    // Fourier series of the fractional part. The terms become negligible for larger deviations.
    let term = |j: u32| {
        let wave = std::f64::consts::PI * f64::from(j);
        libm::exp(-2.0 * wave * wave * deviation * deviation) * libm::sin(2.0 * wave * mean) / wave
    };
    mean - 0.5 + (1..=40).map(term).sum::<f64>()
}

impl SizeModel {
    /// Returns the model for records of the given sizes in a workload of `writes` writes.
    pub(crate) fn new(key_bytes: u64, value_bytes: u64, writes: u64) -> SizeModel {
        SizeModel { key_bytes, value_bytes, seq_bytes: mean_varint_bytes(writes.max(1)) }
    }

    pub(crate) fn operand_bytes(&self) -> u64 {
        OPERAND_HEAD_BYTES + self.value_bytes.min(OPERAND_FIELD_BYTES)
    }

    pub(crate) fn value_bytes_of(&self, totals: &EntryTotals) -> f64 {
        totals.bytes_by_kind([to_f64(self.value_bytes), to_f64(self.operand_bytes()), 0.0])
    }

    /// Returns the mean number of stored bytes of a key. `density` is the number of keys that the whole key domain
    /// would have at the density of the table.
    ///
    /// If the density grows by a factor of 256, keys become one byte shorter, except at restart points.
    fn stored_key_bytes(&self, density: f64) -> f64 {
        // Two neighbours among n random keys have a common prefix of log₂₅₆ n − 0.55 bytes on average. Without the
        // constant 0.55, the formula holds for keys at equal distances.
        let shared = (libm::log2(density.max(1.0)) / 8.0 - 0.55).max(0.0);
        let shared = shared.min(to_f64(self.key_bytes));
        to_f64(self.key_bytes) - shared * (1.0 - 1.0 / RESTART_INTERVAL)
    }

    /// Returns the bytes of one put, one operand and one tombstone in a data block.
    fn entry_bytes(&self, density: f64) -> [f64; 3] {
        let entry = ENTRY_HEAD_BYTES + self.seq_bytes + self.stored_key_bytes(density);
        // Most entries are puts, so their size decides whether blocks have tags.
        let has_tags = entry + to_f64(self.value_bytes) >= TAGGED_ENTRY_BYTES_MIN;
        let entry = if has_tags {
            entry + TAG_BYTES + SHORT_RESTART_BYTES / RESTART_INTERVAL
        } else {
            entry + RESTART_BYTES / RESTART_INTERVAL
        };
        let with_value = |bytes: u64| entry + to_f64(bytes) + varint_bytes(bytes);
        [self.value_bytes, self.operand_bytes(), 0].map(with_value)
    }

    /// Returns the bytes of data blocks ÷ bytes of their entries. The difference is block frames and unused space.
    fn block_overhead(totals: &EntryTotals, entry_bytes: [f64; 3]) -> f64 {
        let entries = totals.entries();
        if entries <= 0.0 {
            return 1.0;
        }
        let mean = totals.bytes_by_kind(entry_bytes) / entries;
        let room = to_f64(BLOCK_BYTES) - BLOCK_FRAME_BYTES;
        let square_deviations = entry_bytes.map(|bytes| (bytes - mean) * (bytes - mean));
        let variance = totals.bytes_by_kind(square_deviations) / entries
            + ENTRY_BYTES_DEVIATION * ENTRY_BYTES_DEVIATION;
        let deviation = libm::sqrt(variance * room / mean) / mean;
        let fitting = mean_floor(room / mean, deviation).max(1.0);
        if room - fitting * mean <= PADDING_SHARE_MAX * to_f64(BLOCK_BYTES) {
            return to_f64(BLOCK_BYTES) / (fitting * mean);
        }
        // Without padding, a block has about the target size.
        let fitting = (room / mean - 0.5).max(1.0);
        (fitting * mean + BLOCK_FRAME_BYTES) / (fitting * mean)
    }

    /// Returns the bytes that each entry adds to a table, for the given mixture of entries and the given key density.
    pub(crate) fn table_bytes_per_entry(
        &self,
        totals: &EntryTotals,
        density: f64,
    ) -> TableBytesPerEntry {
        let entry_bytes = self.entry_bytes(density);
        let overhead = SizeModel::block_overhead(totals, entry_bytes);
        let mean = ratio(totals.bytes_by_kind(entry_bytes), totals.entries());
        // An entry that is larger than a block has a block of its own.
        let block = (mean * overhead).max(to_f64(BLOCK_BYTES));
        TableBytesPerEntry {
            entry_bytes: entry_bytes.map(|bytes| bytes * overhead),
            range_tombstone: 2.0 * to_f64(self.key_bytes) + 12.0,
            block_bytes: block,
            index: INDEX_ENTRY_BYTES / block,
        }
    }

    /// Returns the size of a finished table. `density` is the number of keys that the whole key domain would have at
    /// the density of the table.
    pub(crate) fn table_size(&self, totals: &EntryTotals, density: f64) -> TableSize {
        let rates = self.table_bytes_per_entry(totals, density);
        let data_bytes = totals.bytes_by_kind(rates.entry_bytes);
        let data_blocks =
            if data_bytes > 0.0 { (data_bytes / rates.block_bytes).max(1.0) } else { 0.0 };
        let index_entries = data_blocks * INDEX_ENTRY_BYTES;
        let index_blocks = (index_entries / to_f64(BLOCK_BYTES)).ceil();
        let index_bytes = index_entries + index_blocks * INDEX_FRAME_BYTES;
        let top_index_bytes = if data_blocks > 0.0 {
            index_blocks * TOP_INDEX_ENTRY_BYTES + BLOCK_FRAME_BYTES
        } else {
            0.0
        };
        let filter_bytes = filter_bytes(totals.entries());
        let frame = TABLE_FRAME_BYTES + 2.0 * to_f64(self.key_bytes);
        let range_tombstones = totals.range_tombstones * rates.range_tombstone;
        let total_bytes =
            data_bytes + index_bytes + top_index_bytes + filter_bytes + range_tombstones + frame;
        TableSize {
            data_blocks,
            data_bytes,
            index_bytes,
            top_index_bytes,
            filter_bytes,
            total_bytes,
        }
    }

    /// Returns the size that the engine assumes for a table when it divides a merge.
    ///
    /// This is the size of its data blocks. For a table with many index blocks, it is the size of the whole file.
    pub(crate) fn subcompaction_bytes(&self, file: &TableMeta) -> f64 {
        let (bytes, entries) = (to_f64(file.bytes), to_f64(file.entries));
        let frame = TABLE_FRAME_BYTES + 2.0 * to_f64(self.key_bytes);
        let blocks = (bytes - filter_bytes(entries) - frame).max(0.0);
        let index = blocks / to_f64(BLOCK_BYTES) * INDEX_ENTRY_BYTES;
        if index > INDEX_BLOCKS_MANY * to_f64(BLOCK_BYTES) {
            return bytes;
        }
        (blocks - index).max(1.0)
    }

    /// Returns the bytes that a put adds to a memtable. `ascending` states whether keys are written in
    /// ascending order.
    pub(crate) fn memtable_put_bytes(&self, ascending: bool) -> f64 {
        to_f64(self.key_bytes + self.value_bytes) + memtable_entry_bytes(ascending)
    }

    /// Returns the bytes that writes add to a memtable. `ascending` states whether keys are written in ascending
    /// order.
    pub(crate) fn memtable_bytes_of_writes(&self, writes: &WriteCounts, ascending: bool) -> f64 {
        let entry_bytes = memtable_entry_bytes(ascending);
        let operand_bytes = to_f64(self.key_bytes + self.operand_bytes());
        (writes.inserts + writes.updates) * self.memtable_put_bytes(ascending)
            + writes.deletes * (to_f64(self.key_bytes) + entry_bytes)
            + writes.merges * (operand_bytes + entry_bytes + MEMTABLE_OPERAND_BYTES)
            + writes.range_deletes * (2.0 * to_f64(self.key_bytes) + MEMTABLE_RANGE_TOMBSTONE_BYTES)
    }
}

fn memtable_entry_bytes(ascending: bool) -> f64 {
    if ascending { MEMTABLE_ENTRY_BYTES_ASCENDING } else { MEMTABLE_ENTRY_BYTES }
}

/// Bytes that each entry adds to a table under construction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TableBytesPerEntry {
    /// Bytes of a put, an operand and a tombstone.
    entry_bytes: [f64; 3],
    range_tombstone: f64,
    block_bytes: f64,
    /// Index bytes ÷ data bytes.
    index: f64,
}

impl TableBytesPerEntry {
    /// Bytes that the engine's table writer reports before the first entry.
    pub(crate) const WRITTEN_BYTES_INITIAL: f64 = FOOTER_BYTES;

    /// Returns the size that the engine's table writer reports for these entries. Outputs are split at this size.
    pub(crate) fn written_bytes(&self, totals: &EntryTotals) -> f64 {
        totals.bytes_by_kind(self.entry_bytes) * (1.0 + self.index)
            + totals.entries() * FILTER_BYTES_PER_KEY
            + totals.range_tombstones * self.range_tombstone
    }

    /// Returns the standard deviation of [`written_bytes`](Self::written_bytes) for an output of `bytes` bytes.
    pub(crate) fn written_bytes_deviation(&self, bytes: f64) -> f64 {
        ENTRY_BYTES_DEVIATION * (bytes / self.entry_bytes[0].max(1.0)).max(0.0).sqrt()
    }
}

/// Returns the size of a filter block, in bytes. The filter is a three-wise binary fuse filter with one byte per slot.
///
/// Source: Graf and Lemire, ACM JEA 27 (2022), and the crate `xorf`, which builds the filters.
fn filter_bytes(keys: f64) -> f64 {
    const FRAME_BYTES: f64 = 17.0 + 10.0;
    /// ln 3.33.
    const LN_BASE: f64 = 1.202_972_304;
    /// ln 10⁶.
    const LN_MILLION: f64 = 13.815_510_558;
    if keys < 1.0 {
        return 0.0;
    }
    let n = keys.max(2.0);
    let ln = libm::log(n);
    let exponent = libm::floor(ln / LN_BASE + 2.25).clamp(2.0, 18.0);
    let segment = to_f64(1 << round_to_u64(exponent));
    let factor = (0.875 + 0.25 * LN_MILLION / ln).max(1.125);
    let segments = (n * factor / segment).ceil().max(3.0);
    FRAME_BYTES + segments * segment
}

/// Returns the encoded length of `n` as a varint, in bytes.
fn varint_bytes(n: u64) -> f64 {
    let bits = u64::BITS - n.max(1).leading_zeros();
    f64::from(bits.div_ceil(7))
}

/// Returns the mean encoded length of the numbers 1 to `n` as varints, in bytes.
fn mean_varint_bytes(n: u64) -> f64 {
    let (mut bytes, mut total, mut from) = (1.0, 0.0, 1_u64);
    loop {
        let next = from.saturating_mul(128);
        // Saturated powers of 128 exceed all numbers, so this is the last length.
        let last = if next == u64::MAX { n } else { n.min(next - 1) };
        total += (to_f64(last - from) + 1.0) * bytes;
        if last == n {
            return total / to_f64(n);
        }
        from = next;
        bytes += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varint_bytes_agree_with_the_encoding() {
        for (n, mean) in [(127, 1.0), (128, 129.0 / 128.0), (16_383, 2.0 - 127.0 / 16_383.0)] {
            assert!((mean_varint_bytes(n) - mean).abs() < 1e-9, "{n}");
        }
        assert!(mean_varint_bytes(20_000_000_000) > 4.9);
        assert!((varint_bytes(112) - 1.0).abs() < 1e-9 && (varint_bytes(128) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn table_size_grows_with_entries_and_includes_block_overhead() {
        let sizes = SizeModel::new(16, 112, 1_000_000);
        let puts = |puts| EntryTotals { puts, ..EntryTotals::default() };
        let table = sizes.table_size(&puts(6000.0), 6000.0);
        let raw = 6000.0 * 128.0;
        assert!(table.total_bytes > 1.05 * raw && table.total_bytes < 1.12 * raw, "{table:?}");
        assert!(sizes.table_size(&puts(6001.0), 6000.0).total_bytes > table.total_bytes);
        // Denser keys share longer prefixes.
        assert!(sizes.table_size(&puts(6000.0), 1e6).total_bytes < table.total_bytes);
        let rates = sizes.table_bytes_per_entry(&puts(1.0), 6000.0);
        assert!((rates.written_bytes(&puts(6000.0)) / table.total_bytes - 1.0).abs() < 0.01);
    }

    #[test]
    fn mean_floor_is_that_of_the_distribution() {
        for (mean, deviation, expected) in
            [(33.5, 0.02, 33.0), (33.97, 1e-2, 33.0), (33.0, 0.05, 32.5), (33.2, 3.0, 32.7)]
        {
            let floor = mean_floor(mean, deviation);
            assert!((floor - expected).abs() < 0.03, "{mean}, {deviation}: {floor}");
        }
    }

    #[test]
    fn filter_bytes_per_key_fall_with_the_number_of_keys() {
        assert!((1.12..1.2).contains(&(filter_bytes(5e6) / 5e6)));
        assert!((1.2..1.7).contains(&(filter_bytes(6000.0) / 6000.0)));
        assert!(filter_bytes(0.0).abs() < f64::EPSILON);
    }
}

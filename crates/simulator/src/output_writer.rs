//! Writes the outputs of a simulated merge. An output ends at the same size as a table of the engine.

use lsmx_compaction::{FileId, TableMeta};

use crate::entry_counts::EntryCounts;
use crate::histogram::{BinReducer, Histogram, HistogramBin};
use crate::math::round_to_u64;
use crate::position::{POSITION_COUNT, key_range, range_width};
use crate::sampler::Sampler;
use crate::seq_range::SeqRange;
use crate::split_points::SplitPoints;
use crate::table_size::{EntryTotals, SizeModel, TableBytesPerEntry};

/// Minimum estimated number of entries of an output. Outputs with fewer entries are discarded as empty.
const ENTRIES_MIN: f64 = 0.5;
/// Target size above which a job writes a single output.
const OUTPUT_BYTES_MAX: f64 = 1e18;
/// Factor by which the key density must change before the entry sizes are recomputed.
const DENSITY_STEP: f64 = 2.0;
/// Maximum number of histograms kept for reuse.
const SPARE_HISTOGRAMS_MAX: usize = 100;

/// Timestamps that all outputs of a job have in common.
#[derive(Clone, Debug)]
pub(crate) struct OutputTimestamps {
    pub(crate) now_us: u64,
    pub(crate) oldest_tombstone_us: Option<u64>,
}

/// A finished output. The caller sets its file id.
#[derive(Debug)]
pub(crate) struct MergeOutput {
    pub(crate) shape: TableMeta,
    pub(crate) contents: Histogram,
}

#[derive(Debug, Default)]
pub(crate) struct WriteBuffers {
    /// Histograms of removed files, kept for reuse.
    histograms: Vec<Histogram>,
    /// Buffer for the counts of a part of a bin.
    counts: Vec<EntryCounts>,
    reducer: BinReducer,
}

impl WriteBuffers {
    /// Keeps the histograms of removed files for reuse.
    pub(crate) fn recycle(&mut self, removed: impl Iterator<Item = Histogram>) {
        self.histograms.extend(removed);
        self.histograms.truncate(SPARE_HISTOGRAMS_MAX);
    }
}

/// Writes the outputs of one job in key order.
#[derive(Debug)]
pub(crate) struct OutputWriter<'a> {
    sizes: &'a SizeModel,
    times: OutputTimestamps,
    /// Maximum number of bins in the histogram of an output.
    bins_max: usize,
    rates: TableBytesPerEntry,
    /// Key density for which `rates` was computed.
    density: f64,
    current: Option<UnfinishedOutput>,
    buffers: &'a mut WriteBuffers,
    outputs: Vec<MergeOutput>,
}

/// The output that is being written.
#[derive(Debug)]
struct UnfinishedOutput {
    contents: Histogram,
    totals: EntryTotals,
    last_key: LastKey,
    /// Sampled difference between the bytes of the entries and their expected bytes.
    deviation_bytes: f64,
}

/// Distribution from which the position of the last key of an output is sampled: a range and a mean distance.
#[derive(Clone, Copy, Debug)]
struct LastKey {
    from: u64,
    to: u64,
    /// Mean distance between entries. 0 means that a key is known to be at `to`.
    gap: f64,
}

impl LastKey {
    fn sample_position(&self, sampler: &mut Sampler) -> u64 {
        if self.gap <= 0.0 {
            return self.to;
        }
        let distance = round_to_u64(sampler.exponential() * self.gap);
        self.to - distance.min(self.to.saturating_sub(self.from))
    }
}

impl<'a> OutputWriter<'a> {
    /// Returns a writer that expects about `output_count` outputs.
    pub(crate) fn new(
        sizes: &'a SizeModel,
        times: OutputTimestamps,
        bins_max: usize,
        output_count: usize,
        buffers: &'a mut WriteBuffers,
    ) -> OutputWriter<'a> {
        OutputWriter {
            sizes,
            times,
            bins_max,
            // The density 0 differs from that of the first bin, so `add_bin` computes the rates.
            rates: TableBytesPerEntry::default(),
            density: 0.0,
            current: None,
            buffers,
            outputs: Vec::with_capacity(output_count),
        }
    }

    /// Returns the current size of the output, as the engine's table writer would report it.
    fn written_bytes(&self) -> f64 {
        self.current.as_ref().map_or(0.0, |current| {
            TableBytesPerEntry::WRITTEN_BYTES_INITIAL
                + self.rates.written_bytes(&current.totals)
                + current.deviation_bytes
        })
    }

    /// Adds the bin that starts at `from`. Ends outputs where `splits` requires it.
    ///
    /// `keys_at_ends` states whether keys are known to be at the first and at the last position of the bin.
    pub(crate) fn add_bin(
        &mut self,
        from: u64,
        bin: HistogramBin,
        counts: &mut [EntryCounts],
        keys_at_ends: (bool, bool),
        splits: &mut SplitPoints<'_>,
        sampler: &mut Sampler,
    ) {
        let (mut from, mut bin) = (from, bin);
        let mut key_at_start = keys_at_ends.0;
        loop {
            let totals = EntryTotals::from_counts(counts, bin.range_tombstones);
            let entries = totals.entries() + totals.range_tombstones;
            if entries <= 0.0 {
                return;
            }
            let width = range_width(from, bin.end);
            self.update_rates(&totals, width);
            let gap = width / (entries + 1.0);
            if splits.should_split_before_position(from, self.written_bytes())
                || self.current.is_none()
            {
                self.finish_output(sampler);
                let distance =
                    if key_at_start { 0 } else { round_to_u64(sampler.exponential() * gap) };
                from = from.saturating_add(distance).min(bin.end);
                self.start_output(from, splits, sampler);
            }
            // An output that has reached its target size ends before the next key.
            let room = (splits.file_bytes - self.written_bytes()).max(0.0);
            let bytes = self.rates.written_bytes(&totals);
            let Some(current) = self.current.as_mut() else { return };
            let fitting = if bytes > 0.0 { entries * room / bytes } else { entries };
            let fitting = libm::ceil(fitting.max(1.0));
            // A bin with a single position cannot be divided.
            if fitting >= entries - ENTRIES_MIN || from >= bin.end {
                current.contents.push(bin, counts);
                current.totals.add(&totals);
                let gap = if keys_at_ends.1 { 0.0 } else { gap };
                current.last_key = LastKey { from, to: bin.end, gap };
                return;
            }
            let share = fitting / entries;
            let offset = round_to_u64(sampler.order_statistic(fitting, entries) * width);
            let end = from.saturating_add(offset).clamp(from, bin.end - 1);
            let part = &mut self.buffers.counts;
            part.clear();
            part.extend(counts.iter().map(|all| all.scaled(share)));
            let range_tombstones = bin.range_tombstones * share;
            let seqs = bin.seqs.split_off(fitting, entries - fitting, sampler);
            current.contents.push(HistogramBin { end, range_tombstones, seqs }, part);
            current.totals.add(&EntryTotals::from_counts(part, range_tombstones));
            current.last_key = LastKey { from, to: end, gap: 0.0 };
            for (all, part) in counts.iter_mut().zip(&*part) {
                all.subtract(part);
            }
            bin.range_tombstones -= range_tombstones;
            from = end + 1;
            key_at_start = false;
        }
    }

    /// Starts an output whose first key is at position `first`.
    fn start_output(&mut self, first: u64, splits: &SplitPoints<'_>, sampler: &mut Sampler) {
        let mut contents = self.buffers.histograms.pop().unwrap_or_default();
        contents.reset(first);
        let deviation_bytes = if splits.file_bytes < OUTPUT_BYTES_MAX {
            sampler.normal() * self.rates.written_bytes_deviation(splits.file_bytes)
        } else {
            0.0
        };
        let last_key = LastKey { from: first, to: first, gap: 0.0 };
        let totals = EntryTotals::default();
        self.current = Some(UnfinishedOutput { contents, totals, last_key, deviation_bytes });
    }

    /// Computes the entry sizes again if the key density has changed by [`DENSITY_STEP`].
    fn update_rates(&mut self, totals: &EntryTotals, width: f64) {
        let density = totals.entries() * POSITION_COUNT / width;
        if density > self.density * DENSITY_STEP || density * DENSITY_STEP < self.density {
            let mut all = self.current.as_ref().map_or_else(EntryTotals::default, |it| it.totals);
            all.add(totals);
            self.rates = self.sizes.table_bytes_per_entry(&all, density);
            self.density = density;
        }
    }

    /// Finishes the current output, if there is one. Discards an output without entries.
    pub(crate) fn finish_output(&mut self, sampler: &mut Sampler) {
        let Some(UnfinishedOutput { mut contents, totals, last_key, .. }) = self.current.take()
        else {
            return;
        };
        let entries = totals.entries();
        if entries + totals.range_tombstones < ENTRIES_MIN || contents.bins.is_empty() {
            self.buffers.histograms.push(contents);
            return;
        }
        contents.set_end_position(last_key.sample_position(sampler).max(contents.start));
        let range_tombstones = contents.bins.iter().map(|bin| bin.range_tombstones).sum::<f64>();
        let mut seqs = SeqRange::EMPTY;
        contents.bins.iter().for_each(|bin| seqs.extend(&bin.seqs));
        self.buffers.reducer.merge_similar_bins(&mut contents, self.bins_max);
        let shape = self.table_meta_of(&contents, &totals, range_tombstones, seqs);
        self.outputs.push(MergeOutput { shape, contents });
    }

    /// Returns the table metadata that policies see. The caller sets the file id and the creation number.
    fn table_meta_of(
        &self,
        contents: &Histogram,
        totals: &EntryTotals,
        range_tombstones: f64,
        seqs: SeqRange,
    ) -> TableMeta {
        let (start, end) = (contents.start, contents.end_position());
        let entries = totals.entries();
        let density = entries * POSITION_COUNT / range_width(start, end);
        let bytes = self.sizes.table_size(totals, density).total_bytes;
        let tombstones = round_to_u64(totals.tombstones + range_tombstones);
        TableMeta {
            id: FileId(0),
            range: key_range(start, end),
            bytes: round_to_u64(bytes).max(1),
            entries: round_to_u64(entries).max(1),
            tombstones,
            // Any sequence number of the file is valid here, because the simulator takes no snapshots.
            tombstone_seq_smallest: (tombstones > 0).then_some(seqs.smallest),
            value_bytes: round_to_u64(self.sizes.value_bytes_of(totals)),
            oldest_tombstone_us: self.times.oldest_tombstone_us.filter(|_| tombstones > 0),
            // Simulated entries do not expire.
            expiry: None,
            seq_smallest: seqs.smallest,
            seq_largest: seqs.largest,
            last_read_us: self.times.now_us,
            created_us: self.times.now_us,
            creation: 0,
            uid: 0,
            checksum: 0,
        }
    }

    /// Finishes the current output and returns all outputs in key order.
    pub(crate) fn finish(mut self, sampler: &mut Sampler) -> Vec<MergeOutput> {
        self.finish_output(sampler);
        self.outputs
    }
}

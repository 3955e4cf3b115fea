//! A point of a sweep: a workload with the compaction policies and the engine settings to test.

use std::path::Path;
use std::sync::Arc;

use lsmx::merge_operator::FieldUpdate;
use lsmx::{FilterLastRun, KeyspaceOptions, WriteControl};
use lsmx_compaction::PolicySpec;

use crate::error::{Error, Result};
use crate::experiment::sweep::SweepPoint;
use crate::numbers;
use crate::peers::{BLOCK_BYTES, EngineSettings};
use crate::workload::KeyDistribution;
use crate::workload::data_file::DataFile;
use crate::workload::phases::Phase;
use crate::workload::records::{GeneratedRecords, LengthDistribution, Records};
use crate::workload::trace::TraceFile;

use super::estimate;
use super::result::{RecordsSummary, WorkloadSummary};

/// Data size divided by the default size of a memtable, of a table or of the block cache. Sarkar et al., PVLDB 14
/// (2021), use 8 MiB for 1.28 GB of data.
pub const DATA_PER_MEMTABLE: u64 = 150;
/// Approximate overhead of an entry in a memtable, in bytes. The default memtable size includes this overhead, so that
/// the number of flushes is the same as in Sarkar et al., PVLDB 14 (2021).
const MEMTABLE_BYTES_PER_ENTRY: u64 = 112;
/// Minimum default size of a memtable, a table or the block cache, in bytes.
pub const MEMTABLE_BYTES_MIN: u64 = 256 << 10;
/// Maximum length of a key in bytes.
pub const KEY_BYTES_MAX: u64 = 1 << 16;
/// Maximum length of a value in bytes.
pub const VALUE_BYTES_MAX: u64 = 1 << 30;

/// A workload with the compaction policies and the engine settings to test.
#[derive(Debug)]
pub struct WorkloadPoint {
    /// Values of the swept flags.
    pub sweep: SweepPoint,
    /// Compaction policies. Each policy runs in a new database.
    pub policies: Vec<PolicySpec>,
    /// Source of the records or operations.
    pub source: RecordSource,
    /// Phases of the workload.
    pub phases: Vec<Phase>,
    /// Engine settings. The default sizes are derived from the data size, see [`DATA_PER_MEMTABLE`]. If only the
    /// memtable size is set, the table size equals the memtable size. The filter of the last run is off by default.
    pub settings: EngineSettings,
    /// Whether the run is deterministic: jobs run on the writer's thread, and the clock counts operations.
    pub deterministic: bool,
    /// Number of threads that perform the lookups of phases without writes.
    pub threads: u64,
    /// Maximum number of writes per second. Without it, each write begins when the previous operation ends.
    pub write_rate: Option<f64>,
}

/// Source of the records or operations of a workload.
#[derive(Debug)]
pub enum RecordSource {
    /// Generated records.
    Generated {
        /// Length of a key in bytes.
        key_bytes: u64,
        /// Length of a value in bytes.
        value_bytes: u64,
    },
    /// Records that are read from a file.
    File {
        /// The data file.
        file: Box<DataFile>,
        /// Whether the records are shuffled. Each seed gives another order.
        shuffled: bool,
    },
    /// A recorded trace, whose operations replace the phases.
    Trace(Arc<TraceFile>),
}

/// Returns the value, or `None` if the value equals the default of its type.
fn unless_default<T: Default + PartialEq>(value: Option<T>) -> Option<T> {
    value.filter(|value| *value != T::default())
}

/// Sizes of the data, a memtable, a table and the block cache, in bytes. Sizes that are not set have their default
/// values.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct PointSizes {
    /// Total key and value bytes of all puts.
    pub(in crate::experiment) data_bytes: u64,
    pub(in crate::experiment) memtable_bytes: u64,
    pub(in crate::experiment) table_bytes: u64,
    pub(in crate::experiment) block_cache_bytes: u64,
}

impl WorkloadPoint {
    pub(super) fn check(&self, seed: u64) -> Result<()> {
        if let Some(rate) = self.write_rate
            && !(rate.is_finite() && rate > 0.0)
        {
            return Err(Error::invalid_argument("--write-rate", rate, "above 0"));
        }
        match self.source {
            RecordSource::Generated { .. } => self.generate_records(seed).map(drop),
            RecordSource::File { .. } | RecordSource::Trace(_) => Ok(()),
        }
    }

    /// Returns the expected time of the last write, in microseconds of the database clock. A deterministic clock
    /// advances by one microsecond per operation. Otherwise the time is estimated from the assumed rates.
    fn expected_run_us(&self) -> u64 {
        if !self.deterministic {
            return numbers::round_to_u64(estimate::estimate_seconds(self, true) * 1e6);
        }
        let last = self.phases.iter().rposition(|phase| phase.writes() > 0);
        match (&self.source, last) {
            (RecordSource::Trace(trace), _) => trace.counts().ops(),
            (_, Some(last)) => self.phases[..=last].iter().map(Phase::operation_count).sum(),
            (_, None) => 0,
        }
    }

    pub(super) fn ops(&self) -> u64 {
        match &self.source {
            RecordSource::Trace(trace) => trace.counts().ops(),
            _ => self.phases.iter().map(Phase::operation_count).sum(),
        }
    }

    /// Returns the total key and value bytes of all puts, or of all writes of a trace.
    fn data_bytes(&self) -> u64 {
        match &self.source {
            RecordSource::Generated { key_bytes, value_bytes } => {
                let puts: u64 = self.phases.iter().map(|at| at.inserts + at.updates).sum();
                puts.saturating_mul(key_bytes + value_bytes)
            }
            RecordSource::File { file, .. } => file.bytes(),
            RecordSource::Trace(trace) => trace.counts().written_bytes,
        }
    }

    /// Returns the size of a memtable that holds `share` bytes of keys and values, including the memory overhead of
    /// their entries.
    fn memtable_bytes_for(&self, share: u64) -> u64 {
        let writes = match &self.source {
            RecordSource::Trace(trace) => trace.counts().writes(),
            _ => self.phases.iter().map(Phase::writes).sum(),
        };
        let entries = numbers::mul_div(writes, share, self.data_bytes().max(1)).min(writes);
        share.saturating_add(entries.saturating_mul(MEMTABLE_BYTES_PER_ENTRY))
    }

    /// Limits the default memtable and table sizes to `max` bytes of keys and values. Returns the default size before
    /// the limit, or `None` if the limit had no effect.
    pub fn limit_default_memtable(&mut self, max: u64) -> Option<u64> {
        let share = self.data_bytes() / DATA_PER_MEMTABLE;
        if self.settings.memtable_bytes.is_some() || share <= max {
            return None;
        }
        self.settings.memtable_bytes = Some(self.memtable_bytes_for(max));
        self.settings.table_bytes.get_or_insert(max);
        Some(share)
    }

    /// Returns the sizes of the data, a memtable, a table and the block cache. Sizes that are not set have their
    /// default values.
    pub(in crate::experiment) fn effective_sizes(&self) -> PointSizes {
        let data_bytes = self.data_bytes();
        let share = (data_bytes / DATA_PER_MEMTABLE).max(MEMTABLE_BYTES_MIN);
        let given = &self.settings;
        PointSizes {
            data_bytes,
            memtable_bytes: given.memtable_bytes.unwrap_or_else(|| self.memtable_bytes_for(share)),
            table_bytes: given.table_bytes.or(given.memtable_bytes).unwrap_or(share),
            block_cache_bytes: given.block_cache_bytes.unwrap_or(share),
        }
    }

    pub(in crate::experiment) fn effective_settings(&self) -> EngineSettings {
        let sizes = self.effective_sizes();
        let merges = match &self.source {
            RecordSource::Trace(trace) => trace.counts().merges,
            _ => self.phases.iter().map(|phase| phase.merges).sum(),
        };
        let operator = FieldUpdate { value_bytes_max: u32::MAX };
        EngineSettings {
            memtable_bytes: Some(sizes.memtable_bytes),
            table_bytes: Some(sizes.table_bytes),
            block_cache_bytes: Some(sizes.block_cache_bytes),
            filter_last_run: self.settings.filter_last_run.or(Some(FilterLastRun::Off)),
            merge_operator: (merges > 0).then_some(operator),
            ..self.settings.clone()
        }
    }

    /// Returns the options that all keyspaces use. Policy parameters that are fractions of the run time refer to the
    /// time until the last write.
    pub(super) fn keyspace_options(&self, policy: &PolicySpec) -> KeyspaceOptions {
        let policy = policy.clone().with_experiment_duration(self.expected_run_us());
        self.effective_settings().keyspace_options().policy(policy)
    }

    pub(super) fn point_delete_count(&self) -> u64 {
        match &self.source {
            RecordSource::Trace(trace) => trace.counts().deletes,
            _ => self.phases.iter().map(|phase| phase.deletes).sum(),
        }
    }

    /// Returns the records for a run with this seed, and a summary of the records.
    pub(super) fn open_records(&self, seed: u64) -> Result<(Records, RecordsSummary)> {
        let name_of =
            |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match &self.source {
            RecordSource::Generated { .. } => self.generate_records(seed),
            RecordSource::File { file, shuffled } => {
                let file = file.reopen(shuffled.then_some(seed))?;
                let summary = RecordsSummary::File {
                    name: name_of(file.path()),
                    shuffled: *shuffled,
                    records: file.len(),
                    bytes: file.bytes(),
                };
                Ok((Records::File(Box::new(file)), summary))
            }
            RecordSource::Trace(trace) => {
                let (name, counts) = (name_of(trace.path()), trace.counts().clone());
                // A trace contains its own keys and values, so no records are needed.
                Ok((Records::empty()?, RecordsSummary::Trace { name, counts }))
            }
        }
    }

    fn generate_records(&self, seed: u64) -> Result<(Records, RecordsSummary)> {
        let (key_len, value_len) = self.generated_lengths()?.unwrap_or_default();
        let distribution =
            self.phases.first().map_or(KeyDistribution::Uniform, |phase| phase.distribution);
        let inserts = self.phases.iter().map(|phase| phase.inserts).sum();
        let (key, value) =
            (LengthDistribution::Fixed(key_len), LengthDistribution::Fixed(value_len));
        let records = GeneratedRecords::new(distribution, inserts, key, value, seed)?;
        let summary = RecordsSummary::Generated { key_len, value_len, distribution };
        Ok((Records::Generated(Box::new(records)), summary))
    }

    /// Returns the workload as stored in the result.
    pub(in crate::experiment) fn workload_summary(
        &self,
        records: RecordsSummary,
        is_simulated: bool,
    ) -> WorkloadSummary {
        let (sizes, deterministic) = (self.effective_sizes(), self.deterministic || is_simulated);
        WorkloadSummary {
            records,
            phases: self.phases.clone(),
            memtable_bytes: sizes.memtable_bytes,
            table_bytes: sizes.table_bytes,
            block_cache_bytes: sizes.block_cache_bytes,
            write_control: match (deterministic, self.settings.write_control) {
                (true, _) => "none".to_owned(),
                (false, WriteControl::Smooth) => "smooth".to_owned(),
                (false, WriteControl::Stop) => "stop".to_owned(),
            },
            workers: (!deterministic).then(|| numbers::to_u64(self.settings.workers)),
            threads: Some(self.threads).filter(|&threads| threads > 1 && !is_simulated),
            write_rate: self.write_rate,
            filter_last_run: !is_simulated
                && self.settings.filter_last_run == Some(FilterLastRun::On),
            block_bytes: Some(self.settings.block_bytes).filter(|&bytes| bytes != BLOCK_BYTES),
            filter_bits: unless_default(self.settings.filter_bits).map(|bits| bits.to_string()),
            compression: unless_default(self.settings.compression),
            memtable_kind: unless_default(self.settings.memtable_kind).map(|kind| kind.to_string()),
            direct_io: self.settings.direct_io,
            deterministic,
        }
    }

    pub(in crate::experiment) fn has_compression(&self) -> bool {
        unless_default(self.settings.compression).is_some()
    }

    /// Returns whether the settings of blocks or filters differ from those that the simulator assumes.
    pub(in crate::experiment) fn has_lookup_settings(&self) -> bool {
        let EngineSettings { filter_last_run, filter_bits, block_bytes, .. } = self.settings;
        filter_last_run.is_some_and(|it| it != FilterLastRun::Off)
            || unless_default(filter_bits).is_some()
            || block_bytes != BLOCK_BYTES
    }

    /// Returns the key and value lengths of generated records, or `None` for other sources.
    pub(in crate::experiment) fn generated_lengths(&self) -> Result<Option<(u64, u64)>> {
        let RecordSource::Generated { key_bytes, value_bytes } = self.source else {
            return Ok(None);
        };
        Error::check_range("--key-len", key_bytes, 1..=KEY_BYTES_MAX)?;
        Error::check_range("--value-len", value_bytes, 0..=VALUE_BYTES_MAX)?;
        Ok(Some((key_bytes, value_bytes)))
    }

    /// Returns the workload of a simulation as stored in the result.
    pub(in crate::experiment) fn simulated_workload_summary(&self) -> Result<WorkloadSummary> {
        let (key_len, value_len) = self.generated_lengths()?.unwrap_or_default();
        let distribution =
            self.phases.first().map_or(KeyDistribution::Uniform, |phase| phase.distribution);
        Ok(self
            .workload_summary(RecordsSummary::Generated { key_len, value_len, distribution }, true))
    }
}

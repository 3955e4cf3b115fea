//! One point of a sweep: a workload, the policies that are to bear it, the engine's settings.

use std::path::Path;
use std::sync::Arc;

use lsmx_compaction::PolicySpec;

use crate::error::{Error, Result};
use crate::experiment::sweep::SweepPoint;
use crate::numbers;
use crate::workload::KeyDistribution;
use crate::workload::data_file::DataFile;
use crate::workload::phases::Phase;
use crate::workload::records::{GeneratedRecords, Length, Records};
use crate::workload::trace::TraceFile;

use super::cell::Plan;
use super::estimate;
use super::result::{RecordsSummary, Workload};

/// Memtable, table and block cache by default: this part of the data, as in the study, where 8 MiB
/// went with 1.28 GB.
pub const DATA_PER_MEMTABLE: u64 = 150;
/// Bytes that a memtable counts for an entry besides key and value, about; added to the default so
/// that it takes in its part of the data, and the tree gets the study's number of flushes.
const MEMTABLE_BYTES_PER_ENTRY: u64 = 112;
/// They are never smaller than this by default.
pub const MEMTABLE_BYTES_MIN: u64 = 256 << 10;
/// Longest key that can be asked for.
pub const KEY_BYTES_MAX: u64 = 1 << 16;
/// Longest value that can be asked for.
pub const VALUE_BYTES_MAX: u64 = 1 << 30;

/// One workload, and what is to bear it.
#[derive(Debug)]
pub struct Point {
    /// What the swept flags are here.
    pub sweep: SweepPoint,
    /// The policies, a cell each.
    pub policies: Vec<PolicySpec>,
    /// Where the records come from.
    pub source: Source,
    /// What is done with them.
    pub phases: Vec<Phase>,
    /// Bytes of a memtable and of a table; by default what holds a part of the data, see
    /// [`DATA_PER_MEMTABLE`].
    pub memtable_bytes: Option<u64>,
    /// Bytes of a table, where it is not to follow from the memtable.
    pub table_bytes: Option<u64>,
    /// Bytes of the block cache; by default as the memtable's default.
    pub block_cache_bytes: Option<u64>,
    /// How writes are held back when compaction falls behind.
    pub write_control: lsmx::WriteControl,
    /// Threads that compact, beside one that flushes; unused where everything follows from the seed.
    pub workers: usize,
    /// Whether the filter of the last sorted run is asked too.
    pub filter_last_run: bool,
    /// Whether everything follows from the seed.
    pub deterministic: bool,
}

/// Where the records come from.
#[derive(Debug)]
pub enum Source {
    /// Generated, with keys and values of these bytes.
    Generated {
        /// Bytes of a key.
        key_bytes: u64,
        /// Bytes of a value.
        value_bytes: u64,
    },
    /// The records of a file.
    File {
        /// The file.
        file: Box<DataFile>,
        /// Whether they are shuffled, by the seed of each cell.
        shuffled: bool,
    },
    /// A trace, which is played in place of phases.
    Trace(Arc<TraceFile>),
}

/// Sizes that follow from the workload.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Sizes {
    /// Key and value bytes of all puts.
    pub(in crate::experiment) data_bytes: u64,
    pub(in crate::experiment) memtable_bytes: u64,
    pub(in crate::experiment) table_bytes: u64,
    pub(in crate::experiment) block_cache_bytes: u64,
}

impl Point {
    pub(super) fn check(&self, seed: u64) -> Result<()> {
        match self.source {
            Source::Generated { key_bytes, value_bytes } => {
                self.generated(key_bytes, value_bytes, seed).map(drop)
            }
            Source::File { .. } | Source::Trace(_) => Ok(()),
        }
    }

    /// Microseconds of the database's clock to the last write: one for each operation on a driven
    /// clock, else by the assumed rates.
    fn run_us(&self) -> u64 {
        if !self.deterministic {
            return numbers::round(estimate::seconds(self, true) * 1e6);
        }
        let last = self.phases.iter().rposition(|phase| phase.writes() > 0);
        match (&self.source, last) {
            (Source::Trace(trace), _) => trace.counts().ops(),
            (_, Some(last)) => self.phases[..=last].iter().map(Phase::operation_count).sum(),
            (_, None) => 0,
        }
    }

    /// Operations of a run.
    pub(super) fn ops(&self) -> u64 {
        match &self.source {
            Source::Trace(trace) => trace.counts().ops(),
            _ => self.phases.iter().map(Phase::operation_count).sum(),
        }
    }

    pub(in crate::experiment) fn sizes(&self) -> Sizes {
        let data_bytes = match &self.source {
            Source::Generated { key_bytes, value_bytes } => {
                let puts: u64 = self.phases.iter().map(|at| at.inserts + at.updates).sum();
                puts.saturating_mul(key_bytes + value_bytes)
            }
            Source::File { file, .. } => file.bytes(),
            Source::Trace(trace) => trace.counts().put_bytes,
        };
        let share = (data_bytes / DATA_PER_MEMTABLE).max(MEMTABLE_BYTES_MIN);
        let writes = match &self.source {
            Source::Trace(trace) => trace.counts().writes(),
            _ => self.phases.iter().map(Phase::writes).sum(),
        };
        let entries = writes.saturating_mul(share) / data_bytes.max(1);
        let memtable_bytes = share.saturating_add(entries.saturating_mul(MEMTABLE_BYTES_PER_ENTRY));
        Sizes {
            data_bytes,
            memtable_bytes: self.memtable_bytes.unwrap_or(memtable_bytes),
            table_bytes: self.table_bytes.or(self.memtable_bytes).unwrap_or(share),
            block_cache_bytes: self.block_cache_bytes.unwrap_or(share),
        }
    }

    /// What a cell of this point does with this seed.
    pub(super) fn plan(&self, seed: u64, directory: &Path) -> Result<Plan> {
        let (records, summary) = match &self.source {
            Source::Generated { key_bytes, value_bytes } => {
                self.generated(*key_bytes, *value_bytes, seed)?
            }
            Source::File { file, shuffled } => {
                let file = file.reopen(shuffled.then_some(seed))?;
                let summary = RecordsSummary::File {
                    name: file
                        .path()
                        .file_name()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned(),
                    shuffled: *shuffled,
                    records: file.len(),
                    bytes: file.bytes(),
                };
                (Records::File(Box::new(file)), summary)
            }
            Source::Trace(trace) => {
                let name = trace.path().file_name().unwrap_or_default();
                let summary = RecordsSummary::Trace {
                    name: name.to_string_lossy().into_owned(),
                    counts: trace.counts().clone(),
                };
                // Its operations bring their own keys and values.
                (Records::none()?, summary)
            }
        };
        let trace = match &self.source {
            Source::Trace(trace) => Some(Arc::clone(trace)),
            _ => None,
        };
        let sizes = self.sizes();
        Ok(Plan {
            sweep: self.sweep.clone(),
            records,
            summary,
            run_us: self.run_us(),
            trace,
            phases: self.phases.clone(),
            memtable_bytes: sizes.memtable_bytes,
            table_bytes: sizes.table_bytes,
            block_cache_bytes: sizes.block_cache_bytes,
            write_control: self.write_control,
            workers: self.workers,
            filter_last_run: self.filter_last_run,
            deterministic: self.deterministic,
            seed,
            directory: directory.to_owned(),
            decisions: None,
        })
    }

    /// Bytes of keys and values, where records are generated.
    pub(in crate::experiment) fn generated_lengths(&self) -> Result<Option<(u64, u64)>> {
        let Source::Generated { key_bytes, value_bytes } = self.source else { return Ok(None) };
        check_length("--key-len", key_bytes, 1, KEY_BYTES_MAX)?;
        check_length("--value-len", value_bytes, 0, VALUE_BYTES_MAX)?;
        Ok(Some((key_bytes, value_bytes)))
    }

    /// The workload of a simulated cell, for its report.
    pub(in crate::experiment) fn workload_simulated(&self) -> Result<Workload> {
        let (key_len, value_len) = self.generated_lengths()?.unwrap_or_default();
        let distribution =
            self.phases.first().map_or(KeyDistribution::Uniform, |phase| phase.distribution);
        let sizes = self.sizes();
        Ok(Workload {
            records: RecordsSummary::Generated { key_len, value_len, distribution },
            phases: self.phases.clone(),
            memtable_bytes: sizes.memtable_bytes,
            table_bytes: sizes.table_bytes,
            block_cache_bytes: sizes.block_cache_bytes,
            write_control: "none".to_owned(),
            workers: None,
            filter_last_run: false,
            deterministic: true,
        })
    }

    fn generated(
        &self,
        key_bytes: u64,
        value_bytes: u64,
        seed: u64,
    ) -> Result<(Records, RecordsSummary)> {
        let distribution =
            self.phases.first().map_or(KeyDistribution::Uniform, |phase| phase.distribution);
        let inserts = self.phases.iter().map(|phase| phase.inserts).sum();
        check_length("--key-len", key_bytes, 1, KEY_BYTES_MAX)?;
        check_length("--value-len", value_bytes, 0, VALUE_BYTES_MAX)?;
        let (key, value) = (Length::Fixed(key_bytes), Length::Fixed(value_bytes));
        let records = GeneratedRecords::new(distribution, inserts, key, value, seed)?;
        let summary =
            RecordsSummary::Generated { key_len: key_bytes, value_len: value_bytes, distribution };
        Ok((Records::Generated(Box::new(records)), summary))
    }
}

fn check_length(name: &'static str, bytes: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&bytes) {
        return Ok(());
    }
    let must = format!("from {min} to {max}");
    Err(Error::Invalid { name, value: bytes.to_string(), must })
}

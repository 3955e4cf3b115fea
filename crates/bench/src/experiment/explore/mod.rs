//! `lsmx explore`: compaction policies on the engine itself, under one workload.
//!
//! Each policy gets a cell: a fresh database, the phases of the workload one after the other, a
//! settling wherever a phase asks for one and at the end if writes came after the last, and a full
//! scan. Every answer of the database is checked against what the workload says.

mod cell;
pub mod digest;
pub mod history;
mod meter;
pub mod result;

use std::path::PathBuf;

use lsmx_compaction::PolicySpec;

use crate::error::{Error, Result};
use crate::numbers;
use crate::report::provenance::Provenance;
use crate::workload::Distribution;
use crate::workload::data_file::DataFile;
use crate::workload::keys::KeySpace;
use crate::workload::phases::Phase;
use crate::workload::records::Records;

use super::Progress;
use result::{Exploration, RecordsSummary};

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

/// What to explore.
#[derive(Debug)]
pub struct Config {
    /// The policies, a cell each.
    pub policies: Vec<PolicySpec>,
    /// Where the records come from.
    pub source: Source,
    /// What is done with them.
    pub phases: Vec<Phase>,
    /// Bytes of a memtable and of a table; by default what holds a part of the data, see
    /// [`DATA_PER_MEMTABLE`].
    pub memtable_bytes: Option<u64>,
    /// Bytes of the block cache; by default as the memtable's default.
    pub block_cache_bytes: Option<u64>,
    /// How writes are held back when compaction falls behind.
    pub write_control: lsmx::WriteControl,
    /// Whether everything follows from the seed.
    pub deterministic: bool,
    /// The seed.
    pub seed: u64,
    /// Where the databases are made, and removed afterwards.
    pub directory: PathBuf,
    /// The command line, for the provenance.
    pub command: String,
    /// Contents of the spec file, for the provenance.
    pub spec: Option<String>,
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
        /// Whether they are shuffled.
        shuffled: bool,
    },
}

impl Config {
    /// Runs a cell for every policy.
    ///
    /// # Errors
    /// When a parameter is out of range, a database fails or gives a wrong answer.
    pub fn run(self, progress: &mut dyn Progress) -> Result<Exploration> {
        let provenance =
            Provenance::new(self.command.clone(), self.spec.clone(), self.seed, &self.directory);
        let (mut records, summary, data_bytes) = self.source.records(&self.phases, self.seed)?;
        let share = (data_bytes / DATA_PER_MEMTABLE).max(MEMTABLE_BYTES_MIN);
        let writes: u64 = self.phases.iter().map(Phase::writes).sum();
        let entries = writes.saturating_mul(share) / data_bytes.max(1);
        let memtable_bytes = self
            .memtable_bytes
            .unwrap_or(share.saturating_add(entries.saturating_mul(MEMTABLE_BYTES_PER_ENTRY)));
        let plan = cell::Plan {
            records: summary,
            phases: self.phases,
            memtable_bytes,
            table_bytes: self.memtable_bytes.unwrap_or(share),
            block_cache_bytes: self.block_cache_bytes.unwrap_or(share),
            write_control: self.write_control,
            deterministic: self.deterministic,
            seed: self.seed,
            directory: self.directory,
        };
        let cells = self
            .policies
            .iter()
            .map(|policy| cell::run(&plan, policy, &mut records, progress))
            .collect::<Result<Vec<_>>>()?;
        Ok(Exploration { provenance, cells })
    }
}

impl Source {
    /// The records, what the report says of them, and the key and value bytes of all puts.
    fn records(self, phases: &[Phase], seed: u64) -> Result<(Records, RecordsSummary, u64)> {
        match self {
            Source::Generated { key_bytes, value_bytes } => {
                let distribution =
                    phases.first().map_or(Distribution::Uniform, |phase| phase.distribution);
                let inserts = phases.iter().map(|phase| phase.inserts).sum();
                check_length("--key-len", key_bytes, 1, KEY_BYTES_MAX)?;
                check_length("--value-len", value_bytes, 0, VALUE_BYTES_MAX)?;
                let keys = KeySpace::new(distribution, inserts, numbers::length(key_bytes), seed)?;
                let puts: u64 = phases.iter().map(|phase| phase.inserts + phase.updates).sum();
                let summary = RecordsSummary::Generated {
                    key_len: key_bytes,
                    value_len: value_bytes,
                    distribution,
                };
                let value_length = numbers::length(value_bytes);
                let keys = Box::new(keys);
                let records = Records::Generated { keys, value_bytes: value_length, seed };
                Ok((records, summary, puts.saturating_mul(key_bytes + value_bytes)))
            }
            Source::File { file, shuffled } => {
                let name = file.path().file_name().unwrap_or_default();
                let summary = RecordsSummary::File {
                    name: name.to_string_lossy().into_owned(),
                    shuffled,
                    records: file.len(),
                    bytes: file.bytes(),
                };
                let bytes = file.bytes();
                Ok((Records::File(file), summary, bytes))
            }
        }
    }
}

fn check_length(name: &'static str, bytes: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&bytes) {
        return Ok(());
    }
    let must = format!("from {min} to {max}");
    Err(Error::Invalid { name, value: bytes.to_string(), must })
}

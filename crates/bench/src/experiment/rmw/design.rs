//! What is compared: how a field is updated, where values and operands lie, which engine does it.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use lsmx::merge_operator::FieldUpdate;
use lsmx::{KeyspaceOptions, Options, ValueSeparation};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::peers::lsmx::Counted;
use crate::peers::{self, BLOCK_BYTES, Fields, Kind};

/// How a field is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The value is read, changed and put.
    GetPut,
    /// An operand is merged, an entry of the tree like any other.
    Merge,
    /// An operand is merged, and kept apart from the tree.
    Kd,
}

/// Where values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Base {
    /// In the tree.
    Tree,
    /// In a value log; the tree points to them.
    ValueLog,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 3] = [Mode::GetPut, Mode::Merge, Mode::Kd];
    /// What is compared where nothing else is asked for.
    pub const DEFAULT: [Mode; 3] = Mode::ALL;

    /// The name as typed and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::GetPut => "get-put",
            Mode::Merge => "merge",
            Mode::Kd => "kd",
        }
    }
}

impl Base {
    /// All of them.
    pub const ALL: [Base; 2] = [Base::Tree, Base::ValueLog];

    /// The name as typed and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Base::Tree => "tree",
            Base::ValueLog => "value-log",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Mode, String> {
        let known =
            || format!("unknown mode {text:?}; known: {}", Mode::ALL.map(Mode::name).join(", "));
        Mode::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(known)
    }
}

impl FromStr for Base {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Base, String> {
        let known =
            || format!("unknown base {text:?}; known: {}", Base::ALL.map(Base::name).join(", "));
        Base::ALL.into_iter().find(|base| base.name() == text).ok_or_else(known)
    }
}

/// One engine in one mode over one base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Design {
    /// The engine.
    pub engine: Kind,
    /// How a field is updated.
    pub mode: Mode,
    /// Where values lie.
    pub base: Base,
}

/// Memory and files of a database.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resources {
    pub(super) memory_budget: u64,
    pub(super) value_bytes_max: u32,
    pub(super) direct_io: bool,
    /// Bytes of values that a scan is to get by one read of a blob file.
    pub(super) scan_read_bytes: Option<u64>,
    /// How operands that are kept apart are kept.
    pub(super) delta: DeltaOptions,
}

impl Design {
    /// The designs of these engines, modes and bases that there are: operands apart from the tree are ours
    /// alone.
    pub(super) fn all(engines: &[Kind], modes: &[Mode], bases: &[Base]) -> Vec<Design> {
        let pairs = modes.iter().flat_map(|&mode| bases.iter().map(move |&base| (mode, base)));
        let designs = pairs.flat_map(|(mode, base)| {
            engines.iter().map(move |&engine| Design { engine, mode, base })
        });
        designs.filter(|it| it.engine == Kind::Lsmx || it.mode != Mode::Kd).collect()
    }

    /// Opens the database in this directory, or makes one.
    pub(super) fn open(self, path: &Path, resources: Resources) -> Result<Box<dyn Fields>> {
        if self.engine != Kind::Lsmx {
            let merges = self.mode == Mode::Merge;
            let settings = peers::FieldSettings {
                memory_budget: resources.memory_budget,
                value_bytes_max: resources.value_bytes_max,
                direct_io: resources.direct_io,
                merges,
                value_log: self.base == Base::ValueLog,
            };
            return self.engine.open_fields(path, &settings);
        }
        let options = Options::default()
            .memory_budget(resources.memory_budget)
            .direct_reads(resources.direct_io)
            .keyspace_defaults(keyspace_options(self.mode, self.base, resources));
        Ok(Box::new(Counted::open(path, options)?))
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.engine, self.mode, self.base)
    }
}

/// How our keyspace is opened.
fn keyspace_options(mode: Mode, base: Base, resources: Resources) -> KeyspaceOptions {
    let options = KeyspaceOptions::default().block_bytes(BLOCK_BYTES);
    let options = match base {
        Base::Tree => options,
        Base::ValueLog => {
            // Every value, as the peers do it: the default leaves those of less than 1 KiB in the tree.
            let mut separation =
                ValueSeparation { threshold_bytes: 1, ..ValueSeparation::default() };
            if let Some(bytes) = resources.scan_read_bytes {
                separation.scan_read_bytes = bytes;
            }
            options.value_separation(separation)
        }
    };
    let operator = FieldUpdate { value_bytes_max: resources.value_bytes_max };
    match mode {
        Mode::GetPut => options,
        Mode::Merge => options.merge_operator(operator),
        Mode::Kd => {
            options.merge_operator(operator).operand_store(DeltaStoreFactory::new(resources.delta))
        }
    }
}

/// Whether a design can be opened.
///
/// # Errors
/// [`Error::Invalid`] for what this build does not have.
pub(super) fn check(design: Design) -> Result<()> {
    if design.engine == Kind::Lsmx {
        return Ok(());
    }
    // A peer that is not built in says how to build with it.
    Kind::peer(design.engine.name())?.can_have_fields()
}

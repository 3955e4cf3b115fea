//! The designs that are compared: an engine, the way in which it updates a field, and the place of values.

use std::fmt;
use std::path::Path;

use lsmx::ValueSeparation;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::named::impl_names;
use crate::peers::{Engine, EngineSettings, Kind};

/// The way in which a field is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The value is read, changed and put.
    GetPut,
    /// A merge operand is written into the tree.
    Merge,
    /// A merge operand is written into the operand store.
    Kd,
}

/// The place of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Base {
    /// In the tree.
    Tree,
    /// In the value log, to which the tree points.
    ValueLog,
}

impl_names!(Mode, "mode");
impl_names!(Base, "base");

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 3] = [Mode::GetPut, Mode::Merge, Mode::Kd];

    /// Returns the name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Mode::GetPut => "get-put",
            Mode::Merge => "merge",
            Mode::Kd => "kd",
        }
    }
}

impl Base {
    /// All bases.
    pub const ALL: [Base; 2] = [Base::Tree, Base::ValueLog];

    /// Returns the name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Base::Tree => "tree",
            Base::ValueLog => "value-log",
        }
    }
}

/// One engine in one mode over one base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Design {
    /// The engine.
    pub engine: Kind,
    /// The way in which a field is updated.
    pub mode: Mode,
    /// The place of values.
    pub base: Base,
}

impl Design {
    /// Returns the designs of these engines, modes and bases. Only lsmx has an operand store.
    pub(super) fn all(engines: &[Kind], modes: &[Mode], bases: &[Base]) -> Vec<Design> {
        let pairs = modes.iter().flat_map(|&mode| bases.iter().map(move |&base| (mode, base)));
        let designs = pairs.flat_map(|(mode, base)| {
            engines.iter().map(move |&engine| Design { engine, mode, base })
        });
        designs.filter(|it| it.engine == Kind::Lsmx || it.mode != Mode::Kd).collect()
    }

    /// Opens the database in a directory, or creates it. The design uses the merge operator, the separation of
    /// values and the operand store of `settings` if it needs them.
    pub(super) fn open(self, path: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        let separates = self.base == Base::ValueLog;
        let mut settings = settings.clone();
        settings.merge_operator = settings.merge_operator.filter(|_| self.mode != Mode::GetPut);
        settings.operand_store = settings.operand_store.filter(|_| self.mode == Mode::Kd);
        settings.value_separation = settings.value_separation.filter(|_| separates);
        self.engine.open(path, &settings)
    }
}

/// Returns the separation of all values, as the peers do it. By default lsmx leaves short values in the tree.
pub(super) fn separate_all_values(scan_read_bytes: Option<u64>) -> ValueSeparation {
    let separation = ValueSeparation { threshold_bytes: 1, ..ValueSeparation::default() };
    let scan_read_bytes = scan_read_bytes.unwrap_or(separation.scan_read_bytes);
    ValueSeparation { scan_read_bytes, ..separation }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.engine, self.mode, self.base)
    }
}

//! Designs to compare. A design is an engine with an update mode and a storage location for values.

use std::fmt;
use std::path::Path;

use lsmx::{RmwMode, ValueSeparation};
use serde::{Deserialize, Serialize};

use crate::enum_names::impl_names;
use crate::error::Result;
use crate::peers::{Engine, EngineKind, EngineSettings};

/// How a field of a value is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateMode {
    /// Reads the value, changes the field, and puts the value.
    GetPut,
    /// Writes a merge operand to the tree.
    Merge,
    /// Writes a merge operand to the operand store.
    Kd,
    /// Like `Merge`, but operands are combined only with the value, and never with each other.
    MergeUnfolded,
    /// Like `Merge`, but with [`RmwMode::Adaptive`].
    MergeAdaptive,
    /// Like `Kd`, but with [`RmwMode::Adaptive`].
    KdAdaptive,
}

/// Where values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValuePlacement {
    /// Values are stored in the tree.
    Tree,
    /// Values are stored in the value log. The tree stores pointers to them.
    ValueLog,
}

impl_names!(UpdateMode, "mode");
impl_names!(ValuePlacement, "base");

impl UpdateMode {
    /// All update modes.
    pub const ALL: [UpdateMode; 6] = [
        UpdateMode::GetPut,
        UpdateMode::Merge,
        UpdateMode::Kd,
        UpdateMode::MergeUnfolded,
        UpdateMode::MergeAdaptive,
        UpdateMode::KdAdaptive,
    ];
    /// The update modes that `lsmx rmw` compares by default.
    pub const DEFAULT: [UpdateMode; 3] = [UpdateMode::GetPut, UpdateMode::Merge, UpdateMode::Kd];

    /// Returns the name of the mode on the command line.
    pub fn name(self) -> &'static str {
        match self {
            UpdateMode::GetPut => "get-put",
            UpdateMode::Merge => "merge",
            UpdateMode::Kd => "kd",
            UpdateMode::MergeUnfolded => "merge-unfolded",
            UpdateMode::MergeAdaptive => "merge-adaptive",
            UpdateMode::KdAdaptive => "kd-adaptive",
        }
    }

    /// Returns whether operands are written to the operand store.
    pub(super) fn uses_operand_store(self) -> bool {
        matches!(self, UpdateMode::Kd | UpdateMode::KdAdaptive)
    }

    /// Returns whether only lsmx has this mode.
    fn is_own(self) -> bool {
        matches!(self, UpdateMode::Kd | UpdateMode::MergeAdaptive | UpdateMode::KdAdaptive)
    }

    fn rmw_mode(self) -> RmwMode {
        match self {
            UpdateMode::MergeAdaptive | UpdateMode::KdAdaptive => RmwMode::Adaptive,
            _ => RmwMode::Fixed,
        }
    }
}

impl ValuePlacement {
    /// All storage locations of values.
    pub const ALL: [ValuePlacement; 2] = [ValuePlacement::Tree, ValuePlacement::ValueLog];

    /// Returns the name of the storage location on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ValuePlacement::Tree => "tree",
            ValuePlacement::ValueLog => "value-log",
        }
    }
}

/// An engine with an update mode and a storage location for values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineDesign {
    /// Storage engine.
    pub engine: EngineKind,
    /// How a field of a value is updated.
    pub mode: UpdateMode,
    /// Where values are stored.
    pub base: ValuePlacement,
}

impl EngineDesign {
    /// Returns all supported combinations of engines, update modes and storage locations. Engines other than lsmx
    /// support only [`UpdateMode::GetPut`], [`UpdateMode::Merge`] and [`UpdateMode::MergeUnfolded`].
    pub(super) fn combinations(
        engines: &[EngineKind],
        modes: &[UpdateMode],
        bases: &[ValuePlacement],
    ) -> Vec<EngineDesign> {
        let pairs = modes.iter().flat_map(|&mode| bases.iter().map(move |&base| (mode, base)));
        let designs = pairs.flat_map(|(mode, base)| {
            engines.iter().map(move |&engine| EngineDesign { engine, mode, base })
        });
        designs.filter(|it| it.engine == EngineKind::Lsmx || !it.mode.is_own()).collect()
    }

    /// Opens or creates the database in a directory. The merge operator, value separation and operand store of
    /// `settings` are used only if the design needs them.
    pub(super) fn open_database(
        self,
        path: &Path,
        settings: &EngineSettings,
    ) -> Result<Box<dyn Engine>> {
        let separates = self.base == ValuePlacement::ValueLog;
        let mut settings = settings.clone();
        settings.merge_operator =
            settings.merge_operator.filter(|_| self.mode != UpdateMode::GetPut);
        settings.partial_merges = self.mode != UpdateMode::MergeUnfolded;
        settings.operand_store = settings.operand_store.filter(|_| self.mode.uses_operand_store());
        settings.other_keyspace_options =
            settings.other_keyspace_options.rmw_mode(self.mode.rmw_mode());
        settings.value_separation = settings.value_separation.filter(|_| separates);
        self.engine.open(path, &settings)
    }
}

/// Returns settings that store all values in the value log, as the other engines do. By default lsmx keeps short values
/// in the tree.
pub(super) fn separate_all_values(scan_read_bytes: Option<u64>) -> ValueSeparation {
    let separation = ValueSeparation { threshold_bytes: 1, ..ValueSeparation::default() };
    let scan_read_bytes = scan_read_bytes.unwrap_or(separation.scan_read_bytes);
    ValueSeparation { scan_read_bytes, ..separation }
}

impl fmt::Display for EngineDesign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.engine, self.mode, self.base)
    }
}

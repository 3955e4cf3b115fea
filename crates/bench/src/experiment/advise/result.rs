//! Results of `lsmx advise`. The field names are those of the JSON output.

#![expect(missing_docs, reason = "the metrics in `columns` document the fields")]

use serde::Serialize;

use crate::experiment::explore::result::ExplorationCell;
use crate::report::provenance::Provenance;
use crate::workload::phases::Phase;

use super::costs::DesignCosts;
use super::weights::CostWeights;

/// Result of `lsmx advise`.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    pub provenance: Provenance,
    pub asked: AdviceInput,
    pub searched: SearchExtent,
    /// Measured designs in order of increasing cost, followed by the designs that were only simulated.
    pub ranked: Vec<RankedDesign>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presets: Option<MeasuredPresets>,
    /// Measurements of the ranked designs, in rank order, for the HTML page.
    #[serde(skip)]
    pub cells: Vec<ExplorationCell>,
}

/// Workload, memory budget and weights for which the designs were searched.
#[derive(Clone, Debug, Serialize)]
pub struct AdviceInput {
    pub entries: u64,
    pub key_len: u64,
    pub value_len: u64,
    pub phases: Vec<Phase>,
    pub memory_bytes: u64,
    pub weights: CostWeights,
}

/// Number of searched designs and simulations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SearchExtent {
    pub designs: u64,
    pub simulations: u64,
    /// Number of writes per simulation, for each round of the search.
    pub rounds: Vec<u64>,
}

/// A ranked design and its costs.
#[derive(Clone, Debug, Serialize)]
pub struct RankedDesign {
    pub policy: String,
    pub spec: String,
    pub memtable_bytes: u64,
    pub block_cache_bytes: u64,
    /// Simulated cost, corrected with the measurements of this design. A design without measurements is corrected with
    /// the mean of the measured designs.
    pub cost: f64,
    pub costs: DesignCosts,
    pub simulated: SimulatedCosts,
    pub measured: Option<MeasuredDesign>,
    pub reason: String,
    pub pareto: bool,
}

/// Simulated costs of the full-size workload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SimulatedCosts {
    pub cost: f64,
    pub costs: DesignCosts,
}

/// Costs measured on the engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeasuredDesign {
    pub entries: u64,
    pub cost: f64,
    pub costs: DesignCosts,
    /// Simulated costs of the measured workload.
    pub simulated: DesignCosts,
}

/// Measured presets in order of increasing cost.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredPresets {
    /// Measured cost of the best ranked design divided by the measured cost of the cheapest preset. `None` if no ranked
    /// design was measured.
    pub advice_to_best: Option<f64>,
    pub cells: Vec<MeasuredPreset>,
}

/// A preset with the memory split that has the lowest simulated cost.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredPreset {
    pub policy: String,
    pub memtable_bytes: u64,
    pub block_cache_bytes: u64,
    pub measured: MeasuredDesign,
}

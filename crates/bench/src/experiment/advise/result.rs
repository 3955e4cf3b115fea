//! Results of `lsmx advise`, with the field names of their JSON.

#![expect(missing_docs, reason = "the metrics in `columns` explain the fields")]

use serde::Serialize;

use crate::experiment::explore::result::Cell;
use crate::report::provenance::Provenance;
use crate::workload::phases::Phase;

use super::costs::Costs;
use super::weights::Weights;

/// Result of the command.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    pub provenance: Provenance,
    pub asked: Asked,
    pub searched: Searched,
    /// Measured designs, the best first, then the designs that were only simulated.
    pub ranked: Vec<Ranked>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presets: Option<Presets>,
    /// Measurements of the ranked designs, in their order, for the page.
    #[serde(skip)]
    pub cells: Vec<Cell>,
}

/// Workload, memory and weights.
#[derive(Clone, Debug, Serialize)]
pub struct Asked {
    pub entries: u64,
    pub key_len: u64,
    pub value_len: u64,
    pub phases: Vec<Phase>,
    pub memory_bytes: u64,
    pub weights: Weights,
}

/// Extent of the search.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Searched {
    pub designs: u64,
    pub simulations: u64,
    /// Writes of the trees of each round.
    pub rounds: Vec<u64>,
}

/// A ranked design.
#[derive(Clone, Debug, Serialize)]
pub struct Ranked {
    pub policy: String,
    pub spec: String,
    pub memtable_bytes: u64,
    pub block_cache_bytes: u64,
    /// Simulated cost, corrected by the measurements of this design, or by those of all measured designs.
    pub cost: f64,
    pub costs: Costs,
    pub simulated: Simulated,
    pub measured: Option<Measured>,
    pub reason: String,
    pub pareto: bool,
}

/// Costs at full size, by the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Simulated {
    pub cost: f64,
    pub costs: Costs,
}

/// Costs on the engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub entries: u64,
    pub cost: f64,
    pub costs: Costs,
    /// Simulation of the measured run.
    pub simulated: Costs,
}

/// Measured presets, the cheapest first.
#[derive(Clone, Debug, Serialize)]
pub struct Presets {
    /// Measured cost of the first ranked design ÷ that of the cheapest preset.
    pub advice_to_best: f64,
    pub cells: Vec<Preset>,
}

/// A preset with the division of the memory that suits it best.
#[derive(Clone, Debug, Serialize)]
pub struct Preset {
    pub policy: String,
    pub memtable_bytes: u64,
    pub block_cache_bytes: u64,
    pub measured: Measured,
}

//! What `lsmx advise` answers, with the field names of its JSON.

use serde::Serialize;

use crate::experiment::explore::result::Cell;
use crate::report::provenance::Provenance;
use crate::workload::phases::Phase;

use super::costs::Costs;
use super::weights::Weights;

/// The answer.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// Where the figures come from.
    pub provenance: Provenance,
    /// What was asked.
    pub asked: Asked,
    /// How it was looked for.
    pub searched: Searched,
    /// Designs, the best first: those that were confirmed, then those that were only simulated.
    pub ranked: Vec<Ranked>,
    /// Every preset on the engine, the cheapest first; left out where nobody asked for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presets: Option<Presets>,
    /// What the engine measured, in the order of `ranked`, for the page.
    #[serde(skip)]
    pub cells: Vec<Cell>,
}

/// What was asked.
#[derive(Clone, Debug, Serialize)]
pub struct Asked {
    /// Write operations in all.
    pub entries: u64,
    /// Bytes of a key.
    pub key_len: u64,
    /// Bytes of a value.
    pub value_len: u64,
    /// What is done.
    pub phases: Vec<Phase>,
    /// Bytes for two memtables and the block cache.
    pub memory_bytes: u64,
    /// What matters.
    pub weights: Weights,
}

/// How it was looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Searched {
    /// Different designs: policies times ways to divide the memory.
    pub designs: u64,
    /// Trees that were simulated.
    pub simulations: u64,
    /// Writes of each round's trees, in order.
    pub rounds: Vec<u64>,
}

/// One design.
#[derive(Clone, Debug, Serialize)]
pub struct Ranked {
    /// Name of the policy.
    pub policy: String,
    /// The policy with all its parameters, to be pasted.
    pub spec: String,
    /// Bytes of a memtable; there are two.
    pub memtable_bytes: u64,
    /// Bytes of the block cache.
    pub block_cache_bytes: u64,
    /// The costs by weight: those of the simulation, corrected by what the engine measured of this
    /// design, or where it was not confirmed by what it measured of the others on average.
    pub cost: f64,
    /// The four of which that is the sum, before their weights.
    pub costs: Costs,
    /// At full size, simulated.
    pub simulated: Simulated,
    /// On the engine; null for a design that was not confirmed.
    pub measured: Option<Measured>,
    /// Why it stands where it stands.
    pub reason: String,
    /// Whether no other design here is as good in all four costs and better in one.
    pub pareto: bool,
}

/// What the simulation says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// By weight.
    pub cost: f64,
    /// The four.
    pub costs: Costs,
}

/// What the engine says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Write operations of the confirming run; with fewer than asked, memory was scaled down alike.
    pub entries: u64,
    /// By weight.
    pub cost: f64,
    /// The four, of that run.
    pub costs: Costs,
    /// The four as simulated for that run.
    pub simulated: Costs,
}

/// The presets beside the advice.
#[derive(Clone, Debug, Serialize)]
pub struct Presets {
    /// Cost of the first of `ranked` ÷ that of the cheapest preset, both measured in runs of one size.
    pub advice_to_best: f64,
    /// The presets, the cheapest first.
    pub cells: Vec<Preset>,
}

/// A preset, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Preset {
    /// Its name.
    pub policy: String,
    /// Bytes of a memtable: of the ways to divide the memory the one that suits it best.
    pub memtable_bytes: u64,
    /// Bytes of the block cache.
    pub block_cache_bytes: u64,
    /// On the engine.
    pub measured: Measured,
}

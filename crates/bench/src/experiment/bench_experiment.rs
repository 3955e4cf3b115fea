//! The experiments of `lsmx bench`.

use crate::enum_names::impl_names;
use crate::metric::MetricRegistry;

use super::steady_state;
use super::tuning::{self, TuningStudy};

/// An experiment of `lsmx bench --experiment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchExperiment {
    /// An experiment of the module [`tuning`].
    Tuning(TuningStudy),
    /// The experiment of the module [`steady_state`].
    SteadyState,
}

impl_names!(BenchExperiment, "experiment");

impl BenchExperiment {
    /// All experiments, in the order of the help text.
    pub const ALL: [BenchExperiment; 5] = [
        BenchExperiment::Tuning(TuningStudy::Caching),
        BenchExperiment::Tuning(TuningStudy::FilterSize),
        BenchExperiment::Tuning(TuningStudy::PutOverTime),
        BenchExperiment::Tuning(TuningStudy::DataSize),
        BenchExperiment::SteadyState,
    ];

    /// Returns the name of the experiment on the command line.
    pub fn name(self) -> &'static str {
        match self {
            BenchExperiment::Tuning(study) => study.name(),
            BenchExperiment::SteadyState => steady_state::NAME,
        }
    }

    /// Returns the metrics of the results.
    pub fn registry(self) -> &'static MetricRegistry {
        match self {
            BenchExperiment::Tuning(TuningStudy::PutOverTime) => &tuning::columns::SLICES,
            BenchExperiment::Tuning(TuningStudy::DataSize) => &tuning::columns::SIZES,
            BenchExperiment::Tuning(_) => &tuning::columns::READS,
            BenchExperiment::SteadyState => &steady_state::columns::REGISTRY,
        }
    }
}

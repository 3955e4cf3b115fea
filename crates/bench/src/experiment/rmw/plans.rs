//! Checks the configuration and derives the plans of all measurements from it.

use lsmx::merge_operator::FieldUpdate;
use lsmx_delta::DeltaOptions;

use crate::error::{Error, Result};
use crate::experiment::explore::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::numbers::{self, round_to_u64, to_f64};
use crate::peers::{EngineKind, EngineSettings};
use crate::workload::operation_mix::OperationMix;
use crate::workload::records::LengthDistribution;

use super::cell::CellPlan;
use super::design::{self, EngineDesign, ValuePlacement};
use super::stream::{RecordLayout, StreamParameters};
use super::study::{self, RmwStudy};
use super::{Config, THREADS_MAX};

/// Default memory budget divided by the loaded bytes.
const BUDGET_FRACTION: f64 = 0.04;
/// Minimum default memory budget of the engine in bytes.
const BUDGET_BYTES_MIN: u64 = 4 << 20;
/// Default key, value and field lengths of the UP2X mix, in bytes.
const UP2X_KEY: LengthDistribution =
    LengthDistribution::Normal { mean: 10.45, deviation: 1.4, min: 8, max: 16 };
const UP2X_VALUE: LengthDistribution =
    LengthDistribution::Normal { mean: 46.8, deviation: 11.6, min: 10, max: 200 };
const UP2X_FIELD_BYTES: u64 = 10;
/// Default key, value and field lengths of all mixes except UP2X, in bytes.
const KEY_BYTES: u64 = 24;
const VALUE_BYTES: u64 = 1000;
const FIELD_BYTES: u64 = 100;
/// Default share of reads among the operations.
const READ_RATIO: f64 = 0.1;
/// Default Zipf exponent of the access frequencies.
const ZIPF: f64 = 0.99;

impl Config {
    /// Checks the configuration and returns the plans of all measurements.
    pub(super) fn cell_plans(&self) -> Result<Vec<CellPlan>> {
        self.check_numbers()?;
        let engines: Vec<EngineKind> =
            std::iter::once(EngineKind::Lsmx).chain(self.peers.iter().copied()).collect();
        let designs = EngineDesign::combinations(&engines, &self.modes, &self.bases);
        if let Some(peer) =
            self.peers.iter().find(|peer| designs.iter().all(|it| it.engine != **peer))
        {
            let second = format!("--mode {}", self.mode_names());
            let why = "peers have only the modes get-put, merge and merge-unfolded";
            return Err(Error::contradictory_arguments(format!("--peers {peer}"), second, why));
        }
        let mut plans = Vec::new();
        for point in self.parameter_points()? {
            for &design in &designs {
                plans.push(self.cell_plan(design, &point)?);
            }
        }
        Ok(plans)
    }

    fn check_numbers(&self) -> Result<()> {
        Error::check_range("--entries", self.records, 1..=1 << 40)?;
        Error::check_range("--ops", self.ops, 1..=1 << 40)?;
        Error::check_range("--threads", self.threads, 1..=THREADS_MAX)?;
        Error::check_range("--repeat", self.repeat, 1..=1000)?;
        Error::check_range("--key-len", self.key_bytes.unwrap_or(1), 1..=KEY_BYTES_MAX)?;
        Error::check_range("--value-len", self.value_bytes.unwrap_or(1), 1..=VALUE_BYTES_MAX)?;
        if let Some(zipf) = self.zipf.filter(|&zipf| !(zipf > 0.0 && zipf <= 10.0)) {
            return Err(Error::invalid_argument("--zipf", zipf, "above 0, at most 10"));
        }
        for &ratio in self.read_ratios.iter().flatten() {
            if !(0.0..=1.0).contains(&ratio) {
                return Err(Error::invalid_argument("--read-ratio", ratio, "from 0 to 1"));
            }
        }
        if self.scan_read_bytes.is_some() && !self.bases.contains(&ValuePlacement::ValueLog) {
            let why = "only values in the value log are brought together";
            return Err(Error::contradictory_arguments("--scan-read-bytes", "--base tree", why));
        }
        if let Some(bytes) = self.bucket_bytes {
            Error::check_range("--bucket-bytes", bytes, 512..=1 << 30)?;
            if !self.modes.iter().any(|mode| mode.uses_operand_store()) {
                let why = "only the modes kd and kd-adaptive have an operand store";
                let second = format!("--mode {}", self.mode_names());
                return Err(Error::contradictory_arguments("--bucket-bytes", second, why));
            }
        }
        if self.memtable_bytes.is_some() && !self.peers.is_empty() {
            let why = "the memory budget decides the memtables of peers";
            return Err(Error::contradictory_arguments("--memtable", "--peers", why));
        }
        if self.read_ratios.is_some() && self.mix != OperationMix::Default {
            let second = format!("--mix {}", self.mix);
            let why = "the mix decides the share of reads";
            return Err(Error::contradictory_arguments("--read-ratio", second, why));
        }
        Ok(())
    }

    /// Returns the parameter values of the selected experiment. Each design is measured once per element of the list.
    ///
    /// # Errors
    /// A parameter contradicts the selected experiment.
    fn parameter_points(&self) -> Result<Vec<ParameterPoint>> {
        let Some(study) = self.study else {
            let ratios = self.read_ratios.clone().unwrap_or_else(|| vec![READ_RATIO]);
            let point = |ratio| ParameterPoint { read_ratio: Some(ratio), ..self.base_point() };
            return Ok(ratios.into_iter().map(point).collect());
        };
        let refuse = |first: &str, is_given: bool, why| match is_given {
            true => {
                Err(Error::contradictory_arguments(first, format!("--experiment {study}"), why))
            }
            false => Ok(()),
        };
        if study.needs_operand_store() {
            let why = "the experiment varies an option of the operand store, which only the modes kd and kd-adaptive use";
            let has_other = !self.modes.iter().all(|mode| mode.uses_operand_store());
            refuse(&format!("--mode {}", self.mode_names()), has_other, why)?;
            refuse("--peers", !self.peers.is_empty(), "no peer keeps operands apart")?;
        }
        if study == RmwStudy::Memtable {
            refuse("--peers", !self.peers.is_empty(), "the memory budget decides their memtables")?;
        }
        if study.has_one_run() {
            refuse("--threads", self.threads > 1, "the experiment measures one thread")?;
        }
        if study == RmwStudy::ReadSources {
            refuse("--peers", !self.peers.is_empty(), "peers do not report the steps of a lookup")?;
        }
        if study == RmwStudy::Operands {
            let why = "the experiment only updates fields and then reads them";
            refuse("--read-ratio", self.read_ratios.is_some(), why)?;
            refuse("--mix", self.mix != OperationMix::Default, why)?;
        }
        let ratios = self.read_ratios.as_ref().map_or(0, Vec::len);
        let ratios_max = if study == RmwStudy::ReadRatio { 0 } else { 1 };
        let sizes = [RmwStudy::ValueSize, RmwStudy::DeltaSize].contains(&study);
        let fixes_mix = sizes || study == RmwStudy::ReadRatio;
        for (flag, is_given) in [
            ("--read-ratio", ratios > ratios_max),
            ("--zipf", study == RmwStudy::Zipf && self.zipf.is_some()),
            ("--value-len", sizes && self.value_bytes.is_some()),
            ("--field-len", sizes && self.field_bytes.is_some()),
            ("--delta-len", sizes && self.delta_bytes.is_some()),
            ("--bucket-bytes", study == RmwStudy::BucketSize && self.bucket_bytes.is_some()),
            ("--memtable", study == RmwStudy::Memtable && self.memtable_bytes.is_some()),
            ("--mix", fixes_mix && self.mix != OperationMix::Default),
        ] {
            refuse(flag, is_given, "the experiment varies it")?;
        }
        let runs = if study.has_one_run() { 1 } else { study.parameter_values().len() };
        Ok(study
            .parameter_values()
            .iter()
            .take(runs)
            .map(|&value| self.parameter_point(study, value))
            .collect())
    }

    fn mode_names(&self) -> String {
        self.modes.iter().map(|mode| mode.name()).collect::<Vec<_>>().join(",")
    }

    /// Returns the parameters that no experiment varies.
    fn base_point(&self) -> ParameterPoint {
        let delta = DeltaOptions::default();
        let delta = self.bucket_bytes.map_or(delta, |bytes| delta.bucket_bytes(bytes));
        ParameterPoint { delta, ..ParameterPoint::default() }
    }

    fn parameter_point(&self, study: RmwStudy, value: f64) -> ParameterPoint {
        let one = self.read_ratios.as_ref().and_then(|all| all.first().copied());
        let mut point = ParameterPoint { read_ratio: one, ..self.base_point() };
        let mut shown = SweepValue::Real(value);
        let bytes = self.records.saturating_mul(KEY_BYTES + VALUE_BYTES);
        let records = |value: u64| (bytes / (KEY_BYTES + value)).max(1);
        match study {
            RmwStudy::ReadRatio => point.read_ratio = Some(value),
            RmwStudy::Zipf => point.zipf = Some(value),
            RmwStudy::ValueSize => {
                let value = round_to_u64(value);
                let field = value / study::VALUE_SIZE_FIELDS;
                point.sizes = Some((value, field, field));
                point.records = Some(records(value));
                shown = SweepValue::Whole(value);
            }
            RmwStudy::DeltaSize => {
                let (delta, value) = (round_to_u64(value), study::DELTA_SIZE_VALUE_BYTES);
                point.sizes = Some((value, delta, delta));
                point.records = Some(records(value));
                shown = SweepValue::Whole(delta);
            }
            RmwStudy::Recovery => {
                let ops = round_to_u64(to_f64(self.ops) * value).max(1);
                point.ops = Some(ops);
                point.recovers = true;
                shown = SweepValue::Whole(ops);
            }
            RmwStudy::Operands | RmwStudy::Scans | RmwStudy::ReadSources => {}
            RmwStudy::KdCache => point.kd_cache_share = Some(value / study::PUBLISHED_MEMORY_MIB),
            RmwStudy::BucketSize => {
                point.delta = point.delta.bucket_bytes(round_to_u64(value * 1024.0));
                shown = SweepValue::Whole(round_to_u64(value));
            }
            RmwStudy::BucketCount => {
                point.delta = point.delta.buckets_max(round_to_u64(value));
                shown = SweepValue::Whole(round_to_u64(value));
            }
            RmwStudy::Memtable => point.memtable_share = Some(value),
            RmwStudy::SplitThreshold => point.delta = point.delta.split_threshold(value),
        }
        point.sweep = SweepPoint(vec![(study.parameter_name().to_owned(), shown)]);
        point
    }

    fn cell_plan(&self, design: EngineDesign, point: &ParameterPoint) -> Result<CellPlan> {
        let (mut key, mut value, field) = match self.mix {
            OperationMix::Up2x => (UP2X_KEY, UP2X_VALUE, UP2X_FIELD_BYTES),
            _ => (
                LengthDistribution::Fixed(KEY_BYTES),
                LengthDistribution::Fixed(VALUE_BYTES),
                FIELD_BYTES,
            ),
        };
        key = self.key_bytes.map_or(key, LengthDistribution::Fixed);
        value = self.value_bytes.map_or(value, LengthDistribution::Fixed);
        let mut field = self.field_bytes.unwrap_or(field);
        let mut delta = self.delta_bytes.unwrap_or(field);
        if let Some((of_value, of_field, of_delta)) = point.sizes {
            (value, field, delta) = (LengthDistribution::Fixed(of_value), of_field, of_delta);
        }
        Error::check_range("--field-len", field, 1..=value.min())?;
        Error::check_range("--delta-len", delta, 1..=field)?;
        let records = point.records.unwrap_or(self.records);
        if self.study == Some(RmwStudy::Operands) {
            let groups = numbers::to_u64(RmwStudy::Operands.parameter_values().len());
            Error::check_range("--entries", records, groups * 10..=1 << 40)?;
        }
        design.engine.check_can_merge()?;
        let mut plan = CellPlan {
            design,
            recipe: StreamParameters {
                mix: self.mix,
                read_ratio: point.read_ratio.unwrap_or(READ_RATIO),
                layout: RecordLayout { key, value, field_bytes: field, delta_bytes: delta },
                records,
                ops: point.ops.unwrap_or(self.ops),
                zipf: point.zipf.or(self.zipf).unwrap_or(ZIPF),
                seed: self.seed,
            },
            threads: self.threads,
            settings: EngineSettings::default(),
            scan_read_bytes: self.scan_read_bytes,
            bucket_bytes: self.bucket_bytes,
            sweep: point.sweep.clone(),
            recovers: point.recovers,
        };
        let loaded_bytes = plan.generated_records()?.total_bytes(records);
        let budget = self.memory_budget.unwrap_or_else(|| {
            round_to_u64(to_f64(loaded_bytes) * BUDGET_FRACTION).max(BUDGET_BYTES_MIN)
        });
        let operand_store = match point.kd_cache_share {
            Some(share) => point.delta.cache_bytes(round_to_u64(to_f64(budget) * share)),
            None => point.delta,
        };
        let value_bytes_max = u32::try_from(value.max()).unwrap_or(u32::MAX);
        plan.settings = EngineSettings {
            memory_budget: Some(budget),
            memtable_bytes: point
                .memtable_share
                .map_or(self.memtable_bytes, |share| Some(round_to_u64(to_f64(budget) * share))),
            direct_io: self.direct_io,
            merge_operator: Some(FieldUpdate { value_bytes_max }),
            operand_store: Some(operand_store),
            value_separation: Some(design::separate_all_values(self.scan_read_bytes)),
            counts_io: true,
            ..plan.settings
        };
        Ok(plan)
    }
}

/// Values of the parameters that the selected experiment varies. If a field is `None`, the configured value applies.
#[derive(Clone, Debug, Default)]
struct ParameterPoint {
    read_ratio: Option<f64>,
    zipf: Option<f64>,
    records: Option<u64>,
    ops: Option<u64>,
    /// Lengths of a value, a field and an update, in bytes.
    sizes: Option<(u64, u64, u64)>,
    recovers: bool,
    /// Size of a memtable as a share of the memory budget. `None` means the default.
    memtable_share: Option<f64>,
    /// Options of the operand store.
    delta: DeltaOptions,
    /// Share of the memory budget that the cache of the operand store receives.
    kd_cache_share: Option<f64>,
    sweep: SweepPoint,
}

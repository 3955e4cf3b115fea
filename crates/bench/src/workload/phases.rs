//! Descriptions of workloads, from command-line flags or from a file of phases.

use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::numbers;

pub use lsmx_simulator::workload::{LookupGroup, Phase, RANGE_DELETE_RECORDS};

use super::KeyDistribution;

/// Fraction of the writes that run before the interleaved lookups start, as in Sarkar et al., PVLDB 14 (2021). With a
/// size ratio of 10, all levels except the last are full at that time.
const INTERLEAVE_AFTER: f64 = 0.1;
/// Default selectivity of range lookups: the second of the three selectivities in Sarkar et al., PVLDB 14 (2021).
pub const SELECTIVITY_DEFAULT: f64 = 1e-4;

/// Maximum exponent of the distribution `zipf`. With this exponent, more than nine tenths of the accesses go to one
/// key.
const ZIPF_MAX: f64 = 4.0;

const MORE_THAN_ALL: &str = "together they are more than all writes";
const NOTHING_TO_INSERT: &str = "nothing is left to insert first";

/// A workload that the flags of `lsmx explore` describe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkloadMix {
    /// Number of write operations.
    pub entries: u64,
    /// Fraction of the writes that are updates.
    pub updates: f64,
    /// Fraction of the writes that are deletes.
    pub deletes: f64,
    /// Fraction of the writes that are merges.
    pub merges: f64,
    /// Fraction of the writes that are range deletes of [`RANGE_DELETE_RECORDS`] records.
    pub range_deletes: f64,
    /// Number of point lookups for each value of `empty_lookups`.
    pub lookups: u64,
    /// Fractions of the point lookups that search an absent key. Each fraction is measured in its own phase.
    pub empty_lookups: Vec<f64>,
    /// Number of range lookups for each value of `selectivities`.
    pub ranges: u64,
    /// Selectivities of range lookups. A selectivity is the fraction of all entries that a range lookup reads.
    pub selectivities: Vec<f64>,
    pub distribution: KeyDistribution,
    /// Exponent of the distribution `zipf`, above 0.
    pub zipf: Option<f64>,
    /// Whether point and range lookups are interleaved with the writes.
    pub interleave: bool,
}

impl WorkloadMix {
    /// Returns the phases: a load, then one phase for each element of `empty_lookups` and `selectivities`. With
    /// `interleave`, a single phase after the load contains the remaining writes and all lookups. Fails if a fraction
    /// is outside 0..=1, or if the writes insert no record or delete all records.
    pub fn phases(&self) -> Result<Vec<Phase>> {
        for alpha in &self.empty_lookups {
            check_share("--empty-lookups", *alpha)?;
        }
        for selectivity in &self.selectivities {
            check_share("--selectivity", *selectivity)?;
        }
        check_zipf(self.zipf, self.distribution, "--zipf", "--distribution")?;
        let load = self.load_phase()?;
        let groups = self.empty_lookups.iter().filter(|_| self.lookups > 0);
        let lookups = groups.map(|alpha| LookupGroup { alpha: *alpha, ops: self.lookups });
        if self.interleave {
            return self.interleave_phases(load, lookups.collect());
        }
        let mut phases = vec![Phase { settle: true, ..load }];
        for lookups in lookups {
            let mut phase = self.new_phase(format!("lookups α={}", lookups.alpha));
            phase.lookups = vec![lookups];
            phases.push(phase);
        }
        for selectivity in self.selectivities.iter().filter(|_| self.ranges > 0) {
            let name = match self.selectivities.len() {
                1 => "ranges".to_owned(),
                _ => format!("ranges s={selectivity}"),
            };
            let mut phase = self.new_phase(name);
            phase.ranges = self.ranges;
            phase.selectivity = *selectivity;
            phases.push(phase);
        }
        Ok(phases)
    }

    fn new_phase(&self, name: impl Into<String>) -> Phase {
        let phase = Phase::new(name, self.distribution);
        Phase { zipf: self.zipf.unwrap_or(phase.zipf), ..phase }
    }

    fn load_phase(&self) -> Result<Phase> {
        let mut load = self.new_phase("load");
        split_writes(&mut load, self.entries, self.updates, self.deletes)?;
        replace_inserts(&mut load, self.entries, self.merges, self.range_deletes)?;
        let contradiction = |flag: &str, share: f64, why| {
            let entries = format!("--entries {}", self.entries);
            Err(Error::contradictory_arguments(format!("{flag} {share}"), entries, why))
        };
        if load.inserts == 0 && load.range_deletes > 0 {
            return contradiction("--range-deletes", self.range_deletes, NOTHING_TO_INSERT);
        }
        if self.entries == 0 {
            return Err(Error::invalid_argument("--entries", 0, "at least 1"));
        }
        if load.inserts == 0 {
            let mut largest = ("--deletes", self.deletes);
            for other in [("--updates", self.updates), ("--merges", self.merges)] {
                if other.1 > largest.1 {
                    largest = other;
                }
            }
            let (flag, share) = largest;
            return contradiction(flag, share, NOTHING_TO_INSERT);
        }
        if load.deleted_records_max() >= load.inserts {
            let (flag, share) = match load.range_deletes {
                0 => ("--deletes", self.deletes),
                _ => ("--range-deletes", self.range_deletes),
            };
            return contradiction(flag, share, "nothing would be left");
        }
        Ok(load)
    }

    /// Splits the writes into two phases. The second phase also contains all point and range lookups.
    fn interleave_phases(&self, mut load: Phase, lookups: Vec<LookupGroup>) -> Result<Vec<Phase>> {
        let [selectivity] = self.selectivities[..] else {
            let typed: Vec<String> = self.selectivities.iter().map(f64::to_string).collect();
            return Err(Error::contradictory_arguments(
                format!("--selectivity {}", typed.join(",")),
                "--interleave",
                "ranges that are mixed in have one selectivity",
            ));
        };
        let mut mixed = load.clone();
        for (all, rest) in [
            (&mut load.inserts, &mut mixed.inserts),
            (&mut load.updates, &mut mixed.updates),
            (&mut load.deletes, &mut mixed.deletes),
            (&mut load.merges, &mut mixed.merges),
            (&mut load.range_deletes, &mut mixed.range_deletes),
        ] {
            *all = numbers::floor_to_u64(numbers::to_f64(*all) * INTERLEAVE_AFTER);
            *rest -= *all;
        }
        if load.inserts == 0 {
            (load.inserts, mixed.inserts) = (1, mixed.inserts - 1);
        }
        mixed.name = "mixed".to_owned();
        (mixed.lookups, mixed.ranges) = (lookups, self.ranges);
        (mixed.selectivity, mixed.settle) = (selectivity, true);
        Ok(vec![load, mixed])
    }
}

/// Replaces inserts of a phase by merges and range deletes. `merges` and `range_deletes` are fractions of `writes`.
fn replace_inserts(phase: &mut Phase, writes: u64, merges: f64, range_deletes: f64) -> Result<()> {
    let mut replace = |flag: &'static str, share: f64| {
        check_share(flag, share)?;
        let count = numbers::round_to_u64(numbers::to_f64(writes) * share);
        let inserts = phase.inserts.checked_sub(count);
        phase.inserts = inserts.ok_or_else(|| {
            let first = format!("{flag} {share}");
            Error::contradictory_arguments(first, "--updates and --deletes", MORE_THAN_ALL)
        })?;
        Ok::<u64, Error>(count)
    };
    phase.merges = replace("--merges", merges)?;
    phase.range_deletes = replace("--range-deletes", range_deletes)?;
    Ok(())
}

fn check_share(name: &'static str, share: f64) -> Result<()> {
    if (0.0..=1.0).contains(&share) {
        return Ok(());
    }
    Err(Error::invalid_argument(name, share, "between 0 and 1"))
}

/// Checks the exponent of the distribution `zipf`. `name` and `distribution_name` are the names of the exponent and the
/// distribution in error messages.
fn check_zipf(
    exponent: Option<f64>,
    distribution: KeyDistribution,
    name: &'static str,
    distribution_name: &str,
) -> Result<()> {
    let Some(exponent) = exponent else { return Ok(()) };
    if !(exponent > 0.0 && exponent <= ZIPF_MAX) {
        let must = format!("above 0 and at most {ZIPF_MAX}");
        return Err(Error::invalid_argument(name, exponent, must));
    }
    if distribution == KeyDistribution::Zipf {
        return Ok(());
    }
    Err(Error::contradictory_arguments(
        format!("{name} {exponent}"),
        format!("{distribution_name} {distribution}"),
        "only the distribution zipf has an exponent",
    ))
}

/// Divides `writes` into updates, deletes and inserts. `updates` and `deletes` are fractions of `writes`.
fn split_writes(phase: &mut Phase, writes: u64, updates: f64, deletes: f64) -> Result<()> {
    check_share("--updates", updates)?;
    check_share("--deletes", deletes)?;
    phase.updates = numbers::round_to_u64(numbers::to_f64(writes) * updates);
    phase.deletes = numbers::round_to_u64(numbers::to_f64(writes) * deletes);
    let inserts = writes.checked_sub(phase.updates.saturating_add(phase.deletes));
    phase.inserts = inserts.ok_or_else(|| {
        let (first, second) = (format!("--updates {updates}"), format!("--deletes {deletes}"));
        Error::contradictory_arguments(first, second, MORE_THAN_ALL)
    })?;
    Ok(())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PhasesFile {
    phase: Vec<toml::Spanned<PhaseTable>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct PhaseTable {
    name: Option<String>,
    entries: u64,
    updates: f64,
    deletes: f64,
    merges: f64,
    range_deletes: f64,
    lookups: u64,
    empty_lookups: Option<OneOrMoreShares>,
    ranges: u64,
    selectivity: Option<f64>,
    distribution: KeyDistribution,
    zipf: Option<f64>,
    hot: u64,
    settle: bool,
}

/// One fraction or a list of fractions.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMoreShares {
    One(f64),
    Many(Vec<f64>),
}

/// Parses the text of a TOML file of workload phases. Errors contain `path`.
///
/// ```toml
/// [[phase]]
/// name = "load"           # default: the number of the phase, from 1
/// entries = 1000000       # number of writes
/// updates = 0.1           # share of the writes that are updates
/// deletes = 0.0           # share of the writes that are deletes
/// merges = 0.0            # share of the writes that are merges
/// range-deletes = 0.0     # share of the writes that delete ten records adjacent in key order
/// distribution = "uniform"
/// settle = true
///
/// [[phase]]
/// lookups = 100000        # number of point lookups
/// empty-lookups = 0.5     # share of absent keys; a list such as [0.0, 1.0] repeats the lookups for each share
/// ranges = 1000           # number of range lookups
/// selectivity = 1e-4      # entries that a range lookup reads ÷ all entries
/// distribution = "zipf"
/// zipf = 0.99             # exponent of the distribution zipf
/// hot = 1                 # other values make other keys popular (zipf, prefix-zipf)
/// ```
/// The operations of a phase are evenly interleaved.
pub fn parse_phases(text: &str, path: &Path) -> Result<Vec<Phase>> {
    let spec_error = |offset: usize, what| {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = numbers::to_u64(before.matches('\n').count()) + 1;
        let column = numbers::to_u64(before[line_start..].chars().count()) + 1;
        Error::Spec { path: path.to_owned(), line, column, what }
    };
    let file: PhasesFile = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        spec_error(offset, error.message().replace('\n', " "))
    })?;
    let mut phases = Vec::new();
    let (mut inserts, mut deletes) = (0, 0);
    for (index, table) in file.phase.iter().enumerate() {
        let start = table.span().start;
        let phase = table.get_ref().to_phase(index).map_err(|error| {
            let offset = field_offset(&text[start..], &error).map_or(start, |at| start + at);
            spec_error(offset, error.to_string())
        })?;
        inserts = phase.inserts.saturating_add(inserts);
        deletes = phase.deleted_records_max().saturating_add(deletes);
        if phase.operation_count() == 0 {
            return Err(spec_error(start, format!("phase {:?} has no operation", phase.name)));
        }
        if inserts == 0 {
            return Err(spec_error(
                start,
                format!("phase {:?} has nothing inserted before", phase.name),
            ));
        }
        if deletes >= inserts {
            return Err(spec_error(
                start,
                format!("phase {:?} deletes all that is there", phase.name),
            ));
        }
        phases.push(phase);
    }
    if phases.is_empty() {
        return Err(spec_error(0, "there is no [[phase]]".to_owned()));
    }
    Ok(phases)
}

/// Returns the offset in `text` of the TOML field that caused the error. `text` starts with the header of a TOML table.
fn field_offset(text: &str, error: &Error) -> Option<usize> {
    let name = match error {
        Error::Invalid { name, .. } => name,
        Error::Contradiction { first, .. } => first.split(' ').next()?,
        _ => return None,
    };
    let key = name.trim_start_matches("--");
    let mut offset = 0;
    // Index 0 is the header of this TOML table. The next header ends the table.
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let field = line.trim_start();
        if index > 0 && field.starts_with('[') {
            return None;
        }
        if field.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('=')) {
            return Some(offset + line.len() - field.len());
        }
        offset += line.len();
    }
    None
}

impl PhaseTable {
    fn to_phase(&self, index: usize) -> Result<Phase> {
        let name = self.name.clone().unwrap_or_else(|| (index + 1).to_string());
        let mut phase = Phase::new(name, self.distribution);
        check_zipf(self.zipf, self.distribution, "zipf", "distribution")?;
        phase.zipf = self.zipf.unwrap_or(phase.zipf);
        split_writes(&mut phase, self.entries, self.updates, self.deletes)?;
        replace_inserts(&mut phase, self.entries, self.merges, self.range_deletes)?;
        let alphas = match &self.empty_lookups {
            None => &[0.0],
            Some(OneOrMoreShares::One(alpha)) => std::slice::from_ref(alpha),
            Some(OneOrMoreShares::Many(alphas)) => alphas,
        };
        if alphas.is_empty() {
            return Err(Error::invalid_argument("empty-lookups", "[]", "one share or more"));
        }
        for alpha in alphas {
            check_share("empty-lookups", *alpha)?;
        }
        if self.hot > 0
            && !matches!(self.distribution, KeyDistribution::Zipf | KeyDistribution::PrefixZipf)
        {
            return Err(Error::contradictory_arguments(
                format!("hot = {}", self.hot),
                format!("distribution = \"{}\"", self.distribution),
                "it has no favourites that could be others; zipf and prefix-zipf have",
            ));
        }
        phase.hot = self.hot;
        phase.selectivity = self.selectivity.unwrap_or(SELECTIVITY_DEFAULT);
        check_share("selectivity", phase.selectivity)?;
        if self.lookups > 0 {
            let group = |alpha: &f64| LookupGroup { alpha: *alpha, ops: self.lookups };
            phase.lookups = alphas.iter().map(group).collect();
        }
        phase.ranges = self.ranges;
        phase.settle = self.settle;
        Ok(phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix() -> WorkloadMix {
        WorkloadMix {
            entries: 1000,
            updates: 0.2,
            deletes: 0.1,
            merges: 0.0,
            range_deletes: 0.0,
            lookups: 50,
            empty_lookups: vec![0.0, 1.0],
            ranges: 5,
            selectivities: vec![1e-2],
            distribution: KeyDistribution::Uniform,
            zipf: None,
            interleave: false,
        }
    }

    #[test]
    fn mix_has_phases_for_load_lookups_and_ranges() {
        let phases = mix().phases().unwrap();
        assert_eq!(phases.len(), 4);
        assert_eq!((phases[0].inserts, phases[0].updates, phases[0].deletes), (700, 200, 100));
        assert!(phases[0].settle);
        assert_eq!(phases[1].lookups, [LookupGroup { alpha: 0.0, ops: 50 }]);
        assert_eq!(phases[2].lookups, [LookupGroup { alpha: 1.0, ops: 50 }]);
        assert_eq!(phases[3].ranges, 5);
    }

    #[test]
    fn interleaving_keeps_the_counts() {
        let phases = WorkloadMix { interleave: true, ..mix() }.phases().unwrap();
        assert_eq!(phases.len(), 2);
        assert_eq!(phases.iter().map(Phase::operation_count).sum::<u64>(), 1000 + 100 + 5);
        assert_eq!(phases.iter().map(|phase| phase.updates).sum::<u64>(), 200);
        assert_eq!(phases[0].writes(), 100);
    }

    #[test]
    fn merges_replace_inserts() {
        let phases = WorkloadMix { merges: 0.3, interleave: true, ..mix() }.phases().unwrap();
        let total = |count: fn(&Phase) -> u64| phases.iter().map(count).sum::<u64>();
        assert_eq!((total(|phase| phase.merges), total(Phase::writes)), (300, 1000));
        assert_eq!(total(|phase| phase.inserts), 400);
    }

    #[test]
    fn invalid_shares_error_names_the_flag() {
        for (mix, start) in [
            (
                WorkloadMix { updates: 0.7, deletes: 0.4, ..mix() },
                "--updates 0.7 contradicts --deletes 0.4",
            ),
            (
                WorkloadMix { updates: 1.0, deletes: 0.0, ..mix() },
                "--updates 1 contradicts --entries 1000: nothing is left to insert first",
            ),
            (WorkloadMix { entries: 0, ..mix() }, "--entries is 0, must be at least 1"),
            (
                WorkloadMix { merges: 0.8, ..mix() },
                "--merges 0.8 contradicts --updates and --deletes",
            ),
            (WorkloadMix { merges: 0.7, ..mix() }, "--merges 0.7 contradicts --entries"),
            (WorkloadMix { range_deletes: 0.9, ..mix() }, "--range-deletes 0.9 contradicts"),
            (
                WorkloadMix { range_deletes: 0.1, ..mix() },
                "--range-deletes 0.1 contradicts --entries 1000",
            ),
            (WorkloadMix { range_deletes: -1.0, ..mix() }, "--range-deletes"),
            (WorkloadMix { deletes: 0.5, ..mix() }, "--deletes 0.5 contradicts --entries 1000"),
            (WorkloadMix { updates: -0.1, ..mix() }, "--updates"),
            (WorkloadMix { deletes: f64::NAN, ..mix() }, "--deletes"),
            (
                WorkloadMix { zipf: Some(0.5), ..mix() },
                "--zipf 0.5 contradicts --distribution uniform",
            ),
            (WorkloadMix { zipf: Some(f64::NAN), ..mix() }, "--zipf is NaN, must be above 0"),
            (WorkloadMix { empty_lookups: vec![1.5], ..mix() }, "--empty-lookups"),
            (WorkloadMix { selectivities: vec![1e-4, 2.0], ..mix() }, "--selectivity"),
        ] {
            let error = mix.phases().unwrap_err();
            assert!(error.is_usage() && error.to_string().starts_with(start), "{start}: {error}");
        }
    }

    #[test]
    fn file_of_phases_parses() {
        let phases = parse_phases(
            "[[phase]]\nentries = 100\ndeletes = 0.1\nsettle = true\n\
             [[phase]]\nname = \"read\"\nlookups = 10\nempty-lookups = 0.5\ndistribution = \"zipf\"\n",
            Path::new("p.toml"),
        )
        .unwrap();
        assert_eq!(phases.len(), 2);
        assert_eq!(phases[0].name, "1");
        assert_eq!((phases[0].inserts, phases[0].deletes, phases[0].settle), (90, 10, true));
        assert_eq!(phases[1].name, "read");
        assert_eq!(phases[1].lookups, [LookupGroup { alpha: 0.5, ops: 10 }]);
        assert_eq!(phases[1].distribution, KeyDistribution::Zipf);
    }

    #[test]
    fn malformed_file_error_has_the_line() {
        for (text, line, what) in [
            ("[[phase]]\nentries = 1\ntypo = 3\n", 3, "typo"),
            ("[[phase]]\nentries = -1\n", 2, ""),
            ("[[phase]]\nentries = 5\n[[phase]]\nentries = \n", 4, ""),
            ("[[phase]]\nentries = 5\n\n[[phase]]\nupdates = 3.0\n", 5, "updates"),
            ("[[phase]]\nlookups = 5\n", 1, "nothing inserted"),
            ("[[phase]]\nentries = 5\n[[phase]]\nentries = 5\ndeletes = 1.0\n", 3, "deletes all"),
            ("[[phase]]\nentries = 5\ndistribution = \"pareto\"\n", 3, "prefix-zipf"),
            ("[[phase]]\nentries = 5\nhot = 1\n", 3, "no favourites"),
            ("[[phase]]\nentries = 5\nlookups = 1\nempty-lookups = [0.5, 2.0]\n", 4, "is 2"),
            ("[[phase]]\nentries = 5\nlookups = 1\nempty-lookups = []\n", 4, "one share or more"),
            ("phase = []\n", 1, "no [[phase]]"),
            ("", 1, "phase"),
        ] {
            let error = parse_phases(text, Path::new("p.toml")).unwrap_err();
            let message = error.to_string();
            assert!(error.is_usage());
            let start = format!("p.toml, line {line}, column ");
            assert!(message.starts_with(&start), "{text:?}: {message}");
            assert!(message.contains(what) && !message.contains('\n'), "{text:?}: {message}");
        }
    }
}

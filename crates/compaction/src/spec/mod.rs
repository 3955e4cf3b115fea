//! Policies as text: presets with parameters, and compositions of primitives in TOML.
//!
//! ```text
//! spec       name | name(parameter, …) | {composition}
//! name       name of a preset, in any case; names of the study are accepted too
//! parameter  key=value, with a key of Preset::parameters in any case (size_ratio is T);
//!            the first parameters of some presets need no key: fluid(3,1), tsa(0.5)
//! ```
//!
//! # Compositions
//!
//! A composition describes a policy by its primitives. A file contains it as a TOML document. A spec, which a database
//! stores, contains it as an inline TOML table with the same fields.
//!
//! ```
//! use lsmx_compaction::PolicySpec;
//!
//! let text = r#"
//! name = "tiered-top"         # in results and errors
//! layout = "leveling"         # leveling, fluid, run-list or queue
//! tiered = [4]                # maximum number of runs in L1, L2, ... before leveled levels begin
//! stop = 20                   # number of runs in L0 at which writes stop
//! tables = 1                  # target size of an output, in target table sizes
//! grandparents = 25           # maximum overlap of an output, in target output sizes
//!
//! [[rule]]                    # in order of priority
//! trigger = "run-count"
//! runs = 4
//!
//! [[rule]]
//! trigger = "level-full"
//! capacity = "from-bottom"
//! last = 6
//! base = 4
//! size-ratio = 10
//! granularity = "file"
//! movement = "least-overlap"
//! "#;
//! let spec = PolicySpec::from_toml(text)?;
//! assert_eq!(spec.name(), "tiered-top");
//! assert_eq!(spec.to_string().parse::<PolicySpec>()?, spec);
//! # Ok::<(), lsmx_compaction::Error>(())
//! ```
//!
//! | part | fields |
//! | --- | --- |
//! | layout `leveling` | `tiered` |
//! | layout `fluid` | `runs`, `last-runs`, `size-ratio` |
//! | layout `run-list` | `bottom` |
//! | layout `queue` | none; also without `stop`, `tables` and `grandparents` |
//! | trigger `level-full` | `capacity = "from-top"` with `l1`, or `"from-bottom"` with `last`, `base`; `size-ratio` |
//! | trigger `run-count` | `runs`, `wait` |
//! | trigger `space-amplification` | `percent` |
//! | trigger `size-ratio` | `percent`, `runs-min`, `runs-max` |
//! | trigger `tombstone-density` | `share` |
//! | trigger `tombstone-ttl` | `bound`, `size-ratio` |
//! | trigger `file-staleness` | `ttl` |
//! | trigger `total-bytes` | `bytes` |
//! | granularity `files` | `files` |
//! | granularity `partition` | `above`; needs `capacity = "from-bottom"` |
//!
//! Times and sizes are strings such as `"3600s"` and `"1G"`. Missing fields have the defaults of the presets.
//! A file with the single field `policy` contains a spec, such as `policy = "tiering(T=4)"`.

mod composition;
mod toml_reader;
mod toml_writer;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::composed::{ComposedPolicy, PolicyPrimitives};
use crate::error::Error;
use crate::parameter::{MILLION, PolicyParameter, SHARE_OF_DURATION};
use crate::policy::CompactionPolicy;
use crate::presets::Preset;
use toml_reader::{SpecSource, TomlPolicy, read_inline_toml, read_toml};
use toml_writer::to_inline_toml;

pub use composition::PolicyComposition;
pub use toml_writer::to_toml;

/// Description of a policy: either a preset with parameters, such as `tiering(T=4)`, or a composition of primitives.
///
/// A spec is parsed from text, and formatted and serialized as text. The module [`spec`](crate::spec) describes the
/// syntax.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PolicySpec(SpecKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum SpecKind {
    Preset {
        preset: Preset,
        /// Parameters whose values differ from the defaults.
        given: BTreeMap<PolicyParameter, u64>,
    },
    Composition(Arc<PolicyComposition>),
}

/// Default maximum age of tombstones of `tsa` in a database, in microseconds: one day.
pub const BOUND_US_DEFAULT: u64 = 86_400_000_000;

impl PolicySpec {
    /// Returns a preset with default parameters.
    #[must_use]
    pub fn new(preset: Preset) -> Self {
        PolicySpec(SpecKind::Preset { preset, given: BTreeMap::new() })
    }

    /// Returns a policy composed of these primitives. The name must have 1 to 64 letters, digits and `+ - . _`.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::InvalidCombination`] if the primitives cannot be combined or contain a number that a spec
    /// does not permit, and with [`Error::InvalidSpec`] if the name is invalid or is the name of a preset.
    pub fn from_primitives(
        name: impl Into<String>,
        primitives: PolicyPrimitives,
    ) -> Result<Self, Error> {
        let composition = PolicyComposition::new(name, primitives)?;
        check_spec(&composition)?;
        Ok(PolicySpec(SpecKind::Composition(Arc::new(composition))))
    }

    /// Parses the text of a TOML file.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::InvalidSpec`], which contains the line and the column of the mistake.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        PolicySpec::from_toml_policy(read_toml(text)?)
    }

    /// Parses a spec that a database has stored.
    ///
    /// Earlier versions stored compositions with numbers outside of the allowed ranges, and with values that have no
    /// effect. Such a number is replaced by the nearest allowed number, and such a value by an allowed value.
    ///
    /// # Errors
    ///
    /// Fails with the errors of [`PolicySpec::from_str`] for other mistakes.
    pub fn from_stored(text: &str) -> Result<Self, Error> {
        match text.starts_with('{') {
            true => PolicySpec::from_toml_policy(read_inline_toml(text, SpecSource::Stored)?),
            false => text.parse(),
        }
    }

    /// Returns all presets that drop no data, with default parameters.
    #[must_use]
    pub fn all_presets() -> Vec<PolicySpec> {
        Preset::ALL.into_iter().map(PolicySpec::new).collect()
    }

    /// Returns the preset, or `None` for a composition.
    #[must_use]
    pub fn preset(&self) -> Option<Preset> {
        match &self.0 {
            SpecKind::Preset { preset, .. } => Some(*preset),
            SpecKind::Composition(_) => None,
        }
    }

    /// Returns the canonical name of the preset, or the name of the composition.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            SpecKind::Preset { preset, .. } => preset.name(),
            SpecKind::Composition(composition) => &composition.name,
        }
    }

    /// Returns the value of a preset parameter, or `None` for a composition.
    #[must_use]
    pub fn parameter_value(&self, parameter: PolicyParameter) -> Option<u64> {
        match &self.0 {
            SpecKind::Preset { preset, given } => Some(value_or_default(*preset, given, parameter)),
            SpecKind::Composition(_) => None,
        }
    }

    /// Sets a parameter and returns the new spec.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::UnknownParameter`] or [`Error::BadParameter`].
    pub fn with_parameter(mut self, parameter: PolicyParameter, value: u64) -> Result<Self, Error> {
        let name = self.name().to_owned();
        let SpecKind::Preset { preset, given } = &mut self.0 else {
            return Err(unknown_parameter(&name, &[], parameter.name()));
        };
        set_parameter(*preset, given, parameter, value)?;
        check_parameters(*preset, given)?;
        Ok(self)
    }

    /// Sets the size ratio and returns the new spec. Policies without a size ratio, such as `universal`, do not change.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::BadParameter`] if `size_ratio` is below 2 or conflicts with another parameter.
    pub fn with_size_ratio(self, size_ratio: u64) -> Result<Self, Error> {
        let has_it = |preset: Preset| preset.parameters().contains(&PolicyParameter::SizeRatio);
        if self.preset().is_some_and(has_it) {
            return self.with_parameter(PolicyParameter::SizeRatio, size_ratio);
        }
        Ok(self)
    }

    /// Returns whether the policy drops data that was not deleted.
    #[must_use]
    pub fn can_drop_data(&self) -> bool {
        self.primitives().can_drop_data()
    }

    /// Returns the maximum age of tombstones in millionths of the duration of an experiment. Returns `None` if the
    /// policy has no such relative bound.
    #[must_use]
    pub fn relative_bound_ppm(&self) -> Option<u64> {
        let preset = self.preset()?;
        if !preset.parameters().contains(&PolicyParameter::Bound) {
            return None;
        }
        let bound = self.parameter_value(PolicyParameter::Bound)?;
        (bound & SHARE_OF_DURATION != 0).then_some(bound & !SHARE_OF_DURATION)
    }

    /// Returns the spec for an experiment of this duration. A relative maximum age of tombstones becomes a time.
    #[must_use]
    pub fn with_experiment_duration(mut self, duration_us: u64) -> Self {
        let share = self.relative_bound_ppm();
        if let (SpecKind::Preset { given, .. }, Some(ppm)) = (&mut self.0, share) {
            let bound = u128::from(duration_us) * u128::from(ppm) / u128::from(MILLION);
            let bound = u64::try_from(bound).unwrap_or(u64::MAX).clamp(1, SHARE_OF_DURATION - 1);
            given.insert(PolicyParameter::Bound, bound);
        }
        self
    }

    /// Checks that a database can use the policy. A relative maximum age of tombstones is not allowed.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::RelativeBound`] if the policy has a relative bound.
    pub fn check_for_database(&self) -> Result<(), Error> {
        match &self.0 {
            SpecKind::Preset { preset, given } => match given.get(&PolicyParameter::Bound) {
                Some(bound) if bound & SHARE_OF_DURATION != 0 => Err(Error::RelativeBound {
                    policy: preset.name().to_owned(),
                    share: PolicyParameter::Bound.format(*bound),
                }),
                _ => Ok(()),
            },
            SpecKind::Composition(_) => Ok(()),
        }
    }

    /// Returns the primitives of the policy.
    ///
    /// The preset `tsa` limits the age of tombstones. A limit that is a share of the duration of an experiment has no
    /// effect. If the spec sets no limit, the limit is [`BOUND_US_DEFAULT`].
    #[must_use]
    pub fn primitives(&self) -> PolicyPrimitives {
        match &self.0 {
            SpecKind::Preset { preset, given } => {
                preset.primitives(|parameter| match value_or_default(*preset, given, parameter) {
                    bound
                        if parameter == PolicyParameter::Bound
                            && bound & SHARE_OF_DURATION != 0 =>
                    {
                        let is_given = given.contains_key(&PolicyParameter::Bound);
                        if is_given { SHARE_OF_DURATION - 1 } else { BOUND_US_DEFAULT }
                    }
                    value => value,
                })
            }
            SpecKind::Composition(composition) => composition.primitives.clone(),
        }
    }

    /// Converts a parsed TOML text.
    fn from_toml_policy(policy: TomlPolicy) -> Result<Self, Error> {
        match policy {
            TomlPolicy::Composition(composition) => {
                Ok(PolicySpec(SpecKind::Composition(Arc::new(composition))))
            }
            TomlPolicy::Spec { text, line, column } => text.parse().map_err(|error: Error| {
                Error::InvalidSpec { line, column, what: error.to_string() }
            }),
        }
    }

    /// Builds the policy.
    #[must_use]
    pub fn build(&self) -> Arc<dyn CompactionPolicy> {
        Arc::new(ComposedPolicy::from_checked_primitives(self.name(), self.primitives()))
    }
}

/// Checks that the spec of a composition can be read, and describes the same composition. A database stores the spec.
fn check_spec(composition: &PolicyComposition) -> Result<(), Error> {
    let reason = match read_inline_toml(&to_inline_toml(composition), SpecSource::User) {
        Ok(TomlPolicy::Composition(read)) if read == *composition => return Ok(()),
        Ok(_) => "a spec cannot express a number of it".to_owned(),
        Err(Error::InvalidSpec { what, .. }) => what,
        Err(error) => error.to_string(),
    };
    Err(Error::InvalidCombination { reason })
}

/// Returns the given value of a parameter, or its default.
fn value_or_default(
    preset: Preset,
    given: &BTreeMap<PolicyParameter, u64>,
    parameter: PolicyParameter,
) -> u64 {
    let value = |other| value_or_default(preset, given, other);
    given.get(&parameter).copied().unwrap_or_else(|| preset.default_value(parameter, &value))
}

/// Sets a parameter. Fails if the preset does not have the parameter or the value is outside the allowed range.
fn set_parameter(
    preset: Preset,
    given: &mut BTreeMap<PolicyParameter, u64>,
    parameter: PolicyParameter,
    value: u64,
) -> Result<(), Error> {
    if !preset.parameters().contains(&parameter) {
        return Err(unknown_parameter(preset.name(), preset.parameters(), parameter.name()));
    }
    let (min, max) = parameter.allowed_range();
    let number =
        if parameter == PolicyParameter::Bound { value & !SHARE_OF_DURATION } else { value };
    if !(min..=max).contains(&number) {
        return Err(bad_parameter(
            preset,
            parameter,
            parameter.format(value),
            parameter.expected_values(),
        ));
    }
    given.insert(parameter, value);
    Ok(())
}

/// Checks that the parameters are consistent, and removes parameters that equal their defaults.
fn check_parameters(
    preset: Preset,
    given: &mut BTreeMap<PolicyParameter, u64>,
) -> Result<(), Error> {
    let value = |parameter| value_or_default(preset, given, parameter);
    let trigger = match preset {
        Preset::Tiering | Preset::LazyLeveling => PolicyParameter::SizeRatio,
        Preset::Fluid => PolicyParameter::UpperRuns,
        _ => PolicyParameter::Trigger,
    };
    // L0 can keep `runs` runs (in `universal`) or `runs - 1` runs (in other presets) without a due merge. With a lower
    // stop limit, writes would wait although no merge is due.
    let (stop, runs) = (value(PolicyParameter::Stop), value(trigger));
    if preset.parameters().contains(&PolicyParameter::Stop) && stop <= runs {
        let expected = format!("above {} = {runs}", trigger.name());
        return Err(bad_parameter(preset, PolicyParameter::Stop, stop.to_string(), expected));
    }
    let upper_runs = value(PolicyParameter::UpperRuns);
    let wait = value(PolicyParameter::Wait);
    if given.contains_key(&PolicyParameter::Wait) && upper_runs > 1 {
        let expected =
            format!("allowed with K = {upper_runs}: merges into a tiered level never wait");
        return Err(bad_parameter(preset, PolicyParameter::Wait, wait.to_string(), expected));
    }
    if given.contains_key(&PolicyParameter::Wait) && !(runs..stop).contains(&wait) {
        let expected = format!("from {} = {runs} to below stop = {stop}", trigger.name());
        return Err(bad_parameter(preset, PolicyParameter::Wait, wait.to_string(), expected));
    }
    let (width, width_max) = (value(PolicyParameter::Width), value(PolicyParameter::WidthMax));
    if preset == Preset::Universal && width_max < width {
        let expected = format!("at least width = {width}");
        return Err(bad_parameter(
            preset,
            PolicyParameter::WidthMax,
            width_max.to_string(),
            expected,
        ));
    }
    let (above, last) = (value(PolicyParameter::Above), value(PolicyParameter::Last));
    if preset == Preset::Spooky && above >= last {
        let expected = format!("below last = {last}");
        return Err(bad_parameter(preset, PolicyParameter::Above, above.to_string(), expected));
    }
    let upper_max = value(PolicyParameter::SizeRatio).saturating_sub(1);
    for runs in [PolicyParameter::UpperRuns, PolicyParameter::LastRuns] {
        if preset == Preset::Fluid && value(runs) > upper_max {
            let expected = format!("at most T - 1 = {upper_max}");
            return Err(bad_parameter(preset, runs, value(runs).to_string(), expected));
        }
    }
    let all = given.clone();
    given.retain(|parameter, value| {
        *value != preset.default_value(*parameter, &|other| value_or_default(preset, &all, other))
    });
    Ok(())
}

fn bad_parameter(
    preset: Preset,
    parameter: PolicyParameter,
    value: String,
    expected: String,
) -> Error {
    Error::BadParameter { policy: preset.name(), parameter: parameter.name(), value, expected }
}

fn unknown_parameter(policy: &str, known: &[PolicyParameter], parameter: &str) -> Error {
    let known: Vec<_> = known.iter().map(|p| p.name()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Error::UnknownParameter { policy: policy.to_owned(), parameter: parameter.to_owned(), known }
}

impl Default for PolicySpec {
    /// Returns the preset `leveled` with default parameters.
    fn default() -> Self {
        PolicySpec::new(Preset::Leveled)
    }
}

impl FromStr for PolicySpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let malformed = || Error::MalformedSpec { spec: text.to_owned() };
        let trimmed = text.trim();
        if trimmed.starts_with('{') {
            return PolicySpec::from_toml_policy(read_inline_toml(trimmed, SpecSource::User)?);
        }
        let (name, parameters) = match trimmed.split_once('(') {
            None => (trimmed, ""),
            Some((name, rest)) => (name.trim(), rest.strip_suffix(')').ok_or_else(malformed)?),
        };
        let presets = || Preset::ALL.into_iter().chain(Preset::DROPPING);
        let preset = presets().find(|preset| preset.has_name_or_alias(name)).ok_or_else(|| {
            Error::UnknownPolicy {
                name: name.to_owned(),
                known: presets().map(Preset::name).collect::<Vec<_>>().join(", "),
            }
        })?;
        let mut given = BTreeMap::new();
        let parts = parameters.split(',').map(str::trim).filter(|part| !part.is_empty());
        for (index, part) in parts.enumerate() {
            let (parameter, value) = match part.split_once('=') {
                Some((key, value)) => {
                    let key = key.trim();
                    let parameter = match key.eq_ignore_ascii_case("size_ratio") {
                        true => Some(PolicyParameter::SizeRatio),
                        false => PolicyParameter::from_name(key),
                    };
                    let unknown = || unknown_parameter(preset.name(), preset.parameters(), key);
                    (parameter.ok_or_else(unknown)?, value.trim())
                }
                None => (*preset.positional_parameters().get(index).ok_or_else(malformed)?, part),
            };
            if !preset.parameters().contains(&parameter) {
                let known = preset.parameters();
                return Err(unknown_parameter(preset.name(), known, parameter.name()));
            }
            if given.contains_key(&parameter) {
                return Err(malformed());
            }
            let number = parameter.parse(value).ok_or_else(|| {
                bad_parameter(preset, parameter, value.to_owned(), parameter.expected_values())
            })?;
            set_parameter(preset, &mut given, parameter, number)?;
        }
        check_parameters(preset, &mut given)?;
        Ok(PolicySpec(SpecKind::Preset { preset, given }))
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (preset, given) = match &self.0 {
            SpecKind::Preset { preset, given } => (preset, given),
            SpecKind::Composition(composition) => {
                return f.write_str(&to_inline_toml(composition));
            }
        };
        f.write_str(preset.name())?;
        for (index, (parameter, value)) in given.iter().enumerate() {
            let open = if index == 0 { "(" } else { "," };
            write!(f, "{open}{}={}", parameter.name(), parameter.format(*value))?;
        }
        f.write_str(if given.is_empty() { "" } else { ")" })
    }
}

impl TryFrom<String> for PolicySpec {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<PolicySpec> for String {
    fn from(spec: PolicySpec) -> String {
        spec.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<PolicySpec, Error> {
        text.parse()
    }

    #[test]
    fn parse_formatted_preset_is_same() {
        for spec in PolicySpec::all_presets() {
            assert_eq!(parse(&spec.to_string()), Ok(spec.clone()));
            assert_eq!(parse(&spec.name().to_uppercase()), Ok(spec.clone()));
            assert_eq!(spec.build().name(), spec.name());
            for &parameter in spec.preset().unwrap().parameters() {
                let value = spec.parameter_value(parameter).unwrap() + 1;
                let Ok(changed) = spec.clone().with_parameter(parameter, value) else { continue };
                assert_eq!(parse(&changed.to_string()), Ok(changed.clone()));
                assert_eq!(changed.parameter_value(parameter), Some(value));
            }
        }
    }

    #[test]
    fn parse_names_of_study_are_accepted() {
        assert_eq!(parse("Tier").unwrap().name(), "universal");
        assert_eq!(parse("1-Lvl").unwrap().name(), "1-leveling");
        assert_eq!(parse(" LO+1 ").unwrap().name(), "lo+1");
        assert_eq!(parse("Cold").unwrap().name(), "cold-access");
        assert_eq!(parse("RR").unwrap().name(), "rr");
    }

    #[test]
    fn format_omits_default_parameters() {
        let spec = parse("tiering( size_ratio = 4 )").unwrap();
        assert_eq!(spec.to_string(), "tiering(T=4)");
        assert_eq!(spec.parameter_value(PolicyParameter::SizeRatio), Some(4));
        assert_eq!(parse("tiering(T=10)").unwrap().to_string(), "tiering");
        assert_eq!(parse("leveled(K=1,wait=10)").unwrap().to_string(), "leveled(K=1)");
        assert_eq!(
            parse("leveled(K=1,trigger=12,wait=12)").unwrap().to_string(),
            "leveled(K=1,trigger=12)"
        );
        assert_eq!(
            parse("leveled(K=1,stop=6)").unwrap().parameter_value(PolicyParameter::Wait),
            Some(4)
        );
        assert_eq!(parse("tiering()").unwrap().to_string(), "tiering");
        assert_eq!(parse("LEVELED(Trigger=2,t=4)").unwrap().to_string(), "leveled(T=4,trigger=2)");
    }

    #[test]
    fn parse_positional_parameters() {
        assert_eq!(parse("fluid(5,2)").unwrap(), parse("fluid(K=5,Z=2)").unwrap());
        assert_eq!(parse("fluid(3,1)").unwrap().to_string(), "fluid");
        assert_eq!(parse("fluid(5,T=8)").unwrap().to_string(), "fluid(T=8,K=5)");
        assert_eq!(parse("tsa(0.5)").unwrap().to_string(), "tsa");
        assert_eq!(parse("TSA(1h)").unwrap().to_string(), "tsa(D=1h)");
        assert_eq!(parse("tsd(0.10)").unwrap().to_string(), "tsd(F=0.1)");
        assert_eq!(parse("fifo(2G,ttl=7d)").unwrap().to_string(), "fifo(bytes=2G,ttl=7d)");
    }

    #[test]
    fn with_duration_relative_bound_becomes_time() {
        let spec = parse("tsa(0.33)").unwrap();
        assert_eq!(spec.relative_bound_ppm(), Some(330_000));
        assert!(spec.check_for_database().unwrap_err().to_string().contains("D = 0.33"));
        let of_run = spec.with_experiment_duration(1_000_000);
        assert_eq!(of_run.to_string(), "tsa(D=330ms)");
        assert_eq!(of_run.relative_bound_ppm(), None);
        assert_eq!(of_run.check_for_database(), Ok(()));
        // Default of the bound: half of the duration of an experiment, and one day in a database.
        let spec = parse("tsa").unwrap();
        assert_eq!(spec.relative_bound_ppm(), Some(500_000));
        assert_eq!(spec.check_for_database(), Ok(()));
        assert_eq!(spec.primitives(), parse("tsa(1d)").unwrap().primitives());
        assert_eq!(
            parse("leveled").unwrap().with_experiment_duration(5),
            parse("leveled").unwrap()
        );
    }

    #[test]
    fn can_drop_data_only_fifo_is_true() {
        assert!(parse("fifo").unwrap().can_drop_data());
        assert!(PolicySpec::all_presets().iter().all(|spec| !spec.can_drop_data()));
    }

    #[test]
    fn parse_unknown_name_error_lists_known_names() {
        let error = parse("lasy").unwrap_err();
        let Error::UnknownPolicy { name, known } = &error else { panic!("{error}") };
        assert_eq!(name, "lasy");
        let near = parse("Tierring").unwrap_err().to_string();
        assert!(near.contains("; did you mean tiering? known: full, "), "{near}");
        for preset in Preset::ALL {
            assert!(known.contains(preset.name()), "{known}");
        }
    }

    #[test]
    fn parse_bad_parameter_error_names_it() {
        let cases = [
            ("tiering(T=1)", "parameter T = \"1\" is not a whole number from 2"),
            ("tiering(T=x)", "parameter T = \"x\" is not a whole number"),
            ("tiering(T=-3)", "parameter T = \"-3\""),
            ("tiering(T=99999999999999999999999)", "parameter T"),
            ("tiering(l1=3)", "policy tiering has no parameter \"l1\"; it has: T, stop, tables"),
            ("tiering(speed=3)", "policy tiering has no parameter \"speed\""),
            ("tiering(T=30,stop=30)", "parameter stop = \"30\" is not above T = 30"),
            ("lo+1(trigger=2)", "parameter stop = \"2\" is not above trigger = 2"),
            ("universal(width=5,width_max=4)", "parameter width_max = \"4\""),
            (
                "leveled(wait=10)",
                "parameter wait = \"10\" is not allowed with K = 4: merges into a tiered level never wait",
            ),
            (
                "leveled(K=1,wait=3)",
                "parameter wait = \"3\" is not from trigger = 4 to below stop = 20",
            ),
            ("leveled(K=1,wait=20)", "parameter wait = \"20\""),
            ("fluid(10,1)", "parameter K = \"10\" is not at most T - 1 = 9"),
            ("fluid(3,1,5)", "not of the form"),
            ("fluid(K=3,12)", "parameter Z = \"12\""),
            ("spooky(last=2)", "parameter above = \"2\" is not below last = 2"),
            ("tsd(0)", "parameter F = \"0\" is not a decimal"),
            ("tsa(1w)", "parameter D = \"1w\" is not a time"),
            ("fifo(0)", "parameter bytes = \"0\" is not"),
            ("lo+2(K=3)", "policy lo+2 has no parameter \"K\""),
            ("tiering(T)", "not of the form"),
            ("tiering(T=3", "not of the form"),
            ("tiering(T=3,T=4)", "not of the form"),
            ("", "unknown policy \"\""),
        ];
        for (text, expected) in cases {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn with_size_ratio_changes_policies_with_that_parameter() {
        for spec in PolicySpec::all_presets() {
            let changed = spec.clone().with_size_ratio(5).unwrap();
            let has_one = spec.preset() != Some(Preset::Universal);
            assert_eq!(changed != spec, has_one, "{changed}");
            assert_eq!(spec.with_size_ratio(1).is_err(), has_one);
        }
    }
}

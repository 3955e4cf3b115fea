//! A policy as text: names with parameters, and compositions in TOML ↔ policy.
//!
//! ```text
//! spec       name | name(parameter, …) | {composition}
//! name       of a preset, in any case; the study's spellings too
//! parameter  key=value, with a key of Preset::parameters in any case (size_ratio is T);
//!            the first ones of some presets may stand without a key: fluid(3,1), tsa(0.5)
//! ```
//!
//! A composition is a policy put together from primitives; [`toml`] has its form. On one line, as a
//! database remembers it, it is an inline table of TOML.

pub mod toml;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::parameter::{MILLION, Parameter, SHARE_OF_RUN};
use crate::presets::Preset;
use crate::{CompactionPolicy, Composed, Error, Primitives};

/// A policy as it is asked for: a preset with its parameters, such as `tiering(T=4)`, or a composition
/// of primitives; prints as it is read, in serde too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PolicySpec(Form);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Preset {
        preset: Preset,
        /// What differs from the defaults.
        given: BTreeMap<Parameter, u64>,
    },
    Composition(Arc<Composition>),
}

/// Primitives under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Composition {
    /// What the policy is called, in results and errors.
    pub name: String,
    /// What it is made of.
    pub primitives: Primitives,
}

/// Bound on the age of tombstones of `tsa` in a database, where none is given: a day.
pub const BOUND_US_DEFAULT: u64 = 86_400_000_000;

impl PolicySpec {
    /// Returns a preset with its defaults.
    #[must_use]
    pub fn new(preset: Preset) -> Self {
        PolicySpec(Form::Preset { preset, given: BTreeMap::new() })
    }

    /// Returns a policy of these primitives.
    ///
    /// # Errors
    ///
    /// If they do not go together, or the name is that of a preset or no name: up to 64 letters,
    /// digits and `+ - . _`.
    pub fn composed(name: impl Into<String>, primitives: Primitives) -> Result<Self, Error> {
        let name = name.into();
        toml::check_name(&name).map_err(|what| Error::SpecText { line: 1, what })?;
        primitives.check()?;
        Ok(PolicySpec(Form::Composition(Arc::new(Composition { name, primitives }))))
    }

    /// Reads a policy from the text of a TOML file; [`toml`] has its form.
    ///
    /// # Errors
    ///
    /// What is wrong, with the line.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        toml::read(text)
    }

    /// Every preset that drops nothing, with its defaults: what `all` stands for.
    #[must_use]
    pub fn all_presets() -> Vec<PolicySpec> {
        Preset::ALL.into_iter().map(PolicySpec::new).collect()
    }

    /// The preset, if it is one.
    #[must_use]
    pub fn preset(&self) -> Option<Preset> {
        match &self.0 {
            Form::Preset { preset, .. } => Some(*preset),
            Form::Composition(_) => None,
        }
    }

    /// Canonical name of the preset, or the name of the composition, without parameters.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Form::Preset { preset, .. } => preset.name(),
            Form::Composition(composition) => &composition.name,
        }
    }

    /// The value of a parameter of a preset, given or by default; `None` for a composition.
    #[must_use]
    pub fn value(&self, parameter: Parameter) -> Option<u64> {
        match &self.0 {
            Form::Preset { preset, given } => Some(value_of(*preset, given, parameter)),
            Form::Composition(_) => None,
        }
    }

    /// Returns the spec with a parameter set.
    ///
    /// # Errors
    ///
    /// If the policy does not have the parameter, or not with this value.
    pub fn with(mut self, parameter: Parameter, value: u64) -> Result<Self, Error> {
        let name = self.name().to_owned();
        let Form::Preset { preset, given } = &mut self.0 else {
            return Err(unknown_parameter(&name, &[], parameter.name()));
        };
        set(*preset, given, parameter, value)?;
        check(*preset, given)?;
        Ok(self)
    }

    /// Returns the spec with another size ratio. A policy without that parameter, such as
    /// `universal`, stays as it is.
    ///
    /// # Errors
    ///
    /// If `size_ratio` is below 2, or leaves too small a value for another parameter.
    pub fn with_size_ratio(self, size_ratio: u64) -> Result<Self, Error> {
        let has_it = |preset: Preset| preset.parameters().contains(&Parameter::SizeRatio);
        if self.preset().is_some_and(has_it) {
            return self.with(Parameter::SizeRatio, size_ratio);
        }
        Ok(self)
    }

    /// Whether it lets data go that nobody has deleted.
    #[must_use]
    pub fn drops_data(&self) -> bool {
        self.primitives().drops_data()
    }

    /// The share of an experiment's run that it asks for, in millionths, if it does.
    #[must_use]
    pub fn share_of_run(&self) -> Option<u64> {
        let preset = self.preset()?;
        if !preset.parameters().contains(&Parameter::Bound) {
            return None;
        }
        let bound = self.value(Parameter::Bound)?;
        (bound & SHARE_OF_RUN != 0).then_some(bound & !SHARE_OF_RUN)
    }

    /// Returns the spec for a run that takes so long: a share of it becomes a time.
    #[must_use]
    pub fn of_run(mut self, run_us: u64) -> Self {
        let share = self.share_of_run();
        if let (Form::Preset { given, .. }, Some(ppm)) = (&mut self.0, share) {
            let bound = u128::from(run_us) * u128::from(ppm) / u128::from(MILLION);
            let bound = u64::try_from(bound).unwrap_or(u64::MAX).clamp(1, SHARE_OF_RUN - 1);
            given.insert(Parameter::Bound, bound);
        }
        self
    }

    /// Verifies that it can rule a database: no parameter is a share of a run.
    ///
    /// # Errors
    ///
    /// [`Error::ShareOfRun`].
    pub fn check_for_database(&self) -> Result<(), Error> {
        match &self.0 {
            Form::Preset { preset, given } => match given.get(&Parameter::Bound) {
                Some(bound) if bound & SHARE_OF_RUN != 0 => Err(Error::ShareOfRun {
                    policy: preset.name().to_owned(),
                    share: Parameter::Bound.show(*bound),
                }),
                _ => Ok(()),
            },
            Form::Composition(_) => Ok(()),
        }
    }

    /// The primitives that it is made of. A bound that is a share of a run is none here; without
    /// any, it is [`BOUND_US_DEFAULT`].
    #[must_use]
    pub fn primitives(&self) -> Primitives {
        match &self.0 {
            Form::Preset { preset, given } => {
                preset.primitives(|parameter| match value_of(*preset, given, parameter) {
                    bound if parameter == Parameter::Bound && bound & SHARE_OF_RUN != 0 => {
                        let is_given = given.contains_key(&Parameter::Bound);
                        if is_given { SHARE_OF_RUN - 1 } else { BOUND_US_DEFAULT }
                    }
                    value => value,
                })
            }
            Form::Composition(composition) => composition.primitives.clone(),
        }
    }

    /// Builds the policy.
    #[must_use]
    pub fn build(&self) -> Arc<dyn CompactionPolicy> {
        Arc::new(Composed::of_checked(self.name(), self.primitives()))
    }
}

fn value_of(preset: Preset, given: &BTreeMap<Parameter, u64>, parameter: Parameter) -> u64 {
    let value = |other| value_of(preset, given, other);
    given.get(&parameter).copied().unwrap_or_else(|| preset.default_of(parameter, &value))
}

fn set(
    preset: Preset,
    given: &mut BTreeMap<Parameter, u64>,
    parameter: Parameter,
    value: u64,
) -> Result<(), Error> {
    if !preset.parameters().contains(&parameter) {
        return Err(unknown_parameter(preset.name(), preset.parameters(), parameter.name()));
    }
    let (min, max) = parameter.domain();
    let number = if parameter == Parameter::Bound { value & !SHARE_OF_RUN } else { value };
    if !(min..=max).contains(&number) {
        return Err(bad(preset, parameter, parameter.show(value), parameter.expected()));
    }
    given.insert(parameter, value);
    Ok(())
}

/// Parameters must agree with each other, and what is a default is not kept as given.
fn check(preset: Preset, given: &mut BTreeMap<Parameter, u64>) -> Result<(), Error> {
    let value = |parameter| value_of(preset, given, parameter);
    let trigger = match preset {
        Preset::Tiering | Preset::LazyLeveling => Parameter::SizeRatio,
        Preset::Fluid => Parameter::UpperRuns,
        _ => Parameter::Trigger,
    };
    // L0 may rest with as many runs as the trigger of `universal`, one less elsewhere. Were the
    // stop not above that, writes would wait for work that is not due.
    let (stop, runs) = (value(Parameter::Stop), value(trigger));
    if preset.parameters().contains(&Parameter::Stop) && stop <= runs {
        let expected = format!("above {} = {runs}", trigger.name());
        return Err(bad(preset, Parameter::Stop, stop.to_string(), expected));
    }
    let wait = value(Parameter::Wait);
    if given.contains_key(&Parameter::Wait) && !(runs..stop).contains(&wait) {
        let expected = format!("from {} = {runs} to below stop = {stop}", trigger.name());
        return Err(bad(preset, Parameter::Wait, wait.to_string(), expected));
    }
    let (width, width_max) = (value(Parameter::Width), value(Parameter::WidthMax));
    if preset == Preset::Universal && width_max < width {
        let expected = format!("at least width = {width}");
        return Err(bad(preset, Parameter::WidthMax, width_max.to_string(), expected));
    }
    let (above, last) = (value(Parameter::Above), value(Parameter::Last));
    if preset == Preset::Spooky && above >= last {
        let expected = format!("below last = {last}");
        return Err(bad(preset, Parameter::Above, above.to_string(), expected));
    }
    let upper_max = value(Parameter::SizeRatio).saturating_sub(1);
    for runs in [Parameter::UpperRuns, Parameter::LastRuns] {
        if preset == Preset::Fluid && value(runs) > upper_max {
            let expected = format!("at most T - 1 = {upper_max}");
            return Err(bad(preset, runs, value(runs).to_string(), expected));
        }
    }
    let all = given.clone();
    given.retain(|parameter, value| {
        *value != preset.default_of(*parameter, &|other| value_of(preset, &all, other))
    });
    Ok(())
}

fn bad(preset: Preset, parameter: Parameter, value: String, expected: String) -> Error {
    Error::BadParameter { policy: preset.name(), parameter: parameter.name(), value, expected }
}

fn unknown_parameter(policy: &str, known: &[Parameter], parameter: &str) -> Error {
    let known: Vec<_> = known.iter().map(|p| p.name()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Error::UnknownParameter { policy: policy.to_owned(), parameter: parameter.to_owned(), known }
}

impl Default for PolicySpec {
    /// `leveled`.
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
            return toml::read_inline(trimmed);
        }
        let (name, parameters) = match trimmed.split_once('(') {
            None => (trimmed, ""),
            Some((name, rest)) => (name.trim(), rest.strip_suffix(')').ok_or_else(malformed)?),
        };
        let is = |known: &&str| known.eq_ignore_ascii_case(name);
        let presets = || Preset::ALL.into_iter().chain(Preset::DROPPING);
        let preset = presets()
            .find(|preset| is(&preset.name()) || preset.aliases().iter().any(is))
            .ok_or_else(|| Error::UnknownPolicy {
                name: name.to_owned(),
                known: presets().map(Preset::name).collect::<Vec<_>>().join(", "),
            })?;
        let mut given = BTreeMap::new();
        let parts = parameters.split(',').map(str::trim).filter(|part| !part.is_empty());
        for (index, part) in parts.enumerate() {
            let (parameter, value) = match part.split_once('=') {
                Some((key, value)) => {
                    let key = key.trim();
                    let is_it = |p: &Parameter| p.name().eq_ignore_ascii_case(key);
                    let parameter = match key.eq_ignore_ascii_case("size_ratio") {
                        true => Some(Parameter::SizeRatio),
                        false => Parameter::ALL.into_iter().find(is_it),
                    };
                    let unknown = || unknown_parameter(preset.name(), preset.parameters(), key);
                    (parameter.ok_or_else(unknown)?, value.trim())
                }
                None => (*preset.positional().get(index).ok_or_else(malformed)?, part),
            };
            if !preset.parameters().contains(&parameter) {
                let known = preset.parameters();
                return Err(unknown_parameter(preset.name(), known, parameter.name()));
            }
            if given.contains_key(&parameter) {
                return Err(malformed());
            }
            let number = parameter
                .parse(value)
                .ok_or_else(|| bad(preset, parameter, value.to_owned(), parameter.expected()))?;
            set(preset, &mut given, parameter, number)?;
        }
        check(preset, &mut given)?;
        Ok(PolicySpec(Form::Preset { preset, given }))
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (preset, given) = match &self.0 {
            Form::Preset { preset, given } => (preset, given),
            Form::Composition(composition) => {
                return f.write_str(&toml::write_inline(composition));
            }
        };
        f.write_str(preset.name())?;
        for (index, (parameter, value)) in given.iter().enumerate() {
            let open = if index == 0 { "(" } else { "," };
            write!(f, "{open}{}={}", parameter.name(), parameter.show(*value))?;
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
    fn every_preset_prints_as_it_is_read() {
        for spec in PolicySpec::all_presets() {
            assert_eq!(parse(&spec.to_string()), Ok(spec.clone()));
            assert_eq!(parse(&spec.name().to_uppercase()), Ok(spec.clone()));
            assert_eq!(spec.build().name(), spec.name());
            for &parameter in spec.preset().unwrap().parameters() {
                let value = spec.value(parameter).unwrap() + 1;
                let Ok(changed) = spec.clone().with(parameter, value) else { continue };
                assert_eq!(parse(&changed.to_string()), Ok(changed.clone()));
                assert_eq!(changed.value(parameter), Some(value));
            }
        }
    }

    #[test]
    fn spellings_of_the_study_are_accepted() {
        assert_eq!(parse("Tier").unwrap().name(), "universal");
        assert_eq!(parse("1-Lvl").unwrap().name(), "1-leveling");
        assert_eq!(parse(" LO+1 ").unwrap().name(), "lo+1");
        assert_eq!(parse("Cold").unwrap().name(), "cold-access");
        assert_eq!(parse("RR").unwrap().name(), "rr");
    }

    #[test]
    fn parameters_are_read_and_defaults_are_not_printed() {
        let spec = parse("tiering( size_ratio = 4 )").unwrap();
        assert_eq!(spec.to_string(), "tiering(T=4)");
        assert_eq!(spec.value(Parameter::SizeRatio), Some(4));
        assert_eq!(parse("tiering(T=10)").unwrap().to_string(), "tiering");
        assert_eq!(parse("leveled(wait=10)").unwrap().to_string(), "leveled");
        assert_eq!(
            parse("leveled(trigger=12,wait=12)").unwrap().to_string(),
            "leveled(trigger=12)"
        );
        assert_eq!(parse("leveled(stop=6)").unwrap().value(Parameter::Wait), Some(4));
        assert_eq!(parse("tiering()").unwrap().to_string(), "tiering");
        assert_eq!(parse("LEVELED(Trigger=2,t=4)").unwrap().to_string(), "leveled(T=4,trigger=2)");
    }

    #[test]
    fn some_parameters_go_without_their_name() {
        assert_eq!(parse("fluid(5,2)").unwrap(), parse("fluid(K=5,Z=2)").unwrap());
        assert_eq!(parse("fluid(3,1)").unwrap().to_string(), "fluid");
        assert_eq!(parse("fluid(5,T=8)").unwrap().to_string(), "fluid(T=8,K=5)");
        assert_eq!(parse("tsa(0.5)").unwrap().to_string(), "tsa");
        assert_eq!(parse("TSA(1h)").unwrap().to_string(), "tsa(D=1h)");
        assert_eq!(parse("tsd(0.10)").unwrap().to_string(), "tsd(F=0.1)");
        assert_eq!(parse("fifo(2G,ttl=7d)").unwrap().to_string(), "fifo(bytes=2G,ttl=7d)");
    }

    #[test]
    fn a_share_of_a_run_becomes_a_time() {
        let spec = parse("tsa(0.33)").unwrap();
        assert_eq!(spec.share_of_run(), Some(330_000));
        assert!(spec.check_for_database().unwrap_err().to_string().contains("D = 0.33"));
        let of_run = spec.of_run(1_000_000);
        assert_eq!(of_run.to_string(), "tsa(D=330ms)");
        assert_eq!(of_run.share_of_run(), None);
        assert_eq!(of_run.check_for_database(), Ok(()));
        // Without a bound: half of a run, and in a database a day.
        let spec = parse("tsa").unwrap();
        assert_eq!(spec.share_of_run(), Some(500_000));
        assert_eq!(spec.check_for_database(), Ok(()));
        assert_eq!(spec.primitives(), parse("tsa(1d)").unwrap().primitives());
        assert_eq!(parse("leveled").unwrap().of_run(5), parse("leveled").unwrap());
    }

    #[test]
    fn only_a_queue_drops_data() {
        assert!(parse("fifo").unwrap().drops_data());
        assert!(PolicySpec::all_presets().iter().all(|spec| !spec.drops_data()));
    }

    #[test]
    fn unknown_names_are_answered_with_the_known_ones() {
        let error = parse("lasy").unwrap_err();
        let Error::UnknownPolicy { name, known } = &error else { panic!("{error}") };
        assert_eq!(name, "lasy");
        for preset in Preset::ALL {
            assert!(known.contains(preset.name()), "{known}");
        }
    }

    #[test]
    fn bad_parameters_are_named() {
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
                "leveled(wait=3)",
                "parameter wait = \"3\" is not from trigger = 4 to below stop = 20",
            ),
            ("leveled(wait=20)", "parameter wait = \"20\""),
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
    fn size_ratio_is_set_where_there_is_one() {
        for spec in PolicySpec::all_presets() {
            let changed = spec.clone().with_size_ratio(5).unwrap();
            let has_one = spec.preset() != Some(Preset::Universal);
            assert_eq!(changed != spec, has_one, "{changed}");
            assert_eq!(spec.with_size_ratio(1).is_err(), has_one);
        }
    }
}

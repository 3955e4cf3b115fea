//! A policy as text: names with parameters ↔ policy.
//!
//! ```text
//! spec       name | name(parameter=value, …)
//! name       of a preset, in any case; the study's spellings too
//! parameter  as listed by Preset::parameters, in any case; size_ratio is T
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::presets::{Parameter, Preset};
use crate::{CompactionPolicy, Composed, Error};

/// A preset with its parameters, such as `tiering(T=4)`; prints as it is read, in serde too.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PolicySpec {
    preset: Preset,
    /// What differs from the defaults.
    given: BTreeMap<Parameter, u64>,
}

impl PolicySpec {
    /// Returns a preset with its defaults.
    #[must_use]
    pub fn new(preset: Preset) -> Self {
        PolicySpec { preset, given: BTreeMap::new() }
    }

    /// Every preset that drops nothing, with its defaults: what `all` stands for.
    #[must_use]
    pub fn all_presets() -> Vec<PolicySpec> {
        Preset::ALL.into_iter().map(PolicySpec::new).collect()
    }

    /// The preset.
    #[must_use]
    pub fn preset(&self) -> Preset {
        self.preset
    }

    /// Canonical name of the preset, without parameters.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.preset.name()
    }

    /// The value of a parameter, given or by default.
    #[must_use]
    pub fn value(&self, parameter: Parameter) -> u64 {
        let given = self.given.get(&parameter).copied();
        given.unwrap_or_else(|| self.default_of(parameter))
    }

    fn default_of(&self, parameter: Parameter) -> u64 {
        self.preset.default_of(parameter, &|other| self.value(other))
    }

    /// Returns the spec with a parameter set.
    ///
    /// # Errors
    ///
    /// If the preset does not have the parameter, or not with this value.
    pub fn with(mut self, parameter: Parameter, value: u64) -> Result<Self, Error> {
        self.set(parameter, value)?;
        self.check()?;
        Ok(self)
    }

    /// Returns the spec with another size ratio. A preset without one, `universal`, stays as it is.
    ///
    /// # Errors
    ///
    /// If `size_ratio` is below 2, or leaves too small a value for another parameter.
    pub fn with_size_ratio(self, size_ratio: u64) -> Result<Self, Error> {
        if self.preset.parameters().contains(&Parameter::SizeRatio) {
            return self.with(Parameter::SizeRatio, size_ratio);
        }
        Ok(self)
    }

    /// Builds the policy.
    #[must_use]
    pub fn build(&self) -> Arc<dyn CompactionPolicy> {
        let primitives = self.preset.primitives(|parameter| self.value(parameter));
        Arc::new(Composed::new(self.name(), primitives))
    }

    fn set(&mut self, parameter: Parameter, value: u64) -> Result<(), Error> {
        let policy = self.name();
        if !self.preset.parameters().contains(&parameter) {
            return Err(self.unknown_parameter(parameter.name()));
        }
        let (min, max) = parameter.domain();
        if !(min..=max).contains(&value) {
            return Err(Error::BadParameter {
                policy,
                parameter: parameter.name(),
                value: value.to_string(),
                expected: format!("a whole number from {min} to {max}"),
            });
        }
        self.given.insert(parameter, value);
        Ok(())
    }

    /// Parameters must agree with each other, and what is a default is not kept as given.
    fn check(&mut self) -> Result<(), Error> {
        let trigger = match self.preset {
            Preset::Tiering => Parameter::SizeRatio,
            _ => Parameter::Trigger,
        };
        // L0 may rest with as many runs as the trigger of `universal`, one less elsewhere. Were the
        // stop not above that, writes would wait for work that is not due.
        let (stop, runs) = (self.value(Parameter::Stop), self.value(trigger));
        if stop <= runs {
            return Err(Error::BadParameter {
                policy: self.name(),
                parameter: Parameter::Stop.name(),
                value: stop.to_string(),
                expected: format!("above {} = {runs}", trigger.name()),
            });
        }
        let wait = self.value(Parameter::Wait);
        if self.given.contains_key(&Parameter::Wait) && !(runs..stop).contains(&wait) {
            return Err(Error::BadParameter {
                policy: self.name(),
                parameter: Parameter::Wait.name(),
                value: wait.to_string(),
                expected: format!("from {} = {runs} to below stop = {stop}", trigger.name()),
            });
        }
        if self.preset == Preset::Universal
            && self.value(Parameter::WidthMax) < self.value(Parameter::Width)
        {
            return Err(Error::BadParameter {
                policy: self.name(),
                parameter: Parameter::WidthMax.name(),
                value: self.value(Parameter::WidthMax).to_string(),
                expected: format!("at least width = {}", self.value(Parameter::Width)),
            });
        }
        let spec = self.clone();
        self.given.retain(|&parameter, value| *value != spec.default_of(parameter));
        Ok(())
    }

    fn unknown_parameter(&self, parameter: &str) -> Error {
        let known: Vec<_> = self.preset.parameters().iter().map(|p| p.name()).collect();
        Error::UnknownParameter {
            policy: self.name(),
            parameter: parameter.to_owned(),
            known: known.join(", "),
        }
    }
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
        let (name, parameters) = match trimmed.split_once('(') {
            None => (trimmed, ""),
            Some((name, rest)) => (name.trim(), rest.strip_suffix(')').ok_or_else(malformed)?),
        };
        let is = |known: &&str| known.eq_ignore_ascii_case(name);
        let preset = Preset::ALL
            .into_iter()
            .find(|preset| is(&preset.name()) || preset.aliases().iter().any(is))
            .ok_or_else(|| Error::UnknownPolicy {
                name: name.to_owned(),
                known: Preset::ALL.map(Preset::name).join(", "),
            })?;
        let mut spec = PolicySpec::new(preset);
        for part in parameters.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(malformed)?;
            let (key, value) = (key.trim(), value.trim());
            let parameter = if key.eq_ignore_ascii_case("size_ratio") {
                Some(Parameter::SizeRatio)
            } else {
                Parameter::ALL.into_iter().find(|p| p.name().eq_ignore_ascii_case(key))
            };
            let parameter = parameter.ok_or_else(|| spec.unknown_parameter(key))?;
            if spec.given.contains_key(&parameter) {
                return Err(malformed());
            }
            let number = value.parse().map_err(|_| Error::BadParameter {
                policy: preset.name(),
                parameter: parameter.name(),
                value: value.to_owned(),
                expected: "a whole number".to_owned(),
            })?;
            spec.set(parameter, number)?;
        }
        spec.check()?;
        Ok(spec)
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        for (index, (parameter, value)) in self.given.iter().enumerate() {
            let open = if index == 0 { "(" } else { "," };
            write!(f, "{open}{}={value}", parameter.name())?;
        }
        f.write_str(if self.given.is_empty() { "" } else { ")" })
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
            for &parameter in spec.preset().parameters() {
                let value = spec.value(parameter) + 1;
                let Ok(changed) = spec.clone().with(parameter, value) else { continue };
                assert_eq!(parse(&changed.to_string()), Ok(changed.clone()));
                assert_eq!(changed.value(parameter), value);
            }
        }
    }

    #[test]
    fn spellings_of_the_study_are_accepted() {
        assert_eq!(parse("Tier").unwrap().name(), "universal");
        assert_eq!(parse("1-Lvl").unwrap().name(), "1-leveling");
        assert_eq!(parse(" LO+1 ").unwrap().name(), "lo+1");
    }

    #[test]
    fn parameters_are_read_and_defaults_are_not_printed() {
        let spec = parse("tiering( size_ratio = 4 )").unwrap();
        assert_eq!(spec.to_string(), "tiering(T=4)");
        assert_eq!(spec.value(Parameter::SizeRatio), 4);
        assert_eq!(parse("tiering(T=10)").unwrap().to_string(), "tiering");
        assert_eq!(parse("leveled(wait=10)").unwrap().to_string(), "leveled");
        assert_eq!(
            parse("leveled(trigger=12,wait=12)").unwrap().to_string(),
            "leveled(trigger=12)"
        );
        assert_eq!(parse("leveled(stop=6)").unwrap().value(Parameter::Wait), 4);
        assert_eq!(parse("tiering()").unwrap().to_string(), "tiering");
        assert_eq!(parse("LEVELED(Trigger=2,t=4)").unwrap().to_string(), "leveled(T=4,trigger=2)");
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
            let has_one = spec.preset() != Preset::Universal;
            assert_eq!(changed != spec, has_one, "{changed}");
            assert_eq!(spec.with_size_ratio(1).is_err(), has_one);
        }
    }
}

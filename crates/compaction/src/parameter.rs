//! Parameters of presets: names, allowed values, and the syntax of values.

use std::fmt::Write as _;

/// A parameter of a preset. The value is an integer in the unit that [`PolicyParameter::unit`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum PolicyParameter {
    /// `T`: size ratio of adjacent levels. For tiering, the number of runs that are merged.
    SizeRatio,
    /// `K`: maximum number of runs in upper levels. For the preset `leveled`, maximum number of runs in L1.
    UpperRuns,
    /// `Z`: maximum number of runs in the last level.
    LastRuns,
    /// `D`: maximum age of a tombstone. A decimal number is a share of the duration of an experiment.
    Bound,
    /// `F`: minimum share of tombstones among the entries of a file that makes the file due.
    Density,
    /// `trigger`: number of runs that makes a merge due. Counts the runs of L0, for `universal` the runs of the whole
    /// tree.
    Trigger,
    /// `wait`: number of runs in L0 that makes a merge due even if the merge rewrites much more data than it adds.
    Wait,
    /// `stop`: number of runs in L0 at which writes stop.
    Stop,
    /// `tables`: target size of an output file, as a multiple of the target size of a table.
    Tables,
    /// `l1`: capacity of L1 in memtables.
    L1,
    /// `base`: minimum capacity of the base level in memtables.
    Base,
    /// `last`: number of the last level.
    Last,
    /// `above`: distance of the first partitioned level from the last level.
    Above,
    /// `grandparents`: maximum bytes of the grandparent level that an output may overlap, as a multiple of the target
    /// size of an output.
    Grandparents,
    /// `space`: space amplification at which all runs are merged, in per cent.
    Space,
    /// `ratio`: tolerance in per cent. A run joins a sequence if it is at most this much larger than all newer runs of
    /// the sequence together.
    Ratio,
    /// `width`: minimum number of runs in a sequence that is merged.
    Width,
    /// `width_max`: maximum number of runs in a sequence that is merged.
    WidthMax,
    /// `bytes`: size of the tree above which the oldest file is dropped. Blob files do not count.
    Bytes,
    /// `ttl`: age at which a file is dropped. 0 means never.
    Ttl,
}

/// Unit of the values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterUnit {
    /// A number without a unit.
    Count,
    /// Millionths, written as a decimal.
    Share,
    /// Microseconds, written with `us`, `ms`, `s`, `m`, `h` or `d`.
    Time,
    /// Microseconds. If the bit [`SHARE_OF_DURATION`] is set, millionths of the duration of an experiment.
    TimeOrShare,
    /// Bytes, written with `K`, `M`, `G` or `T` for powers of 1024.
    Bytes,
}

/// Bit that marks a value of [`ParameterUnit::TimeOrShare`] as a share.
pub const SHARE_OF_DURATION: u64 = 1 << 63;

/// The share 1.0 in millionths.
pub const MILLION: u64 = 1_000_000;

const TIMES: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];
const SIZES: [(&str, u64); 5] =
    [("", 1), ("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40)];

/// Declaration of a parameter: its name in a spec, its unit, its minimum and its maximum.
type Declaration = (PolicyParameter, &'static str, ParameterUnit, u64, u64);

/// Declarations of all parameters, in the order of [`PolicyParameter`].
const DECLARATIONS: [Declaration; 20] = {
    use ParameterUnit::{Bytes, Count, Share, Time, TimeOrShare};
    use PolicyParameter as P;
    const BILLION: u64 = 1000 * MILLION;
    [
        (P::SizeRatio, "T", Count, 2, MILLION),
        (P::UpperRuns, "K", Count, 1, MILLION),
        (P::LastRuns, "Z", Count, 1, MILLION),
        (P::Bound, "D", TimeOrShare, 1, SHARE_OF_DURATION - 1),
        (P::Density, "F", Share, 1, MILLION),
        (P::Trigger, "trigger", Count, 1, MILLION),
        (P::Wait, "wait", Count, 1, MILLION),
        (P::Stop, "stop", Count, 2, MILLION),
        (P::Tables, "tables", Count, 1, MILLION),
        (P::L1, "l1", Count, 1, MILLION),
        (P::Base, "base", Count, 1, MILLION),
        (P::Last, "last", Count, 1, 63),
        (P::Above, "above", Count, 1, 62),
        (P::Grandparents, "grandparents", Count, 1, BILLION),
        (P::Space, "space", Count, 1, BILLION),
        (P::Ratio, "ratio", Count, 0, MILLION),
        (P::Width, "width", Count, 2, BILLION),
        (P::WidthMax, "width_max", Count, 2, BILLION),
        (P::Bytes, "bytes", Bytes, 1, SHARE_OF_DURATION - 1),
        (P::Ttl, "ttl", Time, 0, SHARE_OF_DURATION - 1),
    ]
};

impl PolicyParameter {
    /// Returns the parameter with this name. Ignores letter case.
    pub(crate) fn from_name(name: &str) -> Option<PolicyParameter> {
        let is_named = |(parameter, ..): &&Declaration| parameter.name().eq_ignore_ascii_case(name);
        DECLARATIONS.iter().find(is_named).map(|(parameter, ..)| *parameter)
    }

    /// Returns the name as written in a spec.
    #[must_use]
    pub fn name(self) -> &'static str {
        DECLARATIONS[self as usize].1
    }

    /// Returns the unit of the values.
    #[must_use]
    pub fn unit(self) -> ParameterUnit {
        DECLARATIONS[self as usize].2
    }

    /// Returns the smallest and the largest allowed value. For [`ParameterUnit::TimeOrShare`], the bounds apply only to
    /// times.
    pub(crate) fn allowed_range(self) -> (u64, u64) {
        let (_, _, _, min, max) = DECLARATIONS[self as usize];
        (min, max)
    }

    /// Parses a value. Returns `None` if the syntax is wrong.
    pub(crate) fn parse(self, text: &str) -> Option<u64> {
        match self.unit() {
            ParameterUnit::Count => text.parse().ok(),
            ParameterUnit::Share => parse_share(text),
            ParameterUnit::Time => parse_with_unit(text, &TIMES),
            ParameterUnit::TimeOrShare => match text.contains('.') {
                true => parse_share(text).map(|share| share | SHARE_OF_DURATION),
                false => parse_with_unit(text, &TIMES),
            },
            ParameterUnit::Bytes => parse_with_unit(text, &SIZES),
        }
    }

    /// Formats a value in the syntax of a spec.
    #[must_use]
    pub fn format(self, value: u64) -> String {
        match self.unit() {
            ParameterUnit::Count => value.to_string(),
            ParameterUnit::Share => format_share(value),
            ParameterUnit::Time => format_with_unit(value, &TIMES),
            ParameterUnit::TimeOrShare if value & SHARE_OF_DURATION != 0 => {
                format_share(value & !SHARE_OF_DURATION)
            }
            ParameterUnit::TimeOrShare => format_with_unit(value, &TIMES),
            ParameterUnit::Bytes => format_with_unit(value, &SIZES),
        }
    }

    /// Describes the accepted values for an error message.
    pub(crate) fn expected_values(self) -> String {
        let (min, max) = self.allowed_range();
        match self.unit() {
            ParameterUnit::Count => format!("a whole number from {min} to {max}"),
            ParameterUnit::Share => "a decimal above 0 and at most 1".to_owned(),
            ParameterUnit::Time => "a time such as 500ms, 3600s or 7d".to_owned(),
            ParameterUnit::TimeOrShare => {
                "a time such as 500ms, 3600s or 7d, or for experiments a share of the duration such as 0.5"
                    .to_owned()
            }
            ParameterUnit::Bytes => "a number of bytes such as 500M or 1G".to_owned(),
        }
    }
}

/// Parses a decimal number above 0 and at most 1. Returns millionths.
pub(crate) fn parse_share(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.trim_end_matches('0');
    if digits.len() > 6 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction: u64 = format!("{digits:0<6}").parse().ok()?;
    let share = whole.checked_mul(MILLION)?.checked_add(fraction)?;
    (1..=MILLION).contains(&share).then_some(share)
}

/// Formats millionths as a decimal.
pub(crate) fn format_share(ppm: u64) -> String {
    let mut text = format!("{}.{:06}", ppm / MILLION, ppm % MILLION);
    while text.ends_with('0') && !text.ends_with(".0") {
        text.pop();
    }
    text
}

/// Parses an integer with a unit. If the unit is missing, uses the first of `units`, which is microseconds or bytes.
fn parse_with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = if unit.is_empty() { units[0].0 } else { unit };
    let (_, factor) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Formats a value with the largest unit for which the number is an integer.
fn format_with_unit(value: u64, units: &[(&str, u64)]) -> String {
    let fits = |(_, factor): &&(&str, u64)| value > 0 && value.is_multiple_of(*factor);
    let (unit, factor) = units.iter().rev().find(fits).unwrap_or(&units[0]);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write!(text, "{}{unit}", value / factor);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_in_the_order_of_parameters() {
        for (index, (parameter, ..)) in DECLARATIONS.iter().enumerate() {
            assert_eq!(*parameter as usize, index);
        }
    }

    #[test]
    fn parse_formatted_value_is_same() {
        for (parameter, text, value) in [
            (PolicyParameter::SizeRatio, "4", 4),
            (PolicyParameter::Density, "0.25", 250_000),
            (PolicyParameter::Density, "1.0", MILLION),
            (PolicyParameter::Bound, "0.5", SHARE_OF_DURATION | 500_000),
            (PolicyParameter::Bound, "0.000001", SHARE_OF_DURATION | 1),
            (PolicyParameter::Bound, "1h", 3_600_000_000),
            (PolicyParameter::Bound, "1500ms", 1_500_000),
            (PolicyParameter::Bound, "7us", 7),
            (PolicyParameter::Ttl, "0us", 0),
            (PolicyParameter::Bytes, "3G", 3 << 30),
            (PolicyParameter::Bytes, "1000", 1000),
        ] {
            assert_eq!(parameter.parse(text), Some(value), "{text}");
            assert_eq!(parameter.format(value), text);
        }
        assert_eq!(PolicyParameter::Bound.parse("3600s"), PolicyParameter::Bound.parse("1H"));
        assert_eq!(PolicyParameter::Bound.parse("12"), Some(12));
        assert_eq!(PolicyParameter::Density.parse("1"), Some(MILLION));
        assert_eq!(PolicyParameter::Density.parse(".5"), Some(500_000));
    }

    #[test]
    fn parse_invalid_value_is_none() {
        for (parameter, texts) in [
            (PolicyParameter::SizeRatio, &["", "x", "1.5", "-1", "4K"][..]),
            (
                PolicyParameter::Density,
                &["", "0", "0.0", "1.1", "0.0000001", "1e-1", "x", "-0.5", "."],
            ),
            (
                PolicyParameter::Bound,
                &["", "s", "1w", "1.5s", "99999999999999999999s", "200000000000000d"],
            ),
            (PolicyParameter::Bytes, &["", "K", "1P", "99999999999T"]),
        ] {
            for text in texts {
                assert_eq!(parameter.parse(text), None, "{text}");
            }
        }
    }
}

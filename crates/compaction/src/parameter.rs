//! The parameters of presets: names, domains, and how their values are written.

use std::fmt::Write as _;

/// A parameter of a preset. Values are whole numbers; [`Unit`] says of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Parameter {
    /// Size ratio of neighbouring levels, `T`. For tiering: runs that merge.
    SizeRatio,
    /// Runs that upper levels may hold, `K`.
    UpperRuns,
    /// Runs that the last level may hold, `Z`.
    LastRuns,
    /// Age that no tombstone outlives, `D`; as a decimal below 1 a share of an experiment's run.
    Bound,
    /// Tombstones of a file, as a share of its entries, that make it due, `F`.
    Density,
    /// Runs that make a merge due, `trigger`: in L0, for universal in the tree.
    Trigger,
    /// Runs of L0 up to which a merge waits to be worth what it rewrites, `wait`.
    Wait,
    /// Runs of L0 that stop writes, `stop`.
    Stop,
    /// Target size of an output, in target sizes of a table, `tables`.
    Tables,
    /// Capacity of L1 in memtables, `l1`.
    L1,
    /// Least capacity of the base level in memtables, `base`.
    Base,
    /// Number of the last level, `last`.
    Last,
    /// Levels from the first partitioned one down to the last, `above`.
    Above,
    /// Grandparent bytes that an output may overlap, in target sizes of an output, `grandparents`.
    Grandparents,
    /// Space amplification in per cent above which all runs merge, `space`.
    Space,
    /// Per cent that the next run of a chain may be larger, `ratio`.
    Ratio,
    /// Fewest runs of a chain, `width`.
    Width,
    /// Most runs of a chain, `width_max`.
    WidthMax,
    /// Bytes of all files above which the oldest leaves, `bytes`.
    Bytes,
    /// Age at which a file leaves, `ttl`; 0 for never.
    Ttl,
}

/// What the values of a parameter count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Millionths; written as a decimal.
    Share,
    /// Microseconds; written with `us`, `ms`, `s`, `m`, `h` or `d`.
    Time,
    /// Microseconds, or with [`SHARE_OF_RUN`] millionths of the time that an experiment runs.
    TimeOrShareOfRun,
    /// Bytes; written with `K`, `M`, `G` or `T` for powers of 1024.
    Bytes,
}

/// Set in a value of [`Unit::TimeOrShareOfRun`] that is a share.
pub const SHARE_OF_RUN: u64 = 1 << 63;

/// One as a share.
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

impl Parameter {
    pub(crate) const ALL: [Parameter; 20] = [
        Parameter::SizeRatio,
        Parameter::UpperRuns,
        Parameter::LastRuns,
        Parameter::Bound,
        Parameter::Density,
        Parameter::Trigger,
        Parameter::Wait,
        Parameter::Stop,
        Parameter::Tables,
        Parameter::L1,
        Parameter::Base,
        Parameter::Last,
        Parameter::Above,
        Parameter::Grandparents,
        Parameter::Space,
        Parameter::Ratio,
        Parameter::Width,
        Parameter::WidthMax,
        Parameter::Bytes,
        Parameter::Ttl,
    ];

    /// The name as written in a spec.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Parameter::SizeRatio => "T",
            Parameter::UpperRuns => "K",
            Parameter::LastRuns => "Z",
            Parameter::Bound => "D",
            Parameter::Density => "F",
            Parameter::Trigger => "trigger",
            Parameter::Wait => "wait",
            Parameter::Stop => "stop",
            Parameter::Tables => "tables",
            Parameter::L1 => "l1",
            Parameter::Base => "base",
            Parameter::Last => "last",
            Parameter::Above => "above",
            Parameter::Grandparents => "grandparents",
            Parameter::Space => "space",
            Parameter::Ratio => "ratio",
            Parameter::Width => "width",
            Parameter::WidthMax => "width_max",
            Parameter::Bytes => "bytes",
            Parameter::Ttl => "ttl",
        }
    }

    /// What its values count.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Parameter::Bound => Unit::TimeOrShareOfRun,
            Parameter::Density => Unit::Share,
            Parameter::Bytes => Unit::Bytes,
            Parameter::Ttl => Unit::Time,
            _ => Unit::Count,
        }
    }

    /// Smallest and largest value; of a time that may be a share, of the time.
    pub(crate) fn domain(self) -> (u64, u64) {
        match self {
            Parameter::SizeRatio => (2, 1_000_000),
            Parameter::UpperRuns | Parameter::LastRuns => (1, 1_000_000),
            Parameter::Trigger
            | Parameter::Wait
            | Parameter::Tables
            | Parameter::L1
            | Parameter::Base => (1, 1_000_000),
            Parameter::Stop => (2, 1_000_000),
            Parameter::Last => (1, 63),
            Parameter::Above => (1, 62),
            Parameter::Grandparents | Parameter::Space => (1, 1_000_000_000),
            Parameter::Ratio => (0, 1_000_000),
            Parameter::Width | Parameter::WidthMax => (2, 1_000_000_000),
            Parameter::Density => (1, MILLION),
            Parameter::Bytes | Parameter::Bound => (1, SHARE_OF_RUN - 1),
            Parameter::Ttl => (0, SHARE_OF_RUN - 1),
        }
    }

    /// Reads a value; `None` if it is not written as one.
    pub(crate) fn parse(self, text: &str) -> Option<u64> {
        match self.unit() {
            Unit::Count => text.parse().ok(),
            Unit::Share => parse_share(text),
            Unit::Time => parse_scaled(text, &TIMES),
            Unit::TimeOrShareOfRun => match text.contains('.') {
                true => parse_share(text).map(|share| share | SHARE_OF_RUN),
                false => parse_scaled(text, &TIMES),
            },
            Unit::Bytes => parse_scaled(text, &SIZES),
        }
    }

    /// The value as it is written.
    #[must_use]
    pub fn show(self, value: u64) -> String {
        match self.unit() {
            Unit::Count => value.to_string(),
            Unit::Share => show_share(value),
            Unit::Time => show_scaled(value, &TIMES),
            Unit::TimeOrShareOfRun if value & SHARE_OF_RUN != 0 => {
                show_share(value & !SHARE_OF_RUN)
            }
            Unit::TimeOrShareOfRun => show_scaled(value, &TIMES),
            Unit::Bytes => show_scaled(value, &SIZES),
        }
    }

    /// What is accepted, for an error message.
    pub(crate) fn expected(self) -> String {
        let (min, max) = self.domain();
        match self.unit() {
            Unit::Count => format!("a whole number from {min} to {max}"),
            Unit::Share => "a decimal above 0 and at most 1".to_owned(),
            Unit::Time => "a time such as 500ms, 3600s or 7d".to_owned(),
            Unit::TimeOrShareOfRun => {
                "a time such as 500ms, 3600s or 7d, or in an experiment a share of it such as 0.5"
                    .to_owned()
            }
            Unit::Bytes => "a number of bytes such as 500M or 1G".to_owned(),
        }
    }
}

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

pub(crate) fn show_share(ppm: u64) -> String {
    let mut text = format!("{}.{:06}", ppm / MILLION, ppm % MILLION);
    while text.ends_with('0') && !text.ends_with(".0") {
        text.pop();
    }
    text
}

/// A whole number and a unit; a time without a unit is in microseconds.
fn parse_scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = if unit.is_empty() { units[0].0 } else { unit };
    let (_, factor) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// In the largest unit that leaves a whole number.
fn show_scaled(value: u64, units: &[(&str, u64)]) -> String {
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
    fn values_are_read_as_they_are_written() {
        for (parameter, text, value) in [
            (Parameter::SizeRatio, "4", 4),
            (Parameter::Density, "0.25", 250_000),
            (Parameter::Density, "1.0", MILLION),
            (Parameter::Bound, "0.5", SHARE_OF_RUN | 500_000),
            (Parameter::Bound, "0.000001", SHARE_OF_RUN | 1),
            (Parameter::Bound, "1h", 3_600_000_000),
            (Parameter::Bound, "1500ms", 1_500_000),
            (Parameter::Bound, "7us", 7),
            (Parameter::Ttl, "0us", 0),
            (Parameter::Bytes, "3G", 3 << 30),
            (Parameter::Bytes, "1000", 1000),
        ] {
            assert_eq!(parameter.parse(text), Some(value), "{text}");
            assert_eq!(parameter.show(value), text);
        }
        assert_eq!(Parameter::Bound.parse("3600s"), Parameter::Bound.parse("1H"));
        assert_eq!(Parameter::Bound.parse("12"), Some(12));
        assert_eq!(Parameter::Density.parse("1"), Some(MILLION));
        assert_eq!(Parameter::Density.parse(".5"), Some(500_000));
    }

    #[test]
    fn what_is_no_value_is_refused() {
        for (parameter, texts) in [
            (Parameter::SizeRatio, &["", "x", "1.5", "-1", "4K"][..]),
            (Parameter::Density, &["", "0", "0.0", "1.1", "0.0000001", "1e-1", "x", "-0.5", "."]),
            (
                Parameter::Bound,
                &["", "s", "1w", "1.5s", "99999999999999999999s", "200000000000000d"],
            ),
            (Parameter::Bytes, &["", "K", "1P", "99999999999T"]),
        ] {
            for text in texts {
                assert_eq!(parameter.parse(text), None, "{text}");
            }
        }
    }
}

//! Parsers of the values of flags.

use std::time::UNIX_EPOCH;

use lsmx_bench::quantity::{parse_bytes, parse_count, parse_rate};
use lsmx_compaction::PolicySpec;

/// Policies in the order of the command line.
#[derive(Clone, Debug)]
pub(crate) struct Policies(pub(crate) Vec<PolicySpec>);

/// Parses a comma-separated list of policies. `all` stands for every preset that drops no data.
pub(super) fn policies(text: &str) -> Result<Policies, lsmx_compaction::Error> {
    let mut policies = Vec::new();
    for name in split_outside_brackets(text) {
        if name.eq_ignore_ascii_case("all") {
            policies.extend(PolicySpec::all_presets());
        } else {
            policies.push(name.parse()?);
        }
    }
    Ok(Policies(policies))
}

/// Splits a list at its commas, except for commas within brackets, such as in `fluid(3,1)`.
pub(crate) fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut depth = 0usize;
    text.split(|c| {
        match c {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .collect()
}

/// Parses a count.
pub(super) fn count(text: &str) -> Result<u64, String> {
    parse_count(text).map_err(|must| format!("must be {must}"))
}

/// Parses a time in UTC, such as `2026-11-28T12:00:00Z`. Returns milliseconds since 1970-01-01 UTC.
pub(super) fn unix_ms(text: &str) -> Result<u64, String> {
    let must = || "must be a time in UTC, such as 2026-11-28T12:00:00Z".to_owned();
    let time = humantime::parse_rfc3339_weak(text).map_err(|_| must())?;
    let since = time.duration_since(UNIX_EPOCH).map_err(|_| must())?;
    u64::try_from(since.as_millis()).map_err(|_| must())
}

/// Parses a size in bytes.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|must| format!("must be {must}"))
}

/// Parses the memory for sorting, in bytes. The engine refuses less than 64 KiB.
pub(super) fn sort_memory_bytes(text: &str) -> Result<u64, String> {
    let bytes = bytes(text)?;
    (bytes >= 64 << 10).then_some(bytes).ok_or_else(|| "must be at least 64KiB".to_owned())
}

/// Parses a size in bytes below 4 GiB.
pub(super) fn block_bytes(text: &str) -> Result<u32, String> {
    u32::try_from(bytes(text)?).map_err(|_| "must be below 4G".to_owned())
}

/// Parses a number of threads from 1 to 64.
pub(super) fn thread_count(text: &str) -> Result<u64, String> {
    let threads = count(text)?;
    let in_range = (1..=64).contains(&threads).then_some(threads);
    in_range.ok_or_else(|| "must be from 1 to 64".to_owned())
}

/// Parses a count above 0.
pub(super) fn positive_count(text: &str) -> Result<u64, String> {
    match count(text)? {
        0 => Err("must be at least 1".to_owned()),
        count => Ok(count),
    }
}

/// Parses a rate per second: a decimal number, or a count such as `10K`.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    parse_rate(text).map_err(|must| format!("must be {must}"))
}

/// Parses a percentage of 0 or more, with or without `%`.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("must be a percentage from 0, such as 5 or 2.5%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_outside_brackets_keeps_commas_in_brackets() {
        assert_eq!(split_outside_brackets("full,fluid(3,1), rr"), ["full", "fluid(3,1)", "rr"]);
        assert_eq!(split_outside_brackets("a),b"), ["a)", "b"]);
        assert_eq!(split_outside_brackets("{a=[1,2],b=3},rr"), ["{a=[1,2],b=3}", "rr"]);
    }
}

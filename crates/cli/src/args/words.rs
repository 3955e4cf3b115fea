//! Words as values: policies, counts, bytes, shares.

use lsmx_compaction::PolicySpec;

/// Policies as typed, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Policies(pub(crate) Vec<PolicySpec>);

/// Policies by name, split by commas; `all` for every preset that loses nothing.
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

/// Splits at commas, but not at those between the parameters of a policy, as in `fluid(3,1)`, or in a
/// composition on one line.
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

/// A count, in which underscores may group digits.
pub(super) fn count(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|error| format!("{error}"))
}

/// Per cent, with its sign or without: 0 or more.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err(format!("{text} is not a number of per cent, 0 or more")),
    }
}

/// Bytes: a number, with K, M, G or T behind it for powers of 1024 (KiB, MiB, … likewise).
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err(format!("unknown unit {unit:?}; known: K, M, G, T (powers of 1024)")),
    };
    let number = count(number)?;
    number.checked_mul(1 << shift).ok_or_else(|| "more bytes than 64 bits can say".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_units() {
        for (text, n) in
            [("7", 7), ("64K", 64 << 10), ("8MiB", 8 << 20), ("1_000", 1000), ("2g", 2 << 30)]
        {
            assert_eq!(bytes(text), Ok(n), "{text}");
        }
        for text in ["", "K", "1X", "-1", "1.5M", "99999999999T"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn commas_inside_brackets_do_not_split() {
        assert_eq!(split_outside_brackets("full,fluid(3,1), rr"), ["full", "fluid(3,1)", "rr"]);
        assert_eq!(split_outside_brackets("a),b"), ["a)", "b"]);
        assert_eq!(split_outside_brackets("{a=[1,2],b=3},rr"), ["{a=[1,2],b=3}", "rr"]);
    }

    #[test]
    fn all_leaves_out_what_drops_data() {
        let Policies(all) = policies("all").unwrap();
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert!(names.iter().any(|name| name == "tiering"), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("fifo")), "{names:?}");
    }
}

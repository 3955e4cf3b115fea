//! Formats of numbers in HTML pages.

use crate::numbers;
use crate::report::text;

/// Formats a number with three significant digits, without trailing zeros. Numbers of at least 100 are rounded to whole
/// numbers.
pub(crate) fn plain(x: f64) -> String {
    let digits = match x.abs() {
        x if x >= 99.95 => 0,
        x if x >= 9.995 => 1,
        x if x >= 0.1 || x == 0.0 => 2,
        _ => 4,
    };
    let text = format!("{x:.digits$}");
    if digits == 0 {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a ratio with three significant digits.
pub(crate) fn times(x: f64) -> String {
    let digits = match x {
        x if x >= 99.95 => 0,
        x if x >= 9.995 => 1,
        _ => 2,
    };
    format!("{x:.digits$} ×")
}

/// Formats a fraction from 0 to 1 as a percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{} %", plain(share * 100.0))
}

/// Formats a count. Counts from 10,000 are given in thousands, millions or billions.
pub(crate) fn count(n: f64) -> String {
    match n {
        n if n >= 999_500_000.0 => format!("{} G", plain(n / 1e9)),
        n if n >= 999_500.0 => format!("{} M", plain(n / 1e6)),
        n if n >= 9_999.5 => format!("{} k", plain(n / 1e3)),
        n => plain(n),
    }
}

/// Formats a number of bytes in binary units, without a trailing zero.
pub(crate) fn bytes(n: f64) -> String {
    text::bytes(numbers::round(n)).replace(".0 ", " ")
}

/// Formats a time in microseconds with the unit ns, µs, ms or s.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if us <= 0.0 => "0".to_owned(),
        us if us >= 999_500.0 => format!("{} s", plain(us / 1e6)),
        us if us >= 999.5 => format!("{} ms", plain(us / 1e3)),
        us if us >= 0.9995 => format!("{} µs", plain(us)),
        us => format!("{} ns", plain(us * 1e3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (text, expected) in [
            (plain(0.0), "0"),
            (plain(0.01234), "0.0123"),
            (plain(1.0), "1"),
            (plain(3.149), "3.15"),
            (plain(31.49), "31.5"),
            (plain(99.97), "100"),
            (plain(1234.6), "1235"),
            (times(18.34), "18.3 ×"),
            (times(17.0), "17.0 ×"),
            (percent(0.0125), "1.25 %"),
            (count(12_345.0), "12.3 k"),
            (count(1_000_000.0), "1 M"),
            (count(7.0), "7"),
            (bytes(4_194_304.0), "4 MiB"),
            (bytes(1_288_490_189.0), "1.2 GiB"),
            (micros(0.0), "0"),
            (micros(0.25), "250 ns"),
            (micros(1.0), "1 µs"),
            (micros(999.9), "1 ms"),
            (micros(12_340.0), "12.3 ms"),
            (micros(7_050_000.0), "7.05 s"),
        ] {
            assert_eq!(text, expected);
        }
    }
}

//! Formats of numbers in HTML pages.

use crate::numbers;
use crate::report::text;

/// Formats a number with three significant digits, without trailing zeros. Numbers of at least 100 are rounded to whole
/// numbers.
pub(crate) fn format_plain(x: f64) -> String {
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
pub(crate) fn format_ratio(x: f64) -> String {
    let digits = match x {
        x if x >= 99.95 => 0,
        x if x >= 9.995 => 1,
        _ => 2,
    };
    format!("{x:.digits$} ×")
}

/// Formats a fraction from 0 to 1 as a percentage.
pub(crate) fn format_percent(share: f64) -> String {
    format!("{} %", format_plain(share * 100.0))
}

/// Formats a count. Counts from 10,000 are given in thousands, millions or billions.
pub(crate) fn format_count(n: f64) -> String {
    match n {
        n if n >= 999_500_000.0 => format!("{} G", format_plain(n / 1e9)),
        n if n >= 999_500.0 => format!("{} M", format_plain(n / 1e6)),
        n if n >= 9_999.5 => format!("{} k", format_plain(n / 1e3)),
        n => format_plain(n),
    }
}

/// Formats a number of bytes in binary units, without a trailing zero.
pub(crate) fn format_bytes(n: f64) -> String {
    text::format_bytes(numbers::round_to_u64(n)).replace(".0 ", " ")
}

/// Formats a time in microseconds with the unit ns, µs, ms or s.
pub(crate) fn format_micros(us: f64) -> String {
    match us {
        us if us <= 0.0 => "0".to_owned(),
        us if us >= 999_500.0 => format!("{} s", format_plain(us / 1e6)),
        us if us >= 999.5 => format!("{} ms", format_plain(us / 1e3)),
        us if us >= 0.9995 => format!("{} µs", format_plain(us)),
        us => format!("{} ns", format_plain(us * 1e3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (text, expected) in [
            (format_plain(0.0), "0"),
            (format_plain(0.01234), "0.0123"),
            (format_plain(1.0), "1"),
            (format_plain(3.149), "3.15"),
            (format_plain(31.49), "31.5"),
            (format_plain(99.97), "100"),
            (format_plain(1234.6), "1235"),
            (format_ratio(18.34), "18.3 ×"),
            (format_ratio(17.0), "17.0 ×"),
            (format_percent(0.0125), "1.25 %"),
            (format_count(12_345.0), "12.3 k"),
            (format_count(1_000_000.0), "1 M"),
            (format_count(7.0), "7"),
            (format_bytes(4_194_304.0), "4 MiB"),
            (format_bytes(1_288_490_189.0), "1.2 GiB"),
            (format_micros(0.0), "0"),
            (format_micros(0.25), "250 ns"),
            (format_micros(1.0), "1 µs"),
            (format_micros(999.9), "1 ms"),
            (format_micros(12_340.0), "12.3 ms"),
            (format_micros(7_050_000.0), "7.05 s"),
        ] {
            assert_eq!(text, expected);
        }
    }
}

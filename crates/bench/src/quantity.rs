//! Parses counts, sizes and rates that users type.

use crate::numbers::to_f64;

/// Describes an accepted count, for error messages.
const COUNT: &str = "a whole number below 2^64, such as 2000000, 2_000_000, 1.5M or 1e9 (K, M, G, T are powers of 1000)";
/// Describes an accepted size, for error messages.
const SIZE: &str = "a number of bytes below 2^64, such as 4096, 64K, 64MiB or 1.5G (K, M, G, T are powers of 1024)";

/// Parses a count: digits, with an optional fraction, exponent (`e9`) and unit. `_` may separate digits. The units `K`,
/// `M`, `G` and `T` are powers of 1000. The error describes the accepted counts.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let (numerator, denominator) = parse_fraction(text, 1000).ok_or_else(|| COUNT.to_owned())?;
    let count = (numerator % denominator == 0).then(|| numerator / denominator);
    count.and_then(|count| u64::try_from(count).ok()).ok_or_else(|| COUNT.to_owned())
}

/// Parses a size in bytes. The syntax is that of [`parse_count`], but the units are powers of 1024 and may end with
/// `iB`, as in `MiB`. A fraction of a byte is rounded down.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_fraction(text, 1024)
        .and_then(|(numerator, denominator)| u64::try_from(numerator / denominator).ok())
        .ok_or_else(|| SIZE.to_owned())
}

/// Parses a rate: a decimal number, or a count with a unit such as `10K`. The range is not checked.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    text.parse().or_else(|_| parse_count(text).map(to_f64))
}

/// Parses a number with an optional unit, which is a power of `base`. Returns the number as numerator and denominator,
/// or `None` if the syntax is wrong or the number is too large. With base 1024 the unit may end with `iB`.
fn parse_fraction(text: &str, base: u128) -> Option<(u128, u128)> {
    let text = text.trim();
    let is_digit = |c: char| c.is_ascii_digit() || c == '_';
    let (whole, rest) = text.split_at(text.find(|c| !is_digit(c)).unwrap_or(text.len()));
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|c| !is_digit(c)).unwrap_or(rest.len())),
        None => ("", rest),
    };
    let (exponent, unit) = match rest.strip_prefix(['e', 'E']) {
        Some(rest) => {
            let rest = rest.strip_prefix('+').unwrap_or(rest);
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            (rest[..end].parse::<u32>().ok()?, &rest[end..])
        }
        None => (0, rest),
    };
    let unit = unit.trim().to_ascii_uppercase();
    let letter = match unit.as_str() {
        "IB" => return None,
        "B" if base == 1024 => "",
        unit if base == 1024 => unit.strip_suffix("IB").unwrap_or(unit),
        unit => unit,
    };
    let power = ["", "K", "M", "G", "T"].iter().position(|known| *known == letter)?;
    let power = u32::try_from(power).ok()?;
    let digits = format!("{whole}{fraction}").replace('_', "");
    let decimals = u32::try_from(fraction.bytes().filter(u8::is_ascii_digit).count()).ok()?;
    let numerator = digits.parse::<u128>().ok()?.checked_mul(10u128.checked_pow(exponent)?)?;
    Some((numerator.checked_mul(base.checked_pow(power)?)?, 10u128.checked_pow(decimals)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_count_units_are_powers_of_1000() {
        for (text, count) in [
            ("7", 7),
            ("2_000_000", 2_000_000),
            ("1e9", 1_000_000_000),
            ("1E+3", 1_000),
            ("1.5e3", 1_500),
            ("1M", 1_000_000),
            ("1.5M", 1_500_000),
            ("0.25k", 250),
            ("2.0", 2),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_count(text), Ok(count), "{text}");
        }
    }

    #[test]
    fn parse_bytes_units_are_powers_of_1024() {
        for (text, bytes) in [
            ("7", 7),
            ("64K", 64 << 10),
            ("8MiB", 8 << 20),
            ("1_000", 1_000),
            ("1e6", 1_000_000),
            ("2g", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("0.1K", 102),
            ("12 B", 12),
            ("16777215T", 16_777_215 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn parse_wrong_quantity_is_error_that_lists_accepted_ones() {
        let both = "|_|.|K|1X|-1|-1K|1e|1e-3|e9|1e99|1e4294967296|1.2.3|99999999999T|18446744073709551616|١";
        for text in both.split('|') {
            assert!(parse_count(text).unwrap_err().contains("such as"), "{text}");
            assert!(parse_bytes(text).unwrap_err().contains("such as"), "{text}");
        }
        for text in ["1.5", "1.2345K", "64KiB"] {
            assert!(parse_count(text).unwrap_err().contains("1.5M or 1e9"), "{text}");
        }
        assert!(parse_bytes("1KB").unwrap_err().contains("64MiB"));
    }
}

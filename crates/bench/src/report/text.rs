//! Formats numbers as text.

use crate::numbers;

/// Formats a number of bytes with the largest binary unit for which the number is at least 1.
pub fn format_bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1 << 10 {
        return format!("{n} B");
    }
    let mut amount = numbers::to_f64(n) / 1024.0;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_largest_binary_unit() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (1 << 20, "1.0 MiB"), (u64::MAX, "16384.0 PiB")];
        for (n, text) in cases {
            assert_eq!(format_bytes(n), text);
        }
    }
}

//! Conversions between numbers, each saying what it does with what does not fit.

/// The whole part of `x`; 0 for anything below, the largest number for anything too large.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "`as` saturates, and that is what is wanted")]
#[expect(clippy::cast_sign_loss, reason = "negative numbers become 0, as documented")]
pub fn floor(x: f64) -> u64 {
    x as u64
}

/// `x` to the nearest whole number, halves up; 0 for anything below.
#[must_use]
pub fn round(x: f64) -> u64 {
    floor(x + 0.5)
}

/// `n` as a floating-point number, exact up to 2⁵³.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts and bytes stay far below 2^53")]
pub fn float(n: u64) -> f64 {
    n as f64
}

/// `a ÷ b`, and 0 where there is nothing to divide by.
#[must_use]
pub fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { float(a) / float(b) }
}

/// `n` as an index or a length of memory; saturates where memory is smaller than 64 bits.
#[must_use]
pub fn length(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// `n` as a count; never saturates where memory has at most 64 bits.
#[must_use]
pub fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// `a × b ÷ c` without overflow on the way; saturates. `c` must not be 0.
#[must_use]
pub fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_saturate() {
        assert_eq!(floor(-1.5), 0);
        assert_eq!(floor(f64::INFINITY), u64::MAX);
        assert_eq!(round(2.5), 3);
        assert_eq!(mul_div(u64::MAX, u64::MAX, 1), u64::MAX);
        assert_eq!(mul_div(u64::MAX, 3, 3), u64::MAX);
        assert!(ratio(1, 0).abs() < f64::EPSILON);
    }
}

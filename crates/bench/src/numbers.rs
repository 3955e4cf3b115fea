//! Conversions between numeric types. Values out of range saturate.

/// Rounds toward zero. Returns 0 for negative numbers.
#[expect(clippy::cast_possible_truncation, reason = "`as` saturates")]
#[expect(clippy::cast_sign_loss, reason = "negative numbers become 0")]
pub fn floor_to_u64(x: f64) -> u64 {
    x as u64
}

/// Rounds to the nearest whole number, halves up. Returns 0 for negative numbers.
pub fn round_to_u64(x: f64) -> u64 {
    floor_to_u64(x + 0.5)
}

/// Converts to a floating-point number, exact up to 2⁵³.
#[expect(clippy::cast_precision_loss, reason = "counts and byte lengths are below 2^53")]
pub fn to_f64(n: u64) -> f64 {
    n as f64
}

/// Returns `a ÷ b`, or 0 if `b` is 0.
pub fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { to_f64(a) / to_f64(b) }
}

/// Converts a number to an index or a length of a slice.
pub fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Converts an index or a length of a slice to a 64-bit number.
pub fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Returns `a × b ÷ c` without overflow of the product. `c` must not be 0.
pub fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_saturate() {
        assert_eq!(floor_to_u64(-1.5), 0);
        assert_eq!(floor_to_u64(f64::INFINITY), u64::MAX);
        assert_eq!(round_to_u64(2.5), 3);
        assert_eq!(mul_div(u64::MAX, u64::MAX, 1), u64::MAX);
        assert_eq!(mul_div(u64::MAX, 3, 3), u64::MAX);
        assert!(ratio(1, 0).abs() < f64::EPSILON);
    }
}

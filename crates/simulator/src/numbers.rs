//! Conversions between counts and estimates, each saying what it does with what does not fit.

/// Places of the key domain.
pub(super) const DOMAIN: f64 = 18_446_744_073_709_551_616.0;

/// `n` as a floating-point number, exact up to 2⁵³.
#[expect(clippy::cast_precision_loss, reason = "an estimate needs no more than 53 bits")]
pub(super) fn real(n: u64) -> f64 {
    n as f64
}

/// `x` to the nearest whole number; 0 for anything below, the largest number for anything too large.
#[expect(clippy::cast_possible_truncation, reason = "`as` saturates, and that is what is wanted")]
#[expect(clippy::cast_sign_loss, reason = "negative numbers become 0, as documented")]
pub(super) fn whole(x: f64) -> u64 {
    (x + 0.5) as u64
}

/// A length of memory as a count.
pub(super) fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// `a ÷ b`, and 0 where there is nothing to divide by.
pub(super) fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

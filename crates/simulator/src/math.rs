//! Conversions between integers and floating-point estimates, and sums of the zipf distribution.

/// Converts `n` to a floating-point number. The result is exact up to 2⁵³.
#[expect(clippy::cast_precision_loss, reason = "estimates need no more than 53 bits")]
pub(crate) fn to_f64(n: u64) -> f64 {
    n as f64
}

/// Rounds `x` to the nearest integer. Negative values become 0. Values above `u64::MAX` become `u64::MAX`.
#[expect(clippy::cast_possible_truncation, reason = "the saturating cast is intended")]
#[expect(clippy::cast_sign_loss, reason = "negative values become 0, as documented")]
pub(crate) fn round_to_u64(x: f64) -> u64 {
    (x + 0.5) as u64
}

/// Converts the length of a collection to `u64`.
pub(crate) fn len_to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Returns `a ÷ b`, or 0 if `b` is not positive.
pub(crate) fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// Returns Σ k⁻ˢ over the popularity ranks k with `from < k <= to`. s is `exponent`.
///
/// The first term is exact. An integral approximates the sum of the other terms.
pub(crate) fn zipf_weight(exponent: f64, from: f64, to: f64) -> f64 {
    if to <= from {
        return 0.0;
    }
    let first = if from < 1.0 { 1.0 } else { 0.0 };
    let from = from.max(1.0);
    if to <= from {
        return first;
    }
    let power = 1.0 - exponent;
    if power.abs() < 1e-9 {
        return first + libm::log((to + 0.5) / (from + 0.5));
    }
    first + (libm::pow(to + 0.5, power) - libm::pow(from + 0.5, power)) / power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_weight_is_close_to_the_sum() {
        for exponent in [0.2, 0.99, 1.0, 1.5, 4.0] {
            for (from, to) in [(0, 1), (0, 1000), (10, 1000), (500, 501)] {
                let sum: f64 = (from + 1..=to).map(|k| libm::pow(f64::from(k), -exponent)).sum();
                let weight = zipf_weight(exponent, f64::from(from), f64::from(to));
                assert!(
                    (weight / sum - 1.0).abs() < 0.03,
                    "{exponent}, {from}..{to}: {weight}, {sum}"
                );
            }
        }
    }
}

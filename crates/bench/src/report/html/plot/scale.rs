//! Scales of axes. A scale maps values to positions and selects ticks.

use std::ops::Range;

/// A linear or logarithmic function from an interval of values to an interval of positions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scale {
    log: bool,
    /// Ticks are round multiples of this unit: 1, or a power of 1024 for bytes.
    unit: f64,
    values: (f64, f64),
    places: (f64, f64),
    /// Ticks that the caller has set. If empty, the ticks are computed.
    ticks: Vec<f64>,
}

/// Candidates for the ticks of a logarithmic scale between 1 and 10. The wider the scale, the fewer ticks are used.
const DECADE_STEPS: [&[f64]; 3] = [&[1.0], &[1.0, 3.0], &[1.0, 2.0, 5.0]];

impl Scale {
    /// Creates a linear scale from 0 to the smallest tick ≥ `max`.
    pub(crate) fn from_zero(max: f64, ticks: usize) -> Scale {
        let max = if max > 0.0 && max.is_finite() { max } else { 1.0 };
        let step = nice_step(max / float(ticks));
        // Without the tolerance, a rounding error could add a tick.
        Scale::new(false, 0.0, (max / step - 1e-9).ceil() * step)
    }

    /// Creates a linear scale for bytes, from 0 to the smallest tick ≥ `max`. Ticks are round numbers in the binary
    /// unit of `max`, such as KiB.
    pub(crate) fn bytes_from_zero(max: f64, ticks: usize) -> Scale {
        let unit = binary_unit(max);
        let scale = Scale::from_zero(max / unit, ticks);
        Scale { unit, values: (0.0, scale.values.1 * unit), ..scale }
    }

    /// Changes the ticks to round numbers in the binary unit of the largest value, such as KiB.
    pub(crate) fn in_binary_units(self) -> Scale {
        Scale { unit: binary_unit(self.values.1), ..self }
    }

    /// Creates a linear scale from 0 to exactly `max`.
    pub(crate) fn from_zero_to(max: f64) -> Scale {
        Scale::new(false, 0.0, if max > 0.0 && max.is_finite() { max } else { 1.0 })
    }

    /// Creates a linear scale from the smallest to the largest value.
    pub(crate) fn without_margin(values: &[f64]) -> Scale {
        match value_range(values) {
            Some((low, high)) if high > low => Scale::new(false, low, high),
            _ => Scale::with_margin(values),
        }
    }

    /// Creates a linear scale over `values`, with a margin at both ends.
    pub(crate) fn with_margin(values: &[f64]) -> Scale {
        let (low, high) = value_range(values).unwrap_or((0.0, 1.0));
        // The minimum margin keeps small differences from filling the whole axis.
        let least = (high.abs().max(low.abs()) * 0.06).max(f64::MIN_POSITIVE);
        let room = ((high - low) * 0.08).max(least - (high - low) / 2.0);
        // The scale starts below 0 only if a value is negative.
        let start = if low >= 0.0 { (low - room).max(0.0) } else { low - room };
        Scale::new(false, start, high + room)
    }

    /// Creates a logarithmic scale over the positive `values`, with a margin at both ends.
    pub(crate) fn log_with_margin(values: &[f64]) -> Scale {
        let positive: Vec<f64> = values.iter().copied().filter(|&value| value > 0.0).collect();
        let (low, high) = value_range(&positive).unwrap_or((1.0, 10.0));
        let room = (high / low).powf(0.06).max(1.25);
        Scale::new(true, low / room, high * room)
    }

    /// Creates a logarithmic scale if all values are positive and the largest is more than 6 times the smallest.
    /// Otherwise creates a linear scale.
    pub(crate) fn linear_or_log(values: &[f64]) -> Scale {
        match value_range(values) {
            Some((low, high)) if low > 0.0 && high / low > 6.0 => Scale::log_with_margin(values),
            _ => Scale::with_margin(values),
        }
    }

    pub(crate) fn with_ticks(self, ticks: Vec<f64>) -> Scale {
        Scale { ticks, ..self }
    }

    fn new(log: bool, low: f64, high: f64) -> Scale {
        Scale { log, unit: 1.0, values: (low, high), places: (0.0, 1.0), ticks: Vec::new() }
    }

    /// Sets the positions of both ends of the scale: `first` for the smallest value, `last` for the largest.
    pub(crate) fn with_positions(&self, first: f64, last: f64) -> Scale {
        Scale { places: (first, last), ..self.clone() }
    }

    /// Returns the position of a value. Values outside the scale are clamped to the nearest end.
    pub(crate) fn position(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let share = if self.log {
            (value.max(low) / low).ln() / (high / low).ln()
        } else {
            (value - low) / (high - low)
        };
        let (first, last) = self.places;
        first + share.clamp(0.0, 1.0) * (last - first)
    }

    /// Returns about `count` ticks in ascending order.
    pub(crate) fn ticks(&self, count: usize) -> Vec<f64> {
        if !self.ticks.is_empty() {
            return self.ticks.clone();
        }
        let (low, high) = (self.values.0 / self.unit, self.values.1 / self.unit);
        let mut ticks =
            if self.log { log_ticks(low..high, count) } else { even_ticks(low..high, count) };
        ticks.iter_mut().for_each(|tick| *tick *= self.unit);
        ticks
    }
}

fn even_ticks(values: Range<f64>, count: usize) -> Vec<f64> {
    let step = nice_step((values.end - values.start) / float(count));
    let first = (values.start / step - 1e-9).ceil();
    (0..=count.saturating_mul(3))
        .map(|index| (first + float(index)) * step)
        .take_while(|&tick| tick <= values.end + step * 1e-9)
        .collect()
}

fn log_ticks(values: Range<f64>, count: usize) -> Vec<f64> {
    let inside = |steps: &[f64]| -> Vec<f64> {
        let mut decade = 10f64.powf(values.start.log10().floor());
        let mut ticks = Vec::new();
        while decade <= values.end {
            ticks.extend(steps.iter().map(|step| step * decade));
            decade *= 10.0;
        }
        ticks.retain(|tick| *tick >= values.start * 0.999_999 && *tick <= values.end * 1.000_001);
        ticks
    };
    let fitting = DECADE_STEPS.iter().rev().map(|steps| inside(steps));
    let ticks = fitting.into_iter().find(|ticks| ticks.len() <= count + 2);
    let mut ticks = ticks.unwrap_or_else(|| inside(DECADE_STEPS[0]));
    if ticks.len() < 3 && values.end / values.start < 20.0 {
        // If a narrow scale would have fewer than three ticks, evenly spaced ticks replace them.
        ticks = even_ticks(values, count);
        ticks.retain(|&tick| tick > 0.0);
    }
    let keep = ticks.len().div_ceil(count + 2).max(1);
    ticks.into_iter().step_by(keep).collect()
}

/// Returns the largest power of 1024 that is at most `max`, or 1 if `max` is below 1.
fn binary_unit(max: f64) -> f64 {
    let mut unit = 1.0;
    while max >= unit * 1024.0 {
        unit *= 1024.0;
    }
    unit
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn nice_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * power >= step * 0.999);
    times.unwrap_or(10.0) * power
}

/// Returns the minimum and the maximum of the finite values.
fn value_range(values: &[f64]) -> Option<(f64, f64)> {
    values.iter().filter(|value| value.is_finite()).fold(None, |extent, &value| {
        let (low, high) = extent.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

fn float(n: usize) -> f64 {
    crate::numbers::to_f64(crate::numbers::to_u64(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: &[f64], b: &[f64]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= b.abs() * 1e-9 + 1e-12)
    }

    #[test]
    fn ticks_are_round_numbers_inside_the_scale() {
        for (scale, ticks) in [
            (Scale::from_zero(9.3, 5), &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0][..]),
            (Scale::from_zero(10.0, 5), &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
            (Scale::from_zero(0.0, 5), &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
            (Scale::bytes_from_zero(5.3e6, 3), &[0.0, 2_097_152.0, 4_194_304.0, 6_291_456.0]),
            (Scale::log_with_margin(&[2.0, 900.0]), &[3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]),
            (Scale::log_with_margin(&[1.0, 2.0]), &[1.0, 1.5, 2.0, 2.5]),
        ] {
            assert!(close(&scale.ticks(5), ticks), "{scale:?}: {:?}", scale.ticks(5));
        }
    }

    #[test]
    fn scales_of_any_magnitude_have_two_to_eleven_ticks() {
        for exponent in -9..15 {
            for factor in [1.0, 1.1, 3.0, 9.0, 77.0, 12_345.0, 1e9] {
                let low = 1.7 * 10f64.powi(exponent);
                for scale in [
                    Scale::from_zero(low * factor, 5),
                    Scale::with_margin(&[low, low * factor]),
                    Scale::log_with_margin(&[low, low * factor]),
                    Scale::linear_or_log(&[low * factor, low]),
                ] {
                    let ticks = scale.ticks(5);
                    assert!((2..=11).contains(&ticks.len()), "{scale:?}: {ticks:?}");
                    assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]), "{ticks:?}");
                    let places = scale.with_positions(0.0, 100.0);
                    let gap = |pair: &[f64]| places.position(pair[1]) - places.position(pair[0]);
                    assert!(ticks.windows(2).all(|pair| gap(pair) > 1.0), "{scale:?}");
                }
            }
        }
    }

    #[test]
    fn place_is_logarithmic_and_clamped() {
        let scale = Scale::log_with_margin(&[1.0, 100.0]).with_positions(200.0, 0.0);
        assert!((scale.position(10.0) - 100.0).abs() < 1e-9);
        assert!(scale.position(1.0) > 180.0 && scale.position(100.0) < 20.0);
        assert!((scale.position(0.0) - 200.0).abs() < 1e-9, "0 is not clamped");
        assert!((scale.position(1e9)).abs() < 1e-9);
    }
}

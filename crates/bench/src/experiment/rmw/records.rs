//! Keys, values and fields. All bytes follow from the seed, the record's number and the number of the
//! operation that wrote them, so that any value can be worked out again without having been kept.

use crate::error::Result;
use crate::numbers::{self, float};
use crate::workload::KeyDistribution;
use crate::workload::keys::KeySpace;
use crate::workload::random::{fill, mix};

const PURPOSE_KEY_TAIL: u64 = 0x7461_696c;
const PURPOSE_LENGTH: u64 = 0x6c65_6e67;
const PURPOSE_VALUE: u64 = 0x7661_6c75;
const PURPOSE_FIELD: u64 = 0x6669_656c;

/// Bytes of keys or values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Length {
    /// The same for all.
    Fixed(u64),
    /// About normal, from `min` to `max`.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        deviation: f64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
}

impl Length {
    /// The length of a record; `salt` tells keys from values.
    fn of(self, record: u64, salt: u64) -> u64 {
        match self {
            Length::Fixed(bytes) => bytes,
            Length::Normal { mean, deviation, min, max } => {
                // Twelve numbers in 0 to 1 have a sum of mean 6 and deviation 1, and are about normal.
                let dice = [0, 1, 2].map(|draw| mix(mix(record ^ salt).wrapping_add(draw)));
                let parts = dice
                    .iter()
                    .flat_map(|dice| (0..4).map(move |part| dice >> (16 * part) & 0xffff));
                let sum: f64 = parts.map(|part| float(part) / 65_536.0).sum();
                numbers::round(mean + deviation * (sum - 6.0)).clamp(min, max)
            }
        }
    }

    /// The least of all.
    pub(super) fn min(self) -> u64 {
        match self {
            Length::Fixed(bytes) => bytes,
            Length::Normal { min, .. } => min,
        }
    }

    /// The most of all.
    pub(super) fn max(self) -> u64 {
        match self {
            Length::Fixed(bytes) => bytes,
            Length::Normal { max, .. } => max,
        }
    }
}

/// What records look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) key: Length,
    pub(super) value: Length,
    /// Bytes of a field; a value is fields, and what is left at its end.
    pub(super) field_bytes: u64,
    /// Bytes that an update writes at the beginning of a field.
    pub(super) delta_bytes: u64,
}

/// The records of a run.
#[derive(Debug)]
pub(super) struct Records {
    keys: KeySpace,
    shape: Shape,
    seed: u64,
}

impl Records {
    /// `capacity` records in all.
    pub(super) fn new(capacity: u64, shape: Shape, seed: u64) -> Result<Records> {
        // Longer keys get a tail, so the shortest ones tell all records apart.
        let key_bytes = numbers::length(shape.key.min());
        let keys = KeySpace::new(KeyDistribution::Uniform, capacity, key_bytes, seed)?;
        Ok(Records { keys, shape, seed })
    }

    /// Replaces `key` by that of a record.
    pub(super) fn key(&self, record: u64, key: &mut Vec<u8>) {
        key.clear();
        self.keys.write_present(record, key);
        let bytes = numbers::length(self.shape.key.of(record, self.seed ^ PURPOSE_KEY_TAIL));
        if bytes > key.len() {
            fill(mix(record ^ self.seed ^ PURPOSE_KEY_TAIL), bytes - key.len(), key);
        }
    }

    fn value_bytes(&self, record: u64) -> u64 {
        self.shape.value.of(record, self.seed ^ PURPOSE_LENGTH)
    }

    /// Bytes of a record's value, whatever was written to it.
    pub(super) fn value_len(&self, record: u64) -> usize {
        numbers::length(self.value_bytes(record))
    }

    /// Replaces `value` by the one that a put gives a record; `version` is 0 when it is loaded.
    pub(super) fn value(&self, record: u64, version: u64, value: &mut Vec<u8>) {
        value.clear();
        let seed = mix(record ^ self.seed ^ PURPOSE_VALUE).wrapping_add(mix(version));
        fill(seed, self.value_len(record), value);
    }

    /// Replaces `bytes` by what an update writes, and says where; `dice` chooses the field.
    pub(super) fn delta(&self, record: u64, version: u64, dice: u64, bytes: &mut Vec<u8>) -> u32 {
        let fields = (self.value_bytes(record) / self.shape.field_bytes).max(1);
        bytes.clear();
        let seed = mix(record ^ self.seed ^ PURPOSE_FIELD).wrapping_add(mix(version));
        fill(seed, numbers::length(self.shape.delta_bytes), bytes);
        // Values are shorter than 4 GiB.
        u32::try_from(dice % fields * self.shape.field_bytes).unwrap_or(u32::MAX)
    }

    /// Key and value bytes of the first `n` records.
    pub(super) fn bytes(&self, n: u64) -> u64 {
        match (self.shape.key, self.shape.value) {
            (Length::Fixed(key), Length::Fixed(value)) => n * (key + value),
            (key, value) => (0..n)
                .map(|record| {
                    key.of(record, self.seed ^ PURPOSE_KEY_TAIL)
                        + value.of(record, self.seed ^ PURPOSE_LENGTH)
                })
                .sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP2X: Length = Length::Normal { mean: 46.8, deviation: 11.6, min: 10, max: 200 };

    #[test]
    fn lengths_have_the_mean_and_the_deviation() {
        let lengths: Vec<f64> = (0..20_000).map(|record| float(UP2X.of(record, 7))).collect();
        let mean = lengths.iter().sum::<f64>() / 20_000.0;
        let variance = lengths.iter().map(|length| (length - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!((mean - 46.8).abs() < 0.4, "{mean}");
        assert!((variance.sqrt() - 11.6).abs() < 0.3, "{}", variance.sqrt());
    }

    #[test]
    fn keys_of_all_lengths_differ_and_bytes_are_counted() {
        let key = Length::Normal { mean: 10.45, deviation: 1.4, min: 8, max: 16 };
        let shape = Shape { key, value: UP2X, field_bytes: 10, delta_bytes: 10 };
        let records = Records::new(5000, shape, 3).unwrap();
        let (mut bytes, mut value) = (0, Vec::new());
        let keys: std::collections::BTreeSet<Vec<u8>> = (0..5000)
            .map(|record| {
                let mut key = Vec::new();
                records.key(record, &mut key);
                records.value(record, 0, &mut value);
                bytes += key.len() + value.len();
                key
            })
            .collect();
        assert_eq!(keys.len(), 5000);
        assert_eq!(records.bytes(5000), numbers::count(bytes));
    }

    #[test]
    fn deltas_stay_within_the_value_and_differ_by_version() {
        let shape = Shape {
            key: Length::Fixed(16),
            value: Length::Fixed(1050),
            field_bytes: 100,
            delta_bytes: 40,
        };
        let records = Records::new(10, shape, 3).unwrap();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for dice in 0..100 {
            let offset = records.delta(4, 1, dice, &mut a);
            assert!(offset.is_multiple_of(100) && offset <= 900 && a.len() == 40);
            records.delta(4, 2, dice, &mut b);
            assert_ne!(a, b);
        }
    }
}

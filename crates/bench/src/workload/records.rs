//! Keys and values of records.
//!
//! Seed, record number and version determine every byte of a value. Checks recompute expected values instead of storing
//! them.

use lsmx::merge_operator::FieldUpdate;

use crate::error::Result;
use crate::numbers::{self, to_f64};

use super::KeyDistribution;
use super::data_file::DataFile;
use super::keys::KeySpace;
use super::random::{append_random_bytes, hash_u64, random_bytes};

/// Length of the field that [`Records::write_operand`] changes, in bytes.
const OPERAND_FIELD_BYTES: usize = 8;
/// Length of the tag that identifies the record of a value, in bytes.
const TAG_BYTES: usize = size_of::<u64>();
const PURPOSE_KEY_TAIL: u64 = 0x7461_696c;
const PURPOSE_LENGTH: u64 = 0x6c65_6e67;

/// Length of keys or of values, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LengthDistribution {
    /// All keys or values have this length.
    Fixed(u64),
    /// Lengths are approximately normal and lie in `min..=max`.
    Normal { mean: f64, deviation: f64, min: u64, max: u64 },
    /// Record `i` has the length `i + 1`, but at most `max`.
    Growing { max: u64 },
}

impl LengthDistribution {
    /// Returns the length of the key or value of a record. Keys and values use different salts.
    fn draw_for_record(self, record: u64, salt: u64) -> u64 {
        match self {
            LengthDistribution::Fixed(bytes) => bytes,
            LengthDistribution::Normal { mean, deviation, min, max } => {
                // The sum of twelve uniform numbers in [0, 1) has mean 6 and deviation 1.
                let draws =
                    [0, 1, 2].map(|draw| hash_u64(hash_u64(record ^ salt).wrapping_add(draw)));
                let parts = draws
                    .iter()
                    .flat_map(|draw| (0..4).map(move |part| draw >> (16 * part) & 0xffff));
                let sum: f64 = parts.map(|part| to_f64(part) / 65_536.0).sum();
                numbers::round_to_u64(mean + deviation * (sum - 6.0)).clamp(min, max)
            }
            LengthDistribution::Growing { max } => record.saturating_add(1).min(max),
        }
    }

    pub fn min(self) -> u64 {
        match self {
            LengthDistribution::Fixed(bytes) => bytes,
            LengthDistribution::Normal { min, .. } => min,
            LengthDistribution::Growing { max } => max.min(1),
        }
    }

    pub fn max(self) -> u64 {
        match self {
            LengthDistribution::Fixed(bytes) => bytes,
            LengthDistribution::Normal { max, .. } | LengthDistribution::Growing { max } => max,
        }
    }
}

/// Generator of keys and values. Several threads can use the same generator.
#[derive(Debug)]
pub struct GeneratedRecords {
    keys: KeySpace,
    key: LengthDistribution,
    value: LengthDistribution,
    seed: u64,
    tagged: bool,
}

impl GeneratedRecords {
    /// Creates a generator of `count` records whose keys follow `distribution`. Fails if the minimum key length is too
    /// short for `count` distinct keys.
    pub fn new(
        distribution: KeyDistribution,
        count: u64,
        key: LengthDistribution,
        value: LengthDistribution,
        seed: u64,
    ) -> Result<GeneratedRecords> {
        // Keys longer than the minimum have a random suffix. The bytes before the suffix must already be distinct.
        let keys = KeySpace::new(distribution, count, numbers::to_usize(key.min()), seed)?;
        Ok(GeneratedRecords { keys, key, value, seed, tagged: false })
    }

    /// Creates a generator of `count` uniformly distributed records. `key` and `value` are lengths in bytes. Each value
    /// starts with a tag that identifies the record and is equal in all versions.
    pub fn with_tagged_values(
        count: u64,
        key: u64,
        value: u64,
        seed: u64,
    ) -> Result<GeneratedRecords> {
        let (key, value) = (LengthDistribution::Fixed(key), LengthDistribution::Fixed(value));
        let records = GeneratedRecords::new(KeyDistribution::Uniform, count, key, value, seed)?;
        Ok(GeneratedRecords { tagged: true, ..records })
    }

    /// Creates a generator of `count` records in key order, with keys of `key` bytes. The value of record `i` has `i +
    /// 1` bytes and a tag as in [`GeneratedRecords::with_tagged_values`].
    pub fn with_growing_values(count: u64, key: u64, seed: u64) -> Result<GeneratedRecords> {
        let key = LengthDistribution::Fixed(key);
        let value = LengthDistribution::Growing { max: count };
        let records = GeneratedRecords::new(KeyDistribution::Sequential, count, key, value, seed)?;
        Ok(GeneratedRecords { tagged: true, ..records })
    }

    pub fn keys(&self) -> &KeySpace {
        &self.keys
    }

    /// Sets `key` to the key of a record.
    pub fn write_key(&self, record: u64, key: &mut Vec<u8>) {
        key.clear();
        self.keys.write_present(record, key);
        let bytes =
            numbers::to_usize(self.key.draw_for_record(record, self.seed ^ PURPOSE_KEY_TAIL));
        if bytes > key.len() {
            append_random_bytes(
                hash_u64(record ^ self.seed ^ PURPOSE_KEY_TAIL),
                bytes - key.len(),
                key,
            );
        }
    }

    /// Sets `key` to a key that no record has and that follows the key of `record` in key order.
    pub fn write_absent_key(&self, record: u64, salt: u64, key: &mut Vec<u8>) {
        key.clear();
        self.keys.write_absent(record, salt, key);
    }

    /// Returns the length of the value of a record, in bytes. All versions have the same length.
    pub fn value_len(&self, record: u64) -> usize {
        numbers::to_usize(self.value.draw_for_record(record, self.seed ^ PURPOSE_LENGTH))
    }

    /// Returns a seed for one version of a record.
    pub fn version_seed(&self, record: u64, version: u64) -> u64 {
        hash_u64(hash_u64(self.seed ^ hash_u64(record)) ^ version)
    }

    /// Sets `value` to an incompressible value of a record. The first value has version 0.
    pub fn write_value(&self, record: u64, version: u64, value: &mut Vec<u8>) {
        value.clear();
        append_random_bytes(self.version_seed(record, version), self.value_len(record), value);
        if self.tagged {
            value
                .iter_mut()
                .zip(hash_u64(record).to_le_bytes())
                .for_each(|(byte, tag)| *byte = tag);
        }
    }

    /// Returns whether `value` has the expected length and tag for `record`.
    pub fn is_value_of(&self, record: u64, value: &[u8]) -> bool {
        let tag = &hash_u64(record).to_le_bytes()[..value.len().min(TAG_BYTES)];
        value.len() == self.value_len(record) && (!self.tagged || value.starts_with(tag))
    }

    /// Returns the total length of the keys and values of the first `count` records, in bytes.
    pub fn total_bytes(&self, count: u64) -> u64 {
        if let (LengthDistribution::Fixed(key), LengthDistribution::Fixed(value)) =
            (self.key, self.value)
        {
            return count.saturating_mul(key + value);
        }
        let key = |record| self.key.draw_for_record(record, self.seed ^ PURPOSE_KEY_TAIL);
        (0..count).map(|record| key(record) + numbers::to_u64(self.value_len(record))).sum()
    }
}

/// Source of the records that a workload inserts.
#[derive(Debug)]
pub enum Records {
    Generated(Box<GeneratedRecords>),
    File(Box<DataFile>),
}

impl Records {
    /// Returns a source without records. Never fails.
    pub fn empty() -> Result<Records> {
        let (key, value) = (LengthDistribution::Fixed(8), LengthDistribution::Fixed(0));
        let records = GeneratedRecords::new(KeyDistribution::Uniform, 0, key, value, 0)?;
        Ok(Records::Generated(Box::new(records)))
    }

    /// Returns the keys of generated records, or `None` for records of a file.
    pub fn keys(&self) -> Option<&KeySpace> {
        match self {
            Records::Generated(records) => Some(records.keys()),
            Records::File(_) => None,
        }
    }

    /// Sets `key` to the key of a record. Fails if the file cannot be read.
    pub fn write_key(&mut self, record: u64, key: &mut Vec<u8>) -> Result<()> {
        match self {
            Records::Generated(records) => records.write_key(record, key),
            Records::File(file) => key.clone_from(file.record(record)?.0),
        }
        Ok(())
    }

    /// Sets `key` to a key that no record has and that follows the key of `record` in key order. Fails if the file
    /// cannot be read.
    pub fn write_absent_key(&mut self, record: u64, salt: u64, key: &mut Vec<u8>) -> Result<()> {
        match self {
            Records::Generated(records) => records.write_absent_key(record, salt, key),
            Records::File(file) => file.absent_key(record, salt, key)?,
        }
        Ok(())
    }

    /// Sets `operand` to an operand for [`FieldUpdate`] that overwrites up to eight bytes of the value. For a record of
    /// a file, the operand changes no byte.
    pub fn write_operand(&self, record: u64, version: u64, operand: &mut Vec<u8>) {
        let (value_bytes, draw) = match self {
            Records::Generated(records) => {
                (records.value_len(record), records.version_seed(record, version))
            }
            Records::File(_) => (0, 0),
        };
        let field = value_bytes.min(OPERAND_FIELD_BYTES);
        let offset = draw % (numbers::to_u64(value_bytes - field) + 1);
        let offset = u32::try_from(offset).unwrap_or(0);
        *operand = FieldUpdate::operand(offset, &random_bytes(draw, field));
    }

    /// Sets `value` to the value of a record. Records of a file have the same value in all versions. Fails if the file
    /// cannot be read.
    pub fn write_value(&mut self, record: u64, version: u64, value: &mut Vec<u8>) -> Result<()> {
        match self {
            Records::Generated(records) => records.write_value(record, version, value),
            Records::File(file) => value.clone_from(file.record(record)?.1),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lsmx::MergeOperator;

    use super::*;

    const UNIFORM: KeyDistribution = KeyDistribution::Uniform;
    const UP2X_KEY: LengthDistribution =
        LengthDistribution::Normal { mean: 10.45, deviation: 1.4, min: 8, max: 16 };
    const UP2X_VALUE: LengthDistribution =
        LengthDistribution::Normal { mean: 46.8, deviation: 11.6, min: 10, max: 200 };

    fn generated(value_bytes: u64) -> GeneratedRecords {
        GeneratedRecords::new(
            UNIFORM,
            10,
            LengthDistribution::Fixed(8),
            LengthDistribution::Fixed(value_bytes),
            1,
        )
        .unwrap()
    }

    #[test]
    fn operand_changes_bytes_inside_the_value() {
        for value_bytes in [0, 3, 8, 100] {
            let records = Records::Generated(Box::new(generated(value_bytes)));
            let mut operand = Vec::new();
            for version in 1..100 {
                records.write_operand(version % 10, version, &mut operand);
                let value = vec![0; numbers::to_usize(value_bytes)];
                let merged = FieldUpdate::default().full_merge(b"", Some(&value), &[&operand]);
                let merged = merged.unwrap().unwrap();
                assert_eq!(merged.len(), value.len());
                assert!(merged != value || value_bytes == 0);
            }
        }
    }

    #[test]
    fn values_differ_by_record_and_version() {
        let records = generated(100);
        let (mut seen, mut value) = (BTreeSet::new(), Vec::new());
        for (record, version) in (0..10).flat_map(|record| (0..10).map(move |at| (record, at))) {
            records.write_value(record, version, &mut value);
            assert_eq!(value.len(), 100);
            assert!(seen.insert(value.clone()));
        }
    }

    #[test]
    fn tagged_value_is_recognized_for_its_record_only() {
        for value_bytes in [0, 3, 8, 100] {
            let records = GeneratedRecords::with_tagged_values(100, 16, value_bytes, 1).unwrap();
            let mut value = Vec::new();
            records.write_value(7, 12_345, &mut value);
            assert_eq!(numbers::to_u64(value.len()), value_bytes);
            assert!(records.is_value_of(7, &value));
            assert_eq!(records.is_value_of(8, &value), value_bytes == 0);
            value.push(0);
            assert!(!records.is_value_of(7, &value));
        }
    }

    #[test]
    fn growing_values_have_one_byte_more_than_the_preceding_value() {
        let records = GeneratedRecords::with_growing_values(100, 16, 1).unwrap();
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut preceding_key: Vec<u8> = Vec::new();
        for record in 0..100 {
            records.write_key(record, &mut key);
            records.write_value(record, 0, &mut value);
            assert_eq!(numbers::to_u64(value.len()), record + 1);
            assert!(key > preceding_key && records.is_value_of(record, &value));
            preceding_key.clone_from(&key);
        }
        assert_eq!(records.total_bytes(100), 100 * 16 + 5050);
    }

    #[test]
    fn normal_lengths_have_mean_and_deviation() {
        let of_record = |record| to_f64(UP2X_VALUE.draw_for_record(record, 7));
        let lengths: Vec<f64> = (0..20_000).map(of_record).collect();
        let mean = lengths.iter().sum::<f64>() / 20_000.0;
        let variance = lengths.iter().map(|length| (length - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!((mean - 46.8).abs() < 0.4, "{mean}");
        assert!((variance.sqrt() - 11.6).abs() < 0.3, "{}", variance.sqrt());
    }

    #[test]
    fn keys_of_all_lengths_are_distinct_and_counted() {
        let records = GeneratedRecords::new(UNIFORM, 5000, UP2X_KEY, UP2X_VALUE, 3).unwrap();
        let (mut keys, mut bytes) = (BTreeSet::new(), 0);
        for record in 0..5000 {
            let mut key = Vec::new();
            records.write_key(record, &mut key);
            bytes += key.len() + records.value_len(record);
            keys.insert(key);
        }
        assert_eq!(keys.len(), 5000);
        assert_eq!(records.total_bytes(5000), numbers::to_u64(bytes));
    }
}

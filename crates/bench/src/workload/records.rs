//! Where keys and values come from: generated, or the records of a file.

use lsmx::merge_operator::FieldUpdate;

use crate::error::Result;
use crate::numbers;

use super::data_file::DataFile;
use super::keys::KeySpace;
use super::random::{fill, mix};

/// Bytes of a value that a merge writes.
const FIELD_BYTES: usize = 8;

/// Keys and values of the records of a workload.
#[derive(Debug)]
pub enum Records {
    /// Keys of a key space; values that do not compress.
    Generated {
        /// The keys.
        keys: Box<KeySpace>,
        /// Bytes of a value.
        value_bytes: usize,
        /// Tells the values of one run from those of another.
        seed: u64,
    },
    /// The records of a file.
    File(Box<DataFile>),
}

impl Records {
    /// No records.
    ///
    /// # Errors
    /// Never; a key space of nothing fits any key.
    pub fn none() -> Result<Records> {
        let keys = KeySpace::new(super::KeyDistribution::Uniform, 0, size_of::<u64>(), 0)?;
        Ok(Records::Generated { keys: Box::new(keys), value_bytes: 0, seed: 0 })
    }

    /// The key space, where there is one.
    #[must_use]
    pub fn keys(&self) -> Option<&KeySpace> {
        match self {
            Records::Generated { keys, .. } => Some(keys),
            Records::File(_) => None,
        }
    }

    /// Puts the key of a record in place of what `key` holds.
    ///
    /// # Errors
    /// When the file behind cannot be read any more.
    pub fn key(&mut self, record: u64, key: &mut Vec<u8>) -> Result<()> {
        key.clear();
        match self {
            Records::Generated { keys, .. } => keys.write_present(record, key),
            Records::File(file) => file.write_key(record, key)?,
        }
        Ok(())
    }

    /// Puts a key that no record has, but next to this one's, in place of what `key` holds.
    ///
    /// # Errors
    /// When the file behind cannot be read any more.
    pub fn absent_key(&mut self, record: u64, salt: u64, key: &mut Vec<u8>) -> Result<()> {
        key.clear();
        match self {
            Records::Generated { keys, .. } => keys.write_absent(record, salt, key),
            Records::File(file) => file.write_absent_key(record, salt, key)?,
        }
        Ok(())
    }

    /// Puts an operand for the value of a record in place of what `operand` holds: for
    /// [`lsmx::merge_operator::FieldUpdate`], a few bytes somewhere inside the value.
    ///
    /// Records of a file are inserted, never changed: for them the operand changes nothing.
    pub fn operand(&self, record: u64, version: u64, operand: &mut Vec<u8>) {
        let (value_bytes, seed) = match self {
            Records::Generated { value_bytes, seed, .. } => (*value_bytes, *seed),
            Records::File(_) => (0, 0),
        };
        let draw = mix(mix(seed ^ mix(record)) ^ version);
        let field = value_bytes.min(FIELD_BYTES);
        let places = numbers::count(value_bytes - field) + 1;
        let offset = u32::try_from(draw % places).unwrap_or(0);
        let mut bytes = Vec::with_capacity(field);
        fill(draw, field, &mut bytes);
        *operand = FieldUpdate::operand(offset, &bytes);
    }

    /// Puts the value of a record in place of what `value` holds; `version` 0 is the inserted one.
    ///
    /// # Errors
    /// When the file behind cannot be read any more.
    pub fn value(&mut self, record: u64, version: u64, value: &mut Vec<u8>) -> Result<()> {
        value.clear();
        match self {
            Records::Generated { value_bytes, seed, .. } => {
                fill(mix(mix(*seed ^ mix(record)) ^ version), *value_bytes, value);
            }
            // Records of a file are inserted, never updated.
            Records::File(file) => file.write_value(record, value)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lsmx::MergeOperator;

    use super::*;
    use crate::workload::KeyDistribution;

    #[test]
    fn operands_write_inside_the_value() {
        for value_bytes in [0, 3, 8, 100] {
            let keys = KeySpace::new(KeyDistribution::Uniform, 10, 8, 1).unwrap();
            let records = Records::Generated { keys: Box::new(keys), value_bytes, seed: 1 };
            let mut operand = Vec::new();
            for version in 1..100 {
                records.operand(version % 10, version, &mut operand);
                let value = vec![0; value_bytes];
                let merged = FieldUpdate::default().full_merge(b"", Some(&value), &[&operand]);
                let merged = merged.unwrap().unwrap();
                assert_eq!(merged.len(), value_bytes);
                assert!(merged != value || value_bytes == 0);
            }
        }
    }

    #[test]
    fn values_differ_by_record_and_version() {
        let keys = KeySpace::new(KeyDistribution::Uniform, 10, 8, 1).unwrap();
        let mut records = Records::Generated { keys: Box::new(keys), value_bytes: 100, seed: 1 };
        let mut seen = std::collections::BTreeSet::new();
        let mut value = Vec::new();
        for record in 0..10 {
            for version in 0..10 {
                records.value(record, version, &mut value).unwrap();
                assert_eq!(value.len(), 100);
                assert!(seen.insert(value.clone()));
            }
        }
    }
}

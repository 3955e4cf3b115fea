//! Predicts the final values of a sample of records by applying the operations in memory.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::peers::Engine;
use crate::workload::operation_mix::MixedOperation;
use crate::workload::random::Random;
use crate::workload::records::GeneratedRecords;

use super::stream::StreamParameters;

/// Number of most popular records in the sample.
const POPULAR: u64 = 100;
/// Number of randomly drawn records in the sample.
const ANY: u64 = 1000;
/// Number of most recently inserted records in the sample.
const INSERTED: u64 = 100;
const PURPOSE_SAMPLE: u64 = 0x6d6f_6465;

/// Expected final values of a sample of records.
#[derive(Debug)]
pub(super) struct ValueModel {
    values: BTreeMap<u64, Vec<u8>>,
}

impl ValueModel {
    /// Draws a sample of records and applies all operations of the stream to their values.
    pub(super) fn after_stream(
        recipe: &StreamParameters,
        records: &GeneratedRecords,
    ) -> ValueModel {
        let mut random = Random::new(recipe.seed, PURPOSE_SAMPLE);
        let popularity = recipe.popularity();
        let popular = (0..POPULAR.min(recipe.records)).map(|rank| popularity.record_at(rank));
        let any = (0..ANY).map(|_| random.next_below(recipe.records));
        let mut values = BTreeMap::new();
        for record in popular.chain(any) {
            records.write_value(record, 0, values.entry(record).or_insert_with(Vec::new));
        }
        let end = recipe.records + recipe.inserted_count();
        let inserted = end.saturating_sub(INSERTED).max(recipe.records)..end;
        for op in recipe.operations() {
            if inserted.contains(&op.record) {
                values.entry(op.record).or_default();
            }
            let Some(value) = values.get_mut(&op.record) else { continue };
            match op.operation {
                MixedOperation::Read | MixedOperation::Scan(_) => {}
                MixedOperation::Put | MixedOperation::Insert => {
                    records.write_value(op.record, op.version, value);
                }
                MixedOperation::Update | MixedOperation::Rewrite => {
                    recipe.apply_delta(records, (op.record, op.version, op.draw), value);
                }
            }
        }
        ValueModel { values }
    }

    pub(super) fn from_values(values: impl IntoIterator<Item = (u64, Vec<u8>)>) -> ValueModel {
        ValueModel { values: values.into_iter().collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Compares the values in the database with the expected values.
    pub(super) fn check_database(
        &self,
        engine: &dyn Engine,
        records: &GeneratedRecords,
    ) -> Result<()> {
        let mut key = Vec::new();
        for (&record, expected) in &self.values {
            records.write_key(record, &mut key);
            let mut is_right = false;
            let found = engine.get(&key, &mut |value| is_right = value == expected.as_slice())?;
            if !is_right {
                let found = if found { "another value than the model's" } else { "absent" };
                return Err(Error::wrong_answer(&key, found, "the value that its operations give"));
            }
        }
        Ok(())
    }
}

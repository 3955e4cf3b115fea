//! What the values of some records must be at the end: their part of the stream, played in memory.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::peers::{Fields, write_field};
use crate::workload::random::Random;
use crate::workload::record::to_hex;

use super::mix::Act;
use super::records::Records;
use super::stream::Recipe;

/// Records of the highest ranks in a sample, which were written to most.
const POPULAR: u64 = 100;
/// Records in a sample that are drawn at random.
const ANY: u64 = 1000;
/// Inserted records in a sample, the last ones.
const INSERTED: u64 = 100;
const PURPOSE_SAMPLE: u64 = 0x6d6f_6465;

/// The last values of a sample of records.
#[derive(Debug)]
pub(super) struct Model {
    values: BTreeMap<u64, Vec<u8>>,
}

impl Model {
    /// After all operations of a stream.
    pub(super) fn after(recipe: &Recipe, records: &Records) -> Model {
        let mut random = Random::new(recipe.seed, PURPOSE_SAMPLE);
        let popular = recipe.popular();
        let ranks = (0..POPULAR.min(recipe.records)).map(|rank| popular.at_rank(rank));
        let any = (0..ANY).map(|_| random.below(recipe.records));
        let mut values: BTreeMap<u64, Vec<u8>> = ranks
            .chain(any)
            .map(|record| {
                let mut value = Vec::new();
                records.value(record, 0, &mut value);
                (record, value)
            })
            .collect();
        let end = recipe.records + recipe.inserts();
        let inserted = end.saturating_sub(INSERTED).max(recipe.records)..end;
        let mut delta = Vec::new();
        for op in recipe.stream() {
            if inserted.contains(&op.record) {
                values.entry(op.record).or_default();
            }
            let Some(value) = values.get_mut(&op.record) else { continue };
            match op.act {
                Act::Read | Act::Scan(_) => {}
                Act::Put | Act::Insert => records.value(op.record, op.version, value),
                Act::Update | Act::Rewrite => {
                    let offset = records.delta(op.record, op.version, op.dice, &mut delta);
                    write_field(value, offset, &delta);
                }
            }
        }
        Model { values }
    }

    /// Records in the sample.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Compares the sample with a database.
    pub(super) fn check(&self, engine: &dyn Fields, records: &Records) -> Result<()> {
        let mut key = Vec::new();
        for (&record, expected) in &self.values {
            records.key(record, &mut key);
            let mut right = false;
            let found = engine.get(&key, &mut |value| right = value == expected.as_slice())?;
            if !right {
                let found = if found { "another value than the model's" } else { "absent" };
                let must = "the value that the operations amount to";
                return Err(crate::Error::WrongAnswer { key: to_hex(&key), found, must });
            }
        }
        Ok(())
    }
}

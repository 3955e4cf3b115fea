//! Generates a stream of operations from a seed.
//!
//! Each thread iterates over the same stream of operations and runs only the operations on its own records. All
//! operations on a record therefore run in stream order. The access frequencies do not depend on the number of threads,
//! and the final value of each record is known.

use crate::error::Result;
use crate::experiment::player::{OperationKind, Player};
use crate::numbers;
use crate::peers::{Engine, write_field};
use crate::workload::operation_mix::{MixedOperation, OPS_PER_INSERT, OperationMix, Popularity};
use crate::workload::random::{Random, append_random_bytes};
use crate::workload::records::{GeneratedRecords, LengthDistribution};

use super::design::UpdateMode;

/// Number of measured operations per warm-up lookup.
const OPS_PER_WARM_UP_READ: u64 = 10;
const PURPOSE_STREAM: u64 = 0x726d_7773;
const PURPOSE_WARM_UP: u64 = 0x7761_726d;

/// Lengths of keys, values and fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RecordLayout {
    pub(super) key: LengthDistribution,
    pub(super) value: LengthDistribution,
    /// Length of a field in bytes. A remainder of the value that is shorter than a field is never updated.
    pub(super) field_bytes: u64,
    /// Number of bytes that an update writes to the start of a field.
    pub(super) delta_bytes: u64,
}

/// Parameters of an operation stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamParameters {
    pub(super) mix: OperationMix,
    pub(super) read_ratio: f64,
    pub(super) layout: RecordLayout,
    /// Number of records loaded before the operations.
    pub(super) records: u64,
    pub(super) ops: u64,
    /// Zipf exponent of the access frequencies.
    pub(super) zipf: f64,
    pub(super) seed: u64,
}

impl StreamParameters {
    /// Returns the number of records that the stream inserts.
    pub(super) fn inserted_count(&self) -> u64 {
        if self.mix.has_inserts() { self.ops / OPS_PER_INSERT } else { 0 }
    }

    pub(super) fn operations(&self) -> OperationStream {
        OperationStream {
            recipe: *self,
            random: Random::new(self.seed, PURPOSE_STREAM),
            popularity: self.popularity(),
            next: 0,
        }
    }

    pub(super) fn popularity(&self) -> Popularity {
        Popularity::new(self.zipf, self.records, self.seed)
    }

    /// Writes the new bytes of an update to `bytes`, and returns their offset in the value. The random number `draw`
    /// selects the field.
    pub(super) fn write_delta(
        &self,
        records: &GeneratedRecords,
        (record, version, draw): (u64, u64, u64),
        bytes: &mut Vec<u8>,
    ) -> u32 {
        let value_bytes = numbers::to_u64(records.value_len(record));
        let fields = (value_bytes / self.layout.field_bytes).max(1);
        bytes.clear();
        let length = numbers::to_usize(self.layout.delta_bytes);
        append_random_bytes(records.version_seed(record, version), length, bytes);
        // The conversion cannot fail, because values are shorter than 4 GiB.
        u32::try_from(draw % fields * self.layout.field_bytes).unwrap_or(u32::MAX)
    }

    pub(super) fn apply_delta(
        &self,
        records: &GeneratedRecords,
        update: (u64, u64, u64),
        value: &mut Vec<u8>,
    ) {
        let mut delta = Vec::new();
        let offset = self.write_delta(records, update, &mut delta);
        write_field(value, offset, &delta);
    }

    /// Updates a field of a record in the given mode and records the latency.
    pub(super) fn update_field(
        &self,
        player: &mut Player<'_>,
        mode: UpdateMode,
        update: (u64, u64, u64),
    ) -> Result<()> {
        player.prepare_key(update.0);
        let offset = self.write_delta(player.group.records, update, &mut player.value);
        player.measure_operation(
            OperationKind::Update,
            |engine: &dyn Engine, key, delta| match mode {
                UpdateMode::GetPut => engine.read_and_put_field(key, offset, delta),
                _ => engine.merge(key, offset, delta),
            },
        )
    }

    /// Runs all operations on the records that are assigned to this thread.
    pub(super) fn run_operations(&self, player: &mut Player<'_>, mode: UpdateMode) -> Result<()> {
        for StreamOperation { version, operation, record, draw } in self.operations() {
            if player.is_stopped() {
                break;
            }
            if !player.is_own_number(record) {
                continue;
            }
            let update = (record, version, draw);
            match operation {
                MixedOperation::Read => player.get_present(record)?,
                MixedOperation::Update => self.update_field(player, mode, update)?,
                MixedOperation::Rewrite => self.update_field(player, UpdateMode::GetPut, update)?,
                MixedOperation::Put | MixedOperation::Insert => player.put(record, version)?,
                MixedOperation::Scan(entries) => player.seek(record, entries)?,
            }
        }
        Ok(())
    }

    /// Fills the caches by looking up records with the access frequencies of the workload.
    pub(super) fn warm_up(&self, player: &mut Player<'_>) -> Result<()> {
        let popularity = self.popularity();
        let mut random = Random::new(self.seed, PURPOSE_WARM_UP);
        player.for_each_own_number(self.ops / OPS_PER_WARM_UP_READ, |player, _| {
            player.get_present(popularity.draw(&mut random))
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamOperation {
    /// Index of the operation in the stream, counted from 1. The written bytes depend on the index.
    pub(super) version: u64,
    pub(super) operation: MixedOperation,
    pub(super) record: u64,
    /// Random number that selects the field of an update.
    pub(super) draw: u64,
}

#[derive(Clone, Debug)]
pub(super) struct OperationStream {
    recipe: StreamParameters,
    random: Random,
    popularity: Popularity,
    next: u64,
}

impl Iterator for OperationStream {
    type Item = StreamOperation;

    fn next(&mut self) -> Option<StreamOperation> {
        let StreamParameters { mix, read_ratio, records, ops, .. } = self.recipe;
        if self.next >= ops {
            return None;
        }
        let number = self.next;
        self.next += 1;
        let operation = mix.draw(number, read_ratio, &mut self.random);
        let present = records + if mix.has_inserts() { number / OPS_PER_INSERT } else { 0 };
        let record = match operation {
            MixedOperation::Insert => present,
            _ => mix.draw_record(&self.popularity, present, &mut self.random),
        };
        let draw = match operation {
            MixedOperation::Update | MixedOperation::Rewrite => self.random.next_u64() >> 1,
            _ => 0,
        };
        Some(StreamOperation { version: number + 1, operation, record, draw })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::RECIPE;
    use super::*;
    use crate::workload::KeyDistribution;

    #[test]
    fn stream_is_determined_by_seed_and_uses_present_records() {
        for mix in OperationMix::ALL {
            let recipe = StreamParameters {
                mix,
                read_ratio: 0.1,
                records: 100,
                ops: 5000,
                seed: 9,
                ..RECIPE
            };
            let all: Vec<StreamOperation> = recipe.operations().collect();
            assert_eq!(all, recipe.operations().collect::<Vec<_>>());
            assert_eq!(all.len(), 5000);
            let mut end = 100;
            for op in &all {
                if op.operation == MixedOperation::Insert {
                    assert_eq!(op.record, end);
                    end += 1;
                }
                assert!(op.record < end, "{mix}");
            }
            assert_eq!(end, 100 + recipe.inserted_count());
            let other = StreamParameters { seed: 10, ..recipe };
            assert_ne!(all, other.operations().collect::<Vec<_>>());
        }
    }

    #[test]
    fn stream_first_rank_is_drawn_most_often() {
        let mix = OperationMix::Default;
        let recipe = StreamParameters {
            mix,
            read_ratio: 0.5,
            records: 1000,
            ops: 20_000,
            seed: 1,
            ..RECIPE
        };
        let mut counts = vec![0u32; 1000];
        recipe.operations().for_each(|op| counts[usize::try_from(op.record).unwrap()] += 1);
        let first = recipe.popularity().record_at(0);
        assert_eq!(Some(&counts[usize::try_from(first).unwrap()]), counts.iter().max());
    }

    #[test]
    fn update_bytes_stay_within_value_and_differ_by_version() {
        let (key, value) = (LengthDistribution::Fixed(16), LengthDistribution::Fixed(1050));
        let layout = RecordLayout { key, value, field_bytes: 100, delta_bytes: 40 };
        let records = GeneratedRecords::new(KeyDistribution::Uniform, 10, key, value, 3).unwrap();
        let recipe = StreamParameters { layout, ..RECIPE };
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for draw in 0..100 {
            let offset = recipe.write_delta(&records, (4, 1, draw), &mut a);
            assert!(offset.is_multiple_of(100) && offset <= 900 && a.len() == 40);
            recipe.write_delta(&records, (4, 2, draw), &mut b);
            assert_ne!(a, b);
        }
    }
}

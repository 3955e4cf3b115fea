//! Replays a trace without pauses and checks each answer against the writes replayed so far.
//!
//! The replay starts with an empty database, so keys that the trace has not written are absent. A value recorded
//! without its content is replaced by a generated value of the same length. Merge operands overwrite the first bytes of
//! a value, even if the traced database used a different merge operator.

use std::collections::BTreeMap;
use std::ops::Bound;

use lsmx::merge_operator::FieldUpdate;
use lsmx::workload_trace::{TraceEvent, TraceItem, TraceValue};
use lsmx::{Durability, Keyspace, KeyspaceOptions, WriteBatch};

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::numbers;
use crate::peers::lsmx::engine_error as engine;
use crate::workload::model::KeyspaceModel;
use crate::workload::phases::LookupGroup;
use crate::workload::random::{append_random_bytes, hash_u64};
use crate::workload::trace::TraceFile;

use super::cell::{CellRun, PROGRESS_OPS};
use super::lookup_meter::ReadingOperation;

/// Length of the header of a merge operand in bytes.
const OPERAND_HEADER_BYTES: u64 = 8;

/// A keyspace and the entries that the keyspace must contain.
#[derive(Debug)]
struct ReplayedKeyspace {
    keyspace: Keyspace,
    model: KeyspaceModel,
}

struct TraceReplay<'r, 'a> {
    run: &'r mut CellRun<'a>,
    options: KeyspaceOptions,
    keyspaces: BTreeMap<u32, ReplayedKeyspace>,
    row: usize,
    range_row: usize,
    gets: u64,
    absent: u64,
    /// Number of writes that are still missing from the current batch.
    batch_left: u64,
    batch: WriteBatch,
    seed: u64,
    number: u64,
    value: Vec<u8>,
}

/// Replays a trace on the database of a run and returns the number of live keys. New keyspaces are created with
/// `options`.
pub(super) fn replay_trace(
    run: &mut CellRun<'_>,
    trace: &TraceFile,
    options: KeyspaceOptions,
    seed: u64,
    title: &str,
    progress: &mut dyn Progress,
) -> Result<u64> {
    progress.begin_phase(&format!("{title}: trace"), trace.counts().ops());
    let default =
        ReplayedKeyspace { keyspace: run.keyspaces[0].clone(), model: KeyspaceModel::default() };
    let row = run.meter.point_row(&LookupGroup { alpha: 0.0, ops: trace.counts().gets });
    let range_row = run.meter.range_row(None);
    let mut replay = TraceReplay {
        run,
        options,
        keyspaces: BTreeMap::from([(0, default)]),
        row,
        range_row,
        gets: 0,
        absent: 0,
        batch_left: 0,
        batch: WriteBatch::new(),
        seed,
        number: 0,
        value: Vec::new(),
    };
    trace.visit_items(&mut |item| {
        replay.replay_item(&item)?;
        if item.event.is_operation() {
            replay.number += 1;
            if replay.number.is_multiple_of(PROGRESS_OPS) {
                progress.advance(PROGRESS_OPS);
            }
        }
        Ok(())
    })?;
    // The last batch of a truncated trace may be incomplete. The writes of an incomplete batch are applied.
    replay.write_batch(Durability::Buffered)?;
    progress.end_phase();
    let alpha = numbers::ratio(replay.absent, replay.gets);
    let entries = replay.keyspaces.values().map(|played| played.model.len()).sum();
    replay.run.set_reading_operation(ReadingOperation::None);
    replay.run.meter.set_alpha(row, alpha);
    Ok(entries)
}

impl TraceReplay<'_, '_> {
    fn replay_item(&mut self, item: &TraceItem<'_>) -> Result<()> {
        let durability = if item.synced { Durability::Sync } else { Durability::Buffered };
        match item.event {
            TraceEvent::Put { keyspace, key, value } => {
                self.make_value(value);
                let played = find_keyspace(&mut self.keyspaces, keyspace)?;
                played.model.put(key, &self.value);
                self.batch.put(&played.keyspace, key, &self.value);
                self.commit_if_complete(durability)
            }
            TraceEvent::Merge { keyspace, key, operand } => {
                self.make_operand(operand);
                let played = find_keyspace(&mut self.keyspaces, keyspace)?;
                played.model.merge(key);
                self.batch.merge(&played.keyspace, key, &self.value);
                self.commit_if_complete(durability)
            }
            TraceEvent::Delete { keyspace, key } => {
                let played = find_keyspace(&mut self.keyspaces, keyspace)?;
                played.model.delete(key);
                self.batch.delete(&played.keyspace, key);
                self.commit_if_complete(durability)
            }
            TraceEvent::DeleteRange { keyspace, start, end } => {
                let played = find_keyspace(&mut self.keyspaces, keyspace)?;
                played.model.delete_range(start, end);
                let end = end.map_or(Bound::Unbounded, Bound::Excluded);
                self.batch.delete_range::<&[u8]>(&played.keyspace, (Bound::Included(start), end));
                self.commit_if_complete(durability)
            }
            TraceEvent::Batch { operations } => {
                self.write_batch(durability)?;
                self.batch_left = operations;
                Ok(())
            }
            TraceEvent::Get { keyspace, key, .. } => self.get(keyspace, key),
            TraceEvent::Scan { keyspace, backward, start, entries } => {
                self.scan(keyspace, backward, start, entries)
            }
            TraceEvent::Keyspace { keyspace, name } => self.name_keyspace(keyspace, name),
            _ => Ok(()),
        }
    }

    fn name_keyspace(&mut self, keyspace: u32, name: &str) -> Result<()> {
        let made = if name == lsmx::DEFAULT_KEYSPACE {
            self.run.keyspaces[0].clone()
        } else {
            let made = self.run.db.keyspace(name, self.options.clone());
            let made = made.map_err(engine("make a keyspace"))?;
            self.run.keyspaces.push(made.clone());
            made
        };
        if self.keyspaces.get(&keyspace).is_none_or(|at| at.keyspace.name() != name) {
            let replayed = ReplayedKeyspace { keyspace: made, model: KeyspaceModel::default() };
            self.keyspaces.insert(keyspace, replayed);
        }
        Ok(())
    }

    fn make_value(&mut self, value: TraceValue<'_>) {
        self.value.clear();
        match value.content {
            Some(content) => self.value.extend_from_slice(content),
            None => {
                let seed = hash_u64(self.seed ^ hash_u64(self.number));
                append_random_bytes(seed, numbers::to_usize(value.bytes), &mut self.value);
            }
        }
    }

    fn make_operand(&mut self, operand: TraceValue<'_>) {
        let bytes = operand.bytes.saturating_sub(OPERAND_HEADER_BYTES);
        self.make_value(TraceValue { bytes, content: None });
        self.value = FieldUpdate::operand(0, &self.value);
    }

    /// Counts a write of the current batch, and writes the batch if it is complete.
    fn commit_if_complete(&mut self, durability: Durability) -> Result<()> {
        self.batch_left = self.batch_left.saturating_sub(1);
        if self.batch_left == 0 { self.write_batch(durability) } else { Ok(()) }
    }

    fn write_batch(&mut self, durability: Durability) -> Result<()> {
        self.batch_left = 0;
        if self.batch.is_empty() {
            return Ok(());
        }
        self.run.set_reading_operation(ReadingOperation::None);
        self.run.unsettled = true;
        let batch = std::mem::take(&mut self.batch);
        let stopwatch = Stopwatch::start();
        self.run.db.write(batch, durability).map_err(engine("write"))?;
        self.run.put_latencies.record_ns(stopwatch.elapsed_ns());
        Ok(())
    }

    fn get(&mut self, keyspace: u32, key: &[u8]) -> Result<()> {
        self.run.set_reading_operation(ReadingOperation::Point(self.row));
        let played = find_keyspace(&mut self.keyspaces, keyspace)?;
        let stopwatch = Stopwatch::start();
        let value = played.keyspace.get(key).map_err(engine("look a key up"))?;
        self.run.meter.add_point_lookup(self.row, value.is_some(), stopwatch.elapsed_ns());
        self.gets += 1;
        self.absent += u64::from(value.is_none());
        let wrong = |found, must| Err(Error::wrong_answer(key, found, must));
        match (played.model.get(key), value) {
            (None, None) => Ok(()),
            (Some(known), Some(value)) if known.matches_answer(&value) => Ok(()),
            (Some(_), Some(_)) => wrong("another value", "that of its last put"),
            (Some(_), None) if self.run.reader.loses => Ok(()),
            (Some(_), None) => wrong("absent", "present"),
            (None, Some(_)) => wrong("present", "absent"),
        }
    }

    fn scan(
        &mut self,
        keyspace: u32,
        backward: bool,
        start: Option<&[u8]>,
        entries: u64,
    ) -> Result<()> {
        self.run.set_reading_operation(ReadingOperation::Range(self.range_row));
        let played = find_keyspace(&mut self.keyspaces, keyspace)?;
        let bound = start.map_or(Bound::Unbounded, Bound::Included);
        let bounds = if backward { (Bound::Unbounded, bound) } else { (bound, Bound::Unbounded) };
        let mut range = played.keyspace.range::<&[u8]>(bounds);
        let stopwatch = Stopwatch::start();
        let (mut found, mut last) = (0, None);
        while found < entries {
            let next = if backward { range.next_back() } else { range.next() };
            let Some(entry) = next else { break };
            last = Some(entry.map_err(engine("scan"))?.0);
            found += 1;
        }
        let elapsed_ns = stopwatch.elapsed_ns();
        let (count, expected) = played.model.scan(backward, start, entries);
        let is_expected = count == found && last.as_deref() == expected;
        if !is_expected && !self.run.reader.loses {
            let key = expected.or(start).unwrap_or_default();
            return Err(Error::wrong_answer(key, "another end of a scan", "the end of a scan"));
        }
        self.run.meter.add_range_lookup(self.range_row, found, elapsed_ns);
        Ok(())
    }
}

fn find_keyspace(
    keyspaces: &mut BTreeMap<u32, ReplayedKeyspace>,
    keyspace: u32,
) -> Result<&mut ReplayedKeyspace> {
    keyspaces.get_mut(&keyspace).ok_or(Error::Engine {
        action: "find a keyspace of the trace",
        source: lsmx::Error::UnknownKeyspace { name: format!("number {keyspace}") },
    })
}

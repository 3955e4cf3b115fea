//! The experiment `data-size`: measures puts, gets and deletes for different numbers of records. The value of record
//! `i` has `i` bytes, where `i` starts at 1. Twice as many records therefore have four times as many bytes.

use std::ops::RangeInclusive;

use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::experiment::player::{
    OperationKind, Player, ThreadGroup, flush_and_wait_idle, remove_directory,
};
use crate::peers::EngineKind;

use super::StudyContext;
use super::result::{DataSize, TuningCell};

/// Accepted values of `--entries`. The largest database has 32 GiB of values.
pub(super) const ENTRIES: RangeInclusive<u64> = 8..=1 << 18;
/// Divisors of `--entries`. Each quotient is a measured number of records.
const DIVISORS: [u64; 4] = [8, 4, 2, 1];

type RecordOperation = fn(&mut Player<'_>, u64) -> Result<()>;

/// Operations that are measured on each database, in this order. Each operation runs once for each record, in key
/// order.
const OPERATIONS: [(&str, RecordOperation); 3] = [
    ("put", |player, record| player.put(record, 0)),
    ("get", |player, record| player.get_present(record)),
    ("delete", |player, record| {
        player.prepare_key(record);
        player.measure_operation(OperationKind::Delete, |engine, key, _| engine.delete(key))
    }),
];

pub(super) fn measure_data_sizes(
    bench: &StudyContext<'_>,
    progress: &mut dyn Progress,
) -> Result<Vec<TuningCell>> {
    let mut cells = Vec::new();
    for entries in DIVISORS.map(|divisor| bench.config.entries / divisor) {
        let path = bench.temporary.join(entries.to_string());
        let engine = EngineKind::Lsmx.open(&path, &bench.config.settings)?;
        let group = ThreadGroup {
            threads: bench.threads(),
            ..ThreadGroup::single_thread(engine.as_ref(), bench.records)
        };
        let setting = format!("{entries} records");
        let data = Some(DataSize { entries, bytes: bench.records.total_bytes(entries) });
        for (workload, operate) in OPERATIONS {
            let title = format!("{workload}, {setting}");
            let played = group.run_work((&title, entries), progress, &|player| {
                player.for_each_own_number(entries, operate)
            })?;
            let settle_s = match workload {
                "get" => 0.0,
                _ => flush_and_wait_idle(engine.as_ref(), &title, progress)?,
            };
            let cell = TuningCell::new(workload, &setting, bench.threads(), &played, settle_s);
            cells.push(TuningCell { data, ..cell });
        }
        check_all_absent(group, entries, progress)?;
        engine.close()?;
        remove_directory(&path)?;
    }
    Ok(cells)
}

/// Checks that none of the first `entries` records is present.
fn check_all_absent(
    group: ThreadGroup<'_>,
    entries: u64,
    progress: &mut dyn Progress,
) -> Result<()> {
    let title = format!("check of {entries} deletes");
    let checked = group.run_work((&title, entries), progress, &|player| {
        player.for_each_own_number(entries, |player, record| {
            if player.get(record)? {
                return Err(Error::wrong_answer(&player.key, "present", "absent"));
            }
            Ok(())
        })
    });
    checked.map(drop)
}

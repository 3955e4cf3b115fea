//! Runs the checks of `harness` without failpoints. The tests with failpoints run the same checks.

use std::panic::catch_unwind;

use crate::harness::parallel::{in_parallel, watched};
use crate::harness::small_database::seeds;
use crate::harness::{
    Outcome, clock, closing, descriptors, device_hangs, disk_use, failed_open, guards, identity,
    lost_log, memory, missing_store, newest_reads, quarantine, queues, range_tombstones,
};

/// The number of the guarantee, the name of the check, the number of seeds, and the check function.
type Row = (u64, &'static str, u64, fn(u64) -> Outcome);

const CHECKS: &[Row] = &[
    (6, "reads during ingests", 40, newest_reads::reads_during_ingests_return_states_that_existed),
    (6, "reads of renewed values", 40, newest_reads::reads_find_renewed_values),
    (6, "snapshot after the pick of a drop keeps its files", 1, queues::late_snapshot_keeps_files),
    (9, "reserve is bounded", 3, disk_use::reserve_is_bounded),
    (9, "reserve is dispensable", 3, disk_use::reserve_is_dispensable),
    (9, "full disk: a flush takes the reserve", 3, disk_use::full_disk_takes_the_reserve),
    (9, "full disk: read-only without a reserve", 3, disk_use::full_disk_is_full),
    (9, "idle memtable is flushed", 3, disk_use::idle_memtable_is_flushed),
    (9, "idle database removes nothing", 3, disk_use::idle_database_removes_nothing),
    (
        10,
        "damaged range tombstones of one table: reads elsewhere succeed",
        1,
        range_tombstones::damaged_range_tombstones_fail_overlapping_reads_only,
    ),
    (10, "segment of a checkpoint is foreign", 4, identity::segment_of_a_checkpoint_is_foreign),
    (10, "missing log segment is named", 2, lost_log::missing_segment_is_named),
    (11, "keyspaces after log damage", 4, lost_log::each_keyspace_is_complete_as_reported),
    (11, "repair to a common prefix", 2, lost_log::common_prefix_is_restored_or_refused),
    (11, "dry run of a repair", 4, lost_log::dry_run_reports_the_losses_of_the_repair),
    (12, "failed open leaves no files", 2, failed_open::failed_open_leaves_no_files),
    (12, "handle dropped after close", 1, closing::closed_database_changes_no_file),
    (12, "reads during a close", 1, closing::reads_over_a_close_return_values_or_closed),
    (12, "output over an engine file", 1, identity::output_over_an_engine_file_is_refused),
    (12, "stray file numbers", 1, identity::stray_file_with_an_impossible_number_is_ignored),
    (14, "clock jump while open", 1, clock::jump_of_a_running_database_is_harmless),
    (14, "clock near its end", 8, clock::time_near_its_end_is_harmless),
    (15, "close during a hanging creation", 1, device_hangs::close_keeps_deadline),
    (15, "follower of a hanging leader", 1, device_hangs::follower_keeps_deadline),
    (15, "quarantined bucket becomes readable", 1, quarantine::readable_bucket_leaves_quarantine),
    (15, "quarantined blob file is not read", 1, quarantine::quarantined_blob_file_is_not_read),
    (16, "flush during a hanging collection", 1, |_| {
        device_hangs::flushes_while_store_hangs("lsmx-compact")
    }),
    (16, "flush during a hanging delivery", 1, |_| {
        device_hangs::flushes_while_store_hangs("lsmx-flush")
    }),
    (
        16,
        "early flushes during a hanging delivery",
        1,
        device_hangs::early_flushes_while_delivery_hangs,
    ),
    (16, "operands wait for their store", 150, missing_store::operands_wait_for_their_store),
    (
        16,
        "operands with concurrent opens of a missing store",
        1_000,
        missing_store::concurrent_opens_of_a_missing_store_keep_operands,
    ),
    (16, "few descriptors", 1, descriptors::few_descriptors_are_refused_or_enough),
    (17, "guards with large batches", 30, guards::guards_during_large_batches),
    (17, "guards older than the memtables", 5, guards::guards_older_than_the_memtables),
    (17, "memory of batches in flight", 10, memory::batches_in_flight),
    (17, "memory of dropped memtables", 1, memory::drops_among_folds),
];

#[test]
fn shared_checks_without_failpoints_pass() {
    in_parallel(|number| {
        let Some((guarantee, name, count, check)) = CHECKS.get(number as usize) else {
            return Ok(false);
        };
        for seed in seeds(1_000 + number, *count) {
            let label = format!("guarantee {guarantee}, {name}, seed {seed}");
            let result = watched(&label, || catch_unwind(|| check(seed)));
            let result = result.unwrap_or_else(|_| Err("panic, see its message above".to_owned()));
            result.map_err(|what| format!("{label}: {what}"))?;
        }
        Ok(true)
    })
    .unwrap();
}

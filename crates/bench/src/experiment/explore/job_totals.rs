//! Totals over flushes and compactions: times of jobs, disk space, and ages of dropped tombstones.

use lsmx::event::Event;

use crate::numbers;

use super::result::{DeletePersistence, PersistedShare};

/// Ages, as fractions of the run time. For each age, the result reports the share of deletes whose tombstone was
/// dropped before reaching that age. Sarkar et al., PVLDB 14 (2021), report one third and one half.
const SHARES_OF_RUN: [f64; 5] = [0.1, 0.25, 1.0 / 3.0, 0.5, 0.75];

/// Totals over all flushes and compaction jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct JobTotals {
    /// Elapsed time of compaction jobs in microseconds, summed over all threads. The next four fields are parts of this
    /// time: the processor time, and the waits for reads, writes and syncs.
    pub(super) thread_us: u64,
    pub(super) cpu_us: u64,
    pub(super) read_wait_us: u64,
    pub(super) write_wait_us: u64,
    pub(super) sync_wait_us: u64,
    /// Current total length of all table files, in bytes.
    live_bytes: u64,
    /// Maximum total length of all table files, including the outputs of a running job, in bytes.
    pub(super) peak_bytes: u64,
    /// Maximum total length of the outputs of one job, in bytes.
    pub(super) transient_bytes: u64,
    /// One pair per job that dropped tombstones: an upper bound of the age of these tombstones in microseconds, and the
    /// number of tombstones.
    dropped: Vec<(u64, u64)>,
}

impl JobTotals {
    pub(super) fn add_event(&mut self, event: &Event) {
        match event {
            Event::Flush(end) => {
                self.live_bytes += end.written_bytes;
                self.peak_bytes = self.peak_bytes.max(self.live_bytes);
            }
            Event::Compaction(end) => {
                self.thread_us += end.thread_us;
                self.cpu_us += end.cpu_us;
                self.read_wait_us += end.read_wait_us;
                self.write_wait_us += end.write_wait_us;
                self.sync_wait_us += end.sync_wait_us;
                self.peak_bytes = self.peak_bytes.max(self.live_bytes + end.written_bytes);
                self.transient_bytes = self.transient_bytes.max(end.written_bytes);
                self.live_bytes =
                    (self.live_bytes + end.written_bytes) - end.released_bytes.min(self.live_bytes);
                let left = end.tombstones_read.saturating_sub(end.tombstones_written);
                if let (1.., Some(oldest_us)) = (left, end.oldest_tombstone_us) {
                    self.dropped.push((end.ended_us.saturating_sub(oldest_us), left));
                }
            }
            _ => {}
        }
    }

    /// Returns the share of deletes whose tombstone was dropped within each fraction of the run time in
    /// [`SHARES_OF_RUN`]. `run_us` is the run time in microseconds. `live_tombstones` is the number of tombstones left
    /// at the end of the run.
    pub(super) fn delete_persistence(
        &self,
        deletes: u64,
        run_us: u64,
        live_tombstones: u64,
        oldest_age_us: Option<u64>,
    ) -> DeletePersistence {
        let within = SHARES_OF_RUN.map(|share_of_run| {
            let bound_us = numbers::to_f64(run_us) * share_of_run;
            let late =
                self.dropped.iter().filter(|(age_us, _)| numbers::to_f64(*age_us) > bound_us);
            let late: u64 = late.map(|(_, tombstones)| tombstones).sum();
            let in_time = deletes.saturating_sub(live_tombstones).saturating_sub(late);
            PersistedShare { share_of_run, share: numbers::ratio(in_time, deletes) }
        });
        DeletePersistence {
            deletes,
            live_tombstones,
            oldest_age_us,
            age_us_max: self.dropped.iter().map(|(age_us, _)| *age_us).max(),
            run_us,
            within: if deletes > 0 { within.into() } else { Vec::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delete_persistence_excludes_late_and_live_tombstones() {
        let tally =
            JobTotals { dropped: vec![(50, 10), (300, 20), (600, 5)], ..JobTotals::default() };
        // Of 100 tombstones, 40 are live, jobs dropped 35, and newer writes replaced 25 in the memtable.
        let persistence = tally.delete_persistence(100, 1000, 40, Some(900));
        let shares: Vec<f64> = persistence.within.iter().map(|at| at.share).collect();
        let expected = [0.35, 0.35, 0.55, 0.55, 0.6];
        for (share, expected) in shares.iter().zip(expected) {
            assert!((share - expected).abs() < 1e-12, "{shares:?}");
        }
        assert_eq!((persistence.age_us_max, persistence.oldest_age_us), (Some(600), Some(900)));
        assert!(JobTotals::default().delete_persistence(0, 10, 0, None).within.is_empty());
    }
}

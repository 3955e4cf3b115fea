//! What jobs tell of themselves as they end: processor time, space while they ran, tombstones that left.

use lsmx::event::Event;

use crate::numbers;

use super::result::{DeletePersistence, PersistedWithin};

/// Shares of a run for which it is told how many tombstones left within them. The study has a third
/// and a half.
const SHARES_OF_RUN: [f64; 5] = [0.1, 0.25, 1.0 / 3.0, 0.5, 0.75];

/// Sums over all jobs so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Time of all threads in jobs, and how much of it on a processor, in microseconds.
    pub(super) thread_us: u64,
    pub(super) cpu_us: u64,
    /// Bytes of the files of the tree.
    live_bytes: u64,
    /// Most bytes that there were at a time: of the tree, and of what a job had made in place of files
    /// that were still there.
    pub(super) peak_bytes: u64,
    /// Most bytes that one job made so.
    pub(super) transient_bytes: u64,
    /// Tombstones that left with a job, and an age that none of them had passed.
    left: Vec<(u64, u64)>,
}

impl Tally {
    pub(super) fn heard(&mut self, event: &Event) {
        match event {
            Event::Flush(end) => {
                self.live_bytes += end.written_bytes;
                self.peak_bytes = self.peak_bytes.max(self.live_bytes);
            }
            Event::Compaction(end) => {
                self.thread_us += end.thread_us;
                self.cpu_us += end.cpu_us;
                self.peak_bytes = self.peak_bytes.max(self.live_bytes + end.written_bytes);
                self.transient_bytes = self.transient_bytes.max(end.written_bytes);
                self.live_bytes =
                    (self.live_bytes + end.written_bytes) - end.released_bytes.min(self.live_bytes);
                let left = end.tombstones_read.saturating_sub(end.tombstones_written);
                if let (1.., Some(oldest_us)) = (left, end.oldest_tombstone_us) {
                    self.left.push((end.ended_us.saturating_sub(oldest_us), left));
                }
            }
            _ => {}
        }
    }

    /// What became of `deletes` in a run of `run_us`, of which so many tombstones are still there.
    pub(super) fn persistence(
        &self,
        deletes: u64,
        run_us: u64,
        live_tombstones: u64,
        oldest_age_us: Option<u64>,
    ) -> DeletePersistence {
        let within = SHARES_OF_RUN.map(|share_of_run| {
            let bound_us = numbers::float(run_us) * share_of_run;
            let late = self.left.iter().filter(|(age_us, _)| numbers::float(*age_us) > bound_us);
            let late: u64 = late.map(|(_, tombstones)| tombstones).sum();
            let in_time = deletes.saturating_sub(live_tombstones).saturating_sub(late);
            PersistedWithin { share_of_run, share: numbers::ratio(in_time, deletes) }
        });
        DeletePersistence {
            deletes,
            live_tombstones,
            oldest_age_us,
            age_us_max: self.left.iter().map(|(age_us, _)| *age_us).max(),
            run_us,
            within: if deletes > 0 { within.into() } else { Vec::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_left_late_and_what_is_still_there_did_not_leave_in_time() {
        let tally = Tally { left: vec![(50, 10), (300, 20), (600, 5)], ..Tally::default() };
        // Of 100 deletes 40 tombstones are there, 35 left with jobs; 25 met a newer write in memory.
        let persistence = tally.persistence(100, 1000, 40, Some(900));
        let shares: Vec<f64> = persistence.within.iter().map(|at| at.share).collect();
        let expected = [0.35, 0.35, 0.55, 0.55, 0.6];
        for (share, expected) in shares.iter().zip(expected) {
            assert!((share - expected).abs() < 1e-12, "{shares:?}");
        }
        assert_eq!((persistence.age_us_max, persistence.oldest_age_us), (Some(600), Some(900)));
        assert!(Tally::default().persistence(0, 10, 0, None).within.is_empty());
    }
}

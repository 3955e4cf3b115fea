//! Lookups that check each answer, on one thread or on several threads.

use std::sync::mpsc;

use lsmx::Keyspace;
use lsmx_base::sync::{AtomicBool, Ordering};

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::experiment::player::join_thread;
use crate::peers::lsmx::engine_error as engine;

use super::cell::PROGRESS_OPS;
use super::lookup_meter::{ReadingOperation, ThreadLookups};

/// Reads a keyspace and checks each answer. Several threads can use the same reader.
#[derive(Debug)]
pub(super) struct CheckedReader {
    pub(super) keyspace: Keyspace,
    /// True if the first key of each range lookup is predictable. Range lookups then check this key.
    pub(super) exact: bool,
    /// Whether the policy can drop data. If so, a lookup of a present record may find nothing.
    pub(super) loses: bool,
}

/// A lookup whose key was generated before the measurement.
#[derive(Debug)]
pub(super) struct PreparedLookup {
    pub(super) key: Vec<u8>,
    /// Row of the lookup meter in which the lookup is counted.
    pub(super) row: ReadingOperation,
    pub(super) kind: LookupKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum LookupKind {
    /// Point lookup of a present or an absent key.
    Point { present: bool },
    /// Range lookup of up to `entries` entries. The key of the lookup is the expected first key.
    Range { entries: u64 },
}

impl CheckedReader {
    /// Looks up a key. Returns whether the key was found, and the latency in nanoseconds. Fails if the answer differs
    /// from `present`.
    pub(super) fn get(&self, key: &[u8], present: bool) -> Result<(bool, u64)> {
        let stopwatch = Stopwatch::start();
        let value = self.keyspace.get(key).map_err(engine("look a key up"))?;
        let ns = stopwatch.elapsed_ns();
        let is_found = value.is_some();
        if is_found == present || (present && self.loses) {
            return Ok((is_found, ns));
        }
        let (found, must) = if present { ("absent", "present") } else { ("present", "absent") };
        Err(Error::wrong_answer(key, found, must))
    }

    /// Reads up to `entries` entries from `key` on. Returns the number of entries read, and the latency in nanoseconds.
    /// Fails if the first key is known and differs from `key`.
    pub(super) fn read_range(&self, key: &[u8], entries: u64) -> Result<(u64, u64)> {
        let stopwatch = Stopwatch::start();
        let mut found = 0;
        for entry in self.keyspace.range(key..).limit(entries) {
            let (found_key, _) = entry.map_err(engine("read a range"))?;
            if found == 0 && self.exact && found_key != key {
                return Err(Error::wrong_answer(key, "absent", "present"));
            }
            found += 1;
        }
        Ok((found, stopwatch.elapsed_ns()))
    }

    /// Performs `lookups` on `threads` threads. Each element of the result describes the lookups of one thread. If a
    /// lookup fails, all threads stop.
    pub(super) fn run_lookups(
        &self,
        lookups: &[PreparedLookup],
        threads: usize,
        progress: &mut dyn Progress,
    ) -> Result<Vec<ThreadLookups>> {
        let (sender, receiver) = mpsc::channel();
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let spawn = |thread: usize| {
                let own = lookups.iter().skip(thread).step_by(threads);
                let sender = sender.clone();
                scope.spawn(move || {
                    let measured = self.measure_lookups(own, stop, &sender);
                    stop.fetch_or(measured.is_err(), Ordering::Relaxed);
                    measured
                })
            };
            let handles: Vec<_> = (0..threads).map(spawn).collect();
            // The loop ends when all senders are dropped. Each thread has a clone, so the original is dropped here.
            drop(sender);
            for ops in receiver {
                progress.advance(ops);
            }
            handles.into_iter().map(join_thread).collect()
        })
    }

    /// Performs the lookups of one thread until `stop` is set. Sends the number of finished lookups to `progress` at
    /// intervals.
    fn measure_lookups<'l>(
        &self,
        lookups: impl Iterator<Item = &'l PreparedLookup>,
        stop: &AtomicBool,
        progress: &mpsc::Sender<u64>,
    ) -> Result<ThreadLookups> {
        let mut measured = ThreadLookups::default();
        for PreparedLookup { key, kind, .. } in lookups {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let ns = match *kind {
                LookupKind::Point { present } => {
                    let (is_found, ns) = self.get(key, present)?;
                    measured.absent += u64::from(!is_found);
                    ns
                }
                LookupKind::Range { entries } => {
                    let (found, ns) = self.read_range(key, entries)?;
                    measured.entries += found;
                    ns
                }
            };
            measured.latencies.record_ns(ns);
            if measured.latencies.count().is_multiple_of(PROGRESS_OPS) {
                // Sending cannot fail, because the receiver exists until all threads have ended.
                let _ = progress.send(PROGRESS_OPS);
            }
        }
        let _ = progress.send(measured.latencies.count() % PROGRESS_OPS);
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use lsmx::vfs::MemVfs;
    use lsmx::{Db, Options};
    use lsmx_base::sync::Arc;

    use super::*;
    use crate::experiment::NoProgress;

    struct FinishedOps(u64);

    impl Progress for FinishedOps {
        fn begin_phase(&mut self, _: &str, _: u64) {}
        fn advance(&mut self, ops: u64) {
            self.0 += ops;
        }
        fn end_phase(&mut self) {}
    }

    /// Returns a reader of a database with the keys `[0]` to `[9]`.
    fn reader() -> CheckedReader {
        let db = Db::open("db", Options::default().vfs(Arc::new(MemVfs::new()))).unwrap();
        let keyspace = db.default_keyspace();
        for key in 0..10_u8 {
            keyspace.put([key], "").unwrap();
        }
        CheckedReader { keyspace, exact: true, loses: false }
    }

    fn point(key: u8, present: bool) -> PreparedLookup {
        let kind = LookupKind::Point { present };
        PreparedLookup { key: vec![key], row: ReadingOperation::Point(0), kind }
    }

    fn range(key: &[u8], entries: u64) -> PreparedLookup {
        let kind = LookupKind::Range { entries };
        PreparedLookup { key: key.to_vec(), row: ReadingOperation::Range(0), kind }
    }

    #[test]
    fn run_lookups_performs_each_lookup_once() {
        let reader = reader();
        let points: Vec<_> = (0..20_u8).map(|key| point(key, key < 10)).collect();
        let ranges: Vec<_> = (0..10_u8).map(|key| range(&[key], 4)).collect();
        for threads in [1, 3, 64] {
            // The last three range lookups reach the end of the keyspace after 3, 2 and 1 entries.
            for (lookups, ops, absent, entries) in
                [(&points, 20, 10, 0), (&ranges, 10, 0, 7 * 4 + 3 + 2 + 1)]
            {
                let mut finished = FinishedOps(0);
                let measured = reader.run_lookups(lookups, threads, &mut finished).unwrap();
                assert_eq!(measured.len(), threads);
                assert_eq!(finished.0, ops);
                let sum = |of: fn(&ThreadLookups) -> u64| measured.iter().map(of).sum::<u64>();
                assert_eq!(sum(|thread| thread.latencies.count()), ops);
                assert_eq!(sum(|thread| thread.absent), absent);
                assert_eq!(sum(|thread| thread.entries), entries);
            }
        }
    }

    #[test]
    fn run_lookups_wrong_answer_of_any_thread_is_an_error() {
        let reader = reader();
        for place in 0..6 {
            for wrong in [point(5, false), point(15, true), range(&[5, 0], 2)] {
                let mut lookups: Vec<_> = (0..5).map(|key| point(key, true)).collect();
                lookups.insert(place, wrong);
                let result = reader.run_lookups(&lookups, 3, &mut NoProgress);
                assert!(matches!(result, Err(Error::WrongAnswer { .. })), "{result:?}");
            }
        }
    }
}

//! Records the levels of the tree after each flush and compaction.

use lsmx::event::Event;
use lsmx::{Db, Metrics};
use lsmx_base::sync::Mutex;

use super::cell::sum_keyspace_metrics;
use super::result::{HistoryPoint, LevelPoint};

/// Maximum number of points in a history. When the limit is reached, every second point is removed, and from then on
/// only every second new point is kept. The indexes of the kept points therefore depend only on the number of recorded
/// points.
pub const HISTORY_POINTS_MAX: usize = 200;

#[derive(Debug, Default)]
pub(super) struct HistoryRecorder(Mutex<RecordedHistory>);

#[derive(Debug, Default)]
struct RecordedHistory {
    /// Handle of the recorded database. The listener uses the handle only while it holds the lock, so the listener
    /// never drops the last handle.
    db: Option<Db>,
    points: ThinnedItems<HistoryPoint>,
}

/// Guard that ends the recording. Dropping the guard breaks the reference cycle between the database and its listener.
#[derive(Debug)]
pub(super) struct RecordingGuard<'a>(&'a HistoryRecorder);

impl HistoryRecorder {
    pub(super) fn start_recording(&self, db: &Db) -> RecordingGuard<'_> {
        self.0.lock().db = Some(db.clone());
        RecordingGuard(self)
    }

    /// Records the levels of the tree after a flush or compaction. Other events are ignored.
    pub(super) fn add_event(&self, event: &Event) {
        if !matches!(event, Event::Flush(_) | Event::Compaction(_)) {
            return;
        }
        let mut recorded = self.0.lock();
        let RecordedHistory { db, points } = &mut *recorded;
        if let Some(db) = db {
            points.add_item(|| history_point(&db.metrics()));
        }
    }

    /// Returns the recorded points in order, followed by a point with the values of `metrics`.
    pub(super) fn history_points(&self, metrics: &Metrics) -> Vec<HistoryPoint> {
        self.0.lock().points.items_and_last(history_point(metrics))
    }
}

impl Drop for RecordingGuard<'_> {
    fn drop(&mut self) {
        let watched = self.0.0.lock().db.take();
        // Dropping the handle may close the database, which may call the listener. Therefore the lock is released
        // first.
        drop(watched);
    }
}

/// Returns the levels and byte counters, summed over all keyspaces.
fn history_point(metrics: &Metrics) -> HistoryPoint {
    let tree = sum_keyspace_metrics(metrics.keyspaces.values());
    HistoryPoint {
        ingested_bytes: tree.ingested_bytes,
        flushed_bytes: tree.flushed_bytes,
        read_bytes: tree.compaction.read_bytes,
        written_bytes: tree.compaction.written_bytes,
        levels: tree
            .levels
            .iter()
            .filter(|level| level.runs > 0)
            .map(|level| LevelPoint {
                level: u64::from(level.level),
                runs: level.runs,
                files: level.files,
                bytes: level.bytes,
            })
            .collect(),
    }
}

/// Evenly spaced items of a sequence of unknown length. Fewer than [`HISTORY_POINTS_MAX`] items are kept.
#[derive(Debug)]
struct ThinnedItems<T> {
    kept: Vec<T>,
    offered: u64,
    /// Distance between two kept items in the sequence. The stride doubles each time the limit is reached.
    stride: u64,
}

impl<T> Default for ThinnedItems<T> {
    fn default() -> Self {
        ThinnedItems { kept: Vec::new(), offered: 0, stride: 1 }
    }
}

impl<T> ThinnedItems<T> {
    /// Takes the next item of the sequence. `item` is called only if the item is kept.
    fn add_item(&mut self, item: impl FnOnce() -> T) {
        if self.offered.is_multiple_of(self.stride) {
            self.kept.push(item());
            if self.kept.len() == HISTORY_POINTS_MAX {
                let mut index = 0;
                self.kept.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.stride *= 2;
            }
        }
        self.offered += 1;
    }
}

impl<T: Clone + PartialEq> ThinnedItems<T> {
    /// Returns the kept items followed by `last`. `last` is not added if it equals the last kept item.
    fn items_and_last(&self, last: T) -> Vec<T> {
        let mut items = self.kept.clone();
        if items.last() != Some(&last) {
            items.push(last);
        }
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinned_items_are_evenly_spaced() {
        for length in [0, 1, 199, 200, 201, 5_000, 1_000_000_u64] {
            let mut thinned = ThinnedItems::default();
            let mut made = 0;
            for item in 0..length {
                thinned.add_item(|| {
                    made += 1;
                    item
                });
            }
            let kept = &thinned.kept;
            assert!(kept.len() < HISTORY_POINTS_MAX, "{length}");
            assert!(kept.len() >= length.min(100).try_into().unwrap(), "{length}");
            for (index, item) in (0..).zip(kept) {
                assert_eq!(*item, index * thinned.stride, "{length}");
            }
            if let Some(last) = length.checked_sub(1) {
                let whole = thinned.items_and_last(last);
                assert_eq!(whole.last(), Some(&last), "{length}");
                assert!(whole.len() <= HISTORY_POINTS_MAX, "{length}");
                assert!(whole.windows(2).all(|pair| pair[0] < pair[1]), "twice: {length}");
            }
            assert!(length < 5_000 || made < length / 4, "{made} of {length} were made");
        }
    }
}

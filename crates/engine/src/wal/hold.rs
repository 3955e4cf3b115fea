//! Holds on the write-ahead log. A hold is the position after which an archiver still needs the commits.
//!
//! The log retires segments as if there were no holds. A hold therefore does not change when memtables are flushed, which
//! segments a checkpoint copies, or which segments the next open replays. Only the files of retired segments are kept until no
//! hold needs them. After a crash, no manifest lists these files, and the next open removes them.

use std::collections::BTreeMap;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Mutex;

use crate::error::{Error, LogArchiveEnd, Result};
use crate::wal::segment::SegmentSummary;

/// The holds on the log of a database, and the retired segments that they need.
#[derive(Debug, Default)]
pub(crate) struct LogHolds(Mutex<HoldsState>);

#[derive(Debug, Default)]
struct HoldsState {
    holds: BTreeMap<u64, LogHold>,
    id_next: u64,
    /// Retired segments that a hold needs, oldest first.
    segments: Vec<SegmentSummary>,
}

/// A hold of one archiver.
#[derive(Debug)]
struct LogHold {
    /// Last sequence number that the archiver does not need any more.
    position: SeqNo,
    /// Maximum size of the retired segments that the hold keeps, in bytes.
    bytes_max: u64,
    /// Last available sequence number, and the reason why later commits are not available. `None` while the hold has
    /// not ended. An ended hold keeps no segment once `position` has reached this number.
    end: Option<(SeqNo, LogArchiveEnd)>,
}

impl LogHold {
    fn needs(&self, segment: &SegmentSummary) -> bool {
        is_needed(segment, self.position, self.end.as_ref())
    }
}

/// Returns whether a hold with this position and this end keeps a segment.
fn is_needed(
    segment: &SegmentSummary,
    position: SeqNo,
    end: Option<&(SeqNo, LogArchiveEnd)>,
) -> bool {
    // Segments after a change of the structure are also kept, because each segment is checked against the one before it.
    segment.last_seq > position && end.is_none_or(|&(last, _)| position < last)
}

impl HoldsState {
    /// Removes and returns the retired segments that no hold needs.
    fn take_unneeded_segments(&mut self) -> Vec<u64> {
        let holds = &self.holds;
        let is_unneeded =
            |segment: &mut SegmentSummary| !holds.values().any(|hold| hold.needs(segment));
        self.segments.extract_if(.., is_unneeded).map(|segment| segment.id).collect()
    }
}

/// The part of the log that an archiver can read.
#[derive(Debug)]
pub(crate) struct HeldLog {
    /// Last sequence number that the archiver has returned.
    pub(crate) position: SeqNo,
    /// See [`LogHold::end`].
    pub(crate) end: Option<(SeqNo, LogArchiveEnd)>,
    /// Retired segments, oldest first.
    pub(crate) segments: Vec<SegmentSummary>,
}

impl HeldLog {
    /// Returns whether the file of a live segment is kept when the log retires the segment.
    pub(crate) fn needs(&self, segment: &SegmentSummary) -> bool {
        is_needed(segment, self.position, self.end.as_ref())
    }

    /// Returns the error of a hold that has ended at its position or before it.
    pub(crate) fn exhausted_error(&self) -> Option<Error> {
        let (last, _) = self.end.as_ref()?;
        if *last <= self.position { self.ended_error() } else { None }
    }

    /// Returns the error of a hold that has ended.
    pub(crate) fn ended_error(&self) -> Option<Error> {
        let (last, reason) = self.end.as_ref()?;
        let last_seq = self.position.max(*last).0;
        Some(Error::LogArchiveEnded { last_seq, reason: reason.clone() })
    }
}

impl LogHolds {
    /// Adds a hold of all commits after `position`. Returns its id.
    pub(crate) fn add(&self, position: SeqNo, bytes_max: u64) -> u64 {
        let mut state = self.0.lock();
        let id = state.id_next;
        state.id_next += 1;
        state.holds.insert(id, LogHold { position, bytes_max, end: None });
        id
    }

    /// Removes a hold. Returns the retired segments that the caller must delete.
    pub(crate) fn remove(&self, id: u64) -> Vec<u64> {
        let mut state = self.0.lock();
        state.holds.remove(&id);
        state.take_unneeded_segments()
    }

    /// Returns the state of a hold.
    pub(crate) fn held_log(&self, id: u64) -> Option<HeldLog> {
        let state = self.0.lock();
        let hold = state.holds.get(&id)?;
        let segments = state.segments.iter().filter(|segment| hold.needs(segment)).copied();
        Some(HeldLog {
            position: hold.position,
            end: hold.end.clone(),
            segments: segments.collect(),
        })
    }

    /// Returns the state of a hold, and the list of segments that `list` returns for it. The list contains all durable commits before the
    /// end of the hold.
    ///
    /// # Errors
    /// Those of `list`.
    pub(crate) fn read_with<T>(
        &self,
        id: u64,
        mut list: impl FnMut(&HeldLog) -> Result<T>,
    ) -> Result<Option<(HeldLog, T)>> {
        let Some(mut before) = self.held_log(id) else { return Ok(None) };
        loop {
            let listed = list(&before)?;
            // A change of the structure after this point is newer than all durable commits in the list.
            let Some(held) = self.held_log(id) else { return Ok(None) };
            if held.end == before.end {
                return Ok(Some((held, listed)));
            }
            // The list may be older than commits before the end.
            before = held;
        }
    }

    /// Moves a hold forward to `position`. Returns the retired segments that the caller must delete.
    ///
    /// # Errors
    /// Fails if the hold ended before `position`. The hold then does not move.
    pub(crate) fn advance(&self, id: u64, position: SeqNo) -> Result<Vec<u64>> {
        let mut state = self.0.lock();
        if let Some(hold) = state.holds.get_mut(&id) {
            match &hold.end {
                Some((_, reason)) if *reason != LogArchiveEnd::StructureChanged => {
                    let last_seq = hold.position.0;
                    return Err(Error::LogArchiveEnded { last_seq, reason: reason.clone() });
                }
                _ => hold.position = hold.position.max(position),
            }
        }
        Ok(state.take_unneeded_segments())
    }

    /// Receives segments that the log has retired. Ends the holds whose segments exceed their limit. Returns the segments that
    /// the caller must delete.
    pub(crate) fn keep_retired_segments(&self, retired: Vec<SegmentSummary>) -> Vec<u64> {
        let mut state = self.0.lock();
        if failpoint::is_on(Failpoint::HeldSegmentDeleted) {
            return retired.into_iter().map(|segment| segment.id).collect();
        }
        state.segments.extend(retired);
        let HoldsState { holds, segments, .. } = &mut *state;
        for hold in holds.values_mut() {
            let needed = segments.iter().filter(|segment| hold.needs(segment));
            let bytes = needed.map(|segment| segment.bytes).sum();
            if bytes > hold.bytes_max {
                let limit = hold.bytes_max;
                hold.end = Some((hold.position, LogArchiveEnd::HeldBytesExceeded { bytes, limit }));
            }
        }
        state.take_unneeded_segments()
    }

    /// Records that the structure of the database changes after the commit `last`. Earlier commits remain available.
    pub(crate) fn record_structure_change(&self, last: SeqNo) {
        if failpoint::is_on(Failpoint::ArchiveIgnoresStructure) {
            return;
        }
        for hold in self.0.lock().holds.values_mut() {
            hold.end.get_or_insert((last, LogArchiveEnd::StructureChanged));
        }
    }

    /// Ends all holds. Returns the retired segments that the caller must delete.
    pub(crate) fn end_all(&self, reason: &LogArchiveEnd) -> Vec<u64> {
        let mut state = self.0.lock();
        for hold in state.holds.values_mut() {
            hold.end = Some((hold.position, reason.clone()));
        }
        state.take_unneeded_segments()
    }

    /// Returns whether a hold exists.
    pub(crate) fn has_holds(&self) -> bool {
        !self.0.lock().holds.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No segment.
    const NONE: [u64; 0] = [];

    /// A segment with ten sequence numbers.
    fn segment(id: u64, last_seq: u64) -> SegmentSummary {
        let (first_seq, last_seq) = (SeqNo(last_seq - 9), SeqNo(last_seq));
        SegmentSummary { id, first_seq, last_seq, bytes: 100, closed: true }
    }

    fn end(holds: &LogHolds, id: u64) -> Option<(SeqNo, LogArchiveEnd)> {
        holds.held_log(id).unwrap().end
    }

    #[test]
    fn retired_segments_are_kept_until_each_hold_has_passed_them() {
        let holds = LogHolds::default();
        assert_eq!(holds.keep_retired_segments(vec![segment(1, 10)]), [1]);
        let (first, second) = (holds.add(SeqNo(10), 1000), holds.add(SeqNo(15), 1000));
        assert_eq!(holds.keep_retired_segments(vec![segment(2, 10), segment(3, 20)]), [2]);
        assert_eq!(holds.keep_retired_segments(vec![segment(4, 30)]), NONE);
        let ids = |id| -> Vec<_> {
            holds.held_log(id).unwrap().segments.iter().map(|segment| segment.id).collect()
        };
        assert_eq!((ids(first), ids(second)), (vec![3, 4], vec![3, 4]));
        assert_eq!(holds.advance(second, SeqNo(30)).unwrap(), NONE);
        assert_eq!((ids(first), ids(second)), (vec![3, 4], vec![]));
        assert_eq!(holds.advance(first, SeqNo(20)).unwrap(), [3]);
        assert_eq!(holds.remove(first), [4]);
        assert!(holds.has_holds());
        assert_eq!(holds.remove(second), NONE);
        assert!(!holds.has_holds());
    }

    #[test]
    fn hold_beyond_its_limit_ends_and_keeps_no_segment() {
        let holds = LogHolds::default();
        let (small, large) = (holds.add(SeqNo(0), 150), holds.add(SeqNo(0), 1000));
        assert_eq!(holds.keep_retired_segments(vec![segment(1, 10)]), NONE);
        assert_eq!(holds.keep_retired_segments(vec![segment(2, 20)]), NONE);
        let exceeded = LogArchiveEnd::HeldBytesExceeded { bytes: 200, limit: 150 };
        assert_eq!(end(&holds, small), Some((SeqNo(0), exceeded)));
        assert!(holds.held_log(small).unwrap().segments.is_empty());
        let refused = holds.advance(small, SeqNo(20)).unwrap_err();
        assert!(matches!(refused, Error::LogArchiveEnded { last_seq: 0, .. }), "{refused}");
        assert_eq!(end(&holds, large), None);
        assert_eq!(holds.remove(large), [1, 2]);
    }

    #[test]
    fn structure_change_keeps_the_segments_before_it() {
        let holds = LogHolds::default();
        let id = holds.add(SeqNo(0), 1000);
        holds.record_structure_change(SeqNo(15));
        holds.record_structure_change(SeqNo(25));
        assert_eq!(end(&holds, id), Some((SeqNo(15), LogArchiveEnd::StructureChanged)));
        // The last segment begins after the change.
        let retired = vec![segment(1, 10), segment(2, 20), segment(3, 30)];
        assert_eq!(holds.keep_retired_segments(retired), NONE);
        assert_eq!(holds.advance(id, SeqNo(15)).unwrap(), [1, 2, 3]);
        holds.end_all(&LogArchiveEnd::Resumed);
        assert_eq!(end(&holds, id), Some((SeqNo(15), LogArchiveEnd::Resumed)));
    }

    /// Commits that became durable after the segments were listed, and before a change of the structure, were not returned.
    #[test]
    fn segments_are_listed_again_if_the_structure_changes_meanwhile() {
        let holds = LogHolds::default();
        let id = holds.add(SeqNo(0), 1000);
        let (mut durable, mut lists) = (5, 0);
        let read = holds.read_with(id, |_| {
            let listed = durable;
            lists += 1;
            if lists == 1 {
                durable = 10;
                holds.record_structure_change(SeqNo(durable));
            }
            Ok(listed)
        });
        let (held, listed) = read.unwrap().unwrap();
        assert_eq!((held.end.unwrap().0, listed, lists), (SeqNo(10), 10, 2));
    }
}

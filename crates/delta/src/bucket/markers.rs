//! Delete markers in the files of a bucket, and the request to remove the operands that old markers cover.

use std::collections::BTreeMap;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

/// Snapshot that stands for "no snapshot keeps the operands". No snapshot has this number.
const NO_SNAPSHOT: SeqNo = SeqNo::MAX;

/// Request to remove the operands that old delete markers cover.
#[derive(Clone, Debug)]
pub struct RemovalRequest {
    /// Largest sequence number of the markers.
    pub through: SeqNo,
    /// Registered snapshots, in ascending order.
    pub snapshots: Arc<[SeqNo]>,
}

/// Delete markers in a part of a bucket, grouped by the snapshot that keeps the covered operands. Stores the smallest
/// sequence number of each group.
///
/// If the snapshot of a group is released, the next collection can remove the markers of the group and the operands
/// that they cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredMarkers(BTreeMap<SeqNo, SeqNo>);

impl StoredMarkers {
    /// Adds a marker. `snapshot` keeps an operand that the marker covers.
    pub fn add(&mut self, marker: SeqNo, snapshot: Option<SeqNo>) {
        let oldest = self.0.entry(snapshot.unwrap_or(NO_SNAPSHOT)).or_insert(marker);
        *oldest = marker.min(*oldest);
    }

    /// Returns the smallest sequence number of the markers.
    pub fn oldest(&self) -> Option<SeqNo> {
        self.0.values().min().copied()
    }

    /// Returns true if a collection can remove operands of this part: a marker up to [`RemovalRequest::through`] covers
    /// them, and no registered snapshot keeps them.
    pub fn is_removal_due(&self, request: &RemovalRequest) -> bool {
        let is_registered = |snapshot| request.snapshots.binary_search(snapshot).is_ok();
        self.0
            .iter()
            .any(|(snapshot, oldest)| *oldest <= request.through && !is_registered(snapshot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(through: u64, snapshots: &[u64]) -> RemovalRequest {
        let snapshots = snapshots.iter().map(|seq| SeqNo(*seq)).collect();
        RemovalRequest { through: SeqNo(through), snapshots }
    }

    #[test]
    fn marker_is_due_after_release_of_its_snapshot() {
        let mut markers = StoredMarkers::default();
        assert!(!markers.is_removal_due(&request(100, &[])));
        markers.add(SeqNo(9), Some(SeqNo(5)));
        markers.add(SeqNo(7), Some(SeqNo(5)));
        assert_eq!(markers.oldest(), Some(SeqNo(7)));
        assert!(!markers.is_removal_due(&request(100, &[3, 5, 8])));
        assert!(!markers.is_removal_due(&request(6, &[3])));
        assert!(markers.is_removal_due(&request(7, &[3, 8])));
        markers.add(SeqNo(8), None);
        assert!(!markers.is_removal_due(&request(7, &[5])));
        assert!(markers.is_removal_due(&request(8, &[5])));
    }
}

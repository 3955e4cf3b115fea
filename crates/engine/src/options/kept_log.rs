//! Log segments that are kept for a keyspace whose operand store was missing at an opening.
//!
//! Recovery delivers the operands of the log to the operand store of their keyspace. Without the store it copies
//! the commits to segments of their own, outside the chain of the log, and the manifest names these
//! segments with the options of the keyspace. The log itself is retired as usual. The keyspace refuses
//! writes until its store is open, so the kept segments hold everything that its tables and its store lack.

use lsmx_base::key::SeqNo;
use serde::{Deserialize, Serialize};

use crate::wal::DurableSegment;

/// Kept log segments of one keyspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptLog {
    /// Tables and the operand store hold all operations of the keyspace up to this sequence number.
    pub(crate) after: u64,
    /// Numbers and valid lengths of the segments, oldest first.
    segments: Vec<(u64, u64)>,
}

impl KeptLog {
    /// A log of segments that are on stable storage, oldest first.
    pub(crate) fn new(after: SeqNo, segments: &[DurableSegment]) -> KeptLog {
        let segments = segments.iter().map(|segment| (segment.id, segment.bytes)).collect();
        KeptLog { after: after.0, segments }
    }

    /// The segments, oldest first.
    pub(crate) fn segments(&self) -> Vec<DurableSegment> {
        self.segments.iter().map(|&(id, bytes)| DurableSegment { id, bytes }).collect()
    }

    /// Number of segments.
    pub(crate) fn count(&self) -> u64 {
        self.segments.len() as u64
    }

    /// Valid bytes of all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|&(_, bytes)| bytes).sum()
    }

    /// Whether a segment with this number is one of them.
    pub(crate) fn holds(&self, segment: u64) -> bool {
        self.segments.iter().any(|&(id, _)| id == segment)
    }
}

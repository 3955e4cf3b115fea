//! Description of one table file, as policies, manifest and readers share it.

use crate::ids::FileId;
use crate::key_range::KeyRange;

/// Properties of a table file that policies may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    /// Number of the file.
    pub id: FileId,
    /// Smallest and largest user key of its entries and range tombstones.
    pub range: KeyRange,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of entries of all kinds.
    pub entries: u64,
    /// Number of point tombstones and range tombstones.
    pub tombstones: u64,
    /// Smallest sequence number of a tombstone; `None` without tombstones.
    pub tombstone_seq_smallest: Option<u64>,
    /// Bytes of all values.
    pub value_bytes: u64,
    /// Write time of the oldest tombstone, in microseconds of the tree's clock.
    pub oldest_tombstone_us: Option<u64>,
    /// Smallest sequence number of an entry.
    pub seq_smallest: u64,
    /// Largest sequence number of an entry.
    pub seq_largest: u64,
    /// Time of the last block read by a lookup, in microseconds; initially the creation time.
    pub last_read_us: u64,
    /// Creation time, in microseconds of the tree's clock.
    pub created_us: u64,
    /// Creation order: newer files have larger numbers. A trivial move keeps it.
    pub creation: u64,
}

impl TableMeta {
    /// Returns the description of a file without bytes or entries.
    #[must_use]
    pub fn new(id: FileId, range: KeyRange) -> TableMeta {
        TableMeta {
            id,
            range,
            bytes: 0,
            entries: 0,
            tombstones: 0,
            tombstone_seq_smallest: None,
            value_bytes: 0,
            oldest_tombstone_us: None,
            seq_smallest: 0,
            seq_largest: 0,
            last_read_us: 0,
            created_us: 0,
            creation: id.0,
        }
    }

    /// Returns the size in bytes that triggers use. If at least half of the entries are tombstones,
    /// each tombstone above that half counts as two values of average size. Such files are merged
    /// earlier.
    ///
    /// Source: RocksDB, `compensated_file_size`.
    #[must_use]
    pub fn compensated_bytes(&self) -> u64 {
        let doubled = self.tombstones.saturating_mul(2);
        if self.entries == 0 || doubled < self.entries {
            return self.bytes;
        }
        let values = self.entries.saturating_sub(self.tombstones);
        let value_bytes_mean = self.value_bytes / values.max(1);
        let extra = (doubled - self.entries).saturating_mul(value_bytes_mean).saturating_mul(2);
        self.bytes.saturating_add(extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compensated_bytes_tombstones_above_half_of_entries_are_added() {
        let compensated = |tombstones| {
            let meta = TableMeta::new(FileId(1), KeyRange::new("a", "z"));
            let sizes =
                TableMeta { bytes: 1000, entries: 100, tombstones, value_bytes: 500, ..meta };
            sizes.compensated_bytes()
        };
        assert_eq!(compensated(49), 1000);
        assert_eq!(compensated(50), 1000);
        // Ten values of 50 bytes; 80 tombstones above half, two values each.
        assert_eq!(compensated(90), 1000 + 80 * 50 * 2);
        assert_eq!(compensated(100), 1000 + 100 * 500 * 2);
    }
}

//! Metadata of a table file. Policies, the manifest and readers share it.

use crate::ids::FileId;
use crate::key_range::KeyRange;

/// Expiry times of the entries of a table file, in microseconds of the tree's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpirySummary {
    /// Number of entries that have an expiry time. At least one.
    pub entries: u64,
    /// Earliest expiry time.
    pub earliest_us: u64,
    /// Approximate median of the expiry times. At most 2 % of the expiry times are between this time and the exact
    /// median.
    pub median_us: u64,
    /// Latest expiry time.
    pub latest_us: u64,
    /// Bytes of the entries. `None` if an earlier build has written the file or its record in the manifest.
    pub bytes: Option<ExpiringBytes>,
}

/// Bytes of the expiring entries of a table file.
///
/// The bytes of an entry are those of its key and of its stored value. A separated value also counts with the size of its
/// record in a blob file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiringBytes {
    /// Bytes of the entries that have an expiry time.
    pub expiring: u64,
    /// Bytes of all entries.
    pub total: u64,
    /// Approximate time at which half of the expiring bytes have expired, in microseconds of the tree's clock. At most
    /// 3 % of the expiring bytes expire between this time and the exact one.
    pub median_us: u64,
}

/// Metadata of a table file.
///
/// Policies use all fields except `uid` and `checksum`. Readers use these two to verify that they have opened the right
/// file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    /// Number of the file.
    pub id: FileId,
    /// Smallest and largest user key of the entries and range tombstones.
    pub range: KeyRange,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of entries of all kinds.
    pub entries: u64,
    /// Number of tombstones, both point tombstones and range tombstones.
    pub tombstones: u64,
    /// Smallest sequence number of a tombstone. `None` if the file has no tombstones or the number was not recorded.
    /// See [`TableMeta::tombstone_seq_bound`].
    pub tombstone_seq_smallest: Option<u64>,
    /// Bytes of all values.
    pub value_bytes: u64,
    /// Write time of the oldest tombstone, in microseconds of the tree's clock. `None` if the time was not recorded. Files
    /// without tombstones may have a time; it has no meaning.
    pub oldest_tombstone_us: Option<u64>,
    /// Expiry times of the entries. `None` if no entry expires.
    pub expiry: Option<ExpirySummary>,
    /// Smallest sequence number of an entry.
    pub seq_smallest: u64,
    /// Largest sequence number of an entry.
    pub seq_largest: u64,
    /// Time at which a lookup last read a block of the file, in microseconds of the tree's clock. The initial value is
    /// the creation time.
    pub last_read_us: u64,
    /// Creation time, in microseconds of the tree's clock.
    pub created_us: u64,
    /// Creation order: a file that was created later has a larger number. A trivial move does not change the number.
    pub creation: u64,
    /// Random number that identifies the contents of the file. It seeds the checksums of the file.
    pub uid: u64,
    /// XXH3-64 of the whole file.
    pub checksum: u64,
}

impl TableMeta {
    /// Returns the metadata of an empty table: 0 bytes, 0 entries.
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
            expiry: None,
            seq_smallest: 0,
            seq_largest: 0,
            last_read_us: 0,
            created_us: 0,
            creation: id.0,
            uid: 0,
            checksum: 0,
        }
    }

    /// Returns the smallest sequence number of a tombstone, or `None` without tombstones.
    ///
    /// If this number was not recorded, returns the largest sequence number of the file. A snapshot that sees the
    /// largest sequence number sees all tombstones of the file.
    #[must_use]
    pub fn tombstone_seq_bound(&self) -> Option<u64> {
        let bound = || (self.tombstones > 0).then_some(self.seq_largest);
        self.tombstone_seq_smallest.or_else(bound)
    }

    /// Returns the time at which half of the expiring entries, or half of their bytes, have expired. If both conditions
    /// apply, returns the earlier time.
    ///
    /// The first condition applies if at least half of all entries have an expiry time. The second condition applies if
    /// these entries have at least half of the bytes of all entries.
    #[must_use]
    pub fn half_expired_us(&self) -> Option<u64> {
        let expiry = self.expiry.as_ref()?;
        let is_half = |part: u64, total| part.saturating_mul(2) >= total;
        let by_entries = is_half(expiry.entries, self.entries).then_some(expiry.median_us);
        let bytes = expiry.bytes.filter(|bytes| is_half(bytes.expiring, bytes.total));
        by_entries.into_iter().chain(bytes.map(|bytes| bytes.median_us)).min()
    }

    /// Returns the size in bytes that triggers and file pickers use.
    ///
    /// If a file has more tombstones than other entries, each tombstone in excess of that number adds the size of two
    /// average values. Files with many tombstones are therefore merged earlier.
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
    fn half_expired_us_is_the_earlier_of_entries_and_bytes() {
        let due = |entries, median_us, bytes: Option<(u64, u64)>| {
            let bytes = bytes.map(|(expiring, median_us)| ExpiringBytes {
                expiring,
                total: 1000,
                median_us,
            });
            let expiry =
                Some(ExpirySummary { entries, earliest_us: 1, median_us, latest_us: 90, bytes });
            let meta = TableMeta::new(FileId(1), KeyRange::new("a", "z"));
            TableMeta { entries: 100, expiry, ..meta }.half_expired_us()
        };
        assert_eq!(due(50, 7, None), Some(7));
        assert_eq!(due(49, 7, None), None);
        assert_eq!(due(49, 7, Some((499, 5))), None);
        assert_eq!(due(49, 7, Some((500, 9))), Some(9));
        assert_eq!(due(50, 7, Some((500, 5))), Some(5));
        assert_eq!(due(50, 7, Some((500, 9))), Some(7));
    }

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
        // A value has 50 bytes on average. 80 tombstones are above half, and each counts as two values.
        assert_eq!(compensated(90), 1000 + 80 * 50 * 2);
        assert_eq!(compensated(100), 1000 + 100 * 500 * 2);
    }
}

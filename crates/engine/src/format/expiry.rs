//! Encoding of expiry times. The stored value of an expiring entry starts with the expiry time, little-endian.
//!
//! ```text
//!  0  8   expiry  u64, microseconds of the database clock; from then on the entry counts as a tombstone
//!  8      value, or value pointer
//! ```
//!
//! Summary of the expiry times of a table, in its properties and in the manifest:
//!
//! ```text
//!  0  8   entries   u64, number of expiring entries, at least one
//!  8  8   earliest  u64, expiry time in microseconds of the database clock
//! 16  8   median    u64, approximate
//! 24  8   latest    u64
//! ```

use lsmx_base::coding::{Decoder, get_u64, len_u64, put_u64};
use lsmx_base::key::EntryKind;
use lsmx_base::malformed::Malformed;
use lsmx_compaction::ExpirySummary;

/// Size of an encoded expiry time in bytes.
pub(crate) const EXPIRY_BYTES: usize = size_of::<u64>();

/// Splits the stored value of an expiring entry into the expiry time in microseconds and the value. Decoders reject
/// stored values that are too short for an expiry time, see [`check_expiring_value`]. For such a value, the function
/// would return the latest possible expiry time and the whole stored value.
#[inline]
pub(crate) fn split_expiry(stored: &[u8]) -> (u64, &[u8]) {
    match get_u64(stored, 0) {
        Some(expiry_us) => (expiry_us, &stored[EXPIRY_BYTES..]),
        None => (u64::MAX, stored),
    }
}

/// Returns the expiry time of an entry in microseconds, or `None` if the entry does not expire.
#[inline]
pub(crate) fn expiry_of(kind: EntryKind, stored: &[u8]) -> Option<u64> {
    kind.is_expiring().then(|| split_expiry(stored).0)
}

/// Returns the value or the value pointer of an entry without the expiry time.
#[inline]
pub(crate) fn without_expiry(kind: EntryKind, stored: &[u8]) -> &[u8] {
    if kind.is_expiring() { split_expiry(stored).1 } else { stored }
}

/// Encodes the stored value of an expiring entry into `out`. Replaces the contents of `out`.
pub(crate) fn put_expiring_value(out: &mut Vec<u8>, expiry_us: u64, value: &[u8]) {
    out.clear();
    out.reserve(EXPIRY_BYTES + value.len());
    put_u64(out, expiry_us);
    out.extend_from_slice(value);
}

/// Checks that the stored value of an expiring entry is long enough for an expiry time. Entries of other kinds always
/// pass.
#[inline]
pub(crate) fn check_expiring_value(kind: EntryKind, value_bytes: usize) -> Result<(), Malformed> {
    if kind.is_expiring() && value_bytes < EXPIRY_BYTES {
        let found = len_u64(value_bytes);
        return Err(Malformed::invalid_field("value length", found, "at least 8 with an expiry"));
    }
    Ok(())
}

/// Appends the summary of the expiry times of a table.
pub(crate) fn put_expiry_summary(out: &mut Vec<u8>, summary: &ExpirySummary) {
    let ExpirySummary { entries, earliest_us, median_us, latest_us } = *summary;
    for number in [entries, earliest_us, median_us, latest_us] {
        put_u64(out, number);
    }
}

/// Decodes the summary of the expiry times of a table.
pub(crate) fn decode_expiry_summary(decoder: &mut Decoder<'_>) -> Result<ExpirySummary, Malformed> {
    let summary = ExpirySummary {
        entries: decoder.u64("number of expiring entries")?,
        earliest_us: decoder.u64("earliest expiry time")?,
        median_us: decoder.u64("median expiry time")?,
        latest_us: decoder.u64("latest expiry time")?,
    };
    if summary.entries == 0 {
        let what = "number of expiring entries";
        return Err(Malformed::invalid_field(what, 0, "at least 1"));
    }
    if summary.earliest_us > summary.median_us || summary.median_us > summary.latest_us {
        return Err(Malformed::Order { what: "expiry times of a table are" });
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_summary_round_trips_and_wrong_one_is_rejected() {
        let summary = ExpirySummary { entries: 9, earliest_us: 1, median_us: 2, latest_us: 2 };
        let decode = |summary: &ExpirySummary| {
            let mut bytes = Vec::new();
            put_expiry_summary(&mut bytes, summary);
            decode_expiry_summary(&mut Decoder::new(&bytes))
        };
        assert_eq!(decode(&summary), Ok(summary));
        assert!(decode(&ExpirySummary { entries: 0, ..summary }).is_err());
        assert!(decode(&ExpirySummary { earliest_us: 3, ..summary }).is_err());
        assert!(decode(&ExpirySummary { latest_us: 1, ..summary }).is_err());
    }

    #[test]
    fn expiring_value_round_trips() {
        let mut stored = vec![1, 2];
        put_expiring_value(&mut stored, 0x0102_0304_0506_0708, b"value");
        assert_eq!(stored, [8, 7, 6, 5, 4, 3, 2, 1, b'v', b'a', b'l', b'u', b'e']);
        assert_eq!(split_expiry(&stored), (0x0102_0304_0506_0708, &b"value"[..]));
        assert_eq!(expiry_of(EntryKind::PutExpiring, &stored), Some(0x0102_0304_0506_0708));
        assert_eq!(expiry_of(EntryKind::Put, &stored), None);
        assert_eq!(without_expiry(EntryKind::ValuePointerExpiring, &stored), b"value");
        assert_eq!(without_expiry(EntryKind::Merge, &stored), &stored[..]);
    }

    #[test]
    fn short_expiring_value_is_rejected() {
        assert!(check_expiring_value(EntryKind::PutExpiring, 7).is_err());
        assert!(check_expiring_value(EntryKind::PutExpiring, 8).is_ok());
        assert!(check_expiring_value(EntryKind::Put, 0).is_ok());
    }
}

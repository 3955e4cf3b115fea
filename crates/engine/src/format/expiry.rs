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
//!
//! Bytes of the expiring entries of a table, in its properties and in the manifest. Builds that do not know this optional
//! field skip it.
//!
//! ```text
//!  0  8   expiring  u64, bytes of the expiring entries, at most `total`
//!  8  8   total     u64, bytes of all entries
//! 16  8   median    u64, approximate time at which half of the expiring bytes have expired
//! ```

use lsmx_base::coding::{Decoder, get_u64, len_u64, put_u64};
use lsmx_base::key::{EntryKind, InternalKey};
use lsmx_base::malformed::Malformed;
use lsmx_compaction::{ExpiringBytes, ExpirySummary};

use super::blob::ValuePointer;

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
    let ExpirySummary { entries, earliest_us, median_us, latest_us, bytes: _ } = *summary;
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
        bytes: None,
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

/// Returns the bytes of an entry: its key, its stored value, and its record in a blob file if the value is separated.
pub(crate) fn entry_bytes(key: InternalKey<'_>, value: &[u8]) -> u64 {
    let record_bytes = match key.kind.without_expiry() {
        // Readers of the value report an invalid pointer.
        EntryKind::ValuePointer => {
            ValuePointer::decode(without_expiry(key.kind, value)).map_or(0, |pointer| pointer.bytes)
        }
        _ => 0,
    };
    len_u64(key.user_key.len() + value.len()).saturating_add(record_bytes)
}

/// Appends the bytes of the expiring entries of a table.
pub(crate) fn put_expiring_bytes(out: &mut Vec<u8>, bytes: &ExpiringBytes) {
    let ExpiringBytes { expiring, total, median_us } = *bytes;
    for number in [expiring, total, median_us] {
        put_u64(out, number);
    }
}

/// Decodes the bytes of the expiring entries of a table.
pub(crate) fn decode_expiring_bytes(decoder: &mut Decoder<'_>) -> Result<ExpiringBytes, Malformed> {
    let bytes = ExpiringBytes {
        expiring: decoder.u64("bytes of expiring entries")?,
        total: decoder.u64("bytes of all entries")?,
        median_us: decoder.u64("median expiry time of bytes")?,
    };
    if bytes.expiring > bytes.total {
        let (what, must) = ("bytes of expiring entries", "at most the bytes of all entries");
        return Err(Malformed::invalid_field(what, bytes.expiring, must));
    }
    Ok(bytes)
}

/// Adds the bytes of the expiring entries of a table, if they are known, to the summary of the expiry times.
pub(crate) fn add_expiring_bytes(
    summary: &mut Option<ExpirySummary>,
    bytes: Option<ExpiringBytes>,
) -> Result<(), Malformed> {
    let Some(bytes) = bytes else { return Ok(()) };
    let is_valid = |summary: &&mut ExpirySummary| {
        (summary.earliest_us..=summary.latest_us).contains(&bytes.median_us)
    };
    let Some(summary) = summary.as_mut().filter(is_valid) else {
        let (what, must) = ("median expiry time of bytes", "between two expiry times");
        return Err(Malformed::invalid_field(what, bytes.median_us, must));
    };
    summary.bytes = Some(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use lsmx_base::key::SeqNo;

    use super::*;

    #[test]
    fn expiry_summary_round_trips_and_wrong_one_is_rejected() {
        let (earliest_us, median_us, latest_us) = (1, 2, 2);
        let summary = ExpirySummary { entries: 9, earliest_us, median_us, latest_us, bytes: None };
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
    fn expiring_bytes_round_trip_and_wrong_ones_are_rejected() {
        let (earliest_us, median_us, latest_us) = (1, 2, 4);
        let summary = ExpirySummary { entries: 9, earliest_us, median_us, latest_us, bytes: None };
        let bytes = ExpiringBytes { expiring: 70, total: 70, median_us: 4 };
        let decode = |bytes: &ExpiringBytes, mut summary: Option<ExpirySummary>| {
            let mut encoded = Vec::new();
            put_expiring_bytes(&mut encoded, bytes);
            let decoded = decode_expiring_bytes(&mut Decoder::new(&encoded))?;
            add_expiring_bytes(&mut summary, Some(decoded)).map(|()| summary)
        };
        let expected = Some(ExpirySummary { bytes: Some(bytes), ..summary });
        assert_eq!(decode(&bytes, Some(summary)), Ok(expected));
        assert!(decode(&bytes, None).is_err());
        for wrong in [
            ExpiringBytes { expiring: 71, ..bytes },
            ExpiringBytes { median_us: 0, ..bytes },
            ExpiringBytes { median_us: 5, ..bytes },
        ] {
            assert!(decode(&wrong, Some(summary)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn entry_bytes_include_the_record_of_a_separated_value() {
        let key = |kind| InternalKey { user_key: b"key", seq: SeqNo(1), kind };
        let mut pointer = Vec::new();
        ValuePointer { file: 1, offset: 2, bytes: 500, value_bytes: 480 }.put(&mut pointer);
        let stored = [&[0; 8], &pointer[..]].concat();
        let stored_bytes = len_u64(3 + stored.len());
        assert_eq!(entry_bytes(key(EntryKind::PutExpiring), &stored), stored_bytes);
        assert_eq!(entry_bytes(key(EntryKind::ValuePointerExpiring), &stored), stored_bytes + 500);
        assert_eq!(entry_bytes(key(EntryKind::ValuePointer), &pointer), stored_bytes - 8 + 500);
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

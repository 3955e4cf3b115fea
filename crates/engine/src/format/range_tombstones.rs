//! Range tombstone block of a table: disjoint range tombstone fragments in key order. Integers are little-endian.
//!
//! ```text
//!  0  1  encoding  u8, 0
//!  1  v  count     varint, number of fragments
//!        fragment, repeated:
//!     v+n  start      varint length and bytes, first deleted key
//!      n   end        exclusive, `range_end.rs`
//!      v   numbers    varint, number of sequence numbers, at least one
//!      v   first      varint, the newest
//!      v   …          varints, each the difference to the next older one, at least one
//! ```
//!
//! Fragments do not overlap. A fragment contains the sequence numbers of all range deletes that cover it, newest first.

use bytes::Bytes;
use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::range_tombstone::{RangeTombstone, newest_visible_seq};

use crate::format::range_end::{decode_range_end, put_range_end};

/// Encoding number of range tombstone blocks.
pub const ENCODING_FRAGMENTS: u8 = 0;

/// Minimum size of an encoded fragment in bytes. Such a fragment has an empty start, no end key and one sequence
/// number.
const FRAGMENT_BYTES_MIN: usize = 4;

/// A range tombstone fragment, or the gap between two fragments. All keys of the interval are covered by the same range
/// deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TombstoneInterval<'a> {
    /// First key of the interval. `None` stands for the start of the keyspace.
    pub(crate) start: Option<&'a Bytes>,
    /// Exclusive end of the interval. `None` stands for the end of the keyspace.
    pub(crate) end: Option<&'a Bytes>,
    /// Sequence numbers of the range deletes that cover the interval, newest first. Empty for a gap.
    pub(crate) seqs: &'a [SeqNo],
}

/// Encodes a range tombstone block. `fragments` is the result of [`fragment`](lsmx_base::range_tombstone::fragment).
#[must_use]
pub fn encode(fragments: &[RangeTombstone]) -> Vec<u8> {
    let mut out = vec![ENCODING_FRAGMENTS];
    put_varint(&mut out, len_u64(fragments.len()));
    for fragment in fragments {
        put_bytes(&mut out, &fragment.start);
        put_range_end(&mut out, fragment.end.as_deref());
        put_varint(&mut out, len_u64(fragment.seqs.len()));
        let mut newer: Option<SeqNo> = None;
        for &seq in &fragment.seqs {
            put_varint(&mut out, newer.map_or(seq.0, |newer| newer.0 - seq.0));
            newer = Some(seq);
        }
    }
    out
}

/// Disjoint range tombstone fragments in key order. They are the fragments of one table, or of all inputs of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FragmentedTombstones {
    fragments: Vec<RangeTombstone>,
    bytes: usize,
}

impl FragmentedTombstones {
    /// Creates a value from the result of [`fragment`](lsmx_base::range_tombstone::fragment).
    pub(crate) fn new(fragments: Vec<RangeTombstone>) -> FragmentedTombstones {
        let bytes = fragments.iter().map(RangeTombstone::bytes).sum();
        FragmentedTombstones { fragments, bytes }
    }

    /// Decodes a range tombstone block. The fragments share the memory of `block`.
    ///
    /// # Errors
    /// Fails if the encoding is invalid, if a fragment is empty, or if fragments overlap or are not in order.
    pub fn decode(block: &Bytes) -> Result<FragmentedTombstones, Malformed> {
        let mut decoder = Decoder::new(block);
        let encoding = decoder.u8("range tombstone encoding")?;
        if encoding != ENCODING_FRAGMENTS {
            return Err(Malformed::invalid_field(
                "range tombstone encoding",
                u64::from(encoding),
                "0 (fragments)",
            ));
        }
        let count = decoder.length("range tombstone count")?;
        if count > decoder.remaining() / FRAGMENT_BYTES_MIN {
            return Err(Malformed::invalid_field(
                "range tombstone count",
                len_u64(count),
                "as many as fit into the block",
            ));
        }
        let mut fragments: Vec<RangeTombstone> = Vec::with_capacity(count);
        let mut bytes = block.len();
        for _ in 0..count {
            let fragment = decode_fragment(block, &mut decoder)?;
            let in_order = match fragments.last() {
                None => true,
                Some(RangeTombstone { end: Some(end), .. }) => *end <= fragment.start,
                Some(RangeTombstone { end: None, .. }) => false,
            };
            if !in_order || fragment.is_empty() {
                return Err(Malformed::Order { what: "range tombstones are" });
            }
            bytes += size_of::<RangeTombstone>() + fragment.seqs.capacity() * size_of::<SeqNo>();
            fragments.push(fragment);
        }
        decoder.finish("bytes after the last range tombstone")?;
        Ok(FragmentedTombstones { fragments, bytes })
    }

    /// Returns the fragments in key order.
    #[must_use]
    pub fn as_slice(&self) -> &[RangeTombstone] {
        &self.fragments
    }

    /// Returns the sequence number of the newest range delete that covers `user_key` and is visible at `snapshot`.
    /// Returns `None` if there is no such range delete.
    #[must_use]
    pub fn newest_covering_seq(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        newest_visible_seq(self.interval_at(user_key).seqs, snapshot)
    }

    /// Returns the fragment that covers `user_key`. If no fragment covers it, returns the gap that contains it.
    pub(crate) fn interval_at(&self, user_key: &[u8]) -> TombstoneInterval<'_> {
        let after = self.fragments.partition_point(|fragment| *fragment.start <= *user_key);
        let before = after.checked_sub(1).map(|at| &self.fragments[at]);
        match before {
            Some(fragment) if fragment.covers(user_key) => TombstoneInterval {
                start: Some(&fragment.start),
                end: fragment.end.as_ref(),
                seqs: &fragment.seqs,
            },
            _ => TombstoneInterval {
                start: before.and_then(|fragment| fragment.end.as_ref()),
                end: self.fragments.get(after).map(|fragment| &fragment.start),
                seqs: &[],
            },
        }
    }

    /// Returns the size in memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn decode_fragment(block: &Bytes, decoder: &mut Decoder<'_>) -> Result<RangeTombstone, Malformed> {
    let start = block.slice_ref(decoder.bytes("range tombstone start")?);
    let end = decode_range_end(decoder, "range tombstone end")?.map(|end| block.slice_ref(end));
    let count = decoder.length("range tombstone numbers")?;
    if count == 0 || count > decoder.remaining() {
        return Err(Malformed::invalid_field(
            "range tombstone numbers",
            len_u64(count),
            "at least one, and as many as fit into the block",
        ));
    }
    let mut seqs = Vec::with_capacity(count);
    let mut seq = decoder.varint("range tombstone number")?;
    seqs.push(SeqNo(seq));
    for _ in 1..count {
        let step = decoder.varint("range tombstone number")?;
        seq = match seq.checked_sub(step) {
            Some(older) if step > 0 => older,
            _ => return Err(Malformed::Order { what: "range tombstone numbers are" }),
        };
        seqs.push(SeqNo(seq));
    }
    if seqs[0] > SeqNo::MAX {
        return Err(Malformed::invalid_field(
            "range tombstone number",
            seqs[0].0,
            "a sequence number of 56 bits",
        ));
    }
    Ok(RangeTombstone { start, end, seqs })
}

#[cfg(test)]
mod tests {
    use lsmx_base::range_tombstone::fragment;
    use proptest::prelude::*;

    use super::*;
    use crate::format::copies_with_flipped_bit;

    fn range(start: &'static str, end: Option<&'static str>, seqs: &[u64]) -> RangeTombstone {
        let seqs = seqs.iter().copied().map(SeqNo).collect();
        RangeTombstone { start: start.into(), end: end.map(Bytes::from), seqs }
    }

    #[test]
    fn range_tombstone_block_round_trips_and_damaged_does_not_panic() {
        let ranges = fragment(&[
            range("", Some("a"), &[300, 2, 1]),
            range("a\0", Some("b"), &[1 << 55]),
            range("zzz", None, &[0]),
        ]);
        let block = encode(&ranges);
        let decoded = FragmentedTombstones::decode(&block.clone().into()).unwrap();
        assert_eq!(decoded.as_slice(), ranges);
        for len in 0..block.len() {
            assert!(
                FragmentedTombstones::decode(&block[..len].to_vec().into()).is_err(),
                "{len} bytes"
            );
        }
        for (_, damaged) in copies_with_flipped_bit(&block) {
            if let Ok(ranges) = FragmentedTombstones::decode(&damaged.into()) {
                let _ = ranges.newest_covering_seq(b"a", SeqNo::MAX);
            }
        }
    }

    fn any_range() -> impl Strategy<Value = RangeTombstone> {
        let key = || proptest::collection::vec(0u8..4, 0..3).prop_map(Bytes::from);
        (key(), proptest::option::weighted(0.9, key()), proptest::collection::vec(0u64..20, 1..3))
            .prop_map(|(start, end, mut seqs)| {
                seqs.sort_unstable_by(|a, b| b.cmp(a));
                seqs.dedup();
                RangeTombstone { start, end, seqs: seqs.into_iter().map(SeqNo).collect() }
            })
    }

    proptest! {
        #[test]
        fn fragmented_tombstones_covering_matches_model(
            ranges in proptest::collection::vec(any_range(), 0..8),
            keys in proptest::collection::vec(proptest::collection::vec(0u8..4, 0..3), 20),
            snapshot in 0u64..22,
        ) {
            let decoded = FragmentedTombstones::decode(&encode(&fragment(&ranges)).into()).unwrap();
            for key in keys {
                let expected = ranges
                    .iter()
                    .filter(|range| !range.is_empty() && range.covers(&key))
                    .flat_map(|range| range.seqs.iter().copied())
                    .filter(|seq| seq.0 <= snapshot)
                    .max();
                prop_assert_eq!(decoded.newest_covering_seq(&key, SeqNo(snapshot)), expected);
            }
        }
    }
}

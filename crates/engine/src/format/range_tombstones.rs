//! Range tombstone block: fragmented spans in key order, little-endian.
//!
//! ```text
//!  0  1  coding  u8, 0
//!  1  v  spans   varint, how many
//!        span, so many times:
//!     v+n  start      varint length and bytes, the first key it deletes
//!      1   end kind   u8, 0 = a key follows, 1 = the end of the keyspace
//!     v+n  end        varint length and bytes, the first key it leaves; only for end kind 0
//!      v   numbers    varint, how many sequence numbers, at least one
//!      v   first      varint, the newest
//!      v   …          varints, each the step down to the next, at least one
//! ```
//!
//! Spans do not overlap; each carries the numbers of all range deletes that cover it, newest first.

use bytes::Bytes;
use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::range_tombstone::{RangeTombstone, newest_visible};

/// The one coding of range tombstone blocks so far.
pub const CODING_SPANS: u8 = 0;

const END_KEY: u8 = 0;
const END_OF_KEYSPACE: u8 = 1;
/// Fewest bytes of a span: empty start, end kind, one number.
const SPAN_BYTES_MIN: usize = 4;

/// Keys around a key that are covered by the same range deletes, or by none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window<'a> {
    /// First key; `None` for the beginning of the keyspace.
    pub(crate) start: Option<&'a Bytes>,
    /// First key past it; `None` for the end of the keyspace.
    pub(crate) end: Option<&'a Bytes>,
    /// Numbers of the range deletes, newest first; none between two spans.
    pub(crate) seqs: &'a [SeqNo],
}

/// Writes the contents of a range tombstone block. The spans are what [`fragment`] returned.
#[must_use]
pub fn encode(spans: &[RangeTombstone]) -> Vec<u8> {
    let mut out = vec![CODING_SPANS];
    put_varint(&mut out, len_u64(spans.len()));
    for span in spans {
        put_bytes(&mut out, &span.start);
        match &span.end {
            Some(end) => {
                out.push(END_KEY);
                put_bytes(&mut out, end);
            }
            None => out.push(END_OF_KEYSPACE),
        }
        put_varint(&mut out, len_u64(span.seqs.len()));
        let mut newer: Option<SeqNo> = None;
        for &seq in &span.seqs {
            put_varint(&mut out, newer.map_or(seq.0, |newer| newer.0 - seq.0));
            newer = Some(seq);
        }
    }
    out
}

/// Fragmented spans in key order: those of one table, resident while the table is in use, or those of the
/// inputs of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    spans: Vec<RangeTombstone>,
    bytes: usize,
}

impl Spans {
    /// Fragments as [`fragment`] returns them.
    pub(crate) fn new(spans: Vec<RangeTombstone>) -> Spans {
        let bytes = spans.iter().map(RangeTombstone::bytes).sum();
        Spans { spans, bytes }
    }

    /// Reads the contents of a range tombstone block.
    ///
    /// # Errors
    /// When they are not those of one: spans or numbers out of order, empty, overlapping.
    pub fn decode(block: &Bytes) -> Result<Spans, Malformed> {
        let mut decoder = Decoder::new(block);
        let coding = decoder.u8("range tombstone coding")?;
        if coding != CODING_SPANS {
            return Err(Malformed::Field {
                what: "range tombstone coding",
                found: u64::from(coding),
                expected: "0 (spans)",
            });
        }
        let count = decoder.length("range tombstone count")?;
        if count > decoder.remaining() / SPAN_BYTES_MIN {
            return Err(Malformed::Field {
                what: "range tombstone count",
                found: len_u64(count),
                expected: "no more than there are bytes for",
            });
        }
        let mut spans: Vec<RangeTombstone> = Vec::with_capacity(count);
        let mut bytes = block.len();
        for _ in 0..count {
            let span = decode_span(block, &mut decoder)?;
            let in_order = match spans.last() {
                None => true,
                Some(RangeTombstone { end: Some(end), .. }) => *end <= span.start,
                Some(RangeTombstone { end: None, .. }) => false,
            };
            if !in_order || span.is_empty() {
                return Err(Malformed::Order { what: "range tombstones are" });
            }
            bytes += size_of::<RangeTombstone>() + span.seqs.capacity() * size_of::<SeqNo>();
            spans.push(span);
        }
        if !decoder.is_empty() {
            return Err(Malformed::Field {
                what: "bytes after the last range tombstone",
                found: len_u64(decoder.remaining()),
                expected: "0",
            });
        }
        Ok(Spans { spans, bytes })
    }

    /// The spans, in key order.
    #[must_use]
    pub fn as_slice(&self) -> &[RangeTombstone] {
        &self.spans
    }

    /// The newest range delete that covers `user_key` for a reader at `snapshot`.
    #[must_use]
    pub fn covering(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        newest_visible(self.window(user_key).seqs, snapshot)
    }

    /// The span that `user_key` lies in, or the gap between two.
    pub(crate) fn window(&self, user_key: &[u8]) -> Window<'_> {
        let after = self.spans.partition_point(|span| *span.start <= *user_key);
        let before = after.checked_sub(1).map(|at| &self.spans[at]);
        match before {
            Some(span) if span.covers(user_key) => {
                Window { start: Some(&span.start), end: span.end.as_ref(), seqs: &span.seqs }
            }
            _ => Window {
                start: before.and_then(|span| span.end.as_ref()),
                end: self.spans.get(after).map(|span| &span.start),
                seqs: &[],
            },
        }
    }

    /// Bytes in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn decode_span(block: &Bytes, decoder: &mut Decoder<'_>) -> Result<RangeTombstone, Malformed> {
    let start = block.slice_ref(decoder.bytes("range tombstone start")?);
    let end_kind = decoder.u8("range tombstone end kind")?;
    let end = match end_kind {
        END_KEY => Some(block.slice_ref(decoder.bytes("range tombstone end")?)),
        END_OF_KEYSPACE => None,
        _ => {
            return Err(Malformed::Field {
                what: "range tombstone end kind",
                found: u64::from(end_kind),
                expected: "0 (a key) or 1 (the end of the keyspace)",
            });
        }
    };
    let count = decoder.length("range tombstone numbers")?;
    if count == 0 || count > decoder.remaining() {
        return Err(Malformed::Field {
            what: "range tombstone numbers",
            found: len_u64(count),
            expected: "at least one, and no more than there are bytes for",
        });
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
        return Err(Malformed::Field {
            what: "range tombstone number",
            found: seqs[0].0,
            expected: "a sequence number of 56 bits",
        });
    }
    Ok(RangeTombstone { start, end, seqs })
}

#[cfg(test)]
mod tests {
    use lsmx_base::range_tombstone::fragment;
    use proptest::prelude::*;

    use super::*;

    fn span(start: &str, end: Option<&str>, seqs: &[u64]) -> RangeTombstone {
        let bytes = |key: &str| Bytes::copy_from_slice(key.as_bytes());
        let seqs = seqs.iter().copied().map(SeqNo).collect();
        RangeTombstone { start: bytes(start), end: end.map(bytes), seqs }
    }

    #[test]
    fn spans_come_back_and_no_damage_panics() {
        let spans = fragment(&[
            span("", Some("a"), &[300, 2, 1]),
            span("a\0", Some("b"), &[1 << 55]),
            span("zzz", None, &[0]),
        ]);
        let block = encode(&spans);
        let decoded = Spans::decode(&block.clone().into()).unwrap();
        assert_eq!(decoded.as_slice(), spans);
        for len in 0..block.len() {
            assert!(Spans::decode(&block[..len].to_vec().into()).is_err(), "{len} bytes");
        }
        for bit in 0..block.len() * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if let Ok(spans) = Spans::decode(&damaged.into()) {
                let _ = spans.covering(b"a", SeqNo::MAX);
            }
        }
    }

    fn any_span() -> impl Strategy<Value = RangeTombstone> {
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
        fn covering_is_the_newest_of_all_spans_that_cover(
            spans in proptest::collection::vec(any_span(), 0..8),
            keys in proptest::collection::vec(proptest::collection::vec(0u8..4, 0..3), 20),
            snapshot in 0u64..22,
        ) {
            let decoded = Spans::decode(&encode(&fragment(&spans)).into()).unwrap();
            for key in keys {
                let expected = spans
                    .iter()
                    .filter(|span| !span.is_empty() && span.covers(&key))
                    .flat_map(|span| span.seqs.iter().copied())
                    .filter(|seq| seq.0 <= snapshot)
                    .max();
                prop_assert_eq!(decoded.covering(&key, SeqNo(snapshot)), expected);
            }
        }
    }
}

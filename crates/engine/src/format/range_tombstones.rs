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

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;

use crate::coding::{Decoder, len_u64, put_bytes, put_varint};
use crate::cost::{self, Work};
use crate::error::Malformed;
use crate::key::SeqNo;
use crate::sabotage::{self, Bug};
use crate::tombstone_index::TombstoneIndex;

/// The one coding of range tombstone blocks so far.
pub const CODING_SPANS: u8 = 0;

const END_KEY: u8 = 0;
const END_OF_KEYSPACE: u8 = 1;
/// Fewest bytes of a span: empty start, end kind, one number.
const SPAN_BYTES_MIN: usize = 4;

/// Deletes of a range of keys: all entries from `start` on, before `end`, that are older than one
/// of the numbers are deleted for readers at or past that number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeTombstone {
    /// First key that is deleted.
    pub start: Bytes,
    /// First key that is left; `None` for the end of the keyspace.
    pub end: Option<Bytes>,
    /// Numbers of the deletes, newest first.
    pub seqs: Vec<SeqNo>,
}

impl RangeTombstone {
    /// Whether it deletes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.seqs.is_empty() || self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    fn covers(&self, user_key: &[u8]) -> bool {
        *self.start <= *user_key && self.end.as_ref().is_none_or(|end| *user_key < **end)
    }

    /// A key that no key it deletes is larger than, as small as can be said without knowing the
    /// keys: for an end that is a [`successor`] the key before it, which is exact; else the end
    /// itself, which it does not delete. `None` for the end of the keyspace.
    pub(crate) fn largest(&self) -> Option<&[u8]> {
        let end = self.end.as_deref()?;
        Some(end.strip_suffix(&[0]).unwrap_or(end))
    }

    /// Bytes in memory and, about, on disk.
    pub(crate) fn bytes(&self) -> usize {
        let end = self.end.as_ref().map_or(0, Bytes::len);
        size_of::<RangeTombstone>() + self.start.len() + end + self.seqs.len() * size_of::<SeqNo>()
    }
}

/// The smallest key after `key`.
pub(crate) fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    Bytes::from(next)
}

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

/// The newest of these numbers, newest first, that is not past `limit`.
pub(crate) fn newest_until(seqs: &[SeqNo], limit: SeqNo) -> Option<SeqNo> {
    seqs.get(seqs.partition_point(|&seq| seq > limit)).copied()
}

/// Numbers of the range deletes that cover a place, each with how many of them have it.
type Open = BTreeMap<SeqNo, usize>;

/// Cuts spans that may overlap into spans that do not, in key order, each with the numbers of all
/// that cover it. Neighbours with equal numbers are joined; empty spans are dropped.
///
/// The result has n² numbers for n nested spans. See [`fragment_visible`].
#[must_use]
pub fn fragment(spans: &[RangeTombstone]) -> Vec<RangeTombstone> {
    fragment_with(spans, |open| open.keys().rev().copied().collect())
}

/// As [`fragment`], with the numbers that readers at `snapshots`, in ascending order, and readers past the
/// last of them can tell apart: of the numbers between two snapshots the newest. Takes O(n log n) time and
/// O(n) memory for n spans and a fixed number of snapshots.
///
/// Neighbours are joined only where all numbers are equal.
#[must_use]
pub fn fragment_visible(spans: &[RangeTombstone], snapshots: &[SeqNo]) -> Vec<RangeTombstone> {
    if sabotage::on(Bug::HiddenSpanNumbersKept) {
        return fragment(spans);
    }
    fragment_with(spans, |open| {
        let mut seqs = Vec::new();
        let mut limit = Some(SeqNo::MAX);
        while let Some((&seq, _)) = limit.and_then(|limit| open.range(..=limit).next_back()) {
            seqs.push(seq);
            let snapshot = snapshots.partition_point(|snapshot| *snapshot < seq).checked_sub(1);
            limit = snapshot.map(|at| snapshots[at]);
        }
        seqs
    })
}

/// Joins neighbouring fragments with equal numbers.
pub(crate) fn join(fragments: Vec<RangeTombstone>) -> Vec<RangeTombstone> {
    let mut joined: Vec<RangeTombstone> = Vec::new();
    for fragment in fragments {
        match joined.last_mut() {
            Some(last)
                if last.end.as_ref() == Some(&fragment.start) && last.seqs == fragment.seqs =>
            {
                last.end = fragment.end;
            }
            _ => joined.push(fragment),
        }
    }
    joined
}

/// Sweeps over the bounds of the spans in key order. `numbers` returns the numbers of a fragment from those
/// of all spans that cover it.
fn fragment_with(
    spans: &[RangeTombstone],
    numbers: impl Fn(&Open) -> Vec<SeqNo>,
) -> Vec<RangeTombstone> {
    let mut starts: Vec<&RangeTombstone> = spans.iter().filter(|span| !span.is_empty()).collect();
    let mut ends: Vec<(&Bytes, &RangeTombstone)> =
        starts.iter().filter_map(|span| Some((span.end.as_ref()?, *span))).collect();
    starts.sort_unstable_by(|a, b| a.start.cmp(&b.start));
    ends.sort_unstable_by(|a, b| a.0.cmp(b.0));
    let (mut starts, mut ends) = (starts.into_iter().peekable(), ends.into_iter().peekable());
    let mut fragments = Vec::new();
    let mut current: Option<RangeTombstone> = None;
    let mut open = Open::new();
    loop {
        let bound = match (starts.peek(), ends.peek()) {
            (Some(span), Some((end, _))) => (&span.start).min(*end),
            (Some(span), None) => &span.start,
            (None, Some((end, _))) => *end,
            (None, None) => break,
        };
        // Numbers that begin or end here, and whether they were open before.
        let mut touched: BTreeMap<SeqNo, bool> = BTreeMap::new();
        while let Some((_, span)) = ends.next_if(|(end, _)| *end == bound) {
            for &seq in &span.seqs {
                touched.entry(seq).or_insert(true);
                if let Entry::Occupied(mut count) = open.entry(seq) {
                    *count.get_mut() -= 1;
                    if *count.get() == 0 {
                        count.remove();
                    }
                }
            }
        }
        while let Some(span) = starts.next_if(|span| span.start == *bound) {
            for &seq in &span.seqs {
                let count = open.entry(seq).or_insert(0);
                touched.entry(seq).or_insert(*count > 0);
                *count += 1;
            }
        }
        if touched.iter().all(|(seq, before)| open.contains_key(seq) == *before) {
            continue;
        }
        if let Some(ended) = current.take() {
            fragments.push(RangeTombstone { end: Some(bound.clone()), ..ended });
        }
        if !open.is_empty() {
            let seqs = numbers(&open);
            cost::add(Work::SpanNumbers, seqs.len());
            current = Some(RangeTombstone { start: bound.clone(), end: None, seqs });
        }
    }
    fragments.extend(current);
    fragments
}

/// Indexes spans for lookups by readers at any sequence number.
pub(crate) fn index<'a>(spans: impl IntoIterator<Item = &'a RangeTombstone>) -> TombstoneIndex {
    TombstoneIndex::new(spans.into_iter().flat_map(|RangeTombstone { start, end, seqs }| {
        seqs.iter().map(move |seq| (start, end.as_ref(), *seq))
    }))
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
        newest_until(self.window(user_key).seqs, snapshot)
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
    use proptest::prelude::*;

    use super::*;

    fn span(start: &str, end: Option<&str>, seqs: &[u64]) -> RangeTombstone {
        let bytes = |key: &str| Bytes::copy_from_slice(key.as_bytes());
        let seqs = seqs.iter().copied().map(SeqNo).collect();
        RangeTombstone { start: bytes(start), end: end.map(bytes), seqs }
    }

    #[test]
    fn overlapping_spans_are_cut_and_equal_neighbours_joined() {
        let fragments = fragment(&[
            span("b", Some("f"), &[5]),
            span("a", Some("c"), &[9]),
            span("d", None, &[7]),
            span("x", Some("x"), &[8]),
            span("c", Some("d"), &[5]),
        ]);
        let expected = [
            span("a", Some("b"), &[9]),
            span("b", Some("c"), &[9, 5]),
            span("c", Some("d"), &[5]),
            span("d", Some("f"), &[7, 5]),
            span("f", None, &[7]),
        ];
        assert_eq!(fragments, expected);
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
        fn visible_numbers_are_the_newest_between_two_snapshots(
            spans in proptest::collection::vec(any_span(), 0..8),
            snapshots in proptest::collection::btree_set(0u64..22, 0..4),
        ) {
            let snapshots: Vec<SeqNo> = snapshots.into_iter().map(SeqNo).collect();
            let mut expected = fragment(&spans);
            for span in &mut expected {
                span.seqs.dedup_by_key(|seq| snapshots.partition_point(|snapshot| *snapshot < *seq));
            }
            let visible = fragment_visible(&spans, &snapshots);
            prop_assert_eq!(&visible, &expected);
            prop_assert_eq!(fragment(&visible), join(visible));
        }

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

//! How a large merge is divided: into ranges of user keys with about equal bytes, each of which can be
//! merged by itself, by any thread, at any time.
//!
//! ```text
//! run 0   |----------|----|         |------|
//! run 1       |---------|----|----------|
//! parts   [           )[         )[        )
//! ```
//!
//! 1. The indexes of the inputs say where the bytes lie: a list of keys, each with the bytes that one
//!    table has up to there.
//! 2. A walk over all these lists in key order ends a part where its share of the bytes is reached,
//!    never before it holds an output file's worth, nor where less is left: each part ends with a file
//!    that is not full, and there should be one before it.
//! 3. A part ends past all versions of a key `k`, at the next possible key, which is `k` and a zero
//!    byte. Range deletes are cut there, and such a cut leaves no key to two tables: see `spans.rs`.

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::range_tombstone::{RangeTombstone, successor};
use lsmx_base::sync::Arc;
use lsmx_compaction::KeyRange;

use crate::table::Weight;
use crate::tree::version::TableFile;

/// A range of user keys of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// The first key; `None` for the beginning of the keyspace.
    pub(crate) from: Option<Bytes>,
    /// The first key past it; `None` for the end of the keyspace.
    pub(crate) to: Option<Bytes>,
}

/// Divides a job with inputs over `range` into at most `parts_max` parts of at least `part_bytes_min`
/// bytes, about. The parts come in key order, and all keys are in one of them.
pub(crate) fn divide(
    mut weights: Vec<Weight>,
    range: &KeyRange,
    parts_max: usize,
    part_bytes_min: u64,
) -> Vec<Part> {
    weights.sort_unstable_by(|a, b| a.until.cmp(&b.until));
    let total: u64 = weights.iter().map(|weight| weight.bytes).fold(0, u64::saturating_add);
    let fitting = usize::try_from(total / part_bytes_min.max(1)).unwrap_or(usize::MAX);
    let count = parts_max.min(fitting).max(1);
    let (mut parts, mut from) = (Vec::new(), None);
    let (mut done, mut done_before) = (0u64, 0u64);
    let mut coming = weights.into_iter().peekable();
    while let Some(weight) = coming.next() {
        done = done.saturating_add(weight.bytes);
        if parts.len() + 1 >= count || total - done < part_bytes_min {
            break;
        }
        let target = share(total - done_before, count - parts.len()).max(part_bytes_min);
        if done - done_before < target
            || coming.peek().is_some_and(|next| next.until == weight.until)
            || *weight.until < *range.smallest
        {
            continue;
        }
        let to = successor(&weight.until);
        if to > range.largest {
            break;
        }
        parts.push(Part { from: from.replace(to.clone()), to: Some(to) });
        done_before = done;
    }
    parts.push(Part { from, to: None });
    parts
}

/// An equal share.
fn share(bytes: u64, count: usize) -> u64 {
    u64::try_from(count).map_or(0, |count| bytes / count.max(1))
}

impl Part {
    /// Whether it ends before this key.
    #[inline]
    pub(crate) fn ends_before(&self, user_key: &[u8]) -> bool {
        self.to.as_ref().is_some_and(|to| **to <= *user_key)
    }

    /// The tables of a run that may hold something of it.
    pub(crate) fn tables(&self, run: &[Arc<TableFile>]) -> Arc<[Arc<TableFile>]> {
        let from = self
            .from
            .as_ref()
            .map_or(0, |from| run.partition_point(|table| table.shape().range.largest < *from));
        let to = self.to.as_ref().map_or(run.len(), |to| {
            run.partition_point(|table| table.shape().range.smallest < *to)
        });
        run.get(from..to).unwrap_or_default().into()
    }

    /// What of these range deletes, fragments in key order, lies in it.
    pub(crate) fn spans(&self, all: &[RangeTombstone]) -> Vec<RangeTombstone> {
        let reaching = |span: &&RangeTombstone| {
            let starts = self.to.as_ref().is_none_or(|to| span.start < *to);
            let ends = self
                .from
                .as_ref()
                .is_none_or(|from| span.end.as_ref().is_none_or(|end| end > from));
            starts && ends
        };
        let cut = |span: &RangeTombstone| {
            let mut cut = span.clone();
            if let Some(from) = &self.from
                && cut.start < *from
            {
                if failpoint::is_on(Failpoint::SpanLostAtSubcompaction) {
                    return None;
                }
                cut.start = from.clone();
            }
            if let Some(to) = &self.to
                && cut.end.as_ref().is_none_or(|end| end > to)
            {
                cut.end = Some(to.clone());
            }
            (!cut.is_empty()).then_some(cut)
        };
        all.iter().filter(reaching).filter_map(cut).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use lsmx_base::key::SeqNo;
    use lsmx_base::range_tombstone::fragment;

    fn weights(all: &[(&str, u64)]) -> Vec<Weight> {
        let weight =
            |&(until, bytes): &(&str, u64)| Weight { until: until.as_bytes().to_vec(), bytes };
        all.iter().map(weight).collect()
    }

    /// Where parts end, as text.
    fn ends(all: &[(&str, u64)], range: (&'static str, &'static str), max: usize) -> Vec<String> {
        let parts = divide(weights(all), &KeyRange::new(range.0, range.1), max, 10);
        let text = |to: Bytes| String::from_utf8(to.to_vec()).unwrap();
        parts.into_iter().filter_map(|part| part.to).map(text).collect()
    }

    #[test]
    fn parts_end_between_files_where_these_are_all_that_is_known() {
        let files = [("b", 10), ("d", 10), ("f", 10), ("h", 10)];
        assert_eq!(ends(&files, ("a", "h"), 2), ["d\0"]);
        assert_eq!(ends(&files, ("a", "h"), 4), ["b\0", "d\0", "f\0"]);
        assert_eq!(ends(&files, ("a", "h"), 9), ["b\0", "d\0", "f\0"]);
        // Two runs, one beside the other.
        let runs = [("b", 10), ("h", 10), ("c", 10), ("i", 10)];
        assert_eq!(ends(&runs, ("a", "i"), 2), ["c\0"]);
    }

    #[test]
    fn one_huge_file_is_divided_into_equal_shares() {
        let keys: Vec<String> = (0..100).map(|number| format!("{number:02}")).collect();
        let blocks: Vec<_> = keys.iter().map(|key| (key.as_str(), 1)).collect();
        assert_eq!(ends(&blocks, ("00", "99"), 4), ["24\0", "49\0", "74\0"]);
        assert_eq!(ends(&blocks, ("00", "99"), 3), ["32\0", "65\0"]);
    }

    #[test]
    fn what_would_not_fill_a_part_is_not_divided() {
        assert_eq!(ends(&[("b", 9), ("d", 10)], ("a", "d"), 9), [""; 0]);
        assert_eq!(ends(&[("b", 10), ("d", 9)], ("a", "d"), 9), [""; 0]);
        assert_eq!(ends(&[("b", 100), ("d", 9)], ("a", "d"), 9), [""; 0]);
        assert_eq!(ends(&[("b", 10), ("d", 10)], ("a", "d"), 1), [""; 0]);
        assert_eq!(ends(&[("b", 10), ("d", 10)], ("a", "d"), 2), ["b\0"]);
        assert_eq!(ends(&[], ("a", "d"), 9), [""; 0]);
    }

    #[test]
    fn versions_of_a_key_stay_together() {
        let blocks = [("b", 10), ("k", 10), ("k", 10), ("k", 10), ("k", 10), ("z", 10)];
        assert_eq!(ends(&blocks, ("a", "z"), 6), ["b\0", "k\0"]);
        // Nothing lies past the one key.
        assert_eq!(ends(&[("k", 50), ("k", 50)], ("k", "k"), 4), [""; 0]);
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..3, 0..4)
    }

    proptest! {
        #[test]
        fn parts_follow_each_other_and_none_is_small(
            weights in prop::collection::vec((key(), 0u64..30), 1..40),
            max in 1usize..6,
            least in 1u64..40,
        ) {
            let weights: Vec<_> =
                weights.into_iter().map(|(until, bytes)| Weight { until, bytes }).collect();
            let keys = || weights.iter().map(|weight| weight.until.clone());
            let range = KeyRange::new(keys().min().unwrap(), keys().max().unwrap());
            let parts = divide(weights.clone(), &range, max, least);
            prop_assert!(!parts.is_empty() && parts.len() <= max);
            prop_assert!(parts[0].from.is_none() && parts[parts.len() - 1].to.is_none());
            for pair in parts.windows(2) {
                prop_assert!(pair[0].to.is_some() && pair[0].to == pair[1].from);
                prop_assert!(pair[0].from < pair[0].to);
                let to = pair[0].to.as_ref().unwrap();
                prop_assert!(*to > range.smallest && *to <= range.largest);
            }
            for part in &parts {
                let inside = |weight: &&Weight| {
                    part.from.as_ref().is_none_or(|from| **from <= *weight.until)
                        && !part.ends_before(&weight.until)
                };
                let bytes: u64 = weights.iter().filter(inside).map(|weight| weight.bytes).sum();
                prop_assert!(parts.len() == 1 || bytes >= least, "{bytes} of {least}: {parts:?}");
            }
        }

        /// Cut at the ends of parts, range deletes delete the same, each in its own part, and the
        /// bounds that tables get from them share no key.
        #[test]
        fn range_deletes_are_cut_where_parts_end(
            spans in prop::collection::vec((key(), key(), 1u64..30), 0..8),
            cuts in prop::collection::btree_set(key(), 0..5),
        ) {
            let spans: Vec<_> = spans.into_iter().map(|(start, end, seq)| RangeTombstone {
                start: start.into(), end: Some(end.into()), seqs: vec![SeqNo(seq)],
            }).collect();
            let all = fragment(&spans);
            let mut ends: Vec<Option<Bytes>> = cuts.iter().map(|cut| Some(successor(cut))).collect();
            ends.push(None);
            ends.dedup();
            let (mut from, mut cut, mut last) = (None, Vec::new(), None::<Bytes>);
            for to in ends {
                let part = Part { from: from.clone(), to: to.clone() };
                for span in part.spans(&all) {
                    prop_assert!(from.as_ref().is_none_or(|from| span.start >= *from));
                    let largest = span.largest_key().unwrap();
                    prop_assert!(to.as_ref().is_none_or(|to| *largest < **to));
                    if let (Some(last), true) = (&last, from.as_ref() == Some(&span.start)) {
                        prop_assert!(*last < span.start);
                    }
                    last = Some(Bytes::copy_from_slice(largest));
                    cut.push(span);
                }
                from = to;
            }
            prop_assert_eq!(fragment(&cut), all);
        }
    }
}

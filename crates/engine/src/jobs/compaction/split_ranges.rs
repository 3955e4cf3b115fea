//! Splits a large merge into key subranges of similar size. Several threads can merge the subranges in parallel.
//!
//! ```text
//! run 0      |----------|----|         |------|
//! run 1          |---------|----|----------|
//! subranges  [           )[         )[        )
//! ```
//!
//! 1. The indexes of the input tables provide weights. A weight consists of a key, and the number of bytes in one table
//!    between the previous key and this key.
//! 2. The weights of all tables are added up in key order. A subrange ends when it contains its share of the bytes. The
//!    last output file of a subrange is usually not full. Each subrange therefore contains at least the bytes of one
//!    output file.
//! 3. A subrange ends after all versions of a key `k`. The next subrange starts at the next possible key, which is `k`
//!    followed by a zero byte. If range tombstones are also split at this key, the tables of two subranges do not
//!    overlap, see `range_tombstone_queue.rs`.

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::range_tombstone::{RangeTombstone, successor};
use lsmx_base::sync::Arc;
use lsmx_compaction::KeyRange;

use crate::table::KeyWeight;
use crate::tree::table_file::TableFile;

/// A range of user keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySubrange {
    /// First key of the subrange. `None` stands for the start of the keyspace.
    pub(crate) from: Option<Bytes>,
    /// First key after the subrange. `None` stands for the end of the keyspace.
    pub(crate) to: Option<Bytes>,
}

/// Splits a merge into at most `count_max` subranges, each with at least about `bytes_min` bytes. `range` is the key
/// range of all inputs.
///
/// The subranges are in key order and cover the whole keyspace.
pub(crate) fn split_key_range(
    mut weights: Vec<KeyWeight>,
    range: &KeyRange,
    count_max: usize,
    bytes_min: u64,
) -> Vec<KeySubrange> {
    weights.sort_unstable_by(|a, b| a.until.cmp(&b.until));
    let total: u64 = weights.iter().map(|weight| weight.bytes).fold(0, u64::saturating_add);
    let fitting = usize::try_from(total / bytes_min.max(1)).unwrap_or(usize::MAX);
    let count = count_max.min(fitting).max(1);
    let (mut subranges, mut from) = (Vec::new(), None);
    let (mut done, mut done_before) = (0u64, 0u64);
    let mut remaining = weights.into_iter().peekable();
    while let Some(weight) = remaining.next() {
        done = done.saturating_add(weight.bytes);
        if subranges.len() + 1 >= count || total - done < bytes_min {
            break;
        }
        let target = equal_share(total - done_before, count - subranges.len()).max(bytes_min);
        if done - done_before < target
            || remaining.peek().is_some_and(|next| next.until == weight.until)
            || *weight.until < *range.smallest
        {
            continue;
        }
        let to = successor(&weight.until);
        if to > range.largest {
            break;
        }
        subranges.push(KeySubrange { from: from.replace(to.clone()), to: Some(to) });
        done_before = done;
    }
    subranges.push(KeySubrange { from, to: None });
    subranges
}

fn equal_share(bytes: u64, count: usize) -> u64 {
    u64::try_from(count).map_or(0, |count| bytes / count.max(1))
}

impl KeySubrange {
    /// Returns whether the subrange ends before `user_key`.
    #[inline]
    pub(crate) fn ends_before(&self, user_key: &[u8]) -> bool {
        self.to.as_ref().is_some_and(|to| **to <= *user_key)
    }

    /// Returns the tables of a run that overlap the subrange.
    pub(crate) fn overlapping_tables(&self, run: &[Arc<TableFile>]) -> Arc<[Arc<TableFile>]> {
        let from = self
            .from
            .as_ref()
            .map_or(0, |from| run.partition_point(|table| table.shape().range.largest < *from));
        let to = self.to.as_ref().map_or(run.len(), |to| {
            run.partition_point(|table| table.shape().range.smallest < *to)
        });
        run.get(from..to).unwrap_or_default().into()
    }

    /// Returns the parts of range tombstones that are inside of the subrange. `all` must be fragments in key order.
    pub(crate) fn clip_range_tombstones(&self, all: &[RangeTombstone]) -> Vec<RangeTombstone> {
        let overlapping = |tombstone: &&RangeTombstone| {
            let starts = self.to.as_ref().is_none_or(|to| tombstone.start < *to);
            let ends = self
                .from
                .as_ref()
                .is_none_or(|from| tombstone.end.as_ref().is_none_or(|end| end > from));
            starts && ends
        };
        let clipped = |tombstone: &RangeTombstone| {
            let mut clipped = tombstone.clone();
            if let Some(from) = &self.from
                && clipped.start < *from
            {
                if failpoint::is_on(Failpoint::SpanLostAtSubcompaction) {
                    return None;
                }
                clipped.start = from.clone();
            }
            if let Some(to) = &self.to
                && clipped.end.as_ref().is_none_or(|end| end > to)
            {
                clipped.end = Some(to.clone());
            }
            (!clipped.is_empty()).then_some(clipped)
        };
        all.iter().filter(overlapping).filter_map(clipped).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use lsmx_base::key::SeqNo;
    use lsmx_base::range_tombstone::fragment;

    fn weights(all: &[(&str, u64)]) -> Vec<KeyWeight> {
        let weight =
            |&(until, bytes): &(&str, u64)| KeyWeight { until: until.as_bytes().to_vec(), bytes };
        all.iter().map(weight).collect()
    }

    /// Returns the end keys of all subranges as text.
    fn ends(all: &[(&str, u64)], range: (&'static str, &'static str), max: usize) -> Vec<String> {
        let subranges = split_key_range(weights(all), &KeyRange::new(range.0, range.1), max, 10);
        let text = |to: Bytes| String::from_utf8(to.to_vec()).unwrap();
        subranges.into_iter().filter_map(|subrange| subrange.to).map(text).collect()
    }

    #[test]
    fn split_whole_files_splits_between_files() {
        let files = [("b", 10), ("d", 10), ("f", 10), ("h", 10)];
        assert_eq!(ends(&files, ("a", "h"), 2), ["d\0"]);
        assert_eq!(ends(&files, ("a", "h"), 4), ["b\0", "d\0", "f\0"]);
        assert_eq!(ends(&files, ("a", "h"), 9), ["b\0", "d\0", "f\0"]);
        // Two runs that overlap each other.
        let runs = [("b", 10), ("h", 10), ("c", 10), ("i", 10)];
        assert_eq!(ends(&runs, ("a", "i"), 2), ["c\0"]);
    }

    #[test]
    fn split_one_large_file_gives_equal_shares() {
        let keys: Vec<String> = (0..100).map(|number| format!("{number:02}")).collect();
        let blocks: Vec<_> = keys.iter().map(|key| (key.as_str(), 1)).collect();
        assert_eq!(ends(&blocks, ("00", "99"), 4), ["24\0", "49\0", "74\0"]);
        assert_eq!(ends(&blocks, ("00", "99"), 3), ["32\0", "65\0"]);
    }

    #[test]
    fn split_small_input_is_not_split() {
        assert_eq!(ends(&[("b", 9), ("d", 10)], ("a", "d"), 9), [""; 0]);
        assert_eq!(ends(&[("b", 10), ("d", 9)], ("a", "d"), 9), [""; 0]);
        assert_eq!(ends(&[("b", 100), ("d", 9)], ("a", "d"), 9), [""; 0]);
        assert_eq!(ends(&[("b", 10), ("d", 10)], ("a", "d"), 1), [""; 0]);
        assert_eq!(ends(&[("b", 10), ("d", 10)], ("a", "d"), 2), ["b\0"]);
        assert_eq!(ends(&[], ("a", "d"), 9), [""; 0]);
    }

    #[test]
    fn split_versions_of_a_key_stay_together() {
        let blocks = [("b", 10), ("k", 10), ("k", 10), ("k", 10), ("k", 10), ("z", 10)];
        assert_eq!(ends(&blocks, ("a", "z"), 6), ["b\0", "k\0"]);
        // There is no key after the only key.
        assert_eq!(ends(&[("k", 50), ("k", 50)], ("k", "k"), 4), [""; 0]);
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..3, 0..4)
    }

    proptest! {
        #[test]
        fn split_subranges_are_adjacent_and_large_enough(
            weights in prop::collection::vec((key(), 0u64..30), 1..40),
            max in 1usize..6,
            least in 1u64..40,
        ) {
            let weights: Vec<_> =
                weights.into_iter().map(|(until, bytes)| KeyWeight { until, bytes }).collect();
            let keys = || weights.iter().map(|weight| weight.until.clone());
            let range = KeyRange::new(keys().min().unwrap(), keys().max().unwrap());
            let subranges = split_key_range(weights.clone(), &range, max, least);
            prop_assert!(!subranges.is_empty() && subranges.len() <= max);
            prop_assert!(subranges[0].from.is_none() && subranges[subranges.len() - 1].to.is_none());
            for pair in subranges.windows(2) {
                prop_assert!(pair[0].to.is_some() && pair[0].to == pair[1].from);
                prop_assert!(pair[0].from < pair[0].to);
                let to = pair[0].to.as_ref().unwrap();
                prop_assert!(*to > range.smallest && *to <= range.largest);
            }
            for subrange in &subranges {
                let inside = |weight: &&KeyWeight| {
                    subrange.from.as_ref().is_none_or(|from| **from <= *weight.until)
                        && !subrange.ends_before(&weight.until)
                };
                let bytes: u64 = weights.iter().filter(inside).map(|weight| weight.bytes).sum();
                prop_assert!(subranges.len() == 1 || bytes >= least, "{bytes} of {least}: {subranges:?}");
            }
        }

        #[test]
        fn clip_tombstones_delete_the_same_keys_in_disjoint_ranges(
            tombstones in prop::collection::vec((key(), key(), 1u64..30), 0..8),
            cuts in prop::collection::btree_set(key(), 0..5),
        ) {
            let tombstones: Vec<_> = tombstones.into_iter().map(|(start, end, seq)| RangeTombstone {
                start: start.into(), end: Some(end.into()), seqs: vec![SeqNo(seq)],
            }).collect();
            let all = fragment(&tombstones);
            let mut ends: Vec<Option<Bytes>> = cuts.iter().map(|clipped| Some(successor(clipped))).collect();
            ends.push(None);
            ends.dedup();
            let (mut from, mut clipped, mut last) = (None, Vec::new(), None::<Bytes>);
            for to in ends {
                let subrange = KeySubrange { from: from.clone(), to: to.clone() };
                for tombstone in subrange.clip_range_tombstones(&all) {
                    prop_assert!(from.as_ref().is_none_or(|from| tombstone.start >= *from));
                    let largest = tombstone.largest_key().unwrap();
                    prop_assert!(to.as_ref().is_none_or(|to| *largest < **to));
                    if let (Some(last), true) = (&last, from.as_ref() == Some(&tombstone.start)) {
                        prop_assert!(*last < tombstone.start);
                    }
                    last = Some(Bytes::copy_from_slice(largest));
                    clipped.push(tombstone);
                }
                from = to;
            }
            prop_assert_eq!(fragment(&clipped), all);
        }
    }
}

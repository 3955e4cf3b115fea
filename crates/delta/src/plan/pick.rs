//! Selects the buckets that a collection rewrites.

use std::collections::BTreeSet;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;

use crate::bucket::markers::RemovalRequest;
use crate::format::log::RangeMarker;
use crate::view::StoreView;

/// Maximum number of range delete markers in a view. A view with more markers makes a collection due.
const RANGE_MARKERS_MAX: usize = 64;

/// Maximum number of extents of a bucket. A bucket with more extents is due, because a lookup may need one read per
/// extent.
const EXTENTS_MAX: usize = 8;

/// Rules of the engine for the selection of buckets.
#[derive(Clone, Debug, Default)]
pub(crate) struct CollectionRules {
    /// Numbers of the bucket files that collections must not read.
    pub(crate) excluded_files: BTreeSet<u64>,
    /// Request to remove obsolete operands. `None` if the keyspace does not limit how long deleted values exist.
    pub(crate) removal: Option<RemovalRequest>,
}

/// Returns true if a bucket is due, or if the view has too many range delete markers and no file is excluded.
pub(crate) fn is_collection_due(view: &StoreView, rules: &CollectionRules) -> bool {
    let may_remove_markers = rules.excluded_files.is_empty() && has_many_markers(view);
    may_remove_markers || DueBuckets::new(view, rules).indexes().next().is_some()
}

/// Selection of the buckets that are due for a rewrite. A bucket with an excluded file is never due.
///
/// A bucket is due if it is full or has too many extents. With a removal request, a bucket is also due if it contains a
/// delete marker of the request and no registered snapshot keeps the covered operands. A collection must apply the
/// range delete markers of the request. If the view has too many range delete markers, a collection must also apply the
/// older half of them. The buckets that these markers overlap are due, too.
#[derive(Debug)]
pub(crate) struct DueBuckets<'a> {
    view: &'a StoreView,
    rules: &'a CollectionRules,
    /// For each bucket, the largest sequence number of the range delete markers that a collection must apply.
    newest_range_markers: Vec<Option<SeqNo>>,
}

impl<'a> DueBuckets<'a> {
    pub(crate) fn new(view: &'a StoreView, rules: &'a CollectionRules) -> DueBuckets<'a> {
        let markers = &view.range_markers;
        let old_count = if has_many_markers(view) { markers.len() / 2 } else { 0 };
        let removal_through = rules.removal.as_ref().map(|removal| removal.through);
        let must_apply = |(index, marker): &(usize, &RangeMarker)| {
            *index < old_count || Some(marker.seq) <= removal_through
        };
        let applied = markers.iter().enumerate().filter(must_apply).map(|(_, marker)| marker);
        let newest_range_markers = view.newest_marker_per_bucket(applied);
        DueBuckets { view, rules, newest_range_markers }
    }

    /// Returns the indexes of the buckets that are due.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.view.buckets.len()).filter(|index| self.is_due(*index))
    }

    pub(crate) fn is_due(&self, index: usize) -> bool {
        (is_bucket_full(self.view, index) || self.has_due_marker(index))
            && !has_excluded_file(self.view, index, &self.rules.excluded_files)
    }

    /// Returns whether a bucket is due because of a marker.
    pub(crate) fn is_due_for_marker(&self, index: usize) -> bool {
        self.has_due_marker(index)
            && !has_excluded_file(self.view, index, &self.rules.excluded_files)
    }

    fn has_due_marker(&self, index: usize) -> bool {
        let bucket = &self.view.buckets[index];
        let newest = self.newest_range_markers[index];
        let needs_range_marker =
            !bucket.is_empty() && newest.is_some_and(|newest| bucket.collected_through < newest);
        let removal = self.rules.removal.as_ref();
        needs_range_marker
            || removal.is_some_and(|removal| {
                bucket.is_removal_due(removal) && !failpoint::is_on(Failpoint::VoidOperandsKept)
            })
    }
}

/// Returns the index of the first bucket of the best pair of neighbours to merge.
///
/// Returns `None` unless the number of buckets is near `buckets_max`. The best pair has the fewest bytes. The records
/// of the pair must fit into one bucket. Buckets that one split created are not merged again.
///
/// Source: Li et al., key-delta separation (KDSep), ICDE 2024, bucket merge.
pub(crate) fn smallest_mergeable_pair(
    view: &StoreView,
    due: &[usize],
    excluded_files: &BTreeSet<u64>,
    buckets_max: usize,
) -> Option<usize> {
    if view.buckets.len() + 2 <= buckets_max {
        return None;
    }
    let can_merge = |index: &usize| {
        let (a, b) = (&view.buckets[*index], &view.buckets[index + 1]);
        let bytes = a.collected_bytes.saturating_add(b.collected_bytes);
        a.split_sibling != Some(b.id)
            && bytes <= view.resources.options.split_threshold_bytes()
            && [*index, index + 1].iter().all(|index| {
                !due.contains(index) && !has_excluded_file(view, *index, excluded_files)
            })
    };
    let pair_bytes = |index: &usize| {
        view.buckets[*index].bytes().saturating_add(view.buckets[index + 1].bytes())
    };
    (0..view.buckets.len() - 1).filter(can_merge).min_by_key(pair_bytes)
}

fn is_bucket_full(view: &StoreView, index: usize) -> bool {
    let bucket = &view.buckets[index];
    let capacity = view.resources.options.bucket_bytes;
    let bytes = bucket.bytes();
    // A bucket may stay large after a collection. Such a bucket is full again only after it has grown by an eighth of
    // the capacity.
    let has_grown =
        bucket.collected_bytes < capacity || bytes - bucket.collected_bytes >= capacity / 8;
    (bytes >= capacity && has_grown) || bucket.extents.len() > EXTENTS_MAX
}

fn has_many_markers(view: &StoreView) -> bool {
    view.range_markers.len() > RANGE_MARKERS_MAX
}

fn has_excluded_file(view: &StoreView, index: usize, excluded_files: &BTreeSet<u64>) -> bool {
    let is_excluded = |number: u64| excluded_files.contains(&number);
    !excluded_files.is_empty() && view.buckets[index].files().any(|file| is_excluded(file.number))
}

//! Choice of the buckets that a collection rewrites.

use std::collections::BTreeSet;

use crate::view::StoreView;

/// Number of range delete markers above which a collection is due to remove some.
const RANGE_MARKERS_MAX: usize = 64;

/// Number of extents above which a bucket is collected. A lookup may need one read per extent.
const EXTENTS_MAX: usize = 8;

/// Returns whether there are buckets to rewrite, or unused range delete markers to remove.
pub(crate) fn is_collection_due(view: &StoreView, excluded_files: &BTreeSet<u64>) -> bool {
    let may_remove_markers = excluded_files.is_empty() && has_many_markers(view);
    may_remove_markers || due_buckets(view, excluded_files).next().is_some()
}

/// Returns the indexes of the buckets to rewrite.
///
/// A bucket is due if it is full or has too many extents. If the store has too many range delete markers, the buckets
/// covered by one of the older half of the markers are due too.
pub(crate) fn due_buckets<'a>(
    view: &'a StoreView,
    excluded_files: &'a BTreeSet<u64>,
) -> impl Iterator<Item = usize> + 'a {
    let old_markers = match has_many_markers(view) {
        true => &view.range_markers[..view.range_markers.len() / 2],
        false => &[],
    };
    let newest = view.newest_marker_per_bucket(old_markers);
    let needs_marker = move |index: usize| {
        let bucket = &view.buckets[index];
        !bucket.is_empty() && newest[index].is_some_and(|newest| bucket.collected_through < newest)
    };
    let is_due = move |index: &usize| {
        !has_excluded_file(view, *index, excluded_files)
            && (is_bucket_full(view, *index) || needs_marker(*index))
    };
    (0..view.buckets.len()).filter(is_due)
}

/// Returns the index of the first of two neighbours to merge, if the bucket count is near its maximum.
///
/// Returns the pair with the fewest bytes. The pair must fit into one bucket. The two halves of a split are not merged
/// again.
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
    // A bucket that stays large after a collection becomes due only after it has grown.
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

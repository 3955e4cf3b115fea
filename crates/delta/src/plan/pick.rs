//! Selects the buckets that a collection rewrites.

use std::collections::BTreeSet;

use crate::view::StoreView;

/// Maximum number of range delete markers in a view. A view with more markers makes a collection due.
const RANGE_MARKERS_MAX: usize = 64;

/// Maximum number of extents of a bucket. A bucket with more extents is due, because a lookup may need one read per
/// extent.
const EXTENTS_MAX: usize = 8;

/// Returns whether a bucket is due, or whether the view has too many range delete markers and no file is excluded.
pub(crate) fn is_collection_due(view: &StoreView, excluded_files: &BTreeSet<u64>) -> bool {
    let may_remove_markers = excluded_files.is_empty() && has_many_markers(view);
    may_remove_markers || due_buckets(view, excluded_files).next().is_some()
}

/// Returns the indexes of the buckets that are due for a rewrite. A bucket with an excluded file is never due.
///
/// A bucket is due if it is full or has too many extents. If the view has too many range delete markers, the collection
/// must apply the older half of them. The buckets that these markers cover are then due too.
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

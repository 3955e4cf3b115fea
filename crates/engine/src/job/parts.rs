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
//!    never before it holds about [`PART_FILES_MIN`] output files' worth, nor where less is left.
//! 3. A part ends past all versions of a key `k`, at the next possible key, which is `k` and a zero
//!    byte. Range deletes are cut there, and such a cut leaves no key to two tables: see `spans.rs`.

use bytes::Bytes;
use lsmx_compaction::KeyRange;

use crate::format::range_tombstones::{RangeTombstone, successor};
use crate::sabotage::{self, Bug};
use crate::sync::Arc;
use crate::table::Weight;
use crate::version::TableFile;

/// Bytes of inputs that a part has at least, in output files: inputs shrink when they are merged, and
/// each part ends with a file that is not full.
pub(super) const PART_FILES_MIN: u64 = 2;

/// A range of user keys of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// The first key; `None` for the beginning of the keyspace.
    pub(super) from: Option<Bytes>,
    /// The first key past it; `None` for the end of the keyspace.
    pub(super) to: Option<Bytes>,
}

/// Divides a job with inputs over `range` into at most `parts_max` parts of at least `part_bytes_min`
/// bytes, about. The parts come in key order, and all keys are in one of them.
pub(super) fn divide(
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
    pub(super) fn ends_before(&self, user_key: &[u8]) -> bool {
        self.to.as_ref().is_some_and(|to| **to <= *user_key)
    }

    /// The tables of a run that may hold something of it.
    pub(super) fn tables(&self, run: &[Arc<TableFile>]) -> Arc<[Arc<TableFile>]> {
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
    pub(super) fn spans(&self, all: &[RangeTombstone]) -> Vec<RangeTombstone> {
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
                if sabotage::on(Bug::SpanLostAtPart) {
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

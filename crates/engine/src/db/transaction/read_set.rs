//! Keys and ranges that a transaction has read.

use std::collections::BTreeMap;

use bytes::Bytes;
use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::db::transaction::memory::TransactionMemory;
use crate::error::Result;
use crate::tree::Tree;
use crate::tree::guard_history::GuardedKeys;
use crate::write::batch::KeyGuard;

/// Assumed memory of a key or a range without its key bytes, including its guard.
const READ_BYTES: u64 = 192;

/// The first key of a range and the first key after it; `None` for the end of the keyspace.
pub(super) type KeySpan = (Bytes, Option<Bytes>);

/// Reads of one keyspace.
#[derive(Debug)]
struct KeyspaceReads {
    tree: Arc<Tree>,
    /// Keys with the sequence number of the read, or `None` for that of the snapshot.
    keys: BTreeMap<Bytes, Option<SeqNo>>,
    spans: Vec<KeySpan>,
}

/// Identifies a range in a read set: index of the keyspace and index of the span.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanNumber(usize, usize);

/// All reads of a transaction.
#[derive(Debug, Default)]
pub(super) struct ReadSet {
    /// Keyspaces in the order of their first reads.
    keyspaces: Vec<KeyspaceReads>,
    /// Index of each keyspace by its id.
    indexes: BTreeMap<u32, usize>,
}

impl ReadSet {
    /// Adds a key that was read at the sequence number `read`, or at that of the snapshot if `read` is `None`. A key
    /// that is already in the set keeps its sequence number.
    ///
    /// # Errors
    /// As [`TransactionMemory::add`].
    pub(super) fn add_key(
        &mut self,
        memory: &mut TransactionMemory,
        tree: &Arc<Tree>,
        key: &[u8],
        read: Option<SeqNo>,
    ) -> Result<()> {
        let keys = &mut self.keyspace_reads(tree).1.keys;
        if !keys.contains_key(key) {
            memory.add(READ_BYTES + len_u64(key.len()))?;
            keys.insert(Bytes::copy_from_slice(key), read);
        }
        Ok(())
    }

    /// Adds a range.
    ///
    /// # Errors
    /// As [`TransactionMemory::add`].
    pub(super) fn add_span(
        &mut self,
        memory: &mut TransactionMemory,
        tree: &Arc<Tree>,
        span: KeySpan,
    ) -> Result<SpanNumber> {
        memory.add(READ_BYTES + key_bytes(&span))?;
        let (keyspace, KeyspaceReads { spans, .. }) = self.keyspace_reads(tree);
        spans.push(span);
        Ok(SpanNumber(keyspace, spans.len() - 1))
    }

    /// Replaces a range by the parts of it that were read.
    pub(super) fn narrow_span(
        &mut self,
        memory: &mut TransactionMemory,
        number: SpanNumber,
        front: KeySpan,
        back: KeySpan,
    ) {
        let SpanNumber(keyspace, index) = number;
        // The iterator borrows the transaction, so the read set contains the range.
        let Some(KeyspaceReads { spans, .. }) = self.keyspaces.get_mut(keyspace) else { return };
        let Some(span) = spans.get_mut(index) else { return };
        memory.add_used(key_bytes(&front));
        *span = front;
        if !is_empty_span(&back) {
            memory.add_used(READ_BYTES + key_bytes(&back));
            spans.push(back);
        }
    }

    /// Returns guards on all reads. `read` is the sequence number of the snapshot.
    pub(super) fn into_guards(self, read: SeqNo) -> Vec<KeyGuard> {
        let mut guards = Vec::new();
        for KeyspaceReads { tree, keys, spans } in self.keyspaces {
            guards.extend(keys.into_iter().map(|(key, key_read)| {
                let keys = GuardedKeys::new_key(tree.id, key);
                KeyGuard::new(&tree, keys, key_read.unwrap_or(read))
            }));
            if failpoint::is_on(Failpoint::RangeReadsNotValidated) {
                continue;
            }
            let ranges = merge_spans(spans).into_iter();
            let ranges = ranges.map(|(start, end)| GuardedKeys::Range { start, end });
            guards.extend(ranges.map(|keys| KeyGuard::new(&tree, keys, read)));
        }
        guards
    }

    /// Returns the reads of a keyspace and their index.
    fn keyspace_reads(&mut self, tree: &Arc<Tree>) -> (usize, &mut KeyspaceReads) {
        let index = *self.indexes.entry(tree.id).or_insert_with(|| {
            let (tree, keys, spans) = (Arc::clone(tree), BTreeMap::new(), Vec::new());
            self.keyspaces.push(KeyspaceReads { tree, keys, spans });
            self.keyspaces.len() - 1
        });
        (index, &mut self.keyspaces[index])
    }
}

fn key_bytes((start, end): &KeySpan) -> u64 {
    len_u64(start.len() + end.as_ref().map_or(0, Bytes::len))
}

fn is_empty_span((start, end): &KeySpan) -> bool {
    end.as_ref().is_some_and(|end| end <= start)
}

/// Returns disjoint spans with the same keys, sorted.
fn merge_spans(mut spans: Vec<KeySpan>) -> Vec<KeySpan> {
    spans.retain(|span| !is_empty_span(span));
    spans.sort_unstable();
    spans.dedup_by(|next, last| {
        let touches = last.1.as_ref().is_none_or(|end| next.0 <= *end);
        if touches {
            last.1 = last.1.take().zip(next.1.take()).map(|(one, other)| one.max(other));
        }
        touches
    });
    spans
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn merge_spans_are_disjoint_and_cover_the_same_keys(
            spans in prop::collection::vec((0u8..12, prop::option::weighted(0.9, 0u8..12)), 0..8),
        ) {
            let key = |key: u8| Bytes::copy_from_slice(&[key]);
            let spans: Vec<KeySpan> =
                spans.into_iter().map(|(start, end)| (key(start), end.map(key))).collect();
            let covers = |(start, end): &KeySpan, key: &Bytes| {
                start <= key && end.as_ref().is_none_or(|end| key < end)
            };
            let merged = merge_spans(spans.clone());
            for at in (0..13).map(key) {
                let count = merged.iter().filter(|span| covers(span, &at)).count();
                prop_assert_eq!(count, usize::from(spans.iter().any(|span| covers(span, &at))));
            }
            prop_assert!(merged.is_sorted());
        }
    }
}

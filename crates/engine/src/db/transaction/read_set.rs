//! Keys and ranges that a transaction has read.

use std::collections::BTreeSet;

use bytes::Bytes;
use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::tree::Tree;
use crate::tree::guard_history::GuardedKeys;
use crate::write::batch::{BATCH_BYTES_MAX, KeyGuard, WriteBatch};

/// Assumed memory of a key or a range without its key bytes, including its guard.
const READ_BYTES: u64 = 128;

/// The first key of a range and the first key after it; `None` for the end of the keyspace.
pub(super) type KeySpan = (Bytes, Option<Bytes>);

/// Reads of one keyspace.
#[derive(Debug)]
struct KeyspaceReads {
    tree: Arc<Tree>,
    keys: BTreeSet<Bytes>,
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
    bytes: u64,
}

impl ReadSet {
    /// Adds a key.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the set would need more than [`BATCH_BYTES_MAX`] bytes.
    pub(super) fn add_key(&mut self, tree: &Arc<Tree>, key: &[u8]) -> Result<()> {
        let keyspace = self.keyspace_index(tree);
        if !self.keyspaces[keyspace].keys.contains(key) {
            self.reserve(len_u64(key.len()))?;
            self.keyspaces[keyspace].keys.insert(Bytes::copy_from_slice(key));
        }
        Ok(())
    }

    /// Adds a range.
    ///
    /// # Errors
    /// As [`ReadSet::add_key`].
    pub(super) fn add_span(&mut self, tree: &Arc<Tree>, span: KeySpan) -> Result<SpanNumber> {
        let keyspace = self.keyspace_index(tree);
        self.reserve(len_u64(span.0.len() + span.1.as_ref().map_or(0, Bytes::len)))?;
        let spans = &mut self.keyspaces[keyspace].spans;
        spans.push(span);
        Ok(SpanNumber(keyspace, spans.len() - 1))
    }

    /// Replaces a range by the parts of it that were read.
    pub(super) fn narrow_span(&mut self, number: SpanNumber, front: KeySpan, back: KeySpan) {
        let SpanNumber(keyspace, index) = number;
        let spans = self.keyspaces.get_mut(keyspace).map(|reads| &mut reads.spans);
        if let Some(spans) = spans
            && let Some(span) = spans.get_mut(index)
        {
            *span = front;
            if !is_empty_span(&back) {
                spans.push(back);
            }
        }
    }

    /// Adds guards on all reads to a batch.
    pub(super) fn add_guards(self, batch: &mut WriteBatch, read: SeqNo) {
        for KeyspaceReads { tree, keys, spans } in self.keyspaces {
            for key in keys {
                batch.add_guard(&tree, &key, read);
            }
            if failpoint::is_on(Failpoint::RangeReadsNotValidated) {
                continue;
            }
            for (start, end) in merge_spans(spans) {
                let keys = GuardedKeys::Range { start, end };
                batch.guards.push(KeyGuard::new(&tree, keys, read));
            }
        }
    }

    fn keyspace_index(&mut self, tree: &Arc<Tree>) -> usize {
        let known = self.keyspaces.iter().position(|reads| Arc::ptr_eq(&reads.tree, tree));
        known.unwrap_or_else(|| {
            let (tree, keys, spans) = (Arc::clone(tree), BTreeSet::new(), Vec::new());
            self.keyspaces.push(KeyspaceReads { tree, keys, spans });
            self.keyspaces.len() - 1
        })
    }

    /// Counts the memory of a read with `key_bytes` bytes of keys.
    fn reserve(&mut self, key_bytes: u64) -> Result<()> {
        let (bytes, limit) = (self.bytes + key_bytes + READ_BYTES, BATCH_BYTES_MAX);
        if bytes > limit {
            return Err(Error::TooLarge { what: "read set", bytes, limit });
        }
        self.bytes = bytes;
        Ok(())
    }
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
    use crate::db::Db;
    use crate::env::Background;
    use crate::options::db::Options;
    use crate::vfs::MemVfs;

    #[test]
    fn read_set_over_limit_is_too_large_and_stays_usable() {
        let options = Options::default().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let keyspace = db.default_keyspace();
        let tree = keyspace.tree();
        let mut reads = ReadSet { bytes: BATCH_BYTES_MAX - READ_BYTES - 3, ..ReadSet::default() };
        let is_too_large = |added| matches!(added, Err(Error::TooLarge { what: "read set", .. }));
        assert!(is_too_large(reads.add_key(tree, b"four")));
        let span = (Bytes::from_static(b"ab"), Some(Bytes::from_static(b"cd")));
        assert!(is_too_large(reads.add_span(tree, span).map(drop)));
        reads.add_key(tree, b"abc").unwrap();
        reads.add_key(tree, b"abc").unwrap();
        assert_eq!(reads.bytes, BATCH_BYTES_MAX);
    }

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

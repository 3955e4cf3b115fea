//! Entries of a job on their way to its outputs: what nobody sees is left out, operands are folded.
//!
//! Entries come newest first. Operands of a key wait until it is known what they stand on:
//!
//! - a put or a delete in the same stripe, or what a range delete of the stripe has left: all of it becomes one put at the number of the newest;
//! - the end of the key, with nothing older anywhere: the same, with no base;
//! - the end of the stripe, or an end below which there may be more: operands that merge partially
//!   become one, each pair at the number of the newer; others stay as they are.
//!
//! Never across a snapshot, which would see the newer ones as well. What does not fold (the operator
//! fails, the result is too large, there is no operator) stays as it is: that is always right.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::slice::Slice;

use crate::cursor::Cursor;
use crate::error::Result;
use crate::format::range_tombstones::FragmentedTombstones;
use crate::iter::range_tombstone_filter::Deleted;
use crate::jobs::compaction::retention::{Retention, Verdict};
use crate::jobs::value_log::output_values::ValueSource;
use crate::merge_operator::MergeOperator;
use crate::table::{Access, FillCache};
use crate::tree::merge_resolver::Merging;

/// Operands that wait at most; then they are folded among themselves, and the rest goes on.
const WAITING_OPERANDS_MAX: usize = 4096;
/// Bytes of operands that wait at most.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// Takes every entry of a job in order, and says what is to be written.
#[derive(Debug)]
pub(crate) struct VersionFilter<'a> {
    retention: Retention,
    merging: &'a Merging,
    /// Without one operands do not wait.
    operator: Option<&'a dyn MergeOperator>,
    /// Operands of one key and one stripe, newest first.
    waiting: Vec<(SeqNo, Slice)>,
    waiting_bytes: usize,
    /// Key and stripe of those that wait.
    user_key: Vec<u8>,
    stripe: usize,
    /// Whether something of the key at hand was written.
    begun: bool,
    /// Where the values of bases lie that are pointers.
    values: ValueSource,
}

/// What lies below operands that wait.
enum Below<'a> {
    /// A put with this value, wherever that lay, or a delete.
    Base(Option<&'a [u8]>),
    /// No further version among the entries of the job.
    End,
    /// Versions that they must not, or cannot yet, be folded with.
    More,
}

impl<'a> VersionFilter<'a> {
    /// For the entries of one job in one keyspace.
    pub(crate) fn new(retention: Retention, merging: &'a Merging) -> VersionFilter<'a> {
        VersionFilter {
            retention,
            merging,
            operator: merging.operator().ok(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            user_key: Vec::new(),
            stripe: 0,
            begun: false,
            values: ValueSource::default(),
        }
    }

    /// The same, of entries that point into these blob files.
    pub(crate) fn reading(self, values: ValueSource) -> VersionFilter<'a> {
        VersionFilter { values, ..self }
    }

    /// Adds range deletes, as [`Retention::heed`], which returns those that are kept.
    pub(crate) fn heed(
        &mut self,
        spans: &[RangeTombstone],
        keys: Option<(&[u8], &[u8])>,
    ) -> Vec<RangeTombstone> {
        self.retention.heed(spans, keys)
    }

    /// Range deletes that were added, as fragments with the numbers that snapshots can tell apart.
    pub(crate) fn covering(&self) -> &[RangeTombstone] {
        let deleted = self.retention.deleted.as_ref();
        deleted.and_then(Deleted::job_spans).map_or(&[], FragmentedTombstones::as_slice)
    }

    /// Takes the entry that `cursor` stands on. `write` gets what is to be written, in order: key,
    /// value, and whether it is the first of its user key.
    ///
    /// # Errors
    /// Those of `write`; when a value that operands stand on cannot be read.
    pub(crate) fn take(
        &mut self,
        cursor: &impl Cursor,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        let key = cursor.key();
        let verdict = self.retention.keep(key);
        if !self.waiting.is_empty() && self.ends_waiting(&verdict) {
            let below = if verdict.first_of_key { Below::End } else { Below::More };
            self.settle(&below, write)?;
        }
        self.begun &= !verdict.first_of_key;
        if verdict.covered {
            // Those that wait are newer than the range delete, and stand on it.
            return self.settle(&Below::Base(None), write).map(drop);
        }
        if key.kind == EntryKind::Merge && !verdict.hidden && self.operator.is_some() {
            return self.wait(key, verdict.stripe, cursor.value_slice(), write);
        }
        if !self.waiting.is_empty() && self.is_in_quarantine(cursor)? {
            // Operands stay unfolded on a value that cannot be read.
            self.settle(&Below::More, write)?;
        }
        if !self.waiting.is_empty() && key.kind != EntryKind::Merge {
            let pointed = match key.kind {
                EntryKind::ValuePointer => Some(self.pointed(cursor)?),
                _ => None,
            };
            let base = match key.kind {
                EntryKind::Delete => None,
                _ => Some(pointed.as_deref().unwrap_or_else(|| cursor.value())),
            };
            if self.settle(&Below::Base(base), write)? {
                return Ok(());
            }
        }
        if verdict.kept {
            // What waits is newer; it is not folded with what is no base.
            self.settle(&Below::More, write)?;
            let first = !std::mem::replace(&mut self.begun, true);
            write(key, cursor.value(), first)?;
        }
        Ok(())
    }

    /// Says what the operands that wait stand on: all that is older of their key has this value, whatever
    /// snapshots see of it.
    ///
    /// # Errors
    /// Those of `write`.
    pub(crate) fn stand_on(
        &mut self,
        base: Option<&[u8]>,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        self.settle(&Below::Base(base), write).map(drop)
    }

    /// Writes what still waits when there are no more entries.
    ///
    /// # Errors
    /// Those of `write`.
    pub(crate) fn end(
        &mut self,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        self.settle(&Below::End, write).map(drop)
    }

    /// Whether the entry at hand points into a quarantined blob file.
    fn is_in_quarantine(&self, cursor: &impl Cursor) -> Result<bool> {
        if self.values.quarantined.is_empty() || cursor.key().kind != EntryKind::ValuePointer {
            return Ok(false);
        }
        let (file, _) = self.values.blobs.locate(cursor.value())?;
        Ok(self.values.quarantined.contains(&file.record().id))
    }

    /// The value that the entry at hand points to.
    fn pointed(&self, cursor: &impl Cursor) -> Result<Slice> {
        let (key, mut access) = (cursor.key(), Access::of(FillCache::Job));
        self.values.blobs.value((key.user_key, key.seq), cursor.value(), &mut access)
    }

    fn ends_waiting(&self, verdict: &Verdict) -> bool {
        verdict.first_of_key
            || (verdict.stripe != self.stripe
                && !failpoint::is_on(Failpoint::OperandsFoldedOverSnapshot))
    }

    fn wait(
        &mut self,
        key: InternalKey<'_>,
        stripe: usize,
        operand: Slice,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        if self.waiting.is_empty() {
            self.user_key.clear();
            self.user_key.extend_from_slice(key.user_key);
            self.stripe = stripe;
        }
        self.waiting_bytes += operand.len();
        self.waiting.push((key.seq, operand));
        if self.waiting.len() >= WAITING_OPERANDS_MAX || self.waiting_bytes >= WAITING_BYTES_MAX {
            self.settle(&Below::More, write)?;
        }
        Ok(())
    }

    /// Writes what waits, folded as far as it can be. Returns whether a base is part of it.
    fn settle(
        &mut self,
        below: &Below<'_>,
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<bool> {
        let (Some(operator), Some(&(newest, _))) = (self.operator, self.waiting.first()) else {
            return Ok(false);
        };
        self.waiting_bytes = 0;
        let mut operands = std::mem::take(&mut self.waiting);
        let base = match below {
            Below::Base(_) if failpoint::is_on(Failpoint::FoldIgnoresBaseValue) => Some(None),
            Below::Base(base) => Some(*base),
            Below::End if !self.retention.older_may_hold(&self.user_key) => Some(None),
            Below::End | Below::More => None,
        };
        let values = || operands.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>();
        let folded =
            base.and_then(|base| self.merging.job(operator, &self.user_key, base, &values()));
        if let Some(value) = folded {
            let needed = || match below {
                Below::Base(_) => self.retention.needs_tombstone(self.stripe, &self.user_key),
                // There is nothing older that it could hide.
                Below::End | Below::More => false,
            };
            match value {
                Some(value) => self.write(newest, EntryKind::Put, &value, write)?,
                None if needed() => self.write(newest, EntryKind::Delete, &[], write)?,
                None => {}
            }
            return Ok(true);
        }
        if base.is_none() {
            operands = self.fold_partially(operator, operands);
        }
        for (seq, operand) in &operands {
            self.write(*seq, EntryKind::Merge, operand, write)?;
        }
        // The list keeps its memory for the next key.
        operands.clear();
        self.waiting = operands;
        Ok(false)
    }

    /// Merges neighbours in rounds, so that each byte is copied a few times at most.
    fn fold_partially(
        &self,
        operator: &dyn MergeOperator,
        mut operands: Vec<(SeqNo, Slice)>,
    ) -> Vec<(SeqNo, Slice)> {
        loop {
            let count = operands.len();
            let mut merged: Vec<(SeqNo, Slice)> = Vec::with_capacity(count.div_ceil(2));
            let mut rest = operands.into_iter().peekable();
            while let Some((seq, newer)) = rest.next() {
                let pair = rest.peek().and_then(|(_, older)| {
                    self.merging.partial(operator, &self.user_key, older, &newer)
                });
                match pair {
                    Some(both) => {
                        rest.next();
                        merged.push((seq, Slice::from(both)));
                    }
                    None => merged.push((seq, newer)),
                }
            }
            operands = merged;
            if operands.len() == count {
                return operands;
            }
        }
    }

    fn write(
        &mut self,
        seq: SeqNo,
        kind: EntryKind,
        value: &[u8],
        write: &mut impl FnMut(InternalKey<'_>, &[u8], bool) -> Result<()>,
    ) -> Result<()> {
        let first = !std::mem::replace(&mut self.begun, true);
        write(InternalKey { user_key: &self.user_key, seq, kind }, value, first)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::iter::merging_iter::ListCursor;
    use crate::iter::operand_fold::Fold;
    use crate::merge_operator::{Append, MergeError};
    use lsmx_base::sync::Arc;

    /// Appends without merging partially.
    #[derive(Debug)]
    struct AppendWhole;

    impl MergeOperator for AppendWhole {
        fn name(&self) -> &'static str {
            "append-whole"
        }
        fn full_merge(
            &self,
            key: &[u8],
            base: Option<&[u8]>,
            operands: &[&[u8]],
        ) -> Result<Option<Vec<u8>>, MergeError> {
            Append::new().full_merge(key, base, operands)
        }
    }

    /// Appends, but not what contains a 7, and merges to nothing what ends in a 9.
    #[derive(Debug)]
    struct Fussy;

    impl MergeOperator for Fussy {
        fn name(&self) -> &'static str {
            "fussy"
        }
        fn full_merge(
            &self,
            _: &[u8],
            base: Option<&[u8]>,
            operands: &[&[u8]],
        ) -> Result<Option<Vec<u8>>, MergeError> {
            let mut value = base.map(<[u8]>::to_vec);
            for operand in operands {
                assert!(!operand.contains(&b'7'), "a seven");
                let mut longer = value.unwrap_or_default();
                longer.extend_from_slice(operand);
                value = (longer.last() != Some(&b'9')).then_some(longer);
            }
            Ok(value)
        }
    }

    type Entry = (Vec<u8>, SeqNo, EntryKind, Vec<u8>);

    fn kept(entries: &[Entry], snapshots: &[u64], merging: &Merging, bottom: bool) -> Vec<Entry> {
        let snapshots = snapshots.iter().map(|&seq| SeqNo(seq)).collect();
        let older = if bottom { Vec::new() } else { vec![run_over_everything()] };
        let retention = Retention::new(snapshots, older, HashSet::new());
        let mut keeper = VersionFilter::new(retention, merging);
        let mut cursor = ListCursor::new(entries.to_vec());
        let mut written: Vec<Entry> = Vec::new();
        let mut write = |key: InternalKey<'_>, value: &[u8], first: bool| {
            let new = written.last().is_none_or(|last| last.0 != key.user_key);
            assert_eq!(first, new, "where tables may be cut");
            written.push((key.user_key.to_vec(), key.seq, key.kind, value.to_vec()));
            Ok(())
        };
        cursor.first().unwrap();
        while cursor.valid() {
            keeper.take(&cursor, &mut write).unwrap();
            cursor.next().unwrap();
        }
        keeper.end(&mut write).unwrap();
        let keys = |entry: &Entry| (entry.0.clone(), std::cmp::Reverse(entry.1));
        assert!(written.is_sorted_by_key(keys), "out of order: {written:?}");
        written
    }

    fn run_over_everything() -> Arc<lsmx_compaction::SortedRun> {
        use lsmx_compaction::{FileId, KeyRange, TableMeta, TreeShape};
        let file = TableMeta {
            id: FileId(1),
            range: KeyRange { smallest: Bytes::new(), largest: Bytes::from_static(&[255]) },
            bytes: 1,
            entries: 1,
            tombstones: 0,
            tombstone_seq_smallest: None,
            value_bytes: 0,
            oldest_tombstone_us: None,
            seq_smallest: 0,
            seq_largest: 0,
            last_read_us: 0,
            created_us: 0,
            creation: 0,
        };
        let (shape, _) = TreeShape::default().with_flush(vec![file]).unwrap();
        Arc::clone(shape.runs().next().unwrap().1)
    }

    /// What a reader at `seq` sees of a key, with `base` below everything.
    fn seen(
        entries: &[Entry],
        key: u8,
        seq: u64,
        merging: &Merging,
        base: Option<&[u8]>,
    ) -> Result<Option<Slice>, String> {
        let mut fold = Fold::default();
        let mut more = true;
        for entry in entries.iter().filter(|entry| entry.0 == [key] && entry.1.0 <= seq) {
            more = more && fold.older(entry.1, entry.2, Slice::from(entry.3.as_slice()));
        }
        if let (true, Some(base)) = (more, base) {
            fold.older(SeqNo::ZERO, EntryKind::Put, Slice::from(base));
        }
        fold.finish(merging, &[key]).map_err(|error| error.to_string())
    }

    proptest! {
        /// Whatever a job folds and drops, everybody who may still look sees what he saw before.
        #[test]
        fn jobs_change_nothing_for_any_reader(
            versions in prop::collection::vec((0u8..3, 0u8..10, b'0'..b':'), 0..40),
            mut snapshots in prop::collection::vec(0u64..42, 0..4),
            operator in 0u8..4,
            bottom: bool,
        ) {
            let operator: Option<Arc<dyn MergeOperator>> = match operator {
                0 => Some(Arc::new(Append::new())),
                1 => Some(Arc::new(AppendWhole)),
                2 => Some(Arc::new(Fussy)),
                _ => None,
            };
            let merging = Merging::new("test".to_owned(), operator.clone());
            let entries = versions.iter().enumerate().map(|(at, &(key, kind, value))| {
                let kind = match kind {
                    0 => EntryKind::Delete,
                    1 => EntryKind::Put,
                    _ => EntryKind::Merge,
                };
                let value = if kind == EntryKind::Delete { vec![] } else { vec![value] };
                (vec![key], SeqNo(at as u64 + 1), kind, value)
            });
            let entries = ListCursor::new(entries.collect()).entries;
            snapshots.sort_unstable();
            snapshots.dedup();
            let after = kept(&entries, &snapshots, &merging, bottom);
            prop_assert!(after.len() <= entries.len());
            // Those without an operator read with one later.
            let reader = Merging::new("test".to_owned(), operator.or(Some(Arc::new(Append::new()))));
            for &seq in snapshots.iter().chain([&1_000]) {
                for key in 0..3 {
                    let base = (!bottom).then_some(&b"base"[..]);
                    prop_assert_eq!(
                        seen(&after, key, seq, &reader, base),
                        seen(&entries, key, seq, &reader, base),
                        "key {} at {} of {:?}, kept {:?}", key, seq, entries, after
                    );
                }
            }
        }
    }

    fn operands(seqs: impl IntoIterator<Item = u64>) -> Vec<Entry> {
        let entry =
            |seq: u64| (b"k".to_vec(), SeqNo(seq), EntryKind::Merge, seq.to_string().into_bytes());
        let mut entries: Vec<Entry> = seqs.into_iter().map(entry).collect();
        entries.reverse();
        entries
    }

    fn summary(entries: &[Entry]) -> Vec<(u64, EntryKind, String)> {
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        entries.iter().map(|(_, seq, kind, value)| (seq.0, *kind, text(value))).collect()
    }

    #[test]
    fn operands_fold_onto_their_base_and_at_the_bottom() {
        let merging = Merging::new("test".to_owned(), Some(Arc::new(AppendWhole)));
        let mut entries = operands(2..=4);
        let folded = [(4, EntryKind::Put, "234".to_owned())];
        assert_eq!(summary(&kept(&entries, &[], &merging, true)), folded);
        assert_eq!(kept(&entries, &[], &merging, false), entries, "there may be a base below");
        assert!(merging.keeps_operands());
        entries.push((b"k".to_vec(), SeqNo(1), EntryKind::Put, b"b".to_vec()));
        let folded = [(4, EntryKind::Put, "b234".to_owned())];
        assert_eq!(summary(&kept(&entries, &[], &merging, false)), folded);
        let at_two = kept(&entries, &[2], &merging, false);
        assert_eq!(summary(&at_two)[2..], [(2, EntryKind::Put, "b2".to_owned())]);
        assert_eq!(summary(&at_two)[..2], summary(&entries)[..2], "the base is on the other side");
    }

    #[test]
    fn partial_merges_leave_one_operand_in_each_stripe() {
        let merging = Merging::new("test".to_owned(), Some(Arc::new(Append::new())));
        let entries = operands(1..=9);
        let one = [(9, EntryKind::Merge, "123456789".to_owned())];
        assert_eq!(summary(&kept(&entries, &[], &merging, false)), one);
        let two =
            [(9, EntryKind::Merge, "56789".to_owned()), (4, EntryKind::Merge, "1234".to_owned())];
        assert_eq!(summary(&kept(&entries, &[4], &merging, false)), two);
        assert!(!merging.keeps_operands());
    }

    #[test]
    fn endless_chains_do_not_wait_for_their_end() {
        let merging = Merging::new("test".to_owned(), Some(Arc::new(AppendWhole)));
        let entries = operands(1..=10_000);
        let after = kept(&entries, &[], &merging, true);
        let waited = 10_000 % WAITING_OPERANDS_MAX;
        assert_eq!(after.len(), 10_000 - waited + 1);
        let reader = |entries: &[Entry]| seen(entries, b'k', 20_000, &merging, None);
        assert_eq!(reader(&after), reader(&entries));
    }
}

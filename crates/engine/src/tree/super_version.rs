//! Memtables and a version of the files, swapped in one step.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::memtable::Memtable;
use crate::tree::version::{BesideView, Version};

/// All that a read of one tree looks at.
#[derive(Clone, Debug)]
pub(crate) struct SuperVersion {
    /// Takes the writes.
    pub(crate) active: Arc<Memtable>,
    /// Full memtables that wait for their flush, newest first.
    pub(crate) sealed: Vec<Arc<Memtable>>,
    /// The files.
    pub(crate) version: Arc<Version>,
    /// What lives beside the tree; none if all operands are in memtables and files.
    pub(crate) operands: Option<BesideView>,
}

impl SuperVersion {
    /// These files, and an empty memtable for all numbers from `first_seq` on.
    pub(crate) fn fresh(version: &Arc<Version>, first_seq: SeqNo) -> SuperVersion {
        let active = Arc::new(Memtable::new(first_seq, version.deferred_drop()));
        let version = Arc::clone(version);
        SuperVersion { active, sealed: Vec::new(), version, operands: None }
    }

    /// The same with another view of the operand store, or none.
    pub(crate) fn beside(self, operands: Option<BesideView>) -> SuperVersion {
        SuperVersion { operands, ..self }
    }

    /// The same with the active memtable sealed and a new one for all numbers from `first_seq` on.
    pub(crate) fn seal(&self, first_seq: SeqNo) -> SuperVersion {
        let mut sealed = Vec::with_capacity(self.sealed.len() + 1);
        sealed.push(Arc::clone(&self.active));
        sealed.extend(self.sealed.iter().cloned());
        let active = Arc::new(Memtable::new(first_seq, self.version.deferred_drop()));
        let version = Arc::clone(&self.version);
        SuperVersion { active, sealed, version, operands: self.operands.clone() }
    }

    /// The same with other files, and without a memtable whose entries are among them.
    pub(crate) fn with_version(
        &self,
        version: &Arc<Version>,
        flushed: Option<&Arc<Memtable>>,
    ) -> SuperVersion {
        let stays = |memtable: &&Arc<Memtable>| {
            !flushed.is_some_and(|flushed| Arc::ptr_eq(flushed, memtable))
        };
        SuperVersion {
            active: Arc::clone(&self.active),
            sealed: self.sealed.iter().filter(stays).cloned().collect(),
            version: Arc::clone(version),
            operands: self.operands.clone(),
        }
    }

    /// The memtable that must be flushed next, with the last number of its interval.
    pub(crate) fn oldest_sealed(&self) -> Option<(&Arc<Memtable>, SeqNo)> {
        if failpoint::is_on(Failpoint::NewestFlushedFirst) {
            return Some((self.sealed.first()?, SeqNo(self.active.first_seq().0 - 1)));
        }
        let oldest = self.sealed.last()?;
        let newer = match self.sealed.len() {
            1 => &self.active,
            count => &self.sealed[count - 2],
        };
        Some((oldest, SeqNo(newer.first_seq().0 - 1)))
    }

    /// Memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(&self.sealed)
    }

    /// Smallest number that was promised to a memtable: the WAL is needed from there on.
    pub(crate) fn first_unflushed(&self) -> Option<SeqNo> {
        self.memtables().filter_map(|memtable| memtable.first_announced()).min()
    }

    /// Bytes of all memtables.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.memtables().map(|memtable| memtable.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::Cursor;
    use crate::deferred_drop::DeferredDrop;
    use lsmx_base::key::EntryKind;

    #[test]
    fn a_reader_that_lets_a_memtable_go_last_does_not_free_it() {
        let deferred_drop = DeferredDrop::default();
        deferred_drop.start();
        let version = Arc::new(Version::empty(&deferred_drop));
        let values = (1..=2).map(|seq| {
            let view = SuperVersion::fresh(&version, SeqNo(seq)).seal(SeqNo(seq + 1));
            let memtable = &view.sealed[0];
            memtable.insert(b"key", SeqNo(seq), EntryKind::Put, &[7; 100]);
            let (_, _, value) = memtable.get(b"key", SeqNo::MAX).expect("it is there");
            let mut cursor = memtable.cursor();
            cursor.first().expect("memory does not fail");
            (value.into_bytes(), view, cursor)
        });
        let [first, second] = values.collect::<Vec<_>>().try_into().expect("there are two");
        // One goes with the view, the other with a cursor.
        let (in_view, view, cursor) = first;
        drop(cursor);
        drop(view);
        let (in_cursor, view, cursor) = second;
        drop(view);
        drop(cursor);
        // A value shares its memory with the others of its memtable.
        assert!(!in_view.is_unique() && !in_cursor.is_unique());
        deferred_drop.drop_queued();
        assert!(in_view.is_unique() && in_cursor.is_unique());
    }
}

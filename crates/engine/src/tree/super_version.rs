//! Super versions. A super version contains the memtables and the version that a read uses. It is replaced as a whole.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, Mutex, Weak};

use crate::memtable::{Memtable, MemtableKind};
use crate::tree::operand_files::PinnedOperandView;
use crate::tree::version::Version;

/// All data that a read of a tree accesses.
#[derive(Clone, Debug)]
pub(crate) struct SuperVersion {
    /// The active memtable, which receives writes.
    pub(crate) active: Arc<Memtable>,
    /// Sealed memtables that wait to be flushed, newest first.
    pub(crate) sealed: Vec<Arc<Memtable>>,
    pub(crate) version: Arc<Version>,
    /// View of the operand store. `None` if the tree has no operand store.
    pub(crate) operand_view: Option<PinnedOperandView>,
}

impl SuperVersion {
    /// Creates a super version with the files of `version` and an empty memtable, whose sequence numbers start at
    /// `first_seq`.
    pub(crate) fn new(
        kind: MemtableKind,
        version: &Arc<Version>,
        first_seq: SeqNo,
    ) -> SuperVersion {
        let active = Arc::new(Memtable::new(kind, first_seq, version.deferred_drop()));
        let version = Arc::clone(version);
        SuperVersion { active, sealed: Vec::new(), version, operand_view: None }
    }

    /// Returns the number of collections of the operand store before this view.
    pub(crate) fn collection_count(&self) -> u64 {
        self.operand_view.as_ref().map_or(0, |operands| operands.collection_count)
    }

    /// Replaces the view of the operand store.
    pub(crate) fn with_operand_view(self, operand_view: Option<PinnedOperandView>) -> SuperVersion {
        SuperVersion { operand_view, ..self }
    }

    /// Returns a copy in which the active memtable is sealed. The sequence numbers of the new active memtable, which has
    /// this kind, start at `first_seq`.
    pub(crate) fn with_sealed_memtable(
        &self,
        kind: MemtableKind,
        first_seq: SeqNo,
    ) -> SuperVersion {
        let mut sealed = Vec::with_capacity(self.sealed.len() + 1);
        sealed.push(Arc::clone(&self.active));
        sealed.extend(self.sealed.iter().cloned());
        let active = Arc::new(Memtable::new(kind, first_seq, self.version.deferred_drop()));
        SuperVersion { active, sealed, ..self.clone() }
    }

    /// Returns a copy with another version. If `flushed` is given, the copy does not contain this memtable.
    pub(crate) fn with_version(
        &self,
        version: &Arc<Version>,
        flushed: Option<&Arc<Memtable>>,
    ) -> SuperVersion {
        let mut sealed = self.sealed.clone();
        sealed.retain(|memtable| !flushed.is_some_and(|flushed| Arc::ptr_eq(flushed, memtable)));
        SuperVersion { sealed, version: Arc::clone(version), ..self.clone() }
    }

    /// Returns the memtable that must be flushed next, and its largest sequence number.
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

    /// Returns all memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(&self.sealed)
    }

    /// Returns the smallest sequence number of the commits that write to a memtable of this super version. WAL records
    /// from this number on must be kept. Returns `None` if there are no such commits.
    pub(crate) fn first_unflushed_seq(&self) -> Option<SeqNo> {
        self.memtables().filter_map(|memtable| memtable.first_announced()).min()
    }

    /// Returns the total memory of all memtables in bytes.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.memtables().map(|memtable| memtable.bytes()).sum()
    }
}

/// Replaced super versions of a tree that readers may still hold.
#[derive(Debug, Default)]
pub(crate) struct OldSuperVersions(Mutex<Vec<Weak<SuperVersion>>>);

impl OldSuperVersions {
    /// Adds the super version that `replace` replaces and returns. Threads that see the new super version also see the old
    /// one in this list.
    pub(crate) fn add(&self, replace: impl FnOnce() -> Arc<SuperVersion>) {
        let mut old_versions = self.0.lock();
        let old = replace();
        old_versions.retain(|old| old.strong_count() > 0);
        old_versions.push(Arc::downgrade(&old));
        drop(old_versions);
        // This may free memtables, so the lock is released before.
        drop(old);
    }

    /// Calls `action` and returns its result if no replaced super version is in use. Otherwise returns false. The current
    /// super version is not replaced during the call.
    pub(crate) fn run_if_unused(&self, action: impl FnOnce() -> bool) -> bool {
        let mut old_versions = self.0.lock();
        old_versions.retain(|old| old.strong_count() > 0);
        old_versions.is_empty() && action()
    }

    /// Returns the number of replaced super versions in use, and the number of references to them.
    pub(crate) fn count_in_use(&self) -> (u64, u64) {
        let mut old_versions = self.0.lock();
        old_versions.retain(|old| old.strong_count() > 0);
        let references = old_versions.iter().map(|old| old.strong_count() as u64).sum();
        (old_versions.len() as u64, references)
    }

    /// Returns the replaced super versions in use.
    pub(crate) fn in_use(&self) -> Vec<Arc<SuperVersion>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the total memory in bytes of memtables in replaced super versions that are in use. Memtables of
    /// `current` are not included.
    pub(crate) fn memtable_bytes(&self, current: &SuperVersion) -> u64 {
        let old_versions = self.in_use();
        let mut counted: Vec<*const Memtable> = current.memtables().map(Arc::as_ptr).collect();
        let mut bytes = 0;
        for memtable in old_versions.iter().flat_map(|old| old.memtables()) {
            if !counted.contains(&Arc::as_ptr(memtable)) {
                counted.push(Arc::as_ptr(memtable));
                bytes += memtable.bytes();
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use lsmx_base::key::EntryKind;

    use super::*;
    use crate::cursor::Cursor;
    use crate::deferred_drop::DeferredDrop;

    #[test]
    fn memtable_last_reference_dropped_by_reader_is_freed_in_background() {
        let deferred_drop = DeferredDrop::default();
        deferred_drop.start();
        let version = Arc::new(Version::empty(&deferred_drop));
        let values = (1..=2).map(|seq| {
            let view = SuperVersion::new(MemtableKind::default(), &version, SeqNo(seq));
            let view = view.with_sealed_memtable(MemtableKind::default(), SeqNo(seq + 1));
            let memtable = &view.sealed[0];
            memtable.insert(b"key", SeqNo(seq), EntryKind::Put, &[7; 100]);
            let (_, _, value) = memtable.get(b"key", SeqNo::MAX).expect("the key was inserted");
            let mut cursor = memtable.cursor();
            cursor.first().expect("a memtable read does not fail");
            (value.into_bytes(), view, cursor)
        });
        let [first, second] = values.collect::<Vec<_>>().try_into().expect("two memtables");
        // The super version is the last owner of the first memtable. The cursor is the last owner of the second
        // memtable.
        let (first_value, view, cursor) = first;
        drop(cursor);
        drop(view);
        let (second_value, view, cursor) = second;
        drop(view);
        drop(cursor);
        // All values of a memtable share its memory.
        assert!(!first_value.is_unique() && !second_value.is_unique());
        deferred_drop.drop_queued();
        assert!(first_value.is_unique() && second_value.is_unique());
    }

    #[test]
    fn old_super_versions_flushed_memtable_is_counted() {
        let version = Arc::new(Version::default());
        let first = SuperVersion::new(MemtableKind::default(), &version, SeqNo(1));
        let first = Arc::new(first);
        first.active.insert(b"key", SeqNo(1), EntryKind::Put, b"value");
        let second = first.with_sealed_memtable(MemtableKind::default(), SeqNo(2));
        let old = OldSuperVersions::default();
        old.add(|| Arc::clone(&first));
        assert_eq!((old.count_in_use(), old.memtable_bytes(&second)), ((1, 1), 0));
        let third = second.with_version(&version, Some(&first.active));
        assert_eq!(old.memtable_bytes(&third), first.active.bytes());
        old.add(|| Arc::new(second));
        assert_eq!(old.count_in_use(), (1, 1), "the second has no other reference");
        drop(first);
        assert_eq!((old.count_in_use(), old.memtable_bytes(&third)), ((0, 0), 0));
    }
}

//! Super versions that are no longer current: who still holds them keeps memtables and files.

use lsmx_base::sync::{Arc, Mutex, Weak};

use crate::memtable::Memtable;
use crate::tree::version::SuperVersion;

/// The former super versions of one tree that may still be in use.
#[derive(Debug, Default)]
pub(crate) struct OldViews(Mutex<Vec<Weak<SuperVersion>>>);

impl OldViews {
    /// Takes note of one that was just replaced.
    pub(crate) fn replaced(&self, old: Arc<SuperVersion>) {
        let weak = Arc::downgrade(&old);
        // Mostly nobody else has it, and then there is nothing to remember.
        drop(old);
        let mut views = self.0.lock();
        views.retain(|view| view.strong_count() > 0);
        if weak.strong_count() > 0 {
            views.push(weak);
        }
    }

    /// How many are in use, and by how many holders together.
    pub(crate) fn in_use(&self) -> (u64, u64) {
        let mut views = self.0.lock();
        views.retain(|view| view.strong_count() > 0);
        let pins = views.iter().map(|view| view.strong_count() as u64).sum();
        (views.len() as u64, pins)
    }

    /// Those that are in use.
    pub(crate) fn held(&self) -> Vec<Arc<SuperVersion>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Bytes of memtables that only they hold.
    pub(crate) fn memtable_bytes(&self, current: &SuperVersion) -> u64 {
        let views = self.held();
        let mut counted: Vec<*const Memtable> = current.memtables().map(Arc::as_ptr).collect();
        let mut bytes = 0;
        for memtable in views.iter().flat_map(|view| view.memtables()) {
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
    use super::*;
    use crate::tree::version::Version;
    use lsmx_base::key::{EntryKind, SeqNo};

    #[test]
    fn a_memtable_counts_as_held_once_it_has_left_the_current_view() {
        let version = Arc::new(Version::default());
        let first = Arc::new(SuperVersion::fresh(&version, SeqNo(1)));
        first.active.insert(b"key", SeqNo(1), EntryKind::Put, b"value");
        let second = first.seal(SeqNo(2));
        let old = OldViews::default();
        old.replaced(Arc::clone(&first));
        assert_eq!((old.in_use(), old.memtable_bytes(&second)), ((1, 1), 0));
        let third = second.with_version(&version, Some(&first.active));
        assert_eq!(old.memtable_bytes(&third), first.active.bytes());
        old.replaced(Arc::new(second));
        assert_eq!(old.in_use(), (1, 1), "nobody holds the second");
        drop(first);
        assert_eq!((old.in_use(), old.memtable_bytes(&third)), ((0, 0), 0));
    }
}

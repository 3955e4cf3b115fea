//! Name of a keyspace.

use lsmx_base::sync::{Arc, ArcSwap, Guard};

/// The current name of a keyspace, which a rename replaces.
///
/// The tree, its merge resolver and its handles share it. Readers take no lock.
#[derive(Debug)]
pub(crate) struct KeyspaceName(ArcSwap<String>);

impl KeyspaceName {
    pub(crate) fn new(name: impl Into<String>) -> Arc<KeyspaceName> {
        Arc::new(KeyspaceName(ArcSwap::from_pointee(name.into())))
    }

    /// Returns the current name without a copy.
    pub(crate) fn load(&self) -> Guard<Arc<String>> {
        self.0.load()
    }

    /// Returns a copy of the current name.
    pub(crate) fn get(&self) -> String {
        self.0.load().to_string()
    }

    /// Replaces the name. The caller holds the lock of the list of keyspaces.
    pub(crate) fn set(&self, name: String) {
        self.0.store(Arc::new(name));
    }
}

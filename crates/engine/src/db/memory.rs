//! Writes wait where all memtables together have reached their bound.

use crate::db::Core;
use crate::env::{Background, WaitCause};
use crate::error::{Error, Result};
use crate::event::{Event, Stall, StallBegin};
use crate::keyspace::Tree;
use crate::sync::Arc;

impl Core {
    /// Waits while all memtables together are at their bound. What readers still hold of memtables
    /// that are flushed does not count: a writer may be that reader.
    ///
    /// # Errors
    /// [`Error::WouldWait`] if it would have to wait and must not, [`Error::Deadline`],
    /// [`Error::Closed`]; what made the database read-only.
    pub(super) fn wait_for_memory(
        &self,
        trees: &[Arc<Tree>],
        no_slowdown: bool,
        deadline_us: Option<u64>,
    ) -> Result<()> {
        let store = &self.store;
        let full = || store.memtable_bytes() >= self.memory.memtables;
        // Inline, the commit that filled them has flushed them too.
        if !full() || store.env.background() == Background::Inline {
            return Ok(());
        }
        let Some(tree) = trees.first() else { return Ok(()) };
        let cause = WaitCause::MemoryFull;
        if no_slowdown {
            return Err(Error::WouldWait { cause: cause.as_str() });
        }
        let (keyspace, start_us) = (tree.name.clone(), store.env.now_us());
        store.tell(&Event::StallBegin(StallBegin {
            keyspace: keyspace.clone(),
            cause: cause.as_str(),
        }));
        let mut met = true;
        while met && full() && store.health.check().is_ok() && !store.is_closing() {
            self.governor.govern_if_due();
            if !store.is_flushing() {
                // Nothing is left to flush: what fills the memory is not in a memtable of ours to
                // wait for, such as commits that are just being inserted.
                break;
            }
            met = store.env.wait(cause, &store.progress, deadline_us, &mut || {
                !full()
                    || !store.is_flushing()
                    || store.health.check().is_err()
                    || store.is_closing()
            });
        }
        let waited_us = store.env.now_us().saturating_sub(start_us);
        tree.counters.memory_stalls.waited(waited_us);
        store.tell(&Event::Stalled(Stall { keyspace, cause: cause.as_str(), waited_us }));
        store.health.check()?;
        if store.is_closing() {
            return Err(Error::Closed);
        }
        if met { Ok(()) } else { Err(Error::Deadline { cause: cause.as_str() }) }
    }
}

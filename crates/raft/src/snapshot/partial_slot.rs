//! The partial snapshot of a node that no stream uses, and the progress of the receipt.

use lsmx_base::sync::{Arc, Mutex};
use tokio::sync::watch;

use crate::snapshot::dir::{SnapshotDir, SnapshotRoot};

/// Keeps at most one partially received snapshot between two streams, also over a restart.
#[derive(Debug)]
pub(crate) struct PartialSlot {
    pub(crate) root: SnapshotRoot,
    kept: Mutex<KeptPartial>,
    progress: watch::Sender<ReceiptProgress>,
}

#[derive(Debug)]
struct KeptPartial {
    /// Number of the last partial snapshot that a stream has begun or continued.
    last_number: u64,
    dir: Option<Arc<SnapshotDir>>,
}

/// Progress of the stream that was written last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiptProgress {
    pub(crate) received_bytes: u64,
    /// Number of started writes that have not ended.
    pub(crate) pending_writes: u64,
}

impl PartialSlot {
    pub(crate) fn new(root: SnapshotRoot, dir: Option<Arc<SnapshotDir>>) -> PartialSlot {
        let kept = Mutex::new(KeptPartial { last_number: 0, dir });
        PartialSlot { root, kept, progress: watch::Sender::default() }
    }

    /// Assigns a number to the partial snapshot of a stream. Returns the kept one too, which the caller continues or removes.
    pub(crate) fn begin(&self) -> (u64, Option<Arc<SnapshotDir>>) {
        let mut kept = self.kept.lock();
        kept.last_number += 1;
        (kept.last_number, kept.dir.take())
    }

    /// Keeps the partial snapshot of a stream that ended. Removes it if another stream has begun one since.
    pub(crate) fn keep(&self, number: u64, dir: Arc<SnapshotDir>) {
        let mut kept = self.kept.lock();
        if number == kept.last_number {
            kept.dir = Some(dir);
        } else {
            dir.set_kept(false);
        }
    }

    /// Removes the kept partial snapshot.
    pub(crate) fn remove_kept(&self) {
        let dir = self.kept.lock().dir.take();
        if let Some(dir) = dir {
            dir.set_kept(false);
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<ReceiptProgress> {
        self.progress.subscribe()
    }

    /// Counts a write as pending until the result is dropped.
    pub(crate) fn start_write(self: &Arc<Self>) -> PendingWrite {
        self.progress.send_modify(|progress| progress.pending_writes += 1);
        PendingWrite { slot: Arc::clone(self) }
    }
}

/// A started write of a received stream.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    slot: Arc<PartialSlot>,
}

impl PendingWrite {
    /// Publishes the number of received bytes after the write.
    pub(crate) fn publish(&self, received_bytes: u64) {
        self.slot.progress.send_modify(|progress| progress.received_bytes = received_bytes);
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        self.slot.progress.send_modify(|progress| progress.pending_writes -= 1);
    }
}

//! Continuation of a snapshot after a restart of the receiver, with the transport of openraft.

use openraft::RaftTypeConfig;
use openraft::raft::InstallSnapshotRequest;
use tokio::sync::watch;

use crate::snapshot::partial_slot::ReceiptProgress;

/// Number of bytes that a node has received of a snapshot. Clones observe the same node.
///
/// The receiver returns it with its response to each chunk, and the sender passes it to [`SnapshotResume::update`].
#[derive(Clone, Debug)]
pub struct SnapshotReceipt {
    progress: watch::Receiver<ReceiptProgress>,
}

impl SnapshotReceipt {
    pub(crate) fn new(progress: watch::Receiver<ReceiptProgress>) -> SnapshotReceipt {
        SnapshotReceipt { progress }
    }

    /// Returns the number of bytes from the start of the stream that this node has, after all writes that have started.
    ///
    /// A node that has restarted returns 0 until it has received the start of the stream: the frames of 256 KiB with the list
    /// of files. It then verifies the files that it has kept of the same snapshot, and adds them.
    pub async fn received_bytes(&self) -> u64 {
        let mut progress = self.progress.clone();
        let idle = progress.wait_for(|progress| progress.pending_writes == 0).await;
        idle.map_or(0, |progress| progress.received_bytes)
    }
}

/// Number of bytes of a snapshot that a target has, as far as the sender knows. The sender need not send them again.
///
/// openraft 0.9 sends all chunks again if the receiver has restarted or has received a damaged chunk. The network of the
/// application keeps one value per connection:
///
/// ```
/// # openraft::declare_raft_types!(
/// #     pub Types: D = String, R = (), SnapshotData = lsmx_raft::SnapshotStream
/// # );
/// use lsmx_raft::SnapshotResume;
/// use openraft::raft::{InstallSnapshotRequest, InstallSnapshotResponse};
///
/// type Response = InstallSnapshotResponse<u64>;
///
/// async fn install_snapshot(
///     resume: &mut SnapshotResume,
///     chunk: InstallSnapshotRequest<Types>,
///     send: impl AsyncFnOnce(&InstallSnapshotRequest<Types>) -> std::io::Result<(Response, u64)>,
/// ) -> std::io::Result<Response> {
///     if resume.can_skip(&chunk) {
///         return Ok(Response { vote: chunk.vote });
///     }
///     // The target returns `SnapshotReceipt::received_bytes` with the response of its `Raft`.
///     let (response, received_bytes) = send(&chunk).await?;
///     resume.update(&chunk, received_bytes);
///     Ok(response)
/// }
/// ```
///
/// A wrong number is no danger: the receiver refuses a stream with missing bytes, and the sender starts again.
#[derive(Clone, Debug, Default)]
pub struct SnapshotResume {
    snapshot_id: String,
    received_bytes: u64,
}

impl SnapshotResume {
    /// Returns whether the target has all bytes of a chunk.
    ///
    /// Returns `false` for the first chunk, which identifies the snapshot, and for the last one, which requests the installation.
    #[must_use]
    pub fn can_skip<C: RaftTypeConfig>(&self, chunk: &InstallSnapshotRequest<C>) -> bool {
        let is_inner = chunk.offset > 0 && !chunk.done;
        is_inner
            && chunk.meta.snapshot_id == self.snapshot_id
            && chunk.offset + chunk.data.len() as u64 <= self.received_bytes
    }

    /// Records the number of bytes that the target has returned after a chunk.
    pub fn update<C: RaftTypeConfig>(
        &mut self,
        chunk: &InstallSnapshotRequest<C>,
        received_bytes: u64,
    ) {
        self.snapshot_id.clone_from(&chunk.meta.snapshot_id);
        self.received_bytes = received_bytes;
    }
}

//! A running node: its storage, its Raft instance and its HTTP server.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use lsmx_raft::{SnapshotReceipt, StateReader, StoreOptions};
use openraft::error::Fatal;
use openraft::{Config, Raft, SnapshotPolicy};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::api;
use crate::commands::{KeyValues, Types};
use crate::http::{Client, new_client};
use crate::network::Network;

/// Default of [`NodeOptions::snapshot_interval`].
pub const SNAPSHOT_INTERVAL_DEFAULT: u64 = 5_000;
/// Maximum time from the request to stop until open requests are aborted.
const GRACE_PERIOD: Duration = Duration::from_secs(3);

/// Options of a node.
#[derive(Debug)]
pub struct NodeOptions {
    /// Id of the node. A node that has lost its directory needs a new id.
    pub id: u64,
    /// Directory of the storage.
    pub dir: PathBuf,
    /// Address for requests of clients and of other nodes.
    pub listen: SocketAddr,
    /// Number of log entries from one snapshot to the next. Default: [`SNAPSHOT_INTERVAL_DEFAULT`].
    pub snapshot_interval: u64,
}

/// The parts of a node that requests use.
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) raft: Raft<Types>,
    pub(crate) reader: StateReader<Types>,
    pub(crate) receipt: SnapshotReceipt,
    pub(crate) db: lsmx::tokio::Db,
    pub(crate) client: Client,
}

/// Returns the configuration of openraft, in milliseconds.
///
/// A follower starts an election after `election_timeout_max` and its own random election timeout without a message of the
/// leader. openraft checks this every 1.5 heartbeats. A failover takes about one second.
fn raft_config(snapshot_interval: u64) -> Config {
    Config {
        cluster_name: "lsmx-replicated-kv".to_owned(),
        // Also the time limit of a request that appends entries.
        heartbeat_interval: 100,
        election_timeout_min: 250,
        election_timeout_max: 500,
        // Limits the size of a request, with the maximum length of a value.
        max_payload_entries: 64,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(snapshot_interval),
        max_in_snapshot_log_to_keep: snapshot_interval / 5,
        replication_lag_threshold: snapshot_interval.saturating_mul(2),
        // The receiver verifies and installs the whole snapshot during the last request.
        install_snapshot_timeout: 60_000,
        snapshot_max_chunk_size: if cfg!(feature = "testing") { 64 << 10 } else { 1 << 20 },
        ..Config::default()
    }
}

fn store_options() -> StoreOptions {
    let options = StoreOptions::default();
    #[cfg(feature = "testing")]
    let options = options.vfs(crate::testing::file_system());
    options
}

impl Node {
    async fn open(options: &NodeOptions) -> Result<Node, Box<dyn Error>> {
        let (log, state_machine) =
            lsmx_raft::open(&options.dir, KeyValues, store_options()).await?;
        let (reader, db) = (state_machine.reader(), log.db().clone());
        let receipt = state_machine.snapshot_receipt();
        let config = Arc::new(raft_config(options.snapshot_interval).validate()?);
        let client = new_client(Some(options.listen.ip()));
        let network = Network { client: client.clone() };
        let raft = Raft::new(options.id, config, network, log, state_machine).await?;
        Ok(Node { id: options.id, raft, reader, receipt, db, client })
    }
}

/// Runs a node until `stop` completes. Calls `started` with the address on which the node listens.
///
/// # Errors
/// The storage cannot be opened, the address cannot be used, or the Raft instance stopped because its storage failed
/// or it panicked.
pub async fn run_node(
    options: NodeOptions,
    started: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(options.listen).await?;
    let address = listener.local_addr()?;
    let node = Arc::new(Node::open(&options).await?);
    let listener = listener.tap_io(|stream| {
        // A failure only delays responses.
        let _ = stream.set_nodelay(true);
    });
    let (stop_server, server_stops) = oneshot::channel::<()>();
    let server = axum::serve(listener, api::router(Arc::clone(&node)));
    let server = server.with_graceful_shutdown(async { drop(server_stops.await) });
    let server = tokio::spawn(server.into_future());
    started(address);

    let mut metrics = node.raft.metrics();
    let failure = tokio::select! {
        () = stop => None,
        stopped = metrics.wait_for(|metrics| metrics.running_state.is_err()) => {
            match stopped {
                Ok(metrics) => metrics.running_state.clone().err(),
                // A Raft instance that has panicked closes the channel.
                Err(_) => Some(Fatal::Panicked),
            }
        }
    };
    // Requests that wait for the Raft instance fail now, so that the server can stop.
    node.raft.shutdown().await?;
    drop(stop_server);
    // Connections that are still open after the grace period end with the process.
    let _ = tokio::time::timeout(GRACE_PERIOD, server).await;
    let closed = node.db.close(None).await;
    match failure {
        Some(failure) => Err(failure.into()),
        None => Ok(closed?),
    }
}

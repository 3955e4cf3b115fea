//! A cluster of nodes in one process, whose network calls the target node directly.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::vfs::OsVfs;
use lsmx_raft::{SnapshotReceipt, SnapshotResume, StateReader};
use openraft::error::{
    InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::{
    BasicNode, Config, Entry, EntryPayload, Membership, Raft, RaftNetwork, RaftNetworkFactory,
    ServerState, SnapshotPolicy, Vote,
};
use tempfile::TempDir;
use tokio::io::AsyncSeekExt;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::application::{Command, Counters, Types, decode_count, entry, log_id, options, run};

/// Time after which a test fails because the cluster makes no progress.
const DEADLINE: Duration = Duration::from_secs(60);
const WAIT: Option<Duration> = Some(DEADLINE);
/// Time for which [`elect`] waits for one node.
const ELECTION_WAIT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of bytes in a chunk of a snapshot.
const CHUNK_BYTES: usize = 100_000;
const DAMAGED_CHUNK: usize = 12;
const LOST_RESPONSE: usize = 20;
/// Number of the chunk at which the receiver stops.
const LAST_CHUNK_BEFORE_STOP: usize = 40;

type Endpoint = (Raft<Types>, SnapshotReceipt);

/// The running nodes.
#[derive(Clone, Default)]
struct Network {
    nodes: Arc<Mutex<BTreeMap<u64, Endpoint>>>,
    /// Number of chunks of snapshots that were sent, and their bytes.
    chunks: Arc<AtomicUsize>,
    sent_bytes: Arc<AtomicUsize>,
    /// Notified when the receiver of a snapshot is to stop.
    receiver_stops: Arc<Notify>,
    /// Whether only requests that transfer no entries and compare none reach their target: the heartbeats of a read.
    is_replication_cut: Arc<AtomicBool>,
}

struct Connection {
    network: Network,
    target: u64,
    resume: SnapshotResume,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Connection {
        Connection { network: self.clone(), target, resume: SnapshotResume::default() }
    }
}

impl Connection {
    /// Returns the target, or `None` if it is not running.
    fn target(&self) -> Option<Raft<Types>> {
        Some(self.network.nodes.lock().unwrap().get(&self.target)?.0.clone())
    }

    fn remote_error<E: std::error::Error>(&self, error: E) -> RPCError<u64, BasicNode, E> {
        RPCError::RemoteError(RemoteError::new(self.target, error))
    }
}

impl RaftNetwork<Types> for Connection {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        let is_read = request.entries.is_empty() && request.prev_log_id.is_none();
        if !is_read && self.network.is_replication_cut.load(Ordering::SeqCst) {
            return Err(unreachable());
        }
        let response = self.target().ok_or_else(unreachable)?.append_entries(request).await;
        response.map_err(|error| self.remote_error(error))
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        _option: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        self.target()
            .ok_or_else(unreachable)?
            .vote(request)
            .await
            .map_err(|error| self.remote_error(error))
    }

    /// Damages one chunk, loses the response of another one, and stops the receiver before a third one.
    async fn install_snapshot(
        &mut self,
        mut request: InstallSnapshotRequest<Types>,
        _option: RPCOption,
    ) -> Result<
        InstallSnapshotResponse<u64>,
        RPCError<u64, BasicNode, RaftError<u64, InstallSnapshotError>>,
    > {
        if self.resume.can_skip(&request) {
            return Ok(InstallSnapshotResponse { vote: request.vote });
        }
        let node = self.network.nodes.lock().unwrap().get(&self.target).cloned();
        let (raft, receipt) = node.ok_or_else(unreachable)?;
        let number = self.network.chunks.fetch_add(1, Ordering::SeqCst);
        self.network.sent_bytes.fetch_add(request.data.len(), Ordering::SeqCst);
        if number == LAST_CHUNK_BEFORE_STOP {
            self.network.nodes.lock().unwrap().remove(&self.target);
            self.network.receiver_stops.notify_one();
            return Err(unreachable());
        }
        let sent = request.clone();
        if number == DAMAGED_CHUNK {
            request.data[7] ^= 1;
        }
        let response = raft.install_snapshot(request).await;
        if number == LOST_RESPONSE {
            let error = io::Error::from(io::ErrorKind::ConnectionReset);
            return Err(RPCError::Network(NetworkError::new(&error)));
        }
        let response = response.map_err(|error| self.remote_error(error))?;
        self.resume.update(&sent, receipt.received_bytes().await);
        Ok(response)
    }
}

fn unreachable<E: std::error::Error>() -> RPCError<u64, BasicNode, E> {
    RPCError::Unreachable(Unreachable::new(&io::Error::from(io::ErrorKind::ConnectionRefused)))
}

struct Node {
    raft: Raft<Types>,
    reader: StateReader<Types>,
    db: lsmx::tokio::Db,
    dir: TempDir,
}

impl Node {
    /// Starts a node that begins no election by itself. So the leader does not change on a slow machine.
    async fn start(id: u64, dir: TempDir, network: &Network) -> Node {
        let config = Config {
            heartbeat_interval: 200,
            election_timeout_min: 1000,
            election_timeout_max: 1500,
            enable_elect: false,
            install_snapshot_timeout: 20_000,
            snapshot_policy: SnapshotPolicy::Never,
            snapshot_max_chunk_size: CHUNK_BYTES as u64,
            max_in_snapshot_log_to_keep: 0,
            ..Config::default()
        };
        let opened = lsmx_raft::open(dir.path(), Counters, options(Arc::new(OsVfs)));
        let (log, state_machine) = opened.await.unwrap();
        let (reader, db) = (state_machine.reader(), log.db().clone());
        let receipt = state_machine.snapshot_receipt();
        let config = Arc::new(config.validate().unwrap());
        let raft = Raft::new(id, config, network.clone(), log, state_machine).await.unwrap();
        network.nodes.lock().unwrap().insert(id, (raft.clone(), receipt));
        Node { raft, reader, db, dir }
    }

    async fn stop(self, id: u64, network: &Network) -> TempDir {
        network.nodes.lock().unwrap().remove(&id);
        self.raft.shutdown().await.unwrap();
        self.db.close(None).await.unwrap();
        self.dir
    }

    /// Waits until the node has confirmed that it is the leader. On a slow machine, heartbeats exceed their time limit.
    async fn ensure_linearizable(&self) {
        let confirmed = async {
            while self.raft.ensure_linearizable().await.is_err() {
                sleep(RETRY_INTERVAL).await;
            }
        };
        timeout(DEADLINE, confirmed).await.expect("the leader is confirmed");
    }

    async fn count(&self, key: &'static str) -> i64 {
        let value = self.reader.read(move |view| view.get(key)).await.unwrap();
        value.map_or(0, |value| decode_count(&value))
    }
}

/// Makes one of the voters the leader. A node whose log is too short and the lease of the last leader prevent an
/// election, so the function triggers elections until one succeeds.
async fn elect(nodes: &BTreeMap<u64, Node>) {
    let elected = async {
        for node in nodes.values().cycle() {
            node.raft.trigger().elect().await.unwrap();
            let wait = node.raft.wait(Some(ELECTION_WAIT));
            if wait.state(ServerState::Leader, "election").await.is_ok() {
                break;
            }
        }
    };
    timeout(DEADLINE, elected).await.expect("a node is elected");
}

/// Sends commands to the leader until it has accepted all of them. Returns its id.
async fn write(nodes: &BTreeMap<u64, Node>, commands: impl IntoIterator<Item = Command>) -> u64 {
    let written = async {
        let mut leader = *nodes.keys().next().unwrap();
        for command in commands {
            while let Err(error) = nodes[&leader].raft.client_write(command.clone()).await {
                let named = error.forward_to_leader().and_then(|forward| forward.leader_id);
                leader = named.filter(|id| nodes.contains_key(id)).unwrap_or(leader);
                sleep(RETRY_INTERVAL).await;
            }
        }
        leader
    };
    timeout(DEADLINE, written).await.expect("the leader accepts the commands")
}

fn additions(count: usize) -> impl Iterator<Item = Command> {
    (0..count).map(|_| Command::Add("sum".to_owned(), 1))
}

#[test]
fn cluster_elects_replicates_installs_a_snapshot_and_continues() {
    run(async {
        let (network, mut nodes) = (Network::default(), BTreeMap::new());
        for id in 1..=3 {
            nodes.insert(id, Node::start(id, tempfile::tempdir().unwrap(), &network).await);
        }
        let members: BTreeMap<u64, BasicNode> =
            (1..=3).map(|id| (id, BasicNode::default())).collect();
        nodes[&1].raft.initialize(members).await.unwrap();
        elect(&nodes).await;
        let put = |n: u64| Command::Put(format!("value {n}"), incompressible_bytes(n, 90_000));
        let leader = write(&nodes, (0..60).map(put).chain(additions(100))).await;

        // A snapshot replaces the whole log of the leader.
        nodes[&leader].raft.trigger().snapshot().await.unwrap();
        let wait = nodes[&leader].raft.wait(WAIT);
        let last = wait.metrics(|it| it.snapshot.is_some(), "snapshot").await.unwrap().snapshot;
        nodes[&leader].raft.trigger().purge_log(last.unwrap().index).await.unwrap();
        nodes[&leader].raft.wait(WAIT).purged(last, "purge").await.unwrap();

        // A node with an empty directory receives it, although a chunk is damaged, a response is lost, and the node restarts.
        let receiver = Node::start(4, tempfile::tempdir().unwrap(), &network).await;
        nodes[&leader].raft.add_learner(4, BasicNode::default(), false).await.unwrap();
        timeout(DEADLINE, network.receiver_stops.notified()).await.expect("the receiver stops");
        let dir = receiver.stop(4, &network).await;
        nodes.insert(4, Node::start(4, dir, &network).await);
        let index = last.map(|last| last.index);
        nodes[&4].raft.wait(WAIT).applied_index_at_least(index, "installed").await.unwrap();
        assert_eq!(nodes[&4].count("sum").await, 100);
        assert_eq!(nodes[&4].raft.metrics().borrow().snapshot, last);
        let mut stream = nodes[&leader].raft.get_snapshot().await.unwrap().unwrap().snapshot;
        let stream_bytes = stream.seek(io::SeekFrom::End(0)).await.unwrap();
        let sent_bytes = network.sent_bytes.load(Ordering::SeqCst);
        let sent_again = sent_bytes - usize::try_from(stream_bytes).unwrap();
        // Each fault loses a frame at most. The chunks with the first frame are sent again, and a part of a chunk. Without the
        // kept frames, the damage and the stop alone would repeat more than the limit.
        let bytes_per_fault = 3 * CHUNK_BYTES + (256 << 10) + CHUNK_BYTES;
        assert!(sent_again <= 3 * bytes_per_fault, "{sent_again} of {stream_bytes} bytes");
        assert!(3 * bytes_per_fault < (DAMAGED_CHUNK + LAST_CHUNK_BEFORE_STOP / 2) * CHUNK_BYTES);
        assert!(network.chunks.load(Ordering::SeqCst) > LAST_CHUNK_BEFORE_STOP);
        nodes[&leader].raft.change_membership([1, 2, 3, 4], false).await.unwrap();
        let leader = write(&nodes, additions(20)).await;
        nodes[&leader].ensure_linearizable().await;
        assert_eq!(nodes[&leader].count("sum").await, 120);

        // The cluster survives the loss of the leader, and the leader returns with its directory.
        let dir = nodes.remove(&leader).unwrap().stop(leader, &network).await;
        elect(&nodes).await;
        let next = write(&nodes, additions(5)).await;
        assert_ne!(next, leader);
        nodes.insert(leader, Node::start(leader, dir, &network).await);
        let last = nodes[&next].raft.metrics().borrow().last_applied.unwrap().index;
        for node in nodes.values() {
            node.raft.wait(WAIT).applied_index_at_least(Some(last), "caught up").await.unwrap();
            assert_eq!(node.count("sum").await, 125);
        }
        for (id, node) in nodes {
            node.stop(id, &network).await;
        }
    });
}

/// Returns pseudo-random bytes.
fn incompressible_bytes(seed: u64, len: usize) -> Vec<u8> {
    let next = |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    std::iter::successors(Some(seed), next).map(|state| (state >> 56) as u8).take(len).collect()
}

/// Creates the directory of a node that has lost the last part of its state by a power loss. Its log ends with an addition that
/// node 1 has acknowledged as the leader.
async fn create_dir_with_unapplied_entry() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let opened = lsmx_raft::open(dir.path(), Counters, options(Arc::new(OsVfs)));
    let (mut log, mut state_machine) = opened.await.unwrap();
    let members = Membership::new(vec![[1, 2, 3].into()], None);
    let entries = [
        Entry { log_id: log_id(0), payload: EntryPayload::Membership(members) },
        Entry { log_id: log_id(1), payload: EntryPayload::Blank },
        entry(2, Command::Add("sum".to_owned(), 1)),
    ];
    log.save_vote(&Vote::new_committed(1, 1)).await.unwrap();
    log.blocking_append(entries.clone()).await.unwrap();
    state_machine.apply(entries[..2].to_vec()).await.unwrap();
    log.db().close(None).await.unwrap();
    dir
}

#[test]
fn restarted_leader_serves_no_stale_read() {
    run(async {
        let (network, mut nodes) = (Network::default(), BTreeMap::new());
        network.is_replication_cut.store(true, Ordering::SeqCst);
        for id in [2, 3, 1] {
            let dir = create_dir_with_unapplied_entry().await;
            nodes.insert(id, Node::start(id, dir, &network).await);
        }
        // Node 1 must not answer before it knows that the addition was committed.
        let read = nodes[&1].raft.ensure_linearizable();
        if let Ok(Ok(_)) = timeout(Duration::from_millis(500), read).await {
            assert_eq!(nodes[&1].count("sum").await, 1);
        }
        network.is_replication_cut.store(false, Ordering::SeqCst);
        // A restarted node is a follower.
        elect(&nodes).await;
        let leader = write(&nodes, additions(1)).await;
        nodes[&leader].ensure_linearizable().await;
        assert_eq!(nodes[&leader].count("sum").await, 2);
        for (id, node) in nodes {
            node.stop(id, &network).await;
        }
    });
}

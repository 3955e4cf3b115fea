//! Measures `openraft-rocksstore`: synced appends, writes to a cluster of one node, and the creation of a snapshot.
//!
//! `cargo run --release -- [SECONDS [STATE_MIB [DIR]]]` prints the lines of the example `raft_bench` of `lsmx-raft`. The script `run` runs
//! both programs in turns. They cannot be one program: this store needs a build of openraft without the feature `storage-v2`.
//!
//! The store does not sync appended log entries. For the rows `append`, the program syncs its write-ahead log after each append.
//! A snapshot is the whole state as JSON in memory.

#[path = "../../../crates/raft/examples/measure/step.rs"]
mod step;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::storage::Adaptor;
use openraft::{
    BasicNode, CommittedLeaderId, Config, Entry, EntryPayload, LogId, Raft, RaftNetwork,
    RaftNetworkFactory, RaftSnapshotBuilder, RaftStorage, SnapshotPolicy,
};
use openraft_rocksstore::{RocksRequest, RocksStore, TypeConfig};
use step::Step;

const VALUE_BYTES: usize = 100;
const STATE_VALUE_BYTES: usize = 1000;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let state_mib: u64 = arguments.next().map_or(Ok(256), |text| text.parse())?;
    let dir = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(dir)?;
    let duration = Duration::from_secs(seconds);
    tokio::runtime::Builder::new_multi_thread().enable_time().build()?.block_on(async {
        for clients in [1, 8, 64] {
            let store = RocksStore::new(dir.path().join(format!("log-{clients}"))).await;
            let db = Arc::clone(&store.state_machine.read().await.db);
            let append = move |index| {
                let (mut store, db) = (Arc::clone(&store), Arc::clone(&db));
                async move {
                    store.append_to_log([entry(index, VALUE_BYTES)]).await?;
                    Ok(db.flush_wal(true)?)
                }
            };
            measure("append", clients, duration, append).await?;
        }
        for clients in [1, 8, 64] {
            let raft = start_node(&dir.path().join(format!("node-{clients}"))).await?;
            let writer = raft.clone();
            let write = move |index| {
                let raft = writer.clone();
                async move {
                    raft.client_write(command(index, VALUE_BYTES)).await?;
                    Ok(())
                }
            };
            measure("client_write", clients, duration, write).await?;
            raft.shutdown().await?;
        }
        measure_snapshot(&dir.path().join("leader"), state_mib).await
    })
}

async fn start_node(dir: &Path) -> Outcome<Raft<TypeConfig>> {
    let (log, state_machine) = Adaptor::new(RocksStore::new(dir).await);
    let config = Config { snapshot_policy: SnapshotPolicy::Never, ..Config::default() };
    let raft = Raft::new(1, Arc::new(config.validate()?), NoNetwork, log, state_machine).await?;
    raft.initialize(BTreeMap::from([(1, BasicNode::default())])).await?;
    raft.wait(None).current_leader(1, "elected").await?;
    Ok(raft)
}

/// Prints the duration and the memory of the creation of a snapshot.
async fn measure_snapshot(dir: &Path, state_mib: u64) -> Outcome {
    let mut store = RocksStore::new(dir).await;
    let entries = state_mib * (1 << 20) / STATE_VALUE_BYTES as u64;
    for first in (0..entries).step_by(1000) {
        let end = entries.min(first + 1000);
        let batch: Vec<_> = (first..end).map(|index| entry(index, STATE_VALUE_BYTES)).collect();
        store.apply_to_state_machine(&batch).await?;
    }
    let step = Step::begin();
    // The snapshot is dropped after the measurement.
    let _snapshot = store.get_snapshot_builder().await.build_snapshot().await?;
    step.print("create");
    Ok(())
}

fn command(index: u64, value_bytes: usize) -> RocksRequest {
    RocksRequest::Set { key: index.to_string(), value: "v".repeat(value_bytes) }
}

fn entry(index: u64, value_bytes: usize) -> Entry<TypeConfig> {
    let log_id = LogId::new(CommittedLeaderId::new(1, 1), index);
    Entry { log_id, payload: EntryPayload::Normal(command(index, value_bytes)) }
}

/// Repeats an operation in each of the clients and prints its rate and latencies.
///
/// The latency of an operation begins when the previous operation of the client ends. So it includes the time in which
/// operations of other clients block the threads of the runtime.
async fn measure<F>(
    name: &str,
    clients: u64,
    duration: Duration,
    operation: impl Fn(u64) -> F + Clone + Send + 'static,
) -> Outcome
where
    F: Future<Output = Outcome> + Send,
{
    let (next, started) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let (next, operation) = (Arc::clone(&next), operation.clone());
            tokio::spawn(async move {
                let (mut latencies, mut begun) = (Vec::new(), Instant::now());
                while started.elapsed() < duration {
                    operation(next.fetch_add(1, Ordering::Relaxed)).await?;
                    let ended = Instant::now();
                    latencies.push(ended - begun);
                    begun = ended;
                    tokio::task::yield_now().await;
                }
                Ok::<_, Box<dyn Error + Send + Sync>>(latencies)
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    let rate = latencies.len() as f64 / started.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let quantile = |percent: usize| latencies[(latencies.len() - 1) * percent / 100].as_micros();
    let (p50, p99) = (quantile(50), quantile(99));
    println!("{name:12} clients={clients:<3} {rate:8.0}/s  p50={p50} us  p99={p99} us");
    Ok(())
}

/// The network of a cluster of one node.
struct NoNetwork;

type Failure<E = RaftError<u64>> = RPCError<u64, BasicNode, E>;

fn unreachable<E: Error>() -> Failure<E> {
    RPCError::Unreachable(Unreachable::new(&std::io::Error::other("no such node")))
}

impl RaftNetworkFactory<TypeConfig> for NoNetwork {
    type Network = NoNetwork;

    async fn new_client(&mut self, _target: u64, _node: &BasicNode) -> NoNetwork {
        NoNetwork
    }
}

impl RaftNetwork<TypeConfig> for NoNetwork {
    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failure> {
        Err(unreachable())
    }

    async fn install_snapshot(
        &mut self,
        _request: InstallSnapshotRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Failure<RaftError<u64, InstallSnapshotError>>> {
        Err(unreachable())
    }

    async fn vote(
        &mut self,
        _request: VoteRequest<u64>,
        _option: RPCOption,
    ) -> Result<VoteResponse<u64>, Failure> {
        Err(unreachable())
    }
}

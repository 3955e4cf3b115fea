//! Measures the Raft storage: synced appends, commands of a cluster of one node, and snapshots.
//!
//! `cargo run --release -p lsmx-raft --example raft_bench [-- SECONDS [STATE_MIB [DIR]]]`. With 0 seconds, the program measures
//! only snapshots.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement")]

#[path = "measure/step.rs"]
mod step;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lsmx_raft::{Application, LogStore, SnapshotStream, State, StateMachine, StoreOptions};
use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::storage::{RaftLogStorageExt, RaftStateMachine};
use openraft::{
    BasicNode, CommittedLeaderId, Config, Entry, EntryPayload, LogId, Raft, RaftNetwork,
    RaftNetworkFactory, RaftSnapshotBuilder, SnapshotPolicy,
};
use step::Step;
use tokio::io::AsyncWriteExt;

openraft::declare_raft_types!(
    Types: D = (u64, Vec<u8>), R = (), SnapshotData = SnapshotStream
);

const VALUE_BYTES: usize = 100;
const STATE_VALUE_BYTES: usize = 1000;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Stores a value under a number.
struct Values;

impl Application<Types> for Values {
    fn apply(&self, state: &State<'_>, (key, value): &(u64, Vec<u8>)) -> lsmx::Result<()> {
        state.put(key.to_be_bytes(), value)
    }

    fn empty_response(&self) {}
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let state_mib: u64 = arguments.next().map_or(Ok(256), |text| text.parse())?;
    let dir = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(dir)?;
    let client_counts: &[u64] = if seconds == 0 { &[] } else { &[1, 8, 64] };
    tokio::runtime::Builder::new_multi_thread().enable_time().build()?.block_on(async {
        for &clients in client_counts {
            let (log, _) = open(&dir.path().join(format!("log-{clients}"))).await?;
            let append = move |index| {
                let mut log = log.clone();
                async move { Ok(log.blocking_append([entry(index, VALUE_BYTES)]).await?) }
            };
            measure("append", clients, Duration::from_secs(seconds), append).await?;
        }
        for &clients in client_counts {
            let raft = start_node(&dir.path().join(format!("node-{clients}"))).await?;
            let writer = raft.clone();
            let write = move |index| {
                let raft = writer.clone();
                async move {
                    raft.client_write((index, vec![7; VALUE_BYTES])).await?;
                    Ok(())
                }
            };
            measure("client_write", clients, Duration::from_secs(seconds), write).await?;
            raft.shutdown().await?;
        }
        measure_snapshot(dir.path(), state_mib).await
    })
}

async fn open(dir: &Path) -> Outcome<(LogStore<Types>, StateMachine<Types, Values>)> {
    Ok(lsmx_raft::open(dir, Values, StoreOptions::default()).await?)
}

fn entry(index: u64, value_bytes: usize) -> Entry<Types> {
    let log_id = LogId::new(CommittedLeaderId::new(1, 1), index);
    Entry { log_id, payload: EntryPayload::Normal((index, vec![7; value_bytes])) }
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

async fn start_node(dir: &Path) -> Outcome<Raft<Types>> {
    let (log, state_machine) = open(dir).await?;
    let config = Config { snapshot_policy: SnapshotPolicy::Never, ..Config::default() };
    let raft = Raft::new(1, Arc::new(config.validate()?), NoNetwork, log, state_machine).await?;
    raft.initialize(BTreeMap::from([(1, BasicNode::default())])).await?;
    raft.wait(None).current_leader(1, "elected").await?;
    Ok(raft)
}

/// Prints the duration and the memory of the steps of a snapshot.
async fn measure_snapshot(dir: &Path, state_mib: u64) -> Outcome {
    let ((_, mut leader), (_, mut follower)) =
        (open(&dir.join("leader")).await?, open(&dir.join("follower")).await?);
    let entries = state_mib * (1 << 20) / STATE_VALUE_BYTES as u64;
    for first in (0..entries).step_by(1000) {
        let end = entries.min(first + 1000);
        leader.apply((first..end).map(|index| entry(index, STATE_VALUE_BYTES))).await?;
    }
    println!("state: {entries} values of {STATE_VALUE_BYTES} bytes");
    let step = Step::begin();
    let mut snapshot = leader.get_snapshot_builder().await.build_snapshot().await?;
    step.print("create");
    let mut received = follower.begin_receiving_snapshot().await?;
    let step = Step::begin();
    let bytes = tokio::io::copy(&mut snapshot.snapshot, &mut received).await?;
    received.shutdown().await?;
    step.print("stream");
    println!("the stream has {bytes} bytes");
    let step = Step::begin();
    follower.install_snapshot(&snapshot.meta, received).await?;
    step.print("install");
    Ok(())
}

/// The network of a cluster of one node.
struct NoNetwork;

type Failure<E = RaftError<u64>> = RPCError<u64, BasicNode, E>;

fn unreachable<E: Error>() -> Failure<E> {
    RPCError::Unreachable(Unreachable::new(&std::io::Error::other("no such node")))
}

impl RaftNetworkFactory<Types> for NoNetwork {
    type Network = NoNetwork;

    async fn new_client(&mut self, _target: u64, _node: &BasicNode) -> NoNetwork {
        NoNetwork
    }
}

impl RaftNetwork<Types> for NoNetwork {
    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failure> {
        Err(unreachable())
    }

    async fn install_snapshot(
        &mut self,
        _request: InstallSnapshotRequest<Types>,
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

//! Random faults while random clients use the service. The histories of all keys must be linearizable.
//!
//! `LSMX_TEST_SEED` determines the sequence of the faults and that of the operations of each client. Their times and the
//! identity of the leader depend on the machine, so a seed repeats a run only approximately.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use lsmx_testkit::{TestRng, scaled, seed};
use rustix::process::Signal;
use tokio::time::sleep;

use crate::cluster::{Cluster, DEADLINE};
use crate::proxy::{Cut, CutLinks};
use crate::run;
use crate::workload::{OperationCounts, Shared, Workload, find_violation};

/// Number of faults if `LSMX_TEST_SCALE` is 1.
const FAULTS: u64 = 4;
/// Number of faults per cluster. It limits the length of the history.
const FAULTS_PER_CLUSTER: u64 = 50;
const CLIENTS: u64 = 4;
/// A longer period without a response of any write counts as a time without a leader.
const GAP_MIN: Duration = Duration::from_millis(200);
/// Writes before the first fault. Their rate is reported.
const WRITES_WITHOUT_FAULTS: usize = 100;
/// Writes between two faults.
const WRITES_BETWEEN_FAULTS: usize = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    KillAll,
    Pause,
    Partition,
    /// Random directions of random links are cut.
    OneWayCuts,
    RollingRestart,
    /// A node loses its directory and is replaced by one with a new id.
    Replacement,
    DiskFull,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Kill => "a node is killed",
            Fault::KillAll => "all nodes are killed",
            Fault::Pause => "a node is paused",
            Fault::Partition => "nodes are cut off",
            Fault::OneWayCuts => "links are cut in one direction",
            Fault::RollingRestart => "all nodes are restarted, one after the other",
            Fault::Replacement => "a node is replaced by an empty one",
            Fault::DiskFull => "the disk of a node is full",
        })
    }
}

impl Fault {
    const ALL: [Fault; 8] = [
        Fault::Kill,
        Fault::KillAll,
        Fault::Pause,
        Fault::Partition,
        Fault::OneWayCuts,
        Fault::RollingRestart,
        Fault::Replacement,
        Fault::DiskFull,
    ];
}

/// Results of a run.
#[derive(Debug, Default)]
struct Report {
    faults: BTreeMap<Fault, u64>,
    /// Nodes that ended because their disk was full.
    failed_nodes: u64,
    operations: OperationCounts,
    gaps: Vec<Duration>,
    duration: Duration,
    duration_without_faults: Duration,
    clusters: u64,
}

/// Creates faults, one after the other.
struct Nemesis {
    rng: TestRng,
    /// Faults that were not drawn yet in this round.
    deck: Vec<Fault>,
}

impl Nemesis {
    fn draw(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck = Fault::ALL.to_vec();
        }
        self.deck.swap_remove(self.rng.below(self.deck.len()))
    }

    /// Returns the leader in half of the cases, else a random node.
    async fn choose_node(&mut self, cluster: &Cluster) -> u64 {
        if self.rng.is_one_in(2) {
            return cluster.await_leader(|_| true).await;
        }
        *self.rng.choose(&cluster.ids())
    }

    /// Waits while a fault lasts. In a third of the cases, this is longer than an election.
    async fn wait(&mut self) {
        let is_long = self.rng.is_one_in(3);
        let ms =
            if is_long { self.rng.between(1_000, 3_000) } else { self.rng.between(100, 1_000) };
        sleep(Duration::from_millis(ms as u64)).await;
    }

    fn draw_cut(&mut self) -> Cut {
        if self.rng.is_one_in(2) { Cut::Close } else { Cut::Stall }
    }

    /// Draws a direction of a link, and further ones with a probability of a third each.
    fn draw_one_way_cuts(&mut self, ids: &[u64]) -> CutLinks {
        let cut = self.draw_cut();
        let pairs = ids.iter().flat_map(|from| ids.iter().map(move |to| (*from, *to)));
        let links: Vec<_> = pairs.filter(|(from, to)| from != to).collect();
        let first = *self.rng.choose(&links);
        let drawn = links.into_iter().filter(|link| *link == first || self.rng.is_one_in(3));
        drawn.map(|link| (link, cut)).collect()
    }

    /// Creates a fault and ends it.
    async fn inject(&mut self, fault: Fault, cluster: &mut Cluster, report: &mut Report) {
        let node = self.choose_node(cluster).await;
        match fault {
            Fault::Kill => {
                cluster.kill(node).await;
                self.wait().await;
                cluster.restart(node, None).await;
            }
            Fault::KillAll => {
                for id in cluster.ids() {
                    cluster.kill(id).await;
                }
                for id in cluster.ids() {
                    cluster.restart(id, None).await;
                }
            }
            Fault::Pause => {
                cluster.signal(node, Signal::STOP);
                self.wait().await;
                cluster.signal(node, Signal::CONT);
            }
            Fault::Partition => {
                let is_pair = cluster.ids().len() > 3 && self.rng.is_one_in(2);
                let other = if is_pair { *self.rng.choose(&cluster.ids()) } else { node };
                cluster.isolate(&[node, other], self.draw_cut());
                self.wait().await;
                cluster.cut(CutLinks::new());
            }
            Fault::OneWayCuts => {
                cluster.cut(self.draw_one_way_cuts(&cluster.ids()));
                self.wait().await;
                cluster.cut(CutLinks::new());
            }
            Fault::RollingRestart => {
                for id in cluster.ids() {
                    cluster.stop(id).await;
                    cluster.restart(id, None).await;
                    cluster.await_leader(|_| true).await;
                }
            }
            Fault::Replacement => cluster.replace(node).await,
            Fault::DiskFull => {
                cluster.stop(node).await;
                let appends = self.rng.between(20, 120) as u64;
                cluster.restart(node, Some(appends)).await;
                let has_failed = cluster.await_failure(node, Duration::from_secs(3)).await;
                report.failed_nodes += u64::from(has_failed);
                if !has_failed {
                    cluster.kill(node).await;
                }
                cluster.restart(node, None).await;
            }
        }
        *report.faults.entry(fault).or_default() += 1;
    }
}

/// Runs a cluster of three or five nodes. Panics if a history is not linearizable.
async fn run_cluster(seed: u64, faults: u64, report: &mut Report) {
    let nodes = 3 + 2 * (seed % 2);
    let mut cluster = Cluster::start(nodes, None).await;
    let workload = Workload::start(Shared::new(cluster.addresses()), CLIENTS, seed);
    let mut nemesis = Nemesis { rng: TestRng::new(seed), deck: Vec::new() };
    let start = Instant::now();
    workload.await_writes(WRITES_WITHOUT_FAULTS, DEADLINE).await;
    report.duration_without_faults += start.elapsed();
    report.clusters += 1;
    let start = Instant::now();
    for _ in 0..faults {
        workload.await_writes(WRITES_BETWEEN_FAULTS, DEADLINE).await;
        let fault = nemesis.draw();
        nemesis.inject(fault, &mut cluster, report).await;
    }
    workload.await_writes(WRITES_BETWEEN_FAULTS, DEADLINE).await;
    report.duration += start.elapsed();
    let acknowledged = workload.shared.acknowledged.lock().unwrap().clone();
    let gaps = acknowledged.windows(2).map(|pair| pair[1].duration_since(pair[0]));
    report.gaps.extend(gaps.filter(|gap| *gap >= GAP_MIN));
    let (history, counts) = workload.finish().await;
    report.operations.add(counts);
    if let Some((key, operations)) = find_violation(&history) {
        let lines: Vec<_> = operations.iter().map(|it| format!("{it:?}\n")).collect();
        let errors = cluster.errors();
        panic!("LSMX_TEST_SEED={seed}: {key} is not linearizable:\n{}{errors}", lines.concat());
    }
    cluster.finish().await;
}

/// Prints a table in Markdown.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "| {name} | {value} |");
        row("measure", "value".to_owned())?;
        row("---", "---:".to_owned())?;
        for (fault, count) in &self.faults {
            row(&format!("faults: {fault}"), count.to_string())?;
        }
        row("nodes that ended because of a full disk", self.failed_nodes.to_string())?;
        row("operations with a response", self.operations.ok.to_string())?;
        row("writes with an unknown outcome", self.operations.unknown.to_string())?;
        row("reads without a response", self.operations.failed.to_string())?;
        row("repeated requests", self.operations.retries.to_string())?;
        let mut gaps = self.gaps.clone();
        gaps.sort();
        let seconds =
            |gap: Option<&Duration>| format!("{:.2} s", gap.map_or(0.0, Duration::as_secs_f64));
        row("times without a leader", gaps.len().to_string())?;
        row("time without a leader, median", seconds(gaps.get(gaps.len() / 2)))?;
        row("time without a leader, longest", seconds(gaps.last()))?;
        let rate = self.operations.ok as f64 / self.duration.as_secs_f64();
        row("operations per second with faults", format!("{rate:.0}"))?;
        let writes = self.clusters as f64 * WRITES_WITHOUT_FAULTS as f64;
        let rate = writes / self.duration_without_faults.as_secs_f64();
        row("writes per second before the faults", format!("{rate:.0}"))?;
        row("duration", format!("{:.0?}", self.duration))
    }
}

#[test]
fn one_way_cuts_have_a_link_between_two_nodes() {
    let mut nemesis = Nemesis { rng: TestRng::new(seed()), deck: Vec::new() };
    for _ in 0..1000 {
        let cuts = nemesis.draw_one_way_cuts(&[1, 2, 3]);
        assert!(cuts.keys().any(|(from, to)| from != to), "{cuts:?}");
    }
}

#[test]
fn service_random_faults_histories_are_linearizable() {
    let base = seed();
    let mut report = Report::default();
    let mut left = scaled(FAULTS);
    for seed in base.. {
        let faults = left.min(FAULTS_PER_CLUSTER);
        run(run_cluster(seed, faults, &mut report));
        left -= faults;
        if left == 0 {
            break;
        }
        println!("LSMX_TEST_SEED={seed}: {faults} faults without a violation");
    }
    println!("{report}");
    assert_eq!(report.faults.values().sum::<u64>(), scaled(FAULTS));
}

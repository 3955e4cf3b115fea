//! A cluster of processes on loopback.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{Method, Request, StatusCode};
use lsmx_replicated_kv::http::{Client, new_client, send};
use lsmx_replicated_kv::testing::{APPENDS_MAX, BUG, Bug};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::proxy::{ClusterAddresses, Cut, CutLinks, Proxy, Transferred};

/// Time after which a test fails because the cluster makes no progress.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Small, so that lagging nodes receive snapshots.
const SNAPSHOT_INTERVAL: &str = "100";

pub(crate) struct Cluster {
    dir: TempDir,
    listen: ClusterAddresses,
    bug: Option<Bug>,
    pub(crate) client: Client,
    links: watch::Sender<CutLinks>,
    pub(crate) nodes: BTreeMap<u64, Node>,
    last_id: u64,
    /// The addresses of all nodes, running or not.
    addresses: watch::Sender<Vec<SocketAddr>>,
}

pub(crate) struct Node {
    process: Process,
    proxy: Proxy,
}

struct Process {
    child: Child,
    /// The process stops when this is dropped. `Child::wait` would drop it if it were in `child`.
    _stdin: ChildStdin,
    /// Address on which the process listens.
    address: SocketAddr,
}

impl Node {
    /// Address of the process. It changes with each start.
    pub(crate) fn address(&self) -> SocketAddr {
        self.process.address
    }

    /// Returns the counter of the bytes that other nodes have sent to the node.
    pub(crate) fn transferred(&self) -> watch::Sender<Transferred> {
        self.proxy.transferred.clone()
    }
}

impl Cluster {
    /// Starts nodes and forms a cluster.
    pub(crate) async fn start(count: u64, bug: Option<Bug>) -> Cluster {
        let mut cluster = Cluster {
            dir: tempfile::tempdir().unwrap(),
            listen: ClusterAddresses::new(),
            bug,
            client: new_client(None),
            links: watch::channel(CutLinks::new()).0,
            nodes: BTreeMap::new(),
            last_id: 0,
            addresses: watch::channel(Vec::new()).0,
        };
        for _ in 0..count {
            cluster.add_process().await;
        }
        let members: BTreeMap<u64, SocketAddr> =
            cluster.nodes.iter().map(|(id, node)| (*id, node.proxy.address)).collect();
        let members = serde_json::to_vec(&members).unwrap();
        let (status, body) = cluster.send(1, Method::POST, "/cluster/init", members).await.unwrap();
        assert_eq!(status, StatusCode::NO_CONTENT, "{body:?}");
        cluster.await_leader(|_| true).await;
        cluster
    }

    /// Starts a process with an empty directory and the next id, which is returned.
    pub(crate) async fn add_process(&mut self) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        let proxy = Proxy::start(id, self.links.subscribe()).await;
        let process = self.spawn(id, None).await;
        proxy.set_target(process.address);
        self.nodes.insert(id, Node { process, proxy });
        self.publish_addresses();
        id
    }

    fn node_dir(&self, id: u64) -> PathBuf {
        self.dir.path().join(id.to_string())
    }

    /// Starts a process and waits until it accepts requests.
    async fn spawn(&self, id: u64, appends_max: Option<u64>) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lsmx-replicated-kv"));
        command.arg("serve").arg(self.node_dir(id));
        let listen = format!("{}:0", self.listen.node_ip(id));
        command.args(["--id", &id.to_string(), "--listen", &listen]);
        command.args(["--snapshot-interval", SNAPSHOT_INTERVAL, "--stop-with-stdin"]);
        if let Some(bug) = self.bug {
            command.env(BUG, bug.name());
        }
        if let Some(appends) = appends_max {
            command.env(APPENDS_MAX, appends.to_string());
        }
        let errors = self.dir.path().join(format!("{id}.stderr"));
        let errors = File::options().create(true).append(true).open(errors).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        timeout(DEADLINE, output.read_line(&mut line)).await.unwrap().unwrap();
        let address = line.trim().strip_prefix("listening on ");
        let address = address.unwrap_or_else(|| panic!("node {id}: {line:?}: {}", self.errors()));
        let address = address.parse().unwrap();
        Process { _stdin: child.stdin.take().unwrap(), child, address }
    }

    /// Starts the process of a node again. With `appends_max`, its disk is full after this number of appends.
    pub(crate) async fn restart(&mut self, id: u64, appends_max: Option<u64>) {
        let process = self.spawn(id, appends_max).await;
        let node = self.nodes.get_mut(&id).unwrap();
        node.proxy.set_target(process.address);
        node.process = process;
        self.publish_addresses();
    }

    fn publish_addresses(&self) {
        self.addresses.send_replace(self.nodes.values().map(|node| node.address()).collect());
    }

    pub(crate) fn addresses(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.addresses.subscribe()
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    fn child(&mut self, id: u64) -> &mut Child {
        &mut self.nodes.get_mut(&id).unwrap().process.child
    }

    /// Returns whether the process of a node has not been killed or stopped.
    pub(crate) fn is_running(&self, id: u64) -> bool {
        self.nodes[&id].process.child.id().is_some()
    }

    pub(crate) fn signal(&self, id: u64, signal: Signal) {
        let pid =
            self.nodes[&id].process.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        kill_process(pid.unwrap(), signal).unwrap();
    }

    /// Kills a process with SIGKILL.
    pub(crate) async fn kill(&mut self, id: u64) {
        self.child(id).kill().await.unwrap();
    }

    /// Stops a process with SIGTERM. It must end without an error.
    pub(crate) async fn stop(&mut self, id: u64) {
        self.signal(id, Signal::TERM);
        let status =
            timeout(DEADLINE, self.child(id).wait()).await.expect("the node stops").unwrap();
        assert!(status.success(), "node {id}: {status}: {}", self.errors());
    }

    /// Waits until a process ends because its storage failed. Returns whether it did within the time.
    pub(crate) async fn await_failure(&mut self, id: u64, time: Duration) -> bool {
        let Ok(status) = timeout(time, self.child(id).wait()).await else { return false };
        assert_eq!(status.unwrap().code(), Some(1), "node {id}: {}", self.errors());
        true
    }

    /// Adds a node with an empty directory as a learner. Returns its id.
    pub(crate) async fn add_learner(&mut self) -> u64 {
        let id = self.add_process().await;
        let path = format!("/cluster/nodes/{id}");
        self.administer(Method::PUT, &path, self.proxy_address(id)).await;
        id
    }

    /// Returns the address of a node in the membership.
    pub(crate) fn proxy_address(&self, id: u64) -> String {
        self.nodes[&id].proxy.address.to_string()
    }

    /// Replaces a node by one with an empty directory and a new id.
    pub(crate) async fn replace(&mut self, id: u64) {
        self.kill(id).await;
        self.nodes.remove(&id);
        std::fs::remove_dir_all(self.node_dir(id)).unwrap();
        self.add_learner().await;
        let voters = serde_json::to_string(&self.ids()).unwrap();
        self.administer(Method::PUT, "/cluster/voters", voters).await;
    }

    /// Cuts links in both directions between the listed nodes and all others.
    pub(crate) fn isolate(&self, nodes: &[u64], cut: Cut) {
        let is_inside = |id: &u64| nodes.contains(id);
        let ids = self.ids();
        let pairs = ids.iter().flat_map(|from| ids.iter().map(move |to| (*from, *to)));
        let links = pairs.filter(|(from, to)| is_inside(from) != is_inside(to));
        self.cut(links.map(|link| (link, cut)).collect());
    }

    /// Cuts exactly these links.
    pub(crate) fn cut(&self, links: CutLinks) {
        self.links.send_replace(links);
    }

    pub(crate) async fn send(
        &self,
        id: u64,
        method: Method,
        path: &str,
        body: impl Into<Body>,
    ) -> std::io::Result<(StatusCode, Bytes)> {
        let uri = format!("http://{}{path}", self.nodes[&id].address());
        let request = Request::builder().method(method).uri(uri).body(body.into()).unwrap();
        send(&self.client, request).await
    }

    /// Repeats a request to any node until it succeeds.
    pub(crate) async fn administer(&self, method: Method, path: &str, body: String) {
        let start = Instant::now();
        for id in self.ids().into_iter().cycle() {
            let response = self.send(id, method.clone(), path, body.clone());
            let response = timeout(DEADLINE, response).await;
            if matches!(response, Ok(Ok((StatusCode::NO_CONTENT, _)))) {
                break;
            }
            assert!(start.elapsed() < DEADLINE, "{method} {path}: {response:?}");
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the metrics of openraft of a node, if it answers.
    pub(crate) async fn status(&self, id: u64) -> Option<Value> {
        let response = self.send(id, Method::GET, "/cluster", "");
        let (_, body) = timeout(Duration::from_secs(1), response).await.ok()?.ok()?;
        serde_json::from_slice(&body).ok()
    }

    /// Returns the metrics of openraft of a running node. Repeats the request until the node answers.
    pub(crate) async fn status_until_answered(&self, id: u64) -> Value {
        let start = Instant::now();
        loop {
            if let Some(status) = self.status(id).await {
                return status;
            }
            assert!(start.elapsed() < DEADLINE, "no status of node {id}: {}", self.errors());
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until one of the nodes that `is_eligible` selects is the leader. Returns its id.
    pub(crate) async fn await_leader(&self, is_eligible: impl Fn(u64) -> bool) -> u64 {
        let start = Instant::now();
        loop {
            for id in self.ids().into_iter().filter(|id| is_eligible(*id)) {
                if self.status(id).await.is_some_and(|status| status["state"] == "Leader") {
                    return id;
                }
            }
            assert!(start.elapsed() < DEADLINE, "no leader: {}", self.errors());
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the standard error of all processes.
    pub(crate) fn errors(&self) -> String {
        let ids = 1..=self.last_id;
        let text = |id| std::fs::read_to_string(self.dir.path().join(format!("{id}.stderr")));
        ids.map(|id| format!("node {id}: {}\n", text(id).unwrap_or_default())).collect()
    }

    /// Stops all nodes. No process may have panicked.
    pub(crate) async fn finish(mut self) {
        for id in self.ids() {
            self.stop(id).await;
        }
        let errors = self.errors();
        assert!(!errors.contains("panicked"), "{errors}");
    }
}

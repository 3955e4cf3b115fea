//! Random clients that record a history.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use lsmx_replicated_kv::http::{Client, new_client, send};
use lsmx_replicated_kv::{CLIENT_ID, REQUEST_NUMBER};
use lsmx_testkit::TestRng;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::checker::{Call, KeyValue, Operation, is_linearizable};

/// Time limit of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(30);
/// Attempts until the outcome of a write stays unknown.
const ATTEMPTS_MAX: u32 = 60;
/// Number of keys that are used at the same time.
const SLOTS: usize = 3;
/// Number of operations of a key until another key takes its place. It limits the time of the checker.
const OPERATIONS_PER_KEY: u64 = 150;

/// Operations by their result.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OperationCounts {
    pub(crate) ok: u64,
    /// Writes whose outcome is unknown.
    pub(crate) unknown: u64,
    /// Reads without a response.
    pub(crate) failed: u64,
    /// Attempts after the first one of an operation.
    pub(crate) retries: u64,
}

impl OperationCounts {
    pub(crate) fn add(&mut self, other: OperationCounts) {
        self.ok += other.ok;
        self.unknown += other.unknown;
        self.failed += other.failed;
        self.retries += other.retries;
    }
}

/// The operations of each key.
pub(crate) type History = BTreeMap<String, Vec<Operation>>;

/// State that the clients share.
pub(crate) struct Shared {
    addresses: watch::Receiver<Vec<SocketAddr>>,
    clock: AtomicU64,
    slots: [AtomicU64; SLOTS],
    stop: AtomicBool,
    /// Times of the responses of writes.
    pub(crate) acknowledged: Mutex<Vec<Instant>>,
}

impl Shared {
    pub(crate) fn new(addresses: watch::Receiver<Vec<SocketAddr>>) -> Arc<Shared> {
        Arc::new(Shared {
            addresses,
            clock: AtomicU64::new(0),
            slots: Default::default(),
            stop: AtomicBool::new(false),
            acknowledged: Mutex::new(Vec::new()),
        })
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn key(slot: usize, number: u64) -> String {
        format!("{slot}-{}", number / OPERATIONS_PER_KEY)
    }

    /// Returns a current key, and sometimes an old one.
    fn choose_key(&self, rng: &mut TestRng) -> String {
        let slot = rng.below(SLOTS);
        let number = self.slots[slot].fetch_add(1, Ordering::Relaxed);
        Shared::key(slot, if rng.is_one_in(20) { rng.below(number + 1) } else { number })
    }
}

/// How a client sends a write.
struct WritePolicy {
    /// Attempts until the outcome stays unknown.
    attempts: u32,
    /// The client ignores the first response, as if it were lost.
    loses_response: bool,
    /// Node that gets the requests, by default a random one for each attempt.
    node: Option<SocketAddr>,
}

/// A client that sends one request at a time.
pub(crate) struct Recorder {
    shared: Arc<Shared>,
    http: Client,
    /// Determines the operations.
    rng: TestRng,
    /// Determines the nodes. Retries do not change the later operations.
    node_rng: TestRng,
    /// Id of the registered client, and the number of its last request.
    session: Option<(u64, u64)>,
    name: u64,
    writes: u64,
    pub(crate) history: History,
    pub(crate) counts: OperationCounts,
}

impl Recorder {
    pub(crate) fn new(shared: &Arc<Shared>, seed: u64, name: u64) -> Recorder {
        Recorder {
            shared: Arc::clone(shared),
            http: new_client(None),
            rng: TestRng::with_stream(seed, 2 * name),
            node_rng: TestRng::with_stream(seed, 2 * name + 1),
            session: None,
            name,
            writes: 0,
            history: History::new(),
            counts: OperationCounts::default(),
        }
    }

    async fn run(mut self) -> Recorder {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let key = self.shared.choose_key(&mut self.rng);
            self.writes += 1;
            let token = format!("{}.{};", self.name, self.writes);
            match self.rng.below(20_u64) {
                0..8 => drop(self.get(&key, None).await),
                8..11 => self.write_carelessly(&key, Call::Put(token)).await,
                11..19 => self.write_carelessly(&key, Call::Append(token)).await,
                _ => self.write_carelessly(&key, Call::Delete).await,
            }
        }
        self
    }

    fn choose_address(&mut self) -> SocketAddr {
        *self.node_rng.choose(&self.shared.addresses.borrow())
    }

    fn record(&mut self, key: &str, begin: u64, end: Option<u64>, call: Call) {
        let operations = self.history.entry(key.to_owned()).or_default();
        operations.push(Operation { call, begin, end });
    }

    /// Sends a request to a node, by default to a random one. Returns `None` without a response, and after a response that
    /// does not reveal whether the request was executed.
    async fn attempt(
        &mut self,
        method: Method,
        path: &str,
        body: String,
        session: Option<(u64, u64)>,
        node: Option<SocketAddr>,
    ) -> Option<(StatusCode, String)> {
        let address = node.unwrap_or_else(|| self.choose_address());
        let mut request = Request::builder().method(method).uri(format!("http://{address}{path}"));
        if let Some((client, number)) = session {
            request = request.header(CLIENT_ID, client).header(REQUEST_NUMBER, number);
        }
        let request = request.body(Body::from(body)).unwrap();
        let response = timeout(ATTEMPT_TIMEOUT, send(&self.http, request)).await;
        let (status, body) = response.ok()?.ok()?;
        let body = String::from_utf8(body.to_vec()).unwrap();
        (!status.is_server_error()).then_some((status, body))
    }

    /// Reads a key from a node, by default from a random one. Returns the value if there was a response.
    pub(crate) async fn get(&mut self, key: &str, node: Option<SocketAddr>) -> Option<KeyValue> {
        let begin = self.shared.now();
        let path = format!("/kv/{key}");
        let response = self.attempt(Method::GET, &path, String::new(), None, node).await;
        let Some((status, body)) = response else {
            self.counts.failed += 1;
            sleep(RETRY_INTERVAL).await;
            return None;
        };
        let value = match status {
            StatusCode::OK => Some(body),
            StatusCode::NOT_FOUND => None,
            other => panic!("GET {key}: {other}: {body}"),
        };
        let end = self.shared.now();
        self.counts.ok += 1;
        self.record(key, begin, Some(end), Call::Get(value.clone()));
        Some(value)
    }

    /// Reads a key from a node, by default from a random one, until there is a response.
    pub(crate) async fn get_until_answered(
        &mut self,
        key: &str,
        node: Option<SocketAddr>,
    ) -> KeyValue {
        for _ in 0..ATTEMPTS_MAX {
            if let Some(value) = self.get(key, node).await {
                return value;
            }
        }
        panic!("no response to reads of {key}");
    }

    /// Writes a key as a registered client, and repeats the request to `node` until there is a response. If
    /// `loses_response` is true, the client ignores the first response.
    pub(crate) async fn write(
        &mut self,
        key: &str,
        call: Call,
        node: SocketAddr,
        loses_response: bool,
    ) {
        let policy = WritePolicy { attempts: ATTEMPTS_MAX, loses_response, node: Some(node) };
        let request = Some(self.next_request().await);
        self.write_with(key, call, request, policy).await;
    }

    /// Same as [`Recorder::write`], but sometimes gives up, loses a response, or writes without a registration.
    async fn write_carelessly(&mut self, key: &str, call: Call) {
        let is_registered = !self.rng.is_one_in(10);
        let request = if is_registered { Some(self.next_request().await) } else { None };
        let gives_up = !is_registered || self.rng.is_one_in(30);
        let policy = WritePolicy {
            attempts: if gives_up { 1 } else { ATTEMPTS_MAX },
            loses_response: !gives_up && self.rng.is_one_in(20),
            node: None,
        };
        self.write_with(key, call, request, policy).await;
    }

    async fn write_with(
        &mut self,
        key: &str,
        call: Call,
        request: Option<(u64, u64)>,
        mut policy: WritePolicy,
    ) {
        let begin = self.shared.now();
        let mut end = None;
        for attempt in 0..policy.attempts {
            self.counts.retries += u64::from(attempt > 0);
            if !self.write_once(key, &call, request, policy.node).await {
                sleep(RETRY_INTERVAL).await;
            } else if !std::mem::take(&mut policy.loses_response) {
                end = Some(self.shared.now());
                self.shared.acknowledged.lock().unwrap().push(Instant::now());
                break;
            }
        }
        self.counts.ok += u64::from(end.is_some());
        self.counts.unknown += u64::from(end.is_none());
        self.record(key, begin, end, call);
    }

    async fn write_once(
        &mut self,
        key: &str,
        call: &Call,
        session: Option<(u64, u64)>,
        node: Option<SocketAddr>,
    ) -> bool {
        let (method, body) = match call {
            Call::Put(value) => (Method::PUT, value.clone()),
            Call::Append(tail) => (Method::POST, tail.clone()),
            Call::Delete => (Method::DELETE, String::new()),
            Call::Get(_) => unreachable!("a read is no write"),
        };
        let response = self.attempt(method, &format!("/kv/{key}"), body, session, node).await;
        match response {
            None => false,
            Some((StatusCode::NO_CONTENT, _)) => true,
            Some((status, body)) => panic!("{call:?}: {status}: {body}"),
        }
    }

    /// Returns the client id and the number of the next request. Registers the client first if necessary.
    async fn next_request(&mut self) -> (u64, u64) {
        while self.session.is_none() {
            let response = self.attempt(Method::POST, "/clients", String::new(), None, None).await;
            match response {
                Some((StatusCode::OK, id)) => self.session = Some((id.trim().parse().unwrap(), 0)),
                Some((status, body)) => panic!("registration: {status}: {body}"),
                None => sleep(RETRY_INTERVAL).await,
            }
        }
        let (client, number) = self.session.as_mut().unwrap();
        *number += 1;
        (*client, *number)
    }
}

/// Clients that run in the background.
pub(crate) struct Workload {
    pub(crate) shared: Arc<Shared>,
    clients: JoinSet<Recorder>,
    seed: u64,
}

impl Workload {
    pub(crate) fn start(shared: Arc<Shared>, clients: u64, seed: u64) -> Workload {
        let mut running = JoinSet::new();
        for name in 1..=clients {
            running.spawn(Recorder::new(&shared, seed, name).run());
        }
        Workload { shared, clients: running, seed }
    }

    /// Waits until clients have received responses of this number of further writes.
    pub(crate) async fn await_writes(&self, count: usize, deadline: Duration) {
        let acknowledged = || self.shared.acknowledged.lock().unwrap().len();
        let (start, target) = (Instant::now(), acknowledged() + count);
        while acknowledged() < target {
            assert!(start.elapsed() < deadline, "the cluster accepts no writes");
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Stops the clients, and reads all keys once more. Returns the history.
    pub(crate) async fn finish(mut self) -> (History, OperationCounts) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let (mut history, mut counts) = (History::new(), OperationCounts::default());
        let mut collect = |history: &mut History, client: Recorder| {
            counts.add(client.counts);
            for (key, operations) in client.history {
                history.entry(key).or_default().extend(operations);
            }
        };
        while let Some(client) = self.clients.join_next().await {
            collect(&mut history, client.unwrap());
        }
        let mut last = Recorder::new(&self.shared, self.seed, 0);
        for key in history.keys() {
            last.get_until_answered(key, None).await;
        }
        collect(&mut history, last);
        (history, counts)
    }
}

/// Returns the first key whose history is not linearizable, with its history.
///
/// Prints the number of keys whose history is too complex for the checker. Panics if these are half of the keys or more.
pub(crate) fn find_violation(history: &History) -> Option<(&String, &Vec<Operation>)> {
    let mut undecided = 0;
    let violation = history.iter().find(|(_, operations)| {
        let is_linearizable = is_linearizable(operations);
        undecided += usize::from(is_linearizable.is_none());
        is_linearizable == Some(false)
    });
    if undecided > 0 {
        println!("undecided: {undecided} of {} keys", history.len());
    }
    assert!(violation.is_some() || 2 * undecided < history.len().max(1), "most keys are undecided");
    violation
}

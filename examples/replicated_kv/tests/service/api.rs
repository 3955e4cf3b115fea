//! Requests, administration and the demo.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::Instant;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use lsmx_replicated_kv::http::{new_client, send};
use lsmx_replicated_kv::{CLIENT_ID, REQUEST_NUMBER};
use lsmx_testkit::time_test;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::cluster::{Cluster, DEADLINE, POLL_INTERVAL};
use crate::run;

const DONE: StatusCode = StatusCode::NO_CONTENT;

impl Cluster {
    /// Sends a request to a node until its status is not 503. The request must be repeatable.
    async fn request(
        &self,
        node: u64,
        (method, path, body): (Method, &str, &str),
        headers: &[(&str, &str)],
    ) -> (StatusCode, String) {
        let uri = format!("http://{}{path}", self.nodes[&node].address());
        let start = Instant::now();
        loop {
            let mut request = Request::builder().method(&method).uri(&uri);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(Body::from(body.to_owned())).unwrap();
            let (status, text) = send(&self.client, request).await.unwrap();
            let text = String::from_utf8(text.to_vec()).unwrap();
            if status != StatusCode::SERVICE_UNAVAILABLE {
                return (status, text.trim_end().to_owned());
            }
            assert!(start.elapsed() < DEADLINE, "{method} {path}: {text}");
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn expect(
        &self,
        node: u64,
        request: (Method, &str, &str),
        headers: &[(&str, &str)],
        status: StatusCode,
        body: &str,
    ) {
        let (found, text) = self.request(node, request.clone(), headers).await;
        assert_eq!((found, &*text), (status, body), "{} {} {headers:?}", request.0, request.1);
    }

    async fn register(&self, node: u64) -> u64 {
        let (status, id) = self.request(node, (Method::POST, "/clients", ""), &[]).await;
        assert_eq!(status, StatusCode::OK, "{id}");
        id.parse().unwrap()
    }

    async fn expect_value(&self, node: u64, path: &str, value: Option<&str>) {
        let (status, body) = match value {
            Some(value) => (StatusCode::OK, value),
            None => (StatusCode::NOT_FOUND, "not found"),
        };
        self.expect(node, (Method::GET, path, ""), &[], status, body).await;
    }

    async fn expect_done(&self, node: u64, method: Method, path: &str, body: &str) {
        self.expect(node, (method, path, body), &[], DONE, "").await;
    }
}

#[test]
fn any_node_executes_requests_and_the_leader_can_fail() {
    time_test();
    run(async {
        let mut cluster = Cluster::start(3, None).await;
        let path = "/kv/a%20b";
        cluster.expect_value(1, path, None).await;
        cluster.expect_done(1, Method::PUT, path, "red").await;
        cluster.expect_value(3, path, Some("red")).await;
        cluster.expect_done(2, Method::PUT, "/kv/c", "").await;
        cluster.expect_value(1, "/kv/c", Some("")).await;
        cluster.expect_done(3, Method::DELETE, "/kv/c", "").await;
        cluster.expect_value(2, "/kv/c", None).await;

        let leader = cluster.await_leader(|_| true).await;
        cluster.kill(leader).await;
        let next = cluster.await_leader(|id| id != leader).await;
        cluster.expect_value(next, path, Some("red")).await;
        cluster.restart(leader, None).await;
        cluster.finish().await;
    });
}

#[test]
fn requests_of_clients_are_applied_once() {
    time_test();
    run(async {
        let cluster = Cluster::start(3, None).await;
        let post = (Method::POST, "/kv/a", "x");
        let (first, second) = (cluster.register(1).await, cluster.register(2).await);
        assert!(second > first);
        let expect = async |node, client: u64, number, status, body| {
            let headers = [(CLIENT_ID, &*client.to_string()), (REQUEST_NUMBER, number)];
            cluster.expect(node, post.clone(), &headers, status, body).await;
        };
        expect(1, first, "1", DONE, "").await;
        expect(2, first, "1", DONE, "").await;
        cluster.expect_value(3, "/kv/a", Some("x")).await;
        expect(3, second, "1", DONE, "").await;
        expect(3, first, "2", DONE, "").await;
        cluster.expect_value(3, "/kv/a", Some("xxx")).await;
        expect(1, first, "1", StatusCode::CONFLICT, "the client has sent a later request").await;
        let (gone, unknown) = (StatusCode::GONE, "the client must register again");
        expect(1, second + 1_000, "1", gone, unknown).await;
        for number in ["x", "0", "-1"] {
            let error = "request-number is not a positive number";
            expect(1, first, number, StatusCode::BAD_REQUEST, error).await;
        }
        let half = [(CLIENT_ID, "1")];
        let error = "client-id and request-number belong together";
        cluster.expect(1, post.clone(), &half, StatusCode::BAD_REQUEST, error).await;

        // The registration of further clients ends the oldest one.
        let mut last = second;
        while last < first + 100 {
            last = cluster.register(1).await;
        }
        expect(1, first, "3", gone, unknown).await;
        expect(1, last, "1", DONE, "").await;
        cluster.expect_value(2, "/kv/a", Some("xxxx")).await;
        cluster.finish().await;
    });
}

#[test]
fn refused_request_of_a_client_stays_refused() {
    time_test();
    run(async {
        let cluster = Cluster::start(3, None).await;
        let client = cluster.register(1).await.to_string();
        cluster.expect_done(1, Method::PUT, "/kv/a", &"v".repeat(64 << 10)).await;
        let append = async |node, number, status, body| {
            let headers = [(CLIENT_ID, &*client), (REQUEST_NUMBER, number)];
            cluster.expect(node, (Method::POST, "/kv/a", "x"), &headers, status, body).await;
        };
        let error = "the value would be longer than 65536 bytes";
        append(1, "1", StatusCode::PAYLOAD_TOO_LARGE, error).await;
        cluster.expect_done(2, Method::DELETE, "/kv/a", "").await;
        // A copy of the request that was delayed.
        append(3, "1", StatusCode::PAYLOAD_TOO_LARGE, error).await;
        cluster.expect_value(1, "/kv/a", None).await;
        append(2, "2", DONE, "").await;
        append(3, "2", DONE, "").await;
        cluster.expect_value(1, "/kv/a", Some("x")).await;
        cluster.finish().await;
    });
}

#[test]
fn invalid_requests_are_refused() {
    time_test();
    run(async {
        let cluster = Cluster::start(3, None).await;
        let largest = "v".repeat(64 << 10);
        cluster.expect_done(1, Method::PUT, "/kv/a", &largest).await;
        cluster.expect_value(2, "/kv/a", Some(&largest)).await;
        let too_long = StatusCode::PAYLOAD_TOO_LARGE;
        let error = "the value would be longer than 65536 bytes";
        cluster.expect(1, (Method::POST, "/kv/a", "v"), &[], too_long, error).await;
        let longer = largest + "v";
        let error = "Failed to buffer the request body: length limit exceeded";
        cluster.expect(2, (Method::PUT, "/kv/a", &longer), &[], too_long, error).await;
        let (long_key, bad) = (format!("/kv/{}", "k".repeat(1025)), StatusCode::BAD_REQUEST);
        let error = "the key is longer than 1024 bytes";
        cluster.expect(1, (Method::PUT, &long_key, ""), &[], bad, error).await;
        let error = "EOF while parsing a list at line 1 column 2";
        cluster.expect(1, (Method::PUT, "/cluster/voters", "[1"), &[], bad, error).await;
        let again = cluster.request(1, (Method::POST, "/cluster/init", "{}"), &[]).await;
        assert_eq!(again.0, StatusCode::CONFLICT, "{}", again.1);
        let absent = cluster.request(1, (Method::PUT, "/cluster/voters", "[1,2,7]"), &[]).await;
        assert_eq!(absent.0, StatusCode::CONFLICT, "{}", absent.1);
        let vote = cluster.request(1, (Method::POST, "/raft/vote", "x"), &[]).await;
        assert_eq!(vote.0, bad, "{}", vote.1);
        cluster.finish().await;
    });
}

#[test]
fn large_body_is_refused_by_each_node() {
    time_test();
    run(async {
        let cluster = Cluster::start(3, None).await;
        for node in 1..=3 {
            let start = Instant::now();
            let status = loop {
                let status = send_large_body(cluster.nodes[&node].address()).await;
                // A node that does not know the leader responds with 503.
                if status != "HTTP/1.1 503" || start.elapsed() > DEADLINE {
                    break status;
                }
                sleep(POLL_INTERVAL).await;
            };
            assert_eq!(status, "HTTP/1.1 413", "node {node}");
        }
        cluster.finish().await;
    });
}

/// Sends a write of 64 MiB. Returns the start of the response.
async fn send_large_body(address: SocketAddr) -> String {
    let (mut response, mut request) = TcpStream::connect(address).await.unwrap().into_split();
    let bytes = 64 << 20;
    let head = format!("PUT /kv/a HTTP/1.1\r\nhost: a\r\ncontent-length: {bytes}\r\n\r\n");
    request.write_all(head.as_bytes()).await.unwrap();
    // The node closes the connection before it has received the body, so the write fails.
    tokio::spawn(async move { request.write_all(&vec![b'v'; bytes]).await });
    let mut status = [0; 12];
    response.read_exact(&mut status).await.unwrap();
    String::from_utf8(status.to_vec()).unwrap()
}

#[test]
fn learner_becomes_voter_and_metrics_are_served() {
    time_test();
    run(async {
        let mut cluster = Cluster::start(3, None).await;
        cluster.expect_done(1, Method::PUT, "/kv/a", "red").await;
        let learner = cluster.add_learner().await;
        cluster.expect_value(learner, "/kv/a", Some("red")).await;
        assert_eq!(cluster.status_until_answered(learner).await["state"], "Learner");
        let text = async |id| {
            let (_, body) = cluster.send(id, Method::GET, "/metrics", "").await.unwrap();
            String::from_utf8(body.to_vec()).unwrap()
        };
        let is_leader =
            |text: &str, id| text.contains(&format!("lsmx_kv_raft_is_leader{{node=\"{id}\"}} 1\n"));
        // The leader may change between the requests.
        let start = Instant::now();
        loop {
            let leader = cluster.await_leader(|_| true).await;
            let (of_leader, of_learner) = (text(leader).await, text(learner).await);
            assert!(!is_leader(&of_learner, learner) && of_learner.contains("lsmx_puts_total{"));
            let gauge = format!("lsmx_kv_raft_leader{{node=\"{learner}\"}} {leader}\n");
            if is_leader(&of_leader, leader) && of_learner.contains(&gauge) {
                break;
            }
            assert!(start.elapsed() < DEADLINE, "leader {leader}: {of_leader}\n{of_learner}");
            sleep(POLL_INTERVAL).await;
        }

        // The cluster needs the vote of the new member.
        cluster.administer(Method::PUT, "/cluster/voters", "[2,3,4]".to_owned()).await;
        let remaining = cluster.await_leader(|id| id != 1).await;
        cluster.kill(1).await;
        cluster.kill(if remaining == 2 { 3 } else { 2 }).await;
        let last = cluster.await_leader(|id| cluster.is_running(id)).await;
        cluster.expect_done(last, Method::PUT, "/kv/a", "blue").await;
        cluster.expect_value(learner, "/kv/a", Some("blue")).await;
        let configs = &cluster.status_until_answered(last).await["membership_config"];
        assert_eq!(configs["membership"]["configs"], json!([[2, 3, 4]]));
    });
}

#[test]
fn demo_starts_a_cluster_that_survives_a_restart() {
    time_test();
    // The demo uses three consecutive ports, below those that the system assigns.
    let first = 10_000 + u16::try_from(std::process::id() % 20_000).unwrap();
    let is_free = |port: &u16| (0..3).all(|id| TcpListener::bind(("127.0.0.1", port + id)).is_ok());
    let port = (first..32_000).step_by(3).find(is_free).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for expected in [StatusCode::NOT_FOUND, StatusCode::OK] {
        let mut demo = Command::new(env!("CARGO_BIN_EXE_lsmx-replicated-kv"));
        demo.arg("demo").arg(dir.path()).args(["--port", &port.to_string()]);
        let mut demo = demo.stdout(Stdio::null()).spawn().unwrap();
        run(async {
            let client = new_client(None);
            let uri = format!("http://127.0.0.1:{}/kv/a", port + 1);
            let attempt = async |method: Method, body: &'static str| loop {
                let request = Request::builder().method(method.clone()).uri(&uri);
                match send(&client, request.body(body.into()).unwrap()).await {
                    Ok((status, _)) if !status.is_server_error() => break status,
                    _ => sleep(POLL_INTERVAL).await,
                }
            };
            assert_eq!(attempt(Method::GET, "").await, expected);
            assert_eq!(attempt(Method::PUT, "red").await, DONE);
        });
        let pid = Pid::from_raw(demo.id().cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert!(demo.wait().unwrap().success());
    }
}

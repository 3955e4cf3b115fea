//! A node that is killed while it receives a snapshot.

use std::future::pending;
use std::time::Instant;

use axum::http::{Method, StatusCode};
use lsmx_testkit::{TestRng, time_test};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::cluster::{Cluster, DEADLINE, POLL_INTERVAL};
use crate::run;

/// Number of large values. The snapshot follows after 100 values, so that no large value is sent as a log entry.
const LARGE_VALUES: u32 = 90;
const LARGE_VALUE_BYTES: usize = 16 << 10;
/// Maximum of the bytes that are sent again: a frame of 256 KiB, the chunks with the first frame, and repeated chunks and heartbeats.
const SENT_AGAIN_BYTES_MAX: u64 = 2 << 20;

impl Cluster {
    /// Writes values that cannot be compressed much, until node 1 has a snapshot.
    async fn write_until_snapshot(&self) {
        tokio::join!(self.write_values(0), self.write_values(1), self.write_values(2));
    }

    /// Writes each third value, from the number `first` on.
    async fn write_values(&self, first: u32) {
        let mut rng = TestRng::new(first.into());
        for number in (first..1_000).step_by(3) {
            let character = |_| char::from(b'0' + rng.below(64_u8));
            let len = if number < LARGE_VALUES { LARGE_VALUE_BYTES } else { 8 };
            let value = (0..len).map(character).collect();
            self.administer(Method::PUT, &format!("/kv/{number}"), value).await;
            if self.snapshot().await != Value::Null {
                return;
            }
        }
        panic!("node 1 creates no snapshot");
    }

    /// Returns the log id of the current snapshot of node 1.
    async fn snapshot(&self) -> Value {
        self.status_until_answered(1).await["snapshot"].clone()
    }

    /// Adds a running process as a learner, and waits until other nodes have sent `bytes` bytes to it.
    async fn join_and_await_bytes(&self, id: u64, bytes: u64) {
        let mut transferred = self.nodes[&id].transferred().subscribe();
        let wait = transferred.wait_for(|transferred| transferred.bytes >= bytes);
        // The request may wait for the data.
        let join = async {
            let path = format!("/cluster/nodes/{id}");
            let joined = self.send(1, Method::PUT, &path, self.proxy_address(id)).await;
            assert_eq!(joined.unwrap().0, StatusCode::NO_CONTENT);
            pending::<()>().await;
        };
        tokio::select! {
            waited = timeout(DEADLINE * 5, wait) => drop(waited.expect("bytes are sent").unwrap()),
            () = join => {}
        }
    }

    /// Waits until a node has applied all entries. Returns the number of bytes that other nodes have sent to it.
    async fn await_data(&self, id: u64) -> u64 {
        let start = Instant::now();
        let applied = async |id| self.status_until_answered(id).await["last_applied"].clone();
        while applied(id).await == Value::Null || applied(id).await != applied(1).await {
            let status = self.status(id).await;
            assert!(start.elapsed() < DEADLINE * 5, "{status:?}: {}", self.errors());
            sleep(POLL_INTERVAL).await;
        }
        let transferred = self.nodes[&id].transferred();
        let transferred = transferred.borrow();
        transferred.bytes
    }
}

#[test]
fn killed_receiver_of_a_snapshot_continues_after_its_restart() {
    time_test();
    run(async {
        // The only voter stays the leader on a slow machine, too.
        let mut cluster = Cluster::start(1, None).await;
        cluster.write_until_snapshot().await;
        let snapshot = cluster.snapshot().await;
        let whole = cluster.add_process().await;
        cluster.join_and_await_bytes(whole, 1).await;
        let whole_bytes = cluster.await_data(whole).await;
        assert!(whole_bytes / 2 > SENT_AGAIN_BYTES_MAX, "{whole_bytes}");

        let killed = cluster.add_process().await;
        let transferred = cluster.nodes[&killed].transferred();
        transferred.send_modify(|transferred| transferred.bytes_max = whole_bytes / 2);
        cluster.join_and_await_bytes(killed, whole_bytes / 2).await;
        cluster.kill(killed).await;
        transferred.send_modify(|transferred| transferred.bytes_max = u64::MAX);
        cluster.restart(killed, None).await;
        let bytes = cluster.await_data(killed).await;
        println!("{whole_bytes} bytes without a restart, {bytes} with one");
        assert!(bytes <= whole_bytes + SENT_AGAIN_BYTES_MAX, "{bytes} of {whole_bytes}");
        assert_eq!(cluster.snapshot().await, snapshot);
        cluster.finish().await;
    });
}

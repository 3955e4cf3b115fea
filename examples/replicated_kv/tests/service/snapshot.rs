//! A node that is killed while it receives a snapshot.

use axum::http::Method;
use lsmx_testkit::{TestRng, time_test};
use serde_json::Value;
use tokio::time::timeout;

use crate::cluster::{Cluster, DEADLINE};
use crate::run;

/// Maximum of the bytes that are sent again: three chunks of 1 MiB, and requests without data of the snapshot.
const SENT_AGAIN_BYTES_MAX: u64 = 4 << 20;

impl Cluster {
    /// Writes values that cannot be compressed much, until node 1 has a snapshot.
    async fn write_until_snapshot(&self) {
        let mut rng = TestRng::new(1);
        for number in 0..1_000 {
            let character = |_| char::from(b'0' + rng.below(64_u8));
            let value = (0..64 << 10).map(character).collect();
            self.administer(Method::PUT, &format!("/kv/{number}"), value).await;
            if self.snapshot().await != Value::Null {
                return;
            }
        }
        panic!("node 1 creates no snapshot");
    }

    /// Returns the log id of the current snapshot of node 1.
    async fn snapshot(&self) -> Value {
        self.status(1).await.map_or(Value::Null, |status| status["snapshot"].clone())
    }

    /// Adds a learner that is killed after `bytes_max` transferred bytes and started again. Returns the number of bytes that were
    /// transferred to it.
    async fn add_learner_and_kill_it(&mut self, bytes_max: u64) -> u64 {
        let id = self.add_process().await;
        let transferred = self.nodes[&id].transferred();
        transferred.send_modify(|transferred| transferred.bytes_max = bytes_max);
        let mut stalled = transferred.subscribe();
        let stalled = async {
            let wait = stalled.wait_for(|transferred| transferred.bytes >= bytes_max);
            drop(timeout(DEADLINE, wait).await.expect("the transfer stalls").unwrap());
        };
        tokio::select! {
            () = stalled => {}
            () = self.join(id) => panic!("the transfer ends before it stalls"),
        }
        self.kill(id).await;
        transferred.send_modify(|transferred| transferred.bytes_max = u64::MAX);
        self.restart(id, None).await;
        self.join(id).await;
        let transferred = transferred.borrow().bytes;
        transferred
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
        let whole = cluster.add_learner().await;
        let whole_bytes = cluster.nodes[&whole].transferred().borrow().bytes;
        assert!(whole_bytes / 2 > SENT_AGAIN_BYTES_MAX, "{whole_bytes}");
        let bytes = cluster.add_learner_and_kill_it(whole_bytes / 2).await;
        println!("{whole_bytes} bytes without a restart, {bytes} with one");
        assert!(bytes <= whole_bytes + SENT_AGAIN_BYTES_MAX, "{bytes} of {whole_bytes}");
        assert_eq!(cluster.snapshot().await, snapshot);
        cluster.finish().await;
    });
}

//! The checker finds deliberate bugs of the service.

use lsmx_replicated_kv::testing::Bug;
use lsmx_testkit::seed;

use crate::checker::Call;
use crate::cluster::Cluster;
use crate::proxy::{Cut, CutLinks};
use crate::run;
use crate::workload::{Recorder, Shared, find_violation};

/// Cuts off a leader that does not notice it, writes with its successor, and reads from the old leader. Returns whether the
/// history is linearizable.
async fn read_from_old_leader(bug: Option<Bug>) -> bool {
    let cluster = Cluster::start(3, bug).await;
    let shared = Shared::new(cluster.addresses());
    let mut client = Recorder::new(&shared, seed(), 1);
    let old = cluster.await_leader(|_| true).await;
    let old_address = cluster.nodes[&old].address();
    client.write("a", Call::Put("old".to_owned()), old_address, false).await;
    cluster.isolate(&[old], Cut::Stall);
    let new = cluster.await_leader(|id| id != old).await;
    let new_address = cluster.nodes[&new].address();
    client.write("a", Call::Put("new".to_owned()), new_address, false).await;
    let new_value = client.get_until_answered("a", Some(new_address)).await;
    if bug.is_some() {
        // With the bug, the read from the new leader may be stale, too. The history then contains a violation already.
        client.get_until_answered("a", Some(old_address)).await;
    } else {
        assert_eq!(new_value.as_deref(), Some("new"));
        assert_eq!(client.get("a", Some(old_address)).await, None);
    }
    let is_linearizable = find_violation(&client.history).is_none();
    cluster.cut(CutLinks::new());
    cluster.finish().await;
    is_linearizable
}

#[test]
fn old_leader_does_not_answer_reads() {
    assert!(run(read_from_old_leader(None)));
}

#[test]
fn checker_read_without_read_index_is_found() {
    assert!(!run(read_from_old_leader(Some(Bug::StaleRead))));
}

/// Loses the response of a write, repeats the request and reads. Returns whether the history is linearizable.
async fn repeat_after_lost_response(bug: Option<Bug>) -> bool {
    let cluster = Cluster::start(3, bug).await;
    let node = cluster.nodes[&1].address();
    let mut client = Recorder::new(&Shared::new(cluster.addresses()), seed(), 1);
    client.write("a", Call::Append("x".to_owned()), node, true).await;
    client.get_until_answered("a", None).await;
    cluster.finish().await;
    find_violation(&client.history).is_none()
}

#[test]
fn repeated_request_is_applied_once() {
    assert!(run(repeat_after_lost_response(None)));
}

#[test]
fn checker_retry_applied_twice_is_found() {
    assert!(!run(repeat_after_lost_response(Some(Bug::RetryAppliedTwice))));
}

//! Metrics in the text format of Prometheus.

use std::fmt::Write as _;

use openraft::{BasicNode, RaftMetrics};

/// Returns the metrics of the database and of the Raft instance.
pub(crate) fn metrics_text(database: &lsmx::Metrics, raft: &RaftMetrics<u64, BasicNode>) -> String {
    let node = raft.id.to_string();
    let mut text = database.to_prometheus(&[("node", &node)]);
    let leader = raft.current_leader.unwrap_or(0);
    let applied = raft.last_applied.map(|log_id| log_id.index);
    let snapshot = raft.snapshot.map(|log_id| log_id.index);
    let gauges = [
        ("term", "Current term.", Some(raft.current_term)),
        ("leader", "Id of the leader, 0 if unknown.", Some(leader)),
        ("is_leader", "1 if this node is the leader, else 0.", Some(u64::from(leader == raft.id))),
        ("last_log_index", "Index of the last log entry.", raft.last_log_index),
        ("applied_index", "Index of the last applied log entry.", applied),
        ("snapshot_index", "Index of the last log entry in the snapshot.", snapshot),
    ];
    for (name, help, value) in gauges {
        let Some(value) = value else { continue };
        let name = format!("lsmx_kv_raft_{name}");
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        let _ = writeln!(text, "{name}{{node=\"{node}\"}} {value}");
    }
    text
}

//! Three nodes on one machine.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::http::{Request, StatusCode};

use crate::http::{new_client, send};

const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Starts three nodes with directories in `dir` as child processes, and forms a cluster. The nodes listen on consecutive
/// ports of 127.0.0.1. Stops them when `stop` completes.
///
/// # Errors
/// A process cannot be started, or the first node cannot be initialized.
#[expect(clippy::print_stdout, reason = "the user needs the process ids")]
pub async fn run_demo(dir: &Path, port: u16, stop: impl Future<Output = ()>) -> io::Result<()> {
    let addresses: BTreeMap<u64, String> =
        (1..=3_u16).map(|id| (u64::from(id), format!("127.0.0.1:{}", port + id - 1))).collect();
    let mut children = Vec::new();
    for (id, address) in &addresses {
        let child = start_node(&dir.join(id.to_string()), *id, address)?;
        println!("node {id}: http://{address}, process {}", child.id());
        children.push(child);
    }
    let running = async {
        form_cluster(&addresses, &mut children).await?;
        println!("The cluster is running. Stop it with Ctrl-C.");
        std::future::pending::<io::Result<()>>().await
    };
    tokio::select! {
        failed = running => failed?,
        () = stop => {}
    }
    for mut child in children {
        drop(child.stdin.take());
        let status = child.wait()?;
        println!("process {} ended: {status}", child.id());
    }
    Ok(())
}

fn start_node(dir: &Path, id: u64, address: &str) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("serve").arg(dir).args(["--id", &id.to_string(), "--listen", address]);
    command.arg("--stop-with-stdin").stdin(Stdio::piped()).stdout(Stdio::null());
    command.spawn()
}

/// Initializes the cluster, unless its directories already contain one.
async fn form_cluster(addresses: &BTreeMap<u64, String>, children: &mut [Child]) -> io::Result<()> {
    let client = new_client(None);
    let uri = format!("http://{}/cluster/init", addresses[&1]);
    let members = serde_json::to_vec(addresses)?;
    loop {
        let request = Request::post(&uri).body(members.clone().into()).map_err(io::Error::other)?;
        match send(&client, request).await {
            Ok((StatusCode::NO_CONTENT | StatusCode::CONFLICT, _)) => return Ok(()),
            Ok((status, _)) => return Err(io::Error::other(format!("POST {uri}: {status}"))),
            Err(_) => {
                let mut statuses = children.iter_mut().filter_map(|it| it.try_wait().transpose());
                if let Some(status) = statuses.next() {
                    return Err(io::Error::other(format!("a node ended: {}", status?)));
                }
                // The node has not started yet.
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

//! The command line of the replicated key-value service.

#![allow(clippy::print_stdout, reason = "a program prints")]

use std::error::Error;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use lsmx_replicated_kv::{NodeOptions, SNAPSHOT_INTERVAL_DEFAULT, run_demo, run_node};
use tokio::sync::Notify;

/// A replicated key-value service over HTTP
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one node
    Serve {
        /// Directory of the node
        dir: PathBuf,
        /// Id of the node. A node that has lost its directory needs a new id
        #[arg(long)]
        id: u64,
        /// Address for requests of clients and of other nodes
        #[arg(long, default_value = "127.0.0.1:7001")]
        listen: SocketAddr,
        /// Number of log entries from one snapshot to the next
        #[arg(long, default_value_t = SNAPSHOT_INTERVAL_DEFAULT, value_name = "N")]
        snapshot_interval: u64,
        /// Stop the node when standard input ends
        #[arg(long)]
        stop_with_stdin: bool,
    },
    /// Run three nodes on this machine
    Demo {
        /// Directory for the directories of the nodes
        dir: PathBuf,
        /// Port of the first node. The others use the next two ports
        #[arg(long, default_value_t = 7001, value_parser = clap::value_parser!(u16).range(1..=65533))]
        port: u16,
    },
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let stop = Arc::new(Notify::new());
    let on_signal = Arc::clone(&stop);
    ctrlc::set_handler(move || on_signal.notify_one())?;
    match Arguments::parse().command {
        Command::Demo { dir, port } => run_demo(&dir, port, stop.notified()).await?,
        Command::Serve { dir, id, listen, snapshot_interval, stop_with_stdin } => {
            if stop_with_stdin {
                let on_end = Arc::clone(&stop);
                std::thread::Builder::new().spawn(move || {
                    let _ = std::io::stdin().read_to_end(&mut Vec::new());
                    on_end.notify_one();
                })?;
            }
            let options = NodeOptions { id, dir, listen, snapshot_interval };
            let started = |address| println!("listening on {address}");
            run_node(options, started, stop.notified()).await?;
        }
    }
    Ok(())
}

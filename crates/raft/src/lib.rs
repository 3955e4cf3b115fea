//! Storage of [`openraft`] 0.9 on one lsmx database: the log, the vote, the state machine and its snapshots.
//!
//! [`open`] returns a [`LogStore`] and a [`StateMachine`] for `openraft::Raft::new`. The application implements [`Application`],
//! which applies a command to the [`State`], and the network of openraft. A [`StateReader`] reads the state.
//!
//! This program is a cluster of one node:
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//!
//! use lsmx_raft::{Application, SnapshotStream, State, StoreOptions};
//! use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
//! use openraft::network::RPCOption;
//! use openraft::raft::{
//!     AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
//!     VoteRequest, VoteResponse,
//! };
//! use openraft::{BasicNode, Config, Raft, RaftNetwork, RaftNetworkFactory};
//!
//! // The types of the application. The response of a command is the new stock.
//! #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
//! pub enum Command {
//!     Add { item: String, count: u64 },
//!     Sell { item: String },
//! }
//! openraft::declare_raft_types!(
//!     pub Types: D = Command, R = Option<u64>, SnapshotData = SnapshotStream
//! );
//!
//! struct Stock;
//!
//! impl Application<Types> for Stock {
//!     fn apply(&self, state: &State<'_>, command: &Command) -> lsmx::Result<Option<u64>> {
//!         let (Command::Add { item, .. } | Command::Sell { item }) = command;
//!         let stored = state.get(item)?.and_then(|count| count.as_ref().try_into().ok());
//!         let count = stored.map_or(0, u64::from_le_bytes);
//!         let count = match command {
//!             Command::Add { count: added, .. } => count + added,
//!             Command::Sell { .. } if count == 0 => return Ok(None), // refused
//!             Command::Sell { .. } => count - 1,
//!         };
//!         state.put(item, count.to_le_bytes())?;
//!         Ok(Some(count))
//!     }
//!
//!     fn empty_response(&self) -> Option<u64> {
//!         None
//!     }
//! }
//!
//! // A network without other nodes. A real one sends the requests to the target, which calls the functions of the same
//! // names of its `Raft`.
//! struct NoNetwork;
//! type Failure<E = RaftError<u64>> = RPCError<u64, BasicNode, E>;
//!
//! fn unreachable<E: std::error::Error>() -> Failure<E> {
//!     RPCError::Unreachable(Unreachable::new(&std::io::Error::other("no such node")))
//! }
//!
//! impl RaftNetworkFactory<Types> for NoNetwork {
//!     type Network = NoNetwork;
//!     async fn new_client(&mut self, _target: u64, _node: &BasicNode) -> NoNetwork {
//!         NoNetwork
//!     }
//! }
//!
//! impl RaftNetwork<Types> for NoNetwork {
//!     async fn append_entries(
//!         &mut self,
//!         _request: AppendEntriesRequest<Types>,
//!         _option: RPCOption,
//!     ) -> Result<AppendEntriesResponse<u64>, Failure> {
//!         Err(unreachable())
//!     }
//!     async fn install_snapshot(
//!         &mut self,
//!         _request: InstallSnapshotRequest<Types>,
//!         _option: RPCOption,
//!     ) -> Result<InstallSnapshotResponse<u64>, Failure<RaftError<u64, InstallSnapshotError>>> {
//!         Err(unreachable())
//!     }
//!     async fn vote(
//!         &mut self,
//!         _request: VoteRequest<u64>,
//!         _option: RPCOption,
//!     ) -> Result<VoteResponse<u64>, Failure> {
//!         Err(unreachable())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # tokio::runtime::Builder::new_multi_thread().enable_time().build()?.block_on(async {
//! let (log, state_machine) =
//!     lsmx_raft::open(dir.path(), Stock, StoreOptions::default()).await?;
//! let (db, reader) = (log.db().clone(), state_machine.reader());
//! let config = Arc::new(Config::default().validate()?);
//! let raft = Raft::<Types>::new(1, config, NoNetwork, log, state_machine).await?;
//! raft.initialize(BTreeMap::from([(1, BasicNode::new("127.0.0.1:7000"))])).await?;
//! raft.wait(None).current_leader(1, "elected").await?;
//!
//! let add = Command::Add { item: "apple".to_owned(), count: 3 };
//! assert_eq!(raft.client_write(add).await?.data, Some(3));
//! let sell = Command::Sell { item: "apple".to_owned() };
//! assert_eq!(raft.client_write(sell).await?.data, Some(2));
//!
//! // A read that shows all writes that completed before it.
//! raft.ensure_linearizable().await?;
//! let apples = reader.read(|view| view.get("apple")).await?;
//! assert_eq!(apples.as_deref(), Some(&2_u64.to_le_bytes()[..]));
//!
//! raft.shutdown().await?;
//! db.close(None).await?;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! # Durability
//!
//! The vote and log entries are on stable storage before openraft continues. Applied entries are not synced. Log, vote and
//! state machine are keyspaces of one database, so recovery restores a prefix of their commits. After a power loss, the
//! state machine may be older, but then the log still contains the entries that are missing in it, and openraft applies them again.
//!
//! # Snapshots
//!
//! A snapshot is a checkpoint of the database, whose tables are hard links. Its stream is produced from the files while it is
//! sent, and each 256 KiB have a checksum. The receiver verifies and unpacks the stream while it arrives. An installation
//! copies the received state into a new keyspace and exchanges the state machine by one synced commit. A crash leaves either
//! the old or the new state. The verified part of a stream survives a restart of the receiver, and [`SnapshotResume`] avoids that
//! it is sent again. `docs/design/raft.md` in the repository describes the design, and `docs/guide/replication.md` the
//! use.
//!
//! # Encoding
//!
//! Records and log entries are encoded by [`postcard`]. The types of commands need `Serialize` and `Deserialize`, and must
//! not require a self-describing format. A new version of a program must be able to decode the entries of the old one: add
//! variants of an enum at its end, and do not change existing variants.

mod application;
mod build_install;
mod config;
mod error;
mod log_store;
mod open;
mod options;
mod record;
mod snapshot;
mod state_machine;
mod state_reader;
mod store;

pub use crate::application::{Application, State};
pub use crate::config::StoreConfig;
pub use crate::error::{Error, StreamFault};
pub use crate::log_store::LogStore;
pub use crate::open::open;
pub use crate::options::StoreOptions;
pub use crate::snapshot::resume::{SnapshotReceipt, SnapshotResume};
pub use crate::snapshot::stream::SnapshotStream;
pub use crate::state_machine::{SnapshotBuilder, StateMachine};
pub use crate::state_reader::{StateReader, StateView};

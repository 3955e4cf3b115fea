//! Counters as a replicated application, and helpers of the tests.

use std::sync::Arc;

use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Options, Result};
use lsmx_raft::{Application, LogStore, SnapshotStream, State, StateMachine, StoreOptions};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};
use serde::{Deserialize, Serialize};

openraft::declare_raft_types!(
    pub(crate) Types: D = Command, R = Option<i64>, SnapshotData = SnapshotStream
);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Adds to a counter and returns the sum.
    Add(String, i64),
    /// Stores a value.
    Put(String, Vec<u8>),
    /// Deletes all counters with a prefix and returns their number.
    Clear(String),
    Panic,
}

#[derive(Debug, Default)]
pub(crate) struct Counters;

pub(crate) fn decode_count(value: &[u8]) -> i64 {
    value.try_into().map_or(0, i64::from_le_bytes)
}

impl Application<Types> for Counters {
    fn apply(&self, state: &State<'_>, command: &Command) -> Result<Option<i64>> {
        match command {
            Command::Add(key, delta) => {
                let sum = state.get(key)?.map_or(0, |value| decode_count(&value)) + delta;
                state.put(key, sum.to_le_bytes())?;
                Ok(Some(sum))
            }
            Command::Put(key, value) => state.put(key, value).map(|()| None),
            Command::Clear(prefix) => {
                let keys = state.prefix(prefix).map(|entry| Ok(entry?.0));
                let keys: Vec<_> = keys.collect::<Result<_>>()?;
                keys.iter().try_for_each(|key| state.delete(key))?;
                Ok(i64::try_from(keys.len()).ok())
            }
            Command::Panic => panic!("the command panics"),
        }
    }

    fn empty_response(&self) -> Option<i64> {
        None
    }
}

pub(crate) type Stores = (LogStore<Types>, StateMachine<Types, Counters>);

pub(crate) fn options(vfs: Arc<dyn Vfs>) -> StoreOptions {
    StoreOptions::default().db(Options::default().memory_budget(16 << 20)).vfs(vfs)
}

pub(crate) async fn open_in_memory(vfs: &MemVfs) -> Stores {
    lsmx_raft::open("node", Counters, options(Arc::new(vfs.clone()))).await.unwrap()
}

pub(crate) fn log_id(index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(1, 1), index)
}

pub(crate) fn entry(index: u64, command: Command) -> Entry<Types> {
    Entry { log_id: log_id(index), payload: EntryPayload::Normal(command) }
}

pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_time().build().unwrap().block_on(test)
}

//! Operations of openraft on the storage, and a model of their results.

use std::collections::BTreeMap;

use lsmx::vfs::MemVfs;
use lsmx_raft::StateReader;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::{Entry, EntryPayload, LogId, Membership, RaftLogReader, RaftSnapshotBuilder, Vote};
use tokio::io::AsyncWriteExt;

use crate::application::{Command, Stores, Types, decode_count, entry, log_id, open_in_memory};

/// An operation. Numbers are reduced to what the state of the model permits.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Vote,
    Append(u8),
    Truncate(u8),
    Purge(u8),
    Apply(u8),
    BuildSnapshot,
    /// Installs a snapshot whose state is ahead of this node by this number of entries.
    InstallSnapshot(u8),
}

/// The contents of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Model {
    pub(crate) vote: Option<Vote<u64>>,
    pub(crate) log: BTreeMap<u64, Entry<Types>>,
    pub(crate) purged: Option<LogId<u64>>,
    pub(crate) applied: Option<LogId<u64>>,
    pub(crate) membership: Option<LogId<u64>>,
    pub(crate) counters: BTreeMap<Vec<u8>, i64>,
    pub(crate) snapshot: Option<LogId<u64>>,
}

/// Returns the entry that all histories have at an index.
pub(crate) fn entry_at(index: u64) -> Entry<Types> {
    let key = format!("counter {}", index % 5);
    match index % 11 {
        0 => entry(index, Command::Clear("counter 1".to_owned())),
        7 => {
            let members = Membership::new(vec![[index].into()], None);
            Entry { log_id: log_id(index), payload: EntryPayload::Membership(members) }
        }
        _ => entry(index, Command::Add(key, i64::try_from(index).unwrap())),
    }
}

impl Model {
    fn next_index(&self) -> u64 {
        let last = self.log.last_key_value().map(|(&index, _)| index);
        last.max(self.purged.map(|id| id.index)).map_or(0, |index| index + 1)
    }

    fn apply(&mut self, entry: &Entry<Types>) {
        self.applied = Some(entry.log_id);
        match &entry.payload {
            EntryPayload::Normal(Command::Add(key, delta)) => {
                *self.counters.entry(key.clone().into_bytes()).or_default() += delta;
            }
            EntryPayload::Normal(Command::Clear(prefix)) => {
                self.counters.retain(|key, _| !key.starts_with(prefix.as_bytes()));
            }
            EntryPayload::Membership(_) => self.membership = Some(entry.log_id),
            _ => {}
        }
    }

    /// Returns the next entries to apply.
    fn unapplied(&self, count: u8) -> Vec<Entry<Types>> {
        let from = self.applied.map_or(0, |id| id.index + 1);
        let entries = self.log.range(from..).map(|(_, entry)| entry.clone());
        entries.take(usize::from(count)).collect()
    }

    /// Reads the contents of a store.
    pub(crate) async fn read(stores: &mut Stores) -> Model {
        let (log, state_machine) = stores;
        let (applied, membership) = state_machine.applied_state().await.unwrap();
        let reader: StateReader<Types> = state_machine.reader();
        let counters = reader.read(|view| {
            assert_eq!(view.last_applied().unwrap(), view.last_applied().unwrap());
            view.range::<&[u8]>(..)
                .map(|it| it.map(|(k, v)| (k.to_vec(), decode_count(&v))))
                .collect()
        });
        let entries = log.try_get_log_entries(..).await.unwrap();
        let state = log.get_log_state().await.unwrap();
        let last = entries.last().map(|entry| entry.log_id).or(state.last_purged_log_id);
        assert_eq!(state.last_log_id, last);
        Model {
            vote: log.read_vote().await.unwrap(),
            log: entries.into_iter().map(|entry| (entry.log_id.index, entry)).collect(),
            purged: state.last_purged_log_id,
            applied,
            membership: *membership.log_id(),
            counters: counters.await.unwrap(),
            snapshot: state_machine
                .get_current_snapshot()
                .await
                .unwrap()
                .and_then(|snapshot| snapshot.meta.last_log_id),
        }
    }

    /// Divides an operation into the calls of the storage that are durable one after the other.
    pub(crate) fn steps(&self, operation: &Operation) -> Vec<Step> {
        let last_index = self.next_index().checked_sub(1);
        match *operation {
            Operation::Vote => vec![Step::Vote],
            Operation::Append(count) => {
                let first = self.next_index();
                vec![Step::Append((first..=first + u64::from(count)).map(entry_at).collect())]
            }
            Operation::Truncate(count) => {
                let applied = self.applied.map_or(0, |id| id.index + 1);
                let first = self.next_index().saturating_sub(u64::from(count)).max(applied);
                vec![Step::Truncate(log_id(first))]
            }
            Operation::Purge(count) => {
                let first = self.log.first_key_value().map_or(0, |(&index, _)| index);
                let last = (first + u64::from(count)).min(last_index.unwrap_or(0));
                match self.applied {
                    Some(applied)
                        if applied.index >= last && Some(last) > self.purged.map(|id| id.index) =>
                    {
                        vec![Step::Purge(log_id(last))]
                    }
                    _ => vec![],
                }
            }
            Operation::Apply(count) => match self.unapplied(count) {
                entries if entries.is_empty() => vec![],
                entries => vec![Step::Apply(entries)],
            },
            Operation::BuildSnapshot => vec![Step::BuildSnapshot],
            Operation::InstallSnapshot(count) => {
                let last = self.applied.map(|id| id.index).max(last_index);
                let last = last.map_or(0, |index| index + 1) + u64::from(count);
                vec![Step::InstallSnapshot(last)]
            }
        }
    }
}

/// A call of the storage.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Vote,
    Append(Vec<Entry<Types>>),
    Truncate(LogId<u64>),
    Purge(LogId<u64>),
    Apply(Vec<Entry<Types>>),
    BuildSnapshot,
    /// Installs the state after the entry with this index. As openraft does, purges the log before the installation.
    InstallSnapshot(u64),
}

impl Step {
    /// Returns whether the result is durable when the call has returned.
    pub(crate) fn is_synced(&self) -> bool {
        !matches!(self, Step::Truncate(_) | Step::Purge(_) | Step::Apply(_))
    }

    pub(crate) fn apply_to_model(&self, model: &mut Model) {
        match self {
            Step::Vote => {
                let term = model.vote.map_or(1, |vote| vote.leader_id.term + 1);
                model.vote = Some(Vote::new(term, 1));
            }
            Step::Append(entries) => {
                model.log.extend(entries.iter().map(|entry| (entry.log_id.index, entry.clone())));
            }
            Step::Truncate(from) => drop(model.log.split_off(&from.index)),
            Step::Purge(to) => {
                model.log = model.log.split_off(&(to.index + 1));
                model.purged = Some(*to);
            }
            Step::Apply(entries) => entries.iter().for_each(|entry| model.apply(entry)),
            Step::BuildSnapshot => model.snapshot = model.applied,
            Step::InstallSnapshot(last) => {
                (model.counters, model.membership) = Default::default();
                (0..=*last).for_each(|index| model.apply(&entry_at(index)));
                model.snapshot = model.applied;
                Step::Purge(log_id(*last)).apply_to_model(model);
            }
        }
    }

    pub(crate) async fn call(&self, stores: &mut Stores, model: &Model) {
        let (log, state_machine) = stores;
        match self {
            Step::Vote => log.save_vote(&model.vote.unwrap()).await.unwrap(),
            Step::Append(entries) => log.blocking_append(entries.clone()).await.unwrap(),
            Step::Truncate(from) => log.truncate(*from).await.unwrap(),
            Step::Purge(to) => log.purge(*to).await.unwrap(),
            Step::Apply(entries) => {
                let responses = state_machine.apply(entries.clone()).await.unwrap();
                assert_eq!(responses.len(), entries.len());
            }
            Step::BuildSnapshot => {
                let mut builder = state_machine.get_snapshot_builder().await;
                builder.build_snapshot().await.unwrap();
            }
            Step::InstallSnapshot(last) => {
                let (_log, mut leader) = open_in_memory(&MemVfs::new()).await;
                leader.apply((0..=*last).map(entry_at)).await.unwrap();
                let mut sent = leader.get_snapshot_builder().await.build_snapshot().await.unwrap();
                let mut received = state_machine.begin_receiving_snapshot().await.unwrap();
                tokio::io::copy(&mut sent.snapshot, &mut received).await.unwrap();
                received.shutdown().await.unwrap();
                log.purge(log_id(*last)).await.unwrap();
                state_machine.install_snapshot(&sent.meta, received).await.unwrap();
            }
        }
    }
}

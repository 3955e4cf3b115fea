//! The limit of the memory of all transactions.

use std::sync::{Arc, Mutex};

use lsmx::vfs::MemVfs;
use lsmx::{Error, Result, Transaction};
use lsmx_raft::{Application, State};
use openraft::storage::RaftStateMachine;

use crate::application::{Command, Counters, Types, entry, options, run};

const VALUE_BYTES: usize = 64 << 10;

/// Another transaction of the application, which ends during the third call of `apply`.
#[derive(Default)]
struct OtherTransaction {
    transaction: Mutex<Option<Transaction>>,
    calls: Mutex<u32>,
}

struct SharedCounters(Arc<OtherTransaction>);

impl Application<Types> for SharedCounters {
    fn apply(&self, state: &State<'_>, command: &Command) -> Result<Option<i64>> {
        let mut calls = self.0.calls.lock().unwrap();
        *calls += 1;
        // The first call fails in a commit of several entries, and the second one in a commit of one entry.
        if *calls == 3 {
            *self.0.transaction.lock().unwrap() = None;
        }
        Counters.apply(state, command)
    }

    fn empty_response(&self) -> Option<i64> {
        None
    }
}

#[test]
fn apply_waits_for_the_memory_of_other_transactions() {
    run(async {
        let (vfs, other) = (Arc::new(MemVfs::new()), Arc::new(OtherTransaction::default()));
        let application = SharedCounters(Arc::clone(&other));
        let (log, mut state_machine) =
            lsmx_raft::open("node", application, options(vfs)).await.unwrap();
        let db = log.db().as_blocking();
        let transaction = db.transaction();
        let put =
            |key: u32| transaction.put(&db.default_keyspace(), key.to_be_bytes(), [0; VALUE_BYTES]);
        let error = (0..).find_map(|key| put(key).err()).unwrap();
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
        *other.transaction.lock().unwrap() = Some(transaction);

        let command = |key: &str| Command::Put(key.to_owned(), vec![1; VALUE_BYTES]);
        let entries = [entry(0, command("a")), entry(1, command("b"))];
        assert_eq!(state_machine.apply(entries).await.unwrap().len(), 2);
        let view = state_machine.reader().view();
        assert_eq!(view.range::<&[u8]>(..).count(), 2);
        assert!(other.transaction.lock().unwrap().is_none());
    });
}

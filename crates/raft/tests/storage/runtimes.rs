//! Calls of the storage in each kind of runtime.

use lsmx::vfs::MemVfs;
use openraft::storage::{RaftLogStorageExt, RaftStateMachine};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::application::{Command, entry, open_in_memory};

/// Appends and applies entries at the same time.
async fn append_and_apply() {
    let (mut log, mut state_machine) = open_in_memory(&MemVfs::new()).await;
    let addition = |index| entry(index, Command::Add("sum".to_owned(), 1));
    log.blocking_append([addition(0)]).await.unwrap();
    for index in 0..100 {
        let appended = log.blocking_append([addition(index + 1)]);
        let applied = state_machine.apply([addition(index)]);
        let (appended, responses) = tokio::join!(appended, applied);
        appended.unwrap();
        assert_eq!(responses.unwrap(), [Some(i64::try_from(index).unwrap() + 1)]);
    }
    log.db().close(None).await.unwrap();
}

#[test]
fn entries_are_applied_in_each_kind_of_runtime() {
    let mut builders = [Builder::new_current_thread(), Builder::new_multi_thread()];
    builders[1].worker_threads(1);
    for builder in &mut builders {
        let runtime = builder.max_blocking_threads(1).enable_time().build().unwrap();
        runtime.block_on(append_and_apply());
        runtime.block_on(LocalSet::new().run_until(append_and_apply()));
        // A spawned task runs on a worker, if there are any.
        runtime.block_on(async { tokio::spawn(append_and_apply()).await.unwrap() });
    }
}

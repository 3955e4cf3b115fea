//! Numbers of syncs, range deletes and linked tables.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::time::Duration;

use lsmx::internals::vfs::{MemOperation, MemOperationKind};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx_raft::LogStore;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::{RaftLogReader, RaftSnapshotBuilder};

use crate::application::{Command, Types, entry, log_id, open_in_memory, run};
use crate::history::entry_at;

const APPENDS: u64 = 32;
const DEADLINE: Duration = Duration::from_secs(60);
const VALUES: u64 = 20;
const VALUE_BYTES: usize = 100 << 10;

/// Blocks the sync of the first append until all other appends are queued.
#[test]
fn appends_queued_during_a_sync_share_the_next_one() {
    run(async {
        let vfs = MemVfs::new();
        let (log, _state_machine) = open_in_memory(&vfs).await;
        let syncs = Arc::new(AtomicUsize::new(0));
        let (begin, begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let (counter, released) = (Arc::clone(&syncs), Mutex::new(released));
        let observer = move |_: &MemVfs, operation: MemOperation<'_>| {
            let is_log = operation.path.extension().is_some_and(|extension| extension == "wal");
            let is_sync = operation.kind == MemOperationKind::Sync && is_log;
            if is_sync && counter.fetch_add(1, Ordering::SeqCst) == 0 {
                begin.send(()).unwrap();
                let _ = released.lock().unwrap().recv();
            }
        };
        vfs.set_observer(Some(Arc::new(observer)));
        let append = |index| {
            let mut log = log.clone();
            Box::pin(async move { log.blocking_append([entry_at(index)]).await })
        };
        let mut appends: Vec<_> = (0..APPENDS).map(append).collect();
        poll_fn(|task| {
            for (index, append) in appends.iter_mut().enumerate() {
                assert!(append.as_mut().poll(task).is_pending());
                if index == 0 {
                    begun.recv_timeout(DEADLINE).unwrap();
                }
            }
            Poll::Ready(())
        })
        .await;
        release.send(()).unwrap();
        for append in appends {
            append.await.unwrap();
        }
        assert_eq!(syncs.load(Ordering::SeqCst), 2);
    });
}

/// Returns the puts, deletes and range deletes of the log.
fn log_operations(log: &LogStore<Types>) -> [u64; 3] {
    let operations = log.db().as_blocking().metrics().keyspaces["raft.log"].operations;
    [operations.puts, operations.deletes, operations.range_deletes]
}

#[test]
fn truncation_and_purge_of_any_length_are_one_range_delete_each() {
    for count in [8, 1000] {
        run(async {
            let (mut log, _state_machine) = open_in_memory(&MemVfs::new()).await;
            log.blocking_append((0..count).map(entry_at)).await.unwrap();
            assert_eq!(log_operations(&log), [count, 0, 0]);
            log.truncate(log_id(count / 2)).await.unwrap();
            assert_eq!(log_operations(&log), [count, 0, 1]);
            log.purge(log_id(count / 4 - 1)).await.unwrap();
            assert_eq!(log_operations(&log), [count, 0, 2]);
            let left = log.try_get_log_entries(..).await.unwrap();
            assert_eq!(left, (count / 4..count / 2).map(entry_at).collect::<Vec<_>>());
        });
    }
}

#[test]
fn snapshot_has_links_to_all_tables_and_no_copies() {
    run(async {
        let vfs = MemVfs::new();
        let (_log, mut state_machine) = open_in_memory(&vfs).await;
        let changes = Arc::new(Mutex::new(BTreeSet::new()));
        let recorded = Arc::clone(&changes);
        let observer = move |_: &MemVfs, operation: MemOperation<'_>| {
            if operation.path.starts_with("node/snapshots") && is_table(operation.path) {
                let path = operation.path.to_owned();
                recorded.lock().unwrap().insert((operation.kind, path));
            }
        };
        vfs.set_observer(Some(Arc::new(observer)));
        let put = |index| entry(index, Command::Put(format!("{index}"), vec![7; VALUE_BYTES]));
        state_machine.apply((0..VALUES).map(put)).await.unwrap();
        let snapshot = state_machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
        let id = snapshot.meta.snapshot_id;
        // The id ends with the name of the directory.
        let dir = Path::new("node/snapshots").join(id.rsplit('-').next().unwrap());
        let tables = vfs.list(&dir).unwrap().into_iter().map(|name| dir.join(name));
        let tables = tables.filter(|path| is_table(path));
        let links: BTreeSet<_> = tables.map(|path| (MemOperationKind::HardLink, path)).collect();
        assert!(!links.is_empty());
        assert_eq!(*changes.lock().unwrap(), links);
    });
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sst")
}

//! Power losses at many moments of a history.
//!
//! All calls of the storage are commits of one write-ahead log. So the state after a power loss is that after some call, and
//! no earlier one than the last synced call that returned. A mixture of two states fails the comparison.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine, Snapshot};
use openraft::{RaftLogReader, RaftSnapshotBuilder};
use tokio::io::AsyncWriteExt;

use crate::application::{Stores, Types, log_id, open_in_memory, run};
use crate::history::{Model, Operation, entry_at};

/// A disk after a power loss.
struct Crash {
    disk: MemVfs,
    /// Number of calls whose results must have survived, and of calls that had started.
    calls: (usize, usize),
    text: String,
}

/// Runs a history and takes an image of the disk before every `stride`th operation of the file system. Returns the images
/// and the states after each call.
async fn crash_often(history: &[Operation], stride: u64, seed: u64) -> (Vec<Crash>, Vec<Model>) {
    let vfs = MemVfs::new();
    let mut stores = open_in_memory(&vfs).await;
    let (durable, started) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let crashes = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let (durable, started, crashes) = (durable.clone(), started.clone(), crashes.clone());
        move |vfs: &MemVfs, operation: lsmx::internals::vfs::MemOperation<'_>| {
            if operation.index % stride != seed % stride {
                return;
            }
            let index = operation.index + seed;
            let image =
                CrashImage::ALL[usize::try_from(index / stride).unwrap() % CrashImage::ALL.len()];
            // The order matters: `durable` is read before the crash, and `started` after it.
            let durable = durable.load(Ordering::SeqCst);
            let disk = vfs.crash(image, index);
            let calls = (durable, started.load(Ordering::SeqCst));
            let text = format!("{image:?} before {operation:?}");
            crashes.lock().unwrap().push(Crash { disk, calls, text });
        }
    };
    vfs.set_observer(Some(Arc::new(observer)));
    let mut states = vec![Model::default()];
    for operation in history {
        for step in states.last().unwrap().steps(operation) {
            let mut next = states.last().unwrap().clone();
            step.apply_to_model(&mut next);
            states.push(next);
            started.store(states.len() - 1, Ordering::SeqCst);
            step.call(&mut stores, states.last().unwrap()).await;
            if step.is_synced() {
                durable.store(states.len() - 1, Ordering::SeqCst);
            }
        }
    }
    stores.0.db().close(None).await.unwrap();
    vfs.set_observer(None);
    let crashes = std::mem::take(&mut *crashes.lock().unwrap());
    (crashes, states)
}

/// Opens the disk and checks that its state is one of those that may have survived, without leftovers.
async fn check(crash: &Crash, states: &[Model]) {
    let mut stores = open_in_memory(&crash.disk).await;
    let found = Model::read(&mut stores).await;
    let (durable, started) = crash.calls;
    let allowed = &states[durable..=started];
    assert!(allowed.contains(&found), "{}: {found:#?}\nallowed: {allowed:#?}", crash.text);
    let db = stores.0.db().as_blocking();
    let keyspaces = db.keyspaces().into_iter().filter(|name| name.starts_with("raft.state."));
    assert_eq!(keyspaces.count(), 1, "{}", crash.text);
    let mut dirs = crash.disk.list("node/snapshots".as_ref()).unwrap();
    // One partially received snapshot may remain.
    if let Some(at) = dirs.iter().position(|name| name.ends_with(".frames")) {
        let partial = dirs.remove(at);
        dirs.retain(|name| *name != partial.trim_end_matches(".frames"));
    }
    match stores.1.get_current_snapshot().await.unwrap() {
        None => assert_eq!(dirs.len(), 0, "{}", crash.text),
        Some(mut snapshot) => {
            assert_eq!(dirs.len(), 1, "{}", crash.text);
            // The receiver verifies all files.
            let (_log, mut other) = open_in_memory(&MemVfs::new()).await;
            let mut copy = other.begin_receiving_snapshot().await.unwrap();
            tokio::io::copy(&mut snapshot.snapshot, &mut copy).await.unwrap();
            copy.shutdown().await.unwrap_or_else(|error| panic!("{}: {error}", crash.text));
        }
    }
    stores.0.db().close(None).await.unwrap();
}

#[test]
fn power_loss_leaves_the_state_after_a_call_and_no_acknowledged_write_is_lost() {
    use Operation::{Append, Apply, BuildSnapshot, InstallSnapshot, Purge, Truncate, Vote};
    let history = [
        Vote,
        Append(5),
        Apply(3),
        Append(4),
        Truncate(2),
        Vote,
        Append(3),
        BuildSnapshot,
        Purge(3),
        Apply(4),
        Append(2),
        InstallSnapshot(9),
        Append(6),
        Apply(5),
        BuildSnapshot,
        Purge(2),
        InstallSnapshot(0),
        Vote,
        Append(1),
        Apply(2),
    ];
    let mut images = 0;
    for seed in 0..3 {
        run(async {
            let (crashes, states) = crash_often(&history, 3, seed).await;
            for crash in &crashes {
                check(crash, &states).await;
            }
            images += crashes.len();
        });
    }
    assert!(images > 100, "{images}");
}

/// A node with six log entries, of which three are applied, that has received the state after entry 20.
async fn receive_snapshot(vfs: &MemVfs) -> (Stores, Snapshot<Types>) {
    let (mut log, mut state_machine) = open_in_memory(vfs).await;
    log.blocking_append((0..6).map(entry_at)).await.unwrap();
    state_machine.apply((0..3).map(entry_at)).await.unwrap();
    let (_log, mut leader) = open_in_memory(&MemVfs::new()).await;
    leader.apply((0..=20).map(entry_at)).await.unwrap();
    let Snapshot { meta, snapshot: mut sent } =
        leader.get_snapshot_builder().await.build_snapshot().await.unwrap();
    let mut snapshot = state_machine.begin_receiving_snapshot().await.unwrap();
    tokio::io::copy(&mut sent, &mut snapshot).await.unwrap();
    ((log, state_machine), Snapshot { meta, snapshot })
}

/// Purges the log up to the end of the received snapshot. openraft does this before the end of the installation.
async fn purge_before_installation(vfs: &MemVfs) -> (Stores, Snapshot<Types>) {
    let (mut stores, snapshot) = receive_snapshot(vfs).await;
    stores.0.purge(log_id(20)).await.unwrap();
    (stores, snapshot)
}

/// Checks that the node can continue after a restart: it has the log entries that follow its state.
async fn check_not_purged(disk: &MemVfs) {
    let (mut log, mut state_machine) = open_in_memory(disk).await;
    assert_eq!(state_machine.applied_state().await.unwrap().0, Some(log_id(2)));
    assert_eq!(log.get_log_state().await.unwrap().last_purged_log_id, None);
    assert_eq!(log.try_get_log_entries(3..).await.unwrap().len(), 3);
}

#[test]
fn purge_before_an_installation_is_durable_only_with_it() {
    // A transport of the application may leave the shutdown to the installation.
    for is_shut_down in [true, false] {
        run(async {
            let vfs = MemVfs::new();
            let ((mut log, mut state_machine), mut snapshot) = receive_snapshot(&vfs).await;
            if is_shut_down {
                snapshot.snapshot.shutdown().await.unwrap();
            }
            log.purge(log_id(20)).await.unwrap();
            let killed = vfs.crash(CrashImage::Keep, 0);
            let mut append = log.clone();
            let append = tokio::spawn(async move { append.blocking_append([entry_at(21)]).await });
            state_machine.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap();
            append.await.unwrap().unwrap();
            assert_eq!(log.get_log_state().await.unwrap().last_purged_log_id, Some(log_id(20)));
            assert_eq!(log.try_get_log_entries(..).await.unwrap(), [entry_at(21)]);
            check_not_purged(&killed).await;
        });
    }
}

#[test]
fn purge_after_a_failed_installation_is_an_error() {
    run(async {
        let vfs = MemVfs::new();
        let ((mut log, mut state_machine), mut snapshot) = receive_snapshot(&vfs).await;
        snapshot.meta.last_log_id = Some(log_id(19));
        state_machine.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap_err();
        log.purge(log_id(20)).await.unwrap_err();
        check_not_purged(&vfs.crash(CrashImage::Keep, 0)).await;
        log.purge(log_id(2)).await.unwrap();

        // The state machine has ended before it received the request of the installation.
        let vfs = MemVfs::new();
        let ((mut log, state_machine), snapshot) = receive_snapshot(&vfs).await;
        drop((state_machine, snapshot));
        log.purge(log_id(20)).await.unwrap_err();
        check_not_purged(&vfs.crash(CrashImage::Keep, 0)).await;
    });
}

#[test]
fn append_after_a_failed_installation_is_an_error() {
    run(async {
        let vfs = MemVfs::new();
        let ((mut log, mut state_machine), mut snapshot) = purge_before_installation(&vfs).await;
        snapshot.meta.last_log_id = Some(log_id(19));
        state_machine.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap_err();
        let appended = log.blocking_append([entry_at(21)]).await.unwrap_err();
        assert!(appended.to_string().contains("installation of a snapshot failed"), "{appended}");

        let vfs = MemVfs::new();
        let ((mut log, state_machine), _snapshot) = purge_before_installation(&vfs).await;
        drop(state_machine);
        log.blocking_append([entry_at(21)]).await.unwrap_err();
    });
}

//! Power losses at many moments of a history.
//!
//! All calls of the storage are commits of one write-ahead log. So the state after a power loss is that after some call, and
//! no earlier one than the last synced call that returned. A mixture of two states fails the comparison.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use openraft::storage::RaftStateMachine;
use tokio::io::AsyncWriteExt;

use crate::application::{open_in_memory, run};
use crate::history::{Model, Operation};

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
    let dirs = crash.disk.list("node/snapshots".as_ref()).unwrap();
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
            let (crashes, states) = crash_often(&history, 5, seed).await;
            for crash in &crashes {
                check(crash, &states).await;
            }
            images += crashes.len();
        });
    }
    assert!(images > 100, "{images}");
}

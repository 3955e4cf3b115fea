//! Reads of the state while entries are applied and snapshots are installed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lsmx::vfs::MemVfs;
use openraft::RaftSnapshotBuilder;
use openraft::storage::RaftStateMachine;
use tokio::io::AsyncWriteExt;

use crate::application::{Command, Stores, decode_count, entry, open_in_memory, run};

fn addition(index: u64) -> openraft::Entry<crate::application::Types> {
    entry(index, Command::Add("sum".to_owned(), 1))
}

/// Installs the state of another node.
async fn install(stores: &mut Stores, leader: &mut Stores) {
    let mut sent = leader.1.get_snapshot_builder().await.build_snapshot().await.unwrap();
    let mut received = stores.1.begin_receiving_snapshot().await.unwrap();
    tokio::io::copy(&mut sent.snapshot, &mut received).await.unwrap();
    received.shutdown().await.unwrap();
    stores.1.install_snapshot(&sent.meta, received).await.unwrap();
}

#[test]
fn view_during_installations_shows_the_state_after_one_entry() {
    run(async {
        let mut stores = open_in_memory(&MemVfs::new()).await;
        let mut leader = open_in_memory(&MemVfs::new()).await;
        let (reader, ended) = (stores.1.reader(), Arc::new(AtomicBool::new(false)));
        let has_ended = Arc::clone(&ended);
        let readings = tokio::task::spawn_blocking(move || {
            let mut readings = 0;
            while !has_ended.load(Ordering::Relaxed) {
                let view = reader.view();
                // Each entry adds one to the sum.
                let entries = view.last_applied().unwrap().map_or(0, |last| last.index + 1);
                let sum = view.get("sum").unwrap().map_or(0, |sum| decode_count(&sum));
                assert_eq!(u64::try_from(sum).unwrap(), entries);
                readings += 1;
            }
            readings
        });
        for round in 0..10 {
            let first = round * 40;
            stores.1.apply((first..first + 10).map(addition)).await.unwrap();
            leader.1.apply((first..first + 40).map(addition)).await.unwrap();
            install(&mut stores, &mut leader).await;
        }
        ended.store(true, Ordering::Relaxed);
        assert!(readings.await.unwrap() > 0);
    });
}

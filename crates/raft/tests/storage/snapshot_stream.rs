//! Damaged, cut and repeated snapshot streams.

use std::io::SeekFrom;

use lsmx::vfs::{MemVfs, Vfs};
use lsmx_raft::SnapshotStream;
use openraft::storage::RaftStateMachine;
use openraft::{RaftSnapshotBuilder, SnapshotMeta};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::application::{Command, Stores, entry, open_in_memory, run};

pub(crate) type Meta = SnapshotMeta<u64, openraft::BasicNode>;

/// Bytes of a value of the sent state. The stream has several frames.
const VALUE_BYTES: usize = 100 << 10;

/// Returns a snapshot of a node with some values, and the bytes of its stream.
pub(crate) async fn sent_snapshot() -> (Stores, Meta, Vec<u8>) {
    let mut stores = open_in_memory(&MemVfs::new()).await;
    let value = |index: u64| (0..VALUE_BYTES).map(|at| (at as u64 * index % 251) as u8).collect();
    let put = |index| entry(index, Command::Put(format!("{index}"), value(index)));
    // Each build writes a table.
    stores.1.apply((0..5).map(put)).await.unwrap();
    stores.1.get_snapshot_builder().await.build_snapshot().await.unwrap();
    stores.1.apply((5..10).map(put)).await.unwrap();
    let snapshot = stores.1.get_snapshot_builder().await.build_snapshot().await.unwrap();
    let mut stream = snapshot.snapshot;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(stream.seek(SeekFrom::End(0)).await.unwrap(), bytes.len() as u64);
    (stores, snapshot.meta, bytes)
}

async fn receive(stream: &mut SnapshotStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes).await?;
    stream.shutdown().await
}

async fn install(stores: &mut Stores, meta: &Meta, bytes: &[u8]) {
    let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
    receive(&mut stream, bytes).await.unwrap();
    stores.1.install_snapshot(meta, stream).await.unwrap();
    assert_eq!(stores.1.reader().view().range::<&[u8]>(..).count(), 10);
}

#[test]
fn stream_reads_from_any_offset() {
    run(async {
        let (mut stores, _, bytes) = sent_snapshot().await;
        let mut stream = stores.1.get_current_snapshot().await.unwrap().unwrap().snapshot;
        for at in [0, 1, 262_135, 262_144, 300_000, bytes.len() - 1, bytes.len()] {
            stream.seek(SeekFrom::Start(at as u64)).await.unwrap();
            let mut part = vec![0; (bytes.len() - at).min(70_000)];
            stream.read_exact(&mut part).await.unwrap();
            assert_eq!(part, bytes[at..at + part.len()]);
        }
    });
}

#[test]
fn damaged_and_cut_streams_are_refused_and_leave_nothing() {
    run(async {
        let (_leader, meta, bytes) = sent_snapshot().await;
        let vfs = MemVfs::new();
        let mut stores = open_in_memory(&vfs).await;
        let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
        let mut refuse = async |bytes: &[u8], expected: &str| {
            let error = receive(&mut stream, bytes).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            // Verified frames remain. The stream can be sent again.
            stream.seek(SeekFrom::Start(0)).await.unwrap();
        };
        // No frame of this stream is known yet, so each one is verified.
        let mut swapped = bytes.clone();
        swapped[262_144..786_432].rotate_left(262_144);
        refuse(&swapped, "the checksum of the frame is").await;
        for at in [0, 9, 13, 20, 40, 300_000, 700_000, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            let expected = match at {
                0 => "it is not a snapshot stream",
                9 => "format version",
                _ if at == bytes.len() - 1 => "its last frame is damaged",
                _ => "the checksum of the frame is",
            };
            refuse(&damaged, expected).await;
        }
        for len in [0, 10, 100, 262_144, 300_000, 524_288, bytes.len() - 1] {
            refuse(&bytes[..len], "the stream ends early").await;
        }

        // The same stream is intact afterwards.
        receive(&mut stream, &bytes).await.unwrap();
        stores.1.install_snapshot(&meta, stream).await.unwrap();
        assert_eq!(stores.1.reader().view().range::<&[u8]>(..).count(), 10);
        wait_for_dirs(&vfs, 1).await;
    });
}

#[test]
fn chunks_that_are_sent_again_are_skipped_and_holes_are_refused() {
    run(async {
        let (_leader, meta, bytes) = sent_snapshot().await;
        let mut stores = open_in_memory(&MemVfs::new()).await;
        let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
        for start in (0..bytes.len()).step_by(100_000) {
            // The response of each chunk is lost once.
            for _ in 0..2 {
                stream.seek(SeekFrom::Start(start as u64)).await.unwrap();
                let end = bytes.len().min(start + 100_000);
                stream.write_all(&bytes[start..end]).await.unwrap();
            }
        }
        stream.shutdown().await.unwrap();
        stores.1.install_snapshot(&meta, stream).await.unwrap();

        let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
        stream.write_all(&bytes[..1000]).await.unwrap();
        stream.seek(SeekFrom::Start(2000)).await.unwrap();
        let error = receive(&mut stream, &bytes[2000..3000]).await.unwrap_err().to_string();
        assert!(error.contains("bytes up to 2000 are missing"), "{error}");
    });
}

#[test]
fn snapshot_with_other_metadata_is_not_installed() {
    run(async {
        let (_leader, mut meta, bytes) = sent_snapshot().await;
        let mut stores = open_in_memory(&MemVfs::new()).await;
        let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
        receive(&mut stream, &bytes).await.unwrap();
        meta.last_log_id.as_mut().unwrap().index += 1;
        let error = stores.1.install_snapshot(&meta, stream).await.unwrap_err().to_string();
        assert!(error.contains("expected 1-1-10") || error.contains("10"), "{error}");
        assert_eq!(stores.1.applied_state().await.unwrap().0, None);
        assert!(stores.1.get_current_snapshot().await.unwrap().is_none());
    });
}

#[test]
fn old_snapshot_is_removed_after_its_last_reader() {
    run(async {
        let (leader, _, bytes) = sent_snapshot().await;
        let vfs = MemVfs::new();
        let mut stores = open_in_memory(&vfs).await;
        install(&mut stores, &leader_meta(leader).await, &bytes).await;
        let mut old = stores.1.get_current_snapshot().await.unwrap().unwrap().snapshot;
        stores.1.apply([entry(10, Command::Clear("3".to_owned()))]).await.unwrap();
        stores.1.get_snapshot_builder().await.build_snapshot().await.unwrap();
        wait_for_dirs(&vfs, 2).await;
        let mut read = Vec::new();
        old.read_to_end(&mut read).await.unwrap();
        assert_eq!(read.len(), bytes.len());
        drop(old);
        wait_for_dirs(&vfs, 1).await;
    });
}

async fn leader_meta(mut leader: Stores) -> Meta {
    leader.1.get_current_snapshot().await.unwrap().unwrap().meta
}

/// Waits until this number of snapshot directories and journals exist. The blocking pool removes them.
pub(crate) async fn wait_for_dirs(vfs: &MemVfs, count: usize) {
    for _ in 0..500 {
        if vfs.list("node/snapshots".as_ref()).unwrap().len() == count {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("snapshots: {:?}", vfs.list("node/snapshots".as_ref()));
}

#[test]
fn panic_of_the_application_is_an_error_and_applies_nothing() {
    run(async {
        let mut stores = open_in_memory(&MemVfs::new()).await;
        let entries = [entry(0, Command::Add("a".to_owned(), 1)), entry(1, Command::Panic)];
        let error = stores.1.apply(entries).await.unwrap_err().to_string();
        assert!(error.contains("the application panicked"), "{error}");
        assert!(stores.1.reader().view().get("a").unwrap().is_none());
    });
}

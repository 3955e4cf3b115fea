//! Snapshot streams that continue after a restart or a power loss of the receiver, or after a damaged frame.

use std::io::SeekFrom;
use std::sync::{Arc, Mutex};

use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx_raft::SnapshotStream;
use openraft::RaftSnapshotBuilder;
use openraft::storage::RaftStateMachine;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

use crate::application::{Command, Stores, entry, open_in_memory, run};
use crate::snapshot_stream::{Meta, sent_snapshot, wait_for_dirs};

const FRAME: usize = 256 << 10;
const SNAPSHOTS: &str = "node/snapshots";

type State = Vec<(Vec<u8>, Vec<u8>)>;

fn state(stores: &Stores) -> State {
    let view = stores.1.reader().view();
    view.range::<&[u8]>(..).map(|it| it.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect()
}

/// A snapshot to send.
struct Sent {
    state: State,
    meta: Meta,
    bytes: Vec<u8>,
}

async fn sent() -> Sent {
    let (stores, meta, bytes) = sent_snapshot().await;
    assert!(bytes.len() > 3 * FRAME);
    Sent { state: state(&stores), meta, bytes }
}

async fn received_bytes(stream: &mut SnapshotStream) -> usize {
    stream.flush().await.unwrap();
    usize::try_from(stream.seek(SeekFrom::End(0)).await.unwrap()).unwrap()
}

/// Writes chunks of a stream up to `end`.
async fn write_chunks(stream: &mut SnapshotStream, bytes: &[u8], end: usize) {
    for chunk in bytes[..end].chunks(100_000) {
        stream.write_all(chunk).await.unwrap();
    }
    stream.flush().await.unwrap();
}

/// Receives the start of the stream, and returns the disk without a power loss.
async fn receive_start(sent: &Sent, end: usize) -> MemVfs {
    let vfs = MemVfs::new();
    let mut stores = open_in_memory(&vfs).await;
    let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
    write_chunks(&mut stream, &sent.bytes, end).await;
    vfs.crash(CrashImage::Keep, 0)
}

/// Sends the first frame, and then the bytes that the receiver does not have. Installs the snapshot and checks the state.
/// Returns the number of bytes that the receiver had after the first frame.
async fn resume_and_install(stores: &mut Stores, sent: &Sent) -> usize {
    let receipt = stores.1.snapshot_receipt();
    let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
    stream.write_all(&sent.bytes[..FRAME]).await.unwrap();
    let shown = receipt.received_bytes().await;
    let received = received_bytes(&mut stream).await;
    assert_eq!(received as u64, shown);
    stream.write_all(&sent.bytes[received..]).await.unwrap();
    stream.shutdown().await.unwrap();
    stores.1.install_snapshot(&sent.meta, stream).await.unwrap();
    assert!(state(stores) == sent.state, "the installed state differs");
    received
}

/// Resumes on a disk after a restart. Returns the number of kept bytes.
async fn resume_on(vfs: &MemVfs, sent: &Sent) -> usize {
    let mut stores = open_in_memory(vfs).await;
    let kept = resume_and_install(&mut stores, sent).await;
    wait_for_dirs(vfs, 1).await;
    stores.0.db().close(None).await.unwrap();
    kept
}

#[test]
fn stream_continues_after_a_restart_at_each_chunk_boundary() {
    run(async {
        let sent = sent().await;
        for end in (0..=sent.bytes.len()).step_by(100_000).chain([sent.bytes.len()]) {
            let frames = (end / FRAME).max(1) * FRAME;
            // A killed process, and a stopped one.
            assert_eq!(resume_on(&receive_start(&sent, end).await, &sent).await, frames, "{end}");
            let vfs = MemVfs::new();
            let mut stores = open_in_memory(&vfs).await;
            let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
            write_chunks(&mut stream, &sent.bytes, end).await;
            drop(stream);
            stores.0.db().close(None).await.unwrap();
            drop(stores);
            assert_eq!(resume_on(&vfs, &sent).await, frames, "{end}");
        }
    });
}

#[test]
fn complete_stream_is_not_sent_again_after_a_restart() {
    run(async {
        let sent = sent().await;
        let vfs = MemVfs::new();
        let mut stores = open_in_memory(&vfs).await;
        let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
        write_chunks(&mut stream, &sent.bytes, sent.bytes.len()).await;
        stream.shutdown().await.unwrap();
        // The installation has not started. All files are synced.
        let kept = resume_on(&vfs.crash(CrashImage::Drop, 0), &sent).await;
        assert!(kept >= sent.bytes.len() / FRAME * FRAME, "{kept}");
        drop(stream);
        wait_for_dirs(&vfs, 0).await;
    });
}

#[test]
fn stream_continues_after_a_power_loss_at_each_chunk_boundary() {
    run(async {
        let sent = sent().await;
        let vfs = MemVfs::new();
        let mut stores = open_in_memory(&vfs).await;
        let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
        let mut kept_bytes = 0;
        for (number, chunk) in (0..).zip(sent.bytes.chunks(100_000)) {
            stream.write_all(chunk).await.unwrap();
            let received = received_bytes(&mut stream).await;
            for image in [CrashImage::Drop, CrashImage::ALL[number % CrashImage::ALL.len()]] {
                let kept = resume_on(&vfs.crash(image, number as u64), &sent).await;
                assert!(kept <= received.max(FRAME), "{image:?}");
                kept_bytes += kept - FRAME;
            }
        }
        assert!(kept_bytes > sent.bytes.len(), "{kept_bytes}");
    });
}

/// Takes an image of the disk at every third operation of the file system while `work` runs.
async fn crash_during(vfs: &MemVfs, work: impl Future<Output = ()>) -> Vec<(String, MemVfs)> {
    let crashes = Arc::new(Mutex::new(Vec::new()));
    let observed = Arc::clone(&crashes);
    vfs.set_observer(Some(Arc::new(
        move |vfs: &MemVfs, operation: lsmx::internals::vfs::MemOperation<'_>| {
            if operation.index.is_multiple_of(3) {
                let images = CrashImage::ALL;
                let image = images[usize::try_from(operation.index / 3).unwrap() % images.len()];
                let text = format!("{image:?} before {operation:?}");
                observed.lock().unwrap().push((text, vfs.crash(image, operation.index)));
            }
        },
    )));
    work.await;
    vfs.set_observer(None);
    std::mem::take(&mut *crashes.lock().unwrap())
}

#[test]
fn power_loss_during_a_continued_receipt_leaves_a_disk_that_continues() {
    run(async {
        let sent = sent().await;
        let vfs = receive_start(&sent, 2 * FRAME + 1000).await;
        let mut stores = open_in_memory(&vfs).await;
        let crashes = crash_during(&vfs, async {
            resume_and_install(&mut stores, &sent).await;
        });
        let crashes = crashes.await;
        assert!(crashes.len() > 20, "{}", crashes.len());
        let mut continued = 0;
        for (text, disk) in crashes {
            let mut stores = open_in_memory(&disk).await;
            let found = state(&stores);
            assert!(found.is_empty() || found == sent.state, "{text}");
            continued += usize::from(resume_and_install(&mut stores, &sent).await > FRAME);
            wait_for_dirs(&disk, 1).await;
        }
        assert!(continued > 5, "{continued}");
    });
}

#[test]
fn other_snapshot_replaces_the_kept_one() {
    run(async {
        let (first, second) = (sent().await, sent().await);
        let vfs = receive_start(&first, 3 * FRAME).await;
        assert_eq!(vfs.list(SNAPSHOTS.as_ref()).unwrap().len(), 2);
        // After a restart.
        assert_eq!(resume_on(&vfs, &second).await, FRAME);

        // In the same process and stream.
        let mut stores = open_in_memory(&MemVfs::new()).await;
        let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
        write_chunks(&mut stream, &first.bytes, 3 * FRAME).await;
        stream.seek(SeekFrom::Start(0)).await.unwrap();
        stream.write_all(&second.bytes[..20]).await.unwrap();
        assert_eq!(received_bytes(&mut stream).await, 20);
        stream.write_all(&second.bytes[20..]).await.unwrap();
        stream.shutdown().await.unwrap();
        stores.1.install_snapshot(&second.meta, stream).await.unwrap();
        assert!(state(&stores) == second.state);
    });
}

#[test]
fn frames_of_another_snapshot_do_not_continue_the_kept_one() {
    run(async {
        let (first, second) = (sent().await, sent().await);
        let vfs = receive_start(&first, 2 * FRAME).await;
        let mut stores = open_in_memory(&vfs).await;
        let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
        stream.write_all(&first.bytes[..FRAME]).await.unwrap();
        assert_eq!(received_bytes(&mut stream).await, 2 * FRAME);
        stream.write_all(&second.bytes[2 * FRAME..]).await.unwrap_or(());
        let error = stream.shutdown().await.unwrap_err().to_string();
        assert!(error.contains("checksum") || error.contains("ends early"), "{error}");
        assert_eq!(received_bytes(&mut stream).await, 2 * FRAME);
        stream.write_all(&first.bytes[2 * FRAME..]).await.unwrap();
        stream.shutdown().await.unwrap();
        stores.1.install_snapshot(&first.meta, stream).await.unwrap();
        assert!(state(&stores) == first.state);
    });
}

#[test]
fn damaged_frame_and_damaged_header_keep_the_verified_frames() {
    run(async {
        let sent = sent().await;
        let mut stores = open_in_memory(&MemVfs::new()).await;
        let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
        let mut damaged = sent.bytes.clone();
        damaged[2 * FRAME + 7] ^= 1;
        let error = async {
            stream.write_all(&damaged).await?;
            stream.flush().await
        };
        assert!(error.await.unwrap_err().to_string().contains("checksum"));
        assert_eq!(received_bytes(&mut stream).await, 2 * FRAME);

        // The key of the snapshot is damaged when the stream is sent again.
        damaged[20] ^= 1;
        stream.seek(SeekFrom::Start(0)).await.unwrap();
        stream.write_all(&damaged[..FRAME]).await.unwrap();
        assert!(stream.flush().await.unwrap_err().to_string().contains("checksum"));
        stream.write_all(&sent.bytes[..FRAME]).await.unwrap();
        assert_eq!(received_bytes(&mut stream).await, 2 * FRAME);
        stream.write_all(&sent.bytes[2 * FRAME..]).await.unwrap();
        stream.shutdown().await.unwrap();
        stores.1.install_snapshot(&sent.meta, stream).await.unwrap();
        assert!(state(&stores) == sent.state);
    });
}

fn read_file(vfs: &MemVfs, path: &str) -> Vec<u8> {
    let file = vfs.open(path.as_ref()).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn replace_file(vfs: &MemVfs, path: &str, bytes: &[u8]) {
    vfs.remove(path.as_ref()).unwrap();
    vfs.create(path.as_ref()).unwrap().append(bytes).unwrap();
}

/// Returns the paths of the files of the kept snapshot, and that of its journal.
fn kept_paths(vfs: &MemVfs) -> (Vec<String>, String) {
    let names = vfs.list(SNAPSHOTS.as_ref()).unwrap();
    let journal = names.iter().find(|name| name.ends_with(".frames")).unwrap();
    let dir = format!("{SNAPSHOTS}/{}", journal.trim_end_matches(".frames"));
    let files = vfs.list(dir.as_ref()).unwrap();
    let files = files.iter().map(|name| format!("{dir}/{name}")).collect();
    (files, format!("{SNAPSHOTS}/{journal}"))
}

#[test]
fn damaged_kept_files_and_journals_are_received_again() {
    run(async {
        let sent = sent().await;
        let end = sent.bytes.len() / FRAME * FRAME;
        let vfs = receive_start(&sent, end).await;
        assert_eq!(resume_on(&vfs.crash(CrashImage::Keep, 0), &sent).await, end);
        let (mut paths, journal) = kept_paths(&vfs);
        let incomplete = paths.last().unwrap().clone();
        paths.push(journal.clone());
        for path in &paths {
            let bytes = read_file(&vfs, path);
            let mut damages = vec![None, Some([&bytes[..], &[7; 9]].concat())];
            if !bytes.is_empty() {
                let middle = bytes.len() / 2;
                damages.push(Some(bytes[..middle].to_vec()));
                for at in [0, middle, bytes.len() - 1] {
                    let mut flipped = bytes.clone();
                    flipped[at] ^= 1;
                    damages.push(Some(flipped));
                }
            }
            for (number, damage) in damages.iter().enumerate() {
                let disk = vfs.crash(CrashImage::Keep, 0);
                match damage {
                    Some(damaged) => replace_file(&disk, path, damaged),
                    None => disk.remove(path.as_ref()).unwrap(),
                }
                let kept = resume_on(&disk, &sent).await;
                // Bytes after the last frame have no effect, and an empty file is created again.
                let is_at_end = number == 1 && [&journal, &incomplete].contains(&path);
                let is_harmless = is_at_end || bytes.is_empty();
                assert!(kept < end || is_harmless, "{path} {number}: {kept}");
            }
        }
        // A file that does not belong to the snapshot is removed.
        let stray = format!("{}/stray", journal.trim_end_matches(".frames"));
        vfs.create(stray.as_ref()).unwrap().append(b"x").unwrap();
        assert_eq!(resume_on(&vfs, &sent).await, end);
        assert!(!vfs.exists(stray.as_ref()).unwrap());
    });
}

#[test]
fn build_and_installation_remove_the_kept_snapshot() {
    run(async {
        let (sent, other) = (sent().await, sent().await);
        let vfs = receive_start(&sent, 3 * FRAME).await;
        let mut stores = open_in_memory(&vfs).await;
        wait_for_dirs(&vfs, 2).await;
        stores.1.apply([entry(0, Command::Add("a".to_owned(), 1))]).await.unwrap();
        stores.1.get_snapshot_builder().await.build_snapshot().await.unwrap();
        wait_for_dirs(&vfs, 1).await;

        let vfs = MemVfs::new();
        let mut stores = open_in_memory(&vfs).await;
        let mut stream = stores.1.begin_receiving_snapshot().await.unwrap();
        stream.write_all(&other.bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut partial = stores.1.begin_receiving_snapshot().await.unwrap();
        write_chunks(&mut partial, &sent.bytes, 3 * FRAME).await;
        // Both directories and journals exist until the installation.
        assert_eq!(vfs.list(SNAPSHOTS.as_ref()).unwrap().len(), 4);
        drop(partial);
        stores.1.install_snapshot(&other.meta, stream).await.unwrap();
        wait_for_dirs(&vfs, 1).await;
        assert!(state(&stores) == other.state);
    });
}

#[test]
fn at_most_one_partial_snapshot_is_kept() {
    run(async {
        let (first, second) = (sent().await, sent().await);
        let vfs = MemVfs::new();
        let mut stores = open_in_memory(&vfs).await;
        let mut older = stores.1.begin_receiving_snapshot().await.unwrap();
        write_chunks(&mut older, &first.bytes, 2 * FRAME).await;
        let mut newer = stores.1.begin_receiving_snapshot().await.unwrap();
        write_chunks(&mut newer, &second.bytes, 3 * FRAME).await;
        let killed = vfs.crash(CrashImage::Keep, 0);
        open_in_memory(&killed).await;
        assert_eq!(killed.list(SNAPSHOTS.as_ref()).unwrap().len(), 2);
        drop(newer);
        drop(older);
        wait_for_dirs(&vfs, 2).await;
        assert_eq!(resume_and_install(&mut stores, &second).await, 3 * FRAME);
        wait_for_dirs(&vfs, 1).await;
    });
}

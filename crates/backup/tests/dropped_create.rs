//! A dropped future of `BackupRepository::create`. The unit tests of this crate have no threads for blocking calls.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use lsmx::env::Background;
use lsmx::internals::vfs::{VfsCall, VfsLayer};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Options};
use lsmx_backup::{BackupOptions, BackupRepository, Error};
use object_store::memory::InMemory;
use tokio::sync::oneshot;

/// The sender announces the call that creates the first file of a checkpoint. The call then waits for the receiver.
type Pause = (oneshot::Sender<()>, mpsc::Receiver<()>);

/// A file system that pauses the first checkpoint.
#[derive(Debug)]
struct PausedCheckpoint {
    disk: MemVfs,
    pause: Mutex<Option<Pause>>,
}

impl VfsLayer for PausedCheckpoint {
    fn inner(&self) -> &dyn Vfs {
        &self.disk
    }

    fn before_call(&self, call: VfsCall, path: &Path) -> io::Result<()> {
        if call == VfsCall::Create && path.starts_with("staging/checkpoint") {
            let pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((announce, release)) = pause {
                announce.send(()).expect("the test waits for the call");
                release.recv().expect("the test releases the call");
            }
        }
        Ok(())
    }
}

/// The staging directory was released and its files were removed, while the checkpoint was still running.
#[test]
fn staging_directory_of_a_dropped_future_is_kept_until_the_checkpoint_ends() {
    let (announce, started) = oneshot::channel();
    let (release, released) = mpsc::channel();
    let disk = MemVfs::new();
    let pause = Mutex::new(Some((announce, released)));
    let vfs: Arc<dyn Vfs> = Arc::new(PausedCheckpoint { disk: disk.clone(), pause });
    let database = Options::default().vfs(Arc::clone(&vfs)).background(Background::Inline);
    let db = Db::open("db", database).unwrap();
    db.put("key", "value").unwrap();
    let repository = BackupRepository::new(Arc::new(InMemory::new()));
    let options = BackupOptions::new("staging").vfs(vfs);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        // Dropped first if the test fails, which ends the pause.
        let release = release;
        tokio::select! {
            created = repository.create(&db, &options) => panic!("{created:?}"),
            started = started => started.unwrap(),
        }
        assert!(disk.exists("staging/BACKUP-LOCK".as_ref()).unwrap());
        let refused = repository.create(&db, &options).await.unwrap_err();
        assert!(matches!(refused, Error::StagingInUse { .. }), "{refused}");
        release.send(()).unwrap();
    });
    // Waits for the checkpoint.
    drop(runtime);
    assert!(!disk.exists("staging".as_ref()).unwrap());
}

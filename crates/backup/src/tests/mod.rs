//! Tests of whole backups and restores.

mod archives;
mod crashes;
mod damaged_archives;
mod fault_store;
mod interleavings;
mod point_in_time;
mod read_only;
mod round_trips;

use std::collections::BTreeMap;
use std::future::Future;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx::{DEFAULT_KEYSPACE, Db, KeyspaceOptions, Options, ValueSeparation};
use object_store::ObjectStore;

use crate::{
    BackupOptions, BackupRepository, RestoreOptions, Retention, Selection, TransferOptions,
};

/// Size of the parts of uploads. A table needs several parts.
const PART_BYTES: usize = 500;

/// Contents of the default keyspace.
type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// A database in memory.
struct TestDb {
    vfs: MemVfs,
    db: Db,
    writer: &'static str,
}

fn options(vfs: &MemVfs) -> Options {
    Options::default().vfs(Arc::new(vfs.clone())).background(Background::Inline)
}

impl TestDb {
    fn new(writer: &'static str) -> TestDb {
        let vfs = MemVfs::new();
        // A table that is larger than the log and the manifest, which each backup uploads.
        let db = Db::open("db", options(&vfs)).unwrap();
        for key in 0..100 {
            db.put(format!("base.{key}"), [key; 100]).unwrap();
        }
        db.flush().unwrap();
        db.close(None).unwrap();
        // The new log contains none of these entries.
        let db = Db::open("db", options(&vfs)).unwrap();
        let separation = ValueSeparation { threshold_bytes: 200, ..ValueSeparation::default() };
        let keyspace = KeyspaceOptions::default().value_separation(separation);
        db.keyspace(DEFAULT_KEYSPACE, keyspace).unwrap();
        TestDb { vfs, db, writer }
    }

    /// Returns a database with the same tables and another writer.
    fn copy(&self, writer: &'static str) -> TestDb {
        let vfs = self.vfs.crash(CrashImage::Keep, 0);
        TestDb { db: Db::open("db", options(&vfs)).unwrap(), vfs, writer }
    }

    /// Writes a few keys and a large value. Flushes every second round, so that the backups contain logs and tables.
    fn write(&self, round: u8) {
        for key in 0..4 {
            self.db
                .put(format!("{}.{key}", round % 3), format!("{}.{round}", self.writer))
                .unwrap();
        }
        self.db.put(format!("large.{}", round % 2), vec![round; 300]).unwrap();
        if round.is_multiple_of(2) {
            self.db.flush().unwrap();
        }
    }

    fn contents(&self) -> Contents {
        contents(&self.db)
    }

    fn backup_options(&self) -> BackupOptions {
        BackupOptions::new("staging")
            .vfs(Arc::new(self.vfs.clone()))
            .writer(self.writer)
            .transfer(one_at_a_time())
            .with_part_bytes(PART_BYTES)
    }
}

/// Transfers in a fixed order.
fn one_at_a_time() -> TransferOptions {
    TransferOptions { concurrency: 1, ..TransferOptions::default() }
}

/// Transfers in a fixed order with a maximum rate.
fn with_rate(bytes_per_s: u64) -> TransferOptions {
    TransferOptions { bytes_per_s: NonZeroU64::new(bytes_per_s), ..one_at_a_time() }
}

fn contents(db: &Db) -> Contents {
    let entries = db.default_keyspace().iter();
    entries.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

fn repository(store: impl ObjectStore) -> BackupRepository {
    BackupRepository::new(Arc::new(store))
}

/// Sets the number of the last backup.
async fn set_last_id(repository: &BackupRepository, id: u64) {
    let set = |catalog: &mut crate::catalog::Catalog| {
        catalog.last_id = id;
        Ok(())
    };
    repository.catalog.update(set).await.unwrap();
}

fn keep_last(count: usize) -> Retention {
    Retention { keep_last: NonZeroUsize::new(count).unwrap(), keep_since_ms: None, writer: None }
}

/// Restores a backup into memory, verifies the database and returns its contents.
async fn restored(repository: &BackupRepository, id: u64) -> Contents {
    let vfs = MemVfs::new();
    let restore = RestoreOptions::default().vfs(Arc::new(vfs.clone())).transfer(one_at_a_time());
    repository.restore(Selection::Id(id), "copy", &restore).await.unwrap();
    assert!(!vfs.exists(Path::new("copy/RESTORE")).unwrap());
    let report = lsmx::verify("copy", &options(&vfs)).unwrap();
    assert!(report.orphans.is_empty(), "{report:?}");
    contents(&Db::open("copy", options(&vfs)).unwrap())
}

/// Runs a test on one thread. Time passes when all tasks wait for it.
fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(test)
}

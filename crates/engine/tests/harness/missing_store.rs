//! Databases that are opened without the operand store of one of their keyspaces.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::internals::vfs::MemOperation;
use lsmx::merge_operator::Append;
use lsmx::operand_store::{
    OperandMetrics, OperandStore, OperandStoreFactory, StoreContext, StoreToken,
};
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Options, verify};
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::SimpleStore;

use super::Outcome;

/// Directory of the database.
pub(crate) const DIR: &str = "db";
/// The store of the keyspace `counts`.
pub(crate) const STORE: SimpleStore =
    SimpleStore { collect_after: u64::MAX, to_tree_one_in: 1, lazy: true };
/// Bound of the log.
const WAL_BYTES_MAX: u64 = 8 << 10;

/// A store with the name of [`STORE`] that cannot be opened.
#[derive(Debug)]
pub(crate) struct Broken;

impl OperandStoreFactory for Broken {
    fn name(&self) -> &'static str {
        STORE.name()
    }
    fn open(
        &self,
        place: StoreContext,
        _: Option<StoreToken>,
    ) -> lsmx::Result<Arc<dyn OperandStore>> {
        Err(Error::OperandStoreMistake {
            keyspace: place.keyspace,
            store: self.name().to_owned(),
            wrong: "is broken",
        })
    }
    fn verify(&self, place: StoreContext, token: StoreToken) -> lsmx::Result<OperandMetrics> {
        STORE.verify(place, token)
    }
}

/// Small memtables and segments, no threads.
pub(crate) fn options() -> Options {
    let wal = WalOptions { segment_bytes: 600, ..WalOptions::default() };
    let keyspaces = KeyspaceOptions::default().memtable_bytes(1 << 10);
    let options = Options::default().background(Background::Inline).seed(1).wal(wal);
    options.wal_bytes_max(WAL_BYTES_MAX).keyspace_defaults(keyspaces)
}

/// Options of the keyspace `counts` without its store.
pub(crate) fn merging() -> KeyspaceOptions {
    KeyspaceOptions::default().memtable_bytes(1 << 10).merge_operator(Append::default())
}

pub(crate) fn open(disk: &MemVfs, options: Options) -> lsmx::Result<Db> {
    Db::open(DIR, options.vfs(Arc::new(disk.clone())))
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What a keyspace holds.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn check(keyspace: &Keyspace, model: &Model) -> Outcome {
    let entries: lsmx::Result<Vec<_>> = keyspace.iter().collect();
    let entries = entries.map_err(failed)?;
    let equal = entries.len() == model.len()
        && entries.iter().zip(model).all(|((key, value), (k, v))| **key == **k && **value == **v);
    if equal {
        return Ok(());
    }
    let text = |entries: &mut dyn Iterator<Item = (&[u8], &[u8])>| {
        let entries = entries.map(|(k, v)| format!("{}={}", k.escape_ascii(), v.escape_ascii()));
        entries.collect::<Vec<_>>().join(" ")
    };
    let found = text(&mut entries.iter().map(|(key, value)| (&**key, &**value)));
    let expected = text(&mut model.iter().map(|(key, value)| (&**key, &**value)));
    Err(format!("keyspace {} holds {found}, expected {expected}", keyspace.name()))
}

/// Writes at random to the keyspace with the store.
fn write(rng: &mut TestRng, keyspace: &Keyspace, model: &mut Model) -> Outcome {
    for _ in 0..rng.below(60) {
        let key = vec![b'a' + rng.below(12)];
        let len = 1 + rng.below(30);
        let value = rng.bytes(len);
        match rng.below(8) {
            0 => {
                keyspace.with_write_options(Durability::Sync).put(&key, &value).map_err(failed)?;
                model.insert(key, value);
            }
            1 => {
                keyspace.with_write_options(Durability::Sync).delete(&key).map_err(failed)?;
                model.remove(&key);
            }
            2 if rng.is_one_in(4) => {
                let range = key.clone()..vec![key[0] + 3];
                keyspace
                    .with_write_options(Durability::Sync)
                    .delete_range(range.clone())
                    .map_err(failed)?;
                model.retain(|key, _| !range.contains(key));
            }
            _ => {
                keyspace
                    .with_write_options(Durability::Sync)
                    .merge(&key, &value)
                    .map_err(failed)?;
                model.entry(key).or_default().extend(value);
            }
        }
    }
    Ok(())
}

/// A loss of power before an operation of a disk.
struct PowerCut(Arc<Mutex<Option<MemVfs>>>);

impl PowerCut {
    /// Cuts power before one of the next operations, if there are so many.
    fn arm(disk: &MemVfs, rng: &mut TestRng, within: u64) -> PowerCut {
        let left = Arc::new(Mutex::new(None));
        let (kept, at) = (Arc::clone(&left), disk.operations() + rng.below(within));
        let (image, seed) = (*rng.choose(&CrashImage::ALL), rng.next_u64());
        disk.set_observer(Some(Arc::new(move |disk: &MemVfs, operation: MemOperation<'_>| {
            if operation.index == at {
                let left = disk.crash(image, seed);
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(left);
            }
        })));
        PowerCut(left)
    }

    /// What is left on the disk, if power was cut.
    fn take(&self, disk: &MemVfs) -> Option<MemVfs> {
        disk.set_observer(None);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A database is opened several times, mostly without the operand store of a keyspace, or with one that cannot
/// be opened; power is cut during these opens and while the store is given later. All other keyspaces work, the
/// log stays within its bound, and once the store is there, every operand is found, once.
pub(crate) fn operands_wait_for_their_store(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let mut disk = MemVfs::new();
    let (mut counts, mut others) = (Model::new(), Model::new());
    {
        let db = open(&disk, options()).map_err(failed)?;
        let keyspace = db.keyspace("counts", merging().operand_store(STORE)).map_err(failed)?;
        write(&mut rng, &keyspace, &mut counts)?;
        disk = disk.crash(*rng.choose(&CrashImage::ALL), rng.next_u64());
    }
    for _ in 0..1 + rng.below(5) {
        let how = rng.below(4);
        let given = match how {
            0 => options().operand_store(STORE),
            1 => options().operand_store(Broken),
            _ => options(),
        };
        let cut = PowerCut::arm(&disk, &mut rng, 120);
        let db = open(&disk, given).map_err(failed)?;
        if let Some(left) = cut.take(&disk)
            && rng.is_one_in(2)
        {
            disk = left;
            continue;
        }
        check(&db.default_keyspace(), &others)?;
        let mut keyspace = db.open_keyspace("counts", None).map_err(failed)?;
        if how > 0 {
            match keyspace.get("a") {
                Err(Error::NoOperandStore { cause, .. }) if cause.is_some() == (how == 1) => {}
                other => return Err(format!("a read without the store: {other:?}")),
            }
            for _ in 0..rng.below(80) {
                let (key, value) = (rng.bytes(2), rng.bytes(100));
                db.default_keyspace()
                    .with_write_options(Durability::Sync)
                    .put(&key, &value)
                    .map_err(failed)?;
                others.insert(key, value);
            }
            let log = db.metrics().wal;
            if log.live_bytes > 2 * WAL_BYTES_MAX {
                return Err(format!("the log has {} bytes", log.live_bytes));
            }
        }
        if how == 2 {
            let cut = PowerCut::arm(&disk, &mut rng, 60);
            keyspace = db.keyspace("counts", merging().operand_store(STORE)).map_err(failed)?;
            let log = db.metrics().wal;
            if (log.kept_segments, log.kept_bytes) != (0, 0) {
                return Err(format!("segments are kept: {log:?}"));
            }
            if let Some(left) = cut.take(&disk)
                && rng.is_one_in(2)
            {
                disk = left;
                continue;
            }
        }
        if how == 0 {
            keyspace = db.keyspace("counts", merging()).map_err(failed)?;
        }
        if how == 0 || how == 2 {
            check(&keyspace, &counts)?;
            write(&mut rng, &keyspace, &mut counts)?;
            check(&keyspace, &counts)?;
        }
        if rng.is_one_in(3) {
            db.close(None).map_err(failed)?;
            let stores: [Arc<dyn OperandStoreFactory>; 1] = [Arc::new(STORE)];
            let report = verify(
                DIR,
                &stores
                    .iter()
                    .cloned()
                    .fold(Options::default().vfs(Arc::new(disk.clone())), Options::operand_store),
            );
            let orphans = report.map_err(failed)?.orphans;
            if how != 1 && how != 3 && !orphans.is_empty() {
                return Err(format!("orphans: {orphans:?}"));
            }
        } else {
            disk = disk.crash(*rng.choose(&CrashImage::ALL), rng.next_u64());
        }
    }
    let vfs = Arc::new(disk.clone());
    let read_only = Db::open(Path::new(DIR), options().read_only(true).vfs(vfs)).map_err(failed)?;
    check(&read_only.keyspace("counts", merging().operand_store(STORE)).map_err(failed)?, &counts)?;
    check(&read_only.default_keyspace(), &others)?;
    read_only.close(None).map_err(failed)?;
    let db = open(&disk, options().operand_store(STORE)).map_err(failed)?;
    check(&db.keyspace("counts", merging()).map_err(failed)?, &counts)?;
    check(&db.default_keyspace(), &others)?;
    db.close(None).map_err(failed)
}

//! Checks of databases that are opened without the operand store of a keyspace.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::internals::vfs::MemOperation;
use lsmx::merge_operator::Append;
use lsmx::operand_store::{
    OperandMetrics, OperandStore, OperandStoreFactory, StoreContext, StoreToken,
};
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Options};
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::SimpleStore;

use super::small_database::{lock, open_with};
use super::{Outcome, oracle};

/// The operand store of the keyspace `counts`.
pub(crate) const STORE: SimpleStore =
    SimpleStore { collect_after: u64::MAX, to_tree_one_in: 1, lazy: true };
const WAL_BYTES_MAX: u64 = 8 << 10;

/// An operand store that has the name of [`STORE`] but cannot be opened.
#[derive(Debug)]
pub(crate) struct Broken;

impl OperandStoreFactory for Broken {
    fn name(&self) -> &'static str {
        STORE.name()
    }
    fn open(
        &self,
        context: StoreContext,
        _: Option<StoreToken>,
    ) -> lsmx::Result<Arc<dyn OperandStore>> {
        let store = self.name().to_owned();
        Err(Error::OperandStoreMistake { keyspace: context.keyspace, store, wrong: "is broken" })
    }
    fn verify(&self, context: StoreContext, token: StoreToken) -> lsmx::Result<OperandMetrics> {
        STORE.verify(context, token)
    }
}

/// Returns options with small memtables and log segments, and without background threads.
pub(crate) fn options() -> Options {
    let wal = WalOptions { segment_bytes: 600, ..WalOptions::default() };
    let keyspaces = KeyspaceOptions::default().memtable_bytes(1 << 10);
    let options = Options::default().background(Background::Inline).seed(1).wal(wal);
    options.wal_bytes_max(WAL_BYTES_MAX).keyspace_defaults(keyspaces)
}

/// Returns options of the keyspace `counts` without its operand store.
pub(crate) fn merging() -> KeyspaceOptions {
    KeyspaceOptions::default().memtable_bytes(1 << 10).merge_operator(Append::default())
}

pub(crate) fn open_counts(db: &Db) -> Keyspace {
    db.keyspace("counts", merging().operand_store(STORE)).unwrap()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn check(keyspace: &Keyspace, model: &Model) {
    let entries = keyspace.iter().map(|entry| entry.unwrap());
    let entries: Model = entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert_eq!(entries, *model, "keyspace {}", keyspace.name());
}

/// Applies up to 60 random synced writes to a keyspace and to the model.
fn write(rng: &mut TestRng, keyspace: &Keyspace, model: &mut Model) {
    let keyspace = keyspace.with_write_options(Durability::Sync);
    for _ in 0..rng.below(60) {
        let key = vec![b'a' + rng.below(12)];
        let len = 1 + rng.below(30);
        let value = rng.bytes(len);
        match rng.below(8) {
            0 => {
                keyspace.put(&key, &value).unwrap();
                model.insert(key, value);
            }
            1 => {
                keyspace.delete(&key).unwrap();
                model.remove(&key);
            }
            2 if rng.is_one_in(4) => {
                let range = key.clone()..vec![key[0] + 3];
                keyspace.delete_range(range.clone()).unwrap();
                model.retain(|key, _| !range.contains(key));
            }
            _ => {
                keyspace.merge(&key, &value).unwrap();
                model.entry(key).or_default().extend(value);
            }
        }
    }
}

/// Holds a disk image, taken before a random operation of the disk.
struct PowerCut(Arc<Mutex<Option<MemVfs>>>);

impl PowerCut {
    /// Takes an image before a random one of the next `within` operations. Takes no image if the disk executes fewer
    /// operations.
    fn arm(disk: &MemVfs, rng: &mut TestRng, within: u64) -> PowerCut {
        let left = Arc::new(Mutex::new(None));
        let (kept, at) = (Arc::clone(&left), disk.operations() + rng.below(within));
        let (image, seed) = (*rng.choose(&CrashImage::ALL), rng.next_u64());
        disk.set_observer(Some(Arc::new(move |disk: &MemVfs, operation: MemOperation<'_>| {
            if operation.index == at {
                *lock(&kept) = Some(disk.crash(image, seed));
            }
        })));
        PowerCut(left)
    }

    /// Stops the recording. With probability 1/2 returns the image. Otherwise returns `None`, and the test continues
    /// without a power loss.
    fn take(&self, disk: &MemVfs, rng: &mut TestRng) -> Option<MemVfs> {
        disk.set_observer(None);
        lock(&self.0).take().filter(|_| rng.is_one_in(2))
    }
}

/// Two threads open a keyspace whose store was missing. One of them may move the operands to the tree. Every operand must
/// exist exactly once.
///
/// Regression: a thread attached the store that it had opened before the other thread passed the commits of the log to
/// its own store.
pub(crate) fn concurrent_opens_of_a_missing_store_keep_operands(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let (disk, mut counts) = (MemVfs::new(), Model::new());
    let db = open_with(&disk, options()).unwrap();
    write(&mut rng, &open_counts(&db), &mut counts);
    let disk = disk.crash(*rng.choose(&CrashImage::ALL), rng.next_u64());
    drop(db);
    let db = open_with(&disk, options().background(Background::Stepped { seed, workers: 1 }));
    let db = db.unwrap();
    let moves = rng.is_one_in(2);
    let threads = [moves, false].map(|moves| {
        let opener = db.clone();
        let open = move || {
            let keyspace = open_counts(&opener);
            keyspace.merge("z", "+").unwrap();
            if moves {
                keyspace.operands_to_tree().unwrap();
            }
        };
        db.env().spawn("opener", open).unwrap()
    });
    for thread in threads {
        db.env().join(thread).map_err(|_| "a thread panicked".to_owned())?;
    }
    counts.entry(b"z".to_vec()).or_default().extend(b"++");
    let keyspace = open_counts(&db);
    check(&keyspace, &counts);
    write(&mut rng, &keyspace, &mut counts);
    db.flush().unwrap();
    check(&keyspace, &counts);
    drop(keyspace);
    db.close(None).unwrap();
    drop(db);
    let db = open_with(&disk, options()).unwrap();
    check(&open_counts(&db), &counts);
    db.close(None).unwrap();
    Ok(())
}

/// Opens a database several times and cuts the power during these opens. In many opens, the operand store of one
/// keyspace is missing or broken. All other keyspaces must work, and the log must stay within its limit. Once the store
/// is open again, every operand must exist exactly once.
pub(crate) fn operands_wait_for_their_store(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let mut disk = MemVfs::new();
    let (mut counts, mut others) = (Model::new(), Model::new());
    {
        let db = open_with(&disk, options()).unwrap();
        write(&mut rng, &open_counts(&db), &mut counts);
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
        let db = open_with(&disk, given).unwrap();
        if let Some(left) = cut.take(&disk, &mut rng) {
            disk = left;
            continue;
        }
        check(&db.default_keyspace(), &others);
        let mut keyspace = db.open_keyspace("counts", None).unwrap();
        if how > 0 {
            match keyspace.get("a") {
                Err(Error::NoOperandStore { cause, .. }) if cause.is_some() == (how == 1) => {}
                other => panic!("a read without the store returns {other:?}"),
            }
            let main = db.default_keyspace().with_write_options(Durability::Sync);
            for _ in 0..rng.below(80) {
                let (key, value) = (rng.bytes(2), rng.bytes(100));
                main.put(&key, &value).unwrap();
                others.insert(key, value);
            }
            let log = db.metrics().wal;
            assert!(log.live_bytes <= 2 * WAL_BYTES_MAX, "{log:?}");
        }
        if how == 2 {
            let cut = PowerCut::arm(&disk, &mut rng, 60);
            keyspace = open_counts(&db);
            let log = db.metrics().wal;
            assert_eq!((log.kept_segments, log.kept_bytes), (0, 0));
            if let Some(left) = cut.take(&disk, &mut rng) {
                disk = left;
                continue;
            }
        }
        if how == 0 {
            keyspace = db.keyspace("counts", merging()).unwrap();
        }
        if how == 0 || how == 2 {
            check(&keyspace, &counts);
            write(&mut rng, &keyspace, &mut counts);
            check(&keyspace, &counts);
        }
        if rng.is_one_in(3) {
            db.close(None).unwrap();
            let orphans = oracle::verify(&disk).unwrap().orphans;
            assert!(how == 1 || how == 3 || orphans.is_empty(), "{orphans:?}");
        } else {
            disk = disk.crash(*rng.choose(&CrashImage::ALL), rng.next_u64());
        }
    }
    let read_only = open_with(&disk, options().read_only(true)).unwrap();
    check(&open_counts(&read_only), &counts);
    check(&read_only.default_keyspace(), &others);
    read_only.close(None).unwrap();
    let db = open_with(&disk, options().operand_store(STORE)).unwrap();
    check(&db.keyspace("counts", merging()).unwrap(), &counts);
    check(&db.default_keyspace(), &others);
    db.close(None).unwrap();
    Ok(())
}

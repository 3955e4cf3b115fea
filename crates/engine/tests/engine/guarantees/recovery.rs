//! Guarantee 3: no open recovers an older state than an earlier open, and no sequence or file number is used twice.

use std::path::Path;
use std::sync::{Arc, Mutex};

use lsmx::env::Background;
use lsmx::internals::vfs::{CrashImage, MemOperationKind};
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, KeyspaceOptions};
use lsmx_base::file_name::FileName;
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::TestRng;

use crate::harness::small_database::{durability, lock, open, open_with, options, seeds};

/// Gap between the last recovered sequence number and the next one after an unclean shutdown.
const GAP: u64 = 1 << 30;

fn number_of(path: &Path) -> Option<u64> {
    match FileName::parse(path.file_name()?.to_str()?)? {
        FileName::Temporary(_) => None,
        file => file.number(),
    }
}

/// Returns the number of commits. Commit `n` wrote key `n`, and the keys must be consecutive from 1.
fn count_commits(db: &Db) -> u64 {
    let keys: Vec<_> = db.default_keyspace().iter().map(|entry| entry.unwrap().0).collect();
    let numbers = keys.iter().map(|key| u64::from_be_bytes(key[..].try_into().unwrap()));
    assert!(numbers.eq(1..=keys.len() as u64));
    keys.len() as u64
}

/// The numbers of all files that have existed so far.
#[derive(Default)]
struct UsedNumbers(Vec<u64>);

impl UsedNumbers {
    /// Opens a database. Also returns the disk image before operation number `at` of the open, or `None` if the open
    /// makes fewer operations. Asserts that files created before this operation have larger numbers than all earlier
    /// files.
    fn open(&mut self, disk: &MemVfs, at: u64, cut: (CrashImage, u64)) -> (Db, Option<MemVfs>) {
        let (left, created) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())));
        let (kept, noted) = (Arc::clone(&left), Arc::clone(&created));
        let first = disk.operations();
        disk.set_observer(Some(Arc::new(move |disk, operation| {
            if operation.index == first + at {
                *lock(&kept) = Some(disk.crash(cut.0, cut.1));
            }
            if operation.kind == MemOperationKind::Create
                && let Some(number) = number_of(operation.path)
                && lock(&kept).is_none()
            {
                lock(&noted).push(number);
            }
        })));
        let db = open(disk);
        disk.set_observer(None);
        let largest = self.0.iter().max().copied().unwrap_or(0);
        let created = lock(&created).clone();
        let is_new = created.iter().all(|number| *number > largest);
        assert!(is_new, "{created:?} were created, {largest} was used before, cut at {at}");
        self.0.extend(created);
        (db, lock(&left).take())
    }

    fn add_files(&mut self, disk: &MemVfs) {
        self.0.extend(disk.paths().iter().filter_map(|path| number_of(path)));
    }
}

/// Guarantee 3: after a read-write open has returned, no later open recovers an older state, even after a kill during
/// recovery. No sequence number and no file number is used twice. After an unclean shutdown the next sequence number is
/// the last recovered one + 2^30, and new files skip the numbers of all existing files.
#[test]
fn guarantee_03_recovery_is_monotone() {
    const NO_CUT: (u64, (CrashImage, u64)) = (u64::MAX / 2, (CrashImage::Drop, 0));
    let mut interruptions = 0;
    for seed in seeds(3, 60) {
        let mut rng = TestRng::new(seed);
        let disk = MemVfs::new();
        let mut used = UsedNumbers::default();
        let (db, _) = used.open(&disk, NO_CUT.0, NO_CUT.1);
        for n in 1..=5 + rng.below(60_u64) {
            let keyspace = db.default_keyspace().with_write_options(durability(rng.is_one_in(4)));
            let len = rng.below(120);
            keyspace.put(n.to_be_bytes(), rng.bytes(len)).unwrap();
            used.add_files(&disk);
        }
        let image = disk.crash(*rng.choose(&CrashImage::ALL), seed);

        let before = image.snapshot_all();
        let open_read_only =
            |disk: &MemVfs| open_with(disk, options(Background::Inline).read_only(true));
        let read_only = open_read_only(&image).unwrap();
        let n = count_commits(&read_only);
        read_only.close(None).unwrap();
        assert!(image.snapshot_all() == before);

        // Interrupts several opens by a power loss.
        let mut disk = image.crash(CrashImage::Keep, 0);
        for _ in 0..rng.below(6) {
            let at = rng.below(40);
            let cut = (*rng.choose(&CrashImage::ALL), rng.next_u64());
            used.add_files(&disk);
            let (db, left) = used.open(&disk, at, cut);
            drop(db);
            // If the open made fewer than `at` operations, the power loss occurs after the open.
            disk = left.unwrap_or_else(|| disk.crash(CrashImage::Drop, 0));
            interruptions += 1;
        }
        let mut seq = 0;
        for opening in 0..3 {
            used.add_files(&disk);
            let (db, _) = used.open(&disk, NO_CUT.0, NO_CUT.1);
            assert_eq!(count_commits(&db), n, "seed {seed}, open {opening}");
            let next = db.snapshot().seq().0 + 1;
            assert!(next >= n + GAP && next > seq, "seed {seed}: {next} after {n} and {seq}");
            seq = next;
            let second = open_read_only(&disk);
            assert!(matches!(second, Err(Error::Locked { .. })), "{second:?}");
            disk = disk.crash(CrashImage::Drop, 0);
        }
        // Without interrupted opens, the next sequence number is exactly the last number + `GAP`.
        let db = open(&image);
        assert_eq!((count_commits(&db), db.snapshot().seq().0 + 1), (n, n + GAP));
    }
    assert!(interruptions > 60, "recovery was killed only {interruptions} times");
}

/// Regression: after a clean close, an open was interrupted and the names of its files were lost. The next open used
/// their numbers again, because only opens after an unclean shutdown skipped numbers.
#[test]
fn file_numbers_of_interrupted_open_after_clean_close_are_not_used_again() {
    let closed = MemVfs::new();
    open(&closed).close(None).unwrap();
    for at in 0..25 {
        for image in CrashImage::ALL {
            let (mut disk, mut used) = (closed.crash(CrashImage::Keep, 0), UsedNumbers::default());
            for _ in 0..3 {
                let (db, left) = used.open(&disk, at, (image, at));
                drop(db);
                let Some(left) = left else {
                    assert!(at > 10, "an open has only {at} operations");
                    break;
                };
                disk = left;
            }
        }
    }
}

/// Regression: an open reserved 1,000 file numbers, but one delivery to an operand store may create more files.
#[test]
fn file_numbers_of_large_delivery_are_reserved() {
    const OPERANDS: u64 = 2_000;
    let store = DeltaStoreFactory::new(DeltaOptions::default().bucket_bytes(512));
    let keyspace = KeyspaceOptions::default().merge_operator(Append::default());
    let options = options(Background::Inline)
        .keyspace_defaults(keyspace.operand_store(store))
        .wal_bytes_max(u64::MAX);
    let disk = MemVfs::new();
    let db = open_with(&disk, options.clone()).unwrap();
    // Without a table below them, a flush replaces operands by values.
    for number in [0, u64::MAX] {
        db.put(number.to_be_bytes(), "value").unwrap();
    }
    db.flush().unwrap();
    for number in 0..OPERANDS {
        db.default_keyspace().merge(number.to_be_bytes(), [7; 100]).unwrap();
    }
    let killed = disk.crash(CrashImage::Keep, 0);
    // The largest reserved number, and all used numbers that were not reserved.
    let (largest, unreserved) = (Mutex::new(0), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&unreserved);
    killed.set_observer(Some(Arc::new(move |_, operation| {
        let name = operation.path.file_name().and_then(|name| name.to_str());
        match name.and_then(FileName::parse).filter(|_| operation.kind == MemOperationKind::Create)
        {
            Some(FileName::Temporary(number)) => {
                let mut largest = lock(&largest);
                *largest = number.max(*largest);
            }
            Some(file) => {
                let number = file.number().filter(|number| *number >= *lock(&largest));
                lock(&noted).extend(number);
            }
            None => {}
        }
    })));
    let db = open_with(&killed, options).unwrap();
    killed.set_observer(None);
    assert_eq!(*lock(&unreserved), Vec::<u64>::new());
    let store = db.metrics().keyspaces["default"].operand_store.unwrap();
    assert!(store.buckets > OPERANDS / 2, "{store:?}");
}

//! Guarantee 3: a state that an open has shown stays, and no number is used twice.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::support::{lock, open, options, seeds};
use lsmx::env::Background;
use lsmx::internals::vfs::{CrashImage, MemOperationKind};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error};
use lsmx_base::file_name::FileName;
use lsmx_testkit::TestRng;

/// What the next sequence number is past the last recovered one, after an unclean end.
const GAP: u64 = 1 << 30;

/// Numbers of files.
type Numbers = Arc<Mutex<Vec<u64>>>;

/// The number of a file that holds something of the database under it.
fn number_of(path: &Path) -> Option<u64> {
    match FileName::parse(path.file_name()?.to_str()?)? {
        FileName::Temporary(_) => None,
        file => file.number(),
    }
}

/// Commits are the numbers from 1 on, each a key: how many there are, none missing.
fn commits(db: &Db) -> u64 {
    let keys: Vec<_> = db.default_keyspace().iter().map(|entry| entry.unwrap().0).collect();
    let numbers = keys.iter().map(|key| u64::from_be_bytes(key[..].try_into().unwrap()));
    assert!(numbers.eq(1..=keys.len() as u64));
    keys.len() as u64
}

/// Opens a disk, with every file that is created noted, and power cut before the operation with this number,
/// if there are so many: then that is what is left.
fn interrupted(
    disk: &MemVfs,
    at: u64,
    cut: (CrashImage, u64),
    created: &Numbers,
) -> (Db, Option<MemVfs>) {
    let left = Arc::new(Mutex::new(None));
    let (kept, noted) = (Arc::clone(&left), Arc::clone(created));
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
    let left = lock(&left).take();
    (db, left)
}

/// 3. What a read-write open has shown, no later open takes back: recovery makes its result durable before it
///    answers. It may itself be killed at any point, any number of times. No sequence number and no file
///    number is ever used twice: after an unclean end the next sequence number is the last recovered one
///    + 2^30, and file numbers skip every name found on disk.
#[test]
fn guarantee_03_monotone_recovery() {
    let mut interruptions = 0;
    for seed in seeds(3, 60) {
        let mut rng = TestRng::new(seed);
        let disk = MemVfs::new();
        let given = Numbers::default();
        let (db, _) = interrupted(&disk, u64::MAX / 2, (CrashImage::Drop, 0), &given);
        let written = 5 + rng.below(60_u64);
        for n in 1..=written {
            let sync = rng.is_one_in(4);
            let durability = if sync { Durability::Sync } else { Durability::Buffered };
            let len = rng.below(120);
            let value = rng.bytes(len);
            db.default_keyspace()
                .with_write_options(durability)
                .put(n.to_be_bytes(), value)
                .unwrap();
        }
        let image = disk.crash(*rng.choose(&CrashImage::ALL), seed);
        disk.set_observer(None);

        // Who only reads changes nothing and is not let in beside a writer.
        let before = image.snapshot_all();
        let vfs = Arc::new(image.clone());
        let read_only =
            Db::open("db", options(Background::Inline).read_only(true).vfs(vfs.clone())).unwrap();
        let n = commits(&read_only);
        read_only.close(None).unwrap();
        assert!(image.snapshot_all() == before);

        // Killed in recovery, again and again; nothing has been shown yet.
        let mut disk = image.crash(CrashImage::Keep, 0);
        let mut names: Vec<u64> = given_so_far(&given);
        for _ in 0..rng.below(6) {
            let at = rng.below(40);
            let cut = (*rng.choose(&CrashImage::ALL), rng.next_u64());
            names.extend(disk.paths().iter().filter_map(|path| number_of(path)));
            let created = Numbers::default();
            let (db, left) = interrupted(&disk, at, cut, &created);
            check_numbers(&names, &created, seed);
            names.extend(given_so_far(&created));
            drop(db);
            // If it was done before: as if it had been killed then.
            disk = left.unwrap_or_else(|| disk.crash(CrashImage::Drop, 0));
            interruptions += 1;
        }
        let mut seq = 0;
        for opening in 0..3 {
            names.extend(disk.paths().iter().filter_map(|path| number_of(path)));
            let created = Numbers::default();
            let (db, _) = interrupted(&disk, u64::MAX / 2, (CrashImage::Drop, 0), &created);
            assert_eq!(commits(&db), n, "seed {seed}, opening {opening}");
            check_numbers(&names, &created, seed);
            names.extend(given_so_far(&created));
            let next = db.snapshot().seq().0 + 1;
            assert!(next >= n + GAP && next > seq, "seed {seed}: {next} after {n} and {seq}");
            seq = next;
            let beside = Db::open(
                "db",
                options(Background::Inline).read_only(true).vfs(Arc::new(disk.clone())),
            );
            assert!(matches!(beside, Err(Error::Locked { .. })), "{beside:?}");
            // At once power is lost, and nothing that was not synced is left.
            disk = disk.crash(CrashImage::Drop, 0);
        }
        // Where recovery was not interrupted the gap is exactly that.
        let db = open(&image);
        assert_eq!((commits(&db), db.snapshot().seq().0 + 1), (n, n + GAP));
    }
    assert!(interruptions > 60, "recovery was killed {interruptions} times only");
}

fn given_so_far(numbers: &Numbers) -> Vec<u64> {
    lock(numbers).clone()
}

/// Files that were created have numbers that no file had.
fn check_numbers(names: &[u64], created: &Numbers, seed: u64) {
    let largest = names.iter().max().copied().unwrap_or(0);
    let created = given_so_far(created);
    let fresh = created.iter().all(|number| *number > largest);
    assert!(fresh, "seed {seed}: {created:?} were created, {largest} was used before");
}

/// An opening that follows a clean close used the same file numbers as one before it that power had cut short,
/// if the names of its files were lost: only openings after an unclean end left out numbers.
#[test]
fn file_numbers_opening_after_clean_close_cut_short_are_not_used_again() {
    let closed = MemVfs::new();
    open(&closed).close(None).unwrap();
    for at in 0..25 {
        for image in CrashImage::ALL {
            let (mut disk, mut names) = (closed.crash(CrashImage::Keep, 0), Vec::new());
            for _ in 0..3 {
                let created = Numbers::default();
                let (db, left) = interrupted(&disk, at, (image, at), &created);
                check_numbers(&names, &created, at);
                names.extend(given_so_far(&created));
                drop(db);
                let Some(left) = left else {
                    assert!(at > 10, "an opening is {at} operations long");
                    break;
                };
                disk = left;
            }
        }
    }
}

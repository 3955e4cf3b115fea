//! Checks of the manifest after power losses, failed writes and damage.
//!
//! A load returns the state after a prefix of the edits that includes all acknowledged edits, or an error that names
//! the file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use lsmx::Error;
use lsmx::SeqNo;
use lsmx::internals::format::version_edit::{Change, VersionEdit};
use lsmx::internals::manifest::{Manifest, ManifestState};
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx_compaction::{FileId, KeyRange, Level, RunId, TableMeta};

fn dir() -> &'static Path {
    Path::new("db")
}

fn disk() -> MemVfs {
    let vfs = MemVfs::new();
    vfs.create_dir(dir()).unwrap();
    vfs.sync_dir(Path::new("")).unwrap();
    vfs
}

/// Returns the n-th edit. The edit adds a file and sets the last sequence number to `n`.
fn edit(n: u64) -> VersionEdit {
    let keyspace = 0;
    let mut changes = vec![Change::LastSeq(SeqNo(n))];
    if n == 1 {
        let (name, options) = ("default".to_owned(), "o".repeat(40));
        changes.push(Change::CreateKeyspace { id: 0, name, options });
    }
    let key = Bytes::from(format!("key-{n:08}"));
    let file = TableMeta {
        bytes: n,
        entries: n,
        value_bytes: n,
        seq_smallest: n,
        seq_largest: n,
        last_read_us: n,
        created_us: n,
        creation: n,
        uid: n,
        checksum: n,
        ..TableMeta::new(FileId(1_000 + n), KeyRange { smallest: key.clone(), largest: key })
    };
    let run = RunId(n);
    changes.push(Change::AddFile { keyspace, level: Level(0), run, file: Arc::new(file) });
    if n > 3 {
        changes.push(Change::RemoveFile { keyspace, id: FileId(1_000 + n - 3) });
    }
    changes.into()
}

/// Returns the state after `n` edits.
fn state(n: u64) -> ManifestState {
    let mut state = ManifestState { db_uid: 77, ..ManifestState::default() };
    (1..=n).for_each(|n| state.apply_edit(&edit(n)).unwrap());
    state
}

#[derive(Clone, Copy, Debug, Default)]
struct Promises {
    /// Whether `CURRENT` has been written and its directory synced.
    created: bool,
    acknowledged: u64,
    attempted: u64,
}

fn check(image: &MemVfs, promises: Promises) -> Result<(), String> {
    let before = image.snapshot_all();
    let loaded = Manifest::load(image, dir());
    if image.snapshot_all() != before {
        return Err("loading changed a byte".to_owned());
    }
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(Error::NotADatabase { .. }) if !promises.created => return Ok(()),
        Err(error) => return Err(format!("{error:?}")),
    };
    let n = loaded.state.last_seq.0;
    if n < promises.acknowledged || n > promises.attempted {
        return Err(format!("state after {n} edits, {promises:?}"));
    }
    if loaded.state != state(n) {
        return Err(format!("state after {n} edits is not what they make"));
    }
    Ok(())
}

/// Applies 12 edits, some by a rewrite of the manifest. Passes the current guarantees to `promise` before and after
/// each edit.
fn workload(vfs: &Arc<dyn Vfs>, promise: &dyn Fn(Promises)) -> lsmx::Result<()> {
    let mut promises = Promises::default();
    let mut number = 1;
    let manifest = Manifest::create(vfs.clone(), dir(), number, &state(0))?;
    promises.created = true;
    for n in 1..=12 {
        promises.attempted = n;
        promise(promises);
        let done = if n % 5 == 0 {
            number += 1;
            manifest.rewrite(number, &[edit(n)]).map(Some)
        } else {
            manifest.append(&edit(n)).map(|()| None)
        };
        let old = match done {
            Ok(old) => old,
            Err(error) => {
                assert!(manifest.failure().is_some());
                let again = manifest.append(&edit(n)).unwrap_err();
                assert!(matches!(again, Error::ReadOnly { .. }), "{error:?}, then {again:?}");
                assert_eq!(manifest.with_state(|state| state.last_seq.0), n - 1);
                number += 1;
                // Until `rewrite` has returned, a crash may leave the old manifest in use.
                Some(manifest.rewrite(number, &[edit(n)])?)
            }
        };
        promises.acknowledged = n;
        promise(promises);
        if let Some(old) = old {
            let _ = vfs.remove(&dir().join(format!("MANIFEST-{old:06}")));
        }
    }
    Ok(())
}

fn enumerate_crashes() -> Result<u64, String> {
    let vfs = disk();
    let promised = Arc::new(Mutex::new(Promises::default()));
    let found = Arc::new(Mutex::new((0, None)));
    let (seen, watched) = (found.clone(), promised.clone());
    vfs.set_observer(Some(Arc::new(move |vfs, operation| {
        let promises = *watched.lock().unwrap();
        for image in CrashImage::ALL {
            for seed in 0..4 {
                let mut seen = seen.lock().unwrap();
                seen.0 += 1;
                let crashed = vfs.crash(image, operation.index * 4 + seed);
                if let Err(broken) = check(&crashed, promises)
                    && seen.1.is_none()
                {
                    seen.1 = Some(format!("{operation:?}, {image:?}, seed {seed}: {broken}"));
                }
            }
        }
    })));
    let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
    workload(&shared, &|promises| *promised.lock().unwrap() = promises).unwrap();
    vfs.set_observer(None);
    let (images, broken) = found.lock().unwrap().clone();
    broken.map_or(Ok(images), Err)
}

#[test]
fn after_a_crash_at_any_operation_the_state_is_that_of_a_prefix_with_all_acknowledged_edits() {
    let _alone = lsmx_testkit::run_alone();
    let images = enumerate_crashes().unwrap();
    assert!(images > 1_500, "only {images} images");
}

#[test]
fn a_manifest_in_doubt_starts_afresh_and_nothing_acknowledged_is_lost() {
    let _alone = lsmx_testkit::run_alone();
    let changes =
        [VfsCall::Append, VfsCall::Sync, VfsCall::SyncDir, VfsCall::Create, VfsCall::Rename];
    let mut points = 0;
    for fault in [Fault::Error(Errno::Io), Fault::ShortWrite(Errno::NoSpace)] {
        for k in 0.. {
            let disk = disk();
            let vfs = FaultVfs::new(Arc::new(disk.clone()), k);
            let calls = match fault {
                Fault::ShortWrite(_) => &changes[..1],
                _ => &changes,
            };
            vfs.add_rule(FaultRule::new(fault).for_calls(calls).nth(k).once());
            let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
            let promised = Mutex::new(Promises::default());
            let done = workload(&shared, &|promises| *promised.lock().unwrap() = promises);
            let promises = *promised.lock().unwrap();
            // The fault fires once, so the workload fails only if the creation of the manifest fails.
            assert!(done.is_ok() || promises.attempted == 0, "k {k}: {done:?}");
            for image in CrashImage::ALL {
                check(&disk.crash(image, k), promises)
                    .unwrap_or_else(|broken| panic!("{fault:?}, k {k}, {image:?}: {broken}"));
            }
            if vfs.fired_counts().values().sum::<u64>() == 0 {
                break;
            }
            points += 1;
        }
    }
    assert!(points > 80, "only {points} fault points");
}

/// Returns the disk of a closed database with a manifest.
fn closed() -> MemVfs {
    let vfs = disk();
    let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
    let manifest = Manifest::create(shared, dir(), 1, &state(0)).unwrap();
    for n in 1..=4 {
        manifest.append(&edit(n)).unwrap();
    }
    manifest.append(&vec![Change::CleanClose { last_seq: SeqNo(4) }].into()).unwrap();
    vfs.crash(CrashImage::Drop, 0)
}

#[test]
fn every_damaged_byte_and_every_cut_of_a_closed_manifest_is_noticed() {
    let _alone = lsmx_testkit::run_alone();
    let vfs = closed();
    let expected = Manifest::load(&vfs, dir()).unwrap().state;
    assert!(expected.clean_close);
    let judge = |disk: &MemVfs, path: &Path, what: String| match Manifest::load(disk, dir()) {
        Ok(loaded) => assert_eq!(loaded.state, expected, "{} {what}", path.display()),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("CURRENT") || text.contains("MANIFEST-000001"), "{text}");
        }
    };
    for (path, bytes) in vfs.snapshot_all() {
        for (at, byte) in bytes.iter().enumerate() {
            for mask in [1 << (at % 8), *byte, !*byte] {
                let disk = vfs.crash(CrashImage::Keep, 0);
                disk.flip_bits(&path, at as u64, mask).unwrap();
                judge(&disk, &path, format!("byte {at} xor {mask:#04x}"));
            }
            let disk = vfs.crash(CrashImage::Keep, 0);
            disk.truncate(&path, at as u64).unwrap();
            assert!(Manifest::load(&disk, dir()).is_err(), "{} cut to {at}", path.display());
        }
    }
}

#[test]
fn files_of_a_manifest_that_are_missing_or_foreign_are_named() {
    let _alone = lsmx_testkit::run_alone();
    let vfs = closed();
    let manifest = Path::new("db/MANIFEST-000001");
    vfs.remove(manifest).unwrap();
    let error = Manifest::load(&vfs, dir()).unwrap_err();
    assert!(matches!(&error, Error::Missing { path, .. } if path == manifest), "{error}");

    let other = disk();
    let shared: Arc<dyn Vfs> = Arc::new(other.clone());
    let uid = ManifestState { db_uid: 78, ..ManifestState::default() };
    Manifest::create(shared, dir(), 1, &uid).unwrap();
    vfs.write_all(manifest, &other.read_all(manifest).unwrap()).unwrap();
    let error = Manifest::load(&vfs, dir()).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { path, .. } if path == manifest), "{error}");
}

#[test]
fn only_a_directory_without_data_is_not_a_database() {
    let _alone = lsmx_testkit::run_alone();
    let why = |vfs: &dyn Vfs| Manifest::load(vfs, dir()).unwrap_err().to_string();
    assert!(why(&MemVfs::new()).contains("not a database"));
    assert!(why(&disk()).contains("not a database"));

    let cut_short = closed();
    cut_short.remove(Path::new("db/CURRENT")).unwrap();
    let text = why(&cut_short);
    assert!(text.contains("not a database") && text.contains("cut short"), "{text}");

    for (name, bytes) in [("000007.sst", 1), ("000003.wal", 81)] {
        let lost = disk();
        lost.write_all(&dir().join(name), &vec![0; bytes]).unwrap();
        let error = Manifest::load(&lost, dir()).unwrap_err();
        let current = PathBuf::from("db/CURRENT");
        assert!(matches!(&error, Error::Missing { path, .. } if *path == current), "{error}");
        // The error must not name a table.
        assert!(!error.to_string().contains(name), "{error}");
    }

    let vfs = FaultVfs::new(Arc::new(closed()), 0);
    for call in [VfsCall::Open, VfsCall::Read] {
        vfs.add_rule(
            FaultRule::new(Fault::Error(Errno::TooManyFiles)).for_calls(&[call]).nth(0).once(),
        );
        let error = Manifest::load(&vfs, dir()).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
    }
}

#[test]
fn an_edit_that_does_not_fit_is_refused_and_leaves_no_doubt() {
    let _alone = lsmx_testkit::run_alone();
    let vfs = disk();
    let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
    let manifest = Manifest::create(shared, dir(), 1, &state(1)).unwrap();
    let before = vfs.snapshot_all();
    assert!(manifest.append(&vec![Change::DropKeyspace { id: 9 }].into()).is_err());
    assert_eq!(vfs.snapshot_all(), before);
    assert!(manifest.failure().is_none());
    manifest.append(&edit(2)).unwrap();
    assert_eq!(manifest.state(), state(2));
}

#[test]
fn a_manifest_wants_a_fresh_start_when_it_is_twice_its_snapshot() {
    let _alone = lsmx_testkit::run_alone();
    let vfs = disk();
    let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
    let manifest = Manifest::create(shared, dir(), 1, &state(0)).unwrap();
    let mut n = 0;
    while !manifest.needs_rewrite() {
        n += 1;
        manifest.append(&edit(n)).unwrap();
        assert!(n < 1_000);
    }
    assert_eq!(manifest.rewrite(2, &[]).unwrap(), 1);
    assert!(!manifest.needs_rewrite());
    assert_eq!(manifest.manifest_number(), 2);
    assert_eq!(Manifest::load(&vfs, dir()).unwrap().state, manifest.state());
}

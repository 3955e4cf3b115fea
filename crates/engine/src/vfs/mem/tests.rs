//! Tests of crash images, locks, capacity and damage.

use lsmx_base::sync::Mutex;

use super::*;

const SEEDS: std::ops::Range<u64> = 0..200;

fn path(text: &str) -> &Path {
    Path::new(text)
}

/// Creates a file `f` whose name and first bytes are synced, followed by unsynced appends.
fn vfs_with_appends(synced: &[u8], unsynced: &[&[u8]]) -> MemVfs {
    let vfs = MemVfs::new();
    let file = vfs.create(path("f")).unwrap();
    file.append(synced).unwrap();
    file.sync().unwrap();
    vfs.sync_dir(path("")).unwrap();
    for bytes in unsynced {
        file.append(bytes).unwrap();
    }
    vfs
}

fn read_in_image(vfs: &MemVfs, image: CrashImage, seed: u64, name: &str) -> Option<Vec<u8>> {
    vfs.crash(image, seed).read_all(path(name)).ok()
}

fn names(vfs: &MemVfs) -> Vec<String> {
    vfs.paths().iter().map(|path| path.to_string_lossy().into_owned()).collect()
}

#[test]
fn drop_image_has_only_synced_bytes() {
    let vfs = vfs_with_appends(b"old", &[b"new", b"er"]);
    assert_eq!(read_in_image(&vfs, CrashImage::Drop, 0, "f").unwrap(), b"old");
    assert_eq!(vfs.read_all(path("f")).unwrap(), b"oldnewer");
}

#[test]
fn keep_image_equals_the_file_system() {
    let vfs = vfs_with_appends(b"old", &[b"new", b"er"]);
    vfs.create(path("g")).unwrap().append(b"x").unwrap();
    assert_eq!(vfs.crash(CrashImage::Keep, 0).snapshot_all(), vfs.snapshot_all());
}

#[test]
fn synced_files_are_equal_in_every_image() {
    let vfs = MemVfs::new();
    vfs.create_dir(path("d")).unwrap();
    vfs.sync_dir(path("")).unwrap();
    for name in ["d/a", "d/b"] {
        let file = vfs.create(path(name)).unwrap();
        file.append(&[7; 5_000]).unwrap();
        file.sync().unwrap();
    }
    vfs.sync_dir(path("d")).unwrap();
    for image in CrashImage::ALL {
        for seed in SEEDS {
            let crashed = vfs.crash(image, seed);
            assert_eq!(crashed.snapshot_all(), vfs.snapshot_all(), "{image:?} {seed}");
        }
    }
}

#[test]
fn torn_image_cuts_the_first_append_and_drops_the_second() {
    let first: Vec<u8> = (0..2_000u32).map(|at| (at % 251) as u8 + 1).collect();
    let vfs = vfs_with_appends(&[9; 100], &[&first, b"second"]);
    let whole = vfs.read_all(path("f")).unwrap();
    let mut lengths = std::collections::BTreeSet::new();
    for seed in SEEDS {
        let bytes = read_in_image(&vfs, CrashImage::Torn, seed, "f").unwrap();
        assert!((100..2_100).contains(&bytes.len()));
        assert_eq!(bytes, whole[..bytes.len()]);
        lengths.insert(bytes.len());
    }
    assert!([512, 1_024, 1_536, 2_048].iter().all(|len| lengths.contains(len)), "sectors");
    assert!(lengths.iter().any(|len| len % 512 != 0), "any byte");
}

#[test]
fn torn_image_drops_an_append_of_one_byte() {
    let vfs = vfs_with_appends(b"", &[b"x"]);
    for seed in SEEDS {
        assert_eq!(read_in_image(&vfs, CrashImage::Torn, seed, "f").unwrap(), b"");
    }
}

#[test]
fn zeros_image_has_the_length_and_zeros() {
    let vfs = vfs_with_appends(b"old", &[b"new", b"er"]);
    assert_eq!(read_in_image(&vfs, CrashImage::Zeros, 0, "f").unwrap(), b"old\0\0\0\0\0");
}

#[test]
fn garbage_image_has_random_or_old_bytes() {
    let vfs = vfs_with_appends(&[b'o'; 600], &[&[b'n'; 700]]);
    let (mut old, mut random) = (0, 0);
    for seed in SEEDS {
        let bytes = read_in_image(&vfs, CrashImage::Garbage, seed, "f").unwrap();
        assert_eq!(bytes.len(), 1_300);
        assert_eq!(bytes[..600], [b'o'; 600]);
        if bytes[600..] == [b'o'; 700] {
            old += 1;
        } else {
            assert_ne!(bytes[600..], [b'n'; 700]);
            random += 1;
        }
    }
    assert!(old > 50 && random > 50, "{old} old, {random} random");
}

#[test]
fn sectors_image_keeps_each_sector_at_random() {
    let vfs = vfs_with_appends(&[1; 100], &[&[2; 3_000]]);
    let mut later_without_earlier = 0;
    let mut lengths = std::collections::BTreeSet::new();
    for seed in SEEDS {
        let bytes = read_in_image(&vfs, CrashImage::Sectors, seed, "f").unwrap();
        assert_eq!(bytes[..100], [1; 100]);
        lengths.insert(bytes.len());
        let mut missing = false;
        for (at, sector) in bytes.chunks(512).enumerate() {
            let unsynced = if at == 0 { &sector[100..] } else { sector };
            assert!(
                unsynced.iter().all(|byte| *byte == unsynced[0]),
                "a sector survives as a whole"
            );
            match unsynced.first() {
                Some(2) => later_without_earlier += u64::from(missing),
                Some(0) => missing = true,
                found => assert_eq!(found, None),
            }
        }
        if bytes.len() > 100 {
            assert_eq!(bytes.last(), Some(&2), "the last surviving sector ends the file");
        }
    }
    assert!(later_without_earlier > 50);
    assert!(lengths.contains(&100) && lengths.contains(&3_100) && lengths.contains(&1_024));
}

#[test]
fn lag_image_keeps_the_appends_of_one_file() {
    let vfs = MemVfs::new();
    let files: Vec<_> = ["a", "b", "c"].map(|name| vfs.create(path(name)).unwrap()).into();
    for file in &files {
        file.append(b"old").unwrap();
        file.sync().unwrap();
    }
    vfs.sync_dir(path("")).unwrap();
    for file in &files[..2] {
        file.append(b"new").unwrap();
    }
    let mut ahead = [0, 0];
    for seed in SEEDS {
        let all: Vec<_> = vfs.crash(CrashImage::Lag, seed).snapshot_all().into_values().collect();
        assert_eq!(all[2], b"old");
        match (&all[0][..], &all[1][..]) {
            (b"oldnew", b"old") => ahead[0] += 1,
            (b"old", b"oldnew") => ahead[1] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(ahead[0] > 50 && ahead[1] > 50);
}

#[test]
fn file_sync_does_not_sync_the_name() {
    let vfs = MemVfs::new();
    let file = vfs.create(path("f")).unwrap();
    file.append(b"x").unwrap();
    file.sync().unwrap();
    for image in [CrashImage::Drop, CrashImage::Torn] {
        assert_eq!(names(&vfs.crash(image, 0)), [""; 0]);
    }
    vfs.sync_dir(path("")).unwrap();
    assert_eq!(read_in_image(&vfs, CrashImage::Drop, 0, "f").unwrap(), b"x");
}

#[test]
fn directory_sync_does_not_sync_the_bytes() {
    let vfs = MemVfs::new();
    vfs.create(path("f")).unwrap().append(b"x").unwrap();
    vfs.sync_dir(path("")).unwrap();
    assert_eq!(read_in_image(&vfs, CrashImage::Drop, 0, "f").unwrap(), b"");
}

/// Bug: crash tests missed that the engine reported intact files as damaged. Files of the operating system may end in
/// preallocated zeros after a crash, but files of crash images did not.
#[test]
fn preallocated_zeros_are_visible_to_others_until_the_writer_drops() {
    let vfs = MemVfs::new();
    let file = vfs.create(path("f")).unwrap();
    file.append(b"before").unwrap();
    file.enable_preallocation();
    assert_eq!(vfs.read_all(path("f")).unwrap(), b"before");
    file.append(&[1; 5_000]).unwrap();
    assert_eq!(file.len().unwrap(), 5_006);
    let other = vfs.open(path("f")).unwrap();
    assert_eq!(other.len().unwrap(), 10_012);
    let mut buffer = [9; 20];
    assert_eq!(file.read_at(&mut buffer, 5_000).unwrap(), 6);
    assert_eq!(other.read_at(&mut buffer, 5_000).unwrap(), 20);
    assert_eq!(buffer, [[1; 6].as_slice(), &[0; 14]].concat()[..]);
    file.append(b"behind").unwrap();
    assert_eq!(vfs.used_bytes(), 5_012);
    drop(file);
    assert_eq!(vfs.read_all(path("f")).unwrap().len(), 5_012);
}

#[test]
fn preallocated_length_survives_after_a_sync() {
    let vfs = MemVfs::new();
    let file = vfs.create(path("f")).unwrap();
    file.enable_preallocation();
    file.append(&[1; 100]).unwrap();
    vfs.sync_dir(path("")).unwrap();
    assert_eq!(read_in_image(&vfs, CrashImage::Drop, 0, "f").unwrap(), b"");
    file.sync().unwrap();
    file.append(&[2; 3_000]).unwrap();
    let synced = [vec![1; 100], vec![0; 4_096]].concat();
    for image in [CrashImage::Drop, CrashImage::Zeros] {
        assert_eq!(read_in_image(&vfs, image, 0, "f").unwrap(), synced, "{image:?}");
    }
    for image in CrashImage::ALL {
        for seed in SEEDS {
            let bytes = read_in_image(&vfs, image, seed, "f").unwrap();
            assert_eq!((bytes.len(), &bytes[..100]), (4_196, &[1; 100][..]), "{image:?} {seed}");
            assert_eq!(bytes[3_100..], [0; 1_096], "{image:?} {seed}");
        }
    }
}

#[test]
fn pages_image_keeps_each_page_at_random_and_at_an_earlier_state() {
    let appends: Vec<Vec<u8>> = (2..30).map(|byte| vec![byte; 1_000]).collect();
    let appends: Vec<&[u8]> = appends.iter().map(|bytes| &bytes[..]).collect();
    let vfs = vfs_with_appends(&[1; 100], &appends);
    let whole = vfs.read_all(path("f")).unwrap();
    let (mut first_lost, mut older, mut shorter, mut all) = (0, 0, 0, 0);
    for seed in SEEDS {
        let bytes = read_in_image(&vfs, CrashImage::Pages, seed, "f").unwrap();
        assert_eq!(bytes[..100], [1; 100]);
        let pages: Vec<(&[u8], &[u8])> = bytes.chunks(4_096).zip(whole.chunks(4_096)).collect();
        let mut lost = Vec::new();
        for (found, whole) in &pages {
            let kept = found.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            assert_eq!(found[..kept], whole[..kept], "{seed}");
            lost.push(kept <= 100);
            older += u64::from(kept > 100 && kept < found.len());
        }
        first_lost += u64::from(lost[0] && lost.contains(&false));
        shorter += u64::from(bytes.len() < whole.len());
        all += u64::from(bytes == whole);
    }
    assert!(
        first_lost > 20 && older > 20 && shorter > 20 && all > 0,
        "{first_lost} {older} {shorter} {all}"
    );
}

#[test]
fn removed_file_reappears_until_the_directory_is_synced() {
    let vfs = vfs_with_appends(b"old", &[b"new"]);
    vfs.remove(path("f")).unwrap();
    for image in [CrashImage::Drop, CrashImage::Torn] {
        assert!(read_in_image(&vfs, image, 0, "f").unwrap().starts_with(b"old"));
    }
    for image in [CrashImage::Keep, CrashImage::Zeros, CrashImage::Garbage] {
        assert_eq!(read_in_image(&vfs, image, 0, "f"), None);
    }
    let back =
        SEEDS.filter(|seed| read_in_image(&vfs, CrashImage::Sectors, *seed, "f").is_some()).count();
    assert!((50..150).contains(&back), "at random");
    let back =
        SEEDS.filter(|seed| read_in_image(&vfs, CrashImage::Lag, *seed, "f").is_some()).count();
    assert!((50..150).contains(&back), "at random");
    vfs.sync_dir(path("")).unwrap();
    for image in CrashImage::ALL {
        assert_eq!(read_in_image(&vfs, image, 0, "f"), None);
    }
}

#[test]
fn rename_over_a_file_is_atomic() {
    let vfs = vfs_with_appends(b"old", &[]);
    let new = vfs.create(path("new")).unwrap();
    new.append(b"new").unwrap();
    new.sync().unwrap();
    vfs.sync_dir(path("")).unwrap();
    vfs.rename(path("new"), path("f")).unwrap();
    assert_eq!(names(&vfs), ["f"]);
    let dropped = vfs.crash(CrashImage::Drop, 0);
    assert_eq!(names(&dropped), ["f", "new"]);
    assert_eq!(dropped.read_all(path("f")).unwrap(), b"old");
    let mut seen = std::collections::BTreeSet::new();
    for seed in SEEDS {
        seen.insert(
            vfs.crash(CrashImage::Sectors, seed).snapshot_all().into_values().collect::<Vec<_>>(),
        );
    }
    let undone = vec![b"old".to_vec(), b"new".to_vec()];
    assert_eq!(seen, [undone, vec![b"new".to_vec()]].into());
    vfs.sync_dir(path("")).unwrap();
    assert_eq!(read_in_image(&vfs, CrashImage::Drop, 0, "f").unwrap(), b"new");
}

#[test]
fn rename_across_directories_needs_both_synced() {
    let vfs = MemVfs::new();
    for dir in ["a", "b"] {
        vfs.create_dir(path(dir)).unwrap();
    }
    vfs.sync_dir(path("")).unwrap();
    vfs.create(path("a/f")).unwrap();
    vfs.sync_dir(path("a")).unwrap();
    vfs.rename(path("a/f"), path("b/f")).unwrap();
    let only_from = vfs.crash(CrashImage::Keep, 0);
    assert_eq!(names(&only_from), ["b/f"]);
    assert_eq!(names(&vfs.crash(CrashImage::Drop, 0)), ["a/f"]);
    vfs.sync_dir(path("b")).unwrap();
    assert_eq!(names(&vfs.crash(CrashImage::Drop, 0)), ["a/f", "b/f"]);
    vfs.sync_dir(path("a")).unwrap();
    assert_eq!(names(&vfs.crash(CrashImage::Drop, 0)), ["b/f"]);
}

#[test]
fn undone_directory_loses_all_descendants() {
    let vfs = MemVfs::new();
    vfs.create_dir(path("a")).unwrap();
    vfs.create_dir(path("a/b")).unwrap();
    let file = vfs.create(path("a/b/f")).unwrap();
    file.append(b"x").unwrap();
    file.sync().unwrap();
    vfs.sync_dir(path("a/b")).unwrap();
    vfs.sync_dir(path("a")).unwrap();
    let undone = vfs.crash(CrashImage::Drop, 0);
    assert_eq!(undone.list(path("")).unwrap(), [""; 0]);
    vfs.sync_dir(path("")).unwrap();
    let done = vfs.crash(CrashImage::Drop, 0);
    assert_eq!(done.read_all(path("a/b/f")).unwrap(), b"x");
}

#[test]
fn directory_with_two_surviving_names_is_listed_once() {
    let vfs = MemVfs::new();
    for dir in ["a", "b", "a/x"] {
        vfs.create_dir(path(dir)).unwrap();
    }
    vfs.create(path("a/x/f")).unwrap();
    for dir in ["", "a", "a/x"] {
        vfs.sync_dir(path(dir)).unwrap();
    }
    vfs.rename(path("a/x"), path("b/x")).unwrap();
    for seed in SEEDS {
        assert!(vfs.crash(CrashImage::Sectors, seed).paths().len() <= 1);
    }
}

#[test]
fn contents_of_an_image_survive_the_next_crash() {
    let vfs = vfs_with_appends(&[1; 700], &[&[2; 900], &[3; 900]]);
    vfs.create(path("g")).unwrap().append(b"g").unwrap();
    vfs.rename(path("g"), path("h")).unwrap();
    for image in CrashImage::ALL {
        for seed in SEEDS {
            let crashed = vfs.crash(image, seed);
            assert_eq!(crashed.crash(CrashImage::Drop, 0).snapshot_all(), crashed.snapshot_all());
        }
    }
}

#[test]
fn crash_with_equal_seeds_gives_equal_images() {
    let vfs = vfs_with_appends(&[1; 700], &[&[2; 900], &[3; 900]]);
    vfs.create(path("g")).unwrap().append(&[4; 2_000]).unwrap();
    for image in CrashImage::ALL {
        let one = vfs.crash(image, 5).snapshot_all();
        assert_eq!(one, vfs.crash(image, 5).snapshot_all());
    }
    assert_ne!(
        vfs.crash(CrashImage::Sectors, 5).snapshot_all(),
        vfs.crash(CrashImage::Sectors, 6).snapshot_all()
    );
}

#[test]
fn handle_opened_before_the_crash_writes_to_the_old_file_system() {
    let vfs = vfs_with_appends(b"old", &[]);
    let late = vfs.create(path("late")).unwrap();
    vfs.sync_dir(path("")).unwrap();
    let crashed = vfs.crash(CrashImage::Keep, 0);
    late.append(b"leak").unwrap();
    late.sync().unwrap();
    assert_eq!(crashed.read_all(path("late")).unwrap(), b"");
    assert_eq!(vfs.read_all(path("late")).unwrap(), b"leak");
}

#[test]
fn exclusive_lock_has_one_owner_and_is_released_by_a_crash() {
    let vfs = MemVfs::new();
    let guard = vfs.lock(path("lock")).unwrap();
    assert_eq!(vfs.clone().lock(path("lock")).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let crashed = vfs.crash(CrashImage::Keep, 0);
    let other = crashed.lock(path("lock")).unwrap();
    assert!(crashed.lock(path("lock")).is_err());
    drop(guard);
    assert!(crashed.lock(path("lock")).is_err());
    drop(other);
    drop(vfs.lock(path("lock")).unwrap());
    assert!(vfs.lock(path("lock")).is_ok());
}

#[test]
fn removed_file_is_readable_through_an_open_handle() {
    let vfs = vfs_with_appends(b"old", &[]);
    let open = vfs.open(path("f")).unwrap();
    vfs.remove(path("f")).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(open.read_at(&mut buffer, 1).unwrap(), 2);
    assert_eq!(&buffer[..2], b"ld");
}

#[test]
fn dropped_bytes_never_reach_the_disk_after_later_syncs() {
    for cached in [true, false] {
        let vfs = MemVfs::new();
        let file = vfs.create(path("f")).unwrap();
        vfs.sync_dir(path("")).unwrap();
        file.append(b"one").unwrap();
        file.sync().unwrap();
        file.append(b"two").unwrap();
        assert!(file.drop_unsynced(cached));
        let seen: &[u8] = if cached { b"onetwo" } else { b"one\0\0\0" };
        assert_eq!(vfs.read_all(path("f")).unwrap(), seen);
        assert_eq!(read_in_image(&vfs, CrashImage::Keep, 0, "f").unwrap(), b"one");
        file.append(b"three").unwrap();
        assert_eq!(read_in_image(&vfs, CrashImage::Keep, 0, "f").unwrap(), b"one\0\0\0three");
        file.sync().unwrap();
        assert_eq!(read_in_image(&vfs, CrashImage::Drop, 0, "f").unwrap(), b"one\0\0\0three");
    }
}

#[test]
fn observer_runs_before_each_change_and_may_crash() {
    let vfs = MemVfs::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let images = seen.clone();
    vfs.set_observer(Some(Arc::new(move |vfs: &MemVfs, operation: MemOperation<'_>| {
        let files = vfs.crash(CrashImage::Keep, operation.index).snapshot_all();
        let text = operation.path.to_string_lossy().into_owned();
        images.lock().push((operation.index, operation.kind, text, files.len()));
    })));
    vfs.create_dir(path("d")).unwrap();
    let file = vfs.create(path("d/f")).unwrap();
    file.append(b"x").unwrap();
    file.sync().unwrap();
    drop(vfs.lock(path("lock")).unwrap());
    drop(vfs.lock(path("lock")).unwrap());
    vfs.rename(path("d/f"), path("d/g")).unwrap();
    vfs.sync_dir(path("d")).unwrap();
    vfs.remove(path("d/g")).unwrap();
    vfs.set_observer(None);
    vfs.create(path("unseen")).unwrap();
    let expected = [
        (0, MemOperationKind::CreateDir, "d", 0),
        (1, MemOperationKind::Create, "d/f", 0),
        (2, MemOperationKind::Append, "d/f", 1),
        (3, MemOperationKind::Sync, "d/f", 1),
        (4, MemOperationKind::Create, "lock", 1),
        (5, MemOperationKind::Rename, "d/f", 2),
        (6, MemOperationKind::SyncDir, "d", 2),
        (7, MemOperationKind::Remove, "d/g", 2),
    ];
    let expected = expected.map(|(index, kind, path, files)| (index, kind, path.to_owned(), files));
    assert_eq!(*seen.lock(), expected);
    assert_eq!(vfs.operations(), 9);
}

#[test]
fn damage_changes_only_the_given_range() {
    let vfs = vfs_with_appends(b"abcdef", &[b"ghi"]);
    let f = path("f");
    vfs.flip_bits(f, 1, 0x01).unwrap();
    vfs.overwrite(f, 3, b"XY").unwrap();
    assert_eq!(vfs.read_all(f).unwrap(), b"accXYfghi");
    vfs.truncate(f, 7).unwrap();
    vfs.truncate(f, 100).unwrap();
    assert_eq!(read_in_image(&vfs, CrashImage::Drop, 0, "f").unwrap(), b"accXYfg");
    assert!(vfs.flip_bits(f, 7, 1).is_err());
    assert!(vfs.overwrite(f, 6, b"12").is_err());
    assert!(vfs.overwrite(f, u64::MAX, b"1").is_err());
    vfs.write_all(path("g"), b"made").unwrap();
    vfs.write_all(path("g"), b"again").unwrap();
    assert_eq!(read_in_image(&vfs, CrashImage::Drop, 0, "g").unwrap(), b"again");
    assert_eq!(vfs.read_all(path("nothing")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

/// Crash tests create tens of thousands of images, so an image must not copy synced bytes.
#[test]
fn images_share_unchanged_bytes() {
    let vfs = vfs_with_appends(&vec![7; 64 << 20], &[b"tail"]);
    let images: Vec<MemVfs> = (0..2_000).map(|seed| vfs.crash(CrashImage::Sectors, seed)).collect();
    // Copying the synced bytes for each image would copy 128 GiB in total.
    assert!(images.iter().all(|image| image.open(path("f")).unwrap().len().unwrap() >= 64 << 20));
}

#[test]
fn hard_link_survives_after_a_directory_sync_and_shares_bytes() {
    let vfs = vfs_with_appends(b"old", &[b"new"]);
    vfs.create_dir(path("d")).unwrap();
    vfs.sync_dir(path("")).unwrap();
    vfs.hard_link(path("f"), path("d/g")).unwrap();
    let taken = vfs.hard_link(path("f"), path("d/g")).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
    assert!(vfs.hard_link(path("d"), path("e")).is_err());
    assert_eq!(vfs.hard_link(path("x"), path("y")).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(vfs.read_all(path("d/g")).unwrap(), b"oldnew");
    assert_eq!(names(&vfs.crash(CrashImage::Drop, 0)), ["f"]);
    vfs.sync_dir(path("d")).unwrap();
    // The second name survives. It refers to the bytes that were synced through the first name.
    assert_eq!(read_in_image(&vfs, CrashImage::Drop, 0, "d/g").unwrap(), b"old");
    vfs.remove(path("f")).unwrap();
    assert_eq!(read_in_image(&vfs, CrashImage::Keep, 0, "d/g").unwrap(), b"oldnew");
}

#[test]
fn shared_locks_coexist() {
    let vfs = vfs_with_appends(b"", &[]);
    let refused = |locked: io::Result<Box<dyn LockGuard>>| {
        assert_eq!(locked.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    };
    assert!(vfs.lock_shared(path("lock")).is_err());
    let readers = [vfs.lock_shared(path("f")).unwrap(), vfs.lock_shared(path("f")).unwrap()];
    refused(vfs.lock(path("f")));
    drop(readers);
    let alone = vfs.lock(path("f")).unwrap();
    refused(vfs.lock_shared(path("f")));
    drop(alone);
    drop(vfs.lock(path("f")).unwrap());
}

#[test]
fn full_disk_has_space_again_after_a_removal() {
    let vfs = MemVfs::new();
    let (file, reserved) = (Path::new("file"), Path::new("reserved"));
    vfs.set_capacity(None);
    assert_eq!(vfs.reserve_space(reserved, 1).unwrap_err().kind(), io::ErrorKind::Unsupported);
    vfs.set_capacity(Some(100));
    let appended = vfs.create(file).unwrap();
    appended.append(&[1; 30]).unwrap();
    vfs.reserve_space(reserved, 50).unwrap();
    vfs.reserve_space(reserved, 20).unwrap();
    assert_eq!(vfs.used_bytes(), 50, "reserve shrinks the file");
    vfs.reserve_space(reserved, 40).unwrap();
    assert_eq!((vfs.used_bytes(), vfs.read_all(reserved).unwrap().len()), (70, 0));
    vfs.hard_link(file, Path::new("again")).unwrap();
    assert_eq!(vfs.used_bytes(), 70, "two names of one file count once");
    // The failed append has appended the bytes that fit.
    assert_eq!(appended.append(&[2; 50]).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!((appended.len().unwrap(), vfs.used_bytes()), (60, 100));
    assert_eq!(vfs.reserve_space(reserved, 41).unwrap_err().kind(), io::ErrorKind::StorageFull);
    vfs.remove(reserved).unwrap();
    appended.append(&[3; 40]).unwrap();
    assert_eq!(vfs.used_bytes(), 100);
    assert_eq!(
        vfs.reserve_space(Path::new("missing/reserved"), 1).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
}

//! What survives, image by image.

use lsmx_base::sync::Mutex;

use crate::vfs::mem::*;

const SEEDS: std::ops::Range<u64> = 0..200;

fn path(text: &str) -> &Path {
    Path::new(text)
}

/// A file whose name and first bytes are on the disk, with more appended since.
fn grown(synced: &[u8], since: &[&[u8]]) -> MemVfs {
    let vfs = MemVfs::new();
    let file = vfs.create(path("f")).unwrap();
    file.append(synced).unwrap();
    file.sync().unwrap();
    vfs.sync_dir(path("")).unwrap();
    for bytes in since {
        file.append(bytes).unwrap();
    }
    vfs
}

fn after(vfs: &MemVfs, image: Image, seed: u64, name: &str) -> Option<Vec<u8>> {
    vfs.crash(image, seed).read_all(path(name)).ok()
}

fn names(vfs: &MemVfs) -> Vec<String> {
    vfs.paths().iter().map(|path| path.to_string_lossy().into_owned()).collect()
}

#[test]
fn drop_keeps_only_what_was_synced() {
    let vfs = grown(b"old", &[b"new", b"er"]);
    assert_eq!(after(&vfs, Image::Drop, 0, "f").unwrap(), b"old");
    assert_eq!(vfs.read_all(path("f")).unwrap(), b"oldnewer");
}

#[test]
fn keep_keeps_everything() {
    let vfs = grown(b"old", &[b"new", b"er"]);
    vfs.create(path("g")).unwrap().append(b"x").unwrap();
    assert_eq!(vfs.crash(Image::Keep, 0).snapshot_all(), vfs.snapshot_all());
}

#[test]
fn what_is_all_synced_survives_every_image_unchanged() {
    let vfs = MemVfs::new();
    vfs.create_dir(path("d")).unwrap();
    vfs.sync_dir(path("")).unwrap();
    for name in ["d/a", "d/b"] {
        let file = vfs.create(path(name)).unwrap();
        file.append(&[7; 5_000]).unwrap();
        file.sync().unwrap();
    }
    vfs.sync_dir(path("d")).unwrap();
    for image in Image::ALL {
        for seed in SEEDS {
            let crashed = vfs.crash(image, seed);
            assert_eq!(crashed.snapshot_all(), vfs.snapshot_all(), "{image:?} {seed}");
        }
    }
}

#[test]
fn torn_cuts_the_first_unsynced_write_and_has_nothing_of_the_second() {
    let first: Vec<u8> = (0..2_000u32).map(|at| (at % 251) as u8 + 1).collect();
    let vfs = grown(&[9; 100], &[&first, b"second"]);
    let whole = vfs.read_all(path("f")).unwrap();
    let mut lengths = std::collections::BTreeSet::new();
    for seed in SEEDS {
        let bytes = after(&vfs, Image::Torn, seed, "f").unwrap();
        assert!((100..2_100).contains(&bytes.len()));
        assert_eq!(bytes, whole[..bytes.len()]);
        lengths.insert(bytes.len());
    }
    assert!([512, 1_024, 1_536, 2_048].iter().all(|len| lengths.contains(len)), "sectors");
    assert!(lengths.iter().any(|len| len % 512 != 0), "any byte");
}

#[test]
fn torn_cuts_even_a_write_of_one_byte() {
    let vfs = grown(b"", &[b"x"]);
    for seed in SEEDS {
        assert_eq!(after(&vfs, Image::Torn, seed, "f").unwrap(), b"");
    }
}

#[test]
fn zeros_grow_the_file_without_its_bytes() {
    let vfs = grown(b"old", &[b"new", b"er"]);
    assert_eq!(after(&vfs, Image::Zeros, 0, "f").unwrap(), b"old\0\0\0\0\0");
}

#[test]
fn garbage_is_random_or_bytes_that_were_elsewhere() {
    let vfs = grown(&[b'o'; 600], &[&[b'n'; 700]]);
    let (mut old, mut random) = (0, 0);
    for seed in SEEDS {
        let bytes = after(&vfs, Image::Garbage, seed, "f").unwrap();
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
fn sectors_survive_each_by_itself() {
    let vfs = grown(&[1; 100], &[&[2; 3_000]]);
    let mut later_without_earlier = 0;
    let mut lengths = std::collections::BTreeSet::new();
    for seed in SEEDS {
        let bytes = after(&vfs, Image::Sectors, seed, "f").unwrap();
        assert_eq!(bytes[..100], [1; 100]);
        lengths.insert(bytes.len());
        let mut missing = false;
        for (at, sector) in bytes.chunks(512).enumerate() {
            let unsynced = if at == 0 { &sector[100..] } else { sector };
            assert!(unsynced.iter().all(|byte| *byte == unsynced[0]), "a sector is whole or not");
            match unsynced.first() {
                Some(2) => later_without_earlier += u64::from(missing),
                Some(0) => missing = true,
                found => assert_eq!(found, None),
            }
        }
        if bytes.len() > 100 {
            assert_eq!(bytes.last(), Some(&2), "length ends with the last sector that survived");
        }
    }
    assert!(later_without_earlier > 50);
    assert!(lengths.contains(&100) && lengths.contains(&3_100) && lengths.contains(&1_024));
}

#[test]
fn lag_keeps_all_of_one_file_and_nothing_of_the_others() {
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
        let all: Vec<_> = vfs.crash(Image::Lag, seed).snapshot_all().into_values().collect();
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
fn syncing_a_file_does_not_sync_its_name() {
    let vfs = MemVfs::new();
    let file = vfs.create(path("f")).unwrap();
    file.append(b"x").unwrap();
    file.sync().unwrap();
    for image in [Image::Drop, Image::Torn] {
        assert_eq!(names(&vfs.crash(image, 0)), [""; 0]);
    }
    vfs.sync_dir(path("")).unwrap();
    assert_eq!(after(&vfs, Image::Drop, 0, "f").unwrap(), b"x");
}

#[test]
fn syncing_a_name_does_not_sync_the_file() {
    let vfs = MemVfs::new();
    vfs.create(path("f")).unwrap().append(b"x").unwrap();
    vfs.sync_dir(path("")).unwrap();
    assert_eq!(after(&vfs, Image::Drop, 0, "f").unwrap(), b"");
}

/// Crash tests found no damage that was none: here no file went on in zeros, as files of the machine do.
#[test]
fn a_file_that_grows_ahead_shows_zeros_to_others_until_its_writer_is_dropped() {
    let vfs = MemVfs::new();
    let file = vfs.create(path("f")).unwrap();
    file.append(b"before").unwrap();
    file.grow_ahead();
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
fn a_length_that_has_grown_ahead_is_on_the_disk_once_it_is_synced() {
    let vfs = MemVfs::new();
    let file = vfs.create(path("f")).unwrap();
    file.grow_ahead();
    file.append(&[1; 100]).unwrap();
    vfs.sync_dir(path("")).unwrap();
    assert_eq!(after(&vfs, Image::Drop, 0, "f").unwrap(), b"");
    file.sync().unwrap();
    file.append(&[2; 3_000]).unwrap();
    let synced = [vec![1; 100], vec![0; 4_096]].concat();
    for image in [Image::Drop, Image::Zeros] {
        assert_eq!(after(&vfs, image, 0, "f").unwrap(), synced, "{image:?}");
    }
    for image in Image::ALL {
        for seed in SEEDS {
            let bytes = after(&vfs, image, seed, "f").unwrap();
            assert_eq!((bytes.len(), &bytes[..100]), (4_196, &[1; 100][..]), "{image:?} {seed}");
            assert_eq!(bytes[3_100..], [0; 1_096], "{image:?} {seed}");
        }
    }
}

#[test]
fn pages_survive_each_by_itself_and_as_they_were_at_some_time() {
    let appends: Vec<Vec<u8>> = (2..30).map(|byte| vec![byte; 1_000]).collect();
    let appends: Vec<&[u8]> = appends.iter().map(|bytes| &bytes[..]).collect();
    let vfs = grown(&[1; 100], &appends);
    let whole = vfs.read_all(path("f")).unwrap();
    let (mut first_lost, mut older, mut shorter, mut all) = (0, 0, 0, 0);
    for seed in SEEDS {
        let bytes = after(&vfs, Image::Pages, seed, "f").unwrap();
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
fn a_deleted_file_is_back_until_the_directory_is_synced() {
    let vfs = grown(b"old", &[b"new"]);
    vfs.remove(path("f")).unwrap();
    for image in [Image::Drop, Image::Torn] {
        assert!(after(&vfs, image, 0, "f").unwrap().starts_with(b"old"));
    }
    for image in [Image::Keep, Image::Zeros, Image::Garbage] {
        assert_eq!(after(&vfs, image, 0, "f"), None);
    }
    let back = SEEDS.filter(|seed| after(&vfs, Image::Sectors, *seed, "f").is_some()).count();
    assert!((50..150).contains(&back), "by coin");
    let back = SEEDS.filter(|seed| after(&vfs, Image::Lag, *seed, "f").is_some()).count();
    assert!((50..150).contains(&back), "by coin");
    vfs.sync_dir(path("")).unwrap();
    for image in Image::ALL {
        assert_eq!(after(&vfs, image, 0, "f"), None);
    }
}

#[test]
fn a_rename_over_a_file_is_undone_or_done_whole() {
    let vfs = grown(b"old", &[]);
    let new = vfs.create(path("new")).unwrap();
    new.append(b"new").unwrap();
    new.sync().unwrap();
    vfs.sync_dir(path("")).unwrap();
    vfs.rename(path("new"), path("f")).unwrap();
    assert_eq!(names(&vfs), ["f"]);
    let dropped = vfs.crash(Image::Drop, 0);
    assert_eq!(names(&dropped), ["f", "new"]);
    assert_eq!(dropped.read_all(path("f")).unwrap(), b"old");
    let mut seen = std::collections::BTreeSet::new();
    for seed in SEEDS {
        seen.insert(
            vfs.crash(Image::Sectors, seed).snapshot_all().into_values().collect::<Vec<_>>(),
        );
    }
    let undone = vec![b"old".to_vec(), b"new".to_vec()];
    assert_eq!(seen, [undone, vec![b"new".to_vec()]].into());
    vfs.sync_dir(path("")).unwrap();
    assert_eq!(after(&vfs, Image::Drop, 0, "f").unwrap(), b"new");
}

#[test]
fn a_rename_across_directories_needs_both_synced() {
    let vfs = MemVfs::new();
    for dir in ["a", "b"] {
        vfs.create_dir(path(dir)).unwrap();
    }
    vfs.sync_dir(path("")).unwrap();
    vfs.create(path("a/f")).unwrap();
    vfs.sync_dir(path("a")).unwrap();
    vfs.rename(path("a/f"), path("b/f")).unwrap();
    let only_from = vfs.crash(Image::Keep, 0);
    assert_eq!(names(&only_from), ["b/f"]);
    assert_eq!(names(&vfs.crash(Image::Drop, 0)), ["a/f"]);
    vfs.sync_dir(path("b")).unwrap();
    assert_eq!(names(&vfs.crash(Image::Drop, 0)), ["a/f", "b/f"]);
    vfs.sync_dir(path("a")).unwrap();
    assert_eq!(names(&vfs.crash(Image::Drop, 0)), ["b/f"]);
}

#[test]
fn a_directory_that_is_undone_takes_all_below_it_along() {
    let vfs = MemVfs::new();
    vfs.create_dir(path("a")).unwrap();
    vfs.create_dir(path("a/b")).unwrap();
    let file = vfs.create(path("a/b/f")).unwrap();
    file.append(b"x").unwrap();
    file.sync().unwrap();
    vfs.sync_dir(path("a/b")).unwrap();
    vfs.sync_dir(path("a")).unwrap();
    let undone = vfs.crash(Image::Drop, 0);
    assert_eq!(undone.list(path("")).unwrap(), [""; 0]);
    vfs.sync_dir(path("")).unwrap();
    let done = vfs.crash(Image::Drop, 0);
    assert_eq!(done.read_all(path("a/b/f")).unwrap(), b"x");
}

#[test]
fn a_directory_that_survives_under_two_names_is_found_once() {
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
        assert!(vfs.crash(Image::Sectors, seed).paths().len() <= 1);
    }
}

#[test]
fn all_that_survived_a_crash_survives_the_next() {
    let vfs = grown(&[1; 700], &[&[2; 900], &[3; 900]]);
    vfs.create(path("g")).unwrap().append(b"g").unwrap();
    vfs.rename(path("g"), path("h")).unwrap();
    for image in Image::ALL {
        for seed in SEEDS {
            let crashed = vfs.crash(image, seed);
            assert_eq!(crashed.crash(Image::Drop, 0).snapshot_all(), crashed.snapshot_all());
        }
    }
}

#[test]
fn equal_seeds_give_equal_images() {
    let vfs = grown(&[1; 700], &[&[2; 900], &[3; 900]]);
    vfs.create(path("g")).unwrap().append(&[4; 2_000]).unwrap();
    for image in Image::ALL {
        let one = vfs.crash(image, 5).snapshot_all();
        assert_eq!(one, vfs.crash(image, 5).snapshot_all());
    }
    assert_ne!(
        vfs.crash(Image::Sectors, 5).snapshot_all(),
        vfs.crash(Image::Sectors, 6).snapshot_all()
    );
}

#[test]
fn a_handle_from_before_the_crash_writes_to_the_old_file_system_only() {
    let vfs = grown(b"old", &[]);
    let late = vfs.create(path("late")).unwrap();
    vfs.sync_dir(path("")).unwrap();
    let crashed = vfs.crash(Image::Keep, 0);
    late.append(b"leak").unwrap();
    late.sync().unwrap();
    assert_eq!(crashed.read_all(path("late")).unwrap(), b"");
    assert_eq!(vfs.read_all(path("late")).unwrap(), b"leak");
}

#[test]
fn a_lock_has_one_owner_and_a_crash_frees_it() {
    let vfs = MemVfs::new();
    let guard = vfs.lock(path("lock")).unwrap();
    assert_eq!(vfs.clone().lock(path("lock")).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let crashed = vfs.crash(Image::Keep, 0);
    let other = crashed.lock(path("lock")).unwrap();
    assert!(crashed.lock(path("lock")).is_err());
    drop(guard);
    assert!(crashed.lock(path("lock")).is_err());
    drop(other);
    drop(vfs.lock(path("lock")).unwrap());
    assert!(vfs.lock(path("lock")).is_ok());
}

#[test]
fn a_file_without_a_name_goes_on_for_who_has_it_open() {
    let vfs = grown(b"old", &[]);
    let open = vfs.open(path("f")).unwrap();
    vfs.remove(path("f")).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(open.read_at(&mut buffer, 1).unwrap(), 2);
    assert_eq!(&buffer[..2], b"ld");
}

#[test]
fn dropped_bytes_never_reach_the_disk_though_later_syncs_are_good() {
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
        assert_eq!(after(&vfs, Image::Keep, 0, "f").unwrap(), b"one");
        file.append(b"three").unwrap();
        assert_eq!(after(&vfs, Image::Keep, 0, "f").unwrap(), b"one\0\0\0three");
        file.sync().unwrap();
        assert_eq!(after(&vfs, Image::Drop, 0, "f").unwrap(), b"one\0\0\0three");
    }
}

#[test]
fn the_observer_sees_each_change_before_it_is_done_and_may_crash() {
    let vfs = MemVfs::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let images = seen.clone();
    vfs.set_observer(Some(Arc::new(move |vfs: &MemVfs, operation: Operation<'_>| {
        let files = vfs.crash(Image::Keep, operation.index).snapshot_all();
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
        (0, OperationKind::CreateDir, "d", 0),
        (1, OperationKind::Create, "d/f", 0),
        (2, OperationKind::Append, "d/f", 1),
        (3, OperationKind::Sync, "d/f", 1),
        (4, OperationKind::Create, "lock", 1),
        (5, OperationKind::Rename, "d/f", 2),
        (6, OperationKind::SyncDir, "d", 2),
        (7, OperationKind::Remove, "d/g", 2),
    ];
    let expected = expected.map(|(index, kind, path, files)| (index, kind, path.to_owned(), files));
    assert_eq!(*seen.lock(), expected);
    assert_eq!(vfs.operations(), 9);
}

#[test]
fn damage_changes_just_what_was_named() {
    let vfs = grown(b"abcdef", &[b"ghi"]);
    let f = path("f");
    vfs.flip(f, 1, 0x01).unwrap();
    vfs.overwrite(f, 3, b"XY").unwrap();
    assert_eq!(vfs.read_all(f).unwrap(), b"accXYfghi");
    vfs.truncate(f, 7).unwrap();
    vfs.truncate(f, 100).unwrap();
    assert_eq!(after(&vfs, Image::Drop, 0, "f").unwrap(), b"accXYfg");
    assert!(vfs.flip(f, 7, 1).is_err());
    assert!(vfs.overwrite(f, 6, b"12").is_err());
    assert!(vfs.overwrite(f, u64::MAX, b"1").is_err());
    vfs.write_all(path("g"), b"made").unwrap();
    vfs.write_all(path("g"), b"again").unwrap();
    assert_eq!(after(&vfs, Image::Drop, 0, "g").unwrap(), b"again");
    assert_eq!(vfs.read_all(path("nothing")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

/// Crash tests take tens of thousands of images; each must cost what is unsynced, not what is there.
#[test]
fn images_share_the_bytes_that_did_not_change() {
    let vfs = grown(&vec![7; 64 << 20], &[b"tail"]);
    let images: Vec<MemVfs> = (0..2_000).map(|seed| vfs.crash(Image::Sectors, seed)).collect();
    // Copies would be 128 GiB.
    assert!(images.iter().all(|image| image.open(path("f")).unwrap().len().unwrap() >= 64 << 20));
}

#[test]
fn a_second_name_lasts_after_a_sync_of_its_directory_and_shares_the_bytes() {
    let vfs = grown(b"old", &[b"new"]);
    vfs.create_dir(path("d")).unwrap();
    vfs.sync_dir(path("")).unwrap();
    vfs.hard_link(path("f"), path("d/g")).unwrap();
    let taken = vfs.hard_link(path("f"), path("d/g")).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
    assert!(vfs.hard_link(path("d"), path("e")).is_err());
    assert_eq!(vfs.hard_link(path("x"), path("y")).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(vfs.read_all(path("d/g")).unwrap(), b"oldnew");
    assert_eq!(names(&vfs.crash(Image::Drop, 0)), ["f"]);
    vfs.sync_dir(path("d")).unwrap();
    // The name lasts, the bytes are as good as those of the file.
    assert_eq!(after(&vfs, Image::Drop, 0, "d/g").unwrap(), b"old");
    vfs.remove(path("f")).unwrap();
    assert_eq!(after(&vfs, Image::Keep, 0, "d/g").unwrap(), b"oldnew");
}

#[test]
fn readers_share_a_lock() {
    let vfs = grown(b"", &[]);
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
fn a_disk_of_some_size_gets_full_and_what_is_removed_is_free_again() {
    let vfs = MemVfs::new();
    let (file, room) = (Path::new("file"), Path::new("room"));
    vfs.set_capacity(None);
    assert_eq!(vfs.reserve(room, 1).unwrap_err().kind(), io::ErrorKind::Unsupported);
    vfs.set_capacity(Some(100));
    let appended = vfs.create(file).unwrap();
    appended.append(&[1; 30]).unwrap();
    vfs.reserve(room, 50).unwrap();
    vfs.reserve(room, 20).unwrap();
    assert_eq!(vfs.used_bytes(), 50, "it shrinks");
    vfs.reserve(room, 40).unwrap();
    assert_eq!((vfs.used_bytes(), vfs.read_all(room).unwrap().len()), (70, 0));
    vfs.hard_link(file, Path::new("again")).unwrap();
    assert_eq!(vfs.used_bytes(), 70, "two names of one file");
    // As much as fits.
    assert_eq!(appended.append(&[2; 50]).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!((appended.len().unwrap(), vfs.used_bytes()), (60, 100));
    assert_eq!(vfs.reserve(room, 41).unwrap_err().kind(), io::ErrorKind::StorageFull);
    vfs.remove(room).unwrap();
    appended.append(&[3; 40]).unwrap();
    assert_eq!(vfs.used_bytes(), 100);
    assert_eq!(
        vfs.reserve(Path::new("missing/room"), 1).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
}

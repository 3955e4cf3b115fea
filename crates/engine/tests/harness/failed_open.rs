//! Checks that a failed open leaves the directory unchanged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, KeyspaceOptions, Options};
use lsmx_testkit::simple_store::SimpleStore;

use super::Outcome;
use super::oracle::DIR;

fn names(disk: &MemVfs) -> Vec<PathBuf> {
    let (mut names, mut dirs) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(dir) = dirs.pop() {
        for name in disk.list(&dir).unwrap() {
            let path = dir.join(name);
            if disk.list(&path).is_ok() {
                dirs.push(path.clone());
            }
            names.push(path);
        }
    }
    names.sort_unstable();
    names
}

/// Opens a database with an operand store. The memtables are so small that the replay of the log writes tables.
fn open(vfs: impl Vfs, dir: &str) -> lsmx::Result<Db> {
    let store = SimpleStore { collect_after: 1_000, to_tree_one_in: 3, lazy: false };
    let keyspace =
        KeyspaceOptions::default().memtable_bytes(2 << 10).merge_operator(Append::default());
    let options = Options::default().background(Background::Inline).seed(1);
    let options = options.keyspace_defaults(keyspace.operand_store(store.or_delta()));
    Db::open(dir, options.vfs(Arc::new(vfs)))
}

/// Makes each file system call of an open fail in turn. A failed open must leave the set of file names unchanged,
/// unless it has begun to replace `CURRENT`.
///
/// Regression: failed opens left lock files, directories, tables, log segments and manifests behind.
pub(crate) fn failed_open_leaves_no_files(seed: u64) -> Outcome {
    let killed = MemVfs::new();
    let db = open(killed.clone(), DIR).unwrap();
    db.flush().unwrap();
    for number in 0..20u64 {
        db.put(number.to_be_bytes(), [7; 40]).unwrap();
        db.default_keyspace().merge(number.to_be_bytes(), "operand").unwrap();
    }
    let killed = killed.crash(CrashImage::Keep, seed);
    // Removes the lock file, because a copy of a database has none.
    killed.remove(&Path::new(DIR).join("LOCK")).unwrap();
    let empty = MemVfs::new();
    empty.create_dir(Path::new(DIR)).unwrap();
    let mut failures = 0;
    for (disk, dir) in [(&killed, DIR), (&empty, DIR), (&MemVfs::new(), "a/b/c")] {
        // The test never makes a removal fail, because the open could not clean up then.
        for &call in VfsCall::ALL.iter().filter(|call| **call != VfsCall::Remove) {
            for k in 0.. {
                let copy = disk.crash(CrashImage::Keep, 0);
                let faults = FaultVfs::new(Arc::new(copy.clone()), seed);
                faults.add_rule(FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[call]).nth(k));
                let opened = open(faults.clone(), dir);
                if faults.fired_counts().is_empty() {
                    break;
                }
                let current = |disk: &MemVfs| disk.read_all(&Path::new(dir).join("CURRENT")).ok();
                let unfinished = call == VfsCall::Rename || current(&copy) != current(disk);
                if opened.is_ok() || unfinished {
                    continue;
                }
                failures += 1;
                let (before, after) = (names(disk), names(&copy));
                // A failed open may have removed the reserve file.
                let is_left = |it: &PathBuf| after.contains(it) || it.ends_with("RESERVE");
                let is_equal = after.iter().all(|it| before.contains(it));
                let is_equal = is_equal && before.iter().all(is_left);
                assert!(is_equal, "call {k} of {call:?} in {dir} failed: {before:?}, {after:?}");
            }
        }
    }
    assert!(failures > 40, "{failures} opens failed");
    let foreign = MemVfs::new();
    foreign.create_dir(Path::new(DIR)).unwrap();
    foreign.write_all(&Path::new(DIR).join("CURRENT"), b"MANIFEST-000004\n").unwrap();
    let before = names(&foreign);
    assert!(open(foreign.clone(), DIR).is_err(), "a foreign CURRENT is accepted");
    assert_eq!(names(&foreign), before, "with a foreign CURRENT");
    Ok(())
}

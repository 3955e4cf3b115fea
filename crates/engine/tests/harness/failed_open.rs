//! Checks that an open that fails leaves the directory as it was.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, KeyspaceOptions, Options};
use lsmx_testkit::simple_store::SimpleStore;

use super::{Outcome, oracle};

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Names of all files and directories.
fn names(disk: &MemVfs) -> Result<Vec<PathBuf>, String> {
    let (mut names, mut dirs) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(dir) = dirs.pop() {
        for name in disk.list(&dir).map_err(failed)? {
            let path = dir.join(name);
            if disk.list(&path).is_ok() {
                dirs.push(path.clone());
            }
            names.push(path);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens a database with an operand store and memtables so small that the replay of a log writes tables.
fn open(vfs: impl Vfs, dir: &str) -> Result<Db, lsmx::Error> {
    let store = SimpleStore { collect_after: 1_000, to_tree_one_in: 3, lazy: false };
    let tuning =
        KeyspaceOptions::default().memtable_bytes(2 << 10).merge_operator(Append::default());
    let tuning = tuning.operand_store(store.or_delta());
    let options = Options::default().background(Background::Inline).seed(1);
    Db::open(dir, options.keyspace_defaults(tuning).vfs(Arc::new(vfs)))
}

/// Fails each call of an open in turn. A failed open leaves the names that were there before, unless it has
/// begun to replace `CURRENT`.
///
/// Failed opens used to leave the lock file, the directories, and tables, segments and manifests.
pub(crate) fn failed_open_leaves_no_files(seed: u64) -> Outcome {
    let killed = MemVfs::new();
    let db = open(killed.clone(), oracle::DIR).map_err(failed)?;
    db.flush().map_err(failed)?;
    for number in 0..20u64 {
        db.put(number.to_be_bytes(), [7; 40]).map_err(failed)?;
        db.default_keyspace().merge(number.to_be_bytes(), "operand").map_err(failed)?;
    }
    let killed = killed.crash(CrashImage::Keep, seed);
    // A copy of a database has no lock file.
    killed.remove(&Path::new(oracle::DIR).join("LOCK")).map_err(failed)?;
    let empty = MemVfs::new();
    empty.create_dir(Path::new(oracle::DIR)).map_err(failed)?;
    let nothing = MemVfs::new();
    let mut failures = 0;
    for (disk, dir) in [(&killed, oracle::DIR), (&empty, oracle::DIR), (&nothing, "a/b/c")] {
        let before = names(disk)?;
        let current = Path::new(dir).join("CURRENT");
        for &call in VfsCall::ALL {
            // A file that cannot be removed stays.
            if call == VfsCall::Remove {
                continue;
            }
            for k in 0.. {
                let copy = disk.crash(CrashImage::Keep, 0);
                let faults = FaultVfs::new(Arc::new(copy.clone()), seed);
                faults.add_rule(FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[call]).nth(k));
                let opened = open(faults.clone(), dir);
                if faults.fired_counts().is_empty() {
                    break;
                }
                let unfinished = call == VfsCall::Rename
                    || copy.read_all(&current).ok() != disk.read_all(&current).ok();
                if opened.is_ok() || unfinished {
                    continue;
                }
                failures += 1;
                let after = names(&copy)?;
                let left: Vec<_> = after.iter().filter(|it| !before.contains(it)).collect();
                // A new log needs the room that the reserve keeps.
                let missing = before.iter().filter(|it| !after.contains(it));
                let missing: Vec<_> = missing.filter(|it| !it.ends_with("RESERVE")).collect();
                if !left.is_empty() || !missing.is_empty() {
                    let what = format!("{left:?} are left, {missing:?} are missing");
                    return Err(format!("call {k} of {call:?} in {dir} fails: {what}"));
                }
            }
        }
    }
    let foreign = MemVfs::new();
    foreign.create_dir(Path::new(oracle::DIR)).map_err(failed)?;
    let current = Path::new(oracle::DIR).join("CURRENT");
    foreign.write_all(&current, b"MANIFEST-000004\n").map_err(failed)?;
    let before = names(&foreign)?;
    match (open(foreign.clone(), oracle::DIR), names(&foreign)? == before) {
        (Err(_), true) if failures > 40 => Ok(()),
        (opened, same) => Err(format!("foreign CURRENT: {opened:?}, {same}; {failures} failures")),
    }
}

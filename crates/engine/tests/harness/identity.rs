//! Checks that files of one database are not taken for files of another one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::CrashImage;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, Event, KeyspaceOptions, Options};
use lsmx_testkit::{EventLog, TestRng};

use super::Outcome;

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A segment of a checkpoint is copied over the segment of the same name of the original, and the other
/// way round: `verify` and an open return an error that names the segment.
///
/// A checkpoint had the uid of its original, so both passed and commits acknowledged with `Sync` were lost.
pub(crate) fn segment_of_a_checkpoint_is_foreign(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let tuning = KeyspaceOptions::default().memtable_bytes(64 << 10);
    let options = || {
        Options::default()
            .background(Background::Inline)
            .seed(seed)
            .keyspace_defaults(tuning.clone())
    };
    let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).map_err(failed)?;
    let put = |number: u64| {
        let keyspace = db.default_keyspace();
        keyspace
            .with_write_options(Durability::Sync)
            .put(number.to_be_bytes(), [7; 40])
            .map_err(failed)
    };
    let before = 1 + rng.below(20);
    (0..before).try_for_each(put)?;
    db.checkpoint("copy").map_err(failed)?;
    let after = 1 + rng.below(20);
    (before..before + after).try_for_each(put)?;
    let segments = |disk: &MemVfs, dir: &str| -> Vec<PathBuf> {
        let is_segment = |path: &PathBuf| {
            path.starts_with(dir) && path.extension().is_some_and(|extension| extension == "wal")
        };
        disk.paths().into_iter().filter(is_segment).collect()
    };
    for (from, to) in [("copy", "db"), ("db", "copy")] {
        let disk = disk.crash(CrashImage::Keep, seed);
        for path in segments(&disk, from) {
            let name = path.file_name().ok_or("no name")?;
            let over = Path::new(to).join(name);
            if !disk.paths().contains(&over) {
                continue;
            }
            let bytes = disk.read_all(&path).map_err(failed)?;
            let disk = disk.crash(CrashImage::Keep, seed);
            disk.write_all(&over, &bytes).map_err(failed)?;
            let opened = Db::open(to, options().vfs(Arc::new(disk.clone()))).map(drop);
            let verified =
                lsmx::verify(to, &Options::default().vfs(Arc::new(disk.clone()))).map(drop);
            for (call, result) in [("open", opened), ("verify", verified)] {
                match result {
                    Err(Error::Corrupt { path, .. }) if path == over => {}
                    other => {
                        let over = over.display();
                        return Err(format!("{call} of {to} with a foreign {over}: {other:?}"));
                    }
                }
            }
        }
    }
    let copy = Db::open("copy", options().vfs(Arc::new(disk.clone()))).map_err(failed)?;
    let count = u64::try_from(copy.default_keyspace().iter().count()).map_err(failed)?;
    if count == before { Ok(()) } else { Err(format!("{count} keys in the copy, not {before}")) }
}

fn open_in(directory: &Path) -> Outcome<Db> {
    let options = Options::default().background(Background::Inline).seed(1);
    Db::open(directory, options).map_err(failed)
}

/// A trace or a checkpoint with the name of an engine file in a database directory is refused, however the
/// path is spelled, in the own directory and in another database's.
///
/// Only the exact spelling of the open call was refused, and only for a trace: the next table of that number
/// made the database read-only, or the next open removed the trace as an orphan.
pub(crate) fn output_over_an_engine_file_is_refused(_seed: u64) -> Outcome {
    let directory = tempfile::tempdir().map_err(failed)?;
    let root = directory.path();
    let (data, other) = (root.join("data"), root.join("other"));
    let db = open_in(&data)?;
    let _other = open_in(&other)?;
    let mut spellings = vec![
        data.join("004000.sst"),
        data.join("./004000.sst"),
        data.join("../data/MANIFEST-004000"),
        root.join("./data/004000.wal"),
        data.join("004000.blob/inner"),
        other.join("004000.sst"),
        other.join("004000.bucket/inner/copy"),
    ];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&data, root.join("link")).map_err(failed)?;
        spellings.push(root.join("link/004000.sst"));
    }
    for path in spellings {
        let traced =
            db.record_trace(&path, lsmx::workload_trace::TraceOptions::default()).map(drop);
        let copied = db.checkpoint(&path);
        for (call, result) in [("record_trace", traced), ("checkpoint", copied)] {
            let Err(Error::OutputInDatabase { .. }) = result else {
                return Err(format!("{call}({}): {result:?}", path.display()));
            };
        }
    }
    // Other names are free, and the names of engine files are elsewhere.
    db.record_trace(data.join("monday.trace"), lsmx::workload_trace::TraceOptions::default())
        .map_err(failed)?
        .stop()
        .map_err(failed)?;
    db.checkpoint(data.join("copy")).map_err(failed)?;
    db.checkpoint(root.join("004000.sst")).map_err(failed)
}

/// Files that somebody has given the largest numbers are reported and left alone; the database opens again
/// and again. One of them made every later open fail.
pub(crate) fn stray_file_with_an_impossible_number_is_ignored(seed: u64) -> Outcome {
    let disk = MemVfs::new();
    let events = EventLog::default();
    let open = || {
        let options = Options::default().background(Background::Inline).seed(seed);
        let options = options.listener(Arc::new(events.clone()));
        Db::open("db", options.vfs(Arc::new(disk.clone()))).map_err(failed)
    };
    open()?.put("k", "v").map_err(failed)?;
    let names = ["72057594037927935.sst", "72057594037927935.blob", "MANIFEST-72057594037927934"];
    for name in names {
        disk.write_all(&Path::new("db").join(name), b"somebody else's").map_err(failed)?;
    }
    for _ in 0..3 {
        let db = open()?;
        if db.get("k").map_err(failed)?.as_deref() != Some(&b"v"[..]) {
            return Err("the value is gone".to_owned());
        }
        db.put("k", "v").map_err(failed)?;
        db.flush().map_err(failed)?;
    }
    let told = events.count(|event| matches!(event, Event::StrayFile(_)));
    let left =
        names.iter().filter(|name| disk.paths().contains(&Path::new("db").join(name))).count();
    if (told, left) == (9, 3) { Ok(()) } else { Err(format!("{told} reports, {left} files left")) }
}

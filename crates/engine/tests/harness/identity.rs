//! Checks that the engine rejects files of another database.

use std::path::Path;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx::workload_trace::TraceOptions;
use lsmx::{Db, Durability, Error, Event, KeyspaceOptions, Options};
use lsmx_testkit::{EventLog, TestRng};

use super::Outcome;
use super::small_database::{files, open_with};

/// Swaps a log segment of a database and the segment of the same name in a checkpoint. `verify` and an open must return
/// an error that names the segment.
///
/// Regression: a checkpoint had the uid of its original database. `verify` and the open succeeded, and synced commits
/// were lost.
pub(crate) fn segment_of_a_checkpoint_is_foreign(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let options = || {
        let keyspace = KeyspaceOptions::default().memtable_bytes(64 << 10);
        let options = Options::default().background(Background::Inline).seed(seed);
        options.keyspace_defaults(keyspace)
    };
    let db = open_with(&disk, options()).unwrap();
    let main = db.default_keyspace();
    let put = |n: u64| {
        main.with_write_options(Durability::Sync).put(n.to_be_bytes(), [7; 40]).unwrap();
    };
    let before = 1 + rng.below(20_u64);
    (0..before).for_each(put);
    db.checkpoint("copy").unwrap();
    (before..before + 1 + rng.below(20)).for_each(put);
    for (from, to) in [("copy", "db"), ("db", "copy")] {
        let disk = disk.crash(CrashImage::Keep, seed);
        for path in files(&disk, ".wal").into_iter().filter(|path| path.starts_with(from)) {
            let replaced = Path::new(to).join(path.file_name().unwrap());
            if !disk.paths().contains(&replaced) {
                continue;
            }
            let bytes = disk.read_all(&path).unwrap();
            let disk = disk.crash(CrashImage::Keep, seed);
            disk.write_all(&replaced, &bytes).unwrap();
            let opened = Db::open(to, options().vfs(Arc::new(disk.clone()))).map(drop);
            let verified = lsmx::verify(to, &Options::default().vfs(Arc::new(disk))).map(drop);
            for (call, result) in [("open", opened), ("verify", verified)] {
                let named =
                    matches!(&result, Err(Error::Corrupt { path, .. }) if *path == replaced);
                assert!(named, "{call} with a foreign {}: {result:?}", replaced.display());
            }
        }
    }
    let copy = Db::open("copy", options().vfs(Arc::new(disk.clone()))).unwrap();
    assert_eq!(copy.default_keyspace().iter().count() as u64, before, "keys in the copy");
    Ok(())
}

/// The name of a trace or a checkpoint must not be the name of an engine file in a database directory, whether of this
/// database or of another one. The call is rejected for any spelling of the path.
///
/// Regression: the engine rejected only traces, and only if the path had the same spelling as in the open call. When
/// the next table had the same number, the database became read-only, or the next open removed the trace as an orphan.
pub(crate) fn output_over_an_engine_file_is_refused(_seed: u64) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let (data, other) = (root.join("data"), root.join("other"));
    let options = || Options::default().background(Background::Inline).seed(1);
    let db = Db::open(&data, options()).unwrap();
    let _other = Db::open(&other, options()).unwrap();
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
        std::os::unix::fs::symlink(&data, root.join("link")).unwrap();
        spellings.push(root.join("link/004000.sst"));
    }
    for path in spellings {
        let traced = db.record_trace(&path, TraceOptions::default()).map(drop);
        for (call, result) in [("record_trace", traced), ("checkpoint", db.checkpoint(&path))] {
            let refused = matches!(result, Err(Error::OutputInDatabase { .. }));
            assert!(refused, "{call}({}): {result:?}", path.display());
        }
    }
    // Other names in the database directory, and names of engine files in other directories, are accepted.
    let trace = db.record_trace(data.join("monday.trace"), TraceOptions::default()).unwrap();
    trace.stop().unwrap();
    db.checkpoint(data.join("copy")).unwrap();
    db.checkpoint(root.join("004000.sst")).unwrap();
    Ok(())
}

/// Each open reports engine files with the largest possible numbers and leaves them unchanged.
///
/// Regression: a file with the largest possible number made every later open fail.
pub(crate) fn stray_file_with_an_impossible_number_is_ignored(seed: u64) -> Outcome {
    const OPENS: usize = 3;
    let disk = MemVfs::new();
    let events = EventLog::default();
    let open = || {
        let options = Options::default().background(Background::Inline).seed(seed);
        open_with(&disk, options.listener(Arc::new(events.clone()))).unwrap()
    };
    open().put("k", "v").unwrap();
    let names = ["72057594037927935.sst", "72057594037927935.blob", "MANIFEST-72057594037927934"];
    let paths = names.map(|name| Path::new("db").join(name));
    for path in &paths {
        disk.write_all(path, b"foreign").unwrap();
    }
    for _ in 0..OPENS {
        let db = open();
        assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]));
        db.put("k", "v").unwrap();
        db.flush().unwrap();
    }
    let reports = events.count(|event| matches!(event, Event::StrayFile(_)));
    assert_eq!(reports, OPENS * paths.len());
    assert!(paths.iter().all(|path| disk.paths().contains(path)), "a stray file was removed");
    Ok(())
}

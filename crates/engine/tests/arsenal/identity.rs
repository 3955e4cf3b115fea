//! Checks that files of one database are not taken for files of another one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::{Image, MemVfs};
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options};

use super::{Chance, Outcome};

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A segment of a checkpoint is copied over the segment of the same name of the original, and the other
/// way round: `verify` and an open return an error that names the segment.
///
/// A checkpoint had the uid of its original, so both passed and commits acknowledged with `Sync` were lost.
pub(crate) fn segment_of_a_checkpoint_is_foreign(seed: u64) -> Outcome {
    let mut chance = Chance::new(seed);
    let disk = MemVfs::new();
    let tuning = KeyspaceOptions::default().memtable_bytes(64 << 10);
    let options = || {
        Options::default()
            .background(Background::Inline)
            .seed(seed)
            .keyspace_defaults(tuning.clone())
    };
    let db = Db::open_with(Arc::new(disk.clone()), "db", options()).map_err(failed)?;
    let put = |number: u64| {
        let keyspace = db.default_keyspace();
        keyspace.put_with(number.to_be_bytes(), [7; 40], Durability::Sync).map_err(failed)
    };
    let before = 1 + chance.below(20);
    (0..before).try_for_each(put)?;
    db.checkpoint("copy").map_err(failed)?;
    let after = 1 + chance.below(20);
    (before..before + after).try_for_each(put)?;
    let segments = |disk: &MemVfs, dir: &str| -> Vec<PathBuf> {
        let is_segment = |path: &PathBuf| {
            path.starts_with(dir) && path.extension().is_some_and(|extension| extension == "wal")
        };
        disk.paths().into_iter().filter(is_segment).collect()
    };
    for (from, to) in [("copy", "db"), ("db", "copy")] {
        let disk = disk.crash(Image::Keep, seed);
        for path in segments(&disk, from) {
            let name = path.file_name().ok_or("no name")?;
            let over = Path::new(to).join(name);
            if !disk.paths().contains(&over) {
                continue;
            }
            let bytes = disk.read_all(&path).map_err(failed)?;
            let disk = disk.crash(Image::Keep, seed);
            disk.write_all(&over, &bytes).map_err(failed)?;
            let opened = Db::open_with(Arc::new(disk.clone()), to, options()).map(drop);
            let verified = lsmx::verify_with(Arc::new(disk.clone()), to).map(drop);
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
    let copy = Db::open_with(Arc::new(disk.clone()), "copy", options()).map_err(failed)?;
    let count = u64::try_from(copy.default_keyspace().iter().count()).map_err(failed)?;
    if count == before { Ok(()) } else { Err(format!("{count} keys in the copy, not {before}")) }
}

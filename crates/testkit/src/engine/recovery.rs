//! Fuzz targets that open a database with an arbitrary WAL segment or manifest.

use lsmx::env::Background;
use lsmx::internals::format::manifest_header::CurrentFile;
use lsmx::internals::manifest::{KeyspaceState, Manifest, ManifestState};
use lsmx::internals::options::StoredOptions;
use lsmx::vfs::MemVfs;
use lsmx::{Db, KeyspaceOptions, Options, RecoveryMode, Result, ValueSeparation};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;

use super::logs::{DIR, add_file, header_numbers};

/// Key that the targets write after recovery.
const NEW_KEY: &[u8] = b"key of the fuzzer";

fn open_db(vfs: &MemVfs, mode: RecoveryMode) -> Result<Db> {
    let options = Options::default().background(Background::Inline).seed(1);
    let options = options.create_if_missing(false).recovery(mode);
    Db::open(DIR, options.vfs(Arc::new(vfs.clone())))
}

/// Reads all pairs of the default keyspace.
fn read_pairs(db: &Db) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let pairs = db.default_keyspace().iter();
    pairs.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect()
}

/// Checks that a recovered database accepts a write and has the same contents after the next open.
fn check_recovery(vfs: &MemVfs) {
    let Ok(db) = open_db(vfs, RecoveryMode::Tolerant) else { return };
    let before = read_pairs(&db);
    if db.put(NEW_KEY, "value").is_err() {
        return;
    }
    drop(db);
    let db = open_db(vfs, RecoveryMode::Strict).expect("a recovered database opens again");
    // Reads may fail, because the input may contain entry kinds that this version does not write.
    let Ok(mut before) = before else { return };
    before.retain(|(key, _)| key != NEW_KEY);
    let mut after = read_pairs(&db).expect("the database was readable before");
    let written = after.iter().position(|(key, _)| key == NEW_KEY).expect("the new key exists");
    assert_eq!(after.remove(written).1, b"value");
    assert_eq!(after, before);
}

/// Checks recovery of a database whose only WAL segment is the input.
pub(super) fn check_recovery_from_segment(input: &[u8]) {
    check_recovery(&vfs_with_segment(input));
}

/// Checks recovery of a database whose manifest is the input.
///
/// The files that the manifest names exist only if the input is a changed manifest of the sample database.
pub(super) fn check_recovery_from_manifest(input: &[u8]) {
    check_recovery(&vfs_with_manifest(input));
}

/// Returns a file system with a database that has one WAL segment and no tables.
fn vfs_with_segment(segment: &[u8]) -> MemVfs {
    let (db_uid, id) = header_numbers(segment);
    let vfs = MemVfs::new();
    add_file(&vfs, FileName::Segment(id), segment);
    let options = StoredOptions::new(&KeyspaceOptions::default()).encode();
    let keyspace =
        KeyspaceState { name: "default".to_owned(), options, ..KeyspaceState::default() };
    let state = ManifestState {
        db_uid,
        keyspaces: [(0, keyspace)].into(),
        keyspace_id_next: 2,
        wal_oldest: id,
        ..ManifestState::default()
    };
    let number = if id == 1 { 2 } else { 1 };
    Manifest::create(Arc::new(vfs.clone()), DIR.as_ref(), number, &state)
        .expect("I/O in memory succeeds");
    vfs
}

/// Returns a file system with the manifest. If the manifest has the uid of the sample database, the other files of that
/// database are added.
fn vfs_with_manifest(manifest: &[u8]) -> MemVfs {
    let (db_uid, number) = header_numbers(manifest);
    let vfs = MemVfs::new();
    let sample = sample_database();
    if sample.manifest.get(16..24) == manifest.get(16..24) {
        for (name, contents) in &sample.other_files {
            add_file(&vfs, *name, contents);
        }
    }
    add_file(&vfs, FileName::Manifest(number), manifest);
    let current = CurrentFile { manifest: number, db_uid, bytes: 0 };
    add_file(&vfs, FileName::Current, current.encode().as_bytes());
    vfs
}

/// Files of a small database. Recovery fails early if a table is missing, so targets with changed manifests of this
/// database need its other files.
struct SampleDatabase {
    manifest: Vec<u8>,
    other_files: Vec<(FileName, Vec<u8>)>,
}

fn sample_database() -> &'static SampleDatabase {
    static SAMPLE: std::sync::OnceLock<SampleDatabase> = std::sync::OnceLock::new();
    SAMPLE.get_or_init(|| {
        let vfs = MemVfs::new();
        write_sample(&vfs).expect("I/O in memory succeeds");
        let mut sample = SampleDatabase { manifest: Vec::new(), other_files: Vec::new() };
        for (path, contents) in vfs.snapshot_all() {
            let name = path.file_name().and_then(|name| FileName::parse(name.to_str()?));
            match name {
                Some(FileName::Manifest(_)) => sample.manifest = contents,
                Some(FileName::Current) | None => {}
                Some(name) => sample.other_files.push((name, contents)),
            }
        }
        sample
    })
}

/// Writes two keyspaces with tables on two levels, blob files, range tombstones, and unflushed entries in the WAL.
fn write_sample(vfs: &MemVfs) -> Result<()> {
    let keyspace = KeyspaceOptions::default()
        .memtable_bytes(4 << 10)
        .table_bytes(1 << 10)
        .block_bytes(256)
        .value_separation(ValueSeparation { threshold_bytes: 30, ..ValueSeparation::default() });
    // With a fixed seed, every process writes the same files. A manifest in the corpus then names files that exist.
    let options = Options::default().background(Background::Inline).seed(1);
    let options = options.keyspace_defaults(keyspace.clone());
    let db = Db::open(DIR, options.vfs(Arc::new(vfs.clone())))?;
    let other = db.keyspace("other", keyspace)?;
    for number in 0..90_u64 {
        db.put(format!("key-{:02}", number * 37 % 60), format!("{number}").repeat(20))?;
        other.put(format!("key-{number:02}"), "short")?;
        if number % 30 == 20 {
            db.default_keyspace().delete_range("key-10".."key-14")?;
            db.flush()?;
        }
    }
    db.sync()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Checks that recovery accepts a seed input. Otherwise, the fuzz target would test only the rejection of inputs.
    #[test]
    fn segment_of_the_sample_database_opens() {
        let is_segment = |file: &&(FileName, Vec<u8>)| matches!(file.0, FileName::Segment(_));
        let segments = sample_database().other_files.iter().filter(is_segment);
        let (_, segment) = segments.max_by_key(|file| file.1.len()).unwrap();
        let db = open_db(&vfs_with_segment(segment), RecoveryMode::Strict).unwrap();
        assert!(!read_pairs(&db).unwrap().is_empty());
    }

    /// Checks that the corpus contains the manifest of the sample database. `UPDATE=1` rewrites that corpus file.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a corpus file is not part of a database")]
    fn manifest_of_the_sample_database_opens() {
        let sample = sample_database();
        let db = open_db(&vfs_with_manifest(&sample.manifest), RecoveryMode::Strict).unwrap();
        assert!(db.metrics().to_string().contains("L1"), "{}", db.metrics());
        assert!(read_pairs(&db).unwrap().len() > 40);
        assert!(sample.other_files.iter().any(|(name, _)| matches!(name, FileName::Blob(_))));
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/recovery_manifest");
        let file = Path::new(corpus).join("files-are-there");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, &sample.manifest).unwrap();
        }
        assert!(std::fs::read(&file).unwrap() == sample.manifest, "UPDATE=1 rewrites the file");
    }
}

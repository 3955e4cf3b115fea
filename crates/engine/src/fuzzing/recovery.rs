//! Targets that open a whole database, one log of which may say anything.

use lsmx_base::coding::get_u64;
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;

use crate::db::Db;
use crate::env::Background;
use crate::error::Result;
use crate::format::manifest_header::{CurrentFile, MANIFEST_HEADER_BYTES};
use crate::format::segment_header::SEGMENT_HEADER_BYTES;
use crate::fuzzing::logs::{DIR, add};
use crate::fuzzing::repair;
use crate::manifest::{KeyspaceState, Manifest, ManifestState};
use crate::options::db::Options;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::stored::StoredOptions;
use crate::options::value_separation::ValueSeparation;
use crate::vfs::MemVfs;
use crate::wal::RecoveryMode;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn open(vfs: &MemVfs, mode: RecoveryMode) -> Result<Db> {
    let options = Options::default().background(Background::Inline).seed(1);
    let options = options.create_if_missing(false).recovery(mode);
    Db::open(DIR, options.vfs(Arc::new(vfs.clone())))
}

fn pairs(db: &Db) -> Result<Pairs> {
    db.default_keyspace()
        .iter()
        .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())))
        .collect()
}

/// A database that opens shows the same at every later opening, and takes writes.
fn opens_for_good(vfs: &MemVfs) {
    let Ok(db) = open(vfs, RecoveryMode::Tolerant) else { return };
    let before = pairs(&db);
    if db.put("key of the fuzzer", "value").is_err() {
        return;
    }
    drop(db);
    let db = open(vfs, RecoveryMode::Strict).expect("what was recovered opens");
    // Kinds that this build writes nowhere yet may refuse to be read.
    let Ok(mut before) = before else { return };
    before.retain(|(key, _)| key != b"key of the fuzzer");
    let mut after = pairs(&db).expect("what could be read can be read");
    let own = after.iter().position(|(key, _)| key == b"key of the fuzzer");
    assert_eq!(after.remove(own.expect("the write is there")).1, b"value");
    assert_eq!(after, before);
}

/// A database with this segment, its checksums put right, which the manifest calls the oldest.
fn with_segment(bytes: &[u8]) -> MemVfs {
    let mut bytes = bytes.to_vec();
    repair::log(&mut bytes, SEGMENT_HEADER_BYTES);
    let (uid, id) = (get_u64(&bytes, 16).unwrap_or(1), get_u64(&bytes, 24).unwrap_or(1));
    let vfs = MemVfs::new();
    add(&vfs, FileName::Segment(id), &bytes);
    let options = StoredOptions::new(&KeyspaceOptions::default()).encode();
    let keyspace =
        KeyspaceState { name: "default".to_owned(), options, ..KeyspaceState::default() };
    let state = ManifestState {
        db_uid: uid,
        keyspaces: [(0, keyspace)].into(),
        keyspace_id_next: 2,
        wal_oldest: id,
        ..ManifestState::default()
    };
    let number = if id == 1 { 2 } else { 1 };
    Manifest::create(Arc::new(vfs.clone()), DIR.as_ref(), number, &state).expect("in memory");
    vfs
}

/// A database with this manifest, its checksums put right, and with the other files of [`own`] if it is
/// that one's.
fn with_manifest(bytes: &[u8]) -> MemVfs {
    let mut bytes = bytes.to_vec();
    repair::log(&mut bytes, MANIFEST_HEADER_BYTES);
    let (db_uid, manifest) = (get_u64(&bytes, 16).unwrap_or(1), get_u64(&bytes, 24).unwrap_or(1));
    let vfs = MemVfs::new();
    if own().manifest.get(16..24) == bytes.get(16..24) {
        for (name, bytes) in &own().others {
            add(&vfs, *name, bytes);
        }
    }
    add(&vfs, FileName::Manifest(manifest), &bytes);
    let current = CurrentFile { manifest, db_uid, bytes: 0 };
    add(&vfs, FileName::Current, current.encode().as_bytes());
    vfs
}

/// The files of a small database: without them, no manifest that names a table gets past the opening of
/// that table.
struct Own {
    manifest: Vec<u8>,
    others: Vec<(FileName, Vec<u8>)>,
}

fn own() -> &'static Own {
    static OWN: std::sync::OnceLock<Own> = std::sync::OnceLock::new();
    OWN.get_or_init(|| {
        let vfs = MemVfs::new();
        write_some(&vfs).expect("in memory");
        let mut own = Own { manifest: Vec::new(), others: Vec::new() };
        for (path, bytes) in vfs.snapshot_all() {
            let name = path.file_name().and_then(|name| FileName::parse(name.to_str()?));
            match name {
                Some(FileName::Manifest(_)) => own.manifest = bytes,
                Some(FileName::Current) | None => {}
                Some(name) => own.others.push((name, bytes)),
            }
        }
        own
    })
}

/// Tables on two levels, values beside them, range deletes, a second keyspace, and writes in the log alone.
fn write_some(vfs: &MemVfs) -> Result<()> {
    let keyspace = KeyspaceOptions::default()
        .memtable_bytes(4 << 10)
        .table_bytes(1 << 10)
        .block_bytes(256)
        .value_separation(ValueSeparation::default().threshold_bytes(30));
    // The same bytes in every process, so that an input keeps its meaning.
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

/// A WAL segment with right checksums, which the manifest calls the oldest.
pub fn recovery_wal(bytes: &[u8]) {
    opens_for_good(&with_segment(bytes));
}

/// A manifest with right checksums. The files that it names are there if it is that of one small
/// database.
pub fn recovery_manifest(bytes: &[u8]) {
    opens_for_good(&with_manifest(bytes));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A target that no input gets past the first check of would find nothing, and look well. So it was
    /// with these two: one had a keyspace without options, the other no tables.
    #[test]
    fn a_log_of_a_sound_database_opens() {
        let is_segment = |name: &&(FileName, Vec<u8>)| matches!(name.0, FileName::Segment(_));
        let (_, segment) =
            own().others.iter().filter(is_segment).max_by_key(|it| it.1.len()).unwrap();
        let db = open(&with_segment(segment), RecoveryMode::Strict).unwrap();
        assert!(!pairs(&db).unwrap().is_empty());
    }

    /// Inputs are found by changing that manifest, so it is in the corpus. `UPDATE=1` puts it there.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "corpora belong to the repository")]
    fn a_manifest_of_a_sound_database_opens() {
        let db = open(&with_manifest(&own().manifest), RecoveryMode::Strict).unwrap();
        assert!(db.metrics().to_string().contains("L6"), "{}", db.metrics());
        assert!(pairs(&db).unwrap().len() > 40);
        assert!(own().others.iter().any(|(name, _)| matches!(name, FileName::Blob(_))));
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/recovery_manifest");
        let file = Path::new(corpus).join("files-are-there");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, &own().manifest).unwrap();
        }
        assert!(std::fs::read(&file).unwrap() == own().manifest, "UPDATE=1 writes it anew");
    }
}

//! Targets that open a whole database, one log of which may say anything.

use super::logs::{DIR, add};
use super::repair;
use crate::coding::get_u64;
use crate::db::Db;
use crate::db::options::Options;
use crate::env::Background;
use crate::error::Result;
use crate::format::filename::FileName;
use crate::format::manifest_header::{Current, MANIFEST_HEADER_BYTES};
use crate::format::wal_header::SEGMENT_HEADER_BYTES;
use crate::manifest::{KeyspaceState, Manifest, ManifestState};
use crate::sync::Arc;
use crate::vfs::MemVfs;
use crate::wal::RecoveryMode;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn open(vfs: &MemVfs, mode: RecoveryMode) -> Result<Db> {
    let options = Options::default().background(Background::Inline).seed(1);
    let options = options.create_if_missing(false).recovery(mode);
    Db::open_with(Arc::new(vfs.clone()), DIR, options)
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

/// A WAL segment with right checksums, which the manifest calls the oldest.
pub fn recovery_wal(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::log(&mut bytes, SEGMENT_HEADER_BYTES);
    let (uid, id) = (get_u64(&bytes, 16).unwrap_or(1), get_u64(&bytes, 24).unwrap_or(1));
    let vfs = MemVfs::new();
    add(&vfs, FileName::Segment(id), &bytes);
    let keyspace = KeyspaceState { name: "default".to_owned(), ..KeyspaceState::default() };
    let state = ManifestState {
        db_uid: uid,
        keyspaces: [(0, keyspace)].into(),
        keyspace_id_next: 2,
        wal_oldest: id,
        ..ManifestState::default()
    };
    let number = if id == 1 { 2 } else { 1 };
    Manifest::create(Arc::new(vfs.clone()), DIR.as_ref(), number, &state).expect("in memory");
    opens_for_good(&vfs);
}

/// A manifest with right checksums, and no other file.
pub fn recovery_manifest(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::log(&mut bytes, MANIFEST_HEADER_BYTES);
    let (db_uid, manifest) = (get_u64(&bytes, 16).unwrap_or(1), get_u64(&bytes, 24).unwrap_or(1));
    let vfs = MemVfs::new();
    add(&vfs, FileName::Manifest(manifest), &bytes);
    let current = Current { manifest, db_uid, bytes: 0 };
    add(&vfs, FileName::Current, current.encode().as_bytes());
    opens_for_good(&vfs);
}

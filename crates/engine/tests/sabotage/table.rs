//! Deliberate bugs of tables.

use std::path::Path;
use std::sync::Arc;

use lsmx::env::Env;
use lsmx::internals::cache::BlockCache;
use lsmx::internals::table::{
    Table, TableIdentity, TableOptions, TableSummary, TableWriter, verify_table,
};
use lsmx::vfs::CrashImage;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{EntryKind, Error, SeqNo};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::InternalKey;
use lsmx_compaction::FileId;
use lsmx_stress::{Detection, format_detections};

fn write(vfs: &MemVfs, path: &Path, uid: u64, value: &[u8]) -> TableSummary {
    let mut writer = TableWriter::create(vfs, path, uid, &TableOptions::default()).unwrap();
    for number in 0..100u32 {
        let user_key = &number.to_be_bytes();
        writer.add(InternalKey { user_key, seq: SeqNo(1), kind: EntryKind::Put }, value).unwrap();
    }
    writer.finish().unwrap()
}

fn open(vfs: &dyn Vfs, path: &Path, summary: &TableSummary) -> Result<Table, Error> {
    let identity = TableIdentity {
        id: FileId(1),
        bytes: summary.bytes,
        uid: summary.uid,
        checksum: summary.checksum,
    };
    Table::open(vfs, path, &identity, &BlockCache::new(1 << 20))
}

fn bytes(vfs: &MemVfs, path: &Path) -> Vec<u8> {
    let file = vfs.open(path).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// Whether a data block of one table passes for one of another.
fn a_foreign_block_passes() -> bool {
    let vfs = MemVfs::new();
    let [one, other, mixed] = ["one", "other", "mixed"].map(Path::new);
    let summary = write(&vfs, one, 1, b"right");
    write(&vfs, other, 2, b"wrong");
    let table = open(&vfs, one, &summary).unwrap();
    let data_bytes = usize::try_from(table.properties().data_bytes).unwrap();
    let (mut right, wrong) = (bytes(&vfs, one), bytes(&vfs, other));
    right[..data_bytes].copy_from_slice(&wrong[..data_bytes]);
    vfs.create(mixed).unwrap().append(&right).unwrap();
    let table = open(&vfs, mixed, &summary).unwrap();
    match table.get(&7u32.to_be_bytes(), SeqNo::MAX, true) {
        Ok(found) => {
            assert_eq!(&*found.unwrap().value, b"wrong");
            true
        }
        Err(Error::Corrupt { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Whether the filter keeps out a key that is there, and `verify` says so.
fn a_key_is_filtered_out() -> bool {
    let vfs = MemVfs::new();
    let path = Path::new("table");
    let summary = write(&vfs, path, 1, b"value");
    let table = Arc::new(open(&vfs, path, &summary).unwrap());
    let lost = (0..100u32)
        .any(|number| table.get(&number.to_be_bytes(), SeqNo::MAX, true).unwrap().is_none());
    assert_eq!(verify_table(&table).is_err(), lost, "verify asks the filter for every key");
    lost
}

/// Whether a finished table is gone after a power loss, its directory being synced.
fn a_finished_table_is_lost() -> bool {
    let vfs = MemVfs::new();
    let dir = Path::new("db");
    vfs.create_dir(dir).unwrap();
    vfs.sync_dir(Path::new("")).unwrap();
    let path = dir.join("table");
    let summary = write(&vfs, &path, 1, b"value");
    vfs.sync_dir(dir).unwrap();
    let after = vfs.crash(CrashImage::Drop, 1);
    open(&after, &path, &summary).is_err()
}

#[test]
fn deliberate_bugs_show() {
    let _alone = lsmx_testkit::run_alone();
    let clock = Env::default();
    let mut found = Vec::new();
    for (bug, check, shows) in [
        (
            Failpoint::ChecksumWithoutLocation,
            "a foreign block",
            a_foreign_block_passes as fn() -> bool,
        ),
        (Failpoint::FilterMissesKey, "every key of a table", a_key_is_filtered_out),
        (Failpoint::EditBeforeTableSync, "a power loss behind a table", a_finished_table_is_lost),
    ] {
        assert!(!shows(), "{} without the bug", bug.name());
        let start_ns = clock.monotonic_ns();
        failpoint::enable(bug);
        assert!(shows(), "{} with the bug", bug.name());
        failpoint::disable();
        let ms = (clock.monotonic_ns() - start_ns) / 1_000_000;
        found.push(Detection { failpoint: bug, check, runs: 1, ms });
    }
    println!("{}", format_detections(&found));
}

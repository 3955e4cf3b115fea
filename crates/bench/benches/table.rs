//! Lookups in a table whose blocks are cached.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::Criterion;
use lsmx::internals::cache::BlockCache;
use lsmx::internals::table::{Table, TableIdentity, TableOptions, TableWriter};
use lsmx::vfs::MemVfs;
use lsmx::{EntryKind, SeqNo};
use lsmx_base::key::InternalKey;
use lsmx_compaction::FileId;

use crate::data::{random_value, sorted_keys};

const PATH: &str = "000001.sst";
const CACHE_BYTES: u64 = 256 << 20;

/// Returns a table that contains `keys`, stored in an in-memory file system.
pub(crate) fn build_table<'a>(keys: impl Iterator<Item = &'a Vec<u8>>) -> Arc<Table> {
    let vfs = MemVfs::new();
    let path = Path::new(PATH);
    let value = random_value();
    let mut writer = TableWriter::create(&vfs, path, 1, &TableOptions::default()).unwrap();
    for user_key in keys {
        let key = InternalKey { user_key, seq: SeqNo(1), kind: EntryKind::Put };
        writer.add(key, &value).unwrap();
    }
    let summary = writer.finish().unwrap();
    let identity = TableIdentity {
        id: FileId(1),
        bytes: summary.bytes,
        uid: summary.uid,
        checksum: summary.checksum,
        seq_largest: summary.properties.seq_largest,
    };
    Arc::new(Table::open(&vfs, path, &identity, &BlockCache::new(CACHE_BYTES)).unwrap())
}

pub(crate) fn bench_get(criterion: &mut Criterion) {
    // Every second key is in the table.
    let keys = sorted_keys(400_000);
    let table = build_table(keys.iter().step_by(2));
    // The step 7,919 is coprime to the number of keys. Therefore all keys are searched, and consecutive searches access
    // distant blocks of the table.
    let searched = |first: usize| (0..).map(move |n: usize| 2 * (n * 7919 % 200_000) + first);
    let mut group = criterion.benchmark_group("table get, 200000 entries");
    for (name, first, filter) in [
        ("present, filter used", 0, true),
        ("present, no filter", 0, false),
        ("absent, filter used", 1, true),
        ("absent, no filter", 1, false),
    ] {
        let mut searched = searched(first);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let key = &keys[searched.next().unwrap()];
                let found = table.get(black_box(key), SeqNo::MAX, filter).unwrap();
                assert_eq!(found.is_some(), first == 0);
            });
        });
    }
    group.finish();
}

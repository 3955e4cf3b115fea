//! Time in which a compaction policy picks a job in a tree of about 2000 tables.

use std::hint::black_box;
use std::sync::Arc;

use criterion::Criterion;
use lsmx_compaction::{
    FileId, Key, KeyRange, LevelShape, PolicySpec, RunId, RunningJobs, SortedRun, TableMeta,
    TreeShape,
};

const TABLE_BYTES: u64 = 64 << 20;
const ENTRIES: u64 = 600_000;

fn make_key(place: u64) -> Key {
    Key::copy_from_slice(&place.to_be_bytes())
}

/// Returns a sorted run of `files` tables that divide the key domain evenly.
fn make_run(id: u64, files: u64, file_next: &mut u64) -> SortedRun {
    let width = u64::MAX / files;
    let file = |place: u64| {
        *file_next += 1;
        Arc::new(TableMeta {
            bytes: TABLE_BYTES,
            entries: ENTRIES,
            value_bytes: ENTRIES * 100,
            seq_smallest: *file_next * ENTRIES,
            seq_largest: *file_next * ENTRIES + ENTRIES - 1,
            ..TableMeta::new(
                FileId(*file_next),
                KeyRange::new(make_key(place * width), make_key(place * width + width - 1)),
            )
        })
    };
    SortedRun { id: RunId(id), files: (0..files).map(file).collect() }
}

/// Returns a tree with full levels and twelve runs in L0, so that every policy picks a job.
fn make_shape() -> TreeShape {
    // The levels are built from bottom to top, because upper levels contain newer data with larger sequence numbers.
    let mut file_next = 0;
    let mut id = 0;
    let mut level = |runs: u64, files: u64| {
        let mut level = LevelShape::default();
        for _ in 0..runs {
            id += 1;
            level.runs.insert(0, Arc::new(make_run(id, files, &mut file_next)));
        }
        level
    };
    let (bottom, middle, upper, l0) = (level(1, 1800), level(1, 181), level(1, 19), level(12, 1));
    let shape = TreeShape {
        levels: [l0, upper, middle, bottom].map(Arc::new).into(),
        run_id_next: 100,
        memtable_bytes: TABLE_BYTES,
        table_bytes: TABLE_BYTES,
        ..TreeShape::default()
    };
    shape.check_invariants().unwrap();
    shape
}

pub(crate) fn bench_pick(criterion: &mut Criterion) {
    let shape = make_shape();
    let busy = RunningJobs::default();
    let mut group = criterion.benchmark_group("policy pick, 2012 tables");
    for spec in PolicySpec::all_presets() {
        let policy = spec.build();
        assert!(policy.pick(&shape, &busy).is_some(), "{spec} picks no job");
        group.bench_function(spec.name(), |bencher| {
            bencher.iter(|| policy.pick(black_box(&shape), &busy));
        });
    }
    group.finish();
}

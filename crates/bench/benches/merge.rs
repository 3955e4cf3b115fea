//! Iteration with a merging cursor over tables or memtables.

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use lsmx::benching::{BenchMemtable, MemtableKind, merging_cursor};
use lsmx::internals::table::{ReadPurpose, TableCursor};
use lsmx::operand_store::Cursor;

use crate::data::{random_keys, random_value, sorted_keys};
use crate::table::build_table;

const ENTRIES: u64 = 40_000;

/// Returns `n` tables with equal numbers of keys. Consecutive keys are in different tables.
fn table_cursors(n: usize) -> Vec<Box<dyn Cursor>> {
    let keys = sorted_keys(ENTRIES);
    let one = |first: usize| -> Box<dyn Cursor> {
        let table = build_table(keys.iter().skip(first).step_by(n));
        Box::new(TableCursor::new(&table, ReadPurpose::Lookup))
    };
    (0..n).map(one).collect()
}

/// Returns `n` memtables with equal numbers of keys, which are inserted in random order.
fn memtable_cursors(n: usize) -> Vec<Box<dyn Cursor>> {
    let value = Bytes::from(random_value());
    let keys = random_keys(ENTRIES);
    let one = |first: usize| {
        let memtable = BenchMemtable::new(MemtableKind::BLinkTree);
        for (seq, key) in (1..).zip(keys.iter().skip(first).step_by(n)) {
            memtable.insert(key, seq, &value);
        }
        memtable.cursor()
    };
    (0..n).map(one).collect()
}

pub(crate) fn bench_next(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("merge 40000 entries");
    group.throughput(Throughput::Elements(ENTRIES));
    for n in [1, 4, 16] {
        for (name, sources) in [("tables", table_cursors(n)), ("memtables", memtable_cursors(n))] {
            let mut cursor = merging_cursor(sources);
            group.bench_function(format!("of {n} {name}"), |bencher| {
                bencher.iter(|| {
                    let mut bytes = 0;
                    cursor.first().unwrap();
                    while cursor.valid() {
                        bytes += cursor.value().len();
                        cursor.next().unwrap();
                    }
                    bytes
                });
            });
        }
    }
    group.finish();
}

//! Queries of a filter, including the computation of the key hash.

use std::hint::black_box;

use criterion::Criterion;
use lsmx_base::filter::{Filter, FilterWidth, build_filter, key_hash};

use crate::data::random_keys;

/// Approximate number of keys in a table of 8 MiB.
const KEYS: u64 = 60_000;

pub(crate) fn bench_query(criterion: &mut Criterion) {
    let keys = random_keys(2 * KEYS);
    let (present, absent) = keys.split_at(keys.len() / 2);
    let mut group = criterion.benchmark_group(format!("filter, {KEYS} keys"));
    for (name, width) in [("8 bits", FilterWidth::Fuse8), ("16 bits", FilterWidth::Fuse16)] {
        let mut hashes: Vec<u64> = present.iter().map(|key| key_hash(key)).collect();
        let filter = Filter::new(build_filter(&mut hashes, width).unwrap().into()).unwrap();
        assert!(present.iter().all(|key| filter.may_contain(key_hash(key))));
        for (kind, keys) in [("present", present), ("absent", absent)] {
            let mut keys = keys.iter().cycle();
            group.bench_function(format!("{name}, {kind}"), |bencher| {
                bencher.iter(|| filter.may_contain(key_hash(black_box(keys.next().unwrap()))));
            });
        }
    }
    group.finish();
}

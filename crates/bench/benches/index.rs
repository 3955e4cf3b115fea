//! Searches in an index block, including the decoding of the data block handle.

use std::hint::black_box;

use criterion::Criterion;
use lsmx::SeqNo;
use lsmx::benching::index_blocks;
use lsmx_bench::workload::random::{hash_u64, random_bytes};

use crate::table::build_table;

const KEYS: u64 = 100_000;
const HASH_BYTES: usize = 32;
/// Number of searched keys. The keys are not sorted and fit into the processor's cache.
const SEARCHED: usize = 512;
const SYLLABLES: [&str; 12] =
    ["lib", "perl", "python3-", "rust", "-dev", "doc", "x", "core", "data", "-tools", "qt", "go"];

pub(crate) fn bench_search(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index block search");
    for (name, mut keys) in [("hashes", hash_keys()), ("ids", id_keys()), ("names", name_keys())] {
        keys.sort_unstable();
        keys.dedup();
        let table = build_table(keys.iter());
        let blocks = index_blocks(&table).unwrap();
        let (index, data_blocks) = &blocks[blocks.len() / 2];
        let keys: Vec<_> = data_blocks.iter().flatten().collect();
        let searched = (0..SEARCHED).map(|n| keys[n * 7919 % keys.len()]);
        let mut searched = searched.collect::<Vec<_>>().into_iter().cycle();
        group.bench_function(name, |bencher| {
            bencher.iter(|| index.seek(black_box(searched.next().unwrap()), SeqNo::MAX));
        });
    }
    group.finish();
}

fn hash_keys() -> Vec<Vec<u8>> {
    (0..KEYS).map(|n| random_bytes(hash_u64(n), HASH_BYTES)).collect()
}

fn id_keys() -> Vec<Vec<u8>> {
    let fields = ["address", "created", "email", "name", "phone", "status"];
    let users = (0..KEYS / 6).flat_map(|user| fields.map(|field| (user, field)));
    users.map(|(user, field)| format!("user:{user:09}:{field}").into_bytes()).collect()
}

fn name_keys() -> Vec<Vec<u8>> {
    let name = |n: u64| {
        let mut hash = hash_u64(n);
        let mut name = String::new();
        for _ in 0..3 + n % 4 {
            let at = usize::try_from(hash % 12).unwrap();
            name += SYLLABLES[at];
            hash /= 12;
        }
        name.into_bytes()
    };
    (0..KEYS).map(name).collect()
}

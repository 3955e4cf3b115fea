//! Search in one index block, including the handle of the data block.

use std::hint::black_box;

use criterion::Criterion;
use lsmx::SeqNo;
use lsmx::benching::index_blocks;
use lsmx_bench::workload::random::{fill, mix};

use crate::table::table;

const KEYS: u64 = 100_000;
const HASH_BYTES: usize = 32;
/// Number of searched keys. They are unordered and fit into the processor's cache.
const ASKED: usize = 512;
const SYLLABLES: [&str; 12] =
    ["lib", "perl", "python3-", "rust", "-dev", "doc", "x", "core", "data", "-tools", "qt", "go"];

pub(crate) fn search(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index block search");
    for (name, mut keys) in [("hashes", hashes()), ("ids", ids()), ("names", names())] {
        keys.sort_unstable();
        keys.dedup();
        let table = table(keys.iter());
        let blocks = index_blocks(&table).unwrap();
        let (index, under) = &blocks[blocks.len() / 2];
        let under: Vec<_> = under.iter().flatten().collect();
        let asked: Vec<_> = (0..ASKED).map(|n| under[n * 7919 % under.len()]).collect();
        let mut asked = asked.iter().cycle();
        group.bench_function(name, |bencher| {
            bencher.iter(|| index.seek(black_box(asked.next().unwrap()), SeqNo::MAX));
        });
    }
    group.finish();
}

fn hashes() -> Vec<Vec<u8>> {
    let key = |n| {
        let mut key = Vec::new();
        fill(mix(n), HASH_BYTES, &mut key);
        key
    };
    (0..KEYS).map(key).collect()
}

fn ids() -> Vec<Vec<u8>> {
    let fields = ["address", "created", "email", "name", "phone", "status"];
    let users = (0..KEYS / 6).flat_map(|user| fields.map(|field| (user, field)));
    users.map(|(user, field)| format!("user:{user:09}:{field}").into_bytes()).collect()
}

fn names() -> Vec<Vec<u8>> {
    let name = |n: u64| {
        let mut hash = mix(n);
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

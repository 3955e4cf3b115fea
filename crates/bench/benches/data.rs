//! Keys and values of the benchmarks: uniformly distributed keys of 16 bytes, values of 100 bytes.

use lsmx_bench::workload::KeyDistribution;
use lsmx_bench::workload::keys::KeySpace;
use lsmx_bench::workload::random::random_bytes;

pub(crate) const VALUE_BYTES: usize = 100;
const KEY_BYTES: usize = 16;

/// Returns `n` keys in random order.
pub(crate) fn random_keys(n: u64) -> Vec<Vec<u8>> {
    let space = KeySpace::new(KeyDistribution::Uniform, n, KEY_BYTES, 1).unwrap();
    (0..n).map(|record| space.key(record)).collect()
}

pub(crate) fn sorted_keys(n: u64) -> Vec<Vec<u8>> {
    let mut keys = random_keys(n);
    keys.sort_unstable();
    keys
}

/// Returns a value that does not compress.
pub(crate) fn random_value() -> Vec<u8> {
    random_bytes(7, VALUE_BYTES)
}

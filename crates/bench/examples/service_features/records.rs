//! Records of the measured databases: keys of 16 bytes and values of 100 bytes, of which half is compressible.

pub(crate) const VALUE_BYTES: usize = 100;
/// Number of consecutive keys that share their first [`PREFIX_BYTES`] bytes.
pub(crate) const ENTRIES_PER_PREFIX: u64 = 8;
pub(crate) const PREFIX_BYTES: usize = 8;

pub(crate) fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    // Only even prefixes exist.
    key[..PREFIX_BYTES].copy_from_slice(&(number / ENTRIES_PER_PREFIX * 2).to_be_bytes());
    key[PREFIX_BYTES..].copy_from_slice(&(number % ENTRIES_PER_PREFIX).to_be_bytes());
    key
}

/// Returns a prefix that no key has. It is between the prefixes of existing keys.
pub(crate) fn absent_prefix(number: u64) -> [u8; PREFIX_BYTES] {
    (number / ENTRIES_PER_PREFIX * 2 + 1).to_be_bytes()
}

pub(crate) fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [b'v'; VALUE_BYTES];
    let mut state = number;
    for byte in &mut value[..VALUE_BYTES / 2] {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        *byte = state.to_be_bytes()[0];
    }
    value
}

/// Returns each number below `count` once, in a scattered order.
pub(crate) fn scattered(count: u64) -> impl Iterator<Item = u64> {
    // An odd factor visits each number below a power of two once.
    let mask = count.next_power_of_two() - 1;
    let numbers = (0..=mask).map(move |at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask);
    numbers.filter(move |&number| number < count)
}

//! Random changes to fuzz inputs.

use lsmx_base::coding::{len_u64, put_varint};

use crate::rng::TestRng;

/// Integers at the boundaries of their encodings.
const BOUNDARY_VALUES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0xffff,
    u32::MAX as u64,
    1 << 32,
    (1 << 56) - 1,
    1 << 56,
    u64::MAX >> 1,
    u64::MAX,
];

/// Makes one random change to the input. Some changes copy bytes from `other`.
pub(crate) fn mutate(input: &mut Vec<u8>, other: &[u8], rng: &mut TestRng) {
    let value = match rng.below(3) {
        0 => *rng.choose(&BOUNDARY_VALUES),
        1 => rng.next_u64() % 300,
        _ => len_u64(input.len()).wrapping_add(rng.next_u64() % 7).wrapping_sub(3),
    };
    let mut varint = Vec::new();
    put_varint(&mut varint, value);
    let len = input.len();
    // Headers and trailers store lengths and checksums, so changes are more frequent at both ends of the input than in
    // the middle.
    let start = match rng.below(6) {
        0 => rng.between(0, len.min(8)),
        1 => len - rng.between(0, len.min(48)),
        _ => rng.between(0, len),
    };
    let end = rng.between(start, len.min(start + 24));
    let overwrite = |input: &mut Vec<u8>, bytes: &[u8]| {
        let end = len.min(start + bytes.len());
        input[start..end].copy_from_slice(&bytes[..end - start]);
    };
    match rng.below(13) {
        0 | 1 if start < len => input[start] ^= 1 << rng.below(8),
        2 if start < len => input[start] = rng.next_u64().to_le_bytes()[0],
        3 if start < len => input[start] = input[start].wrapping_add(1),
        4 if start < len => input[start] = input[start].wrapping_sub(1),
        5 => overwrite(input, &value.to_le_bytes()),
        6 => overwrite(input, &value.to_le_bytes()[..4]),
        7 => overwrite(input, &varint),
        8 => {
            input.splice(start..start, varint);
        }
        9 => {
            input.drain(start..end);
        }
        10 => {
            let copy = input[start..end].to_vec();
            let target = rng.between(0, len);
            input.splice(target..target, copy);
        }
        11 => {
            let from = rng.between(0, other.len());
            let to = rng.between(from, other.len().min(from + 64));
            input.splice(start..end, other[from..to].iter().copied());
        }
        _ if rng.below(8) == 0 => input.truncate(start),
        _ => {
            let copy = input[start..end].to_vec();
            let target = rng.between(0, len - copy.len());
            input[target..target + copy.len()].copy_from_slice(&copy);
        }
    }
}

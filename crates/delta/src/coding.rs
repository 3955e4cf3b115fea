//! Integers in bytes and checksums of places, as the engine has them.

use lsmx::Malformed;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A length in memory as a `u64`: no supported target has wider addresses.
pub(crate) const fn len_u64(len: usize) -> u64 {
    len as u64
}

/// A length from disk as a `usize`.
pub(crate) fn to_usize(what: &'static str, value: u64) -> Result<usize, Malformed> {
    usize::try_from(value).map_err(|_| Malformed::Field {
        what,
        found: value,
        expected: "a length this machine can address",
    })
}

/// Checksum of bytes that lie at `offset` of the file with this uid. Bytes that moved, or are of
/// another file, fail: for one uid no two offsets share a seed, for one offset no two uids.
pub(crate) fn checksum_at(bytes: &[u8], uid: u64, offset: u64) -> u64 {
    let mut x = uid ^ offset.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    xxh3_64_with_seed(bytes, x ^ (x >> 31))
}

/// Appends a varint: seven bits a byte, lowest first, the top bit set on all bytes but the last.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        // Masked to seven bits, so the cast keeps all of them.
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends a varint length and the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, len_u64(bytes.len()));
    out.extend_from_slice(bytes);
}

/// Reads values one after the other from bytes that nobody has vouched for: never panics, never reads
/// past their end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { bytes, at: 0 }
    }

    /// Offset of the next value.
    pub(crate) const fn offset(&self) -> usize {
        self.at
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], Malformed> {
        let left = self.bytes.get(self.at..).unwrap_or_default();
        let found = left.get(..len).ok_or(Malformed::Truncated {
            what,
            needed: len_u64(len),
            found: len_u64(left.len()),
        })?;
        self.at += len;
        Ok(found)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, Malformed> {
        Ok(self.take(what, 1)?[0])
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        let mut word = [0; 4];
        word.copy_from_slice(self.take(what, 4)?);
        Ok(u32::from_le_bytes(word))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let mut word = [0; 8];
        word.copy_from_slice(self.take(what, 8)?);
        Ok(u64::from_le_bytes(word))
    }

    /// A varint in its shortest form.
    pub(crate) fn varint(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let wrong = Malformed::Field { what, found: 0, expected: "a varint in its shortest form" };
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8(what)?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                return Err(wrong);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(wrong)
    }

    /// A varint length and as many bytes.
    pub(crate) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], Malformed> {
        let len = to_usize(what, self.varint(what)?)?;
        self.take(what, len)
    }

    /// Nothing may be left.
    pub(crate) fn end(&self, what: &'static str) -> Result<(), Malformed> {
        if self.is_empty() {
            return Ok(());
        }
        let found = len_u64(self.bytes.len() - self.at);
        Err(Malformed::Field { what, found, expected: "nothing beyond the last field" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back_and_longer_forms_are_refused() {
        for value in (0..64).flat_map(|bit| [1_u64 << bit, (1_u64 << bit) - 1, u64::MAX - bit]) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(Decoder::new(&bytes).varint("value").unwrap(), value);
            assert!(Decoder::new(&bytes[..bytes.len() - 1]).varint("value").is_err());
            *bytes.last_mut().unwrap() |= 0x80;
            bytes.push(0);
            assert!(Decoder::new(&bytes).varint("value").is_err());
        }
    }
}

//! Integers in bytes: little-endian, variable length, and the casts that go with them.
//!
//! [`Decoder`] reads bytes that may be anything: it never panics and never reads past their end.

use crate::failpoint::{self, Failpoint};
use crate::malformed::Malformed;

/// Most bytes that a `u64` takes as a varint.
pub const VARINT_BYTES_MAX: usize = 10;

/// A length in memory as a `u64`. Never loses anything: no supported target has wider addresses.
#[inline]
pub const fn len_u64(len: usize) -> u64 {
    len as u64
}

/// A length from disk as a `usize`.
///
/// # Errors
/// When it is past what this machine can address.
#[inline]
pub fn to_usize(what: &'static str, value: u64) -> Result<usize, Malformed> {
    usize::try_from(value).map_err(|_| Malformed::Field {
        what,
        found: value,
        expected: "a length this machine can address",
    })
}

/// The lower 32 bits.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "cutting off the upper half is the purpose")]
pub const fn low_u32(value: u64) -> u32 {
    value as u32
}

/// The upper 32 bits.
#[inline]
pub const fn high_u32(value: u64) -> u32 {
    low_u32(value >> 32)
}

/// Appends a `u32`, little-endian.
#[inline]
pub fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a `u64`, little-endian.
#[inline]
pub fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a varint: seven bits a byte, lowest first, the top bit set on all bytes but the last.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        // Masked to seven bits, so the cast keeps all of them.
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends a varint length and the bytes.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, len_u64(bytes.len()));
    out.extend_from_slice(bytes);
}

/// Bytes that [`put_varint`] appends.
#[inline]
pub const fn varint_len(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// The `u32` at `at`, or `None` past the end.
#[inline]
pub fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let end = at.checked_add(size_of::<u32>())?;
    Some(u32::from_le_bytes(bytes.get(at..end)?.try_into().ok()?))
}

/// The `u64` at `at`, or `None` past the end.
#[inline]
pub fn get_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let end = at.checked_add(size_of::<u64>())?;
    Some(u64::from_le_bytes(bytes.get(at..end)?.try_into().ok()?))
}

/// The varint at the start of eight bytes, and its length; `None` if it is longer or not in its
/// shortest form. Without a loop or a branch on its length: what a search through blocks needs.
#[inline]
pub const fn varint_in_word(word: u64) -> Option<(u64, usize)> {
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let ends = !word & TOPS;
    if ends == 0 {
        return None;
    }
    let len = ends.trailing_zeros() as usize / 8 + 1;
    // All bits up to the top bit of the last byte.
    let bits = word & (ends ^ (ends - 1)) & !TOPS;
    // Sevens to fourteens to twenty-eights to one.
    let bits = (bits & 0x007f_007f_007f_007f) | (bits & 0x7f00_7f00_7f00_7f00) >> 1;
    let bits = (bits & 0x0000_3fff_0000_3fff) | (bits & 0x3fff_0000_3fff_0000) >> 2;
    let bits = (bits & 0x0000_0000_0fff_ffff) | (bits & 0x0fff_ffff_0000_0000) >> 4;
    // A last byte of 0 adds nothing to the bytes before it.
    if len > 1 && bits >> (7 * (len - 1)) == 0 {
        return None;
    }
    Some((bits, len))
}

/// Reads values one after the other from bytes that nobody has vouched for.
#[derive(Clone, Copy, Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    /// Reads from the start of `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { bytes, at: 0 }
    }

    /// Reads `bytes` from offset `at`; an offset past the end reads nothing.
    #[inline]
    pub const fn at(bytes: &'a [u8], at: usize) -> Decoder<'a> {
        Decoder { bytes, at }
    }

    /// Offset of the next value.
    #[inline]
    pub const fn offset(&self) -> usize {
        self.at
    }

    /// Bytes not read yet.
    #[inline]
    pub const fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// Whether all bytes were read.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// When fewer are left.
    #[inline]
    pub fn take(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], Malformed> {
        let taken = self.at.checked_add(len).and_then(|end| self.bytes.get(self.at..end));
        let Some(taken) = taken else {
            return Err(self.truncated(what, len));
        };
        self.at += len;
        Ok(taken)
    }

    #[cold]
    fn truncated(&self, what: &'static str, needed: usize) -> Malformed {
        if failpoint::is_on(Failpoint::LengthTrusted) {
            std::hint::black_box(&self.bytes[self.at..self.at + needed]);
        }
        Malformed::Truncated { what, needed: len_u64(needed), found: len_u64(self.remaining()) }
    }

    /// The next byte.
    ///
    /// # Errors
    /// When none is left.
    #[inline]
    pub fn u8(&mut self, what: &'static str) -> Result<u8, Malformed> {
        let Some(&byte) = self.bytes.get(self.at) else {
            return Err(self.truncated(what, 1));
        };
        self.at += 1;
        Ok(byte)
    }

    /// The next `u32`, little-endian.
    ///
    /// # Errors
    /// When fewer than four bytes are left.
    #[inline]
    pub fn u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        let Some(value) = get_u32(self.bytes, self.at) else {
            return Err(self.truncated(what, size_of::<u32>()));
        };
        self.at += size_of::<u32>();
        Ok(value)
    }

    /// The next `u64`, little-endian.
    ///
    /// # Errors
    /// When fewer than eight bytes are left.
    #[inline]
    pub fn u64(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let Some(value) = get_u64(self.bytes, self.at) else {
            return Err(self.truncated(what, size_of::<u64>()));
        };
        self.at += size_of::<u64>();
        Ok(value)
    }

    /// The next varint. Only the shortest form of a value is accepted, so that equal values have
    /// equal bytes.
    ///
    /// # Errors
    /// When it is cut off, longer than need be or past 64 bits.
    #[inline]
    pub fn varint(&mut self, what: &'static str) -> Result<u64, Malformed> {
        // One to three bytes are what blocks are full of; a last byte of 0 would not be shortest.
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match *rest {
            [a, ..] if a < 0x80 => {
                self.at += 1;
                Ok(u64::from(a))
            }
            [a, b, ..] if b < 0x80 && b != 0 => {
                self.at += 2;
                Ok(u64::from(a & 0x7f) | u64::from(b) << 7)
            }
            [a, b, c, ..] if b >= 0x80 && c < 0x80 && c != 0 => {
                self.at += 3;
                Ok(u64::from(a & 0x7f) | u64::from(b & 0x7f) << 7 | u64::from(c) << 14)
            }
            _ => self.varint_long(what),
        }
    }

    fn varint_long(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for index in 0..VARINT_BYTES_MAX {
            let byte = self.u8(what)?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit; a last byte of 0 is a longer form than need be.
            let last = byte < 0x80;
            if (index == VARINT_BYTES_MAX - 1 && byte > 1) || (last && byte == 0 && index > 0) {
                break;
            }
            value |= bits << (7 * index);
            if last {
                return Ok(value);
            }
        }
        Err(Malformed::Field { what, found: value, expected: "a varint in its shortest form" })
    }

    /// The next varint as a length in memory.
    ///
    /// # Errors
    /// As [`Decoder::varint`], or when the length cannot be addressed.
    #[inline]
    pub fn length(&mut self, what: &'static str) -> Result<usize, Malformed> {
        to_usize(what, self.varint(what)?)
    }

    /// The next varint length and that many bytes.
    ///
    /// # Errors
    /// When they are not there.
    #[inline]
    pub fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], Malformed> {
        let len = self.length(what)?;
        self.take(what, len)
    }

    /// Checks that all bytes were read.
    ///
    /// # Errors
    /// When bytes are left.
    pub fn finish(&self, what: &'static str) -> Result<(), Malformed> {
        if self.is_empty() {
            return Ok(());
        }
        let found = len_u64(self.remaining());
        Err(Malformed::Field { what, found, expected: "nothing after the last field" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [u64; 13] = [
        0,
        1,
        0x7f,
        0x80,
        0x3fff,
        0x4000,
        0xffff,
        u32::MAX as u64,
        1 << 35,
        (1 << 56) - 1,
        1 << 62,
        u64::MAX - 1,
        u64::MAX,
    ];

    #[test]
    fn a_varint_in_a_word_is_the_one_that_a_decoder_reads() {
        let values = (0..=u64::BITS).flat_map(|bits| {
            let power = 1u64.checked_shl(bits).unwrap_or(0);
            [power.wrapping_sub(1), power, power.wrapping_add(1)]
        });
        for value in values {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            let len = bytes.len();
            for filler in [0, 0x7f, 0x80, u8::MAX] {
                bytes.resize(16, filler);
                let word = get_u64(&bytes, 0).unwrap();
                assert_eq!(varint_in_word(word), (len <= 8).then_some((value, len)), "{value}");
                bytes.truncate(len);
            }
            // A longer form: one more group of seven bits, all zero.
            if len < 8 {
                bytes[len - 1] |= 0x80;
                bytes.resize(16, 0);
                assert_eq!(varint_in_word(get_u64(&bytes, 0).unwrap()), None, "{value}");
            }
        }
    }

    #[test]
    fn varints_come_back_and_have_the_length_foretold() {
        for value in VALUES {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(bytes.len(), varint_len(value), "{value:#x}");
            let mut decoder = Decoder::new(&bytes);
            assert_eq!(decoder.varint("v").unwrap(), value);
            assert!(decoder.is_empty());
        }
    }

    #[test]
    fn every_truncation_of_a_varint_is_an_error() {
        for value in VALUES {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            for len in 0..bytes.len() {
                let error = Decoder::new(&bytes[..len]).varint("v").unwrap_err();
                assert!(matches!(error, Malformed::Truncated { .. }), "{error}");
            }
        }
    }

    #[test]
    fn overlong_varints_are_errors() {
        for bytes in [&[0x80, 0x00][..], &[0xff, 0x80, 0x00], &[0xff; 11], &[0x80; 10]] {
            assert!(Decoder::new(bytes).varint("v").is_err(), "{bytes:x?}");
        }
        let past_64_bits = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert!(Decoder::new(&past_64_bits).varint("v").is_err());
    }

    #[test]
    fn fixed_integers_come_back_and_do_not_read_past_the_end() {
        let mut bytes = Vec::new();
        put_u32(&mut bytes, 0x0102_0304);
        put_u64(&mut bytes, 0x0506_0708_090a_0b0c);
        put_bytes(&mut bytes, b"abc");
        let mut decoder = Decoder::new(&bytes);
        assert_eq!(decoder.u32("a").unwrap(), 0x0102_0304);
        assert_eq!(decoder.u64("b").unwrap(), 0x0506_0708_090a_0b0c);
        assert_eq!(decoder.bytes("c").unwrap(), b"abc");
        assert_eq!(decoder.offset(), bytes.len());
        assert!(decoder.u8("d").is_err() && decoder.u32("d").is_err() && decoder.u64("d").is_err());
        assert_eq!(get_u32(&bytes, usize::MAX), None);
        assert_eq!(get_u64(&bytes, bytes.len() - 7), None);
        assert!(Decoder::at(&bytes, usize::MAX).take("e", 1).is_err());
    }
}

//! Encoding of integers: little-endian, varint, and lossless casts.
//!
//! [`Decoder`] reads untrusted bytes. It never panics and never reads past the end.

use crate::failpoint::{self, Failpoint};
use crate::malformed::Malformed;

/// Maximum length of a varint, in bytes.
pub const VARINT_BYTES_MAX: usize = 10;

/// Converts a length to `u64`. The cast is lossless, because no supported target has wider addresses.
#[inline]
pub const fn len_u64(len: usize) -> u64 {
    len as u64
}

/// Converts a length that was read from disk to `usize`.
///
/// # Errors
/// Fails if the length exceeds the address range of this machine.
#[inline]
pub fn to_usize(what: &'static str, value: u64) -> Result<usize, Malformed> {
    usize::try_from(value).map_err(|_| Malformed::Field {
        what,
        found: value,
        expected: "a length this machine can address",
    })
}

/// Returns the lower 32 bits.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the truncation is intended")]
pub const fn low_u32(value: u64) -> u32 {
    value as u32
}

/// Returns the upper 32 bits.
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

/// Appends a varint: seven bits per byte, lowest bits first. All bytes but the last have the top bit set.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        // The mask leaves seven bits, so the cast is lossless.
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends the length as a varint, then the bytes.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, len_u64(bytes.len()));
    out.extend_from_slice(bytes);
}

/// Returns the number of bytes that [`put_varint`] appends.
#[inline]
pub const fn varint_len(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Reads the `u32` at offset `at`. Returns `None` if `bytes` ends before the end of the number.
#[inline]
pub fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let end = at.checked_add(size_of::<u32>())?;
    Some(u32::from_le_bytes(bytes.get(at..end)?.try_into().ok()?))
}

/// Reads the `u64` at offset `at`. Returns `None` if `bytes` ends before the end of the number.
#[inline]
pub fn get_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let end = at.checked_add(size_of::<u64>())?;
    Some(u64::from_le_bytes(bytes.get(at..end)?.try_into().ok()?))
}

/// Decodes the varint at the start of eight little-endian bytes. Returns the value and the length of the varint.
///
/// Returns `None` if the varint has more than eight bytes or is not in its shortest form. The code has no loop and no
/// branch on the length, because block searches call it for every entry.
#[inline]
pub const fn decode_varint_word(word: u64) -> Option<(u64, usize)> {
    const TOP_BITS: u64 = 0x8080_8080_8080_8080;
    let ends = !word & TOP_BITS;
    if ends == 0 {
        return None;
    }
    let len = ends.trailing_zeros() as usize / 8 + 1;
    // Keep the bytes of this varint, and clear the top bit of each byte.
    let bits = word & (ends ^ (ends - 1)) & !TOP_BITS;
    // Merge groups of 7 bits into 14, then 28, then 56.
    let bits = (bits & 0x007f_007f_007f_007f) | (bits & 0x7f00_7f00_7f00_7f00) >> 1;
    let bits = (bits & 0x0000_3fff_0000_3fff) | (bits & 0x3fff_0000_3fff_0000) >> 2;
    let bits = (bits & 0x0000_0000_0fff_ffff) | (bits & 0x0fff_ffff_0000_0000) >> 4;
    // If the last byte is 0, a shorter form exists.
    if len > 1 && bits >> (7 * (len - 1)) == 0 {
        return None;
    }
    Some((bits, len))
}

/// Reads consecutive values from untrusted bytes.
///
/// The parameter `what` of the methods names the value in errors.
#[derive(Clone, Copy, Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    /// Creates a decoder at the start of `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { bytes, at: 0 }
    }

    /// Creates a decoder at offset `at`. If the offset exceeds the length, all reads fail.
    #[inline]
    pub const fn with_offset(bytes: &'a [u8], at: usize) -> Decoder<'a> {
        Decoder { bytes, at }
    }

    /// Returns the offset of the next value.
    #[inline]
    pub const fn offset(&self) -> usize {
        self.at
    }

    /// Returns the number of unread bytes.
    #[inline]
    pub const fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// Returns whether all bytes were read.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// Reads `len` bytes.
    ///
    /// # Errors
    /// Fails if fewer bytes are left.
    #[inline]
    pub fn take_bytes(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], Malformed> {
        let taken = self.at.checked_add(len).and_then(|end| self.bytes.get(self.at..end));
        let Some(taken) = taken else {
            return Err(self.truncated_error(what, len));
        };
        self.at += len;
        Ok(taken)
    }

    #[cold]
    fn truncated_error(&self, what: &'static str, needed: usize) -> Malformed {
        if failpoint::is_on(Failpoint::LengthTrusted) {
            std::hint::black_box(&self.bytes[self.at..self.at + needed]);
        }
        Malformed::Truncated { what, needed: len_u64(needed), found: len_u64(self.remaining()) }
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// Fails if no byte is left.
    #[inline]
    pub fn u8(&mut self, what: &'static str) -> Result<u8, Malformed> {
        let Some(&byte) = self.bytes.get(self.at) else {
            return Err(self.truncated_error(what, 1));
        };
        self.at += 1;
        Ok(byte)
    }

    /// Reads a little-endian `u32`.
    ///
    /// # Errors
    /// Fails if fewer than four bytes are left.
    #[inline]
    pub fn u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        let Some(value) = get_u32(self.bytes, self.at) else {
            return Err(self.truncated_error(what, size_of::<u32>()));
        };
        self.at += size_of::<u32>();
        Ok(value)
    }

    /// Reads a little-endian `u64`.
    ///
    /// # Errors
    /// Fails if fewer than eight bytes are left.
    #[inline]
    pub fn u64(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let Some(value) = get_u64(self.bytes, self.at) else {
            return Err(self.truncated_error(what, size_of::<u64>()));
        };
        self.at += size_of::<u64>();
        Ok(value)
    }

    /// Reads a varint. Only the shortest form is valid, so that equal values have equal bytes.
    ///
    /// # Errors
    /// Fails if the varint is truncated, not in its shortest form, or exceeds 64 bits.
    #[inline]
    pub fn varint(&mut self, what: &'static str) -> Result<u64, Malformed> {
        // Fast path for varints of one to three bytes, the usual lengths in blocks. A varint whose last byte is
        // 0 has a shorter form, so `decode_long_varint` rejects it.
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
            _ => self.decode_long_varint(what),
        }
    }

    fn decode_long_varint(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for index in 0..VARINT_BYTES_MAX {
            let byte = self.u8(what)?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte holds one bit. A last byte of 0 is not the shortest form.
            let is_last = byte < 0x80;
            if (index == VARINT_BYTES_MAX - 1 && byte > 1) || (is_last && byte == 0 && index > 0) {
                break;
            }
            value |= bits << (7 * index);
            if is_last {
                return Ok(value);
            }
        }
        Err(Malformed::Field { what, found: value, expected: "a varint in its shortest form" })
    }

    /// Reads a varint as a length.
    ///
    /// # Errors
    /// Fails in the same cases as [`Decoder::varint`] and [`to_usize`].
    #[inline]
    pub fn length(&mut self, what: &'static str) -> Result<usize, Malformed> {
        to_usize(what, self.varint(what)?)
    }

    /// Reads bytes that [`put_bytes`] has written.
    ///
    /// # Errors
    /// Fails if the length is invalid or fewer bytes are left.
    #[inline]
    pub fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], Malformed> {
        let len = self.length(what)?;
        self.take_bytes(what, len)
    }

    /// Checks that all bytes were read.
    ///
    /// # Errors
    /// Fails if unread bytes are left.
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
    fn varint_in_word_equals_decoded_varint() {
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
                assert_eq!(decode_varint_word(word), (len <= 8).then_some((value, len)), "{value}");
                bytes.truncate(len);
            }
            // Not the shortest form: append a group of seven zero bits.
            if len < 8 {
                bytes[len - 1] |= 0x80;
                bytes.resize(16, 0);
                assert_eq!(decode_varint_word(get_u64(&bytes, 0).unwrap()), None, "{value}");
            }
        }
    }

    #[test]
    fn varint_round_trip_has_expected_length() {
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
    fn varint_every_truncation_is_an_error() {
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
    fn varint_overlong_form_is_an_error() {
        for bytes in [&[0x80, 0x00][..], &[0xff, 0x80, 0x00], &[0xff; 11], &[0x80; 10]] {
            assert!(Decoder::new(bytes).varint("v").is_err(), "{bytes:x?}");
        }
        let over_64_bits = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert!(Decoder::new(&over_64_bits).varint("v").is_err());
    }

    #[test]
    fn fixed_integers_round_trip_and_stop_at_end() {
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
        assert!(Decoder::with_offset(&bytes, usize::MAX).take_bytes("e", 1).is_err());
    }
}

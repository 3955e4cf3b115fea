//! File header: the first bytes of logs, manifests, blob files and workload traces. Numbers are little-endian.
//!
//! ```text
//!  0   8  magic           identifies the kind of file
//!  8   4  format version  u32
//! 12   4  word            u32, meaning depends on the kind of file
//! 16  8n  fields          u64 each, number and meaning depend on the kind of file
//!  +   8  checksum        u64, XXH3-64 over all bytes before it, with a seed that the kind of file determines
//! ```

use crate::checksum::xxh3_seeded;
use crate::coding::{Decoder, len_u64};
use crate::malformed::Malformed;

const FIELDS_AT: usize = 16;

/// Returns the size of a header with this number of fields, in bytes.
#[must_use]
pub const fn file_header_bytes(fields: usize) -> usize {
    FIELDS_AT + (fields + 1) * size_of::<u64>()
}

/// Format of the header of one kind of file: magic number, newest format version, and checksum seed.
#[derive(Clone, Copy, Debug)]
pub struct FileHeaderFormat {
    name: &'static str,
    magic: [u8; 8],
    version: u32,
    checksum_seed: u64,
}

impl FileHeaderFormat {
    /// Returns the format of headers that begin with `magic`. `name` appears in errors.
    #[must_use]
    pub const fn new(name: &'static str, magic: [u8; 8], version: u32) -> FileHeaderFormat {
        FileHeaderFormat { name, magic, version, checksum_seed: 0 }
    }

    /// Sets the seed of the checksum. Default: 0.
    #[must_use]
    pub const fn with_checksum_seed(self, checksum_seed: u64) -> FileHeaderFormat {
        FileHeaderFormat { checksum_seed, ..self }
    }

    /// Encodes a header of the newest version.
    #[must_use]
    pub fn encode<const FIELDS: usize, const BYTES: usize>(
        &self,
        word: u32,
        fields: [u64; FIELDS],
    ) -> [u8; BYTES] {
        const { assert!(BYTES == file_header_bytes(FIELDS), "the size follows from the fields") };
        let mut out = [0; BYTES];
        let (covered, checksum) = out.split_at_mut(BYTES - size_of::<u64>());
        covered[..8].copy_from_slice(&self.magic);
        covered[8..12].copy_from_slice(&self.version.to_le_bytes());
        covered[12..FIELDS_AT].copy_from_slice(&word.to_le_bytes());
        for (bytes, field) in covered[FIELDS_AT..].chunks_exact_mut(size_of::<u64>()).zip(fields) {
            bytes.copy_from_slice(&field.to_le_bytes());
        }
        checksum.copy_from_slice(&xxh3_seeded(covered, self.checksum_seed).to_le_bytes());
        out
    }

    /// Decodes a header at the start of `bytes`. Returns the `word` and the `fields` that
    /// [`encode`](Self::encode) received.
    ///
    /// # Errors
    /// Fails if there are too few bytes, or if the magic number, version or checksum is wrong. A wrong magic number and
    /// a newer version are reported before a wrong checksum.
    pub fn decode<const FIELDS: usize>(
        &self,
        bytes: &[u8],
    ) -> Result<(u32, [u64; FIELDS]), Malformed> {
        let needed = file_header_bytes(FIELDS);
        let Some(bytes) = bytes.get(..needed) else {
            let (what, found) = (self.name, len_u64(bytes.len()));
            return Err(Malformed::Truncated { what, needed: len_u64(needed), found });
        };
        let mut decoder = Decoder::new(bytes);
        let magic = decoder.u64("magic number")?;
        if magic.to_le_bytes() != self.magic {
            let expected = u64::from_le_bytes(self.magic);
            return Err(Malformed::Magic { expected, found: magic });
        }
        let version = decoder.u32("format version")?;
        if version > self.version {
            return Err(Malformed::Version { found: version, supported: self.version });
        }
        let word = decoder.u32("header word")?;
        let mut fields = [0; FIELDS];
        for field in &mut fields {
            *field = decoder.u64("header field")?;
        }
        let found = decoder.u64("header checksum")?;
        let expected = xxh3_seeded(&bytes[..needed - size_of::<u64>()], self.checksum_seed);
        if found != expected {
            return Err(Malformed::Checksum { expected, found });
        }
        if version == 0 {
            let (what, expected) = ("format version", "1 or more");
            return Err(Malformed::Field { what, found: 0, expected });
        }
        Ok((word, fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: FileHeaderFormat = FileHeaderFormat::new("test header", *b"LSMXTEST", 1);

    #[test]
    fn file_header_encoded_round_trips() {
        let bytes: [u8; 48] = FORMAT.encode(7, [1, u64::MAX, 3]);
        assert_eq!(FORMAT.decode(&bytes), Ok((7, [1, u64::MAX, 3])));
        assert_eq!(FORMAT.decode(&[&bytes[..], b"records"].concat()), Ok((7, [1, u64::MAX, 3])));
    }

    #[test]
    fn file_header_truncated_or_flipped_bit_is_error() {
        let good: [u8; 40] = FORMAT.encode(7, [1, 2]);
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(FORMAT.decode::<2>(&bad).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            let cut = FORMAT.decode::<2>(&good[..length]);
            assert!(matches!(cut, Err(Malformed::Truncated { needed: 40, .. })), "{length}");
        }
    }

    #[test]
    fn file_header_foreign_or_newer_file_has_its_own_error() {
        let foreign = FileHeaderFormat::new("test header", *b"LSMXELSE", 1);
        let newer = FileHeaderFormat::new("test header", *b"LSMXTEST", 2);
        let bytes: [u8; 40] = newer.encode(0, [1, 2]);
        assert!(matches!(foreign.decode::<2>(&bytes), Err(Malformed::Magic { .. })));
        let error = Malformed::Version { found: 2, supported: 1 };
        assert_eq!(FORMAT.decode::<2>(&bytes), Err(error));
    }
}

//! Header of a manifest and the line in `CURRENT` that points to it.
//! ```text
//!  0  8  magic
//!  8  4  format version   u32
//! 12  4  reserved         u32, 0
//! 16  8  database uid     u64
//! 24  8  manifest number  u64, the number in the file's name
//! 32  8  checksum         u64, over bytes 0..32
//! ```
//! Integers are little-endian. `CURRENT` is one line of text, for people who look:
//! ```text
//! lsmx 1 MANIFEST-000002 uid 00c0ffee00c0ffee bytes 00000000000001a4 sum 0123456789abcdef
//! ```
//! format version, manifest, database uid, bytes of the manifest that were synced when the line was
//! written, and the checksum of all before ` sum`, the last three as 16 hexadecimal digits.

use lsmx_base::checksum::xxh3;
use lsmx_base::coding::len_u64;
use lsmx_base::malformed::Malformed;

use crate::format::FORMAT_VERSION;
use crate::format::filename::FileName;
use crate::format::frame::{u32_at, u64_at};

/// Bytes of a manifest before its first record.
pub const MANIFEST_HEADER_BYTES: usize = 40;
/// `LSMXMAN1` read as a little-endian number.
pub const MANIFEST_MAGIC: u64 = u64::from_le_bytes(*b"LSMXMAN1");
const CHECKSUM_AT: usize = MANIFEST_HEADER_BYTES - size_of::<u64>();
const _: () = assert!(CHECKSUM_AT == 32, "the picture above says 32");

/// More bytes than a `CURRENT` ever has.
pub const CURRENT_BYTES_MAX: usize = 256;

/// Header of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestHeader {
    /// Random number of the database.
    pub db_uid: u64,
    /// Number of the manifest's file.
    pub number: u64,
}

impl ManifestHeader {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; MANIFEST_HEADER_BYTES] {
        let mut out = [0; MANIFEST_HEADER_BYTES];
        out[..8].copy_from_slice(&MANIFEST_MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.db_uid.to_le_bytes());
        out[24..32].copy_from_slice(&self.number.to_le_bytes());
        let sum = xxh3(&out[..CHECKSUM_AT]);
        out[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a header from the first bytes of a manifest.
    ///
    /// # Errors
    /// What is wrong: too short, wrong magic number, newer version, wrong checksum, wrong field.
    pub fn decode(bytes: &[u8]) -> Result<ManifestHeader, Malformed> {
        let Some(bytes) = bytes.first_chunk::<MANIFEST_HEADER_BYTES>() else {
            return Err(Malformed::Truncated {
                what: "manifest header",
                needed: len_u64(MANIFEST_HEADER_BYTES),
                found: len_u64(bytes.len()),
            });
        };
        if u64_at(bytes, 0) != MANIFEST_MAGIC {
            return Err(Malformed::Magic { expected: MANIFEST_MAGIC, found: u64_at(bytes, 0) });
        }
        check_version(u32_at(bytes, 8))?;
        let (expected, found) = (xxh3(&bytes[..CHECKSUM_AT]), u64_at(bytes, CHECKSUM_AT));
        if found != expected {
            return Err(Malformed::Checksum { expected, found });
        }
        if u32_at(bytes, 12) != 0 {
            return Err(Malformed::Field {
                what: "reserved bytes of a manifest header",
                found: u64::from(u32_at(bytes, 12)),
                expected: "0",
            });
        }
        Ok(ManifestHeader { db_uid: u64_at(bytes, 16), number: u64_at(bytes, 24) })
    }
}

fn check_version(version: u32) -> Result<(), Malformed> {
    match version {
        0 => Err(Malformed::Field { what: "format version", found: 0, expected: "1 or more" }),
        1..=FORMAT_VERSION => Ok(()),
        found => Err(Malformed::Version { found, supported: FORMAT_VERSION }),
    }
}

/// What `CURRENT` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    /// Number of the manifest in use.
    pub manifest: u64,
    /// Random number of the database.
    pub db_uid: u64,
    /// Bytes of the manifest that were on stable storage when this was written.
    pub bytes: u64,
}

impl Current {
    /// The line.
    #[must_use]
    pub fn encode(&self) -> String {
        let Current { manifest, db_uid, bytes } = *self;
        let name = FileName::Manifest(manifest);
        let line = format!("lsmx {FORMAT_VERSION} {name} uid {db_uid:016x} bytes {bytes:016x}");
        format!("{line} sum {:016x}\n", xxh3(line.as_bytes()))
    }

    /// Reads the line; anything but what [`Current::encode`] writes is refused.
    ///
    /// # Errors
    /// A newer version, or what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Current, Malformed> {
        let refused = Malformed::Field {
            what: "length of the pointer to the manifest",
            found: len_u64(bytes.len()),
            expected: "one line: lsmx VERSION MANIFEST-NUMBER uid HEX bytes HEX sum HEX",
        };
        let text = std::str::from_utf8(bytes).map_err(|_| refused.clone())?;
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let ["lsmx", version, manifest, "uid", db_uid, "bytes", length, "sum", sum] = words[..]
        else {
            return Err(refused);
        };
        let hex = |digits| u64::from_str_radix(digits, 16).map_err(|_| refused.clone());
        check_version(version.parse().map_err(|_| refused.clone())?)?;
        let Some(FileName::Manifest(manifest)) = FileName::parse(manifest) else {
            return Err(refused);
        };
        let current = Current { manifest, db_uid: hex(db_uid)?, bytes: hex(length)? };
        if current.encode().as_bytes() == bytes {
            return Ok(current);
        }
        let expected = text.split(" sum").next().map_or(0, |line| xxh3(line.as_bytes()));
        Err(Malformed::Checksum { expected, found: hex(sum)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CURRENT: Current = Current { manifest: 2, db_uid: 0xc0ffee, bytes: 420 };

    #[test]
    fn header_and_pointer_come_back() {
        let header = ManifestHeader { db_uid: 7, number: 2 };
        assert_eq!(ManifestHeader::decode(&header.encode()), Ok(header));
        assert_eq!(Current::decode(CURRENT.encode().as_bytes()), Ok(CURRENT));
        assert!(CURRENT.encode().len() < CURRENT_BYTES_MAX);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let header = ManifestHeader { db_uid: 7, number: 2 }.encode();
        for bit in 0..header.len() * 8 {
            let mut bad = header;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ManifestHeader::decode(&bad).is_err(), "bit {bit}");
        }
        let current = CURRENT.encode().into_bytes();
        for bit in 0..current.len() * 8 {
            let mut bad = current.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Current::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_truncation_is_noticed() {
        let header = ManifestHeader { db_uid: 7, number: 2 }.encode();
        for length in 0..header.len() {
            assert!(ManifestHeader::decode(&header[..length]).is_err(), "{length}");
        }
        let current = CURRENT.encode();
        for length in 0..current.len() {
            assert!(Current::decode(&current.as_bytes()[..length]).is_err(), "{length}");
        }
    }
}

//! Header of a manifest, and the file `CURRENT`, which names the current manifest.
//!
//! ```text
//!  0  8  magic            "LSMXMAN1"
//!  8  4  format version   u32
//! 12  4  reserved         u32, 0
//! 16  8  database uid     u64
//! 24  8  manifest number  u64, the number in the file's name
//! 32  8  checksum         u64, over bytes 0..32
//! ```
//!
//! Integers are little-endian. `file_header` describes the common part of all file headers. `CURRENT` is one line of
//! text:
//!
//! ```text
//! lsmx 2 MANIFEST-000002 uid 00c0ffee00c0ffee bytes 00000000000001a4 sum 0123456789abcdef
//! ```
//!
//! The line contains the format version, the file name of the manifest, the uid of the database, the number of synced
//! bytes of the manifest, and a checksum. The checksum covers the text before ` sum`. The last three fields have 16
//! hexadecimal digits each.

use lsmx_base::checksum::xxh3;
use lsmx_base::coding::len_u64;
use lsmx_base::file_header::FileHeaderFormat;
use lsmx_base::file_name::FileName;
use lsmx_base::malformed::Malformed;

use crate::format::FORMAT_VERSION;

/// Size of the header of a manifest in bytes. The first record follows the header.
pub const MANIFEST_HEADER_BYTES: usize = 40;
const HEADER: FileHeaderFormat =
    FileHeaderFormat::new("manifest header", *b"LSMXMAN1", FORMAT_VERSION);

/// Upper bound of the size of `CURRENT` in bytes.
pub const CURRENT_BYTES_MAX: usize = 256;

/// Header of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestHeader {
    /// Random uid of the database.
    pub db_uid: u64,
    /// Number of the manifest, which is also in its file name.
    pub number: u64,
}

impl ManifestHeader {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; MANIFEST_HEADER_BYTES] {
        HEADER.encode(0, [self.db_uid, self.number])
    }

    /// Decodes the header from the first bytes of a manifest.
    ///
    /// # Errors
    /// Fails if the header is invalid, or if this build does not support its format version.
    pub fn decode(bytes: &[u8]) -> Result<ManifestHeader, Malformed> {
        let (reserved, [db_uid, number]) = HEADER.decode(bytes)?;
        if reserved != 0 {
            return Err(Malformed::invalid_field(
                "reserved bytes of a manifest header",
                u64::from(reserved),
                "0",
            ));
        }
        Ok(ManifestHeader { db_uid, number })
    }
}

fn check_current_version(version: u32) -> Result<(), Malformed> {
    match version {
        0 => Err(Malformed::invalid_field("format version", 0, "1 or more")),
        1..=FORMAT_VERSION => Ok(()),
        found => Err(Malformed::Version { found, supported: FORMAT_VERSION }),
    }
}

/// Contents of `CURRENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentFile {
    /// Number of the current manifest.
    pub manifest: u64,
    /// Random uid of the database.
    pub db_uid: u64,
    /// Number of bytes of the manifest that were synced when `CURRENT` was written.
    pub bytes: u64,
}

impl CurrentFile {
    /// Returns the line in the current format version.
    #[must_use]
    pub fn encode(&self) -> String {
        self.encode_version(FORMAT_VERSION)
    }

    fn encode_version(&self, version: u32) -> String {
        let CurrentFile { manifest, db_uid, bytes } = *self;
        let name = FileName::Manifest(manifest);
        let line = format!("lsmx {version} {name} uid {db_uid:016x} bytes {bytes:016x}");
        format!("{line} sum {:016x}\n", xxh3(line.as_bytes()))
    }

    /// Parses the line. The line must be exactly as [`CurrentFile::encode`] of this format version or an earlier one
    /// writes it.
    ///
    /// # Errors
    /// Fails if the line is malformed, if its checksum is wrong, or if its format version is newer than
    /// [`FORMAT_VERSION`].
    pub fn decode(bytes: &[u8]) -> Result<CurrentFile, Malformed> {
        let syntax_error = Malformed::invalid_field(
            "length of the pointer to the manifest",
            len_u64(bytes.len()),
            "one line: lsmx VERSION MANIFEST-NUMBER uid HEX bytes HEX sum HEX",
        );
        let text = std::str::from_utf8(bytes).map_err(|_| syntax_error.clone())?;
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let ["lsmx", version, manifest, "uid", db_uid, "bytes", length, "sum", sum] = words[..]
        else {
            return Err(syntax_error);
        };
        let hex = |digits| u64::from_str_radix(digits, 16).map_err(|_| syntax_error.clone());
        let version = version.parse().map_err(|_| syntax_error.clone())?;
        check_current_version(version)?;
        let Some(FileName::Manifest(manifest)) = FileName::parse(manifest) else {
            return Err(syntax_error);
        };
        let current = CurrentFile { manifest, db_uid: hex(db_uid)?, bytes: hex(length)? };
        if current.encode_version(version).as_bytes() == bytes {
            return Ok(current);
        }
        let expected = text.split(" sum").next().map_or(0, |line| xxh3(line.as_bytes()));
        Err(Malformed::Checksum { expected, found: hex(sum)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::assert_damage_is_detected;

    const CURRENT: CurrentFile = CurrentFile { manifest: 2, db_uid: 0xc0ffee, bytes: 420 };

    #[test]
    fn manifest_header_and_current_file_round_trip() {
        let header = ManifestHeader { db_uid: 7, number: 2 };
        assert_eq!(ManifestHeader::decode(&header.encode()), Ok(header));
        assert_eq!(CurrentFile::decode(CURRENT.encode().as_bytes()), Ok(CURRENT));
        assert!(CURRENT.encode().len() < CURRENT_BYTES_MAX);
    }

    #[test]
    fn manifest_header_and_current_file_damaged_is_error() {
        let header = ManifestHeader { db_uid: 7, number: 2 }.encode();
        assert_damage_is_detected(&header, |bytes| ManifestHeader::decode(bytes).is_ok());
        let current = CURRENT.encode();
        assert_damage_is_detected(current.as_bytes(), |bytes| CurrentFile::decode(bytes).is_ok());
    }
}

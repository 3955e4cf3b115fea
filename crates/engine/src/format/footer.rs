//! Table footer: the last 40 bytes of a table file, little-endian.
//!
//! ```text
//!  0  16  properties handle  u64 offset, u64 size in bytes
//! 16   8  table uid          u64, seeds every checksum of the file
//! 24   4  format version     u32
//! 28   4  checksum           u32, lower half of XXH3-64 over bytes 0..28
//! 32   8  magic              "lsmxtabl"
//! ```

use lsmx_base::checksum::xxh3;
use lsmx_base::coding::{Decoder, len_u64, low_u32, put_u32, put_u64};
use lsmx_base::malformed::Malformed;

use super::FORMAT_VERSION;
use super::block::BlockHandle;

/// Magic number: the last bytes of every table file.
pub const MAGIC: [u8; 8] = *b"lsmxtabl";

const HANDLE_BYTES: usize = 2 * size_of::<u64>();

/// Size of a footer in bytes.
pub const FOOTER_BYTES: usize =
    HANDLE_BYTES + size_of::<u64>() + 2 * size_of::<u32>() + MAGIC.len();
const _: () = assert!(FOOTER_BYTES == 40, "the diagram above says 40");

const CHECKSUM_AT: usize = 28;

/// Footer of a table: location of the properties and identity of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Location of the properties block.
    pub properties: BlockHandle,
    /// Random uid of the table.
    pub uid: u64,
    /// Format version of the file.
    pub version: u32,
}

impl Footer {
    /// Encodes the footer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FOOTER_BYTES);
        put_u64(&mut out, self.properties.offset);
        put_u64(&mut out, self.properties.bytes);
        put_u64(&mut out, self.uid);
        put_u32(&mut out, self.version);
        let sum = low_u32(xxh3(&out));
        put_u32(&mut out, sum);
        out.extend_from_slice(&MAGIC);
        out
    }

    /// Decodes a footer from the last [`FOOTER_BYTES`] bytes of a table file.
    ///
    /// # Errors
    /// Fails if the footer is invalid, or if this build does not support its format version.
    pub fn decode(bytes: &[u8]) -> Result<Footer, Malformed> {
        if bytes.len() != FOOTER_BYTES {
            return Err(Malformed::Truncated {
                what: "table footer",
                needed: len_u64(FOOTER_BYTES),
                found: len_u64(bytes.len()),
            });
        }
        let mut decoder = Decoder::new(bytes);
        let properties = BlockHandle {
            offset: decoder.u64("properties offset")?,
            bytes: decoder.u64("properties size")?,
        };
        let uid = decoder.u64("table uid")?;
        let version = decoder.u32("format version")?;
        let found = decoder.u32("footer checksum")?;
        let magic = decoder.u64("magic number")?;
        // The magic number is checked before the checksum. A file that is not a table therefore causes a different
        // error than a corrupt table.
        if magic.to_le_bytes() != MAGIC {
            return Err(Malformed::Magic { expected: u64::from_le_bytes(MAGIC), found: magic });
        }
        let expected = low_u32(xxh3(&bytes[..CHECKSUM_AT]));
        if found != expected {
            return Err(Malformed::Checksum {
                expected: u64::from(expected),
                found: u64::from(found),
            });
        }
        if version == 0 || version > FORMAT_VERSION {
            return Err(Malformed::Version { found: version, supported: FORMAT_VERSION });
        }
        Ok(Footer { properties, uid, version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::assert_damage_is_detected;

    const FOOTER: Footer =
        Footer { properties: BlockHandle { offset: 77, bytes: 99 }, uid: 0xfeed, version: 1 };

    #[test]
    fn footer_round_trips() {
        let bytes = FOOTER.encode();
        assert_eq!(bytes.len(), FOOTER_BYTES);
        assert_eq!(Footer::decode(&bytes).unwrap(), FOOTER);
    }

    #[test]
    fn footer_damaged_is_error() {
        assert_damage_is_detected(&FOOTER.encode(), |bytes| Footer::decode(bytes).is_ok());
    }

    #[test]
    fn footer_newer_version_is_error() {
        let newer = Footer { version: FORMAT_VERSION + 1, ..FOOTER }.encode();
        let expected = Malformed::Version { found: FORMAT_VERSION + 1, supported: FORMAT_VERSION };
        assert_eq!(Footer::decode(&newer), Err(expected));
    }
}

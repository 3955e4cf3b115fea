//! File header of logs and bucket files, little-endian.
//!
//! ```text
//!  0  8  magic     "LSMXDLOG" or "LSMXDBKT"
//!  8  4  version   u32, 1
//! 12  4  zero
//! 16  8  uid       u64, random; seeds the checksums of the file
//! 24  8  checksum  u64, XXH3-64 of bytes 0..24
//! ```

use lsmx_base::checksum::xxh3_at_file_location;
use lsmx_base::coding::Decoder;
use lsmx_base::malformed::Malformed;

use super::field_error;

/// Size of a header, in bytes.
pub const HEADER_BYTES: usize = 32;
/// Format version of new files, and the only one that is read.
pub const VERSION: u32 = 1;
/// Magic number of a log.
pub const LOG_MAGIC: u64 = u64::from_le_bytes(*b"LSMXDLOG");
/// Magic number of a bucket file.
pub const BUCKET_MAGIC: u64 = u64::from_le_bytes(*b"LSMXDBKT");

/// Encodes a header.
pub fn encode_header(magic: u64, uid: u64) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(&magic.to_le_bytes());
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[16..24].copy_from_slice(&uid.to_le_bytes());
    let checksum = xxh3_at_file_location(&out[..24], 0, 0);
    out[24..].copy_from_slice(&checksum.to_le_bytes());
    out
}

/// Checks a header and returns the file's uid.
pub fn decode_header(bytes: &[u8], magic: u64) -> Result<u64, Malformed> {
    let mut decoder = Decoder::new(bytes);
    let found = decoder.u64("magic number")?;
    if found != magic {
        return Err(Malformed::Magic { expected: magic, found });
    }
    let version = decoder.u32("format version")?;
    let zero = decoder.u32("reserved bytes")?;
    let uid = decoder.u64("file uid")?;
    let found = decoder.u64("header checksum")?;
    let expected = xxh3_at_file_location(&bytes[..24], 0, 0);
    if found != expected {
        return Err(Malformed::Checksum { expected, found });
    }
    if version != VERSION {
        return Err(Malformed::Version { found: version, supported: VERSION });
    }
    if zero != 0 {
        return Err(field_error("reserved bytes", u64::from(zero), "0"));
    }
    Ok(uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::assert_damage_is_rejected;

    #[test]
    fn header_round_trips_and_damage_is_rejected() {
        let bytes = encode_header(LOG_MAGIC, 77);
        assert_eq!(decode_header(&bytes, LOG_MAGIC).unwrap(), 77);
        assert!(decode_header(&bytes, BUCKET_MAGIC).is_err());
        assert_damage_is_rejected(&bytes, |bytes| decode_header(bytes, LOG_MAGIC).is_ok());
    }
}

//! How both kinds of files begin, little-endian.
//!
//! ```text
//!  0  8  magic     "LSMXDLOG" or "LSMXDBKT"
//!  8  4  version   u32, 1
//! 12  4  zero
//! 16  8  uid       u64, random; seeds the checksums of the file
//! 24  8  checksum  u64, XXH3-64 of bytes 0..24
//! ```

use lsmx::Malformed;
use lsmx_base::checksum::xxh3_at;
use lsmx_base::coding::Decoder;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 32;
/// The only version there is.
pub(crate) const VERSION: u32 = 1;
/// First bytes of a log.
pub(crate) const LOG_MAGIC: u64 = u64::from_le_bytes(*b"LSMXDLOG");
/// First bytes of a bucket file.
pub(crate) const BUCKET_MAGIC: u64 = u64::from_le_bytes(*b"LSMXDBKT");

/// The first bytes of a file.
pub(crate) fn encode(magic: u64, uid: u64) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(&magic.to_le_bytes());
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[16..24].copy_from_slice(&uid.to_le_bytes());
    let checksum = xxh3_at(&out[..24], 0, 0);
    out[24..].copy_from_slice(&checksum.to_le_bytes());
    out
}

/// The uid of the file that begins so.
pub(crate) fn decode(bytes: &[u8], magic: u64) -> Result<u64, Malformed> {
    let mut decoder = Decoder::new(bytes);
    let found = decoder.u64("magic number")?;
    if found != magic {
        return Err(Malformed::Magic { expected: magic, found });
    }
    let version = decoder.u32("format version")?;
    let zero = decoder.u32("reserved bytes")?;
    let uid = decoder.u64("file uid")?;
    let found = decoder.u64("header checksum")?;
    let expected = xxh3_at(&bytes[..24], 0, 0);
    if found != expected {
        return Err(Malformed::Checksum { expected, found });
    }
    if version != VERSION {
        return Err(Malformed::Version { found: version, supported: VERSION });
    }
    if zero != 0 {
        let found = u64::from(zero);
        return Err(Malformed::Field { what: "reserved bytes", found, expected: "0" });
    }
    Ok(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_no_changed_or_cut_one_does() {
        let bytes = encode(LOG_MAGIC, 77);
        assert_eq!(decode(&bytes, LOG_MAGIC).unwrap(), 77);
        assert!(decode(&bytes, BUCKET_MAGIC).is_err());
        for at in 0..HEADER_BYTES {
            assert!(decode(&bytes[..at], LOG_MAGIC).is_err());
            for bit in 0..8 {
                let mut bytes = bytes;
                bytes[at] ^= 1 << bit;
                assert!(decode(&bytes, LOG_MAGIC).is_err());
            }
        }
    }
}

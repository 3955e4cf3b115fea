//! File header of logs and bucket files. It uses the format of `lsmx_base::file_header`, with a zero word and one
//! field, the uid of the file.
//!
//! The uid is a random number. It seeds the checksums of all frames of the file.

use lsmx_base::checksum::file_location_seed;
use lsmx_base::file_header::{FileHeaderFormat, file_header_bytes};
use lsmx_base::malformed::Malformed;

use super::invalid_field;

/// Size of a header, in bytes.
pub const HEADER_BYTES: usize = file_header_bytes(1);
/// Format version of new files. Readers accept only this version.
pub const VERSION: u32 = 1;
/// Header of a log.
pub const LOG_HEADER: FileHeaderFormat = header_format(*b"LSMXDLOG");
/// Header of a bucket file.
pub const BUCKET_HEADER: FileHeaderFormat = header_format(*b"LSMXDBKT");

const fn header_format(magic: [u8; 8]) -> FileHeaderFormat {
    FileHeaderFormat::new("file header", magic, VERSION)
        .with_checksum_seed(file_location_seed(0, 0))
}

pub fn encode_header(format: FileHeaderFormat, uid: u64) -> [u8; HEADER_BYTES] {
    format.encode(0, [uid])
}

/// Decodes a header. Returns the uid of the file.
pub fn decode_header(bytes: &[u8], format: FileHeaderFormat) -> Result<u64, Malformed> {
    match format.decode(bytes)? {
        (0, [uid]) => Ok(uid),
        (word, _) => Err(invalid_field("reserved bytes", u64::from(word), "0")),
    }
}

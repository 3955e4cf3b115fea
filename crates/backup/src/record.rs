//! Records of a repository: JSON with a checksum.
//!
//! A record is one line of JSON and one line with the XXH3-64 of the first line in hexadecimal. The first field of the JSON
//! object is the format version.

use lsmx_base::checksum::xxh3;
use object_store::path::Path;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Format version of all records.
pub(crate) const FORMAT: u32 = 1;

#[derive(Serialize)]
struct Versioned<'a, T> {
    format: u32,
    #[serde(flatten)]
    record: &'a T,
}

#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// Encodes a record.
pub(crate) fn encode<T: Serialize>(object: &Path, record: &T) -> Result<Vec<u8>, Error> {
    let mut bytes = serde_json::to_vec(&Versioned { format: FORMAT, record })
        .map_err(|error| Error::damaged(object, error))?;
    let checksum = xxh3(&bytes);
    bytes.extend(format!("\n{checksum:016x}\n").into_bytes());
    Ok(bytes)
}

/// Returns the size of the record at the start of `bytes`, at most the number of bytes.
pub(crate) fn encoded_bytes(bytes: &[u8]) -> usize {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines.by_ref().take(2).map(<[u8]>::len).sum()
}

/// Checks and decodes the record in an object.
pub(crate) fn decode<T: DeserializeOwned>(object: &Path, bytes: &[u8]) -> Result<T, Error> {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let (json, checksum) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    if format!("{:016x}", xxh3(json)).as_bytes() != checksum {
        return Err(Error::damaged(object, "the checksum differs"));
    }
    let version: Version = parse(object, json)?;
    if version.format != FORMAT {
        let (object, found) = (object.to_string(), version.format);
        return Err(Error::UnsupportedFormat { object, found, supported: FORMAT });
    }
    parse(object, json)
}

fn parse<T: DeserializeOwned>(object: &Path, json: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(json).map_err(|error| Error::damaged(object, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_with_any_changed_byte_is_refused() {
        let object = Path::from("catalog/1");
        let bytes = encode(&object, &serde_json::json!({ "a": 1, "b": "text" })).unwrap();
        let decoded: serde_json::Value = decode(&object, &bytes).unwrap();
        assert_eq!(decoded["b"], "text");
        // The last byte is a line break, which is not part of the record.
        for at in 0..bytes.len() - 1 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(decode::<serde_json::Value>(&object, &damaged).is_err(), "byte {at}");
            assert!(decode::<serde_json::Value>(&object, &bytes[..at]).is_err(), "length {at}");
        }
    }

    #[test]
    fn record_of_newer_format_names_both_versions() {
        let json = br#"{"format":2}"#;
        let bytes = [&json[..], format!("\n{:016x}\n", xxh3(json)).as_bytes()].concat();
        let error = decode::<serde_json::Value>(&Path::from("catalog/7"), &bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the object catalog/7 has format version 2, this build supports 1"
        );
    }
}

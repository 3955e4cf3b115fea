//! Records as lines of text: tab-separated values, or JSON objects.
//!
//! **TSV**: key, tab, value, newline. Key and value contain any bytes, with `\t` `\n` `\r` `\\` for tab, newline,
//! carriage return and backslash.
//!
//! **JSON lines**: `{"key":"…","value":"…"}` for UTF-8. A key or value that is not UTF-8 is hexadecimal and named
//! `key_hex` or `value_hex`.
//!
//! In both formats a carriage return before the newline belongs to the end of the line, and the last newline may be
//! missing.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};

use crate::named::impl_names;

/// Maximum length of a line in bytes. The longest key and value fit in their longest form. A longer line is malformed
/// and not read into memory.
pub const LINE_BYTES_MAX: u64 = 1 << 33;

/// Format of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Key, tab, value.
    #[default]
    Tsv,
    /// One JSON object a line.
    Jsonl,
}

impl_names!(Format, "format");

impl Format {
    /// All formats.
    pub const ALL: [Format; 2] = [Format::Tsv, Format::Jsonl];

    /// Returns the name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Format::Tsv => "tsv",
            Format::Jsonl => "jsonl",
        }
    }

    /// Returns the format that the name of a file suggests: JSON lines for `.jsonl`, `.ndjson` and `.json`, else TSV.
    pub fn of_file(path: &std::path::Path) -> Format {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl" | "ndjson" | "json") => Format::Jsonl,
            _ => Format::Tsv,
        }
    }
}

/// Reason why a line is malformed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// No tab between key and value.
    #[error("there is no tab between key and value")]
    NoTab,
    /// More than one tab.
    #[error("there is a second tab; within a key or value it is written \\t")]
    SecondTab,
    /// A backslash before an unknown character.
    #[error("unknown escape \\{}; known: \\t \\n \\r \\\\", .0.escape_ascii())]
    Escape(u8),
    /// A backslash at the end of a key or value.
    #[error("a backslash stands at the end of a key or value")]
    EscapeAtEnd,
    /// Not a JSON object of a record.
    #[error("not a JSON object of a record")]
    Json(#[from] serde_json::Error),
    /// The object has neither or both of the two names of a key or value.
    #[error("the object needs either {0:?} or \"{0}_hex\"")]
    Part(&'static str),
    /// Not hexadecimal digits in pairs.
    #[error("{0:?} is not hexadecimal")]
    Hex(String),
    /// Not an operation of a trace.
    #[error("{0}")]
    Operation(String),
    /// The line is too long.
    #[error("the line has more than {LINE_BYTES_MAX} bytes")]
    TooLong,
}

/// Reason why a record cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The source fails.
    Io(io::Error),
    /// The line with this number, counted from 1, is malformed.
    Malformed(u64, RecordError),
}

/// Reader of records, line by line.
#[derive(Debug)]
pub struct RecordReader<R> {
    source: R,
    format: Format,
    line: Vec<u8>,
    line_number: u64,
    bytes: u64,
}

impl<R: BufRead> RecordReader<R> {
    /// Creates a reader.
    pub fn new(source: R, format: Format) -> RecordReader<R> {
        RecordReader { source, format, line: Vec::new(), line_number: 0, bytes: 0 }
    }

    /// Returns the number of bytes read from the source.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of lines read.
    pub fn lines(&self) -> u64 {
        self.line_number
    }

    /// Replaces the content of `key` and `value` by the next record. Returns `false` at the end.
    ///
    /// # Errors
    /// The source fails or the line is malformed. The next call reads the next line.
    pub fn read(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool, ReadError> {
        self.line.clear();
        let taken = (&mut self.source)
            .take(LINE_BYTES_MAX + 1)
            .read_until(b'\n', &mut self.line)
            .map_err(ReadError::Io)?;
        if taken == 0 {
            return Ok(false);
        }
        self.line_number += 1;
        self.bytes += crate::numbers::count(taken);
        let malformed = |what| ReadError::Malformed(self.line_number, what);
        if crate::numbers::count(taken) > LINE_BYTES_MAX {
            return Err(malformed(RecordError::TooLong));
        }
        decode(self.format, &self.line, key, value).map_err(malformed)?;
        Ok(true)
    }
}

/// Decodes a line with or without newline. Replaces the content of `key` and `value`.
///
/// # Errors
/// The line is malformed.
pub fn decode(
    format: Format,
    line: &[u8],
    key: &mut Vec<u8>,
    value: &mut Vec<u8>,
) -> Result<(), RecordError> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    key.clear();
    value.clear();
    match format {
        Format::Tsv => {
            let tab = line.iter().position(|byte| *byte == b'\t').ok_or(RecordError::NoTab)?;
            unescape(&line[..tab], key)?;
            unescape(&line[tab + 1..], value)
        }
        Format::Jsonl => {
            let object: JsonRecord<'_> = serde_json::from_slice(line)?;
            part("key", object.key, object.key_hex, key)?;
            part("value", object.value, object.value_hex, value)
        }
    }
}

/// Appends a record as a line with newline.
pub fn encode(format: Format, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    match format {
        Format::Tsv => {
            escape(key, out);
            out.push(b'\t');
            escape(value, out);
        }
        Format::Jsonl => {
            out.push(b'{');
            encode_part("key", key, out);
            out.push(b',');
            encode_part("value", value, out);
            out.push(b'}');
        }
    }
    out.push(b'\n');
}

/// Appends bytes in the escaped form of TSV.
pub fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        match byte {
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\\' => out.extend_from_slice(b"\\\\"),
            byte => out.push(*byte),
        }
    }
}

/// Appends the bytes of the escaped form of TSV.
pub(crate) fn unescape(text: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'\t' => return Err(RecordError::SecondTab),
            b'\\' => match bytes.next() {
                Some(b't') => b'\t',
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b'\\') => b'\\',
                Some(other) => return Err(RecordError::Escape(*other)),
                None => return Err(RecordError::EscapeAtEnd),
            },
            byte => *byte,
        });
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRecord<'a> {
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    key_hex: Option<Cow<'a, str>>,
    #[serde(borrow)]
    value: Option<Cow<'a, str>>,
    #[serde(borrow)]
    value_hex: Option<Cow<'a, str>>,
}

fn part(
    name: &'static str,
    text: Option<Cow<'_, str>>,
    hex: Option<Cow<'_, str>>,
    out: &mut Vec<u8>,
) -> Result<(), RecordError> {
    match (text, hex) {
        (Some(text), None) => out.extend_from_slice(text.as_bytes()),
        (None, Some(hex)) => out.extend_from_slice(&from_hex(&hex)?),
        _ => return Err(RecordError::Part(name)),
    }
    Ok(())
}

fn encode_part(name: &str, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            out.extend_from_slice(b"\":");
            out.extend_from_slice(serde_json::Value::from(text).to_string().as_bytes());
        }
        Err(_) => {
            out.extend_from_slice(b"_hex\":\"");
            out.extend_from_slice(to_hex(bytes).as_bytes());
            out.push(b'"');
        }
    }
}

/// Formats bytes as pairs of hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]))
        .collect()
}

/// Parses pairs of hexadecimal digits.
///
/// # Errors
/// The text contains other characters or half a pair.
pub fn from_hex(text: &str) -> Result<Vec<u8>, RecordError> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2).map(|pair| match *pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    });
    pairs.collect::<Option<Vec<u8>>>().ok_or_else(|| RecordError::Hex(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_records_decode() {
        let all: Vec<u8> = (0..=255).collect();
        for format in Format::ALL {
            let mut text = Vec::new();
            let mut records = vec![(all.clone(), all.clone()), (vec![], vec![])];
            for byte in 0..=255 {
                records.push((vec![byte], vec![b'\\', byte]));
                records.push((vec![b'k', byte], vec![byte, b'n']));
            }
            for (key, value) in &records {
                encode(format, key, value, &mut text);
            }
            assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), records.len());
            let mut reader = RecordReader::new(text.as_slice(), format);
            let (mut key, mut value) = (Vec::new(), Vec::new());
            for record in &records {
                assert!(reader.read(&mut key, &mut value).unwrap());
                assert_eq!((&key, &value), (&record.0, &record.1));
            }
            assert!(!reader.read(&mut key, &mut value).unwrap());
            assert_eq!(reader.bytes(), text.len() as u64);
        }
    }

    #[test]
    fn line_ends_with_newline_carriage_return_or_nothing() {
        for (format, text) in [
            (Format::Tsv, "a\tb\r\nc\td"),
            (Format::Jsonl, "{\"key\":\"a\",\"value\":\"b\"}\r\n{\"value\":\"d\",\"key\":\"c\"}"),
        ] {
            let mut reader = RecordReader::new(text.as_bytes(), format);
            let (mut key, mut value) = (Vec::new(), Vec::new());
            assert!(reader.read(&mut key, &mut value).unwrap());
            assert_eq!((key.as_slice(), value.as_slice()), (&b"a"[..], &b"b"[..]));
            assert!(reader.read(&mut key, &mut value).unwrap());
            assert_eq!((key.as_slice(), value.as_slice()), (&b"c"[..], &b"d"[..]));
            assert!(!reader.read(&mut key, &mut value).unwrap());
        }
    }

    #[test]
    fn malformed_line_error_has_number_and_cause() {
        for (format, line, what) in [
            (Format::Tsv, "no tab", "no tab"),
            (Format::Tsv, "", "no tab"),
            (Format::Tsv, "a\tb\tc", "second tab"),
            (Format::Tsv, "a\\x\tb", "unknown escape \\x"),
            (Format::Tsv, "a\tb\\", "at the end"),
            (Format::Jsonl, "", "not a JSON object"),
            (Format::Jsonl, "[1]", "not a JSON object"),
            (Format::Jsonl, "{\"key\":\"a\"}", "\"value\""),
            (Format::Jsonl, "{\"key\":\"a\",\"key_hex\":\"00\",\"value\":\"\"}", "\"key\""),
            (Format::Jsonl, "{\"key_hex\":\"0\",\"value\":\"\"}", "not hexadecimal"),
            (Format::Jsonl, "{\"key_hex\":\"0g\",\"value\":\"\"}", "not hexadecimal"),
            (Format::Jsonl, "{\"key_hex\":\"é\",\"value\":\"\"}", "not hexadecimal"),
            (Format::Jsonl, "{\"key\":\"a\",\"value\":\"\",\"ttl\":1}", "not a JSON object"),
        ] {
            let good = if format == Format::Tsv { "k\tv" } else { "{\"key\":\"\",\"value\":\"\"}" };
            let text = format!("{good}\n{line}\n{good}\n");
            let mut reader = RecordReader::new(text.as_bytes(), format);
            let (mut key, mut value) = (Vec::new(), Vec::new());
            assert!(reader.read(&mut key, &mut value).unwrap());
            match reader.read(&mut key, &mut value) {
                Err(ReadError::Malformed(2, error)) => {
                    assert!(error.to_string().contains(what), "{line:?}: {error}");
                }
                other => panic!("{line:?}: {other:?}"),
            }
            assert!(reader.read(&mut key, &mut value).unwrap());
        }
    }

    #[test]
    fn hex_parses_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&all)).unwrap(), all);
        assert_eq!(from_hex("FFab").unwrap(), [0xff, 0xab]);
        assert!(from_hex("+f").is_err());
    }

    #[test]
    fn format_follows_from_the_file_name() {
        assert_eq!(Format::of_file("a.jsonl".as_ref()), Format::Jsonl);
        assert_eq!(Format::of_file("a.tsv".as_ref()), Format::Tsv);
        assert_eq!(Format::of_file("jsonl".as_ref()), Format::Tsv);
    }
}

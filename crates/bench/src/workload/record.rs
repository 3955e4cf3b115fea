//! Records as lines of text: tab-separated values, or JSON objects.
//!
//! **TSV**: key, tab, value, newline. Keys and values may contain any bytes. The escapes `\t` `\n` `\r` `\\` stand for
//! tab, newline, carriage return and backslash.
//!
//! **JSON lines**: `{"key":"…","value":"…"}`. A key or value that is not UTF-8 is written as hexadecimal digits in the
//! field `key_hex` or `value_hex`.
//!
//! In both formats a carriage return may precede the newline, and the last line may lack a newline.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};

use crate::enum_names::impl_names;

/// Maximum length of a line in bytes. The encoding of the longest key and value always fits into one line. The record
/// reader rejects a longer line after reading this number of bytes.
pub const LINE_BYTES_MAX: u64 = 1 << 33;

/// Format of the lines of a data file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordFormat {
    #[default]
    Tsv,
    Jsonl,
    /// TSV with hexadecimal digits as keys and values, the format of `lsmx db --hex`. No name or file extension selects it.
    HexTsv,
}

impl_names!(RecordFormat, "format");

impl RecordFormat {
    pub const ALL: [RecordFormat; 2] = [RecordFormat::Tsv, RecordFormat::Jsonl];

    pub fn name(self) -> &'static str {
        match self {
            RecordFormat::Tsv => "tsv",
            RecordFormat::Jsonl => "jsonl",
            RecordFormat::HexTsv => "hexadecimal tsv",
        }
    }

    /// Returns the format that the file extension indicates. Unknown extensions indicate TSV.
    pub fn of_file(path: &std::path::Path) -> RecordFormat {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl" | "ndjson" | "json") => RecordFormat::Jsonl,
            _ => RecordFormat::Tsv,
        }
    }
}

/// Reason why a line is malformed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    #[error("there is no tab between key and value")]
    NoTab,
    #[error("there is a second tab; within a key or value it is written \\t")]
    SecondTab,
    /// The byte after a backslash does not form a known escape.
    #[error("unknown escape \\{}; known: \\t \\n \\r \\\\", .0.escape_ascii())]
    Escape(u8),
    #[error("a backslash stands at the end of a key or value")]
    EscapeAtEnd,
    #[error("not a JSON object of a record")]
    Json(#[from] serde_json::Error),
    /// A JSON object has both or neither of the fields `key` and `key_hex`, or of the fields `value` and `value_hex`.
    #[error("the object needs either {0:?} or \"{0}_hex\"")]
    Part(&'static str),
    #[error("{0:?} is not hexadecimal")]
    Hex(String),
    /// A line of a text trace cannot be parsed as an operation.
    #[error("{0}")]
    Operation(String),
    #[error("the line has more than {LINE_BYTES_MAX} bytes")]
    TooLong,
}

/// Reason why a record cannot be read.
#[derive(Debug)]
pub enum ReadError {
    Io(io::Error),
    /// A line is malformed. Line numbers start at 1.
    Malformed(u64, RecordError),
}

/// Reader of records, line by line.
#[derive(Debug)]
pub struct RecordReader<R> {
    source: R,
    format: RecordFormat,
    line: Vec<u8>,
    line_number: u64,
    bytes: u64,
}

impl<R: BufRead> RecordReader<R> {
    pub fn new(source: R, format: RecordFormat) -> RecordReader<R> {
        RecordReader { source, format, line: Vec::new(), line_number: 0, bytes: 0 }
    }

    /// Returns the number of bytes read from the source.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn lines(&self) -> u64 {
        self.line_number
    }

    /// Reads the next record into `key` and `value`. Returns `false` at the end of the source. After a malformed line,
    /// the next call continues with the following line.
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
        self.bytes += crate::numbers::to_u64(taken);
        let malformed = |what| ReadError::Malformed(self.line_number, what);
        if crate::numbers::to_u64(taken) > LINE_BYTES_MAX {
            return Err(malformed(RecordError::TooLong));
        }
        decode_record(self.format, &self.line, key, value).map_err(malformed)?;
        Ok(true)
    }
}

/// Decodes a line, with or without newline, into `key` and `value`.
pub fn decode_record(
    format: RecordFormat,
    line: &[u8],
    key: &mut Vec<u8>,
    value: &mut Vec<u8>,
) -> Result<(), RecordError> {
    let line = strip_line_end(line);
    key.clear();
    value.clear();
    match format {
        RecordFormat::Tsv | RecordFormat::HexTsv => {
            let tab = line.iter().position(|byte| *byte == b'\t').ok_or(RecordError::NoTab)?;
            unescape_tsv(&line[..tab], key)?;
            unescape_tsv(&line[tab + 1..], value)?;
            if format == RecordFormat::HexTsv {
                for bytes in [key, value] {
                    *bytes = from_hex(&String::from_utf8_lossy(bytes))?;
                }
            }
            Ok(())
        }
        RecordFormat::Jsonl => {
            let object: JsonRecord<'_> = serde_json::from_slice(line)?;
            decode_member("key", object.key, object.key_hex, key)?;
            decode_member("value", object.value, object.value_hex, value)
        }
    }
}

pub(super) fn strip_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Appends the line of a record, including the newline.
pub fn encode_record(format: RecordFormat, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    match format {
        RecordFormat::Tsv => {
            escape_tsv(key, out);
            out.push(b'\t');
            escape_tsv(value, out);
        }
        RecordFormat::HexTsv => {
            out.extend_from_slice(format!("{}\t{}", to_hex(key), to_hex(value)).as_bytes());
        }
        RecordFormat::Jsonl => {
            out.push(b'{');
            encode_member("key", key, out);
            out.push(b',');
            encode_member("value", value, out);
            out.push(b'}');
        }
    }
    out.push(b'\n');
}

/// Appends bytes. Replaces tab, newline, carriage return and backslash by their TSV escapes.
pub fn escape_tsv(bytes: &[u8], out: &mut Vec<u8>) {
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

/// Decodes the TSV escapes of a text, and appends the result to `out`.
pub(crate) fn unescape_tsv(text: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
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
    key_hex: Option<String>,
    #[serde(borrow)]
    value: Option<Cow<'a, str>>,
    value_hex: Option<String>,
}

/// Decodes a key or value of a JSON record, given either as text or as hexadecimal digits. Appends the bytes to `out`.
fn decode_member(
    name: &'static str,
    text: Option<Cow<'_, str>>,
    hex: Option<String>,
    out: &mut Vec<u8>,
) -> Result<(), RecordError> {
    match (text, hex) {
        (Some(text), None) => out.extend_from_slice(text.as_bytes()),
        (None, Some(hex)) => out.extend_from_slice(&from_hex(&hex)?),
        _ => return Err(RecordError::Part(name)),
    }
    Ok(())
}

fn encode_member(name: &str, bytes: &[u8], out: &mut Vec<u8>) {
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

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

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
        for format in [RecordFormat::Tsv, RecordFormat::Jsonl, RecordFormat::HexTsv] {
            let mut text = Vec::new();
            let mut records = vec![(all.clone(), all.clone()), (vec![], vec![])];
            for byte in 0..=255 {
                records.push((vec![byte], vec![b'\\', byte]));
                records.push((vec![b'k', byte], vec![byte, b'n']));
            }
            for (key, value) in &records {
                encode_record(format, key, value, &mut text);
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
            (RecordFormat::Tsv, "a\tb\r\nc\td"),
            (
                RecordFormat::Jsonl,
                "{\"key\":\"a\",\"value\":\"b\"}\r\n{\"value\":\"d\",\"key\":\"c\"}",
            ),
        ] {
            let mut reader = RecordReader::new(text.as_bytes(), format);
            let (mut key, mut value) = (Vec::new(), Vec::new());
            for (expected_key, expected_value) in [(b"a", b"b"), (b"c", b"d")] {
                assert!(reader.read(&mut key, &mut value).unwrap());
                assert_eq!((&key[..], &value[..]), (&expected_key[..], &expected_value[..]));
            }
            assert!(!reader.read(&mut key, &mut value).unwrap());
        }
    }

    #[test]
    fn malformed_line_error_has_number_and_cause() {
        for (format, line, what) in [
            (RecordFormat::Tsv, "no tab", "no tab"),
            (RecordFormat::Tsv, "", "no tab"),
            (RecordFormat::Tsv, "a\tb\tc", "second tab"),
            (RecordFormat::Tsv, "a\\x\tb", "unknown escape \\x"),
            (RecordFormat::Tsv, "a\tb\\", "at the end"),
            (RecordFormat::HexTsv, "6b", "no tab"),
            (RecordFormat::HexTsv, "6b\t0", "not hexadecimal"),
            (RecordFormat::HexTsv, "6b\t00\t", "second tab"),
            (RecordFormat::Jsonl, "", "not a JSON object"),
            (RecordFormat::Jsonl, "[1]", "not a JSON object"),
            (RecordFormat::Jsonl, "{\"key\":\"a\"}", "\"value\""),
            (RecordFormat::Jsonl, "{\"key\":\"a\",\"key_hex\":\"00\",\"value\":\"\"}", "\"key\""),
            (RecordFormat::Jsonl, "{\"key_hex\":\"0\",\"value\":\"\"}", "not hexadecimal"),
            (RecordFormat::Jsonl, "{\"key_hex\":\"0g\",\"value\":\"\"}", "not hexadecimal"),
            (RecordFormat::Jsonl, "{\"key_hex\":\"é\",\"value\":\"\"}", "not hexadecimal"),
            (RecordFormat::Jsonl, "{\"key\":\"a\",\"value\":\"\",\"ttl\":1}", "not a JSON object"),
        ] {
            let good = match format {
                RecordFormat::Jsonl => "{\"key\":\"\",\"value\":\"\"}",
                _ => "00\t",
            };
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
    fn hexadecimal_digits_parse_in_both_cases() {
        assert_eq!(to_hex(&[0x0f, 0xa0]), "0fa0");
        assert_eq!(from_hex("FFab").unwrap(), [0xff, 0xab]);
        assert!(from_hex("+f").is_err());
    }

    #[test]
    fn format_of_file_is_that_of_its_extension() {
        assert_eq!(RecordFormat::of_file("a.jsonl".as_ref()), RecordFormat::Jsonl);
        assert_eq!(RecordFormat::of_file("a.tsv".as_ref()), RecordFormat::Tsv);
        assert_eq!(RecordFormat::of_file("jsonl".as_ref()), RecordFormat::Tsv);
    }
}

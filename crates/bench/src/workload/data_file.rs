//! The records of a file, read one by one in any order.
//!
//! Opening reads the file once and keeps the offset of each record and a hash of its key in memory, 16 bytes per record.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::numbers;

use super::keys::Permutation;
use super::random::mix;
use super::record::{Format, ReadError, RecordReader, decode};

/// A data file and the index of its records.
#[derive(Debug)]
pub struct DataFile {
    path: PathBuf,
    format: Format,
    file: BufReader<File>,
    index: Arc<Index>,
    shuffle: Option<Permutation>,
    /// Offset of `file`.
    position: u64,
    line: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    /// The record in `key` and `value`.
    loaded: Option<u64>,
}

/// Index of a file.
#[derive(Debug)]
struct Index {
    offsets: Vec<u64>,
    /// Sorted.
    key_hashes: Vec<u64>,
    bytes: u64,
}

impl DataFile {
    /// Opens a file. With a seed its records have a random order, otherwise that of the file.
    ///
    /// # Errors
    /// The file cannot be read, a line is malformed, or there is no record.
    pub fn open(path: &Path, format: Format, shuffle: Option<u64>) -> Result<DataFile> {
        let failed = |action| move |source| Error::Io { action, path: path.to_owned(), source };
        let file = open(path).map_err(failed("open"))?;
        let mut reader = RecordReader::new(BufReader::new(file), format);
        let (mut offsets, mut key_hashes) = (Vec::new(), Vec::new());
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        loop {
            let offset = reader.bytes();
            match reader.read(&mut key, &mut value) {
                Ok(false) => break,
                Ok(true) => {
                    offsets.push(offset);
                    key_hashes.push(xxh3_64(&key));
                    bytes += numbers::count(key.len()) + numbers::count(value.len());
                }
                Err(ReadError::Io(source)) => return Err(failed("read")(source)),
                Err(ReadError::Malformed(line, source)) => {
                    return Err(Error::Record { path: path.to_owned(), line, source });
                }
            }
        }
        if offsets.is_empty() {
            return Err(Error::NoRecords { path: path.to_owned() });
        }
        key_hashes.sort_unstable();
        let index = Arc::new(Index { offsets, key_hashes, bytes });
        DataFile::over(path, format, index, shuffle)
    }

    /// Opens the same file in another order, with the same index.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn reopen(&self, shuffle: Option<u64>) -> Result<DataFile> {
        DataFile::over(&self.path, self.format, Arc::clone(&self.index), shuffle)
    }

    fn over(
        path: &Path,
        format: Format,
        index: Arc<Index>,
        shuffle: Option<u64>,
    ) -> Result<DataFile> {
        let failed = |source| Error::Io { action: "open", path: path.to_owned(), source };
        let n = numbers::count(index.offsets.len());
        Ok(DataFile {
            path: path.to_owned(),
            format,
            file: BufReader::new(open(path).map_err(failed)?),
            index,
            shuffle: shuffle.map(|seed| Permutation::new(n, seed)),
            position: 0,
            line: Vec::new(),
            key: Vec::new(),
            value: Vec::new(),
            loaded: None,
        })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of records.
    pub fn len(&self) -> u64 {
        numbers::count(self.index.offsets.len())
    }

    /// Returns whether there is no record; always false.
    pub fn is_empty(&self) -> bool {
        self.index.offsets.is_empty()
    }

    /// Returns the length of all keys and values, in bytes.
    pub fn bytes(&self) -> u64 {
        self.index.bytes
    }

    /// Appends the key of the `i`-th record.
    ///
    /// # Errors
    /// The file cannot be read or has changed.
    pub fn write_key(&mut self, i: u64, out: &mut Vec<u8>) -> Result<()> {
        self.load(i)?;
        out.extend_from_slice(&self.key);
        Ok(())
    }

    /// Appends the value of the `i`-th record.
    ///
    /// # Errors
    /// As for [`DataFile::write_key`].
    pub fn write_value(&mut self, i: u64, out: &mut Vec<u8>) -> Result<()> {
        self.load(i)?;
        out.extend_from_slice(&self.value);
        Ok(())
    }

    /// Appends a key that no record has. It starts with the key of the `i`-th record.
    ///
    /// # Errors
    /// As for [`DataFile::write_key`].
    pub fn write_absent_key(&mut self, i: u64, salt: u64, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        self.write_key(i, out)?;
        let end = out.len();
        let mut salt = salt;
        loop {
            out.extend_from_slice(&salt.to_be_bytes()[..4]);
            if self.index.key_hashes.binary_search(&xxh3_64(&out[start..])).is_err() {
                return Ok(());
            }
            out.truncate(end);
            salt = mix(salt);
        }
    }

    fn load(&mut self, i: u64) -> Result<()> {
        if self.loaded == Some(i) {
            return Ok(());
        }
        self.loaded = None;
        let at = self.shuffle.as_ref().map_or(i, |shuffle| shuffle.forward(i));
        let offset = self.index.offsets[numbers::length(at)];
        self.read_line(offset).map_err(|source| Error::Io {
            action: "read",
            path: self.path.clone(),
            source,
        })?;
        decode(self.format, &self.line, &mut self.key, &mut self.value)
            .map_err(|source| Error::Record { path: self.path.clone(), line: at + 1, source })?;
        self.loaded = Some(i);
        Ok(())
    }

    fn read_line(&mut self, offset: u64) -> io::Result<()> {
        if self.position != offset {
            // A seek discards the buffer. In file order there is no seek.
            self.file.seek(SeekFrom::Start(offset))?;
            self.position = offset;
        }
        self.line.clear();
        self.position += numbers::count(self.file.read_until(b'\n', &mut self.line)?);
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "a file of the user, no part of a database")]
fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::io::Write as _;

    fn data(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn records(data: &mut DataFile) -> Vec<(String, String)> {
        (0..data.len())
            .map(|i| {
                let (mut key, mut value) = (Vec::new(), Vec::new());
                data.write_value(i, &mut value).unwrap();
                data.write_key(i, &mut key).unwrap();
                (String::from_utf8(key).unwrap(), String::from_utf8(value).unwrap())
            })
            .collect()
    }

    #[test]
    fn records_have_file_order_or_a_random_order() {
        let text: String = (0..100).map(|i| format!("key{i}\tvalue{i}\n")).collect();
        let file = data(&text);
        let expected: Vec<(String, String)> =
            (0..100).map(|i| (format!("key{i}"), format!("value{i}"))).collect();
        let mut in_order = DataFile::open(file.path(), Format::Tsv, None).unwrap();
        assert_eq!(in_order.bytes(), text.len() as u64 - 200);
        assert_eq!(records(&mut in_order), expected);
        let shuffled =
            |seed| records(&mut DataFile::open(file.path(), Format::Tsv, Some(seed)).unwrap());
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        assert_ne!(shuffled(1), expected);
        let all: BTreeSet<_> = shuffled(1).into_iter().collect();
        assert_eq!(all, expected.into_iter().collect());
    }

    #[test]
    fn absent_keys_are_absent() {
        let file = data("a\t1\nb\t2\n");
        let mut data = DataFile::open(file.path(), Format::Tsv, None).unwrap();
        for salt in 0..100 {
            let mut key = Vec::new();
            data.write_absent_key(salt % 2, salt, &mut key).unwrap();
            assert!(key.len() > 1 && (key[0] == b'a' || key[0] == b'b'));
        }
    }

    #[test]
    fn open_error_names_the_cause() {
        let error = DataFile::open(data("a\t1\nb\n").path(), Format::Tsv, None).unwrap_err();
        assert!(error.to_string().contains("line 2 is malformed: "), "{error}");
        assert!(matches!(
            DataFile::open(data("").path(), Format::Tsv, None),
            Err(Error::NoRecords { .. })
        ));
        assert!(matches!(
            DataFile::open("no/such/file".as_ref(), Format::Tsv, None),
            Err(Error::Io { action: "open", .. })
        ));
    }
}

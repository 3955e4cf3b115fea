//! Random access to the records of a file.
//!
//! Opening a file reads the whole file and builds an index of 16 bytes per record: the offset of the record and a hash
//! of the key.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::numbers;

use super::keys::Permutation;
use super::random::hash_u64;
use super::record::{ReadError, RecordFormat, RecordReader, decode_record};

/// A data file and its index. Records are numbered in file order or in a random order.
#[derive(Debug)]
pub struct DataFile {
    path: PathBuf,
    format: RecordFormat,
    file: BufReader<File>,
    index: Arc<RecordIndex>,
    shuffle: Option<Permutation>,
    /// Current read offset in the file.
    position: u64,
    line: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Number of the record whose key and value are in the buffers `key` and `value`.
    loaded: Option<u64>,
}

#[derive(Debug)]
struct RecordIndex {
    offsets: Vec<u64>,
    /// Sorted hashes of all keys.
    key_hashes: Vec<u64>,
    bytes: u64,
}

impl DataFile {
    /// Opens a data file. `shuffle` is the seed of a random record order. If `shuffle` is `None`, the records keep the
    /// order of the file. Fails if a line is malformed or the file has no record.
    pub fn open(path: &Path, format: RecordFormat, shuffle: Option<u64>) -> Result<DataFile> {
        let file = open_buffered(path)?;
        let mut reader = RecordReader::new(file, format);
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
                    bytes += numbers::to_u64(key.len()) + numbers::to_u64(value.len());
                }
                Err(ReadError::Io(source)) => return Err(Error::io("read", path)(source)),
                Err(ReadError::Malformed(line, source)) => {
                    return Err(Error::Record { path: path.to_owned(), line, source });
                }
            }
        }
        if offsets.is_empty() {
            return Err(Error::NoRecords { path: path.to_owned() });
        }
        key_hashes.sort_unstable();
        let index = Arc::new(RecordIndex { offsets, key_hashes, bytes });
        DataFile::with_index(path, format, index, shuffle)
    }

    /// Opens the same file with another record order. Both handles share one index.
    pub fn reopen(&self, shuffle: Option<u64>) -> Result<DataFile> {
        DataFile::with_index(&self.path, self.format, Arc::clone(&self.index), shuffle)
    }

    fn with_index(
        path: &Path,
        format: RecordFormat,
        index: Arc<RecordIndex>,
        shuffle: Option<u64>,
    ) -> Result<DataFile> {
        let n = numbers::to_u64(index.offsets.len());
        Ok(DataFile {
            path: path.to_owned(),
            format,
            file: open_buffered(path)?,
            index,
            shuffle: shuffle.map(|seed| Permutation::new(n, seed)),
            position: 0,
            line: Vec::new(),
            key: Vec::new(),
            value: Vec::new(),
            loaded: None,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of records, which is at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a data file has at least one record")]
    pub fn len(&self) -> u64 {
        numbers::to_u64(self.index.offsets.len())
    }

    /// Returns the total length of all keys and values, in bytes.
    pub fn bytes(&self) -> u64 {
        self.index.bytes
    }

    /// Sets `key` to the key of record `i` with a suffix. The result is a key that no record has.
    pub(super) fn absent_key(&mut self, i: u64, mut salt: u64, key: &mut Vec<u8>) -> Result<()> {
        loop {
            key.clone_from(self.record(i)?.0);
            key.extend_from_slice(&salt.to_be_bytes()[..4]);
            if self.index.key_hashes.binary_search(&xxh3_64(key)).is_err() {
                return Ok(());
            }
            salt = hash_u64(salt);
        }
    }

    /// Returns the key and the value of record `i`. Fails if the file cannot be read or has changed.
    pub(super) fn record(&mut self, i: u64) -> Result<(&Vec<u8>, &Vec<u8>)> {
        if self.loaded != Some(i) {
            self.loaded = None;
            let at = self.shuffle.as_ref().map_or(i, |shuffle| shuffle.permute(i));
            let offset = self.index.offsets[numbers::to_usize(at)];
            self.read_line(offset).map_err(Error::io("read", &self.path))?;
            decode_record(self.format, &self.line, &mut self.key, &mut self.value).map_err(
                |source| Error::Record { path: self.path.clone(), line: at + 1, source },
            )?;
            self.loaded = Some(i);
        }
        Ok((&self.key, &self.value))
    }

    fn read_line(&mut self, offset: u64) -> io::Result<()> {
        if self.position != offset {
            // A seek discards the read buffer. Reads in file order need no seek.
            self.file.seek(SeekFrom::Start(offset))?;
            self.position = offset;
        }
        self.line.clear();
        self.position += numbers::to_u64(self.file.read_until(b'\n', &mut self.line)?);
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "reads a file of the user, not a database file")]
fn open_buffered(path: &Path) -> Result<BufReader<File>> {
    File::open(path).map(BufReader::new).map_err(Error::io("open", path))
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
        let len = data.len();
        let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).unwrap();
        let record = |i| data.record(i).map(|(key, value)| (text(key), text(value))).unwrap();
        (0..len).map(record).collect()
    }

    #[test]
    fn records_have_file_order_or_a_random_order() {
        let text: String = (0..100).map(|i| format!("key{i}\tvalue{i}\n")).collect();
        let file = data(&text);
        let expected: Vec<(String, String)> =
            (0..100).map(|i| (format!("key{i}"), format!("value{i}"))).collect();
        let mut in_order = DataFile::open(file.path(), RecordFormat::Tsv, None).unwrap();
        assert_eq!(in_order.bytes(), text.len() as u64 - 200);
        assert_eq!(records(&mut in_order), expected);
        let shuffled = |seed| {
            records(&mut DataFile::open(file.path(), RecordFormat::Tsv, Some(seed)).unwrap())
        };
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        assert_ne!(shuffled(1), expected);
        let all: BTreeSet<_> = shuffled(1).into_iter().collect();
        assert_eq!(all, expected.into_iter().collect());
    }

    #[test]
    fn absent_key_extends_a_present_key() {
        let file = data("a\t1\nb\t2\n");
        let mut data = DataFile::open(file.path(), RecordFormat::Tsv, None).unwrap();
        for salt in 0..100 {
            let mut key = Vec::new();
            data.absent_key(salt % 2, salt, &mut key).unwrap();
            assert!(key.len() > 1 && (key[0] == b'a' || key[0] == b'b'));
        }
    }

    #[test]
    fn open_error_names_the_cause() {
        let error = DataFile::open(data("a\t1\nb\n").path(), RecordFormat::Tsv, None).unwrap_err();
        assert!(error.to_string().contains("line 2 is malformed: "), "{error}");
        assert!(matches!(
            DataFile::open(data("").path(), RecordFormat::Tsv, None),
            Err(Error::NoRecords { .. })
        ));
        assert!(matches!(
            DataFile::open("no/such/file".as_ref(), RecordFormat::Tsv, None),
            Err(Error::Io { action: "open", .. })
        ));
    }
}

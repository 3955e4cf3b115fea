//! Dumps files of a database as text.
//!
//! The dump reads a single file. It needs neither an open database nor its lock, so it also works for damaged
//! databases.

mod blob_file;
mod logs;
mod table;
mod trace;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::file_name::FileName;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::error::Error;
use crate::format::manifest_header::{CURRENT_BYTES_MAX, CurrentFile};
use crate::vfs::{File, Vfs};
use crate::workload_trace::TraceReader;

/// Options of [`dump`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpOptions {
    /// Writes keys in hexadecimal instead of escaped text.
    pub hex: bool,
    /// Writes all entries of data blocks. By default, only the entries at restart points are written.
    pub entries: bool,
    /// Maximum number of lines. `None`: no limit.
    pub lines_max: Option<u64>,
}

/// Error of [`dump`].
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The file cannot be read or is damaged.
    #[error(transparent)]
    File(#[from] Error),
    /// The output cannot be written.
    #[error("cannot write the dump: {0}")]
    Output(#[source] io::Error),
}

/// Writes the contents of a file of a database, or of a workload trace, to `out` as text lines.
///
/// The kind of the file is determined from its name. A trace may have any name and is recognized by its magic number.
/// Damage is reported in lines that start with `damaged:`. The dump continues after the damage if possible.
///
/// # Errors
/// [`DumpError::File`] with the first damage, or with [`Error::InvalidOption`] for an unknown kind of file.
/// [`DumpError::Output`] if `out` cannot be written.
pub fn dump(
    vfs: &dyn Vfs,
    path: &Path,
    options: &DumpOptions,
    out: &mut dyn Write,
) -> Result<(), DumpError> {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(FileName::parse);
    let mut writer =
        DumpWriter { out, options: *options, lines_left: options.lines_max, first_damage: None };
    let result = match name {
        Some(name) => dump_file(name, vfs, path, &mut writer),
        None if TraceReader::is_trace(vfs, path).unwrap_or(false) => {
            trace::dump_trace(vfs, path, &mut writer)
        }
        None => {
            return Err(DumpError::File(Error::InvalidOption {
                name: "file",
                value: path.display().to_string(),
                must: "a file of a database, such as 000007.sst, 000003.wal, MANIFEST-000002 or CURRENT, \
                   or a trace",
            }));
        }
    };
    match result {
        Ok(()) | Err(DumpStop::LineLimit) => {
            writer.first_damage.map_or(Ok(()), |error| Err(error.into()))
        }
        // Later errors are caused by the first damage, so the first damage is returned.
        Err(DumpStop::File(error)) => Err(writer.first_damage.unwrap_or(error).into()),
        Err(DumpStop::Output(error)) => Err(DumpError::Output(error)),
    }
}

fn dump_file(name: FileName, vfs: &dyn Vfs, path: &Path, out: &mut DumpWriter<'_>) -> DumpResult {
    let input = DumpInput::open(vfs, path)?;
    let bytes = input.bytes;
    match name {
        FileName::Table(_) => table::dump_table(&input, out),
        FileName::Blob(_) => blob_file::dump_blob_file(&input, out),
        FileName::Segment(_) => logs::dump_segment(&input, out),
        FileName::Manifest(_) => logs::dump_manifest(&input, out),
        FileName::Current => dump_current(&input, out),
        FileName::Temporary(_) => {
            writeln!(out, "new version of CURRENT; obsolete after a crash")?;
            dump_current(&input, out)
        }
        // The format of these files belongs to the operand store.
        FileName::Operands(_) | FileName::Bucket(_) => {
            writeln!(out, "file of an operand store, {bytes} bytes")
        }
        FileName::Reserve => writeln!(out, "{bytes} bytes reserved for a full disk, no contents"),
        FileName::Lock => writeln!(out, "lock file, {bytes} bytes, always empty"),
        FileName::Metrics | FileName::MetricsTemporary => {
            writeln!(out, "metrics of an open database as JSON, {bytes} bytes")
        }
    }
}

fn dump_current(input: &DumpInput<'_>, out: &mut DumpWriter<'_>) -> DumpResult {
    match CurrentFile::decode(&input.read_at_most(0, len_u64(CURRENT_BYTES_MAX))?) {
        Ok(CurrentFile { manifest, db_uid, bytes }) => writeln!(
            out,
            "current manifest {}, database uid {db_uid:016x}, {bytes} bytes synced",
            FileName::Manifest(manifest)
        ),
        Err(what) => out.write_damage_line(input.malformed_error(what, 0)),
    }
}

/// Reason why a dump ends early.
enum DumpStop {
    LineLimit,
    File(Error),
    Output(io::Error),
}

impl From<Error> for DumpStop {
    fn from(error: Error) -> DumpStop {
        DumpStop::File(error)
    }
}

type DumpResult<T = ()> = Result<T, DumpStop>;

/// Writes the lines of a dump.
struct DumpWriter<'a> {
    out: &'a mut dyn Write,
    options: DumpOptions,
    lines_left: Option<u64>,
    first_damage: Option<Error>,
}

impl DumpWriter<'_> {
    /// Writes one line. Called by `writeln!`.
    fn write_fmt(&mut self, line: fmt::Arguments<'_>) -> DumpResult {
        match &mut self.lines_left {
            Some(0) => {
                writeln!(self.out, "…").map_err(DumpStop::Output)?;
                return Err(DumpStop::LineLimit);
            }
            Some(lines) => *lines -= 1,
            None => {}
        }
        self.out.write_fmt(line).map_err(DumpStop::Output)
    }

    /// Writes a line that reports damage, and keeps the first error.
    fn write_damage_line(&mut self, error: Error) -> DumpResult {
        let text = error.to_string();
        self.first_damage.get_or_insert(error);
        writeln!(self, "damaged: {text}")
    }

    /// Returns a key as escaped text or in hexadecimal, as set in the options.
    fn format_key(&self, key: &[u8]) -> String {
        if !self.options.hex {
            return format!("\"{}\"", key.escape_ascii());
        }
        key.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The file that is dumped.
struct DumpInput<'a> {
    file: Arc<dyn File>,
    path: &'a Path,
    bytes: u64,
}

impl<'a> DumpInput<'a> {
    fn open(vfs: &dyn Vfs, path: &'a Path) -> Result<DumpInput<'a>, Error> {
        let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
        let bytes = file.len().map_err(|error| Error::io("read the size of", path, error))?;
        Ok(DumpInput { file, path, bytes })
    }

    fn malformed_error(&self, what: Malformed, offset: u64) -> Error {
        Error::malformed(what, self.path, offset)
    }

    /// Reads `bytes` at `offset`. Returns fewer bytes at the end of the file.
    fn read_at_most(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, Error> {
        self.read(offset, bytes.min(self.bytes.saturating_sub(offset)))
    }

    /// Reads exactly `bytes` at `offset`.
    fn read(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, Error> {
        let truncated = |found| {
            self.malformed_error(
                Malformed::Truncated { what: "file", needed: bytes, found },
                offset,
            )
        };
        // The range is checked before the allocation, because `bytes` may come from a damaged file.
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(truncated(self.bytes.saturating_sub(offset)));
        }
        let len = to_usize("block", bytes).map_err(|what| self.malformed_error(what, offset))?;
        let mut buffer = vec![0; len];
        let read = self.file.read_at(&mut buffer, offset);
        let read = read.map_err(|error| Error::io("read", self.path, error))?;
        if read < len {
            return Err(truncated(len_u64(read)));
        }
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::env::Background;
    use crate::options::db::Options;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::options::value_separation::ValueSeparation;
    use crate::vfs::MemVfs;
    use crate::vfs::mem::CrashImage;

    /// Returns the image of a crashed database with files of every kind except operand store files.
    fn create_files() -> MemVfs {
        let disk = MemVfs::new();
        let keyspace = KeyspaceOptions::default().memtable_bytes(4 << 10).table_bytes(4 << 10);
        let options = Options::default()
            .background(Background::Inline)
            .keyspace_defaults(keyspace.clone().block_bytes(1 << 10))
            .seed(7);
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        for number in 0..300u32 {
            db.put(format!("key-{number:04}"), [7; 30]).unwrap();
        }
        db.delete("key-0007").unwrap();
        let separation = ValueSeparation { threshold_bytes: 20, ..ValueSeparation::default() };
        let separated = db.keyspace("separated", keyspace.value_separation(separation)).unwrap();
        for number in 0..100u32 {
            separated.put(format!("key-{number:04}"), [7; 30]).unwrap();
        }
        db.sync().unwrap();
        let crashed = disk.crash(CrashImage::Keep, 0);
        let current = crashed.read_all(Path::new("db/CURRENT")).unwrap();
        crashed.write_all(Path::new("db/999999.tmp"), &current).unwrap();
        crashed.write_all(Path::new("db/METRICS"), b"{}").unwrap();
        crashed
    }

    fn dump_text(
        disk: &MemVfs,
        path: &Path,
        options: DumpOptions,
    ) -> (String, Result<(), DumpError>) {
        let mut out = Vec::new();
        let result = dump(disk, path, &options, &mut out);
        (String::from_utf8(out).unwrap(), result)
    }

    /// The match is exhaustive, so a new kind of file does not compile without a case here.
    fn file_kind(name: FileName) -> &'static str {
        match name {
            FileName::Table(_) => "table",
            FileName::Blob(_) => "blob",
            FileName::Segment(_) => "segment",
            FileName::Manifest(_) => "manifest",
            FileName::Operands(_) => "operands",
            FileName::Bucket(_) => "bucket",
            FileName::Temporary(_) => "temporary",
            FileName::Current => "current",
            FileName::Lock => "lock",
            FileName::Reserve => "reserve",
            FileName::Metrics | FileName::MetricsTemporary => "metrics",
        }
    }

    #[test]
    fn dump_of_every_file_kind_has_its_contents() {
        let disk = create_files();
        let mut kinds = std::collections::BTreeMap::new();
        for path in disk.paths() {
            let (text, result) = dump_text(&disk, &path, DumpOptions::default());
            result.unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            let kind = file_kind(FileName::parse(name).unwrap());
            kinds.entry(kind).or_insert_with(String::new).push_str(&text);
        }
        for (kind, parts) in [
            ("table", &["footer", "properties", "filter", "index", "data", "restart", "blob"][..]),
            ("blob", &["header", "record", "key-0", "value of 30 bytes", "trailer", "keyspace 1"]),
            ("segment", &["header", "record", "mark", "put", "key-0", "delete"]),
            ("manifest", &["header", "edit 1", "CreateKeyspace", "AddFile", "mark"]),
            ("temporary", &["obsolete after a crash", "MANIFEST-"]),
            ("current", &["MANIFEST-", "uid"]),
            ("lock", &["lock"]),
            ("reserve", &["reserved for a full disk"]),
            ("metrics", &["metrics of an open database"]),
        ] {
            let text = &kinds[kind];
            for part in parts {
                assert!(text.contains(part), "{kind} lacks {part:?}:\n{text}");
            }
        }
        assert_eq!(kinds.len(), 9);
    }

    #[test]
    fn dump_of_trace_has_every_item() {
        let disk = MemVfs::new();
        let options = Options::default().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        let trace =
            db.record_trace("monday", crate::workload_trace::TraceOptions::default()).unwrap();
        db.put("apple", "red").unwrap();
        db.get("apple").unwrap();
        db.get("pear").unwrap();
        db.default_keyspace().delete_range("a".."b").unwrap();
        assert_eq!(db.default_keyspace().iter().rev().count(), 0);
        trace.stop().unwrap();
        let (text, result) = dump_text(&disk, Path::new("monday"), DumpOptions::default());
        result.unwrap();
        for part in [
            "keys stored, value sizes stored",
            "put \"apple\" in keyspace 0, value of 3 bytes",
            "get \"apple\" in keyspace 0: value of 3 bytes",
            "get \"pear\" in keyspace 0: absent",
            "delete range \"a\" to \"b\" in keyspace 0",
            "scan backward from the end in keyspace 0: 0 entries",
            "end: 5 operations",
        ] {
            assert!(text.contains(part), "{part:?} is missing:\n{text}");
        }
        let mut bytes = disk.read_all(Path::new("monday")).unwrap();
        bytes.truncate(bytes.len() - 1);
        disk.write_all(Path::new("cut"), &bytes).unwrap();
        let (text, result) = dump_text(&disk, Path::new("cut"), DumpOptions::default());
        result.unwrap();
        assert!(text.contains("trace is incomplete"), "{text}");
    }

    #[test]
    fn dump_with_options_limits_lines_and_writes_hex_keys() {
        let disk = create_files();
        let tables =
            disk.paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "sst"));
        for table in tables {
            let options = DumpOptions { lines_max: Some(3), ..DumpOptions::default() };
            let (text, result) = dump_text(&disk, &table, options);
            result.unwrap();
            assert_eq!(text.lines().count(), 4);
            assert!(text.ends_with("…\n"));
            let all = DumpOptions { entries: true, hex: true, lines_max: None };
            let (text, result) = dump_text(&disk, &table, all);
            result.unwrap();
            assert!(text.contains("6b65792d30"), "{text}");
            let entries =
                text.lines().filter(|line| line.trim_start().starts_with("entry")).count();
            assert!(entries > 20, "{text}");
        }
    }

    /// Changes single bytes of every file, and truncates every file.
    #[test]
    fn dump_of_damaged_file_names_the_file() {
        let disk = create_files();
        // A metrics file is text without a checksum.
        let is_metrics = |path: &Path| path.ends_with("METRICS");
        for path in disk.paths().into_iter().filter(|path| !is_metrics(path)) {
            let bytes = disk.read_all(&path).unwrap();
            let lines = dump_text(&disk, &path, DumpOptions::default()).0.lines().count();
            for offset in (0..bytes.len()).step_by(bytes.len() / 150 + 1) {
                for truncated in [false, true] {
                    let mut damaged = bytes.clone();
                    if truncated {
                        damaged.truncate(offset);
                    } else {
                        damaged[offset] ^= 0x10;
                    }
                    let copy = MemVfs::new();
                    copy.create_dir(Path::new("db")).unwrap();
                    copy.write_all(&path, &damaged).unwrap();
                    let (text, result) = dump_text(&copy, &path, DumpOptions::default());
                    assert!(text.lines().count() <= lines + 10);
                    match result {
                        // A log remains valid if its end is missing.
                        Ok(()) => {
                            assert!(truncated || bytes.is_empty(), "{} {offset}", path.display())
                        }
                        Err(DumpError::File(
                            Error::Corrupt { path: reported, .. }
                            | Error::UnsupportedVersion { path: reported, .. },
                        )) => assert_eq!(reported, path),
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        }
        let unknown = dump_text(&disk, Path::new("db/nothing.txt"), DumpOptions::default()).1;
        assert!(matches!(unknown, Err(DumpError::File(Error::InvalidOption { .. }))));
    }
}

//! Shows what any file of a database holds, as text.
//!
//! A file is read on its own: neither the database it belongs to nor a lock is needed, so that what is
//! left of a damaged database can be looked at. What cannot be read is shown as a line that begins
//! with `damaged:`; what stands around it is read all the same, and the first damage is the error in
//! the end.

mod blobs;
mod logs;
mod table;
mod trace;

use std::io::{self, Write};
use std::path::Path;

use lsmx_base::coding::len_u64;
use lsmx_base::file_name::FileName;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::error::Error;
use crate::format::manifest_header::{CURRENT_BYTES_MAX, CurrentFile};
use crate::vfs::{File, Vfs};
use crate::workload_trace::TraceReader;

/// How much is shown, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpOptions {
    /// Keys are shown in hexadecimal; otherwise as text, with escapes where it is none.
    pub hex: bool,
    /// Every entry of a data block is shown, not only those at restarts.
    pub entries: bool,
    /// At most so many lines; none for all.
    pub lines_max: Option<u64>,
}

/// Why a dump ended early or is not whole.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The file cannot be read, or is damaged: what is around the damage has been shown.
    #[error(transparent)]
    File(#[from] Error),
    /// What was to be shown could not be written.
    #[error("cannot write the dump: {0}")]
    Output(#[source] io::Error),
}

/// Writes what a file holds to `out`, line by line. The file's name says what it is; a trace is known
/// by its first bytes.
///
/// # Errors
/// [`DumpError`]; [`Error::InvalidOption`] for a name that no file of a database has.
pub fn dump(
    vfs: &dyn Vfs,
    path: &Path,
    options: &DumpOptions,
    out: &mut dyn Write,
) -> Result<(), DumpError> {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(FileName::parse);
    let mut lines = Lines { out, options: *options, left: options.lines_max, damage: None };
    let shown = match name {
        Some(name) => dump_as(name, vfs, path, &mut lines),
        // A trace has whatever name its user gave it.
        None if TraceReader::is_trace(vfs, path).unwrap_or(false) => {
            trace::show(vfs, path, &mut lines)
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
    match shown {
        Ok(()) | Err(Stop::Limit) => lines.damage.map_or(Ok(()), |error| Err(error.into())),
        // The first damage tells more than what came of it.
        Err(Stop::File(error)) => Err(lines.damage.unwrap_or(error).into()),
        Err(Stop::Output(error)) => Err(DumpError::Output(error)),
    }
}

fn dump_as(name: FileName, vfs: &dyn Vfs, path: &Path, lines: &mut Lines<'_>) -> Shown {
    let input = Input::open(vfs, path)?;
    match name {
        FileName::Table(_) => table::show(&input, lines),
        FileName::Blob(_) => blobs::show(&input, lines),
        FileName::Segment(_) => logs::show_segment(&input, lines),
        FileName::Manifest(_) => logs::show_manifest(&input, lines),
        FileName::Current => show_current(&input, lines),
        FileName::Temporary(_) => {
            lines.line(format_args!("what CURRENT was about to become; rubbish after a crash"))?;
            show_current(&input, lines)
        }
        // What it holds the store knows alone.
        FileName::Operands(_) | FileName::Bucket(_) => {
            lines.line(format_args!("file of an operand store, {} bytes", input.bytes))
        }
        FileName::Reserve => lines
            .line(format_args!("{} bytes of room for a full disk; they mean nothing", input.bytes)),
        FileName::Lock => {
            lines.line(format_args!("lock file, {} bytes; it never holds any", input.bytes))
        }
    }
}

fn show_current(input: &Input<'_>, lines: &mut Lines<'_>) -> Shown {
    let bytes = input.read(0, input.bytes.min(len_u64(CURRENT_BYTES_MAX)))?;
    match CurrentFile::decode(&bytes) {
        Ok(CurrentFile { manifest, db_uid, bytes }) => lines.line(format_args!(
            "current manifest {}, database uid {db_uid:016x}, {bytes} bytes of it synced",
            FileName::Manifest(manifest)
        )),
        Err(what) => lines.damaged(Error::malformed(what, input.path, 0)),
    }
}

/// Why nothing more is shown.
enum Stop {
    /// As many lines as were asked for.
    Limit,
    File(Error),
    Output(io::Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::File(error)
    }
}

type Shown<T = ()> = Result<T, Stop>;

/// Where lines go.
struct Lines<'a> {
    out: &'a mut dyn Write,
    options: DumpOptions,
    left: Option<u64>,
    /// The first.
    damage: Option<Error>,
}

impl Lines<'_> {
    fn line(&mut self, line: std::fmt::Arguments<'_>) -> Shown {
        match &mut self.left {
            Some(0) => {
                writeln!(self.out, "…").map_err(Stop::Output)?;
                return Err(Stop::Limit);
            }
            Some(left) => *left -= 1,
            None => {}
        }
        writeln!(self.out, "{line}").map_err(Stop::Output)
    }

    /// Shows a damage and goes on.
    fn damaged(&mut self, error: Error) -> Shown {
        let text = error.to_string();
        self.damage.get_or_insert(error);
        self.line(format_args!("damaged: {text}"))
    }

    /// A key as it is to be shown.
    fn key(&self, key: &[u8]) -> String {
        if !self.options.hex {
            return format!("\"{}\"", key.escape_ascii());
        }
        key.iter().fold(String::with_capacity(2 * key.len()), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = std::fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
            text
        })
    }
}

/// The file that is shown.
struct Input<'a> {
    file: Arc<dyn File>,
    path: &'a Path,
    bytes: u64,
}

impl<'a> Input<'a> {
    fn open(vfs: &dyn Vfs, path: &'a Path) -> Result<Input<'a>, Error> {
        let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
        let bytes = file.len().map_err(|error| Error::io("read the size of", path, error))?;
        Ok(Input { file, path, bytes })
    }

    /// Reads bytes that are in the file.
    fn read(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, Error> {
        let short = |found| Malformed::Truncated { what: "file", needed: bytes, found };
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if !inside {
            return Err(Error::malformed(
                short(self.bytes.saturating_sub(offset)),
                self.path,
                offset,
            ));
        }
        let needed = lsmx_base::coding::to_usize("block", bytes);
        let mut buffer = vec![0; needed.map_err(|what| Error::malformed(what, self.path, offset))?];
        let read = self.file.read_at(&mut buffer, offset);
        let read = read.map_err(|error| Error::io("read", self.path, error))?;
        if read < buffer.len() {
            return Err(Error::malformed(short(len_u64(read)), self.path, offset));
        }
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Background;
    use crate::vfs::MemVfs;
    use crate::vfs::mem::CrashImage;
    use crate::{Db, KeyspaceOptions, Options, ValueSeparation};

    /// A database with every kind of file that there is.
    fn disk() -> MemVfs {
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
        let separation = ValueSeparation::default().threshold_bytes(20);
        let apart = db.keyspace("apart", keyspace.value_separation(separation)).unwrap();
        for number in 0..100u32 {
            apart.put(format!("key-{number:04}"), [7; 30]).unwrap();
        }
        db.sync().unwrap();
        let killed = disk.crash(CrashImage::Keep, 0);
        let current = killed.read_all(Path::new("db/CURRENT")).unwrap();
        killed.write_all(Path::new("db/999999.tmp"), &current).unwrap();
        killed
    }

    fn shown(disk: &MemVfs, path: &Path, options: DumpOptions) -> (String, Result<(), DumpError>) {
        let mut out = Vec::new();
        let done = dump(disk, path, &options, &mut out);
        (String::from_utf8(out).unwrap(), done)
    }

    /// The kinds that `what` tells apart; a new one does not compile until it is here.
    fn kind(name: FileName) -> &'static str {
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
        }
    }

    #[test]
    fn every_kind_of_file_has_a_dump() {
        let disk = disk();
        let mut kinds = std::collections::BTreeMap::new();
        for path in disk.paths() {
            let (text, done) = shown(&disk, &path, DumpOptions::default());
            done.unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            let kind = kind(FileName::parse(name).unwrap());
            kinds.entry(kind).or_insert_with(String::new).push_str(&text);
        }
        for (kind, parts) in [
            ("table", &["footer", "properties", "filter", "index", "data", "restart", "blob"][..]),
            ("blob", &["header", "record", "key-0", "value of 30 bytes", "trailer", "keyspace 1"]),
            ("segment", &["header", "record", "mark", "put", "key-0", "delete"]),
            ("manifest", &["header", "edit 1", "CreateKeyspace", "AddFile", "mark"]),
            ("temporary", &["rubbish", "MANIFEST-"]),
            ("current", &["MANIFEST-", "uid"]),
            ("lock", &["lock"]),
            ("reserve", &["room for a full disk"]),
        ] {
            let text = &kinds[kind];
            for part in parts {
                assert!(text.contains(part), "{kind} lacks {part:?}:\n{text}");
            }
        }
        assert_eq!(kinds.len(), 8);
    }

    #[test]
    fn a_trace_is_shown_item_by_item_whatever_its_name() {
        let disk = MemVfs::new();
        let options = Options::default().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        let trace = db.record_trace("monday").unwrap();
        db.put("apple", "red").unwrap();
        db.get("apple").unwrap();
        db.get("pear").unwrap();
        db.delete_range("a".."b").unwrap();
        assert_eq!(db.default_keyspace().iter().rev().count(), 0);
        trace.stop().unwrap();
        let (text, done) = shown(&disk, Path::new("monday"), DumpOptions::default());
        done.unwrap();
        for part in [
            "keys as they were, values by their sizes",
            "put \"apple\" in keyspace 0, value of 3 bytes",
            "get \"apple\" in keyspace 0: value of 3 bytes",
            "get \"pear\" in keyspace 0: absent",
            "delete range \"a\" to \"b\" in keyspace 0",
            "scan backward from the end in keyspace 0: 0 entries",
            "end: 5 operations",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let mut bytes = disk.read_all(Path::new("monday")).unwrap();
        bytes.truncate(bytes.len() - 1);
        disk.write_all(Path::new("cut"), &bytes).unwrap();
        let (text, done) = shown(&disk, Path::new("cut"), DumpOptions::default());
        done.unwrap();
        assert!(text.contains("not ended in order"), "{text}");
    }

    #[test]
    fn output_can_be_bounded_and_keys_shown_in_hexadecimal() {
        let disk = disk();
        let tables =
            disk.paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "sst"));
        for table in tables {
            let options = DumpOptions { lines_max: Some(3), ..DumpOptions::default() };
            let (text, done) = shown(&disk, &table, options);
            done.unwrap();
            assert_eq!(text.lines().count(), 4);
            assert!(text.ends_with("…\n"));
            let all = DumpOptions { entries: true, hex: true, lines_max: None };
            let (text, done) = shown(&disk, &table, all);
            done.unwrap();
            assert!(text.contains("6b65792d30"), "{text}");
            let entries =
                text.lines().filter(|line| line.trim_start().starts_with("entry")).count();
            assert!(entries > 20, "{text}");
        }
    }

    /// Any byte of any file changed, any file cut: no panic, and a damage that is noticed is an error
    /// which names file and offset, with the rest still shown.
    #[test]
    fn damage_is_named_and_what_is_around_it_is_shown() {
        let disk = disk();
        for path in disk.paths() {
            let bytes = disk.read_all(&path).unwrap();
            let whole = shown(&disk, &path, DumpOptions::default()).0.lines().count();
            for at in (0..bytes.len()).step_by(bytes.len() / 150 + 1) {
                for cut in [false, true] {
                    let mut damaged = bytes.clone();
                    if cut {
                        damaged.truncate(at);
                    } else {
                        damaged[at] ^= 0x10;
                    }
                    let copy = MemVfs::new();
                    copy.create_dir(Path::new("db")).unwrap();
                    copy.write_all(&path, &damaged).unwrap();
                    let (text, done) = shown(&copy, &path, DumpOptions::default());
                    assert!(text.lines().count() <= whole + 10);
                    match done {
                        // The end of a log may be missing.
                        Ok(()) => assert!(cut || bytes.is_empty(), "{} {at}", path.display()),
                        Err(DumpError::File(
                            Error::Corrupt { path: named, .. }
                            | Error::UnsupportedVersion { path: named, .. },
                        )) => assert_eq!(named, path),
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        }
        let none = shown(&disk, Path::new("db/nothing.txt"), DumpOptions::default()).1;
        assert!(matches!(none, Err(DumpError::File(Error::InvalidOption { .. }))));
    }
}

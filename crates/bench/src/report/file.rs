//! Output files. A regular file is replaced when its content is complete.

#![expect(clippy::disallowed_methods, reason = "output files are not part of a database")]

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lsmx::internals::db::check_output_path;
use lsmx::vfs::OsVfs;
use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::numbers::to_u64;
use crate::peers::lsmx::engine_error;

/// Maximum number of symbolic links that [`resolve_path`] follows to a missing file. Links can form a cycle. Linux has
/// the same limit.
const LINKS_MAX: usize = 40;
/// Paths of open files. If such a path leads to a regular file, a replacement would separate the file from its
/// descriptor: later writes to the descriptor would be lost.
const DESCRIPTORS: [&str; 4] = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"];

/// An output file that is written in parts. A regular file is replaced atomically by [`OutputFile::finish`]: after an
/// error or a crash, it has the old or the new content. If the path is a symbolic link, the link remains and its target
/// is replaced.
///
/// Pipes, devices, open files such as `/dev/stdout`, and files in a directory without write permission are written in
/// place. If an append fails, a regular file that is written in place ends with the last complete append.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    target: OutputTarget,
}

#[derive(Debug)]
enum OutputTarget {
    /// `complete_bytes` is the number of bytes of all complete appends.
    InPlace { file: fs::File, complete_bytes: u64 },
    /// `path` is the file that is replaced. It is not a symbolic link.
    Replacement { file: NamedTempFile, path: PathBuf },
}

impl OutputFile {
    /// Creates the temporary file, or opens a file that is written in place.
    ///
    /// # Errors
    /// The file cannot be created, or has the name of an engine file in a database directory.
    pub fn create(path: &Path) -> Result<OutputFile> {
        check_not_engine_file(path)?;
        let target = create_replacement(path).and_then(|replacement| match replacement {
            Some((file, path)) => Ok(OutputTarget::Replacement { file, path }),
            None => {
                fs::File::create(path).map(|file| OutputTarget::InPlace { file, complete_bytes: 0 })
            }
        });
        Ok(OutputFile { path: path.to_owned(), target: target.map_err(Error::io("write", path))? })
    }

    /// Returns the path of the temporary file, which remains if the process is killed.
    pub fn temporary_path(&self) -> Option<&Path> {
        match &self.target {
            OutputTarget::InPlace { .. } => None,
            OutputTarget::Replacement { file, .. } => Some(file.path()),
        }
    }

    /// Appends bytes to the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match &mut self.target {
            OutputTarget::InPlace { file, complete_bytes } => {
                let written = file.write_all(bytes);
                match written {
                    Ok(()) => *complete_bytes += to_u64(bytes.len()),
                    // Removes the part of `bytes` that was written. Ignores errors, because a pipe cannot be truncated.
                    Err(_) => drop(file.set_len(*complete_bytes)),
                }
                written
            }
            OutputTarget::Replacement { file, .. } => file.write_all(bytes),
        };
        written.map_err(Error::io("write", &self.path))
    }

    /// Syncs the file, and replaces the old file.
    ///
    /// # Errors
    /// The file cannot be synced or replaced.
    pub fn finish(self) -> Result<()> {
        let finish = || match self.target {
            OutputTarget::InPlace { file, .. } => {
                // Pipes and most devices cannot be synced.
                if file.metadata()?.is_file() { file.sync_all() } else { Ok(()) }
            }
            OutputTarget::Replacement { file, path } => {
                file.as_file().sync_all()?;
                file.persist(&path)?;
                sync_directory(parent(&path))
            }
        };
        finish().map_err(Error::io("write", &self.path))
    }
}

/// Writes an output file, see [`OutputFile`].
///
/// # Errors
/// The file cannot be written, or has the name of an engine file in a database directory.
pub fn write_file(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = OutputFile::create(path)?;
    file.append(content)?;
    file.finish()
}

/// Refuses a path that has the name of an engine file in a database directory, or that is a symbolic link to such a file.
fn check_not_engine_file(path: &Path) -> Result<()> {
    let check =
        |path: &Path| check_output_path(&OsVfs, path).map_err(engine_error("write the output"));
    check(path)?;
    check(&resolve_path(path))
}

/// Checks that an output file can be written, and neither creates nor changes it. Called before a long experiment starts.
///
/// # Errors
/// The file cannot be written, or has the name of an engine file in a database directory.
pub fn check_writable(path: &Path) -> Result<()> {
    check_not_engine_file(path)?;
    let check = || match create_replacement(path)? {
        Some(_) => Ok(()),
        // Opening a pipe waits for its reader, and closing the pipe ends the reader.
        None if is_pipe_or_device(path) => Ok(()),
        None => OpenOptions::new().append(true).create(true).open(path).map(drop),
    };
    check().map_err(Error::io("write", path))
}

fn is_pipe_or_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Checks that no output replaces another output or an input. `outputs` has the flag and the path of each output. Two
/// outputs may be the same pipe or device.
///
/// # Errors
/// [`Error::Contradiction`] if two paths lead to the same file.
pub fn check_distinct(outputs: &[(&str, &Path)], inputs: &[PathBuf]) -> Result<()> {
    let describe = |(flag, path): &(&str, &Path)| format!("{flag} {}", path.display());
    for (index, output) in outputs.iter().enumerate() {
        if is_pipe_or_device(output.1) {
            continue;
        }
        let file = resolve_path(output.1);
        let mut others = outputs[..index].iter();
        if let Some(other) = others.find(|other| resolve_path(other.1) == file) {
            let why = "both are the same file";
            return Err(Error::contradictory_arguments(describe(other), describe(output), why));
        }
        if let Some(input) = inputs.iter().find(|input| resolve_path(input) == file) {
            let (input, why) = (format!("the input {}", input.display()), "it would be replaced");
            return Err(Error::contradictory_arguments(describe(output), input, why));
        }
    }
    Ok(())
}

/// Resolves symbolic links and relative components. The file need not exist, even if a link leads to it.
pub(crate) fn resolve_path(path: &Path) -> PathBuf {
    if let Ok(resolved) = fs::canonicalize(path) {
        return resolved;
    }
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = fs::read_link(&path) else { break };
        path = parent(&path).join(target);
    }
    match fs::canonicalize(parent(&path)) {
        Ok(directory) => directory.join(path.file_name().unwrap_or_default()),
        Err(_) => path,
    }
}

/// Creates a file that can replace the file at `path`. Several processes may write to one path, so each process has a
/// temporary file of its own. Also returns the path without symbolic links. Returns `None` if `path` must be written in
/// place: it is not a regular file, it is an open file, or its directory is not writable.
fn create_replacement(path: &Path) -> io::Result<Option<(NamedTempFile, PathBuf)>> {
    // The last component of `a/`, `a/.` and `..` is a directory.
    let text = path.as_os_str().as_encoded_bytes();
    if !path.file_name().is_some_and(|name| text.ends_with(name.as_encoded_bytes())) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if is_pipe_or_device(path) || DESCRIPTORS.iter().any(|open| path.starts_with(open)) {
        return Ok(None);
    }
    let resolved = resolve_path(path);
    let permissions = match fs::symlink_metadata(&resolved) {
        Ok(found) if found.is_file() => {
            // A file without write permission is not replaced.
            OpenOptions::new().append(true).open(&resolved)?;
            Some(found.permissions())
        }
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".lsmx-").suffix(".tmp");
    // Temporary files are private by default. Output files have the permissions of all new files.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    match (builder.tempfile_in(parent(&resolved)), permissions) {
        (Ok(file), None) => Ok(Some((file, resolved))),
        (Ok(file), Some(permissions)) => {
            file.as_file().set_permissions(permissions)?;
            Ok(Some((file, resolved)))
        }
        (Err(error), Some(_)) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        // Errors of `tempfile` contain a random path.
        (Err(error), _) => Err(error.raw_os_error().map_or(error, io::Error::from_raw_os_error)),
    }
}

/// Returns the directory of a path. The directory of a file name is the current directory.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(unix)]
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

/// On systems other than Unix a directory cannot be opened as a file. Renames are assumed to be durable without a sync.
#[cfg(not(unix))]
pub(crate) fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn check_creates_no_file_and_refuses_directories() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        check_writable(&path("new")).unwrap();
        fs::write(path("old"), "old").unwrap();
        check_writable(&path("old")).unwrap();
        for name in ["missing/", "missing/.", "..", "", "missing/file"] {
            let error = check_writable(&path(name)).unwrap_err().to_string();
            assert!(error.starts_with("cannot write "), "{name}: {error}");
        }
        assert_eq!(names(directory.path()), ["old"]);
        assert_eq!(fs::read(path("old")).unwrap(), b"old");
    }

    /// Regression test: an interrupted write destroyed the previous result. A reader that has the old file open must
    /// therefore still read the old content.
    #[cfg(unix)]
    #[test]
    fn write_replaces_a_file_and_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let mut old = fs::File::open(&path).unwrap();
        write_file(&path, b"new").unwrap();
        assert_eq!(io::read_to_string(&mut old).unwrap(), "old");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(directory.path()), ["a.json"]);
    }

    /// Regression test: results and exports could replace the files of a database.
    #[test]
    fn engine_files_of_a_database_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let db = lsmx::Db::open(path("db"), lsmx::Options::default()).unwrap();
        db.close(None).unwrap();
        let current = fs::read(path("db/CURRENT")).unwrap();
        let mut refused = vec!["db/CURRENT", "db/../db/999999.sst"];
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("db/CURRENT", path("link")).unwrap();
            std::os::unix::fs::symlink("db/999999.sst", path("dangling")).unwrap();
            refused.extend(["link", "dangling"]);
        }
        let before = names(&path("db"));
        for name in refused {
            for result in [check_writable(&path(name)), write_file(&path(name), b"new")] {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("has the name of an engine file"), "{name}: {error}");
            }
        }
        assert_eq!(names(&path("db")), before);
        assert_eq!(fs::read(path("db/CURRENT")).unwrap(), current);
        for name in ["db/result.json", "999999.sst"] {
            check_writable(&path(name)).unwrap();
            write_file(&path(name), b"new").unwrap();
        }
    }

    /// Regression test: of two outputs with the same path only the last remained, and an output could replace an input.
    #[test]
    fn outputs_with_the_path_of_another_output_or_an_input_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("sub")).unwrap();
        fs::write(path("trace"), "").unwrap();
        let check = |one: &str, two: &str| {
            let (one, two) = (path(one), path(two));
            check_distinct(&[("--json", &one), ("--csv", &two)], &[path("trace")])
        };
        check("a", "b").unwrap();
        check("a", "sub/a").unwrap();
        let error = check("a", "sub/../a").unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("a contradicts --csv "), "{error}");
        let error = check("a", "sub/../trace").unwrap_err().to_string();
        assert!(error.contains("trace contradicts the input "), "{error}");
        check("trace", "a").unwrap_err();
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("trace", path("link")).unwrap();
            check("link", "a").unwrap_err();
            // Regression test: a link to a missing file was another file than its target.
            for (target, link) in [("sub/new", "one"), ("../two", "sub/new"), ("cycle", "cycle")] {
                std::os::unix::fs::symlink(target, path(link)).unwrap();
            }
            check("one", "two").unwrap_err();
            check("cycle", "a").unwrap();
            let null = Path::new("/dev/null");
            check_distinct(&[("--json", null), ("--csv", null)], &[]).unwrap();
        }
    }

    /// Regression test: an output file had no content until its writer had succeeded.
    #[test]
    fn unfinished_output_leaves_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.tsv");
        fs::write(&path, "old").unwrap();
        let mut file = OutputFile::create(&path).unwrap();
        file.append(b"half").unwrap();
        assert!(file.temporary_path().unwrap().exists());
        drop(file);
        assert_eq!(names(directory.path()), ["a.tsv"]);
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    /// Regression test: the target of a link was truncated before the new content was complete.
    #[cfg(unix)]
    #[test]
    fn write_through_a_symbolic_link_replaces_its_target() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("sub")).unwrap();
        std::os::unix::fs::symlink("sub/target", path("link")).unwrap();
        check_writable(&path("link")).unwrap();
        assert!(!path("sub/target").exists());
        for text in ["one", "two"] {
            write_file(&path("link"), text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(path("sub/target")).unwrap(), text);
        }
        let mut file = OutputFile::create(&path("link")).unwrap();
        file.append(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(path("sub/target")).unwrap(), "two");
        assert!(path("link").is_symlink());
        assert_eq!(names(&path("sub")), ["target"]);
    }
}

//! Stores the results of finished runs in a directory, so that an interrupted command can be resumed.
//!
//! ```text
//! DIR/plan.json      version, build, command line, hashes of the input files
//! DIR/000007.json    the result of the eighth run, after the run has finished
//! DIR/LOCK           locked by the running command
//! ```
//! Files are written atomically: the content is written to a temporary file, synced and renamed, and the directory is
//! synced. Opening the directory of a different command or build fails, because results of different commands must not
//! be combined.

#![expect(clippy::disallowed_methods, reason = "result files are not part of a database")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Result};
use crate::report::file::{resolve_path, sync_directory};

const PLAN: &str = "plan.json";
const LOCK: &str = "LOCK";
const UNFINISHED: &str = ".tmp";
const CHUNK_BYTES: usize = 1 << 16;

/// Identity of a command: version, executable, arguments and input files. Results of commands with different identities
/// must not be combined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// Version of lsmx that runs the command.
    pub version: String,
    /// Hash of the executable. Empty if the executable cannot be read.
    pub build: String,
    /// Command line without the flags that select the output.
    pub command: String,
    /// Hashes of the input files by path.
    pub inputs: BTreeMap<String, String>,
    /// Number of runs, including repetitions.
    pub cells: u64,
}

impl RunIdentity {
    /// Returns the identity of `command`, which the current executable runs.
    ///
    /// # Errors
    /// An input file cannot be read.
    pub fn new(command: String, inputs: &[&Path], cells: u64) -> Result<RunIdentity> {
        let program = std::env::current_exe().ok().and_then(|path| hash_file(&path).ok());
        let mut hashes = BTreeMap::new();
        for path in inputs {
            let failed = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
            hashes.insert(path.display().to_string(), hash_file(path).map_err(failed)?);
        }
        Ok(RunIdentity {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: program.unwrap_or_default(),
            command,
            inputs: hashes,
            cells,
        })
    }

    /// Returns a message if the results of `other` cannot be reused because the identities differ.
    pub(super) fn differs_from(&self, other: &RunIdentity) -> Option<String> {
        if self.version != other.version {
            return Some(format!(
                "it holds cells of lsmx {}, this is {}",
                other.version, self.version
            ));
        }
        if self.command != other.command {
            return Some(format!("it holds cells of the command line `{}`", other.command));
        }
        if self.build != other.build {
            return Some("it holds cells of another build of the program".to_owned());
        }
        if self.inputs != other.inputs {
            let changed =
                self.inputs.iter().find(|(name, hash)| other.inputs.get(*name) != Some(hash));
            let name = changed.map_or("an input file", |(name, _)| name.as_str());
            return Some(format!("{name} has changed since its cells were run"));
        }
        (self.cells != other.cells).then(|| format!("it was begun for {} cells", other.cells))
    }
}

/// Directory with the results of finished runs. The directory is locked until this value is dropped.
#[derive(Debug)]
pub struct RunDirectory {
    directory: PathBuf,
    _lock: File,
}

impl RunDirectory {
    /// Returns whether a command has created the directory.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn exists(directory: &Path) -> Result<bool> {
        directory.join(PLAN).try_exists().map_err(Error::io("look into", directory))
    }

    /// Checks that no output file has the name of a file that a run writes or removes in the directory. `outputs` has the
    /// flag and the path of each output.
    ///
    /// # Errors
    /// [`Error::Contradiction`] if an output has such a name.
    pub fn check_outputs(directory: &Path, outputs: &[(&str, &Path)]) -> Result<()> {
        let resolved = resolve_path(directory);
        for (flag, path) in outputs {
            let file = resolve_path(path);
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let is_own = name == LOCK || is_finished(&name) || is_unfinished(&name);
            if is_own && file.parent() == Some(resolved.as_path()) {
                let output = format!("{flag} {}", path.display());
                let directory = format!("--resume {}", directory.display());
                let why = "a file of that directory would be replaced";
                return Err(Error::contradictory_arguments(output, directory, why));
            }
        }
        Ok(())
    }

    /// Opens or creates the directory for a command.
    ///
    /// # Errors
    /// [`Error::Resume`] if the directory contains results of another command or foreign files, or if a running process
    /// has locked the directory.
    pub fn open(directory: &Path, identity: &RunIdentity) -> Result<RunDirectory> {
        let failed =
            |action| move |source| Error::Io { action, path: directory.to_owned(), source };
        let refused = |why: String| Error::Resume { directory: directory.to_owned(), why };
        fs::create_dir_all(directory).map_err(failed("make a directory at"))?;
        let ours = |name: &String| name == LOCK || is_unfinished(name);
        if !Self::exists(directory)? && !list_file_names(directory)?.iter().all(ours) {
            return Err(refused(format!("it has files but no {PLAN}")));
        }
        let lock = File::options().create(true).append(true).open(directory.join(LOCK));
        let lock = lock.map_err(failed("lock a file in"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(refused("another run is at work there".to_owned()));
            }
            Err(fs::TryLockError::Error(source)) => return Err(failed("lock a file in")(source)),
        }
        let finished = RunDirectory { directory: directory.to_owned(), _lock: lock };
        match finished.read_json::<RunIdentity>(PLAN)? {
            Some(before) => {
                if let Some(why) = identity.differs_from(&before) {
                    return Err(refused(why));
                }
            }
            None => finished.write_json(PLAN, identity)?,
        }
        // The files of another command or of the user are not removed.
        for name in list_file_names(directory)?.iter().filter(|name| is_unfinished(name)) {
            fs::remove_file(directory.join(name))
                .map_err(failed("remove an unfinished file in"))?;
        }
        Ok(finished)
    }

    /// Returns the result of the run with this index, or `None` if the run is not finished.
    ///
    /// # Errors
    /// The file with the result cannot be read or is malformed.
    pub fn read_cell<C: DeserializeOwned>(&self, place: u64) -> Result<Option<C>> {
        self.read_json(&cell_file_name(place))
    }

    /// Stores the result of a finished run.
    ///
    /// # Errors
    /// The file with the result cannot be written.
    pub fn store_cell<C: Serialize>(&self, place: u64, cell: &C) -> Result<()> {
        self.write_json(&cell_file_name(place), cell)
    }

    fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.directory.join(name);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Io { action: "read", path, source }),
        };
        serde_json::from_slice(&text).map(Some).map_err(|error| Error::Resume {
            directory: self.directory.clone(),
            why: format!(
                "{name} is not what a run writes ({error}); without it that part runs anew"
            ),
        })
    }

    fn write_json<T: Serialize>(&self, name: &str, content: &T) -> Result<()> {
        let path = self.directory.join(name);
        let written =
            serde_json::to_vec_pretty(content).map_err(io::Error::from).and_then(|text| {
                let unfinished = self.directory.join(format!("{name}{UNFINISHED}"));
                let mut file = File::create(&unfinished)?;
                file.write_all(&text)?;
                file.sync_all()?;
                fs::rename(&unfinished, &path)?;
                sync_directory(&self.directory)
            });
        written.map_err(|source| Error::Io { action: "write", path: path.clone(), source })
    }
}

fn cell_file_name(place: u64) -> String {
    format!("{place:06}.json")
}

/// Returns whether a complete write of [`RunDirectory`] leaves a file with this name.
fn is_finished(name: &str) -> bool {
    let place = name.strip_suffix(".json").and_then(|place| place.parse().ok());
    name == PLAN || place.is_some_and(|place| cell_file_name(place) == name)
}

/// Returns whether an interrupted write of [`RunDirectory`] leaves a file with this name.
fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).is_some_and(is_finished)
}

fn list_file_names(directory: &Path) -> Result<Vec<String>> {
    let failed = |source| Error::Io { action: "list", path: directory.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

pub(crate) fn hash_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Xxh3::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match io::Read::read(&mut file, &mut chunk)? {
            0 => return Ok(format!("{:032x}", hash.digest128())),
            bytes => hash.update(&chunk[..bytes]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(command: &str) -> RunIdentity {
        RunIdentity::new(command.to_owned(), &[], 3).unwrap()
    }

    fn refusal(directory: &Path, identity: &RunIdentity) -> String {
        let error = RunDirectory::open(directory, identity).unwrap_err();
        assert!(error.is_usage(), "{error}");
        error.to_string()
    }

    #[test]
    fn resume_stored_cells_are_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        let finished = RunDirectory::open(&path, &identity("x")).unwrap();
        assert_eq!(finished.read_cell::<Vec<f64>>(1).unwrap(), None);
        // These numbers are read back unchanged only if JSON numbers are parsed exactly.
        let cell = vec![0.1, 1.0 / 3.0, 9_007_199_254_740_993.0, 2.225_073_858_507_201e-308];
        finished.store_cell(1, &cell).unwrap();
        drop(finished);
        let finished = RunDirectory::open(&path, &identity("x")).unwrap();
        assert_eq!(finished.read_cell::<Vec<f64>>(1).unwrap(), Some(cell));
        assert_eq!(finished.read_cell::<Vec<f64>>(0).unwrap(), None);
    }

    #[test]
    fn resume_unfinished_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        drop(RunDirectory::open(directory.path(), &identity("x")).unwrap());
        let half = directory.path().join("000002.json.tmp");
        fs::write(&half, "{\"half").unwrap();
        let finished = RunDirectory::open(directory.path(), &identity("x")).unwrap();
        assert!(!half.exists());
        assert_eq!(finished.read_cell::<u64>(2).unwrap(), None);
    }

    /// Regression test: all files `*.tmp` were removed, and even if the directory was refused.
    #[test]
    fn resume_keeps_files_of_the_user_and_of_refused_directories() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        drop(RunDirectory::open(path, &identity("x")).unwrap());
        let unfinished = ["plan.json.tmp", "000002.json.tmp", "1000000.json.tmp"];
        let foreign = ["thesis.tmp", "2.json.tmp", "0000002.json.tmp", "+00002.json.tmp", ".tmp"];
        for name in unfinished.iter().chain(&foreign) {
            fs::write(path.join(name), "precious").unwrap();
        }
        refusal(path, &identity("y"));
        assert!(unfinished.iter().chain(&foreign).all(|name| path.join(name).exists()));
        drop(RunDirectory::open(path, &identity("x")).unwrap());
        assert!(foreign.iter().all(|name| path.join(name).exists()));
        assert!(!unfinished.iter().any(|name| path.join(name).exists()));

        let strange = path.join("strange");
        fs::create_dir(&strange).unwrap();
        fs::write(strange.join("thesis.tmp"), "precious").unwrap();
        assert!(refusal(&strange, &identity("x")).contains("no plan.json"));
    }

    /// Regression test: an output could replace the plan or the result of a finished run.
    #[test]
    fn resume_outputs_with_names_of_the_directory_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("sub")).unwrap();
        let check = |name: &str| {
            let output = directory.path().join(name);
            RunDirectory::check_outputs(&directory.path().join("sub/.."), &[("--csv", &output)])
        };
        for name in ["plan.json", "sub/../000000.json", "1000000.json", "LOCK", "000002.json.tmp"] {
            let error = check(name).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(name), "{error}");
        }
        for name in ["a.json", "1.json", "0000002.json", "sub/plan.json"] {
            check(name).unwrap();
        }
    }

    #[test]
    fn resume_directory_of_another_run_is_refused_with_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let first = identity("explore --policy full");
        let held = RunDirectory::open(path, &first).unwrap();
        assert!(refusal(path, &first).contains("another run is at work"));
        drop(held);
        let why = refusal(path, &identity("explore --policy tiering"));
        assert!(why.contains("explore --policy full"), "{why}");
        let why = refusal(path, &RunIdentity { version: "9.9.9".to_owned(), ..first.clone() });
        assert!(why.contains("9.9.9"), "{why}");
        let why = refusal(path, &RunIdentity { build: "other".to_owned(), ..first.clone() });
        assert!(why.contains("build"), "{why}");
        let why = refusal(path, &RunIdentity { cells: 4, ..first.clone() });
        assert!(why.contains("3 cells"), "{why}");

        let inputs = |hash: &str| {
            let inputs = BTreeMap::from([("p.toml".to_owned(), hash.to_owned())]);
            RunIdentity { inputs, ..first.clone() }
        };
        let other = directory.path().join("inputs");
        drop(RunDirectory::open(&other, &inputs("1")).unwrap());
        assert!(refusal(&other, &inputs("2")).contains("p.toml has changed"));

        let strange = directory.path().join("strange");
        fs::create_dir(&strange).unwrap();
        fs::write(strange.join("thesis.txt"), "precious").unwrap();
        assert!(refusal(&strange, &first).contains("no plan.json"));
        assert!(!strange.join(LOCK).exists());
    }

    #[test]
    fn resume_damaged_cell_error_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let finished = RunDirectory::open(directory.path(), &identity("x")).unwrap();
        fs::write(directory.path().join("000000.json"), "{").unwrap();
        let error = finished.read_cell::<u64>(0).unwrap_err().to_string();
        assert!(error.contains("000000.json"), "{error}");
    }
}

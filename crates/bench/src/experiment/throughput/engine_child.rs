//! The child process of `lsmx bench --memory-limit`. The child runs workloads of one engine when the parent requests
//! them.

use std::ffi::OsString;
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};

use lsmx::vfs::{OsVfs, Vfs as _};
use lsmx_base::error_chain::error_chain;
use serde_json::Value;

use super::Config;
use super::database::{BenchDatabase, BenchPlan, WorkloadStep, has_entries};
use super::engine_process::{Answer, Request};
use crate::error::{Error, Result};
use crate::experiment::NoProgress;
use crate::peers::EngineKind;

/// Environment variables with the name of the engine and the path of the database.
const ENGINE: &str = "LSMX_BENCH_ENGINE";
const DATABASE: &str = "LSMX_BENCH_DATABASE";

/// The engine and the database of a child process.
#[derive(Clone, Debug)]
pub struct EngineAssignment {
    engine: EngineKind,
    database: PathBuf,
}

impl EngineAssignment {
    /// Returns the assignment of this process, or `None` if this process is not a child of `lsmx bench`.
    ///
    /// # Errors
    /// The engine is unknown.
    pub fn from_env() -> Result<Option<EngineAssignment>> {
        let Some(engine) = std::env::var_os(ENGINE) else { return Ok(None) };
        let engine = engine.to_string_lossy();
        let engine = match EngineKind::Lsmx.name() == engine {
            true => EngineKind::Lsmx,
            false => EngineKind::parse_peer(&engine)?,
        };
        let database = std::env::var_os(DATABASE).unwrap_or_default().into();
        Ok(Some(EngineAssignment { engine, database }))
    }

    /// Returns the environment variables of a child process.
    pub(super) fn environment(
        engine: EngineKind,
        database: &Path,
    ) -> [(&'static str, OsString); 2] {
        [(ENGINE, engine.name().into()), (DATABASE, database.as_os_str().to_owned())]
    }

    pub(in crate::experiment) fn engine(&self) -> EngineKind {
        self.engine
    }

    pub(in crate::experiment) fn database(&self) -> &Path {
        &self.database
    }

    /// Runs workloads at the request of the parent until the parent closes the database. `config` is the configuration
    /// of the parent.
    ///
    /// # Errors
    /// A request is malformed, or an answer cannot be written.
    pub fn serve_workloads(&self, config: &Config) -> Result<()> {
        let mut child = EngineChild { assignment: self, config, state: None };
        serve_requests(|request| child.answer(request))
    }

    /// Removes the files of an existing database from the page cache. Linux charges a cached page to the memory control
    /// group of the process that first read or wrote the page. Pages of an earlier process would therefore not count
    /// toward the limit.
    pub(in crate::experiment) fn drop_cached_files(&self) -> Result<()> {
        if has_entries(&self.database) { drop_cached_files(&self.database) } else { Ok(()) }
    }
}

/// Answers the requests of the parent until the parent closes the database.
///
/// # Errors
/// A request is malformed, or an answer cannot be written.
pub(in crate::experiment) fn serve_requests(
    mut answer: impl FnMut(Request) -> Result<Value>,
) -> Result<()> {
    for line in receive_lines() {
        let request = serde_json::from_str(&line)?;
        let answer = match answer(request) {
            Ok(measured) => Answer::Done(measured),
            Err(error) => Answer::Failed { text: error_chain(&error), is_usage: error.is_usage() },
        };
        let line = format!("{}\n", serde_json::to_string(&answer)?);
        let mut out = io::stdout().lock();
        out.write_all(line.as_bytes())
            .and_then(|()| out.flush())
            .map_err(Error::io("write to", Path::new("standard output")))?;
        if matches!(request, Request::Close) {
            break;
        }
    }
    Ok(())
}

struct EngineChild<'a> {
    assignment: &'a EngineAssignment,
    config: &'a Config,
    /// `None` before the first request. The parent moves this process into its memory control group before it sends the
    /// first request. Memory allocated earlier would not count toward the limit.
    state: Option<ChildState>,
}

struct ChildState {
    steps: Vec<WorkloadStep>,
    plan: BenchPlan,
    database: BenchDatabase,
}

impl EngineChild<'_> {
    fn answer(&mut self, request: Request) -> Result<Value> {
        let state = match &mut self.state {
            Some(state) => state,
            none => none.insert(ChildState::open(self.assignment, self.config)?),
        };
        match request {
            Request::Run(place) => {
                let step = state.steps.iter().find(|step| step.place == place);
                let known = || format!("below {}", state.steps.len());
                let step =
                    step.ok_or_else(|| Error::invalid_argument("the step", place, known()))?;
                let cells = state.database.run_step(*step, &state.plan, &mut NoProgress)?;
                Ok(serde_json::to_value(cells)?)
            }
            Request::Measure => Err(Error::invalid_argument("the request", "measure", "run")),
            Request::Close => state.database.close().map(|()| Value::Null),
        }
    }
}

impl ChildState {
    fn open(assignment: &EngineAssignment, config: &Config) -> Result<ChildState> {
        let steps = config.workload_steps();
        let plan = config.bench_plan(&steps)?;
        assignment.drop_cached_files()?;
        let database = BenchDatabase::new(assignment.engine, assignment.database.clone(), &plan)?;
        Ok(ChildState { steps, plan, database })
    }
}

/// Removes the files in a directory tree from the page cache.
fn drop_cached_files(directory: &Path) -> Result<()> {
    let entries = std::fs::read_dir(directory).map_err(Error::io("read", directory))?;
    for entry in entries {
        let path = entry.map_err(Error::io("read", directory))?.path();
        if path.is_dir() {
            drop_cached_files(&path)?;
            continue;
        }
        let drop_pages = || -> io::Result<()> {
            let file = OsVfs.open(&path)?;
            // The kernel drops only clean pages from the page cache, so the file is synced first.
            file.sync()?;
            file.drop_cached_pages(0, file.len()?);
            Ok(())
        };
        drop_pages().map_err(Error::io("sync", &path))?;
    }
    Ok(())
}

/// Returns the lines of standard input. This process exits when standard input ends, even while a workload runs.
fn receive_lines() -> Receiver<String> {
    let (sender, lines) = sync_channel(1);
    #[expect(clippy::disallowed_methods, reason = "reads requests; no database uses the thread")]
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(io::Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    lines
}

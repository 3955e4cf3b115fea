//! Parent side of the child processes of `lsmx bench --memory-limit`. Each child runs the workloads of one engine in
//! its own memory control group.
//!
//! A child is a process of the same program with the same arguments. Environment variables contain its engine and its
//! database. The parent writes one `Request` per line to standard input of the child. The child answers each request
//! with one line on standard output, an `Answer`. A child ends when its standard input ends, so that no child outlives
//! a killed parent.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::database::WorkloadStep;
use super::engine_child::EngineAssignment;
use super::memory_limit::MemoryLimit;
use super::result::ThroughputCell;
use crate::error::{EngineProcessFailure, Error, Result};
use crate::experiment::Progress;
use crate::memory_group::{GroupVersion, MemoryGroup};
use crate::peers::EngineKind;

/// Link to the executable of this process. The link stays valid if the executable file is replaced during the run.
const PROGRAM: &str = "/proc/self/exe";

/// A request to a child process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::experiment) enum Request {
    /// Runs the workload with this index in the list of workloads, and returns its results.
    Run(u64),
    /// Runs the experiment, and returns its result.
    Measure,
    /// Closes the database.
    Close,
}

/// The answer of a child process to a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// The requested measurements, or null after [`Request::Close`].
    Done(Value),
    Failed {
        text: String,
        is_usage: bool,
    },
}

/// Handle of the list of running child processes. All clones of a handle share the list.
#[derive(Clone, Debug, Default)]
pub struct EngineProcesses(Arc<Mutex<ProcessList>>);

#[derive(Debug, Default)]
struct ProcessList {
    running: Vec<RunningProcess>,
    /// True after [`EngineProcesses::kill_all`] was called. No process starts afterwards.
    is_closed: bool,
}

impl EngineProcesses {
    fn lock(&self) -> MutexGuard<'_, ProcessList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills all child processes, waits until they have ended, and removes their groups. No process starts afterwards.
    pub fn kill_all(&self) {
        let mut list = self.lock();
        list.is_closed = true;
        list.running.clear();
    }

    /// Calls `inspect` with a process, then ends the process and removes its memory control group. Returns `None` if
    /// [`EngineProcesses::kill_all`] has already ended the process.
    fn end<T>(&self, id: u32, inspect: impl FnOnce(&mut RunningProcess) -> T) -> Option<T> {
        // The lock is held until the group is removed. A concurrent `kill_all` waits for the lock, so this process does
        // not exit before the group is removed.
        let mut list = self.lock();
        let place = list.running.iter().position(|running| running.child.id() == id)?;
        Some(inspect(&mut list.running.swap_remove(place)))
    }
}

/// A child process and its memory control group. Dropping the value kills the process and removes the group.
#[derive(Debug)]
struct RunningProcess {
    child: Child,
    // This field is dropped after the method `drop` has ended the process.
    group: MemoryGroup,
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // `kill` fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child process that runs the workloads of one engine. Dropping the handle ends the process.
#[derive(Debug)]
pub(in crate::experiment) struct EngineProcess {
    engine: EngineKind,
    id: u32,
    limit_bytes: u64,
    processes: EngineProcesses,
    group_version: GroupVersion,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl EngineProcess {
    /// Starts a process and moves it into a new memory control group. The process allocates no memory for workloads
    /// before its first request.
    pub(in crate::experiment) fn start(
        engine: EngineKind,
        database: &Path,
        limit: &MemoryLimit,
    ) -> Result<EngineProcess> {
        let mut command = Command::new(PROGRAM);
        command.args(&limit.arguments).envs(EngineAssignment::environment(engine, database));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A terminal sends SIGINT to all processes of a process group. The child has its own process group, because
        // only the parent handles SIGINT.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);

        let failed = |failure| Error::EngineProcess {
            engine: engine.name(),
            step: "start".to_owned(),
            failure,
        };
        let mut list = limit.processes.lock();
        if list.is_closed {
            return Err(failed(EngineProcessFailure::Interrupted));
        }
        let mut child =
            command.spawn().map_err(Error::io("start the program", Path::new(PROGRAM)))?;
        let (id, pipes) = (child.id(), child.stdin.take().zip(child.stdout.take()));
        let group = MemoryGroup::create_for(id, limit.bytes);
        let (group, (requests, answers)) = match (group, pipes) {
            (Ok(group), Some(pipes)) => (group, pipes),
            (group, _) => {
                let _ = child.kill();
                let _ = child.wait();
                let reason = group.err().unwrap_or_default();
                return Err(failed(EngineProcessFailure::NoGroup { reason }));
            }
        };
        let group_version = group.version();
        list.running.push(RunningProcess { child, group });
        drop(list);
        Ok(EngineProcess {
            engine,
            id,
            limit_bytes: limit.bytes,
            processes: limit.processes.clone(),
            group_version,
            requests,
            answers: BufReader::new(answers),
        })
    }

    pub(super) fn group_version(&self) -> GroupVersion {
        self.group_version
    }

    /// Runs a workload in the child process and returns its measurements.
    pub(super) fn run_step(
        &mut self,
        step: &WorkloadStep,
        progress: &mut dyn Progress,
    ) -> Result<Vec<ThroughputCell>> {
        let name = step.argument.to_string();
        progress.begin_phase(&format!("{}: {name}", self.engine), 0);
        let cells = self.request(Request::Run(step.place), &name);
        progress.end_phase();
        cells
    }

    /// Runs the experiment `name` in the child process and returns its measurements.
    pub(in crate::experiment) fn measure<T: DeserializeOwned>(
        &mut self,
        name: &str,
        progress: &mut dyn Progress,
    ) -> Result<T> {
        progress.begin_phase(&format!("{}: {name}", self.engine), 0);
        let cell = self.request(Request::Measure, name);
        progress.end_phase();
        cell
    }

    /// Closes the database and ends the process.
    pub(in crate::experiment) fn close(mut self) -> Result<()> {
        self.request(Request::Close, "close")
    }

    /// Sends a request and waits for the answer. `name` describes the request in errors.
    fn request<T: DeserializeOwned>(&mut self, request: Request, name: &str) -> Result<T> {
        let line = format!("{}\n", serde_json::to_string(&request)?);
        let answer = self.requests.write_all(line.as_bytes()).and_then(|()| {
            let mut answer = String::new();
            self.answers.read_line(&mut answer).map(|_| answer)
        });
        let failure = match answer {
            Ok(answer) if answer.ends_with('\n') => {
                let wrong =
                    || EngineProcessFailure::WrongAnswer { answer: answer.trim().to_owned() };
                match serde_json::from_str(&answer) {
                    Ok(Answer::Done(measured)) => match serde_json::from_value(measured) {
                        Ok(measured) => return Ok(measured),
                        Err(_) => wrong(),
                    },
                    Ok(Answer::Failed { text, is_usage }) => {
                        EngineProcessFailure::Reported { text, is_usage }
                    }
                    Err(_) => wrong(),
                }
            }
            // The pipes of an ended process are closed.
            Ok(_) => self.end_failure(),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.end_failure(),
            Err(source) => EngineProcessFailure::Io { source },
        };
        Err(Error::EngineProcess { engine: self.engine.name(), step: name.to_owned(), failure })
    }

    /// Returns the reason why the process has ended.
    fn end_failure(&self) -> EngineProcessFailure {
        let failure = self.processes.end(self.id, |process| match process.child.wait() {
            Ok(_) if process.group.has_killed() => {
                EngineProcessFailure::OutOfMemory { limit_bytes: self.limit_bytes }
            }
            Ok(status) => EngineProcessFailure::Ended { status },
            Err(source) => EngineProcessFailure::Io { source },
        });
        failure.unwrap_or(EngineProcessFailure::Interrupted)
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.processes.end(self.id, |_| ());
    }
}

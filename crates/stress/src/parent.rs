//! The parent process of the stress test. It starts and kills children, and checks that the database contains all
//! acknowledged commits.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lsmx::vfs::OsVfs;
use serde::Serialize;

use crate::Outcome;
use crate::checkpoints::close_and_verify;
use crate::compare::KeyspaceView;
use crate::keyspace_churn::count_steps;
use crate::messages::Message;
use crate::{ChildCounts, ORDERS, Orders, loads, open};
use lsmx_testkit::TestRng;

/// Maximum number of kills in a plan that [`KillPlan::draw`] returns.
const KILLS_MAX: u64 = 10;
/// Maximum number of acknowledged commits before a kill, in a plan that [`KillPlan::draw`] returns.
const ACKNOWLEDGEMENTS_MAX: u64 = 5_000;
/// Time without a message after which a child counts as hung, in seconds.
const SILENCE_MAX_S: u64 = 60;

/// Command that starts a child. The environment variable [`ORDERS`] holds the parameters of the child.
#[derive(Clone, Debug)]
pub struct ChildCommand {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments of the program.
    pub arguments: Vec<String>,
    /// Environment variables in addition to [`ORDERS`].
    pub variables: Vec<(&'static str, String)>,
}

/// Parameters of the kill test of one database.
#[derive(Clone, Copy, Debug)]
pub struct KillPlan {
    /// Seed of all random choices. The exact times of kills also depend on thread scheduling.
    pub seed: u64,
    /// Number of kills, at least 1.
    pub kills: u64,
    /// Maximum number of acknowledged commits before a kill, at least 1.
    pub acknowledgements_max: u64,
    /// Whether some children run with injected write errors.
    pub faults: bool,
    /// True if the database files of a failed run are kept. A copy of the files from before the last check is kept too.
    pub keep: bool,
}

impl KillPlan {
    /// Draws a plan with a random number of kills and a random maximum number of commits before a kill.
    #[must_use]
    pub fn draw(seed: u64, faults: bool) -> KillPlan {
        let mut rng = TestRng::new(!seed);
        let kills = 1 + rng.below(KILLS_MAX);
        let acknowledgements_max = ACKNOWLEDGEMENTS_MAX / *rng.choose(&[50, 8, 1]);
        KillPlan { seed, kills, acknowledgements_max, faults, keep: true }
    }
}

/// Result counts of the kill test of one database, or their sums over several databases.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct KillCounts {
    /// Number of killed children.
    pub kills: u64,
    /// Number of acknowledged commits.
    pub acknowledged: u64,
    /// Number of complete checks of the database contents and files.
    #[serde(rename = "looks")]
    pub checks: u64,
    /// Numbers of operations that the children ran.
    pub reached: ChildCounts,
}

impl KillCounts {
    /// Adds the counts of another database.
    pub fn add(&mut self, other: KillCounts) {
        self.kills += other.kills;
        self.acknowledged += other.acknowledged;
        self.checks += other.checks;
        self.reached.add(other.reached);
    }
}

/// Creates a database in a new subdirectory of `home`, and starts and kills children that write to this database.
///
/// # Errors
/// Returns an error if the database violates a guarantee.
pub fn kill_many(plan: KillPlan, children: &ChildCommand, home: &Path) -> Outcome<KillCounts> {
    let failed = |error| format!("cannot create a directory in {}: {error}", home.display());
    let own = tempfile::Builder::new().prefix("stress-").tempdir_in(home).map_err(failed)?;
    let mut run = KillRun::new(plan, children, own.path());
    match (0..plan.kills).try_for_each(|round| run.run_round(round)) {
        Ok(()) => Ok(run.sum),
        Err(what) if plan.keep => Err(format!("{what}\nfiles: {}", own.keep().display())),
        Err(what) => Err(what),
    }
}

struct KillRun<'a> {
    plan: KillPlan,
    children: &'a ChildCommand,
    dir: PathBuf,
    /// Directory for a copy of the database files. The files are copied before each check.
    before: PathBuf,
    rng: TestRng,
    writers: u64,
    /// Number of acknowledged commits of each writer, followed by the numbers of keyspace churn steps and of loads.
    counts: Vec<u64>,
    /// Number of kills since the last check. At each kill, each writer may have one commit that was applied but not
    /// acknowledged.
    kills_since_check: u64,
    sum: KillCounts,
}

impl<'a> KillRun<'a> {
    fn new(plan: KillPlan, children: &'a ChildCommand, home: &Path) -> KillRun<'a> {
        let mut rng = TestRng::new(plan.seed);
        let writers = 1 + rng.below(4);
        let counts = (0..writers + 2).map(|_| 0).collect();
        let (dir, before) = (home.join("db"), home.join("before"));
        let (kills_since_check, sum) = (0, KillCounts::default());
        KillRun { plan, children, dir, before, rng, writers, counts, kills_since_check, sum }
    }

    /// Starts a child, kills it, and checks the database. Some rounds skip the check. The next child then recovers the
    /// database, and may be killed during recovery.
    fn run_round(&mut self, round: u64) -> Outcome {
        let dir = self.dir.to_str().ok_or_else(|| format!("{:?} is not UTF-8", self.dir))?;
        let dir = dir.to_owned();
        let (writers, KillPlan { seed, faults, .. }) = (self.writers, self.plan);
        let orders = Orders { dir, seed, round: self.rng.next_u64() >> 1, writers, faults };
        // One child in four is killed during the open, one in four soon after the open, and the others later.
        let after = match self.rng.below(4) {
            0 => self.rng.below(3),
            1 => self.rng.below(200),
            _ => self.rng.below(self.plan.acknowledgements_max),
        };
        let with_round = |what| format!("round {round}, killed after {after}: {what}");
        let last = self.kill_one(&orders, after).map_err(with_round)?;
        self.sum.kills += 1;
        for (count, last) in self.counts.iter_mut().zip(last) {
            self.sum.acknowledged += last.saturating_sub(*count);
            *count = last.max(*count);
        }
        self.kills_since_check += 1;
        if round + 1 < self.plan.kills && self.rng.is_one_in(2) {
            return Ok(());
        }
        self.check_database().map_err(with_round)
    }

    /// Starts a child and kills it after `acknowledged` messages.
    ///
    /// Returns the number of the last acknowledged commit of each writer, followed by the numbers of the last keyspace
    /// churn step and of the last load. A number is 0 if the child did not send it.
    fn kill_one(&mut self, orders: &Orders, acknowledged: u64) -> Outcome<Vec<u64>> {
        let ChildCommand { program, arguments, variables } = self.children;
        let mut child = Command::new(program)
            .args(arguments)
            .env(ORDERS, orders.to_text())
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start a child: {error}"))?;
        let mut messages = BufReader::new(child.stderr.take().ok_or("no pipe")?);
        let watched = WatchedChild::new(child);
        let mut last = vec![0; self.counts.len()];
        let mut reached = ChildCounts::default();
        let (mut bytes, mut count, mut killed) = ([0; 16], 0, false);
        while messages.read_exact(&mut bytes).is_ok() {
            let malformed = || format!("malformed message {:?}", bytes.escape_ascii().to_string());
            match Message::from_bytes(bytes) {
                Message::Opening => {}
                Message::Progress { actor, number } => {
                    let at = usize::try_from(actor).ok().and_then(|actor| last.get_mut(actor));
                    *at.ok_or_else(malformed)? = number;
                }
                Message::Count { index, count } => {
                    reached.set(index, count).ok_or_else(malformed)?;
                    continue;
                }
            }
            if !killed && count >= acknowledged {
                watched.kill().map_err(|error| format!("cannot kill a child: {error}"))?;
                killed = true;
            }
            count += 1;
            watched.note_message();
        }
        self.sum.reached.add(reached);
        let (mut child, was_silent) = watched.end();
        let status = child.wait().map_err(|error| error.to_string())?;
        if was_silent {
            return Err(format!("the child sent nothing for {SILENCE_MAX_S} seconds"));
        }
        if !(killed || is_interrupted(status)) || status.code().is_some() {
            let mut output = String::new();
            if let Some(mut stdout) = child.stdout.take() {
                let _ = stdout.read_to_string(&mut output);
            }
            return Err(format!("the child ended by itself: {status}: {output}"));
        }
        Ok(last)
    }

    /// Checks that the database contains the acknowledged commits and equals the model. Sets `counts` to the numbers of
    /// commits in the database.
    fn check_database(&mut self) -> Outcome {
        if self.plan.keep {
            let copied = copy_dir(&self.dir, &self.before);
            copied.map_err(|error| format!("cannot copy the database: {error}"))?;
        }
        let (db, keyspaces) = open(Arc::new(OsVfs), &self.dir, self.rng.next_u64())?;
        let view = KeyspaceView { db: &db, keyspaces: &keyspaces, snapshot: None };
        for (writer, count) in (0_u64..).zip(&mut self.counts) {
            let found = match writer.checked_sub(self.writers) {
                None => view.commits_of(writer),
                Some(0) => count_steps(&db, &keyspaces[0]),
                Some(_) => loads::count(&view),
            }?;
            if found < *count || found > *count + self.kills_since_check {
                return Err(format!("writer {writer}: {found} commits, {count} were acknowledged"));
            }
            *count = found;
        }
        self.kills_since_check = 0;
        self.sum.checks += 1;
        view.check(self.plan.seed, &self.counts)?;
        if self.rng.is_one_in(3) {
            for keyspace in &keyspaces {
                let moved = keyspace.operands_to_tree();
                moved.map_err(|error| format!("operands to the tree: {error:?}"))?;
            }
            let checked = view.check(self.plan.seed, &self.counts);
            checked.map_err(|what| format!("with all operands in the tree: {what}"))?;
        }
        drop(keyspaces);
        close_and_verify(db, &self.dir, self.counts[0])
    }
}

/// Returns whether SIGINT ended a child. A terminal sends SIGINT to the parent and to the child. This is a kill like those
/// of the parent, and violates no guarantee.
#[cfg(unix)]
fn is_interrupted(status: ExitStatus) -> bool {
    /// Number of the signal on all Unix systems.
    const SIGINT: i32 = 2;
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(SIGINT)
}

#[cfg(not(unix))]
fn is_interrupted(_: ExitStatus) -> bool {
    false
}

/// A child process, and a watchdog thread that kills the child after [`SILENCE_MAX_S`] seconds without a message.
struct WatchedChild {
    child: Arc<Mutex<Child>>,
    messages: SyncSender<()>,
    watchdog: JoinHandle<bool>,
}

impl WatchedChild {
    fn new(child: Child) -> WatchedChild {
        let child = Arc::new(Mutex::new(child));
        let (messages, received) = sync_channel(1);
        let watched = Arc::clone(&child);
        #[expect(clippy::disallowed_methods, reason = "a watchdog needs a thread and a timeout")]
        let watchdog = std::thread::spawn(move || {
            loop {
                match received.recv_timeout(Duration::from_secs(SILENCE_MAX_S)) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Disconnected) => return false,
                    Err(RecvTimeoutError::Timeout) => {
                        // The call fails if the child has just ended. This is not an error.
                        let _ = watched.lock().unwrap_or_else(PoisonError::into_inner).kill();
                        return true;
                    }
                }
            }
        });
        WatchedChild { child, messages, watchdog }
    }

    fn note_message(&self) {
        // A full channel already contains a notification for the watchdog, so this one is not needed.
        let _ = self.messages.try_send(());
    }

    fn kill(&self) -> std::io::Result<()> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).kill()
    }

    /// Stops the watchdog. Returns the child and whether the watchdog killed it.
    fn end(self) -> (Child, bool) {
        drop(self.messages);
        let was_silent = self.watchdog.join().unwrap_or(false);
        let child = Arc::into_inner(self.child).expect("the watchdog thread has ended");
        (child.into_inner().unwrap_or_else(PoisonError::into_inner), was_silent)
    }
}

/// Replaces the directory `to` by a copy of the files in `from`.
fn copy_dir(from: &Path, to: &Path) -> std::io::Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    std::fs::create_dir(to)?;
    if !from.exists() {
        return Ok(());
    }
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

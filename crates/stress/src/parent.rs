//! Starts children, kills them, and compares what they leave with what they said.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lsmx::vfs::OsVfs;
use serde::Serialize;

use crate::Outcome;
use crate::copies::close_and_verify;
use crate::passing::steps as steps_of;
use crate::told::Told;
use crate::view::View;
use crate::{ORDERS, Orders, Reached, open};
use lsmx_testkit::TestRng;

/// Most kills of one database that [`Plan::drawn`] draws.
const KILLS_MAX: u64 = 10;
/// Most acknowledgements within which it has a child killed.
const LONGEST: u64 = 5_000;

/// Seconds of silence after which a child hangs: one that compacts and commits says so all the time.
const STANDSTILL_S: u64 = 60;

/// How a child is started. Its orders come in the variable [`ORDERS`] of its environment.
#[derive(Clone, Debug)]
pub struct Children {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Other variables, and their values.
    pub variables: Vec<(&'static str, String)>,
}

/// What becomes of one database.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What everything follows from but the moments at which processes come to their end.
    pub seed: u64,
    /// Children that are killed, at least 1.
    pub kills: u64,
    /// Acknowledgements within which every child is killed, at least 1.
    pub longest: u64,
    /// Whether the disks of some children fail now and then.
    pub faults: bool,
    /// Whether a failure leaves the files behind, as they are and as the last kill had left them.
    pub keep: bool,
}

impl Plan {
    /// Kills that differ a lot, drawn from a seed: some databases see many short lives, some few long ones.
    #[must_use]
    pub fn drawn(seed: u64, faults: bool) -> Plan {
        let mut rng = TestRng::new(!seed);
        let kills = 1 + rng.below(KILLS_MAX);
        let longest = *rng.choose(&[LONGEST / 50, LONGEST / 8, LONGEST]);
        Plan { seed, kills, longest, faults, keep: true }
    }
}

/// What it came to.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sum {
    /// Children that were killed.
    pub kills: u64,
    /// Commits that were acknowledged.
    pub acknowledged: u64,
    /// Times that everything was read, compared and verified.
    pub looks: u64,
    /// What children got to.
    pub reached: Reached,
}

impl Sum {
    /// Adds what another one came to.
    pub fn add(&mut self, other: Sum) {
        self.kills += other.kills;
        self.acknowledged += other.acknowledged;
        self.looks += other.looks;
        self.reached.add(other.reached);
    }
}

/// Kills children of one database, which lies in a new directory in `home`.
///
/// # Errors
/// What is not as they said.
pub fn kill_many(plan: Plan, children: &Children, home: &Path) -> Outcome<Sum> {
    let failed = |error| format!("no directory in {}: {error}", home.display());
    let own = tempfile::Builder::new().prefix("stress-").tempdir_in(home).map_err(failed)?;
    let mut parent = Parent::new(plan, children, own.path());
    let done = (0..plan.kills).try_for_each(|round| parent.round(round));
    match done {
        Ok(()) => Ok(parent.sum),
        Err(what) if plan.keep => Err(format!("{what}\nfiles: {}", own.keep().display())),
        Err(what) => Err(what),
    }
}

struct Parent<'a> {
    plan: Plan,
    children: &'a Children,
    dir: PathBuf,
    /// Where the files go before they are looked at.
    before: PathBuf,
    rng: TestRng,
    writers: u64,
    /// What each writer has told of, and the keyspace that comes and goes.
    counts: Vec<u64>,
    /// Children since somebody looked: each may have got one further than it could tell.
    untold: u64,
    sum: Sum,
}

impl<'a> Parent<'a> {
    fn new(plan: Plan, children: &'a Children, home: &Path) -> Parent<'a> {
        let mut rng = TestRng::new(plan.seed);
        let writers = 1 + rng.below(4);
        let counts = (0..=writers).map(|_| 0).collect();
        let (dir, before) = (home.join("db"), home.join("before"));
        let (untold, sum) = (0, Sum::default());
        Parent { plan, children, dir, before, rng, writers, counts, untold, sum }
    }

    /// Kills one child, and looks at what it leaves, or has the next one find it: that one recovers, and
    /// may be killed at that.
    fn round(&mut self, round: u64) -> Outcome {
        let dir = self.dir.to_str().ok_or_else(|| format!("{:?} is not UTF-8", self.dir))?;
        let dir = dir.to_owned();
        let (writers, Plan { seed, faults, .. }) = (self.writers, self.plan);
        let orders = Orders { dir, seed, round: self.rng.next_u64() >> 1, writers, faults };
        // Some die while they open, some soon after, some with much behind them.
        let after = match self.rng.below(4) {
            0 => self.rng.below(3),
            1 => self.rng.below(200),
            _ => self.rng.below(self.plan.longest),
        };
        let told = |what| format!("round {round}, killed after {after}: {what}");
        let last = self.kill_one(&orders, after).map_err(told)?;
        self.sum.kills += 1;
        for (count, last) in self.counts.iter_mut().zip(last) {
            self.sum.acknowledged += last.saturating_sub(*count);
            *count = last.max(*count);
        }
        self.untold += 1;
        if round + 1 < self.plan.kills && self.rng.is_one_in(2) {
            return Ok(());
        }
        self.look().map_err(told)
    }

    /// Starts a child, kills it after so many acknowledgements, and returns the last number that each
    /// writer was told of, 0 where there is none; after the writers' the last step of the keyspace that
    /// comes and goes.
    fn kill_one(&mut self, orders: &Orders, acknowledged: u64) -> Outcome<Vec<u64>> {
        let Children { program, arguments, variables } = self.children;
        let mut child = Command::new(program)
            .args(arguments)
            .env(ORDERS, orders.to_text())
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("no child: {error}"))?;
        let told = child.stderr.take().ok_or("no pipe")?;
        let mut told = BufReader::new(told);
        let watched = Watched::new(child);
        let mut last = vec![0; self.counts.len()];
        let mut reached = Reached::default();
        let (mut bytes, mut count, mut killed) = ([0; 16], 0, false);
        while told.read_exact(&mut bytes).is_ok() {
            let garbled = || format!("the child says {:?}", bytes.escape_ascii().to_string());
            match Told::read(bytes) {
                Told::Opening => {}
                Told::Done { who, number } => {
                    let at = usize::try_from(who).ok().and_then(|who| last.get_mut(who));
                    *at.ok_or_else(garbled)? = number;
                }
                Told::Reached { what, count } => {
                    reached.hear(what, count).map_err(|_| garbled())?;
                    continue;
                }
            }
            if !killed && count >= acknowledged {
                watched.kill().map_err(|error| format!("no kill: {error}"))?;
                killed = true;
            }
            count += 1;
            watched.heard();
        }
        self.sum.reached.add(reached);
        let (mut child, stood_still) = watched.end();
        let status = child.wait().map_err(|error| error.to_string())?;
        if stood_still {
            return Err(format!("the child said nothing for {STANDSTILL_S} seconds"));
        }
        if !killed || status.code().is_some() {
            let mut said = String::new();
            if let Some(mut stdout) = child.stdout.take() {
                let _ = stdout.read_to_string(&mut said);
            }
            return Err(format!("the child ended by itself: {status}: {said}"));
        }
        Ok(last)
    }

    /// Compares what is there with what was told, and takes over by how much it is further.
    fn look(&mut self) -> Outcome {
        if self.plan.keep {
            copy(&self.dir, &self.before).map_err(|error| format!("no copy: {error}"))?;
        }
        let (db, keyspaces) = open(Arc::new(OsVfs), &self.dir, self.rng.next_u64())?;
        let view = View { keyspaces: &keyspaces, snapshot: None };
        for (writer, count) in (0..).zip(&mut self.counts) {
            let found = match writer == self.writers {
                true => steps_of(&db, &keyspaces[0]),
                false => view.count_of(writer),
            }?;
            if found < *count || found > *count + self.untold {
                return Err(format!("writer {writer}: {found} commits, {count} were acknowledged"));
            }
            *count = found;
        }
        self.untold = 0;
        self.sum.looks += 1;
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
        close_and_verify(db, &self.dir)
    }
}

/// A child that is killed if nothing is heard of it for too long.
struct Watched {
    child: Arc<Mutex<Child>>,
    heard: SyncSender<()>,
    watch: JoinHandle<bool>,
}

impl Watched {
    fn new(child: Child) -> Watched {
        let child = Arc::new(Mutex::new(child));
        let (heard, hears) = sync_channel(1);
        let own = Arc::clone(&child);
        #[expect(clippy::disallowed_methods, reason = "it watches those that could hang")]
        let watch = std::thread::spawn(move || {
            loop {
                match hears.recv_timeout(Duration::from_secs(STANDSTILL_S)) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Disconnected) => return false,
                    Err(RecvTimeoutError::Timeout) => {
                        // It may have ended by itself just now.
                        let _ = own.lock().unwrap_or_else(PoisonError::into_inner).kill();
                        return true;
                    }
                }
            }
        });
        Watched { child, heard, watch }
    }

    fn heard(&self) {
        // One that was not taken yet says as much.
        let _ = self.heard.try_send(());
    }

    fn kill(&self) -> std::io::Result<()> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).kill()
    }

    /// The child, and whether it was killed for its silence.
    fn end(self) -> (Child, bool) {
        drop(self.heard);
        let stood_still = self.watch.join().unwrap_or(false);
        let child = Arc::into_inner(self.child).expect("the watch has ended, which had the other");
        (child.into_inner().unwrap_or_else(PoisonError::into_inner), stood_still)
    }
}

/// Makes a directory a copy of another.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
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

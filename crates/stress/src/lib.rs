//! Kills processes that write to databases on real files, and checks that no acknowledged commit is lost.
//!
//! A child process opens a database with random options, and several threads write to it until the parent process kills
//! the child. The child also changes options, converts keyspaces to operand stores and back, creates and drops a
//! keyspace, ingests files, and compares snapshots and checkpoints with a model. Optionally, write errors are injected.
//!
//! After a kill, the parent reads all data by every read method and verifies the files. Each acknowledged commit must
//! be present, complete and in order. The only other commits may be those that were in progress at the kill.
//!
//! The commits of a writer depend only on a seed, so the model can be computed for any number of commits. Each commit
//! puts its commit number in every keyspace. In the first keyspace, each commit also increments a counter by a merge.
//! If a merge is lost or applied twice, this counter differs from the commit number. In the second keyspace, each
//! commit appends a byte to a value, which shows the order of the commits. In the third keyspace, values expire while
//! the test runs.
//!
//! [`kill_many`] tests one database, and `lsmx stress` tests many databases. [`world`] tests in-memory databases and
//! simulates power losses.

mod checkpoints;
mod child;
mod commits;
mod compare;
mod counts;
mod detections;
mod disk_faults;
mod keyspace_churn;
mod loads;
mod messages;
mod options;
mod parent;
mod sessions;

use std::path::Path;
use std::sync::Arc;

use lsmx::vfs::Vfs;
use lsmx::{Db, Keyspace, Options};
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::all_stores;

pub use child::write_until_killed;
pub use counts::ChildCounts;
pub use detections::{Detection, format_detections};
pub use lsmx_testkit::{report_skipped, world};
pub use parent::{ChildCommand, KillCounts, KillPlan, kill_many};

/// Result of a check. The error is a message for the user.
pub type Outcome<T = ()> = Result<T, String>;

/// Name of the environment variable in which a parent process passes [`Orders`] to a child.
pub const ORDERS: &str = "LSMX_STRESS_ORDERS";

/// Names of the keyspaces to which all writers commit. The merge operator of the first keyspace adds numbers. That of
/// the second keyspace appends bytes.
pub(crate) const KEYSPACES: [&str; 2] = [lsmx::DEFAULT_KEYSPACE, "second"];

/// Index of the keyspace [`sessions::NAME`] in the list of keyspaces that [`open`] returns.
pub(crate) const SESSIONS: usize = KEYSPACES.len();
/// Index of the keyspace [`loads::NAME`] in the list of keyspaces that [`open`] returns.
pub(crate) const LOADED: usize = KEYSPACES.len() + 1;

/// An expiry time in microseconds that no clock reaches.
pub(crate) const NEVER_US: u64 = 1 << 60;

/// Parameters of a child process, passed as text in the environment variable [`ORDERS`].
#[derive(Clone, Debug)]
pub struct Orders {
    pub(crate) dir: String,
    /// Seed of the commits. All children that write to the same database have the same seed.
    pub(crate) seed: u64,
    /// Seed of the options with which this child opens the database.
    pub(crate) round: u64,
    pub(crate) writers: u64,
    /// Whether write errors may be injected.
    pub(crate) faults: bool,
}

impl Orders {
    /// Parses the environment variable [`ORDERS`]. Returns `None` if the variable is not set, which means that this
    /// process is not a child of a stress test.
    ///
    /// # Errors
    /// Returns an error if the value of [`ORDERS`] is malformed.
    pub fn from_env() -> Outcome<Option<Orders>> {
        let Some(text) = std::env::var_os(ORDERS) else { return Ok(None) };
        let orders = text.to_str().and_then(Orders::from_text);
        orders.map(Some).ok_or_else(|| format!("{ORDERS} is {text:?}, not the orders of a child"))
    }

    fn to_text(&self) -> String {
        let Orders { dir, seed, round, writers, faults } = self;
        format!("{seed} {round} {writers} {faults} {dir}")
    }

    fn from_text(text: &str) -> Option<Orders> {
        let mut parts = text.splitn(5, ' ');
        let mut number = || parts.next()?.parse().ok();
        let (seed, round, writers) = (number()?, number()?, number()?);
        let faults = parts.next()?.parse().ok()?;
        Some(Orders { dir: parts.next()?.to_owned(), seed, round, writers, faults })
    }
}

fn counter_key(writer: u64) -> Vec<u8> {
    format!("{writer}:count").into_bytes()
}

/// Returns the key of the counter that merges increment in the first keyspace.
fn merged_key(writer: u64) -> Vec<u8> {
    format!("{writer}:merged").into_bytes()
}

fn number(bytes: Option<&[u8]>) -> Outcome<u64> {
    let bytes = bytes.map_or(Ok([0; 8]), TryInto::try_into);
    Ok(u64::from_le_bytes(bytes.map_err(|_| "a counter has not 8 bytes")?))
}

/// Opens the database and its keyspaces with random options. For half of the seeds, the database options register all
/// kinds of operand stores.
pub(crate) fn open(disk: Arc<dyn Vfs>, dir: &Path, seed: u64) -> Outcome<(Db, Vec<Keyspace>)> {
    let rng = &mut TestRng::new(seed);
    let mut options =
        options::draw_options(rng, dir).keyspace_defaults(options::draw_keyspace(rng));
    let names = [KEYSPACES[0], KEYSPACES[1], sessions::NAME, loads::NAME];
    let of_each = [0, 1, SESSIONS, LOADED].map(|index| options::draw_indexed(rng, index));
    if rng.is_one_in(2) {
        options = all_stores().into_iter().fold(options, Options::operand_store);
    }
    let db = Db::open(dir, options.vfs(disk)).map_err(|error| format!("opening: {error:?}"))?;
    let mut keyspaces = Vec::new();
    for (name, options_of) in names.iter().zip(of_each) {
        let keyspace = db.keyspace(name, options_of);
        let keyspace = keyspace.map_err(|error| format!("opening a keyspace: {error:?}"))?;
        let bound = options::draw_delete_persistence(rng);
        let changed = keyspace.set_options(|options| options.delete_persistence(bound));
        changed.map_err(|error| format!("changing a keyspace: {error:?}"))?;
        keyspaces.push(keyspace);
    }
    let passing = keyspace_churn::reopen(&db, rng);
    passing.map_err(|error| format!("opening {}: {error:?}", keyspace_churn::NAME))?;
    Ok((db, keyspaces))
}

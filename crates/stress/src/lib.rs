//! Finds out whether databases of lsmx keep their word, on real files and by killing who writes them.
//!
//! A child process opens a database under options that are drawn anew for each opening, and writes
//! from several threads until it is killed. Meanwhile keyspaces change their policies, take on operand
//! stores and leave them, come and go; snapshots are held and looked at again, checkpoints made, opened and compared; if that is asked for, the
//! disks of some fail or are full now and then, and when they are well again writing goes on. Whoever started it
//! then reads everything in every way, and has the files verified: each commit that was acknowledged is
//! there, whole, in its order, and nothing that was never begun.
//!
//! Every writer has keys of its own, and its commits follow from a seed, so its state after any
//! number of commits can be made again. Each commit counts itself in every keyspace by a put, and in
//! one of them by a merge as well: a merge that is lost or done twice makes the two disagree. In the
//! other it appends to a value by a merge, so its order counts too.
//!
//! [`kill_many`] does this with one database; `lsmx stress` with one after the other. What a killed process
//! cannot show, power losses, is the business of [`modelling`].

mod changes;
mod child;
mod copies;
mod detections;
mod disk;
pub mod modelling;
mod parent;
mod passing;
mod reached;
mod told;
mod tuning;
mod view;

use std::path::Path;
use std::sync::Arc;

use lsmx::vfs::Vfs;
use lsmx::{Db, Keyspace, Options};
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::all_stores;

pub use child::write_for_ever;
pub use detections::{Detection, format_detections};
pub use lsmx_testkit::report_skipped;
pub use parent::{Children, Plan, Sum, kill_many};
pub use reached::Reached;
pub use tuning::draw_filter_bits;

/// What went wrong, for people.
pub type Outcome<T = ()> = Result<T, String>;

/// The variable of a child's environment that has its orders.
pub const ORDERS: &str = "LSMX_STRESS_ORDERS";

/// The keyspaces that every commit counts itself in: one that adds, one that appends.
pub(crate) const KEYSPACES: [&str; 2] = [lsmx::DEFAULT_KEYSPACE, "second"];

/// What a child is told, as text in its environment.
#[derive(Clone, Debug)]
pub struct Orders {
    pub(crate) dir: String,
    /// What all commits follow from, the same for every child of one database.
    pub(crate) seed: u64,
    /// What this child's options follow from.
    pub(crate) round: u64,
    pub(crate) writers: u64,
    /// Whether its disk may fail.
    pub(crate) faults: bool,
}

impl Orders {
    /// Those of this process, if it is a child.
    ///
    /// # Errors
    /// When [`ORDERS`] says what no parent writes.
    pub fn of_this_process() -> Outcome<Option<Orders>> {
        let Some(text) = std::env::var_os(ORDERS) else { return Ok(None) };
        let orders = text.to_str().and_then(Orders::from_text);
        orders.map(Some).ok_or_else(|| format!("{ORDERS} is {text:?}, no orders for a child"))
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

/// What a writer adds 1 to with each commit, in the first keyspace.
fn merged_key(writer: u64) -> Vec<u8> {
    format!("{writer}:merged").into_bytes()
}

fn number(bytes: Option<&[u8]>) -> Outcome<u64> {
    let bytes = bytes.map_or(Ok([0; 8]), TryInto::try_into);
    Ok(u64::from_le_bytes(bytes.map_err(|_| "a counter has not 8 bytes")?))
}

/// Opens the database and its keyspaces on a disk, with options that follow from a seed. The open knows their operand
/// stores, or they are missing until each keyspace is opened.
///
/// # Errors
/// When that fails.
pub(crate) fn open(disk: Arc<dyn Vfs>, dir: &Path, seed: u64) -> Outcome<(Db, Vec<Keyspace>)> {
    let rng = &mut TestRng::new(seed);
    let mut options = tuning::draw_options(rng, dir).keyspace_defaults(tuning::draw_keyspace(rng));
    let of_each = [tuning::draw_counted(rng, 0), tuning::draw_counted(rng, 1)];
    if rng.is_one_in(2) {
        options = all_stores().into_iter().fold(options, Options::operand_store);
    }
    let db = Db::open(dir, options.vfs(disk)).map_err(|error| format!("opening: {error:?}"))?;
    let mut keyspaces = Vec::new();
    for (name, options_of) in KEYSPACES.iter().zip(of_each) {
        let keyspace = db.keyspace(name, options_of);
        keyspaces.push(keyspace.map_err(|error| format!("opening a keyspace: {error:?}"))?);
    }
    let passing = passing::reopen(&db, rng);
    passing.map_err(|error| format!("opening {}: {error:?}", passing::NAME))?;
    Ok((db, keyspaces))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_come_through_the_environment_and_nothing_else_does() {
        let dir = "/a path/with blanks ".to_owned();
        let orders = Orders { dir, seed: 7, round: u64::MAX, writers: 3, faults: true };
        let text = orders.to_text();
        let read = Orders::from_text(&text).unwrap();
        assert_eq!((read.to_text(), read.dir), (text, orders.dir));
        for garbage in ["", "7", "7 8 3 true", "7 8 3 maybe /d", "-7 8 3 true /d", "7 x 3 true /d"]
        {
            assert!(Orders::from_text(garbage).is_none(), "{garbage:?}");
        }
    }
}

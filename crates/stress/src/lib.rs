//! What a child process does to a database until it is killed, and what must be there afterwards.
//!
//! Every writer has keys of its own, and its commits follow from a seed, so its state after any
//! number of commits can be made again. Each commit counts itself in every keyspace by a put, and in
//! one of them by a merge as well: a merge that is lost or done twice makes the two disagree. In the
//! other it appends to a value by a merge, so its order counts too.

mod changes;
mod child;
mod parent;
mod passing;
mod reached;
mod told;
mod tuning;
mod view;

use std::path::Path;

use lsmx::{Db, Keyspace};

use super::arsenal::{Chance, Outcome};
pub(crate) use child::write_for_ever;
pub(crate) use parent::{BUG, CHILD, Plan, Sum, kill_many};
pub(crate) use passing::steps as steps_of;
pub(crate) use reached::Reached;
pub(crate) use told::Told;
pub(crate) use tuning::stores;
pub(crate) use view::View;

/// The keyspaces that every commit counts itself in: one that adds, one that appends.
pub(crate) const KEYSPACES: [&str; 2] = [lsmx::DEFAULT_KEYSPACE, "second"];

/// What a child is told, as text in its environment.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pub(crate) dir: String,
    /// What all commits follow from, the same for every child of one database.
    pub(crate) seed: u64,
    /// What this child's options follow from.
    pub(crate) round: u64,
    pub(crate) writers: u64,
}

impl Orders {
    pub(crate) fn to_text(&self) -> String {
        format!("{} {} {} {}", self.seed, self.round, self.writers, self.dir)
    }

    pub(crate) fn from_text(text: &str) -> Option<Orders> {
        let mut parts = text.splitn(4, ' ');
        let mut number = || parts.next()?.parse().ok();
        let (seed, round, writers) = (number()?, number()?, number()?);
        Some(Orders { dir: parts.next()?.to_owned(), seed, round, writers })
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

/// Opens the database and its keyspaces with options that follow from a seed. Their merge operators
/// come before the log is replayed, or after; so do operand stores that are news to them.
///
/// # Errors
/// When that fails.
pub(crate) fn open(dir: &Path, seed: u64) -> Outcome<(Db, Vec<Keyspace>)> {
    let chance = &mut Chance::new(seed);
    let mut options = tuning::draw_options(chance)
        .keyspace_defaults(tuning::draw_keyspace(chance))
        .keyspace(passing::NAME, passing::options(chance));
    let of_each = [tuning::draw_counted(chance, 0), tuning::draw_counted(chance, 1)];
    let early = chance.one_in(2);
    if early {
        for (name, options_of) in KEYSPACES.iter().zip(&of_each) {
            options = options.keyspace(name, options_of.clone());
        }
    }
    let db = Db::open(dir, options).map_err(|error| format!("opening: {error:?}"))?;
    let mut keyspaces = Vec::new();
    for (name, options_of) in KEYSPACES.iter().zip(of_each) {
        let keyspace = match db.existing_keyspace(name) {
            Ok(keyspace) if early => keyspace,
            _ => db
                .keyspace(name, options_of)
                .map_err(|error| format!("making a keyspace: {error:?}"))?,
        };
        keyspaces.push(keyspace);
    }
    Ok((db, keyspaces))
}

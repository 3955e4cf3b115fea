//! The laws of the contract (`docs/design/reliability.md`), one test each, as far as a test can state them: what is
//! promised stands in the comments, what is checked in the code.
//!
//! Other tests look for what nobody has thought of; these say in a few seconds which promise is broken.
//! Everything follows from `LSMX_TEST_SEED`. `LSMX_TEST_SABOTAGE` names a deliberate bug to have on, to see that
//! a law can be broken.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints its seed"
)]

mod arsenal;

#[path = "laws/callbacks.rs"]
mod callbacks;
#[path = "laws/clock.rs"]
mod clock;
#[path = "laws/commits.rs"]
mod commits;
#[path = "laws/damage.rs"]
mod damage;
#[path = "laws/deadlines.rs"]
mod deadlines;
#[path = "laws/descriptors.rs"]
mod descriptors;
#[path = "laws/errors.rs"]
mod errors;
#[path = "laws/full.rs"]
mod full;
#[path = "laws/guards.rs"]
mod guards;
#[path = "laws/hanging.rs"]
mod hanging;
#[path = "laws/identity.rs"]
mod identity;
#[path = "laws/keyspace_options.rs"]
mod keyspace_options;
#[path = "laws/memory.rs"]
mod memory;
#[path = "laws/missing_store.rs"]
mod missing_store;
#[path = "laws/owners.rs"]
mod owners;
#[path = "laws/quarantine.rs"]
mod quarantine;
#[path = "laws/readers.rs"]
mod readers;
#[path = "laws/recovery.rs"]
mod recovery;
#[path = "laws/support.rs"]
mod support;
#[path = "laws/waits.rs"]
mod waits;

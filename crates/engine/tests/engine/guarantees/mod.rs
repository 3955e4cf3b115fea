//! The laws of the contract (`docs/design/reliability.md`), one test each, as far as a test can state them: what is
//! promised stands in the comments, what is checked in the code.
//!
//! Other tests look for what nobody has thought of; these say in a few seconds which promise is broken.
//! Everything follows from `LSMX_TEST_SEED`. `LSMX_TEST_SABOTAGE` names a deliberate bug to have on, to see that
//! a law can be broken.

mod callbacks;
mod clock;
mod commits;
mod damage;
mod deadlines;
mod descriptors;
mod errors;
mod full;
mod guards;
mod hanging;
mod identity;
mod keyspace_options;
mod memory;
mod missing_store;
mod owners;
mod quarantine;
mod readers;
mod recovery;
mod support;
mod waits;

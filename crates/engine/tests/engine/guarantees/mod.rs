//! One short test for each guarantee of `docs/design/reliability.md`.
//!
//! `LSMX_TEST_SABOTAGE` enables a failpoint, to check that a test can fail.

mod callbacks;
mod clock;
mod commits;
mod damage;
mod descriptors;
mod errors;
mod full;
mod guards;
mod hanging;
mod keyspace_options;
mod missing_store;
mod owners;
mod quarantine;
mod readers;
mod recovery;
mod shared_checks;
mod waits;

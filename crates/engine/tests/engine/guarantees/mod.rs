//! Short tests of the guarantees in `docs/design/reliability.md`.
//!
//! The environment variable `LSMX_TEST_SABOTAGE` enables a failpoint, which shows whether the tests detect it.

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
mod removals;
mod shared_checks;
mod waits;

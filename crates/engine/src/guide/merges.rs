//! Merges and atomic updates: changing a value without racing anybody, with or without reading it.
//!
//! A counter, a list that grows, a field of a record: the new value depends on the old one. There are
//! three ways to write it, and none loses an update when several threads do it at once.
//!
//! | | reads | writes | good for |
//! | --- | --- | --- | --- |
//! | [`Keyspace::merge`] | nothing | the change alone | frequent changes, rare reads |
//! | [`Keyspace::fetch_update`] | the value | the value | changes that only your code can make |
//! | [`WriteBatch::guard`] | what you read | a batch, or nothing | changes that depend on several keys |
//!
//! # Merging
//!
//! A keyspace that merges has a *merge operator*. A merge stores an *operand*; what the operands of a
//! key amount to is worked out by whoever reads it, and by the jobs that rewrite it anyway.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("data");
//! use lsmx::merge_operator::Counter;
//! use lsmx::{Db, Durability, KeyspaceOptions, Options, WriteBatch};
//!
//! let db = Db::open(&path, Options::default())?;
//! let visits = db.keyspace("visits", KeyspaceOptions::default().merge_operator(Counter))?;
//! visits.merge("page", 1u64.to_le_bytes())?;
//! visits.merge("page", 2u64.to_le_bytes())?;
//! assert_eq!(visits.get("page")?.as_deref(), Some(&3u64.to_le_bytes()[..]));
//!
//! // In a batch with anything else, all or nothing.
//! let mut batch = WriteBatch::new();
//! batch.merge(&visits, "page", 1u64.to_le_bytes());
//! batch.put(&db.default_keyspace(), "last", "page");
//! db.write(batch, Durability::Sync)?;
//! # Ok(())
//! # }
//! ```
//!
//! Ready-made are [`Counter`], [`Append`], [`Max`], [`Min`], [`FieldUpdate`] and [`SetUnion`].
//!
//! # Giving the operator, and not giving it
//!
//! The operator's *name* stays with the keyspace; a keyspace made without one takes one on later. The
//! operator itself is code, so each open of the database is followed by a [`Db::keyspace`] that gives it; that of
//! the default keyspace is in [`Options::keyspace_defaults`]. An operator with another name is
//! [`Error::Contradiction`]. Until the operator is given, flushes and compactions keep operands as they are,
//! and reading a key that has some, like merging, is [`Error::NoMergeOperator`].
//!
//! # Writing an operator
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("data");
//! use lsmx::{Db, KeyspaceOptions, MergeError, MergeOperator, Options};
//!
//! /// A balance in cents that never falls below zero; an account with nothing left is gone.
//! #[derive(Debug)]
//! struct Balance;
//!
//! fn cents(bytes: &[u8]) -> Result<i64, MergeError> {
//!     let bytes = bytes.try_into().map_err(|_| MergeError::new("an amount has 8 bytes"))?;
//!     Ok(i64::from_le_bytes(bytes))
//! }
//!
//! impl MergeOperator for Balance {
//!     fn name(&self) -> &str {
//!         "example.balance"
//!     }
//!
//!     fn full_merge(
//!         &self,
//!         _key: &[u8],
//!         base: Option<&[u8]>,
//!         operands: &[&[u8]],
//!     ) -> Result<Option<Vec<u8>>, MergeError> {
//!         let mut balance = base.map_or(Ok(0), cents)?;
//!         for operand in operands {
//!             balance = balance.saturating_add(cents(operand)?).max(0);
//!         }
//!         Ok((balance > 0).then(|| balance.to_le_bytes().to_vec()))
//!     }
//!     // No partial merge: +5 −9 is not −4 for somebody who has nothing.
//! }
//!
//! let options = KeyspaceOptions::default().merge_operator(Balance);
//! let db = Db::open(&path, Options::default().keyspace_defaults(options))?;
//! for amount in [500i64, -900, 200] {
//!     db.merge("ada", amount.to_le_bytes())?;
//! }
//! assert_eq!(db.get("ada")?.as_deref(), Some(&200i64.to_le_bytes()[..]));
//! # Ok(())
//! # }
//! ```
//!
//! The laws stand at [`MergeOperator`]: equal arguments give equal results, operands may be folded in
//! steps, and a partial merge changes nothing. An operator that merges partially keeps its operands
//! few without ever reading a base; one that does not is asked for whole values now and then.
//!
//! # What a merge costs
//!
//! A write costs what a put costs. A read gathers the key's operands down to its last put or delete.
//! That chain is bounded: once a key has [`CHAIN_OPERANDS_MAX`] operands in a memtable, or
//! [`CHAIN_BYTES_MAX`] bytes of them, the writer reads the key and keeps its value beside the last
//! operand, where readers stop; flushes and compactions fold what lies between two snapshots; and where
//! operands gather in tables because they do not merge partially, one merge of [`CHAIN_OPERANDS_MAX`]
//! folds what is below. So a key's base is read about once for so many operands.
//! [`MergeMetrics`](crate::metrics::MergeMetrics) shows the longest chain that a read had to fold.
//!
//! When operands do not fold, [`Error::MergeFailed`] says why, for that key alone: a range gives it in the
//! place of the entry and goes on, jobs keep the operands as they are. A put or a delete of the key makes
//! it readable again.
//!
//! # Updating
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("data");
//! use lsmx::{Db, Options, Update};
//!
//! let db = Db::open(&path, Options::default())?;
//! let keyspace = db.default_keyspace();
//! let before = keyspace.fetch_update("motd", |old| {
//!     [old.unwrap_or(b"hello"), b"!"].concat()
//! })?;
//! assert_eq!(before, None);
//!
//! // Take a job if nobody has it.
//! let taken = keyspace.fetch_update("job", |owner| match owner {
//!     None => Update::Put(b"me".to_vec()),
//!     Some(_) => Update::Keep,
//! })?;
//! assert!(taken.is_none(), "nobody had it, so now it is ours");
//! # Ok(())
//! # }
//! ```
//!
//! An update reads, asks your closure, and commits only if nobody has written the key meanwhile;
//! otherwise it asks again. Updates of one key take turns, so they do not make each other start over
//! and over. A closure that is slow, or that waits for another update of the same key, loses its turn's
//! privilege after some milliseconds, and stays correct: there is nothing to deadlock on.
//!
//! `examples/counter_store.rs` has both in one program: counts and statistics that are merged, a stock
//! that is updated. `examples/json_merge_patch.rs` is an operator for JSON documents, with the tests that
//! an operator needs.
//!
//! [`Keyspace::merge`]: crate::Keyspace::merge
//! [`Keyspace::fetch_update`]: crate::Keyspace::fetch_update
//! [`WriteBatch::guard`]: crate::WriteBatch::guard
//! [`Options::keyspace_defaults`]: crate::Options::keyspace_defaults
//! [`Db::keyspace`]: crate::Db::keyspace
//! [`MergeOperator`]: crate::MergeOperator
//! [`Counter`]: crate::merge_operator::Counter
//! [`Append`]: crate::merge_operator::Append
//! [`Max`]: crate::merge_operator::Max
//! [`Min`]: crate::merge_operator::Min
//! [`FieldUpdate`]: crate::merge_operator::FieldUpdate
//! [`SetUnion`]: crate::merge_operator::SetUnion
//! [`CHAIN_OPERANDS_MAX`]: crate::merge_operator::CHAIN_OPERANDS_MAX
//! [`CHAIN_BYTES_MAX`]: crate::merge_operator::CHAIN_BYTES_MAX
//! [`Error::Contradiction`]: crate::Error::Contradiction
//! [`Error::NoMergeOperator`]: crate::Error::NoMergeOperator
//! [`Error::MergeFailed`]: crate::Error::MergeFailed

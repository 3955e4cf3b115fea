//! Merge operators and atomic updates.
//!
//! The new value of a counter, a list or a field of a record depends on its old value. There are three ways to write
//! such a value. None of them loses an update of another thread.
//!
//! | | reads | writes | use for |
//! | --- | --- | --- | --- |
//! | [`Keyspace::merge`] | nothing | the operand | frequent updates, rare reads |
//! | [`Keyspace::fetch_update`] | the value | the value | updates that only your code can compute |
//! | [`WriteBatch::guard`] | the keys that you read | a batch, or nothing | updates that depend on several keys |
//!
//! # Merging
//!
//! A keyspace with merges has a *merge operator*. A merge stores an *operand*. Reads, flushes and compactions combine
//! the operands of a key into a value.
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
//! // Merges can be part of a batch.
//! let mut batch = WriteBatch::new();
//! batch.merge(&visits, "page", 1u64.to_le_bytes());
//! batch.put(&db.default_keyspace(), "last", "page");
//! db.write(batch, Durability::Sync)?;
//! # Ok(())
//! # }
//! ```
//!
//! The crate contains the operators [`Counter`], [`Append`], [`Max`], [`Min`], [`FieldUpdate`] and [`SetUnion`].
//!
//! # Opening a keyspace with its operator
//!
//! The keyspace stores the *name* of its operator. A keyspace that was created without an operator can get one later.
//! The operator itself is code. So each program that opens the database passes it to [`Db::keyspace`], or for the
//! default keyspace to [`Options::keyspace_defaults`]. An operator with another name is [`Error::Contradiction`].
//!
//! Without the operator, flushes and compactions keep operands unchanged. Merges, and reads of keys with operands, fail
//! with [`Error::NoMergeOperator`].
//!
//! # Writing an operator
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("data");
//! use lsmx::{Db, KeyspaceOptions, MergeError, MergeOperator, Options};
//!
//! /// A balance in cents that never falls below zero. A balance of zero deletes the key.
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
//!     // No partial merge: the limit at zero makes the result depend on the base value.
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
//! [`MergeOperator`] states the rules: equal arguments give equal results, operands may be combined in several steps,
//! and a partial merge does not change the result. An operator with partial merges keeps the number of operands small
//! without reading the base value. Without partial merges, the engine computes whole values from time to time.
//!
//! # Cost of a merge
//!
//! A merge costs as much as a put. A read collects the operands of the key down to its last put or delete. Three
//! mechanisms bound the number of operands:
//!
//! - If a key has [`CHAIN_OPERANDS_MAX`] operands or [`CHAIN_BYTES_MAX`] bytes of operands in a memtable, the writer
//!   reads the key and stores its value with the last operand. Reads stop at this value.
//! - Flushes and compactions combine operands that no snapshot separates.
//! - If operands without partial merges accumulate in tables, one of [`CHAIN_OPERANDS_MAX`] merges combines the older
//!   ones.
//!
//! So the base value of a key is read about once per [`CHAIN_OPERANDS_MAX`] operands.
//! [`MergeMetrics`](crate::metrics::MergeMetrics) shows the longest chain that a read has combined.
//!
//! If the operands of a key cannot be combined, reads of this key fail with [`Error::MergeFailed`]. An iterator returns
//! the error in place of the entry and continues. Jobs keep the operands. A put or a delete of the key makes it
//! readable again.
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
//! // Take the job if it has no owner.
//! let taken = keyspace.fetch_update("job", |owner| match owner {
//!     None => Update::Put(b"me".to_vec()),
//!     Some(_) => Update::Keep,
//! })?;
//! assert!(taken.is_none(), "the job had no owner");
//! # Ok(())
//! # }
//! ```
//!
//! An update reads the value, calls the closure, and commits if the key was not written in the meantime. Otherwise it
//! starts again. Updates of one key run one after the other, so that they do not invalidate each other repeatedly. If a
//! closure is slow, or waits for another update of the same key, the next update starts after some milliseconds. The
//! result stays correct, and a deadlock is not possible.
//!
//! `examples/counter_store.rs` uses both: merges for counts and statistics, updates for a stock.
//! `examples/json_merge_patch.rs` is an operator for JSON documents, with the tests that an operator needs.
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

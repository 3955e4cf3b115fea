//! The asynchronous handle, for the runtime `tokio`: the verbs of [`crate::Db`] as `async fn`. Feature
//! `tokio`, off by default.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("data");
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! use lsmx::tokio::Db;
//! use lsmx::{Durability, Options, WriteBatch};
//!
//! let db = Db::open(&path, Options::default()).await?;
//! db.put(b"apple", b"red").await?;
//! assert_eq!(db.get(b"apple").await?.as_deref(), Some(&b"red"[..]));
//!
//! let fruit = db.default_keyspace();
//! let mut batch = WriteBatch::new();
//! batch.put(&fruit, b"cherry", b"black");
//! batch.put(&fruit, b"plum", b"blue");
//! db.write(batch, Durability::Sync).await?;
//!
//! // A range is a `Stream`, too.
//! let mut range = fruit.range(&b"b"[..]..);
//! let mut keys = Vec::new();
//! while let Some(entry) = range.next().await {
//!     keys.push(entry?.0);
//! }
//! assert_eq!(keys, [&b"cherry"[..], b"plum"]);
//!
//! db.close(None).await?;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! # What runs where
//!
//! *A read that memory can answer* is done where it is awaited, without leaving the task. Only one that
//! would have to read a file, or to open one, goes to the runtime's blocking pool. A range gives entries
//! on the task while it meets what is in memory; from the first block that is not, it is read ahead on
//! the pool, in batches bounded in entries and bytes. Reads fold merge operands, and
//! [`fetch_update`](Keyspace::fetch_update) calls its closure, on the task: operators and closures should
//! not take long. So do listeners, which learn there that a write stands still.
//!
//! *A write* queues for the next commit and awaits it. Threads lead commits, tasks do not: where no thread
//! is at it, one blocking task takes the whole queue through the log, and ends when the queue is empty.
//! Where writes are slowed down or must stop, the task awaits that too; however many wait, they occupy
//! no thread. Per database there are never more than three blocking tasks for all writes together: one
//! that commits, one that folds long chains of operands, one that has memtables flushed.
//!
//! *All else* that may do I/O or wait is done on the blocking pool, a thread per call.
//!
//! # Cancellation
//!
//! Every future may be dropped at any time. What has gone to the pool ends there, unseen. A write that has
//! queued is committed all the same, whole, as if it had been awaited; one that has not yet, because it
//! waited for room, is not done. Whoever has to know asks, or does not drop it. A trace
//! ([`Db::record_trace`]) notes what was awaited to its end.
//!
//! # The runtime
//!
//! Either flavour does. Its timer has to be enabled: deadlines and slowed writes need it. A blocking pool
//! of one thread is enough, as long as others let it get on. When a runtime is shut down, commits that
//! have queued are still done; calls on the pool that have not begun are not, and answer
//! [`Error::RuntimeEnded`](crate::Error::RuntimeEnded) where anybody is left to ask.
//!
//! [`Background::Inline`](crate::env::Background::Inline) works: a write goes to the pool as a whole, with
//! the jobs that it sets off. [`Background::Stepped`](crate::env::Background::Stepped) replays threads of
//! its own and does not.
//!
//! Handles can be had from those of [`crate::Db`] and give them back ([`Db::as_blocking`]); both may be
//! used side by side. The last one that goes closes the database, on the pool if there is one:
//! [`Db::close`] tells how that went, and when.

mod attendant;
mod db;
mod keyspace;
mod pool;
mod range;
mod reads;
mod shared;
mod snapshot;
mod update;
mod wait;
mod write;

pub use db::Db;
pub use keyspace::Keyspace;
pub use range::{Range, Rev};
pub use snapshot::Snapshot;

//! Asynchronous handles for the runtime `tokio`. Requires the feature `tokio`, which is disabled by default.
//!
//! Methods of [`crate::Db`], [`crate::Keyspace`], [`crate::Snapshot`], [`crate::Transaction`] and [`crate::Follower`]
//! that may block are `async fn` on these handles.
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
//! // `Range` also implements `Stream`.
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
//! # Threads
//!
//! **Reads** run on the calling task if all blocks are in memory. Otherwise, they run on the blocking pool of the
//! runtime. After the first block that is not in memory, a [`Range`] reads ahead on this pool, in batches of limited
//! size. Merge operators and the closure of [`fetch_update`](Keyspace::fetch_update) run on the calling task. Event
//! listeners also run on the calling task if a stalled write causes the event. All of them must therefore be fast.
//!
//! **Writes** are added to the commit queue. Async tasks never lead a commit group: if no thread is the leader, a
//! blocking task commits the queue until it is empty. A write that is throttled or stalled occupies no thread. All
//! writes of a database together use at most three blocking tasks: one commits, one folds long chains of operands, and
//! one flushes memtables. The commit of a transaction that has read ranges uses a further blocking task, which checks
//! the ranges.
//!
//! **Other calls** that perform I/O or wait use one thread of the blocking pool each.
//!
//! # Cancellation
//!
//! Every future may be dropped at any time. A call that has started on the blocking pool completes. A write that is in
//! the commit queue is committed as a whole. A write that waits for admission is not committed. A trace
//! ([`crate::Db::record_trace`]) records only operations whose futures have completed.
//!
//! # Runtime
//!
//! The current-thread runtime and the multi-thread runtime are supported. Their timer must be enabled, because
//! deadlines and throttled writes use it. One thread in the blocking pool is sufficient, except if other calls occupy
//! it permanently. A blocking call that waits for the lock of a key occupies its thread until the lock is free. If such
//! calls occupy all threads, the asynchronous commit of the lock's owner waits for them until their timeout.
//!
//! Tasks of several runtimes may use one database. Their commits then have one leader, on the pool of one of the
//! runtimes. If other calls occupy this pool, the commits of all runtimes wait for it.
//!
//! When the runtime is shut down, commits in the queue complete. Calls that wait for a thread of the blocking pool
//! return [`Error::RuntimeEnded`](crate::Error::RuntimeEnded). If the pool has no thread and the operating system creates
//! none, calls that need the pool return [`Error::NoThread`](crate::Error::NoThread). Queued commits complete on the task.
//!
//! With [`Background::Inline`](crate::env::Background::Inline), a write runs on the blocking pool, together with the
//! jobs that it triggers. [`Background::Stepped`](crate::env::Background::Stepped) is not supported.
//!
//! An application may use blocking and asynchronous handles of a database at the same time, see [`Db::as_blocking`]. If
//! the last handle is dropped, the database is closed on the blocking pool. [`Db::close`] waits until the database is
//! closed, and returns errors.

mod blocking_worker;
mod db;
mod follower;
mod inner;
mod keyspace;
mod locking_transaction;
mod range;
mod reads;
mod runtime;
mod snapshot;
mod transaction;

pub use db::Db;
pub use follower::Follower;
pub use keyspace::Keyspace;
pub use locking_transaction::LockingTransaction;
pub use range::{Range, Rev};
pub use snapshot::Snapshot;
pub use transaction::{Transaction, TransactionRange};

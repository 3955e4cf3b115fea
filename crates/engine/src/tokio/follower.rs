//! Asynchronous handle of a follower.

use std::path::Path;

use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::options::db::Options;
use crate::tokio::db::Db;
use crate::tokio::inner::check_background;
use crate::tokio::runtime::{drop_on_pool, run_on_pool};

/// Asynchronous handle of a follower, see [`crate::Follower`]. All clones refer to the same follower.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data");
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use lsmx::Options;
/// use lsmx::tokio::{Db, Follower};
///
/// let owner = Db::open(&path, Options::default()).await?;
/// let follower = Follower::open(&path, Options::default()).await?;
/// owner.put("key", "value").await?;
/// owner.sync().await?;
///
/// assert!(follower.catch_up().await?);
/// assert_eq!(follower.view().get("key").await?.as_deref(), Some(&b"value"[..]));
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Follower {
    inner: Arc<AsyncFollowerInner>,
}

/// State that all clones of a [`Follower`] share.
#[derive(Debug)]
struct AsyncFollowerInner {
    /// Set until this value is dropped.
    follower: Option<crate::db::Follower>,
}

impl AsyncFollowerInner {
    fn follower(&self) -> &crate::db::Follower {
        self.follower.as_ref().expect("set until drop")
    }
}

impl Drop for AsyncFollowerInner {
    fn drop(&mut self) {
        // Dropping the follower waits for a running catch-up.
        drop_on_pool(self.follower.take());
    }
}

impl TryFrom<crate::db::Follower> for Follower {
    type Error = Error;

    /// Fails with [`Error::Contradiction`] if the environment is
    /// [`Background::Stepped`](crate::env::Background::Stepped).
    fn try_from(follower: crate::db::Follower) -> Result<Follower> {
        check_background(&follower.view())?;
        Ok(Follower { inner: Arc::new(AsyncFollowerInner { follower: Some(follower) }) })
    }
}

impl Follower {
    /// Opens a follower of a database that another process, or another handle of this process, has open for writing.
    ///
    /// # Errors
    /// Same as [`crate::Db::open_follower`] and [`Follower::try_from`].
    pub async fn open(path: impl AsRef<Path> + Send, options: Options) -> Result<Follower> {
        let path = path.as_ref().to_owned();
        run_on_pool(move || Follower::try_from(crate::db::Db::open_follower(path, options)?)).await
    }

    /// Returns the blocking handle of the same follower.
    ///
    /// [`crate::Follower::metrics`] exists only on the blocking handle.
    #[must_use]
    pub fn as_blocking(&self) -> &crate::db::Follower {
        self.inner.follower()
    }

    /// Returns the current view, see [`crate::Follower::view`].
    #[must_use]
    pub fn view(&self) -> Db {
        // All views have the environment that `try_from` has checked.
        Db::new(self.as_blocking().view())
    }

    /// Reads the newest state of the database, see [`crate::Follower::catch_up`]. Returns whether the view was replaced.
    ///
    /// The call uses one thread of the blocking pool. It completes even if the future is dropped.
    ///
    /// # Errors
    /// Same as [`crate::Follower::catch_up`], and [`Error::RuntimeEnded`] if the runtime is shut down.
    pub async fn catch_up(&self) -> Result<bool> {
        let inner = Arc::clone(&self.inner);
        run_on_pool(move || inner.follower().catch_up()).await
    }

    /// Stops the background catch-up, see [`crate::Follower::close`]. Waits until a running catch-up ends.
    ///
    /// # Errors
    /// [`Error::RuntimeEnded`] if the runtime is shut down.
    pub async fn close(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        run_on_pool(move || {
            inner.follower().close();
            Ok(())
        })
        .await
    }
}

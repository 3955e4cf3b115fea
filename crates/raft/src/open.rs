//! Opens the storage of a node.

use std::path::Path;

use lsmx_base::sync::Arc;

use crate::application::Application;
use crate::config::StoreConfig;
use crate::error::Error;
use crate::log_store::LogStore;
use crate::options::StoreOptions;
use crate::state_machine::StateMachine;
use crate::store::Store;

/// Opens the storage of a Raft node in a directory, or creates it. Removes the leftovers of an interrupted installation.
///
/// Pass the results to `openraft::Raft::new`. The functions of the storage must run in a `tokio` runtime with a timer.
///
/// # Errors
/// The errors of [`lsmx::Db::open`]; [`Error::UnsupportedFormat`]; [`Error::Decode`] if the types of the configuration
/// have changed; [`Error::Io`].
pub async fn open<C: StoreConfig, A: Application<C>>(
    dir: impl AsRef<Path>,
    application: A,
    options: StoreOptions,
) -> Result<(LogStore<C>, StateMachine<C, A>), Error> {
    let (store, applied) = Store::open(dir.as_ref().to_owned(), options).await?;
    let state_machine = StateMachine::new(Arc::clone(&store), application, applied);
    Ok((LogStore::new(store), state_machine))
}

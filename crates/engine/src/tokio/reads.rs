//! Reads that a task awaits: in memory where they are awaited, else on the pool.

use ::tokio::task::consume_budget;

use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::multi_get::MultiGet;
use crate::error::{Error, Result};
use crate::iter::range::Range;
use crate::lookup::point::ReadScope;
use crate::options::read::{ReadOptions, ReadTier};
use crate::tokio::pool::on_pool;
use crate::tokio::shared::Shared;
use crate::tree::Tree;

/// Options of a read that must not block the task.
pub(crate) const MEMORY: ReadOptions = ReadOptions { tier: ReadTier::Memory, fill_cache: None };

/// Keys that are looked up in memory before other tasks get their turn.
const KEYS_AT_ONCE: usize = 32;

/// Keys past which a lookup of many goes to the pool as it is: to sort them is work.
pub(crate) const KEYS_ON_TASK_MAX: usize = 1024;

/// The values of keys as of one moment. `kept` is what the moment takes, such as a snapshot.
pub(crate) async fn many<K: AsRef<[u8]> + Send + 'static>(
    shared: &Arc<Shared>,
    tree: &Arc<Tree>,
    mut lookups: MultiGet<K>,
    kept: impl Send + 'static,
) -> Result<Vec<Option<Slice>>> {
    loop {
        match lookups.look_up(tree, ReadScope::Memory, KEYS_AT_ONCE) {
            Ok(true) => return Ok(lookups.into_values(shared.inner(), tree)),
            Ok(false) => ::tokio::task::yield_now().await,
            Err(Error::WouldBlock) => break,
            Err(error) => return Err(error),
        }
    }
    let (shared, tree) = (Arc::clone(shared), Arc::clone(tree));
    on_pool(move || {
        lookups.look_up_all(&shared.inner().state.env, &tree)?;
        drop(kept);
        Ok(lookups.into_values(shared.inner(), &tree))
    })
    .await
}

/// The first entry of a range, or its last.
pub(crate) async fn end_of(range: Range, last: bool) -> Result<Option<(Slice, Slice)>> {
    consume_budget().await;
    let ask = move |range: &mut Range| match last {
        true => range.next_back().transpose(),
        false => range.next().transpose(),
    };
    let mut range = range.options(&MEMORY);
    match ask(&mut range) {
        Err(Error::WouldBlock) => {}
        answer => return answer,
    }
    on_pool(move || {
        range.set_options(&ReadOptions::default());
        ask(&mut range)
    })
    .await
}

//! Reading a key and writing it back as one atomic step, see [`crate::db`]'s `update.rs`.

use lsmx_base::sync::Arc;

use crate::db::update::{KeyLock, Update, UpdateResult, apply_update};
use crate::error::{Error, Result};
use crate::lookup::point::ReadScope;
use crate::options::write::WriteOptions;
use crate::tokio::pool::on_pool;
use crate::tokio::shared::Shared;
use crate::tokio::wait::wait;
use crate::tree::Tree;

impl Shared {
    pub(crate) async fn update(
        self: &Arc<Shared>,
        tree: &Arc<Tree>,
        key: &[u8],
        options: WriteOptions,
        update: &mut (dyn FnMut(Option<&[u8]>) -> Update + Send),
    ) -> Result<UpdateResult> {
        let core = self.inner();
        core.check_open()?;
        let _turn = self.turn(tree, key).await;
        loop {
            ::tokio::task::consume_budget().await;
            core.begin_operation();
            let (read, before) = match core.read_to_update(tree, key, ReadScope::Memory) {
                Err(Error::WouldBlock) => {
                    let (shared, tree, key) = (Arc::clone(self), Arc::clone(tree), key.to_vec());
                    let read =
                        move || shared.inner().read_to_update(&tree, &key, ReadScope::Storage);
                    on_pool(read).await?
                }
                read => read?,
            };
            let (updated, batch) = apply_update(tree, key, read, before, update);
            let Some(batch) = batch else { return Ok(updated) };
            match self.write(batch, options).await {
                Err(Error::GuardRefused { .. } | Error::GuardUnknown { .. }) => {}
                written => return written.map(|()| updated),
            }
        }
    }

    /// Waits for the turn of a key, and no longer than is good for anybody.
    async fn turn(&self, tree: &Tree, key: &[u8]) -> Option<KeyLock<'_>> {
        let (env, turns) = (&self.inner().state.env, &self.inner().key_locks);
        let mut turn = turns.try_lock(tree, key);
        if turn.is_none() {
            let until = Some(turns.wait_limit_us(env));
            let taken = || {
                turn = turns.try_lock(tree, key);
                turn.is_some()
            };
            wait(env, turns.released(), until, taken).await;
        }
        turn
    }
}

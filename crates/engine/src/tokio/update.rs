//! Reading a key and writing it back as one atomic step, see [`crate::db`]'s `update.rs`.

use lsmx_base::sync::Arc;

use crate::db::update::{Turn, Update, Updated, updated};
use crate::error::{Error, Result};
use crate::lookup::point::Reads;
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
    ) -> Result<Updated> {
        let core = self.core();
        core.check_open()?;
        let _turn = self.turn(tree, key).await;
        loop {
            ::tokio::task::consume_budget().await;
            core.tick();
            let (read, before) = match core.read_to_update(tree, key, Reads::Memory) {
                Err(Error::WouldBlock) => {
                    let (shared, tree, key) = (Arc::clone(self), Arc::clone(tree), key.to_vec());
                    let read = move || shared.core().read_to_update(&tree, &key, Reads::Storage);
                    on_pool(read).await?
                }
                read => read?,
            };
            let (updated, batch) = updated(tree, key, read, before, update);
            let Some(batch) = batch else { return Ok(updated) };
            match self.write(batch, options).await {
                Err(Error::GuardRefused { .. } | Error::GuardUnknown { .. }) => {}
                written => return written.map(|()| updated),
            }
        }
    }

    /// Waits for the turn of a key, and no longer than is good for anybody.
    async fn turn(&self, tree: &Tree, key: &[u8]) -> Option<Turn<'_>> {
        let (env, turns) = (&self.core().store.env, &self.core().turns);
        let mut turn = turns.try_take(tree, key);
        if turn.is_none() {
            let until = Some(turns.patience_us(env));
            let taken = || {
                turn = turns.try_take(tree, key);
                turn.is_some()
            };
            wait(env, turns.over(), until, taken).await;
        }
        turn
    }
}

//! The way of a write that a task awaits: admission, the queue, the commit.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use lsmx_base::sync::Arc;

use crate::db::admission::{Admission, Step};
use crate::env::{Background, Env, WaitCause};
use crate::error::{Error, Result};
use crate::options::write::{Durability, WriteOptions};
use crate::state::memtable_budget::MemtableReservation;
use crate::tokio::attendant::PoolAttendant;
use crate::tokio::pool::on_pool;
use crate::tokio::shared::Shared;
use crate::tokio::wait::{Patience, wait};
use crate::write::batch::WriteBatch;
use crate::write::commit::PendingCommit;

impl Shared {
    /// As [`DbInner::write`](crate::db::DbInner::write).
    pub(crate) async fn write(
        self: &Arc<Shared>,
        batch: WriteBatch,
        options: WriteOptions,
    ) -> Result<()> {
        let core = self.inner();
        if core.state.env.background() == Background::Inline {
            // With the jobs that it sets off.
            let shared = Arc::clone(self);
            return on_pool(move || shared.inner().write(batch, options)).await;
        }
        if !core.check_write(&batch, options)? {
            return Ok(());
        }
        let (deadline_us, reservation) = self.admit(&batch, options).await?;
        let sync = options.durability == Durability::Sync;
        let traced = core.start_commit_trace(&batch);
        let pending = {
            let attendant = PoolAttendant::of(self.db().handle());
            let reserved_bytes = reservation.map_or(0, MemtableReservation::into_bytes);
            core.committer.commit_for_task(batch, sync, reserved_bytes, &attendant)
        };
        decided(&core.state.env, pending, deadline_us).await?;
        if let Some(traced) = traced {
            traced.committed(sync);
        }
        if core.state.wal.claim_sync_request() {
            core.state.progress.notify();
        }
        Ok(())
    }

    /// Waits until a write may queue. Returns its deadline and what is reserved for it.
    async fn admit<'a>(
        self: &'a Arc<Shared>,
        batch: &WriteBatch,
        options: WriteOptions,
    ) -> Result<(Option<u64>, Option<MemtableReservation<'a>>)> {
        let core = self.inner();
        let store = &core.state;
        let mut admission = Admission::new(core, batch, options);
        loop {
            match admission.step()? {
                Step::Commit => return Ok((admission.deadline_us, admission.reservation.take())),
                Step::Flush => {
                    if !self.govern(admission.deadline_us).await {
                        return Err(admission.deadline_error());
                    }
                }
                Step::Pause(us) => ::tokio::time::sleep(Duration::from_micros(us)).await,
                Step::Wait(_) => {
                    let (signal, deadline_us) = (&store.progress, admission.deadline_us);
                    let can_continue = || admission.can_continue();
                    if !wait(&store.env, signal, deadline_us, can_continue).await {
                        return Err(admission.deadline_error());
                    }
                }
            }
        }
    }
}

/// Waits until a commit is decided or its deadline has passed. At the deadline it is withdrawn, unless a leader
/// has taken it.
async fn decided(env: &Env, pending: PendingCommit, deadline_us: Option<u64>) -> Result<()> {
    let mut patience = Patience::until(env, deadline_us);
    poll_fn(|task| {
        let decided = pending.poll(task);
        if decided.is_ready() || !patience.has_ended(task) {
            return decided;
        }
        if pending.withdraw() {
            let cause = WaitCause::CommitAhead.as_str();
            return Poll::Ready(Err(Error::Deadline { cause }));
        }
        match pending.poll(task) {
            Poll::Pending => Poll::Ready(Err(pending.deadline_error())),
            decided => decided,
        }
    })
    .await
}

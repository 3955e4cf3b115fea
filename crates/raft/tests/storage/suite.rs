//! The storage test suite of openraft.

use lsmx::vfs::MemVfs;
use lsmx_raft::{LogStore, StateMachine};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};

use crate::application::{Counters, Types, open_in_memory};

struct Builder;

impl StoreBuilder<Types, LogStore<Types>, StateMachine<Types, Counters>> for Builder {
    async fn build(
        &self,
    ) -> Result<((), LogStore<Types>, StateMachine<Types, Counters>), StorageError<u64>> {
        let (log, state_machine) = open_in_memory(&MemVfs::new()).await;
        Ok(((), log, state_machine))
    }
}

#[test]
fn openraft_suite_passes() {
    Suite::test_all(Builder).unwrap();
}

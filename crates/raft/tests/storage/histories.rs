//! Random histories with reopenings against the model.

use lsmx::vfs::MemVfs;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::application::{open_in_memory, run};
use crate::history::{Model, Operation};

pub(crate) fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![
        1 => Just(Operation::Vote),
        4 => (0..8u8).prop_map(Operation::Append),
        1 => (0..4u8).prop_map(Operation::Truncate),
        1 => (0..9u8).prop_map(Operation::Purge),
        4 => (1..6u8).prop_map(Operation::Apply),
        1 => Just(Operation::BuildSnapshot),
        1 => (0..20u8).prop_map(Operation::InstallSnapshot),
    ]
}

#[test]
fn random_histories_match_the_model_after_reopenings() {
    let histories = vec((operations(), prop::bool::weighted(0.1)), 1..40);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(24));
    let result = runner.run(&histories, |history| {
        run(async {
            let (vfs, mut model) = (MemVfs::new(), Model::default());
            let mut stores = open_in_memory(&vfs).await;
            for (operation, reopen) in history {
                for step in model.steps(&operation) {
                    step.apply_to_model(&mut model);
                    step.call(&mut stores, &model).await;
                }
                if reopen {
                    stores.0.db().close(None).await.unwrap();
                    stores = open_in_memory(&vfs).await;
                }
                assert_eq!(Model::read(&mut stores).await, model, "after {operation:?}");
            }
        });
        Ok(())
    });
    result.unwrap();
}

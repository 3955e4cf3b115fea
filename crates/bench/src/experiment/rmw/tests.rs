//! Tests that the model detects wrong values and that all update modes produce equal values.

use std::path::Path;

use lsmx::merge_operator::FieldUpdate;
use lsmx_delta::DeltaOptions;

use super::design::{EngineDesign, separate_all_values};
use super::model::ValueModel;
use super::stream::{RecordLayout, StreamParameters};
use super::{UpdateMode, ValuePlacement};
use crate::experiment::NoProgress;
use crate::experiment::player::{OperationKind, ThreadGroup};
use crate::peers::{Engine, EngineKind, EngineSettings};
use crate::workload::KeyDistribution;
use crate::workload::operation_mix::{MixedOperation, OperationMix};
use crate::workload::records::{GeneratedRecords, LengthDistribution};

const LAYOUT: RecordLayout = RecordLayout {
    key: LengthDistribution::Fixed(16),
    value: LengthDistribution::Fixed(100),
    field_bytes: 10,
    delta_bytes: 10,
};
pub(super) const RECIPE: StreamParameters = StreamParameters {
    mix: OperationMix::Fm,
    read_ratio: 0.0,
    layout: LAYOUT,
    records: 300,
    ops: 3000,
    zipf: 0.99,
    seed: 5,
};

fn open(mode: UpdateMode, directory: &Path) -> Box<dyn Engine> {
    let settings = EngineSettings {
        memory_budget: Some(4 << 20),
        merge_operator: Some(FieldUpdate { value_bytes_max: 100 }),
        operand_store: Some(DeltaOptions::default()),
        value_separation: Some(separate_all_values(None)),
        ..EngineSettings::default()
    };
    EngineDesign { engine: EngineKind::Lsmx, mode, base: ValuePlacement::Tree }
        .open_database(directory, &settings)
        .unwrap()
}

#[test]
fn model_finds_lost_update_added_update_and_lost_record() {
    for mode in UpdateMode::ALL {
        let directory = tempfile::tempdir().unwrap();
        let engine = open(mode, directory.path());
        let engine = engine.as_ref();
        let records =
            GeneratedRecords::new(KeyDistribution::Uniform, 300, LAYOUT.key, LAYOUT.value, 5)
                .unwrap();
        let group = ThreadGroup { threads: 2, ..ThreadGroup::single_thread(engine, &records) };
        group.load_records(("load", 300), &mut NoProgress).unwrap();
        let played = group
            .run_work(("operate", 3000), &mut NoProgress, &|player| {
                RECIPE.run_operations(player, mode)
            })
            .unwrap();
        let counts = [OperationKind::Get, OperationKind::Update].map(|kind| played.count(kind));
        assert_eq!((played.ops, counts[0] + counts[1]), (3000, 3000));
        let model = ValueModel::after_stream(&RECIPE, &records);
        assert!(model.len() > 250, "{} of 300 records", model.len());
        model.check_database(engine, &records).unwrap();
        // A model without the last update must not match the database.
        let updates = RECIPE.operations().filter(|op| op.operation == MixedOperation::Update);
        let fewer =
            StreamParameters { ops: updates.map(|op| op.version).max().unwrap() - 1, ..RECIPE };
        ValueModel::after_stream(&fewer, &records).check_database(engine, &records).unwrap_err();
        let mut key = Vec::new();
        records.write_key(RECIPE.popularity().record_at(0), &mut key);
        engine.read_and_put_field(&key, 95, b"x").unwrap();
        let error = model.check_database(engine, &records).unwrap_err().to_string();
        assert!(error.contains("another value"), "{error}");
        engine.delete(&key).unwrap();
        let error = model.check_database(engine, &records).unwrap_err().to_string();
        assert!(error.contains("absent"), "{error}");
    }
}

#[test]
fn rewrite_and_merge_give_equal_values() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(UpdateMode::Merge, directory.path());
    for (key, base) in [(b"a", Some(&b"0123456789"[..])), (b"b", None)] {
        let both = [[key[0], b'r'], [key[0], b'm']];
        for key in &both {
            base.iter().for_each(|base| engine.put(key, base).unwrap());
        }
        for (offset, bytes) in [(3, &b"xyz"[..]), (9, b"++"), (4, b"!")] {
            engine.read_and_put_field(&both[0], offset, bytes).unwrap();
            engine.merge(&both[1], offset, bytes).unwrap();
        }
        let [rewritten, merged] = both.map(|key| {
            let mut found = Vec::new();
            assert!(engine.get(&key, &mut |value| found = value.to_vec()).unwrap());
            found
        });
        assert_eq!((&rewritten, rewritten.len()), (&merged, 11));
    }
    engine.close().unwrap();
}

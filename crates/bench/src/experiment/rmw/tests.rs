//! Whether the model finds what is wrong, and operations do what they say.

use lsmx_delta::DeltaOptions;

use super::design::{Design, Resources};
use super::model::Model;
use super::play::{Table, play};
use super::records::{Length, Records, Shape};
use super::stream::Recipe;
use super::{Base, Mix, Mode};
use crate::experiment::Silent;
use crate::peers::{Fields, Kind};

const RECIPE: Recipe =
    Recipe { mix: Mix::Fm, read_ratio: 0.0, records: 300, ops: 3000, zipf: 0.99, seed: 5 };
const SHAPE: Shape =
    Shape { key: Length::Fixed(16), value: Length::Fixed(100), field_bytes: 10, delta_bytes: 10 };

fn open(mode: Mode, directory: &std::path::Path) -> Box<dyn Fields> {
    open_over(Base::Tree, mode, directory)
}

fn open_over(base: Base, mode: Mode, directory: &std::path::Path) -> Box<dyn Fields> {
    let resources = Resources {
        memory_budget: 4 << 20,
        value_bytes_max: 100,
        direct_io: false,
        scan_read_bytes: None,
        delta: DeltaOptions::default(),
    };
    Design { engine: Kind::Lsmx, mode, base }.open(directory, resources).unwrap()
}

#[test]
fn the_model_finds_a_lost_update_an_added_one_and_a_lost_record() {
    for mode in Mode::DEFAULT {
        let directory = tempfile::tempdir().unwrap();
        let engine = open(mode, directory.path());
        let records = Records::new(300, SHAPE, 5).unwrap();
        let table = Table { engine: engine.as_ref(), records: &records, mode };
        table.load(300, &mut Silent).unwrap();
        let played = play(table, &RECIPE, 2, &mut Silent).unwrap();
        assert_eq!(played.ops, 3000);
        assert_eq!(played.reads.count() + played.updates.count(), 3000);
        let model = Model::after(&RECIPE, &records);
        assert!(model.len() > 250, "{} of 300 records", model.len());
        model.check(engine.as_ref(), &records).unwrap();
        // One operation less than was played.
        let fewer = Recipe { ops: last_update() - 1, ..RECIPE };
        Model::after(&fewer, &records).check(engine.as_ref(), &records).unwrap_err();
        let mut key = Vec::new();
        records.key(RECIPE.popular().at_rank(0), &mut key);
        engine.rewrite(&key, 95, b"x").unwrap();
        let error = model.check(engine.as_ref(), &records).unwrap_err().to_string();
        assert!(error.contains("another value"), "{error}");
        engine.delete(&key).unwrap();
        let error = model.check(engine.as_ref(), &records).unwrap_err().to_string();
        assert!(error.contains("absent"), "{error}");
        engine.close().unwrap();
    }
}

/// The place of the last update in the stream, from 1.
fn last_update() -> u64 {
    let updates = RECIPE.stream().filter(|op| op.act == super::mix::Act::Update);
    updates.map(|op| op.version).max().unwrap()
}

#[test]
fn both_ways_to_write_a_field_end_with_equal_values() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(Mode::Merge, directory.path());
    for (key, base) in [(b"a", Some(&b"0123456789"[..])), (b"b", None)] {
        let both = [[key[0], b'r'], [key[0], b'm']];
        for key in &both {
            base.iter().for_each(|base| engine.put(key, base).unwrap());
        }
        for (offset, bytes) in [(3, &b"xyz"[..]), (9, b"++"), (4, b"!")] {
            engine.rewrite(&both[0], offset, bytes).unwrap();
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

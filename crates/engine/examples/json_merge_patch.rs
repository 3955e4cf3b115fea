//! Documents that are changed by JSON merge patches (RFC 7396): a merge operator of one's own.
//!
//! A patch is merged without reading the document. It says which members are to have which values; `null` removes
//! a member, and anything but an object replaces what was there.
//!
//! ```sh
//! cargo run --release -p lsmx --example json_merge_patch
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::path::Path;

use lsmx::{Db, Keyspace, KeyspaceOptions, MergeError, MergeOperator, MergeResult, Options};
use serde_json::{Map, Value};

/// Values are JSON documents, operands are patches. A document that becomes `null` is gone.
///
/// Documents are written with sorted members: the same members in another order would be another value, and how
/// operands are grouped must not show.
#[derive(Debug)]
struct MergePatch;

fn parsed(what: &str, bytes: &[u8]) -> Result<Value, MergeError> {
    let failed = |error| MergeError::new(format!("{what} is no JSON: {error}"));
    serde_json::from_slice(bytes).map_err(failed)
}

fn written(mut document: Value) -> Vec<u8> {
    document.sort_all_objects();
    document.to_string().into_bytes()
}

impl MergeOperator for MergePatch {
    fn name(&self) -> &str {
        "example.json-merge-patch"
    }

    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        let mut document = base.map_or(Ok(Value::Null), |base| parsed("the value", base))?;
        for operand in operands {
            apply(&mut document, parsed("a patch", operand)?);
        }
        Ok((!document.is_null()).then(|| written(document)))
    }

    fn partial_merge(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let both = combined(parsed("", older).ok()?, parsed("", newer).ok()?)?;
        Some(written(both))
    }
}

/// `MergePatch` of RFC 7396, section 2.
fn apply(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(members) = target else { return };
    for (name, change) in patch {
        if change.is_null() {
            members.remove(&name);
        } else {
            apply(members.entry(name).or_insert(Value::Null), change);
        }
    }
}

/// The patch that does what `older` and then `newer` do; none if no patch does.
///
/// This is not `newer` applied to `older` as if that were a document: a `null` removes nothing from a patch, it
/// stays, to remove the member of the document. And where `older` replaces or removes, and `newer` changes what
/// is there then, both together would have to say "an object of these members and no others", which a patch
/// cannot say.
fn combined(older: Value, newer: Value) -> Option<Value> {
    match (older, newer) {
        (Value::Object(mut both), Value::Object(newer)) => {
            for (name, change) in newer {
                let change = match both.remove(&name) {
                    Some(before) => combined(before, change)?,
                    None => change,
                };
                both.insert(name, change);
            }
            Some(Value::Object(both))
        }
        (_, Value::Object(_)) => None,
        (_, newer) => Some(newer),
    }
}

fn open(path: &Path) -> lsmx::Result<(Db, Keyspace)> {
    let db = Db::open(path, Options::default())?;
    let options = KeyspaceOptions::default().merge_operator(MergePatch);
    let profiles = db.keyspace("profiles", options)?;
    Ok((db, profiles))
}

fn document(profiles: &Keyspace, key: &str) -> Result<Option<Value>, Box<dyn Error>> {
    let found = profiles.get(key)?;
    Ok(found.map(|found| serde_json::from_slice(&found)).transpose()?)
}

fn demonstrate(path: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let (db, profiles) = open(path)?;
    let mut lines = Vec::new();
    profiles.put("ada", r#"{"name": "Ada", "mail": {"home": "a@b", "work": "a@c"}}"#)?;
    profiles.merge("ada", r#"{"mail": {"work": null}, "age": 36}"#)?;
    profiles.merge("bob", r#"{"name": "Bob"}"#)?;
    for key in ["ada", "bob"] {
        let profile = document(&profiles, key)?.unwrap_or_default();
        lines.push(format!("{key}: {profile}"));
    }
    // Nobody looks at a patch when it is merged. One that makes no sense shows when its key is read, harms no
    // other key, and ends with the next put.
    profiles.merge("bob", "{ not json")?;
    for item in profiles.iter() {
        match item {
            Ok((key, _)) => lines.push(format!("read {}", key.escape_ascii())),
            Err(lsmx::Error::MergeFailed { key, why, .. }) => {
                lines.push(format!("cannot read {}: {why}", key.escape_ascii()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    profiles.put("bob", r#"{"name": "Bob"}"#)?;
    lines.push(format!("bob: {}", document(&profiles, "bob")?.unwrap_or_default()));
    profiles.merge("ada", "null")?;
    lines.push(format!("ada is there: {}", profiles.contains_key("ada")?));
    db.close(None)?;
    Ok(lines)
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    for line in demonstrate(&directory.path().join("data"))? {
        println!("{line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// The table of RFC 7396, appendix A.
    #[test]
    fn patches_do_what_the_standard_says() {
        for (original, patch, result) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"a":"foo"}), json!("bar"), json!("bar")),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ] {
            let mut document = original.clone();
            apply(&mut document, patch.clone());
            assert_eq!(document, result, "{original} patched by {patch}");
        }
    }

    #[test]
    fn a_combined_patch_keeps_its_nulls_and_is_none_where_there_is_none() {
        for (older, newer, both) in [
            (json!({"a":1}), json!({"a":null}), Some(json!({"a":null}))),
            (json!({"a":{"b":1}}), json!({"a":{"c":null}}), Some(json!({"a":{"b":1,"c":null}}))),
            (json!({"a":1}), json!({"b":{"c":null}}), Some(json!({"a":1,"b":{"c":null}}))),
            (json!({"a":1}), json!([2]), Some(json!([2]))),
            // Only {"a":{"c":1}} and nothing else in it: no patch says so.
            (json!({"a":null}), json!({"a":{"c":1}}), None),
            (json!({"a":7}), json!({"a":{}}), None),
            (json!(null), json!({"a":1}), None),
        ] {
            assert_eq!(combined(older.clone(), newer.clone()), both, "{older} then {newer}");
        }
    }

    /// Small documents of few names, so that patches meet.
    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            2 => Just(Value::Null),
            1 => any::<bool>().prop_map(Value::from),
            1 => any::<i64>().prop_map(Value::from),
            1 => prop::num::f64::NORMAL.prop_map(Value::from),
            1 => "[a-c]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            let members = prop::collection::btree_map("[a-c]", inner.clone(), 0..4);
            prop_oneof![
                4 => members.prop_map(|members| Value::Object(members.into_iter().collect())),
                1 => prop::collection::vec(inner, 0..3).prop_map(Value::from),
            ]
        })
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            30 => any_json().prop_map(|value| value.to_string().into_bytes()),
            1 => prop::collection::vec(any::<u8>(), 0..6),
        ]
    }

    type Folded = Result<Option<Vec<u8>>, MergeError>;

    fn full(base: Option<&[u8]>, operands: &[Vec<u8>]) -> Folded {
        let operands: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
        MergePatch.full_merge(b"key", base, &operands)
    }

    proptest! {
        /// The laws of [`MergeOperator`]: in steps as at once, and partial merges in any grouping change nothing.
        #[test]
        fn the_laws_hold(
            base in prop::option::of(bytes()),
            operands in prop::collection::vec(bytes(), 1..7),
            splits in prop::collection::vec(0usize..7, 0..6),
        ) {
            let base = base.as_deref();
            let all = full(base, &operands);
            for at in 1..operands.len() {
                if let Ok(first) = full(base, &operands[..at]) {
                    prop_assert_eq!(&all, &full(first.as_deref(), &operands[at..]));
                }
            }
            let mut fewer = operands.clone();
            for split in splits {
                let at = split % fewer.len();
                if at > 0
                    && let Some(both) = MergePatch.partial_merge(b"key", &fewer[at - 1], &fewer[at])
                {
                    fewer.splice(at - 1..=at, [both]);
                    prop_assert_eq!(&all, &full(base, &fewer), "{:?} as {:?}", operands, fewer);
                }
            }
        }
    }

    #[test]
    fn what_is_no_json_fails_its_key_alone_until_it_is_put() {
        let directory = tempfile::tempdir().unwrap();
        let lines = demonstrate(&directory.path().join("data")).unwrap();
        assert_eq!(lines[0], r#"ada: {"age":36,"mail":{"home":"a@b"},"name":"Ada"}"#);
        assert_eq!(lines[1], r#"bob: {"name":"Bob"}"#);
        assert_eq!(lines[2], "read ada");
        assert!(lines[3].starts_with("cannot read bob: a patch is no JSON"), "{lines:?}");
        assert_eq!(lines[4..], [r#"bob: {"name":"Bob"}"#, "ada is there: false"]);
    }

    /// Patches in tables, with a base further down and without one, and one that failed in between.
    #[test]
    fn patches_fold_through_flushes_compactions_and_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        for round in 0..3 {
            let (db, profiles) = open(&path).unwrap();
            for number in 0..200u32 {
                let patch = json!({ "n": { round.to_string(): number }, "old": null });
                profiles.merge(number.to_be_bytes(), patch.to_string()).unwrap();
                if number % 50 == 7 && round == 0 {
                    profiles.merge(number.to_be_bytes(), "]").unwrap();
                }
            }
            db.flush().unwrap();
            db.wait_idle().unwrap();
            db.close(None).unwrap();
        }
        let (_db, profiles) = open(&path).unwrap();
        let (mut read, mut failed) = (0u32, 0);
        for item in profiles.iter() {
            let Ok((key, value)) = item else {
                failed += 1;
                continue;
            };
            let n = u32::from_be_bytes(key[..].try_into().unwrap());
            let value: Value = serde_json::from_slice(&value).unwrap();
            assert_eq!(value, json!({ "n": { "0": n, "1": n, "2": n } }));
            read += 1;
        }
        assert_eq!((read, failed), (196, 4));
    }
}

//! Composition: named primitives that describe a policy.

use crate::composed::{PolicyPrimitives, check_primitives};
use crate::error::Error;
use crate::presets::Preset;

/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 64;

/// A composition: primitives of a policy, with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyComposition {
    /// Name of the policy in results and errors.
    pub name: String,
    /// Primitives of the policy.
    pub primitives: PolicyPrimitives,
}

impl PolicyComposition {
    /// Creates a policy from a name and primitives, and checks both.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::InvalidSpec`] for an invalid name and with [`Error::InvalidCombination`] for invalid
    /// primitives.
    pub fn new(
        name: impl Into<String>,
        primitives: PolicyPrimitives,
    ) -> Result<PolicyComposition, Error> {
        let name = name.into();
        check_name(&name).map_err(|what| Error::InvalidSpec { line: 1, column: 1, what })?;
        check_primitives(&primitives)?;
        Ok(PolicyComposition { name, primitives })
    }
}

/// Checks the name of a composition. Returns a description of the mistake if the name is not allowed.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_allowed) {
        return Err(format!(
            "name {name:?} is not 1 to {NAME_BYTES_MAX} letters, digits and + - . _"
        ));
    }
    let mut presets = Preset::ALL.into_iter().chain(Preset::DROPPING);
    if presets.any(|preset| preset.has_name_or_alias(name)) {
        return Err(format!("name {name:?} is that of a preset"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::composed::ComposedPolicy;
    use crate::granularity::JobGranularity;
    use crate::ids::{FileId, Level, RunId};
    use crate::key_range::KeyRange;
    use crate::layout::TreeLayout;
    use crate::policy::CompactionPolicy;
    use crate::run::SortedRun;
    use crate::running_jobs::RunningJobs;
    use crate::shape::{LevelShape, TreeShape};
    use crate::spec::PolicySpec;
    use crate::spec::toml_writer::to_inline_toml;
    use crate::table_meta::TableMeta;
    use crate::trigger::{LevelCapacity, Trigger};

    fn primitives_of(spec: &str) -> PolicyPrimitives {
        spec.parse::<PolicySpec>().unwrap().primitives()
    }

    /// Returns the primitives of a spec after a change of its triggers.
    fn with_triggers(spec: &str, change: impl Fn(&mut Trigger)) -> PolicyPrimitives {
        let mut primitives = primitives_of(spec);
        primitives.rules.iter_mut().for_each(|rule| change(&mut rule.trigger));
        primitives
    }

    /// Checks that the primitives are rejected with this reason. Returns the policy of a database that stores them.
    fn read_rejected(reason: &str, primitives: PolicyPrimitives) -> PolicySpec {
        let error = PolicySpec::from_primitives("mine", primitives.clone()).unwrap_err();
        assert!(matches!(error, Error::InvalidCombination { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{reason}: {error}");
        // An earlier version stored this spec.
        let stored = to_inline_toml(&PolicyComposition { name: "mine".to_owned(), primitives });
        let read = PolicySpec::from_stored(&stored).unwrap();
        assert_eq!(read.to_string().parse(), Ok(read.clone()), "{stored}");
        read
    }

    /// Bug: a database stored the policies of these primitives, but could not read them at the next open.
    #[test]
    fn from_primitives_with_number_outside_of_spec_range_is_error() {
        let lo = || primitives_of("lo+1");
        let set_run_count = |trigger: &mut Trigger| {
            if let Trigger::RunCount { wait, .. } = trigger {
                *wait = 0;
            }
        };
        let set_capacity = |trigger: &mut Trigger| {
            if let Trigger::LevelFull(LevelCapacity::FromBottom { last, base_memtables, .. }) =
                trigger
            {
                (*last, *base_memtables) = (Level(64), 0);
            }
        };
        let set_age = |trigger: &mut Trigger| {
            if let Trigger::FileStaleness { ttl_us } = trigger {
                *ttl_us = 0;
            }
        };
        let set_bytes = |trigger: &mut Trigger| {
            if let Trigger::TotalBytes { bytes } = trigger {
                *bytes = 0;
            }
        };
        let run_list = TreeLayout::RunList { bottom: Level(0) };
        let cases = [
            ("wait = 0 is not a whole number", with_triggers("leveled(K=1)", set_run_count)),
            ("last = 64 is not a whole number", with_triggers("leveled", set_capacity)),
            ("a spec cannot express a number", with_triggers("fifo(1G,ttl=1d)", set_age)),
            ("bytes = \"0\" is not", with_triggers("fifo(1G)", set_bytes)),
            ("stop = 1", PolicyPrimitives { stop_runs: usize::MAX, ..lo() }),
            ("tables = 1", PolicyPrimitives { file_tables: u64::MAX, ..lo() }),
            ("grandparents = 1", PolicyPrimitives { grandparent_files: u64::MAX, ..lo() }),
            ("bottom = 0", PolicyPrimitives { layout: run_list, ..primitives_of("universal") }),
        ];
        for (reason, primitives) in cases {
            read_rejected(reason, primitives);
        }
    }

    /// Bug: the levels of a tree became single files of any size.
    #[test]
    fn partition_with_capacity_from_top_is_error_and_preemptive_if_stored() {
        let from_top = with_triggers("spooky", |trigger| {
            if let Trigger::LevelFull(capacity) = trigger {
                *capacity = LevelCapacity::FromTop { l1_memtables: 2, size_ratio: 10 };
            }
        });
        let mut expected = from_top.clone();
        expected.rules[1].granularity = JobGranularity::Preemptive;
        let read = read_rejected("granularity partition needs capacity from-bottom", from_top);
        assert_eq!(read.primitives(), expected);
    }

    /// Bug: these values were accepted, although they had no effect.
    #[test]
    fn value_without_effect_is_error_and_allowed_if_stored() {
        let set_wait = |trigger: &mut Trigger| {
            if let Trigger::RunCount { wait, .. } = trigger {
                *wait = 8;
            }
        };
        for spec in ["leveled", "universal", "spooky", "full-preemptive"] {
            let read = read_rejected("wait = 8 has no effect", with_triggers(spec, set_wait));
            assert_eq!(read.primitives(), primitives_of(spec), "{spec}");
        }
        let mut by_file = primitives_of("leveled");
        by_file.rules[0].granularity = JobGranularity::File;
        let read = read_rejected("granularity file has no effect", by_file);
        assert_eq!(read.primitives(), primitives_of("leveled"));
        let fifo = || primitives_of("fifo");
        for (field, primitives) in [
            ("stop", PolicyPrimitives { stop_runs: 7, ..fifo() }),
            ("tables", PolicyPrimitives { file_tables: 7, ..fifo() }),
            ("grandparents", PolicyPrimitives { grandparent_files: 7, ..fifo() }),
        ] {
            let read = read_rejected(&format!("{field} has no effect"), primitives);
            assert_eq!(read.primitives(), fifo(), "{field}");
        }
    }

    #[test]
    fn from_stored_of_allowed_numbers_changes_nothing() {
        for spec in PolicySpec::all_presets() {
            let mine = PolicySpec::from_primitives("mine", spec.primitives()).unwrap();
            for spec in [mine, spec] {
                assert_eq!(PolicySpec::from_stored(&spec.to_string()), Ok(spec));
            }
        }
        assert!(PolicySpec::from_stored("{layout = \"later\"}").is_err());
        assert!(PolicySpec::from_stored("later(T=3)").is_err());
    }

    /// Bug: the maximum number of runs plus one overflowed.
    #[test]
    fn fluid_layout_accepts_largest_number_of_runs() {
        let fluid = |upper| {
            let layout = TreeLayout::Fluid { upper, last: 1, size_ratio: 10 };
            ComposedPolicy::new("mine", PolicyPrimitives { layout, ..primitives_of("tiering") })
        };
        assert!(fluid(vec![usize::MAX]).is_err());
        let policy = fluid(vec![9, usize::MAX]).unwrap();
        let level = |id| {
            let file = TableMeta::new(FileId(id), KeyRange::new("a", "z"));
            let run = SortedRun { id: RunId(id), files: vec![Arc::new(file)].into() };
            Arc::new(LevelShape { runs: vec![Arc::new(run)], cursor: None })
        };
        let levels = vec![Arc::default(), level(2), level(1)];
        let shape = TreeShape { levels, ..TreeShape::default() };
        assert_eq!(policy.pick(&shape, &RunningJobs::default()), None);
    }
}

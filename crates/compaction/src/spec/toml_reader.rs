//! Reads policies from TOML. The module [`spec`](crate::spec) describes the format.

use std::cell::RefCell;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use crate::composed::{
    CompactionRule, PolicyPrimitives, PrimitiveConflict, find_conflict, remove_ignored_values,
};
use crate::error::{Error, known_names};
use crate::file_picker::FilePicker;
use crate::granularity::JobGranularity;
use crate::ids::Level;
use crate::layout::TreeLayout;
use crate::parameter::{MILLION, ParameterUnit, PolicyParameter, parse_share};
use crate::presets::{
    BASE_MEMTABLES_DEFAULT, GRANDPARENTS_DEFAULT, LAST_LEVEL_DEFAULT, SIZE_RATIO_DEFAULT,
    STOP_RUNS_DEFAULT, TRIGGER_RUNS_DEFAULT,
};
use crate::spec::composition::{PolicyComposition, check_name};
use crate::trigger::{LevelCapacity, Trigger};

/// A policy read from TOML.
pub(super) enum TomlPolicy {
    /// A spec in the field `policy`, and its position in the text.
    Spec { text: String, line: u64, column: u64 },
    /// Composition of primitives.
    Composition(PolicyComposition),
}

/// Source of a spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpecSource {
    /// A user. A value that is not allowed is an error.
    User,
    /// A database, possibly of an earlier version that allowed more values. A number outside of its range is replaced
    /// by the nearest allowed number. A value without effect is replaced by an allowed value.
    Stored,
}

/// Reads a policy from the text of a TOML file.
pub(super) fn read_toml(text: &str) -> Result<TomlPolicy, Error> {
    let table = DeTable::parse(text).map_err(|error| syntax_error(text, &error))?;
    TableReader::new(text, table.get_ref(), 0, "the file", SpecSource::User).read_policy()
}

/// Reads a policy from an inline table.
pub(super) fn read_inline_toml(text: &str, source: SpecSource) -> Result<TomlPolicy, Error> {
    const KEY: &str = "policy = ";
    let whole = format!("{KEY}{text}");
    let table = DeTable::parse(&whole).map_err(|error| syntax_error(&whole, &error))?;
    match table.get_ref().get("policy").map(Spanned::get_ref) {
        Some(DeValue::Table(fields)) if table.get_ref().len() == 1 => {
            TableReader::new(&whole, fields, KEY.len(), "the spec", source).read_policy()
        }
        _ => Err(Error::MalformedSpec { spec: text.to_owned() }),
    }
}

fn syntax_error(text: &str, error: &toml::de::Error) -> Error {
    let (line, column) = position_of_offset(text, error.span().map_or(0, |span| span.start));
    Error::InvalidSpec { line, column, what: error.message().replace('\n', " ") }
}

/// Returns the line and the column of a byte offset. Both start at 1.
fn position_of_offset(text: &str, offset: usize) -> (u64, u64) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX).saturating_add(1);
    (number(before.matches('\n').count()), number(before[line_start..].chars().count()))
}

/// Reads the fields of a TOML table. Reports fields that no call has read as unknown.
struct TableReader<'a> {
    text: &'a str,
    table: &'a DeTable<'a>,
    /// Offset of the table in the text, for errors about missing fields.
    offset: usize,
    /// Description of the table for error messages.
    description: &'a str,
    source: SpecSource,
    /// Fields that were read.
    read: RefCell<Vec<&'static str>>,
}

impl<'a> TableReader<'a> {
    fn new(
        text: &'a str,
        table: &'a DeTable<'a>,
        offset: usize,
        description: &'a str,
        source: SpecSource,
    ) -> Self {
        TableReader { text, table, offset, description, source, read: RefCell::default() }
    }

    fn error(&self, offset: usize, what: String) -> Error {
        let (line, column) = position_of_offset(self.text, offset);
        Error::InvalidSpec { line, column, what }
    }

    /// Returns the value of a field and marks the field as read.
    fn get(&self, name: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.read.borrow_mut().push(name);
        self.table.get(name)
    }

    /// Returns the error for a value that differs from `expected`.
    fn unexpected_value_error(
        &self,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        expected: &str,
    ) -> Error {
        let found = match value.get_ref() {
            DeValue::String(text) => format!("{text:?}"),
            DeValue::Integer(number) => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            other => format!("a TOML {}", other.type_str()),
        };
        self.error(value.span().start, format!("{name} = {found} is not {expected}"))
    }

    /// Returns the string value of a field and its offset.
    fn read_text(&self, name: &'static str) -> Result<Option<(&'a str, usize)>, Error> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.get_ref() {
                DeValue::String(text) => Ok(Some((text, value.span().start))),
                _ => Err(self.unexpected_value_error(name, value, "a string")),
            },
        }
    }

    /// Returns the value that `words` assigns to the text of a field, or `default` if the field is missing.
    fn read_word<T: Copy>(
        &self,
        name: &'static str,
        words: &[(&'static str, T)],
        default: Option<T>,
    ) -> Result<T, Error> {
        let known = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let Some((text, offset)) = self.read_text(name)? else {
            return default.ok_or_else(|| {
                self.error(
                    self.offset,
                    format!("{} has no {name}; known: {}", self.description, known()),
                )
            });
        };
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            self.error(offset, format!("unknown {name} {text:?}; {}", known_names(text, &known())))
        })
    }

    /// Returns the number if it is in the range. Otherwise, returns the nearest number of the range, or `None`.
    fn limit_to_range(&self, number: u64, (min, max): (u64, u64)) -> Option<u64> {
        match self.source {
            SpecSource::User => (min..=max).contains(&number).then_some(number),
            SpecSource::Stored => Some(number.clamp(min, max)),
        }
    }

    /// Converts an integer and checks its bounds.
    fn parse_number(
        &self,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        (min, max): (u64, u64),
    ) -> Result<u64, Error> {
        let number = match value.get_ref() {
            DeValue::Integer(number) => parse_integer(number),
            _ => None,
        };
        number.and_then(|number| self.limit_to_range(number, (min, max))).ok_or_else(|| {
            self.unexpected_value_error(name, value, &format!("a whole number from {min} to {max}"))
        })
    }

    /// Returns the integer value of a field. It must be in the allowed range of the preset parameter `like`.
    fn read_number(
        &self,
        name: &'static str,
        like: PolicyParameter,
        default: u64,
    ) -> Result<u64, Error> {
        let value = self.get(name);
        value.map_or(Ok(default), |value| self.parse_number(name, value, like.allowed_range()))
    }

    fn read_count(
        &self,
        name: &'static str,
        like: PolicyParameter,
        default: usize,
    ) -> Result<usize, Error> {
        let number = self.read_number(name, like, u64::try_from(default).unwrap_or(u64::MAX))?;
        Ok(usize::try_from(number).unwrap_or(usize::MAX))
    }

    /// Returns a limit of the policy. The layout `queue` uses no limits, so a queue permits only the default.
    fn read_limit(
        &self,
        name: &'static str,
        like: PolicyParameter,
        default: u64,
        layout: &TreeLayout,
    ) -> Result<u64, Error> {
        let number = self.read_number(name, like, default)?;
        if *layout != TreeLayout::Fifo || number == default {
            return Ok(number);
        }
        match self.source {
            SpecSource::Stored => Ok(default),
            SpecSource::User => {
                let offset = self.table.get(name).map_or(self.offset, |value| value.span().start);
                Err(self.error(offset, format!("{name} has no effect with layout queue")))
            }
        }
    }

    fn read_level(
        &self,
        name: &'static str,
        like: PolicyParameter,
        default: u64,
    ) -> Result<Level, Error> {
        // The allowed numbers of levels are far below 255.
        Ok(Level(u8::try_from(self.read_number(name, like, default)?).unwrap_or(u8::MAX)))
    }

    /// Returns a field whose value is a list of integers.
    fn counts(
        &self,
        name: &'static str,
        like: PolicyParameter,
    ) -> Result<Option<Vec<usize>>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let DeValue::Array(values) = value.get_ref() else {
            return Err(self.unexpected_value_error(
                name,
                value,
                "a list of numbers, such as [4, 2]",
            ));
        };
        let number = |value| {
            let number = self.parse_number(name, value, like.allowed_range())?;
            Ok(usize::try_from(number).unwrap_or(usize::MAX))
        };
        values.iter().map(number).collect::<Result<_, _>>().map(Some)
    }

    /// Returns a time, a size or a share, written in the syntax of the preset parameter `like`.
    fn read_with_unit(
        &self,
        name: &'static str,
        like: PolicyParameter,
    ) -> Result<Option<u64>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let parsed = match value.get_ref() {
            DeValue::String(text) => like.parse(text),
            DeValue::Integer(number) => {
                parse_integer(number).and_then(|number| like.parse(&number.to_string()))
            }
            DeValue::Float(number) if like.unit() == ParameterUnit::Share => {
                parse_share(number.as_str())
            }
            _ => None,
        };
        let fits = parsed.and_then(|number| self.limit_to_range(number, like.allowed_range()));
        fits.map(Some)
            .ok_or_else(|| self.unexpected_value_error(name, value, &like.expected_values()))
    }

    /// Returns the value. Fails if it is missing.
    fn require_field(&self, name: &str, value: Option<u64>) -> Result<u64, Error> {
        value.ok_or_else(|| self.error(self.offset, format!("{} has no {name}", self.description)))
    }

    /// Fails if the table has a field that was not read.
    fn check_all_read(&self) -> Result<(), Error> {
        let read = self.read.borrow();
        for (key, _) in self.table {
            if !read.contains(&&**key.get_ref()) {
                return Err(self.error(
                    key.span().start,
                    format!(
                        "unknown field {:?} of {}; {}",
                        key.get_ref(),
                        self.description,
                        known_names(key.get_ref(), &read.join(", "))
                    ),
                ));
            }
        }
        Ok(())
    }

    fn read_policy(&self) -> Result<TomlPolicy, Error> {
        if let Some((text, offset)) = self.read_text("policy")? {
            self.check_all_read()?;
            let (line, column) = position_of_offset(self.text, offset);
            return Ok(TomlPolicy::Spec { text: text.to_owned(), line, column });
        }
        let name = match self.read_text("name")? {
            Some((name, offset)) => {
                check_name(name).map_err(|what| self.error(offset, what))?;
                name
            }
            None => "composed",
        };
        let layout = self.read_layout()?;
        let limit = |name, like, default| self.read_limit(name, like, default, &layout);
        let stop_runs = usize_or_max(limit("stop", PolicyParameter::Stop, STOP_RUNS_DEFAULT)?);
        let file_tables = limit("tables", PolicyParameter::Tables, 1)?;
        let grandparent_files =
            limit("grandparents", PolicyParameter::Grandparents, GRANDPARENTS_DEFAULT)?;
        let rules = self.rules(&layout)?;
        self.check_all_read()?;
        let mut primitives =
            PolicyPrimitives { rules, layout, stop_runs, file_tables, grandparent_files };
        if self.source == SpecSource::Stored {
            remove_ignored_values(&mut primitives);
        }
        if let Some(conflict) = find_conflict(&primitives) {
            let offset = self.offset_of_conflict(&conflict);
            let error = Error::InvalidCombination { reason: conflict.reason };
            return Err(self.error(offset, error.to_string()));
        }
        Ok(TomlPolicy::Composition(PolicyComposition { name: name.to_owned(), primitives }))
    }

    /// Returns the offset of the field that causes a conflict. If the field is missing, returns the offset of another
    /// field of the rule, or of the table.
    fn offset_of_conflict(&self, conflict: &PrimitiveConflict) -> usize {
        let value_offset = |table: &DeTable<'_>, name| table.get(name).map(|it| it.span().start);
        let rules = self.table.get("rule").map(Spanned::get_ref);
        let rule = match (rules, conflict.rule) {
            (Some(DeValue::Array(rules)), Some(index)) => rules.get(index),
            _ => None,
        };
        let in_rule = |name| match rule?.get_ref() {
            DeValue::Table(table) => value_offset(table, name),
            _ => None,
        };
        in_rule(conflict.field)
            .or_else(|| value_offset(self.table, conflict.field))
            .or_else(|| in_rule("granularity"))
            .or_else(|| in_rule("trigger"))
            .unwrap_or(self.offset)
    }

    fn read_layout(&self) -> Result<TreeLayout, Error> {
        let words = ["leveling", "fluid", "run-list", "queue"].map(|word| (word, word));
        Ok(match self.read_word("layout", &words, None)? {
            "leveling" => {
                let tiered = self.counts("tiered", PolicyParameter::UpperRuns)?.unwrap_or_default();
                TreeLayout::Leveling { tiered }
            }
            "fluid" => {
                let ratio = usize_or_max(SIZE_RATIO_DEFAULT);
                let size_ratio =
                    self.read_count("size-ratio", PolicyParameter::SizeRatio, ratio)?;
                let upper = self.counts("runs", PolicyParameter::UpperRuns)?;
                let upper = upper.unwrap_or_else(|| vec![size_ratio - 1]);
                let last = self.read_count("last-runs", PolicyParameter::LastRuns, 1)?;
                TreeLayout::Fluid { upper, last, size_ratio }
            }
            "run-list" => TreeLayout::RunList {
                bottom: self.read_level("bottom", PolicyParameter::Last, LAST_LEVEL_DEFAULT)?,
            },
            _ => TreeLayout::Fifo,
        })
    }

    fn rules(&self, layout: &TreeLayout) -> Result<Vec<CompactionRule>, Error> {
        let Some(value) = self.get("rule") else {
            return Err(self.error(self.offset, format!("{} has no [[rule]]", self.description)));
        };
        let DeValue::Array(rules) = value.get_ref() else {
            return Err(self.unexpected_value_error(
                "rule",
                value,
                "a list of tables, each under [[rule]]",
            ));
        };
        let rule = |value: &'a Spanned<DeValue<'a>>| {
            let DeValue::Table(table) = value.get_ref() else {
                return Err(self.unexpected_value_error("rule", value, "a table"));
            };
            let (start, source) = (value.span().start, self.source);
            TableReader::new(self.text, table, start, "the rule", source).read_rule(layout)
        };
        rules.iter().map(rule).collect()
    }

    fn read_rule(&self, layout: &TreeLayout) -> Result<CompactionRule, Error> {
        let trigger = self.read_trigger()?;
        let leveled = matches!(layout, TreeLayout::Leveling { .. });
        let full = matches!(trigger, Trigger::LevelFull(_));
        let by_file = leveled && (full || trigger.is_file_trigger());
        let words = ["level", "preemptive", "partition", "runs", "file", "files"].map(|w| (w, w));
        let default = if by_file { "file" } else { "runs" };
        let granularity = match self.read_word("granularity", &words, Some(default))? {
            "level" => JobGranularity::Level,
            "preemptive" => JobGranularity::Preemptive,
            "partition" => JobGranularity::Partition {
                above: self.read_level("above", PolicyParameter::Above, 2)?.0,
            },
            "runs" => JobGranularity::Runs,
            "file" => JobGranularity::File,
            _ => JobGranularity::Files {
                count: self.read_count("files", PolicyParameter::Tables, 2)?,
            },
        };
        let movements = FilePicker::ALL.map(|movement| (movement.name(), movement));
        let default = match trigger {
            Trigger::TombstoneDensity { .. } => FilePicker::MostTombstones,
            Trigger::TombstoneTtl { .. } => FilePicker::OldestTombstone,
            Trigger::FileStaleness { .. } if leveled => FilePicker::Oldest,
            _ if granularity.is_file_granular() => FilePicker::LeastOverlap,
            _ => FilePicker::All,
        };
        let movement = self.read_word("movement", &movements, Some(default))?;
        self.check_all_read()?;
        Ok(CompactionRule { trigger, granularity, movement })
    }

    fn read_trigger(&self) -> Result<Trigger, Error> {
        let words = [
            "level-full",
            "run-count",
            "too-many-runs",
            "space-amplification",
            "size-ratio",
            "tombstone-density",
            "tombstone-ttl",
            "file-staleness",
            "total-bytes",
        ]
        .map(|word| (word, word));
        let ratio =
            || self.read_number("size-ratio", PolicyParameter::SizeRatio, SIZE_RATIO_DEFAULT);
        Ok(match self.read_word("trigger", &words, None)? {
            "level-full" => Trigger::LevelFull(self.read_capacity()?),
            "run-count" => {
                let default = usize_or_max(TRIGGER_RUNS_DEFAULT);
                let runs = self.read_count("runs", PolicyParameter::Trigger, default)?;
                Trigger::RunCount {
                    runs,
                    wait: self.read_count("wait", PolicyParameter::Wait, runs)?,
                }
            }
            "too-many-runs" => Trigger::TooManyRuns,
            "space-amplification" => Trigger::SpaceAmplification {
                percent: self.read_number("percent", PolicyParameter::Space, 200)?,
            },
            "size-ratio" => Trigger::SizeRatio {
                percent: self.read_number("percent", PolicyParameter::Ratio, 1)?,
                runs_min: self.read_count("runs-min", PolicyParameter::Width, 2)?,
                runs_max: self.read_count("runs-max", PolicyParameter::WidthMax, 1_000_000_000)?,
            },
            "tombstone-density" => {
                let ppm =
                    self.read_with_unit("share", PolicyParameter::Density)?.unwrap_or(MILLION / 4);
                Trigger::TombstoneDensity { ppm }
            }
            "tombstone-ttl" => {
                // Only databases use compositions, so a share of the duration of an experiment is not accepted.
                let bound = self.read_with_unit("bound", PolicyParameter::Ttl)?;
                let bound_us = self.require_field("bound", bound)?.max(1);
                Trigger::TombstoneTtl { bound_us, size_ratio: ratio()? }
            }
            "file-staleness" => {
                let ttl = self.read_with_unit("ttl", PolicyParameter::Ttl)?;
                Trigger::FileStaleness { ttl_us: self.require_field("ttl", ttl)?.max(1) }
            }
            _ => {
                let bytes = self.read_with_unit("bytes", PolicyParameter::Bytes)?;
                Trigger::TotalBytes { bytes: self.require_field("bytes", bytes)? }
            }
        })
    }

    fn read_capacity(&self) -> Result<LevelCapacity, Error> {
        let size_ratio =
            self.read_number("size-ratio", PolicyParameter::SizeRatio, SIZE_RATIO_DEFAULT)?;
        let words = [("from-top", true), ("from-bottom", false)];
        Ok(if self.read_word("capacity", &words, Some(false))? {
            let l1_memtables = self.read_number("l1", PolicyParameter::L1, TRIGGER_RUNS_DEFAULT)?;
            LevelCapacity::FromTop { l1_memtables, size_ratio }
        } else {
            let last = self.read_level("last", PolicyParameter::Last, LAST_LEVEL_DEFAULT)?;
            let base_memtables =
                self.read_number("base", PolicyParameter::Base, BASE_MEMTABLES_DEFAULT)?;
            LevelCapacity::FromBottom { last, base_memtables, size_ratio }
        })
    }
}

/// Returns the value of an integer, or `None` if it is outside the range of `u64`.
fn parse_integer(number: &DeInteger<'_>) -> Option<u64> {
    u64::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok()
}

fn usize_or_max(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets::Preset;
    use crate::spec::PolicySpec;
    use crate::spec::toml_writer::to_toml;

    const TIERED_TOP: &str = "name = \"tiered-top\"\nlayout = \"leveling\"\ntiered = [4]\n\n\
        [[rule]]\ntrigger = \"run-count\"\nruns = 3\n\n\
        [[rule]]\ntrigger = \"level-full\"\nbase = 8\n";

    #[test]
    fn from_toml_missing_fields_have_defaults() {
        let spec = PolicySpec::from_toml(TIERED_TOP).unwrap();
        assert_eq!(spec.name(), "tiered-top");
        let primitives = spec.primitives();
        assert_eq!(primitives.layout, TreeLayout::Leveling { tiered: vec![4] });
        assert_eq!((primitives.stop_runs, primitives.grandparent_files), (20, 25));
        assert_eq!(primitives.rules[0].trigger, Trigger::RunCount { runs: 3, wait: 3 });
        assert_eq!(primitives.rules[1].movement, FilePicker::LeastOverlap);
        let capacity =
            LevelCapacity::FromBottom { last: Level(6), base_memtables: 8, size_ratio: 10 };
        assert_eq!(primitives.rules[1].trigger, Trigger::LevelFull(capacity));
        assert_eq!(PolicySpec::from_toml("policy = \"tiering(T=4)\"").unwrap().name(), "tiering");
    }

    #[test]
    fn from_toml_of_written_composition_is_same() {
        let mut specs = vec![PolicySpec::from_toml(TIERED_TOP).unwrap()];
        for preset in Preset::ALL.into_iter().chain(Preset::DROPPING) {
            let primitives = PolicySpec::new(preset).primitives();
            specs.push(
                PolicySpec::from_primitives(format!("my-{}", preset.name()), primitives).unwrap(),
            );
        }
        for spec in specs {
            let text = spec.to_string();
            assert!(!text.contains('\n'), "{text}");
            assert_eq!(text.parse::<PolicySpec>(), Ok(spec.clone()), "{text}");
            let file = to_toml(&PolicyComposition::new(spec.name(), spec.primitives()).unwrap());
            assert_eq!(PolicySpec::from_toml(&file), Ok(spec.clone()), "{file}");
            assert_eq!(spec.build().name(), spec.name());
        }
    }

    /// Bug: the digits of a number with a prefix were read as a decimal number.
    #[test]
    fn from_toml_number_has_its_radix() {
        for bytes in ["0x40000000", "0o10000000000", "1_073_741_824", "\"1G\""] {
            let text =
                format!("layout = \"queue\"\n[[rule]]\ntrigger = \"total-bytes\"\nbytes = {bytes}");
            let primitives = PolicySpec::from_toml(&text).unwrap().primitives();
            let trigger = &primitives.rules[0].trigger;
            assert_eq!(*trigger, Trigger::TotalBytes { bytes: 1 << 30 }, "{bytes}");
        }
    }

    #[test]
    fn from_toml_mistake_is_error_with_line_and_column() {
        let with = |line: &str| TIERED_TOP.replace("runs = 3", line);
        let rule = |text: &str| format!("layout = \"fluid\"\n[[rule]]\n{text}\n");
        for (text, position, what) in [
            ("", (1, 1), "has no layout; known: leveling, fluid, run-list, queue"),
            ("layout = 3", (1, 10), "layout = 3 is not a string"),
            ("\nlayout = \"lsm\"", (2, 10), "unknown layout \"lsm\"; known: leveling"),
            ("layout = \"fluid\"", (1, 1), "has no [[rule]]"),
            ("layout = \"fluid\"\nrule = 3", (2, 8), "rule = 3 is not a list of tables"),
            ("layout = \"fluid\"\nrule = []", (1, 10), "needs a rule with trigger too-many-runs"),
            ("name = \"lo+1\"\n", (1, 8), "name \"lo+1\" is that of a preset"),
            ("name = \"a b\"\n", (1, 8), "letters, digits"),
            ("policy = \"lasy\"", (1, 10), "unknown policy \"lasy\""),
            ("policy = \"lo+1\"\nstop = 3", (2, 1), "unknown field \"stop\""),
            ("layout = \n", (1, 10), ""),
            (&with("runs = 0"), (7, 8), "runs = 0 is not a whole number from 1"),
            (&with("runs = 1.5"), (7, 8), "runs = 1.5 is not a whole number"),
            (
                &with("rums = 3"),
                (7, 1),
                "unknown field \"rums\" of the rule; did you mean runs? known: trigger, runs, wait",
            ),
            (&with("runs = 30"), (7, 8), "writes stop at 20 runs, but no merge is due before 30"),
            (&with("wait = 25"), (7, 8), "wait = 25 has no effect"),
            (
                &with("wait = 25").replace("tiered = [4]\n", ""),
                (6, 8),
                "merges of L0 wait for 25 runs",
            ),
            (
                &with("granularity = \"file\""),
                (7, 15),
                "granularity file has no effect with trigger run-count",
            ),
            ("layout = \"queue\"\ntables = 2", (2, 10), "tables has no effect with layout queue"),
            (&rule("trigger = \"full\""), (3, 11), "unknown trigger \"full\""),
            (&rule("runs = 3"), (2, 1), "the rule has no trigger"),
            (&rule("trigger = \"tombstone-ttl\""), (2, 1), "the rule has no bound"),
            (
                &rule("trigger = \"tombstone-ttl\"\nbound = \"1w\""),
                (4, 9),
                "bound = \"1w\" is not a time",
            ),
            (
                &rule("trigger = \"tombstone-ttl\"\nbound = 0.5"),
                (4, 9),
                "bound = 0.5 is not a time",
            ),
            (&rule("trigger = \"file-staleness\"\nttl = 0.5"), (4, 7), "ttl = 0.5 is not a time"),
            (
                &rule("trigger = \"total-bytes\"\nbytes = 1.0"),
                (4, 9),
                "bytes = 1.0 is not a number of bytes",
            ),
            (&rule("trigger = \"level-full\""), (3, 11), "its levels have no capacity"),
            (&rule("trigger = \"run-count\""), (3, 11), "limits the runs of a level itself"),
            (
                &rule("trigger = \"too-many-runs\"\ngranularity = \"file\""),
                (4, 15),
                "granularity file cannot be used with layout fluid, which takes whole runs",
            ),
            (
                &rule("trigger = \"too-many-runs\"\n[[rule]]\ntrigger = \"too-many-runs\""),
                (5, 11),
                "second rule with trigger too-many-runs",
            ),
            (
                &TIERED_TOP.replace("base = 8", "granularity = \"preemptive\"\nmovement = \"all\""),
                (3, 10),
                "tiered levels cannot be used with granularity preemptive",
            ),
            (
                &TIERED_TOP
                    .replace("tiered = [4]\n", "")
                    .replace("base = 8", "capacity = \"from-top\"\ngranularity = \"partition\""),
                (10, 12),
                "granularity partition needs capacity from-bottom",
            ),
            (
                &TIERED_TOP.replace("base = 8", "movement = \"all\""),
                (11, 12),
                "granularity file needs a movement that chooses",
            ),
            (
                &format!(
                    "{TIERED_TOP}[[rule]]\ntrigger = \"tombstone-density\"\nmovement = \"round-robin\""
                ),
                (14, 12),
                "movement round-robin compares files of one level",
            ),
            (
                &format!("{TIERED_TOP}[[rule]]\ntrigger = \"total-bytes\"\nbytes = \"1G\""),
                (13, 11),
                "only layout queue",
            ),
            (
                &format!("{TIERED_TOP}[[rule]]\ntrigger = \"size-ratio\""),
                (13, 11),
                "only layout run-list",
            ),
        ] {
            let (line, column) = position;
            let error = PolicySpec::from_toml(text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("line {line}, column {column}: ")),
                "{text:?}: {error}"
            );
            assert!(error.contains(what) && !error.contains('\n'), "{text:?}: {error}");
        }
    }
}

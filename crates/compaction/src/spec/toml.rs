//! A composition of primitives in TOML.
//!
//! ```toml
//! name = "tiered-top"         # in results and errors
//! layout = "leveling"         # leveling, fluid, run-list or queue
//! tiered = [4]                # of leveling: runs that L1, L2, … may hold before leveled levels begin
//! stop = 20                   # runs of L0 that stop writes
//! tables = 1                  # target size of an output, in tables of the keyspace
//! grandparents = 25           # most overlap of an output, in outputs
//!
//! [[rule]]                    # in order of priority
//! trigger = "run-count"
//! runs = 4
//!
//! [[rule]]
//! trigger = "level-full"
//! capacity = "from-bottom"
//! last = 6
//! base = 4
//! size-ratio = 10
//! granularity = "file"
//! movement = "least-overlap"
//! ```
//!
//! Fields of layouts: `tiered` of leveling; `runs`, `last-runs`, `size-ratio` of fluid; `bottom` of
//! run-list. Of triggers: `capacity` (`from-top` with `l1`, `from-bottom` with `last`, `base`) and
//! `size-ratio` of level-full; `runs`, `wait` of run-count; `percent` of space-amplification; `percent`,
//! `runs-min`, `runs-max` of size-ratio; `share` of tombstone-density; `bound`, `size-ratio` of
//! tombstone-ttl; `ttl` of file-staleness; `bytes` of total-bytes. Of granularities: `files` of files,
//! `above` of partition. Times and sizes are written as in `"3600s"` and `"1G"`. What is left out has
//! the default of the presets. A file with the one field `policy` names a preset instead.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Composition, Form, PolicySpec};
use crate::composed::{Primitives, Rule};
use crate::granularity::Granularity;
use crate::layout::Layout;
use crate::movement::Movement;
use crate::parameter::{MILLION, Parameter, parse_share, show_share};
use crate::presets::{
    BASE_MEMTABLES_DEFAULT, GRANDPARENTS_DEFAULT, LAST_LEVEL_DEFAULT, Preset, SIZE_RATIO_DEFAULT,
    STOP_RUNS_DEFAULT, TRIGGER_RUNS_DEFAULT,
};
use crate::trigger::{Capacity, Trigger};
use crate::{Error, Level};

const NAME_BYTES_MAX: usize = 64;

/// Reads a policy from a file's text.
pub(super) fn read(text: &str) -> Result<PolicySpec, Error> {
    let table = DeTable::parse(text).map_err(|error| malformed(text, &error))?;
    Fields::new(text, table.get_ref(), 0, "the file").policy()
}

/// Reads a policy from an inline table.
pub(super) fn read_inline(text: &str) -> Result<PolicySpec, Error> {
    const KEY: &str = "policy = ";
    let whole = format!("{KEY}{text}");
    let table = DeTable::parse(&whole).map_err(|error| malformed(&whole, &error))?;
    match table.get_ref().get("policy").map(Spanned::get_ref) {
        Some(DeValue::Table(fields)) if table.get_ref().len() == 1 => {
            Fields::new(&whole, fields, 0, "the spec").policy()
        }
        _ => Err(Error::MalformedSpec { spec: text.to_owned() }),
    }
}

fn malformed(text: &str, error: &toml::de::Error) -> Error {
    let line = error.span().map_or(1, |span| line_at(text, span.start));
    Error::SpecText { line, what: error.message().replace('\n', " ") }
}

fn line_at(text: &str, offset: usize) -> u64 {
    let before = text.as_bytes().get(..offset).unwrap_or_default();
    let lines = before.iter().filter(|byte| **byte == b'\n').count();
    u64::try_from(lines).unwrap_or(u64::MAX).saturating_add(1)
}

/// Says what is wrong with a name, if it is not one for a composition.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(fits) {
        return Err(format!(
            "name {name:?} is not 1 to {NAME_BYTES_MAX} letters, digits and + - . _"
        ));
    }
    let mut presets = Preset::ALL.into_iter().chain(Preset::DROPPING);
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    if presets.any(|preset| is(preset.name()) || preset.aliases().iter().any(|alias| is(alias))) {
        return Err(format!("name {name:?} is that of a preset"));
    }
    Ok(())
}

/// A table whose fields are taken one by one; what is left is unknown.
struct Fields<'a> {
    text: &'a str,
    table: &'a DeTable<'a>,
    /// Where the table begins, for what is missing in it.
    offset: usize,
    /// What the table is, for errors.
    what: &'a str,
    taken: RefCell<Vec<&'static str>>,
}

impl<'a> Fields<'a> {
    fn new(text: &'a str, table: &'a DeTable<'a>, offset: usize, what: &'a str) -> Self {
        Fields { text, table, offset, what, taken: RefCell::default() }
    }

    fn error(&self, offset: usize, what: String) -> Error {
        Error::SpecText { line: line_at(self.text, offset), what }
    }

    fn take(&self, name: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.taken.borrow_mut().push(name);
        self.table.get(name)
    }

    fn expected(&self, name: &str, value: &Spanned<DeValue<'_>>, expected: &str) -> Error {
        let found = match value.get_ref() {
            DeValue::String(text) => format!("{text:?}"),
            DeValue::Integer(number) => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            other => format!("a TOML {}", other.type_str()),
        };
        self.error(value.span().start, format!("{name} = {found} is not {expected}"))
    }

    fn text(&self, name: &'static str) -> Result<Option<(&'a str, usize)>, Error> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.get_ref() {
                DeValue::String(text) => Ok(Some((text, value.span().start))),
                _ => Err(self.expected(name, value, "a string")),
            },
        }
    }

    /// One of several words.
    fn word<T: Copy>(
        &self,
        name: &'static str,
        words: &[(&'static str, T)],
        default: Option<T>,
    ) -> Result<T, Error> {
        let known = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let Some((text, offset)) = self.text(name)? else {
            return default.ok_or_else(|| {
                self.error(self.offset, format!("{} has no {name}; known: {}", self.what, known()))
            });
        };
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            self.error(offset, format!("unknown {name} {text:?}; known: {}", known()))
        })
    }

    fn number_of(
        &self,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        (min, max): (u64, u64),
    ) -> Result<u64, Error> {
        let number = match value.get_ref() {
            DeValue::Integer(number) => {
                u64::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok()
            }
            _ => None,
        };
        number.filter(|number| (min..=max).contains(number)).ok_or_else(|| {
            self.expected(name, value, &format!("a whole number from {min} to {max}"))
        })
    }

    /// A number with the domain of a parameter of presets.
    fn number(&self, name: &'static str, like: Parameter, default: u64) -> Result<u64, Error> {
        let value = self.take(name);
        value.map_or(Ok(default), |value| self.number_of(name, value, like.domain()))
    }

    fn count(&self, name: &'static str, like: Parameter, default: usize) -> Result<usize, Error> {
        let number = self.number(name, like, u64::try_from(default).unwrap_or(u64::MAX))?;
        Ok(usize::try_from(number).unwrap_or(usize::MAX))
    }

    fn level(&self, name: &'static str, like: Parameter, default: u64) -> Result<Level, Error> {
        // The domains of levels end far below 255.
        Ok(Level(u8::try_from(self.number(name, like, default)?).unwrap_or(u8::MAX)))
    }

    fn counts(&self, name: &'static str, like: Parameter) -> Result<Option<Vec<usize>>, Error> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let DeValue::Array(values) = value.get_ref() else {
            return Err(self.expected(name, value, "a list of numbers, such as [4, 2]"));
        };
        let number = |value| {
            let number = self.number_of(name, value, like.domain())?;
            Ok(usize::try_from(number).unwrap_or(usize::MAX))
        };
        values.iter().map(number).collect::<Result<_, _>>().map(Some)
    }

    /// A time, a size or a share, written as that of a parameter.
    fn scaled(&self, name: &'static str, like: Parameter) -> Result<Option<u64>, Error> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let parsed = match value.get_ref() {
            DeValue::String(text) => like.parse(text),
            DeValue::Integer(number) => like.parse(number.as_str()),
            DeValue::Float(number) => parse_share(number.as_str()),
            _ => None,
        };
        let (min, max) = like.domain();
        let fits = parsed.filter(|number| (min..=max).contains(number));
        fits.map(Some).ok_or_else(|| self.expected(name, value, &like.expected()))
    }

    fn needed(&self, name: &str, value: Option<u64>) -> Result<u64, Error> {
        value.ok_or_else(|| self.error(self.offset, format!("{} has no {name}", self.what)))
    }

    /// Fails if a field was not asked for.
    fn end(&self) -> Result<(), Error> {
        let taken = self.taken.borrow();
        for (key, _) in self.table {
            if !taken.contains(&&**key.get_ref()) {
                return Err(self.error(
                    key.span().start,
                    format!(
                        "unknown field {:?} of {}; known: {}",
                        key.get_ref(),
                        self.what,
                        taken.join(", ")
                    ),
                ));
            }
        }
        Ok(())
    }

    fn policy(&self) -> Result<PolicySpec, Error> {
        if let Some((text, offset)) = self.text("policy")? {
            let spec = text.parse::<PolicySpec>();
            let spec = spec.map_err(|error| self.error(offset, error.to_string()))?;
            self.end()?;
            return Ok(spec);
        }
        let name = match self.text("name")? {
            Some((name, offset)) => {
                check_name(name).map_err(|what| self.error(offset, what))?;
                name
            }
            None => "composed",
        };
        let layout = self.layout()?;
        let stop_runs = self.count("stop", Parameter::Stop, default_usize(STOP_RUNS_DEFAULT))?;
        let file_tables = self.number("tables", Parameter::Tables, 1)?;
        let grandparent_files =
            self.number("grandparents", Parameter::Grandparents, GRANDPARENTS_DEFAULT)?;
        let rules = self.rules(&layout)?;
        self.end()?;
        let primitives = Primitives { rules, layout, stop_runs, file_tables, grandparent_files };
        primitives.check().map_err(|error| self.error(self.offset, error.to_string()))?;
        let composition = Composition { name: name.to_owned(), primitives };
        Ok(PolicySpec(Form::Composition(Arc::new(composition))))
    }

    fn layout(&self) -> Result<Layout, Error> {
        let words = ["leveling", "fluid", "run-list", "queue"].map(|word| (word, word));
        Ok(match self.word("layout", &words, None)? {
            "leveling" => {
                let tiered = self.counts("tiered", Parameter::UpperRuns)?.unwrap_or_default();
                Layout::Leveling { tiered }
            }
            "fluid" => {
                let ratio = default_usize(SIZE_RATIO_DEFAULT);
                let size_ratio = self.count("size-ratio", Parameter::SizeRatio, ratio)?;
                let upper = self.counts("runs", Parameter::UpperRuns)?;
                let upper = upper.unwrap_or_else(|| vec![size_ratio - 1]);
                let last = self.count("last-runs", Parameter::LastRuns, 1)?;
                Layout::Fluid { upper, last, size_ratio }
            }
            "run-list" => Layout::RunList {
                bottom: self.level("bottom", Parameter::Last, LAST_LEVEL_DEFAULT)?,
            },
            _ => Layout::Queue,
        })
    }

    fn rules(&self, layout: &Layout) -> Result<Vec<Rule>, Error> {
        let Some(value) = self.take("rule") else {
            return Err(self.error(self.offset, format!("{} has no [[rule]]", self.what)));
        };
        let DeValue::Array(rules) = value.get_ref() else {
            return Err(self.expected("rule", value, "a list of tables, each under [[rule]]"));
        };
        let rule = |value: &'a Spanned<DeValue<'a>>| {
            let DeValue::Table(table) = value.get_ref() else {
                return Err(self.expected("rule", value, "a table"));
            };
            Fields::new(self.text, table, value.span().start, "the rule").rule(layout)
        };
        rules.iter().map(rule).collect()
    }

    fn rule(&self, layout: &Layout) -> Result<Rule, Error> {
        let trigger = self.trigger()?;
        let leveled = matches!(layout, Layout::Leveling { .. });
        let full = matches!(trigger, Trigger::LevelFull(_));
        let by_file = leveled && (full || trigger.is_about_files());
        let words = ["level", "preemptive", "partition", "runs", "file", "files"].map(|w| (w, w));
        let default = if by_file { "file" } else { "runs" };
        let granularity = match self.word("granularity", &words, Some(default))? {
            "level" => Granularity::Level,
            "preemptive" => Granularity::Preemptive,
            "partition" => {
                Granularity::Partition { above: self.level("above", Parameter::Above, 2)?.0 }
            }
            "runs" => Granularity::Runs,
            "file" => Granularity::File,
            _ => Granularity::Files { count: self.count("files", Parameter::Tables, 2)? },
        };
        let movements = Movement::ALL.map(|movement| (movement.name(), movement));
        let default = match trigger {
            Trigger::TombstoneDensity { .. } => Movement::MostTombstones,
            Trigger::TombstoneTtl { .. } => Movement::OldestTombstone,
            Trigger::FileStaleness { .. } if leveled => Movement::Oldest,
            _ if granularity.chooses() => Movement::LeastOverlap,
            _ => Movement::All,
        };
        let movement = self.word("movement", &movements, Some(default))?;
        self.end()?;
        Ok(Rule { trigger, granularity, movement })
    }

    fn trigger(&self) -> Result<Trigger, Error> {
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
        let ratio = || self.number("size-ratio", Parameter::SizeRatio, SIZE_RATIO_DEFAULT);
        Ok(match self.word("trigger", &words, None)? {
            "level-full" => Trigger::LevelFull(self.capacity()?),
            "run-count" => {
                let default = default_usize(TRIGGER_RUNS_DEFAULT);
                let runs = self.count("runs", Parameter::Trigger, default)?;
                Trigger::RunCount { runs, wait: self.count("wait", Parameter::Wait, runs)? }
            }
            "too-many-runs" => Trigger::TooManyRuns,
            "space-amplification" => Trigger::SpaceAmplification {
                percent: self.number("percent", Parameter::Space, 200)?,
            },
            "size-ratio" => Trigger::SizeRatio {
                percent: self.number("percent", Parameter::Ratio, 1)?,
                runs_min: self.count("runs-min", Parameter::Width, 2)?,
                runs_max: self.count("runs-max", Parameter::WidthMax, 1_000_000_000)?,
            },
            "tombstone-density" => {
                let ppm = self.scaled("share", Parameter::Density)?.unwrap_or(MILLION / 4);
                Trigger::TombstoneDensity { ppm }
            }
            "tombstone-ttl" => {
                // A composition is for databases, where no run has an end.
                let bound = self.scaled("bound", Parameter::Ttl)?;
                let bound_us = self.needed("bound", bound)?.max(1);
                Trigger::TombstoneTtl { bound_us, size_ratio: ratio()? }
            }
            "file-staleness" => {
                let ttl = self.scaled("ttl", Parameter::Ttl)?;
                Trigger::FileStaleness { ttl_us: self.needed("ttl", ttl)?.max(1) }
            }
            _ => {
                let bytes = self.scaled("bytes", Parameter::Bytes)?;
                Trigger::TotalBytes { bytes: self.needed("bytes", bytes)? }
            }
        })
    }

    fn capacity(&self) -> Result<Capacity, Error> {
        let size_ratio = self.number("size-ratio", Parameter::SizeRatio, SIZE_RATIO_DEFAULT)?;
        let words = [("from-top", true), ("from-bottom", false)];
        Ok(if self.word("capacity", &words, Some(false))? {
            let l1_memtables = self.number("l1", Parameter::L1, TRIGGER_RUNS_DEFAULT)?;
            Capacity::FromTop { l1_memtables, size_ratio }
        } else {
            let last = self.level("last", Parameter::Last, LAST_LEVEL_DEFAULT)?;
            let base_memtables = self.number("base", Parameter::Base, BASE_MEMTABLES_DEFAULT)?;
            Capacity::FromBottom { last, base_memtables, size_ratio }
        })
    }
}

fn default_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// A composition as an inline table: every field, so that later defaults change nothing.
pub(super) fn write_inline(composition: &Composition) -> String {
    let Composition { name, primitives } = composition;
    let mut out = format!("{{name = \"{name}\", layout = \"{}\"", primitives.layout.name());
    write_layout(&mut out, &primitives.layout, ", ");
    let Primitives { stop_runs, file_tables, grandparent_files, .. } = primitives;
    // Writing to a string does not fail.
    let _ = write!(
        out,
        ", stop = {stop_runs}, tables = {file_tables}, grandparents = {grandparent_files}"
    );
    let rules: Vec<_> =
        primitives.rules.iter().map(|rule| format!("{{{}}}", fields_of(rule).join(", "))).collect();
    let _ = write!(out, ", rule = [{}]}}", rules.join(", "));
    out
}

/// A composition as a file for people.
#[must_use]
pub fn write_file(composition: &Composition) -> String {
    let Composition { name, primitives } = composition;
    let mut out = format!("name = \"{name}\"\nlayout = \"{}\"", primitives.layout.name());
    write_layout(&mut out, &primitives.layout, "\n");
    let Primitives { stop_runs, file_tables, grandparent_files, .. } = primitives;
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "\nstop = {stop_runs}\ntables = {file_tables}\ngrandparents = {grandparent_files}\n"
    );
    for rule in &primitives.rules {
        let _ = write!(out, "\n[[rule]]\n{}\n", fields_of(rule).join("\n"));
    }
    out
}

fn write_layout(out: &mut String, layout: &Layout, between: &str) {
    let fields = match layout {
        Layout::Leveling { tiered } if tiered.is_empty() => Vec::new(),
        Layout::Leveling { tiered } => vec![format!("tiered = {tiered:?}")],
        Layout::Fluid { upper, last, size_ratio } => vec![
            format!("runs = {upper:?}"),
            format!("last-runs = {last}"),
            format!("size-ratio = {size_ratio}"),
        ],
        Layout::RunList { bottom } => vec![format!("bottom = {}", bottom.0)],
        Layout::Queue => Vec::new(),
    };
    for field in fields {
        *out += between;
        *out += &field;
    }
}

fn fields_of(rule: &Rule) -> Vec<String> {
    let mut fields = vec![format!("trigger = \"{}\"", rule.trigger.name())];
    let text =
        |name: &str, like: Parameter, value: u64| format!("{name} = \"{}\"", like.show(value));
    match &rule.trigger {
        Trigger::LevelFull(Capacity::FromTop { l1_memtables, size_ratio }) => fields.extend([
            "capacity = \"from-top\"".to_owned(),
            format!("l1 = {l1_memtables}"),
            format!("size-ratio = {size_ratio}"),
        ]),
        Trigger::LevelFull(Capacity::FromBottom { last, base_memtables, size_ratio }) => fields
            .extend([
                "capacity = \"from-bottom\"".to_owned(),
                format!("last = {}", last.0),
                format!("base = {base_memtables}"),
                format!("size-ratio = {size_ratio}"),
            ]),
        Trigger::RunCount { runs, wait } => {
            fields.extend([format!("runs = {runs}"), format!("wait = {wait}")]);
        }
        Trigger::TooManyRuns => {}
        Trigger::SpaceAmplification { percent } => fields.push(format!("percent = {percent}")),
        Trigger::SizeRatio { percent, runs_min, runs_max } => fields.extend([
            format!("percent = {percent}"),
            format!("runs-min = {runs_min}"),
            format!("runs-max = {runs_max}"),
        ]),
        Trigger::TombstoneDensity { ppm } => fields.push(format!("share = {}", show_share(*ppm))),
        Trigger::TombstoneTtl { bound_us, size_ratio } => fields.extend([
            text("bound", Parameter::Ttl, *bound_us),
            format!("size-ratio = {size_ratio}"),
        ]),
        Trigger::FileStaleness { ttl_us } => fields.push(text("ttl", Parameter::Ttl, *ttl_us)),
        Trigger::TotalBytes { bytes } => fields.push(text("bytes", Parameter::Bytes, *bytes)),
    }
    fields.push(format!("granularity = \"{}\"", rule.granularity.name()));
    match rule.granularity {
        Granularity::Partition { above } => fields.push(format!("above = {above}")),
        Granularity::Files { count } => fields.push(format!("files = {count}")),
        _ => {}
    }
    fields.push(format!("movement = \"{}\"", rule.movement.name()));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIERED_TOP: &str = "name = \"tiered-top\"\nlayout = \"leveling\"\ntiered = [4]\n\n\
        [[rule]]\ntrigger = \"run-count\"\nruns = 3\n\n\
        [[rule]]\ntrigger = \"level-full\"\nbase = 8\n";

    #[test]
    fn a_file_gives_a_policy_and_what_it_leaves_out_has_defaults() {
        let spec = PolicySpec::from_toml(TIERED_TOP).unwrap();
        assert_eq!(spec.name(), "tiered-top");
        let primitives = spec.primitives();
        assert_eq!(primitives.layout, Layout::Leveling { tiered: vec![4] });
        assert_eq!((primitives.stop_runs, primitives.grandparent_files), (20, 25));
        assert_eq!(primitives.rules[0].trigger, Trigger::RunCount { runs: 3, wait: 3 });
        assert_eq!(primitives.rules[1].movement, Movement::LeastOverlap);
        let capacity = Capacity::FromBottom { last: Level(6), base_memtables: 8, size_ratio: 10 };
        assert_eq!(primitives.rules[1].trigger, Trigger::LevelFull(capacity));
        assert_eq!(PolicySpec::from_toml("policy = \"tiering(T=4)\"").unwrap().name(), "tiering");
    }

    #[test]
    fn compositions_print_as_they_are_read() {
        let mut specs = vec![PolicySpec::from_toml(TIERED_TOP).unwrap()];
        for preset in Preset::ALL.into_iter().chain(Preset::DROPPING) {
            let primitives = PolicySpec::new(preset).primitives();
            specs.push(PolicySpec::composed(format!("my-{}", preset.name()), primitives).unwrap());
        }
        for spec in specs {
            let text = spec.to_string();
            assert!(!text.contains('\n'), "{text}");
            assert_eq!(text.parse::<PolicySpec>(), Ok(spec.clone()), "{text}");
            let Form::Composition(composition) = &spec.0 else { panic!("{spec}") };
            let file = write_file(composition);
            assert_eq!(PolicySpec::from_toml(&file), Ok(spec.clone()), "{file}");
            assert_eq!(spec.build().name(), spec.name());
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let with = |line: &str| TIERED_TOP.replace("runs = 3", line);
        let rule = |text: &str| format!("layout = \"fluid\"\n[[rule]]\n{text}\n");
        for (text, line, what) in [
            ("", 1, "has no layout; known: leveling, fluid, run-list, queue"),
            ("layout = 3", 1, "layout = 3 is not a string"),
            ("\nlayout = \"lsm\"", 2, "unknown layout \"lsm\"; known: leveling"),
            ("layout = \"fluid\"", 1, "has no [[rule]]"),
            ("layout = \"fluid\"\nrule = 3", 2, "rule = 3 is not a list of tables"),
            ("layout = \"fluid\"\nrule = []", 1, "needs a rule with trigger too-many-runs"),
            ("name = \"lo+1\"\n", 1, "name \"lo+1\" is that of a preset"),
            ("name = \"a b\"\n", 1, "letters, digits"),
            ("policy = \"lasy\"", 1, "unknown policy \"lasy\""),
            ("policy = \"lo+1\"\nstop = 3", 2, "unknown field \"stop\""),
            ("layout = \n", 1, ""),
            (&with("runs = 0"), 7, "runs = 0 is not a whole number from 1"),
            (&with("runs = 1.5"), 7, "runs = 1.5 is not a whole number"),
            (
                &with("rums = 3"),
                7,
                "unknown field \"rums\" of the rule; known: trigger, runs, wait",
            ),
            (&with("runs = 30"), 1, "writes stop at 20 runs, where no merge is due before 30"),
            (&with("wait = 25"), 1, "L0 may wait until it has 25 runs"),
            (
                &with("granularity = \"file\""),
                1,
                "movement least-overlap has nothing to choose from",
            ),
            (&rule("trigger = \"full\""), 3, "unknown trigger \"full\""),
            (&rule("runs = 3"), 2, "the rule has no trigger"),
            (&rule("trigger = \"tombstone-ttl\""), 2, "the rule has no bound"),
            (
                &rule("trigger = \"tombstone-ttl\"\nbound = \"1w\""),
                4,
                "bound = \"1w\" is not a time",
            ),
            (&rule("trigger = \"level-full\""), 1, "its levels have no capacity"),
            (&rule("trigger = \"run-count\""), 1, "says itself how many runs"),
            (
                &rule("trigger = \"too-many-runs\"\ngranularity = \"file\""),
                1,
                "granularity file does not go with layout fluid, which takes whole runs",
            ),
            (
                &rule("trigger = \"too-many-runs\"\n[[rule]]\ntrigger = \"too-many-runs\""),
                1,
                "two rules with trigger too-many-runs",
            ),
            (
                &TIERED_TOP.replace("base = 8", "granularity = \"preemptive\"\nmovement = \"all\""),
                1,
                "tiered levels do not go with granularity preemptive",
            ),
            (
                &TIERED_TOP.replace("base = 8", "movement = \"all\""),
                1,
                "granularity file needs a movement that chooses",
            ),
            (
                &format!(
                    "{TIERED_TOP}[[rule]]\ntrigger = \"tombstone-density\"\nmovement = \"round-robin\""
                ),
                1,
                "movement round-robin compares files of one level",
            ),
            (
                &format!("{TIERED_TOP}[[rule]]\ntrigger = \"total-bytes\"\nbytes = \"1G\""),
                1,
                "only a queue",
            ),
            (&format!("{TIERED_TOP}[[rule]]\ntrigger = \"size-ratio\""), 1, "only a run list"),
        ] {
            let error = PolicySpec::from_toml(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line {line}: ")), "{text:?}: {error}");
            assert!(error.contains(what) && !error.contains('\n'), "{text:?}: {error}");
        }
    }
}

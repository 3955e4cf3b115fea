//! A workload of `lsmx bench` with its own settings, such as `seekrandom:entries=100,threads=2`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use lsmx_compaction::error::known_names;

use super::workload::Workload;
use super::{COUNT_MAX, THREADS_MAX};
use crate::quantity::{parse_count, parse_rate};

/// A workload and its own settings. For this workload, a setting overrides the corresponding flag of the command. If a
/// setting is `None`, the flag applies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkloadArgument {
    pub workload: Workload,
    pub threads: Option<u64>,
    pub ops: Option<u64>,
    /// Number of entries that `seekrandom` reads after each seek.
    pub seek_entries: Option<u64>,
    /// Target rate in operations per second.
    pub rate: Option<f64>,
    /// Target rate of the concurrent writer of `readwhilewriting`, in puts per second.
    pub writer_rate: Option<f64>,
}

impl From<Workload> for WorkloadArgument {
    fn from(workload: Workload) -> WorkloadArgument {
        let (threads, ops, seek_entries) = (None, None, None);
        WorkloadArgument { workload, threads, ops, seek_entries, rate: None, writer_rate: None }
    }
}

impl WorkloadArgument {
    /// Returns the name of the workload in results. The name contains the settings that have no column of their own.
    pub(super) fn result_name(&self) -> String {
        WorkloadArgument { threads: None, ops: None, ..*self }.to_string()
    }

    /// Returns the names of the settings that the workload uses, separated by commas.
    fn setting_names(&self) -> &'static str {
        match self.workload {
            Workload::Fillseq | Workload::Fillrandom => "threads, rate",
            Workload::Scan => "threads, ops",
            Workload::Seekrandom => "threads, ops, entries, rate",
            Workload::Readwhilewriting => "threads, ops, rate, writer-rate",
            _ => "threads, ops, rate",
        }
    }

    /// Parses the text `KEY=VALUE` and changes the setting `KEY`. The error describes the wrong key or value.
    fn set(&mut self, text: &str) -> Result<(), String> {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        let (names, workload) = (self.setting_names(), self.workload);
        if !names.split(", ").any(|name| name == key) {
            let known = known_names(key, names);
            return Err(format!("unknown setting {key:?} of {workload}; {known}"));
        }
        let invalid = |must: String| format!("{key} of {workload} is {value:?}, must be {must}");
        let count = |range: RangeInclusive<u64>| {
            let must = format!("from {} to {}", range.start(), range.end());
            parse_count(value).and_then(|it| if range.contains(&it) { Ok(it) } else { Err(must) })
        };
        let is_new = match key {
            "threads" => self.threads.replace(count(1..=THREADS_MAX).map_err(invalid)?).is_none(),
            "ops" => self.ops.replace(count(1..=COUNT_MAX).map_err(invalid)?).is_none(),
            "entries" => {
                self.seek_entries.replace(count(1..=COUNT_MAX).map_err(invalid)?).is_none()
            }
            _ => {
                let rate = parse_rate(value).map_err(invalid)?;
                if !(rate.is_finite() && rate > 0.0) {
                    return Err(invalid("above 0".to_owned()));
                }
                let setting = if key == "rate" { &mut self.rate } else { &mut self.writer_rate };
                setting.replace(rate).is_none()
            }
        };
        if is_new { Ok(()) } else { Err(format!("{key} of {workload} is given twice")) }
    }
}

impl FromStr for WorkloadArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<WorkloadArgument, String> {
        let (name, settings) = match text.split_once(':') {
            Some((name, settings)) => (name, Some(settings)),
            None => (text, None),
        };
        let mut argument = WorkloadArgument::from(name.parse::<Workload>()?);
        for setting in settings.into_iter().flat_map(|settings| settings.split(',')) {
            argument.set(setting)?;
        }
        Ok(argument)
    }
}

impl fmt::Display for WorkloadArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = [
            ("threads", self.threads.map(|threads| threads.to_string())),
            ("ops", self.ops.map(|ops| ops.to_string())),
            ("entries", self.seek_entries.map(|entries| entries.to_string())),
            ("rate", self.rate.map(|rate| rate.to_string())),
            ("writer-rate", self.writer_rate.map(|rate| rate.to_string())),
        ];
        f.write_str(self.workload.name())?;
        let given = settings.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        for (place, (key, value)) in given.enumerate() {
            write!(f, "{}{key}={value}", if place == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_with_settings_is_parsed_and_printed() {
        for (text, printed, result_name) in [
            ("readrandom", "readrandom", "readrandom"),
            ("seekrandom:entries=1K", "seekrandom:entries=1000", "seekrandom:entries=1000"),
            ("readrandom:ops=500K,threads=2", "readrandom:threads=2,ops=500000", "readrandom"),
            ("ycsb-a:rate=2.5", "ycsb-a:rate=2.5", "ycsb-a:rate=2.5"),
            (
                "fillrandom:threads=2,rate=1e3",
                "fillrandom:threads=2,rate=1000",
                "fillrandom:rate=1000",
            ),
            (
                "readwhilewriting:writer-rate=200K,rate=5",
                "readwhilewriting:rate=5,writer-rate=200000",
                "readwhilewriting:rate=5,writer-rate=200000",
            ),
        ] {
            let argument: WorkloadArgument = text.parse().unwrap();
            assert_eq!(argument.to_string(), printed);
            assert_eq!(argument.result_name(), result_name);
            assert_eq!(printed.parse(), Ok(argument));
        }
    }

    #[test]
    fn wrong_setting_error_names_workload_setting_and_values() {
        for (text, parts) in [
            ("fillbatch:ops=5", ["unknown workload", "fillseq"]),
            ("seekrandom:entires=5", ["\"entires\" of seekrandom", "did you mean entries?"]),
            ("readrandom:entries=5", ["\"entries\" of readrandom", "known: threads, ops, rate"]),
            ("fillseq:ops=5", ["\"ops\" of fillseq", "known: threads, rate"]),
            ("scan:rate=5", ["\"rate\" of scan", "known: threads, ops"]),
            ("readrandom:", ["\"\" of readrandom", "known: threads, ops, rate"]),
            ("readrandom:ops=5,", ["\"\" of readrandom", "known: threads, ops, rate"]),
            ("readrandom:threads", ["threads of readrandom is \"\"", "a whole number"]),
            ("readrandom:threads=0", ["threads of readrandom is \"0\"", "from 1 to 1024"]),
            ("readrandom:ops=many", ["ops of readrandom is \"many\"", "a whole number"]),
            (
                "seekrandom:entries=9T",
                ["entries of seekrandom is \"9T\"", "from 1 to 1099511627776"],
            ),
            ("ycsb-a:rate=0", ["rate of ycsb-a is \"0\"", "above 0"]),
            ("ycsb-a:rate=inf", ["rate of ycsb-a is \"inf\"", "above 0"]),
            (
                "readwhilewriting:writer-rate=0",
                ["writer-rate of readwhilewriting is \"0\"", "above 0"],
            ),
            (
                "overwrite:writer-rate=5",
                ["\"writer-rate\" of overwrite", "known: threads, ops, rate"],
            ),
            ("readrandom:ops=5,ops=6", ["ops of readrandom", "twice"]),
        ] {
            let error = text.parse::<WorkloadArgument>().unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }
}

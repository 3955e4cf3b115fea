//! Executes all cases in `cases/*.txt`, which describe trees and the expected decisions of policies.
//!
//! ```text
//! # a comment
//! tree memtable=1M table=1M L0: 7[a..f]4M / 6[c..k]4M   L1: 3[a..e]9M 4[f..p]9M
//! busy merge 7 6 -> L1 left=3M          a running job: files, target level, bytes yet to write
//! busy manual 7 6 -> L1 left=3M         the same, requested by the user
//! pick tiering(T=2)                      the next job
//! settle tiering(T=2)                    all jobs until none is due, and the resulting tree
//! debt tiering(T=2)
//! explain tiering(T=2)                   the facts that led to the next job
//! due tsa(1s)                            the time at which a job becomes due without writes
//! ----
//! expected result
//! ```
//!
//! `/` separates the runs of a level, newest first. Runs are numbered r1, r2, … in reading order. A file is
//! written as id[smallest..largest]bytes, followed by `t30` for 30 tombstones of 100 entries and `s5` for
//! sequence numbers from 5; by default, older runs have smaller sequence numbers. Further fields follow after
//! colons: `old=100`, the time of the oldest tombstone; `read=5` and `made=7`, the read and creation times;
//! `dead=9`, the smallest sequence number of a tombstone; `half=9`, 50 of 100 entries expire, with this median
//! time; `bulk=9`, 10 of 100 entries with half of the bytes expire, half of these bytes by this time and the entries
//! later. A tree may have the words `resting` (memtables are empty), `now=100`, `limit=90` (the time up to which
//! entries have expired for all readers, otherwise now), `snapshots=5-9` and `cursor1=f`. Outputs of executed jobs have
//! the total size of the inputs and are split at the target size. `UPDATE=1` rewrites the results.

#![expect(clippy::disallowed_methods, reason = "the corpus is read from disk")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx_compaction::{
    CompactionPolicy, ExpiringBytes, ExpirySummary, FileId, Job, JobInput, JobKind, JobReason,
    KeyRange, Level, LevelShape, OutputPlacement, OutputTarget, PolicySpec, RunId, RunningJobs,
    SortedRun, SplitRule, TableMeta, TreeShape,
};

#[test]
fn policy_decisions_equal_expected_results() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let update = std::env::var_os("UPDATE").is_some();
    let mut cases = 0;
    let mut wrong = String::new();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|e| e == "txt")) {
        let text = std::fs::read_to_string(path).unwrap();
        let mut rewritten = Vec::new();
        for case in text.trim_end().split("\n\n") {
            let (question, expected) = case.split_once("\n----").unwrap_or((case, ""));
            if question.lines().all(|line| line.starts_with('#')) {
                rewritten.push(question.to_owned());
                continue;
            }
            cases += 1;
            let answer = run_case(question);
            if answer.trim_end() != expected.trim() {
                let name = path.file_name().unwrap().to_string_lossy();
                write!(
                    wrong,
                    "{name}:\n{question}\n---- expected\n{expected}\n---- found\n{answer}\n"
                )
                .unwrap();
            }
            rewritten.push(format!("{question}\n----\n{}", answer.trim_end()));
        }
        if update {
            std::fs::write(path, rewritten.join("\n\n") + "\n").unwrap();
        }
    }
    assert!(cases >= 40, "only {cases} cases were found");
    assert!(update || wrong.is_empty(), "{wrong}");
}

/// Executes one case.
fn run_case(question: &str) -> String {
    let mut shape = TreeShape::default();
    let mut busy = RunningJobs::default();
    let mut answer = String::new();
    for line in question.lines().filter(|line| !line.starts_with('#')) {
        let (verb, rest) = line.split_once(' ').unwrap_or_else(|| panic!("invalid line {line:?}"));
        let policy = || -> Arc<dyn CompactionPolicy> {
            rest.parse::<PolicySpec>().unwrap_or_else(|error| panic!("{error}")).build()
        };
        match verb {
            "tree" => shape = parse_tree(rest),
            "busy" => {
                let (job, left) = parse_busy(rest, &shape);
                busy.start(job, left);
            }
            "pick" => match policy().pick(&shape, &busy) {
                Some(job) => writeln!(answer, "{job}").unwrap(),
                None => answer += "nothing\n",
            },
            "explain" => writeln!(answer, "{}", policy().explain(&shape, &busy)).unwrap(),
            "due" => {
                let policy = policy();
                let show = |at: Option<u64>| at.map_or("never".to_owned(), |us| us.to_string());
                let (due, memtable) =
                    (policy.next_pick_due_us(&shape), policy.memtable_tombstone_age_max_us(&shape));
                writeln!(answer, "due {}, memtable {}", show(due), show(memtable)).unwrap();
            }
            "settle" => settle(&*policy(), &shape, &mut answer),
            "debt" => {
                let policy = policy();
                let debt = policy.debt(&shape, &busy);
                let (pending, headroom) = (show(debt.pending_bytes), show(debt.headroom_bytes));
                let stop = if policy.must_stop_writes(&shape) { ", writes stop" } else { "" };
                writeln!(answer, "pending {pending}, headroom {headroom}{stop}").unwrap();
            }
            _ => panic!("invalid line {line:?}"),
        }
    }
    answer
}

fn settle(policy: &dyn CompactionPolicy, shape: &TreeShape, answer: &mut String) {
    let mut shape = shape.clone();
    let mut file_next = 100;
    for _ in 0..50 {
        let Some(job) = policy.pick(&shape, &RunningJobs::default()) else {
            *answer += &tree(&shape);
            return;
        };
        writeln!(answer, "{job}").unwrap();
        let outputs = match job.kind {
            JobKind::Merge | JobKind::Rewrite => outputs(&job, &shape, &mut file_next),
            JobKind::Move | JobKind::Drop => Vec::new(),
        };
        shape =
            shape.apply_job(&job, outputs).unwrap_or_else(|error| panic!("{error}: {job}")).shape;
        shape.check_invariants().unwrap();
    }
    panic!("the tree does not settle:\n{answer}");
}

/// Returns output files of about the target size. The first letters of the key range are divided evenly among the
/// files.
fn outputs(job: &Job, shape: &TreeShape, file_next: &mut u64) -> Vec<Arc<TableMeta>> {
    let (range, bytes) = (job.input_key_range(shape).unwrap(), job.input_bytes(shape).unwrap());
    let files: Vec<_> = job.input_files().map(|id| shape.find_file(id).unwrap().2).collect();
    let (first, last) = (range.smallest[0], range.largest[0]);
    let count = bytes.div_ceil(job.split.file_bytes.max(1)).clamp(1, u64::from(last - first) + 1);
    let step = u64::from(last - first + 1);
    let letter = |part: u64| first + u8::try_from(step * part / count).unwrap();
    (0..count)
        .map(|part| {
            *file_next += 1;
            let smallest =
                if part == 0 { range.smallest.clone() } else { vec![letter(part)].into() };
            let largest = if part + 1 == count {
                range.largest.clone()
            } else {
                vec![letter(part + 1) - 1].into()
            };
            // The outputs of a job contain no tombstones.
            Arc::new(TableMeta {
                bytes: bytes / count,
                created_us: shape.now_us,
                seq_smallest: files.iter().map(|file| file.seq_smallest).min().unwrap(),
                seq_largest: files.iter().map(|file| file.seq_largest).max().unwrap(),
                ..file(*file_next, KeyRange { smallest, largest })
            })
        })
        .collect()
}

fn file(id: u64, range: KeyRange) -> TableMeta {
    TableMeta { entries: 100, ..TableMeta::new(FileId(id), range) }
}

fn parse_tree(text: &str) -> TreeShape {
    let (mut memtable, mut table, mut resting) = (1 << 20, 1 << 20, false);
    let (mut levels, mut runs) = (Vec::<LevelShape>::new(), Vec::<(usize, Vec<_>)>::new());
    let (mut now_us, mut expiry_limit_us, mut snapshots) = (0, None, None);
    let mut delete_persistence_us = None;
    // Sequence numbers decrease from each run to the next older run. The gaps leave room for explicit numbers.
    let mut seq = 1_000_000;
    for word in text.split_whitespace() {
        if word == "resting" {
            resting = true;
        } else if let Some(us) = word.strip_prefix("now=") {
            now_us = us.parse().unwrap();
        } else if let Some(us) = word.strip_prefix("limit=") {
            expiry_limit_us = Some(us.parse().unwrap());
        } else if let Some(us) = word.strip_prefix("bound=") {
            delete_persistence_us = Some(us.parse().unwrap());
        } else if let Some(numbers) = word.strip_prefix("snapshots=") {
            let (oldest, newest) = numbers.split_once('-').unwrap();
            snapshots = Some((oldest.parse().unwrap(), newest.parse().unwrap()));
        } else if let Some(cursor) = word.strip_prefix("cursor") {
            let (level, key) = cursor.split_once('=').unwrap();
            let level = level.parse::<usize>().unwrap();
            levels[level].cursor = Some(key.as_bytes().to_vec().into());
        } else if let Some(bytes) = word.strip_prefix("memtable=") {
            memtable = parse_bytes(bytes);
        } else if let Some(bytes) = word.strip_prefix("table=") {
            table = parse_bytes(bytes);
        } else if let Some(level) = word.strip_prefix('L').and_then(|w| w.strip_suffix(':')) {
            levels.resize_with(level.parse::<usize>().unwrap() + 1, LevelShape::default);
            runs.push((levels.len() - 1, Vec::new()));
            seq -= 1000;
        } else if word == "/" {
            runs.push((levels.len() - 1, Vec::new()));
            seq -= 1000;
        } else {
            runs.last_mut().unwrap().1.push(Arc::new(parse_file(word, seq)));
        }
    }
    let mut run_id_next = 1;
    for (level, mut files) in runs {
        files.sort_by(|a: &Arc<TableMeta>, b| a.range.smallest.cmp(&b.range.smallest));
        let run = SortedRun { id: RunId(run_id_next), files: files.into() };
        run_id_next += 1;
        if !run.files.is_empty() {
            levels[level].runs.push(Arc::new(run));
        }
    }
    let shape = TreeShape {
        levels: levels.into_iter().map(Arc::new).collect(),
        run_id_next,
        memtable_bytes: memtable,
        table_bytes: table,
        memtables_empty: resting,
        now_us,
        expiry_limit_us: expiry_limit_us.unwrap_or(now_us),
        oldest_snapshot: snapshots.map(|(oldest, _)| oldest),
        newest_snapshot: snapshots.map(|(_, newest)| newest),
        delete_persistence_us,
    };
    shape.check_invariants().unwrap_or_else(|e| panic!("{e}: {text}"));
    shape
}

/// `times` are the earliest, the median and the latest expiry time.
fn expiry_summary(
    entries: u64,
    times: (u64, u64, u64),
    bytes: Option<ExpiringBytes>,
) -> ExpirySummary {
    let (earliest_us, median_us, latest_us) = times;
    ExpirySummary { entries, earliest_us, median_us, latest_us, bytes }
}

/// Parses a file such as `7[a..f]4M`, optionally followed by `t30`, `s5` and fields after colons.
fn parse_file(word: &str, seq: u64) -> TableMeta {
    let parse = || {
        let mut fields = word.split(':');
        let word = fields.next()?;
        let (id, rest) = word.split_once('[')?;
        let (range, rest) = rest.split_once(']')?;
        let (smallest, largest) = range.split_once("..")?;
        let range = KeyRange::new(smallest.as_bytes().to_vec(), largest.as_bytes().to_vec());
        let (rest, own_seq) = match rest.split_once('s') {
            Some((rest, own)) => (rest, own.parse().ok()?),
            None => (rest, seq),
        };
        let (bytes, tombstones) = match rest.split_once('t') {
            Some((bytes, tombstones)) => (bytes, tombstones.parse().ok()?),
            None => (rest, 0),
        };
        let bytes = parse_bytes(bytes);
        let mut file = TableMeta {
            bytes,
            tombstones,
            tombstone_seq_smallest: (tombstones > 0).then_some(own_seq),
            oldest_tombstone_us: (tombstones > 0).then_some(0),
            value_bytes: bytes / 2,
            seq_smallest: own_seq,
            seq_largest: own_seq + 10,
            ..file(id.parse().ok()?, range)
        };
        for field in fields {
            let (name, number) = field.split_once('=')?;
            let number = number.parse().ok()?;
            match name {
                "old" => file.oldest_tombstone_us = Some(number),
                "dead" => file.tombstone_seq_smallest = Some(number),
                "read" => file.last_read_us = number,
                "made" => file.created_us = number,
                "half" => {
                    let (entries, median_us) = (50, number);
                    let (earliest_us, latest_us) = (median_us.saturating_sub(5), median_us + 5);
                    let (bytes, times) = (None, (earliest_us, median_us, latest_us));
                    file.expiry = Some(expiry_summary(entries, times, bytes));
                }
                "bulk" => {
                    let (expiring, total) = (file.bytes.div_ceil(2), file.bytes);
                    let bytes = Some(ExpiringBytes { expiring, total, median_us: number });
                    file.expiry = Some(expiry_summary(10, (number, number + 9, number + 9), bytes));
                }
                _ => return None,
            }
        }
        Some(file)
    };
    parse().unwrap_or_else(|| panic!("invalid word {word:?}"))
}

/// Parses a job such as `merge 7 6 -> L1 left=3M`.
fn parse_busy(text: &str, shape: &TreeShape) -> (Job, u64) {
    let (reason, rest) = text.split_once(' ').unwrap();
    let (inputs, rest) = rest.split_once(" -> L").unwrap();
    let (level, left) = rest.split_once(" left=").unwrap();
    let level = Level(level.parse().unwrap());
    let mut by_run: Vec<JobInput> = Vec::new();
    for id in inputs.split_whitespace() {
        let id = FileId(id.parse().unwrap());
        let (level, run, _) = shape.find_file(id).unwrap();
        match by_run.iter_mut().find(|input| input.run == run) {
            Some(input) => input.files.push(id),
            None => by_run.push(JobInput { level, run, files: vec![id] }),
        }
    }
    let split = SplitRule { file_bytes: 1 << 20, grandparent: None, boundaries: Vec::new() };
    let target = OutputTarget { level, placement: OutputPlacement::NewRun { before: None } };
    let reason = match reason {
        "merge" => JobReason::Shape { level },
        "manual" => JobReason::Manual,
        _ => panic!("invalid reason {reason:?}"),
    };
    (Job { kind: JobKind::Merge, inputs: by_run, target, split, reason }, parse_bytes(left))
}

fn parse_bytes(text: &str) -> u64 {
    let (digits, factor) = match text.strip_suffix('M') {
        Some(digits) => (digits, 1 << 20),
        None => (text.strip_suffix('K').unwrap_or(text), 1 << 10),
    };
    digits.parse::<u64>().unwrap_or_else(|_| panic!("invalid size {text:?}")) * factor
}

fn show(bytes: u64) -> String {
    match bytes {
        bytes if bytes % (1 << 20) == 0 => format!("{}M", bytes >> 20),
        bytes => format!("{}K", bytes >> 10),
    }
}

fn tree(shape: &TreeShape) -> String {
    let mut text = String::from("=");
    for (index, level) in shape.levels.iter().enumerate().filter(|(_, l)| !l.runs.is_empty()) {
        write!(text, " L{index}:").unwrap();
        for (place, run) in level.runs.iter().enumerate() {
            text += if place > 0 { " /" } else { "" };
            for file in &run.files {
                let (from, to) = (&file.range.smallest, &file.range.largest);
                let (from, to) = (String::from_utf8_lossy(from), String::from_utf8_lossy(to));
                write!(text, " {}[{from}..{to}]{}", file.id.0, show(file.bytes)).unwrap();
            }
        }
    }
    text + "\n"
}

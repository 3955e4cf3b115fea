//! Checks the results and errors of `TreeShape::apply_job`, `TreeShape::check_invariants` and
//! `RunningJobs::can_run_job`.

use std::sync::Arc;

use lsmx_compaction::check_policy::PolicyChecker;
use lsmx_compaction::{
    AddedFile, EditError, Error, FileId, Job, JobInput, JobKind, JobReason, Key, KeyRange, Level,
    LevelShape, OutputPlacement, OutputTarget, PolicySpec, Preset, RunId, RunningJobs, SortedRun,
    SplitRule, TableMeta, TreeEdit, TreeShape, TreeUpdate,
};

/// Returns a file with sequence numbers `seq` to `seq + 9`. `range` is two letters, the smallest and the largest key.
fn file(id: u64, range: &str, seq: u64) -> Arc<TableMeta> {
    let (smallest, largest) = range.split_at(1);
    let range = KeyRange::new(smallest.to_owned(), largest.to_owned());
    Arc::new(TableMeta {
        bytes: 10,
        entries: 10,
        seq_smallest: seq,
        seq_largest: seq + 9,
        ..TableMeta::new(FileId(id), range)
    })
}

type Runs<'a> = &'a [(u64, &'a [(u64, &'a str, u64)])];

/// Builds a tree. Each level is a list of runs `(run, files)`, and each file is `(file, range, sequence number)`.
fn try_tree(levels: &[Runs<'_>]) -> Result<TreeShape, Error> {
    let run = |(run, files): &(u64, &[(u64, &str, u64)])| {
        let files = files.iter().map(|&(id, range, seq)| file(id, range, seq));
        Arc::new(SortedRun { id: RunId(*run), files: files.collect() })
    };
    let level = |runs: &Runs<'_>| {
        Arc::new(LevelShape { runs: runs.iter().map(run).collect(), cursor: None })
    };
    let levels = levels.iter().map(level).collect();
    let shape = TreeShape { levels, run_id_next: 50, ..TreeShape::default() };
    shape.check_invariants().map(|()| shape)
}

fn tree(levels: &[Runs<'_>]) -> TreeShape {
    try_tree(levels).unwrap()
}

/// Returns a tree with two runs in L0, one run of three files in L1 and two runs in L2.
fn sample() -> TreeShape {
    tree(&[
        &[(9, &[(90, "az", 500)]), (8, &[(80, "ck", 400)])],
        &[(7, &[(70, "ad", 300), (71, "fk", 300), (72, "mz", 300)])],
        &[(6, &[(60, "ah", 200)]), (5, &[(50, "ae", 100), (51, "gz", 100)])],
    ])
}

fn job(kind: JobKind, inputs: &[(u8, u64, &[u64])], level: u8, placement: OutputPlacement) -> Job {
    Job {
        kind,
        inputs: inputs
            .iter()
            .map(|&(level, run, files)| JobInput {
                level: Level(level),
                run: RunId(run),
                files: files.iter().copied().map(FileId).collect(),
            })
            .collect(),
        target: OutputTarget { level: Level(level), placement },
        split: SplitRule { file_bytes: 10, grandparent: None, boundaries: Vec::new() },
        reason: JobReason::Manual,
    }
}

const LAST: OutputPlacement = OutputPlacement::NewRun { before: None };

fn join(run: u64) -> OutputPlacement {
    OutputPlacement::JoinRun(RunId(run))
}

fn before(run: u64) -> OutputPlacement {
    OutputPlacement::NewRun { before: Some(RunId(run)) }
}

/// Formats the runs and files of each level.
fn show(shape: &TreeShape) -> String {
    let run = |run: &Arc<lsmx_compaction::SortedRun>| {
        let files: Vec<_> = run.files.iter().map(|file| file.id.0.to_string()).collect();
        format!("r{}({})", run.id.0, files.join(" "))
    };
    let level = |level: &Arc<lsmx_compaction::LevelShape>| {
        level.runs.iter().map(run).collect::<Vec<_>>().join(" ")
    };
    shape.levels.iter().map(level).collect::<Vec<_>>().join(" | ")
}

fn apply(shape: &TreeShape, job: &Job, outputs: Vec<Arc<TableMeta>>) -> TreeUpdate {
    let applied = shape.apply_job(job, outputs).unwrap();
    applied.shape.check_invariants().unwrap();
    let mut replayed = shape.clone();
    replayed.apply_edit(&applied.edit).unwrap();
    assert_eq!(replayed, applied.shape);
    applied
}

#[test]
fn apply_merge_joins_run_and_shares_other_levels() {
    let shape = sample();
    let job =
        job(JobKind::Merge, &[(0, 9, &[90]), (0, 8, &[80]), (1, 7, &[70, 71, 72])], 1, join(7));
    let applied = apply(&shape, &job, vec![file(100, "ak", 300), file(101, "lz", 300)]);
    assert_eq!(show(&applied.shape), " | r7(100 101) | r6(60) r5(50 51)");
    assert_eq!(applied.edit.removed, [70, 71, 72, 80, 90].map(FileId));
    let placed: Vec<_> = applied.edit.added.iter().map(|p| (p.level, p.run, p.file.id)).collect();
    let expected = [(Level(1), RunId(7), FileId(100)), (Level(1), RunId(7), FileId(101))];
    assert_eq!(placed, expected);
    assert_eq!(applied.edit.run_orders, [(Level(1), vec![RunId(7)])]);
    assert_eq!(applied.edit.cursors, [(Level(0), Some(Key::from("z")))]);
    assert_eq!(applied.edit.run_id_next, None);
    assert!(Arc::ptr_eq(&applied.shape.levels[2], &shape.levels[2]), "L2 is not shared");
}

#[test]
fn apply_partial_merge_keeps_other_files_and_sets_cursor() {
    let shape = tree(&[
        &[],
        &[(7, &[(70, "ad", 300), (71, "fk", 300), (72, "mz", 300)])],
        &[(6, &[(60, "ah", 200), (61, "lp", 200)])],
    ]);
    let job = job(JobKind::Merge, &[(1, 7, &[70]), (2, 6, &[60])], 2, join(6));
    let applied = apply(&shape, &job, vec![file(100, "ae", 200), file(101, "fh", 200)]);
    assert_eq!(show(&applied.shape), " | r7(71 72) | r6(100 101 61)");
    assert_eq!(applied.shape.levels[1].cursor, Some(Key::from("d")));
    assert_eq!(applied.shape.levels[2].cursor, None);
}

#[test]
fn apply_new_run_gets_new_number_and_position() {
    let shape = sample();
    let job = job(JobKind::Merge, &[(1, 7, &[70, 71, 72])], 2, before(6));
    let applied = apply(&shape, &job, vec![file(100, "az", 300)]);
    assert_eq!(show(&applied.shape), "r9(90) r8(80) |  | r50(100) r6(60) r5(50 51)");
    assert_eq!((applied.edit.added[0].run, applied.edit.run_id_next), (RunId(50), Some(51)));
}

#[test]
fn apply_move_keeps_files() {
    let shape = tree(&[&[(9, &[(90, "ab", 500)]), (8, &[(80, "cd", 400)])]]);
    let job = job(JobKind::Move, &[(0, 9, &[90]), (0, 8, &[80])], 4, LAST);
    let applied = apply(&shape, &job, vec![]);
    assert_eq!(show(&applied.shape), " |  |  |  | r50(90 80)");
    assert_eq!(applied.edit.removed, [80, 90].map(FileId));
    assert_eq!(applied.edit.added.len(), 2);
    assert_eq!(applied.edit.added[1].file, file(90, "ab", 500));
}

#[test]
fn apply_drop_and_rewrite_keep_order_and_cursor() {
    let shape = sample();
    let dropped = apply(&shape, &job(JobKind::Drop, &[(2, 5, &[50, 51])], 0, LAST), vec![]);
    assert_eq!(show(&dropped.shape), "r9(90) r8(80) | r7(70 71 72) | r6(60)");
    assert_eq!((dropped.edit.added, dropped.edit.cursors), (vec![], vec![]));
    let rewrite = job(JobKind::Rewrite, &[(1, 7, &[71])], 1, join(7));
    let rewritten = apply(&shape, &rewrite, vec![file(100, "fk", 300)]);
    assert_eq!(show(&rewritten.shape), "r9(90) r8(80) | r7(70 100 72) | r6(60) r5(50 51)");
    assert_eq!(rewritten.edit.cursors, []);
    let elsewhere = job(JobKind::Rewrite, &[(1, 7, &[71])], 2, join(6));
    assert_eq!(shape.apply_job(&elsewhere, vec![]).unwrap_err(), Error::RewriteTarget);
}

#[test]
fn apply_without_outputs_leaves_no_empty_run_or_level() {
    let shape = tree(&[&[], &[(7, &[(70, "az", 300)])], &[(6, &[(60, "az", 200)])]]);
    let job = job(JobKind::Merge, &[(1, 7, &[70]), (2, 6, &[60])], 2, join(6));
    let applied = apply(&shape, &job, vec![]);
    assert!(applied.shape.levels.is_empty());
    assert_eq!((applied.edit.added, applied.edit.run_orders), (vec![], vec![]));
}

#[test]
fn apply_missing_target_run_is_replaced_in_order_of_age() {
    // When the job was picked, r5 was the next older run. Another job has removed r5 since then.
    let shape = tree(&[
        &[(9, &[(90, "az", 900)]), (8, &[(80, "az", 800)]), (7, &[(70, "az", 700)])],
        &[(4, &[(40, "az", 400)])],
    ]);
    let in_l0 = job(JobKind::Merge, &[(0, 8, &[80]), (0, 7, &[70])], 0, before(5));
    let applied = apply(&shape, &in_l0, vec![file(100, "az", 700)]);
    assert_eq!(show(&applied.shape), "r9(90) r50(100) | r4(40)");
    // The inputs come from a newer level, so the new run is the newest in the target level.
    let below = job(JobKind::Merge, &[(0, 8, &[80]), (0, 7, &[70])], 1, before(5));
    let applied = apply(&shape, &below, vec![file(100, "az", 700)]);
    assert_eq!(show(&applied.shape), "r9(90) | r50(100) r4(40)");
    let joined = job(JobKind::Merge, &[(0, 8, &[80]), (0, 7, &[70])], 1, join(5));
    let applied = apply(&shape, &joined, vec![file(100, "az", 700)]);
    assert_eq!(show(&applied.shape), "r9(90) | r50(100) r4(40)");
}

#[test]
fn apply_input_passing_overlapping_file_is_error() {
    let shape = sample();
    let refused = |job: &Job| shape.apply_job(job, vec![]).unwrap_err();
    // The move would place file 70 below r6, which is older and overlaps the file.
    let passes = |input, other| Error::PassesOverlap { input: FileId(input), other: FileId(other) };
    assert_eq!(refused(&job(JobKind::Move, &[(1, 7, &[70])], 2, LAST)), passes(70, 60));
    assert_eq!(refused(&job(JobKind::Move, &[(1, 7, &[70])], 3, LAST)), passes(70, 60));
    assert_eq!(
        refused(&job(JobKind::Merge, &[(1, 7, &[70]), (2, 5, &[50])], 2, join(5))),
        passes(70, 60)
    );
    // The move would place an older file above a newer file that overlaps it.
    assert_eq!(refused(&job(JobKind::Move, &[(2, 5, &[50])], 1, before(7))), passes(50, 70));
    assert_eq!(refused(&job(JobKind::Move, &[(2, 5, &[51])], 2, before(6))), passes(51, 60));
    // File 72 overlaps no file between its old position and its new position below r6.
    let free = job(JobKind::Move, &[(1, 7, &[72])], 2, before(5));
    assert_eq!(
        show(&apply(&shape, &free, vec![]).shape).split(" | ").last(),
        Some("r6(60) r50(72) r5(50 51)")
    );
}

#[test]
fn apply_l0_rule_violation_is_error() {
    let shape = tree(&[&[
        (9, &[(90, "ab", 900)]),
        (8, &[(80, "cd", 800), (81, "ef", 800)]),
        (7, &[(70, "gh", 700)]),
    ]]);
    let refused = |job: Job| match shape.apply_job(&job, vec![]).unwrap_err() {
        Error::L0Order { run, .. } => run.0,
        error => panic!("{error}"),
    };
    assert_eq!(refused(job(JobKind::Move, &[(0, 9, &[90])], 1, LAST)), 9);
    assert_eq!(refused(job(JobKind::Move, &[(0, 8, &[80]), (0, 7, &[70])], 1, LAST)), 8);
    assert_eq!(refused(job(JobKind::Move, &[(0, 9, &[90]), (0, 7, &[70])], 1, LAST)), 7);
    assert_eq!(refused(job(JobKind::Move, &[(0, 9, &[90])], 0, LAST)), 9);
    let legal = job(JobKind::Move, &[(0, 8, &[80, 81]), (0, 7, &[70])], 1, LAST);
    assert_eq!(show(&apply(&shape, &legal, vec![]).shape), "r9(90) | r50(80 81 70)");
    let below = tree(&[&[(9, &[(90, "ab", 900)])], &[(8, &[(80, "cd", 100)])]]);
    let up = job(JobKind::Move, &[(1, 8, &[80])], 0, before(9));
    assert!(matches!(below.apply_job(&up, vec![]), Err(Error::L0Order { run: RunId(9), .. })));
}

#[test]
fn apply_invalid_job_is_error() {
    let shape = sample();
    let merge = |inputs: &[(u8, u64, &[u64])], outputs| {
        shape.apply_job(&job(JobKind::Merge, inputs, 2, LAST), outputs).unwrap_err()
    };
    let (level, run) = (Level(1), RunId(7));
    assert_eq!(merge(&[], vec![]), Error::NoInputs);
    assert_eq!(merge(&[(2, 5, &[])], vec![]), Error::NoInputs);
    assert_eq!(merge(&[(1, 6, &[60])], vec![]), Error::NoSuchRun { level, run: RunId(6) });
    assert_eq!(
        merge(&[(200, 6, &[60])], vec![]),
        Error::NoSuchRun { level: Level(200), run: RunId(6) }
    );
    let not_there = |file| Error::NoSuchFile { level, run, file: FileId(file) };
    assert_eq!(merge(&[(1, 7, &[60])], vec![]), not_there(60));
    assert_eq!(merge(&[(1, 7, &[71, 70])], vec![]), not_there(70));
    assert_eq!(merge(&[(1, 7, &[70, 70])], vec![]), not_there(70));
    let order = merge(&[(2, 5, &[50]), (2, 6, &[60])], vec![]);
    assert_eq!(order, Error::InputOrder { level: Level(2), run: RunId(6) });
    let oldest: &[(u8, u64, &[u64])] = &[(2, 5, &[50])];
    assert_eq!(
        merge(oldest, vec![file(100, "af", 1)]),
        Error::OutputOutsideInputs { file: FileId(100) }
    );
    assert_eq!(merge(oldest, vec![file(50, "ae", 1)]), Error::DuplicateFile { file: FileId(50) });
    let twice = merge(oldest, vec![file(100, "ab", 1), file(100, "cd", 1)]);
    assert_eq!(twice, Error::DuplicateFile { file: FileId(100) });
    let overlap = merge(oldest, vec![file(100, "ac", 1), file(101, "ce", 1)]);
    assert!(matches!(overlap, Error::Overlap { left: FileId(100), right: FileId(101), .. }));
    let given = job(JobKind::Move, &[(2, 5, &[50])], 3, LAST);
    assert_eq!(
        shape.apply_job(&given, vec![file(100, "ae", 1)]).unwrap_err(),
        Error::UnexpectedOutputs { outputs: 1 }
    );
    let moved = job(JobKind::Move, &[(2, 6, &[60]), (2, 5, &[50, 51])], 3, LAST);
    assert_eq!(
        shape.apply_job(&moved, vec![]).unwrap_err(),
        Error::MoveOverlap { left: FileId(60), right: FileId(50) }
    );
    // The output overlaps file 71, which stays in the joined run.
    let joined = job(JobKind::Merge, &[(1, 7, &[70, 72])], 1, join(7));
    let error = shape.apply_job(&joined, vec![file(100, "az", 300)]).unwrap_err();
    assert!(matches!(error, Error::Overlap { level: Level(1), run: RunId(7), .. }));
}

#[test]
fn check_invalid_tree_is_error_with_ids() {
    let wrong = |levels: &[Runs<'_>]| try_tree(levels).unwrap_err();
    let overlap = |left, right| Error::Overlap {
        level: Level(1),
        run: RunId(7),
        left: FileId(left),
        right: FileId(right),
    };
    assert_eq!(wrong(&[&[], &[(7, &[(1, "ad", 1), (2, "cf", 1)])]]), overlap(1, 2));
    // Two files of a run must not have even one key in common.
    assert_eq!(wrong(&[&[], &[(7, &[(1, "ad", 1), (2, "df", 1)])]]), overlap(1, 2));
    assert_eq!(
        wrong(&[&[(7, &[(1, "da", 1)])]]),
        Error::InvertedRange { level: Level(0), file: FileId(1) }
    );
    assert_eq!(
        wrong(&[&[(50, &[(1, "ad", 1)])]]),
        Error::RunIdTooLarge { run: RunId(50), next: 50 }
    );
    assert_eq!(
        wrong(&[&[(7, &[(1, "ad", 1)])], &[(7, &[(2, "ad", 1)])]]),
        Error::DuplicateRun { run: RunId(7) }
    );
    assert_eq!(
        wrong(&[&[(7, &[(1, "ad", 1)])], &[(6, &[(1, "ad", 1)])]]),
        Error::DuplicateFile { file: FileId(1) }
    );
    let age = Error::AgeOrder { above: FileId(1), below: FileId(2) };
    // The age order only applies if the files have a bound in common.
    assert_eq!(wrong(&[&[(7, &[(1, "ad", 10)])], &[(6, &[(2, "az", 100)])]]), age);
    assert!(try_tree(&[&[(7, &[(1, "bd", 10)])], &[(6, &[(2, "az", 100)])]]).is_ok());
    assert_eq!(wrong(&[&[], &[(7, &[(1, "ad", 10)])], &[(6, &[(2, "az", 100)])]]), age);
    assert_eq!(wrong(&[&[], &[(7, &[(1, "ad", 10)]), (6, &[(2, "dz", 100)])]]), age);
    assert!(try_tree(&[&[], &[(7, &[(1, "ad", 10)])], &[(6, &[(2, "bc", 100)])]]).is_ok());
    // If the sequence numbers overlap, either order is valid.
    assert!(try_tree(&[&[(7, &[(1, "ad", 95)])], &[(6, &[(2, "az", 100)])]]).is_ok());
    let mut shape = sample();
    let run = lsmx_compaction::SortedRun { id: RunId(40), files: Vec::new().into() };
    Arc::make_mut(&mut shape.levels[1]).runs.push(Arc::new(run));
    assert_eq!(shape.check_invariants(), Err(Error::EmptyRun { level: Level(1), run: RunId(40) }));
    shape.levels = vec![Arc::default(); 257];
    assert_eq!(shape.check_invariants(), Err(Error::TooManyLevels { levels: 257 }));
}

#[test]
fn replay_edit_that_does_not_fit_is_error() {
    let refused = |edit: &TreeEdit| sample().apply_edit(edit).unwrap_err();
    let added = |level, run, id| {
        let placed = AddedFile { level: Level(level), run: RunId(run), file: file(id, "az", 1) };
        TreeEdit { added: vec![placed], ..TreeEdit::default() }
    };
    let removed = TreeEdit { removed: vec![FileId(99)], ..TreeEdit::default() };
    assert_eq!(refused(&removed), EditError::UnknownFile(FileId(99)));
    assert_eq!(refused(&added(1, 7, 50)), EditError::DuplicateFile(FileId(50)));
    let mut twice = added(1, 7, 100);
    twice.added.extend_from_within(..);
    assert_eq!(refused(&twice), EditError::DuplicateFile(FileId(100)));
    assert_eq!(refused(&added(0, 7, 100)), EditError::DuplicateRun(RunId(7)));
    let ordered = |level, runs: &[u64]| {
        let runs = runs.iter().copied().map(RunId).collect();
        TreeEdit { run_orders: vec![(Level(level), runs)], ..TreeEdit::default() }
    };
    assert_eq!(sample().apply_edit(&ordered(2, &[5, 6])), Ok(()));
    for (order, run) in [(&[6][..], 5), (&[6, 5, 6], 6), (&[6, 5, 7], 7), (&[], 6)] {
        assert_eq!(refused(&ordered(2, order)), EditError::RunOrder(RunId(run)));
    }
    assert_eq!(refused(&ordered(9, &[1])), EditError::RunOrder(RunId(1)));
    assert_eq!(sample().apply_edit(&ordered(9, &[])), Ok(()));
}

#[test]
fn with_flush_adds_newest_run_of_l0() {
    let shape = sample();
    let unchanged = shape.with_flushed_run(Vec::new()).unwrap();
    assert_eq!((&unchanged.shape, unchanged.edit), (&shape, TreeEdit::default()));
    let runs = vec![vec![file(100, "ab", 900), file(101, "cd", 900)], vec![file(102, "ab", 950)]];
    let flushed = shape.with_flushed_runs(runs).unwrap();
    flushed.shape.check_invariants().unwrap();
    assert!(show(&flushed.shape).starts_with("r51(102) r50(100 101) r9(90) r8(80) | "));
    let mut replayed = shape.clone();
    replayed.apply_edit(&flushed.edit).unwrap();
    assert_eq!(replayed, flushed.shape);
    let first = TreeShape::default().with_flushed_run(vec![file(1, "ab", 1)]).unwrap();
    assert_eq!((show(&first.shape).as_str(), first.edit.run_id_next), ("r0(1)", Some(1)));
    assert!(shape.with_flushed_run(vec![file(100, "ac", 900), file(101, "cd", 900)]).is_err());
}

#[test]
fn shape_searches_find_runs_and_files() {
    let shape = sample();
    let runs: Vec<_> = shape.runs().map(|(level, run)| (level.0, run.id.0)).collect();
    assert_eq!(runs, [(0, 9), (0, 8), (1, 7), (2, 6), (2, 5)]);
    assert_eq!(shape.last_run().map(|(level, run)| (level, run.id)), Some((Level(2), RunId(5))));
    assert_eq!(
        (shape.files().count(), shape.total_bytes(), shape.level_bytes(Level(1))),
        (8, 80, 30)
    );
    assert_eq!(shape.overlap_bytes(Level(2), &KeyRange::new("f", "f")), 10);
    assert_eq!(shape.overlap_bytes(Level(2), &KeyRange::new("d", "g")), 30);
    assert_eq!(shape.overlap_bytes(Level(9), &KeyRange::new("a", "z")), 0);
    let run = &shape.runs_of(Level(1))[0];
    let find_file_for_key = |key: &[u8]| run.find_file_for_key(key).map(|file| file.id.0);
    assert_eq!(
        (find_file_for_key(b"d"), find_file_for_key(b"e"), find_file_for_key(b"zz")),
        (Some(70), None, None)
    );
    let found = shape.find_file(FileId(51)).map(|(level, run, file)| (level, run, file.id));
    assert_eq!(found, Some((Level(2), RunId(5), FileId(51))));
    assert_eq!(shape.find_file(FileId(99)), None);
    assert_eq!(
        (shape.deepest_level(), TreeShape::default().deepest_level()),
        (Some(Level(2)), None)
    );
}

#[test]
fn can_run_conflicting_jobs_is_false() {
    let shape = sample();
    let mut busy = RunningJobs::default();
    let running = job(JobKind::Merge, &[(1, 7, &[70]), (2, 6, &[60])], 2, join(6));
    assert_eq!(busy.can_run_job(&running, &shape), Ok(true));
    busy.start(running.clone(), 20);
    assert!(busy.is_file_busy(FileId(60)) && !busy.is_file_busy(FileId(71)));
    let can_run_job = |job: &Job| busy.can_run_job(job, &shape).unwrap();
    assert!(!can_run_job(&running), "shared files");
    assert!(!can_run_job(&job(JobKind::Drop, &[(2, 6, &[60])], 0, LAST)), "shared files");
    assert!(!can_run_job(&job(JobKind::Merge, &[(1, 7, &[71])], 2, LAST)), "overlaps f to h of L2");
    assert!(can_run_job(&job(JobKind::Merge, &[(1, 7, &[72])], 2, LAST)), "other keys");
    assert!(can_run_job(&job(JobKind::Merge, &[(1, 7, &[71])], 3, LAST)), "another level");
    assert!(can_run_job(&job(JobKind::Drop, &[(2, 5, &[50])], 2, LAST)), "a drop writes nothing");
    assert!(busy.can_run_job(&job(JobKind::Merge, &[(1, 6, &[60])], 2, LAST), &shape).is_err());
    busy.set_bytes_left(&running, 5);
    assert_eq!(busy.jobs[0].1, 5);
    assert!(busy.finish(&running) && !busy.finish(&running));
    assert!(busy.files.is_empty());
    // Only one running job may move data out of L0. Jobs within L0 may run in parallel.
    busy.start(job(JobKind::Merge, &[(0, 8, &[80])], 1, LAST), 10);
    assert_eq!(
        busy.can_run_job(&job(JobKind::Merge, &[(0, 9, &[90])], 3, LAST), &shape),
        Ok(false)
    );
    assert_eq!(
        busy.can_run_job(&job(JobKind::Merge, &[(0, 9, &[90])], 0, before(8)), &shape),
        Ok(true)
    );
}

#[test]
fn apply_edit_agrees_with_apply_job_for_random_jobs() {
    for preset in Preset::ALL.into_iter().chain(Preset::DROPPING) {
        let policy = PolicySpec::new(preset).build();
        for seed in 0..8 {
            // The checker also applies each edit to its tree, and compares the two results.
            let mut checker = PolicyChecker::new(&*policy, seed);
            checker.set_random_tree().unwrap();
            checker.run_until_idle().unwrap();
        }
    }
}

//! Tests of `lsmx iocost` with small databases.

use lsmx::metrics::BlockKind;

use super::*;
use crate::experiment::NoProgress;

fn config(directory: &Path) -> Config {
    Config {
        database: None,
        keep: None,
        keyspace: lsmx::DEFAULT_KEYSPACE.to_owned(),
        entries: 40_000,
        key_bytes: 32,
        value_bytes: 110,
        settings: EngineSettings {
            memtable_bytes: Some(64 << 10),
            table_bytes: Some(64 << 10),
            ..EngineSettings::default()
        },
        block_bytes: vec![1024],
        filter_bits: vec![FilterBits::Fuse8],
        cache_kinds: vec![BlockCacheKind::Quick],
        sweep: CacheSweep::Auto,
        gets: 2_000,
        seed: 5,
        directory: directory.to_owned(),
        command: "test".to_owned(),
    }
}

/// Returns the measurements of the cache size named `inflection_1` or `inflection_2`.
fn at<'a>(cost: &'a DatabaseCost, name: &str) -> &'a CacheSizePoint {
    cost.points.iter().find(|point| point.at == Some(name)).unwrap()
}

#[test]
fn lookup_takes_two_reads_at_the_first_inflection_and_one_at_the_second() {
    let directory = tempfile::tempdir().unwrap();
    let cost = config(directory.path()).run(&mut NoProgress).unwrap().cost;
    assert!(cost.entries >= 40_000 && cost.entries_last_run < cost.entries);
    assert_eq!(cost.levels.iter().map(|level| level.bytes).sum::<u64>(), cost.db_bytes);
    let (first, second) = (at(&cost, "inflection_1"), at(&cost, "inflection_2"));
    assert_eq!(cost.inflection_1.bytes, cost.filter_bytes + cost.top_index_bytes);
    assert_eq!(cost.inflection_2.bytes, cost.inflection_1.bytes + cost.index_bytes);
    assert!((1.9..2.2).contains(&first.ios_per_get), "{}", first.ios_per_get);
    assert!((0.95..1.05).contains(&second.ios_per_get), "{}", second.ios_per_get);
    for kind in [BlockKind::Filter, BlockKind::TopIndex] {
        assert!(first.hit_rate[&kind] > 0.999 && second.hit_rate[&kind] > 0.999, "{kind:?}");
    }
    assert!(first.hit_rate[&BlockKind::Index] < 0.1 && second.hit_rate[&BlockKind::Index] > 0.99);
    for point in &cost.points {
        assert!((point.ios_per_get - point.physical_reads_per_get).abs() < 1e-9);
        assert!((point.ios_per_absent_get - point.physical_reads_per_absent_get).abs() < 1e-9);
        assert!(point.resident_bytes.values().sum::<u64>() <= point.cache_bytes);
        assert!(point.get_latency_us.mean > 0.0);
    }
    let all = &cost.with_all_filters;
    assert_eq!((all.at, all.cache_bytes), (Some("all_metadata"), cost.all_metadata.bytes));
    assert!((0.95..1.05).contains(&all.ios_per_get), "{}", all.ios_per_get);
    // The false positive rate of the filters is 1/256 per sorted run. The bound is three times this rate.
    assert!(all.filter_false_positive_rate < 0.012, "{}", all.filter_false_positive_rate);
    let runs: u64 = cost.levels.iter().map(|level| level.runs).sum();
    let most = 0.008 * crate::numbers::to_f64(runs + 1);
    assert!(all.ios_per_absent_get < most, "{}", all.ios_per_absent_get);
    let ios = |point: &CacheSizePoint| point.ios_per_get;
    assert!(cost.points.windows(2).all(|pair| ios(&pair[1]) <= ios(&pair[0]) + 0.05));
    assert!(cost.build.unwrap().write_amplification > 1.0);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn existing_database_is_read_with_its_own_keys_and_stays_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let built = config(directory.path());
    let settings = EngineSettings {
        block_bytes: 1024,
        filter_bits: Some(FilterBits::Fuse8),
        ..built.settings.clone()
    };
    let hashed = HashedKeys::new(built.entries, built.key_bytes, built.seed);
    build::build_database(&built, &path, &settings, &hashed, &mut NoProgress).unwrap();
    let files = || {
        let all = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap());
        let mut all: Vec<_> =
            all.map(|it| (it.file_name(), it.metadata().unwrap().len())).collect();
        all.sort();
        all
    };
    let before = files();
    let sweep = CacheSweep::Percent(vec![100.0]);
    let existing = Config { database: Some(path.clone()), sweep, ..built };
    let result = existing.run(&mut NoProgress).unwrap();
    assert_eq!(files(), before);
    assert_eq!((result.cost.block_bytes, result.settings.key_len), (None, None));
    let point = &result.cost.points[0];
    // The cache is as large as the database, so index blocks are read only once.
    assert!(point.ios_per_get < 0.9 && point.hit_rate[&BlockKind::Index] > 0.99);
    assert!((0.0..0.1).contains(&point.filter_false_positive_rate));
    let wrong = Config { keyspace: "nowhere".to_owned(), ..existing };
    assert!(wrong.run(&mut NoProgress).is_err());
}

#[test]
fn kept_database_is_measured_again() {
    let directory = tempfile::tempdir().unwrap();
    let first = Config {
        keep: Some(directory.path().join("kept")),
        sweep: CacheSweep::Percent(vec![0.0]),
        ..config(directory.path())
    };
    let built = first.run(&mut NoProgress).unwrap().cost;
    let again = first.run(&mut NoProgress).unwrap().cost;
    assert!(built.build.is_some() && again.build.is_none());
    assert_eq!((built.block_bytes, built.db_bytes), (again.block_bytes, again.db_bytes));
    assert_eq!(built.points[0].ios_per_get, again.points[0].ios_per_get);
    for other in [
        Config { entries: 40_001, ..first.clone() },
        Config { value_bytes: 111, ..first.clone() },
        Config { block_bytes: vec![2048], ..first.clone() },
        Config {
            settings: EngineSettings {
                memtable_bytes: Some((64 << 10) + 1),
                ..first.settings.clone()
            },
            ..first.clone()
        },
    ] {
        let error = other.run(&mut NoProgress).unwrap_err();
        assert!(
            error.is_usage() && error.to_string().contains("it was built with: 40000 entries"),
            "{error}"
        );
    }
    write_file(&directory.path().join("kept.iocost"), b"").unwrap();
    let error = first.run(&mut NoProgress).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("its build has not ended"), "{error}");
    let two = Config { block_bytes: vec![1024, 2048], ..first };
    assert!(two.run(&mut NoProgress).unwrap_err().is_usage());
}

/// Regression test: the file that states a complete build remained when a removed database was built again. If this build
/// was interrupted, the next run measured the incomplete database.
#[test]
fn file_of_a_complete_build_is_removed_before_the_next_build() {
    struct FirstPhase(PathBuf, Option<bool>);
    impl Progress for FirstPhase {
        fn begin_phase(&mut self, _: &str, _: u64) {
            self.1.get_or_insert(self.0.exists());
        }
        fn advance(&mut self, _: u64) {}
        fn end_phase(&mut self) {}
    }
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        keep: Some(directory.path().join("kept")),
        entries: 1000,
        sweep: CacheSweep::Percent(vec![0.0]),
        gets: 10,
        ..config(directory.path())
    };
    let mut progress = FirstPhase(directory.path().join("kept.iocost"), None);
    write_file(&progress.0, b"1000 entries").unwrap();
    assert!(config.run(&mut progress).unwrap().cost.build.is_some());
    assert_eq!(progress.1, Some(false));
    assert!(config.run(&mut progress).unwrap().cost.build.is_none());
}

#[test]
fn all_caches_read_the_same_database() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        cache_kinds: BlockCacheKind::ALL.to_vec(),
        sweep: CacheSweep::Percent(vec![0.0, 20.0]),
        ..config(directory.path())
    };
    let result = config.run(&mut NoProgress).unwrap();
    let costs: Vec<&DatabaseCost> = result.costs().collect();
    assert_eq!(costs.iter().map(|cost| cost.cache_kind).collect::<Vec<_>>(), BlockCacheKind::ALL);
    assert_eq!(costs[0].db_bytes, costs[1].db_bytes);
    // The first cache size is 0, so both kinds of cache have equal numbers of misses. The second size holds 20 % of the
    // data. The bounds are wide because the data above the last run varies between executions.
    assert_eq!(costs[0].points[0].ios_per_get, costs[1].points[0].ios_per_get);
    let [quick, moka] = [0, 1].map(|at: usize| costs[at].points[1].hit_rate[&BlockKind::Data]);
    assert!((0.1..0.25).contains(&quick) && (0.02..0.25).contains(&moka), "{quick} and {moka}");
    for point in costs.iter().flat_map(|cost| &cost.points) {
        assert!(point.resident_bytes.values().sum::<u64>() <= point.cache_bytes);
    }
}

#[test]
fn cache_sweep_parses() {
    assert_eq!("auto".parse(), Ok(CacheSweep::Auto));
    assert_eq!("0.1, 3".parse(), Ok(CacheSweep::Percent(vec![0.1, 3.0])));
    for wrong in ["", "x", "-1", "nan", "inf", "1,,2", "1001"] {
        assert!(wrong.parse::<CacheSweep>().is_err(), "{wrong}");
    }
    for text in ["auto", "0.1,3"] {
        assert_eq!(text.parse::<CacheSweep>().unwrap().to_string(), text);
    }
}

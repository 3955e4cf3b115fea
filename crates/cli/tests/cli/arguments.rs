//! Tests of command-line arguments: rejected arguments, formats of counts and sizes, and old names of flags.

use crate::common::{TestDir, assert_contains, cells, experiment, lsmx};

/// Invalid command lines. After `=>`, each line lists texts that the error must contain, separated by `|`.
const REJECTED: &str = r#"
explore => --policy
explore --policy nosuch => "nosuch" | full | lo+1 | tiering | universal | leveled
explore --policy tiering(X=3) => "X" | T
explore --policy full --entries 0 => --entries is 0
explore --policy full --format tsv => --format | --data
explore --policy full --data-order shuffled => --data-order | --data
explore --policy full --merges 1.1 => --merges is 1.1
explore --policy full --merges 0.6 --updates 0.5 => --merges 0.6 | --updates
explore --policy full --range-deletes 0.1 => --range-deletes 0.1 | --entries
explore --policy full --updates 0.9 --deletes 0.2 => --updates 0.9 | --deletes 0.2
explore --policy full --empty-lookups 2 => --empty-lookups is 2
explore --policy full --lookups 0 --empty-lookups 1 => --lookups 0 | --empty-lookups
explore --policy full --ranges 0 --selectivity 0.1 => --ranges 0 | --selectivity
explore --policy full --size-ratio 1 => --size-ratio 1
explore --policy tiering(T=4) --size-ratio 5 => tiering(T=4) | --size-ratio 5
explore --policy full --key-len 2 --updates 0 => --key-len is 2 | 1000000
explore --policy full --data a.tsv --entries 5 => --data | --entries
explore --policy full --deterministic --write-control stop => --deterministic | --write-control
explore --policy full --interleave --threads 2 => --threads 2 contradicts --interleave
explore --policy full --deterministic --threads 2 => --threads 2 contradicts --deterministic
explore --policy full --deterministic --write-rate 5K => --deterministic | --write-rate
explore --policy full --trace t --write-rate 5K => --trace | --write-rate
explore --policy full --write-rate 0 => --write-rate | above 0
explore --policy full --trace t --threads 2 => --threads 2 contradicts --trace
explore --policy full --deterministic --sweep threads=1,2 => --threads 2 contradicts --deterministic
explore --policy full --sweep size-ratio => --sweep size-ratio | KEY=VALUE
explore --policy full --sweep size-ratio=4,,5 => --sweep size-ratio=4,,5 | missing
explore --policy full --sweep size-ratio=4,4 => 4 occurs twice
explore --policy full --sweep size-ratio=4 --sweep size-ratio=5 => --sweep size-ratio | twice
explore --policy full --sweep sizeratio=4 => "sizeratio" | size-ratio | policy.PARAMETER
explore --policy full --sweep json=a => "json" | memtable
explore --policy full --sweep no-legend=true,false => "no-legend" | memtable
explore --policy full --sweep columns=spec,files => "columns" | memtable
explore --policy full --sweep size-ratio=4,1 => --size-ratio 1
explore --policy full --sweep memtable=many => many | --memtable
explore --policy full --sweep entries=5 --entries 6 => --sweep entries=5 | --entries
explore --policy full --sweep distribution=zipf,pareto => "pareto" | prefix-zipf
explore --policy full --sweep interleave=maybe => interleave=maybe | true and false
explore --policy full --sweep policy.T=4,1 => policy.T=1
explore --policy full --sweep policy.nonsense=4 => policy.nonsense=4 | T
explore --policy full --sweep key-len=16,2 => --key-len is 2
explore --policy full --repeat 0 => --repeat is 0
explore --policy full --seed 18446744073709551615 --repeat 2 => --seed is 18446744073709551615
explore --policy full --dry-run --json a.json => --dry-run | --json
explore --policy full(T=4) --sweep policy.T=5 => policy.T=5 | full(T=4)
explore --run-cell a:0 => --json
explore --run-cell a --json b => --run-cell | FILE:N
explore --run-cell a:0 --json b --policy full => --policy | --run-cell
explore --run-cell a:0 --json b --csv c => --csv | --run-cell
explore --run-cell a:0 --json b --collect c => --run-cell | --collect
explore --collect a --seed 1 => --seed | --collect
explore --collect a --dir b => --dir | --collect
explore --policy full --emit-cells a --json b => --json | --emit-cells
explore --policy full --emit-cells a --resume b => --resume | --emit-cells
explore --policy full --sweep collect=a => "collect" | memtable
bench => WORKLOAD
bench fillbatch => fillbatch | fillseq | ycsb-f
bench fillseq --entries 0 => --entries | from 1
bench fillseq --threads 0 => --threads | from 1
bench fillseq --threads 5000 => --threads | 1024
bench fillseq --rate 0 => --rate | above 0
bench fillseq --rate -1 => --rate | above 0
bench fillseq scan --rate 5 => --rate | scan
bench fillseq --repeat 0 => --repeat
bench fillseq --repeat 2 --db x => --repeat | --db
bench fillseq --db x --dir y => --db | --dir
bench fillseq --key-len 2 => --key-len | longer
bench fillseq --option speed=1 => speed | filter_last_run | workers
bench fillseq --option policy=nosuch => policy=nosuch | tiering
bench fillseq --peers leveldb => leveldb | rocksdb | fjall
bench fillseq --memtable 1 => memtable_bytes | at least 1024
bench seekrandom --seek-entries 0 => --seek-entries
bench seekrandom:entires=5 => "entires" of seekrandom; did you mean entries? known: threads, ops, entries, rate
bench readrandom:entries=5 => "entries" of readrandom | known: threads, ops, rate
bench readrandom:threads=0 => threads of readrandom is "0" | from 1 to 1024
bench readrandom:ops=many => ops of readrandom is "many" | a whole number
bench readrandom:ops=1,ops=2 => ops of readrandom | twice
bench fillseq --memory-limit 0 => --memory-limit is 0 | at least 335544320 | block cache (64.0 MiB) | memtables (of 64.0 MiB
bench fillseq --memory-limit 100M => --memory-limit is 104857600 | at least 335544320
bench fillseq --memory-limit lots => --memory-limit | number of bytes
bench --experiment caching --memory-limit 1G => --experiment | --memory-limit
bench --experiment speed => speed | caching, filter-size, put-over-time, data-size, steady-state
bench fillseq --experiment caching => --experiment | WORKLOAD
bench --experiment caching --rate 5 => --rate | --experiment caching
bench --experiment caching --repeat 2 => --repeat | --experiment caching
bench --experiment caching --entries 0 => --entries | from 1
bench --experiment filter-size --db x => --db | --experiment filter-size
bench --experiment data-size --db x => --db | --experiment data-size
bench --experiment data-size --ops 5 => --ops | --experiment data-size
bench --experiment data-size --value-len 5 => --value-len | --experiment data-size
bench --experiment data-size --entries 7 => --entries is 7 | from 8 to 262144
bench --experiment data-size --entries 1M => --entries is 1000000 | from 8 to 262144
bench --experiment caching --block-cache 1M => --block-cache contradicts --experiment caching
bench --experiment filter-size --block-cache 1M => --block-cache contradicts --experiment filter-size
bench --experiment caching --minutes 5 => --minutes | --experiment caching | steady-state
bench fillseq --read-ratio 0.5 => --read-ratio | the workloads | steady-state
bench fillseq --testing-minutes 5 => --testing-minutes | the workloads | steady-state
bench --experiment steady-state --minutes 0 => --minutes is 0 | above 0
bench --experiment steady-state --minutes -1 => --minutes | -1
bench --experiment steady-state --minutes soon => --minutes | soon
bench --experiment steady-state --testing-minutes 1e9 => --testing-minutes is 1000000000 | at most 10080
bench --experiment steady-state --rate 0 => --rate is 0 | above 0
bench --experiment steady-state --read-ratio 1.5 => --read-ratio is 1.5 | from 0 to 1
bench --experiment steady-state --repeat 2 => --repeat | --experiment steady-state
bench --experiment steady-state --ops 5 => --ops | --experiment steady-state
bench --experiment steady-state --seek-entries 5 => --seek-entries | --experiment
bench --experiment filter-size --option filter_bits=16 => --option filter_bits=16 | --experiment filter-size
bench --experiment caching --option filter_last_run=on => --option filter_last_run=on | --experiment caching
rmw --experiment operands --threads 2 => --threads | --experiment operands
rmw --experiment operands --read-ratio 0.5 => --read-ratio | --experiment operands
rmw --experiment operands --mix put-only => --mix | --experiment operands
rmw --experiment scans --threads 2 => --threads | --experiment scans
rmw --mode getput => getput | get-put, merge, kd
rmw --base disk => disk | tree, value-log
rmw --mix ycsb-g => ycsb-g | up2x
rmw --experiment speed => speed | read-ratio | kd-cache
rmw --read-ratio 1.5 => --read-ratio | from 0 to 1
rmw --read-ratio 0.5 --mix up2x => --read-ratio | --mix up2x
rmw --records 0 => --entries is 0
rmw --ops 0 => --ops
rmw --threads 65 => --threads | 64
rmw --zipf 0 => --zipf
rmw --zipf -1 => --zipf
rmw --field-len 2000 => --field-len | 1000
rmw --delta-len 101 => --delta-len | 100
rmw --memory-budget 1M => memory_budget | 4194304
rmw --experiment zipf --zipf 1 => --zipf | --experiment zipf
rmw --experiment value-size --value-len 5 => --value-len | --experiment value-size
rmw --experiment read-ratio --read-ratio 0.5 => --read-ratio | --experiment
rmw --experiment kd-cache => --mode get-put,merge,kd | --experiment kd-cache
rmw --experiment split-threshold --mode merge => --mode merge | split-threshold
rmw --experiment bucket-size --mode kd --bucket-bytes 1M => --bucket-bytes | --experiment bucket-size
rmw --mode merge --bucket-bytes 1M => --bucket-bytes | --mode merge
rmw --bucket-bytes 100 => --bucket-bytes | 512
rmw --experiment memtable --memtable 1M => --memtable | --experiment memtable
rmw --memtable 10 => memtable_bytes | 1024
rmw --experiment read-sources --threads 2 => --threads | --experiment read-sources
rmw --mix put-only --read-ratio 0.5 => --read-ratio | --mix put-only
rmw --peers fjall => --peers | fjall
rmw --peers leveldb => leveldb | rocksdb
rmw --repeat 0 => --repeat
rmw --dry-run --json x => --dry-run | --json
iocost --cache-sweep often => --cache-sweep
iocost --key-len 4 => --key-len is 4
iocost --gets 0 => --lookups
iocost --cache-kind lru => --cache-kind
iocost --filter-bits 12 => --filter-bits
iocost --filter-bits monkey(30) => --filter-bits
iocost --db nowhere --filter-bits 16 => --db
iocost --block-bytes 10 --entries 10 => block
iocost --db nowhere --entries 5 => --db
iocost --keyspace k => --db
stress --in-memory --faults => --in-memory | --faults
stress --runs 0 => --runs
stress --seconds soon => --seconds
advise --weights speed=1 => --weights | "speed" | known: writes, points, ranges, space
advise --weights writes=0 => at least one weight
advise --lookups 0 --weights points=1 => points=1
advise --memory 1K => --memory-budget is 1024 | 131072
advise --entries 0 => --entries
advise --spec a --lookups 5 => --phases | --lookups
advise --updates 2 => --updates
explore --policy full --trace a --entries 5 => --trace | --entries
explore --policy full --trace a --phases b => --trace | --phases
explore --policy full --entries -1 => '-1' for '--entries <N>' | must be a whole number | 1.5M or 1e9
explore --policy full --entries 99999999999T => --entries | below 2^64
explore --policy full --entries 1.5 => --entries | must be a whole number
explore --policy full --lookups 64MiB => --lookups | must be a whole number
explore --policy full --memtable 5XB => --memtable | number of bytes | 64MiB or 1.5G
explore --policy full --value-len -7 => '-7' for '--value-len <BYTES>' | number of bytes
explore --policy full --workers 65 => --workers | from 1 to 64
explore --policy full --threads 65 => --threads | from 1 to 64
explore --policy full --threads 0 => --threads | from 1 to 64
explore --policy full --zipf 0.5 => --zipf 0.5 | --distribution uniform
explore --policy full --distribution zipf --zipf -1 => --zipf | above 0
explore --policy full --memtable-kind tree => --memtable-kind | b-link-tree or skip-list
simulate --policy full --threads 2 => --threads is a flag of explore only
simulate --policy full --write-rate 5K => --write-rate is a flag of explore only
simulate --policy full --sweep threads=1,2 => --threads is a flag of explore only
simulate --policy full --sweep workers=1,2 => --workers is a flag of explore only
simulate --policy full --sweep direct-io=false,true => --direct-io is a flag of explore only
simulate --policy full --block-bytes 8K => --block-bytes is a flag of explore only
explore --policy tierring => "tierring"; did you mean tiering? known: full, 
explore --policy full --entires 5 => '--entires' | ; did you mean --entries? see lsmx explore --help
explroe => 'explroe' | ; did you mean explore? known: explore, simulate, 
bench fillseq --option policy=tierring => did you mean tiering?
rmw --memory-budget lots => --memory-budget | number of bytes
iocost --block-bytes 5G => --block-bytes | below 4G
bench fillseq --option table_bytes=-1 => table_bytes=-1 | a number of bytes
db x scan --limit few => --limit | must be a whole number
stress --runs -1 => '-1' for '--runs <N>'
simulate --policy full --sweep memtable=64MB => 64MB | --memtable
explore --policy full --frobnicate => '--frobnicate' | see lsmx explore --help
explore --policy full --distribution pareto => pareto | uniform | prefix-zipf | shifting
explore --policy full --write-control never => never | smooth | stop | --write-control
db x => put | verify
db x frob => frob | put | verify
db x scan --form a => --form | did you mean --from? see lsmx db scan --help
db x export f --format xml => xml | tsv | jsonl
explore --policy full --data a.tsv --value-len 5 => --data | --value-len
explore --policy full --data a.tsv --updates 0.5 => --data | --updates
explore --policy full --phases p.toml --lookups 5 => --phases | --lookups
explore --policy full --phases p.toml --data a.tsv => --phases | --data
explore --policy full --trace t --value-len 5 => --trace | --value-len
db x scan --prefix a --from b => --prefix | --from
compare a b --fail-above much => --fail-above | much
compare a b --fail-above -1 => --fail-above | -1
explore --policy full --columns write_amp => unknown column "write_amp"; did you mean write_amplification? known: 
compare a b --json ./a => --json ./a contradicts the input a
simulate --policy full --json r --html ./r => --json r contradicts --html ./r: both are the same file
db x stats --count 1 => --watch
db x checkpoint => <TARGET>
db x stats --watch -1 => --watch
db x get --hex 6 => invalid key with --hex | "6" is not hexadecimal
db x stats --hex => --hex works only with put, get
db x repair --hex => --hex works only with put, get
db x verify --hex => --hex works only with | verify --no-trace-of
db x dump nothing.txt => nothing.txt is no file of a database
 => explore | db
db x checkpoint y --keyspace users => --keyspace contradicts checkpoint
db x verify --keyspace users => --keyspace contradicts verify
db x verify --json => --no-trace-of
db x dump --keyspace users => --keyspace contradicts dump
db x repair --keyspace users => --keyspace contradicts repair
db x reset-clock --keyspace users => --keyspace contradicts reset-clock
db x drop-keyspace y --keyspace users => --keyspace contradicts drop-keyspace
"#;

/// Command lines that fail at run time. After `=>`, each line lists texts that the error must contain, separated by
/// `|`.
const UNUSABLE: &str = "
explore --policy full --data no/such.tsv => cannot open no/such.tsv
explore --policy full --phases no/such.toml => cannot read no/such.toml
explore --policy full --trace no/such.trace => no/such.trace
explore --policy full --json no/such/dir.json => cannot write no/such/dir.json
explore --run-cell no/such:0 --json x => cannot read no/such
explore --collect no/such => cannot list no/such
explore --policy full --emit-cells no/such/list => cannot write no/such/list
explore --policy full --html no/such/page.html => cannot write no/such/page.html
simulate --policy full --html no/such/page.html => cannot write no/such/page.html
bench fillseq --html no/such/page.html => cannot write no/such/page.html
explore --policy full --dir no/such/dir => no/such/dir
explore --spec nowhere.toml => nowhere.toml
advise --spec no-such-file.toml => no-such-file.toml
iocost --db no/such/database => not a database
stress --runs 1 --dir /nowhere/at/all => /nowhere/at/all
db x import no/such/file.tsv => cannot open no/such/file.tsv
simulate --policy leveled --entries 18446744073709551615 => flushes of | bytes in total are too many
";

#[test]
fn rejected_arguments_and_files_are_named() {
    for (code, table) in [(2, REJECTED), (1, UNUSABLE)] {
        for line in table.lines().skip(1) {
            let (words, parts) = line.split_once(" => ").unwrap();
            lsmx(words).fails(code, &parts.split(" | ").collect::<Vec<_>>());
        }
    }
    assert!(!std::fs::exists("x").unwrap(), "no database is created");
}

/// Checks that a number with a unit and the same plain number give equal results, for example `6K` and `6000`.
#[test]
fn counts_and_sizes_with_units_equal_plain_numbers() {
    for (command, units, plain) in [
        (
            "explore",
            "--entries 6K --value-len 0.046875KiB --memtable 64KiB --lookups 1e2 --sweep block-cache=0.25M",
            "--entries 6000 --value-len 48 --memtable 65536 --lookups 100 --sweep block-cache=262144",
        ),
        (
            "simulate",
            "--entries 1.5M --sweep size-ratio=1e1",
            "--entries 1500000 --sweep size-ratio=10",
        ),
        ("simulate", "--sweep entries=0.5M,1M", "--sweep entries=500_000,1_000_000"),
    ] {
        let cells = |words| {
            let mut cells = cells(&format!("{command} --policy tiering --deterministic {words}"));
            let keep = ["sweep", "ingested_bytes", "workload", "digest", "flushed_bytes"];
            for cell in &mut cells {
                cell.as_object_mut().unwrap().retain(|name, _| keep.contains(&name.as_str()));
            }
            cells
        };
        assert_eq!(cells(units), cells(plain), "{command} {units}");
    }
}

#[test]
fn old_names_of_flags_are_accepted_and_hidden() {
    let dir = TestDir::new();
    let phases = dir.write("phases.toml", "[[phase]]\nentries = 1000\n");
    for (words, old) in [
        ("rmw --records 1100 --ops 600 --mode merge", "--records"),
        ("iocost --entries 2000 --memtable 64K --table 64K --gets 50 --cache-sweep 20", "--gets"),
        (&format!("advise --entries 2000 --memory 256K --confirm 0 --spec {phases}"), "--spec"),
    ] {
        experiment(words);
        let help = lsmx(&format!("{} --help", words.split(' ').next().unwrap())).ok();
        assert!(!help.contains(old), "{help}");
    }
}

/// If no workload flag is given, half of the writes are updates. With any workload flag, the default share of updates
/// is 0.
#[test]
fn default_workload_has_updates() {
    for command in ["explore", "simulate"] {
        for (words, updates) in [
            ("--value-len 48", 1000),
            ("--lookups 10", 0),
            ("--deletes 0.1", 0),
            ("--distribution zipf", 0),
        ] {
            let cells = cells(&format!("{command} --policy leveled --entries 2000 {words}"));
            assert_eq!(cells[0]["workload"]["phases"][0]["updates"], updates, "{command} {words}");
        }
    }
}

#[test]
fn simulate_default_memtable_is_limited_with_a_note() {
    let simulate = |words: &str| lsmx(&format!("simulate --policy tiering {words}")).ok();
    let large = simulate("--entries 1G");
    assert!(large.starts_with("memtables and tables hold 64.0 MiB of data"), "{large}");
    for words in ["--entries 1M", "--entries 1G --memtable 1G"] {
        assert!(!simulate(words).contains("64.0 MiB of data"), "{words}");
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    assert!(lsmx("--version").ok().starts_with("lsmx "));
    let help = lsmx("explore --help").ok();
    assert_contains(&help, &["--policy", "--empty-lookups", "--data-order", "--deterministic"]);
}

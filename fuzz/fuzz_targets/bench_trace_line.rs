#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lsmx_testkit::fuzzing::run_target("bench_trace_line", input));

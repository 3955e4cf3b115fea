//! Runs the fuzz target whose name is that of the binary.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    lsmx_testkit::fuzzing::run_target(env!("CARGO_BIN_NAME"), input);
});

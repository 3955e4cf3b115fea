#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lsmx_delta::fuzzing::collected(bytes));

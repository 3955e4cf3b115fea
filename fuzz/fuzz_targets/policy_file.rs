#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lsmx::fuzzing::policy_file(bytes));

//! Fuzz targets: functions that decode arbitrary bytes and check the result.
//!
//! A target panics if the decoder panics or if a decoded value violates an invariant. A strict decoder must accept only
//! bytes that the encoder would write. Searches in a block must return the same results as a sequential scan of the
//! block.
//!
//! Targets whose names end in `_repaired` first correct the checksums of the input. Changed contents then reach the
//! decoder. [`run_targets`] runs targets on corpora and on randomly changed seeds. `fuzz/` has one libFuzzer binary for
//! each target.

mod entries;
mod mutation;
mod runner;
mod seeds;

pub(crate) use entries::{Entry, read_entries};
pub use runner::{check_targets, run_targets};
pub use seeds::Seeds;

/// Keys that targets look up in addition to the keys in the input.
pub(crate) const PROBE_KEYS: [&[u8]; 7] =
    [b"", b"\0", b"key-000017", b"key-000123", b"key07", b"m", &[0xff; 9]];

/// A decoder under test.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Name of the target. The corpus directory and the binary in `fuzz/` have the same name.
    pub name: &'static str,
    /// Share of all inputs of a test run that this target gets, in thousandths.
    pub share: u64,
    check: fn(&[u8]),
    repair: Option<fn(&mut [u8])>,
}

impl FuzzTarget {
    /// Returns a target that passes inputs to `check` without changes.
    pub(crate) const fn new(name: &'static str, check: fn(&[u8]), share: u64) -> FuzzTarget {
        FuzzTarget { name, share, check, repair: None }
    }

    /// Returns a target that corrects the checksums of an input before the check.
    pub(crate) const fn repaired(
        name: &'static str,
        repair: fn(&mut [u8]),
        check: fn(&[u8]),
        share: u64,
    ) -> FuzzTarget {
        FuzzTarget { name, share, check, repair: Some(repair) }
    }

    /// Checks an input. Panics if the check fails.
    pub fn run(&self, input: &[u8]) {
        let Some(repair) = self.repair else { return (self.check)(input) };
        let mut input = input.to_vec();
        repair(&mut input);
        (self.check)(&input);
    }
}

/// Runs the target with the given name on an input. The libFuzzer binaries in `fuzz/` call this function.
pub fn run_target(name: &str, input: &[u8]) {
    let targets = [
        crate::engine::TARGETS,
        crate::delta::TARGETS,
        #[cfg(feature = "bench")]
        crate::bench::TARGETS,
    ];
    let target = targets.into_iter().flatten().find(|target| target.name == name);
    target.expect("`name` is the name of a target").run(input);
}

//! What a fuzzer calls: one plain function for each decoder. Not for users.
//!
//! Any bytes in, and nothing out: a target panics if the decoder panics, or if what it accepted
//! breaks a promise. The promises are strict where the decoder is: what decodes must encode to the
//! same bytes, and where blocks are searched in place, every way of reading (walks both ways, `get`,
//! `seek`) must tell what a slow, simple reading of the same bytes tells.
//!
//! Targets named `…_repaired` put the checksums right first, so that what lies behind them is
//! reached. `cargo test` replays and mutates corpora through [`TARGETS`] ([`feed`]); the workspace in
//! `fuzz/` has one libFuzzer binary for each of them.

mod api;
mod blobs;
mod blocks;
pub mod feed;
mod files;
mod logs;
mod recovery;
mod repair;
mod seeds;
mod traces;

pub use api::{Beside, api, api_seeds, api_with};
pub use blobs::{blob, blob_record, blob_record_repaired, blob_repaired, value_pointer};
pub use blocks::{
    batch, block, block_repaired, data_block, edit, filter, index_block, properties,
    range_tombstones,
};
pub use files::{current, file_name, footer, footer_repaired, table, table_repaired};
pub use logs::{manifest, manifest_repaired, wal, wal_repaired};
pub use recovery::{recovery_manifest, recovery_wal};
pub use seeds::seeds;
pub use traces::{trace, trace_items, trace_repaired};

use lsmx_compaction::PolicySpec;
use lsmx_compaction::spec::Composition;
use lsmx_compaction::spec::to_toml;

/// A decoder to be fed with bytes that may be anything.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is that of its corpus and of its binary in `fuzz/` as well.
    pub name: &'static str,
    /// Panics on what it was written to find.
    pub run: fn(&[u8]),
    /// Its part of the inputs, in thousandths: more for what is quick and has much to decode.
    pub share: u64,
}

macro_rules! targets {
    ($($name:ident: $share:literal,)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[
            $(Target { name: stringify!($name), run: $name, share: $share },)*
        ];
    };
}

targets! {
    data_block: 94,
    index_block: 75,
    filter: 50,
    range_tombstones: 65,
    properties: 80,
    block: 20,
    block_repaired: 60,
    batch: 65,
    edit: 66,
    footer: 10,
    footer_repaired: 20,
    current: 40,
    value_pointer: 20,
    blob_record: 10,
    blob_record_repaired: 30,
    blob: 4,
    blob_repaired: 20,
    file_name: 10,
    policy_spec: 40,
    policy_file: 20,
    table: 4,
    table_repaired: 36,
    wal: 15,
    wal_repaired: 35,
    manifest: 10,
    manifest_repaired: 26,
    trace: 10,
    trace_repaired: 20,
    trace_items: 40,
    recovery_wal: 2,
    recovery_manifest: 2,
    api: 1,
}

/// A composition as a file for people.
fn file_of(spec: &PolicySpec) -> String {
    to_toml(&Composition { name: spec.name().to_owned(), primitives: spec.primitives() })
}

/// What was read prints as something that parses to the same, and builds.
fn comes_back(spec: &PolicySpec) {
    assert_eq!(spec.to_string().parse().as_ref(), Ok(spec), "{spec}");
    assert_eq!(spec.build().name(), spec.name());
}

/// A policy as a file.
pub fn policy_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(spec) = PolicySpec::from_toml(text) else { return };
    comes_back(&spec);
    if spec.preset().is_none() {
        assert_eq!(PolicySpec::from_toml(&file_of(&spec)).as_ref(), Ok(&spec), "{spec}");
    }
}

/// A policy as text.
pub fn policy_spec(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(spec) = text.parse::<PolicySpec>() {
        comes_back(&spec);
    }
}

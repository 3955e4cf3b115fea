//! Compiles and runs the Rust samples of the README and of the book as documentation tests.
//!
//! `tests/sources/documents.rs` checks that every page with a Rust sample is listed.

macro_rules! samples {
    ($($name:ident = $path:literal,)*) => {
        $(
            #[doc = include_str!(concat!("../../../", $path))]
            struct $name;
        )*
    };
}

samples! {
    Readme = "README.md",
    Embed = "docs/guide/embed.md",
    Keyspaces = "docs/guide/keyspaces.md",
    Durability = "docs/guide/durability.md",
    Transactions = "docs/guide/transactions.md",
    Sizing = "docs/guide/sizing.md",
    Compaction = "docs/guide/compaction.md",
    MergeOperators = "docs/guide/merge-operators.md",
    CompactionFilters = "docs/guide/compaction-filters.md",
    BulkLoad = "docs/guide/bulk-load.md",
    Deletion = "docs/guide/deletion.md",
    Expiry = "docs/guide/expiry.md",
    ValueLog = "docs/guide/value-log.md",
    Backup = "docs/guide/backup.md",
    Follower = "docs/guide/follower.md",
    Observability = "docs/guide/observability.md",
    Traces = "docs/guide/traces.md",
    OperandStore = "docs/design/operand-store.md",
}

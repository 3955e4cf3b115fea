//! What a fuzzer calls: one plain function for each decoder, as `lsmx::fuzzing` has them. Not for users.
//!
//! Any bytes in, and nothing out: a target panics if the decoder panics, or if what it accepted breaks a
//! promise. What decodes must encode to the same bytes; what is found by a search must be what a walk over
//! the same bytes finds; a log that recovers must come back from the snapshot that is written of it.

mod contents;
mod files;
mod memory;
mod repair;
mod seeds;

pub use contents::{
    bucket, collected, delivered, frame, frame_repaired, header, header_repaired, index, made,
    ranges, records, snapshot,
};
pub use files::{bucket_file, bucket_file_repaired, log, log_repaired, recovery};
pub use seeds::seeds;

use lsmx::fuzzing::{Beside, Target, api_with};
use lsmx_base::sync::Arc;

use crate::factory::DeltaStoreFactory;
use crate::options::DeltaOptions;

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "delta_header", run: header, share: 20 },
    Target { name: "delta_header_repaired", run: header_repaired, share: 40 },
    Target { name: "delta_frame", run: frame, share: 30 },
    Target { name: "delta_frame_repaired", run: frame_repaired, share: 80 },
    Target { name: "delta_records", run: records, share: 157 },
    Target { name: "delta_index", run: index, share: 130 },
    Target { name: "delta_bucket", run: bucket, share: 110 },
    Target { name: "delta_snapshot", run: snapshot, share: 50 },
    Target { name: "delta_ranges", run: ranges, share: 60 },
    Target { name: "delta_made", run: made, share: 50 },
    Target { name: "delta_delivered", run: delivered, share: 30 },
    Target { name: "delta_collected", run: collected, share: 60 },
    Target { name: "delta_log", run: log, share: 20 },
    Target { name: "delta_log_repaired", run: log_repaired, share: 50 },
    Target { name: "delta_bucket_file", run: bucket_file, share: 10 },
    Target { name: "delta_bucket_file_repaired", run: bucket_file_repaired, share: 40 },
    Target { name: "delta_recovery", run: recovery, share: 60 },
    Target { name: "delta_api", run: api, share: 3 },
];

/// Operations on a database whose operands are in stores, small enough for splits and collections.
pub fn api(bytes: &[u8]) {
    let beside = Beside {
        give: |options| {
            let small = DeltaOptions::default().bucket_bytes(512).log_bytes_max(1024);
            options.operand_store(DeltaStoreFactory::new(small.buckets_max(4)))
        },
        stores: || vec![Arc::new(DeltaStoreFactory::default())],
    };
    api_with(bytes, beside);
}

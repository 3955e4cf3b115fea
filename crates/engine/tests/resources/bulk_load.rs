//! Memory of bulk loads.

use lsmx::env::Background;
use lsmx::ingest::BulkLoadOptions;
use lsmx::{Db, Options};
use lsmx_testkit::TestRng;

use crate::ALLOCATOR;

/// Additional memory for the writers of tables and temporary files, in bytes.
const WRITER_BYTES: isize = 1 << 20;

/// Bug: the bound of a sort applied to the added bytes. The buffer allocated up to twice this memory.
#[test]
fn unsorted_bulk_load_allocates_at_most_its_memory_bound() {
    let _alone = lsmx_testkit::run_alone();
    let bound = 8_u64 << 20;
    for value_bytes in [0, 30, 300, 3_000] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::default().background(Background::Inline).seed(1);
        let db = Db::open(dir.path().join("db"), options).unwrap();
        let keyspace = db.default_keyspace();
        let value = vec![7; value_bytes];
        let load = || {
            let options = BulkLoadOptions::default().sort_memory_bytes(bound);
            let mut loader = keyspace.bulk_loader(options).unwrap();
            let (mut rng, mut bytes) = (TestRng::new(3), 0);
            while bytes < bound + bound / 2 {
                loader.put(rng.next_u64().to_be_bytes(), &value).unwrap();
                bytes += value_bytes as u64 + 32;
            }
            drop(loader);
        };
        let ((), peak) = ALLOCATOR.peak_in_thread(load);
        println!("values of {value_bytes} bytes: {peak} bytes");
        assert!(peak <= bound as isize + WRITER_BYTES, "{peak} with values of {value_bytes}");
        assert!(peak >= bound as isize / 2, "{peak} with values of {value_bytes}");
    }
}

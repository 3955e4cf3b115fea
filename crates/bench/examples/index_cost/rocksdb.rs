//! Measures the size of RocksDB's table index, as RocksDB reports it.

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, DB, DBCompressionType, Options, SstFileWriter,
};

use crate::{Failure, INDEX_BLOCK_BYTES};

const BLOCK_BYTES: usize = 4096;

/// Returns the size of RocksDB's partitioned index in bytes per data block. Excludes the memory overhead of cached
/// blocks.
pub(crate) fn index_bytes(
    keys: &[Vec<u8>],
    value: &[u8],
    restart_interval: usize,
) -> Result<f64, Failure> {
    let mut tables = BlockBasedOptions::default();
    tables.set_block_size(BLOCK_BYTES);
    tables.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    tables.set_metadata_block_size(INDEX_BLOCK_BYTES);
    tables.set_index_block_restart_interval(i32::try_from(restart_interval)?);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::None);
    options.set_block_based_table_factory(&tables);

    let directory = tempfile::tempdir()?;
    let file = directory.path().join("table");
    let mut writer = SstFileWriter::create(&options);
    writer.open(&file)?;
    for key in keys {
        writer.put(key, value)?;
    }
    writer.finish()?;
    let db = DB::open(&options, directory.path().join("db"))?;
    db.ingest_external_file(vec![file])?;
    let properties = db.property_value("rocksdb.aggregated-table-properties")?;
    let properties = properties.ok_or("RocksDB has no table properties")?;
    Ok(parse_property(&properties, "index block size")?
        / parse_property(&properties, "# data blocks")?)
}

/// Returns the number in the first field that starts with `name`. `properties` has the form `name=number; name=number`.
fn parse_property(properties: &str, name: &str) -> Result<f64, Failure> {
    let found = properties.split(';').map(str::trim).find(|field| field.starts_with(name));
    let (_, number) = found.and_then(|field| field.rsplit_once('=')).ok_or("a field is missing")?;
    Ok(number.trim().parse()?)
}

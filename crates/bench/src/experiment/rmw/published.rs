//! What was published of read-modify-writes, to be shown beside what is measured here.
//!
//! Source: the study of key-delta separation (KDSep), its figures 9 and following. 100 GiB of records of
//! 24 + 1000 B in ten fields, 200 million operations, zipf 0.99, 4 GiB of memory, direct I/O, 16 cores. Its baselines
//! merge: RocksDB 8, with values in the tree, in BlobDB, and in the authors' value log.

use super::design::{Base, Mode};

/// One bar of the main comparison: reads to updates 10 to 90.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Engine, and what was added to it.
    pub name: &'static str,
    /// The mode that it corresponds to here.
    pub mode: Mode,
    /// The base that it corresponds to here.
    pub base: Base,
    /// Thousands of operations per second.
    pub kops: f64,
    /// Microseconds of a read, mean and 99th percentile.
    pub read_us: (f64, f64),
    /// Microseconds of an update, mean and 99th percentile.
    pub rmw_us: (f64, f64),
    /// GiB that the device read and wrote.
    pub device_gib: f64,
    /// GiB on the device at the end.
    pub storage_gib: f64,
}

const fn bar(
    name: &'static str,
    (mode, base): (Mode, Base),
    kops: f64,
    read_us: (f64, f64),
    rmw_us: (f64, f64),
    [device_gib, storage_gib]: [f64; 2],
) -> Published {
    Published { name, mode, base, kops, read_us, rmw_us, device_gib, storage_gib }
}

/// GiB that were loaded.
pub const LOADED_GIB: f64 = 100.0;
/// Millions of operations.
pub const MOPS: f64 = 200.0;

const TREE: (Mode, Base) = (Mode::Merge, Base::Tree);
const TREE_KD: (Mode, Base) = (Mode::Kd, Base::Tree);
const LOG: (Mode, Base) = (Mode::Merge, Base::ValueLog);
const LOG_KD: (Mode, Base) = (Mode::Kd, Base::ValueLog);

/// The main comparison.
pub const MAIN: [Published; 6] = [
    bar("RocksDB", TREE, 26.6, (302.0, 1170.0), (5.08, 21.1), [1289.0, 107.0]),
    bar("RocksDB + KD", TREE_KD, 48.0, (163.0, 607.0), (4.74, 7.93), [937.0, 114.0]),
    bar("BlobDB", LOG, 31.6, (255.0, 962.0), (6.43, 10.0), [1058.0, 149.0]),
    bar("BlobDB + KD", LOG_KD, 52.8, (149.0, 551.0), (4.29, 7.64), [623.0, 130.0]),
    bar("vLogDB", LOG, 32.9, (261.0, 867.0), (4.26, 15.0), [655.0, 111.0]),
    bar("vLogDB + KD", LOG_KD, 55.3, (140.0, 551.0), (4.22, 7.49), [413.0, 118.0]),
];

/// A mix, and thousands of operations per second of RocksDB, BlobDB and vLogDB, without and with KD.
pub type OfMix = (&'static str, [f64; 3], Option<[f64; 3]>);

/// The other mixes; with KD where it changes anything.
pub const BY_MIX: [OfMix; 10] = [
    ("up2x", [35.7, 32.7, 31.3], Some([54.0, 42.6, 42.0])),
    ("ycsb-a", [7.0, 13.9, 10.4], None),
    ("ycsb-b", [5.7, 11.5, 10.2], None),
    ("ycsb-c", [5.9, 9.1, 9.3], None),
    ("ycsb-d", [5.7, 9.3, 9.6], None),
    ("ycsb-e", [2.35, 0.23, 1.86], None),
    ("ycsb-f", [7.0, 13.8, 10.3], None),
    ("am", [7.1, 12.9, 9.8], Some([12.9, 15.4, 16.2])),
    ("bm", [7.2, 8.7, 9.0], Some([7.6, 9.6, 10.1])),
    ("fm", [7.2, 12.8, 9.8], Some([12.8, 15.4, 16.2])),
];

/// A curve: name, mode, base, and thousands of operations per second over the swept value.
pub type Curve = (&'static str, &'static [(f64, f64)]);

/// Over the share of reads.
pub const BY_READ_RATIO: [Curve; 2] = [
    ("vLogDB", &[(0.1, 32.9), (0.3, 14.6), (0.5, 9.8), (0.7, 9.3), (0.9, 9.0)]),
    ("vLogDB + KD", &[(0.1, 55.3), (0.3, 24.6), (0.5, 16.3), (0.7, 12.6), (0.9, 10.6)]),
];

/// Over the size of the KD cache, in MiB.
pub const BY_KD_CACHE: [Curve; 1] = [(
    "vLogDB + KD",
    &[
        (0.0, 26.4),
        (32.0, 47.3),
        (64.0, 50.0),
        (128.0, 53.2),
        (256.0, 54.0),
        (512.0, 55.3),
        (1024.0, 54.6),
    ],
)];

/// The curves that were published of an experiment, over what it varies.
#[must_use]
pub fn curves(experiment: &str) -> &'static [Curve] {
    match experiment {
        "read-ratio" => &BY_READ_RATIO,
        "kd-cache" => &BY_KD_CACHE,
        _ => &[],
    }
}

/// What was published of a mix: names and thousands of operations per second.
#[must_use]
pub fn of_mix(mix: &str) -> Vec<(&'static str, f64)> {
    if mix == "default" {
        return MAIN.iter().map(|bar| (bar.name, bar.kops)).collect();
    }
    let Some((_, without, with)) = BY_MIX.into_iter().find(|(name, ..)| *name == mix) else {
        return Vec::new();
    };
    let names = ["RocksDB", "BlobDB", "vLogDB"].into_iter().zip(without);
    let with = with
        .into_iter()
        .flat_map(|with| ["RocksDB + KD", "BlobDB + KD", "vLogDB + KD"].into_iter().zip(with));
    names.chain(with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::operation_mix::OperationMix;

    #[test]
    fn every_mix_has_what_was_published() {
        for mix in OperationMix::ALL {
            assert!(of_mix(mix.name()).len() >= 3, "{mix}");
        }
        assert!(of_mix("other").is_empty());
    }

    /// The gains that the study states in its text follow from its figures.
    #[test]
    fn gains_are_the_published_ones() {
        for (pair, gain) in MAIN.chunks(2).zip([0.805, 0.670, 0.682]) {
            let of_figure = pair[1].kops / pair[0].kops - 1.0;
            assert!((of_figure - gain).abs() < 0.01, "{}: {of_figure}", pair[0].name);
        }
        let (_, without, with) = BY_MIX[0];
        for ((without, with), gain) in without.iter().zip(with.unwrap()).zip([0.513, 0.303, 0.342])
        {
            assert!((with / without - 1.0 - gain).abs() < 0.01);
        }
    }
}

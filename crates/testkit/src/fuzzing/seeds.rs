//! Seed inputs of fuzz targets, and the corpora in `fuzz/corpus`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a corpus file is not part of a database")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum length of a seed, in bytes. Longer seeds take more time but reach no additional code.
const SEED_BYTES_MAX: usize = 6 << 10;

/// Seed inputs by target name.
#[derive(Debug, Default)]
pub struct Seeds(BTreeMap<&'static str, Vec<Vec<u8>>>);

impl Seeds {
    /// Adds the input as a seed of each target in `targets`.
    pub fn add(&mut self, targets: &[&'static str], input: &[u8]) {
        for target in targets {
            self.0.entry(target).or_default().push(input.to_vec());
        }
    }

    /// Adds all seeds of another set.
    pub fn extend(&mut self, other: Seeds) {
        for (target, inputs) in other.0 {
            self.0.entry(target).or_default().extend(inputs);
        }
    }

    /// Returns the seed inputs of a target.
    #[must_use]
    pub fn inputs(&self, target: &str) -> &[Vec<u8>] {
        self.0.get(target).map_or(&[], Vec::as_slice)
    }

    /// Removes duplicate inputs and inputs longer than 6 KiB. Keeps at least the shortest input of each target.
    pub fn remove_redundant(&mut self) {
        for inputs in self.0.values_mut() {
            inputs.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
            inputs.dedup();
            let short = inputs.partition_point(|input| input.len() <= SEED_BYTES_MAX);
            inputs.truncate(short.max(1));
        }
    }

    /// For each target whose corpus is empty, writes up to 4 inputs to the corpus.
    pub fn write_corpora(&self) {
        for (target, inputs) in &self.0 {
            let dir = corpus_dir(target);
            fs::create_dir_all(&dir).unwrap();
            if fs::read_dir(&dir).unwrap().next().is_some() {
                continue;
            }
            for (index, input) in inputs.iter().step_by(inputs.len().div_ceil(4)).enumerate() {
                fs::write(dir.join(format!("seed-{index}")), input).unwrap();
            }
        }
    }
}

pub(crate) fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn corpus_dir(target: &str) -> PathBuf {
    fuzz_dir().join("corpus").join(target)
}

/// Returns the corpus of a target, in file name order.
pub(crate) fn read_corpus(target: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<_> = fs::read_dir(corpus_dir(target))
        .unwrap_or_else(|error| panic!("corpus of {target}: {error}"))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

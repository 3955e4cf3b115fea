//! A search index: for each word, the documents that contain it. The first index is built by a bulk load, later documents
//! are added by batches.
//!
//! ```sh
//! cargo run --release -p lsmx --example search_index
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

use lsmx::ingest::{BulkLoadOptions, IngestSummary};
use lsmx::{Db, Durability, Keyspace, KeyspaceOptions, Options, WriteBatch};

/// Memory for sorting the entries of the first index, in bytes.
const SORT_MEMORY_BYTES: u64 = 64 << 20;

/// A database with two keyspaces: documents by id, and words with the ids of their documents.
struct SearchIndex {
    db: Db,
    documents: Keyspace,
    /// The key is a word, a zero byte and the id of a document. The value is empty.
    words: Keyspace,
}

impl SearchIndex {
    fn open(path: &Path) -> lsmx::Result<SearchIndex> {
        let db = Db::open(path, Options::default())?;
        let documents = db.keyspace("documents", KeyspaceOptions::default())?;
        let words = db.keyspace("words", KeyspaceOptions::default())?;
        // Without documents, the postings are those of a build that did not end.
        if documents.first()?.is_none() && words.first()?.is_some() {
            words.clear()?;
        }
        Ok(SearchIndex { db, documents, words })
    }

    /// Fills an empty index. The documents are in order of their ids.
    ///
    /// Each of the two loads is atomic, but a crash may end the build between them. The postings are loaded first. The
    /// next [`SearchIndex::open`] finds no documents then, and removes the postings. In the other order, the documents
    /// would stay in the index, and no search would find them.
    fn build(&self, documents: &[(u64, String)]) -> lsmx::Result<[IngestSummary; 2]> {
        let words = self.load_postings(documents)?;
        let by_id = documents.iter().map(|(id, text)| (id.to_be_bytes(), text));
        let texts = self.documents.bulk_load(by_id, BulkLoadOptions::default())?;
        Ok([texts, words])
    }

    /// Loads the postings of many documents. The words are in no order, so the load sorts them.
    fn load_postings(&self, documents: &[(u64, String)]) -> lsmx::Result<IngestSummary> {
        let mut sorting = self
            .words
            .bulk_loader(BulkLoadOptions::default().sort_memory_bytes(SORT_MEMORY_BYTES))?;
        for (id, text) in documents {
            for word in words_of(text) {
                sorting.put(posting(&word, *id), [])?;
            }
        }
        sorting.finish()
    }

    /// Adds a document atomically.
    fn add(&self, id: u64, text: &str) -> lsmx::Result<()> {
        let mut batch = WriteBatch::new();
        batch.put(&self.documents, id.to_be_bytes(), text);
        for word in words_of(text) {
            batch.put(&self.words, posting(&word, id), []);
        }
        self.db.write(batch, Durability::Sync)
    }

    /// Returns the ids of the documents that contain all words.
    fn search(&self, words: &[&str]) -> lsmx::Result<BTreeSet<u64>> {
        // One snapshot for all words, so that each document is seen with all of its words or with none.
        let snapshot = self.db.snapshot();
        let mut found: Option<BTreeSet<u64>> = None;
        for word in words {
            let prefix = [word.as_bytes(), &[0]].concat();
            let mut ids = BTreeSet::new();
            for entry in snapshot.prefix(&self.words, &prefix) {
                let (key, _) = entry?;
                if let Ok(id) = <[u8; 8]>::try_from(&key[prefix.len()..]) {
                    ids.insert(u64::from_be_bytes(id));
                }
            }
            found = Some(match found {
                None => ids,
                Some(found) => found.intersection(&ids).copied().collect(),
            });
        }
        Ok(found.unwrap_or_default())
    }
}

/// Returns the distinct words of a text in lower case.
fn words_of(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

fn posting(word: &str, id: u64) -> Vec<u8> {
    [word.as_bytes(), &[0], &id.to_be_bytes()].concat()
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    run(dir.path())
}

fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let index = SearchIndex::open(dir)?;
    let colors = ["red", "green", "blue"];
    let animals = ["fox", "owl", "cat", "hen", "bee"];
    let pairs = colors.iter().cycle().zip(animals.iter().cycle());
    let text = |id: u64, (color, animal): (&&str, &&str)| {
        (id, format!("The {color} {animal} number {id}."))
    };
    let documents: Vec<_> = (0..3_000).zip(pairs).map(|(id, pair)| text(id, pair)).collect();
    let [texts, words] = index.build(&documents)?;
    println!("loaded {} documents and {} postings", texts.entries, words.entries);
    index.add(3_000, "A red fox and a blue owl.")?;
    let both = index.search(&["red", "fox"])?;
    println!("{} documents contain `red` and `fox`", both.len());
    assert_eq!(both.len(), 201);
    assert_eq!(index.search(&["blue", "red"])?, BTreeSet::from([3_000]));
    let text = index.documents.get(3_000_u64.to_be_bytes())?;
    println!("the last one: {}", String::from_utf8_lossy(&text.unwrap_or_default()));
    index.db.close(None)?;
    Ok(())
}

#[test]
fn runs() -> Result<(), Box<dyn Error>> {
    main()
}

#[test]
fn build_that_did_not_end_is_removed_by_the_next_open() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let documents = [(7, "A red fox.".to_owned())];
    let interrupted = SearchIndex::open(dir.path())?;
    interrupted.load_postings(&documents)?;
    assert_eq!(interrupted.words.iter().count(), 3);
    drop(interrupted);

    let index = SearchIndex::open(dir.path())?;
    assert!(index.search(&["red"])?.is_empty());
    index.build(&documents)?;
    drop(index);
    let index = SearchIndex::open(dir.path())?;
    assert_eq!(index.search(&["red"])?, BTreeSet::from([7]));
    Ok(())
}

//! The operations of a run, in one order that follows from the seed alone.
//!
//! Threads share one stream: a record belongs to one of them, which plays all that concerns it, in
//! order. So the popularity of records is that of the stream however many threads there are, and the last value of
//! each is known exactly.

use crate::workload::keys::Permutation;
use crate::workload::random::{Random, Zipf};

use super::mix::{Act, Mix, OPS_PER_INSERT};

const PURPOSE_STREAM: u64 = 0x726d_7773;

/// What a stream is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    pub(super) mix: Mix,
    pub(super) read_ratio: f64,
    /// Records that are loaded.
    pub(super) records: u64,
    pub(super) ops: u64,
    pub(super) zipf: f64,
    pub(super) seed: u64,
}

impl Recipe {
    /// Records that are inserted.
    pub(super) fn inserts(&self) -> u64 {
        if self.mix.inserts() { self.ops / OPS_PER_INSERT } else { 0 }
    }

    /// All operations.
    pub(super) fn stream(&self) -> Stream {
        Stream {
            recipe: *self,
            random: Random::new(self.seed, PURPOSE_STREAM),
            popular: self.popular(),
            next: 0,
        }
    }

    /// Draws records as the operations do.
    pub(super) fn popular(&self) -> Popular {
        Popular {
            zipf: Zipf::new(self.zipf),
            // Popular records lie anywhere, in key order and in age.
            scattered: Permutation::new(self.records, self.seed),
            records: self.records,
        }
    }
}

/// Which records are asked for how often.
#[derive(Clone, Debug)]
pub(super) struct Popular {
    zipf: Zipf,
    scattered: Permutation,
    records: u64,
}

impl Popular {
    /// The record of this rank, 0 the most popular; below the number of records.
    pub(super) fn at_rank(&self, rank: u64) -> u64 {
        self.scattered.forward(rank)
    }

    /// One of those that were loaded.
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        self.at_rank(self.zipf.draw(random, self.records))
    }

    /// One of `count` records, most often one of the last.
    fn draw_latest(&self, random: &mut Random, count: u64) -> u64 {
        count - 1 - self.zipf.draw(random, count)
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    /// Its place in the stream, from 1; what it writes follows from that.
    pub(super) version: u64,
    pub(super) act: Act,
    pub(super) record: u64,
    /// Chooses the field.
    pub(super) dice: u64,
}

/// The operations one after the other.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    recipe: Recipe,
    random: Random,
    popular: Popular,
    next: u64,
}

impl Iterator for Stream {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        let Recipe { mix, read_ratio, records, ops, .. } = self.recipe;
        if self.next >= ops {
            return None;
        }
        let number = self.next;
        self.next += 1;
        let act = mix.act(number, read_ratio, &mut self.random);
        let inserted = if mix.inserts() { number / OPS_PER_INSERT } else { 0 };
        let record = match act {
            Act::Insert => records + inserted,
            _ if mix.asks_for_the_latest() => {
                self.popular.draw_latest(&mut self.random, records + inserted)
            }
            _ => self.popular.draw(&mut self.random),
        };
        let dice = match act {
            Act::Update | Act::Rewrite => self.random.next_u64() >> 1,
            _ => 0,
        };
        Some(Op { version: number + 1, act, record, dice })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_operations_and_no_record_comes_before_it_was_inserted() {
        for mix in Mix::ALL {
            let recipe =
                Recipe { mix, read_ratio: 0.1, records: 100, ops: 5000, zipf: 0.99, seed: 9 };
            let all: Vec<Op> = recipe.stream().collect();
            assert_eq!(all, recipe.stream().collect::<Vec<_>>());
            assert_eq!(all.len(), 5000);
            let mut end = 100;
            for op in &all {
                if op.act == Act::Insert {
                    assert_eq!(op.record, end);
                    end += 1;
                }
                assert!(op.record < end, "{mix}");
            }
            assert_eq!(end, 100 + recipe.inserts());
            let other = Recipe { seed: 10, ..recipe };
            assert_ne!(all, other.stream().collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_rank_is_the_most_popular() {
        let recipe = Recipe {
            mix: Mix::Default,
            read_ratio: 0.5,
            records: 1000,
            ops: 20_000,
            zipf: 0.99,
            seed: 1,
        };
        let mut counts = vec![0u32; 1000];
        recipe.stream().for_each(|op| counts[usize::try_from(op.record).unwrap()] += 1);
        let most = counts.iter().max().unwrap();
        let first = recipe.popular().at_rank(0);
        assert_eq!(&counts[usize::try_from(first).unwrap()], most);
    }
}

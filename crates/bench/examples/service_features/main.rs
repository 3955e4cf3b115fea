//! Compares operations that use a feature with the same operations without it: expiry, compaction filters, prefix filters,
//! cursors, clones of keyspaces, bulk loads, latency sampling and delete persistence.
//!
//! ```sh
//! cargo run --release -p lsmx-bench --example service_features -- [RECORDS] [ROUNDS]
//! ```
//!
//! Each round measures all rows, in turn. The table shows the median and the range of the rounds. The column `x base` is
//! the median of the ratios to the base row in the same round. A base row begins a group and has no ratio.

#![allow(clippy::print_stdout, reason = "the program prints a table")]

mod reads;
mod records;
mod writes;

use std::error::Error;

use crate::reads::ReadDatabase;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A measurement of each round.
struct Row<'a> {
    name: &'static str,
    /// The row with which this one is compared, or the row itself.
    base: &'static str,
    /// Units of the numbers that `measure` returns.
    units: &'static [&'static str],
    /// Takes the number of the round.
    measure: Box<dyn FnMut(u64) -> Outcome<Vec<f64>> + 'a>,
    /// Numbers of each round.
    samples: Vec<Vec<f64>>,
}

impl<'a> Row<'a> {
    fn new(
        name: &'static str,
        base: &'static str,
        units: &'static [&'static str],
        measure: impl FnMut(u64) -> Outcome<Vec<f64>> + 'a,
    ) -> Row<'a> {
        Row { name, base, units, measure: Box::new(measure), samples: Vec::new() }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn format_number(number: f64) -> String {
    if number < 100.0 { format!("{number:.2}") } else { format!("{number:.0}") }
}

/// Prints one line for each unit of the row.
fn print_row(row: &Row<'_>, base: &Row<'_>) {
    for (index, unit) in row.units.iter().enumerate() {
        let mut numbers: Vec<f64> = row.samples.iter().map(|sample| sample[index]).collect();
        let pairs = row.samples.iter().zip(&base.samples);
        let mut ratios: Vec<f64> = pairs.map(|(row, base)| row[index] / base[index]).collect();
        let number = median(&mut numbers);
        let number = format_number(number);
        let [low, high] = [numbers[0], numbers[numbers.len() - 1]].map(format_number);
        let range = format!("{low}-{high}");
        let ratio = match median(&mut ratios) {
            _ if row.name == base.name => String::new(),
            ratio if ratio.is_finite() => format!("{ratio:.2}"),
            _ => "-".to_owned(),
        };
        let name = if index == 0 { row.name } else { "" };
        println!("{name:<44} {unit:<18} {number:>10} {range:>20} {ratio:>7}");
    }
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let temporary = tempfile::tempdir()?;
    let directory = temporary.path();
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let (count, rounds): (u64, u64) = (number(1_000_000)?, number(7)?);
    if count < records::ENTRIES_PER_PREFIX || rounds == 0 {
        return Err("too few records or rounds".into());
    }
    let reads = ReadDatabase::open(&directory.join("reads"), count)?;
    let mut rows = writes::rows(directory, count);
    rows.extend(reads.rows());
    for round in 0..rounds {
        for row in &mut rows {
            let sample = (row.measure)(round)?;
            row.samples.push(sample);
        }
    }
    println!("{count} records, {rounds} rounds");
    println!("{:<44} {:<18} {:>10} {:>20} {:>7}", "operation", "unit", "median", "range", "x base");
    for row in &rows {
        let base = rows.iter().find(|base| base.name == row.base).unwrap_or(row);
        print_row(row, base);
    }
    Ok(())
}

//! Tables of the times of merges and writes.

use super::{format_figure, format_time};
use crate::figures::lookup_column;
use crate::results::{ResultCell, Results};
use crate::strategy::*;
use crate::table::MarkdownTable;

/// A row of a table of times: the title, the measurement, and the texts of the additional columns.
type TimesRow<'a> = (String, Option<&'a ResultCell>, Vec<String>);

/// Published times of a strategy in milliseconds. `None` stands for a time that the study does not state.
type PublishedTimes<const N: usize> = (Strategy, [Option<f64>; N]);

/// Mean duration of a merge in the study, by updates per insert: 0, 1, 4 and 8.
const MERGE_MEAN_BY_UPDATES: [PublishedTimes<4>; 3] = [
    (FULL, [None; 4]),
    (LO1, [Some(520.0), Some(540.0), Some(560.0), Some(510.0)]),
    (TIER, [Some(440.0), Some(210.0), Some(110.0), Some(60.0)]),
];
const UPDATES_PER_INSERT: [&str; 4] = ["0", "1", "4", "8"];
/// Longest duration of a merge in the study, for 2^27, 2^29 and 2^31 bytes.
const MERGE_MAX_BY_SIZE: [PublishedTimes<3>; 2] =
    [(TIER, [Some(650.0), Some(3_200.0), Some(15_000.0)]), (ONE, [Some(680.0), None, None])];
const DATA_SIZES: [&str; 3] = ["128 MiB", "512 MiB", "2 GiB"];
/// Mean duration of a merge in the study, for write buffers of 1, 2, 4 and 8 times the size.
const MERGE_MEAN_BY_BUFFER: [PublishedTimes<4>; 2] = [
    (LO1, [Some(500.0), Some(900.0), Some(3_100.0), Some(7_800.0)]),
    (TIER, [Some(400.0), Some(700.0), Some(1_900.0), Some(3_200.0)]),
];
/// Longest duration of a merge in the study, as above.
const MERGE_MAX_BY_BUFFER: [PublishedTimes<4>; 2] = [
    (LO1, [Some(1_310.0), None, None, Some(10_900.0)]),
    (TIER, [Some(7_050.0), None, None, Some(9_700.0)]),
];
const BUFFER_SIZES: [u32; 4] = [1, 2, 4, 8];

/// Returns a table with the times of merges and writes. Omits rows without a measurement. Returns `None` if no row is
/// left.
fn times_table<'a>(
    caption: &'static str,
    other_columns: &[&str],
    rows: impl IntoIterator<Item = TimesRow<'a>>,
) -> Option<MarkdownTable> {
    let columns = [
        ("mean merge, ms", "compaction.latency_us.mean", 1e3),
        ("longest merge, ms", "compaction.latency_us.max", 1e3),
        ("mean write, µs", "put_latency_us.mean", 1.0),
        ("longest write, ms", "put_latency_us.max", 1e3),
    ];
    let header = std::iter::once("").chain(columns.map(|(name, ..)| name));
    let mut table = MarkdownTable::new(caption, header.chain(other_columns.iter().copied()));
    for (title, cell, others) in rows.into_iter().filter(|(_, cell, _)| cell.is_some()) {
        let times = columns.map(|(_, column, divisor)| format_time(cell, column, divisor));
        table.add_row(&title, times.into_iter().chain(others));
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Returns the times of R3. `write_max_ms` contains the longest writes in the study, in the order of [`EIGHT`].
pub(super) fn interleaved_times(
    results: &Results,
    write_max_ms: [f64; EIGHT.len()],
) -> Option<MarkdownTable> {
    let t3 = results.find_part("t3");
    let rows = EIGHT.into_iter().zip(write_max_ms).map(|(strategy, published)| {
        let cell = t3.find_cell(strategy);
        let lookup = |alpha| format_time(cell, &lookup_column(alpha, "latency_us.mean"), 1.0);
        let others = vec![format_figure(Some(published)), lookup(0.0), lookup(1.0)];
        (strategy.name.to_owned(), cell, others)
    });
    times_table(
        "Times with lookups between the writes. The table of R1 has the longest writes without lookups, and the table of \
         R2 the lookups on the loaded tree.",
        &["longest write of the study, ms", "lookup of a present key, µs", "of an absent key, µs"],
        rows,
    )
}

/// Returns the times of R4, by updates per insert.
pub(super) fn update_times(results: &Results) -> Option<MarkdownTable> {
    let t4 = results.find_part("t4");
    let rows = MERGE_MEAN_BY_UPDATES.into_iter().flat_map(|(strategy, published)| {
        let cells = t4.cells(strategy).into_iter().zip(UPDATES_PER_INSERT).zip(published);
        cells.map(move |((cell, updates), published)| {
            let title = format!("{}, {updates} updates per insert", strategy.name);
            (title, Some(cell), vec![format_figure(published)])
        })
    });
    times_table("Times by updates per insert.", &["mean merge of the study, ms"], rows)
}

/// Returns the times of R6, by the size of the data.
pub(super) fn data_size_times(results: &Results) -> Option<MarkdownTable> {
    let t6 = results.find_part("t6");
    let rows = MERGE_MAX_BY_SIZE.into_iter().flat_map(|(strategy, published)| {
        let cells = t6.cells(strategy).into_iter().zip(DATA_SIZES).zip(published);
        cells.map(move |((cell, size), published)| {
            (format!("{}, {size}", strategy.name), Some(cell), vec![format_figure(published)])
        })
    });
    times_table("Times by the size of the data.", &["longest merge of the study, ms"], rows)
}

/// Returns the times of R8, by the size of write buffers.
pub(super) fn buffer_times(results: &Results) -> Option<MarkdownTable> {
    let part = |times| match times {
        1 => results.find_part("t1"),
        _ => results.find_part(&format!("t8-{times}")),
    };
    if part(2).cells.is_empty() {
        return None;
    }
    let rows = MERGE_MEAN_BY_BUFFER.into_iter().zip(MERGE_MAX_BY_BUFFER).flat_map(
        |((strategy, mean), (_, longest))| {
            let published = mean.into_iter().zip(longest);
            BUFFER_SIZES.into_iter().zip(published).map(move |(times, (mean, longest))| {
                let published = [mean, longest].map(format_figure).to_vec();
                let title = format!("{}, × {times}", strategy.name);
                (title, part(times).find_cell(strategy), published)
            })
        },
    );
    times_table(
        "Times by the size of write buffers. × 1 is the measurement of R1.",
        &["mean merge of the study, ms", "longest merge of the study, ms"],
        rows,
    )
}

/// Returns the times of all presets with the default write control, of strategies that stop writes as soon as a merge
/// is due, and of loads with the rate of writes of the study.
pub(super) fn stall_times(results: &Results) -> Vec<MarkdownTable> {
    let number = |cell: &ResultCell, column: &str, divisor: f64| {
        format_figure(cell.number(column).map(|us| us / divisor))
    };
    let presets = results.find_part("ours").cells.iter().map(|cell| {
        let others = [number(cell, "stalls.max_us", 1e3), number(cell, "stalls.throttled_us", 1e6)];
        (cell.text("policy").unwrap_or_default().to_owned(), Some(cell), others.to_vec())
    });
    let presets = times_table(
        "Times of all presets of lsmx with their default parameters, the default write control and two compaction threads.",
        &["longest stall, ms", "writes slowed, s"],
        presets,
    );
    let (t1, tight) = (results.find_part("t1"), results.find_part("t1-stop"));
    let tight = tight.find_cell(TIGHT_TIER).map(|tight| {
        let others = [TIER, FULL, LO1].map(|at| (at.name.to_owned(), t1.find_cell(at)));
        let rows = [(TIGHT_TIER.name.to_owned(), Some(tight))].into_iter().chain(others);
        let stopped = |cell: Option<&ResultCell>| format_time(cell, "stalls.total_us", 1e6);
        times_table(
            "Times if writes stop at a fixed number of runs: with Tier at 20 runs, with the others as soon as a merge is \
             due. The other rows are those of R1.",
            &["writes stopped, s"],
            rows.map(|(title, cell)| (title, cell, vec![stopped(cell)])),
        )
    });
    let rate = results.find_part("t1-rate");
    let rows = EIGHT.map(|strategy| {
        let cell = rate.find_cell(strategy);
        let stopped = format_time(cell, "stalls.total_us", 1e6);
        (strategy.name.to_owned(), cell, vec![stopped])
    });
    let rate = times_table(
        "Times of a load in which a write begins every 19 µs, which is the mean time of a write in the study.",
        &["writes stopped, s (–: never)"],
        rows,
    );
    presets.into_iter().chain(tight.flatten()).chain(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_tables_without_measurements_are_omitted() {
        let measured = crate::results::tests::results("t8-2", 26);
        let part = measured.find_part("t8-2");
        let rows =
            [FULL, LO2].map(|at| (at.name.to_owned(), part.find_cell(at), vec!["1".to_owned()]));
        let table = times_table("caption", &["other"], rows.clone()).unwrap();
        assert_eq!(table.rows, [["Full", "–", "–", "–", "–", "1"]]);
        let [_, unmeasured] = rows;
        assert!(times_table("caption", &["other"], [unmeasured]).is_none());

        let titles: Vec<_> = buffer_times(&measured).unwrap().rows;
        let titles: Vec<&str> = titles.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(titles, ["LO+1, × 2", "Tier, × 2"]);
        let none = Results::default();
        assert!(interleaved_times(&none, [1.0; EIGHT.len()]).is_none());
        assert!(update_times(&none).is_none() && data_size_times(&none).is_none());
        assert!(buffer_times(&none).is_none() && stall_times(&none).is_empty());
    }
}

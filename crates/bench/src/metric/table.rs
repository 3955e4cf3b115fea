//! Text tables with a legend. Tables wider than the terminal are split into blocks.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use comfy_table::{LineStyle, TableStyle};

use super::{BetterDirection, MetricRegistry, ResultRow, TableColumn, match_stars};
use crate::error::{Error, Result};

/// Number of spaces between two columns.
const GAP: u16 = 2;
/// Width of a table if standard output is not a terminal, in characters.
pub const WIDTH_DEFAULT: usize = 100;

/// Appearance of a text table.
#[derive(Clone, Debug)]
pub struct TableStyleOptions {
    /// Maximum width in characters. A wider table is split into blocks.
    pub width: usize,
    /// Whether a legend follows the table.
    pub legend: bool,
    /// Flat names of the columns, or `all`. An empty list selects the default columns of the experiment.
    pub columns: Vec<String>,
}

impl Default for TableStyleOptions {
    fn default() -> Self {
        TableStyleOptions { width: WIDTH_DEFAULT, legend: true, columns: Vec::new() }
    }
}

/// Returns the width of the terminal in characters, or `None` if standard output is not a terminal.
pub fn terminal_width() -> Option<usize> {
    Table::new().width().map(usize::from)
}

/// Checks that all columns are known. Column names may contain `*`.
pub fn check_columns(registry: &MetricRegistry, columns: &[String]) -> Result<()> {
    let is_known = |name: &&String| {
        let pattern = column_name(registry, name);
        let is_matched = |key| match_stars(pattern, key).is_some();
        *name == "all"
            || registry.find(&pattern.replace('*', "x")).is_some()
            || registry.metrics().any(|metric| is_matched(metric.key))
    };
    match columns.iter().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => Err(Error::Unknown {
            what: "column",
            name: name.clone(),
            known: registry.metrics().map(|metric| metric.key).collect::<Vec<_>>().join(", "),
        }),
    }
}

/// Returns the JSON name of the metric whose title is `name`, or `name` itself if no metric has this title.
fn column_name<'a>(registry: &MetricRegistry, name: &'a str) -> &'a str {
    registry.metrics().find(|metric| metric.title == name).map_or(name, |metric| metric.key)
}

/// Returns the table of `rows`. Fails if a column is unknown.
pub fn format_table(
    registry: &MetricRegistry,
    rows: &[ResultRow],
    style: &TableStyleOptions,
) -> Result<String> {
    check_columns(registry, &style.columns)?;
    let mut names: Vec<&str> = Vec::new();
    if style.columns.is_empty() {
        names.extend(registry.shown);
    }
    for name in &style.columns {
        match name.as_str() {
            "all" => names.extend(registry.metrics().map(|metric| metric.key)),
            name => names.push(column_name(registry, name)),
        }
    }
    let mut identity = registry.columns(registry.identity, rows);
    let mut columns = registry.columns(&names, rows);
    columns.retain(|column| identity.iter().all(|known| known.name != column.name));
    let shown: Vec<TableColumn> = identity.iter().chain(&columns).cloned().collect();
    let mut text = String::new();
    if style.columns.is_empty() {
        let mut constant = take_constant_columns(&mut identity, rows);
        constant.extend(take_constant_columns(&mut columns, rows));
        let texts = constant.iter().map(|column| {
            let text = format!("{} {}", column.title, format_cell(column, &rows[0]));
            format!("{text} {}", column.metric.unit.name()).trim_end().to_owned()
        });
        let texts: Vec<String> = texts.collect();
        if !texts.is_empty() {
            text = format!("in all rows: {}\n\n", texts.join(", "));
        }
    }
    text.push_str(&format_blocks(&identity, &columns, rows, style.width));
    if style.legend {
        text.push('\n');
        text.push_str(&format_column_legend(shown.iter()));
    }
    Ok(text)
}

/// Removes and returns the columns with the same text in all rows, except costs and rates. Keeps at least one column.
fn take_constant_columns(columns: &mut Vec<TableColumn>, rows: &[ResultRow]) -> Vec<TableColumn> {
    let is_constant = |column: &TableColumn| {
        let text = |row| format_cell(column, row);
        column.metric.better == BetterDirection::Neither
            && rows.len() > 1
            && rows.iter().all(|row| text(row) == text(&rows[0]))
    };
    let (mut constant, mut varied): (Vec<TableColumn>, Vec<TableColumn>) =
        std::mem::take(columns).into_iter().partition(is_constant);
    if varied.is_empty() {
        varied.extend(constant.pop());
    }
    *columns = varied;
    constant
}

/// Returns a table as blocks of at most `width` characters. Each block repeats the columns that identify a row.
fn format_blocks(
    identity: &[TableColumn],
    columns: &[TableColumn],
    rows: &[ResultRow],
    width: usize,
) -> String {
    let width_of = |column: &TableColumn| {
        let cells = rows.iter().map(|row| format_cell(column, row));
        let texts = cells.chain([column.title.clone(), column.metric.unit.name().to_owned()]);
        texts.map(|text| text.chars().count()).max().unwrap_or(0) + usize::from(GAP)
    };
    let identity_width: usize = identity.iter().map(width_of).sum();
    let mut blocks: Vec<Vec<&TableColumn>> = Vec::new();
    let mut used = usize::MAX;
    for column in columns {
        let own = width_of(column);
        if used.saturating_add(own) > width + usize::from(GAP) {
            blocks.push(identity.iter().collect());
            used = identity_width;
        }
        if let Some(block) = blocks.last_mut() {
            block.push(column);
        }
        used += own;
    }
    if blocks.is_empty() && !identity.is_empty() {
        blocks.push(identity.iter().collect());
    }
    let draw = |block: &Vec<&TableColumn>| {
        let has_units = block.iter().any(|column| !column.metric.unit.name().is_empty());
        let heading = |column: &&TableColumn| match (has_units, column.metric.unit.name()) {
            (false, _) => column.title.clone(),
            (true, unit) => format!("{}\n{unit}", column.title),
        };
        let lines =
            rows.iter().map(|row| block.iter().map(|column| format_cell(column, row)).collect());
        draw_grid(block.iter().map(heading).collect(), lines, identity.len())
    };
    let texts: Vec<String> = blocks.iter().map(draw).collect();
    texts.join("\n")
}

/// Returns the text of a column in a row, with the minimum and maximum of the repetitions.
fn format_cell(column: &TableColumn, row: &ResultRow) -> String {
    let text = column.format_value(row);
    match row.repeat_range(&column.name) {
        Some([low, high]) if low < high => {
            let unit = column.metric.unit;
            format!("{text} ({}–{})", unit.format_number(low), unit.format_number(high))
        }
        _ => text,
    }
}

/// Returns the explanations of columns, one per line. Columns with the same explanation share a line.
fn format_column_legend<'a>(columns: impl Iterator<Item = &'a TableColumn>) -> String {
    let name = |column: &TableColumn| match column.metric.unit.name() {
        "" => column.title.clone(),
        unit => format!("{}, {unit}", column.title),
    };
    let mut lines: Vec<(String, &str)> = Vec::new();
    for column in columns {
        match lines.iter_mut().find(|(_, about)| *about == column.metric.about) {
            Some((names, _)) => names.push_str(&format!("; {}", name(column))),
            None => lines.push((name(column), column.metric.about)),
        }
    }
    lines.iter().map(|(names, about)| format!("  {names}: {about}\n")).collect()
}

/// Returns a text table. The first column contains texts, the other columns contain numbers.
pub fn format_grid(header: Vec<String>, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    draw_grid(header, rows, 1)
}

fn draw_grid(
    header: Vec<String>,
    rows: impl IntoIterator<Item = Vec<String>>,
    text_columns: usize,
) -> String {
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─')));
    table.set_content_arrangement(ContentArrangement::Disabled);
    let aligned = |row: Vec<String>| -> Vec<Cell> {
        let cells = row.into_iter().enumerate();
        let align =
            |index| if index < text_columns { CellAlignment::Left } else { CellAlignment::Right };
        cells.map(|(index, text)| Cell::new(text).set_alignment(align(index))).collect()
    };
    table.set_header(aligned(header));
    for row in rows {
        table.add_row(aligned(row));
    }
    let last = table.column_count() - 1;
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if index == last { 0 } else { GAP }));
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::super::{Unit, metric};
    use super::*;

    const REGISTRY: MetricRegistry = MetricRegistry {
        command: "test",
        metrics: &[&[
            metric("name", "name", Unit::Text, "name of the row"),
            metric("engine", "engine", Unit::Text, "storage engine"),
            metric("share", "reads", Unit::Share, "share of reads"),
            metric("cost", "cost", Unit::Count, "a cost").cost(),
        ]],
        identity: &["name", "engine"],
        shown: &["share", "cost"],
    };

    #[test]
    fn table_constant_settings_are_above_it_and_costs_in_it() {
        let row = |name: &str| {
            let row = ResultRow::default().with_value("name", name).with_value("engine", "lsmx");
            row.with_value("share", 0.5).with_value("cost", 7)
        };
        let style = TableStyleOptions { legend: false, ..TableStyleOptions::default() };
        let two = format_table(&REGISTRY, &[row("a"), row("b")], &style).unwrap();
        let (head, rows) = two.split_once("\n\n").unwrap();
        assert_eq!(head, "in all rows: engine lsmx, reads 50.0 %");
        assert!(
            rows.starts_with("name") && rows.contains("cost") && !rows.contains("lsmx"),
            "{rows}"
        );
        let one = format_table(&REGISTRY, &[row("a")], &style).unwrap();
        assert!(one.starts_with("name") && one.contains("lsmx"), "{one}");
    }

    /// Regression test: a pattern that matches several declared metrics was unknown. The table was missing if `all` was
    /// part of a list, or if the list had only columns that identify a row.
    #[test]
    fn column_list_can_have_patterns_and_all_and_identity_columns() {
        const LATENCIES: MetricRegistry = MetricRegistry {
            metrics: &[&[
                metric("name", "name", Unit::Text, "name of the row"),
                metric("latency.mean", "mean", Unit::Micros, "a latency"),
                metric("latency.max", "max", Unit::Micros, "a latency"),
            ]],
            identity: &["name"],
            ..REGISTRY
        };
        let rows = [ResultRow::default()
            .with_value("name", "a")
            .with_value("latency.mean", 1.5)
            .with_value("latency.max", 2.5)];
        for (columns, header) in [
            ("latency.*", "name  mean  max"),
            ("all", "name  mean  max"),
            ("max,all", "name  max  mean"),
            ("name", "name"),
        ] {
            let columns = columns.split(',').map(str::to_owned).collect();
            let style = TableStyleOptions { legend: false, columns, width: 80 };
            let table = format_table(&LATENCIES, &rows, &style).unwrap();
            let words = table.lines().next().unwrap().split_whitespace().collect::<Vec<_>>();
            assert_eq!(words.join("  "), header, "{table}");
        }
        assert!(check_columns(&LATENCIES, &["delay.*".to_owned()]).is_err());
    }

    #[test]
    fn column_can_be_named_by_its_title() {
        assert_eq!(column_name(&REGISTRY, "reads"), "share");
        assert!(check_columns(&REGISTRY, &["reads".to_owned()]).is_ok());
        assert!(check_columns(&REGISTRY, &["writes".to_owned()]).is_err());
    }
}

//! Units of metrics, and their formats in tables and plots.

use crate::numbers;
use crate::report::html::value;
use crate::report::text;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Text,
    Count,
    /// A mean count, with three decimals.
    Mean,
    /// Blocks per lookup, with three decimals.
    Blocks,
    /// Bytes. Tables show binary units.
    Bytes,
    /// A mean number of bytes, with two decimals.
    MeanBytes,
    Micros,
    MicrosPerOperation,
    /// Microseconds, shown as seconds.
    MicrosAsSeconds,
    Seconds,
    /// A ratio of two sizes, such as an amplification.
    Times,
    /// A fraction from 0 to 1, shown as a percentage.
    Share,
    /// A fraction from 0 to 1, shown as a percentage with four decimals.
    SmallShare,
    /// Operations per second.
    Rate,
    /// A weighted sum of costs.
    Cost,
}

impl Unit {
    pub(crate) const fn is_time(self) -> bool {
        use Unit::{Micros, MicrosAsSeconds, MicrosPerOperation, Seconds};
        matches!(self, Micros | MicrosPerOperation | MicrosAsSeconds | Seconds)
    }

    /// Returns the unit for column headings. The text is empty for quantities without a unit. The text is also empty
    /// for [`Unit::Bytes`], because each table cell contains a binary unit such as KiB.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Text | Unit::Count | Unit::Mean | Unit::Cost | Unit::Bytes => "",
            Unit::MeanBytes => "B",
            Unit::Blocks => "blocks",
            Unit::Micros => "µs",
            Unit::MicrosPerOperation => "µs per op",
            Unit::MicrosAsSeconds | Unit::Seconds => "s",
            Unit::Times => "×",
            Unit::Share | Unit::SmallShare => "%",
            Unit::Rate => "per s",
        }
    }

    /// Formats a number for a table cell. The text contains no unit if the column heading contains the unit.
    pub fn format_number(self, number: f64) -> String {
        match self {
            Unit::Text | Unit::Count | Unit::Rate => format!("{number:.0}"),
            Unit::Mean | Unit::Blocks | Unit::Cost => format!("{number:.3}"),
            Unit::Bytes => text::format_bytes(numbers::round_to_u64(number)),
            Unit::MeanBytes | Unit::Seconds | Unit::Times => format!("{number:.2}"),
            Unit::Micros if number >= 999.95 => format!("{number:.0}"),
            Unit::Micros | Unit::MicrosPerOperation => format!("{number:.1}"),
            Unit::MicrosAsSeconds => format!("{:.2}", number / 1e6),
            Unit::Share => format!("{:.1}", number * 100.0),
            Unit::SmallShare => format!("{:.4}", number * 100.0),
        }
    }

    /// Formats a number with its unit for plots.
    pub fn format_with_unit(self, number: f64) -> String {
        self.number_format()(number)
    }

    pub(crate) fn number_format(self) -> fn(f64) -> String {
        match self {
            Unit::Text | Unit::Count | Unit::Rate => value::format_count,
            Unit::Mean | Unit::Blocks | Unit::MeanBytes | Unit::Cost => value::format_plain,
            Unit::Bytes => value::format_bytes,
            Unit::Micros | Unit::MicrosPerOperation | Unit::MicrosAsSeconds => value::format_micros,
            Unit::Seconds => |seconds| value::format_micros(seconds * 1e6),
            Unit::Times => value::format_ratio,
            Unit::Share | Unit::SmallShare => value::format_percent,
        }
    }
}

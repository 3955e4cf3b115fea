//! Figures of Markdown pages: SVG files with a style sheet of their own.

use super::page::STYLE;
use super::plot::bars::{Bar, draw_bars};
use super::plot::marker::Marker;
use super::value::format_plain;

/// A bar of a figure.
#[derive(Clone, Debug)]
pub struct FigureBar {
    /// Name at the left of the bar.
    pub name: String,
    /// Number of the series, which determines the color.
    pub series: usize,
    /// Length of the bar.
    pub value: f64,
}

/// Returns an SVG file with horizontal bars that start at 0. `description` is the text for screen readers.
pub fn render_bar_figure(description: &str, bars: &[FigureBar]) -> String {
    let rows: Vec<Bar> = bars
        .iter()
        .map(|bar| Bar {
            marker: Marker::with_number(bar.series),
            name: bar.name.clone(),
            parts: vec![bar.value],
            text: format_plain(bar.value),
        })
        .collect();
    let image = draw_bars(description, &["value"], format_plain, &rows).into_string();
    // An SVG file that a page embeds as an image does not use the style sheet of the page.
    image.replacen('>', &format!("><style>{STYLE}</style>"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_contains_style_names_and_values() {
        let bar = |name: &str, series, value| FigureBar { name: name.to_owned(), series, value };
        let text = render_bar_figure("a < b", &[bar("x", 0, 12.5), bar("y", 1, 3.0)]);
        assert!(text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" "), "{text}");
        assert!(text.contains("a &lt; b") && text.contains("<style>:root"), "{text}");
        for part in [">x</text>", ">y</text>", ">12.5</text>", ">3</text>"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // The style sheet stands in XML, where these characters would start a tag or a reference.
        assert!(!STYLE.contains(['<', '&']));
    }
}

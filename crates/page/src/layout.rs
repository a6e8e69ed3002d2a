//! The page for snapshots without a history, which show memory at one moment. The page has words and tables, and no
//! script.
//!
//! Owns: the elements of the page.

use crate::html::{escaped, filled};

const TEMPLATE: &str = include_str!("../assets/layout.html");
const STYLES: [&str; 3] =
    [include_str!("../assets/colours.css"), include_str!("../assets/page.css"), include_str!("../assets/print.css")];

/// A table of figures. The first cell of a row names the row.
#[derive(Clone, Debug, Default)]
pub struct PageTable {
    /// The sentence above the table.
    pub caption: String,
    /// The headings of the columns.
    pub headings: Vec<String>,
    /// The rows, each with as many cells as there are headings.
    pub rows: Vec<Vec<String>>,
}

/// The memory of a device at one moment, in words.
#[derive(Clone, Debug, Default)]
pub struct LayoutWords {
    /// The snapshot and the device.
    pub name: String,
    /// The verdict, the reasons, and the next step.
    pub verdict: [String; 3],
    /// Paragraphs below the verdict.
    pub texts: Vec<String>,
    /// The streams and pools, and who holds the memory.
    pub tables: Vec<PageTable>,
}

/// Returns the page of these layouts as HTML. `command` is the command that made the page.
#[must_use]
pub fn layout_html(command: &str, layouts: &[LayoutWords]) -> String {
    let names: Vec<_> = layouts.iter().map(|layout| layout.name.as_str()).collect();
    let (title, body) = (escaped(&names.join(", ")), layouts.iter().map(section).collect::<String>());
    let made = escaped(&format!("{command} · version {}", env!("CARGO_PKG_VERSION")));
    let parts = [("title", title.as_str()), ("style", &STYLES.join("\n")), ("body", &body), ("made", &made)];
    filled(TEMPLATE, &parts)
}

fn section(layout: &LayoutWords) -> String {
    let [headline, reasons, next] = &layout.verdict;
    let paragraph = |text: &String| format!("<p>{}</p>\n", escaped(text));
    format!(
        "<header><div class=\"heading\"><h1>{}</h1></div></header>\n<main>\n<section id=\"verdict\" aria-label=\"Verdict\"><h2>{}</h2>\n\
         {}<p><strong>Next: </strong>{}</p></section>\n<section>\n{}{}</section>\n</main>\n",
        escaped(&layout.name),
        escaped(headline),
        paragraph(reasons),
        escaped(next),
        layout.texts.iter().map(paragraph).collect::<String>(),
        layout.tables.iter().map(table).collect::<String>()
    )
}

fn table(table: &PageTable) -> String {
    let row = |cells: &[String], scope: &str, open: &str, close: &str| {
        let cell = |(index, text): (usize, &String)| match index {
            0 => format!("<th scope=\"{scope}\">{}</th>", escaped(text)),
            _ => format!("<{open}>{}</{close}>", escaped(text)),
        };
        format!("<tr>{}</tr>\n", cells.iter().enumerate().map(cell).collect::<String>())
    };
    let head = row(&table.headings, "col", "th scope=\"col\"", "th");
    let rows: String = table.rows.iter().map(|cells| row(cells, "row", "td", "td")).collect();
    let caption = escaped(&table.caption);
    format!(
        "<figure><figcaption class=\"note\">{caption}</figcaption>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">\
         <table>\n<thead>{head}</thead>\n<tbody>{rows}</tbody></table></div></figure>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_tables_of_a_layout_are_one_page_without_marks() {
        let rows = vec![vec!["0x0".to_owned(), "1 & 2".to_owned()]];
        let headings = vec!["stream".to_owned(), "free".to_owned()];
        let layout = LayoutWords {
            name: "<oom>".to_owned(),
            verdict: ["Fragmentation".to_owned(), "because".to_owned(), "set it".to_owned()],
            texts: vec!["held".to_owned()],
            tables: vec![PageTable { caption: "By stream".to_owned(), headings, rows }],
        };
        let page = layout_html("seamalloc report '<oom>'", &[layout]);
        for part in [
            "<title>&lt;oom&gt; · seamalloc report</title>",
            "<h1>&lt;oom&gt;</h1>",
            "<h2>Fragmentation</h2>",
            "<strong>Next: </strong>set it",
            "<tr><th scope=\"col\">stream</th><th scope=\"col\">free</th></tr>",
            "<tr><th scope=\"row\">0x0</th><td>1 &amp; 2</td></tr>",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("<!--") && !page.contains("/*style*/") && !page.contains("<script"), "{page}");
    }
}

//! The page: its styles and scripts from `assets/` and `vendor/`, with the data of jobs.

use crate::data::Job;
use serde_json::json;

const TEMPLATE: &str = include_str!("../assets/page.html");
const STYLES: [&str; 4] = [
    include_str!("../vendor/uplot-1.6.32/uPlot.min.css"),
    include_str!("../assets/colours.css"),
    include_str!("../assets/page.css"),
    include_str!("../assets/print.css"),
];
/// The charting library, and its licence, which every page includes.
pub(crate) const LIBRARY: [&str; 4] = [
    "/*!\n",
    include_str!("../vendor/uplot-1.6.32/LICENSE"),
    "*/\n",
    include_str!("../vendor/uplot-1.6.32/uPlot.iife.min.js"),
];
/// The repository, whose documentation the page links.
pub(crate) const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
/// The scripts, in the order of their dependencies.
const SCRIPTS: [&str; 13] = [
    include_str!("../assets/units.js"),
    include_str!("../assets/decode.js"),
    include_str!("../assets/theme.js"),
    include_str!("../assets/series.js"),
    include_str!("../assets/job.js"),
    include_str!("../assets/charts.js"),
    include_str!("../assets/layers.js"),
    include_str!("../assets/raster.js"),
    include_str!("../assets/colouring.js"),
    include_str!("../assets/picture.js"),
    include_str!("../assets/map.js"),
    include_str!("../assets/tables.js"),
    include_str!("../assets/page.js"),
];

/// Returns the page of these jobs as HTML. `command` is the command that made the page.
#[must_use]
pub fn html(command: &str, jobs: &[Job<'_>]) -> String {
    let names: Vec<_> = jobs.iter().map(Job::name).collect();
    let version = env!("CARGO_PKG_VERSION");
    let about = json!({ "command": command, "version": version, "jobs": names, "repository": REPOSITORY });
    let mut data = element("application/json", "about", &about.to_string().replace('<', "\\u003c"));
    for (number, job) in jobs.iter().enumerate() {
        for blob in job.blobs(number) {
            data.push_str(&element("text/plain", &blob.id, &blob.text));
        }
    }
    let title = escaped(&names.join(", "));
    let scripts = SCRIPTS.join("\n");
    let parts = [
        ("title", title.as_str()),
        ("style", &STYLES.join("\n")),
        ("data", &data),
        ("library", &LIBRARY.concat()),
        ("script", &scripts),
    ];
    filled(TEMPLATE, &parts)
}

pub(crate) fn element(kind: &str, id: &str, content: &str) -> String {
    format!("<script type=\"{kind}\" id=\"{id}\">{content}</script>\n")
}

/// Returns the template with `<!--NAME-->` and `/*NAME*/` replaced by their parts. Inserted parts are not searched
/// again.
pub(crate) fn filled(template: &str, parts: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len() + parts.iter().map(|(_, part)| part.len()).sum::<usize>());
    let mut rest = template;
    loop {
        let marks = parts.iter().flat_map(|(name, part)| {
            [format!("<!--{name}-->"), format!("/*{name}*/")].map(|mark| (rest.find(&mark), mark, *part))
        });
        let next = marks.filter_map(|(at, mark, part)| Some((at?, mark, part))).min_by_key(|(at, ..)| *at);
        let Some((at, mark, part)) = next else { break };
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        out.push_str(part);
        rest = after.get(mark.len()..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_is_not_looked_at_again() {
        let parts = [("a", "</*b*/>"), ("b", "B")];
        assert_eq!(filled("1<!--a-->2/*b*/3/*c*/", &parts), "1</*b*/>2B3/*c*/");
    }

    #[test]
    fn names_cannot_end_an_element() {
        let trace = seamalloc_trace::Trace { name: "</script><b>&\"".to_owned(), ..Default::default() };
        let options = seamalloc_trace::replay::ReplayOptions::new(Default::default(), Default::default());
        let page = html("seamalloc report '</script>'", &[Job::new(&trace, &options, Vec::new())]);
        assert!(page.contains("<title>&lt;/script&gt;&lt;b&gt;&amp;&quot;"));
        assert_eq!(page.matches("</script>").count(), page.matches("<script").count());
    }
}

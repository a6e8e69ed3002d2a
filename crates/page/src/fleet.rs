//! The page of a whole job, `seamalloc fleet`: every rank beside the others.
//!
//! Owns: the list of assets, and the check that the input comes from `seamalloc fleet --json`.

use crate::html::{LIBRARY, REPOSITORY, element, escaped, filled};
use crate::pack::Pack;
use serde_json::{Value, json};

const TEMPLATE: &str = include_str!("../assets/fleet.html");
const STYLES: [&str; 5] = [
    include_str!("../vendor/uplot-1.6.32/uPlot.min.css"),
    include_str!("../assets/colours.css"),
    include_str!("../assets/page.css"),
    include_str!("../assets/fleet.css"),
    include_str!("../assets/print.css"),
];
/// The scripts, in the order of their dependencies.
const SCRIPTS: [&str; 7] = [
    include_str!("../assets/units.js"),
    include_str!("../assets/decode.js"),
    include_str!("../assets/theme.js"),
    include_str!("../assets/tables.js"),
    include_str!("../assets/ranks.js"),
    include_str!("../assets/ranks_table.js"),
    include_str!("../assets/fleet.js"),
];

/// Returns the page of a job as HTML. `job` is the output of `seamalloc fleet --json`, `name` the heading, and
/// `command` the command that made the page.
///
/// # Errors
/// A text that names the missing part of the job.
pub fn fleet_html(name: &str, command: &str, job: &Value) -> Result<String, String> {
    for (key, is) in [
        ("job", job["job"]["strategies"].is_object() && job["job"]["sentences"].is_array()),
        ("ranks", job["ranks"].as_array().is_some_and(|ranks| ranks.iter().all(|rank| rank["strategies"].is_object()))),
        ("broken", job["broken"].is_array()),
    ] {
        if !is {
            return Err(format!("`{key}` is missing, or is not what `seamalloc fleet --json` prints"));
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    let about = json!({ "name": name, "command": command, "version": version, "repository": REPOSITORY, "fleet": job });
    let Value::Object(about) = about else { return Err("no object".to_owned()) };
    let data = element("text/plain", "fleet", &Pack::default().text(about));
    let (title, styles, scripts) = (escaped(name), STYLES.join("\n"), SCRIPTS.join("\n"));
    let parts = [
        ("title", title.as_str()),
        ("style", &styles),
        ("data", &data),
        ("library", &LIBRARY.concat()),
        ("script", &scripts),
    ];
    Ok(filled(TEMPLATE, &parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Value {
        json!({ "job": { "strategies": {}, "sentences": ["</script>"] }, "ranks": [{ "strategies": {} }], "broken": [] })
    }

    #[test]
    fn a_job_is_one_page_whatever_its_words() {
        let page = fleet_html("<b>", "seamalloc fleet '</script>'", &job()).unwrap_or_default();
        assert!(page.contains("<title>&lt;b&gt;"));
        assert_eq!(page.matches("</script>").count(), page.matches("<script").count());
        assert!(!page.contains("<!--") && !page.contains("/*script*/"), "a mark was left");
    }

    #[test]
    fn what_is_no_job_is_said() {
        for key in ["job", "ranks", "broken"] {
            let mut without = job();
            without[key] = Value::Null;
            let said = fleet_html("x", "", &without).err().unwrap_or_default();
            assert!(said.contains(key), "{said}");
        }
        assert!(fleet_html("x", "", &json!([1])).is_err());
    }
}

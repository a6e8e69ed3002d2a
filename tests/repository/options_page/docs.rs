//! The documentation of the values of an option in the source, as plain Markdown.

use std::fs;
use std::path::Path;

/// The files of `crates/config` that have values of options, parsed.
pub(crate) struct Source {
    items: Vec<syn::Item>,
}

impl Source {
    pub(crate) fn read() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/config/src");
        let items = ["choices.rs", "names.rs"].into_iter().flat_map(|file| {
            let text = fs::read_to_string(folder.join(file)).unwrap();
            syn::parse_file(&text).unwrap().items
        });
        Self { items: items.collect() }
    }

    /// The strings of a constant array.
    pub(crate) fn strings(&self, name: &str) -> Vec<String> {
        let found = self.items.iter().find_map(|item| match item {
            syn::Item::Const(found) if found.ident == name => Some(&*found.expr),
            _ => None,
        });
        let Some(syn::Expr::Array(array)) = found else { panic!("no array {name}") };
        let texts = array.elems.iter().map(|element| match element {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => text.value(),
            _ => panic!("{name} has more than strings"),
        });
        texts.collect()
    }

    /// The documentation of the variants of an enum, in their order.
    pub(crate) fn variants(&self, owner: &str) -> Vec<String> {
        let found = self.items.iter().find_map(|item| match item {
            syn::Item::Enum(found) if found.ident == owner => {
                Some(found.variants.iter().map(|one| text_of(&one.attrs)).collect())
            }
            _ => None,
        });
        found.unwrap_or_else(|| panic!("no enum {owner}"))
    }
}

/// The documentation of the strategies in their order, from the table in `crates/config/src/strategy_kind.rs`.
pub(crate) fn strategies() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/config/src/strategy_kind.rs");
    let text = fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("\nkinds! {").unwrap();
    let (mut texts, mut lines) = (Vec::new(), Vec::new());
    for line in table.lines().map(str::trim).take_while(|line| !line.starts_with("impl")) {
        if let Some(doc) = line.strip_prefix("///") {
            lines.push(doc);
        } else if line.ends_with("\",") {
            texts.push(text_of_lines(&std::mem::take(&mut lines)));
        } else if line.ends_with('{') {
            // What stands before is said of the family.
            lines.clear();
        }
    }
    texts
}

/// The documentation in attributes, as [`text_of_lines`].
fn text_of(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter(|one| one.path().is_ident("doc")).filter_map(|one| match &one.meta {
        syn::Meta::NameValue(syn::MetaNameValue {
            value: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }),
            ..
        }) => Some(text.value()),
        _ => None,
    });
    text_of_lines(&lines.collect::<Vec<_>>())
}

/// The lines of a documentation in one line, without links that only rustdoc follows.
pub(crate) fn text_of_lines(lines: &[impl AsRef<str>]) -> String {
    plain(&lines.iter().map(|line| line.as_ref().trim()).collect::<Vec<_>>().join(" "))
}

/// `[`name`](path)` and `[`name`]` become `name`, `Self::Value` what is typed for the value; links to the web stay.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("[`") {
        let (before, link) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = link.find("`]") else {
            rest = link;
            break;
        };
        match link[2..end].strip_prefix("Self::") {
            Some(value) => out.extend(["`", &value.to_lowercase(), "`"]),
            None => out.push_str(&link[1..=end]),
        }
        rest = &link[end + 2..];
        if let Some(target) = rest.strip_prefix('(')
            && let Some(close) = target.find(')')
        {
            rest = &target[close + 1..];
        }
    }
    out.push_str(rest);
    out
}

#[test]
fn links_of_rustdoc_become_plain() {
    let text = "a [`B::c`](crate::B::c), [`D`], [`Self::Never`] and [e](https://f)";
    assert_eq!(plain(text), "a `B::c`, `D`, `never` and [e](https://f)");
}

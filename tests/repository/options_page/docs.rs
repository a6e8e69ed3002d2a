//! What the source says of a field and of the values of an option: its documentation, as plain Markdown.

use std::fs;
use std::path::Path;

/// The files of `src/config` that have options, parsed.
pub(crate) struct Source {
    items: Vec<syn::Item>,
}

impl Source {
    pub(crate) fn read() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config");
        let items = ["options.rs", "classic.rs", "guard.rs", "names.rs", "paddle.rs", "strategy_kind.rs"]
            .into_iter()
            .flat_map(|file| {
                let text = fs::read_to_string(folder.join(file)).unwrap();
                syn::parse_file(&text).unwrap().items
            });
        Self { items: items.collect() }
    }

    /// The documentation of a public field of a struct.
    pub(crate) fn of_field(&self, owner: &str, field: &str) -> String {
        let fields = self.items.iter().find_map(|item| match item {
            syn::Item::Struct(found) if found.ident == owner => Some(&found.fields),
            _ => None,
        });
        let found =
            fields.and_then(|fields| fields.iter().find(|one| one.ident.as_ref().is_some_and(|id| id == field)));
        let found = found.unwrap_or_else(|| panic!("{owner} has no field {field}"));
        assert!(matches!(found.vis, syn::Visibility::Public(_)), "{owner}::{field} is not public");
        text_of(&found.attrs)
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

    /// The names of all public fields of a struct.
    pub(crate) fn fields(&self, owner: &str) -> Vec<String> {
        let of = self.items.iter().filter_map(|item| match item {
            syn::Item::Struct(found) if found.ident == owner => Some(&found.fields),
            _ => None,
        });
        of.flatten().filter_map(|field| Some(field.ident.as_ref()?.to_string())).collect()
    }

    /// The documentation of the variants of an enum, in their order.
    pub(crate) fn variants(&self, owner: &str) -> Vec<String> {
        let found = self.items.iter().find_map(|item| match item {
            syn::Item::Enum(found) if found.ident == owner => Some(&found.variants),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("no enum {owner}")).iter().map(|one| text_of(&one.attrs)).collect()
    }
}

/// The first paragraphs of a documentation, in one line, without links that only rustdoc follows.
fn text_of(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter(|one| one.path().is_ident("doc")).filter_map(|one| match &one.meta {
        syn::Meta::NameValue(syn::MetaNameValue {
            value: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }),
            ..
        }) => Some(text.value().trim().to_owned()),
        _ => None,
    });
    plain(&lines.collect::<Vec<_>>().join(" "))
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

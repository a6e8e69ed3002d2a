//! Which file needs which other: the `use` lines of a crate, and the paths in its code that name more than one module.
//!
//! A re-export is for others: it is an import of its file only where the file's own code has the name too. A `mod` line is
//! none.

use super::modules::{Crate, Import, Kind, ModuleId, is_for_tests, leaves};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use syn::visit::{self, Visit};

/// A file needs what another one defines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrow {
    pub(crate) from: String,
    pub(crate) line: usize,
    /// The path as it is written.
    pub(crate) path: String,
    pub(crate) to: String,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// A module by its name: what is used of it has arrows of its own.
    Module,
    Trait,
    Other,
    /// An inherent method that is called.
    Call,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, line, path, to, what } = self;
        let verb = if *what == What::Call { "calls" } else { "imports" };
        write!(f, "{from}:{line} {verb} {path} of {to}")
    }
}

/// All arrows between different files of a crate, those of one line to one file once.
pub(crate) fn arrows(of: &Crate) -> Vec<Arrow> {
    let mut found = BTreeMap::new();
    for id in 0..of.modules.len() {
        for (path, line) in needed(of, id) {
            let Some(target) = of.resolve(id, &path) else { continue };
            let what = match target.kind {
                Kind::Module(_) => What::Module,
                Kind::Trait => What::Trait,
                Kind::Other => What::Other,
            };
            let from = of.modules[id].file.clone();
            if from != target.file {
                let path = path.join("::");
                let key = (from.clone(), line, target.file.clone(), what);
                found.entry(key).or_insert(Arrow { from, line, path, to: target.file, what });
            }
        }
    }
    found.into_values().collect()
}

/// The paths that a module needs, with their lines.
fn needed(of: &Crate, id: ModuleId) -> Vec<(Vec<String>, usize)> {
    let module = &of.modules[id];
    let mut code = Code::default();
    module.items.iter().for_each(|item| code.visit_item(item));
    // A path that begins with an imported item adds nothing to the import.
    let begins_with_import = |path: &[String]| {
        let mut imports = module.imports.iter().filter(|import| import.alias.as_ref() == path.first());
        imports.any(|import| of.resolve(id, &import.path).is_some_and(|to| !matches!(to.kind, Kind::Module(_))))
    };
    let mut needed: Vec<_> = code.paths.into_iter().filter(|(path, _)| !begins_with_import(path)).collect();
    let own = code.imports.iter().chain(module.imports.iter().filter(|import| !import.public));
    let exported = module.imports.iter().filter(|import| import.public);
    let used = exported.filter(|import| import.alias.as_ref().is_some_and(|name| code.words.contains(name)));
    for Import { path, alias, line, .. } in own.chain(used) {
        if alias.is_some() {
            needed.push((path.clone(), *line));
            continue;
        }
        let whole = path.clone();
        let strangers = code.words.iter().filter(|word| !of.has(id, word));
        for word in strangers {
            let path: Vec<String> = whole.iter().chain([word]).cloned().collect();
            // A word that the module does not have leads to the module's own file, and is no arrow.
            if of
                .resolve(id, &whole)
                .is_some_and(|target| matches!(target.kind, Kind::Module(of_all) if of.has(of_all, word)))
            {
                needed.push((path, *line));
            }
        }
        needed.push((whole, *line));
    }
    needed
}

/// The names that the code of a module uses.
#[derive(Default)]
struct Code {
    /// Paths of more than one word, with their lines.
    paths: Vec<(Vec<String>, usize)>,
    /// Words that stand alone, or at the head of a path.
    words: BTreeSet<String>,
    /// The `use` lines inside of functions.
    imports: Vec<Import>,
}

impl Code {
    fn note(&mut self, words: Vec<String>, line: usize) {
        if let Some(first) = words.first() {
            self.words.insert(first.clone());
        }
        if words.len() > 1 && words[0] != "Self" {
            self.paths.push((words, line));
        }
    }

    /// The paths in the words of a macro: `a::b::c`, less what comes behind a dot.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let (mut words, mut line, mut colons, mut after_dot) = (Vec::new(), 0, 0, false);
        for token in tokens {
            match token {
                TokenTree::Ident(word) => {
                    if colons != 2 {
                        self.note(std::mem::take(&mut words), line);
                        line = word.span().start().line;
                    }
                    if !after_dot {
                        words.push(word.to_string());
                    }
                    (colons, after_dot) = (0, false);
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Punct(mark) => {
                    self.note(std::mem::take(&mut words), line);
                    (colons, after_dot) = (0, mark.as_char() == '.');
                }
                TokenTree::Group(group) => {
                    if colons == 2 && group.delimiter() == Delimiter::Brace {
                        self.note_use_in_macro(&words, &group, line);
                    }
                    self.note(std::mem::take(&mut words), line);
                    (colons, after_dot) = (0, false);
                    self.note_tokens(group.stream());
                }
                TokenTree::Literal(_) => {
                    self.note(std::mem::take(&mut words), line);
                    (colons, after_dot) = (0, false);
                }
            }
        }
        self.note(words, line);
    }

    /// A `use a::{b, c::d};` that a macro makes.
    fn note_use_in_macro(&mut self, before: &[String], group: &Group, line: usize) {
        let Ok(tree) = syn::parse2::<syn::UseTree>(TokenTree::Group(group.clone()).into()) else { return };
        let mut found = Vec::new();
        leaves(&tree, &mut before.to_vec(), false, &mut found);
        found.into_iter().for_each(|import| self.paths.push((import.path, line)));
    }
}

impl<'ast> Visit<'ast> for Code {
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let words = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.note(words, path.segments[0].ident.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.note_tokens(call.tokens.clone());
    }

    fn visit_item_use(&mut self, line: &'ast syn::ItemUse) {
        if line.leading_colon.is_none() && !line.attrs.iter().any(is_for_tests) {
            leaves(&line.tree, &mut Vec::new(), false, &mut self.imports);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !function.attrs.iter().any(is_for_tests) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !function.attrs.iter().any(is_for_tests) {
            visit::visit_item_fn(self, function);
        }
    }
}

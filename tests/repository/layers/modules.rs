//! The modules of a crate as its files declare them: which name is defined in which file.
//!
//! Owns: the module tree, and how a path finds the file that defines its name. Modules that only tests have are left out.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::{Attribute, Item, ItemMod, Meta, UseTree};

/// Where files lie, with `/` between folders, and their text.
pub(crate) type Files = BTreeMap<String, String>;

/// A number that says which module of a [`Crate`].
pub(crate) type ModuleId = usize;

/// One name that a `use` line brings in.
#[derive(Clone, Debug)]
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    /// The name that the import has here. `None`: every name of the module, by a `*`.
    pub(crate) alias: Option<String>,
    pub(crate) line: usize,
    /// Whether the line makes the name part of this module, for others to use.
    pub(crate) public: bool,
}

/// A module, and what is declared in it.
pub(crate) struct Module {
    pub(crate) file: String,
    /// The items of the module, less those that only tests have.
    pub(crate) items: Vec<Item>,
    pub(crate) imports: Vec<Import>,
    parent: Option<ModuleId>,
    children: BTreeMap<String, ModuleId>,
    /// The names of items, and whether each is a trait.
    names: BTreeMap<String, bool>,
    /// Where the files of its child modules lie.
    folder: String,
}

/// The target that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) file: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Module(ModuleId),
    Trait,
    Other,
}

/// All modules of a crate, and of others that it is made of.
pub(crate) struct Crate {
    pub(crate) modules: Vec<Module>,
    /// The first module of each other crate, by the name that paths begin with.
    others: BTreeMap<String, ModuleId>,
}

impl Crate {
    /// Reads the crate whose first file is `root`, and `others`, each by its name and its first file. An error names the file that
    /// cannot be read.
    pub(crate) fn read(files: &Files, root: &str, others: &[(&str, &str)]) -> Result<Self, String> {
        let mut all = Self { modules: Vec::new(), others: BTreeMap::new() };
        for (name, root) in [("crate", root)].iter().chain(others) {
            let first = all.read_file(files, root, folder_of(root).to_owned(), None)?;
            all.others.insert((*name).to_owned(), first);
        }
        Ok(all)
    }

    /// Returns the first module of a module's crate.
    fn first_of(&self, module: ModuleId) -> ModuleId {
        self.modules[module].parent.map_or(module, |parent| self.first_of(parent))
    }

    fn read_file(
        &mut self,
        files: &Files,
        path: &str,
        folder: String,
        parent: Option<ModuleId>,
    ) -> Result<ModuleId, String> {
        let text = files.get(path).ok_or_else(|| format!("there is no file {path}"))?;
        let parsed = syn::parse_file(text).map_err(|error| format!("{path}: {error}"))?;
        let module = self.add(path, folder, parent);
        self.fill(files, module, parsed.items)?;
        Ok(module)
    }

    fn add(&mut self, file: &str, folder: String, parent: Option<ModuleId>) -> ModuleId {
        let (items, imports, children, names) = Default::default();
        self.modules.push(Module { file: file.to_owned(), items, imports, parent, children, names, folder });
        self.modules.len() - 1
    }

    fn fill(&mut self, files: &Files, module: ModuleId, items: Vec<Item>) -> Result<(), String> {
        for item in items {
            if attributes_of(&item).iter().any(is_for_tests) {
                continue;
            }
            match item {
                Item::Mod(child) => self.add_child(files, module, child)?,
                Item::Use(ref line) => {
                    let public = !matches!(line.vis, syn::Visibility::Inherited);
                    let mut found = Vec::new();
                    if line.leading_colon.is_none() {
                        leaves(&line.tree, &mut Vec::new(), public, &mut found);
                    }
                    self.modules[module].imports.extend(found);
                }
                other => {
                    if let Some((name, is_trait)) = name_of(&other) {
                        let known = self.modules[module].names.entry(name).or_default();
                        *known |= is_trait;
                    }
                    self.modules[module].items.push(other);
                }
            }
        }
        Ok(())
    }

    fn add_child(&mut self, files: &Files, parent: ModuleId, child: ItemMod) -> Result<(), String> {
        let name = child.ident.to_string();
        let of = &self.modules[parent];
        let below = format!("{}/{name}", of.folder);
        let id = match child.content {
            Some((_, items)) => {
                let file = of.file.clone();
                let id = self.add(&file, below, Some(parent));
                self.fill(files, id, items)?;
                id
            }
            None => {
                let named = path_attribute(&child.attrs).map(|path| format!("{}/{path}", folder_of(&of.file)));
                let path = named.unwrap_or_else(|| {
                    let beside = format!("{below}.rs");
                    if files.contains_key(&beside) { beside } else { format!("{below}/mod.rs") }
                });
                self.read_file(files, &path, below, Some(parent))?
            }
        };
        self.modules[parent].children.insert(name, id);
        Ok(())
    }

    /// The file that defines what a path in a module names, through re-exports. `None`: it leads out of the crate.
    pub(crate) fn resolve(&self, module: ModuleId, path: &[String]) -> Option<Target> {
        self.follow(module, path, &mut BTreeSet::new())
    }

    fn follow(&self, from: ModuleId, path: &[String], seen: &mut BTreeSet<(ModuleId, String)>) -> Option<Target> {
        let (mut at, mut rest) = (from, path);
        let mut inside = false;
        while let Some((first, more)) = rest.split_first() {
            at = match first.as_str() {
                "crate" => self.first_of(at),
                "self" => at,
                "super" => self.modules[at].parent?,
                name if !inside && !self.has(at, name) && self.others.contains_key(name) => self.others[name],
                _ => break,
            };
            (inside, rest) = (true, more);
        }
        while let Some((name, more)) = rest.split_first() {
            if let (Some(&child), false) = (self.modules[at].children.get(name), more.is_empty()) {
                (at, rest, inside) = (child, more, true);
                continue;
            }
            return match self.named(at, name, seen) {
                Some(Target { kind: Kind::Module(next), .. }) if !more.is_empty() => {
                    (at, rest, inside) = (next, more, true);
                    continue;
                }
                Some(found) => Some(found),
                // Made by a macro: by the module that it is looked for in.
                None if inside => Some(Target { file: self.modules[at].file.clone(), kind: Kind::Other }),
                None => None,
            };
        }
        inside.then(|| Target { file: self.modules[at].file.clone(), kind: Kind::Module(at) })
    }

    /// A name in a module: an item, an import or a child module, in this order.
    fn named(&self, at: ModuleId, name: &str, seen: &mut BTreeSet<(ModuleId, String)>) -> Option<Target> {
        if !seen.insert((at, name.to_owned())) {
            return None;
        }
        let module = &self.modules[at];
        if let Some(&is_trait) = module.names.get(name) {
            let kind = if is_trait { Kind::Trait } else { Kind::Other };
            return Some(Target { file: module.file.clone(), kind });
        }
        let named = module.imports.iter().filter(|import| import.alias.as_deref() == Some(name));
        for import in named {
            if let Some(found) = self.follow(at, &import.path, seen) {
                return Some(found);
            }
        }
        if let Some(&child) = module.children.get(name) {
            return Some(Target { file: self.modules[child].file.clone(), kind: Kind::Module(child) });
        }
        for import in module.imports.iter().filter(|import| import.alias.is_none()) {
            if let Some(Target { kind: Kind::Module(of), .. }) = self.follow(at, &import.path, seen)
                && let Some(found) = self.named(of, name, seen)
            {
                return Some(found);
            }
        }
        None
    }

    /// Whether the module has the name by itself, without a `*`.
    pub(crate) fn has(&self, module: ModuleId, name: &str) -> bool {
        let module = &self.modules[module];
        module.names.contains_key(name)
            || module.children.contains_key(name)
            || module.imports.iter().any(|import| import.alias.as_deref() == Some(name))
    }
}

fn folder_of(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The names that a `use` line brings in, each with its whole path.
pub(crate) fn leaves(tree: &UseTree, before: &mut Vec<String>, public: bool, out: &mut Vec<Import>) {
    let mut leaf = |last: Option<&syn::Ident>, alias: Option<&syn::Ident>, line: usize| {
        let own = last.map(ToString::to_string).filter(|name| name != "self");
        let path: Vec<String> = before.iter().cloned().chain(own).collect();
        let alias = alias.map(ToString::to_string);
        // `{self}` is called what the path before it ends with.
        let alias = if alias.as_deref() == Some("self") { path.last().cloned() } else { alias };
        out.push(Import { path, alias, line, public });
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves(&path.tree, before, public, out);
            before.pop();
        }
        UseTree::Name(name) => leaf(Some(&name.ident), Some(&name.ident), name.ident.span().start().line),
        UseTree::Rename(name) => leaf(Some(&name.ident), Some(&name.rename), name.ident.span().start().line),
        UseTree::Glob(all) => leaf(None, None, all.star_token.spans[0].start().line),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, before, public, out)),
    }
}

/// The name of an item, and whether it is a trait.
fn name_of(item: &Item) -> Option<(String, bool)> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => return Some((item.ident.to_string(), true)),
        Item::TraitAlias(item) => return Some((item.ident.to_string(), true)),
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some((ident.to_string(), false))
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether what has this attribute is compiled for tests only: `#[test]`, or a `cfg` that asks for it.
pub(crate) fn is_for_tests(attribute: &Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => asks_for_test(list.tokens.clone()),
        _ => false,
    }
}

/// Whether `test` is among these words and not in a `not(…)`.
fn asks_for_test(tokens: TokenStream) -> bool {
    let mut negated = false;
    for token in tokens {
        match token {
            TokenTree::Ident(word) => {
                if word == "test" || word == "doctest" {
                    return true;
                }
                negated = word == "not";
            }
            TokenTree::Group(group) if !negated && asks_for_test(group.stream()) => return true,
            _ => {}
        }
    }
    false
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
            _ => None,
        },
        _ => None,
    })
}

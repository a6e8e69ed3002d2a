//! The allocator's own methods stay few: what not every program needs stands in the groups of `seamalloc::operations`.

use std::fs;
use std::path::{Path, PathBuf};
use syn::{ImplItem, Item, Type, Visibility};

/// Public methods that `Allocator` has at most, its groups of operations among them.
const MOST: usize = 25;

/// The Rust files under a folder.
fn files_under(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files_under(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|ending| ending == "rs"))
        .collect()
}

/// The public methods that the inherent `impl` blocks for a type have.
fn public_methods(items: &[Item], of: &str) -> Vec<String> {
    let mut names = Vec::new();
    for item in items {
        let Item::Impl(block) = item else { continue };
        let Type::Path(path) = &*block.self_ty else { continue };
        if block.trait_.is_some() || path.path.segments.last().is_none_or(|last| last.ident != of) {
            continue;
        }
        names.extend(block.items.iter().filter_map(|item| match item {
            ImplItem::Fn(method) if matches!(method.vis, Visibility::Public(_)) => Some(method.sig.ident.to_string()),
            _ => None,
        }));
    }
    names
}

#[test]
fn only_public_methods_of_inherent_blocks_count() {
    let text =
        "impl A { pub fn a() {} pub(crate) fn b() {} fn c() {} } impl T for A { fn d() {} } impl B { pub fn e() {} }
        impl super::A { pub unsafe fn f() {} pub const G: u8 = 0; }";
    assert_eq!(public_methods(&syn::parse_file(text).unwrap().items, "A"), ["a", "f"]);
}

#[test]
fn the_allocator_has_few_public_methods() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = files_under(&src).into_iter().map(|file| syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap());
    let names: Vec<String> = files.flat_map(|file| public_methods(&file.items, "Allocator")).collect();
    assert!(names.iter().any(|name| name == "allocate"), "the test does not see them: {names:?}");
    assert!(names.len() <= MOST, "{} of at most {MOST}: {names:?}", names.len());
}

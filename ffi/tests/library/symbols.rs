//! What the shared library exports is what the header declares, and it needs nothing that a machine may not have.

use crate::tools::{FFI, library};
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};
use std::fs;

fn header() -> String {
    fs::read_to_string(format!("{FFI}/seamalloc.h")).unwrap()
}

/// The numbers and names of `enum seam_status`.
fn statuses() -> Vec<(i32, String)> {
    let parse = |line: &str| {
        let (name, number) = line.trim().strip_suffix(',')?.split_once(" = ")?;
        name.starts_with("SEAM_STATUS_").then(|| (number.parse().unwrap(), name.to_owned()))
    };
    header().lines().filter_map(parse).collect()
}

#[test]
fn exports_are_the_declarations() {
    let bytes = fs::read(library().join("libseamalloc.so")).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let exported: BTreeSet<String> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
        .collect();
    // A declaration begins a line; the name stands before its first parenthesis.
    let header = header();
    let begins = |line: &&str| line.contains('(') && !line.starts_with([' ', '/', '#']) && !line.starts_with("typedef");
    let declared: BTreeSet<String> = header
        .lines()
        .filter(begins)
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next().map(str::to_owned))
        .collect();
    assert!(declared.len() > 30 && declared.contains("seamalloc_malloc"), "{declared:?}");
    assert_eq!(exported, declared);
}

/// The entries of the library's dynamic section with one tag, and the strings that they name, where they do.
fn dynamic<T>(tag: u32, read: impl Fn(u64, Option<String>) -> T) -> Vec<T> {
    let bytes = fs::read(library().join("libseamalloc.so")).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let endian = file.elf_header().endian().unwrap();
    let sections = file.elf_section_table();
    let (entries, strings) = sections.dynamic(endian, &*bytes).unwrap().unwrap();
    let strings = sections.strings(endian, &*bytes, strings).unwrap();
    let tagged = entries.iter().filter(|entry| entry.d_tag(endian) == u64::from(tag));
    let read_one = |entry: &object::elf::Dyn64<_>| {
        let text = entry.string(endian, strings).ok();
        read(entry.d_val(endian), text.map(|text| String::from_utf8_lossy(text).into_owned()))
    };
    tagged.map(read_one).collect()
}

fn named(tag: u32) -> Vec<String> {
    dynamic(tag, |_, text| text.unwrap())
}

#[test]
fn the_soname_has_the_version_of_the_interface_and_no_cuda_is_needed() {
    let define = "#define SEAM_ABI_VERSION ";
    let header = header();
    let version = header.lines().find_map(|line| line.strip_prefix(define)).unwrap();
    assert_eq!(named(object::elf::DT_SONAME), [format!("libseamalloc.so.{version}")]);
    let needed = named(object::elf::DT_NEEDED);
    assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
    assert!(!needed.iter().any(|name| name.contains("cuda")), "{needed:?}");
}

#[test]
fn it_is_never_unloaded_and_its_tables_are_write_protected() {
    use object::elf::{DF_1_NODELETE, DF_1_NOW, DT_FLAGS_1, PT_GNU_RELRO};
    use object::read::elf::ProgramHeader;

    let flags = dynamic(DT_FLAGS_1, |value, _| value);
    let [flags] = flags.as_slice() else { panic!("{flags:?}") };
    for (name, flag) in [("nodelete", DF_1_NODELETE), ("now", DF_1_NOW)] {
        assert!(flags & u64::from(flag) != 0, "it is not linked with -z {name}: {flags:#x}");
    }
    let bytes = fs::read(library().join("libseamalloc.so")).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let endian = file.elf_header().endian().unwrap();
    let segments = file.elf_program_headers();
    assert!(segments.iter().any(|segment| segment.p_type(endian) == PT_GNU_RELRO), "it is not linked with -z relro");
}

#[test]
fn every_status_has_its_name() {
    // SAFETY: the library was just built from this package; loading it runs nothing but Rust's own initialisers.
    let library = unsafe { libloading::Library::new(library().join("libseamalloc.so")) }.unwrap();
    // SAFETY: the type is that of the function's definition.
    let name: libloading::Symbol<'_, extern "C" fn(i32) -> *const c_char> =
        unsafe { library.get(b"seam_status_name") }.unwrap();
    // SAFETY: what it returns ends in a NUL and lives as long as the library.
    let name_of = |number| unsafe { CStr::from_ptr(name(number)) }.to_str().unwrap().to_owned();
    let statuses = statuses();
    assert!(statuses.len() >= 20, "{statuses:?}");
    for (index, (number, declared)) in statuses.iter().enumerate() {
        assert_eq!((*number as usize, &name_of(*number)), (index, declared));
    }
    assert_eq!(name_of(statuses.len() as i32), "SEAM_STATUS_UNKNOWN");
}

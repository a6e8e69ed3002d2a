"""Checks that a compiled library needs no more of the machine that loads it than is promised."""

import re

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from .source import BuildError

# Of manylinux_2_28: AlmaLinux 8, with GCC 8's libraries (auditwheel's policy).
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}

# Bits of DT_FLAGS_1 (elf.h).
DF_1_NOW, DF_1_NODELETE = 0x1, 0x8


class Library:
    """The names in a shared library or program."""

    def __init__(self, path):
        self.path = path
        self.content = path.read_bytes()
        with open(path, "rb") as file:
            elf = ELFFile(file)
            self.needed, self.runpath, self.flags = [], None, 0
            for tag in elf.get_section_by_name(".dynamic").iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    self.needed.append(tag.needed)
                elif tag.entry.d_tag in ("DT_RUNPATH", "DT_RPATH"):
                    self.runpath = getattr(tag, "runpath", None) or tag.rpath
                elif tag.entry.d_tag == "DT_FLAGS_1":
                    self.flags = tag.entry.d_val
            self.has_relro = any(segment["p_type"] == "PT_GNU_RELRO" for segment in elf.iter_segments())
            wanted = {}
            for section in elf.iter_sections():
                if isinstance(section, GNUVerNeedSection):
                    for _, versions in section.iter_versions():
                        wanted.update({version["vna_other"]: version.name for version in versions})
            of_symbols = elf.get_section_by_name(".gnu.version")
            # What it takes from libraries of the system, by version; and what has none, and is found in others.
            self.versions = {name: set() for name in wanted.values()}
            self.defined, self.undefined = set(), set()
            for at, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
                if symbol["st_shndx"] != "SHN_UNDEF":
                    self.defined.add(symbol.name)
                    continue
                version = of_symbols.get_symbol(at)["ndx"] if of_symbols else None
                if version in wanted:
                    self.versions[wanted[version]].add(symbol.name)
                elif symbol.name and symbol["st_info"]["bind"] != "STB_WEAK":
                    self.undefined.add(symbol.name)

    def check_age(self):
        """Raises BuildError where it asks for a newer system library than manylinux_2_28 has."""
        too_new = []
        for name, symbols in sorted(self.versions.items()):
            family, _, number = name.rpartition("_")
            limit = NEWEST.get(family)
            if limit is None or not re.fullmatch(r"[\d.]+", number) or tuple(map(int, number.split("."))) > limit:
                too_new.append(f"{name} for {' and '.join(sorted(symbols))}")
        if too_new:
            raise BuildError(
                f"{self.path.name} asks for {', '.join(too_new)}, which manylinux_2_28 has not; "
                "functions of libstdc++ can be defined in older_libstdcxx.cpp"
            )

    def check_loading(self):
        """Raises BuildError where it could be unloaded under its own thread, or is not write-protected once it is loaded."""
        wanted = {"nodelete": self.flags & DF_1_NODELETE, "now": self.flags & DF_1_NOW, "relro": self.has_relro}
        lacks = [keyword for keyword, found in wanted.items() if not found]
        if lacks:
            raise BuildError(f"{self.path} is not linked with -z {' -z '.join(lacks)}, as ffi/build.rs asks for")

    def check_text(self, folders):
        """Raises BuildError where it names a folder of the machine that it was built on."""
        for folder in map(str, folders):
            at = self.content.find(folder.encode() + b"/")
            if at >= 0:
                text = re.match(rb"[\x20-\x7e]*", self.content[at : at + 200]).group().decode()
                raise BuildError(f"{self.path} names a folder of this machine: {text}")

"""All mutants in one program: every function gets its body once for each of its mutants, and the environment says which runs.

    fn gain(..) -> u64 { ORIGINAL }

    fn gain(..) -> u64 {
        match crate::chosen_mutant::at(7) {
            41 => { ORIGINAL, `+` replaced }
            42 => { 0 }
            _ => { ORIGINAL }
        }
    }

Of a function that returns `impl Iterator` two bodies are two types. `Either` makes one of them:

            41 => Either::First({ ORIGINAL, `+` replaced }),
            _ => Either::Second({ ORIGINAL }),
"""

import dataclasses
import re

from .listing import PACKAGES, package_of
from .rust import Source

MODULE = "chosen_mutant"
EITHER = f"crate::{MODULE}::Either"
CHOSEN = "SEAMALLOC_MUTANT"
REACHED = "SEAMALLOC_MUTANT_REACHED"
# Reads the environment once. A function that is reached is written, as four bytes, without host memory: some tests count it.
HELPER = '''
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

const UNREAD: u32 = u32::MAX;
const TRACED: u32 = u32::MAX - 1;

static CHOSEN: AtomicU32 = AtomicU32::new(UNREAD);
static REACHED: [AtomicBool; FUNCTIONS] = [const { AtomicBool::new(false) }; FUNCTIONS];
static FILE: OnceLock<Option<File>> = OnceLock::new();

/// Returns the number of the mutant that runs, or one that no mutant has.
#[inline]
pub(crate) fn at(function: usize) -> u32 {
    match CHOSEN.load(Relaxed) {
        special @ (UNREAD | TRACED) => ask(special, function),
        chosen => chosen,
    }
}

#[cold]
fn ask(special: u32, function: usize) -> u32 {
    if special == UNREAD {
        let file = FILE.get_or_init(|| OpenOptions::new().append(true).open(std::env::var_os("REACHED_VARIABLE")?).ok());
        let chosen = std::env::var("CHOSEN_VARIABLE").ok().and_then(|number| number.parse().ok()).unwrap_or(0);
        CHOSEN.store(if file.is_some() { TRACED } else { chosen }, Relaxed);
    }
    if let Some(Some(file)) = FILE.get() && !REACHED[function].swap(true, Relaxed) {
        let mut file: &File = file;
        let _ = file.write_all(&(function as u32).to_le_bytes());
    }
    match CHOSEN.load(Relaxed) {
        TRACED => 0,
        chosen => chosen,
    }
}

/// One of two iterators.
#[derive(Clone)]
pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

impl<A: Iterator, B: Iterator<Item = A::Item>> Iterator for Either<A, B> {
    type Item = A::Item;

    fn next(&mut self) -> Option<A::Item> {
        match self {
            Self::First(one) => one.next(),
            Self::Second(other) => other.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::First(one) => one.size_hint(),
            Self::Second(other) => other.size_hint(),
        }
    }
}

impl<A: DoubleEndedIterator, B: DoubleEndedIterator<Item = A::Item>> DoubleEndedIterator for Either<A, B> {
    fn next_back(&mut self) -> Option<A::Item> {
        match self {
            Self::First(one) => one.next_back(),
            Self::Second(other) => other.next_back(),
        }
    }
}
'''


@dataclasses.dataclass
class Function:
    """A function with mutants."""

    number: int
    file: str
    start: int
    body: tuple
    """The offsets of its body, braces included."""
    mutants: list
    opaque: bool
    """It returns `impl Trait`, so each mutant of it needs a build of its own: two bodies are two types."""
    iterator: bool
    """It returns `impl Iterator`, for which `Either` does."""
    const: tuple | None
    """The offsets of the word `const` before it, which is taken away: reading the environment is not const."""


class Schemata:
    """The files with mutants as they are built, and which mutants are left out of them."""

    def __init__(self, root, mutants):
        self.sources = {file: Source((root / file).read_text()) for file in {mutant.file for mutant in mutants}}
        by_function = {}
        for mutant in (mutant for mutant in mutants if mutant.function_span):
            by_function.setdefault((mutant.file, *self.sources[mutant.file].span(mutant.function_span)), []).append(mutant)
        self.functions = [self.function(number, *of) for number, of in enumerate(sorted(by_function.items()))]
        self.function_of = {mutant.number: one for one in self.functions for mutant in one.mutants}
        self.mutants = {mutant.number: mutant for mutant in mutants}
        self.packages = sorted({package_of(file) for file in self.sources})
        self.unviable = {}
        """What the compiler says of each mutant that does not compile."""
        self.alone = {mutant.number for one in self.functions if one.opaque for mutant in one.mutants}
        self.alone |= {mutant.number for mutant in mutants if mutant.function_span is None}
        # An iterator over `&mut T` is none over `&T`. The compiler says so at the signature, where nothing tells whose it is.
        iterators = (mutant for one in self.functions if one.iterator for mutant in one.mutants)
        self.alone |= {mutant.number for mutant in iterators if "Box::leak" in mutant.replacement}
        """Mutants that need a build of their own."""
        self.const = set()
        """Functions that stay const."""
        self.regions = {}

    def function(self, number, key, mutants):
        file, start, end = key
        source = self.sources[file]
        body = source.body(start, end)
        signature = source.code[start : body[0]]
        iterator = re.search(r"->\s*impl (DoubleEnded)?Iterator\b", signature) is not None
        opaque = not iterator and re.search(r"->.*\bimpl\b", signature, re.DOTALL) is not None
        const = re.search(r"\bconst\s+(?=(unsafe\s+)?fn\b)", signature)
        const = const and (start + const.start(), start + const.end())
        return Function(number, file, start, body, mutants, opaque, iterator, const)

    def files(self):
        """Returns the text of each file with its mutants in it, and of the module that chooses one."""
        texts = {file: self.with_mutants(file) for file in self.sources}
        helper = HELPER.replace("FUNCTIONS", str(len(self.functions)))
        helper = helper.replace("REACHED_VARIABLE", REACHED).replace("CHOSEN_VARIABLE", CHOSEN)
        return texts | {f"{PACKAGES[package]}src/{MODULE}.rs": helper for package in self.packages}

    def with_mutants(self, file):
        """Puts every mutant of a file into its text, and notes the range of offsets of each."""
        source = self.sources[file]
        edits = []
        for function in (one for one in self.functions if one.file == file):
            if function.const and function.number in self.const:
                continue
            if function.const:
                edits.append((*function.const, [("", None)]))
            edits.append((*function.body, self.bodies(source, function)))
        regions, text, at = [], [], 0
        for start, end, parts in sorted(edits, key=lambda edit: edit[0]):
            if start < at:
                raise SystemExit(f"{file}:{source.line_of(start)}: a function with mutants inside of another one")
            text.append(source.text[at:start])
            for part, mutant in parts:
                if mutant is not None:
                    begins = sum(map(len, text))
                    regions.append((begins, begins + len(part), mutant))
                text.append(part)
            at = end
        text.append(source.text[at:])
        self.regions[file] = regions
        return "".join(text)

    def bodies(self, source, function):
        original = source.text[slice(*function.body)]
        yield f"{{ match crate::{MODULE}::at({function.number}) {{\n", None
        others = 0
        for mutant in function.mutants:
            if mutant.number not in self.unviable and mutant.number not in self.alone:
                start, end = source.span(mutant.span)
                body = source.text[function.body[0] : start] + mutant.replacement + source.text[end : function.body[1]]
                if function.iterator:
                    body = nested(others, f"{EITHER}::First({body})") + ","
                    others += 1
                yield f"{mutant.number} => {body}\n", mutant.number
        yield f"_ => {nested(others, original)} }} }}", None

    def mutant_at(self, file, start, end):
        """Returns the mutant whose body in the text of `files` holds these offsets."""
        return next((of for begins, ends, of in self.regions.get(file, []) if begins <= start and end <= ends), None)

    def applied(self, number):
        """Returns the text of a file with this mutant alone."""
        mutant = self.mutants[number]
        source = self.sources[mutant.file]
        start, end = source.span(mutant.span)
        return source.text[:start] + mutant.replacement + source.text[end:]


def nested(times, body):
    return f"{EITHER}::Second(" * times + body + ")" * times

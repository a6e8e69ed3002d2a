//! The owners of memory: the bytes that are live at a moment, by the lines of the program that requested them.
//!
//! Owns: the choice of one line for each stack, and the sums. `pytorch/origins.rs` reads the stacks.
//!
//! A stack is named by its innermost line of the user's own Python code, outside of PyTorch, of installed packages and
//! of the standard library. Without such a line, the innermost line of a package names the stack, or else the innermost
//! line of any Python. Without Python, the operator of the backward pass names the stack, or else the innermost
//! function that neither records the stack nor allocates.

use crate::pytorch::{Frame, Origins};
use crate::summary::fullest;
use crate::trace::{Trace, TraceEvent};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::cmp::Reverse;

/// The most stacks that a row keeps.
const MOST_STACKS: usize = 5;

/// Folders into which packages are installed.
const INSTALLED: [&str; 2] = ["site-packages", "dist-packages"];
/// The parts of PyTorch that appear in stacks after `torch/` in the path. The parts are listed because a checkout of
/// PyTorch is in no folder of installed packages. Parts whose names begin with `_` need no entry.
const OF_TORCH: [&str; 16] = [
    "amp",
    "autograd",
    "cuda",
    "distributed",
    "fx",
    "func",
    "functional.py",
    "jit",
    "library.py",
    "nn",
    "ops",
    "optim",
    "overrides.py",
    "serialization.py",
    "sparse",
    "utils",
];
/// Folders of code that PyTorch's compiler writes.
const COMPILED: &str = "torchinductor_";
/// Code of notebooks and of the interpreter's prompt, which has no file.
const TYPED: [&str; 2] = ["<ipython-input", "<stdin>"];
/// Functions that record the stack, and functions that every allocation calls.
const PLUMBING: [&str; 4] = ["torch::unwind", "torch::CapturedTraceback", "c10::", "at::detail::"];
/// The function in which PyTorch's allocator records the stack.
const GATHER: &str = "gather_with_cpp";
/// A function with an unknown name.
const UNKNOWN: &str = "??";
/// Operators of the backward pass: `torch::autograd::generated::MmBackward0::apply(…)`.
const AUTOGRAD: &str = "torch::autograd::";
const GENERATED: &str = "torch::autograd::generated::";
const APPLY: &str = "::apply(";
/// The name of stacks that were recorded and are empty.
const NO_LINE: &str = "(no line of Python: backward pass or other thread)";

/// The kinds of frames, by the owner of their code. The kinds stand in order of preference: the innermost frame of the
/// most preferred kind names the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The user's own Python.
    Own,
    /// An installed package, or a library that the user names.
    Package,
    /// PyTorch's Python and the standard library's.
    Python,
    /// An operator of the backward pass, which runs on threads without Python.
    Backward,
    /// Another function of C++.
    Native,
    Plumbing,
}

/// The line that stands for each stack of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Indexes of [`Origins::frames`], each once; `None` for empty stacks.
    pub frames: Vec<Option<u32>>,
    /// The names of these lines, such as `nn_utils.py:6 softmax`, with enough of the path to distinguish the user's
    /// files.
    pub names: Vec<String>,
    /// The index in `frames` of each stack.
    pub of_stack: Vec<u32>,
}

impl Lines {
    /// Chooses a line for each stack. Files whose paths contain one of `libraries` also count as libraries.
    #[must_use]
    pub fn of(origins: &Origins, libraries: &[String]) -> Self {
        let kinds: Vec<_> = origins.frames.iter().map(|frame| kind(frame, libraries)).collect();
        let kind_of = |frame: &u32| kinds.get(*frame as usize).copied().unwrap_or(Kind::Plumbing);
        let mut lines = Self::default();
        let mut known = FxHashMap::default();
        for stack in &origins.stacks {
            let frame = stack.iter().copied().min_by_key(kind_of);
            let line = *known.entry(frame).or_insert_with(|| {
                lines.frames.push(frame);
                lines.frames.len() as u32 - 1
            });
            lines.of_stack.push(line);
        }
        let frame_of = |frame: u32| Some((kind_of(&frame), origins.frames.get(frame as usize)?));
        let own = lines.frames.iter().filter_map(|frame| frame_of((*frame)?));
        let own = own.filter(|(kind, _)| *kind == Kind::Own).map(|(_, frame)| frame.file.as_str());
        let folder = common_folder(own);
        let name = |frame: &Option<u32>| match frame.and_then(frame_of) {
            Some((kind, frame)) => name(kind, frame, folder),
            None => NO_LINE.to_owned(),
        };
        lines.names = lines.frames.iter().map(name).collect();
        lines
    }
}

/// The live bytes of a moment, by the lines that requested them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owners {
    /// The bytes of all blocks that the program had requested and not freed.
    pub live: u64,
    /// The lines with the most bytes, the largest first.
    pub rows: Vec<Owner>,
    /// The blocks of all other lines.
    pub other: Sum,
    /// The number of other lines.
    pub other_lines: usize,
    /// The blocks whose stacks the recording does not have.
    pub not_recorded: Sum,
}

/// A line of the program with the blocks it requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owner {
    /// The line; `None` if the stacks have none.
    pub frame: Option<Frame>,
    /// The name of the line, in the form of [`Lines::names`].
    pub name: String,
    /// The blocks that the line requested.
    pub held: Sum,
    /// The stacks of the line with the most bytes, the largest first: indexes of [`Origins::stacks`].
    pub stacks: Vec<(u32, Sum)>,
    /// The number of stacks that end in the line.
    pub all_stacks: usize,
}

/// A sum of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// The requested bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The share of all live bytes, from 0 to 1.
    pub share: f64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks += 1;
    }

    fn join(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks += other.blocks;
    }

    fn of(self, live: u64) -> Self {
        Self { share: if live == 0 { 0.0 } else { self.bytes as f64 / live as f64 }, ..self }
    }

    fn to_json(self) -> Value {
        json!({ "bytes": self.bytes, "blocks": self.blocks, "share": self.share })
    }
}

/// Returns the owners of the live bytes at the peak of a trace: the `most` largest lines singly, and all others as a
/// sum.
#[must_use]
pub fn owners(trace: &Trace, origins: &Origins, libraries: &[String], most: usize) -> Owners {
    let stack = |block: usize| origins.of_block.get(block).copied().unwrap_or(0);
    let blocks = live_at_peak(&trace.events).into_iter().map(|(block, size)| (stack(block), size));
    Owners::of(blocks, origins, &Lines::of(origins, libraries), most)
}

/// Returns the blocks that are live at the peak, with their bytes.
fn live_at_peak(events: &[TraceEvent]) -> Vec<(usize, u64)> {
    let until = fullest(events).saturating_add(1).min(events.len());
    let mut sizes = Vec::new();
    for event in events.iter().take(until) {
        match *event {
            TraceEvent::Alloc { size, .. } => sizes.push(Some(size)),
            TraceEvent::FreeRequested { block } => {
                if let Some(size) = sizes.get_mut(block as usize) {
                    *size = None;
                }
            }
            TraceEvent::FreeCompleted { .. } => {}
        }
    }
    sizes.into_iter().enumerate().filter_map(|(block, size)| Some((block, size?))).collect()
}

impl Owners {
    /// Adds up blocks. Each block is given by one more than the index of its stack (0 if the stack was not recorded),
    /// and the block's bytes.
    pub fn of(blocks: impl Iterator<Item = (u32, u64)>, origins: &Origins, lines: &Lines, most: usize) -> Self {
        let mut of_stacks: FxHashMap<u32, Sum> = FxHashMap::default();
        for (stack, size) in blocks {
            of_stacks.entry(stack).or_default().add(size);
        }
        let live = of_stacks.values().fold(0, |sum: u64, held| sum.saturating_add(held.bytes));
        let mut rows: FxHashMap<u32, Vec<(u32, Sum)>> = FxHashMap::default();
        let mut not_recorded = Sum::default();
        for (number, held) in of_stacks {
            let stack = number.checked_sub(1);
            let line = stack.and_then(|stack| lines.of_stack.get(stack as usize).copied());
            match stack.zip(line) {
                Some((stack, line)) => rows.entry(line).or_default().push((stack, held.of(live))),
                None => not_recorded.join(held),
            }
        }
        let mut rows: Vec<_> =
            rows.into_iter().map(|(line, stacks)| owner(line, stacks, origins, lines, live)).collect();
        rows.sort_unstable_by(|(a, first), (b, second)| (second.held.bytes, a).cmp(&(first.held.bytes, b)));
        let mut other = Sum::default();
        let left = rows.split_off(most.min(rows.len()));
        left.iter().for_each(|(_, row)| other.join(row.held));
        Self {
            live,
            rows: rows.into_iter().map(|(_, row)| row).collect(),
            other: other.of(live),
            other_lines: left.len(),
            not_recorded: not_recorded.of(live),
        }
    }

    /// Returns the owners for `--json`: the rows, each with those of its stacks that have the most bytes. A stack
    /// begins with its innermost frame.
    #[must_use]
    pub fn to_json(&self, origins: &Origins) -> Value {
        let frames = |stack: &u32| {
            let frames = origins.stacks.get(*stack as usize).map(Vec::as_slice).unwrap_or_default();
            frames.iter().filter_map(|frame| origins.frames.get(*frame as usize)).map(ToString::to_string).collect()
        };
        let with = |mut sum: Value, key: &str, value: Value| {
            sum[key] = value;
            sum
        };
        let stack = |(stack, held): &(u32, Sum)| with(held.to_json(), "frames", frames(stack));
        let row = |row: &Owner| {
            json!({
                "file": row.frame.as_ref().map(|frame| &frame.file),
                "line": row.frame.as_ref().and_then(|frame| frame.line),
                "function": row.frame.as_ref().map(|frame| &frame.function),
                "name": row.name,
                "bytes": row.held.bytes,
                "blocks": row.held.blocks,
                "share": row.held.share,
                "stacks": row.stacks.iter().map(stack).collect::<Vec<_>>(),
                "all_stacks": row.all_stacks,
            })
        };
        json!({
            "live": self.live,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "other": with(self.other.to_json(), "lines", self.other_lines.into()),
            "not_recorded": self.not_recorded.to_json(),
        })
    }
}

/// Returns the row of a line from its stacks. Rows with equal bytes are in the order of their lines.
fn owner(line: u32, mut stacks: Vec<(u32, Sum)>, origins: &Origins, lines: &Lines, live: u64) -> (u32, Owner) {
    let mut held = Sum::default();
    stacks.iter().for_each(|(_, of)| held.join(*of));
    stacks.sort_unstable_by_key(|(stack, of)| (Reverse(of.bytes), *stack));
    let all_stacks = stacks.len();
    stacks.truncate(MOST_STACKS);
    let frame = lines.frames.get(line as usize).and_then(|frame| origins.frames.get((*frame)? as usize));
    let row = Owner {
        frame: frame.cloned(),
        name: lines.names.get(line as usize).cloned().unwrap_or_default(),
        held: held.of(live),
        stacks,
        all_stacks,
    };
    (line, row)
}

fn kind(frame: &Frame, libraries: &[String]) -> Kind {
    let (path, function) = (frame.file.replace('\\', "/"), frame.function.as_str());
    if !path.ends_with(".py") && !path.starts_with('<') {
        let is_plumbing = PLUMBING.iter().any(|name| function.starts_with(name)) || function.contains(GATHER);
        return match function {
            _ if is_plumbing || function == UNKNOWN => Kind::Plumbing,
            _ if function.starts_with(AUTOGRAD) && function.contains(APPLY) => Kind::Backward,
            _ => Kind::Native,
        };
    }
    let is_typed = TYPED.iter().any(|name| path.starts_with(name));
    let parts: Vec<_> = path.split('/').collect();
    let follows = |of: fn(&str, &str) -> bool| parts.windows(2).any(|pair| matches!(pair, [a, b] if of(a, b)));
    let is_installed = parts.iter().any(|part| INSTALLED.contains(part));
    match () {
        () if path.starts_with('<') && !is_typed => Kind::Python,
        () if parts.iter().any(|part| part.starts_with(COMPILED)) || follows(is_torch) => Kind::Python,
        () if is_installed && follows(|a, b| INSTALLED.contains(&a) && b == "torch") => Kind::Python,
        () if is_installed || libraries.iter().any(|part| path.contains(part.as_str())) => Kind::Package,
        () if follows(is_standard) => Kind::Python,
        () => Kind::Own,
    }
}

/// Returns whether a folder and a path within it belong to Python's standard library: lib/python3.12 on Unix,
/// Python312\Lib on Windows.
fn is_standard(folder: &str, within: &str) -> bool {
    let is_version = |name: &str| {
        let version = name.strip_prefix("python").or_else(|| name.strip_prefix("Python"));
        version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    };
    (matches!(folder, "lib" | "lib64") && is_version(within)) || (is_version(folder) && within == "Lib")
}

/// Returns whether a folder and a path within it belong to PyTorch, installed or checked out.
fn is_torch(folder: &str, within: &str) -> bool {
    folder == "torch" && (within.starts_with('_') || OF_TORCH.contains(&within))
}

/// Returns the longest folder that contains all files, with its last slash.
fn common_folder<'f>(files: impl Iterator<Item = &'f str>) -> &'f str {
    let folder = |path: &'f str| path.rfind(['/', '\\']).map_or("", |slash| path.get(..=slash).unwrap_or_default());
    files
        .map(folder)
        .reduce(|common, other| {
            let same = common.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
            folder(common.get(..same).unwrap_or_default())
        })
        .unwrap_or_default()
}

/// Returns the name of a line, with the part of its path that identifies the file.
fn name(kind: Kind, Frame { function, file, line }: &Frame, folder: &str) -> String {
    let file = match kind {
        Kind::Own => file.strip_prefix(folder).unwrap_or(file),
        Kind::Package | Kind::Python => {
            let installed = |name: &&str| file.find(*name).and_then(|at| file.get(at + name.len() + 1..));
            INSTALLED.iter().find_map(installed).unwrap_or(file)
        }
        // The arguments in the name of a C++ function are left out because they are too long.
        Kind::Backward => {
            let end = function.find(APPLY).map_or(function.len(), |at| at + APPLY.len() - 1);
            return function.get(..end).unwrap_or(function).trim_start_matches(GENERATED).to_owned();
        }
        Kind::Native | Kind::Plumbing => return function.clone(),
    };
    match line {
        Some(line) => format!("{file}:{line} {function}"),
        None => format!("{file} {function}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, file: &str) -> Frame {
        let python = file.ends_with(".py") || file.starts_with('<');
        Frame { function: function.to_owned(), file: file.to_owned(), line: Some(if python { 7 } else { 0 }) }
    }

    /// The frames, the innermost first.
    const FRAMES: [(&str, &str); 12] = [
        ("torch::unwind::unwind()", "??"),
        ("at::native::mm", "??"),
        ("relu", "/usr/lib/python3/dist-packages/torch/nn/functional.py"),
        ("softmax", "/home/me/job/nn/utils.py"),
        ("scaled", "/home/me/job/model.py"),
        ("run", "/usr/lib/python3.12/threading.py"),
        ("<module>", "/home/me/job/train.py"),
        ("_call", "<frozen importlib>"),
        ("step", "/home/me/lib/python3.12/site-packages/bits/optim.py"),
        ("c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(void**)", ""),
        ("at::_ops::mm::call(at::Tensor const&)", "??"),
        ("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "??"),
    ];

    fn origins(stacks: &[&[u32]], of_block: &[u32]) -> Origins {
        Origins {
            frames: FRAMES.iter().map(|(function, file)| frame(function, file)).collect(),
            stacks: stacks.iter().map(|stack| stack.to_vec()).collect(),
            of_block: of_block.to_vec(),
            refusals: Vec::new(),
        }
    }

    fn lines(stacks: &[&[u32]], libraries: &[&str]) -> Vec<String> {
        let origins = origins(stacks, &[]);
        let libraries: Vec<_> = libraries.iter().map(|part| (*part).to_owned()).collect();
        let lines = Lines::of(&origins, &libraries);
        lines.of_stack.iter().map(|line| lines.names[*line as usize].clone()).collect()
    }

    #[test]
    fn the_innermost_line_of_the_users_own_stands_for_a_stack() {
        let stacks: [&[u32]; 2] = [&[0, 1, 2, 3, 4, 5, 6], &[2, 4, 6]];
        assert_eq!(lines(&stacks, &[]), ["nn/utils.py:7 softmax", "model.py:7 scaled"]);
        // A file that the user names as a library counts as a library, so the callers of the file's functions name the
        // stacks.
        assert_eq!(lines(&stacks[..2], &["job/nn/", "model.py"]), ["train.py:7 <module>"; 2]);
    }

    #[test]
    fn without_the_users_own_line_the_nearest_to_it_stands_for_a_stack() {
        let stacks: [&[u32]; 6] = [&[2, 8, 5], &[2, 5, 7], &[0, 9, 10, 11], &[0, 9, 1], &[0], &[]];
        let python = ["bits/optim.py:7 step", "torch/nn/functional.py:7 relu"];
        let native = ["MmBackward0::apply", "at::native::mm", "torch::unwind::unwind()", NO_LINE];
        assert_eq!(lines(&stacks, &[]), [&python[..], &native[..]].concat());
    }

    #[test]
    fn libraries_are_known_by_their_places() {
        let own = |file: &str| kind(&frame("f", file), &[]) == Kind::Own;
        for file in [
            "/opt/conda/lib/python3.11/contextlib.py",
            "/usr/lib/python3/dist-packages/numpy/a.py",
            "/w/venv/lib/python3.12/site-packages/transformers/trainer.py",
            "C:\\Users\\me\\Python311\\Lib\\threading.py",
            "C:\\venv\\Lib\\site-packages\\torch\\nn\\a.py",
            "/w/pytorch/torch/nn/modules/linear.py",
            "/w/pytorch/torch/_tensor.py",
            "torch/optim/adamw.py",
            "/tmp/torchinductor_me/ab/cab.py",
            "<string>",
            "<frozen runpy>",
            "<eval_with_key>.3",
        ] {
            assert!(!own(file), "{file}");
        }
        for file in [
            "/home/me/torch/train.py",
            "/home/me/python3.12/train.py",
            "/home/me/lib/train.py",
            "train.py",
            "C:\\jobs\\train.py",
            "/tmp/ipykernel_31/12345.py",
            "<ipython-input-3-0a1b>",
            "<stdin>",
        ] {
            assert!(own(file), "{file}");
        }
    }

    #[test]
    fn rows_are_sums_and_all_shares_are_one() {
        let alloc = |size| TraceEvent::Alloc { size, stream: 0 };
        let free = |block| [TraceEvent::FreeRequested { block }, TraceEvent::FreeCompleted { block }];
        let events =
            [&[alloc(40), alloc(5)][..], &free(1), &[alloc(10), alloc(20), alloc(20), alloc(10)], &free(0)].concat();
        let trace = Trace { events, ..Trace::default() };
        // Two stacks end in the same line. The last block has no stack.
        let origins = origins(&[&[0, 3, 6], &[2, 3, 4, 6], &[4, 6]], &[1, 1, 2, 3, 2, 0]);
        let found = owners(&trace, &origins, &[], 9);
        assert_eq!((found.live, found.live), (100, trace.summary().peak_live));
        let held = |bytes, blocks| Sum { bytes, blocks, share: bytes as f64 / 100.0 };
        let rows: Vec<_> = found.rows.iter().map(|row| (row.name.clone(), row.held, row.stacks.clone())).collect();
        let stacks = vec![(0, held(40, 1)), (1, held(30, 2))];
        assert_eq!(rows[0], ("nn/utils.py:7 softmax".to_owned(), held(70, 3), stacks));
        assert_eq!(rows[1].1, held(20, 1));
        assert_eq!((found.other, found.other_lines, found.not_recorded), (held(0, 0), 0, held(10, 1)));

        let found = owners(&trace, &origins, &[], 1);
        assert_eq!((found.rows.len(), found.other, found.other_lines), (1, held(20, 1), 1));
        let json = found.to_json(&origins);
        let shares = [&json["rows"][0], &json["other"], &json["not_recorded"]].map(|at| at["share"].as_f64().unwrap());
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{json}");
        assert_eq!(
            json["rows"][0]["stacks"][1]["frames"][0],
            "relu (/usr/lib/python3/dist-packages/torch/nn/functional.py:7)"
        );
        assert_eq!((&json["rows"][0]["all_stacks"], &json["other"]["lines"]), (&json!(2), &json!(1)));
    }

    #[test]
    fn a_row_keeps_its_largest_stacks() {
        let stacks: Vec<Vec<u32>> = (0..9).map(|_| vec![3]).collect();
        let origins = origins(&stacks.iter().map(Vec::as_slice).collect::<Vec<_>>(), &[]);
        let lines = Lines::of(&origins, &[]);
        let found = Owners::of((1..10).map(|stack| (stack, u64::from(stack))), &origins, &lines, 3);
        let kept: Vec<_> = found.rows[0].stacks.iter().map(|(stack, held)| (*stack, held.bytes)).collect();
        assert_eq!(kept, [(8, 9), (7, 8), (6, 7), (5, 6), (4, 5)]);
        assert_eq!((found.rows[0].all_stacks, found.rows[0].held.blocks), (9, 9));
    }

    #[test]
    fn a_trace_without_blocks_has_no_owners() {
        assert_eq!(owners(&Trace::default(), &Origins::default(), &[], 3), Owners::default());
    }
}

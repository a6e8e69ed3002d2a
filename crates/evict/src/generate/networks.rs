//! The generated programs. Their tensors hold 16-bit numbers unless stated otherwise.

use super::tape::{Node, Saved, Tape};
use crate::graph::{Graph, GraphBuilder, GraphError, Output};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};

/// Bytes of a number.
const HALF: u64 = 2;

/// Returns a program of `layers` operators forward, each with one unit of time and `bytes` bytes, and as many operators
/// backward. Backward operator i reads the gradient of operator i + 1 and the output of layer i - 1. The program is
/// that of theorem 3.1 of Kirisame and others.
///
/// # Errors
/// [`GraphError`] for no layers, or too many.
pub fn linear(layers: usize, bytes: u64) -> Result<Graph, GraphError> {
    let mut builder = GraphBuilder::new("linear");
    let mut made = Vec::with_capacity(layers);
    for at in 0..layers {
        let inputs: Vec<_> = made.last().copied().into_iter().collect();
        let output = [Output::New(format!("t{at}"), bytes)];
        made.push(builder.operator("layer", 1, &inputs, &output)?[0]);
    }
    let mut gradient = None;
    for at in (0..layers).rev() {
        let mut inputs: Vec<_> = gradient.into_iter().collect();
        inputs.extend(at.checked_sub(1).map(|before| made[before]));
        if inputs.is_empty() {
            inputs.push(made[at]);
        }
        let next = builder.operator("layer_backward", 1, &inputs, &[Output::New(format!("g{at}"), bytes)])?[0];
        builder.release(made[at])?;
        if let Some(before) = gradient.replace(next) {
            builder.release(before)?;
        }
    }
    if let Some(last) = gradient {
        builder.pin(last)?;
    }
    builder.finish()
}

/// A batch of images: its node, and the number of images. Each image has `channels` channels, and `side` pixels in each
/// direction.
#[derive(Clone, Copy)]
struct Image {
    node: Node,
    batch: u64,
    channels: u64,
    side: u64,
}

impl Image {
    const fn bytes(&self, channels: u64) -> u64 {
        self.batch * channels * self.side * self.side * HALF
    }
}

/// Adds a convolution, a norm, and an activation if `is_active`.
fn convolve(tape: &mut Tape, from: Image, channels: u64, kernel: u64, stride: u64, is_active: bool) -> Image {
    let weight = tape.weight(from.channels * channels * kernel * kernel * HALF);
    let to = Image { channels, side: from.side / stride, ..from };
    let bytes = to.bytes(channels);
    let operations = bytes * from.channels * kernel * kernel;
    let node = tape.apply("conv", bytes, &[from.node, weight], Saved::Inputs, operations);
    let node = tape.apply("norm", bytes, &[node], Saved::Inputs, 0);
    let node = if is_active { tape.apply("relu", bytes, &[node], Saved::Output, 0) } else { node };
    Image { node, ..to }
}

/// A residual network after He and others, 2015. Its four stages have 3, 4, 6 and 3 bottleneck blocks.
pub(super) fn resnet() -> Result<Graph, GraphError> {
    let mut tape = Tape::default();
    let (batch, side) = (64, 224);
    let image = Image { node: tape.input(batch * 3 * side * side * HALF), batch, channels: 3, side };
    let mut at = convolve(&mut tape, image, 64, 7, 2, true);
    at = pool(&mut tape, at);
    for (stage, blocks) in [3u64, 4, 6, 3].into_iter().enumerate() {
        let narrow = 64 << stage;
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let first = convolve(&mut tape, at, narrow, 1, 1, true);
            let middle = convolve(&mut tape, first, narrow, 3, stride, true);
            let last = convolve(&mut tape, middle, 4 * narrow, 1, 1, false);
            let beside = if block == 0 { convolve(&mut tape, at, 4 * narrow, 1, stride, false) } else { at };
            let bytes = tape.bytes(last.node);
            let sum = tape.apply("add", bytes, &[last.node, beside.node], Saved::Nothing, 0);
            at = Image { node: tape.apply("relu", bytes, &[sum], Saved::Output, 0), ..last };
        }
    }
    classify(&mut tape, at);
    tape.finish()
}

/// Adds a pooling that halves the sides of the images.
fn pool(tape: &mut Tape, from: Image) -> Image {
    let to = Image { side: from.side / 2, ..from };
    Image { node: tape.apply("pool", to.bytes(to.channels), &[from.node], Saved::Inputs, 0), ..to }
}

fn classify(tape: &mut Tape, from: Image) {
    let flat = tape.apply("mean", from.batch * from.channels * HALF, &[from.node], Saved::Nothing, 0);
    let weight = tape.weight(from.channels * 1000 * HALF);
    let operations = 2 * from.batch * from.channels * 1000;
    let scores = tape.apply("linear", from.batch * 1000 * HALF, &[flat, weight], Saved::Inputs, operations);
    tape.apply("loss", 512, &[scores], Saved::Inputs, 0);
}

/// A U-Net after Ronneberger and others, 2015, but with padded convolutions and with norms.
pub(super) fn unet() -> Result<Graph, GraphError> {
    let mut tape = Tape::default();
    let (batch, side) = (4, 512);
    let mut at = Image { node: tape.input(batch * 3 * side * side * HALF), batch, channels: 3, side };
    let mut bridges = Vec::new();
    for level in 0..5 {
        if level > 0 {
            at = pool(&mut tape, at);
        }
        for _ in 0..2 {
            at = convolve(&mut tape, at, 64 << level, 3, 1, true);
        }
        bridges.push(at);
    }
    bridges.pop();
    while let Some(bridge) = bridges.pop() {
        let up = Image { side: bridge.side, channels: bridge.channels, ..at };
        let weight = tape.weight(at.channels * up.channels * 4 * HALF);
        let bytes = up.bytes(up.channels);
        let node = tape.apply("conv_up", bytes, &[at.node, weight], Saved::Inputs, bytes * at.channels);
        let both = Image { channels: 2 * up.channels, ..up };
        let node = tape.apply("concat", both.bytes(both.channels), &[bridge.node, node], Saved::Nothing, 0);
        at = Image { node, ..both };
        for _ in 0..2 {
            at = convolve(&mut tape, at, up.channels, 3, 1, true);
        }
    }
    let mask = convolve(&mut tape, at, 2, 1, 1, false);
    tape.apply("loss", 512, &[mask.node], Saved::Inputs, 0);
    tape.finish()
}

/// Adds a matrix product with a weight.
fn linear_layer(tape: &mut Tape, rows: u64, from: (Node, u64), to: u64) -> Node {
    let weight = tape.weight(from.1 * to * HALF);
    tape.apply("linear", rows * to * HALF, &[from.0, weight], Saved::Inputs, 2 * rows * from.1 * to)
}

/// A transformer decoder. In each block, attention and feed-forward part each have a norm before them. Attention saves
/// its scores for the backward pass.
pub(super) fn transformer() -> Result<Graph, GraphError> {
    let (blocks, wide, batch, length, heads) = (24, 1024, 8, 1024, 16);
    let mut tape = Tape::default();
    let rows = batch * length;
    let (row, scores) = (rows * wide * HALF, batch * heads * length * length * HALF);
    let mut at = tape.input(row);
    for _ in 0..blocks {
        let normed = tape.apply("norm", row, &[at], Saved::Inputs, 0);
        let queries = linear_layer(&mut tape, rows, (normed, wide), 3 * wide);
        let products = tape.apply("matmul", scores, &[queries], Saved::Inputs, 2 * rows * length * wide);
        let shares = tape.apply("softmax", scores, &[products], Saved::Output, 0);
        let mixed = tape.apply("matmul", row, &[shares, queries], Saved::Inputs, 2 * rows * length * wide);
        let out = linear_layer(&mut tape, rows, (mixed, wide), wide);
        let middle = tape.apply("add", row, &[at, out], Saved::Nothing, 0);
        let normed = tape.apply("norm", row, &[middle], Saved::Inputs, 0);
        let inner = linear_layer(&mut tape, rows, (normed, wide), 4 * wide);
        let active = tape.apply("gelu", 4 * row, &[inner], Saved::Inputs, 0);
        let down = linear_layer(&mut tape, rows, (active, 4 * wide), wide);
        at = tape.apply("add", row, &[middle, down], Saved::Nothing, 0);
    }
    tape.apply("loss", 512, &[at], Saved::Inputs, 0);
    tape.finish()
}

/// Adds an LSTM cell with four gates. Returns the cell's two states.
fn cell(tape: &mut Tape, rows: u64, wide: u64, weight: Node, hidden: &[Node], state: &[Node]) -> (Node, Node) {
    let row = rows * wide * HALF;
    let inputs: Vec<_> = hidden.iter().copied().chain([weight]).collect();
    let operations = 8 * rows * wide * wide * hidden.len() as u64;
    let gates = tape.apply("linear", 4 * row, &inputs, Saved::Inputs, operations);
    let active = tape.apply("sigmoid", 4 * row, &[gates], Saved::Output, 0);
    let inputs: Vec<_> = state.iter().copied().chain([active]).collect();
    let state = tape.apply("mul_add", row, &inputs, Saved::Inputs, 0);
    let shaped = tape.apply("tanh", row, &[state], Saved::Output, 0);
    (tape.apply("mul", row, &[shaped, active], Saved::Inputs, 0), state)
}

fn dice(seed: u64) -> Pcg64 {
    Pcg64::seed_from_u64(seed)
}

/// Draws a random number below `below`.
fn draw(dice: &mut Pcg64, below: usize) -> usize {
    (dice.next_u64() % below.max(1) as u64) as usize
}

/// An LSTM: one weight, and as many steps as the sentence has words.
pub(super) fn lstm(seed: u64) -> Result<Graph, GraphError> {
    let (rows, wide) = (512, 1024);
    let steps = 64 + draw(&mut dice(seed), 65);
    let mut tape = Tape::default();
    let weight = tape.weight(8 * wide * wide * HALF);
    let row = rows * wide * HALF;
    let (mut hidden, mut state) = (tape.input(row), tape.input(row));
    for _ in 0..steps {
        let word = tape.input(row);
        (hidden, state) = cell(&mut tape, rows, wide, weight, &[word, hidden], &[state]);
    }
    tape.apply("loss", 512, &[hidden], Saved::Inputs, 0);
    tape.finish()
}

/// A TreeLSTM: two neighbours, drawn at random, are joined until one node is left.
pub(super) fn tree_lstm(seed: u64) -> Result<Graph, GraphError> {
    let (rows, wide, words) = (128, 1024, 64);
    let mut dice = dice(seed);
    let mut tape = Tape::default();
    let (leaf, inner) = (tape.weight(4 * wide * wide * HALF), tape.weight(8 * wide * wide * HALF));
    let mut roots = Vec::new();
    for _ in 0..words {
        let word = tape.input(rows * wide * HALF);
        roots.push(cell(&mut tape, rows, wide, leaf, &[word], &[]));
    }
    while roots.len() > 1 {
        let at = draw(&mut dice, roots.len() - 1);
        let (right, left) = (roots.remove(at + 1), roots[at]);
        roots[at] = cell(&mut tape, rows, wide, inner, &[left.0, right.0], &[left.1, right.1]);
    }
    let hidden = roots.first().map(|root| root.0);
    tape.apply("loss", 512, hidden.as_slice(), Saved::Inputs, 0);
    tape.finish()
}

/// The blocks of `Runtime::chain` in `crates/trace/src/workload/rematerialisation.rs`, with the costs of that file, for
/// OPT 1.3B and 2048 tokens.
pub(super) fn dtr_chain() -> Result<Graph, GraphError> {
    // The arithmetic of a matrix product, as a multiple of that of a norm with as many bytes.
    const PRODUCT: u64 = 40;
    let (layers, row, wide) = (24, 2048 * 2048 * HALF, 2048 * 8192 * HALF);
    let mut tape = Tape::default();
    let operations = |bytes: u64, times: u64| bytes * times * 50;
    let start = tape.weight(row);
    let mut at = tape.apply("embed", row, &[start], Saved::Nothing, operations(row, 1));
    for _ in 0..layers {
        let mut compute = |name, bytes, times, inputs: &[Node]| {
            tape.apply(name, bytes, inputs, Saved::Inputs, operations(bytes, times))
        };
        let normed = compute("norm", row, 1, &[at]);
        let projected = compute("product", 3 * row, PRODUCT, &[normed]);
        let attended = compute("product", row, PRODUCT, &[projected]);
        let mixed = compute("product", row, PRODUCT, &[attended]);
        let middle = compute("add", row, 1, &[at, mixed]);
        let normed = compute("norm", row, 1, &[middle]);
        let inner = compute("product", wide, PRODUCT, &[normed]);
        let active = compute("gelu", wide, 1, &[inner]);
        let down = compute("product", row, PRODUCT * wide / row, &[active]);
        at = compute("add", row, 1, &[middle, down]);
    }
    tape.finish()
}

/// The tree of `Runtime::tree` in `crates/trace/src/workload/rematerialisation.rs`, with the costs of that file. A node
/// that joins more words has a larger tensor.
pub(super) fn dtr_tree(seed: u64) -> Result<Graph, GraphError> {
    let (words, row) = (100, 8 * 2048 * HALF * 16);
    let mut dice = dice(seed);
    let mut tape = Tape::default();
    let start = tape.weight(row);
    let mut roots: Vec<(Node, u64)> = Vec::new();
    for _ in 0..words {
        roots.push((tape.apply("leaf", row, &[start], Saved::Inputs, 50 * row), 1));
    }
    while roots.len() > 1 {
        let left = draw(&mut dice, roots.len());
        let left = roots.swap_remove(left);
        let right = draw(&mut dice, roots.len());
        let right = roots.swap_remove(right);
        let span = left.1 + right.1;
        let size = row * span.min(16);
        let gates = tape.apply("product", 4 * size, &[left.0, right.0], Saved::Inputs, 40 * 50 * size);
        roots.push((tape.apply("cell", size, &[gates], Saved::Inputs, 50 * size), span));
    }
    tape.finish()
}

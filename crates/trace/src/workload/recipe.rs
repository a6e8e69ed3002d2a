//! The allocations of one transformer block in its forward pass, kernel by kernel, for each family of models.
//!
//! Owns: the lists of operations, from traces of PyTorch 2.11 (sizes, order, tensors that autograd keeps, lifetimes of
//! temporaries). `layer.rs` runs them.

use super::models::{Experts, Family, Model, Transformer};

/// The number of rows of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// One row for each token of the batch.
    Tokens,
    /// One row for each token that the router sends to this expert.
    Expert(usize),
}

/// The gradients that an operation makes in its backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backward {
    /// No gradient, as for statistics, masks and random states.
    None,
    /// A gradient as large as the output.
    Same,
    /// The gradients of a matrix product: first that of the input, then those of weight and bias.
    Linear,
    /// The gradients of a norm: the input gradient, which is added to the residual's, then those of weight and bias.
    Norm,
    /// The gradients of fused attention: those of query, key and value, and a single-precision accumulator.
    Attention {
        /// Whether one matrix product makes query, key and value. The three gradients are then put together for this
        /// product.
        fused: bool,
    },
    /// The gradients of a product of two branches: one for each branch.
    Gate,
    /// The gradient of a residual sum, which is passed to both sides unchanged.
    Residual,
}

/// A tensor that the forward pass makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    /// The number of rows.
    pub(super) rows: Rows,
    /// Bytes for each row.
    pub(super) row: u64,
    /// Bytes independent of the rows.
    pub(super) fixed: u64,
    /// The number of further allocations after which the tensor is freed, if autograd does not keep it.
    pub(super) uses: usize,
    /// Whether autograd keeps the tensor for the backward pass.
    pub(super) saved: bool,
    /// The gradients of the operation.
    pub(super) backward: Backward,
    /// Bytes of a row of the input, for the gradient of a matrix product.
    pub(super) input_row: u64,
    /// Bytes of the weight; 0 if there is none.
    pub(super) weight: u64,
    /// Bytes of the bias; 0 if there is none.
    pub(super) bias: u64,
    /// Whether the operation belongs to the LoRA adapter of the matrix product that precedes it in the list.
    pub(super) adapter: bool,
}

/// Single precision, in bytes.
const FP32: u64 = 4;
/// A random state (seed or offset) of a dropout or attention kernel, in bytes.
const RANDOM_STATE: u64 = 8;
/// Scratch of the fused attention kernel, in bytes.
const ATTENTION_SCRATCH: u64 = 256;
/// The rank of LoRA adapters.
pub(super) const LORA_RANK: u64 = 16;
/// The value of `uses` for a tensor that is freed at the block's end.
const TO_THE_END: usize = usize::MAX;

struct Recipe {
    ops: Vec<Op>,
    rows: Rows,
    bytes: u64,
    hidden: u64,
    lora: bool,
}

impl Recipe {
    fn op(&mut self, row: u64, uses: usize, saved: bool, backward: Backward) -> &mut Op {
        let op = Op {
            rows: self.rows,
            row,
            fixed: 0,
            uses,
            saved,
            backward,
            input_row: row,
            weight: 0,
            bias: 0,
            adapter: false,
        };
        self.ops.push(op);
        let last = self.ops.len() - 1;
        &mut self.ops[last]
    }

    fn temporary(&mut self, row: u64, uses: usize) {
        self.op(row, uses, false, Backward::None);
    }

    fn kept(&mut self, row: u64, uses: usize) {
        self.op(row, uses, true, Backward::None);
    }

    fn elementwise(&mut self, row: u64, uses: usize, saved: bool) {
        self.op(row, uses, saved, Backward::Same);
    }

    fn residual(&mut self, row: u64) {
        self.op(row, TO_THE_END, true, Backward::Residual);
    }

    fn fixed(&mut self, bytes: u64, uses: usize, saved: bool) {
        self.op(0, uses, saved, Backward::None).fixed = bytes;
    }

    /// Adds a matrix product from `input` to `output` elements in each row.
    fn linear(&mut self, input: u64, output: u64, bias: bool, uses: usize, saved: bool) {
        let bytes = self.bytes;
        let op = self.op(output * bytes, uses, saved, Backward::Linear);
        op.input_row = input * bytes;
        op.weight = input * output * bytes;
        op.bias = if bias { output * bytes } else { 0 };
    }

    /// Adds a matrix product with a LoRA adapter beside it. The adapter is in single precision, as in PEFT.
    fn adapted(&mut self, input: u64, output: u64, bias: bool, uses: usize, saved: bool) {
        if !self.lora {
            return self.linear(input, output, bias, uses, saved);
        }
        self.linear(input, output, bias, 6, false);
        self.op(input * FP32, 3, true, Backward::Same).adapter = true;
        let down = self.op(LORA_RANK * FP32, 1, true, Backward::Linear);
        (down.input_row, down.weight, down.adapter) = (input * FP32, input * LORA_RANK * FP32, true);
        let up = self.op(output * FP32, 1, false, Backward::Linear);
        (up.input_row, up.weight, up.adapter) = (LORA_RANK * FP32, LORA_RANK * output * FP32, true);
        self.op(output * FP32, 1, false, Backward::Same).adapter = true;
        self.op(output * self.bytes, uses, saved, Backward::None);
    }

    fn layer_norm(&mut self, uses: usize) {
        let width = self.hidden * self.bytes;
        let op = self.op(width, uses, true, Backward::Norm);
        (op.weight, op.bias) = (width, width);
        self.kept(FP32, 1);
        self.kept(FP32, 1);
    }

    /// Adds Llama's norm, which computes in single precision and casts back.
    fn rms_norm(&mut self, uses: usize) {
        let width = self.hidden;
        self.kept(width * FP32, 5);
        self.temporary(width * FP32, 1);
        self.temporary(FP32, 1);
        self.temporary(FP32, 1);
        self.kept(FP32, 2);
        self.temporary(width * FP32, 1);
        self.kept(width * self.bytes, 1);
        let row = width * self.bytes;
        self.op(row, uses, true, Backward::Norm).weight = row;
    }

    /// Adds a rotation of queries or keys with this many elements in each row.
    fn rotate(&mut self, width: u64, uses: usize) {
        let row = width * self.bytes;
        self.temporary(row, 4);
        self.temporary(row / 2, 1);
        self.temporary(row, 1);
        self.temporary(row, 1);
        self.elementwise(row, uses, true);
    }

    fn attention(&mut self, heads: u64, fused: bool, bias: bool) {
        let row = self.hidden * self.bytes;
        self.fixed(RANDOM_STATE, 4, true);
        self.fixed(RANDOM_STATE, 3, true);
        self.op(row, 3, true, Backward::Attention { fused });
        self.kept(heads * FP32, 1);
        self.fixed(ATTENTION_SCRATCH, 0, false);
        self.linear(self.hidden, self.hidden, bias, 2, false);
    }

    /// Adds dropout: one byte for each value of the mask, then the values.
    fn dropout(&mut self, uses: usize) {
        self.kept(self.hidden, 1);
        self.elementwise(self.hidden * self.bytes, uses, false);
    }

    fn gated(&mut self, hidden: u64, inner: u64) {
        self.linear(hidden, inner, false, 1, true);
        self.elementwise(inner * self.bytes, 2, true);
        self.linear(hidden, inner, false, 1, true);
        self.op(inner * self.bytes, 1, true, Backward::Gate);
        self.linear(inner, hidden, false, 1, false);
    }
}

/// Returns the operations of one block of a model, with or without LoRA adapters.
pub(super) fn block(model: &Model, shape: &Transformer, lora: bool) -> Vec<Op> {
    let mut recipe =
        Recipe { ops: Vec::new(), rows: Rows::Tokens, bytes: model.dtype_bytes, hidden: shape.hidden, lora };
    match shape.family {
        Family::Gpt2 => gpt2(&mut recipe, shape),
        Family::Opt => opt(&mut recipe, shape),
        Family::NeoX => neox(&mut recipe, shape),
        Family::Llama | Family::QwenMoe => llama(&mut recipe, shape),
    }
    recipe.ops
}

fn gpt2(recipe: &mut Recipe, shape: &Transformer) {
    let (h, f) = (shape.hidden, shape.ffn);
    let (row, wide) = (h * recipe.bytes, f * recipe.bytes);
    recipe.layer_norm(3);
    recipe.adapted(h, 3 * h, true, 3, true);
    recipe.attention(shape.heads, true, true);
    recipe.dropout(16);
    recipe.residual(row);
    recipe.layer_norm(3);
    recipe.linear(h, f, true, 8, true);
    // The operation is 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), with a kernel for each arithmetic sign.
    recipe.kept(wide, 1);
    for _ in 0..4 {
        recipe.temporary(wide, 1);
    }
    recipe.elementwise(wide, 1, true);
    recipe.elementwise(wide, 1, true);
    recipe.elementwise(wide, 1, true);
    recipe.linear(f, h, true, 2, false);
    recipe.dropout(1);
    recipe.residual(row);
}

fn opt(recipe: &mut Recipe, shape: &Transformer) {
    let (h, f) = (shape.hidden, shape.ffn);
    let (row, wide) = (h * recipe.bytes, f * recipe.bytes);
    recipe.layer_norm(7);
    recipe.adapted(h, h, true, 1, false);
    recipe.elementwise(row, 4, true);
    recipe.linear(h, h, true, 3, true);
    recipe.adapted(h, h, true, 2, true);
    recipe.attention(shape.heads, false, true);
    recipe.dropout(1);
    recipe.residual(row);
    recipe.layer_norm(3);
    recipe.linear(h, f, true, 1, false);
    recipe.elementwise(wide, 1, true);
    recipe.linear(f, h, true, 2, false);
    recipe.dropout(1);
    recipe.residual(row);
}

fn neox(recipe: &mut Recipe, shape: &Transformer) {
    let (h, f) = (shape.hidden, shape.ffn);
    let (row, wide) = (h * recipe.bytes, f * recipe.bytes);
    // A quarter of each head is rotated, and the rest is copied unchanged.
    let rotated = h / 4;
    recipe.layer_norm(3);
    recipe.adapted(h, 3 * h, true, 14, true);
    for _ in ["query", "key"] {
        recipe.rotate(rotated, 1);
        recipe.elementwise(row, 6, true);
    }
    recipe.attention(shape.heads, true, true);
    recipe.layer_norm(3);
    recipe.linear(h, f, true, 1, true);
    recipe.elementwise(wide, 1, true);
    recipe.linear(f, h, true, 1, false);
    recipe.elementwise(row, 1, false);
    recipe.residual(row);
}

fn llama(recipe: &mut Recipe, shape: &Transformer) {
    let (h, kv) = (shape.hidden, shape.kv_width());
    let row = h * recipe.bytes;
    let bias = shape.family == Family::QwenMoe;
    recipe.rms_norm(4);
    recipe.adapted(h, h, bias, 5, true);
    recipe.adapted(h, kv, bias, 8, true);
    recipe.adapted(h, kv, bias, 12, true);
    recipe.rotate(h, 8);
    recipe.rotate(kv, 3);
    recipe.attention(shape.heads, false, false);
    recipe.residual(row);
    recipe.rms_norm(3);
    match shape.experts {
        None => recipe.gated(h, shape.ffn),
        Some(experts) => mixture(recipe, shape, experts),
    }
    recipe.residual(row);
}

/// Adds the routing of every token to a few experts, the experts one after the other on their own rows, and the shared
/// expert.
fn mixture(recipe: &mut Recipe, shape: &Transformer, experts: Experts) {
    /// The bytes of an index and of a count.
    const INDEX: u64 = 8;
    let h = shape.hidden;
    recipe.linear(h, experts.count, false, 1, true);
    recipe.kept(experts.count * FP32, 2);
    recipe.kept(experts.per_token * FP32, TO_THE_END);
    recipe.kept(experts.per_token * INDEX, TO_THE_END);
    recipe.temporary(experts.per_token * experts.count * INDEX, TO_THE_END);
    recipe.temporary(h * recipe.bytes, TO_THE_END);
    for expert in 0..experts.count as usize {
        recipe.rows = Rows::Expert(expert);
        recipe.kept(2 * INDEX, 7);
        recipe.op(h * recipe.bytes, 4, true, Backward::Same);
        recipe.gated(h, experts.ffn);
        recipe.elementwise(h * recipe.bytes, 0, true);
    }
    recipe.rows = Rows::Tokens;
    recipe.gated(h, experts.shared_ffn);
    recipe.linear(h, 1, false, 1, true);
    recipe.elementwise(h * recipe.bytes, 1, true);
}

#[cfg(test)]
mod tests {
    use super::{super::models, *};

    fn transformers() -> impl Iterator<Item = (&'static Model, &'static Transformer)> {
        models::models().iter().filter_map(|model| match &model.architecture {
            models::Architecture::Transformer(shape) => Some((model, shape)),
            models::Architecture::ResNet(_) => None,
        })
    }

    #[test]
    fn the_weights_of_a_block_are_those_of_the_model() {
        for (model, shape) in transformers() {
            let tensors = model.tensors();
            let expected: u64 = tensors.iter().filter(|t| t.layer == Some(0)).map(|t| t.bytes).sum();
            let ours: u64 = block(model, shape, false).iter().map(|op| op.weight + op.bias).sum();
            assert_eq!(ours, expected, "{}", model.name);
        }
    }

    #[test]
    fn lora_adds_small_adapters_and_changes_nothing_else() {
        for (model, shape) in transformers() {
            let plain: u64 = block(model, shape, false).iter().map(|op| op.weight).sum();
            let adapted = block(model, shape, true);
            let frozen: u64 = adapted.iter().filter(|op| !op.adapter).map(|op| op.weight).sum();
            let adapters: u64 = adapted.iter().filter(|op| op.adapter).map(|op| op.weight).sum();
            assert_eq!(frozen, plain, "{}", model.name);
            assert!(adapters > 0 && adapters * 20 < plain, "{}", model.name);
        }
    }

    #[test]
    fn a_block_ends_in_its_output() {
        for (model, shape) in transformers() {
            let ops = block(model, shape, false);
            let last = ops.last().unwrap();
            assert_eq!(last.backward, Backward::Residual);
            assert_eq!(last.row, shape.hidden * model.dtype_bytes);
        }
    }
}

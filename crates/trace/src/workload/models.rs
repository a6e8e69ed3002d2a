//! The shapes of published models, and the resulting parameter tensors.
//!
//! Owns: the numbers of each model (from its published configuration) and their names. `recipe.rs` has the allocations
//! of a running layer.

use thiserror::Error;

use super::error::GenerateError;
use seamalloc::nearest::nearest;

/// The design of a transformer's blocks, which determines its tensors and the allocations of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// GPT-2: fused query-key-value, learned positions, tanh GELU, dropout, tied embeddings.
    Gpt2,
    /// OPT: separate projections, learned positions, ReLU, dropout, tied embeddings.
    Opt,
    /// GPT-NeoX: fused query-key-value, rotary positions, attention and feed-forward side by side.
    NeoX,
    /// Llama: RMS norms, rotary positions, grouped key-value heads, gated feed-forward, no biases.
    Llama,
    /// Qwen-MoE: Llama's attention with biases, routed experts beside a shared one.
    QwenMoe,
}

/// Experts of a mixture-of-experts layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Routed experts in each layer.
    pub count: u64,
    /// Experts that each token is sent to.
    pub per_token: u64,
    /// Inner width of a routed expert.
    pub ffn: u64,
    /// Inner width of the shared expert.
    pub shared_ffn: u64,
}

/// A decoder-only transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transformer {
    /// The design of its blocks.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Number of blocks.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Key-value heads (equal to `heads` without grouping).
    pub kv_heads: u64,
    /// Inner width of the feed-forward part.
    pub ffn: u64,
    /// Rows of the token embedding.
    pub vocab: u64,
    /// The rows of the learned position embedding; 0 if positions are rotary.
    pub positions: u64,
    /// Whether the output projection shares the token embedding.
    pub tied: bool,
    /// The experts; `None` if there are none.
    pub experts: Option<Experts>,
}

/// A bottleneck ResNet on RGB images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResNet {
    /// Bottleneck blocks in each of the four stages.
    pub blocks: [u64; 4],
    /// The number of channels after the first convolution, which stage s widens to `stem << s`.
    pub stem: u64,
    /// Classes of the last layer.
    pub classes: u64,
}

/// The kind of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// A decoder-only transformer.
    Transformer(Transformer),
    /// A convolutional network.
    ResNet(ResNet),
}

/// A model: its name, its shape and the width of its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// The name for lookups and output, such as `opt-1.3b`.
    pub name: &'static str,
    /// The published number of parameters; `None` for a shape that is not published.
    pub published: Option<u64>,
    /// Bytes of one stored parameter.
    pub dtype_bytes: u64,
    /// The network.
    pub architecture: Architecture,
}

/// A parameter tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterTensor {
    /// The tensor's role, such as `query` or `norm`.
    pub role: &'static str,
    /// The block of the tensor; `None` for embeddings and for tensors after the last block.
    pub layer: Option<u64>,
    /// Number of elements.
    pub elements: u64,
    /// The tensor's size in bytes.
    pub bytes: u64,
}

/// The error of an unknown model's name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no model is called `{name}`; the nearest is `{nearest}`")]
pub struct UnknownModel {
    /// The requested name.
    pub name: String,
    /// The known name with the least edit distance.
    pub nearest: &'static str,
}

const BF16: u64 = 2;
const FP32: u64 = 4;

const fn decoder(family: Family, hidden: u64, layers: u64, (heads, kv_heads): (u64, u64), ffn: u64) -> Transformer {
    Transformer { family, hidden, layers, heads, kv_heads, ffn, vocab: 0, positions: 0, tied: false, experts: None }
}

const fn model(name: &'static str, published: u64, shape: Transformer) -> Model {
    Model { name, published: Some(published), dtype_bytes: BF16, architecture: Architecture::Transformer(shape) }
}

/// GPT-2 (Radford et al. 2019), 124 M.
pub const GPT2: Model = model(
    "gpt2",
    124_439_808,
    Transformer { vocab: 50_257, positions: 1024, tied: true, ..decoder(Family::Gpt2, 768, 12, (12, 12), 3072) },
);
/// GPT-2 XL, 1.56 B.
pub const GPT2_XL: Model = model(
    "gpt2-xl",
    1_557_611_200,
    Transformer { vocab: 50_257, positions: 1024, tied: true, ..decoder(Family::Gpt2, 1600, 48, (25, 25), 6400) },
);
/// OPT-1.3B (Zhang et al. 2022). The position table has two rows more than its length.
pub const OPT_1_3B: Model = model(
    "opt-1.3b",
    1_315_758_080,
    Transformer { vocab: 50_272, positions: 2050, tied: true, ..decoder(Family::Opt, 2048, 24, (32, 32), 8192) },
);
/// OPT-13B.
pub const OPT_13B: Model = model(
    "opt-13b",
    12_853_473_280,
    Transformer { vocab: 50_272, positions: 2050, tied: true, ..decoder(Family::Opt, 5120, 40, (40, 40), 20_480) },
);
/// GPT-NeoX-20B (Black et al. 2022).
pub const GPT_NEOX_20B: Model = model(
    "gpt-neox-20b",
    20_554_567_680,
    Transformer { vocab: 50_432, ..decoder(Family::NeoX, 6144, 44, (64, 64), 24_576) },
);
/// Llama-3.1-8B.
pub const LLAMA_8B: Model = model(
    "llama-8b",
    8_030_261_248,
    Transformer { vocab: 128_256, ..decoder(Family::Llama, 4096, 32, (32, 8), 14_336) },
);
/// Llama-3.2-1B.
pub const LLAMA_1B: Model = model(
    "llama-1b",
    1_235_814_400,
    Transformer { vocab: 128_256, tied: true, ..decoder(Family::Llama, 2048, 16, (32, 8), 8192) },
);
/// Qwen1.5-MoE-A2.7B, 14.3 B in 24 layers of 60 experts.
pub const QWEN_MOE: Model = model(
    "qwen-moe",
    14_315_784_192,
    Transformer {
        vocab: 151_936,
        experts: Some(Experts { count: 60, per_token: 4, ffn: 1408, shared_ffn: 5632 }),
        ..decoder(Family::QwenMoe, 2048, 24, (16, 16), 5632)
    },
);
/// Qwen1.5-MoE with half the layers and 32 experts, so that full fine-tuning fits one device.
pub const QWEN_MOE_SMALL: Model = Model {
    name: "qwen-moe-small",
    published: None,
    dtype_bytes: BF16,
    architecture: Architecture::Transformer(Transformer {
        vocab: 151_936,
        experts: Some(Experts { count: 32, per_token: 4, ffn: 1408, shared_ffn: 5632 }),
        ..decoder(Family::QwenMoe, 2048, 12, (16, 16), 5632)
    }),
};
/// ResNet-152 (He et al. 2016), weights in single precision.
pub const RESNET_152: Model = Model {
    name: "resnet-152",
    published: Some(60_192_808),
    dtype_bytes: FP32,
    architecture: Architecture::ResNet(ResNet { blocks: [3, 8, 36, 3], stem: 64, classes: 1000 }),
};

static MODELS: [Model; 10] =
    [GPT2, GPT2_XL, OPT_1_3B, OPT_13B, GPT_NEOX_20B, LLAMA_8B, LLAMA_1B, QWEN_MOE, QWEN_MOE_SMALL, RESNET_152];

/// Returns every known model.
pub fn models() -> &'static [Model] {
    &MODELS
}

/// Returns the model with that name.
///
/// # Errors
/// [`UnknownModel`], with the nearest name.
pub fn find_model(name: &str) -> Result<&'static Model, UnknownModel> {
    MODELS
        .iter()
        .find(|m| m.name == name)
        .ok_or_else(|| UnknownModel { name: name.to_owned(), nearest: nearest(name, MODELS.iter().map(|m| m.name)) })
}

impl Model {
    /// Returns the parameter tensors in the order in which the model creates them.
    pub fn tensors(&self) -> Vec<ParameterTensor> {
        let mut list = TensorList { bytes: self.dtype_bytes, layer: None, tensors: Vec::new() };
        match &self.architecture {
            Architecture::Transformer(shape) => shape.tensors(&mut list),
            Architecture::ResNet(shape) => shape.tensors(&mut list),
        }
        list.tensors
    }

    /// Returns the model's transformer, or an error for other networks.
    pub(super) fn transformer(&self) -> Result<&Transformer, GenerateError> {
        match &self.architecture {
            Architecture::Transformer(shape) => Ok(shape),
            Architecture::ResNet(_) => Err(GenerateError::WrongArchitecture { model: self.name }),
        }
    }

    /// Returns the model's convolutional network, or an error for other networks.
    pub(super) fn resnet(&self) -> Result<&ResNet, GenerateError> {
        match &self.architecture {
            Architecture::ResNet(shape) => Ok(shape),
            Architecture::Transformer(_) => Err(GenerateError::WrongArchitecture { model: self.name }),
        }
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> u64 {
        self.tensors().iter().map(|t| t.elements).sum()
    }
}

struct TensorList {
    bytes: u64,
    layer: Option<u64>,
    tensors: Vec<ParameterTensor>,
}

impl TensorList {
    fn push(&mut self, role: &'static str, elements: u64) {
        self.tensors.push(ParameterTensor { role, layer: self.layer, elements, bytes: elements * self.bytes });
    }

    fn linear(&mut self, role: &'static str, from: u64, to: u64, bias: bool) {
        self.push(role, from * to);
        if bias {
            self.push("bias", to);
        }
    }

    fn norm(&mut self, width: u64, bias: bool) {
        self.push("norm", width);
        if bias {
            self.push("bias", width);
        }
    }

    fn gated(&mut self, hidden: u64, inner: u64) {
        self.linear("gate", hidden, inner, false);
        self.linear("up", hidden, inner, false);
        self.linear("down", inner, hidden, false);
    }
}

impl Transformer {
    /// Returns the width of all key (or value) heads together.
    pub fn kv_width(&self) -> u64 {
        self.hidden.checked_div(self.heads).map_or(0, |width| width.saturating_mul(self.kv_heads))
    }

    fn tensors(&self, list: &mut TensorList) {
        list.push("token embedding", self.vocab * self.hidden);
        if self.positions > 0 {
            list.push("position embedding", self.positions * self.hidden);
        }
        for layer in 0..self.layers {
            list.layer = Some(layer);
            self.block(list);
        }
        list.layer = None;
        list.norm(self.hidden, !matches!(self.family, Family::Llama | Family::QwenMoe));
        if !self.tied {
            list.linear("output", self.hidden, self.vocab, false);
        }
    }

    fn block(&self, list: &mut TensorList) {
        let (h, f, kv) = (self.hidden, self.ffn, self.kv_width());
        match self.family {
            Family::Gpt2 => {
                list.norm(h, true);
                list.linear("query-key-value", h, 3 * h, true);
                list.linear("attention output", h, h, true);
                list.norm(h, true);
                list.linear("up", h, f, true);
                list.linear("down", f, h, true);
            }
            Family::Opt => {
                list.norm(h, true);
                for role in ["query", "key", "value", "attention output"] {
                    list.linear(role, h, h, true);
                }
                list.norm(h, true);
                list.linear("up", h, f, true);
                list.linear("down", f, h, true);
            }
            Family::NeoX => {
                list.norm(h, true);
                list.norm(h, true);
                list.linear("query-key-value", h, 3 * h, true);
                list.linear("attention output", h, h, true);
                list.linear("up", h, f, true);
                list.linear("down", f, h, true);
            }
            Family::Llama | Family::QwenMoe => {
                let bias = self.family == Family::QwenMoe;
                list.norm(h, false);
                list.linear("query", h, h, bias);
                list.linear("key", h, kv, bias);
                list.linear("value", h, kv, bias);
                list.linear("attention output", h, h, false);
                list.norm(h, false);
                match self.experts {
                    None => list.gated(h, f),
                    Some(experts) => {
                        list.linear("router", h, experts.count, false);
                        for _ in 0..experts.count {
                            list.gated(h, experts.ffn);
                        }
                        list.linear("shared gate", h, 1, false);
                        list.gated(h, experts.shared_ffn);
                    }
                }
            }
        }
    }
}

impl ResNet {
    /// The width of a bottleneck's last convolution, as a multiple of its first.
    pub const EXPANSION: u64 = 4;

    fn tensors(&self, list: &mut TensorList) {
        list.push("convolution", 3 * self.stem * 7 * 7);
        list.norm(self.stem, true);
        let mut channels = self.stem;
        let mut layer = 0;
        for (stage, &blocks) in self.blocks.iter().enumerate() {
            let width = self.stem << stage;
            for block in 0..blocks {
                list.layer = Some(layer);
                layer += 1;
                list.push("convolution", channels * width);
                list.norm(width, true);
                list.push("convolution", width * width * 9);
                list.norm(width, true);
                list.push("convolution", width * width * Self::EXPANSION);
                list.norm(width * Self::EXPANSION, true);
                if block == 0 {
                    list.push("shortcut", channels * width * Self::EXPANSION);
                    list.norm(width * Self::EXPANSION, true);
                }
                channels = width * Self::EXPANSION;
            }
        }
        list.layer = None;
        list.linear("classifier", channels, self.classes, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_the_published_ones() {
        for model in models() {
            let Some(published) = model.published else { continue };
            let ours = model.parameters();
            assert!(ours.abs_diff(published) * 50 <= published, "{}: {ours} against {published}", model.name);
        }
    }

    #[test]
    fn tensor_bytes_follow_the_dtype() {
        for model in models() {
            for tensor in model.tensors() {
                assert!(tensor.elements > 0);
                assert_eq!(tensor.bytes, tensor.elements * model.dtype_bytes);
            }
        }
    }

    #[test]
    fn every_layer_has_tensors() {
        for model in models() {
            let layers = match model.architecture {
                Architecture::Transformer(t) => t.layers,
                Architecture::ResNet(r) => r.blocks.iter().sum(),
            };
            let tensors = model.tensors();
            for layer in 0..layers {
                assert!(tensors.iter().any(|t| t.layer == Some(layer)), "{} layer {layer}", model.name);
            }
            assert!(!tensors.iter().any(|t| t.layer == Some(layers)));
        }
    }

    #[test]
    fn a_misspelt_model_gets_the_nearest() {
        assert_eq!(find_model("opt-13b").unwrap().name, "opt-13b");
        let error = find_model("gtp2-xl").unwrap_err();
        assert_eq!(error.nearest, "gpt2-xl");
        assert!(error.to_string().contains("gtp2-xl"));
    }
}

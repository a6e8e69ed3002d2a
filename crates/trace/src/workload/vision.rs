//! Training of a bottleneck ResNet in mixed precision, with another resolution and batch in every step.
//!
//! Owns: the convolutional network's forward and backward, after a trace of torchvision's ResNet-152 under autocast.
//! Each convolution keeps three tensors for its backward: a half-precision copy of its weight, its output, and its
//! normed output.

use super::{
    error::GenerateError,
    models::{Model, ResNet},
    tape::{Block, Dice, Tape},
};

/// A training job on images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Images {
    pub(super) model: &'static Model,
    /// The least and the largest side of an image, in pixels. A side is a multiple of `STRIDE`.
    pub(super) sides: (u64, u64),
    /// The possible numbers of images in a batch.
    pub(super) batches: &'static [u64],
}

/// The unit of resolutions in pixels, which is the network's total stride.
const STRIDE: u64 = 32;
/// Half precision, in bytes.
const HALF: u64 = 2;
/// Single precision, in bytes.
const FP32: u64 = 4;

/// A convolution and the norm after it.
#[derive(Clone, Copy, Debug)]
struct Convolution {
    input: u64,
    output: u64,
    kernel: u64,
    /// The image's side in pixels divided by the output's side.
    reduction: u64,
    /// The image's side divided by the side of the convolution's input.
    reduction_before: u64,
    /// Whether the convolution is the last of a bottleneck, so that the residual's sum follows.
    closes: bool,
}

/// The tensors that autograd keeps of one convolution.
struct Kept {
    convolution: Convolution,
    weight: Block,
    output: Block,
    normed: Block,
    mean: Block,
    deviation: Block,
}

fn convolutions(shape: &ResNet) -> Vec<Convolution> {
    let mut list =
        vec![Convolution { input: 3, output: shape.stem, kernel: 7, reduction: 2, reduction_before: 1, closes: false }];
    let (mut channels, mut before) = (shape.stem, 4);
    for (stage, &blocks) in shape.blocks.iter().enumerate() {
        let (width, after) = (shape.stem << stage, 4 << stage);
        let wide = width * ResNet::EXPANSION;
        for block in 0..blocks {
            let one = |input, output, kernel, reduction_before, reduction, closes| Convolution {
                input,
                output,
                kernel,
                reduction,
                reduction_before,
                closes,
            };
            list.push(one(channels, width, 1, before, before, false));
            list.push(one(width, width, 3, before, after, false));
            list.push(one(width, wide, 1, after, after, block > 0));
            if block == 0 {
                list.push(one(channels, wide, 1, before, after, true));
            }
            (channels, before) = (wide, after);
        }
    }
    list
}

impl Convolution {
    fn weights(&self) -> u64 {
        self.input * self.output * self.kernel * self.kernel
    }
}

/// A batch of one resolution.
#[derive(Clone, Copy)]
struct Batch {
    images: u64,
    side: u64,
}

impl Batch {
    fn map(&self, channels: u64, reduction: u64) -> u64 {
        let side = self.side.div_ceil(reduction);
        self.images * channels * side * side * HALF
    }
}

impl Images {
    pub(super) fn run(&self, tape: &mut Tape, dice: &mut Dice, steps: u32) -> Result<(), GenerateError> {
        let shape = self.model.resnet()?;
        let list = convolutions(shape);
        // The first step makes the momentum, which is as large as the weights.
        let weights: Vec<u64> = self.model.tensors().iter().map(|tensor| tensor.bytes).collect();
        for bytes in &weights {
            tape.alloc_for_good(*bytes);
        }
        let mut input: Option<Block> = None;
        for step in 0..steps {
            if tape.is_full() {
                break;
            }
            let side = dice.between(self.sides.0.div_ceil(STRIDE), self.sides.1 / STRIDE) * STRIDE;
            let batch = Batch { images: dice.pick(self.batches), side };
            // The previous batch's images live until the new images have arrived.
            let images = tape.alloc(batch.images * 3 * side * side * FP32);
            if let Some(old) = input.replace(images) {
                tape.free(old);
            }
            let gradients = train(tape, shape, &list, batch);
            if step == 0 {
                for bytes in &weights {
                    tape.alloc_for_good(*bytes);
                }
            }
            tape.free_all(gradients);
        }
        Ok(())
    }
}

fn train(tape: &mut Tape, shape: &ResNet, list: &[Convolution], batch: Batch) -> Vec<Block> {
    let cast = tape.alloc(batch.images * 3 * batch.side * batch.side * HALF);
    let mut kept = Vec::with_capacity(list.len());
    for convolution in list {
        kept.push(forward(tape, *convolution, batch));
    }
    let width = list.last().map_or(shape.stem, |last| last.output);
    let pooled = tape.alloc(batch.images * width * HALF);
    let logits = tape.alloc(batch.images * shape.classes * HALF);
    let loss = tape.alloc(batch.images * shape.classes * FP32);
    let mut gradients = vec![tape.alloc(width * shape.classes * FP32), tape.alloc(shape.classes * FP32)];
    tape.free_all([loss, logits]);
    let mut flowing = tape.alloc(list.last().map_or(1, |last| batch.map(last.output, last.reduction)));
    tape.free(pooled);
    let mut residual: Option<Block> = None;
    for held in kept.into_iter().rev() {
        if held.convolution.closes {
            // The branch and the shortcut both read the sum's gradient.
            let through = tape.alloc(flowing.size());
            if let Some(old) = residual.replace(std::mem::replace(&mut flowing, through)) {
                tape.free(old);
            }
        }
        flowing = backward(tape, held, batch, flowing, &mut gradients);
    }
    tape.free_all(residual);
    tape.free_all([flowing, cast]);
    gradients
}

fn forward(tape: &mut Tape, convolution: Convolution, batch: Batch) -> Kept {
    let bytes = batch.map(convolution.output, convolution.reduction);
    let weight = tape.alloc(convolution.weights() * HALF);
    let output = tape.alloc(bytes);
    if convolution.kernel > 1 {
        // The tensor-core kernel needs tensors in another layout, so they are copied before and after it.
        tape.workspace(bytes * 2 + convolution.weights() * HALF + 512);
    } else {
        tape.workspace(272);
    }
    let normed = tape.alloc(bytes);
    let (mean, deviation) = (tape.alloc(convolution.output * FP32), tape.alloc(convolution.output * FP32));
    Kept { convolution, weight, output, normed, mean, deviation }
}

fn backward(tape: &mut Tape, held: Kept, batch: Batch, flowing: Block, gradients: &mut Vec<Block>) -> Block {
    let Kept { convolution, weight, output, normed, mean, deviation } = held;
    let through = tape.alloc(output.size());
    gradients.extend([tape.alloc(mean.size()), tape.alloc(deviation.size())]);
    tape.free(flowing);
    tape.free_all([normed, output, mean, deviation]);
    let input = tape.alloc(batch.map(convolution.input, convolution.reduction_before));
    tape.workspace(input.size() * 2 + weight.size());
    let half = tape.alloc(weight.size());
    if convolution.kernel > 1 {
        tape.workspace(through.size() * 2 + weight.size() * 2);
    }
    tape.free_all([through, weight]);
    gradients.push(tape.alloc(half.size() * 2));
    tape.free(half);
    input
}

#[cfg(test)]
mod tests {
    use super::{super::models::RESNET_152, *};

    #[test]
    fn the_convolutions_have_the_models_weights() {
        let list = convolutions(RESNET_152.resnet().unwrap());
        let ours: u64 = list.iter().map(Convolution::weights).sum();
        let theirs: u64 = RESNET_152
            .tensors()
            .iter()
            .filter(|t| t.role == "convolution" || t.role == "shortcut")
            .map(|t| t.elements)
            .sum();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn maps_shrink_with_the_stages() {
        let list = convolutions(RESNET_152.resnet().unwrap());
        let batch = Batch { images: 16, side: 224 };
        assert_eq!(batch.map(64, list[0].reduction), 16 * 64 * 112 * 112 * 2);
        let last = list.last().unwrap();
        assert_eq!((last.output, last.reduction), (2048, 32));
    }

    #[test]
    fn a_step_leaves_weights_and_momentum() {
        let plan = Images { model: &RESNET_152, sides: (64, 96), batches: &[2, 3] };
        let mut tape = Tape::new(0);
        plan.run(&mut tape, &mut Dice::new(4), 3).unwrap();
        let weights = RESNET_152.tensors().iter().map(|t| t.bytes).sum::<u64>();
        let images = 3 * 3 * 96 * 96 * 4;
        assert!(tape.live() >= 2 * weights && tape.live() <= 2 * weights + images);
    }
}

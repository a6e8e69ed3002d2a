//! Decoding with key-value caches that grow by a token through concatenation, while requests join and leave.
//!
//! Owns: the caches. `layer.rs` has the prompt's forward pass.

use super::{
    error::GenerateError,
    layer::Layer,
    models::{Model, Transformer},
    moe,
    recipe::{self, Op},
    step::{self, Batch},
    tape::{Block, Dice, Tape},
};

/// A server of one model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoding {
    pub(super) model: &'static Model,
    /// The most requests that run together.
    pub(super) requests: u64,
    /// The least and the most tokens of a prompt.
    pub(super) prompt: (u64, u64),
    /// The least and the most tokens of an answer.
    pub(super) answer: (u64, u64),
    pub(super) caches: Caches,
}

/// The layout of the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caches {
    /// One tensor in each layer for the whole batch, padded to the longest request. The tensor is copied into new
    /// tensors when a request joins or leaves.
    Batched,
    /// One tensor in each layer for each request.
    Separate,
}

/// The keys and values of every layer for some requests.
#[derive(Debug)]
pub(super) struct Cache {
    blocks: Vec<Block>,
    /// The number of tokens that are held for each request.
    length: u64,
    /// The number of requests in the cache.
    requests: u64,
    /// The bytes of a token of one request, for keys or for values alone.
    row: u64,
}

impl Cache {
    /// Allocates the tensors for the tokens of a prompt: keys and values of every layer.
    pub(super) fn fill(tape: &mut Tape, model: &Model, shape: &Transformer, requests: u64, length: u64) -> Self {
        let row = shape.kv_width() * model.dtype_bytes;
        let blocks = (0..2 * shape.layers).map(|_| tape.alloc(requests * length * row)).collect();
        Self { blocks, length, requests, row }
    }

    /// Adds one token for each request. Every tensor is copied into a longer one.
    pub(super) fn grow(&mut self, tape: &mut Tape, model: &Model, shape: &Transformer) {
        self.length += 1;
        let hidden = self.requests * shape.hidden * model.dtype_bytes;
        let bytes = self.requests * self.length * self.row;
        for pair in self.blocks.chunks_mut(2) {
            // The step allocates the layer's state, the normed copy of the state and the new token's query, and then
            // the token's key and value.
            let (state, normed, query) = (tape.alloc(hidden), tape.alloc(hidden * 2), tape.alloc(hidden));
            lengthen(tape, pair, bytes);
            tape.free_all([normed, query, state]);
        }
    }

    /// Grows the caches of several requests by one token, layer by layer.
    fn grow_all(tape: &mut Tape, model: &Model, shape: &Transformer, caches: &mut [(Request, Self)]) {
        let hidden = caches.len() as u64 * shape.hidden * model.dtype_bytes;
        for layer in 0..shape.layers as usize {
            let (state, normed, query) = (tape.alloc(hidden), tape.alloc(hidden), tape.alloc(hidden));
            for (_, cache) in caches.iter_mut() {
                let bytes = cache.requests * (cache.length + 1) * cache.row;
                if let Some(pair) = cache.blocks.get_mut(2 * layer..2 * layer + 2) {
                    lengthen(tape, pair, bytes);
                }
            }
            tape.free_all([normed, query, state]);
        }
        for (_, cache) in caches {
            cache.length += 1;
        }
    }

    /// Copies every tensor into a new one, for other requests and another length.
    fn regather(&mut self, tape: &mut Tape, requests: u64, length: u64) {
        (self.requests, self.length) = (requests, length);
        for old in &mut self.blocks {
            let gathered = tape.alloc(requests * length * self.row);
            tape.free(std::mem::replace(old, gathered));
        }
    }

    pub(super) fn free(self, tape: &mut Tape) {
        tape.free_all(self.blocks);
    }
}

/// Copies tensors into longer ones. Each old tensor is freed after its copy.
fn lengthen(tape: &mut Tape, blocks: &mut [Block], bytes: u64) {
    for old in blocks {
        let longer = tape.alloc(bytes);
        tape.free(std::mem::replace(old, longer));
    }
}

/// Allocates for a forward pass over some tokens without autograd, and for the logits of each sequence's last token.
pub(super) fn prefill(tape: &mut Tape, batch: Batch<'_>, layer: Layer<'_>, sequences: u64) {
    let Batch { model, shape, tokens } = batch;
    let (mut state, inputs) = batch.embed(tape);
    for _ in 0..shape.layers {
        let (output, _) = layer.forward(tape, false);
        tape.free(std::mem::replace(&mut state, output));
    }
    let normed = tape.alloc(tokens * shape.hidden * model.dtype_bytes);
    tape.free(state);
    tape.workspace(sequences * shape.vocab * model.dtype_bytes);
    tape.free(normed);
    tape.free_all(inputs);
}

/// A request in service.
#[derive(Debug)]
struct Request {
    length: u64,
    left: u64,
}

impl Decoding {
    pub(super) fn run(&self, tape: &mut Tape, dice: &mut Dice, steps: u32) -> Result<(), GenerateError> {
        let shape = self.model.transformer()?;
        let ops = recipe::block(self.model, shape, false);
        step::weights(tape, self.model, 1);
        step::library_workspace(tape);
        match self.caches {
            Caches::Batched => self.batched(tape, dice, steps, shape, &ops),
            Caches::Separate => self.separate(tape, dice, steps, shape, &ops),
        }
        Ok(())
    }

    fn arrive(&self, tape: &mut Tape, dice: &mut Dice, shape: &Transformer, ops: &[Op]) -> Request {
        let length = dice.between(self.prompt.0, self.prompt.1);
        let rows = &moe::route(shape, length, dice);
        prefill(tape, Batch { model: self.model, shape, tokens: length }, Layer { ops, rows }, 1);
        Request { length, left: dice.between(self.answer.0, self.answer.1) }
    }

    fn batched(&self, tape: &mut Tape, dice: &mut Dice, steps: u32, shape: &Transformer, ops: &[Op]) {
        let mut requests: Vec<Request> = Vec::new();
        let mut cache: Option<Cache> = None;
        for _ in 0..steps {
            if tape.is_full() {
                break;
            }
            let before = requests.len();
            requests.retain(|request| request.left > 0);
            let left = requests.len() != before;
            let joins = requests.is_empty() || (requests.len() as u64) < self.requests && dice.chance(1, 3);
            if joins {
                requests.push(self.arrive(tape, dice, shape, ops));
            }
            let (count, longest) = (requests.len() as u64, requests.iter().map(|r| r.length).max().unwrap_or(1));
            match &mut cache {
                None => cache = Some(Cache::fill(tape, self.model, shape, count, longest)),
                Some(cache) if joins || left => cache.regather(tape, count, longest),
                Some(_) => {}
            }
            for request in &mut requests {
                (request.length, request.left) = (request.length + 1, request.left - 1);
            }
            if let Some(cache) = &mut cache {
                cache.grow(tape, self.model, shape);
            }
            tape.workspace(count * shape.vocab * self.model.dtype_bytes);
        }
    }

    fn separate(&self, tape: &mut Tape, dice: &mut Dice, steps: u32, shape: &Transformer, ops: &[Op]) {
        let mut running: Vec<(Request, Cache)> = Vec::new();
        for _ in 0..steps {
            if tape.is_full() {
                break;
            }
            // Requests join as long as the batch has free places, at most two before each step.
            for _ in 0..2 {
                if (running.len() as u64) < self.requests {
                    let request = self.arrive(tape, dice, shape, ops);
                    let cache = Cache::fill(tape, self.model, shape, 1, request.length);
                    running.push((request, cache));
                }
            }
            let mut still = Vec::new();
            Cache::grow_all(tape, self.model, shape, &mut running);
            tape.workspace(running.len() as u64 * shape.vocab * self.model.dtype_bytes);
            for (mut request, cache) in running {
                request.left -= 1;
                if request.left == 0 {
                    cache.free(tape);
                } else {
                    still.push((request, cache));
                }
            }
            running = still;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{super::models::LLAMA_1B, *};
    use crate::trace::TraceEvent;

    #[test]
    fn a_cache_grows_by_a_token_and_holds_two_copies_of_one_layer_at_most() {
        let shape = LLAMA_1B.transformer().unwrap();
        let mut tape = Tape::new(0);
        let mut cache = Cache::fill(&mut tape, &LLAMA_1B, shape, 3, 10);
        let before = tape.live();
        cache.grow(&mut tape, &LLAMA_1B, shape);
        let row = shape.kv_width() * 2;
        assert_eq!(before, 3 * 10 * row * 2 * shape.layers);
        assert_eq!(tape.live(), 3 * 11 * row * 2 * shape.layers);
        cache.regather(&mut tape, 2, 7);
        assert_eq!(tape.live(), 2 * 7 * row * 2 * shape.layers);
        cache.free(&mut tape);
        assert_eq!(tape.live(), 0);
    }

    #[test]
    fn requests_come_and_go() {
        for caches in [Caches::Batched, Caches::Separate] {
            let plan = Decoding { model: &LLAMA_1B, requests: 4, prompt: (5, 50), answer: (2, 6), caches };
            let mut tape = Tape::new(0);
            plan.run(&mut tape, &mut Dice::new(2), 30).unwrap();
            let trace = tape.finish().unwrap();
            // The vocabulary is so large that no other tensor has a multiple of its size. So the logits have one size
            // for each number of requests that ran together.
            let logits = LLAMA_1B.transformer().unwrap().vocab * 2;
            let running: HashSet<u64> = trace
                .events
                .iter()
                .filter_map(|event| match event {
                    TraceEvent::Alloc { size, .. } if size % logits == 0 => Some(size / logits),
                    _ => None,
                })
                .collect();
            assert!(running.len() >= 3, "{caches:?}: {running:?}");
        }
    }
}

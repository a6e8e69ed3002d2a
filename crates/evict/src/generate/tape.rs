//! Records a forward pass and adds the backward pass, as automatic differentiation does. The backward operators run in
//! reverse order. Each backward operator reads the gradients of its operator's outputs and the saved tensors, and makes
//! the gradients of the inputs. Several gradients of one tensor are added. A tensor is released after the last operator
//! that reads it; gradients of weights are not released.
//!
//! An operator's time is the time of a launch, plus the larger of its arithmetic time and its memory time on a machine
//! with the figures below.

use crate::graph::{Graph, GraphBuilder, GraphError, Output, TensorId};

/// Arithmetic in operations per microsecond: 100 TFLOP/s, about a third of the 16-bit peak of an A100's tensor cores,
/// and a tenth of an H100's.
const OPERATIONS_PER_US: u64 = 100_000_000;
/// Bytes per microsecond: 2 TB/s.
const BYTES_PER_US: u64 = 2_000_000;
/// The time of a launch, in nanoseconds.
const LAUNCH_NS: u64 = 2_000;

/// A tensor of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node(usize);

#[derive(Clone, Debug)]
struct Recorded {
    name: &'static str,
    bytes: u64,
    inputs: Vec<Node>,
    saved: Saved,
    /// The time of the operator, and of each of its gradient operators.
    cost: u64,
    is_weight: bool,
    needs_gradient: bool,
}

/// The tensors of the forward pass that the backward operator reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saved {
    /// All inputs, as for products, convolutions and norms.
    Inputs,
    /// The output, as for activations.
    Output,
    /// No tensor, as for sums and concatenations.
    Nothing,
}

/// A recorded forward pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Tape {
    nodes: Vec<Recorded>,
}

impl Tape {
    /// Adds a tensor that exists from the beginning and needs no gradient.
    pub(super) fn input(&mut self, bytes: u64) -> Node {
        self.add("input", bytes, &[], Saved::Nothing, 0, false)
    }

    /// Adds a tensor that exists from the beginning and is trained.
    pub(super) fn weight(&mut self, bytes: u64) -> Node {
        self.add("weight", bytes, &[], Saved::Nothing, 0, true)
    }

    /// Adds an operator of `operations` of arithmetic, which makes a tensor of `bytes`.
    pub(super) fn apply(
        &mut self,
        name: &'static str,
        bytes: u64,
        inputs: &[Node],
        saved: Saved,
        operations: u64,
    ) -> Node {
        let read: u64 = inputs.iter().map(|input| self.nodes[input.0].bytes).sum();
        let cost = time(operations, read + bytes);
        self.add(name, bytes, inputs, saved, cost, false)
    }

    /// Returns the bytes of a tensor.
    pub(super) fn bytes(&self, node: Node) -> u64 {
        self.nodes[node.0].bytes
    }

    fn add(
        &mut self,
        name: &'static str,
        bytes: u64,
        inputs: &[Node],
        saved: Saved,
        cost: u64,
        is_weight: bool,
    ) -> Node {
        let needs_gradient = is_weight || inputs.iter().any(|input| self.nodes[input.0].needs_gradient);
        let inputs = inputs.to_vec();
        self.nodes.push(Recorded { name, bytes, inputs, saved, cost, is_weight, needs_gradient });
        Node(self.nodes.len() - 1)
    }

    /// Returns the program: forward, and backward from the last tensor.
    pub(super) fn finish(self) -> Result<Graph, GraphError> {
        let mut plan = Plan::default();
        let forward: Vec<usize> = (0..self.nodes.len()).collect();
        let mut gradient: Vec<Option<usize>> = vec![None; self.nodes.len()];
        for node in &self.nodes {
            plan.add(node.name, node.cost, node.bytes, node.inputs.iter().map(|input| input.0).collect());
        }
        let Some(last) = forward.last().copied() else { return GraphBuilder::new("").finish() };
        gradient[last] = Some(plan.add("loss", LAUNCH_NS, self.nodes[last].bytes, vec![last]));
        for at in forward.into_iter().rev() {
            let node = &self.nodes[at];
            let Some(own) = gradient[at] else { continue };
            for input in &node.inputs {
                let read = &self.nodes[input.0];
                if !read.needs_gradient {
                    continue;
                }
                let mut reads = vec![own];
                match node.saved {
                    Saved::Inputs => reads.extend(node.inputs.iter().map(|input| input.0)),
                    Saved::Output => reads.push(at),
                    Saved::Nothing => {}
                }
                let made = plan.add(node.name, node.cost, read.bytes, reads);
                gradient[input.0] = Some(match gradient[input.0] {
                    None => made,
                    Some(before) => plan.add("add", time(0, 3 * read.bytes), read.bytes, vec![before, made]),
                });
            }
        }
        let kept = |at: usize| self.nodes.get(at).is_some_and(|node| node.is_weight);
        let results = self.nodes.iter().zip(&gradient).filter(|(node, _)| node.is_weight).filter_map(|(_, made)| *made);
        plan.build(&results.collect::<Vec<_>>(), kept)
    }
}

/// Returns the time of an operator in nanoseconds.
fn time(operations: u64, bytes: u64) -> u64 {
    let arithmetic = operations.saturating_mul(1000) / OPERATIONS_PER_US;
    let memory = bytes.saturating_mul(1000) / BYTES_PER_US;
    LAUNCH_NS + arithmetic.max(memory)
}

/// Operators of one output each, in the order in which they run.
#[derive(Default)]
struct Plan {
    operators: Vec<(&'static str, u64, u64, Vec<usize>)>,
}

impl Plan {
    fn add(&mut self, name: &'static str, cost: u64, bytes: u64, mut inputs: Vec<usize>) -> usize {
        inputs.dedup();
        self.operators.push((name, cost, bytes, inputs));
        self.operators.len() - 1
    }

    fn build(self, results: &[usize], is_kept: impl Fn(usize) -> bool) -> Result<Graph, GraphError> {
        let mut last_read: Vec<usize> = (0..self.operators.len()).collect();
        for (at, (.., inputs)) in self.operators.iter().enumerate() {
            for input in inputs {
                last_read[*input] = at;
            }
        }
        let mut builder = GraphBuilder::new("");
        let mut tensors: Vec<TensorId> = Vec::with_capacity(self.operators.len());
        for (at, (name, cost, bytes, inputs)) in self.operators.iter().enumerate() {
            let label = format!("{name}{at}");
            tensors.push(if inputs.is_empty() && *cost == 0 {
                builder.constant(&label, *bytes)?
            } else {
                let inputs: Vec<_> = inputs.iter().map(|input| tensors[*input]).collect();
                builder.operator(name, *cost, &inputs, &[Output::New(label, *bytes)])?[0]
            });
            let mut done: Vec<usize> = inputs.iter().copied().chain([at]).collect();
            done.sort_unstable();
            done.dedup();
            done.retain(|tensor| last_read[*tensor] == at && !results.contains(tensor) && !is_kept(*tensor));
            done.iter().try_for_each(|tensor| builder.release(tensors[*tensor]))?;
        }
        results.iter().try_for_each(|result| builder.pin(tensors[*result]))?;
        builder.finish()
    }
}

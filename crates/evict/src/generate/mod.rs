//! Generated programs with costs: a forward pass, its gradients, and the tensors that the program releases.
//!
//! ```text
//! tape.rs       records a forward pass, and adds the backward pass
//! networks.rs   the programs
//! ```

mod networks;
mod tape;

pub use networks::linear;

use crate::graph::{Graph, GraphError};
use networks::{dtr_chain, dtr_tree, lstm, resnet, transformer, tree_lstm, unet};
use seamalloc::nearest::near;

/// A program that can be generated.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The program's name.
    pub name: &'static str,
    /// A description of the program.
    pub summary: &'static str,
    make: fn(u64) -> Result<Graph, GraphError>,
}

impl Program {
    /// Generates the program. The same seed gives the same program on every machine; only programs with a random shape
    /// use the seed.
    ///
    /// # Errors
    /// [`GraphError`].
    pub fn generate(&self, seed: u64) -> Result<Graph, GraphError> {
        Ok((self.make)(seed)?.named(self.name))
    }
}

/// All programs.
pub const PROGRAMS: [Program; 8] = [
    Program { name: "linear", summary: "256 layers of one size and cost, and back", make: |_| linear(256, 4 << 20) },
    Program { name: "resnet", summary: "a residual network of 50 layers, 64 images of 224 x 224", make: |_| resnet() },
    Program {
        name: "unet",
        summary: "a U-Net of four levels with its bridges, 4 images of 512 x 512",
        make: |_| unet(),
    },
    Program {
        name: "transformer",
        summary: "24 blocks of a decoder, 1024 wide, 8 sequences of 1024",
        make: |_| transformer(),
    },
    Program { name: "lstm", summary: "an LSTM of 64 to 128 steps, 1024 wide, a batch of 512", make: lstm },
    Program { name: "treelstm", summary: "a TreeLSTM over random trees of 64 words, 1024 wide", make: tree_lstm },
    Program {
        name: "dtr-chain",
        summary: "the chain of the workload dtr-chain, as a graph with costs",
        make: |_| dtr_chain(),
    },
    Program { name: "dtr-tree", summary: "the tree of the workload dtr-tree, as a graph with costs", make: dtr_tree },
];

/// Returns the program of that name, or else the nearest name.
///
/// # Errors
/// The nearest name, if one is near.
pub fn named(name: &str) -> Result<Program, Option<&'static str>> {
    let found = PROGRAMS.into_iter().find(|program| program.name == name);
    found.ok_or_else(|| near(name, PROGRAMS.map(|program| program.name)))
}

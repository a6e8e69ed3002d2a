//! Programs of an allocator's operations on the simulated GPU.
//!
//! After each operation the allocator's own rules hold, no two live blocks share a physical byte, no byte is handed out while
//! a kernel of another stream may use it, and the bytes that the allocator says it holds are those that the device gave.
//!
//! ```text
//! program    the operations there are, made of bytes
//! book       a book of physical memory: who has it, which kernels use it
//! world      the device, the allocator and the book; what must hold
//! blocks     operations on blocks
//! pools      operations on private pools, captures, graphs
//! rest       all others
//! ```

mod blocks;
mod book;
mod pools;
mod program;
mod rest;
mod world;

use arbitrary::{Arbitrary, Unstructured};
use program::{Op, Setup};
use world::World;

/// Operations of a program at most, so that an input takes milliseconds.
const MAX_OPS: usize = 400;

/// Runs the bytes as a program.
///
/// # Panics
/// Something does not hold.
pub fn run(data: &[u8]) {
    let mut bytes = Unstructured::new(data);
    let Ok(setup) = Setup::arbitrary(&mut bytes) else { return };
    let Some(mut world) = World::new(&setup) else { return };
    for _ in 0..MAX_OPS {
        if bytes.is_empty() {
            break;
        }
        let Ok(op) = Op::arbitrary(&mut bytes) else { break };
        world.step(op);
    }
    world.finish();
}

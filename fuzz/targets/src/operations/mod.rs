//! Programs of an allocator's operations on the simulated GPU.
//!
//! After each operation the allocator's own rules hold, no two live blocks share a physical byte, no byte is handed out while
//! a kernel of another stream may use it, and the bytes that the allocator says it holds are those that the device gave.
//!
//! ```text
//! bytes      an input, byte by byte
//! setup      the device and the options, made of bytes
//! program    the operations there are, made of bytes
//! weights    how likely each of them is
//! scenarios  short sequences of them that lead to places where memory is handed over
//! book       a book of physical memory: who has it, which kernels use it
//! trail      the last operations, which a finding is told with
//! world      the device, the allocator and the book; what must hold
//! blocks     operations on blocks
//! pools      operations on private pools, captures, graphs
//! rest       all others, and the end
//! ```

mod blocks;
mod book;
mod bytes;
mod pools;
mod program;
mod rest;
mod scenarios;
mod setup;
mod trail;
mod weights;
mod world;

use bytes::Bytes;
use setup::Setup;
use world::World;

/// Operations of a program at most, so that an input takes milliseconds.
const MAX_OPS: usize = 400;

/// Runs the bytes as a program.
///
/// # Panics
/// Something does not hold.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let setup = Setup::read(&mut bytes);
    let Some(mut world) = World::new(&setup) else { return };
    if setup.callback {
        world.add_callback();
    }
    let (mut next, mut steps) = (Vec::new(), 0);
    while !bytes.is_empty() && steps < MAX_OPS {
        weights::read(&mut bytes, &mut next);
        for op in next.drain(..) {
            world.step(op);
            steps += 1;
        }
    }
    world.finish();
}

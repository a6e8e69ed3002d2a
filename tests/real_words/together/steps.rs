//! Steps that repeat themselves, with random operations between their requests.

use crate::device::{MAIN, MIB, SIDE};
use crate::program::Operation::{
    Advise, Allocate, Capture, Forget, Free, Limit, Record, Release, RenewTag, Reserve, Resize, Turn, Unspill,
};
use crate::program::{Mix, Program, Tally};
use crate::random::Random;
use seamalloc::PoolId;
use seamalloc::driver::StreamId;

/// Requests of a step.
const REQUESTS: u64 = 24;

/// The operations between the requests of a step. The length is in steps.
const BESIDE: Mix = Mix {
    capacity: 64 * MIB,
    options: "spill:host=64MiB",
    operations: (12, 24),
    weights: &[
        (Allocate, 24),
        (Reserve, 10),
        (Resize, 24),
        (Free, 16),
        (Advise, 6),
        (Record, 3),
        (Unspill, 4),
        (Turn, 20),
        (RenewTag, 3),
        (Capture, 7),
        (Release, 6),
        (Limit, 4),
        (Forget, 3),
    ],
    tags: 2,
    pools: 0,
    share: 4,
    size: |random| {
        [8 * (1 + random.below(3000)), MIB + 4096 * random.below(900), MIB * (1 + random.below(6))]
            [random.below(3) as usize]
    },
    reads: 16,
    spills_at_random: false,
};

/// An operation of a step.
#[derive(Clone, Copy)]
enum StepOperation {
    /// A request with this number, size and stream.
    Allocate(usize, u64, StreamId),
    Free(usize),
}

/// Makes a step: requests up to a peak, and frees in another order.
fn step_of(seed: u64) -> Vec<StepOperation> {
    let mut random = Random(seed);
    let (mut operations, mut live) = (Vec::new(), Vec::new());
    let mut number = 0;
    while number < REQUESTS || !live.is_empty() {
        let rises = number < REQUESTS && (number < REQUESTS / 2 || random.below(2) == 0);
        if rises && (live.len() < 9 || random.below(2) == 0) {
            let size = [MIB + 4096 * random.below(800), MIB * (1 + random.below(7)), 512 * (2049 + random.below(9000))];
            let stream = [MAIN, MAIN, MAIN, SIDE][random.below(4) as usize];
            operations.push(StepOperation::Allocate(number as usize, size[random.below(3) as usize], stream));
            live.push(number as usize);
            number += 1;
        } else if !live.is_empty() {
            let at = random.below(live.len() as u64) as usize;
            operations.push(StepOperation::Free(live.swap_remove(at)));
        }
    }
    operations
}

/// Runs a program of steps.
pub(crate) fn run(seed: u64, options: &str, fails: bool, tally: &mut Tally) {
    let mut program = Program::new(&BESIDE, seed, options, fails, tally);
    let kinds = [step_of(seed), step_of(seed + 7)];
    let mut output = Output { is_kept: seed % 3 == 1, last: None };
    for number in 0..BESIDE.operations() {
        step(&mut program, &kinds[usize::from(number % 7 == 3)], &mut output);
    }
    program.end();
}

/// The first request of a step, where it is kept until the next step has its own.
struct Output {
    is_kept: bool,
    last: Option<u64>,
}

fn step(program: &mut Program<'_>, operations: &[StepOperation], output: &mut Output) {
    // So many of a hundred gaps between two operations have one of another kind.
    let restless = [5, 15, 40][program.random.below(3) as usize];
    let mut blocks: [Option<u64>; REQUESTS as usize] = [None; REQUESTS as usize];
    let last = output.last.take();
    for (at, operation) in operations.iter().enumerate() {
        if program.random.below(100) < restless {
            if program.fails && program.random.below(3) == 0 {
                program.let_fail();
            }
            program.operate();
            program.mend();
        }
        if program.fails && program.random.below(12) == 0 {
            program.let_fail();
        }
        match *operation {
            StepOperation::Allocate(number, size, stream) => {
                blocks[number] = program.allocate_in(PoolId::NONE, size, stream);
                program.own.extend(blocks[number]);
            }
            StepOperation::Free(0) if output.is_kept => {}
            StepOperation::Free(number) => free(program, blocks[number].take()),
        }
        if at == 8 {
            free(program, last);
        }
        program.check(at % BESIDE.reads as usize == 0);
    }
    if output.is_kept {
        output.last = blocks[0].take();
    }
    blocks.into_iter().for_each(|block| free(program, block));
    program.end_capture();
    program.check(true);
}

/// Frees a block of a step. Where a call fails, the block is left to the random operations.
fn free(program: &mut Program<'_>, block: Option<u64>) {
    if let Some(address) = block {
        program.free(address);
        program.own.remove(&address);
    }
}

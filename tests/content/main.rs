//! No byte is handed out early, shared or lost, whatever programs do and whatever the driver answers: random programs with a book of
//! physical memory, kernels that write and check every word, and a driver that lies.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod attack;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod behind_gate;
mod gpu_content;
mod hostile;
mod pool_programs;
mod programs;

#[path = "../common/length.rs"]
mod length;

#[path = "../../examples/gpu_content/faults.rs"]
mod faults;
#[path = "../../examples/gpu_content/gpu.rs"]
mod gpu;
#[path = "../../examples/gpu_content/graphs.rs"]
mod graphs;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[path = "../../examples/gpu_content/host.rs"]
mod host;
#[path = "../../examples/gpu_content/program.rs"]
mod program;
#[path = "../../examples/gpu_content/run.rs"]
mod run;
#[path = "../../examples/gpu_content/sabotage.rs"]
mod sabotage;
#[path = "../../examples/gpu_content/sim.rs"]
mod sim;

#[path = "../common/liar.rs"]
mod liar;
#[path = "../common/physical.rs"]
mod physical;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/simulated.rs"]
mod simulated;

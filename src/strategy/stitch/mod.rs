//! Strategy `stitch`: a request gets contiguous addresses for as long as enough memory is free anywhere.
//!
//! Owns: what happens on a miss, in this order: a view that is there already, a new view over free ranges, memory of other
//! streams behind GPU-side waits, growth by exactly what is missing.

mod choose;
mod estimate;
mod grow;
mod last_resort;
mod miss;
mod release;

pub(super) use miss::Stitch;

//! Allocations that grow in place: the address stays, every word keeps, and memory is accounted to the byte.

mod contents;
mod failures;
mod figures;
mod model;
mod parts;
mod pools;
mod rules;
mod streams;

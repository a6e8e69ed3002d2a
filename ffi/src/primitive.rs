//! The atomics of `slots.rs`. Tests replace these atomics by others, which try every order in which threads may see
//! values.

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

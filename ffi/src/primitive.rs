//! The atomics of `slots.rs`. Tests replace them by others, which try every order in which threads may see them.

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

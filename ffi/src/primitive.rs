//! The atomics of `slots.rs`. Tests put others in their place, which try every order in which threads may see them.

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

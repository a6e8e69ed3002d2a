//! The atomics and locks of `table.rs`. Tests put others in their place, which try every order in which threads may see them.

pub(super) use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
pub(super) use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

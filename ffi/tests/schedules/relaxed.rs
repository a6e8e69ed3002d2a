//! An atomic that ignores the order it is asked for.

use loom::sync::atomic::Ordering::{self, Relaxed};

pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }

    pub(crate) fn load(&self, _: Ordering) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn fetch_add(&self, value: u64, _: Ordering) -> u64 {
        self.0.fetch_add(value, Relaxed)
    }

    pub(crate) fn fetch_sub(&self, value: u64, _: Ordering) -> u64 {
        self.0.fetch_sub(value, Relaxed)
    }

    pub(crate) fn compare_exchange(&self, from: u64, to: u64, _: Ordering, _: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(from, to, Relaxed, Relaxed)
    }

    pub(crate) fn compare_exchange_weak(&self, from: u64, to: u64, _: Ordering, _: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange_weak(from, to, Relaxed, Relaxed)
    }
}

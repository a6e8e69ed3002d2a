//! loom's atomics and locks, with the methods that `table.rs` calls.

pub(super) use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::ops::{Deref, DerefMut};

pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

pub(super) struct MutexGuard<'a, T>(loom::sync::MutexGuard<'a, T>);

/// Of what is in an `Option`.
pub(super) struct MappedMutexGuard<'a, T>(loom::sync::MutexGuard<'a, Option<T>>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(self.0.lock().unwrap())
    }
}

impl<'a, T> MutexGuard<'a, Option<T>> {
    pub(super) fn try_map(
        mut guard: Self,
        map: impl FnOnce(&mut Option<T>) -> Option<&mut T>,
    ) -> Result<MappedMutexGuard<'a, T>, Self> {
        if map(&mut guard.0).is_some() { Ok(MappedMutexGuard(guard.0)) } else { Err(guard) }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Deref for MappedMutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().unwrap()
    }
}

impl<T> DerefMut for MappedMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap()
    }
}

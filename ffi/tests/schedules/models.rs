//! What threads do with a slot, and what must hold afterwards: functions of a module that has `slots` and `primitive`.

use loom::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What lies in a slot. loom fails a model where a use of `number` and the drop are not ordered.
pub(crate) struct Value {
    number: UnsafeCell<u64>,
    drops: Arc<AtomicUsize>,
}

impl Value {
    pub(crate) fn new(number: u64, drops: &Arc<AtomicUsize>) -> Box<Self> {
        Box::new(Self { number: UnsafeCell::new(number), drops: Arc::clone(drops) })
    }

    pub(crate) fn number(&self) -> u64 {
        // SAFETY: loom fails the model if it is written at the same time.
        self.number.with(|number| unsafe { *number })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: as above.
        self.number.with_mut(|number| unsafe { *number = 0 });
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many values were dropped, outside of what loom tries.
pub(crate) fn counter() -> Arc<AtomicUsize> {
    Arc::default()
}

macro_rules! models {
    () => {
        use crate::models::{Value, counter};
        use loom::sync::{Arc, Mutex};
        use loom::thread::spawn;
        use primitive::{AtomicPtr, AtomicU64};
        use slots::{NEVER_USED, Slot};

        fn slot() -> Arc<Slot<Value>> {
            Arc::new(Slot { state: AtomicU64::new(NEVER_USED), value: AtomicPtr::new(std::ptr::null_mut()) })
        }

        /// As `seam_destroy` does. Returns whether it was this call that closed it.
        fn close(slot: &Slot<Value>, generation: u64) -> bool {
            slot.enter(generation).is_some_and(|used| used.close(generation))
        }

        fn number_in(slot: &Slot<Value>, generation: u64) -> Option<u64> {
            slot.enter(generation).map(|used| used.number())
        }

        pub(crate) fn one_uses_while_another_closes() {
            let (slot, drops) = (slot(), counter());
            let first = slot.fill(Value::new(7, &drops));
            let user = spawn({
                let slot = Arc::clone(&slot);
                move || {
                    for _ in 0..2 {
                        assert!(number_in(&slot, first).is_none_or(|number| number == 7));
                    }
                }
            });
            assert!(close(&slot, first));
            user.join().unwrap();
            assert!(slot.is_free() && drops.load(std::sync::atomic::Ordering::Relaxed) == 1);
        }

        pub(crate) fn two_close() {
            let (slot, drops) = (slot(), counter());
            let first = slot.fill(Value::new(7, &drops));
            let other = spawn({
                let slot = Arc::clone(&slot);
                move || close(&slot, first)
            });
            let here = close(&slot, first);
            assert!(here != other.join().unwrap(), "one of them closes it");
            assert!(slot.is_free() && drops.load(std::sync::atomic::Ordering::Relaxed) == 1);
        }

        pub(crate) fn a_stale_user_sees_nothing_of_the_next_value() {
            let (slot, drops) = (slot(), counter());
            let first = slot.fill(Value::new(7, &drops));
            let user = spawn({
                let slot = Arc::clone(&slot);
                move || {
                    // A handle that was never given may name the next value: it is whole, or not there.
                    assert!(number_in(&slot, first).is_none_or(|number| number == 7));
                    assert!(number_in(&slot, first + 1).is_none_or(|number| number == 8));
                }
            });
            assert!(close(&slot, first));
            if slot.is_free() {
                assert_eq!(slot.fill(Value::new(8, &drops)), first + 1);
                assert!(close(&slot, first + 1));
            }
            user.join().unwrap();
            assert!(slot.is_free());
        }

        pub(crate) fn two_use_while_a_third_closes() {
            let (slot, drops) = (slot(), counter());
            let first = slot.fill(Value::new(7, &drops));
            let users = [0, 1].map(|_| {
                let slot = Arc::clone(&slot);
                spawn(move || assert!(number_in(&slot, first).is_none_or(|number| number == 7)))
            });
            assert!(close(&slot, first));
            users.into_iter().for_each(|user| user.join().unwrap());
            assert!(slot.is_free() && drops.load(std::sync::atomic::Ordering::Relaxed) == 1);
        }

        pub(crate) fn two_fill_while_a_third_closes() {
            let (slot, drops) = (slot(), counter());
            // Held while a slot is filled, as in the table.
            let filling = Arc::new(Mutex::new(()));
            let first = slot.fill(Value::new(7, &drops));
            let others = [8, 9].map(|number| {
                let (slot, filling, drops) = (Arc::clone(&slot), Arc::clone(&filling), drops.clone());
                spawn(move || {
                    let generation = {
                        let _filling = filling.lock().unwrap();
                        slot.is_free().then(|| slot.fill(Value::new(number, &drops)))
                    };
                    // What it has put in is its own until it closes it.
                    if let Some(generation) = generation {
                        assert_eq!(number_in(&slot, generation), Some(number));
                        assert!(close(&slot, generation));
                    }
                    usize::from(generation.is_some())
                })
            });
            assert!(close(&slot, first));
            let filled: usize = others.map(|other| other.join().unwrap()).iter().sum();
            assert!(slot.is_free() && drops.load(std::sync::atomic::Ordering::Relaxed) == 1 + filled);
        }
    };
}
pub(crate) use models;

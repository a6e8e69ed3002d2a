//! The search for the memory that serves a request.

use super::blocks::layout::Placement;
use super::blocks::request::{FitRules, Request};
use super::tables::Heap;
use crate::ids::{BlockId, Class};

impl Heap {
    /// Takes out of the free index the block that serves the request best. Returns [`BlockId::NONE`] if no block serves
    /// the request.
    pub(crate) fn fit(&mut self, request: &Request, rules: &FitRules) -> BlockId {
        if rules.count_ages {
            self.pools.count_search(request.class);
        }
        let mut found = self.blocks.take_fit(request.pool, request, rules);
        if found.is_none() && rules.takes_idle && request.class == Class::Large {
            found = self.blocks.take_fit(self.pools.idle(), request, rules);
        }
        if rules.placement == Placement::Front || found.is_none() {
            return found;
        }
        self.place(found, request, rules.placement)
    }
}

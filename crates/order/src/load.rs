//! Judges orders, without anything that made them.
//!
//! Owns: the walk along an order that counts what is live, and refuses an order in which an operator stands too early.

use crate::graph::Graph;

/// Why an order is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Not every operator stands in it exactly once.
    #[error("the order does not have each of the {operators} operators once")]
    Count {
        /// How many the graph has.
        operators: usize,
    },
    /// An operator stands before one that must run before it.
    #[error("operator {} `{name}` stands before operator {}, which must run before it", .operator + 1, .before + 1)]
    Early {
        /// The operator, by its place in the program.
        operator: usize,
        /// Its name.
        name: String,
        /// The one that it needs.
        before: usize,
    },
}

/// What is live when operators run in some order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The bytes that are live while each operator runs, in the order's order: what is persistent, what it makes, and what was
    /// made and is not used up, its inputs among it.
    pub live: Vec<u64>,
    /// The most of these.
    pub peak: u64,
    /// From which step until before which each memory is live, by its place in [`Graph::memories`].
    pub lives: Vec<(usize, usize)>,
}

impl Load {
    /// Counts along an order of the operators, which are told by their places in the program.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn of(graph: &Graph, order: &[usize]) -> Result<Self, LoadError> {
        let operators = graph.operators();
        let count = LoadError::Count { operators: operators.len() };
        let mut steps = vec![usize::MAX; operators.len()];
        for (step, operator) in order.iter().enumerate() {
            match steps.get_mut(*operator) {
                Some(place) if *place == usize::MAX => *place = step,
                _ => return Err(count),
            }
        }
        if order.len() != operators.len() {
            return Err(count);
        }
        for (at, operator) in operators.iter().enumerate() {
            if let Some(before) = operator.after.iter().find(|before| steps[**before] > steps[at]) {
                return Err(LoadError::Early { operator: at, name: operator.name.clone(), before: *before });
            }
        }
        let mut lives = Vec::with_capacity(graph.memories().len());
        let (mut begins, mut ends) = (vec![0_u64; order.len() + 1], vec![0_u64; order.len() + 1]);
        for memory in graph.memories() {
            let from = memory.maker.map_or(0, |maker| steps[maker]);
            let last = memory.users.iter().map(|user| steps[*user]).max().unwrap_or(from);
            let is_kept = memory.is_result || memory.maker.is_none();
            let to = if is_kept { order.len() } else { last + 1 };
            begins[from] += memory.bytes;
            ends[to] += memory.bytes;
            lives.push((from, to));
        }
        let (mut live, mut now) = (Vec::with_capacity(order.len()), 0);
        for step in 0..order.len() {
            now = now + begins[step] - ends[step];
            live.push(now);
        }
        let peak = live.iter().copied().max().unwrap_or(0);
        Ok(Self { live, peak, lives })
    }
}

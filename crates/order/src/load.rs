//! Checks orders, independently of the methods.
//!
//! Owns: the walk along an order that counts live bytes, and refuses an order in which an operator runs too early.

use crate::graph::Graph;

/// The error of an invalid order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The order does not contain every operator exactly once.
    #[error("the order does not have each of the {operators} operators once")]
    Count {
        /// The number of operators of the graph.
        operators: usize,
    },
    /// An operator precedes an operator that must run before it.
    #[error("operator {} `{name}` stands before operator {}, which must run before it", .operator + 1, .before + 1)]
    Early {
        /// The operator, by its index in the program.
        operator: usize,
        /// The operator's name.
        name: String,
        /// The operator that must run earlier.
        before: usize,
    },
}

/// The live bytes of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The live bytes while each operator runs, in the order: persistent memory, the operator's outputs, and earlier
    /// outputs that are still needed, the inputs of the running operator included.
    pub live: Vec<u64>,
    /// The highest value of `live`.
    pub peak: u64,
    /// For each memory, by its index in [`Graph::memories`]: the first step in which the memory is live, and the step
    /// after the last one.
    pub lives: Vec<(usize, usize)>,
}

impl Load {
    /// Counts the live bytes along an order of the operators, given by their indexes in the program.
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

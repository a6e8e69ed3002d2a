//! Graphs of operators: the tensors that each operator reads, makes and overwrites, and the order in which the program
//! runs the operators.
//!
//! Owns: the checked graph and its errors. A [`Graph`] has no cycle, its operators are in a valid order, and no sum of
//! its sizes overflows.

use rustc_hash::FxHashMap;
use std::fmt;

/// The most operators of a graph, and the most tensors.
pub const MAX_OPERATORS: usize = 1 << 20;
/// The most bytes of a tensor.
pub const MAX_BYTES: u64 = 1 << 47;
/// The most bytes of all tensors together.
const MAX_TOTAL: u64 = 1 << 62;

/// The source of a tensor's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An operator makes the tensor, of this many bytes.
    Made(u64),
    /// The tensor exists before the first operator and after the last one, such as a weight. The value is the tensor's
    /// bytes.
    Persistent(u64),
    /// The tensor shares the memory of the named tensor: a view, or the result of writing in place.
    ViewOf(String),
}

/// A tensor as the input has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The tensor's name; no two tensors have the same name.
    pub name: String,
    /// The source of the tensor's memory.
    pub source: Source,
}

/// An operator as the input has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorSpec {
    /// The kind of operation, such as `matmul`; several operators may have the same name.
    pub name: String,
    /// The tensors that the operator reads.
    pub inputs: Vec<String>,
    /// The tensors that the operator makes.
    pub outputs: Vec<String>,
    /// The inputs whose memory the operator writes.
    pub overwrites: Vec<String>,
}

/// A graph as the input has it: operators in the program's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphSpec {
    /// The graph's name in output.
    pub name: String,
    /// The graph's origin, in words.
    pub about: String,
    /// The tensors, in any order.
    pub tensors: Vec<TensorSpec>,
    /// The operators, in the order in which the program runs them.
    pub operators: Vec<OperatorSpec>,
    /// The tensors that must exist after the last operator.
    pub outputs: Vec<String>,
}

/// An operator, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// The kind of operation.
    pub name: String,
    /// The memories that the operator makes, by their indexes in [`Graph::memories`].
    pub makes: Vec<usize>,
    /// The memories that the operator reads, writes, or makes views of. Each memory appears once. The list has no
    /// memory that the operator makes.
    pub uses: Vec<usize>,
    /// The operators that must run before this operator, by their indexes: the makers of its inputs; for a write, all
    /// earlier users of the memory; for a use after a write, the writer.
    pub after: Vec<usize>,
}

/// The memory of a tensor and of its views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The name of the tensor that owns the memory.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The operator that makes the memory; `None` if it is persistent.
    pub maker: Option<usize>,
    /// The operators that use the memory, in the program's order.
    pub users: Vec<usize>,
    /// Whether the memory must exist after the last operator.
    pub is_result: bool,
}

/// A program of operators, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    name: String,
    about: String,
    operators: Vec<Operator>,
    memories: Vec<Memory>,
}

/// The error of an invalid graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// The graph has no operator.
    #[error("the graph has no operators")]
    Empty,
    /// The graph exceeds the limits of this crate.
    #[error("the graph has more than {MAX_OPERATORS} operators or tensors")]
    TooLarge,
    /// Two tensors have the same name.
    #[error("two tensors are called `{tensor}`")]
    SameName {
        /// The name.
        tensor: String,
    },
    /// No tensor has this name.
    #[error("{place}: no tensor is called `{tensor}`{nearest}")]
    Unknown {
        /// The operator or list that has the name, in words.
        place: String,
        /// The name.
        tensor: String,
        /// `; did you mean …`, or empty.
        nearest: String,
    },
    /// A tensor, or all tensors together, exceed the limits in bytes.
    #[error("tensor `{tensor}`: {bytes} bytes are too many; at most {MAX_BYTES} for one, and 2^62 for all")]
    Size {
        /// The tensor.
        tensor: String,
        /// The tensor's bytes.
        bytes: u64,
    },
    /// Tensors are views of each other.
    #[error("tensor `{tensor}` is a view of itself")]
    ViewCycle {
        /// One of the tensors.
        tensor: String,
    },
    /// Two operators make a tensor.
    #[error("{second}: `{tensor}` is made by {first} already")]
    MadeTwice {
        /// The tensor.
        tensor: String,
        /// The first operator.
        first: String,
        /// The second operator.
        second: String,
    },
    /// An operator makes a tensor that exists from the beginning.
    #[error("{operator}: `{tensor}` is persistent and cannot be made; an operator may overwrite it")]
    MakesPersistent {
        /// The operator.
        operator: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that is not persistent has no operator that makes it.
    #[error("no operator makes `{tensor}`, and it is not persistent")]
    NeverMade {
        /// The tensor.
        tensor: String,
    },
    /// An operator writes a tensor that it does not read.
    #[error("{operator}: it overwrites `{tensor}`, which is none of its inputs")]
    Overwrites {
        /// The operator.
        operator: String,
        /// The tensor.
        tensor: String,
    },
    /// Operators need each other's results.
    #[error("the graph has a cycle: {}", in_words(.steps))]
    Cycle {
        /// The operators of the cycle, each with the tensor that it needs from the next operator. The last operator
        /// needs a tensor from the first one.
        steps: Vec<(String, String)>,
    },
    /// The program's order has an operator before the operator whose result it needs.
    #[error("{operator}: it reads `{tensor}`, which {maker} makes later; operators stand in the program's order")]
    Order {
        /// The operator.
        operator: String,
        /// The tensor.
        tensor: String,
        /// The operator that makes the tensor.
        maker: String,
    },
}

fn in_words(steps: &[(String, String)]) -> String {
    let first = steps.first().map_or("", |step| step.0.as_str());
    let needs: Vec<_> = steps.iter().map(|(operator, tensor)| format!("{operator} needs `{tensor}` of")).collect();
    format!("{} {first}", needs.join(" "))
}

impl Graph {
    /// Checks a graph.
    ///
    /// # Errors
    /// [`GraphError`]: the first broken rule, and its place.
    pub fn new(spec: &GraphSpec) -> Result<Self, GraphError> {
        Checker::new(spec)?.graph()
    }

    /// Returns the graph's name in output.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the graph's origin, in words; may be empty.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Returns the operators, in the program's order.
    #[must_use]
    pub fn operators(&self) -> &[Operator] {
        &self.operators
    }

    /// Returns the memories, in the order of the input's tensors.
    #[must_use]
    pub fn memories(&self) -> &[Memory] {
        &self.memories
    }

    /// Returns the bytes of persistent memory.
    #[must_use]
    pub fn persistent(&self) -> u64 {
        self.memories.iter().filter(|memory| memory.maker.is_none()).map(|memory| memory.bytes).sum()
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} operators, {} tensors in memory", self.name, self.operators.len(), self.memories.len())
    }
}

/// A graph during the check.
struct Checker<'a> {
    spec: &'a GraphSpec,
    /// The index of each tensor by its name.
    places: FxHashMap<&'a str, usize>,
    /// The tensor whose memory each tensor shares; the tensor's own index if it owns memory.
    roots: Vec<usize>,
    /// The operator that makes each tensor.
    makers: Vec<Option<usize>>,
}

impl<'a> Checker<'a> {
    fn new(spec: &'a GraphSpec) -> Result<Self, GraphError> {
        if spec.operators.is_empty() {
            return Err(GraphError::Empty);
        }
        if spec.operators.len() > MAX_OPERATORS || spec.tensors.len() > MAX_OPERATORS {
            return Err(GraphError::TooLarge);
        }
        let mut places = FxHashMap::default();
        let mut total = 0;
        for (place, tensor) in spec.tensors.iter().enumerate() {
            if places.insert(tensor.name.as_str(), place).is_some() {
                return Err(GraphError::SameName { tensor: tensor.name.clone() });
            }
            if let Source::Made(bytes) | Source::Persistent(bytes) = tensor.source {
                // The sum is at most 2^20 times 2^47.
                total += bytes.min(MAX_BYTES);
                if bytes > MAX_BYTES || total > MAX_TOTAL {
                    return Err(GraphError::Size { tensor: tensor.name.clone(), bytes });
                }
            }
        }
        let mut checker = Self { spec, places, roots: Vec::new(), makers: vec![None; spec.tensors.len()] };
        checker.roots = (0..spec.tensors.len()).map(|place| checker.root(place)).collect::<Result<_, _>>()?;
        checker.find_makers()?;
        Ok(checker)
    }

    fn operator_in_words(&self, operator: usize) -> String {
        format!("operator {} `{}`", operator + 1, self.spec.operators[operator].name)
    }

    fn place(&self, name: &str, who: impl Fn() -> String) -> Result<usize, GraphError> {
        self.places.get(name).copied().ok_or_else(|| {
            let near = self.spec.tensors.iter().map(|tensor| (strsim::damerau_levenshtein(&tensor.name, name), tensor));
            let near = near.filter(|(distance, _)| *distance <= 2).min_by_key(|(distance, _)| *distance);
            let nearest = near.map(|(_, tensor)| format!("; did you mean `{}`?", tensor.name)).unwrap_or_default();
            GraphError::Unknown { place: who(), tensor: name.to_owned(), nearest }
        })
    }

    fn root(&self, tensor: usize) -> Result<usize, GraphError> {
        let (mut at, mut steps) = (tensor, 0);
        while let Source::ViewOf(name) = &self.spec.tensors[at].source {
            let place = self.place(name, || format!("tensor `{}`", self.spec.tensors[at].name))?;
            steps += 1;
            if steps > self.spec.tensors.len() {
                return Err(GraphError::ViewCycle { tensor: self.spec.tensors[at].name.clone() });
            }
            at = place;
        }
        Ok(at)
    }

    fn find_makers(&mut self) -> Result<(), GraphError> {
        for (place, operator) in self.spec.operators.iter().enumerate() {
            for name in &operator.outputs {
                let tensor = self.place(name, || self.operator_in_words(place))?;
                if matches!(self.spec.tensors[tensor].source, Source::Persistent(_)) {
                    let operator = self.operator_in_words(place);
                    return Err(GraphError::MakesPersistent { operator, tensor: name.clone() });
                }
                if let Some(first) = self.makers[tensor].replace(place) {
                    let (first, second) = (self.operator_in_words(first), self.operator_in_words(place));
                    return Err(GraphError::MadeTwice { tensor: name.clone(), first, second });
                }
            }
        }
        let missing = |(place, _): &(usize, &TensorSpec)| {
            self.makers[*place].is_none()
                && !matches!(self.spec.tensors[self.roots[*place]].source, Source::Persistent(_))
        };
        match self.spec.tensors.iter().enumerate().find(missing) {
            Some((_, tensor)) => Err(GraphError::NeverMade { tensor: tensor.name.clone() }),
            None => Ok(()),
        }
    }

    fn graph(&self) -> Result<Graph, GraphError> {
        let reads = self.reads()?;
        self.check_order(&reads)?;
        let mut memories = Vec::new();
        let mut memory_of = vec![usize::MAX; self.spec.tensors.len()];
        for (place, tensor) in self.spec.tensors.iter().enumerate() {
            if let Source::Made(bytes) | Source::Persistent(bytes) = tensor.source {
                memory_of[place] = memories.len();
                let (name, maker) = (tensor.name.clone(), self.makers[place]);
                memories.push(Memory { name, bytes, maker, users: Vec::new(), is_result: false });
            }
        }
        for name in &self.spec.outputs {
            let place = self.place(name, || "outputs".to_owned())?;
            memories[memory_of[self.roots[place]]].is_result = true;
        }
        let mut history = History::new(memories.len());
        let mut operators = Vec::with_capacity(self.spec.operators.len());
        for (at, operator) in self.spec.operators.iter().enumerate() {
            let memory = |place: &usize| memory_of[self.roots[*place]];
            let mut after: Vec<usize> = reads[at].iter().filter_map(|place| self.makers[*place]).collect();
            let mut uses: Vec<usize> = reads[at].iter().map(memory).collect();
            let mut makes = Vec::new();
            for name in &operator.outputs {
                let place = self.place(name, || self.operator_in_words(at))?;
                let own = memory_of[place] != usize::MAX;
                if own { makes.push(memory_of[place]) } else { uses.push(memory(&place)) }
            }
            uses.sort_unstable();
            uses.dedup();
            uses.retain(|memory| !makes.contains(memory));
            let mut written = Vec::new();
            for name in &operator.overwrites {
                let place = self.place(name, || self.operator_in_words(at))?;
                if !reads[at].contains(&place) {
                    return Err(GraphError::Overwrites { operator: self.operator_in_words(at), tensor: name.clone() });
                }
                written.push(memory(&place));
            }
            for memory in uses.iter().chain(&makes) {
                history.note(*memory, at, written.contains(memory), &mut after);
            }
            uses.iter().for_each(|memory| memories[*memory].users.push(at));
            // The operator that makes a memory runs before each operator that uses this memory, even if the operator
            // uses it only through a view.
            after.extend(uses.iter().filter_map(|memory| memories[*memory].maker));
            after.sort_unstable();
            after.dedup();
            after.retain(|before| *before != at);
            operators.push(Operator { name: operator.name.clone(), makes, uses, after });
        }
        Ok(Graph { name: self.spec.name.clone(), about: self.spec.about.clone(), operators, memories })
    }

    /// Returns the tensors that each operator reads; if one of its outputs is a view, also the tensor whose memory the
    /// view shares.
    fn reads(&self) -> Result<Vec<Vec<usize>>, GraphError> {
        let mut reads = Vec::with_capacity(self.spec.operators.len());
        for (at, operator) in self.spec.operators.iter().enumerate() {
            let who = || self.operator_in_words(at);
            let places = operator.inputs.iter().map(|name| self.place(name, who));
            let mut places = places.collect::<Result<Vec<_>, _>>()?;
            for name in &operator.outputs {
                let place = self.place(name, who)?;
                if let Source::ViewOf(name) = &self.spec.tensors[place].source {
                    let source = self.place(name, who)?;
                    // A view of an output of the same operator needs no read, since the operator makes both.
                    places.extend((self.makers[source] != Some(at)).then_some(source));
                }
            }
            places.sort_unstable();
            places.dedup();
            reads.push(places);
        }
        Ok(reads)
    }

    /// Checks that every tensor is made before it is read. If the check fails, a cycle is reported first if there is
    /// one, since no order can mend a cycle.
    fn check_order(&self, reads: &[Vec<usize>]) -> Result<(), GraphError> {
        let late = |at: usize, place: &usize| self.makers[*place].is_some_and(|maker| maker >= at);
        let wrong = reads.iter().enumerate().find_map(|(at, places)| {
            places.iter().find(|place| late(at, place)).and_then(|place| Some((at, *place, self.makers[*place]?)))
        });
        let Some((at, place, maker)) = wrong else { return Ok(()) };
        if let Some(steps) = self.cycle(reads) {
            return Err(GraphError::Cycle { steps });
        }
        let (operator, maker) = (self.operator_in_words(at), self.operator_in_words(maker));
        Err(GraphError::Order { operator, tensor: self.spec.tensors[place].name.clone(), maker })
    }

    /// Returns a cycle, if any: the walk goes from an operator that never becomes ready (Kahn, 1962) to an operator
    /// that it waits for, until an operator repeats.
    fn cycle(&self, reads: &[Vec<usize>]) -> Option<Vec<(String, String)>> {
        let makers = |at: usize| reads[at].iter().filter_map(|place| Some((self.makers[*place]?, *place)));
        let mut waits = vec![0_usize; reads.len()];
        let mut readers = vec![Vec::new(); reads.len()];
        for (at, wait) in waits.iter_mut().enumerate() {
            for (maker, _) in makers(at) {
                *wait += 1;
                readers[maker].push(at);
            }
        }
        let mut ready: Vec<usize> = (0..reads.len()).filter(|at| waits[*at] == 0).collect();
        while let Some(at) = ready.pop() {
            for reader in &readers[at] {
                waits[*reader] -= 1;
                if waits[*reader] == 0 {
                    ready.push(*reader);
                }
            }
        }
        let mut at = waits.iter().position(|waits| *waits > 0)?;
        let mut seen: Vec<(usize, usize)> = Vec::new();
        loop {
            if let Some(from) = seen.iter().position(|(operator, _)| *operator == at) {
                let told = |(operator, place): &(usize, usize)| {
                    (self.operator_in_words(*operator), self.spec.tensors[*place].name.clone())
                };
                return Some(seen[from..].iter().map(told).collect());
            }
            let (maker, place) = makers(at).find(|(maker, _)| waits[*maker] > 0)?;
            seen.push((at, place));
            at = maker;
        }
    }
}

/// The last users of each memory. Overwritten contents must be read before the write, and written contents after it.
struct History {
    /// The last operator that wrote each memory.
    writers: Vec<Option<usize>>,
    /// The operators that read each memory after its last write.
    readers: Vec<Vec<usize>>,
}

impl History {
    fn new(memories: usize) -> Self {
        Self { writers: vec![None; memories], readers: vec![Vec::new(); memories] }
    }

    /// Records a use of a memory, and adds the operators that must run before this use to `after`.
    fn note(&mut self, memory: usize, operator: usize, is_write: bool, after: &mut Vec<usize>) {
        after.extend(self.writers[memory]);
        if is_write {
            after.append(&mut self.readers[memory]);
            self.writers[memory] = Some(operator);
        } else {
            self.readers[memory].push(operator);
        }
    }
}

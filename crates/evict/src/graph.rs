//! Graphs with costs: operators, the tensors that they read and make, and the program's order.
//!
//! Owns: the checked graph, its builder, and its errors. A storage is memory that one tensor made. Other tensors may be
//! views of this storage (aliases), as in simrd, the simulator of DTR's authors (`simrd/simrd/tensor.py` of
//! uwsampl/dtr-prototype).

use std::fmt;

/// The most operators of a graph, and the most tensors.
pub const MAX_OPERATORS: usize = 1 << 22;
/// The most bytes of a tensor, and the most time of an operator in nanoseconds.
pub const MAX_FIGURE: u64 = 1 << 50;

macro_rules! id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the index in the graph's list.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// Makes the id of an index in a list of at most [`MAX_OPERATORS`] entries.
            pub(crate) const fn at(index: usize) -> Self {
                Self(index as u32)
            }
        }
    };
}

id! {
    /// An operator, identified by its place in the program's order.
    OperatorId
}
id! {
    /// A tensor.
    TensorId
}
id! {
    /// The memory of a tensor and of its views.
    StorageId
}

/// An operator of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// The operator's name, such as `matmul`.
    pub name: String,
    /// The operator's time, in nanoseconds or in another unit that is the same for the whole graph.
    pub cost: u64,
    /// The tensors that the operator reads.
    pub inputs: Vec<TensorId>,
    /// The tensors that the operator makes.
    pub outputs: Vec<TensorId>,
    /// Inputs that the program overwrites, each with the output that replaces it, as indexes into `inputs` and
    /// `outputs`.
    pub in_place: Vec<(usize, usize)>,
}

impl Operator {
    /// Returns whether the operator makes tensors that cannot be recomputed, such as weights and inputs.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.inputs.is_empty() && self.cost == 0
    }

    /// Returns whether the operator's time grows faster than its bytes, as in products of matrices and convolutions.
    /// Coop's allocator lists such operators by name (`FindPiece` in OneFlow's `oneflow/core/vm/remat/allocator.cpp`);
    /// here an operator counts if its name contains one of the parts below.
    #[must_use]
    pub fn is_dear(&self) -> bool {
        const PARTS: [&str; 6] = ["conv", "mm", "matmul", "linear", "product", "attention"];
        PARTS.iter().any(|part| self.name.contains(part))
    }
}

/// A tensor: a storage of its own, or a view of another tensor's storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The tensor's name.
    pub name: String,
    /// The tensor's memory.
    pub storage: StorageId,
    /// The operator that makes the tensor.
    pub maker: OperatorId,
    /// Whether the tensor is a view of an input of `maker`.
    pub is_alias: bool,
}

/// The memory of a tensor and its views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The size in bytes.
    pub bytes: u64,
    /// The tensors in the storage; the first one made it.
    pub tensors: Vec<TensorId>,
    /// Whether the storage can never be recomputed.
    pub is_constant: bool,
}

/// A step of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Runs an operator for the first time.
    Run(OperatorId),
    /// Adds one reference of the program to the tensor.
    Keep(TensorId),
    /// Drops one reference of the program to the tensor.
    Release(TensorId),
    /// Requires the tensor in memory from this step to the end.
    Pin(TensorId),
}

/// An edge (an operator computes one storage from another) as seen from one storage: the other storage, and the
/// operator. The edge exists once the operator ran.
pub type Edge = (StorageId, OperatorId);

/// A program over tensors, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    name: String,
    operators: Vec<Operator>,
    tensors: Vec<Tensor>,
    storages: Vec<Storage>,
    steps: Vec<Step>,
    parents: Vec<Vec<Edge>>,
    children: Vec<Vec<Edge>>,
}

/// The error of an invalid graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// The graph has no operator.
    #[error("the graph has no operators")]
    Empty,
    /// The graph exceeds [`MAX_OPERATORS`].
    #[error("the graph has more than {MAX_OPERATORS} operators or tensors")]
    TooLarge,
    /// A size or a cost is larger than [`MAX_FIGURE`], which is beyond any device.
    #[error("`{name}`: {what} of {value} is more than 2^50")]
    Figure {
        /// The tensor or the operator.
        name: String,
        /// The kind of figure.
        what: &'static str,
        /// The value of the figure.
        value: u64,
    },
    /// An operator reads, keeps or releases a tensor that the program has released already.
    #[error("`{tensor}` is used after its release")]
    Released {
        /// The tensor.
        tensor: String,
    },
    /// An operator's output is a view of an input that the operator does not have.
    #[error("`{operator}`: an output is a view of input {input}, and there are {inputs} inputs")]
    NoInput {
        /// The operator.
        operator: String,
        /// The index of the input.
        input: usize,
        /// The number of the operator's inputs.
        inputs: usize,
    },
}

/// An output of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A tensor with memory of its own: its name and bytes.
    New(String, u64),
    /// A view of the input at that index, and the name of the view.
    View(String, usize),
    /// The tensor that overwrites the input at that index.
    Overwritten(usize),
}

impl Graph {
    /// Returns the output's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same output under another name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// Returns the operators, in the order in which the program runs them first.
    #[must_use]
    pub fn operators(&self) -> &[Operator] {
        &self.operators
    }

    /// Returns the tensors, in the order in which they are made first.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns the storages, in the order in which they are made first.
    #[must_use]
    pub fn storages(&self) -> &[Storage] {
        &self.storages
    }

    /// Returns the steps of the program.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the storages from which a storage is computed, with the operators.
    #[must_use]
    pub fn parents(&self, storage: StorageId) -> &[Edge] {
        &self.parents[storage.index()]
    }

    /// Returns the storages that are computed from a storage, with the operators.
    #[must_use]
    pub fn children(&self, storage: StorageId) -> &[Edge] {
        &self.children[storage.index()]
    }

    /// Returns the time of all operators, each run once.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.operators.iter().fold(0, |sum: u64, operator| sum.saturating_add(operator.cost))
    }

    pub(crate) fn operator(&self, id: OperatorId) -> &Operator {
        &self.operators[id.index()]
    }

    pub(crate) fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    pub(crate) fn storage_of(&self, id: TensorId) -> StorageId {
        self.tensor(id).storage
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} operators, {} tensors", self.name, self.operators.len(), self.tensors.len())
    }
}

/// Builds a graph step by step, in the order of the program, so that the graph has no cycle.
///
/// ```
/// use seamalloc_evict::graph::{GraphBuilder, Output};
///
/// let mut builder = GraphBuilder::new("two products");
/// let weight = builder.constant("weight", 1 << 20)?;
/// let first = builder.operator("matmul", 1_000, &[weight], &[Output::New("first".into(), 1 << 20)])?;
/// let second = builder.operator("matmul", 1_000, &[weight, first[0]], &[Output::New("second".into(), 1 << 20)])?;
/// builder.release(first[0])?;
/// builder.pin(second[0])?;
/// let graph = builder.finish()?;
/// assert_eq!((graph.operators().len(), graph.cost()), (3, 2_000));
/// # Ok::<(), seamalloc_evict::graph::GraphError>(())
/// ```
#[derive(Clone, Debug)]
pub struct GraphBuilder {
    graph: Graph,
    /// The number of the program's references to each tensor.
    held: Vec<u32>,
}

impl GraphBuilder {
    /// Makes a builder of an empty graph.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let graph = Graph {
            name: name.to_owned(),
            operators: Vec::new(),
            tensors: Vec::new(),
            storages: Vec::new(),
            steps: Vec::new(),
            parents: Vec::new(),
            children: Vec::new(),
        };
        Self { graph, held: Vec::new() }
    }

    /// Adds a tensor that exists from this step on and can never be recomputed.
    ///
    /// # Errors
    /// [`GraphError::Figure`], [`GraphError::TooLarge`].
    pub fn constant(&mut self, name: &str, bytes: u64) -> Result<TensorId, GraphError> {
        let made = self.operator("constant", 0, &[], &[Output::New(name.to_owned(), bytes)])?;
        let tensor = made[0];
        let storage = self.graph.storage_of(tensor);
        self.graph.storages[storage.index()].is_constant = true;
        self.graph.steps.push(Step::Pin(tensor));
        Ok(tensor)
    }

    /// Adds an operator that the program runs at this step. Returns its outputs. The program holds one reference to
    /// each output.
    ///
    /// # Errors
    /// [`GraphError`]: an input was released, a figure is too large, or an output is a view of an input that does not
    /// exist.
    pub fn operator(
        &mut self,
        name: &str,
        cost: u64,
        inputs: &[TensorId],
        outputs: &[Output],
    ) -> Result<Vec<TensorId>, GraphError> {
        if self.graph.operators.len() >= MAX_OPERATORS || self.graph.tensors.len() + outputs.len() > MAX_OPERATORS {
            return Err(GraphError::TooLarge);
        }
        figure(name, "a cost", cost)?;
        inputs.iter().try_for_each(|input| self.must_be_held(*input))?;
        let maker = OperatorId::at(self.graph.operators.len());
        let mut operator = Operator {
            name: name.to_owned(),
            cost,
            inputs: inputs.to_vec(),
            outputs: Vec::new(),
            in_place: Vec::new(),
        };
        for (place, output) in outputs.iter().enumerate() {
            let input = |at: usize| {
                let missing = || GraphError::NoInput { operator: name.to_owned(), input: at, inputs: inputs.len() };
                inputs.get(at).copied().ok_or_else(missing)
            };
            let made = match output {
                Output::New(tensor, bytes) => self.made(tensor.clone(), *bytes, maker)?,
                Output::View(tensor, at) => {
                    let storage = self.graph.storage_of(input(*at)?);
                    self.add(Tensor { name: tensor.clone(), storage, maker, is_alias: true })
                }
                Output::Overwritten(at) => {
                    let old = input(*at)?;
                    operator.in_place.push((*at, place));
                    let bytes = self.graph.storages[self.graph.storage_of(old).index()].bytes;
                    self.made(format!("{}'", self.graph.tensor(old).name), bytes, maker)?
                }
            };
            operator.outputs.push(made);
        }
        self.connect(maker, &operator);
        let made = operator.outputs.clone();
        self.graph.operators.push(operator);
        self.graph.steps.push(Step::Run(maker));
        Ok(made)
    }

    /// Adds one reference of the program to the tensor.
    ///
    /// # Errors
    /// [`GraphError::Released`].
    pub fn keep(&mut self, tensor: TensorId) -> Result<(), GraphError> {
        self.must_be_held(tensor)?;
        self.held[tensor.index()] += 1;
        self.graph.steps.push(Step::Keep(tensor));
        Ok(())
    }

    /// Drops one reference of the program to the tensor.
    ///
    /// # Errors
    /// [`GraphError::Released`].
    pub fn release(&mut self, tensor: TensorId) -> Result<(), GraphError> {
        self.must_be_held(tensor)?;
        self.held[tensor.index()] -= 1;
        self.graph.steps.push(Step::Release(tensor));
        Ok(())
    }

    /// Requires the tensor in memory from this step to the end.
    ///
    /// # Errors
    /// [`GraphError::Released`].
    pub fn pin(&mut self, tensor: TensorId) -> Result<(), GraphError> {
        self.must_be_held(tensor)?;
        self.graph.steps.push(Step::Pin(tensor));
        Ok(())
    }

    /// Returns whether the program holds a reference to the tensor.
    #[must_use]
    pub fn is_held(&self, tensor: TensorId) -> bool {
        self.held[tensor.index()] > 0
    }

    /// Returns the graph.
    ///
    /// # Errors
    /// [`GraphError::Empty`].
    pub fn finish(self) -> Result<Graph, GraphError> {
        if self.graph.operators.is_empty() { Err(GraphError::Empty) } else { Ok(self.graph) }
    }

    fn must_be_held(&self, tensor: TensorId) -> Result<(), GraphError> {
        if self.is_held(tensor) {
            return Ok(());
        }
        Err(GraphError::Released { tensor: self.graph.tensor(tensor).name.clone() })
    }

    fn made(&mut self, name: String, bytes: u64, maker: OperatorId) -> Result<TensorId, GraphError> {
        figure(&name, "a size", bytes)?;
        let storage = StorageId::at(self.graph.storages.len());
        self.graph.storages.push(Storage { bytes, tensors: Vec::new(), is_constant: false });
        self.graph.parents.push(Vec::new());
        self.graph.children.push(Vec::new());
        Ok(self.add(Tensor { name, storage, maker, is_alias: false }))
    }

    fn add(&mut self, tensor: Tensor) -> TensorId {
        let id = TensorId::at(self.graph.tensors.len());
        self.graph.storages[tensor.storage.index()].tensors.push(id);
        self.graph.tensors.push(tensor);
        self.held.push(1);
        id
    }

    /// Adds the edges between the storages that an operator reads and the storages that it makes or views.
    fn connect(&mut self, maker: OperatorId, operator: &Operator) {
        for input in &operator.inputs {
            let parent = self.graph.storage_of(*input);
            for output in &operator.outputs {
                let child = self.graph.storage_of(*output);
                // Edges of this operator are at the end of the list. Earlier edges belong to other operators.
                let known = self.graph.parents[child.index()].iter().rev().take_while(|edge| edge.1 == maker);
                if child != parent && known.clone().all(|edge| edge.0 != parent) {
                    self.graph.parents[child.index()].push((parent, maker));
                    self.graph.children[parent.index()].push((child, maker));
                }
            }
        }
    }
}

fn figure(name: &str, what: &'static str, value: u64) -> Result<(), GraphError> {
    if value <= MAX_FIGURE { Ok(()) } else { Err(GraphError::Figure { name: name.to_owned(), what, value }) }
}

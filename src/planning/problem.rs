//! What a planner is asked, and what it answers.
//!
//! Owns: the trait [`Planner`] and its plain values. The allocator asks; crates beside this one have the methods.

/// The requests of one step of a program, and the memory in which they are to lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanProblem {
    /// Parts that share no memory: one for each stream, or one for all where streams may wait for each other.
    pub parts: Vec<PlanPart>,
}

/// Requests and the address ranges in which they are to lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanPart {
    /// How many moments the step has. Each request and each free is one.
    pub moments: u32,
    /// The requests, in the order of the program.
    pub requests: Vec<Lifetime>,
    /// The bytes of each address range. What is left free in the last ones may go back to the driver.
    pub ranges: Vec<u64>,
    /// How many of the ranges, from the first on, lie in chunks that are held whatever the plan is.
    pub held: usize,
    /// Memory in these ranges that blocks of an earlier step have at first.
    pub taken: Vec<Taken>,
}

/// When a request needs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Bytes: a multiple of 512.
    pub size: u64,
    /// The moment of the request.
    pub lower: u32,
    /// The moment of its free, or the end of the step.
    pub upper: u32,
    /// If it lives on in the next step: until which moment of that step, `lower` at most. Otherwise 0.
    pub carried_to: u32,
    /// Where it has to lie, if that is decided already. No two such places are taken at once.
    pub fixed: Option<Place>,
}

/// Memory that is taken when the step begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The address range, by its number.
    pub range: usize,
    /// Bytes from the start of the range.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// The moment at which it becomes free.
    pub upper: u32,
}

/// The place of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address range, by its number.
    pub range: usize,
    /// Bytes from the start of the range: a multiple of 512.
    pub offset: u64,
}

/// The places of each part's requests, in their order; `None` where a request has none in these ranges.
pub type Places = Vec<Vec<Option<Place>>>;

/// Finds places for the requests of a step. Called under the allocator's lock: give longer work to a thread.
pub trait Planner: Send {
    /// Takes a problem. It may take the place of one that is not solved yet.
    fn submit(&mut self, number: u64, problem: PlanProblem);

    /// Returns the next answer, with the number of its problem. It is asked at the end of each step. An answer in which two
    /// requests share a byte is no danger: the second one is served as if it were not planned.
    fn answer(&mut self) -> Option<(u64, Places)>;
}

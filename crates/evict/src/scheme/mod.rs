//! Schemes, which choose the tensors to evict.
//!
//! ```text
//! ask.rs        the question to a scheme, and the trait of schemes, which answer the question
//! dtr.rs        h_DTR counts the exact evicted neighbourhood; MSPS counts only the evicted ancestors
//! dtr_eq.rs     h_DTR^eq, with classes by union and find
//! plain.rs      h_DTR^local, LRU, the largest first
//! dte.rs        DTE: free memory beside a tensor counts as the tensor's own
//! coop.rs       Coop: the cheapest window of neighbours in the arena
//! stitched.rs   seamalloc's own scheme: free bytes can be joined wherever they are
//! regions.rs    exact evicted neighbourhoods, kept up to date
//! classes.rs    evicted neighbourhoods by union and find
//! ```

mod ask;
mod classes;
mod coop;
mod dte;
mod dtr;
mod dtr_eq;
mod plain;
mod regions;
mod stitched;

pub use ask::{Ask, Scheme};

use seamalloc::nearest::near;
use std::fmt;
use std::str::FromStr;

/// The schemes by name. Each scheme evicts the tensor for which the named value is least, except where another choice
/// is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SchemeKind {
    /// The cost of the tensor and its evicted neighbourhood, divided by the tensor's size and staleness.
    Dtr,
    /// The value of [`Self::Dtr`], where the cost of the neighbourhood is estimated by classes (union and find).
    DtrEq,
    /// The tensor's own cost, without its neighbours, divided by its size and staleness.
    DtrLocal,
    /// Evicts the least recently used tensor.
    Lru,
    /// Evicts the largest tensor.
    Size,
    /// The cost of the tensor and its evicted ancestors, divided by the tensor's size.
    Msps,
    /// The value of [`Self::DtrEq`], where the free memory beside the tensor is added to the tensor's size.
    Dte,
    /// Evicts the cheapest window of tensors that are neighbours in memory.
    Coop,
    /// seamalloc's own scheme: the cost for each byte that the eviction makes usable.
    Stitched,
}

impl SchemeKind {
    /// All schemes, seamalloc's own last.
    pub const ALL: [Self; 9] = [
        Self::Dtr,
        Self::DtrEq,
        Self::DtrLocal,
        Self::Lru,
        Self::Size,
        Self::Msps,
        Self::Dte,
        Self::Coop,
        Self::Stitched,
    ];

    /// Returns the scheme's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dtr => "dtr",
            Self::DtrEq => "dtr-eq",
            Self::DtrLocal => "dtr-local",
            Self::Lru => "lru",
            Self::Size => "size",
            Self::Msps => "msps",
            Self::Dte => "dte",
            Self::Coop => "coop",
            Self::Stitched => "stitched",
        }
    }

    /// Makes a scheme of this kind, for one run.
    #[must_use]
    pub fn scheme(self) -> Box<dyn Scheme> {
        match self {
            Self::Dtr => Box::new(dtr::Dtr::default()),
            Self::DtrEq => Box::new(dtr_eq::DtrEq::default()),
            Self::DtrLocal => Box::new(plain::DtrLocal),
            Self::Lru => Box::new(plain::Lru),
            Self::Size => Box::new(plain::Size),
            Self::Msps => Box::new(dtr::Msps::default()),
            Self::Dte => Box::new(dte::Dte::default()),
            Self::Coop => Box::new(coop::Coop::default()),
            Self::Stitched => Box::new(stitched::Stitched::default()),
        }
    }
}

impl fmt::Display for SchemeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error of an unknown scheme's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no scheme `{name}`; there are {}, and all{suggestion}", names())]
pub struct UnknownScheme {
    name: String,
    suggestion: String,
}

fn names() -> String {
    SchemeKind::ALL.map(SchemeKind::name).join(", ")
}

impl FromStr for SchemeKind {
    type Err = UnknownScheme;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownScheme { name: name.to_owned(), suggestion: suggestion(name) })
    }
}

fn suggestion(name: &str) -> String {
    let near = near(name, SchemeKind::ALL.map(SchemeKind::name));
    near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
}

//! Nothing: the tests of this package judge mutants of `seamalloc` (.ci/mutants).

//! The journal: what happened, for statistics, for observers, and for the flight recorder.
//!
//! Owns: the counters, the observers and the flight recorder.
//!
//! | file | owns |
//! |---|---|
//! | counters | the counters behind the statistics |
//! | observers, notify | who is told of events, and which events |
//! | flight, flight_log | the flight recorder: the last operations |

pub(super) mod counters;
pub(super) mod flight;
pub(super) mod flight_log;
pub(super) mod notify;
pub(super) mod observers;

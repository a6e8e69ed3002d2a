//! The driver's stream-ordered allocator. What is free is the driver's, in whole 32 MiB: so it is in no snapshot, it is trimmed
//! without an event for each piece, and a graph's memory may wait for the stream that it was allocated on. `tests/strategies/driver_pool/` holds it
//! to the rest in its own sizes, and to what it does instead.

use crate::suite::Subject;
use seamalloc::StrategyKind;

contract_of_the_drivers_memory!(Subject { maps: false, mallocs: false, ..Subject::of(StrategyKind::MallocAsync) });

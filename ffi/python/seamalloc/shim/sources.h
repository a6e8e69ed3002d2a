// The segments from MemPools' own allocators.
#pragma once

#include <cstdint>

namespace seamalloc {

// Returns the number of the segment that begins at this address, in the order in which segments were given; 0 for any
// other address.
int32_t registration_number(uint64_t address);

}  // namespace seamalloc

// The segments that MemPools' own allocators gave.
#pragma once

#include <cstdint>

namespace seamalloc {

// Which of these segments it is that begins there, by the order in which they were given; 0 for any other.
int32_t registration_number(uint64_t address);

}  // namespace seamalloc

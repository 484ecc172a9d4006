// The caches of a core, as the system states them.
#pragma once

#include <cstdint>

namespace penstock {

// Bytes of the second level, of which a core has its own on most machines; a MiB where the system says
// nothing, or what no cache of that level can be.
int64_t second_level_cache();

}  // namespace penstock

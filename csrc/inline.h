// For what must be part of its caller's loop, whatever the compiler thinks of its size.
#pragma once

#define PENSTOCK_INLINE inline __attribute__((always_inline))

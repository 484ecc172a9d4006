// Packed weights between memory and a file, as bytes whose meaning nobody here knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pool.h"

namespace penstock {

// Memory and the place in the file that it is read from or written to.
struct FileRegion {
  std::span<std::byte> bytes;
  int64_t offset;
};

// CRC-32C of each consecutive chunk of a region, the last one shorter.
using ChunkChecksums = std::vector<uint32_t>;

// Read or write the regions, whole, and return the checksums of what passed, region by region. Each
// thread takes its share of every region, the same that it takes when products read them, so that
// memory touched first here lies where it will be used. Throw std::system_error when the system
// refuses, with ENODATA where the file ends early.
std::vector<ChunkChecksums> read_regions(Pool& pool, int fd, std::span<const FileRegion> regions,
                                         size_t chunk);
std::vector<ChunkChecksums> write_regions(Pool& pool, int fd, std::span<const FileRegion> regions,
                                          size_t chunk);

}  // namespace penstock

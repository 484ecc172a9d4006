#include "region_io.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "checksum.h"

namespace penstock {
namespace {

// Bytes a system call: half of a small L2, so that the checksum finds them there.
constexpr size_t kPiece = size_t(256) << 10;

// Both return what passed, or -1 with errno.
ssize_t read_some(int fd, std::span<std::byte> bytes, int64_t at) {
  return pread(fd, bytes.data(), bytes.size(), off_t(at));
}
ssize_t write_some(int fd, std::span<std::byte> bytes, int64_t at) {
  return pwrite(fd, bytes.data(), bytes.size(), off_t(at));
}

// All of `bytes`, or an errno.
template <auto Transfer>
int transfer_all(int fd, std::span<std::byte> bytes, int64_t at) {
  while (!bytes.empty()) {
    const ssize_t count = Transfer(fd, bytes, at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return ENODATA;
    bytes = bytes.subspan(size_t(count));
    at += count;
  }
  return 0;
}

template <auto Transfer>
int transfer_chunk(int fd, std::span<std::byte> bytes, int64_t at, uint32_t& checksum) {
  checksum = 0;
  for (size_t done = 0; done < bytes.size(); done += kPiece) {
    const auto piece = bytes.subspan(done, std::min(kPiece, bytes.size() - done));
    if (const int error = transfer_all<Transfer>(fd, piece, at + int64_t(done))) return error;
    checksum = crc32c(piece, checksum);
  }
  return 0;
}

template <auto Transfer>
std::vector<ChunkChecksums> transfer(Pool& pool, int fd, std::span<const FileRegion> regions,
                                     size_t chunk) {
  if (chunk == 0) throw std::invalid_argument("a chunk has bytes");
  std::vector<ChunkChecksums> checksums;
  for (const FileRegion& region : regions) {
    const size_t size = region.bytes.size();
    if (region.offset < 0 || size > size_t(INT64_MAX - region.offset))
      throw std::invalid_argument("a region lies outside any file");
    checksums.emplace_back(size / chunk + (size % chunk != 0));
  }
  std::atomic<int> error{0};
  pool.run([&](Worker& worker) {
    for (size_t i = 0; i < regions.size(); ++i) {
      const FileRegion& region = regions[i];
      const Share mine = share(int64_t(checksums[i].size()), worker);
      for (int64_t c = mine.begin; c < mine.end && error.load() == 0; ++c) {
        const size_t begin = size_t(c) * chunk;
        const auto bytes = region.bytes.subspan(begin, std::min(chunk, region.bytes.size() - begin));
        if (const int failed = transfer_chunk<Transfer>(fd, bytes, region.offset + int64_t(begin),
                                                        checksums[i][size_t(c)]))
          error.store(failed);
      }
    }
  });
  if (error != 0) throw std::system_error(error, std::generic_category());
  return checksums;
}

}  // namespace

std::vector<ChunkChecksums> read_regions(Pool& pool, int fd, std::span<const FileRegion> regions,
                                         size_t chunk) {
  return transfer<read_some>(pool, fd, regions, chunk);
}

std::vector<ChunkChecksums> write_regions(Pool& pool, int fd, std::span<const FileRegion> regions,
                                          size_t chunk) {
  return transfer<write_some>(pool, fd, regions, chunk);
}

}  // namespace penstock

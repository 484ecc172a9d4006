// Blocks of the KV cache as bytes.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "checksum.h"
#include "executor.h"
#include "refuse.h"

namespace penstock {
namespace {

// Copied at once before its checksum is taken, so that L1 still has it: what crc32c() takes in a round.
constexpr size_t kBlockPiece = 3 * 4096;

}  // namespace

std::vector<const KvLayer*> Executor::layers_of(int group) const {
  if (group < 0 || group >= kv_groups_)
    refuse("there is no group " + std::to_string(group) + " of cached layers");
  std::vector<const KvLayer*> found;
  for (const KvLayer& layer : kv_)
    if (layer.group == group) found.push_back(&layer);
  return found;
}

size_t Executor::group_bytes(int group) const {
  size_t total = 0;
  for (const KvLayer* layer : layers_of(group)) total += layer->block_bytes();
  return total;
}

void Executor::check_blocks(int group, std::span<const int32_t> blocks, size_t bytes) const {
  const size_t each = group_bytes(group);
  if (bytes != blocks.size() * each)
    refuse(std::to_string(blocks.size()) + " blocks of group " + std::to_string(group) + " take " +
           std::to_string(blocks.size() * each) + " bytes, not " + std::to_string(bytes));
  for (const int32_t block : blocks)
    if (block < 0 || block >= shape_.num_blocks)
      refuse("there is no block " + std::to_string(block) + " of the KV cache");
}

std::vector<uint32_t> Executor::read_blocks(int group, std::span<const int32_t> blocks,
                                            std::span<std::byte> out) {
  check_blocks(group, blocks, out.size());
  const auto layers = layers_of(group);
  const size_t each = group_bytes(group);
  std::vector<uint32_t> checksums(blocks.size());
  pool_.run([&](Worker& worker) {
    const Share mine = share(int64_t(blocks.size()), worker);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      std::byte* to = out.data() + size_t(i) * each;
      uint32_t checksum = 0;
      for (const KvLayer* layer : layers) {
        const std::byte* from = layer->base + size_t(blocks[size_t(i)]) * layer->stride;
        for (size_t left = layer->block_bytes(); left > 0;) {
          const size_t bytes = std::min(left, kBlockPiece);
          std::memcpy(to, from, bytes);
          checksum = crc32c({to, bytes}, checksum);
          from += bytes, to += bytes, left -= bytes;
        }
      }
      checksums[size_t(i)] = checksum;
    }
  });
  return checksums;
}

int64_t Executor::write_blocks(int group, std::span<const int32_t> blocks,
                               std::span<const std::byte> bytes,
                               std::span<const uint32_t> checksums) {
  check_blocks(group, blocks, bytes.size());
  if (checksums.size() != blocks.size()) refuse("blocks and their checksums differ in number");
  const auto layers = layers_of(group);
  const size_t each = group_bytes(group);
  const int64_t count = int64_t(blocks.size());
  std::atomic<int64_t> damaged = count;
  pool_.run([&](Worker& worker) {
    const Share mine = share(count, worker);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      if (crc32c(bytes.subspan(size_t(i) * each, each)) == checksums[size_t(i)]) continue;
      int64_t first = damaged;
      while (i < first && !damaged.compare_exchange_weak(first, i)) {
      }
      break;
    }
    worker.barrier->wait(worker);
    if (damaged < count) return;
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const std::byte* from = bytes.data() + size_t(i) * each;
      for (const KvLayer* layer : layers) {
        std::memcpy(layer->base + size_t(blocks[size_t(i)]) * layer->stride, from,
                    layer->block_bytes());
        from += layer->block_bytes();
      }
    }
  });
  return damaged < count ? int64_t(damaged) : -1;
}

}  // namespace penstock

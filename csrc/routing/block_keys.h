// The names of blocks.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string_view>

namespace penstock {

// The name of a block's content and of all before it: 16 bytes of a hash.
struct BlockKey {
  uint64_t low, high;
  bool operator==(const BlockKey&) const = default;
};

// Keys that stand one behind the other in bytes of somebody else's, which need not be aligned.
class BlockKeys {
 public:
  static constexpr size_t kBytes = sizeof(BlockKey);

  BlockKeys() = default;
  // Throws std::invalid_argument where a key is cut off.
  explicit BlockKeys(std::string_view bytes) : data_(bytes.data()), size_(bytes.size() / kBytes) {
    if (bytes.size() % kBytes != 0)
      throw std::invalid_argument("keys have 16 bytes each, one behind the other");
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  BlockKey operator[](size_t i) const {
    BlockKey key;
    std::memcpy(&key, data_ + i * kBytes, kBytes);
    return key;
  }
  BlockKeys first(size_t count) const {
    BlockKeys some = *this;
    if (count < size_) some.size_ = count;
    return some;
  }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

// The keys of a prompt's full blocks, each of `block` tokens.
struct Chain {
  BlockKeys keys;
  int64_t block;
};

}  // namespace penstock

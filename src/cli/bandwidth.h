// How fast this machine reads memory: the bound on decoding, which reads every weight once a token.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace tandem::cli {

/// Measures a plain streaming read by all threads of a pool, over a buffer of at least four times
/// the last cache, which stays until the end. One thread at a time.
class ReadBandwidth {
 public:
  /// `pool` must outlive this.
  explicit ReadBandwidth(ThreadPool& pool);
  ~ReadBandwidth();
  ReadBandwidth(const ReadBandwidth&) = delete;
  ReadBandwidth& operator=(const ReadBandwidth&) = delete;

  /// Bytes a second, the median of five passes: what it is held against is no best of its kind
  /// either. 0 if there was no memory for the buffer.
  double measure();

 private:
  ThreadPool& pool_;
  uint64_t size_ = 0;
  uint8_t* bytes_ = nullptr;
};

}  // namespace tandem::cli

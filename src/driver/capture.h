// Stream capture and calls that it forbids.
#pragma once

#include "driver/functions.h"

namespace kvshim::driver {

// While it lives, this thread may ask events and wait for streams that do not capture, although
// another stream captures in a mode that would forbid it and be ended by it (docs/driver-notes.md).
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept
      : exchanged_(cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS) {}
  ~RelaxedCapture() {
    if (exchanged_) cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_;
};

// True where the driver must have the word, whatever we think: the stream captures, a capture
// elsewhere forbids the call, the thread has no context, the stream is no stream.
inline bool only_the_driver(CUstream stream) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace kvshim::driver

// What else is loaded into this process. Asked when the summary is written, never before.
#pragma once

namespace kvshim::telemetry {

enum class Where : unsigned char { absent, before_us, after_us };

// `ending` is the end of a path and begins with a slash: "/libvgpu.so" is any file of that name,
// also with a version behind it; "/kvcached/_C." is one in a folder. The loader's order is the
// order of its look-up: an interposer before us is asked first.
Where find_object(const char* ending) noexcept;

}  // namespace kvshim::telemetry

// All that can be asked of an address agrees: cuMemGetAddressRange, the attributes one by one and
// together, whichever way the functions were found. At the base, inside, at the last byte; one past
// the end, in what the size was rounded up to, and after the free, where nobody knows the address.
#include <string>

#include "gpu.h"

using namespace contract;

namespace {

// What all of them say of one address.
struct Story {
  CUresult range_code{}, code{}, plural_code{}, set_code{};
  CUdeviceptr base = 0, start = 0, plural_start = 0, pointer = 0, plural_pointer = 77;
  std::size_t bytes = 0, size = 0, plural_size = 0;
  CUcontext context = nullptr, plural_context = nullptr;
  int ordinal = -9, plural_ordinal = -9;
  unsigned type = 0, plural_type = 77;
  unsigned long long id = 0, plural_id = 77;
};

struct Functions {
  decltype(cu.cuMemGetAddressRange_v2) range;
  decltype(cu.cuPointerGetAttribute) one;
  decltype(cu.cuPointerGetAttributes) many;
  decltype(cu.cuPointerSetAttribute) set;
};

template <typename F>
void find(F* function, const char* name, const char* exported, int version, int flags) {
  void* found =
      flags < 0 ? by_name(exported) : by_version(name, version, static_cast<cuuint64_t>(flags));
  REQUIRE(found != nullptr);
  *function = reinterpret_cast<F>(found);
}

// By dlsym (flags -1), or cuGetProcAddress with these flags.
Functions found_by(int flags) {
  Functions f{};
  find(&f.range, "cuMemGetAddressRange", "cuMemGetAddressRange_v2", 3020, flags);
  find(&f.one, "cuPointerGetAttribute", "cuPointerGetAttribute", 4000, flags);
  find(&f.many, "cuPointerGetAttributes", "cuPointerGetAttributes", 7000, flags);
  find(&f.set, "cuPointerSetAttribute", "cuPointerSetAttribute", 6000, flags);
  return f;
}

Story story_of(const Functions& f, CUdeviceptr ptr) {
  Story s;
  s.range_code = f.range(&s.base, &s.bytes, ptr);
  s.code = f.one(&s.start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr);
  const auto same = [&](CUresult code, const char* what) {
    if (code != s.code) {
      fail(__FILE__, __LINE__,
           std::string(what) + " gives " + describe_result(code) + ", the start of the range " +
               describe_result(s.code));
    }
  };
  same(f.one(&s.size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr), "its size");
  same(f.one(&s.context, CU_POINTER_ATTRIBUTE_CONTEXT, ptr), "the context");
  same(f.one(&s.ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr), "the device");
  same(f.one(&s.type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr), "the memory type");
  same(f.one(&s.id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr), "the buffer id");
  same(f.one(&s.pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ptr), "the device pointer");
  CUpointer_attribute names[] = {
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
      CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_BUFFER_ID,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
  void* places[] = {&s.plural_start, &s.plural_size, &s.plural_context, &s.plural_ordinal,
                    &s.plural_type,  &s.plural_id,   &s.plural_pointer};
  s.plural_code = f.many(7, names, places, ptr);
  unsigned on = 1;
  s.set_code = f.set(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr);
  return s;
}

void expect_block(const Story& s, CUdeviceptr ptr, const Block& block, CUcontext owner,
                  unsigned long long* id) {
  GIVES(0, s.range_code);
  GIVES(0, s.code);
  GIVES(0, s.plural_code);
  GIVES(0, s.set_code);
  for (const CUdeviceptr base : {s.base, s.start, s.plural_start}) EXPECT_EQ(base, block.ptr());
  for (const std::size_t bytes : {s.bytes, s.size, s.plural_size}) EXPECT_EQ(bytes, block.bytes());
  for (const CUcontext context : {s.context, s.plural_context}) EXPECT(context == owner);
  for (const int ordinal : {s.ordinal, s.plural_ordinal}) EXPECT_EQ(ordinal, first_device());
  for (const CUdeviceptr pointer : {s.pointer, s.plural_pointer}) EXPECT_EQ(pointer, ptr);
  EXPECT_EQ(s.type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(s.plural_type, s.type);
  EXPECT_EQ(s.plural_id, s.id);
  if (*id == 0) *id = s.id;
  EXPECT_EQ(s.id, *id);
}

void expect_nobody(const Story& s) {
  REFUSES(s.range_code);
  GIVES(1, s.code);
  GIVES(0, s.plural_code);
  GIVES(1, s.set_code);
  EXPECT_EQ(s.plural_type, 0u);
  EXPECT_EQ(s.plural_ordinal, -2);
  EXPECT_EQ(s.plural_pointer, 0u);
  EXPECT_EQ(s.plural_id, 0u);
  EXPECT(s.plural_context == nullptr);
}

std::vector<std::size_t> sizes() {
  return {1000, 6000, 2 * kMiB, 3 * kMiB + 512, option_large(), option_large() + 777};
}

}  // namespace

CHECK_CASE("one_story", "at the base, inside and at the last byte", plain) {
  const CUcontext primary = use_primary();
  for (const int flags : {-1, 0, 1, 2}) {
    const Functions f = found_by(flags);
    for (const std::size_t bytes : sizes()) {
      const Block block(bytes);
      unsigned long long id = 0;
      for (const CUdeviceptr ptr : {block.ptr(), block + 1, block + bytes / 2, block.end() - 1}) {
        expect_block(story_of(f, ptr), ptr, block, primary, &id);
      }
      EXPECT(id != 0);
    }
  }
}

CHECK_CASE("one_story", "in what a size was rounded up to, from one past the end on", plain) {
  use_primary();
  const Functions f = found_by(0);
  // Sizes that are rounded up by the driver too, so that nobody else can have the bytes behind.
  for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB + 512, option_large() + 777}) {
    const Block block(bytes);
    for (const CUdeviceptr ptr : {block.end(), block.end() + 1, block.end() + 20}) {
      expect_nobody(story_of(f, ptr));
    }
    if (bytes > kMiB) expect_nobody(story_of(f, block.end() + 100 * kKiB));
  }
}

CHECK_CASE("one_story", "after the free", plain) {
  use_primary();
  for (const int flags : {-1, 0, 2}) {
    const Functions f = found_by(flags);
    for (const std::size_t bytes : sizes()) {
      const Block neighbour(bytes);
      CUdeviceptr ptr = 0;
      {
        const Block block(bytes);
        ptr = block;
      }
      for (const CUdeviceptr at : {ptr, ptr + 1, ptr + bytes - 1}) expect_nobody(story_of(f, at));
    }
  }
}

CHECK_CASE("one_story", "after a stream-ordered free, once the stream is done", plain) {
  use_primary();
  const Functions f = found_by(0);
  const Stream stream;
  for (const std::size_t bytes : {std::size_t{6000}, 3 * kMiB + 512}) {
    CUdeviceptr ptr = 0;
    CALL(cu.cuMemAlloc(&ptr, bytes));
    CALL(cu.cuMemFreeAsync(ptr, stream));
    stream.finish();
    expect_nobody(story_of(f, ptr));
  }
}

CHECK_CASE("one_story", "what SYNC_MEMOPS was set to, whichever way it is asked", plain) {
  use_primary();
  for (const std::size_t bytes : sizes()) {
    if (memory_of(bytes) == Memory::managed) continue;  // always on
    const Block block(bytes), neighbour(bytes);
    const auto asked = [](CUdeviceptr ptr) {
      unsigned one = 7, many = 7;
      CUpointer_attribute name = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
      void* place = &many;
      GIVES(0, cu.cuPointerGetAttribute(&one, name, ptr));
      GIVES(0, cu.cuPointerGetAttributes(1, &name, &place, ptr));
      EXPECT_EQ(one & 0xff, many & 0xff);
      return one & 0xff;
    };
    unsigned on = 1, off = 0;
    EXPECT_EQ(asked(block), 0u);
    GIVES(0, cu.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block + bytes / 2));
    EXPECT_EQ(asked(block.end() - 1), 1u);
    EXPECT_EQ(asked(neighbour), 0u);
    GIVES(0, cu.cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
    EXPECT_EQ(asked(block + 1), 0u);
  }
}

// What compiled C++ asks of a C++ runtime, answered without one: libkvshim.so depends on libc only.
// Part of the preloaded library and of nothing else (a test program has a real runtime, and this
// operator new would replace its own).
//
// fmt's templates mention these functions on paths that this library never takes (a buffer that
// outgrows its inline storage). Each of them is a trap, so a use of the heap cannot slip in.
#include <cstddef>
#include <new>
#include <string>

#define KVSHIM_TRAP(signature) \
  signature {                  \
    __builtin_trap();          \
  }

// The linker's version script keeps all of this inside the library.
KVSHIM_TRAP(void* operator new(std::size_t))
KVSHIM_TRAP(void* operator new[](std::size_t))
KVSHIM_TRAP(void operator delete(void*) noexcept)
KVSHIM_TRAP(void operator delete[](void*) noexcept)
KVSHIM_TRAP(void operator delete(void*, std::size_t) noexcept)
KVSHIM_TRAP(void operator delete[](void*, std::size_t) noexcept)

extern "C" {
KVSHIM_TRAP(void __cxa_pure_virtual())
KVSHIM_TRAP(double ceil(double))  // libm's, from fmt's unused floating point in a build without -O
}

namespace std {
KVSHIM_TRAP(void __throw_bad_alloc())
KVSHIM_TRAP(void __throw_bad_array_new_length())
KVSHIM_TRAP(void __throw_length_error(const char*))
KVSHIM_TRAP(void __throw_logic_error(const char*))
KVSHIM_TRAP(void __throw_out_of_range_fmt(const char*, ...))
KVSHIM_TRAP(void __glibcxx_assert_fail(const char*, int, const char*, const char*) noexcept)
template class allocator<char>;
}  // namespace std

// fmt's exception class derives from std::runtime_error, whose members would bring libstdc++'s
// exception machinery and its constructors along. By their symbols, since the class is the
// runtime's.
#define KVSHIM_TRAP_SYMBOL(name, symbol)  \
  extern "C" void name() __asm__(symbol); \
  extern "C" void name() {                \
    __builtin_trap();                     \
  }
KVSHIM_TRAP_SYMBOL(kvshim_trap_what, "_ZNKSt13runtime_error4whatEv")
KVSHIM_TRAP_SYMBOL(kvshim_trap_destroy, "_ZNSt13runtime_errorD2Ev")

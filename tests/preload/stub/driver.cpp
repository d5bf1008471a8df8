// A driver library of four functions, for the tests of lookup alone. Built as libcuda.so.1, and
// once more without that name as "another library that happens to define them".
#ifndef STUB_ANSWER
#define STUB_ANSWER 222
#endif

extern "C" {
int cuMemAlloc(unsigned*, unsigned) {
  return 111;
}  // the ABI before CUDA 3.2
int cuMemAlloc_v2(void*, unsigned long) {
  return STUB_ANSWER;
}
int cuInit(unsigned) {
  return 0;
}
int cuGetExportTable(const void**, const void*) {
  return 801;
}
}

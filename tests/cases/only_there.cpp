// A library that is only there, for tests that look at names.
extern "C" __attribute__((visibility("default"))) void only_there() {}

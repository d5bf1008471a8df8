// The stand-in for a libc from the future: one function under a version that no libc has yet.
int from_the_future(void);
int from_the_future(void) { return 1; }
